//! From "this job so large" to the very GPUs, moving as few jobs as possible.

use super::Sleep;
use super::budget;
use super::problem::{Now, Placements, Problem, Way};
use crate::packing::{Mover, Space, Where, make_room};
use std::cmp::Reverse;
use wattline_core::cluster::Shape;
use wattline_core::ids::NodeId;
use wattline_core::placement::{Allocation, Configuration, Placement};
use wattline_core::units::Watts;

/// The most jobs that are moved to make room for one.
const MOST_MOVES: usize = 3;
/// Moving others may cost them together this part of the time that the job has to run.
const WORTH: f64 = 0.1;
/// A job is moved to make room only if it has so many times its restart left to run.
const WORTH_RESTART: f64 = 10.0;
/// And only if it has so many times that left, to empty a node.
const WORTH_EMPTYING: f64 = 30.0;

/// Who runs where; and by GPU type how many GPUs running jobs would take if more nodes were up.
pub(super) fn settle(
    problem: &Problem<'_, '_>,
    present: &Placements,
    order: &[usize],
    chosen: &[Option<Way>],
) -> (Placements, Vec<u32>) {
    let mut settler = Settler::new(problem, present);
    settler.hold_on(chosen);
    let mut movers: Vec<(Reverse<u32>, bool, usize, usize, Way)> = Vec::new();
    for (place, item) in order.iter().enumerate() {
        let Some(way) = chosen[*item] else { continue };
        let kept = settler.keeps(*item, way);
        if !kept {
            let gpus = problem.rungs(*item)[way.rung].shape.gpus;
            movers.push((Reverse(gpus), present[*item].is_some(), place, *item, way));
        }
    }
    movers.sort_unstable_by_key(|(gpus, runs, place, ..)| (*gpus, *runs, *place));
    for (_, _, _, item, way) in movers {
        settler.put(item, way);
    }
    if problem.options.sleep != Sleep::Never {
        settler.empty_nodes();
    }
    (settler.placements, settler.wanted)
}

struct Settler<'p, 'v, 'a> {
    problem: &'p Problem<'v, 'a>,
    present: &'p Placements,
    space: Space<'p>,
    placements: Placements,
    /// By node: items that are there.
    on: Vec<Vec<usize>>,
    wanted: Vec<u32>,
}

impl<'p, 'v, 'a> Settler<'p, 'v, 'a> {
    fn new(problem: &'p Problem<'v, 'a>, present: &'p Placements) -> Self {
        let cluster = problem.view.state.cluster();
        let mut space = Space::new(cluster, problem.ready());
        for id in cluster.node_ids() {
            space.give_back(&Allocation::on(id, problem.free_mask(id)));
        }
        Self {
            problem,
            present,
            space,
            placements: vec![None; problem.items.len()],
            on: vec![Vec::new(); cluster.nodes().len()],
            wanted: vec![0; cluster.gpu_types().len()],
        }
    }

    fn configuration(&self, item: usize, way: Way, on: &Allocation) -> Configuration {
        let rung = &self.problem.rungs(item)[way.rung];
        Configuration {
            gpu_type: rung.shape.gpu_type,
            gpus: rung.shape.gpus,
            nodes: on.0.len() as u32,
            batch: rung.batch,
            power_limit: rung.points[way.point].limit,
        }
    }

    /// Gives an item these GPUs; says whether they were free.
    fn give(&mut self, item: usize, way: Way, on: Allocation) -> bool {
        let free = self.space.take(&on);
        if free {
            for share in on.shares() {
                self.on[share.node.index()].push(item);
            }
            let configuration = self.configuration(item, way, &on);
            self.placements[item] = Some(Placement { configuration, allocation: on });
        }
        free
    }

    fn take_back(&mut self, item: usize) -> Option<Placement> {
        let placement = self.placements[item].take()?;
        self.space.give_back(&placement.allocation);
        for share in placement.allocation.shares() {
            self.on[share.node.index()].retain(|other| *other != item);
        }
        Some(placement)
    }

    /// Jobs that run and shall run keep their GPUs for now; those that shrink keep a part of them.
    fn hold_on(&mut self, chosen: &[Option<Way>]) {
        for (item, way) in chosen.iter().enumerate() {
            let (Some(way), Some(old)) = (*way, &self.present[item]) else { continue };
            let shape = self.problem.rungs(item)[way.rung].shape;
            let c = &old.configuration;
            let shrinks = shape.gpu_type == c.gpu_type && shape.gpus < c.gpus;
            match self.problem.now(item, self.present) {
                Now::On(rung) if rung == way.rung => {
                    self.give(item, way, old.allocation.clone());
                }
                _ if shrinks => {
                    if let Some(part) = Space::part_of(&old.allocation, shape.gpus) {
                        self.give(item, way, part);
                    }
                }
                Now::On(rung) => {
                    let point = self.problem.rungs(item)[rung].at_limit(self.limit(item, way));
                    self.give(item, Way { rung, point }, old.allocation.clone());
                }
                _ => {}
            }
        }
    }

    fn limit(&self, item: usize, way: Way) -> Watts {
        self.problem.point(item, way).limit
    }

    fn keeps(&self, item: usize, way: Way) -> bool {
        let rung = &self.problem.rungs(item)[way.rung];
        self.placements[item].as_ref().is_some_and(|placement| {
            let c = &placement.configuration;
            c.shape() == rung.shape && c.batch == rung.batch
        })
    }

    /// Whether the power budget carries the job that large, beside those that have their place, if
    /// all nodes were up.
    fn carried(&self, item: usize, way: Way) -> bool {
        if self.problem.view.budget.is_none() {
            return true;
        }
        let shape = self.problem.rungs(item)[way.rung].shape;
        let Some(on) = self.space.place(shape, Where::Anywhere) else { return false };
        let configuration = self.configuration(item, way, &on);
        let mut then = self.placements.clone();
        then[item] = Some(Placement { configuration, allocation: on });
        budget::carries(self.problem, &then)
    }

    /// Finds a place: as large as chosen, after moves if they are worth it, else smaller. A job that
    /// runs stays where it is rather than shrink for want of a place.
    fn put(&mut self, item: usize, way: Way) {
        let held = self.take_back(item);
        let runs = held.is_some();
        let shape = self.problem.rungs(item)[way.rung].shape;
        let whither = if runs { Where::Ready } else { Where::Anywhere };
        if let Some(on) = self.space.place(shape, whither) {
            self.give(item, way, on);
            return;
        }
        if self.move_others(item, way) {
            return;
        }
        if let Some(held) = held {
            if self.carried(item, way) {
                let more = shape.gpus.saturating_sub(held.configuration.gpus);
                self.wanted[shape.gpu_type.index()] += more;
            }
            if let Some(rung) = self.problem.rung_of(item, &held) {
                let point = self.problem.rungs(item)[rung].at_limit(self.limit(item, way));
                self.give(item, Way { rung, point }, held.allocation);
                return;
            }
        }
        let rungs = self.problem.rungs(item);
        let mut smaller: Vec<usize> =
            (0..rungs.len()).filter(|at| rungs[*at].shape.gpus <= shape.gpus).collect();
        smaller.sort_by_key(|at| {
            (rungs[*at].shape.gpu_type != shape.gpu_type, Reverse(rungs[*at].shape.gpus))
        });
        for rung in smaller {
            if let Some(on) = self.space.place(rungs[rung].shape, Where::Anywhere) {
                let point = rungs[rung].at_limit(self.limit(item, way));
                self.give(item, Way { rung, point }, on);
                return;
            }
        }
    }

    /// Makes room on one node by moving a few others, if that is worth their restarts.
    fn move_others(&mut self, item: usize, way: Way) -> bool {
        let shape: Shape = self.problem.rungs(item)[way.rung].shape;
        let cluster = self.problem.view.state.cluster();
        if shape.gpus > cluster.largest_node(shape.gpu_type) {
            return false;
        }
        let now = self.problem.now(item, self.present);
        let worth = WORTH * self.problem.time(item, way, now);
        let movers = |node: NodeId| -> Vec<Mover> {
            self.on[node.index()]
                .iter()
                .filter_map(|other| self.mover(*other, WORTH_RESTART))
                .collect()
        };
        let mut space = self.space.clone();
        let Some(moves) = make_room(&mut space, shape, &movers, MOST_MOVES, worth) else {
            return false;
        };
        for one in &moves {
            self.relocate(one.item, one.to.clone());
        }
        match self.space.place(shape, Where::Ready) {
            Some(on) => self.give(item, way, on),
            None => false,
        }
    }

    /// Nodes of which little is used are emptied onto others that are in use, so that they sleep.
    fn empty_nodes(&mut self) {
        let cluster = self.problem.view.state.cluster();
        let busy = |id: NodeId| u32::from(cluster.node(id).gpus) - self.space.free(id).count_ones();
        let half = |id: NodeId| busy(id) > 0 && 2 * busy(id) <= u32::from(cluster.node(id).gpus);
        let mut nodes: Vec<NodeId> = cluster
            .node_ids()
            .filter(|id| self.problem.fixed(*id).busy == 0 && half(*id))
            .collect();
        nodes.sort_by_key(|id| busy(*id));
        // Where others can go: nodes that are up and in use.
        let used = |id: NodeId| !self.on[id.index()].is_empty();
        let mut ready = self.problem.ready();
        for id in cluster.node_ids().filter(|id| !used(*id)) {
            ready[id.index()] = None;
        }
        let mut others = Space::new(cluster, ready);
        for id in cluster.node_ids() {
            others.give_back(&Allocation::on(id, self.space.free(id)));
        }
        for node in nodes {
            self.empty(node, &mut others);
        }
    }

    /// Moves everybody off a node to others, or nobody.
    fn empty(&mut self, node: NodeId, others: &mut Space<'_>) {
        let here = self.on[node.index()].clone();
        let movers: Vec<Mover> =
            here.iter().filter_map(|item| self.mover(*item, WORTH_EMPTYING)).collect();
        let free = Allocation::on(node, self.space.free(node));
        if movers.len() < here.len() || !others.take(&free) {
            return;
        }
        let gpu_type = self.problem.view.state.cluster().node(node).gpu_type;
        let mut places: Vec<(usize, Allocation)> = Vec::new();
        for mover in &movers {
            let shape = Shape { gpu_type, gpus: mover.share.count() };
            let Some(on) = others.place(shape, Where::Ready) else { break };
            others.take(&on);
            places.push((mover.item, on));
        }
        if places.len() == movers.len() {
            for (item, on) in places {
                self.relocate(item, on);
            }
        } else {
            places.iter().for_each(|(_, on)| others.give_back(on));
            others.give_back(&free);
        }
    }

    fn relocate(&mut self, item: usize, to: Allocation) {
        let Some(old) = self.take_back(item) else { return };
        self.space.take(&to);
        for share in to.shares() {
            self.on[share.node.index()].push(item);
        }
        let configuration = old.configuration;
        self.placements[item] = Some(Placement { configuration, allocation: to });
    }

    /// An item on one node that may be moved if it runs `worth` times longer than its restart
    /// takes, with the seconds that takes.
    fn mover(&self, item: usize, worth: f64) -> Option<Mover> {
        let it = &self.problem.items[item];
        let placement = self.placements[item].as_ref()?;
        let [share] = placement.allocation.0[..] else { return None };
        let rung = self.problem.rung_of(item, placement)?;
        let point = self.problem.rungs(item)[rung].at_limit(placement.configuration.power_limit);
        let left = it.work / self.problem.point(item, Way { rung, point }).rate;
        let may = !it.is_pinned() && left >= worth * it.restart;
        may.then_some(Mover { item, share, cost: it.restart })
    }
}
