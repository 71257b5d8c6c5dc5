//! The model of one workload on one kind of GPU.
//!
//! Two opinions are blended at every configuration: the parametric step with a process on what it
//! leaves over, and a process alone. Each counts by how sure it is there. Far from the readings
//! structure wins, near them the readings do.

use crate::baseline::{Answer, BaselineMethod};
use crate::belief::Belief;
use crate::fallback::Fallback;
use crate::features::{self, Scale};
use crate::interval::{self, Alike, HALF_OF_90, Unknown};
use crate::process::{OF_RESIDUALS, OF_WHOLE, Places, Process};
use crate::reading::{Point, Reading, Weighed};
use crate::step::{self, Fit};
use nalgebra::DVector;
use wattline_core::cluster::GpuType;
use wattline_core::units::{Joules, Seconds, Watts};

/// The plain process is trusted less than its own variance says, and so are the unknowns of the
/// parametric step. That weighs the opinions; with 1 for both, errors on the files we have move by a
/// tenth at most, and 90 % intervals hold about as many readings (`docs/src/explanation/prediction.md`).
const PLAIN_VARIANCE: f64 = 4.0;
const STEP_VARIANCE: f64 = 1.7;
/// Limits, in quarters of an octave around the highest known one, between which time is made to
/// fall with the limit.
const LADDER: std::ops::RangeInclusive<i32> = -8..=4;
/// Steps of a card's own limits beyond which some are left out.
const MOST_STEPS: usize = 12;

const TIME: usize = 0;
const POWER: usize = 1;

/// What is expected of a configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expectation {
    /// Time per sample of the global batch.
    pub per_sample: Seconds,
    /// Nineteen of twenty readings lie above this.
    pub per_sample_low: Seconds,
    /// Nineteen of twenty readings lie below this (90 % between the two).
    pub per_sample_high: Seconds,
    /// Mean power of each GPU; `None` if power was never measured.
    pub power: Option<Watts>,
    /// The power is by this factor lower or higher in 90 % of all readings.
    pub power_within: f64,
    /// The same of the energy: not the product of the other two, because a step that takes longer
    /// than expected draws less.
    pub energy_within: f64,
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
    /// Where it was measured; `None`: where time was.
    places: Option<Places>,
    residual: Process,
    plain: Process,
    mean: f64,
    /// Counts instead of both.
    fallback: Option<Fallback>,
}

/// What readings add to the formula.
#[derive(Clone, Debug)]
struct Corrections {
    scale: Scale,
    /// What other groups these readings are like.
    alike: Alike,
    places: Places,
    time: Opinions,
    power: Option<Opinions>,
}

/// A fitted model.
#[derive(Clone, Debug)]
pub struct Model {
    fit: Fit,
    /// `None` without readings.
    corrections: Option<Corrections>,
    ladder: Ladder,
    readings: usize,
}

impl Model {
    /// Fits readings, which the caller has [checked](Reading::check); `space` is every configuration
    /// that may be asked about, the readings' own included. `None` without readings.
    #[must_use]
    pub fn fit(readings: &[Reading], space: &[Point]) -> Option<Self> {
        let mut readings: Vec<Weighed> =
            readings.iter().map(|reading| Weighed { reading: *reading, weight: 1.0 }).collect();
        if readings.is_empty() {
            return None;
        }
        // Sums depend on their order in the last digit; readings come in any order.
        readings.sort_by(|a, b| by_values(&a.reading, &b.reading));
        let belief = Belief::of_readings(&readings);
        let fit = step::fit(&readings, &belief, &step::starts(&belief));
        Some(Self::corrected(fit, &readings, space, Ladder::around(&readings)))
    }

    /// A formula, and what readings say it gets wrong. They come in an order of their own.
    pub(crate) fn corrected(
        fit: Fit,
        readings: &[Weighed],
        space: &[Point],
        ladder: Ladder,
    ) -> Self {
        let scale = Scale::new(space.iter().chain(readings.iter().map(|r| &r.reading.point)));
        let corrections = Known::new(readings, &fit, TIME).map(|known| {
            let mut places = known.places(&scale);
            let mut time = known.opinions(&places, space);
            let mut power = Known::new(readings, &fit, POWER).map(|power| {
                if power.readings.len() == readings.len() {
                    return power.opinions(&places, space);
                }
                let mut own = power.places(&scale);
                let mut opinions = power.opinions(&own, space);
                keep_used(&mut own, &mut [&mut opinions]);
                Opinions { places: Some(own), ..opinions }
            });
            let mut sharing: Vec<&mut Opinions> = vec![&mut time];
            sharing.extend(power.as_mut().filter(|power| power.places.is_none()));
            keep_used(&mut places, &mut sharing);
            let varies = places.varies();
            let alike = Alike {
                axes: varies.iter().filter(|varies| **varies).count(),
                limits: varies[features::LIMIT],
                readings: readings.len(),
            };
            Corrections { scale, alike, places, time, power }
        });
        Self { fit, corrections, ladder, readings: readings.len() }
    }

    /// How many readings stand behind it.
    #[must_use]
    pub fn readings(&self) -> usize {
        self.readings
    }

    /// The baselines that do better here than the model, for time and for power.
    #[must_use]
    pub fn fallbacks(&self) -> [Option<BaselineMethod>; 2] {
        let way = |opinions: &Opinions| opinions.fallback.as_ref().map(Fallback::way);
        let of = self.corrections.as_ref();
        [of.and_then(|c| way(&c.time)), of.and_then(|c| c.power.as_ref().and_then(way))]
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
        let steps: Vec<Point> = self.ladder.limits.iter().map(at).collect();
        // What the unknowns' uncertainty adds, and how much time and power depend on the host's
        // pace, is worked out at a few limits and drawn in straight lines between.
        let uncertain: Vec<(usize, [f64; 4])> = self
            .ladder
            .anchors
            .iter()
            .map(|k| {
                let [(unsure, host), (power_unsure, power_host)] = self.fit.unsure(&steps[*k]);
                (*k, [unsure, power_unsure, host, power_host])
            })
            .collect();
        let metered = self.corrections.as_ref().is_none_or(|c| c.power.is_some());
        let mut curve = Curve {
            limits: self.ladder.limits.clone(),
            time: Vec::with_capacity(steps.len()),
            power: metered.then(|| Vec::with_capacity(steps.len())),
            within: Vec::with_capacity(steps.len()),
        };
        let alike = self.corrections.as_ref().map(|c| c.alike);
        for (k, point) in steps.iter().enumerate() {
            let [unsure, power_unsure, host, power_host] = between(&uncertain, k);
            let unsure = [unsure, power_unsure];
            let formula = step::predict(&self.fit.unknowns, point);
            let [(time, of_time), (power, of_power)] = match &self.corrections {
                Some(corrections) => corrections.apply(point, formula, unsure, self.readings),
                None => [TIME, POWER].map(|q| (formula[q], STEP_VARIANCE * unsure[q])),
            };
            let unknown = Unknown { variances: [of_time, of_power], host: [host, power_host] };
            curve.time.push(time);
            curve.within.push(interval::within(&unknown, alike));
            if let Some(powers) = &mut curve.power {
                powers.push(power);
            }
        }
        curve.time = nearest_falling(&curve.time);
        curve
    }
}

impl Corrections {
    /// Means and variances of time and power.
    fn apply(
        &self,
        point: &Point,
        formula: [f64; 2],
        unsure: [f64; 2],
        readings: usize,
    ) -> [(f64, f64); 2] {
        let at = self.scale.apply(point);
        let projected = self.places.project(&at);
        let time = self.time.at(point, &projected, formula[TIME], unsure[TIME], readings);
        let power = self.power.as_ref().map_or((formula[POWER], unsure[POWER]), |opinions| {
            let own = opinions.places.as_ref().map(|places| places.project(&at));
            let projected = own.as_ref().unwrap_or(&projected);
            opinions.at(point, projected, formula[POWER], unsure[POWER], readings)
        });
        [time, power]
    }
}

impl Opinions {
    /// Mean and variance of both opinions together, or of the baseline that is better.
    fn at(
        &self,
        point: &Point,
        projected: &[DVector<f64>],
        formula: f64,
        unsure: f64,
        readings: usize,
    ) -> (f64, f64) {
        self.fallback.as_ref().and_then(|fallback| fallback.at(point)).unwrap_or_else(|| {
            let (left_over, from_mean) =
                (self.residual.predict(projected), self.plain.predict(projected));
            self.blend(left_over, from_mean, formula, unsure, readings)
        })
    }

    /// Mean and variance of both opinions together.
    fn blend(
        &self,
        (left_over, variance): (f64, f64),
        (from_mean, plain_variance): (f64, f64),
        formula: f64,
        from_unknowns: f64,
        readings: usize,
    ) -> (f64, f64) {
        let structured = formula + left_over;
        let structured_variance = variance + STEP_VARIANCE * from_unknowns;
        let plain = self.mean + from_mean;
        // From a single reading a process alone knows nothing of any slope, and does not know it.
        let share = if readings < 2 {
            0.0
        } else {
            structured_variance / (structured_variance + PLAIN_VARIANCE * plain_variance)
        };
        // The variance of a mixture: where the opinions differ, that difference is a part of what
        // is not known.
        let own = (1.0 - share) * structured_variance + share * plain_variance;
        let apart = share * (1.0 - share) * (structured - plain) * (structured - plain);
        ((1.0 - share) * structured + share * plain, own + apart)
    }
}

/// Expectations of one configuration over the power limit.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Logarithms of the limits, rising.
    limits: Vec<f64>,
    time: Vec<f64>,
    power: Option<Vec<f64>>,
    /// How far 90 % of all readings lie from that, in logarithms: time, power and energy.
    within: Vec<[f64; 3]>,
}

impl Curve {
    /// Single runs scatter so much around their configuration in time, and so in energy; what is
    /// not known about the configuration is at least that part of the variance.
    pub(crate) fn scatter(&mut self, scatter: f64, not_scatter: f64) {
        let least = HALF_OF_90 * scatter;
        for [time, _, energy] in &mut self.within {
            for within in [time, energy] {
                let own = *within * *within;
                *within = own.max(least * least + not_scatter * own).sqrt();
            }
        }
    }

    /// Under this limit; straight lines in the logarithms between the steps, constant beyond.
    #[must_use]
    pub fn at(&self, limit: Watts) -> Expectation {
        let log = limit.get().ln();
        let after = self.limits.partition_point(|step| *step < log);
        let read =
            |value: &dyn Fn(usize) -> f64| match (after.checked_sub(1), self.limits.get(after)) {
                (Some(before), Some(next)) => {
                    let share = (log - self.limits[before]) / (next - self.limits[before]);
                    value(before) + (value(after) - value(before)) * share
                }
                (None, _) => value(0),
                (Some(last), None) => value(last),
            };
        let time = read(&|k| self.time[k]);
        let [within, power_within, energy_within] =
            [0, 1, 2].map(|quantity| read(&|k| self.within[k][quantity]));
        // No card draws more than it is allowed to, whatever a few readings suggest.
        let power = self.power.as_ref();
        let power = power.map(|power| Watts::new(bounded(read(&|k| power[k]))).min(limit));
        Expectation {
            per_sample: Seconds::new(bounded(time)),
            per_sample_low: Seconds::new(bounded(time - within)),
            per_sample_high: Seconds::new(bounded(time + within)),
            power,
            power_within: bounded(power_within),
            energy_within: bounded(energy_within),
        }
    }
}

/// Straight lines between points whose places rise; there is at least one.
fn between<const N: usize>(points: &[(usize, [f64; N])], at: usize) -> [f64; N] {
    let after = points.partition_point(|(place, _)| *place < at);
    let (x1, y1) = points[after.min(points.len() - 1)];
    let (x0, y0) = points[after.saturating_sub(1)];
    if x1 <= x0 {
        return y1;
    }
    let share = (at - x0) as f64 / (x1 - x0) as f64;
    std::array::from_fn(|k| y0[k] + (y1[k] - y0[k]) * share)
}

/// The limits at which curves are computed, rising.
#[derive(Clone, Debug)]
pub(crate) struct Ladder {
    /// Their logarithms.
    limits: Vec<f64>,
    /// Where the unknowns' uncertainty is worked out.
    anchors: Vec<usize>,
}

impl Ladder {
    /// Around what was measured.
    fn around(readings: &[Weighed]) -> Self {
        let measured = || readings.iter().map(|r| r.reading.point.limit.get());
        let highest = measured().fold(0.0, f64::max);
        let own: Vec<f64> = measured().map(f64::ln).collect();
        let mut limits = own.clone();
        let quarter = std::f64::consts::LN_2 / 4.0;
        limits.extend(LADDER.map(|k| highest.ln() + f64::from(k) * quarter));
        limits.sort_by(f64::total_cmp);
        limits.dedup();
        let anchor = |k: &usize| own.contains(&limits[*k]) || *k == 0 || *k == limits.len() - 1;
        let anchors = (0..limits.len()).filter(anchor).collect();
        Self { limits, anchors }
    }

    /// The limits a card can be set to, or some of them.
    pub(crate) fn of_card(card: &GpuType) -> Self {
        let down: Vec<f64> = card.limits_down().map(Watts::get).collect();
        let every = down.len().div_ceil(MOST_STEPS).max(1);
        let ends = [card.min_limit.get(), card.max_limit.get()];
        let mut limits: Vec<f64> =
            down.into_iter().step_by(every).chain(ends).map(|limit| limit.max(1.0).ln()).collect();
        limits.sort_by(f64::total_cmp);
        limits.dedup();
        let last = limits.len() - 1;
        let mut anchors = vec![0, last / 2, last];
        anchors.dedup();
        Self { limits, anchors }
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

/// What was measured of one quantity.
struct Known<'a> {
    readings: Vec<&'a Weighed>,
    quantity: fn(&Answer) -> Option<f64>,
    /// Logarithms.
    values: Vec<f64>,
    /// Variances that the unknowns' uncertainty adds.
    unsure: Vec<f64>,
    /// What the step model leaves over.
    residuals: DVector<f64>,
    /// Differences from the mean.
    whole: DVector<f64>,
    mean: f64,
}

impl<'a> Known<'a> {
    /// `None` where it was never measured.
    fn new(readings: &'a [Weighed], fit: &Fit, quantity: usize) -> Option<Self> {
        let of: fn(&Answer) -> Option<f64> = match quantity {
            TIME => |answer| Some(answer.0.get()),
            _ => |answer| answer.1.map(Watts::get),
        };
        let measured: Vec<(&Weighed, f64)> = readings
            .iter()
            .filter_map(|weighed| {
                let reading = &weighed.reading;
                Some((weighed, of(&(reading.per_sample, reading.power))?.ln()))
            })
            .collect();
        if measured.is_empty() {
            return None;
        }
        let count = measured.len();
        let values: Vec<f64> = measured.iter().map(|(_, value)| *value).collect();
        let mean = values.iter().sum::<f64>() / count as f64;
        let (formula, unsure): (Vec<f64>, Vec<f64>) =
            measured.iter().map(|(weighed, _)| fit.at(&weighed.reading.point)[quantity]).unzip();
        Some(Self {
            residuals: DVector::from_fn(count, |k, _| values[k] - formula[k]),
            whole: DVector::from_fn(count, |k, _| values[k] - mean),
            readings: measured.into_iter().map(|(weighed, _)| weighed).collect(),
            quantity: of,
            values,
            unsure,
            mean,
        })
    }

    fn places(&self, scale: &Scale) -> Places {
        let at = self.readings.iter().map(|weighed| scale.apply(&weighed.reading.point)).collect();
        let weights: Vec<f64> = self.readings.iter().map(|weighed| weighed.weight).collect();
        Places::new(at, &weights)
    }

    fn opinions(&self, places: &Places, space: &[Point]) -> Opinions {
        let mut opinions = Opinions {
            places: None,
            residual: Process::new(places, &self.residuals, &OF_RESIDUALS),
            plain: Process::new(places, &self.whole, &OF_WHOLE),
            mean: self.mean,
            fallback: None,
        };
        let errors = self.errors(places, &opinions);
        let readings: Vec<Reading> = self.readings.iter().map(|weighed| weighed.reading).collect();
        opinions.fallback = Fallback::find(&readings, space, &errors, self.quantity);
        opinions
    }

    /// What each reading is off from what the others lead to expect, in logarithms; the formula has
    /// seen them all.
    fn errors(&self, places: &Places, opinions: &Opinions) -> Vec<f64> {
        let left_over = opinions.residual.without_each(places, &self.residuals);
        let from_mean = opinions.plain.without_each(places, &self.whole);
        let count = self.values.len();
        (0..count)
            .map(|k| {
                let formula = self.values[k] - self.residuals[k];
                let (mean, _) =
                    opinions.blend(left_over[k], from_mean[k], formula, self.unsure[k], count);
                self.values[k] - mean
            })
            .collect()
    }
}

/// Forgets what none of these needs.
fn keep_used(places: &mut Places, opinions: &mut [&mut Opinions]) {
    let mut processes: Vec<&mut Process> =
        opinions.iter_mut().flat_map(|o| [&mut o.residual, &mut o.plain]).collect();
    places.keep_used(&mut processes);
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
