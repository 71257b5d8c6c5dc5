//! The published power model, fitted to three power limits of each batch: a yardstick for ours.
//!
//! ```text
//! P = min(a + b, draw·L)      s = ((P − a)/b)^½      T = T₀·(φ + (1 − φ)/s)
//! ```
//!
//! `T₀` stands for `a_c + b_c·m`: at one batch the two cannot be told apart, and need not be.

use crate::baseline::Answer;
use crate::evaluate::{Errors, errors};
use crate::model::Model;
use crate::reading::{Point, Reading};
use levenberg_marquardt::{LeastSquaresProblem, LevenbergMarquardt};
use nalgebra::storage::Owned;
use nalgebra::{Const, DVector, Dyn, OMatrix, OVector, SVector};
use std::collections::BTreeMap;
use wattline_core::units::{Seconds, Watts};

/// Which form of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A limited card draws its limit (`draw` is 1), as the publication has it.
    Stated,
    /// A limited card draws a share of its limit that is fitted. Real cards stay below their limit;
    /// without this the yardstick's energy would be unfairly bad.
    Fitted,
}

/// Power limits fitted per batch, and how many there must be so that one is left to predict.
const FITTED_LIMITS: usize = 3;
/// Logarithms between which the share of the limit lies that a card draws.
const DRAW: (f64, f64) = (-0.3, 0.02);
/// The part of the power that the clock does not drive is below the lowest power by this much.
const MOST_STATIC: f64 = 0.98;
/// Squared clocks below this are taken to be this.
const LEAST_SQUARED_CLOCK: f64 = 1e-4;
/// Step of the central differences.
const STEP: f64 = 1e-5;
/// Starts of the fit: logits of the static share and of the part that the clock does not drive.
const STARTS: [(f64, f64); 6] =
    [(-0.8, -1.0), (-0.8, 1.0), (0.4, -1.0), (0.4, 1.0), (1.7, -1.0), (1.7, 1.0)];

/// `ln T₀`, `logit φ`, `logit (a / its highest value)`, `ln b`, `logit` of `draw` in its range.
const UNKNOWNS: usize = 5;
type Unknowns = SVector<f64, UNKNOWNS>;

/// How the yardstick and our model fared on the same readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Readings fitted: those at three limits of every batch.
    pub fitted: usize,
    /// Readings predicted: those at its other limits.
    pub held_out: usize,
    /// The yardstick's errors.
    pub yardstick: Errors,
    /// Those of the form as stated.
    pub stated: Errors,
    /// Our model's, fitted to the same readings.
    pub model: Errors,
}

/// Fits the lowest, the middle and the highest power limit of every shape and batch and predicts
/// the others. `None` where no shape and batch has four limits with measured power; those with
/// fewer are left out.
#[must_use]
pub fn compare(readings: &[Reading]) -> Option<Comparison> {
    let mut batches: BTreeMap<(u32, u32, u64), Vec<Reading>> = BTreeMap::new();
    for reading in readings.iter().filter(|r| r.power.is_some()) {
        let Point { gpus, nodes, batch, .. } = reading.point;
        batches.entry((gpus, nodes, batch.to_bits())).or_default().push(*reading);
    }
    let (mut fitted, mut held_out) = (Vec::new(), Vec::new());
    let (mut of_yardstick, mut of_stated) = (Vec::new(), Vec::new());
    for batch in batches.into_values() {
        let mut limits: Vec<f64> = batch.iter().map(|r| r.point.limit.get()).collect();
        limits.sort_by(f64::total_cmp);
        limits.dedup();
        if limits.len() <= FITTED_LIMITS {
            continue;
        }
        let three = [limits[0], limits[limits.len() / 2], limits[limits.len() - 1]];
        let (known, rest): (Vec<Reading>, Vec<Reading>) =
            batch.into_iter().partition(|r| three.contains(&r.point.limit.get()));
        let [curve, stated] = [Form::Fitted, Form::Stated].map(|form| Curve::fit(&known, form));
        of_yardstick.extend(rest.iter().map(|r| (*r, curve.at(r.point.limit))));
        of_stated.extend(rest.iter().map(|r| (*r, stated.at(r.point.limit))));
        fitted.extend(known);
        held_out.extend(rest);
    }
    let space: Vec<Point> = readings.iter().map(|r| r.point).collect();
    let model = Model::fit(&fitted, &space)?;
    let of_model: Vec<(Reading, Answer)> = held_out
        .iter()
        .map(|r| {
            let e = model.expect(&r.point);
            (*r, (e.per_sample, e.power))
        })
        .collect();
    Some(Comparison {
        fitted: fitted.len(),
        held_out: held_out.len(),
        yardstick: errors(&of_yardstick),
        stated: errors(&of_stated),
        model: errors(&of_model),
    })
}

/// The published model of one batch.
#[derive(Clone, Copy, Debug)]
pub struct Curve {
    unknowns: Unknowns,
    /// What the static power stays below.
    lowest: f64,
    form: Form,
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl Curve {
    /// Least squares in the logarithms of time and power, over readings with power.
    #[must_use]
    pub fn fit(readings: &[Reading], form: Form) -> Self {
        let known: Vec<[f64; 3]> = readings
            .iter()
            .filter_map(|r| Some([r.point.limit.get(), r.per_sample.get(), r.power?.get()]))
            .collect();
        let least = |k: usize| known.iter().map(|r| r[k]).fold(f64::INFINITY, f64::min);
        let most = known.iter().map(|r| r[2]).fold(1.0, f64::max);
        let lowest = MOST_STATIC * least(0).min(1e5);
        let mut best: Option<(f64, Unknowns)> = None;
        for (fixed, unclocked) in STARTS {
            let driven = (most - logistic(fixed) * lowest).max(5.0).ln();
            let start = Unknowns::from([least(1).min(1e7).ln(), unclocked, fixed, driven, 2.0]);
            let curve = Self { unknowns: start, lowest, form };
            let problem = Problem { curve, known: &known };
            let (problem, report) = LevenbergMarquardt::new().with_patience(20).minimize(problem);
            let cost = report.objective_function;
            if cost.is_finite() && best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, problem.curve.unknowns));
            }
        }
        let nothing = Unknowns::from([0.0, 0.0, 0.0, most.ln(), 2.0]);
        Self { unknowns: best.map_or(nothing, |(_, unknowns)| unknowns), lowest, form }
    }

    /// Time per sample and power under a limit.
    #[must_use]
    pub fn at(&self, limit: Watts) -> Answer {
        let [time, power] = self.logs(limit.get());
        (Seconds::new(time.exp()), Some(Watts::new(power.exp())))
    }

    fn logs(&self, limit: f64) -> [f64; 2] {
        let u = self.unknowns;
        let unclocked = logistic(u[1]);
        let (fixed, driven) = (self.lowest * logistic(u[2]), u[3].clamp(-10.0, 12.0).exp());
        let draw = match self.form {
            Form::Stated => 1.0,
            Form::Fitted => (DRAW.0 + (DRAW.1 - DRAW.0) * logistic(u[4])).exp(),
        };
        let power = (fixed + driven).min(draw * limit);
        let clock = ((power - fixed) / driven).max(LEAST_SQUARED_CLOCK).sqrt();
        [u[0].clamp(-40.0, 40.0) + (unclocked + (1.0 - unclocked) / clock).ln(), power.ln()]
    }
}

struct Problem<'a> {
    curve: Curve,
    /// Limit, time per sample, power.
    known: &'a [[f64; 3]],
}

impl Problem<'_> {
    fn residuals_of(&self, unknowns: Unknowns) -> DVector<f64> {
        let curve = Curve { unknowns, ..self.curve };
        let off = self.known.iter().flat_map(|[limit, time, power]| {
            let [ours, drawn] = curve.logs(*limit);
            [ours - time.ln(), drawn - power.ln()]
        });
        DVector::from_iterator(2 * self.known.len(), off)
    }
}

impl LeastSquaresProblem<f64, Dyn, Const<UNKNOWNS>> for Problem<'_> {
    type ResidualStorage = Owned<f64, Dyn>;
    type JacobianStorage = Owned<f64, Dyn, Const<UNKNOWNS>>;
    type ParameterStorage = Owned<f64, Const<UNKNOWNS>>;

    fn set_params(&mut self, unknowns: &OVector<f64, Const<UNKNOWNS>>) {
        self.curve.unknowns = *unknowns;
    }

    fn params(&self) -> OVector<f64, Const<UNKNOWNS>> {
        self.curve.unknowns
    }

    fn residuals(&self) -> Option<OVector<f64, Dyn>> {
        Some(self.residuals_of(self.curve.unknowns))
    }

    fn jacobian(&self) -> Option<OMatrix<f64, Dyn, Const<UNKNOWNS>>> {
        let columns: [DVector<f64>; UNKNOWNS] = std::array::from_fn(|k| {
            let moved = |by: f64| {
                let mut unknowns = self.curve.unknowns;
                unknowns[k] += by;
                self.residuals_of(unknowns)
            };
            (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
        });
        let rows = 2 * self.known.len();
        Some(OMatrix::<f64, Dyn, Const<UNKNOWNS>>::from_fn(rows, |r, c| columns[c][r]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(limit: f64, per_sample: f64, power: f64) -> Reading {
        Reading {
            point: Point { gpus: 1, nodes: 1, batch: 64.0, limit: Watts::new(limit) },
            per_sample: Seconds::new(per_sample),
            power: Some(Watts::new(power)),
        }
    }

    /// What the model itself would measure: a = 80 W, b = 130 W, φ = 0.6.
    fn truth(limit: f64) -> Reading {
        let power = limit.min(210.0);
        let clock = ((power - 80.0) / 130.0_f64).sqrt();
        reading(limit, 1e-3 * (0.6 + 0.4 / clock), power)
    }

    #[test]
    fn its_own_curve_is_found_again() {
        let known: Vec<Reading> = [100.0, 175.0, 250.0].map(truth).to_vec();
        for form in [Form::Stated, Form::Fitted] {
            let curve = Curve::fit(&known, form);
            for limit in [110.0, 125.0, 150.0, 200.0, 225.0] {
                let (time, power) = curve.at(Watts::new(limit));
                let expected = truth(limit);
                assert!((time / expected.per_sample - 1.0).abs() < 0.01, "{limit} W: {time:?}");
                let power = power.unwrap() / expected.power.unwrap();
                assert!((power - 1.0).abs() < 0.01, "{limit} W: {power}");
            }
        }
    }

    #[test]
    fn three_limits_leave_nothing_to_predict() {
        let mut all: Vec<Reading> = [100.0, 175.0, 250.0].map(truth).to_vec();
        assert_eq!(compare(&all), None);
        all.push(truth(125.0));
        let compared = compare(&all).unwrap();
        assert_eq!((compared.fitted, compared.held_out), (3, 1));
        assert!(compared.yardstick.time < 0.01, "{compared:?}");
        // Without power there is nothing to fit.
        let without: Vec<Reading> = all.iter().map(|r| Reading { power: None, ..*r }).collect();
        assert_eq!(compare(&without), None);
    }
}
