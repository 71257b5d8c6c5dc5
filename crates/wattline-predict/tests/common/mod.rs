//! Readings made up for the tests: like those of real training, and like nothing at all.

// Each test file uses its part.
#![allow(dead_code)]

use proptest::prelude::*;
use proptest::test_runner::Config;
use wattline_core::units::{Seconds, Watts};
use wattline_predict::reading::{Point, Reading};

/// The same cases in every run.
pub(crate) fn cases(cases: u32, seed: u64) -> Config {
    Config { max_shrink_iters: 200, ..wattline_testing::cases(cases, seed) }
}

/// A configuration.
pub(crate) fn point(gpus: u32, nodes: u32, batch: f64, limit: f64) -> Point {
    Point { gpus, nodes, batch, limit: Watts::new(limit) }
}

/// Evenly over the logarithm.
pub(crate) fn log_uniform(low: f64, high: f64) -> impl Strategy<Value = f64> + Clone {
    (low.ln()..=high.ln()).prop_map(move |x: f64| x.exp().clamp(low, high))
}

/// A workload on a GPU, simple enough to be known exactly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Truth {
    pub(crate) launch: f64,
    pub(crate) per_sample: f64,
    pub(crate) knee: f64,
    pub(crate) idle: f64,
    pub(crate) full: f64,
    pub(crate) sync: f64,
}

impl Truth {
    /// Time per sample and power.
    pub(crate) fn at(&self, point: &Point) -> (f64, f64) {
        let gpus = f64::from(point.gpus);
        let work = self.per_sample * point.batch / gpus;
        let compute = (self.launch.powf(self.knee) + work.powf(self.knee)).powf(1.0 / self.knee);
        let wanted = self.idle + (self.full - self.idle) * work / compute;
        let power = wanted.min(point.limit.get());
        let clock = ((power - 0.4 * wanted) / (0.6 * wanted)).max(0.05).sqrt();
        let sync = self.sync * (gpus - 1.0) * f64::from(point.nodes);
        ((compute * (0.5 + 0.5 / clock) + sync) / point.batch, power)
    }

    /// A reading of it that is off by these factors.
    pub(crate) fn reading(&self, point: Point, time_off: f64, power_off: f64) -> Reading {
        let (time, power) = self.at(&point);
        let (per_sample, power) = (Seconds::new(time * time_off), Watts::new(power * power_off));
        Reading { point, per_sample, power: Some(power) }
    }
}

/// Any workload.
pub(crate) fn truth() -> impl Strategy<Value = Truth> {
    let time = (log_uniform(1e-3, 1.0), log_uniform(1e-5, 1e-1), 1.0..8.0_f64, 0.0..0.05_f64);
    let power = (30.0..120.0_f64, 150.0..800.0_f64);
    (time, power).prop_map(|((launch, per_sample, knee, sync), (idle, full))| Truth {
        launch,
        per_sample,
        knee,
        idle,
        full,
        sync,
    })
}

/// A configuration one would use.
pub(crate) fn usual_point() -> impl Strategy<Value = Point> {
    (0..4_u32, 0..3_u32, 0..10_i32, 2..9_u32).prop_map(|(gpus, nodes, batch, limit)| {
        let gpus = 1 << gpus;
        let nodes = (1 << nodes).min(gpus);
        point(gpus, nodes, f64::from(gpus) * 2.0_f64.powi(batch), 50.0 * f64::from(limit))
    })
}

/// Any configuration that [`Reading::check`] lets through.
pub(crate) fn any_point() -> impl Strategy<Value = Point> {
    let gpus = prop_oneof![3 => 1..=64_u32, 1 => 1..=u32::MAX];
    (gpus, any::<u32>(), log_uniform(1.0, 1e12), log_uniform(1.0, 1e5))
        .prop_map(|(gpus, nodes, batch, limit)| point(gpus, 1 + nodes % gpus, batch, limit))
}

/// A configuration within or far outside the readings.
pub(crate) fn asked_point() -> impl Strategy<Value = Point> {
    prop_oneof![usual_point(), any_point()]
}

/// Readings of real training, each a few per cent off.
pub(crate) fn usual_readings(
    count: std::ops::RangeInclusive<usize>,
) -> BoxedStrategy<Vec<Reading>> {
    let off = 0.93..1.07_f64;
    let one = (usual_point(), off.clone(), off, any::<bool>());
    (truth(), any::<bool>(), prop::collection::vec(one, count))
        .prop_map(|(truth, patchy, all)| {
            all.into_iter()
                .map(|(point, time_off, power_off, no_power)| {
                    let reading = truth.reading(point, time_off, power_off);
                    let power = reading.power.filter(|_| !(patchy && no_power));
                    Reading { power, ..reading }
                })
                .collect()
        })
        .boxed()
}

/// Anything that [`Reading::check`] lets through.
pub(crate) fn garbage(count: std::ops::RangeInclusive<usize>) -> BoxedStrategy<Vec<Reading>> {
    let power = prop::option::weighted(0.8, log_uniform(0.1, 1e5));
    let wild = (any_point(), log_uniform(1e-12, 1e7), power.clone());
    // Numbers without sense at configurations that make sense.
    let senseless = (usual_point(), log_uniform(1e-7, 1e3), power);
    let one = prop_oneof![wild, senseless].prop_map(|(point, time, power)| Reading {
        point,
        per_sample: Seconds::new(time),
        power: power.map(Watts::new),
    });
    prop::collection::vec(one, count).boxed()
}

/// Either.
pub(crate) fn readings(count: std::ops::RangeInclusive<usize>) -> BoxedStrategy<Vec<Reading>> {
    prop_oneof![usual_readings(count.clone()), garbage(count)].boxed()
}

/// In another order, the same one for the same key.
pub(crate) fn shuffled<T: Clone>(values: &[T], key: u64) -> Vec<T> {
    let mut shuffled = values.to_vec();
    let mut state = key | 1;
    for last in (1..shuffled.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        shuffled.swap(last, (state >> 33) as usize % (last + 1));
    }
    shuffled
}
