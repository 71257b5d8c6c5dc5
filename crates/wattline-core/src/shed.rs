//! Getting below a budget that fell: the engine's own answer, whatever the policy.
//!
//! First all limits go down together, then idle nodes sleep, then preemptible jobs and jobs that
//! have not started stop, the least weighty first, until what is planned fits. A running job that is
//! not preemptible goes on, because its work would be lost; only where the site wrote
//! `shed = "kill"` are such jobs ended, last. Policies decide what to do with what is left.

use crate::ids::{JobId, NodeId, PlanId};
use crate::plan::{Decision, JobChange, NodeChange, Plan, Reason};
use crate::power::{self, Occupancy, TOLERANCE};
use crate::state::{JobState, State, Target};
use crate::time::Timestamp;
use crate::units::Watts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// How finely the common level of limits is chosen.
const LEVELS: u32 = 32;

/// What may be done about jobs that are not preemptible, where a budget cannot be kept without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shed {
    /// Nothing: only preemptible jobs stop. The line may then not be kept, and an alert says so.
    #[default]
    Stop,
    /// They are ended for good, the least weighty first, after everything else.
    Kill,
}

/// What is given up for a budget, and what that comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Shedding {
    /// What changes.
    pub plan: Plan,
    /// What is committed when it is carried out.
    pub committed: Watts,
    /// Whether that is within the budget.
    pub kept: bool,
    /// Running jobs that may not be stopped, and go on. Empty while lower limits and sleeping nodes
    /// are enough.
    pub unstoppable: Vec<JobId>,
    /// Jobs that are ended for good, with [`Shed::Kill`] alone. They are among those that stop.
    pub killed: Vec<JobId>,
}

/// Brings what is planned down to the budget, or as far as it goes; `None` if it fits.
#[must_use]
pub fn shed(state: &State, budget: Watts, current: PlanId, may: Shed) -> Option<Shedding> {
    if state.planned_committed() <= budget + TOLERANCE {
        return None;
    }
    let mut draft = Draft::new(state);
    go_down(&mut draft, budget, may);
    let committed = draft.committed();
    Some(Shedding {
        committed,
        kept: committed <= budget + TOLERANCE,
        unstoppable: std::mem::take(&mut draft.unstoppable),
        killed: draft.killed.iter().copied().collect(),
        plan: draft.into_plan(current),
    })
}

/// Takes one step after the other until the draft fits, or nothing is left.
fn go_down(draft: &mut Draft<'_>, budget: Watts, may: Shed) {
    let state = draft.state;
    for level in (0..LEVELS).rev() {
        draft.set_level(f64::from(level) / f64::from(LEVELS));
        if draft.committed() <= budget {
            return;
        }
    }
    let nodes: Vec<NodeId> = state.cluster().node_ids().collect();
    for node in nodes.iter().rev() {
        if draft.try_sleep(*node) && draft.committed() <= budget {
            return;
        }
    }
    let stays = |id: &JobId| state.job(*id).is_pinned() || state.job(*id).is_foreign();
    let (pinned, stoppable): (Vec<JobId>, Vec<JobId>) =
        in_order(state).into_iter().partition(stays);
    for job in stoppable {
        draft.stop(job);
        if draft.committed() <= budget {
            return;
        }
    }
    for (at, job) in pinned.iter().enumerate() {
        if may == Shed::Stop || draft.committed() <= budget {
            draft.unstoppable.extend_from_slice(&pinned[at..]);
            break;
        }
        // What is not ours is not ours to end.
        if state.job(*job).is_foreign() {
            draft.unstoppable.push(*job);
            continue;
        }
        draft.killed.insert(*job);
        draft.stop(*job);
    }
}

/// All that are planned, in the order in which they are given up.
fn in_order(state: &State) -> Vec<JobId> {
    let planned = state.unfinished_jobs().filter(|(_, job)| job.planned.is_some());
    let mut jobs: Vec<JobId> = planned.map(|(id, _)| id).collect();
    jobs.sort_by(|a, b| {
        let (x, y) = (state.job(*a), state.job(*b));
        // A job that has not started loses nothing; the one that started last loses least.
        let start = |job: &JobState| job.first_start.unwrap_or(Timestamp::FAR_FUTURE);
        let weight = x.job.weight.total_cmp(&y.job.weight);
        weight.then(start(y).cmp(&start(x))).then(b.cmp(a))
    });
    jobs
}

struct Draft<'a> {
    state: &'a State,
    /// 0: every limit at its card's lowest; 1: as planned.
    level: f64,
    stopped: BTreeSet<JobId>,
    asleep: BTreeSet<NodeId>,
    /// What each node commits in this draft.
    nodes: Vec<Watts>,
    unstoppable: Vec<JobId>,
    killed: BTreeSet<JobId>,
}

impl<'a> Draft<'a> {
    fn new(state: &'a State) -> Self {
        let nodes = state.cluster().node_ids().map(|id| state.node(id).planned_committed());
        Self {
            state,
            level: 1.0,
            stopped: BTreeSet::new(),
            asleep: BTreeSet::new(),
            nodes: nodes.collect(),
            unstoppable: Vec::new(),
            killed: BTreeSet::new(),
        }
    }

    fn set_level(&mut self, level: f64) {
        self.level = level;
        for id in self.state.cluster().node_ids() {
            self.count(id);
        }
    }

    /// Stops a job; its nodes sleep if nobody else is there.
    fn stop(&mut self, id: JobId) {
        self.stopped.insert(id);
        let Some(placement) = &self.state.job(id).planned else { return };
        for share in placement.allocation.shares() {
            self.count(share.node);
            self.try_sleep(share.node);
        }
    }

    /// A node without jobs can sleep, if it is ours.
    fn try_sleep(&mut self, id: NodeId) -> bool {
        let node = self.state.node(id);
        let empty = node.planned.iter().all(|r| self.stopped.contains(&r.job));
        let saves = node.is_ours() && node.target == Target::Up;
        let sleeps = empty && saves && self.asleep.insert(id);
        if sleeps {
            self.count(id);
        }
        sleeps
    }

    fn limit(&self, id: NodeId, planned: Watts) -> Watts {
        let cluster = self.state.cluster();
        let card = cluster.gpu_type(cluster.node(id).gpu_type);
        let cap = card.min_limit + (card.default_limit - card.min_limit) * self.level;
        planned.min(cap.max(card.min_limit))
    }

    /// Brings what a node commits up to date.
    fn count(&mut self, id: NodeId) {
        let node = self.state.node(id);
        let target = if self.asleep.contains(&id) { Target::Asleep } else { node.target };
        let stays = node.planned.iter().filter(|r| !self.stopped.contains(&r.job));
        let held = stays.fold(Occupancy::default(), |sum, r| {
            let foreign = self.state.job(r.job).is_foreign();
            let limit = if foreign { r.limit } else { self.limit(id, r.limit) };
            sum.with(r.mask.count_ones(), limit)
        });
        self.nodes[id.index()] =
            power::committed(self.state.cluster(), id, node.power_under(target), held);
    }

    fn committed(&self) -> Watts {
        self.nodes.iter().copied().sum()
    }

    fn into_plan(self, current: PlanId) -> Plan {
        let mut plan = Plan::unchanged(current);
        for (id, job) in self.state.unfinished_jobs().filter(|(_, job)| !job.is_foreign()) {
            let Some(placement) = &job.planned else { continue };
            if self.stopped.contains(&id) {
                let killed = self.killed.contains(&id);
                let reason = if killed { Reason::KilledForBudget } else { Reason::ShedForBudget };
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
