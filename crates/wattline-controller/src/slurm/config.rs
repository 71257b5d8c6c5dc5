//! What an administrator says about a cluster under SLURM.

use super::command::printable;
use super::rest::RestConfig;
use crate::job_registry::{Checkpoint, MOST_RESTARTS};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use thiserror::Error;
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
    /// A job that was restarted this often within 24 hours is held.
    pub max_restarts_per_day: u32,
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
    /// How SLURM's own priorities count.
    pub priority: PriorityConfig,
    /// What users of an account or a QOS may say at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<WeightLimit>,
}

/// How QOS and shares count; nothing without SLURM's accounting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PriorityConfig {
    /// The priority of a QOS counts.
    pub qos: bool,
    /// The factor of the QOS with the highest priority; its inverse is that of the lowest.
    pub qos_factor: f64,
    /// What a user has used of his share counts.
    pub fairshare: bool,
    /// The factor of a user who has used nothing; its inverse is that of one who has used most.
    pub fairshare_factor: f64,
    /// How often accounting is asked.
    pub every: Seconds,
}

impl Default for PriorityConfig {
    fn default() -> Self {
        Self {
            qos: true,
            qos_factor: 4.0,
            fairshare: true,
            fairshare_factor: 2.0,
            every: Seconds::new(300.0),
        }
    }
}

/// What users may say at most that lateness costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightLimit {
    /// Of this account; of all, if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Of this QOS; of all, if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    /// The most.
    pub max_weight: EurosPerSecond,
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
            max_restarts_per_day: 20,
            progress: None,
            measure_every: Seconds::new(300.0),
            heartbeat: None,
            extend_time_limit: false,
            defaults: Defaults::default(),
            priority: PriorityConfig::default(),
            limits: Vec::new(),
        }
    }
}

/// A field of the `[slurm]` table that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("slurm.{field}: {why}")]
pub struct ConfigError {
    /// Which.
    pub field: String,
    /// What was expected.
    pub why: String,
}

impl Config {
    /// How slurmrestd is reached, if it is used.
    pub(super) fn rest_in_use(&self) -> Option<&RestConfig> {
        self.rest.as_ref().filter(|_| self.reader == Reader::Rest)
    }

    /// Whether its values make sense.
    ///
    /// # Errors
    /// Names the first field that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |field: &str, why: String| Err(ConfigError { field: field.to_owned(), why });
        match (self.reader, &self.rest) {
            (Reader::Rest, None) => {
                let expected = "reader = \"rest\" needs this table, with url and token_file";
                return wrong("rest", expected.to_owned());
            }
            (Reader::Commands, Some(_)) => {
                let expected = "the table [slurm.rest] is there, so say reader = \"rest\", or take \
                                the table out";
                return wrong("reader", expected.to_owned());
            }
            (_, Some(rest)) => rest.check().map_err(|(field, why)| {
                let field = format!("rest.{field}");
                ConfigError { field, why: printable(&why) }
            })?,
            (_, None) => {}
        }
        let restarts = self.max_restarts_per_day;
        if !(1..=MOST_RESTARTS as u32).contains(&restarts) {
            let why = format!("is {restarts}, it must be from 1 to {MOST_RESTARTS}");
            return wrong("max_restarts_per_day", why);
        }
        let PriorityConfig { qos_factor, fairshare_factor, every, .. } = &self.priority;
        for (name, factor) in [("qos_factor", qos_factor), ("fairshare_factor", fairshare_factor)] {
            if !(1.0..=MOST_FACTOR).contains(factor) {
                let why = format!("is {factor}, it must be from 1 to {MOST_FACTOR}");
                return wrong(&format!("priority.{name}"), why);
            }
        }
        if !(LEAST_EVERY..=86_400.0).contains(&every.get()) {
            let why = format!("is {every}, it must be from {LEAST_EVERY} s to a day");
            return wrong("priority.every", why);
        }
        for (at, limit) in self.limits.iter().enumerate() {
            if limit.account.is_none() && limit.qos.is_none() {
                let why = "names neither an account nor a qos; for all jobs there is \
                           slurm.defaults.max_weight";
                return wrong(&format!("limits[{at}]"), why.to_owned());
            }
            if !(limit.max_weight.is_finite() && limit.max_weight.get() >= 0.0) {
                let why = "must be a price an hour, not below 0".to_owned();
                return wrong(&format!("limits[{at}].max_weight"), why);
            }
        }
        Ok(())
    }
}

/// A larger factor would leave the word of users without meaning: what they may say is bounded at
/// ten times the default.
const MOST_FACTOR: f64 = 100.0;
/// sshare goes through all associations under slurmctld's lock.
const LEAST_EVERY: f64 = 5.0;

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
