//! How good the model is: fit a few readings, predict the others.

use crate::baseline::{Answer, Baseline, BaselineMethod};
use crate::choose::choose;
use crate::model::{Expectation, Model};
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

/// One reading that was held out, and what each predictor made of it.
#[derive(Clone, Copy, Debug)]
pub struct HeldOut {
    /// What was measured.
    pub reading: Reading,
    /// What the model expected.
    pub expected: Expectation,
    interpolated: Answer,
    nearest: Answer,
}

/// What came of holding readings out.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Each of them.
    pub held_out: Vec<HeldOut>,
    /// The baselines that the model fell back to, for time and for power.
    pub fallbacks: [Option<BaselineMethod>; 2],
}

impl HeldOut {
    /// Relative errors of the model's time and, where measured, of its power.
    #[must_use]
    pub fn off(&self) -> (f64, Option<f64>) {
        let time = relative(self.expected.per_sample.get(), self.reading.per_sample.get());
        let power = self.expected.power.zip(self.reading.power);
        (time, power.map(|(ours, theirs)| relative(ours.get(), theirs.get())))
    }
}

/// Fits `count` readings that the predictor chooses and predicts the others; at least one is held
/// out. `None` with fewer than two readings.
#[must_use]
pub fn hold_out(readings: &[Reading], count: usize) -> Option<Trial> {
    if readings.len() < 2 || count == 0 {
        return None;
    }
    let space: Vec<Point> = readings.iter().map(|r| r.point).collect();
    let chosen = choose(&space, count.min(readings.len() - 1));
    let fitted: Vec<Reading> = chosen.iter().map(|k| readings[*k]).collect();
    let model = Model::fit(&fitted, &space)?;
    let baseline = Baseline::new(&fitted, &space)?;
    let held_out = readings.iter().enumerate().filter(|(k, _)| !chosen.contains(k));
    let tried = held_out.map(|(_, reading)| HeldOut {
        reading: *reading,
        expected: model.expect(&reading.point),
        interpolated: baseline.interpolated(&reading.point),
        nearest: baseline.nearest(&reading.point),
    });
    Some(Trial { held_out: tried.collect(), fallbacks: model.fallbacks() })
}

/// How the predictors fared in [`hold_out`]. `None` with fewer than two readings.
#[must_use]
pub fn evaluate(readings: &[Reading], count: usize) -> Option<Evaluation> {
    let trial = hold_out(readings, count)?;
    Some(summary(&trial.held_out, readings.len() - trial.held_out.len()))
}

/// Errors over these readings, and how many were fitted to predict them.
#[must_use]
pub fn summary(held_out: &[HeldOut], fitted: usize) -> Evaluation {
    let inside = |h: &&HeldOut| {
        let (e, time) = (&h.expected, h.reading.per_sample);
        e.per_sample_low <= time && time <= e.per_sample_high
    };
    let of = |answer: &dyn Fn(&HeldOut) -> Answer| -> Errors {
        let pairs: Vec<(Reading, Answer)> =
            held_out.iter().map(|h| (h.reading, answer(h))).collect();
        errors(&pairs)
    };
    Evaluation {
        fitted,
        held_out: held_out.len(),
        model: of(&|h| (h.expected.per_sample, h.expected.power)),
        interpolation: of(&|h| h.interpolated),
        nearest: of(&|h| h.nearest),
        covered: held_out.iter().filter(inside).count(),
    }
}

fn relative(ours: f64, theirs: f64) -> f64 {
    (ours / theirs - 1.0).abs()
}

/// Mean relative errors of answers about readings.
pub(crate) fn errors(answers: &[(Reading, Answer)]) -> Errors {
    let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    let time: Vec<f64> =
        answers.iter().map(|(r, (t, _))| relative(t.get(), r.per_sample.get())).collect();
    let measured: Vec<(f64, f64)> = answers
        .iter()
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
