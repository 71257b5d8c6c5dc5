//! The model of one workload on one kind of GPU.
//!
//! Two opinions are blended at every configuration: the parametric step with a process on what it
//! leaves over, and a process alone. Each counts by how sure it is there. Far from the readings
//! structure wins, near them the readings do.

use crate::features::{Coordinates, Scale};
use crate::process::{OF_RESIDUALS, OF_WHOLE, Process};
use crate::reading::{Point, Reading};
use crate::step::{self, Covariance, Unknowns};
use nalgebra::DVector;
use wattline_core::units::{Joules, Seconds, Watts};

/// The plain process is trusted less than its own variance says, and so are the unknowns of the
/// parametric step; where the opinions differ, that difference is a part of what is not known.
/// Set so that 90 % intervals hold 90 % of held-out readings (`wattline predict evaluate`).
const PLAIN_VARIANCE: f64 = 4.0;
const STEP_VARIANCE: f64 = 1.7;
const OWN_VARIANCE: f64 = 0.65;
const DISAGREEMENT: f64 = 0.5;
/// Half of 90 % of a normal distribution, in standard deviations.
const NINETY_PER_CENT: f64 = 1.645;
/// Limits, in quarters of an octave around the highest known one, between which time is made to
/// fall with the limit.
const LADDER: std::ops::RangeInclusive<i32> = -8..=4;

const TIME: usize = 0;
const POWER: usize = 1;

/// What is expected of a configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expectation {
    /// Time per sample of the global batch.
    pub per_sample: Seconds,
    /// Nine of ten readings lie above this.
    pub per_sample_low: Seconds,
    /// Nine of ten readings lie below this (90 % between the two).
    pub per_sample_high: Seconds,
    /// Mean power of each GPU; `None` if power was never measured.
    pub power: Option<Watts>,
}

impl Expectation {
    /// Energy per sample and GPU.
    #[must_use]
    pub fn energy(&self) -> Option<Joules> {
        self.power.map(|power| power * self.per_sample)
    }
}

/// Both opinions about one quantity.
#[derive(Clone, Debug)]
struct Opinions {
    residual: Process,
    plain: Process,
    mean: f64,
}

/// A fitted model.
#[derive(Clone, Debug)]
pub struct Model {
    scale: Scale,
    unknowns: Unknowns,
    covariance: Covariance,
    time: Opinions,
    power: Option<Opinions>,
    /// Log limits between which time is interpolated, rising.
    ladder: Vec<f64>,
    readings: usize,
}

impl Model {
    /// Fits readings; `space` is every configuration that may be asked about, the readings' own
    /// included. `None` without readings.
    #[must_use]
    pub fn fit(readings: &[Reading], space: &[Point]) -> Option<Self> {
        if readings.is_empty() {
            return None;
        }
        let mut readings = readings.to_vec();
        // Sums depend on their order in the last digit; readings come in any order.
        readings.sort_by(by_values);
        let scale = Scale::new(space.iter().chain(readings.iter().map(|r| &r.point)));
        let (unknowns, covariance) = step::fit(&readings);
        let time = opinions(&readings, &scale, &unknowns, TIME)?;
        let power = opinions(&readings, &scale, &unknowns, POWER);
        let highest = readings.iter().map(|r| r.point.limit.get()).fold(0.0, f64::max);
        let mut ladder: Vec<f64> = readings.iter().map(|r| r.point.limit.get().ln()).collect();
        let quarter = std::f64::consts::LN_2 / 4.0;
        ladder.extend(LADDER.map(|k| highest.ln() + f64::from(k) * quarter));
        ladder.sort_by(f64::total_cmp);
        ladder.dedup();
        let readings = readings.len();
        Some(Self { scale, unknowns, covariance, time, power, ladder, readings })
    }

    /// How many readings stand behind it.
    #[must_use]
    pub fn readings(&self) -> usize {
        self.readings
    }

    /// What to expect of a configuration: finite, positive, and never slower at a higher limit.
    #[must_use]
    pub fn expect(&self, point: &Point) -> Expectation {
        let (_, variance) = self.blend(&self.time, point, TIME);
        let log_time = self.log_time(point);
        let half = NINETY_PER_CENT * variance.sqrt();
        let power = self.power.as_ref().map(|power| {
            let (log_power, _) = self.blend(power, point, POWER);
            // No card draws more than it is allowed to, whatever a few readings suggest.
            Watts::new(bounded(log_power)).min(point.limit)
        });
        Expectation {
            per_sample: Seconds::new(bounded(log_time)),
            per_sample_low: Seconds::new(bounded(log_time - half)),
            per_sample_high: Seconds::new(bounded(log_time + half)),
            power,
        }
    }

    /// Log time, made to fall with the limit: the nearest falling sequence over the ladder,
    /// linear between its steps.
    fn log_time(&self, point: &Point) -> f64 {
        let values: Vec<f64> = self
            .ladder
            .iter()
            .map(|limit| {
                let at = Point { limit: Watts::new(limit.exp()), ..*point };
                self.blend(&self.time, &at, TIME).0
            })
            .collect();
        let falling = nearest_falling(&values);
        let limit = point.limit.get().ln();
        let after = self.ladder.partition_point(|step| *step < limit);
        match (after.checked_sub(1), self.ladder.get(after)) {
            (Some(before), Some(next)) => {
                let share = (limit - self.ladder[before]) / (next - self.ladder[before]);
                falling[before] + (falling[after] - falling[before]) * share
            }
            (None, _) => falling[0],
            (Some(last), None) => falling[last],
        }
    }

    /// Mean and variance of both opinions together.
    fn blend(&self, opinions: &Opinions, point: &Point, quantity: usize) -> (f64, f64) {
        let at = self.scale.apply(point);
        let slope = step::gradient(&self.unknowns, point, quantity);
        let (left_over, variance) = opinions.residual.predict(&at);
        let structured = step::predict(&self.unknowns, point)[quantity] + left_over;
        let from_unknowns = (slope.transpose() * self.covariance * slope)[0].max(0.0);
        let structured_variance = variance + STEP_VARIANCE * from_unknowns;
        let (from_mean, plain_variance) = opinions.plain.predict(&at);
        let plain = opinions.mean + from_mean;
        let share = structured_variance / (structured_variance + PLAIN_VARIANCE * plain_variance);
        let own = (1.0 - share) * structured_variance + share * plain_variance;
        let apart = share * (1.0 - share) * (structured - plain) * (structured - plain);
        ((1.0 - share) * structured + share * plain, OWN_VARIANCE * own + DISAGREEMENT * apart)
    }
}

/// Any order will do, as long as only equal readings are equal in it.
fn by_values(a: &Reading, b: &Reading) -> std::cmp::Ordering {
    let counts = |r: &Reading| (r.point.nodes, r.point.gpus);
    let values = |r: &Reading| {
        let power = r.power.map_or(0.0, |power| power.get());
        [r.point.batch, r.point.limit.get(), r.per_sample.get(), power]
    };
    let by_value = values(a).into_iter().zip(values(b)).map(|(x, y)| x.total_cmp(&y));
    by_value.fold(counts(a).cmp(&counts(b)), std::cmp::Ordering::then)
}

fn opinions(
    readings: &[Reading],
    scale: &Scale,
    unknowns: &Unknowns,
    quantity: usize,
) -> Option<Opinions> {
    let measured: Vec<(&Point, f64)> = readings
        .iter()
        .filter_map(|r| match quantity {
            TIME => Some((&r.point, r.per_sample.get().ln())),
            _ => r.power.map(|power| (&r.point, power.get().ln())),
        })
        .collect();
    if measured.is_empty() {
        return None;
    }
    let at: Vec<Coordinates> = measured.iter().map(|(point, _)| scale.apply(point)).collect();
    let mean = measured.iter().map(|(_, value)| value).sum::<f64>() / measured.len() as f64;
    let count = measured.len();
    let residuals = DVector::from_iterator(
        count,
        measured.iter().map(|(point, value)| value - step::predict(unknowns, point)[quantity]),
    );
    let whole = DVector::from_iterator(count, measured.iter().map(|(_, value)| value - mean));
    Some(Opinions {
        residual: Process::new(at.clone(), &residuals, &OF_RESIDUALS),
        plain: Process::new(at, &whole, &OF_WHOLE),
        mean,
    })
}

/// Far outside the readings an exponent may be anything; a prediction may not.
fn bounded(log: f64) -> f64 {
    if log.is_nan() { 1.0 } else { log.clamp(-80.0, 80.0).exp() }
}

/// The least-squares falling sequence (pool adjacent violators).
fn nearest_falling(values: &[f64]) -> Vec<f64> {
    let mut pools: Vec<(f64, usize)> = Vec::with_capacity(values.len());
    for value in values {
        pools.push((*value, 1));
        while let [.., (first, n), (second, m)] = pools[..]
            && first < second
        {
            let (n_f, m_f) = (n as f64, m as f64);
            pools.truncate(pools.len() - 2);
            pools.push(((first * n_f + second * m_f) / (n_f + m_f), n + m));
        }
    }
    pools.into_iter().flat_map(|(value, count)| std::iter::repeat_n(value, count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools() {
        assert_eq!(nearest_falling(&[3.0, 2.0, 1.0]), [3.0, 2.0, 1.0]);
        assert_eq!(nearest_falling(&[1.0, 2.0, 3.0]), [2.0, 2.0, 2.0]);
        assert_eq!(nearest_falling(&[4.0, 1.0, 3.0, 0.0]), [4.0, 2.0, 2.0, 0.0]);
    }
}
