//! What is to be planned: the jobs, how they can run, and the nodes.

use super::PowerflowOptions;
use super::kinds::{self, Key, Kind, Point, Rung};
use crate::placing::Decided;
use std::collections::BTreeMap;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::placement::Placement;
use wattline_core::policy::ClusterView;
use wattline_core::power::{self, NodePower, Occupancy};
use wattline_core::units::Watts;

/// Who runs where; by item.
pub(super) type Placements = Vec<Option<Placement>>;

/// Among jobs that wait for their first GPUs one that runs counts as so much shorter: it is not
/// stopped for another that is about as long.
const KEEPS_RUNNING: f64 = 0.5;
/// A job that has been there so many times longer than it would take goes first, so that none waits
/// for ever.
const PATIENCE: f64 = 10.0;
/// No job takes less; keeps ratios of times finite.
const LEAST_SECONDS: f64 = 1e-3;

/// A job that can be planned.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) id: JobId,
    kind: usize,
    /// Work left.
    pub(super) work: f64,
    /// Seconds since it was submitted.
    age: f64,
    /// Seconds that a start costs.
    load: f64,
    /// Seconds that stopping it and starting it otherwise costs.
    pub(super) restart: f64,
    /// The only way to run, for a job that may not be taken off its GPUs.
    pinned: Option<Vec<Rung>>,
}

impl Item {
    pub(super) fn is_pinned(&self) -> bool {
        self.pinned.is_some()
    }
}

/// One way to run an item: which rung, which point on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) rung: usize,
    pub(super) point: usize,
}

/// Everything a plan is made from.
pub(super) struct Problem<'v, 'a> {
    pub(super) view: &'v ClusterView<'a>,
    pub(super) options: PowerflowOptions,
    pub(super) items: Vec<Item>,
    kinds: Vec<Kind>,
    /// The items. All others stay as they are.
    decides: Decided,
    pub(super) budget: f64,
}

impl<'v, 'a> Problem<'v, 'a> {
    pub(super) fn new(view: &'v ClusterView<'a>, options: PowerflowOptions) -> Self {
        let mut problem = Self {
            view,
            options,
            items: Vec::new(),
            kinds: Vec::new(),
            decides: Decided::nobody(view.state),
            budget: view.budget.map_or(f64::INFINITY, Watts::get),
        };
        let mut known: BTreeMap<Key, Option<usize>> = BTreeMap::new();
        for (id, job) in view.state.unfinished_jobs().filter(|(_, job)| job.is_plannable()) {
            let pinned = if job.is_pinned() {
                let Some(placement) = &job.planned else { continue };
                let c = &placement.configuration;
                // One that cannot be foreseen there stays as it is.
                let Some(rung) = kinds::rung(view, &job.job, c.shape(), c.batch) else { continue };
                Some(vec![rung])
            } else {
                None
            };
            let kind = *known.entry(kinds::key(job)).or_insert_with(|| {
                let kind = Kind::new(view, job)?;
                problem.kinds.push(kind);
                Some(problem.kinds.len() - 1)
            });
            let Some(kind) = kind else { continue };
            let cost = view.predictor.restart(&job.job);
            let started = job.first_start.is_some();
            problem.decides.add(view.state, id);
            problem.items.push(Item {
                id,
                kind,
                work: job.remaining(view.now).0,
                age: view.now.since(job.job.submit).get(),
                load: if started { cost.load.get() } else { 0.0 },
                restart: if started { (cost.save + cost.load).get() } else { 0.0 },
                pinned,
            });
        }
        problem
    }

    /// Where the items are planned now.
    pub(super) fn present(&self) -> Placements {
        self.items.iter().map(|item| self.view.state.job(item.id).planned.clone()).collect()
    }

    /// The ways an item can run, by GPU type and count.
    pub(super) fn rungs(&self, item: usize) -> &[Rung] {
        let item = &self.items[item];
        item.pinned.as_deref().unwrap_or(&self.kinds[item.kind].rungs)
    }

    pub(super) fn point(&self, item: usize, way: Way) -> &Point {
        &self.rungs(item)[way.rung].points[way.point]
    }

    /// On which rung a placement is.
    pub(super) fn rung_of(&self, item: usize, placement: &Placement) -> Option<usize> {
        let c = &placement.configuration;
        self.rungs(item).iter().position(|r| r.shape == c.shape() && r.batch == c.batch)
    }

    /// Seconds to the end on a way, if it is on the rung `now`.
    pub(super) fn time(&self, item: usize, way: Way, now: Now) -> f64 {
        let it = &self.items[item];
        let start = match now {
            Now::Waits => it.load,
            Now::On(rung) if rung == way.rung => 0.0,
            Now::On(_) | Now::Elsewhere => it.restart,
        };
        (it.work / self.point(item, way).rate).max(LEAST_SECONDS) + start
    }

    /// Energy of an item as requested.
    pub(super) fn energy_requested(&self, item: usize) -> f64 {
        let it = &self.items[item];
        it.work * self.kinds[it.kind].requested
    }

    /// On which rung an item is now.
    pub(super) fn now(&self, item: usize, present: &Placements) -> Now {
        match &present[item] {
            None => Now::Waits,
            Some(placement) => self.rung_of(item, placement).map_or(Now::Elsewhere, Now::On),
        }
    }

    /// In which order items get their first GPUs: the fewest GPU-seconds first, as small as they
    /// can run.
    pub(super) fn order(&self, present: &Placements) -> Vec<usize> {
        let key = |item: usize| {
            let it = &self.items[item];
            let rungs = self.rungs(item);
            let area = |rung: &Rung| {
                let time = (it.work / rung.points[0].rate).max(LEAST_SECONDS);
                (time * f64::from(rung.shape.gpus), time)
            };
            let (area, time) = rungs
                .iter()
                .map(area)
                .fold((f64::INFINITY, 0.0), |a, b| if b.0 < a.0 { b } else { a });
            let runs = present[item].is_some();
            let class = match (it.is_pinned(), it.age > PATIENCE * time) {
                (true, _) => 0,
                (_, true) => 1,
                _ => 2,
            };
            let area = if runs { area * KEEPS_RUNNING } else { area };
            (class, if class == 1 { -it.age } else { area })
        };
        let keys: Vec<(u8, f64)> = (0..self.items.len()).map(key).collect();
        let mut order: Vec<usize> = (0..self.items.len()).collect();
        order.sort_by(|a, b| {
            keys[*a].0.cmp(&keys[*b].0).then(keys[*a].1.total_cmp(&keys[*b].1)).then(a.cmp(b))
        });
        order
    }

    /// Whether a node can be used, and whether it is up. One that is going to sleep counts as up,
    /// because a plan that sends it to sleep must look the same when it is made again.
    pub(super) fn ready(&self) -> Vec<Option<bool>> {
        let state = self.view.state;
        let ready = |id: NodeId| match state.node(id).power {
            NodePower::Down | NodePower::Closed => None,
            power => Some(matches!(power, NodePower::Up | NodePower::FallingAsleep)),
        };
        state.cluster().node_ids().map(ready).collect()
    }

    /// What stays on a node whatever is planned.
    pub(super) fn fixed(&self, id: NodeId) -> Occupancy {
        self.decides.fixed(self.view.state, id)
    }

    /// GPUs of a node that this plan decides about.
    pub(super) fn free_mask(&self, id: NodeId) -> u64 {
        self.decides.free_mask(self.view.state, id)
    }

    /// What a node holds in a plan, whatever this plan is.
    pub(super) fn held(&self, placements: &Placements) -> Vec<Occupancy> {
        self.decides.held_with(self.view.state, placements.iter().flatten())
    }

    /// Committed power of a node that holds this: asleep if that is nothing, and otherwise as if
    /// it had to be woken first, because which nodes are up changes while a plan is carried out.
    pub(super) fn committed_if(&self, id: NodeId, held: Occupancy) -> f64 {
        let power = match self.view.state.node(id).power {
            power @ (NodePower::Down | NodePower::Closed) => power,
            _ if held.busy > 0 => NodePower::Booting,
            _ => NodePower::Asleep,
        };
        power::committed(self.view.state.cluster(), id, power, held).get()
    }
}

/// Where an item stands before a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Now {
    /// It holds nothing.
    Waits,
    /// It is on this rung.
    On(usize),
    /// It runs in a way that is none of its rungs.
    Elsewhere,
}
