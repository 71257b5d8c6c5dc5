//! Late jobs do not wait on an idle cluster, however dear energy is.
//!
//! With constant prices nothing is gained by a later start but company on a node. So a job that
//! waits while others do not need its GPUs waits for one of these to end: what it saves by running
//! beside or after it may be more than its lateness costs. The last of several jobs that came at
//! once starts at the latest when all others could have run one after the other, each in its
//! slowest way, and the nodes were booted. Jobs that come one by one may wait for the next as well,
//! which is expected for no longer than a mean run time.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::run;
use proptest::prelude::*;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::ids::UserId;
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work};
use wattline_core::units::{EurosPerSecond, Seconds};
use wattline_sim::foresight::Foresight;
use wattline_sim::instance::Instance;
use wattline_sim::scenario::Scenario;
use wattline_sim::simulation::Outcome;
use wattline_world::measured::Measured;
use wattline_world::physics::Physics;

/// Samples a second on one GPU, and the share that more GPUs do not speed up.
const WORKLOADS: [(&str, f64); 2] = [("wa", 10.0), ("wb", 14.0)];
const SERIAL: f64 = 0.1;
const SAVE: f64 = 0.3;
const LOAD: f64 = 1.5;
const BOOT: f64 = 4.0;

fn rate(alone: f64, gpus: u32, limit: f64) -> f64 {
    alone / (SERIAL + (1.0 - SERIAL) / f64::from(gpus)) * (limit / 350.0).min(1.0).sqrt()
}

/// A job, as drawn.
#[derive(Clone, Debug)]
struct Draw {
    workload: usize,
    work: f64,
    /// Seconds.
    submit: f64,
    deadline: f64,
    /// EUR/h.
    weight: f64,
    preemptible: bool,
}

impl Draw {
    /// Its time in the slowest way.
    fn slowest(&self) -> f64 {
        self.work / rate(WORKLOADS[self.workload].1, 1, 200.0)
    }
}

/// Four nodes of four GPUs, as the SLURM lab has them.
fn lab(price: f64, budget: bool, draws: &[Draw]) -> Instance {
    // More than they can draw: schedules are tried whole only without a budget.
    let budget = if budget { "[budget]\npower = \"20 kW\"\n" } else { "" };
    let site = Scenario::parse(
        &format!(
            "name = \"lab\"\n[[gpu]]\nname = \"lab\"\nidle = \"50 W\"\nbusy = \"350 W\"\n\
             min_limit = \"200 W\"\ndefault_limit = \"400 W\"\nmax_limit = \"400 W\"\n\
             limit_step = \"50 W\"\n[[nodes]]\ncount = 4\ngpu = \"lab\"\ngpus = 4\n\
             base = \"300 W\"\nsleep = \"10 W\"\nboot = \"550 W\"\nboot_time = \"{BOOT} s\"\n\
             shutdown_time = \"10 s\"\n[jobs]\ncount = 1\n{budget}[prices]\nenergy = \"{price} EUR/kWh\"\npue = 1.0\n"
        ),
        "lab",
    );
    let parts = site.unwrap().site("lab").unwrap();
    let mut csv =
        "workload,gpu,nodes,gpus,global_batch,power_limit_w,samples,seconds,power_w\n".to_owned();
    for (name, alone) in WORKLOADS {
        for gpus in 1..=4 {
            for limit in [200.0, 250.0, 300.0, 350.0, 400.0_f64] {
                let samples = rate(alone, gpus, limit) * 100.0;
                let watts = limit.min(350.0);
                csv += &format!("{name},lab,1,{gpus},256,{limit},{samples},100,{watts}\n");
            }
        }
    }
    let measured = Measured::read(csv.as_bytes(), "measured.csv").unwrap();
    let mut physics = Physics::new(Arc::clone(&parts.cluster), Some(measured));
    let start = Timestamp::from_seconds(1e9);
    let job = |draw: &Draw| {
        let submit = start + Seconds::new(draw.submit);
        Job {
            name: "job".into(),
            user: UserId(1),
            workload: physics.sampled(WORKLOADS[draw.workload].0).unwrap(),
            work: Work(draw.work),
            submit,
            deadline: Some(submit + Seconds::new(draw.deadline)),
            weight: EurosPerSecond::new(draw.weight / 3600.0),
            elasticity: Elasticity::Malleable,
            gpus: Bounds { min: 1, max: 4, requested: 1 },
            batch: Bounds::exactly(256),
            restart: RestartCost { save: Seconds::new(SAVE), load: Seconds::new(LOAD) },
            preemptible: draw.preemptible,
            shapes: None,
            nodes: None,
        }
    };
    let jobs: Vec<Job> = draws.iter().map(job).collect();
    let mut instance = Instance::new("lab".into(), physics, Arc::clone(&parts.cluster), jobs);
    instance.start = start;
    instance.prices = parts.prices;
    instance.budget = parts.budget;
    instance.foresight = Foresight::Oracle;
    instance
}

/// Seconds that each waited for its first start.
fn waits(outcome: &Outcome) -> Vec<f64> {
    let wait =
        |job: &wattline_sim::metrics::JobOutcome| (job.first_start.unwrap() - job.job.submit).get();
    outcome.jobs.iter().map(wait).collect()
}

/// The bound for each: all others one after the other, slowly, with their restarts and boots.
fn bounds(draws: &[Draw], outcome: &Outcome) -> Vec<f64> {
    let stay = |(draw, job): (&Draw, &wattline_sim::metrics::JobOutcome)| {
        draw.slowest() + f64::from(job.restarts) * (SAVE + LOAD) + BOOT
    };
    let all: f64 = draws.iter().zip(&outcome.jobs).map(stay).sum();
    draws.iter().map(|draw| all - draw.slowest() + BOOT).collect()
}

/// What was seen on a SLURM lab: after two plans nobody planned again, and jobs waited for a minute
/// and more on an idle cluster.
#[test]
fn short_jobs_in_a_hurry_do_not_wait_for_a_minute() {
    let draw = |n: u32| Draw {
        workload: (n % 2) as usize,
        work: 120.0 + 10.0 * f64::from(n * 7 % 9),
        submit: 3.0 * f64::from(n),
        deadline: 30.0,
        weight: 200.0,
        preemptible: true,
    };
    for jobs in [1, 2, 3, 12] {
        let draws: Vec<Draw> = (0..jobs).map(draw).collect();
        for price in [0.2, 150.0, 1500.0] {
            for budget in [false, true] {
                let outcome = run(&lab(price, budget, &draws), "wattline");
                let longest = waits(&outcome).into_iter().fold(0.0, f64::max);
                assert!(
                    longest <= 30.0,
                    "{jobs} jobs at {price} EUR/kWh, budget {budget}: waits {longest} s"
                );
            }
        }
    }
}

/// A job that comes now and then, each to an idle cluster, with time to spare: the next one is
/// expected, and would share its node, but may not come.
#[test]
fn a_lone_job_on_an_idle_cluster_does_not_wait_for_company_that_is_only_expected() {
    let draw = |n: u32| Draw {
        workload: 0,
        work: 600.0,
        submit: 300.0 * f64::from(n),
        deadline: 3000.0,
        weight: 1.0,
        preemptible: true,
    };
    let draws: Vec<Draw> = (0..10).map(draw).collect();
    for price in [0.2, 15.0, 150.0] {
        let outcome = run(&lab(price, false, &draws), "wattline");
        let longest = waits(&outcome).into_iter().fold(0.0, f64::max);
        assert!(longest <= 20.0, "at {price} EUR/kWh: waits {longest} s");
    }
}

fn draws(at_once: bool) -> impl Strategy<Value = Vec<Draw>> {
    let apart = if at_once { 0.0..1e-9 } else { 0.0..60.0 };
    let draw = (
        0..WORKLOADS.len(),
        100.0_f64..20_000.0,
        apart,
        1.0_f64..100.0,
        (1.0_f64.ln()..1000.0_f64.ln()).prop_map(f64::exp),
        any::<bool>(),
    )
        .prop_map(|(workload, work, submit, deadline, weight, preemptible)| Draw {
            workload,
            work,
            submit,
            deadline,
            weight,
            preemptible,
        });
    prop::collection::vec(draw, 1..12).prop_map(move |mut draws| {
        if at_once {
            draws.iter_mut().for_each(|draw| draw.submit = 0.0);
        }
        draws.sort_by(|a, b| a.submit.total_cmp(&b.submit));
        draws
    })
}

proptest! {
    #![proptest_config(wattline_testing::cases(64, 11))]

    #[test]
    fn jobs_that_came_at_once_start_as_soon_as_others_could_have_run_in_turn(
        draws in draws(true),
        price in (0.05_f64.ln()..500.0_f64.ln()).prop_map(f64::exp),
        budget in any::<bool>(),
    ) {
        let outcome = run(&lab(price, budget, &draws), "wattline+work=2000");
        let (waits, bounds) = (waits(&outcome), bounds(&draws, &outcome));
        for (wait, bound) in waits.iter().zip(&bounds) {
            prop_assert!(wait <= bound, "{wait} s, {bound} s: {waits:?}");
        }
        prop_assert_eq!(waits.iter().copied().fold(f64::INFINITY, f64::min), 0.0);
    }

    #[test]
    fn jobs_that_come_one_by_one_wait_for_others_no_longer_than_these_run(
        draws in draws(false),
        price in (0.05_f64.ln()..500.0_f64.ln()).prop_map(f64::exp),
        budget in any::<bool>(),
    ) {
        let outcome = run(&lab(price, budget, &draws), "wattline+work=2000");
        let (waits, bounds) = (waits(&outcome), bounds(&draws, &outcome));
        let mean = draws.iter().map(Draw::slowest).sum::<f64>() / draws.len() as f64;
        let last = draws[draws.len() - 1].submit;
        for ((wait, bound), draw) in waits.iter().zip(&bounds).zip(&draws) {
            let bound = last - draw.submit + mean + bound;
            prop_assert!(*wait <= bound, "{wait} s, {bound} s: {waits:?}");
        }
    }
}
