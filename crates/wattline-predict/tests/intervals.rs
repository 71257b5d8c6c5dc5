//! What 90 % intervals hold, on workloads made up for it.

#![allow(clippy::unwrap_used, missing_docs, clippy::disallowed_methods)]

mod common;

use common::{Truth, point};
use wattline_core::units::Watts;
use wattline_predict::evaluate::{
    HeldOut, Intervals, card_of_readings, hold_out, intervals, leave_one_workload_out,
};
use wattline_predict::reading::Reading;

/// The same numbers in every run.
struct Dice(u64);

impl Dice {
    fn uniform(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
    /// Twelve uniform numbers make a normal one.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
    fn between(&mut self, low: f64, high: f64) -> f64 {
        (low.ln() + self.uniform() * (high / low).ln()).exp()
    }
}

/// One of a population of workloads: none is told from another but by its readings.
fn workload(dice: &mut Dice) -> Truth {
    Truth {
        launch: dice.between(0.008, 0.05),
        per_sample: dice.between(2e-4, 5e-3),
        knee: dice.between(1.5, 5.0),
        idle: dice.between(70.0, 110.0),
        full: dice.between(220.0, 300.0),
        sync: 0.0,
    }
}

/// Every batch under every limit once, each a few per cent off.
fn readings(truth: &Truth, dice: &mut Dice, noise: f64) -> Vec<Reading> {
    let mut all = Vec::new();
    for batch in 2..10 {
        for limit in [125.0, 150.0, 175.0, 200.0, 250.0] {
            let (time, power) =
                ((noise * dice.normal()).exp(), (0.6 * noise * dice.normal()).exp());
            all.push(truth.reading(point(1, 1, 2.0_f64.powi(batch), limit), time, power));
        }
    }
    all
}

/// Workloads whose readings scatter by one to five per cent.
fn population(count: usize) -> Vec<Vec<Reading>> {
    let mut dice = Dice(11);
    (0..count)
        .map(|_| {
            let truth = workload(&mut dice);
            let noise = dice.between(0.01, 0.05);
            readings(&truth, &mut dice, noise)
        })
        .collect()
}

#[test]
fn nine_of_ten_readings_of_exchangeable_workloads_lie_in_their_intervals() {
    let all = population(24);
    for count in [4, 6, 12, 24] {
        let trials: Vec<HeldOut> =
            all.iter().flat_map(|readings| hold_out(readings, count).unwrap().held_out).collect();
        let found = intervals(&trials);
        for (what, found) in ["time", "power", "energy"].iter().zip(found) {
            let Intervals { coverage, width, oracle_width } = found.unwrap();
            eprintln!("{count} readings, {what}: {coverage:.3}, {width:.3} of {oracle_width:.3}");
            // The formula is true of these workloads, so that more than nine of ten may be held.
            assert!(coverage >= 0.85, "{count}, {what}: {coverage}");
            assert!(width < 1.5 * oracle_width, "{count}, {what}: {width} of {oracle_width}");
        }
    }
}

#[test]
fn nine_of_ten_readings_of_a_workload_that_is_left_out_do_too() {
    let all = population(8);
    let all: Vec<&[Reading]> = all.iter().map(|readings| &readings[..]).collect();
    let card = card_of_readings(&all).unwrap();
    for count in [6, 12] {
        let left_out = leave_one_workload_out(&all, &card, count);
        assert_eq!(left_out.len(), 8);
        for (what, found) in
            ["time", "power", "energy"].iter().zip(intervals(left_out.iter().flatten()))
        {
            let Intervals { coverage, width, oracle_width } = found.unwrap();
            eprintln!("{count} readings, {what}: {coverage:.3}, {width:.3} of {oracle_width:.3}");
            assert!(coverage >= 0.85, "{count}, {what}: {coverage}");
            assert!(width < 1.5 * oracle_width, "{count}, {what}: {width} of {oracle_width}");
        }
    }
}

fn mean_width(held_out: &[HeldOut]) -> f64 {
    intervals(held_out)[0].unwrap().width
}

#[test]
fn a_workload_unlike_all_others_is_less_sure() {
    let mut all = population(6);
    let usual =
        Truth { launch: 0.02, per_sample: 1e-3, knee: 3.0, idle: 90.0, full: 260.0, sync: 0.0 };
    let mut dice = Dice(5);
    all.push(readings(&usual, &mut dice, 0.01));
    let card = {
        let all: Vec<&[Reading]> = all.iter().map(|readings| &readings[..]).collect();
        card_of_readings(&all).unwrap()
    };
    let width = |own: Vec<Reading>| {
        let mut all = all.clone();
        *all.last_mut().unwrap() = own;
        let all: Vec<&[Reading]> = all.iter().map(|readings| &readings[..]).collect();
        mean_width(leave_one_workload_out(&all, &card, 12).last().unwrap())
    };
    let like_others = width(readings(&usual, &mut dice, 0.01));
    // Every second batch takes 40 % longer: no other workload does anything of the kind.
    let unlike: Vec<Reading> = readings(&usual, &mut dice, 0.01)
        .into_iter()
        .map(|r| {
            let slower = if r.point.batch.log2() as i32 % 2 == 0 { 1.4 } else { 1.0 };
            Reading { per_sample: r.per_sample * slower, ..r }
        })
        .collect();
    let unlike = width(unlike);
    eprintln!("{like_others} {unlike}");
    assert!(unlike > 1.3 * like_others, "{unlike}, like others {like_others}");
}

#[test]
fn energy_is_surer_than_time_and_power_together() {
    let truth =
        Truth { launch: 0.03, per_sample: 1e-3, knee: 3.0, idle: 90.0, full: 600.0, sync: 0.0 };
    let measured: Vec<Reading> = [2.0, 16.0, 64.0, 512.0]
        .into_iter()
        .map(|batch| truth.reading(point(1, 1, batch, 700.0), 1.0, 1.0))
        .collect();
    let model = wattline_predict::model::Model::fit(&measured, &[]).unwrap();
    for batch in [1.0, 4.0, 32.0, 256.0, 2048.0] {
        let e = model.expect(&wattline_predict::reading::Point {
            limit: Watts::new(700.0),
            ..point(1, 1, batch, 700.0)
        });
        let time = (e.per_sample_high / e.per_sample).ln();
        let (power, energy) = (e.power_within.ln(), e.energy_within.ln());
        assert!(energy < 0.8 * (time + power), "{batch}: {time} and {power}, {energy}");
        assert!(energy >= (time - power).abs() - 1e-9, "{batch}: {time} and {power}, {energy}");
    }
    // Where steps wait for their host, time is less sure than where the GPU is busy.
    let width = |batch: f64| {
        let e = model.expect(&point(1, 1, batch, 700.0));
        (e.per_sample_high / e.per_sample_low).ln()
    };
    assert!(width(4.0) > 2.0 * width(256.0), "{} and {}", width(4.0), width(256.0));
}
