//! What policies may know about times and powers.

use crate::instance::Instance;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use thiserror::Error;
use wattline_core::cluster::Cluster;
use wattline_core::ids::WorkloadId;
use wattline_core::image::ImageError;
use wattline_core::job::{Job, RestartCost};
use wattline_core::placement::Configuration;
use wattline_core::predictor::{Finding, Measurement, Prediction, Predictor};
use wattline_core::units::Seconds;
use wattline_predict::learner::Learner;
use wattline_predict::reading::Reading;
use wattline_world::oracle::{NoisyOracle, Oracle};

/// What policies may know about times and powers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Foresight {
    /// What runs have shown so far, and nothing at first. Jobs whose run times are declared, by a
    /// site's list or by a trace, have nothing to be learned about: policies are told these.
    #[default]
    Learned,
    /// The physics itself.
    Oracle,
    /// The physics with an error of this standard deviation (of the logarithm).
    NoisyOracle(f64),
}

/// The largest error worth simulating.
const MOST_SIGMA: f64 = 5.0;

/// A text that is no foresight.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is not learned, oracle or noisy=SIGMA with a SIGMA from 0 to {MOST_SIGMA}")]
pub struct UnknownForesight(String);

impl FromStr for Foresight {
    type Err = UnknownForesight;
    fn from_str(text: &str) -> Result<Self, UnknownForesight> {
        let wrong = || UnknownForesight(text.chars().take(40).collect());
        match text {
            "learned" => Ok(Self::Learned),
            "oracle" => Ok(Self::Oracle),
            _ => {
                let sigma = text.strip_prefix("noisy=").ok_or_else(wrong)?;
                let sigma: f64 = sigma.parse().map_err(|_| wrong())?;
                let good = (0.0..=MOST_SIGMA).contains(&sigma);
                good.then_some(Self::NoisyOracle(sigma)).ok_or_else(wrong)
            }
        }
    }
}

impl fmt::Display for Foresight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Learned => f.write_str("learned"),
            Self::Oracle => f.write_str("oracle"),
            Self::NoisyOracle(sigma) => write!(f, "noisy={sigma}"),
        }
    }
}

/// How often runs are measured where something is to be learned and nothing else is said.
pub(crate) const MEASURE_EVERY: Seconds = Seconds::new(300.0);

impl Instance {
    /// Measurements of a workload on a GPU type that policies know of before the first job comes;
    /// says whether the instance has such a workload and such GPUs.
    pub fn know(&mut self, workload: &str, gpu: &str, readings: &[Reading]) -> bool {
        let workloads: Vec<WorkloadId> = self.physics.named(workload).collect();
        let Some(gpu_type) = self.physics.gpu_type(gpu) else { return false };
        for id in &workloads {
            self.known.extend(readings.iter().map(|reading| (*id, gpu_type, *reading)));
        }
        !workloads.is_empty()
    }

    /// Whether there is anything to learn, and whether that is what policies must do.
    #[must_use]
    pub fn learns(&self) -> bool {
        self.foresight == Foresight::Learned
            && self.jobs.iter().any(|job| !self.physics.is_declared(job.workload))
    }

    /// Whether policies know everything there is to know, noise apart.
    #[must_use]
    pub fn is_foreseen(&self) -> bool {
        match self.foresight {
            Foresight::Oracle => true,
            Foresight::Learned => !self.learns(),
            Foresight::NoisyOracle(_) => false,
        }
    }

    /// The predictor that policies get.
    #[must_use]
    pub fn predictor(&self) -> Box<dyn Predictor> {
        let physics = Arc::clone(&self.physics);
        match (self.foresight, &self.predictors) {
            (Foresight::Learned, Some(make)) => make(),
            (Foresight::Learned, None) if self.learns() => {
                let mut learner = Learner::new(Arc::clone(&self.cluster));
                for (workload, gpu_type, reading) in &self.known {
                    // They were checked when they were read.
                    let _ = learner.import(*workload, *gpu_type, reading);
                }
                let cluster = Arc::clone(&self.cluster);
                Box::new(Learned { declared: Declared(Oracle(physics)), learner, cluster })
            }
            (Foresight::Learned | Foresight::Oracle, _) => Box::new(Oracle(physics)),
            (Foresight::NoisyOracle(sigma), _) => {
                Box::new(NoisyOracle { physics, sigma, seed: self.world.seed })
            }
        }
    }
}

/// Learns what is not declared. The learner sees measurements only.
struct Learned {
    declared: Declared,
    learner: Learner,
    cluster: Arc<Cluster>,
}

/// The run times that a site or a user states. They are exact here, because the jobs of such a
/// source are defined by them.
struct Declared(Oracle);

impl Declared {
    fn has(&self, job: &Job) -> bool {
        self.0.0.is_declared(job.workload)
    }
}

impl Predictor for Learned {
    fn predict(&self, job: &Job, configuration: &Configuration) -> Option<Prediction> {
        if self.declared.has(job) {
            return self.declared.0.predict(job, configuration);
        }
        self.learner.predict(job, configuration)
    }

    fn restart(&self, job: &Job) -> RestartCost {
        if self.declared.has(job) { job.restart } else { self.learner.restart(job) }
    }

    fn observe(&mut self, measurement: &Measurement) {
        if !self.declared.0.0.is_declared(measurement.workload) {
            self.learner.observe(measurement);
        }
    }

    fn findings(&self) -> Vec<Finding> {
        self.learner.findings()
    }

    fn image(&self) -> Vec<u8> {
        self.learner.image()
    }

    fn shared_copy(&self) -> Option<Box<dyn Predictor>> {
        let declared = Declared(Oracle(Arc::clone(&self.declared.0.0)));
        let mut learner = Learner::new(Arc::clone(&self.cluster));
        learner.restore(&self.learner.image()).ok()?;
        Some(Box::new(Self { declared, learner, cluster: Arc::clone(&self.cluster) }))
    }

    fn restore(&mut self, image: &[u8]) -> Result<(), ImageError> {
        self.learner.restore(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foresights_are_written_as_they_are_read() {
        for text in ["learned", "oracle", "noisy=0.25"] {
            assert_eq!(text.parse::<Foresight>().map(|f| f.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "noisy", "noisy=", "noisy=-1", "noisy=NaN", "noisy=6", "Oracle"] {
            assert!(text.parse::<Foresight>().is_err(), "{text}");
        }
    }
}
