//! What is known about one job.

use super::mold::Molded;
use super::refusals::{Barred, Refusals};
use crate::cluster::Shape;
use crate::host::HostRequest;
use crate::ids::{ActionId, MenuId, NodeId};
use crate::job::{Job, NodeChoice, Work, WorkRate};
use crate::placement::Placement;
use crate::plan::{Reason, Refusal};
use crate::predictor::Predictor;
use crate::time::Timestamp;
use crate::units::{Seconds, Watts};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Where a job stands with the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Holds nothing.
    Waiting,
    /// Told to start, not confirmed.
    Starting(ActionId),
    /// Runs.
    Running,
    /// Told to stop, not confirmed.
    Stopping(ActionId),
    /// Failed to start too often; left alone until then.
    BackingOff(Timestamp),
    /// Done, or cancelled.
    Finished,
}

/// How far a job has come, as last heard, and how fast it is believed to go on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Done at `as_of`.
    pub done: Work,
    /// When that was; in the future while a restart is loading.
    pub as_of: Timestamp,
    /// Believed speed since then; zero when not running.
    pub rate: WorkRate,
}

/// One job, what is planned for it and what it holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobState {
    /// What was asked for.
    pub job: Arc<Job>,
    /// The shapes it may take.
    pub menu: MenuId,
    /// If it is moldable and has started: how.
    #[serde(default)]
    pub(crate) molded: Option<Molded>,
    /// Where it stands.
    pub phase: Phase,
    /// What the plan wants for it; `None`: wait.
    pub planned: Option<Placement>,
    /// What it holds.
    pub held: Option<Placement>,
    /// The start of the run it is in, if it is in one.
    pub run: Option<ActionId>,
    /// How far it is.
    pub progress: Progress,
    /// When it first ran.
    pub first_start: Option<Timestamp>,
    /// How often it was started again.
    pub restarts: u32,
    /// Why it is planned so.
    pub reason: Reason,
    /// GPU-seconds held in earlier runs.
    pub(super) attained_before: f64,
    running_since: Option<(Timestamp, u32)>,
    pub(crate) limiting: Option<(ActionId, Watts)>,
    /// Setting a limit failed, and may have happened all the same.
    pub(crate) limit_unsure: bool,
    /// Starts or stops that failed in a row.
    pub(crate) attempts: u32,
    /// Limits that could not be set, in a row. Counted apart: whether a job stops does not depend on
    /// whether its GPUs take limits.
    #[serde(default)]
    pub(crate) limit_attempts: u32,
    pub(crate) not_before: Timestamp,
    pub(crate) cancelled: bool,
    pub(crate) on_hold: bool,
    /// On a node that is closed, or choosy about nodes: it stays there until it is done.
    #[serde(default)]
    pub(crate) stays: bool,
    /// It was moved often of late: where it runs it stays, unless the budget takes it off.
    #[serde(default)]
    pub(crate) stays_put: bool,
    /// Not ours to decide about: it is only counted.
    #[serde(default)]
    pub(crate) foreign: bool,
    /// What the cluster refused lately, if anything.
    #[serde(default)]
    pub(crate) refusals: Option<Box<Refusals>>,
    /// The CPUs and memory that it takes, if anybody has said.
    #[serde(default)]
    pub host: Option<HostRequest>,
    /// Nodes that the cluster's rules do not let it have.
    #[serde(default)]
    pub(crate) barred: Option<Box<Barred>>,
    /// The nodes that are left for it, if they are not all.
    #[serde(default)]
    pub(crate) left: Option<Arc<NodeChoice>>,
    pub(crate) touched: bool,
    pub(crate) dirty: bool,
}

impl JobState {
    pub(crate) fn new(job: Arc<Job>, menu: MenuId) -> Self {
        let as_of = job.submit;
        Self {
            job,
            menu,
            molded: None,
            phase: Phase::Waiting,
            planned: None,
            held: None,
            run: None,
            progress: Progress { done: Work::ZERO, as_of, rate: WorkRate(0.0) },
            first_start: None,
            restarts: 0,
            reason: Reason::Arrived,
            attained_before: 0.0,
            running_since: None,
            limiting: None,
            limit_unsure: false,
            attempts: 0,
            limit_attempts: 0,
            not_before: Timestamp::from_micros(i64::MIN),
            cancelled: false,
            on_hold: false,
            stays: false,
            stays_put: false,
            foreign: false,
            refusals: None,
            host: None,
            barred: None,
            left: None,
            touched: false,
            dirty: false,
        }
    }

    /// May be planned, and is not: it waits.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.planned.is_none() && self.is_plannable()
    }

    /// A policy may decide about it.
    #[must_use]
    pub fn is_plannable(&self) -> bool {
        !self.is_unwanted()
            && !self.stays
            && !self.foreign
            && !self.is_barred_everywhere()
            && !matches!(self.phase, Phase::Finished | Phase::BackingOff(_))
    }

    /// It was moved often of late, and stays where it runs unless the budget takes it off.
    #[must_use]
    pub fn stays_put(&self) -> bool {
        self.stays_put
    }

    /// Not ours to decide about: what it holds counts, and it is never started, stopped or limited.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// The nodes that it may have, where not any with the right GPUs will do: because it asked for
    /// certain ones, because some refused it lately, or because rules keep it from some.
    #[must_use]
    pub fn nodes(&self) -> Option<&Arc<NodeChoice>> {
        // Images of earlier versions have it among the refusals.
        let before = self.refusals.as_ref().and_then(|refusals| refusals.left.as_ref());
        self.left.as_ref().or(before).or(self.job.nodes.as_ref())
    }

    /// The nodes that rules keep it from, in rising order, over how many nodes it would run, and why.
    #[must_use]
    pub fn barred(&self) -> Option<(&[NodeId], u32, Refusal)> {
        let barred = self.barred.as_deref()?;
        Some((&barred.nodes, barred.over, barred.why))
    }

    /// The rules leave it no nodes at all. It waits until they do.
    #[must_use]
    pub fn is_barred_everywhere(&self) -> bool {
        self.held.is_none() && self.barred.as_deref().is_some_and(|barred| barred.everywhere)
    }

    /// Its user wants it to stop: cancelled, or on hold.
    #[must_use]
    pub fn is_unwanted(&self) -> bool {
        self.cancelled || self.on_hold
    }

    /// Its user wants it to wait.
    #[must_use]
    pub fn is_on_hold(&self) -> bool {
        self.on_hold
    }

    /// Its user has cancelled it.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// Holds GPUs that it may not be taken off: only its power limit can be planned. One that is
    /// leaving them already, because the budget fell, is free to go anywhere.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        let stays = match (&self.held, &self.planned) {
            (Some(held), Some(planned)) => held.same_but_limit(planned),
            _ => false,
        };
        stays && (self.foreign || !self.job.preemptible)
    }

    /// Whether it is over.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Finished
    }

    /// What a moldable job has started as, the last time.
    #[must_use]
    pub fn started_as(&self) -> Option<Shape> {
        self.molded.map(|molded| molded.shape)
    }

    /// How many starts or stops of it failed in a row.
    #[must_use]
    pub fn failed_attempts(&self) -> u32 {
        self.attempts
    }

    /// What is believed to be done at `now`. A forecast must come to the very number that a backend
    /// would report: a policy that chooses between plans of equal cost may choose by its last digit.
    #[must_use]
    pub fn done(&self, now: Timestamp) -> Work {
        let done = self.progress.done + self.progress.rate * now.since(self.progress.as_of);
        Work(done.0.min(self.job.work.0))
    }

    /// What is believed to be left at `now`.
    #[must_use]
    pub fn remaining(&self, now: Timestamp) -> Work {
        let left = self.job.work - self.progress.done;
        let since = self.progress.rate * now.since(self.progress.as_of);
        Work((left - since).0.max(0.0))
    }

    /// GPU-seconds held up to `now`: two-dimensional attained service.
    #[must_use]
    pub fn attained(&self, now: Timestamp) -> f64 {
        let running = self
            .running_since
            .map_or(0.0, |(since, gpus)| now.since(since).get() * f64::from(gpus));
        self.attained_before + running
    }

    pub(crate) fn service_begins(&mut self, now: Timestamp, gpus: u32) {
        self.running_since = Some((now, gpus));
    }

    pub(crate) fn service_ends(&mut self, now: Timestamp) {
        self.attained_before = self.attained(now);
        self.running_since = None;
    }

    /// What a start now is expected to cost before work goes on: nothing the first time.
    #[must_use]
    pub fn load_time(&self, predictor: &dyn Predictor) -> Seconds {
        if self.first_start.is_some() { predictor.restart(&self.job).load } else { Seconds::ZERO }
    }
}
