//! What an administrator says about a cluster under SLURM.

use super::rest::RestConfig;
use crate::job_registry::Checkpoint;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use wattline_core::calendar::UtcOffset;
use wattline_core::job::Elasticity;
use wattline_core::units::{EurosPerSecond, Seconds};

/// What Wattline may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Learns, predicts, plans, and touches nothing.
    #[default]
    Observe,
    /// The same, and shows what it would do.
    Advise,
    /// Decides about the jobs of the partitions that are named.
    Control,
}

/// How SLURM is read and told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reader {
    /// By `squeue`, `sinfo`, `scontrol` and `scancel`.
    #[default]
    Commands,
    /// Through slurmrestd.
    Rest,
}

/// The `[slurm]` table of a site's file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What Wattline may do.
    pub mode: Mode,
    /// The partitions it looks after; each must have all nodes of this file.
    pub partitions: Vec<String>,
    /// How SLURM is read and told.
    pub reader: Reader,
    /// How slurmrestd is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest: Option<RestConfig>,
    /// SLURM's configuration, if not the usual one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm_conf: Option<PathBuf>,
    /// How often SLURM is asked.
    pub poll: Seconds,
    /// How long a command of SLURM may take.
    pub command_limit: Seconds,
    /// A job that was released and does not run after this long is held again.
    pub start_limit: Seconds,
    /// A job that was told to save and end, and has not after its save time and this long, is
    /// requeued.
    pub stop_grace: Seconds,
    /// Where jobs write how far they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<PathBuf>,
    /// How often a run's speed is taken down.
    pub measure_every: Seconds,
    /// A file that is touched as long as the controller works; the gate opens when it is old.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<PathBuf>,
    /// Whether a running job that is predicted to run into its time limit gets a longer one, within
    /// what its partition allows.
    pub extend_time_limit: bool,
    /// What holds for jobs that say nothing else.
    pub defaults: Defaults,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            partitions: Vec::new(),
            reader: Reader::default(),
            rest: None,
            slurm_conf: None,
            poll: Seconds::new(1.0),
            command_limit: Seconds::new(20.0),
            start_limit: Seconds::new(30.0),
            stop_grace: Seconds::new(60.0),
            progress: None,
            measure_every: Seconds::new(300.0),
            heartbeat: None,
            extend_time_limit: false,
            defaults: Defaults::default(),
        }
    }
}

impl Config {
    /// How slurmrestd is reached, if it is used.
    pub(super) fn rest_in_use(&self) -> Option<&RestConfig> {
        self.rest.as_ref().filter(|_| self.reader == Reader::Rest)
    }

    /// What contradicts itself: the field, and what was expected.
    ///
    /// # Errors
    /// The first thing.
    pub fn check(&self) -> Result<(), (String, String)> {
        match (self.reader, &self.rest) {
            (Reader::Rest, None) => {
                let expected = "reader = \"rest\" needs this table, with url and token_file";
                Err(("rest".to_owned(), expected.to_owned()))
            }
            (Reader::Commands, Some(_)) => {
                let expected = "the table [slurm.rest] is there, so say reader = \"rest\", or take \
                                the table out";
                Err(("reader".to_owned(), expected.to_owned()))
            }
            (_, Some(rest)) => rest.check().map_err(|(field, why)| (format!("rest.{field}"), why)),
            (_, None) => Ok(()),
        }
    }
}

/// What holds for jobs that say nothing else.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// What lateness costs.
    pub weight: EurosPerSecond,
    /// The most that a user may say lateness costs; what he says beyond that is cut.
    pub max_weight: EurosPerSecond,
    /// The deadline, in time limits from the submission. 0: every second counts, so that a job about
    /// which nothing is said does not wait on an idle cluster until energy is cheap.
    pub deadline: f64,
    /// What may be changed.
    pub elasticity: Elasticity,
    /// How jobs save what they have done.
    pub checkpoint: Checkpoint,
    /// How long that takes.
    pub save: Seconds,
    /// How long it takes to go on.
    pub load: Seconds,
    /// The time limit of jobs without one.
    pub time_limit: Seconds,
    /// The global batch of jobs that say none.
    pub batch: u32,
    /// Local time minus UTC, for deadlines without a zone.
    pub utc_offset: UtcOffset,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            weight: EurosPerSecond::new(1.0 / 3600.0),
            max_weight: EurosPerSecond::new(10.0 / 3600.0),
            deadline: 0.0,
            elasticity: Elasticity::Rigid,
            checkpoint: Checkpoint::None,
            save: Seconds::new(30.0),
            load: Seconds::new(60.0),
            time_limit: Seconds::hours(24.0),
            batch: 256,
            utc_offset: UtcOffset::default(),
        }
    }
}
