//! How far readings of one configuration differ: what no model of configurations can predict.

use crate::reading::{Point, Reading};
use std::collections::BTreeMap;

/// Which readings are of one configuration.
pub type Configuration = (u32, u32, u64, u64);

/// The configuration of a point.
#[must_use]
pub fn configuration(point: &Point) -> Configuration {
    (point.gpus, point.nodes, point.batch.to_bits(), point.limit.get().to_bits())
}

/// The mean relative error that a model would have if it knew the truth.
///
/// Two readings x and y of one configuration differ by |ln x − ln y|. If both scatter alike and
/// normally around a truth, that is √2 times as much on average as either differs from the truth,
/// so the floor is the mean over pairs divided by √2, and then the mean over configurations. Without
/// any assumption on how they scatter it is at least half the mean difference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NoiseFloor {
    /// Of the time.
    pub time: f64,
    /// Of the power.
    pub power: Option<f64>,
    /// Of their product.
    pub energy: Option<f64>,
    /// Configurations that were read more than once.
    pub configurations: usize,
}

/// The floor under these readings; `None` where no configuration repeats.
#[must_use]
pub fn floor(readings: &[Reading]) -> Option<NoiseFloor> {
    let repeated: Vec<Vec<Reading>> =
        by_configuration(readings).into_values().filter(|same| same.len() > 1).collect();
    let over = |value: &dyn Fn(&Reading) -> Option<f64>| -> Option<f64> {
        let spreads: Vec<f64> = repeated
            .iter()
            .filter_map(|same| mean_difference(&same.iter().filter_map(value).collect::<Vec<_>>()))
            .collect();
        mean(&spreads).map(|difference| difference / std::f64::consts::SQRT_2)
    };
    Some(NoiseFloor {
        time: over(&|r| Some(r.per_sample.get().ln()))?,
        power: over(&|r| r.power.map(|p| p.get().ln())),
        energy: over(&|r| r.power.map(|p| (p.get() * r.per_sample.get()).ln())),
        configurations: repeated.len(),
    })
}

/// Readings by configuration.
#[must_use]
pub fn by_configuration(readings: &[Reading]) -> BTreeMap<Configuration, Vec<Reading>> {
    let mut all: BTreeMap<Configuration, Vec<Reading>> = BTreeMap::new();
    for reading in readings {
        all.entry(configuration(&reading.point)).or_default().push(*reading);
    }
    all
}

/// How far apart the lowest and the highest of these readings are, in time and in power, as
/// fractions of the lowest; `None` where there are not two.
#[must_use]
pub fn disagreement(same: &[Reading]) -> (Option<f64>, Option<f64>) {
    let apart = |values: Vec<f64>| {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        (values.len() > 1).then(|| values.iter().copied().fold(0.0, f64::max) / low - 1.0)
    };
    let powers = same.iter().filter_map(|r| r.power.map(|p| p.get())).collect();
    (apart(same.iter().map(|r| r.per_sample.get()).collect()), apart(powers))
}

/// Of the pairs; `None` without one.
fn mean_difference(values: &[f64]) -> Option<f64> {
    let pairs = values.iter().enumerate();
    let differences: Vec<f64> =
        pairs.flat_map(|(k, a)| values[k + 1..].iter().map(move |b| (a - b).abs())).collect();
    mean(&differences)
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattline_core::units::{Seconds, Watts};

    fn reading(batch: f64, seconds: f64, power: Option<f64>) -> Reading {
        Reading {
            point: Point { gpus: 1, nodes: 1, batch, limit: Watts::new(300.0) },
            per_sample: Seconds::new(seconds),
            power: power.map(Watts::new),
        }
    }

    #[test]
    fn nothing_repeats() {
        assert_eq!(floor(&[]), None);
        assert_eq!(floor(&[reading(8.0, 1.0, None), reading(16.0, 1.0, None)]), None);
    }

    /// Readings around a known truth: the floor is the mean error of that truth.
    #[test]
    fn the_floor_is_the_error_of_one_who_knows() {
        // Twelve uniform numbers make a normal one; the generator is a plain congruence.
        let mut state = 7_u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut all = Vec::new();
        let mut off = 0.0;
        for batch in 0..4000 {
            for _ in 0..2 {
                let normal: f64 = (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
                let seconds = (0.05 * normal).exp();
                off += (1.0 / seconds - 1.0_f64).abs() / 8000.0;
                all.push(reading(1.0 + f64::from(batch), seconds, Some(100.0)));
            }
        }
        let floor = floor(&all).unwrap();
        assert_eq!(floor.configurations, 4000);
        assert!((floor.time / off - 1.0).abs() < 0.03, "{} against {off}", floor.time);
        assert_eq!(floor.power, Some(0.0));
        assert_eq!(floor.energy.map(|e| (e / floor.time * 1e6).round()), Some(1e6));
    }

    #[test]
    fn power_may_be_missing_in_one_of_two() {
        let floor = floor(&[reading(8.0, 1.0, Some(100.0)), reading(8.0, 1.1, None)]).unwrap();
        assert_eq!((floor.power, floor.energy, floor.configurations), (None, None, 1));
        let (time, power) =
            disagreement(&[reading(8.0, 1.0, Some(100.0)), reading(8.0, 1.1, None)]);
        assert!((time.unwrap() - 0.1).abs() < 1e-12);
        assert_eq!(power, None);
    }
}
