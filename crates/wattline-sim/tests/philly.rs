//! A real trace of 82,247 jobs, where it is there to be read.
#![allow(clippy::unwrap_used, missing_docs)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this test measures time")]

mod common;

use common::shared;
use std::time::Instant;
use wattline_sim::replay::{ReplayOptions, replay};
use wattline_sim::simulation::{Watch, simulate};
use wattline_sim::trace::Format;

#[test]
fn all_of_philly_finishes_and_an_event_costs_the_same_in_a_long_queue() {
    let Some(path) = shared("data/traces/philly.csv") else {
        return;
    };
    let began = Instant::now();
    let seconds = || began.elapsed().as_secs_f64();
    let watch = Watch { seconds: &seconds, progress: &|_| {}, record: false, forecast: false };
    let options = ReplayOptions { gpus: Some(416), ..ReplayOptions::default() };
    let (instance, stats) = replay(&path, Format::Philly, &options).unwrap();
    assert_eq!(stats.jobs, 82_247);
    for policy in ["fifo", "edf", "tiresias"] {
        let cost_of = |jobs: usize| {
            let mut part = instance.clone();
            part.jobs.truncate(jobs);
            let s = simulate(&part, policy, &watch).unwrap().summary;
            assert_eq!(s.finished, jobs, "{policy}");
            assert_eq!(s.plans_refused, 0, "{policy}");
            s.wall_s / s.events as f64
        };
        let (short, long) = (cost_of(10_000), cost_of(82_247));
        // Eight times the jobs: a cost per event that grew with the queue would be eight times
        // as high. The bound leaves room for caches and a busy machine.
        assert!(long < 4.0 * short, "{policy}: {short} s and {long} s per event");
    }
}

#[test]
fn philly_on_its_own_size() {
    let Some(path) = shared("data/traces/philly.csv") else {
        return;
    };
    let watch = Watch { seconds: &|| 0.0, progress: &|_| {}, record: false, forecast: false };
    let options = ReplayOptions { gpus: Some(2490), ..ReplayOptions::default() };
    let (instance, _) = replay(&path, Format::Philly, &options).unwrap();
    assert_eq!(instance.cluster.total_gpus(), 2490);
    for policy in ["fifo", "edf", "tiresias"] {
        let s = simulate(&instance, policy, &watch).unwrap().summary;
        assert_eq!(s.finished, 82_247, "{policy}");
        // There is room for everybody: the mean completion time is the mean run time.
        assert!(s.wait_mean_s < 60.0, "{policy}: {}", s.wait_mean_s);
    }
}
