//! A small cluster with jobs on it, and the behaviour of the whole.

use super::problem::Problem;
use super::*;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::cluster::{Cluster, GpuType, Node, NodeDraw};
use wattline_core::effort::Effort;
use wattline_core::engine::{EngineConfig, Event};
use wattline_core::ids::{GpuTypeId, PlanId, UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work, WorkRate};
use wattline_core::placement::Configuration;
use wattline_core::policy::Changes;
use wattline_core::predictor::{Measurement, Prediction, Predictor};
use wattline_core::prices::Prices;
use wattline_core::scheduler::Scheduler;
use wattline_core::state::State;
use wattline_core::units::{EurosPerSecond, Seconds, Watts};

pub(super) fn random(seed: u64) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(seed)
}

/// Asks for 2 GPUs and a batch of 64, and may have 1 to 8 and 16 to 256.
pub(super) fn job(work: f64) -> Job {
    Job {
        name: "job".into(),
        user: UserId(0),
        workload: WorkloadId(0),
        work: Work(work),
        submit: Timestamp::ZERO,
        deadline: None,
        weight: EurosPerSecond::new(0.0),
        elasticity: Elasticity::Adaptive,
        gpus: Bounds { min: 1, max: 8, requested: 2 },
        batch: Bounds { min: 16, max: 256, requested: 64 },
        restart: RestartCost { save: Seconds::new(5.0), load: Seconds::new(15.0) },
        preemptible: true,
        shapes: None,
        nodes: None,
    }
}

/// Scales well, and better with a larger batch.
struct Formula;

impl Predictor for Formula {
    fn predict(&self, _: &Job, c: &Configuration) -> Option<Prediction> {
        let rate = f64::from(c.gpus).powf(0.9) * f64::from(c.batch).powf(0.1);
        Some(Prediction {
            rate: WorkRate(rate),
            power: c.power_limit,
            time_low: 1.0,
            time_high: 1.0,
            power_within: 1.0,
            energy_within: 1.0,
            measurements: 1,
        })
    }
    fn observe(&mut self, _: &Measurement) {}
}

/// Equal nodes and jobs with that much work.
pub(super) struct Bench {
    state: State,
    budget: Option<Watts>,
}

fn cluster(nodes: u32, gpus: u8) -> Arc<Cluster> {
    let watts = Watts::new;
    let card = GpuType {
        name: "card".into(),
        idle: watts(20.0),
        busy: watts(200.0),
        min_limit: watts(100.0),
        default_limit: watts(200.0),
        max_limit: watts(200.0),
        limit_step: watts(50.0),
        tflops: None,
        links: None,
    };
    let node = |number: u32| Node {
        name: format!("n{number}").into(),
        gpu_type: GpuTypeId(0),
        gpus,
        draw: NodeDraw::Additive { base: watts(100.0) },
        sleep: watts(10.0),
        boot: watts(110.0),
        boot_time: Seconds::new(60.0),
        shutdown_time: Seconds::new(10.0),
        rack: 0,
    };
    Arc::new(Cluster::new(vec![card], (0..nodes).map(node).collect()).unwrap())
}

impl Bench {
    pub(super) fn new(nodes: u32, gpus: u8, works: &[f64]) -> Self {
        let mut state = State::new(cluster(nodes, gpus), Timestamp::ZERO);
        for work in works {
            state.submit(Arc::new(job(*work)), |_| true);
        }
        Self { state, budget: None }
    }

    pub(super) fn budget(self, watts: f64) -> Self {
        Self { budget: Some(Watts::new(watts)), ..self }
    }

    pub(super) fn with<T>(&self, look: impl FnOnce(&Problem<'_, '_>) -> T) -> T {
        let prices = Prices::default();
        let view = ClusterView {
            now: Timestamp::ZERO,
            state: &self.state,
            budget: self.budget,
            prices: &prices,
            predictor: &Formula,
            effort: Effort::FULL,
            plan: PlanId(0),
            changes: Changes::Everything,
        };
        look(&Problem::new(&view))
    }
}

fn engine(budget: Option<f64>) -> Scheduler<'static> {
    Scheduler::new(
        EngineConfig::default(),
        State::new(cluster(2, 4), Timestamp::ZERO),
        ones(OnesOptions::default()),
        Box::new(Formula),
        Prices::default(),
        budget.map(|watts| Calendar::constant(Watts::new(watts))),
    )
}

fn gpus(engine: &Scheduler<'_>) -> Vec<u32> {
    let jobs = engine.state().unfinished_jobs();
    jobs.map(|(_, job)| job.planned.as_ref().map_or(0, |p| p.configuration.gpus)).collect()
}

/// Takes in an event and carries out every action at once.
fn tell(engine: &mut Scheduler<'_>, at: f64, event: Event) {
    use wattline_core::action::ActionKind;
    let now = Timestamp::from_seconds(at);
    let mut events = vec![event, Event::Clock];
    while !events.is_empty() {
        for event in std::mem::take(&mut events) {
            engine.handle(now, event).unwrap();
            while let Some(action) = engine.poll_action() {
                events.extend(match action.kind {
                    ActionKind::Start { job, .. } => {
                        Some(Event::Started { job, action: action.id })
                    }
                    ActionKind::Stop { job, run } => {
                        let state = engine.state().job(job);
                        let done = state.job.work - state.remaining(now);
                        Some(Event::Stopped { job, run, done })
                    }
                    _ => None,
                });
            }
        }
    }
    assert_eq!(engine.stats().refused, 0);
}

#[test]
fn a_lone_job_gets_what_helps_it_and_gives_room_to_a_shorter_one() {
    let mut engine = engine(None);
    tell(&mut engine, 0.0, Event::Submitted(Arc::new(job(20_000.0))));
    assert_eq!(gpus(&engine), [8]);
    let reason = engine.state().job(JobId(0)).reason;
    assert_eq!(reason, Reason::BatchScaled { from: 64, to: 256, learning_rate: 4.0 });
    tell(&mut engine, 100.0, Event::Submitted(Arc::new(job(2_000.0))));
    let now = gpus(&engine);
    assert!(now[1] >= 4, "{now:?}");
    // A moment later nothing has changed, so nobody moves.
    let restarts = engine.state().job(JobId(0)).restarts;
    tell(&mut engine, 130.0, Event::Clock);
    assert_eq!(gpus(&engine), now);
    assert_eq!(engine.state().job(JobId(0)).restarts, restarts);
}

#[test]
fn a_job_that_is_nearly_done_is_not_moved() {
    let mut engine = engine(None);
    tell(&mut engine, 0.0, Event::Submitted(Arc::new(job(300.0))));
    let before = engine.state().job(JobId(0)).planned.clone();
    tell(&mut engine, 5.0, Event::Submitted(Arc::new(job(250.0))));
    assert_eq!(engine.state().job(JobId(0)).planned, before);
}

#[test]
fn the_budget_is_kept() {
    // Two nodes of 100 W, and 20 W idle or 200 W busy for each of eight GPUs.
    let mut engine = engine(Some(1000.0));
    for _ in 0..6 {
        tell(&mut engine, 0.0, Event::Submitted(Arc::new(job(5_000.0))));
    }
    let sum: u32 = gpus(&engine).iter().sum();
    assert!((2..=4).contains(&sum), "{sum}");
    assert!(engine.state().planned_committed() <= Watts::new(1000.0));
}
