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

/// A mean relative error of each quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Of the time.
    pub time: f64,
    /// Of the power.
    pub power: Option<f64>,
    /// Of their product.
    pub energy: Option<f64>,
}

/// What repeated readings say about the errors that models must have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NoiseFloor {
    /// The least error on these very readings. A model has one answer m for a configuration, and
    /// whatever it is, the mean of |m/x − 1| over its readings x is at least this. Nothing is
    /// assumed about how they scatter. (For two readings it is about half their difference.)
    pub floor: Spread,
    /// The error to expect on new readings of a model that knows the truth, if readings scatter
    /// normally in the logarithm: then two of them differ √2 times as much on average as one does
    /// from the truth. Too high where the difference is no chance, as between two machines.
    pub expected: Spread,
    /// Configurations that were read more than once; each counts alike.
    pub configurations: usize,
}

/// The floor under these readings; `None` where no configuration repeats.
#[must_use]
pub fn floor(readings: &[Reading]) -> Option<NoiseFloor> {
    let repeated: Vec<Vec<Reading>> =
        by_configuration(readings).into_values().filter(|same| same.len() > 1).collect();
    let spread = |of: fn(&[f64]) -> Option<f64>| {
        let over = |value: &dyn Fn(&Reading) -> Option<f64>| -> Option<f64> {
            let same = repeated.iter().map(|same| same.iter().filter_map(value).collect());
            mean(&same.filter_map(|values: Vec<f64>| of(&values)).collect::<Vec<_>>())
        };
        Some(Spread {
            time: over(&|r| Some(r.per_sample.get()))?,
            power: over(&|r| r.power.map(|p| p.get())),
            energy: over(&|r| r.power.map(|p| p.get() * r.per_sample.get())),
        })
    };
    Some(NoiseFloor {
        floor: spread(least_error)?,
        expected: spread(expected_error)?,
        configurations: repeated.len(),
    })
}

/// Of any one answer about these values. The error is convex and bends only at the values, so one of
/// them is as good as any. `None` of fewer than two.
fn least_error(values: &[f64]) -> Option<f64> {
    let error = |m: &f64| mean(&values.iter().map(|x| (m / x - 1.0).abs()).collect::<Vec<_>>());
    let least = values.iter().filter_map(error).fold(f64::INFINITY, f64::min);
    (values.len() > 1).then_some(least)
}

/// The mean difference of pairs over √2; `None` without a pair.
fn expected_error(values: &[f64]) -> Option<f64> {
    let pairs = values.iter().enumerate();
    let differences: Vec<f64> =
        pairs.flat_map(|(k, a)| values[k + 1..].iter().map(move |b| (a / b).ln().abs())).collect();
    mean(&differences).map(|difference| difference / std::f64::consts::SQRT_2)
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

    #[test]
    fn the_expected_error_is_that_of_one_who_knows() {
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
        let time = floor.expected.time;
        assert!((time / off - 1.0).abs() < 0.03, "{time} against {off}");
        assert_eq!(floor.expected.power, Some(0.0));
        assert_eq!(floor.expected.energy.map(|e| (e / time * 1e6).round()), Some(1e6));
        // Two readings are nearer to their own middle than to the truth.
        assert!(floor.floor.time < time && floor.floor.time > 0.6 * time);
    }

    #[test]
    fn no_answer_is_better_than_the_floor() {
        let same = [0.8, 1.0, 1.3, 1.31, 2.0];
        let least = least_error(&same).unwrap();
        for k in 0..200 {
            let m = 0.5 + 0.01 * f64::from(k);
            let error = same.iter().map(|x| (m / x - 1.0_f64).abs()).sum::<f64>() / 5.0;
            assert!(error >= least - 1e-12, "{m}: {error} below {least}");
        }
    }

    #[test]
    fn power_may_be_missing_in_one_of_two() {
        let floor = floor(&[reading(8.0, 1.0, Some(100.0)), reading(8.0, 1.1, None)]).unwrap();
        assert_eq!(
            (floor.floor.power, floor.expected.energy, floor.configurations),
            (None, None, 1)
        );
        assert!((floor.floor.time - 0.5 * (1.0 - 1.0 / 1.1)).abs() < 1e-12);
        let (time, power) =
            disagreement(&[reading(8.0, 1.0, Some(100.0)), reading(8.0, 1.1, None)]);
        assert!((time.unwrap() - 0.1).abs() < 1e-12);
        assert_eq!(power, None);
    }
}
