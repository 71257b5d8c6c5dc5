//! Predictors that look at the physics. They stand in for a predictor that learns, and bound what
//! such a one can reach; they are never used on a real cluster.

use crate::noise::{gaussian, hash};
use crate::physics::Physics;
use std::sync::Arc;
use wattline_core::job::{Job, WorkRate};
use wattline_core::placement::Configuration;
use wattline_core::predictor::{Measurement, Prediction, Predictor};

/// Knows the physics exactly.
pub struct Oracle(pub Arc<Physics>);

impl Predictor for Oracle {
    fn predict(&self, job: &Job, configuration: &Configuration) -> Option<Prediction> {
        let speed = self.0.speed(job, configuration)?;
        Some(Prediction {
            rate: speed.rate,
            power: speed.power,
            time_low: 1.0,
            time_high: 1.0,
            power_within: 1.0,
            energy_within: 1.0,
            measurements: u32::MAX,
        })
    }

    fn observe(&mut self, _: &Measurement) {}

    fn shared_copy(&self) -> Option<Box<dyn Predictor>> {
        Some(Box::new(Self(Arc::clone(&self.0))))
    }
}

/// Knows the physics but for an error that is fixed for each workload and configuration.
pub struct NoisyOracle {
    /// What it looks at.
    pub physics: Arc<Physics>,
    /// Standard deviation of the logarithm of its error in time.
    pub sigma: f64,
    /// Which errors.
    pub seed: u64,
}

/// Five and ninety-five per cent of a normal distribution lie that many deviations out.
const NINETY_PER_CENT: f64 = 1.644_853_6;

impl Predictor for NoisyOracle {
    fn predict(&self, job: &Job, c: &Configuration) -> Option<Prediction> {
        let speed = self.physics.speed(job, c)?;
        let key = [
            u64::from(job.workload.0),
            u64::from(c.gpu_type.0),
            u64::from(c.gpus),
            u64::from(c.nodes),
            u64::from(c.batch),
        ];
        let error = (self.sigma * gaussian(hash(self.seed, &key))).exp();
        Some(Prediction {
            rate: WorkRate(speed.rate.0 / error),
            power: speed.power,
            time_low: (-NINETY_PER_CENT * self.sigma).exp(),
            time_high: (NINETY_PER_CENT * self.sigma).exp(),
            power_within: 1.0,
            energy_within: (NINETY_PER_CENT * self.sigma).exp(),
            measurements: 0,
        })
    }

    fn observe(&mut self, _: &Measurement) {}

    fn shared_copy(&self) -> Option<Box<dyn Predictor>> {
        Some(Box::new(Self {
            physics: Arc::clone(&self.physics),
            sigma: self.sigma,
            seed: self.seed,
        }))
    }
}
