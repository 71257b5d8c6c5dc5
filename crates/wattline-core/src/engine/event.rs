//! What the engine is told, and what it tells an administrator.

use super::shortfall::Shortfall;
use crate::calendar::Calendar;
use crate::check::Violation;
use crate::host::{HostRequest, NodeHost};
use crate::ids::{ActionId, JobId, NodeId};
use crate::job::{Job, JobError, Work};
use crate::placement::Placement;
use crate::plan::Refusal;
use crate::predictor::Measurement;
use crate::prices::Prices;
use crate::time::Timestamp;
use crate::units::{EurosPerSecond, Watts};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use thiserror::Error;

/// Something that happened. Facts, not commands: hearing one twice does no harm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Time has passed.
    Clock,
    /// A user asks for a job. It gets the next id, see [`State::job_count`](crate::state::State).
    Submitted(Arc<Job>),
    /// A user cancels a job.
    Cancelled(JobId),
    /// A user asks for another deadline or weight.
    Updated {
        /// Which job.
        job: JobId,
        /// When it should be done now.
        deadline: Option<Timestamp>,
        /// What each second past that costs now.
        weight: EurosPerSecond,
    },
    /// What each second of lateness of a job costs has changed with the priorities of the cluster,
    /// unless its user has changed it meanwhile.
    Weighed {
        /// Which job.
        job: JobId,
        /// What it cost.
        from: EurosPerSecond,
        /// What it costs now.
        to: EurosPerSecond,
    },
    /// A job shall wait until it is let go, or may go on.
    OnHold {
        /// Which.
        job: JobId,
        /// Whether it shall wait.
        hold: bool,
    },
    /// Whether a job is somebody else's to decide about. Such a job counts for what it holds, and is
    /// never started, stopped or limited.
    Foreign {
        /// Which.
        job: JobId,
        /// Whether it is.
        foreign: bool,
    },
    /// A waiting job asks for something else from now on: its owner has changed it. Nothing happens to
    /// one that does not wait.
    Asked {
        /// Which.
        job: JobId,
        /// What it asks for now. When it was submitted and whose it is stays as it was.
        asked: Arc<Job>,
    },
    /// What a job takes of its nodes' CPUs and memory.
    HostAsked {
        /// Which.
        job: JobId,
        /// What it takes.
        request: HostRequest,
    },
    /// The cluster's rules keep a job from these nodes as long as nothing else is said; from none, if
    /// there are none. Where it runs it stays.
    Barred {
        /// Which.
        job: JobId,
        /// From which.
        nodes: Vec<NodeId>,
        /// Over how many nodes it would run.
        over: u32,
        /// Which kind of rule.
        why: Refusal,
    },
    /// The CPUs and the memory of a node, and what is taken by those who are not known.
    NodeHost {
        /// Which node.
        node: NodeId,
        /// How much.
        host: NodeHost,
    },
    /// A waiting job was found running: somebody else has started it.
    Found {
        /// Which.
        job: JobId,
        /// How and where.
        placement: Placement,
    },
    /// The start with this action is done; the job runs.
    Started {
        /// Which job.
        job: JobId,
        /// Which start.
        action: ActionId,
    },
    /// A job has left its GPUs, with that much work saved: as asked, or because it was lost.
    Stopped {
        /// Which.
        job: JobId,
        /// The start whose run has ended: a report that comes twice must not end the next run.
        run: ActionId,
        /// What is saved.
        done: Work,
    },
    /// A job is complete and has left its GPUs.
    Finished(JobId),
    /// A job has come that far.
    Progress {
        /// Which.
        job: JobId,
        /// What is done.
        done: Work,
    },
    /// A stretch of a run was measured.
    Measured(Measurement),
    /// A power limit was set and read back.
    Limited {
        /// Which job's.
        job: JobId,
        /// By which action.
        action: ActionId,
    },
    /// A node is up.
    NodeUp(NodeId),
    /// A node sleeps.
    NodeAsleep(NodeId),
    /// A node is lost. Its jobs are reported as stopped on their own.
    NodeLost(NodeId),
    /// A node runs and takes no more jobs: whoever is on it stays until he is done.
    NodeClosed(NodeId),
    /// An action could not be carried out.
    Failed {
        /// Which.
        action: ActionId,
    },
    /// The cluster would not start a job. What was kept for it is free at once, and it is tried
    /// elsewhere, or later.
    Refused {
        /// Which start.
        action: ActionId,
        /// Why.
        why: Refusal,
    },
    /// A job cannot be stopped without ending it for good: it is no batch job, or may not be
    /// requeued. It stays, and counts as not preemptible from now on.
    StopRefused {
        /// Which job.
        job: JobId,
        /// Which stop.
        action: ActionId,
    },
    /// Whether a job that runs stays where it is, because it was moved often of late. Only the budget
    /// and its owner take it off its GPUs then.
    StaysPut {
        /// Which job.
        job: JobId,
        /// Whether it stays.
        stays: bool,
    },
    /// The administrator set another budget.
    BudgetSet(Option<Calendar<Watts>>),
    /// Prices changed.
    PricesSet(Prices),
}

impl Event {
    /// The job that it is about, if it is about one that was submitted before.
    #[must_use]
    pub fn job(&self) -> Option<JobId> {
        match self {
            Self::Cancelled(job)
            | Self::Updated { job, .. }
            | Self::Weighed { job, .. }
            | Self::OnHold { job, .. }
            | Self::Foreign { job, .. }
            | Self::Asked { job, .. }
            | Self::HostAsked { job, .. }
            | Self::Barred { job, .. }
            | Self::Found { job, .. }
            | Self::Started { job, .. }
            | Self::Stopped { job, .. }
            | Self::Finished(job)
            | Self::Progress { job, .. }
            | Self::StopRefused { job, .. }
            | Self::StaysPut { job, .. }
            | Self::Limited { job, .. } => Some(*job),
            Self::Measured(measurement) => Some(measurement.job),
            Self::Clock
            | Self::Submitted(_)
            | Self::NodeUp(_)
            | Self::NodeAsleep(_)
            | Self::NodeLost(_)
            | Self::NodeClosed(_)
            | Self::NodeHost { .. }
            | Self::Failed { .. }
            | Self::Refused { .. }
            | Self::BudgetSet(_)
            | Self::PricesSet(_) => None,
        }
    }
}

/// Why an event was not taken in.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum EventError {
    /// No such job.
    #[error("unknown job {0}")]
    UnknownJob(JobId),
    /// No such node.
    #[error("unknown node {0}")]
    UnknownNode(NodeId),
    /// A job that makes no sense.
    #[error(transparent)]
    Job(#[from] JobError),
    /// It cannot run there.
    #[error("{job}: {what}")]
    Placement {
        /// Which.
        job: JobId,
        /// Why.
        what: &'static str,
    },
    /// A report that makes no sense.
    #[error("{job}: reports {done} units of work done, it must be finite and not negative")]
    Work {
        /// Whose.
        job: JobId,
        /// What was reported.
        done: f64,
    },
}

/// What an administrator should hear of.
#[derive(Clone, Debug, PartialEq)]
pub enum Alert {
    /// The checker refused a plan; the previous one stays.
    PlanRefused {
        /// Whose plan.
        policy: Box<str>,
        /// What was wrong.
        violations: Vec<Violation>,
    },
    /// The budget fell below what was planned.
    BudgetFell {
        /// What was planned.
        committed: Watts,
        /// What there is.
        budget: Watts,
    },
    /// The budget cannot be kept: all that may be given up was given up. Raised once, until it is
    /// kept again.
    BudgetCannotBeKept(Shortfall),
    /// A budget that could not be kept is kept.
    BudgetKeptAgain {
        /// What is planned.
        committed: Watts,
        /// What there is.
        budget: Watts,
    },
    /// Jobs that cannot go on later are ended for the budget: the site wrote `shed = "kill"`.
    KilledForBudget(Vec<JobId>),
    /// The backend cannot stop a job without ending it for good. It counts as not preemptible now.
    CannotBeStopped(JobId),
    /// A job that no shape on this cluster fits; it waits.
    NeverFits(JobId),
    /// A job would not start.
    StartGivenUp(JobId),
    /// A job would not stop.
    StopGivenUp(JobId),
    /// A limit could not be set.
    LimitGivenUp(JobId),
    /// A node would not come up. It counts as lost, and is tried again after growing pauses.
    WakeGivenUp(NodeId),
    /// A node that would not come up is up.
    WokenAtLast(NodeId),
    /// A node would not sleep.
    SleepGivenUp(NodeId),
}
