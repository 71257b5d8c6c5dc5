//! Mean completion time: `wattline` against those that are made for it.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::run;
use wattline_sim::scenario::Scenario;

const ONES: &str = include_str!("../../../scenarios/ones-64.toml");
const POWERFLOW: &str = include_str!("../../../scenarios/powerflow-128.toml");

/// Mean over seeds of the mean completion time, by policy.
fn times(text: &str, seeds: &[u64], policies: &[&str]) -> Vec<f64> {
    let mut sums = vec![0.0; policies.len()];
    for seed in seeds {
        let scenario = Scenario::parse(text, "test").unwrap();
        let instance = scenario.instance("test", Some(*seed)).unwrap();
        for (sum, policy) in sums.iter_mut().zip(policies) {
            let summary = run(&instance, policy).summary;
            assert_eq!(summary.finished, summary.jobs, "{policy}");
            assert_eq!(summary.plans_refused, 0, "{policy}");
            *sum += summary.jct_mean_s / seeds.len() as f64;
        }
    }
    sums
}

#[test]
fn short_jobs_with_elastic_batches_and_dear_restarts() {
    let seeds = [1, 2, 3, 4, 5, 6];
    let policies = ["wattline+objective=jct", "ones", "tiresias", "ones+waiting"];
    let all = times(ONES, &seeds, &policies);
    assert!(all[0] < 0.90 * all[1], "{policies:?}: {all:?} s");
    assert!(all[1] < 0.60 * all[2], "{policies:?}: {all:?} s");
    assert!(all[0] < 0.96 * all[3], "{policies:?}: {all:?} s");
}

#[test]
fn where_many_compete_short_jobs_go_before_long_ones() {
    let crowded = POWERFLOW.replace("load = 1.5", "load = 3.0");
    let all = times(&crowded, &[1, 2], &["wattline+objective=jct", "powerflow+energy=inf+lend"]);
    assert!(all[0] < 0.97 * all[1], "wattline, powerflow: {all:?} s");
}
