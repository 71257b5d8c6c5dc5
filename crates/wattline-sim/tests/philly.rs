//! A real trace of 82,247 jobs, where it is there to be read.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::shared;
use rustix::time::{ClockId, clock_gettime};
use wattline_sim::replay::{ReplayOptions, replay};
use wattline_sim::simulation::{Watch, simulate};
use wattline_sim::trace::Format;

/// Time that this thread has run for: on a busy machine it is not all the time that has passed.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

#[test]
fn all_of_philly_finishes_and_an_event_costs_the_same_in_a_long_queue() {
    let Some(path) = shared("data/traces/philly.csv") else {
        return;
    };
    let watch = Watch { seconds: &|| 0.0, progress: &|_| {}, record: false, forecast: false };
    // `tiresias` is measured with what it is built on.
    let options =
        ReplayOptions { gpus: Some(416), preemptible: Some(true), ..ReplayOptions::default() };
    let (instance, stats) = replay(&path, Format::Philly, &options).unwrap();
    assert_eq!(stats.jobs, 82_247);
    for policy in ["fifo", "edf", "tiresias"] {
        let cost_of = |jobs: usize| {
            let mut part = instance.clone();
            part.jobs.truncate(jobs);
            // What others do on this machine disturbs some of the runs, and speeds none up.
            let runs = (0..3).map(|_| {
                let began = cpu_seconds();
                let s = simulate(&part, policy, &watch).unwrap().summary;
                let took = cpu_seconds() - began;
                assert_eq!(s.finished, jobs, "{policy}");
                assert_eq!(s.plans_refused, 0, "{policy}");
                took / s.events as f64
            });
            runs.fold(f64::INFINITY, f64::min)
        };
        let (short, long) = (cost_of(10_000), cost_of(82_247));
        // Eight times the jobs: a cost per event that grew with the queue would be eight times
        // as high. The bound leaves room for caches.
        eprintln!("{policy}: {:.2} us and {:.2} us per event", short * 1e6, long * 1e6);
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
