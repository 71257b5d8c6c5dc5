//! What a job that could start would save by waiting.
//!
//! A later start costs less than one now for two reasons only: energy is cheaper then, or the job
//! shares a node that it would have to itself now. Somebody must come to share it with: those who go
//! on beside one that ends, or a job that is expected, if the cluster is not idle. Those who wait themselves are company at
//! once if they start too, so nobody waits for them. Lateness counts on the other side. Where
//! neither is to be had, a job that waits only gets later, however dear energy is.

use super::candidates::Way;
use super::market::{Market, USUAL};
use super::model::{Draft, Item, Problem};
use super::nodes::{NO_CLASS, Nodes, Spot};

/// From when on a job that waits may find others to share a node with.
pub(super) struct Company {
    /// By GPU type: seconds from now; infinite if nobody is expected.
    from: Vec<f64>,
}

impl Company {
    pub(super) fn new(problem: &Problem<'_, '_>) -> Self {
        let mut from = vec![f64::INFINITY; problem.gpus_of.len()];
        // On an idle cluster nobody waits for a job that is only expected: it may not come.
        let idle = problem.items.iter().all(|item| item.now.is_none());
        for coming in problem.coming.iter().filter(|_| !idle) {
            for (_, way) in problem.ways_in(&coming.item) {
                let of_type = &mut from[way.shape.gpu_type.index()];
                *of_type = of_type.min(coming.at);
            }
        }
        // By node: how many are there, and when the first of them ends.
        let nodes = problem.view.state.cluster().nodes().len() as u32;
        let mut there: Vec<(usize, f64)> = vec![(0, f64::INFINITY); nodes as usize];
        for (at, item) in problem.items.iter().enumerate() {
            let Some(slot) = &item.now else { continue };
            let end = item.work / problem.way(slot.way).rate + problem.lost(at, slot);
            for (node, _) in &slot.spot {
                let (count, first) = &mut there[*node as usize];
                (*count, *first) = (*count + 1, first.min(end));
            }
        }
        for (node, (count, first)) in (0..nodes).zip(there) {
            let class = problem.empty.class_of(node);
            if class == NO_CLASS {
                continue;
            }
            let class = &problem.classes[usize::from(class)];
            let others = usize::from(problem.empty.free(node) < class.size);
            if count + others > 1 {
                from[class.gpu_type] = from[class.gpu_type].min(first);
            }
        }
        Self { from }
    }

    fn from(&self, way: &Way) -> f64 {
        self.from[way.shape.gpu_type.index()]
    }
}

/// GPUs that those want who come after a job in the order, by type; each as few as it can.
pub(super) struct Behind(Vec<f64>);

impl Behind {
    pub(super) fn new(problem: &Problem<'_, '_>, draft: &Draft) -> Self {
        let mut behind = Self(vec![0.0; problem.gpus_of.len()]);
        for (item, _) in problem.items.iter().zip(draft).filter(|(_, slot)| slot.is_none()) {
            behind.count(problem, item, 1.0);
        }
        behind
    }

    /// It is this one's turn.
    pub(super) fn pass(&mut self, problem: &Problem<'_, '_>, item: &Item) {
        self.count(problem, item, -1.0);
    }

    fn count(&mut self, problem: &Problem<'_, '_>, item: &Item, sign: f64) {
        for (of_type, wanted) in self.0.iter_mut().enumerate() {
            let of_type = |way: &Way| way.shape.gpu_type.index() == of_type;
            let ways = problem.ways_in(item).filter(|(_, way)| of_type(way));
            *wanted += sign * ways.map(|(_, way)| way.gpus()).reduce(f64::min).unwrap_or(0.0);
        }
    }
}

impl Problem<'_, '_> {
    /// Billed watts of a job that opens a node, if those behind it come there too; others as they
    /// are.
    pub(super) fn shared_watts(
        &self,
        nodes: &Nodes,
        way: &Way,
        (spot, watts): (&Spot, f64),
        behind: &Behind,
    ) -> f64 {
        let [(node, gpus)] = spot[..] else { return watts };
        let class = &self.classes[usize::from(nodes.class_of(node))];
        if nodes.free(node) < class.size {
            return watts;
        }
        let company = behind.0[way.shape.gpu_type.index()];
        let busy = (f64::from(gpus) + company).min(f64::from(class.size));
        let all = class.billed[busy as usize] - class.billed[0];
        let shared = all * f64::from(gpus) / busy.floor() + class.pue * way.power * way.gpus();
        shared.min(watts)
    }

    /// The least that a later start costs in a way that draws so many watts alone, on nodes that
    /// wake that long.
    pub(super) fn costs_later(
        &self,
        market: &Market,
        company: &Company,
        (item, way): (&Item, &Way),
        (watts, wake): (f64, f64),
    ) -> f64 {
        let time = item.work / way.rate + item.load + wake;
        let from = company.from(way);
        let beside = self.usual_watts(way).min(watts);
        let cost = |start: f64| {
            let watts = if start >= from { beside } else { watts };
            self.prices.watt(start, start + time) * watts
                + self.late(item, way, start, time)
                + market.taken_then(way, self.committed_watts(way), (start, time), USUAL)
        };
        market
            .later_starts()
            .chain(Some(from).filter(|from| from.is_finite()))
            .map(cost)
            .fold(f64::INFINITY, f64::min)
    }
}
