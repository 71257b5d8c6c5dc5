//! What was measured of one workload on one kind of GPU.
//!
//! Everything here depends on which measurements came, not on the order in which they came. Sums
//! are integers, so that they do not depend on their order; what is dropped is chosen by the
//! number of the run, which is the same in any order. What the models see is rounded to what
//! matters: a measurement that says nothing new changes nothing, and nothing is fitted again.

use crate::reading::{Point, Reading, Weighed};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use wattline_core::ids::NodeId;
use wattline_core::time::Timestamp;
use wattline_core::units::{Seconds, Watts};

/// A run that measurements belong to. Later runs have larger numbers.
pub(crate) type Run = u64;

/// The last runs of a configuration that count.
const RUNS_PER_PLACE: usize = 16;
/// Configurations that are kept, and the most recently measured of them that are looked at.
const MOST_PLACES: usize = 16_384;
const MOST_LOOKED_AT: usize = 1024;
/// What is measured counts half after so long. What came from a file counts so much.
pub(crate) const HALF_LIFE: Seconds = Seconds::new(60.0 * 86_400.0);
const IMPORTED: f64 = 0.5;
/// The oldest still counts so much: where nothing newer is known it is all there is, and one clock
/// that runs ahead must not make everything else worthless.
const LEAST_FRESH: f64 = 1.0 / 16.0;
/// The age of a reading is looked at so many times in a half-life.
const LOOKS_PER_HALF_LIFE: f64 = 8.0;
/// Runs that differ from the middle of their configuration by more count less.
const USUAL_SCATTER: f64 = 0.1;
/// A run that is further off than this is no scatter.
const MOST_SCATTER: f64 = 0.25;
/// Steps in which logarithms are rounded: a fifth of a per cent.
const ROUNDING: f64 = 512.0;
/// A change of speed is believed when it is so large and so many standard errors out; what was
/// measured before it is moved by it and counts so much.
const LEAST_DRIFT: f64 = 0.06;
const SURE_OF_DRIFT: f64 = 5.0;
const LEAST_SCATTER: f64 = 0.03;
/// Runs before and after that it takes to see a change.
const LEAST_RUNS: usize = 6;
/// Of a normal distribution: the deviation by the median absolute one, and what a median is less
/// sure than a mean.
const NORMAL_MAD: f64 = 1.4826;
const NORMAL_MEDIAN: f64 = 1.2533;
const BEFORE_DRIFT: f64 = 0.25;
const MOST_CHANGES: usize = 32;
/// Configurations with several runs that a change is looked for in.
const MOST_COMPARED: usize = 128;

/// Sums in units of 2⁻⁴⁰: exact, whatever their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "(i64, u64)", into = "(i64, u64)")]
struct Exact(i128);

impl From<(i64, u64)> for Exact {
    fn from((high, low): (i64, u64)) -> Self {
        Self(i128::from(high) << 64 | i128::from(low))
    }
}

impl From<Exact> for (i64, u64) {
    fn from(Exact(sum): Exact) -> Self {
        ((sum >> 64) as i64, sum as u64)
    }
}

impl Exact {
    fn of(value: f64) -> Self {
        Self((value * (1_u64 << 40) as f64).round() as i128)
    }
    fn add(&mut self, value: f64) {
        self.0 = self.0.saturating_add(Self::of(value).0);
    }
    fn get(self) -> f64 {
        self.0 as f64 / (1_u64 << 40) as f64
    }
}

/// One stretch of a run, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) run: Run,
    /// `None`: before anything else.
    pub(crate) at: Option<Timestamp>,
    pub(crate) point: Point,
    pub(crate) node: Option<NodeId>,
    pub(crate) samples: f64,
    pub(crate) seconds: f64,
    pub(crate) power: Option<f64>,
}

impl Stretch {
    /// A reading as a run of its own.
    pub(crate) fn of(run: Run, at: Option<Timestamp>, reading: &Reading) -> Self {
        Self {
            run,
            at,
            point: reading.point,
            node: None,
            samples: 1.0 / reading.per_sample.get(),
            seconds: 1.0,
            power: reading.power.map(Watts::get),
        }
    }
}

/// All of a run in one configuration. A run has its own luck: it counts once, however long it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stay {
    run: Run,
    /// One after the other, if it moved.
    nodes: BTreeSet<NodeId>,
    last: Option<Timestamp>,
    samples: Exact,
    seconds: Exact,
    joules: Exact,
    metered: Exact,
}

impl Stay {
    fn log_time(&self) -> f64 {
        (self.seconds.get() / self.samples.get()).ln()
    }
    fn only_node(&self) -> Option<NodeId> {
        self.nodes.first().filter(|_| self.nodes.len() == 1).copied()
    }
    fn log_power(&self) -> Option<f64> {
        (self.metered.0 > 0).then(|| (self.joules.get() / self.metered.get()).ln())
    }
}

/// What models see of a configuration, rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Merged {
    time: i64,
    power: Option<i64>,
    /// Twice the binary logarithm.
    weight: i64,
}

/// A configuration and its last runs, by number.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    point: Point,
    stays: Vec<Stay>,
    /// Follows from the others.
    #[serde(skip)]
    merged: Option<Merged>,
}

/// Sorts as the configurations do.
type Key = (u32, u32, u64, u64);

fn key(point: &Point) -> Key {
    // Of positive numbers the bits sort as they do.
    (point.nodes, point.gpus, point.batch.to_bits(), point.limit.get().to_bits())
}

/// The speed of a workload has changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// The last measurement before the change.
    pub since: Timestamp,
    /// By which factor the time of a step has grown.
    pub factor: f64,
}

/// Measurements of one workload on one GPU type.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    places: BTreeMap<Key, Place>,
    /// By their newest run.
    by_run: BTreeSet<(Run, Key)>,
    /// A change of speed, as of the last look.
    drift: Option<Drift>,
    /// The age of readings counts from here.
    looked: i64,
}

/// What was measured of a group, without what follows from it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct StoreImage(Vec<Place>);

impl Store {
    /// All that was measured.
    pub(crate) fn image(&self) -> StoreImage {
        StoreImage(self.places.values().cloned().collect())
    }

    /// As measured, with nothing looked at.
    pub(crate) fn from_image(image: StoreImage) -> Self {
        let mut store = Self::default();
        for place in image.0 {
            let key = key(&place.point);
            store.by_run.extend(place.stays.last().map(|stay| (stay.run, key)));
            store.places.insert(key, place);
        }
        store
    }
}

/// Which look an instant belongs to, if looks begin so much later (a part of the time between two).
pub(crate) fn look_at(time: Timestamp, phase: f64) -> i64 {
    (time.seconds() / HALF_LIFE.get() * LOOKS_PER_HALF_LIFE - phase).floor() as i64
}

impl Store {
    /// Takes a stretch in.
    pub(crate) fn add(&mut self, stretch: &Stretch) {
        let key = key(&stretch.point);
        let place = self.places.entry(key).or_insert_with(|| Place {
            point: stretch.point,
            stays: Vec::new(),
            merged: None,
        });
        let newest = place.stays.last().map(|stay| stay.run);
        place.add(stretch);
        place.merged = None;
        let run = place.stays.last().map_or(stretch.run, |stay| stay.run);
        if newest != Some(run) {
            if let Some(newest) = newest {
                self.by_run.remove(&(newest, key));
            }
            self.by_run.insert((run, key));
            if self.places.len() > MOST_PLACES
                && let Some((_, oldest)) = self.by_run.pop_first()
            {
                self.places.remove(&oldest);
            }
        }
    }

    /// How many runs stand behind it.
    pub(crate) fn runs(&self) -> usize {
        let newest = self.by_run.iter().rev().take(MOST_LOOKED_AT);
        newest.filter_map(|(_, key)| self.places.get(key)).map(|place| place.stays.len()).sum()
    }

    /// Looks for a change of speed and at the age of everything, before [`Store::readings`].
    pub(crate) fn look(&mut self, look: i64) -> Option<Drift> {
        let drift = self.find_drift();
        if drift != self.drift || look != self.looked {
            self.drift = drift;
            self.looked = look;
            for place in self.places.values_mut() {
                place.merged = None;
            }
        }
        drift
    }

    /// What models see: the most recently measured configurations, in their own order.
    pub(crate) fn readings(&mut self) -> Vec<Weighed> {
        let mut keys: Vec<Key> =
            self.by_run.iter().rev().take(MOST_LOOKED_AT).map(|(_, key)| *key).collect();
        keys.sort_unstable();
        let mut readings = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(place) = self.places.get_mut(&key) {
                let merged = match place.merged {
                    Some(merged) => merged,
                    None => place.merged(self.drift, self.looked),
                };
                place.merged = Some(merged);
                readings.push(merged.weighed(place.point));
            }
        }
        readings
    }

    /// How much runs of the same configuration differ: a sum of squares of logarithms and its
    /// degrees of freedom.
    pub(crate) fn scatter(&self) -> (f64, f64) {
        let newest = self.by_run.iter().rev().take(MOST_COMPARED);
        let mut keys: Vec<Key> = newest.map(|(_, key)| *key).collect();
        keys.sort_unstable();
        let (mut squares, mut freedom) = (0.0, 0.0);
        for place in keys.iter().filter_map(|key| self.places.get(key)) {
            if place.stays.len() < 2 {
                continue;
            }
            let time = |stay: &Stay| stay.log_time() + moved(stay, self.drift);
            let mut times: Vec<f64> = place.stays.iter().map(time).collect();
            let usual = median(&mut times);
            let apart = times.iter().map(|time| (time - usual).abs().min(MOST_SCATTER));
            squares += apart.map(|apart| apart * apart).sum::<f64>();
            freedom += times.len() as f64 - 1.0;
        }
        (squares, freedom)
    }

    /// By how much runs took longer than runs of the same configuration on other nodes, in
    /// logarithms.
    pub(crate) fn by_node(&self, found: &mut BTreeMap<NodeId, Vec<f64>>) {
        for (_, key) in self.by_run.iter().rev().take(MOST_COMPARED) {
            let Some(place) = self.places.get(key) else { continue };
            let on_one: Vec<(NodeId, f64)> = place
                .stays
                .iter()
                .filter_map(|s| Some((s.only_node()?, s.log_time() + moved(s, self.drift))))
                .collect();
            for (node, time) in &on_one {
                let elsewhere = on_one.iter().filter(|(other, _)| other != node);
                let mut elsewhere: Vec<f64> = elsewhere.map(|(_, time)| *time).collect();
                if elsewhere.len() > 1 {
                    found.entry(*node).or_default().push(time - median(&mut elsewhere));
                }
            }
        }
    }

    /// The change of speed that runs of the same configurations show most clearly, if any does.
    fn find_drift(&self) -> Option<Drift> {
        let several: Vec<Vec<(Timestamp, f64)>> = self
            .by_run
            .iter()
            .rev()
            .take(MOST_LOOKED_AT)
            .filter_map(|(_, key)| self.places.get(key))
            .filter(|place| place.stays.len() > 1)
            .take(MOST_COMPARED)
            .map(|place| {
                let timed = |stay: &Stay| stay.last.map(|last| (last, stay.log_time()));
                place.stays.iter().filter_map(timed).collect()
            })
            .collect();
        let mut times: Vec<Timestamp> = several.iter().flatten().map(|(time, _)| *time).collect();
        times.sort_unstable();
        times.dedup();
        times.pop();
        // A few dozen candidates are enough to date a change.
        let every = times.len().div_ceil(MOST_CHANGES).max(1);
        times
            .into_iter()
            .step_by(every)
            .filter_map(|since| Some((shift(&several, since)?, since)))
            .filter(|((shift, _), _)| shift.abs() >= LEAST_DRIFT)
            .filter(|((shift, error), _)| shift.abs() >= SURE_OF_DRIFT * error)
            .max_by(|((a, a_error), a_time), ((b, b_error), b_time)| {
                (a.abs() / a_error).total_cmp(&(b.abs() / b_error)).then(b_time.cmp(a_time))
            })
            .map(|((shift, _), since)| Drift {
                since,
                factor: ((shift * ROUNDING).round() / ROUNDING).exp(),
            })
    }
}

/// By how much the times of the same configurations differ after and before an instant, and the
/// standard error of that; in logarithms. Medians, so that a liar is no change.
fn shift(several: &[Vec<(Timestamp, f64)>], since: Timestamp) -> Option<(f64, f64)> {
    let (mut earlier, mut later) = (Vec::new(), Vec::new());
    for runs in several {
        let side = |after: bool| -> Vec<f64> {
            runs.iter().filter(|(at, _)| (*at > since) == after).map(|(_, log)| *log).collect()
        };
        let (mut before, after) = (side(false), side(true));
        if before.is_empty() || after.is_empty() {
            continue;
        }
        let usual = median(&mut before);
        earlier.extend(before.into_iter().map(|log| log - usual));
        later.extend(after.into_iter().map(|log| log - usual));
    }
    if earlier.len().min(later.len()) < LEAST_RUNS {
        return None;
    }
    let (n, m) = (earlier.len() as f64, later.len() as f64);
    let shift = median(&mut later);
    let apart = earlier.into_iter().chain(later.into_iter().map(|log| log - shift));
    Some((shift, scatter_of_median(apart) * (1.0 / n + 1.0 / m).sqrt()))
}

/// By how much a node is slower than others, as a logarithm, where its runs show that clearly.
pub(crate) fn slowness(mut longer: Vec<f64>) -> Option<f64> {
    if longer.len() < LEAST_RUNS {
        return None;
    }
    let count = longer.len() as f64;
    let by = median(&mut longer);
    let error = scatter_of_median(longer.into_iter().map(|log| log - by)) / count.sqrt();
    (by >= LEAST_DRIFT && by >= SURE_OF_DRIFT * error).then_some(by)
}

/// What the median of one of these would be off by, for their scatter around zero. Runs on slow
/// nodes scatter widely and are few: the larger of the two measures of scatter counts.
fn scatter_of_median(apart: impl Iterator<Item = f64>) -> f64 {
    let mut apart: Vec<f64> = apart.map(|log| log.abs().min(MOST_SCATTER)).collect();
    let squares = apart.iter().map(|log| log * log).sum::<f64>() / apart.len() as f64;
    let by_median = NORMAL_MAD * median(&mut apart);
    NORMAL_MEDIAN * squares.sqrt().max(by_median).max(LEAST_SCATTER)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
}

impl Place {
    fn add(&mut self, stretch: &Stretch) {
        let at = self.stays.partition_point(|stay| stay.run < stretch.run);
        if self.stays.get(at).is_none_or(|stay| stay.run != stretch.run) {
            let stay = Stay {
                run: stretch.run,
                nodes: BTreeSet::new(),
                last: None,
                samples: Exact::default(),
                seconds: Exact::default(),
                joules: Exact::default(),
                metered: Exact::default(),
            };
            self.stays.insert(at, stay);
        }
        let stay = &mut self.stays[at];
        stay.nodes.extend(stretch.node);
        stay.last = stay.last.max(stretch.at);
        stay.samples.add(stretch.samples);
        stay.seconds.add(stretch.seconds);
        if let Some(power) = stretch.power {
            stay.joules.add(power * stretch.seconds);
            stay.metered.add(stretch.seconds);
        }
        if self.stays.len() > RUNS_PER_PLACE {
            self.stays.remove(0);
        }
    }

    fn merged(&self, drift: Option<Drift>, look: i64) -> Merged {
        let weight = |stay: &Stay| {
            let fresh = stay.last.map_or(IMPORTED, |last| {
                let looks = (look - look_at(last, 0.0)).max(0) as f64;
                0.5_f64.powf(looks / LOOKS_PER_HALF_LIFE).max(LEAST_FRESH)
            });
            fresh * if is_before(stay, drift) { BEFORE_DRIFT } else { 1.0 }
        };
        let time = |stay: &Stay| stay.log_time() + moved(stay, drift);
        let times: Vec<(f64, f64)> = self.stays.iter().map(|s| (time(s), weight(s))).collect();
        let powers: Vec<(f64, f64)> =
            self.stays.iter().filter_map(|s| Some((s.log_power()?, weight(s)))).collect();
        let total: f64 = times.iter().map(|(_, weight)| weight).sum();
        let rounded = |value: f64| (value * ROUNDING).round() as i64;
        Merged {
            time: rounded(middle(times)),
            power: (!powers.is_empty()).then(|| rounded(middle(powers))),
            weight: (2.0 * total.log2()).round() as i64,
        }
    }
}

/// Whether a run is from before a change of speed; what came from a file always is.
fn is_before(stay: &Stay, drift: Option<Drift>) -> bool {
    drift.is_some_and(|drift| stay.last.is_none_or(|last| last <= drift.since))
}

/// What a run is moved by for being from before a change of speed.
fn moved(stay: &Stay, drift: Option<Drift>) -> f64 {
    drift.filter(|_| is_before(stay, drift)).map_or(0.0, |drift| drift.factor.ln())
}

impl Merged {
    fn weighed(&self, point: Point) -> Weighed {
        let exp = |rounded: i64| (rounded as f64 / ROUNDING).exp();
        Weighed {
            reading: Reading {
                point,
                per_sample: Seconds::new(exp(self.time)),
                power: self.power.map(|power| Watts::new(exp(power))),
            },
            weight: (0.5 * self.weight as f64).exp2(),
        }
    }
}

/// The mean of weighed values, in which those far from the weighed median count less.
fn middle(mut values: Vec<(f64, f64)>) -> f64 {
    values.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let half: f64 = values.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut below = 0.0;
    let mut median = 0.0;
    for (k, (value, weight)) in values.iter().enumerate() {
        below += weight;
        if below >= half {
            // Exactly between two: their midpoint.
            let next = values.get(k + 1).filter(|_| below <= half * (1.0 + 1e-12));
            median = next.map_or(*value, |(next, _)| f64::midpoint(*value, *next));
            break;
        }
    }
    let (mut sum, mut weights) = (0.0, 0.0);
    for (value, weight) in &values {
        let weight = weight * (USUAL_SCATTER / (value - median).abs()).min(1.0);
        sum += weight * value;
        weights += weight;
    }
    sum / weights
}

/// The last of what runs reported of a workload, whatever the order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct LastReports(BTreeSet<(Reverse<Run>, u64)>);

/// More reports than this say nothing new.
const MOST_REPORTS: usize = 16;

impl LastReports {
    /// A positive number that a run reported; each run counts once, with the largest it reported.
    pub(crate) fn add(&mut self, run: Run, value: f64) {
        let known = self.0.range((Reverse(run), 0)..=(Reverse(run), u64::MAX)).next().copied();
        let value = known.map_or(value.to_bits(), |(_, bits)| bits.max(value.to_bits()));
        if let Some(known) = known {
            self.0.remove(&known);
        }
        self.0.insert((Reverse(run), value));
        if self.0.len() > MOST_REPORTS {
            self.0.pop_last();
        }
    }

    pub(crate) fn values(&self) -> Vec<f64> {
        self.0.iter().map(|(_, bits)| f64::from_bits(*bits)).collect()
    }
}
