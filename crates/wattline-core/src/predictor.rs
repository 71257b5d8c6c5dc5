//! What a policy may know about the future.

use crate::ids::{JobId, WorkloadId};
use crate::job::{Job, Work, WorkRate};
use crate::placement::Configuration;
use crate::units::{Seconds, Watts};
use serde::{Deserialize, Serialize};

/// Time and power of a job in a configuration, with what is known about their error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// How fast the job's work gets done.
    pub rate: WorkRate,
    /// Drawn by each of its GPUs.
    pub power: Watts,
    /// 90 % of all runs take between `time_low` and `time_high` times the predicted time.
    pub time_low: f64,
    /// See `time_low`.
    pub time_high: f64,
    /// How many measurements stand behind it.
    pub measurements: u32,
}

/// One observed stretch of a run: what a predictor learns from, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Which job.
    pub job: JobId,
    /// What it trained.
    pub workload: WorkloadId,
    /// How.
    pub configuration: Configuration,
    /// What got done.
    pub work: Work,
    /// In what time, start-up not counted.
    pub seconds: Seconds,
    /// Mean power of each GPU, if measured.
    pub power: Option<Watts>,
}

/// Predicts, and learns from measurements.
pub trait Predictor: Send {
    /// Time and power of a job in a configuration; `None` where it cannot run so.
    fn predict(&self, job: &Job, configuration: &Configuration) -> Option<Prediction>;

    /// Takes in a measurement.
    fn observe(&mut self, measurement: &Measurement);
}
