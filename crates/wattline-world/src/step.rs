//! The physics of one training step: time and power by batch, GPU count, spread and power limit.
//!
//! Compute is bound by kernel launches at small batches and grows linearly at large ones;
//! synchronisation overlaps with it in part; power grows with the share of the step in which the
//! GPU works; a power limit lowers the clock, which slows only the part of the work that the clock
//! drives. See the book's page on physics for the formulas and where the figures come from.

use serde::Deserialize;
use wattline_core::cluster::Links;
use wattline_core::units::{Seconds, Watts};

/// Time of one step's computation on one GPU at full clock: `(a^k + (b·m)^k)^(1/k)` for `m`
/// samples.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compute {
    /// Seconds however small the batch.
    pub launch: f64,
    /// Seconds per sample when the GPU is full.
    pub per_sample: f64,
    /// How sharply one goes over into the other: 1 adds them, more takes the larger.
    #[serde(default = "one")]
    pub knee: f64,
}

/// Time to bring the GPUs' gradients together.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Sync {
    /// Fitted: `base + per_gpu · max(n − 2, 0)`, on one node and over several.
    Fitted {
        /// Seconds on one node.
        node_base: f64,
        /// Seconds per GPU on one node.
        node_per_gpu: f64,
        /// Seconds over several nodes.
        net_base: f64,
        /// Seconds per GPU over several nodes.
        net_per_gpu: f64,
    },
    /// Estimated: a ring all-reduce of that many megabytes over the slowest link.
    Ring {
        /// Gradients.
        megabytes: f64,
    },
}

/// Power of one GPU and what a limit does to its speed.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draw {
    /// Drawn when the step is all launch gaps.
    pub low: Watts,
    /// Drawn when the GPU works all the time.
    pub full: Watts,
    /// The part of the draw that the clock does not change.
    #[serde(default = "default_static")]
    pub static_share: f64,
    /// The part of the time that the clock does not change.
    #[serde(default = "default_unclocked")]
    pub unclocked: f64,
}

fn one() -> f64 {
    1.0
}
/// Median of the fits to the V100 and RTX6000 measurements of the Zeus artifact.
fn default_static() -> f64 {
    0.4
}
fn default_unclocked() -> f64 {
    0.62
}

/// The lowest relative clock a limit leads to.
const LOWEST_CLOCK: f64 = 0.05;
/// Seconds for each hop of a ring, beside the bandwidth.
const HOP: f64 = 20e-6;

/// A workload on a kind of GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepModel {
    /// Computation.
    pub compute: Compute,
    /// Synchronisation.
    pub sync: Sync,
    /// How much of the synchronisation hides behind computation: 1 none, 10 nearly all.
    pub overlap: f64,
    /// Links.
    pub links: Links,
    /// Power.
    pub draw: Draw,
    /// The largest batch that fits on one GPU; larger ones are accumulated.
    pub most_per_gpu: f64,
}

/// A step's time and each GPU's mean power.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Time for the whole global batch.
    pub time: Seconds,
    /// Per GPU.
    pub power: Watts,
}

impl StepModel {
    /// One step of a global batch on `gpus` GPUs over `nodes` nodes under a power limit; `None`
    /// when there are more GPUs than samples.
    #[must_use]
    pub fn step(&self, gpus: u32, nodes: u32, batch: u32, limit: Watts) -> Option<Step> {
        if gpus == 0 || batch < gpus {
            return None;
        }
        let per_gpu = f64::from(batch) / f64::from(gpus);
        let rounds = (per_gpu / self.most_per_gpu).ceil().max(1.0);
        let local = per_gpu / rounds;
        let sync = self.sync_time(gpus, nodes);
        let full_clock = self.total(self.compute.time(local), sync, rounds);
        let working = (self.compute.per_sample * per_gpu / full_clock).min(1.0);
        let wanted = self.draw.low + (self.draw.full - self.draw.low) * working;
        let power = wanted.min(limit);
        let compute = self.compute.time(local) * self.draw.slowdown(wanted, power);
        Some(Step { time: Seconds::new(self.total(compute, sync, rounds)), power })
    }

    fn total(&self, compute: f64, sync: f64, rounds: f64) -> f64 {
        let last = if sync > 0.0 {
            (compute.powf(self.overlap) + sync.powf(self.overlap)).powf(1.0 / self.overlap)
        } else {
            compute
        };
        (rounds - 1.0) * compute + last
    }

    fn sync_time(&self, gpus: u32, nodes: u32) -> f64 {
        if gpus <= 1 {
            return 0.0;
        }
        let n = f64::from(gpus);
        match self.sync {
            Sync::Fitted { node_base, node_per_gpu, net_base, net_per_gpu } => {
                let more = f64::from(gpus.saturating_sub(2));
                if nodes <= 1 {
                    node_base + node_per_gpu * more
                } else {
                    net_base + net_per_gpu * more
                }
            }
            Sync::Ring { megabytes } => {
                let rate = if nodes <= 1 { self.links.node } else { self.links.net };
                2.0 * (n - 1.0) / n * megabytes / 1e3 / rate + HOP * n
            }
        }
    }
}

impl Compute {
    fn time(&self, local: f64) -> f64 {
        let (a, b) = (self.launch, self.per_sample * local);
        (a.powf(self.knee) + b.powf(self.knee)).powf(1.0 / self.knee)
    }
}

impl Draw {
    /// How much longer computation takes when only `given` of the `wanted` power is there.
    #[must_use]
    pub fn slowdown(&self, wanted: Watts, given: Watts) -> f64 {
        if given >= wanted {
            return 1.0;
        }
        let fixed = wanted * self.static_share;
        let share = (given - fixed) / (wanted - fixed);
        let clock = share.max(0.0).sqrt().max(LOWEST_CLOCK);
        self.unclocked + (1.0 - self.unclocked) / clock
    }
}

/// Statistical efficiency of a batch against the batch a job asked for, after the gradient noise
/// scale: how much a sample of the larger batch is worth.
#[must_use]
pub fn efficiency(noise_scale: f64, asked: u32, batch: u32) -> f64 {
    (noise_scale + f64::from(asked)) / (noise_scale + f64::from(batch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn resnet50_on_h200() -> StepModel {
        StepModel {
            compute: Compute { launch: 0.02159, per_sample: 0.000_204_4, knee: 3.35 },
            sync: Sync::Ring { megabytes: 102.0 },
            overlap: 2.0,
            links: Links { node: 300.0, net: 45.0 },
            draw: Draw {
                low: Watts::new(131.0),
                full: Watts::new(628.0),
                static_share: 0.4,
                unclocked: 0.62,
            },
            most_per_gpu: 768.0,
        }
    }

    #[test]
    fn repeats_our_h200_readings() {
        // batch, seconds, watts: from the H200 readings of this project.
        for (batch, seconds, watts) in
            [(8, 0.0208, 173.7), (128, 0.02996, 580.2), (512, 0.1043, 627.5)]
        {
            let step = resnet50_on_h200().step(1, 1, batch, Watts::new(700.0)).unwrap();
            assert!((step.time.get() / seconds - 1.0).abs() < 0.08, "{batch}: {step:?}");
            assert!((step.power.get() / watts - 1.0).abs() < 0.08, "{batch}: {step:?}");
        }
    }

    #[test]
    fn more_gpus_than_samples_cannot_be() {
        assert_eq!(resnet50_on_h200().step(16, 2, 8, Watts::new(700.0)), None);
    }

    proptest! {
        #![proptest_config(wattline_testing::cases(256, 1))]

        #[test]
        fn a_higher_limit_is_never_slower(
            gpus in 1_u32..64, batch in 64_u32..4096, low in 100.0_f64..700.0, more in 0.0_f64..300.0,
        ) {
            let model = resnet50_on_h200();
            let nodes = gpus.div_ceil(8);
            let slow = model.step(gpus, nodes, batch, Watts::new(low)).unwrap();
            let fast = model.step(gpus, nodes, batch, Watts::new(low + more)).unwrap();
            prop_assert!(fast.time.get() <= slow.time.get() * (1.0 + 1e-12));
            prop_assert!(slow.power.get() <= low + 1e-9);
            prop_assert!(slow.time.get() > 0.0 && slow.time.is_finite());
        }
    }
}
