//! Getting below a budget that fell: the engine's own answer, whatever the policy.
//!
//! First all limits go down together, then idle nodes sleep, then jobs stop, the least weighty
//! first, until what is planned fits. Policies decide what to do with what is left.

use crate::ids::{JobId, NodeId, PlanId};
use crate::plan::{Decision, JobChange, NodeChange, Plan, Reason};
use crate::power::{self, Occupancy, TOLERANCE};
use crate::state::{JobState, State, Target};
use crate::time::Timestamp;
use crate::units::Watts;
use std::collections::BTreeSet;

/// How finely the common level of limits is chosen.
const LEVELS: u32 = 32;

/// A plan that brings what is planned down to the budget, or as far as it goes; `None` if it fits.
#[must_use]
pub fn shed(state: &State, budget: Watts, current: PlanId) -> Option<Plan> {
    if state.planned_committed() <= budget + TOLERANCE {
        return None;
    }
    let mut draft = Draft { state, level: 1.0, stopped: BTreeSet::new(), asleep: BTreeSet::new() };
    for level in (0..LEVELS).rev() {
        draft.level = f64::from(level) / f64::from(LEVELS);
        if draft.committed() <= budget {
            return Some(draft.into_plan(current));
        }
    }
    let nodes: Vec<NodeId> = state.cluster().node_ids().collect();
    for node in nodes.iter().rev() {
        if draft.try_sleep(*node) && draft.committed() <= budget {
            return Some(draft.into_plan(current));
        }
    }
    let mut running: Vec<JobId> = state
        .unfinished_jobs()
        .filter(|(_, job)| job.planned.is_some() && !job.is_foreign())
        .map(|(id, _)| id)
        .collect();
    running.sort_by(|a, b| {
        let (x, y) = (state.job(*a), state.job(*b));
        // Who has not started loses nothing; who started last loses least.
        let start = |job: &JobState| job.first_start.unwrap_or(Timestamp::FAR_FUTURE);
        // A job that cannot be stopped without losing its work goes last.
        let pinned = x.is_pinned().cmp(&y.is_pinned());
        pinned
            .then(x.job.weight.total_cmp(&y.job.weight))
            .then(start(y).cmp(&start(x)))
            .then(b.cmp(a))
    });
    for job in running {
        draft.stopped.insert(job);
        if let Some(placement) = &state.job(job).planned {
            for share in placement.allocation.shares() {
                draft.try_sleep(share.node);
            }
        }
        if draft.committed() <= budget {
            break;
        }
    }
    Some(draft.into_plan(current))
}

struct Draft<'a> {
    state: &'a State,
    /// 0: every limit at its card's lowest; 1: as planned.
    level: f64,
    stopped: BTreeSet<JobId>,
    asleep: BTreeSet<NodeId>,
}

impl Draft<'_> {
    /// A node without jobs can sleep, if it is ours.
    fn try_sleep(&mut self, id: NodeId) -> bool {
        let node = self.state.node(id);
        let empty = node.planned.iter().all(|r| self.stopped.contains(&r.job));
        let saves = node.is_ours() && node.target == Target::Up;
        empty && saves && self.asleep.insert(id)
    }

    fn limit(&self, id: NodeId, planned: Watts) -> Watts {
        let cluster = self.state.cluster();
        let card = cluster.gpu_type(cluster.node(id).gpu_type);
        let cap = card.min_limit + (card.default_limit - card.min_limit) * self.level;
        planned.min(cap.max(card.min_limit))
    }

    fn committed(&self) -> Watts {
        let of = |id: NodeId| {
            let node = self.state.node(id);
            let target = if self.asleep.contains(&id) { Target::Asleep } else { node.target };
            let stays = node.planned.iter().filter(|r| !self.stopped.contains(&r.job));
            let held = stays.fold(Occupancy::default(), |sum, r| {
                let foreign = self.state.job(r.job).is_foreign();
                let limit = if foreign { r.limit } else { self.limit(id, r.limit) };
                sum.with(r.mask.count_ones(), limit)
            });
            power::committed(self.state.cluster(), id, node.power_under(target), held)
        };
        self.state.cluster().node_ids().map(of).sum()
    }

    fn into_plan(self, current: PlanId) -> Plan {
        let mut plan = Plan::unchanged(current);
        for (id, job) in self.state.unfinished_jobs().filter(|(_, job)| !job.is_foreign()) {
            let Some(placement) = &job.planned else { continue };
            if self.stopped.contains(&id) {
                let reason = Reason::ShedForBudget;
                plan.jobs.push(JobChange { job: id, decision: Decision::Wait, reason });
                continue;
            }
            let Some(share) = placement.allocation.0.first() else { continue };
            let limit = self.limit(share.node, placement.configuration.power_limit);
            if limit < placement.configuration.power_limit {
                let mut lowered = placement.clone();
                lowered.configuration.power_limit = limit;
                let reason = Reason::LimitLowered;
                plan.jobs.push(JobChange { job: id, decision: Decision::Run(lowered), reason });
            }
        }
        let reason = Reason::NodeOverBudget;
        plan.nodes.extend(self.asleep.iter().map(|node| NodeChange {
            node: *node,
            target: Target::Asleep,
            reason,
        }));
        plan
    }
}
