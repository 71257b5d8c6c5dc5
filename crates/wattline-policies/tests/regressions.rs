//! What went wrong once, each on the smallest cluster that shows it.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::Scenario;
use common::drive::{Drive, Watch, run};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::cluster::{BusyPower, Cluster, GpuType, Node, NodeDraw, Shape};
use wattline_core::engine::EngineConfig;
use wattline_core::ids::{GpuTypeId, JobId, NodeId, UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work};
use wattline_core::state::Target;
use wattline_core::units::{EurosPerSecond, Seconds, Watts};

const BASE: f64 = 100.0;
const IDLE: f64 = 10.0;
const LEAST: f64 = 100.0;
const FULL: f64 = 300.0;

/// Nodes of these GPU types and sizes. Asleep they draw nothing, booting no more than idle.
fn cluster(nodes: &[(u16, u8)]) -> Arc<Cluster> {
    let card = GpuType {
        name: "card".into(),
        idle: Watts::new(IDLE),
        busy: Watts::new(FULL),
        min_limit: Watts::new(LEAST),
        default_limit: Watts::new(FULL),
        max_limit: Watts::new(FULL),
        limit_step: Watts::new(50.0),
        tflops: None,
        links: None,
    };
    let node = |(gpu_type, gpus): &(u16, u8)| Node {
        name: "node".into(),
        gpu_type: GpuTypeId(*gpu_type),
        gpus: *gpus,
        draw: NodeDraw::Additive { base: Watts::new(BASE) },
        sleep: Watts::ZERO,
        boot: Watts::ZERO,
        boot_time: Seconds::ZERO,
        shutdown_time: Seconds::ZERO,
        rack: 0,
    };
    Arc::new(Cluster::new(vec![card; 4], nodes.iter().map(node).collect()).unwrap())
}

/// A rigid job, a thousand units long, from time zero.
fn rigid(gpus: u32) -> Job {
    Job {
        name: "job".into(),
        user: UserId(0),
        workload: WorkloadId(0),
        work: Work(1000.0),
        submit: Timestamp::ZERO,
        deadline: None,
        weight: EurosPerSecond::new(1.0),
        elasticity: Elasticity::Rigid,
        gpus: Bounds::exactly(gpus),
        batch: Bounds::exactly(64),
        restart: RestartCost::default(),
        preemptible: true,
        shapes: None,
        nodes: None,
    }
}

fn at(seconds: f64) -> Timestamp {
    Timestamp::from_seconds(seconds)
}

fn scenario(nodes: &[(u16, u8)], jobs: Vec<Job>, budget: Option<f64>) -> Scenario {
    Scenario {
        cluster: cluster(nodes),
        jobs: jobs.into_iter().map(Arc::new).collect(),
        budget: budget.map(|watts| Calendar::constant(Watts::new(watts))),
        config: EngineConfig::default(),
        disturbances: Vec::new(),
        luck: Vec::new(),
        failures: false,
    }
}

const EVERYTHING: Watch = Watch {
    scratch: true,
    idempotence: false,
    on_the_way: false,
    never_exceeded: false,
    twice: false,
    liveness: true,
};

fn all_end(scenario: &Scenario, spec: &str) {
    let ran = run(scenario, spec, EVERYTHING).unwrap();
    assert_eq!(ran.finished, scenario.jobs.len());
}

/// Which jobs are planned to run once the first instant is over.
fn first_planned(scenario: &Scenario, spec: &str) -> Vec<u32> {
    let mut drive = Drive::new(scenario, spec, Watch { scratch: true, ..Watch::default() });
    drive.first_instant().unwrap();
    let planned = drive.engine.state().unfinished_jobs().filter(|(_, job)| job.planned.is_some());
    planned.map(|(id, _)| id.0).collect()
}

/// A job with nothing to do took no time in the timeline and so fitted on a node that was full.
#[test]
fn backfill_gives_a_job_with_no_work_gpus_of_its_own() {
    let nothing = Job { work: Work::ZERO, ..rigid(2) };
    let jobs = vec![rigid(2), nothing.clone(), nothing, rigid(1)];
    all_end(&scenario(&[(0, 3)], jobs, None), "fifo+backfill");
}

/// It got a reservation and, in the same plan, a start at a lower limit: it was named twice.
#[test]
fn backfill_starts_a_job_at_a_lower_limit_that_it_has_just_given_a_reservation() {
    let scenario = scenario(&[(0, 1)], vec![rigid(1)], Some(BASE + LEAST));
    all_end(&scenario, "fifo+backfill");
}

/// Only nodes of the largest size were looked at, and there are not enough of them.
#[test]
fn backfill_spreads_a_job_over_nodes_of_different_sizes() {
    all_end(&scenario(&[(0, 8), (0, 4)], vec![rigid(12)], None), "fifo+backfill");
}

/// The second walk forgot when the jobs of the first would end, or there was none.
#[test]
fn backfill_fills_up_after_the_first_jobs_have_started() {
    let jobs = vec![rigid(1); 8];
    let planned = first_planned(&scenario(&[(0, 8)], jobs, None), "edf+backfill=5");
    assert_eq!(planned.len(), 8, "the depth is about those who wait");
}

/// Two jobs that end together made two steps of the timeline at the same time. After a reservation
/// was taken from both, the first showed no free GPU, and the job that fits beside it waited.
#[test]
fn backfill_runs_a_job_past_a_time_at_which_two_others_end_together() {
    let long = Job { work: Work(1500.0), ..rigid(1) };
    let jobs = vec![rigid(1), rigid(1), rigid(2), long];
    let planned = first_planned(&scenario(&[(0, 3)], jobs, None), "fifo+backfill=2");
    assert_eq!(planned, [0, 1, 3], "the third GPU is free all the time");
}

/// One that cannot run anywhere took the place of one that can.
#[test]
fn backfill_does_not_reserve_for_what_cannot_run() {
    let nowhere = Job { workload: WorkloadId(3), ..rigid(1) };
    let mut jobs = vec![nowhere; 6];
    jobs.push(rigid(1));
    let planned = first_planned(&scenario(&[(1, 1)], jobs, None), "edf+backfill=5");
    assert_eq!(planned, [6]);
}

fn on_types(workload: u32) -> Job {
    let shapes = [1, 2].map(|t| Shape { gpu_type: GpuTypeId(t), gpus: 1 });
    Job { workload: WorkloadId(workload), shapes: Some(shapes.into()), ..rigid(1) }
}

/// Jobs with the same menu are asked only once, but this one cannot run on one of the types.
#[test]
fn a_job_that_knows_only_some_gpu_types_does_not_hold_up_others_with_its_menu() {
    for spec in ["fifo", "tiresias"] {
        // Workload 3 runs on type 2 only, where there is one GPU.
        let jobs = vec![on_types(3), on_types(3), on_types(0)];
        let scenario = scenario(&[(1, 1), (2, 1)], jobs, None);
        assert_eq!(first_planned(&scenario, spec), [0, 2], "{spec}");
        all_end(&scenario, spec);
    }
}

/// A job that asks for 4 GPUs and one that asks for 1 may have the same menu.
#[test]
fn tiresias_starts_a_small_job_behind_a_large_one_with_the_same_menu() {
    let malleable = |requested| Job {
        elasticity: Elasticity::Malleable,
        gpus: Bounds { min: 1, requested, max: 4 },
        ..rigid(1)
    };
    let jobs = vec![malleable(3), malleable(4), malleable(1)];
    assert_eq!(first_planned(&scenario(&[(0, 4)], jobs, None), "tiresias"), [0, 2]);
}

/// A job that gave way came with a menu that nobody waited with before, and there was a panic.
#[test]
fn tiresias_takes_back_a_job_with_a_menu_of_its_own() {
    let late = Job { submit: at(500.0), ..rigid(1) };
    let jobs = vec![rigid(2), late];
    let ran = run(&scenario(&[(0, 2)], jobs, None), "tiresias+queues=100", EVERYTHING).unwrap();
    assert_eq!(ran.finished, 2);
}

/// It was planned with a higher limit and, in the same plan, not at all: it was named twice.
#[test]
fn tiresias_lets_a_job_give_way_whose_limit_it_has_just_raised() {
    let late = Job { submit: at(500.0), ..rigid(1) };
    let mut scenario = scenario(&[(0, 1)], vec![rigid(1), late], Some(BASE + LEAST));
    let more = Calendar::constant(Watts::new(BASE + FULL));
    scenario.disturbances = vec![(at(500.0), common::Disturbance::Budget(Some(more)))];
    all_end(&scenario, "tiresias+queues=100");
}

/// A small node that draws a lot for each GPU and a large one that draws next to nothing.
fn dear_and_cheap(jobs: Vec<Job>, budget: f64) -> Scenario {
    let mut scenario = scenario(&[(0, 1)], jobs, Some(budget));
    let mut card = scenario.cluster.gpu_type(GpuTypeId(0)).clone();
    (card.idle, card.busy) = (Watts::new(5.0), Watts::new(6.0));
    (card.min_limit, card.default_limit) = (card.busy, card.busy);
    let template = scenario.cluster.node(NodeId(0)).clone();
    let steps = [70.0, 209.0, 349.0, 488.0, 628.0];
    let entry = |w: &f64| BusyPower { watts: Watts::new(*w), pue: 1.0 };
    let table = NodeDraw::ByBusyGpus(steps.iter().map(entry).collect());
    let dear = Node { gpus: 4, draw: table, ..template.clone() };
    let base = NodeDraw::Additive { base: Watts::new(50.0) };
    let cheap = Node { gpus: 8, draw: base, ..template };
    scenario.cluster = Arc::new(Cluster::new(vec![card], vec![dear, cheap]).unwrap());
    scenario
}

/// The best fit for the first job is too dear. Once the second has taken a part of it the first
/// goes elsewhere, which it was not asked again about.
#[test]
fn a_job_is_asked_again_when_another_has_taken_the_place_it_could_not_afford() {
    for spec in ["fifo", "tiresias"] {
        let scenario = dear_and_cheap(vec![rigid(4), rigid(1)], 310.0);
        assert_eq!(first_planned(&scenario, spec), [0, 1], "{spec}");
    }
}

/// What a job that gives way leaves behind was offered only to those after the one it made way for.
#[test]
fn tiresias_offers_what_is_left_over_to_those_who_found_no_room_before() {
    let late = |gpus| Job { submit: at(500.0), ..rigid(gpus) };
    let first = Job { work: Work(1e5), ..rigid(2) };
    // The first job takes all the watts. Were it gone, the second would still be too dear where it
    // fits best; once the third has started there, it goes to the other node.
    let scenario = dear_and_cheap(vec![first, late(4), late(1)], 439.0);
    let watch = Watch { idempotence: true, scratch: true, ..Watch::default() };
    run(&scenario, "tiresias+queues=100", watch).unwrap();
}

/// While it wrote its checkpoint it sank a queue, which the index did not hear of.
#[test]
fn tiresias_counts_the_service_of_a_job_that_is_being_stopped() {
    let slow = RestartCost { save: Seconds::new(300.0), load: Seconds::ZERO };
    let first = Job { restart: slow, ..rigid(2) };
    let late = |submit| Job { submit: at(submit), ..rigid(1) };
    let jobs = vec![first, late(60.0), late(100.0), late(250.0), late(420.0)];
    all_end(&scenario(&[(0, 2)], jobs, None), "tiresias+queues=100/300/500");
}

/// When exactly a job is across a boundary is a matter of rounding, and the index was a microsecond
/// late.
#[test]
fn tiresias_sees_a_job_cross_at_the_very_microsecond() {
    let full = 274.0;
    let card = GpuType {
        name: "card".into(),
        idle: Watts::new(5.0),
        busy: Watts::new(full),
        min_limit: Watts::new(58.0),
        default_limit: Watts::new(full),
        max_limit: Watts::new(full),
        limit_step: Watts::ZERO,
        tflops: None,
        links: None,
    };
    let table = |watts: &[f64]| {
        let entry = |w: &f64| BusyPower { watts: Watts::new(*w), pue: 1.2 };
        NodeDraw::ByBusyGpus(watts.iter().map(entry).collect())
    };
    let base = || NodeDraw::Additive { base: Watts::new(50.0) };
    let steps = [90.0, 234.0, 378.0, 522.0, 666.0, 811.0, 955.0, 1099.0, 1243.0];
    let draws = [(8, base()), (4, base()), (8, table(&steps)), (1, table(&[55.0, 55.0]))];
    let template = cluster(&[(0, 1)]).node(NodeId(0)).clone();
    let node = |(gpus, draw)| Node { gpus, draw, ..template.clone() };
    let job = |gpus, work, submit, save| Job {
        work: Work(work),
        submit: at(submit),
        restart: RestartCost { save: Seconds::new(save), load: Seconds::ZERO },
        ..rigid(gpus)
    };
    let jobs = vec![
        job(3, 1227.3, 0.0, 0.0),
        job(3, 3297.1, 0.0, 0.0),
        job(6, 1014.1, 0.0, 17.0),
        job(6, 0.0, 1.0, 0.0),
        job(3, 0.0, 1.0, 0.0),
        job(4, 0.0, 1.0, 0.0),
        job(3, 3326.5, 60.0, 0.0),
    ];
    let mut scenario = scenario(&[(0, 1)], jobs, Some(137.8));
    scenario.cluster =
        Arc::new(Cluster::new(vec![card], draws.into_iter().map(node).collect()).unwrap());
    let loss = common::Disturbance::Lose {
        node: NodeId(0),
        gone_for: Seconds::new(1.0),
        comes_back_up: true,
    };
    let more = common::Disturbance::Budget(Some(Calendar::constant(Watts::new(3721.7))));
    scenario.disturbances = vec![(at(653.0), loss), (at(1297.0), more)];
    scenario.config = EngineConfig {
        budget_lead: Seconds::ZERO,
        retries: 2,
        hold_off: Seconds::new(60.0),
        ..EngineConfig::default()
    };
    scenario.failures = true;
    scenario.luck = vec![
        200, 193, 200, 180, 200, 184, 200, 192, 200, 180, 200, 180, 200, 184, 180, 180, 180, 180,
        200, 180, 200, 180, 200, 180, 200, 232, 200, 180, 180, 180, 180, 200, 229, 180, 219, 180,
        180, 200, 184, 180, 180, 207, 200,
    ];
    all_end(&scenario, "tiresias+queues=100/1000/5000");
}

/// Nodes were put to sleep last, and the watts lay idle until something else happened.
#[test]
fn watts_of_a_node_that_goes_to_sleep_are_used_at_once() {
    // The second job fits only when the third node sleeps.
    let watts = 2.0 * BASE + 2.0 * FULL;
    let jobs = vec![rigid(1), rigid(1)];
    let mut scenario = scenario(&[(0, 1), (0, 1), (0, 1)], jobs, Some(watts));
    scenario.config.debounce = Seconds::ZERO;
    let watch = Watch { idempotence: true, ..EVERYTHING };
    run(&scenario, "fifo+sleep=5min", watch).unwrap();
}

#[test]
fn an_idle_node_sleeps_after_the_time_given_and_wakes_for_a_job() {
    let slept = |spec: &str, second: f64| {
        let jobs = vec![rigid(1), Job { submit: at(second), ..rigid(1) }];
        let ran = run(&scenario(&[(0, 1), (0, 1)], jobs, None), spec, Watch::default()).unwrap();
        assert_eq!(ran.finished, 2);
        ["Sleep", "Wake"].map(|kind| ran.seen.get(kind).copied().unwrap_or(0))
    };
    assert_eq!(slept("fifo+sleep=5min", 299.0), [0, 0], "not idle for long enough");
    assert_eq!(slept("fifo+sleep=5min", 301.0), [1, 1]);
    assert_eq!(slept("fifo", 301.0), [0, 0]);
}

/// Every node that any of the job's choices needed was kept awake, so that no choice fitted.
#[test]
fn nodes_that_another_choice_would_need_may_sleep() {
    let shapes = [0, 1, 2].map(|t| Shape { gpu_type: GpuTypeId(t), gpus: 1 });
    let job = Job { shapes: Some(shapes.into()), ..rigid(1) };
    for spec in ["fifo", "fifo+backfill", "tiresias"] {
        let nodes = &[(0, 1), (1, 1), (2, 1)];
        let scenario = scenario(nodes, vec![job.clone()], Some(BASE + LEAST));
        all_end(&scenario, spec);
    }
}

/// Only the first in line was tried below full power; where it needs too much, nobody ever ran.
#[test]
fn a_job_that_the_budget_never_carries_does_not_hold_up_the_others() {
    for spec in ["fifo", "fifo+backfill", "tiresias"] {
        let scenario =
            scenario(&[(0, 4)], vec![rigid(4), rigid(1)], Some(BASE + 3.0 * IDLE + LEAST));
        let ran = run(&scenario, spec, EVERYTHING).unwrap();
        assert_eq!(ran.finished, 1, "{spec}");
    }
}

#[test]
fn an_idle_node_is_put_to_sleep_in_the_first_plan_of_a_tight_budget() {
    let scenario = scenario(&[(0, 1), (0, 1)], vec![rigid(1)], Some(BASE + LEAST));
    let mut drive = Drive::new(&scenario, "fifo", Watch::default());
    drive.first_instant().unwrap();
    let state = drive.engine.state();
    assert_eq!(state.node(NodeId(1)).target, Target::Asleep);
    let limit = state.job(JobId(0)).planned.as_ref().unwrap().configuration.power_limit;
    assert_eq!(limit, Watts::new(LEAST));
}
