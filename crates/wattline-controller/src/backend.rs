//! What actions act on.

use crate::job_registry::{Drawn, JobRegistry, JournalNote, Submission};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;
use wattline_core::Timestamp;
use wattline_core::action::Action;
use wattline_core::engine::{Engine, Event};
use wattline_core::ids::JobId;

/// Something that happened on the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Counted from 1, without a gap.
    pub number: u64,
    /// What.
    pub news: BackendEvent,
}

/// What may happen on a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum BackendEvent {
    /// The engine has a word for it.
    Event(Event),
    /// The same, with something to remember about it.
    Noted(Event, JournalNote),
    /// Somebody has submitted a job there; it gets the next id.
    Submission(Box<Submission>),
}

/// The cluster did not answer. What it would have said is unknown, and never nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the cluster does not answer: {0}")]
pub struct BackendError(pub String);

/// What the controller knows.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// What is planned and held.
    pub engine: &'a Engine<'static>,
    /// Names and origins.
    pub registry: &'a JobRegistry,
}

/// Wakes the loop: something is to be heard.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// A cluster. It outlives controllers: what one has asked for, the next may ask again.
///
/// Nothing here waits for a cluster: one that is far away is looked at, and told, by threads beside
/// the loop.
pub trait Backend {
    /// From now on the loop is woken when something is to be heard. A cluster without threads of
    /// its own has no use for it.
    ///
    /// # Errors
    /// When there are no threads to be had.
    fn begin(&mut self, wake: Wake) -> std::io::Result<()> {
        drop(wake);
        Ok(())
    }

    /// Carries an action out, or begins to. It may come again, and late: an action is carried out
    /// once. Its outcome is reported in any case.
    ///
    /// # Errors
    /// When it is not known whether the cluster has heard it. It is sent again then.
    fn send(
        &mut self,
        now: Timestamp,
        action: &Action,
        known: Known<'_>,
    ) -> Result<(), BackendError>;

    /// What happened until now, from the report with this number on; those before are written
    /// down and may be forgotten. A backend that looks at its cluster anew each time tells what
    /// differs from what is known, and numbers it from there.
    ///
    /// # Errors
    /// When the cluster does not answer.
    fn reports(
        &mut self,
        now: Timestamp,
        from: u64,
        known: Known<'_>,
    ) -> Result<Vec<Report>, BackendError>;

    /// When to ask again at the latest, if that is known.
    fn next_event(&self) -> Option<Timestamp>;

    /// A job has ended, and is asked about no more. Says what its GPUs have drawn, where the
    /// cluster itself knows.
    fn job_ended(&mut self, _now: Timestamp, _job: JobId) -> Option<Drawn> {
        None
    }

    /// Whether what was last reported is recent enough to decide on. If not, nothing is planned; load
    /// is still shed.
    fn is_current(&self, _now: Timestamp) -> bool {
        true
    }

    /// The file that tells the cluster that somebody decides, if it has one.
    fn heartbeat(&self) -> Option<PathBuf> {
        None
    }

    /// What is wrong with it now, in words; empty if nothing is.
    fn troubles(&self, _now: Timestamp) -> Vec<String> {
        Vec::new()
    }

    /// What a cluster that dies with its controller must be told to be the same again; empty if it
    /// lives on.
    fn image(&self) -> Vec<u8> {
        Vec::new()
    }
}
