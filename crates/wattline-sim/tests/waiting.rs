//! How long a job may wait under `wattline`, as the book states it.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{instance, run};
use proptest::prelude::*;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::job::{Bounds, Elasticity, Job, Work};
use wattline_core::placement::Configuration;
use wattline_core::units::Seconds;
use wattline_sim::instance::Instance;
use wattline_sim::metrics::JobOutcome;

const HOUR: f64 = 3600.0;

/// The job's time at full power, alone, in its fastest shape.
fn shortest(instance: &Instance, job: &Job) -> Seconds {
    let cluster = &instance.cluster;
    let menu = cluster.menu(job);
    let speeds = menu.iter().filter_map(|shape| {
        let plain: Configuration = cluster.plain_configuration(job, *shape);
        instance.physics.speed(job, &plain)
    });
    speeds.map(|speed| job.work / speed.rate).fold(Seconds::new(f64::INFINITY), Seconds::min)
}

/// When the job is overdue.
fn overdue(instance: &Instance, job: &Job) -> Timestamp {
    let patience = (20.0 * shortest(instance, job).get()).clamp(12.0 * HOUR, 7.0 * 24.0 * HOUR);
    job.submit + Seconds::new(patience)
}

/// When each job goes first: when it is overdue, or, where jobs are rigid and may not be moved, has
/// waited beyond that for longer than all waiting work would take on all GPUs.
fn first_in_line(instance: &Instance, jobs: &[JobOutcome]) -> Vec<Timestamp> {
    let gpus = f64::from(instance.cluster.total_gpus());
    let area = |job: &JobOutcome| {
        let asked = f64::from(job.job.gpus.requested);
        shortest(instance, &job.job) * (asked / gpus)
    };
    let start = |job: &JobOutcome| job.first_start.unwrap_or(Timestamp::FAR_FUTURE);
    let backlog = |at: Timestamp| {
        let waits = |job: &&JobOutcome| job.job.submit <= at && start(job) > at;
        jobs.iter().filter(waits).map(area).fold(Seconds::ZERO, |sum, time| sum + time)
    };
    let mut times: Vec<Timestamp> =
        jobs.iter().flat_map(|job| [job.job.submit, start(job)]).collect();
    times.sort_unstable();
    let keeps = |job: &JobOutcome| job.job.elasticity == Elasticity::Rigid && !job.job.preemptible;
    let first = |job: &JobOutcome| {
        let overdue = overdue(instance, &job.job);
        if !jobs.iter().any(keeps) {
            return overdue;
        }
        // As work comes and goes it may be so, cease to be so, and be so again: the last time counts.
        let until = start(job);
        let changes = times.iter().copied().filter(|time| *time > overdue && *time < until);
        let begins: Vec<Timestamp> = std::iter::once(overdue).chain(changes).collect();
        let ends = begins.iter().copied().skip(1).chain(std::iter::once(until));
        let mut since: Option<Timestamp> = None;
        for (begin, end) in begins.iter().copied().zip(ends) {
            let time = begin.max(overdue + backlog(begin));
            since = if time >= end { None } else { since.or(Some(time)) };
        }
        since.unwrap_or(until)
    };
    jobs.iter().map(first).collect()
}

/// The bound: from when it is overdue, for itself and for each job that was overdue before it and
/// not done, the longest stay of a job that it cannot move, and what it takes to stop, sleep, boot
/// and plan.
fn latest_starts(instance: &Instance, jobs: &[JobOutcome]) -> Vec<Timestamp> {
    let overdue = first_in_line(instance, jobs);
    let ends = |at: usize| jobs[at].end.unwrap_or(Timestamp::FAR_FUTURE);
    let cannot_be_moved = |at: &usize| !jobs[*at].job.preemptible || ends(*at) > overdue[*at];
    let stay = (0..jobs.len())
        .filter(cannot_be_moved)
        .map(|at| jobs[at].end.unwrap() - jobs[at].first_start.unwrap())
        .fold(Seconds::ZERO, Seconds::max);
    let save = jobs.iter().map(|job| job.job.restart.save).fold(Seconds::ZERO, Seconds::max);
    let nodes = instance.cluster.nodes().iter();
    let turn = nodes.map(|n| n.boot_time + n.shutdown_time).fold(Seconds::ZERO, Seconds::max);
    let handling = save + turn + instance.engine.debounce + Seconds::new(120.0);
    let before = |at: usize| {
        let first = |other: &usize| (overdue[*other], *other) < (overdue[at], at);
        (0..jobs.len()).filter(first).filter(|other| ends(*other) > overdue[at]).count()
    };
    (0..jobs.len()).map(|at| overdue[at] + (stay + handling) * (before(at) as f64 + 1.0)).collect()
}

/// Runs it and says by how many hours the job that comes closest to the bound stays below it, and
/// how many were overdue when they started.
fn slack(instance: &Instance, policy: &str) -> (f64, usize) {
    let outcome = run(instance, policy);
    assert_eq!(outcome.summary.plans_refused, 0, "{:?}", outcome.alerts);
    assert_eq!(outcome.summary.finished, outcome.summary.jobs);
    let latest = latest_starts(instance, &outcome.jobs);
    let starts = || outcome.jobs.iter().map(|job| job.first_start.unwrap());
    let late =
        starts().zip(&outcome.jobs).filter(|(start, job)| *start > overdue(instance, &job.job));
    let least = starts().zip(latest).map(|(start, latest)| (latest - start).get() / HOUR);
    (least.fold(f64::INFINITY, f64::min), late.count())
}

/// One-GPU jobs of one to five hours that fill three nodes of eight, and now and then a gang of 8
/// or 16 that runs for half an hour.
fn stream(seed: u64, budget: bool, preemptible: bool) -> Instance {
    let budget = if budget { "[budget]\nshare_of_peak = 0.6\n" } else { "" };
    let load = if budget.is_empty() { 1.1 } else { 0.9 };
    let mut instance = instance(&format!(
        "name = \"stream\"\nseed = {seed}\nforesight = \"oracle\"\n\
         [[nodes]]\ncount = 3\ngpu = \"h200\"\ngpus = 8\n\
         [jobs]\ncount = 360\nload = {load}\nelasticity = \"rigid\"\nrestart = \"60 s\"\n\
         gpus = [{{ count = 1 }}]\ndeadlines = {{ share = 1.0, tightest = 1.5, loosest = 3.0 }}\n\
         duration = {{ median = \"3 h\", sigma = 0.5, min = \"1 h\", max = \"5 h\" }}\n\
         [[jobs.workloads]]\nname = \"resnet50\"\n{budget}"
    ));
    if !preemptible {
        instance.set_no_preempt();
    }
    for (turn, at) in (30..200).step_by(40).enumerate() {
        make_gang(&mut instance, at, if turn % 2 == 0 { 16 } else { 8 }, 0.5 * HOUR);
    }
    instance
}

/// The job is rigid, on so many GPUs, and takes that long.
fn make_gang(instance: &mut Instance, at: usize, gpus: u32, seconds: f64) {
    let mut job = Job::clone(&instance.jobs[at]);
    job.gpus = Bounds::exactly(gpus);
    job.work = Work(job.work.0 * seconds / shortest(instance, &job).get());
    instance.jobs[at] = Arc::new(job);
}

/// Where nobody may be moved, GPUs must be kept for a gang as they become free, or it waits for as
/// long as small jobs come: 60 hours and more, without that.
#[test]
fn a_gang_among_small_jobs_that_may_not_be_moved_starts_within_the_bound() {
    for (seed, budget) in [(1, false), (2, false), (1, true), (2, true)] {
        let (least, late) = slack(&stream(seed, budget, false), "wattline+work=2000");
        assert!(least >= 0.0, "seed {seed}, budget {budget}: {least} h beyond the bound");
        assert!(late > 0, "seed {seed}, budget {budget}: nobody was overdue");
    }
}

/// Where jobs may be moved, they make room.
#[test]
fn a_gang_among_small_jobs_that_may_be_moved_starts_within_the_bound() {
    for (seed, budget) in [(1, false), (2, false), (1, true), (2, true)] {
        let (least, _) = slack(&stream(seed, budget, true), "wattline+work=2000");
        assert!(least >= 0.0, "seed {seed}, budget {budget}: {least} h beyond the bound");
    }
}

#[derive(Clone, Debug)]
struct Draw {
    seed: u64,
    nodes: u32,
    gpus: u8,
    second_kind: bool,
    jobs: u32,
    load: f64,
    elasticity: &'static str,
    budget: Option<f64>,
    gangs: Vec<(usize, u32, f64)>,
    /// Every so many jobs one may not be moved.
    pinned: usize,
    policy: &'static str,
}

fn draws() -> impl Strategy<Value = Draw> {
    let gangs = prop::collection::vec((0_usize..40, 1_u32..16, 0.2_f64..3.0), 0..6);
    (
        (any::<u64>(), 1_u32..4, prop::sample::select(vec![2_u8, 4, 8]), any::<bool>()),
        (10_u32..60, 0.8_f64..2.5),
        prop::sample::select(vec!["rigid", "rigid", "moldable", "malleable"]),
        prop::option::of(0.6_f64..1.0),
        (gangs, 1_usize..4),
        prop::sample::select(vec![
            "wattline+work=300",
            "wattline+objective=jct+work=300",
            "wattline+energy=0.8+work=300",
        ]),
    )
        .prop_map(|(machines, (jobs, load), elasticity, budget, (gangs, pinned), policy)| {
            let (seed, nodes, gpus, second_kind) = machines;
            let seed = seed >> 1;
            Draw {
                seed,
                nodes,
                gpus,
                second_kind,
                jobs,
                load,
                elasticity,
                budget,
                gangs,
                pinned,
                policy,
            }
        })
}

fn drawn(draw: &Draw) -> Instance {
    let machines = common::machines(draw.nodes, draw.gpus, draw.second_kind);
    let budget = common::budget(draw.budget);
    let mut instance = instance(&format!(
        "name = \"drawn\"\nseed = {}\nforesight = \"oracle\"\n\
         {machines}\
         [jobs]\ncount = {}\nload = {}\nelasticity = \"{}\"\nrestart = \"60 s\"\n\
         duration = {{ median = \"4 h\", sigma = 1.0, min = \"10 min\", max = \"1 d\" }}\n\
         [[jobs.workloads]]\nname = \"resnet50\"\n{budget}",
        draw.seed, draw.jobs, draw.load, draw.elasticity,
    ));
    for (at, job) in instance.jobs.iter_mut().enumerate() {
        Arc::make_mut(job).preemptible = at % draw.pinned != 0;
    }
    let most = draw.nodes * u32::from(draw.gpus);
    for (at, gpus, hours) in &draw.gangs {
        // Half of the nodes at full power are within every budget that is drawn.
        let gpus = (*gpus).min(if draw.budget.is_some() { most.div_ceil(2) } else { most });
        make_gang(&mut instance, at % draw.jobs as usize, gpus, hours * HOUR);
    }
    instance
}

proptest! {
    #![proptest_config(wattline_testing::cases(96, 5))]

    #[test]
    fn every_job_starts_within_the_bound(draw in draws()) {
        let (least, _) = slack(&drawn(&draw), draw.policy);
        prop_assert!(least >= 0.0, "{least} h beyond the bound");
    }
}
