//! How close predictions come to measurements: our own, and published ones where they are at hand.

#![allow(clippy::unwrap_used, missing_docs, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use wattline_core::units::{Seconds, Watts};
use wattline_predict::evaluate::{
    Errors, Evaluation, card_of_readings, evaluate, hold_out, intervals, leave_one_workload_out,
    summary,
};
use wattline_predict::reading::{Point, Reading};

/// What a T4 is limited to where nothing else is said; the other files name their limits.
const T4_LIMIT: f64 = 70.0;

/// Readings by workload; one file is one GPU type.
fn read(path: &Path) -> Vec<Vec<Reading>> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    assert_eq!(
        lines.next(),
        Some("workload,gpu,nodes,gpus,global_batch,power_limit_w,samples,seconds,power_w")
    );
    let mut groups: BTreeMap<&str, Vec<Reading>> = BTreeMap::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |k: usize| fields[k].parse::<f64>().ok();
        let reading = Reading {
            point: Point {
                nodes: fields[2].parse().unwrap(),
                gpus: fields[3].parse().unwrap(),
                batch: number(4).unwrap(),
                limit: Watts::new(number(5).unwrap_or(T4_LIMIT)),
            },
            per_sample: Seconds::new(number(7).unwrap() / number(6).unwrap()),
            power: number(8).map(Watts::new),
        };
        reading.check().unwrap();
        groups.entry(fields[0]).or_default().push(reading);
    }
    groups.into_values().collect()
}

/// A published file; `None` (and a message) where it is not there.
fn shared(name: &str) -> Option<PathBuf> {
    let found = std::env::var_os("WATTLINE_SHARED")
        .filter(|shared| !shared.is_empty())
        .map(|shared| PathBuf::from(shared).join("data/measurements").join(name))
        .filter(|path| path.exists());
    if found.is_none() {
        let why = format!("WATTLINE_SHARED does not lead to data/measurements/{name}");
        wattline_testing::skipped(&why);
    }
    found
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// `None` of nothing.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
    Some(f64::midpoint(sorted[low], sorted[high]))
}

/// The most that medians over workloads may be off, as fractions; `None` where nothing is asked.
struct Bounds {
    time: f64,
    power: Option<f64>,
    energy: Option<f64>,
}

fn holds(path: &Path, count: usize, bounds: &Bounds) {
    let all: Vec<Evaluation> = read(path).iter().filter_map(|g| evaluate(g, count)).collect();
    assert!(!all.is_empty());
    let of = |errors: fn(&Evaluation) -> Errors| -> [Vec<f64>; 3] {
        let all: Vec<Errors> = all.iter().map(errors).collect();
        [
            all.iter().map(|e| e.time).collect(),
            all.iter().filter_map(|e| e.power).collect(),
            all.iter().filter_map(|e| e.energy).collect(),
        ]
    };
    let ours = of(|e| e.model);
    let covered: usize = all.iter().map(|e| e.covered).sum();
    let held_out: usize = all.iter().map(|e| e.held_out).sum();
    let coverage = covered as f64 / held_out as f64;
    let name = path.file_name().unwrap().to_string_lossy();
    let name = format!("{name} from {count} points");
    let [time, power, energy] = ours.each_ref().map(|errors| median(errors));
    eprintln!("{name}: {time:?}, {power:?}, {energy:?}, {coverage:.3} in the interval");

    let bounds = [("time", Some(bounds.time)), ("power", bounds.power), ("energy", bounds.energy)];
    for ((what, bound), errors) in bounds.iter().zip(&ours) {
        if let Some(bound) = bound {
            let off = median(errors).unwrap();
            assert!(off <= *bound, "{name}: {what} is off by {off}, expected {bound} at most");
        }
    }
    assert!((0.85..=0.95).contains(&coverage), "{name}: {coverage} in the 90 % interval");
    let trials = read(path).into_iter().filter_map(|g| hold_out(&g, count));
    let held_out: Vec<_> = trials.flat_map(|trial| trial.held_out).collect();
    for (what, found) in ["time", "power", "energy"].iter().zip(intervals(&held_out)) {
        let Some(found) = found else { continue };
        assert!(found.coverage >= 0.85, "{name}: {what}: {found:?}");
        assert!(found.width <= 1.5 * found.oracle_width, "{name}: {what}: {found:?}");
    }
    for (baseline, theirs) in [("lines", of(|e| e.interpolation)), ("nearest", of(|e| e.nearest))] {
        for ((what, _), (ours, theirs)) in bounds.iter().zip(ours.iter().zip(&theirs)) {
            assert_eq!(ours.len(), theirs.len());
            if !ours.is_empty() {
                let (ours, theirs) = (mean(ours), mean(theirs));
                assert!(ours < theirs, "{name}: {what} is off by {ours}, {baseline} by {theirs}");
            }
        }
    }
}

fn holds_if_there(name: &str, count: usize, bounds: &Bounds) {
    if let Some(path) = shared(name) {
        holds(&path, count, bounds);
    }
}

/// Ours, always there.
fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/measurements").join(name)
}

#[test]
fn h200_from_3_points() {
    holds(&own("h200.csv"), 3, &Bounds { time: 0.08, power: None, energy: Some(0.08) });
}

#[test]
fn h200_from_4_points() {
    holds(&own("h200.csv"), 4, &Bounds { time: 0.06, power: None, energy: Some(0.06) });
}

/// Each workload from three readings, all the others known.
#[test]
fn a_workload_left_out_of_h200_from_3_points() {
    let groups = read(&own("h200.csv"));
    let groups: Vec<&[Reading]> = groups.iter().map(|group| &group[..]).collect();
    let card = card_of_readings(&groups).unwrap();
    let left_out = leave_one_workload_out(&groups, &card, 3);
    let time: Vec<f64> = left_out.iter().map(|h| summary(h, 3).model.time).collect();
    assert_eq!(time.len(), 9);
    assert!(mean(&time) <= 0.05, "{time:?}");
    let [found, ..] = intervals(left_out.iter().flatten());
    assert!((0.85..=0.95).contains(&found.unwrap().coverage), "{found:?}");
}

/// Seven workloads that were measured after everything here had been settled. The intervals are too
/// narrow for them (0.79 instead of 0.90): hosts keep no steady pace, and small batches show it.
#[test]
fn workloads_that_nothing_was_tuned_on_from_4_points() {
    let all: Vec<Evaluation> =
        read(&own("h200-more.csv")).iter().filter_map(|g| evaluate(g, 4)).collect();
    let of = |errors: fn(&Evaluation) -> f64| all.iter().map(errors).collect::<Vec<f64>>();
    let (time, energy) = (of(|e| e.model.time), of(|e| e.model.energy.unwrap()));
    assert_eq!(all.len(), 7);
    let covered: usize = all.iter().map(|e| e.covered).sum();
    let held_out: usize = all.iter().map(|e| e.held_out).sum();
    assert!(covered as f64 >= 0.78 * held_out as f64, "{covered} of {held_out}");
    assert!(median(&time).unwrap() < 0.06, "{time:?}");
    assert!(median(&energy).unwrap() < 0.06, "{energy:?}");
    assert!(mean(&time) < 0.6 * mean(&of(|e| e.interpolation.time)));
    assert!(mean(&time) < 0.25 * mean(&of(|e| e.nearest.time)));
}

#[test]
fn v100_from_12_points() {
    let bounds = Bounds { time: 0.03, power: Some(0.02), energy: Some(0.035) };
    holds_if_there("zeus-v100.csv", 12, &bounds);
}

#[test]
fn rtx6000_from_12_points() {
    let bounds = Bounds { time: 0.045, power: Some(0.015), energy: Some(0.045) };
    holds_if_there("zeus-rtx6000.csv", 12, &bounds);
}

/// Several GPUs on one node and on many; power was not measured.
const T4: Bounds = Bounds { time: 0.10, power: None, energy: None };

#[test]
fn t4_bert_from_24_points() {
    holds_if_there("pollux-t4-bert.csv", 24, &T4);
}

#[test]
fn t4_cifar10_from_24_points() {
    holds_if_there("pollux-t4-cifar10.csv", 24, &T4);
}

#[test]
fn t4_deepspeech2_from_24_points() {
    holds_if_there("pollux-t4-deepspeech2.csv", 24, &T4);
}

#[test]
fn t4_imagenet_from_24_points() {
    holds_if_there("pollux-t4-imagenet.csv", 24, &T4);
}
