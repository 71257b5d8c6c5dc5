//! Jobs that have ended: no longer in memory, but in tables beside the journal, indexed by end,
//! user, account and workload.
//!
//! Rows follow from the journal: whoever reads entries again writes the same rows again. So they
//! need no sync of their own to the disk; it is enough that they are there before a snapshot says
//! that those entries need not be read again.

mod reader;
mod table;

pub use reader::{HistoryError, JobHistory, Page};
pub(crate) use table::{SCHEMA, correct, damaged, drop_before, file, late};

use crate::job_registry::JobNumber;
use wattline_core::Timestamp;
use wattline_core::ids::JobId;
use wattline_core::units::{Euros, EurosPerSecond, Joules, Seconds};

/// What became of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedJob {
    /// Its number here.
    pub id: JobId,
    /// Its number in SLURM.
    pub slurm: Option<u32>,
    /// What SLURM's commands called it, where that was not its number: `138_4`, `138+1`.
    pub address: Option<String>,
    /// What its user called it.
    pub name: String,
    /// Whose it was, by name.
    pub user: String,
    /// Who pays, in SLURM's words.
    pub account: Option<String>,
    /// What it trained, by name.
    pub workload: String,
    /// What might be changed about it.
    pub elasticity: String,
    /// GPUs asked for, the fewest and the most.
    pub gpus: [u32; 3],
    /// When it was asked for.
    pub submit: Timestamp,
    /// When it should have been done.
    pub deadline: Option<Timestamp>,
    /// What each second past the deadline cost.
    pub weight: EurosPerSecond,
    /// When it first ran.
    pub first_start: Option<Timestamp>,
    /// When it was over.
    pub ended: Timestamp,
    /// Whether it was cancelled, by its user or by SLURM.
    pub cancelled: bool,
    /// How it ended, in SLURM's words.
    pub how: Option<String>,
    /// The share of its work that was done.
    pub done: f64,
    /// How often it was started again.
    pub restarts: u32,
    /// GPU-seconds it held.
    pub gpu_seconds: f64,
    /// What its GPUs have drawn, where that was measured, and what that cost.
    pub drawn: Option<(Joules, Euros)>,
}

impl EndedJob {
    /// What people call it.
    #[must_use]
    pub fn number(&self) -> JobNumber {
        self.slurm.map_or_else(
            || JobNumber::of_journal(self.id),
            |id| JobNumber::of_slurm(id, self.address.as_deref()),
        )
    }

    /// How long after its deadline it ended.
    #[must_use]
    pub fn tardiness(&self) -> Seconds {
        let late = self.deadline.map_or(Seconds::ZERO, |due| self.ended.since(due));
        late.max(Seconds::ZERO)
    }

    /// Whether it ended after its deadline.
    #[must_use]
    pub fn is_late(&self) -> bool {
        !self.cancelled && self.tardiness() > Seconds::ZERO
    }
}
