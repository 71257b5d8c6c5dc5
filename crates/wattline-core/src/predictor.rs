//! What a policy may know about the future.

use crate::ids::{GpuTypeId, JobId, NodeId, WorkloadId};
use crate::image::ImageError;
use crate::job::{Job, RestartCost, Work, WorkRate};
use crate::placement::Configuration;
use crate::time::Timestamp;
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
    /// 90 % of all runs draw between the predicted power by this factor and times it; 1 where the
    /// power is known or nothing is said.
    pub power_within: f64,
    /// The same of the energy of a unit of work. Not the product of the other two: a run that takes
    /// longer than predicted draws less.
    pub energy_within: f64,
    /// How many measurements stand behind it.
    pub measurements: u32,
}

/// One in twenty lies that many standard deviations above the middle.
const NINETY_FIVE: f64 = 1.644_853_6;

impl Prediction {
    /// The factor on the predicted time that this share of all runs stays below: 0.5 is close to
    /// the prediction itself, 0.95 is `time_high`.
    #[must_use]
    pub fn time_quantile(&self, share: f64) -> f64 {
        // Times that are known for sure, as declared ones are, are asked about in every plan.
        if self.time_low == 1.0 && self.time_high == 1.0 {
            return 1.0;
        }
        let z = normal_quantile(share.clamp(1e-6, 1.0 - 1e-6));
        let side = if z < 0.0 { self.time_low } else { self.time_high };
        side.powf(z.abs() / NINETY_FIVE)
    }
}

/// Standard deviations below which that share of a normal distribution lies (Acklam's rational
/// approximation, good to nine digits).
fn normal_quantile(share: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 5] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 4] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
    ];
    const TAIL: f64 = 0.024_25;
    let poly = |terms: &[f64], x: f64| terms.iter().fold(0.0, |sum, term| sum * x + term);
    let tail = |q: f64| poly(&C, q) / (poly(&D, q) * q + 1.0);
    if share < TAIL {
        tail((-2.0 * share.ln()).sqrt())
    } else if share > 1.0 - TAIL {
        -tail((-2.0 * (1.0 - share).ln()).sqrt())
    } else {
        let q = share - 0.5;
        poly(&A, q * q) * q / (poly(&B, q * q) * q * q + 1.0)
    }
}

/// One observed stretch of a run: what a predictor learns from, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// When the stretch ended.
    pub at: Timestamp,
    /// Which job.
    pub job: JobId,
    /// What it trained.
    pub workload: WorkloadId,
    /// How.
    pub configuration: Configuration,
    /// Where, if on a single node.
    pub node: Option<NodeId>,
    /// What the GPUs went through: samples where a model is known. Not weighted by what a sample
    /// is worth at this batch.
    pub processed: Work,
    /// In what time, start-up not counted.
    pub seconds: Seconds,
    /// Mean power of each GPU, if measured.
    pub power: Option<Watts>,
    /// The gradient noise scale, if the job reports it: how large a batch may be before its
    /// samples lose their worth.
    pub noise_scale: Option<f64>,
    /// How long the run took from its start to its first step, where this stretch is its first and
    /// the job had run before.
    pub load: Option<Seconds>,
}

/// Something about the machines that measurements show and an administrator should hear of.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum Finding {
    /// A workload takes another time than it used to: a new driver, another container.
    SpeedChanged {
        /// Which.
        workload: WorkloadId,
        /// On which GPUs.
        gpu_type: GpuTypeId,
        /// The last measurement before the change.
        since: Timestamp,
        /// By which factor its steps take longer.
        factor: f64,
    },
    /// A node on which the same takes longer than on others.
    SlowNode {
        /// Which.
        node: NodeId,
        /// By which factor.
        factor: f64,
        /// In how many runs that was seen.
        runs: u32,
    },
    /// Measurements that cannot be believed.
    Refused {
        /// How many.
        measurements: u64,
        /// Why the last of them was.
        last: String,
    },
}

/// Predicts, and learns from measurements.
///
/// `Sync`, because forecasts look at it from beside the engine that owns it.
pub trait Predictor: Send + Sync {
    /// Time and power of a job in a configuration; `None` where it cannot run so.
    fn predict(&self, job: &Job, configuration: &Configuration) -> Option<Prediction>;

    /// What it costs to take the job off its GPUs and put it back: what its user says, unless
    /// something better is known.
    fn restart(&self, job: &Job) -> RestartCost {
        job.restart
    }

    /// Takes in a measurement.
    fn observe(&mut self, measurement: &Measurement);

    /// What the measurements so far show about the machines.
    fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// All that it has learned, for [`Predictor::restore`] of one that was made as this one was;
    /// empty if it learns nothing. Whoever stands before another predictor passes both on.
    fn image(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Another that knows what this one does and learns on its own, for whoever looks ahead in
    /// another thread; `None` if there is no way to make one. A prediction follows from what was
    /// measured, so that both say the same as long as both hear the same.
    fn shared_copy(&self) -> Option<Box<dyn Predictor>> {
        None
    }

    /// Forgets what it has learned and knows what the other did instead.
    ///
    /// # Errors
    /// When the image is of another predictor; nothing has changed then.
    fn restore(&mut self, image: &[u8]) -> Result<(), ImageError> {
        let nothing = image.is_empty();
        nothing.then_some(()).ok_or(ImageError::Wrong("this predictor learns nothing"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_go_through_the_interval() {
        let p = Prediction {
            rate: WorkRate(1.0),
            power: Watts::new(1.0),
            time_low: 0.8,
            time_high: 1.5,
            power_within: 1.0,
            energy_within: 1.0,
            measurements: 1,
        };
        assert!((p.time_quantile(0.05) - 0.8).abs() < 1e-6);
        assert!((p.time_quantile(0.5) - 1.0).abs() < 1e-6);
        assert!((p.time_quantile(0.95) - 1.5).abs() < 1e-6);
        assert!((normal_quantile(0.001) + 3.090_232).abs() < 1e-5);
        let shares: Vec<f64> = (0..=100).map(|k| p.time_quantile(f64::from(k) / 100.0)).collect();
        assert!(shares.is_sorted() && shares.iter().all(|x| x.is_finite() && *x > 0.0));
    }
}
