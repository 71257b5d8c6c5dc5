//! What policies know, what they learn, and what a run says about it.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{instance, run};
use std::fs;
use std::sync::Mutex;
use wattline_core::job::Elasticity;
use wattline_sim::accuracy::Check;
use wattline_sim::experiment;
use wattline_sim::foresight::Foresight;
use wattline_sim::instance::Instance;
use wattline_sim::replay::{ReplayOptions, replay};
use wattline_sim::simulation::{Progress, Watch};
use wattline_sim::trace::Format;

const LEARNING: &str = include_str!("../../../scenarios/learning.toml");

fn with(instance: &Instance, foresight: Foresight) -> Instance {
    Instance { foresight, ..instance.clone() }
}

/// A trace known by durations: there is nothing to learn, nothing to measure and no twin to run.
#[test]
fn declared_run_times_are_told_and_nothing_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.csv");
    let mut text = "timestamp,duration,num_gpus,gpu_time,cluster\n".to_owned();
    for hour in 0..20 {
        text += &format!("2026-01-05 {hour:02}:00:00,14400,4,57600,a\n");
    }
    fs::write(&file, text).unwrap();
    let (instance, _) = replay(&file, Format::Philly, &ReplayOptions::default()).unwrap();
    assert_eq!(instance.foresight, Foresight::Learned);
    assert!(!instance.learns() && instance.is_foreseen());
    let (learned, told) =
        (run(&instance, "edf").summary, run(&with(&instance, Foresight::Oracle), "edf").summary);
    assert_eq!(learned.events, told.events, "no measurements");
    assert_eq!(learned.total_cost, told.total_cost);
    assert_eq!(experiment::simulations(&instance, &["edf".into()], true), 1);
    assert_eq!(learned.accuracy.time_error_mean, None, "nothing was predicted");
}

/// Errors shrink as runs are measured, and the figures say so.
#[test]
fn a_cluster_that_knows_nothing_learns() {
    let instance = instance(LEARNING);
    assert!(instance.learns());
    let ended = Mutex::new(Vec::new());
    let progress = |progress: Progress<'_>| {
        if progress.summary.is_some() {
            assert_eq!((progress.submitted, progress.finished), (progress.jobs, progress.jobs));
            ended.lock().unwrap().push(progress.run);
        }
    };
    let watch = Watch { seconds: &|| 0.0, progress: &progress, record: false, forecast: true };
    let policies = ["edf".to_owned(), "tiresias".to_owned()];
    let outcomes = experiment::compare(&instance, &policies, &watch, true).unwrap();
    let simulations = experiment::simulations(&instance, &policies, true);
    assert_eq!(simulations, 4);
    let mut ended = ended.into_inner().unwrap();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2, 3], "each is over once");
    for outcome in &outcomes {
        let a = &outcome.summary.accuracy;
        assert_eq!(outcome.summary.finished, 200);
        let parts = Check::of_parts(&outcome.jobs, 10);
        let (first, last) = (parts[0].time_error.unwrap(), parts[9].time_error.unwrap());
        // Noise alone makes an error of 4 %.
        assert!(last < 0.3 * first, "{first} {last}");
        assert!(last < 0.08, "{last}");
        // Intervals reckon with launch-bound steps of real machines, which repeat within 15 % only;
        // simulated runs repeat better, and more of them lie inside.
        assert!((0.84..0.98).contains(&a.time_coverage_90.unwrap()), "{a:?}");
        assert_eq!(a.forecasts, 200);
        let oracle = a.oracle_total_cost.unwrap();
        let price = a.price_of_not_knowing.unwrap();
        assert!((outcome.summary.total_cost / oracle - 1.0 - price).abs() < 1e-12);
    }
    // It looks at attained service and at nothing that is predicted.
    assert_eq!(outcomes[1].summary.accuracy.price_of_not_knowing, Some(0.0));
}

/// With the truth and without luck, what was predicted at a start is what happened.
#[test]
fn the_oracle_is_right() {
    let mut instance = with(&instance(LEARNING), Foresight::Oracle);
    instance.world.noise = 0.0;
    let a = run(&instance, "tiresias").summary.accuracy;
    assert!(a.time_error_mean.unwrap() < 1e-6 && a.energy_error_mean.unwrap() < 1e-6, "{a:?}");
    assert_eq!(a.time_coverage_90, Some(1.0));
    assert_eq!((a.forecasts, a.cost_error, a.oracle_total_cost), (0, None, None));
}

/// An error of a known size is found to be of that size, and the interval to hold nine in ten.
#[test]
fn the_noisy_oracle_is_as_wrong_as_it_says() {
    let mut instance = with(&instance(LEARNING), Foresight::NoisyOracle(0.2));
    instance.world.noise = 0.0;
    let a = run(&instance, "fifo").summary.accuracy;
    // The mean of |x| of a normal distribution is 0.8 of its deviation.
    let error = a.time_error_mean.unwrap();
    assert!((0.08..0.26).contains(&error), "{error}");
    assert!((0.75..=1.0).contains(&a.time_coverage_90.unwrap()), "{a:?}");
}

/// Jobs are billed what the meter reads for their GPUs.
#[test]
fn bills_add_up_to_the_meter() {
    let instance = instance(LEARNING);
    let outcome = run(&instance, "tiresias");
    let jobs: f64 = outcome.jobs.iter().map(|job| job.bill.energy.get()).sum();
    let price = instance.prices.energy.at(instance.start);
    let s = &outcome.summary;
    let metered = s.energy_jobs_kwh * instance.prices.pue * price.get();
    assert!((jobs / metered - 1.0).abs() < 1e-9, "{jobs} is not {metered}");
}

/// A model that is not known on a kind of GPU never gets there, however elastic its job becomes.
#[test]
fn jobs_list_the_shapes_that_can_run_them_only_where_some_cannot() {
    let mut instance = instance(LEARNING);
    for elasticity in Elasticity::ALL {
        instance.set_elasticity(elasticity);
        let mut listed = 0;
        for job in &instance.jobs {
            let menu = instance.cluster.menu(job);
            let runs = menu.iter().filter(|shape| {
                let plain = instance.cluster.plain_configuration(job, **shape);
                instance.physics.speed(job, &plain).is_some()
            });
            assert_eq!(runs.count(), menu.len(), "{}", job.name);
            assert!(!menu.is_empty(), "{}", job.name);
            listed += usize::from(job.shapes.is_some());
        }
        assert!(listed > 0 && listed < instance.jobs.len(), "{elasticity}: {listed}");
    }
}

/// ANDREAS states 13 %. In the order of submission no later job overtakes, so that all of the error
/// is the predictor's and each run's luck.
#[test]
fn costs_are_forecast_within_13_per_cent_once_something_is_known() {
    let watch = Watch { seconds: &|| 0.0, progress: &|_| (), record: false, forecast: true };
    for seed in 21..24 {
        let text = LEARNING.replace("seed = 11", &format!("seed = {seed}"));
        assert_ne!(text, LEARNING);
        let outcomes =
            experiment::compare(&instance(&text), &["fifo".to_owned()], &watch, false).unwrap();
        let error = outcomes[0].summary.accuracy.cost_error_second_half.unwrap();
        assert!(error < 0.13, "seed {seed}: {error}");
    }
}

/// A node on which everything takes longer is found, and nothing else is.
#[test]
fn slow_nodes_are_told() {
    let text =
        LEARNING.replace("[world]", "[world]\nstraggler_share = 0.2\nstraggler_slowdown = 1.4");
    let findings = run(&instance(&text), "fifo").summary.findings;
    assert!(!findings.is_empty());
    assert!(findings.iter().all(|f| f.contains("than on other nodes")), "{findings:?}");
    assert_eq!(run(&instance(LEARNING), "fifo").summary.findings, [""; 0]);
}
