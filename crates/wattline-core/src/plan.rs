//! Plans: the complete desired state, written as changes to the one before, with reasons.

use crate::host::Shortage;
use crate::ids::{JobId, NodeId, PlanId};
use crate::placement::Placement;
use crate::state::Target;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Why something is planned as it is. Log, `explain` and reports all print these.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Nothing was decided yet.
    Arrived,
    /// Runs with what was asked for.
    AsRequested,
    /// Runs in the cheapest configuration that meets its deadline.
    CheapestInTime,
    /// No configuration meets the deadline any more: runs in the fastest that is free.
    FastestWhenLate,
    /// Waits: none of its shapes is free.
    NoRoom,
    /// Waits: the budget has no watts left for it.
    NoPower,
    /// Waits: starting now would delay a job before it; it can start then at the latest.
    Reserved {
        /// When.
        at: Timestamp,
    },
    /// Started before its turn, because it delays nobody.
    Backfilled,
    /// Waits: no shape it may take exists on this cluster.
    NeverFits,
    /// Gave way to a job with less attained service.
    GaveWay {
        /// To whom.
        to: JobId,
    },
    /// Waits: the whole cluster was planned anew, and jobs under more pressure took its room.
    Postponed,
    /// Runs with what saves most of its time for the energy that it takes.
    MostForItsEnergy,
    /// Runs with what costs least, counting what it takes from those who wait.
    LeastForAll,
    /// Waits although it could start: for company on its node, for better GPUs or a cheaper hour.
    BetterLater,
    /// Waits, and has waited for too long: GPUs are kept for it as they become free.
    NextInLine,
    /// Was moved, so that another finds room.
    MadeRoom,
    /// Runs with another number of GPUs than it asked for, so that all jobs together end soonest.
    LeastGpuTime,
    /// Runs with another batch than it asked for.
    BatchScaled {
        /// The batch it asked for.
        from: u32,
        /// The batch it has.
        to: u32,
        /// The learning rate goes up by this factor, after a warm-up.
        learning_rate: f64,
    },
    /// Its power limit was lowered to keep the budget.
    LimitLowered,
    /// Its power limit was raised again.
    LimitRaised,
    /// Was stopped: the budget does not carry it even at its lowest limit.
    ShedForBudget,
    /// Was ended for good, because the site wrote `shed = "kill"` and nothing else was left to give up.
    KilledForBudget,
    /// Could not be started, several times in a row.
    StartFailed,
    /// Waits: the cluster would not start it there, or at all.
    Refused(Refusal),
    /// Waits: GPUs are free, CPUs or memory beside them are not.
    NoHost(Shortage),
    /// Lost its node; of a node: it is lost.
    NodeLost,
    /// The node did not wake. It is planned without, and told to wake again.
    WakeFailed,
    /// The node takes no more jobs.
    NodeClosed,
    /// The node is needed for a job.
    NodeNeeded,
    /// The node was idle for long enough.
    NodeIdle,
    /// The node sleeps because the budget does not carry it.
    NodeOverBudget,
    /// The node sleeps. The budget carries it again, and no job needs it.
    NodeNotNeeded,
    /// The backend could not carry the plan out; it stays as it is.
    ActionFailed,
    /// Its user wants it to wait.
    OnHold,
    /// Somebody else has started it.
    Found,
}

/// Why the cluster would not start a job. The cluster's own words are kept beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The nodes have too few processors, too little memory or too few GPUs free.
    Resources,
    /// The nodes are not what it asked for, or not to be had: drained, reserved, under maintenance.
    Nodes,
    /// A limit of its user, account, partition or quality of service.
    Limit,
    /// No licence is free.
    Licences,
    /// No node of its partition could ever run it as it asks.
    Never,
    /// Anything else.
    Other,
}

impl Refusal {
    /// Whether it is about the job wherever it would run.
    #[must_use]
    pub fn is_everywhere(self) -> bool {
        matches!(self, Self::Limit | Self::Licences | Self::Never | Self::Other)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resources => "the cluster had too few resources free for it there",
            Self::Nodes => "the cluster does not let it have those nodes now",
            Self::Limit => "a limit of its user, account, partition or QOS is reached",
            Self::Licences => "no licence is free for it",
            Self::Never => "no node of its partition could ever run it",
            Self::Other => "the cluster would not start it",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arrived => write!(f, "nothing decided yet"),
            Self::AsRequested => write!(f, "runs with what was asked for"),
            Self::CheapestInTime => write!(f, "cheapest configuration that meets the deadline"),
            Self::FastestWhenLate => write!(f, "no configuration meets the deadline: the fastest"),
            Self::NoRoom => write!(f, "waits: none of its shapes is free"),
            Self::NoPower => write!(f, "waits: the power budget has no room for it"),
            Self::Reserved { at } => write!(f, "waits: starts at {at} at the latest"),
            Self::Backfilled => write!(f, "started early, delays nobody"),
            Self::NeverFits => write!(f, "waits: no shape it may take exists on this cluster"),
            Self::GaveWay { to } => write!(f, "gave way to {to}, which has had less service"),
            Self::Postponed => write!(f, "waits: jobs under more pressure took its room"),
            Self::LeastForAll => write!(f, "costs least, for it and for those who wait"),
            Self::BetterLater => write!(f, "waits: starting later costs less"),
            Self::NextInLine => write!(f, "waits: GPUs are kept for it as they become free"),
            Self::MostForItsEnergy => write!(f, "saves most of its time for the energy"),
            Self::MadeRoom => write!(f, "moved to make room for another"),
            Self::LeastGpuTime => write!(f, "GPUs chosen so that all jobs together end soonest"),
            Self::BatchScaled { from, to, learning_rate } => write!(
                f,
                "batch scaled from {from} to {to}: learning rate times {learning_rate}, with warm-up"
            ),
            Self::LimitLowered => write!(f, "power limit lowered to keep the budget"),
            Self::LimitRaised => write!(f, "power limit raised again"),
            Self::ShedForBudget => write!(f, "stopped: the budget does not carry it"),
            Self::Refused(why) => write!(f, "waits: {why}"),
            Self::NoHost(short) => write!(f, "waits: {short}"),
            Self::KilledForBudget => write!(
                f,
                "ended for good: the budget does not carry it, and the site wrote shed = \"kill\""
            ),
            Self::StartFailed => write!(f, "could not be started; tried again later"),
            Self::NodeLost => write!(f, "the node was lost"),
            Self::WakeFailed => write!(f, "did not wake; tried again later"),
            Self::NodeClosed => write!(f, "its node takes no more jobs"),
            Self::NodeNeeded => write!(f, "needed for a job"),
            Self::NodeIdle => write!(f, "idle for long enough to sleep"),
            Self::NodeOverBudget => write!(f, "asleep: the budget does not carry it"),
            Self::NodeNotNeeded => write!(f, "asleep: no job needs it"),
            Self::ActionFailed => write!(f, "could not be carried out"),
            Self::OnHold => write!(f, "waits: on hold until it is let go"),
            Self::Found => write!(f, "was found running"),
        }
    }
}

/// What a plan wants for a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Hold nothing.
    Wait,
    /// Run so.
    Run(Placement),
}

/// A job about which the plan says something new.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobChange {
    /// Which.
    pub job: JobId,
    /// What.
    pub decision: Decision,
    /// Why.
    pub reason: Reason,
}

/// A node about which the plan says something new.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeChange {
    /// Which.
    pub node: NodeId,
    /// What.
    pub target: Target,
    /// Why.
    pub reason: Reason,
}

/// The complete desired state: what is not named here stays as the plan before had it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The plan that this one changes; a plan made for an older one is refused.
    pub based_on: PlanId,
    /// Jobs, each at most once.
    pub jobs: Vec<JobChange>,
    /// Nodes, each at most once.
    pub nodes: Vec<NodeChange>,
    /// Ask again at this time even if nothing happens.
    pub revisit: Option<Timestamp>,
}

impl Plan {
    /// Nothing changes.
    #[must_use]
    pub fn unchanged(based_on: PlanId) -> Self {
        Self { based_on, jobs: Vec::new(), nodes: Vec::new(), revisit: None }
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.nodes.is_empty()
    }
}
