//! The predictor of a snapshot: its times where it has them, else what its measurements say.

use crate::learner::Learner;
use crate::reading::{Point, Reading, Refused};
use std::sync::Arc;
use thiserror::Error;
use wattline_core::ids::{GpuTypeId, WorkloadId};
use wattline_core::image::ImageError;
use wattline_core::job::{Job, RestartCost};
use wattline_core::placement::Configuration;
use wattline_core::predictor::{Finding, Measurement, Prediction, Predictor};
use wattline_core::snapshot::{Machines, Snapshot, Times};
use wattline_core::units::{Seconds, Watts};

/// A measurement of a snapshot that cannot be believed.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("field `{field}`: {source}")]
pub struct BadMeasurement {
    /// Where, for example `workloads[0].measurements[3]`.
    pub field: String,
    /// Why.
    pub source: Refused,
}

/// Knows times, and learns what it has no times for.
struct Mixed {
    times: Times,
    learner: Learner,
}

/// The predictor that a snapshot describes.
///
/// # Errors
/// Names the measurement that cannot be believed.
pub fn predictor(
    snapshot: &Snapshot,
    machines: &Machines,
) -> Result<Box<dyn Predictor>, BadMeasurement> {
    let cluster = &machines.cluster;
    let mut learner = Learner::new(Arc::clone(cluster));
    for (w, workload) in snapshot.workloads.iter().enumerate() {
        for (at, m) in workload.measurements.iter().enumerate() {
            let wrong = |source| BadMeasurement {
                field: format!("workloads[{w}].measurements[{at}]"),
                source,
            };
            let found = cluster.gpu_types().iter().position(|t| t.name == m.gpu);
            let gpu_type = found.map(|at| GpuTypeId(at as u16));
            let gpu_type = gpu_type.ok_or_else(|| wrong(Refused::UnknownGpu))?;
            let limit = m.power_limit_w.map(Watts::new);
            let reading = Reading {
                point: Point {
                    gpus: m.gpus,
                    nodes: m.nodes,
                    batch: m.global_batch.into(),
                    limit: limit.unwrap_or(cluster.gpu_type(gpu_type).default_limit),
                },
                per_sample: Seconds::new(m.seconds / m.samples),
                power: m.power_w.map(Watts::new),
            };
            learner.import(WorkloadId(w as u32), gpu_type, &reading).map_err(wrong)?;
        }
    }
    Ok(Box::new(Mixed { times: machines.times.clone(), learner }))
}

impl Predictor for Mixed {
    fn predict(&self, job: &Job, configuration: &Configuration) -> Option<Prediction> {
        if self.times.knows(job.workload) {
            return self.times.predict(job, configuration);
        }
        self.learner.predict(job, configuration)
    }
    fn restart(&self, job: &Job) -> RestartCost {
        self.learner.restart(job)
    }
    fn observe(&mut self, measurement: &Measurement) {
        self.learner.observe(measurement);
    }
    fn findings(&self) -> Vec<Finding> {
        self.learner.findings()
    }
    fn image(&self) -> Vec<u8> {
        self.learner.image()
    }
    fn restore(&mut self, image: &[u8]) -> Result<(), ImageError> {
        self.learner.restore(image)
    }
}
