//! What actions act on.

use std::sync::Arc;
use thiserror::Error;
use wattline_core::Timestamp;
use wattline_core::action::Action;
use wattline_core::engine::Event;
use wattline_core::ids::JobId;
use wattline_core::job::Job;

/// Something that happened on the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Counted from 1, without a gap.
    pub number: u64,
    /// What.
    pub event: Event,
}

/// The cluster did not answer. What it would have said is unknown, and never nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the cluster does not answer: {0}")]
pub struct BackendError(pub String);

/// A cluster. It outlives controllers: what one has asked for, the next may ask again.
pub trait Backend {
    /// Hears of a job before its first start; may hear of it again.
    ///
    /// # Errors
    /// When the cluster does not answer. The job is told again then.
    fn admit(&mut self, id: JobId, job: &Arc<Job>) -> Result<(), BackendError>;

    /// Carries an action out, or begins to. It may come again, and late: an action is carried out
    /// once. Its outcome is reported in any case.
    ///
    /// # Errors
    /// When it is not known whether the cluster has heard it. It is sent again then.
    fn send(&mut self, now: Timestamp, action: &Action) -> Result<(), BackendError>;

    /// What happened until now, from the report with this number on; those before are written
    /// down and may be forgotten.
    ///
    /// # Errors
    /// When the cluster does not answer.
    fn reports(&mut self, now: Timestamp, from: u64) -> Result<Vec<Report>, BackendError>;

    /// When to ask again at the latest, if that is known.
    fn next_event(&self) -> Option<Timestamp>;
}
