//! How good the model is: fit a few readings, predict the others.

use crate::baseline::{Answer, Baseline, BaselineMethod};
use crate::choose::choose;
use crate::known::Known;
use crate::model::{Expectation, Model};
use crate::reading::{Point, Reading};
use crate::store::Stretch;
use wattline_core::cluster::{Cluster, GpuType, Node, NodeDraw};
use wattline_core::ids::{GpuTypeId, WorkloadId};
use wattline_core::time::Timestamp;
use wattline_core::units::{Seconds, Watts};

pub use crate::interval::SET_ON;

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
    /// How the 90 % intervals of time, power and energy fared; `None` where nothing was measured.
    pub intervals: [Option<Intervals>; 3],
}

/// How 90 % intervals of one quantity fared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Intervals {
    /// Share of the held-out readings that lie inside.
    pub coverage: f64,
    /// Mean of the logarithm of upper by lower end.
    pub width: f64,
    /// The same of the narrowest intervals around the same expectations, all equally wide, that
    /// would have held 90 %.
    pub oracle_width: f64,
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
    /// By how much time, power and energy are off, and how far the interval reaches from what was
    /// expected, both in logarithms and without a sign.
    fn off_within(&self) -> [Option<(f64, f64)>; 3] {
        let e = &self.expected;
        let time = (self.reading.per_sample / e.per_sample).ln();
        let reach = (e.per_sample_high / e.per_sample).ln();
        let powers = self.reading.power.zip(e.power);
        let power = powers.map(|(measured, expected)| (measured / expected).ln());
        [
            Some((time.abs(), reach)),
            power.map(|power| (power.abs(), e.power_within.ln())),
            power.map(|power| ((time + power).abs(), e.energy_within.ln())),
        ]
    }

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
        intervals: intervals(held_out),
    }
}

/// How the 90 % intervals of time, power and energy fared over these readings, of one group or of
/// several.
pub fn intervals<'a>(held_out: impl IntoIterator<Item = &'a HeldOut>) -> [Option<Intervals>; 3] {
    let mut all: [Vec<(f64, f64)>; 3] = Default::default();
    for reading in held_out {
        for (all, one) in all.iter_mut().zip(reading.off_within()) {
            all.extend(one);
        }
    }
    all.map(|mut all| {
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        // The first of them that has nine of ten below or at it.
        let ninth = (all.len() * 9).div_ceil(10).checked_sub(1)?;
        let count = all.len() as f64;
        let inside = all.iter().filter(|(off, within)| off <= within).count();
        Some(Intervals {
            coverage: inside as f64 / count,
            width: 2.0 * all.iter().map(|(_, within)| within).sum::<f64>() / count,
            oracle_width: 2.0 * all[ninth].0,
        })
    })
}

/// Every group in turn with only `count` readings, which the predictor chooses, and with all of the
/// others; what it then makes of its other readings. All were measured on this card. This is what a
/// cluster that knows other workloads makes of a new one.
#[must_use]
pub fn leave_one_workload_out(
    groups: &[&[Reading]],
    card: &GpuType,
    count: usize,
) -> Vec<Vec<HeldOut>> {
    let Some(cluster) = cluster_of(card) else { return Vec::new() };
    let left_out = |own: usize| -> Vec<HeldOut> {
        let space: Vec<Point> = groups[own].iter().map(|r| r.point).collect();
        let chosen = choose(&space, count.min(space.len().saturating_sub(1)));
        let fitted: Vec<Reading> = chosen.iter().map(|k| groups[own][*k]).collect();
        let Some(baseline) = Baseline::new(&fitted, &space) else { return Vec::new() };
        let mut known = Known::default();
        let mut run = 0;
        for (group, all) in groups.iter().enumerate() {
            let readings = if group == own { &fitted[..] } else { all };
            for reading in readings {
                run += 1;
                let key = (WorkloadId(group as u32), GpuTypeId(0));
                known.add(key, &Stretch::of(run, Some(Timestamp::ZERO), reading));
            }
        }
        known.refresh(&cluster, Timestamp::ZERO);
        let key = (WorkloadId(own as u32), GpuTypeId(0));
        let held_out = groups[own].iter().enumerate().filter(|(k, _)| !chosen.contains(k));
        held_out
            .filter_map(|(_, reading)| {
                Some(HeldOut {
                    reading: *reading,
                    expected: known.expect_measured(&cluster, key, &reading.point)?,
                    interpolated: baseline.interpolated(&reading.point),
                    nearest: baseline.nearest(&reading.point),
                })
            })
            .collect()
    };
    (0..groups.len()).map(left_out).collect()
}

/// One node with one such card.
fn cluster_of(card: &GpuType) -> Option<Cluster> {
    let node = Node {
        name: "n0".into(),
        gpu_type: GpuTypeId(0),
        gpus: 1,
        draw: NodeDraw::Additive { base: Watts::ZERO },
        sleep: Watts::ZERO,
        boot: Watts::ZERO,
        boot_time: Seconds::new(0.0),
        shutdown_time: Seconds::new(0.0),
        rack: 0,
    };
    Cluster::new(vec![card.clone()], vec![node]).ok()
}

/// A card that no data sheet describes, as far as readings tell.
#[must_use]
pub fn card_of_readings(readings: &[&[Reading]]) -> Option<GpuType> {
    let all = || readings.iter().flat_map(|group| group.iter());
    let limits = || all().map(|reading| reading.point.limit.get());
    let powers = || all().filter_map(|reading| reading.power.map(Watts::get));
    let (lowest, highest) = (limits().fold(f64::INFINITY, f64::min), limits().fold(0.0, f64::max));
    let drawn = powers().fold(0.0, f64::max);
    let busy = if drawn > 0.0 { drawn } else { highest };
    (highest > 0.0).then(|| GpuType {
        name: "measured".into(),
        idle: Watts::new((0.5 * powers().fold(busy, f64::min)).min(lowest)),
        busy: Watts::new(busy),
        min_limit: Watts::new(lowest),
        default_limit: Watts::new(highest),
        max_limit: Watts::new(highest),
        limit_step: Watts::new(((highest - lowest) / 10.0).max(1.0)),
        tflops: None,
        links: None,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Held-out readings that take longer than expected by these factors.
    fn off_by(factors: impl Iterator<Item = f64>, within: f64) -> Vec<HeldOut> {
        let (time, power) = (Seconds::new(1.0), Watts::new(100.0));
        let point = Point { gpus: 1, nodes: 1, batch: 8.0, limit: Watts::new(300.0) };
        let one = |factor: f64| HeldOut {
            reading: Reading { point, per_sample: time * factor, power: Some(power / factor) },
            expected: Expectation {
                per_sample: time,
                per_sample_low: time / within,
                per_sample_high: time * within,
                power: Some(power),
                power_within: 1.01,
                energy_within: 1.001,
            },
            interpolated: (time, None),
            nearest: (time, None),
        };
        factors.map(one).collect()
    }

    #[test]
    fn the_oracle_holds_nine_of_ten_and_no_more() {
        let held_out = off_by((1..=20).map(|k| 1.0 + 0.01 * f64::from(k)), 1.105);
        let [time, power, energy] = intervals(&held_out).map(Option::unwrap);
        assert_eq!(time.coverage, 0.5);
        assert!((time.width - 2.0 * 1.105_f64.ln()).abs() < 1e-12);
        assert!((time.oracle_width - 2.0 * 1.18_f64.ln()).abs() < 1e-12);
        assert_eq!(power.coverage, 0.05);
        // What is slower draws less: energy is as expected.
        assert_eq!(energy.coverage, 1.0);
        assert!(energy.oracle_width < 1e-9);
    }

    #[test]
    fn nothing_held_out_tells_nothing() {
        assert_eq!(intervals(&[]), [None; 3]);
    }
}
