//! What is expected of jobs on a real cluster: what runs have shown, and for jobs that say nothing
//! about their work, what their time limit says.

use std::sync::Arc;
use wattline_core::cluster::Cluster;
use wattline_core::ids::WorkloadId;
use wattline_core::image::ImageError;
use wattline_core::job::{Job, RestartCost, WorkRate};
use wattline_core::placement::Configuration;
use wattline_core::predictor::{Finding, Measurement, Prediction, Predictor};
use wattline_predict::learner::Learner;

/// The workload of jobs whose work is in seconds at the size they ask for.
pub const IN_SECONDS: WorkloadId = WorkloadId(0);

/// The share of such a job that more GPUs make faster.
const PARALLEL: f64 = 0.95;
/// Nine of ten such jobs take between this much of their time limit and all of it.
const SHORTEST: f64 = 0.1;

/// Learns from runs; goes by time limits where it must.
pub struct Foresight {
    learner: Learner,
    cluster: Arc<Cluster>,
}

impl Foresight {
    /// What a learner knows already.
    #[must_use]
    pub fn new(learner: Learner, cluster: Arc<Cluster>) -> Self {
        Self { learner, cluster }
    }

    fn by_time_limit(&self, job: &Job, configuration: &Configuration) -> Prediction {
        let time = |gpus: u32| 1.0 - PARALLEL + PARALLEL / f64::from(gpus.max(1));
        let gpu = self.cluster.gpu_type(configuration.gpu_type);
        let limit = configuration.power_limit.min(gpu.busy);
        // Half the power, seven tenths of the speed.
        let slowed = (limit.get() / gpu.busy.get()).sqrt();
        Prediction {
            rate: WorkRate(slowed * time(job.gpus.requested) / time(configuration.gpus)),
            power: limit,
            time_low: SHORTEST,
            time_high: 1.0,
            power_within: 1.0,
            energy_within: 1.0,
            measurements: 0,
        }
    }
}

impl Predictor for Foresight {
    fn predict(&self, job: &Job, configuration: &Configuration) -> Option<Prediction> {
        if job.workload == IN_SECONDS {
            return Some(self.by_time_limit(job, configuration));
        }
        self.learner.predict(job, configuration)
    }

    fn restart(&self, job: &Job) -> RestartCost {
        if job.workload == IN_SECONDS { job.restart } else { self.learner.restart(job) }
    }

    fn observe(&mut self, measurement: &Measurement) {
        if measurement.workload != IN_SECONDS {
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
        let cluster = Arc::clone(&self.cluster);
        let mut learner = Learner::new(Arc::clone(&cluster));
        learner.restore(&self.learner.image()).ok()?;
        Some(Box::new(Self { learner, cluster }))
    }

    fn restore(&mut self, image: &[u8]) -> Result<(), ImageError> {
        self.learner.restore(image)
    }
}
