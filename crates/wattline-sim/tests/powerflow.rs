//! `powerflow` against simple policies: time for energy.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{instance, run};
use wattline_sim::foresight::Foresight;
use wattline_sim::instance::Instance;
use wattline_sim::metrics::Summary;
use wattline_sim::scenario::Scenario;

const SCENARIO: &str = include_str!("../../../scenarios/powerflow-128.toml");

fn at_load(load: f64, seed: u64) -> Instance {
    let text = SCENARIO.replace("load = 1.5", &format!("load = {load}"));
    assert!(load == 1.5 || text != SCENARIO);
    let scenario = Scenario::parse(&text, "test").unwrap();
    let mut instance = scenario.instance("test", Some(seed)).unwrap();
    instance.foresight = Foresight::Oracle;
    instance
}

fn figures(instance: &Instance, policy: &str) -> Summary {
    let summary = run(instance, policy).summary;
    assert_eq!(summary.finished, summary.jobs, "{policy}");
    assert_eq!(summary.plans_refused, 0, "{policy}");
    summary
}

#[test]
fn jobs_end_earlier_with_no_more_energy_than_simple_policies_take() {
    for (load, seed) in [(0.5, 11), (1.1, 13), (1.5, 14)] {
        let instance = at_load(load, seed);
        let ours = figures(&instance, "powerflow+energy=inf");
        for (policy, times) in [("fifo", 1.1), ("tiresias", 1.4)] {
            let theirs = figures(&instance, policy);
            assert!(ours.energy_kwh < theirs.energy_kwh, "{policy} at {load}");
            assert!(ours.jct_mean_s * times < theirs.jct_mean_s, "{policy} at {load}");
        }
    }
}

#[test]
fn wattline_needs_less_time_at_equal_energy() {
    let policies = ["wattline+energy=1", "powerflow"];
    let mut all = [(0.0, 0.0); 2];
    for seed in [12, 13, 14] {
        let mut instance = at_load(1.5, seed);
        instance.foresight = Foresight::Learned;
        for (sum, policy) in all.iter_mut().zip(policies) {
            let summary = figures(&instance, policy);
            sum.0 += summary.jct_mean_s;
            sum.1 += summary.energy_kwh;
        }
    }
    let [ours, theirs] = all;
    assert!(ours.0 < 0.95 * theirs.0 && ours.1 < 1.005 * theirs.1, "{all:?} s and kWh");
}

#[test]
fn the_energy_budget_trades_energy_for_time() {
    let instance = at_load(0.8, 21);
    let shares = ["0.7", "0.85", "1", "1.3", "inf"];
    let all: Vec<Summary> = shares
        .iter()
        .map(|share| figures(&instance, &format!("powerflow+energy={share}")))
        .collect();
    for (two, shares) in all.windows(2).zip(shares.windows(2)) {
        assert!(two[0].energy_kwh < two[1].energy_kwh * 1.01, "{shares:?}");
        assert!(two[0].jct_mean_s > two[1].jct_mean_s * 0.98, "{shares:?}");
    }
    let (first, last) = (&all[0], &all[all.len() - 1]);
    assert!(first.energy_kwh * 1.15 < last.energy_kwh);
    assert!(first.jct_mean_s > 1.5 * last.jct_mean_s);
}

#[test]
fn the_power_budget_holds() {
    let mut instance = instance(include_str!("../../../scenarios/capped-60.toml"));
    instance.foresight = Foresight::Oracle;
    let summary = figures(&instance, "powerflow");
    assert_eq!(summary.budget_exceeded_s, 0.0);
    assert_eq!(summary.committed_exceeded_s, 0.0);
}

#[test]
fn idle_nodes_sleep_and_jobs_sit_close() {
    let instance = at_load(0.3, 31);
    let asleep = figures(&instance, "powerflow");
    let awake = figures(&instance, "powerflow+sleep=never");
    assert!(asleep.energy_kwh * 1.2 < awake.energy_kwh);
    assert!(asleep.energy_idle_kwh < 0.05 * asleep.energy_kwh);
    assert!(asleep.fragmentation < 1.0 && awake.fragmentation < 0.1);
}
