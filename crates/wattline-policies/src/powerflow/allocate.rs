//! Who gets how much: the greedy of PowerFlow.

use super::problem::{Now, Placements, Problem, Way};
use crate::ranked::Ranked;
use std::collections::BinaryHeap;
use wattline_core::cluster::NodeDraw;

/// Steps that take no more energy come before all others.
const FREE: f64 = 1e6;
/// What a job has already is worth so much more to it than the same to another: here, restarts are
/// not free.
const HAS_IT: f64 = 4.0;
/// Energies are not known better than that: below it a step counts as if it took so much more.
const LEAST_ENERGY_STEP: f64 = 0.1;

/// A step that a job could take.
#[derive(Clone, Copy, Debug)]
struct Step {
    item: usize,
    from: Way,
    to: Way,
}

struct Greedy<'p, 'v, 'a> {
    problem: &'p Problem<'v, 'a>,
    now: Vec<Now>,
    chosen: Vec<Option<Way>>,
    /// GPUs nobody has, by type.
    free: Vec<u32>,
    /// Energy of what is chosen, and as requested.
    energy: f64,
    requested: f64,
    /// Watts left below the power budget, nodes counted by the part that is used.
    watts: f64,
    /// By type: watts of a node beside its GPUs' limits, for each GPU; and whether limits count.
    node_watts: Vec<(f64, bool)>,
}

/// The way each item shall run, or none.
pub(super) fn allocate(
    problem: &Problem<'_, '_>,
    present: &Placements,
    order: &[usize],
) -> Vec<Option<Way>> {
    let mut greedy = Greedy::new(problem, present);
    for item in order {
        greedy.first(*item);
    }
    greedy.grow(order);
    greedy.chosen
}

impl<'p, 'v, 'a> Greedy<'p, 'v, 'a> {
    fn new(problem: &'p Problem<'v, 'a>, present: &Placements) -> Self {
        let cluster = problem.view.state.cluster();
        let mut free = vec![0; cluster.gpu_types().len()];
        let mut watts = problem.budget;
        let ready = problem.ready();
        for id in cluster.node_ids() {
            if problem.budget.is_finite() {
                watts -= problem.committed_if(id, problem.fixed(id));
            }
            if ready[id.index()].is_some() {
                free[cluster.node(id).gpu_type.index()] += problem.free_mask(id).count_ones();
            }
        }
        let node_watts = cluster.gpu_type_ids().map(|t| {
            let node = cluster.nodes().iter().find(|node| node.gpu_type == t);
            node.map_or((0.0, true), |node| {
                let size = f64::from(node.gpus);
                match &node.draw {
                    NodeDraw::Additive { base } => ((*base - node.sleep).get() / size, true),
                    NodeDraw::ByBusyGpus(table) => {
                        let full = table.last().map_or(0.0, |entry| entry.watts.get());
                        ((full - node.sleep.get()) / size, false)
                    }
                }
            })
        });
        Self {
            problem,
            now: (0..problem.items.len()).map(|item| problem.now(item, present)).collect(),
            chosen: vec![None; problem.items.len()],
            free,
            energy: 0.0,
            requested: 0.0,
            watts,
            node_watts: node_watts.collect(),
        }
    }

    fn time(&self, item: usize, way: Way) -> f64 {
        self.problem.time(item, way, self.now[item])
    }

    fn energy(&self, item: usize, way: Way) -> f64 {
        self.time(item, way) * self.problem.point(item, way).watts
    }

    fn watts(&self, item: usize, way: Way) -> f64 {
        let shape = self.problem.rungs(item)[way.rung].shape;
        let (node, limits) = self.node_watts[shape.gpu_type.index()];
        let limit = self.problem.point(item, way).limit.get();
        f64::from(shape.gpus) * (node + if limits { limit } else { 0.0 })
    }

    /// A job that has nothing gets the least it can run with. It may take more energy than the
    /// budget has: no job is turned away.
    fn first(&mut self, item: usize) {
        let rungs = self.problem.rungs(item);
        let of_now = match self.now[item] {
            Now::On(rung) => Some(rungs[rung].shape.gpu_type),
            _ => None,
        };
        let mut best: Option<(bool, f64, Way)> = None;
        for (at, rung) in rungs.iter().enumerate() {
            let t = rung.shape.gpu_type;
            let least = at == 0 || rungs[at - 1].shape.gpu_type != t;
            let way = Way { rung: at, point: 0 };
            if !least
                || self.free[t.index()] < rung.shape.gpus
                || (self.watts(item, way) > self.watts && !self.problem.items[item].is_pinned())
            {
                continue;
            }
            // Where it is already; else where time and energy are least.
            let other = of_now.is_some_and(|now| now != t);
            let cost = self.time(item, way) * self.energy(item, way);
            if best.is_none_or(|(o, c, _)| (other, cost) < (o, c)) {
                best = Some((other, cost, way));
            }
        }
        let Some((_, _, way)) = best else { return };
        let shape = rungs[way.rung].shape;
        self.free[shape.gpu_type.index()] -= shape.gpus;
        self.energy += self.energy(item, way);
        self.requested += self.problem.energy_requested(item);
        self.watts -= self.watts(item, way);
        self.chosen[item] = Some(way);
    }

    /// The best step, again and again, until there is none.
    fn grow(&mut self, order: &[usize]) {
        let mut heap = BinaryHeap::new();
        for (place, item) in order.iter().enumerate() {
            heap.extend(self.best_step(place, *item));
        }
        while let Some(Ranked { place, what: step, .. }) = heap.pop() {
            if self.chosen[step.item] != Some(step.from) {
                continue;
            }
            if self.possible(step.item, step.from, step.to) {
                self.take(step);
            }
            heap.extend(self.best_step(place, step.item));
        }
    }

    /// Whether GPUs, energy and watts suffice.
    fn possible(&self, item: usize, from: Way, to: Way) -> bool {
        let rungs = self.problem.rungs(item);
        let (old, new) = (rungs[from.rung].shape, rungs[to.rung].shape);
        let back = if old.gpu_type == new.gpu_type { old.gpus } else { 0 };
        let more = self.energy(item, to) - self.energy(item, from);
        self.free[new.gpu_type.index()] + back >= new.gpus
            && self.watts(item, to) - self.watts(item, from) <= self.watts
            && (more <= 0.0 || self.energy + more <= self.problem.options.energy * self.requested)
    }

    fn take(&mut self, step: Step) {
        let Step { item, from, to, .. } = step;
        let rungs = self.problem.rungs(item);
        let (old, new) = (rungs[from.rung].shape, rungs[to.rung].shape);
        self.free[old.gpu_type.index()] += old.gpus;
        self.free[new.gpu_type.index()] -= new.gpus;
        self.energy += self.energy(item, to) - self.energy(item, from);
        self.watts -= self.watts(item, to) - self.watts(item, from);
        self.chosen[item] = Some(to);
    }

    /// The step that is worth most of those that are possible: the next limit, or any larger count
    /// at this limit.
    fn best_step(&self, place: usize, item: usize) -> Option<Ranked<Step>> {
        let from = self.chosen[item]?;
        let rungs = self.problem.rungs(item);
        let limit = self.problem.point(item, from).limit;
        let here = rungs[from.rung].shape;
        let raised = (from.point + 1 < rungs[from.rung].points.len())
            .then_some(Way { rung: from.rung, point: from.point + 1 });
        let larger = rungs.iter().enumerate().filter_map(|(at, rung)| {
            let other_type = rung.shape.gpu_type != here.gpu_type;
            (other_type || rung.shape.gpus > here.gpus)
                .then(|| Way { rung: at, point: rung.at_limit(limit) })
        });
        raised
            .into_iter()
            .chain(larger)
            .filter(|to| self.possible(item, from, *to))
            .filter_map(|to| {
                let rank = self.rank(item, from, to)?;
                Some(Ranked { rank, place, what: Step { item, from, to } })
            })
            .max()
    }

    /// What a step is worth: the time it saves for the energy it takes. `None` if it does not shorten
    /// the run.
    fn rank(&self, item: usize, from: Way, to: Way) -> Option<f64> {
        let (time, energy) = (self.time(item, from), self.energy(item, from));
        let shorter = (time - self.time(item, to)) / time;
        let dearer = (self.energy(item, to) - energy) / energy;
        if shorter <= 0.0 {
            return None;
        }
        let rungs = self.problem.rungs(item);
        let has = match self.now[item] {
            Now::On(rung) => {
                rungs[to.rung].shape.gpus <= rungs[rung].shape.gpus && to.rung != from.rung
            }
            _ => false,
        };
        let mut worth = shorter / dearer.max(LEAST_ENERGY_STEP);
        if self.problem.options.lend {
            worth /= self.lends(item, from, to);
        }
        let free = if dearer <= 0.0 { FREE } else { 1.0 };
        Some(worth * free * if has { HAS_IT } else { 1.0 })
    }

    /// With `+lend`: how many GPUs more a step takes, and for how long.
    fn lends(&self, item: usize, from: Way, to: Way) -> f64 {
        let rungs = self.problem.rungs(item);
        let (old, new) = (rungs[from.rung].shape.gpus, rungs[to.rung].shape.gpus);
        if new > old {
            f64::from(new - old) * self.time(item, to).sqrt()
        } else if to.rung == from.rung {
            self.time(item, to).sqrt()
        } else {
            1.0
        }
    }
}
