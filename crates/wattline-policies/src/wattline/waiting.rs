//! Move: a job waits on purpose, for what that saves.
//!
//! A later start costs less for two reasons only: energy is cheaper then, or the job shares a node
//! that it would have to itself now, with jobs that go on beside one that ends, or with an expected
//! job if the cluster is not idle. Jobs that wait themselves share at once if they start too, so no
//! job waits for them. Lateness counts on the other side. With neither gain, a job that waits only
//! gets later.

use super::{Candidate, Draft, Item, Market, Nodes, Problem, Spot, USUAL};

/// From when on a job that waits may find others to share a node with.
pub(super) struct NodeSharing {
    /// By GPU type: seconds from now; infinite if no job is expected.
    from: Vec<f64>,
}

impl NodeSharing {
    pub(super) fn new(problem: &Problem<'_, '_>) -> Self {
        let mut from = vec![f64::INFINITY; problem.gpus_of.len()];
        // On an idle cluster no job waits for one that is only expected: it may not come.
        let idle = problem.items.iter().all(|item| item.now.is_none());
        for arrival in problem.arrivals.iter().filter(|_| !idle) {
            for candidate in problem.candidates_in(&arrival.item) {
                let of_type = &mut from[candidate.gpu_type()];
                *of_type = of_type.min(arrival.at);
            }
        }
        // By node: how many are there, and when the first of them ends.
        let nodes = problem.view.state.cluster().nodes().len();
        let mut there: Vec<(usize, f64)> = vec![(0, f64::INFINITY); nodes];
        for (at, item) in problem.items.iter().enumerate() {
            let Some(slot) = &item.now else { continue };
            let end = problem.end(at, slot);
            for (node, _) in &slot.spot {
                let (count, first) = &mut there[*node as usize];
                (*count, *first) = (*count + 1, first.min(end));
            }
        }
        for (node, class) in problem.empty.usable() {
            let (count, first) = there[node as usize];
            let blocked = usize::from(problem.empty.free(node) < class.size);
            if count + blocked > 1 {
                from[class.gpu_type] = from[class.gpu_type].min(first);
            }
        }
        Self { from }
    }

    fn from(&self, candidate: &Candidate) -> f64 {
        self.from[candidate.gpu_type()]
    }
}

/// By type: GPUs that the jobs after one in the order want, each as few as it can.
pub(super) struct Behind(Vec<f64>);

impl Behind {
    pub(super) fn new(problem: &Problem<'_, '_>, draft: &Draft) -> Self {
        let mut behind = Self(vec![0.0; problem.gpus_of.len()]);
        for (item, _) in problem.items.iter().zip(draft).filter(|(_, slot)| slot.is_none()) {
            behind.count(problem, item, 1.0);
        }
        behind
    }

    pub(super) fn pass(&mut self, problem: &Problem<'_, '_>, item: &Item) {
        self.count(problem, item, -1.0);
    }

    fn count(&mut self, problem: &Problem<'_, '_>, item: &Item, sign: f64) {
        for (of_type, wanted) in self.0.iter_mut().enumerate() {
            let candidates = problem.candidates_in(item).iter();
            let gpus = candidates.filter(|c| c.gpu_type() == of_type).map(Candidate::gpus);
            *wanted += sign * gpus.reduce(f64::min).unwrap_or(0.0);
        }
    }
}

impl Problem<'_, '_> {
    /// Billed watts of a job; if it opens a node, its share with the jobs behind it.
    pub(super) fn shared_watts(
        &self,
        nodes: &Nodes,
        candidate: &Candidate,
        (spot, watts): (&Spot, f64),
        behind: &Behind,
    ) -> f64 {
        let [(node, gpus)] = spot[..] else { return watts };
        let class = &self.classes[usize::from(nodes.class_of(node))];
        if nodes.free(node) < class.size {
            return watts;
        }
        let others = behind.0[candidate.gpu_type()];
        let busy = (f64::from(gpus) + others).min(f64::from(class.size));
        let all = class.billed[busy as usize] - class.billed[0];
        let shared =
            all * f64::from(gpus) / busy.floor() + class.pue * candidate.power * candidate.gpus();
        shared.min(watts)
    }

    /// The least that a later start costs in a candidate that draws these watts alone, on nodes
    /// that take so long to wake.
    pub(super) fn costs_later(
        &self,
        market: &Market,
        sharing: &NodeSharing,
        (item, candidate): (&Item, &Candidate),
        (watts, wake): (f64, f64),
    ) -> f64 {
        let time = item.work / candidate.rate + item.load + wake;
        let from = sharing.from(candidate);
        let (beside, committed) =
            (self.usual_watts(candidate).min(watts), self.committed_watts(candidate));
        let cost = |start: f64| {
            let watts = if start >= from { beside } else { watts };
            self.prices.watt(start, start + time) * watts
                + self.late(item, candidate, start, time)
                + market.taken(candidate, committed, (start, time), USUAL)
        };
        market
            .later_starts()
            .chain(Some(from).filter(|from| from.is_finite()))
            .map(cost)
            .fold(f64::INFINITY, f64::min)
    }
}
