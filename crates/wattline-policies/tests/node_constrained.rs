//! Constrained jobs, jobs that may have certain nodes only, under every policy.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::backend::Backend;
use common::{Formula, SPECS};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::check;
use wattline_core::cluster::{Cluster, GpuType, Node, NodeDraw, Shape};
use wattline_core::engine::{Alert, EngineConfig, Event};
use wattline_core::ids::{GpuTypeId, JobId, NodeId, UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, NodeChoice, RestartCost, Work};
use wattline_core::placement::Configuration;
use wattline_core::plan::Reason;
use wattline_core::power::NodePower;
use wattline_core::predictor::Predictor;
use wattline_core::prices::Prices;
use wattline_core::scheduler::Scheduler;
use wattline_core::state::{Phase, State, Target};
use wattline_core::units::{EurosPerSecond, Seconds, Watts};
use wattline_policies::policy;

const BASE: f64 = 100.0;
const IDLE: f64 = 10.0;
const FULL: f64 = 300.0;
const BOOT: f64 = 60.0;
/// Power of a node of four GPUs that nobody uses, and of one that is full.
const IDLE_NODE: f64 = BASE + 4.0 * IDLE;
const FULL_NODE: f64 = BASE + 4.0 * FULL;

/// So many nodes of four GPUs.
fn cluster(nodes: usize) -> Arc<Cluster> {
    let card = GpuType {
        name: "card".into(),
        idle: Watts::new(IDLE),
        busy: Watts::new(FULL),
        min_limit: Watts::new(100.0),
        default_limit: Watts::new(FULL),
        max_limit: Watts::new(FULL),
        limit_step: Watts::new(50.0),
        tflops: None,
        links: None,
    };
    let node = |at: usize| Node {
        name: format!("node{at}").into(),
        gpu_type: GpuTypeId(0),
        gpus: 4,
        draw: NodeDraw::Additive { base: Watts::new(BASE) },
        sleep: Watts::ZERO,
        boot: Watts::ZERO,
        boot_time: Seconds::new(BOOT),
        shutdown_time: Seconds::ZERO,
        rack: 0,
    };
    Arc::new(Cluster::new(vec![card], (0..nodes).map(node).collect()).unwrap())
}

/// A rigid job of so many GPUs that may not be moved.
fn fixed(submit: f64, gpus: u32, work: f64) -> Job {
    Job {
        name: "job".into(),
        user: UserId(0),
        workload: WorkloadId(0),
        work: Work(work),
        submit: at(submit),
        deadline: None,
        weight: EurosPerSecond::new(1e-4),
        elasticity: Elasticity::Rigid,
        gpus: Bounds::exactly(gpus),
        batch: Bounds::exactly(64),
        restart: RestartCost::default(),
        preemptible: false,
        shapes: None,
        nodes: None,
    }
}

const SAVE: f64 = 20.0;
const LOAD: f64 = 40.0;

/// A job of one to four GPUs that may be moved, and takes very long.
fn elastic(submit: f64) -> Job {
    Job {
        elasticity: Elasticity::Malleable,
        gpus: Bounds { min: 1, requested: 2, max: 4 },
        restart: RestartCost { save: Seconds::new(SAVE), load: Seconds::new(LOAD) },
        preemptible: true,
        ..fixed(submit, 2, 50_000.0)
    }
}

/// A job for so many of these nodes, with so many GPUs on each.
fn constrained_job(submit: f64, allowed: &[u32], count: u32, per_node: u32, work: f64) -> Job {
    let gpus = per_node * count;
    let allowed = allowed.iter().map(|id| NodeId(*id)).collect();
    let shape = Shape { gpu_type: GpuTypeId(0), gpus };
    Job {
        shapes: Some(Arc::from([shape])),
        nodes: Some(Arc::new(NodeChoice { count, required: Box::default(), allowed })),
        ..fixed(submit, gpus, work)
    }
}

fn at(seconds: f64) -> Timestamp {
    Timestamp::from_seconds(seconds)
}

/// How long a constrained job is predicted to run.
fn predicted(job: &Job, nodes: u32) -> f64 {
    let configuration = Configuration {
        gpu_type: GpuTypeId(0),
        gpus: job.gpus.requested,
        nodes,
        batch: 64,
        power_limit: Watts::new(FULL),
    };
    (job.work / Formula.predict(job, &configuration).unwrap().rate).get()
}

/// An engine and a cluster that does what it is told.
struct Play {
    spec: &'static str,
    engine: Scheduler<'static>,
    backend: Backend,
    to_come: Vec<Arc<Job>>,
    now: Timestamp,
}

impl Play {
    fn new(
        spec: &'static str,
        nodes: usize,
        asleep: &[u32],
        jobs: Vec<Job>,
        budget: Option<f64>,
    ) -> Self {
        let cluster = cluster(nodes);
        let mut state = State::new(Arc::clone(&cluster), Timestamp::ZERO);
        let mut backend = Backend::new(cluster, Vec::new(), false);
        for id in asleep {
            state.begin_asleep(NodeId(*id));
            backend.begin_asleep(NodeId(*id));
        }
        let engine = Scheduler::new(
            EngineConfig { budget_lead: Seconds::ZERO, ..EngineConfig::default() },
            state,
            policy(spec).unwrap(),
            Box::new(Formula),
            Prices::default(),
            budget.map(|watts| Calendar::constant(Watts::new(watts))),
        );
        let mut to_come: Vec<Arc<Job>> = jobs.into_iter().map(Arc::new).collect();
        to_come.sort_by_key(|job| job.submit);
        // The next one is the last.
        to_come.reverse();
        Self { spec, engine, backend, to_come, now: Timestamp::ZERO }
    }

    fn hear(&mut self, event: Event) {
        self.engine.handle(self.now, event).unwrap();
        while let Some(action) = self.engine.poll_action() {
            self.backend.apply(self.now, &action).unwrap();
        }
        while let Some(alert) = self.engine.poll_alert() {
            assert!(!matches!(alert, Alert::PlanRefused { .. }), "{}: {alert:?}", self.spec);
        }
        assert_eq!(check::audit(self.engine.state(), None), [], "{}", self.spec);
    }

    /// Runs until then; what happens at that time has happened.
    fn until(&mut self, seconds: f64) -> &mut Self {
        loop {
            let submission = self.to_come.last().map(|job| job.submit);
            let next = [submission, self.backend.next(), self.engine.poll_timeout()];
            let Some(next) = next.into_iter().flatten().min().filter(|t| *t <= at(seconds)) else {
                self.now = at(seconds);
                return self;
            };
            self.now = self.now.max(next);
            while let Some(job) = self.to_come.pop_if(|job| job.submit <= self.now) {
                self.backend.submit(Arc::clone(&job));
                self.hear(Event::Submitted(job));
            }
            self.deliver();
            self.hear(Event::Clock);
            self.deliver();
        }
    }

    fn deliver(&mut self) {
        while let Some(event) = self.backend.poll(self.now) {
            self.hear(event);
        }
    }

    fn state(&self) -> &State {
        self.engine.state()
    }

    /// The constrained jobs, by submission.
    fn constrained(&self) -> Vec<JobId> {
        let ids = (0..self.state().job_count() as u32).map(JobId);
        ids.filter(|id| self.state().job(*id).job.nodes.is_some()).collect()
    }

    fn started(&self, id: JobId) -> f64 {
        let job = self.state().job(id);
        let start = job.first_start.unwrap_or_else(|| {
            panic!("{}: {id} has not started: {:?}", self.spec, job.reason);
        });
        start.seconds()
    }

    fn ended(&self, id: JobId) -> f64 {
        let job = self.state().job(id);
        assert_eq!(job.phase, Phase::Finished, "{}: {id}", self.spec);
        job.progress.as_of.seconds()
    }
}

#[test]
fn a_constrained_job_on_a_cluster_full_of_jobs_that_may_be_moved_starts_within_its_bound() {
    for (count, work) in [(1, 500.0), (1, 2000.0), (2, 500.0)] {
        let mut jobs: Vec<Job> = (0..20).map(|k| elastic(f64::from(k) * 25.0)).collect();
        let visitor = constrained_job(150.0, &[1, 2], count, 4, work);
        let patience = predicted(&visitor, count).max(5.0 * (SAVE + LOAD));
        jobs.push(visitor);
        for spec in SPECS {
            let mut play = Play::new(spec, 3, &[], jobs.clone(), None);
            // Somebody may just be on his way, who gets there first: he saves, and has ten seconds.
            let bound = 150.0 + patience + f64::max(SAVE, BOOT) + SAVE + 10.0;
            play.until(bound + 1.0);
            let start = play.started(play.constrained()[0]);
            assert!(start <= bound, "{spec}: {count} nodes, at {start} s, not by {bound} s");
        }
    }
}

/// Policies that leave running jobs alone would let it wait for hours; it waits as long as it
/// should, hears why, and no more jobs leave than must.
#[test]
fn a_constrained_job_is_patient_and_sends_no_more_away_than_it_needs() {
    let rigid = |submit| Job {
        preemptible: true,
        restart: RestartCost { save: Seconds::new(SAVE), load: Seconds::new(LOAD) },
        ..fixed(submit, 2, 50_000.0)
    };
    let mut jobs = vec![rigid(0.0); 4];
    let visitor = constrained_job(100.0, &[0], 1, 2, 500.0);
    let patience = predicted(&visitor, 1).max(5.0 * (SAVE + LOAD));
    jobs.push(visitor);
    for spec in ["fifo", "edf", "priority", "fifo+backfill"] {
        let mut play = Play::new(spec, 2, &[], jobs.clone(), None);
        play.until(100.0 + patience - 1.0);
        let id = play.constrained()[0];
        assert_eq!(play.state().job(id).reason, Reason::NextInLine, "{spec}");
        assert_eq!(play.state().held_jobs(), 4, "{spec}");
        play.until(100.0 + patience + SAVE + 1.0);
        let start = play.started(id);
        assert!((start - (100.0 + patience + SAVE)).abs() < 1e-3, "{spec}: {start}");
        let away = (0..4).filter(|j| play.state().job(JobId(*j)).planned.is_none());
        assert_eq!(away.count(), 1, "{spec}");
    }
}

/// Without room for all of them, whoever makes room goes on where there is some, in the same plan.
#[test]
fn whoever_makes_room_goes_on_elsewhere_if_he_can() {
    let two = Job { preemptible: true, ..fixed(0.0, 2, 50_000.0) };
    let jobs = vec![
        two.clone(),
        two,
        constrained_job(50.0, &[0, 1], 2, 2, 10.0),
        constrained_job(50.0, &[0], 1, 4, 10.0),
    ];
    for spec in ["fifo", "edf", "priority"] {
        let mut play = Play::new(spec, 2, &[], jobs.clone(), None);
        play.until(10_000.0);
        for id in play.constrained() {
            assert_eq!(play.state().job(id).phase, Phase::Finished, "{spec}: {id}");
        }
        let runs = |id: u32| play.state().job(JobId(id)).phase == Phase::Running;
        assert!(runs(0) && runs(1), "{spec}");
    }
}

#[test]
fn a_constrained_job_for_a_sleeping_node_wakes_it() {
    for spec in SPECS {
        let mut play =
            Play::new(spec, 3, &[1, 2], vec![constrained_job(5.0, &[2], 1, 3, 500.0)], None);
        play.until(5.0);
        assert_eq!(play.state().node(NodeId(2)).power, NodePower::Booting, "{spec}");
        assert_eq!(play.state().node(NodeId(1)).target, Target::Asleep, "{spec}");
        play.until(5.0 + BOOT);
        assert_eq!(play.started(JobId(0)), 5.0 + BOOT, "{spec}");
        let held = play.state().job(JobId(0)).held.clone().unwrap();
        assert_eq!(held.allocation.only_node(), Some(NodeId(2)), "{spec}");
    }
}

#[test]
fn two_constrained_jobs_for_one_node_run_one_after_the_other_in_the_order_of_their_deadlines() {
    for spec in SPECS {
        let due =
            |by: f64| Job { deadline: Some(at(by)), ..constrained_job(0.0, &[1], 1, 4, 500.0) };
        let jobs = vec![constrained_job(0.0, &[1], 1, 3, 500.0), due(9000.0), due(4000.0)];
        let mut play = Play::new(spec, 2, &[], jobs, None);
        play.until(10_000.0);
        let [none, late, soon] = [0, 1, 2].map(JobId);
        assert_eq!(play.started(soon), 0.0, "{spec}");
        assert_eq!(play.started(late), play.ended(soon), "{spec}");
        assert_eq!(play.started(none), play.ended(late), "{spec}");
    }
}

/// Another constrained job may start beside a reservation, and not on it.
#[test]
fn a_constrained_job_behind_one_that_waits_may_start_elsewhere() {
    let jobs = vec![
        constrained_job(0.0, &[0], 1, 2, 3000.0),
        constrained_job(1.0, &[0, 1], 2, 4, 500.0),
        constrained_job(2.0, &[1, 2], 1, 1, 500.0),
        constrained_job(3.0, &[1], 1, 1, 500.0),
    ];
    for spec in SPECS {
        let mut play = Play::new(spec, 3, &[], jobs.clone(), None);
        play.until(20_000.0);
        let [first, waits, beside, behind] = [0, 1, 2, 3].map(JobId);
        assert_eq!(play.started(first), 0.0, "{spec}");
        // Where idle nodes sleep it is woken first.
        assert!([2.0, 2.0 + BOOT].contains(&play.started(beside)), "{spec}");
        let waited = play.started(waits) - play.ended(first);
        assert!([0.0, BOOT].iter().any(|t| (waited - t).abs() < 1e-3), "{spec}: {waited}");
        assert_eq!(play.started(behind), play.ended(waits), "{spec}");
    }
}

#[test]
fn a_constrained_job_next_to_jobs_that_may_not_be_moved_starts_when_they_end_although_others_keep_coming()
 {
    let mut jobs: Vec<Job> = vec![fixed(0.0, 1, 200.0); 8];
    jobs.extend((1..60).map(|k| fixed(f64::from(k) * 15.0, 1, 200.0)));
    jobs.push(constrained_job(10.0, &[0], 1, 4, 300.0));
    for spec in SPECS {
        let mut play = Play::new(spec, 2, &[], jobs.clone(), None);
        play.until(10.0);
        let node = play.state().node(NodeId(0));
        let residents: Vec<JobId> = node.planned.iter().map(|r| r.job).collect();
        play.until(5000.0);
        let there = residents.iter().map(|id| play.ended(*id)).fold(10.0, f64::max);
        let start = play.started(play.constrained()[0]);
        let woken = there + BOOT;
        assert!(start <= woken, "{spec}: at {start} s, those there before ended at {there} s");
    }
}

/// The budget carries one full node and an idle one.
#[test]
fn jobs_that_may_be_moved_make_room_for_a_constrained_job_that_has_no_watts() {
    let mut jobs: Vec<Job> = (0..6).map(|k| elastic(f64::from(k))).collect();
    let visitor = constrained_job(100.0, &[1], 1, 4, 500.0);
    let patience = predicted(&visitor, 1).max(5.0 * (SAVE + LOAD));
    jobs.push(visitor);
    for spec in SPECS {
        let mut play = Play::new(spec, 2, &[], jobs.clone(), Some(FULL_NODE + IDLE_NODE + 20.0));
        let bound = 100.0 + patience + f64::max(SAVE, BOOT) + SAVE + 10.0;
        play.until(bound);
        let start = play.started(play.constrained()[0]);
        assert!(start <= bound, "{spec}: started at {start} s");
    }
}

/// A constrained job is not planned by anybody while it runs, so its limit is nobody else's to raise.
#[test]
fn a_constrained_job_whose_limit_was_lowered_gets_it_back() {
    for spec in SPECS {
        let jobs = vec![constrained_job(0.0, &[0], 1, 4, 50_000.0)];
        let mut play = Play::new(spec, 1, &[], jobs, Some(FULL_NODE));
        let limit = |play: &Play| {
            let held = play.state().job(JobId(0)).held.clone().unwrap();
            held.configuration.power_limit.get()
        };
        play.until(50.0);
        assert_eq!(limit(&play), FULL, "{spec}");
        let budget = |watts| Event::BudgetSet(Some(Calendar::constant(Watts::new(watts))));
        play.hear(budget(FULL_NODE - 200.0));
        play.until(60.0);
        assert!(limit(&play) <= FULL - 50.0, "{spec}");
        play.hear(budget(FULL_NODE));
        play.until(70.0);
        assert_eq!(limit(&play), FULL, "{spec}");
        assert_eq!(play.state().job(JobId(0)).restarts, 0);
    }
}

/// One that nothing can carry must not stand in the way of others.
#[test]
fn a_constrained_job_that_never_fits_waits_and_holds_up_nobody() {
    let jobs = vec![
        constrained_job(0.0, &[0, 1], 2, 4, 100.0),
        constrained_job(0.0, &[0], 1, 8, 100.0),
        fixed(0.0, 2, 100.0),
        constrained_job(1.0, &[1], 1, 1, 100.0),
    ];
    for spec in SPECS {
        // Enough for one node at its lowest limits.
        let mut play = Play::new(spec, 2, &[], jobs.clone(), Some(BASE + 400.0 + IDLE_NODE));
        play.until(20_000.0);
        assert_eq!(play.state().job(JobId(0)).reason, Reason::NoPower, "{spec}");
        assert_eq!(play.state().job(JobId(1)).first_start, None, "{spec}");
        play.ended(JobId(2));
        play.ended(JobId(3));
    }
}
