//! How good the model is: fit a few readings, predict the others.

use crate::baseline::{Answer, Baseline};
use crate::choose::choose;
use crate::model::Model;
use crate::reading::{Point, Reading};

/// Mean relative errors over held-out readings, as fractions; `None` where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Of the time.
    pub time: f64,
    /// Of the power.
    pub power: Option<f64>,
    /// Of their product.
    pub energy: Option<f64>,
}

/// How one group fared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Readings fitted.
    pub fitted: usize,
    /// Readings predicted.
    pub held_out: usize,
    /// The model's errors.
    pub model: Errors,
    /// Of straight lines between the fitted readings.
    pub interpolation: Errors,
    /// Of the nearest fitted reading.
    pub nearest: Errors,
    /// Held-out readings whose time lies in the 90 % interval.
    pub covered: usize,
}

/// Fits `count` readings that the predictor chooses and predicts the others; at least one is held
/// out. `None` with fewer than two readings.
#[must_use]
pub fn evaluate(readings: &[Reading], count: usize) -> Option<Evaluation> {
    if readings.len() < 2 || count == 0 {
        return None;
    }
    let space: Vec<Point> = readings.iter().map(|r| r.point).collect();
    let chosen = choose(&space, count.min(readings.len() - 1));
    let fitted: Vec<Reading> = chosen.iter().map(|k| readings[*k]).collect();
    let held_out: Vec<&Reading> =
        readings.iter().enumerate().filter(|(k, _)| !chosen.contains(k)).map(|(_, r)| r).collect();
    let model = Model::fit(&fitted, &space)?;
    let baseline = Baseline::new(&fitted, &space)?;
    let expected: Vec<_> = held_out.iter().map(|r| model.expect(&r.point)).collect();
    let covered = held_out
        .iter()
        .zip(&expected)
        .filter(|(r, e)| e.per_sample_low <= r.per_sample && r.per_sample <= e.per_sample_high)
        .count();
    let of_model: Vec<Answer> = expected.iter().map(|e| (e.per_sample, e.power)).collect();
    let of = |answer: &dyn Fn(&Point) -> Answer| -> Vec<Answer> {
        held_out.iter().map(|r| answer(&r.point)).collect()
    };
    Some(Evaluation {
        fitted: fitted.len(),
        held_out: held_out.len(),
        model: errors(&held_out, &of_model),
        interpolation: errors(&held_out, &of(&|p| baseline.interpolated(p))),
        nearest: errors(&held_out, &of(&|p| baseline.nearest(p))),
        covered,
    })
}

fn errors(held_out: &[&Reading], answers: &[Answer]) -> Errors {
    let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    let relative = |ours: f64, theirs: f64| (ours / theirs - 1.0).abs();
    let pairs = || held_out.iter().zip(answers);
    let time: Vec<f64> = pairs().map(|(r, (t, _))| relative(t.get(), r.per_sample.get())).collect();
    let measured: Vec<(f64, f64)> = pairs()
        .filter_map(|(r, (t, p))| {
            let (ours, theirs) = (p.as_ref()?.get(), r.power?.get());
            let energy = relative(ours * t.get(), theirs * r.per_sample.get());
            Some((relative(ours, theirs), energy))
        })
        .collect();
    let some = |values: Vec<f64>| (!values.is_empty()).then(|| mean(&values));
    Errors {
        time: mean(&time),
        power: some(measured.iter().map(|(power, _)| *power).collect()),
        energy: some(measured.iter().map(|(_, energy)| *energy).collect()),
    }
}
