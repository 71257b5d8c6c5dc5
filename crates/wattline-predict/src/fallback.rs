//! Where readings behave like no formula, a baseline does better, and is used instead. Which it is
//! is found out by leaving out each reading in turn.

use crate::baseline::{Answer, Baseline, BaselineMethod};
use crate::reading::{Point, Reading};

/// With fewer readings nothing can be told.
const LEAST_READINGS: usize = 6;
/// A baseline must be better by this much: the formula has seen the reading that is left out, but
/// leaving out one of few readings is also unkind to a baseline.
const CLEARLY: f64 = 0.8;

/// A baseline that does better than the model on one quantity.
#[derive(Clone, Debug)]
pub(crate) struct Fallback {
    baseline: Baseline,
    way: BaselineMethod,
    quantity: fn(&Answer) -> Option<f64>,
    /// The mean square of its errors, in logarithms.
    variance: f64,
}

impl Fallback {
    /// The better of the baselines, if it is better than the model, whose errors are given in the
    /// order of the readings, in logarithms. All readings have the quantity.
    pub(crate) fn find(
        readings: &[Reading],
        space: &[Point],
        errors: &[f64],
        quantity: fn(&Answer) -> Option<f64>,
    ) -> Option<Self> {
        if readings.len() < LEAST_READINGS {
            return None;
        }
        let baseline = Baseline::new(readings, space)?;
        let of_model = mean(errors.iter().map(|error| error.abs()));
        let mut best: Option<(f64, BaselineMethod, f64)> = None;
        for way in [BaselineMethod::Lines, BaselineMethod::Nearest] {
            let errors: Vec<f64> = baseline
                .without_each(way)
                .iter()
                .zip(readings)
                .filter_map(|(answer, reading)| {
                    let measured = quantity(&(reading.per_sample, reading.power))?;
                    Some((quantity(answer)? / measured).ln())
                })
                .collect();
            if errors.len() < readings.len() {
                return None;
            }
            let off = mean(errors.iter().map(|error| error.abs()));
            if off < CLEARLY * of_model && best.is_none_or(|(least, ..)| off < least) {
                best = Some((off, way, mean(errors.iter().map(|error| error * error))));
            }
        }
        best.map(|(_, way, variance)| Self { baseline, way, quantity, variance })
    }

    /// The logarithm and the variance of what it says.
    pub(crate) fn at(&self, point: &Point) -> Option<(f64, f64)> {
        Some(((self.quantity)(&self.baseline.answer(self.way, point))?.ln(), self.variance))
    }

    pub(crate) fn way(&self) -> BaselineMethod {
        self.way
    }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}
