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
    /// Which of them were measured.
    measured: Vec<usize>,
    readings: usize,
}

impl Model {
    /// Fits readings, which the caller has [checked](Reading::check); `space` is every configuration
    /// that may be asked about, the readings' own included. `None` without readings.
    #[must_use]
    pub fn fit(readings: &[Reading], space: &[Point]) -> Option<Self> {
        if readings.is_empty() {
            return None;
        }
        let readings = in_order(readings);
        let scale = Scale::new(space.iter().chain(readings.iter().map(|r| &r.point)));
        let (unknowns, covariance) = step::fit(&readings);
        let time = opinions(&readings, &scale, &unknowns, TIME)?;
        let power = opinions(&readings, &scale, &unknowns, POWER);
        let (ladder, measured) = ladder(&readings);
        let readings = readings.len();
        Some(Self { scale, unknowns, covariance, time, power, ladder, measured, readings })
    }

    /// How many readings stand behind it.
    #[must_use]
    pub fn readings(&self) -> usize {
        self.readings
    }

    /// What to expect of a configuration: finite, positive, and never slower at a higher limit.
    #[must_use]
    pub fn expect(&self, point: &Point) -> Expectation {
        self.curve(point).at(point.limit)
    }

    /// What to expect of a configuration under any power limit; its own limit does not matter.
    #[must_use]
    pub fn curve(&self, point: &Point) -> Curve {
        let at = |limit: &f64| Point { limit: Watts::new(limit.exp()), ..*point };
        let steps: Vec<Point> = self.ladder.iter().map(at).collect();
        let (time, variance) = self.along(&self.time, &steps, TIME);
        let power = self.power.as_ref().map(|power| self.along(power, &steps, POWER).0);
        Curve {
            limits: self.ladder.clone(),
            time: nearest_falling(&time),
            spread: variance.into_iter().map(f64::sqrt).collect(),
            power,
        }
    }

    /// Means and variances of both opinions together, along a ladder of limits.
    fn along(&self, opinions: &Opinions, steps: &[Point], quantity: usize) -> (Vec<f64>, Vec<f64>) {
        // What the unknowns' uncertainty adds is worked out where limits were measured and at the
        // ladder's ends, and drawn in straight lines between.
        let uncertain = |k: usize| {
            let slope = step::gradient(&self.unknowns, &steps[k], quantity);
            (slope.transpose() * self.covariance * slope)[0].max(0.0)
        };
        let mut anchors = self.measured.clone();
        anchors.extend([0, steps.len() - 1]);
        anchors.sort_unstable();
        anchors.dedup();
        let known: Vec<(usize, f64)> = anchors.into_iter().map(|k| (k, uncertain(k))).collect();
        steps
            .iter()
            .enumerate()
            .map(|(k, point)| self.blend(opinions, point, quantity, between(&known, k)))
            .unzip()
    }

    fn blend(
        &self,
        opinions: &Opinions,
        point: &Point,
        quantity: usize,
        from_unknowns: f64,
    ) -> (f64, f64) {
        let at = self.scale.apply(point);
        let (left_over, variance) = opinions.residual.predict(&at);
        let structured = step::predict(&self.unknowns, point)[quantity] + left_over;
        let structured_variance = variance + STEP_VARIANCE * from_unknowns;
        let (from_mean, plain_variance) = opinions.plain.predict(&at);
        let plain = opinions.mean + from_mean;
        // From a single reading a process alone knows nothing of any slope, and does not know it.
        let share = if self.readings < 2 {
            0.0
        } else {
            structured_variance / (structured_variance + PLAIN_VARIANCE * plain_variance)
        };
        let own = (1.0 - share) * structured_variance + share * plain_variance;
        let apart = share * (1.0 - share) * (structured - plain) * (structured - plain);
        ((1.0 - share) * structured + share * plain, OWN_VARIANCE * own + DISAGREEMENT * apart)
    }
}

/// Expectations of one configuration over the power limit.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Logarithms of the limits, rising.
    limits: Vec<f64>,
    time: Vec<f64>,
    spread: Vec<f64>,
    power: Option<Vec<f64>>,
}

impl Curve {
    /// Under this limit; straight lines in the logarithms between the steps, constant beyond.
    #[must_use]
    pub fn at(&self, limit: Watts) -> Expectation {
        let log = limit.get().ln();
        let after = self.limits.partition_point(|step| *step < log);
        let read = |values: &[f64]| match (after.checked_sub(1), self.limits.get(after)) {
            (Some(before), Some(next)) => {
                let share = (log - self.limits[before]) / (next - self.limits[before]);
                values[before] + (values[after] - values[before]) * share
            }
            (None, _) => values[0],
            (Some(last), None) => values[last],
        };
        let time = read(&self.time);
        let half = NINETY_PER_CENT * read(&self.spread);
        // No card draws more than it is allowed to, whatever a few readings suggest.
        let power = self.power.as_ref().map(|power| Watts::new(bounded(read(power))).min(limit));
        Expectation {
            per_sample: Seconds::new(bounded(time)),
            per_sample_low: Seconds::new(bounded(time - half)),
            per_sample_high: Seconds::new(bounded(time + half)),
            power,
        }
    }
}

/// Straight lines between points whose places rise.
fn between(points: &[(usize, f64)], at: usize) -> f64 {
    let after = points.partition_point(|(place, _)| *place < at);
    match (after.checked_sub(1).map(|k| points[k]), points.get(after)) {
        (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) * (at - x0) as f64 / (x1 - x0) as f64,
        (None, Some((_, first))) => *first,
        (Some((_, last)), None) => last,
        (None, None) => 0.0,
    }
}

/// Sums depend on their order in the last digit; readings come in any order.
fn in_order(readings: &[Reading]) -> Vec<Reading> {
    let mut readings = readings.to_vec();
    readings.sort_by(by_values);
    readings
}

/// Log limits at which curves are computed, and which of them were measured.
fn ladder(readings: &[Reading]) -> (Vec<f64>, Vec<usize>) {
    let highest = readings.iter().map(|r| r.point.limit.get()).fold(0.0, f64::max);
    let own: Vec<f64> = readings.iter().map(|r| r.point.limit.get().ln()).collect();
    let mut ladder = own.clone();
    let quarter = std::f64::consts::LN_2 / 4.0;
    ladder.extend(LADDER.map(|k| highest.ln() + f64::from(k) * quarter));
    ladder.sort_by(f64::total_cmp);
    ladder.dedup();
    let measured = (0..ladder.len()).filter(|k| own.contains(&ladder[*k])).collect();
    (ladder, measured)
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
    let known = Known::new(readings, scale, unknowns, quantity)?;
    Some(Opinions {
        residual: Process::new(known.at.clone(), &known.residuals, &OF_RESIDUALS),
        plain: Process::new(known.at, &known.whole, &OF_WHOLE),
        mean: known.mean,
    })
}

/// What was measured of one quantity.
struct Known {
    at: Vec<Coordinates>,
    /// What the step model leaves over.
    residuals: DVector<f64>,
    /// Differences from the mean.
    whole: DVector<f64>,
    mean: f64,
}

impl Known {
    /// `None` where it was never measured.
    fn new(
        readings: &[Reading],
        scale: &Scale,
        unknowns: &Unknowns,
        quantity: usize,
    ) -> Option<Self> {
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
        let count = measured.len();
        let mean = measured.iter().map(|(_, value)| value).sum::<f64>() / count as f64;
        let left =
            |(point, value): &(&Point, f64)| value - step::predict(unknowns, point)[quantity];
        Some(Self {
            at: measured.iter().map(|(point, _)| scale.apply(point)).collect(),
            residuals: DVector::from_iterator(count, measured.iter().map(left)),
            whole: DVector::from_iterator(count, measured.iter().map(|(_, value)| value - mean)),
            mean,
        })
    }
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
