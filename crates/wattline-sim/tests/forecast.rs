//! A forecast made when nothing is left to come is what then happens: in a world without luck, with
//! a predictor that knows it, under every policy.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{POLICIES, PRICES, instance};
use proptest::prelude::*;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_sim::foresight::Foresight;
use wattline_sim::instance::Instance;
use wattline_sim::metrics::JobOutcome;
use wattline_sim::simulation::{Outcome, Watch, simulate};

#[derive(Clone, Debug)]
struct Draw {
    seed: u64,
    nodes: u32,
    second_kind: bool,
    jobs: u32,
    /// Jobs that come last, all at once.
    last: usize,
    load: f64,
    elasticity: &'static str,
    budget: Option<f64>,
    policy: &'static str,
}

fn draws() -> impl Strategy<Value = Draw> {
    (
        (any::<u64>(), 1_u32..4, any::<bool>()),
        (3_u32..30, 1_usize..20, 0.5_f64..3.0),
        prop::sample::select(vec!["rigid", "moldable", "malleable", "adaptive"]),
        prop::option::of(0.6_f64..1.0),
        prop::sample::select(POLICIES),
    )
        .prop_map(
            |((seed, nodes, second_kind), (jobs, last, load), elasticity, budget, policy)| {
                let seed = seed >> 1;
                Draw { seed, nodes, second_kind, jobs, last, load, elasticity, budget, policy }
            },
        )
}

fn drawn(draw: &Draw) -> Instance {
    let machines = common::machines(draw.nodes, 4, draw.second_kind);
    let budget = common::budget(draw.budget);
    let mut instance = instance(&format!(
        "name = \"drawn\"\nseed = {}\nforesight = \"oracle\"\n\
         {machines}\
         [jobs]\ncount = {}\nload = {}\nelasticity = \"{}\"\n\
         [[jobs.workloads]]\nname = \"resnet50\"\n[[jobs.workloads]]\nname = \"gpt2\"\n{budget}{PRICES}",
        draw.seed, draw.jobs, draw.load, draw.elasticity,
    ));
    all_at_last(&mut instance, draw.last);
    instance
}

/// The last jobs come together, when the last of them does.
fn all_at_last(instance: &mut Instance, count: usize) {
    let from = instance.jobs.len().saturating_sub(count);
    let at = instance.jobs.last().map_or(Timestamp::ZERO, |job| job.submit);
    for job in &mut instance.jobs[from..] {
        let job = Arc::make_mut(job);
        job.deadline = job.deadline.map(|due| at + (due - job.submit));
        job.submit = at;
    }
}

fn run(instance: &Instance, policy: &str) -> Outcome {
    let watch = Watch { seconds: &|| 0.0, progress: &|_| {}, record: false, forecast: true };
    simulate(instance, policy, &watch).unwrap()
}

/// How many microseconds a forecast may be off. Tiresias keeps the time of a demotion as it was when
/// the start was planned and rounds it up anew when that time has come; a fresh policy knows the
/// start and rounds once. The microsecond between them grows with every demotion that follows.
fn tolerance(policy: &str) -> i64 {
    if policy.starts_with("tiresias") { 100 } else { 5 }
}

/// What was foreseen is what happened.
fn agrees(job: &JobOutcome, policy: &str) -> Result<(), String> {
    let foreseen = job.forecast.as_ref().ok_or("no forecast")?;
    let near = |a: Option<Timestamp>, b: Option<Timestamp>| match (a, b) {
        (Some(a), Some(b)) => (a.micros() - b.micros()).abs() <= tolerance(policy),
        (a, b) => a == b,
    };
    let same = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1e-3);
    let good = near(foreseen.start, job.first_start)
        && near(foreseen.end, job.end)
        && (job.end.is_none() || same(foreseen.energy.get(), job.energy.get()))
        && job.end.is_none_or(|end| same(foreseen.cost().get(), job.cost(end).get()));
    if good { Ok(()) } else { Err(format!("{foreseen:?}\nis not\n{job:?}")) }
}

proptest! {
    #![proptest_config(wattline_testing::cases(200, 1))]

    #[test]
    fn what_is_foreseen_at_the_last_submission_happens(draw in draws()) {
        let instance = drawn(&draw);
        let outcome = run(&instance, draw.policy);
        let last = instance.jobs.last().unwrap().submit;
        for job in outcome.jobs.iter().filter(|job| job.job.submit == last) {
            prop_assert_eq!(agrees(job, draw.policy), Ok(()));
        }
    }

    /// Looking ahead must not change what is looked at, also while something is learned.
    #[test]
    fn a_forecast_changes_nothing(draw in draws()) {
        let mut instance = drawn(&draw);
        instance.foresight = Foresight::Learned;
        let (with, without) = (run(&instance, draw.policy), common::run(&instance, draw.policy));
        for (a, b) in with.jobs.iter().zip(&without.jobs) {
            prop_assert_eq!((a.first_start, a.end, a.energy), (b.first_start, b.end, b.energy));
        }
        prop_assert_eq!(with.summary.events, without.summary.events);
    }
}

/// Whole nodes billed by a table: a job's part depends on its neighbours.
#[test]
fn neighbours_on_a_node_known_as_a_whole_are_foreseen() {
    let Some(folder) = common::shared("data/andreas") else { return };
    let mut found = 0;
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let Ok(mut instance) = wattline_sim::andreas::read(&entry.path()) else { continue };
        instance.jobs.truncate(30);
        all_at_last(&mut instance, 12);
        let outcome = run(&instance, "edf");
        let last = instance.jobs.last().unwrap().submit;
        for job in outcome.jobs.iter().filter(|job| job.job.submit == last) {
            assert_eq!(agrees(job, "edf"), Ok(()));
            found += 1;
        }
    }
    assert!(found > 0, "no instance was read");
}
