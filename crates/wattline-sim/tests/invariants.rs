//! What holds in every simulation, whatever the scenario, the seed and the policy.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{POLICIES, PRICES, instance, run};
use proptest::prelude::*;
use wattline_core::job::Job;
use wattline_core::placement::Configuration;
use wattline_core::units::{Joules, Seconds};
use wattline_sim::instance::Instance;
use wattline_sim::metrics::JobOutcome;
use wattline_world::world::LogEntry;

#[derive(Clone, Debug)]
struct Draw {
    seed: u64,
    nodes: u32,
    gpus: u8,
    second_kind: bool,
    jobs: u32,
    load: f64,
    elasticity: &'static str,
    arrivals: &'static str,
    budget: Option<f64>,
    restart: u32,
    faulty: bool,
    policy: &'static str,
}

fn draws() -> impl Strategy<Value = Draw> {
    (
        (any::<u64>(), 1_u32..5, prop::sample::select(vec![1_u8, 2, 4, 8]), any::<bool>()),
        (3_u32..40, 0.3_f64..2.0),
        prop::sample::select(vec!["rigid", "moldable", "malleable", "adaptive"]),
        prop::sample::select(vec![
            r#"{ pattern = "poisson" }"#,
            r#"{ pattern = "diurnal", swing = 5.0 }"#,
            r#"{ pattern = "bursts", size = 6.0, within = "5 min" }"#,
        ]),
        prop::option::of(0.35_f64..1.0),
        (0_u32..200, any::<bool>(), prop::sample::select(POLICIES)),
    )
        .prop_map(
            |(
                (seed, nodes, gpus, second_kind),
                (jobs, load),
                elasticity,
                arrivals,
                budget,
                rest,
            )| {
                let (restart, faulty, policy) = rest;
                Draw {
                    seed: seed >> 1,
                    nodes,
                    gpus,
                    second_kind,
                    jobs,
                    load,
                    elasticity,
                    arrivals,
                    budget,
                    restart,
                    faulty,
                    policy,
                }
            },
        )
}

fn scenario(draw: &Draw) -> String {
    let machines = common::machines(draw.nodes, draw.gpus, draw.second_kind);
    let budget = common::budget(draw.budget);
    let world = if draw.faulty {
        "[world]\nnoise = 0.1\nstraggler_share = 0.3\nnode_mtbf = \"2 d\"\nnode_repair = \"30 min\"\n\
         checkpoint_every = \"10 min\"\naction_failures = 0.1\nmeasure_every = \"20 min\"\n"
    } else {
        ""
    };
    format!(
        "name = \"drawn\"\nseed = {}\n{machines}\
         [jobs]\ncount = {}\nload = {}\nelasticity = \"{}\"\narrivals = {}\nrestart = \"{} s\"\n\
         [[jobs.workloads]]\nname = \"resnet50\"\n{budget}{PRICES}{world}",
        draw.seed, draw.jobs, draw.load, draw.elasticity, draw.arrivals, draw.restart,
    )
}

/// The bounds, the batch asked for, and this halved and doubled: what policies choose from. The
/// best batch lies inside the bounds.
fn batches(job: &Job) -> Vec<u32> {
    let asked = job.batch.requested;
    let scaled = (0..32).flat_map(|k| [asked >> k, asked.checked_shl(k).unwrap_or(asked)]);
    let allowed = |batch: &u32| (job.batch.min..=job.batch.max).contains(batch);
    scaled.chain([job.batch.min, job.batch.max]).filter(allowed).collect()
}

/// The least time in which the job could be done: alone, fastest shape, full power.
fn ideal(instance: &Instance, outcome: &JobOutcome) -> Seconds {
    let job = &outcome.job;
    instance
        .cluster
        .menu(job)
        .iter()
        .flat_map(|shape| {
            batches(job).into_iter().map(|batch| Configuration {
                gpu_type: shape.gpu_type,
                gpus: shape.gpus,
                nodes: instance.cluster.nodes_for(*shape),
                batch,
                power_limit: instance.cluster.gpu_type(shape.gpu_type).default_limit,
            })
        })
        .filter_map(|c| instance.physics.speed(job, &c))
        .map(|speed| job.work / speed.rate)
        .fold(Seconds::new(f64::INFINITY), Seconds::min)
}

proptest! {
    #![proptest_config(wattline_testing::cases(160, 2))]

    #[test]
    fn energy_is_conserved_the_line_is_kept_and_nobody_is_faster_than_physics(draw in draws()) {
        let text = scenario(&draw);
        let instance = instance(&text);
        let outcome = run(&instance, draw.policy);
        let s = &outcome.summary;

        // No plan is refused and everybody finishes, unless a budget leaves no room for a shape.
        prop_assert_eq!(s.plans_refused, 0, "{:?}", outcome.alerts);
        if draw.budget.is_none_or(|share| share > 0.6) {
            prop_assert_eq!(s.finished, s.jobs);
        }

        // Energy: by cause, and job by job, it adds up to what the meter read.
        let parts = s.energy_jobs_kwh + s.energy_idle_kwh + s.energy_base_kwh
            + s.energy_boot_kwh + s.energy_sleep_kwh;
        prop_assert!((parts - s.energy_kwh).abs() <= 1e-9 * s.energy_kwh.max(1.0));
        if s.finished == s.jobs {
            let jobs: Joules = outcome.jobs.iter().map(|j| j.energy).sum();
            let jobs = jobs.kilowatt_hours();
            prop_assert!((jobs - s.energy_jobs_kwh).abs() <= 1e-9 * s.energy_kwh.max(1.0));
        }

        // The line: neither drawn nor committed power is ever above it. With failing actions or
        // lost nodes, what is committed may be unknown for a while; what is drawn never is.
        prop_assert_eq!(s.budget_exceeded_s, 0.0);
        if !draw.faulty {
            prop_assert_eq!(s.committed_exceeded_s, 0.0);
        }
        prop_assert!(s.peak_power_w <= instance.cluster.peak_power().get() + 1e-6);

        // Physics: without luck, nobody is done before the ideal run time.
        if !draw.faulty {
            for job in outcome.jobs.iter().filter(|j| j.end.is_some()) {
                let taken = job.completion_time().unwrap();
                let ideal = ideal(&instance, job);
                prop_assert!(taken.get() >= ideal.get() - 2e-6, "{taken} < {ideal}: {}", job.job.name);
            }
        }
        prop_assert!((s.total_cost - s.energy_cost - s.tardiness_cost - s.carbon_cost).abs() < 1e-6);
    }

    /// What the log says ran where: no GPU has two jobs at once.
    #[test]
    fn no_gpu_runs_two_jobs_at_once(draw in draws()) {
        let instance = instance(&scenario(&draw));
        let outcome = run(&instance, draw.policy);
        let mut spans = Vec::new();
        for entry in &outcome.log {
            if let LogEntry::Ran { job, placement, from, to } = entry {
                spans.extend(placement.allocation.gpus().map(|gpu| (gpu, *from, *to, *job)));
            }
        }
        spans.sort();
        for pair in spans.windows(2) {
            let ((gpu, _, until, one), (next, from, _, other)) = (pair[0], pair[1]);
            prop_assert!(gpu != next || until <= from, "{gpu} has {one} and {other}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_run(draw in draws()) {
        let text = scenario(&draw);
        let (one, two) = (run(&instance(&text), draw.policy), run(&instance(&text), draw.policy));
        prop_assert_eq!(
            serde_json::to_string(&one.summary).unwrap(),
            serde_json::to_string(&two.summary).unwrap()
        );
        prop_assert_eq!(one.log, two.log);
    }
}

/// The best batch lay between the ones that the ideal run time was taken from, so that the job was
/// faster than thought possible.
#[test]
fn an_adaptive_job_with_a_batch_between_the_bounds_is_not_faster_than_physics() {
    let draw = Draw {
        seed: 6_214_456_771_535_070_302,
        nodes: 2,
        gpus: 4,
        second_kind: false,
        jobs: 6,
        load: 0.3,
        elasticity: "adaptive",
        arrivals: r#"{ pattern = "poisson" }"#,
        budget: None,
        restart: 0,
        faulty: false,
        policy: "powerflow+energy=0.8",
    };
    let instance = instance(&scenario(&draw));
    let outcome = run(&instance, draw.policy);
    assert_eq!(outcome.summary.finished, 6);
    for job in &outcome.jobs {
        let (taken, ideal) = (job.completion_time().unwrap(), ideal(&instance, job));
        assert!(taken.get() >= ideal.get() - 2e-6, "{taken} < {ideal}: {}", job.job.name);
    }
}
