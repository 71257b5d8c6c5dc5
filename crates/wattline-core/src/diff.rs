//! From what is planned and what is held to the next steps, in the order in which power is safe:
//! whatever lowers power first, whatever raises it last, waking before starting.

use crate::ids::{JobId, NodeId};
use crate::power::NodePower;
use crate::state::{Phase, State, Target};

/// A step that is still to be taken. The order of the variants is the order of actuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Take a job off its GPUs.
    Stop(JobId),
    /// Lower a running job's limit.
    LowerLimit(JobId),
    /// Put a node to sleep.
    Sleep(NodeId),
    /// Boot a node.
    Wake(NodeId),
    /// Raise a running job's limit.
    RaiseLimit(JobId),
    /// Start a job.
    Start(JobId),
}

impl Step {
    fn rank(self) -> u8 {
        match self {
            Self::Stop(_) => 0,
            Self::LowerLimit(_) => 1,
            Self::Sleep(_) => 2,
            Self::Wake(_) => 3,
            Self::RaiseLimit(_) => 4,
            Self::Start(_) => 5,
        }
    }
}

/// The next step of each of these jobs and nodes, ordered; among equals the order given stays.
pub fn diff(state: &State, jobs: &[JobId], nodes: &[NodeId], steps: &mut Vec<Step>) {
    steps.clear();
    steps.extend(jobs.iter().filter_map(|id| job_step(state, *id)));
    steps.extend(nodes.iter().filter_map(|id| node_step(state, *id)));
    if steps.len() > 1 {
        steps.sort_by_key(|s| s.rank());
    }
}

fn job_step(state: &State, id: JobId) -> Option<Step> {
    let job = state.job(id);
    match (&job.phase, &job.planned, &job.held) {
        (Phase::Waiting, Some(_), _) => Some(Step::Start(id)),
        (Phase::Running, None, _) => Some(Step::Stop(id)),
        (Phase::Running, Some(planned), Some(held)) => {
            if !held.same_but_limit(planned) {
                Some(Step::Stop(id))
            } else if job.limiting.is_some() {
                None
            } else if planned.configuration.power_limit < held.configuration.power_limit {
                Some(Step::LowerLimit(id))
            } else if planned.configuration.power_limit > held.configuration.power_limit {
                Some(Step::RaiseLimit(id))
            } else if job.limit_unsure {
                // What is enforced may be another limit than the one on record: set it again.
                Some(Step::LowerLimit(id))
            } else {
                None
            }
        }
        _ => None,
    }
}

fn node_step(state: &State, id: NodeId) -> Option<Step> {
    let node = state.node(id);
    if node.must_be_woken_again() {
        return Some(Step::Wake(id));
    }
    match (node.target, node.power) {
        (Target::Asleep, NodePower::Up) => Some(Step::Sleep(id)),
        (Target::Up, NodePower::Asleep) => Some(Step::Wake(id)),
        _ => None,
    }
}
