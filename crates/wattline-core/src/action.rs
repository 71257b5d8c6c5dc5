//! Steps from the present state towards a plan, as a backend carries them out.

use crate::ids::{ActionId, JobId, NodeId, PlanId};
use crate::placement::Placement;
use crate::units::Watts;
use serde::{Deserialize, Serialize};

/// What to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionKind {
    /// Start a job, or start it again from its checkpoint, with the power limit already set.
    Start {
        /// Which.
        job: JobId,
        /// How and where.
        placement: Placement,
    },
    /// Checkpoint a job and take it off its GPUs.
    Stop {
        /// Which.
        job: JobId,
        /// The start whose run shall end: a later run is not meant.
        run: ActionId,
    },
    /// Set the power limit of a running job's GPUs.
    Limit {
        /// Which job's.
        job: JobId,
        /// To what.
        limit: Watts,
    },
    /// Boot a node.
    Wake {
        /// Which.
        node: NodeId,
    },
    /// Put an empty node into its low-power state.
    Sleep {
        /// Which.
        node: NodeId,
    },
}

impl ActionKind {
    /// The job that it is about.
    #[must_use]
    pub fn job(&self) -> Option<JobId> {
        match self {
            Self::Start { job, .. } | Self::Stop { job, .. } | Self::Limit { job, .. } => {
                Some(*job)
            }
            Self::Wake { .. } | Self::Sleep { .. } => None,
        }
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// Which; reports about it name it.
    pub id: ActionId,
    /// The plan it serves: whoever has seen a later one may refuse it.
    pub generation: PlanId,
    /// What to do.
    pub kind: ActionKind,
}
