//! Learns from every run: the predictor of a cluster.

use crate::baseline::Baseline;
use crate::reading::{Point, Reading, Refused};
use std::collections::BTreeMap;
use std::sync::Arc;
use wattline_core::cluster::Cluster;
use wattline_core::ids::{GpuTypeId, WorkloadId};
use wattline_core::job::{Job, WorkRate};
use wattline_core::placement::Configuration;
use wattline_core::predictor::{Measurement, Prediction, Predictor};
use wattline_core::units::{Seconds, Watts};

/// Everything measured so far and what follows from it.
pub struct Learner {
    cluster: Arc<Cluster>,
    groups: BTreeMap<(WorkloadId, GpuTypeId), Vec<Reading>>,
}

impl Learner {
    /// Knows the machines and nothing else.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster, groups: BTreeMap::new() }
    }

    /// Takes in a reading from elsewhere, older than all measurements of this cluster.
    ///
    /// # Errors
    /// Says why it cannot be believed.
    pub fn import(
        &mut self,
        workload: WorkloadId,
        gpu_type: GpuTypeId,
        reading: &Reading,
    ) -> Result<(), Refused> {
        reading.check()?;
        self.groups.entry((workload, gpu_type)).or_default().push(*reading);
        Ok(())
    }

    /// Takes in a measurement.
    ///
    /// # Errors
    /// Says why it cannot be believed.
    pub fn learn(&mut self, m: &Measurement) -> Result<(), Refused> {
        let c = &m.configuration;
        let reading = Reading {
            point: point(c),
            per_sample: Seconds::new(m.seconds.get() / m.processed.0),
            power: m.power,
        };
        self.import(m.workload, c.gpu_type, &reading)
    }
}

fn point(c: &Configuration) -> Point {
    Point { gpus: c.gpus, nodes: c.nodes, batch: f64::from(c.batch), limit: c.power_limit }
}

impl Predictor for Learner {
    fn predict(&self, job: &Job, c: &Configuration) -> Option<Prediction> {
        if c.batch < c.gpus {
            return None;
        }
        let known = self.groups.get(&(job.workload, c.gpu_type));
        let (per_sample, power) = known
            .and_then(|readings| Some(Baseline::new(readings, &[])?.nearest(&point(c))))
            .unwrap_or((Seconds::new(1e-3), None));
        Some(Prediction {
            rate: WorkRate(1.0 / per_sample.get()),
            power: power.unwrap_or(Watts::new(self.cluster.gpu_type(c.gpu_type).busy.get())),
            time_low: 0.2,
            time_high: 5.0,
            measurements: known.map_or(0, |readings| readings.len() as u32),
        })
    }

    fn observe(&mut self, measurement: &Measurement) {
        let _ = self.learn(measurement);
    }
}
