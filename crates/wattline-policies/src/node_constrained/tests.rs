//! Without constrained jobs nothing is otherwise than it would be.

use crate::registry::{POLICIES, bare, policy};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::action::ActionKind;
use wattline_core::calendar::Calendar;
use wattline_core::cluster::{Cluster, GpuType, Node, NodeDraw};
use wattline_core::engine::{EngineConfig, Event};
use wattline_core::ids::{GpuTypeId, JobId, NodeId, UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, NodeChoice, RestartCost, Work, WorkRate};
use wattline_core::placement::Configuration;
use wattline_core::plan::Plan;
use wattline_core::policy::{ClusterView, Policy};
use wattline_core::predictor::{Measurement, Prediction, Predictor};
use wattline_core::prices::Prices;
use wattline_core::scheduler::Scheduler;
use wattline_core::state::{Phase, State};
use wattline_core::units::{EurosPerSecond, Seconds, Watts};

struct Linear;

impl Predictor for Linear {
    fn predict(&self, _: &Job, configuration: &Configuration) -> Option<Prediction> {
        Some(Prediction {
            rate: WorkRate(f64::from(configuration.gpus).powf(0.9)),
            power: configuration.power_limit,
            time_low: 1.0,
            time_high: 1.0,
            power_within: 1.0,
            energy_within: 1.0,
            measurements: 1,
        })
    }
    fn observe(&mut self, _: &Measurement) {}
}

/// Asks both and wants the same of them, whenever no constrained job is there.
struct Both {
    node_constrained: Box<dyn Policy>,
    bare: Box<dyn Policy>,
    constrained_seen: bool,
}

impl Policy for Both {
    fn name(&self) -> &str {
        "both"
    }
    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        let plan = self.node_constrained.plan(view);
        self.constrained_seen |=
            view.state.unfinished_jobs().any(|(_, job)| job.job.nodes.is_some());
        if !self.constrained_seen {
            assert_eq!(plan, self.bare.plan(view), "{} at {}", self.bare.name(), view.now);
        }
        plan
    }
}

fn cluster() -> Arc<Cluster> {
    let card = GpuType {
        name: "card".into(),
        idle: Watts::new(10.0),
        busy: Watts::new(300.0),
        min_limit: Watts::new(100.0),
        default_limit: Watts::new(300.0),
        max_limit: Watts::new(300.0),
        limit_step: Watts::new(50.0),
        tflops: None,
        links: None,
    };
    let node = |at: usize| Node {
        name: format!("node{at}").into(),
        gpu_type: GpuTypeId(0),
        gpus: 4,
        draw: NodeDraw::Additive { base: Watts::new(100.0) },
        sleep: Watts::new(5.0),
        boot: Watts::ZERO,
        boot_time: Seconds::new(60.0),
        shutdown_time: Seconds::ZERO,
        rack: 0,
    };
    Arc::new(Cluster::new(vec![card], (0..4).map(node).collect()).unwrap())
}

fn job(number: u32) -> Job {
    let gpus = 1 + number % 5;
    Job {
        name: "job".into(),
        user: UserId(0),
        workload: WorkloadId(number % 3),
        work: Work(f64::from(100 + 70 * (number % 7))),
        submit: Timestamp::from_seconds(f64::from(number) * 30.0),
        deadline: number
            .is_multiple_of(2)
            .then(|| Timestamp::from_seconds(f64::from(number) * 90.0)),
        weight: EurosPerSecond::new(f64::from(number % 4) * 1e-3),
        elasticity: Elasticity::ALL[number as usize % 4],
        gpus: Bounds { min: 1, requested: gpus, max: gpus + 2 },
        batch: Bounds { min: 16, requested: 64, max: 128 },
        restart: RestartCost { save: Seconds::new(2.0), load: Seconds::new(3.0) },
        preemptible: number % 4 != 1,
        shapes: None,
        nodes: None,
    }
}

/// Jobs come every half a minute, the one that runs longest ends then, and all is done at once.
fn drive(spec: &str, constrained_job_at: Option<u32>) -> usize {
    let both = Both {
        node_constrained: policy(spec).unwrap(),
        bare: bare(spec).unwrap(),
        constrained_seen: false,
    };
    let mut engine = Scheduler::new(
        EngineConfig::default(),
        State::new(cluster(), Timestamp::ZERO),
        Box::new(both),
        Box::new(Linear),
        Prices::default(),
        Some(Calendar::constant(Watts::new(4000.0))),
    );
    let mut starts = 0;
    for number in 0..40 {
        let mut next = job(number);
        if constrained_job_at == Some(number) {
            let allowed = [NodeId(1), NodeId(2)].into();
            next.nodes = Some(Arc::new(NodeChoice { count: 1, required: Box::default(), allowed }));
        }
        let now = next.submit;
        engine.handle(now, Event::Submitted(Arc::new(next))).unwrap();
        let running = |id: &JobId| engine.state().job(*id).phase == Phase::Running;
        if let Some(id) = (0..number).map(JobId).find(running).filter(|_| number % 2 == 1) {
            engine.handle(now, Event::Finished(id)).unwrap();
        }
        engine.handle(now, Event::Clock).unwrap();
        while let Some(action) = engine.poll_action() {
            let event = match action.kind {
                ActionKind::Start { job, .. } => {
                    starts += 1;
                    Event::Started { job, action: action.id }
                }
                ActionKind::Stop { job, run } => Event::Stopped { job, run, done: Work(10.0) },
                ActionKind::Limit { job, .. } => Event::Limited { job, action: action.id },
                ActionKind::Wake { node } => Event::NodeUp(node),
                ActionKind::Sleep { node } => Event::NodeAsleep(node),
            };
            engine.handle(now, event).unwrap();
        }
        assert_eq!(engine.stats().refused, 0, "{spec}: {:?}", engine.poll_alert());
    }
    starts
}

#[test]
fn without_constrained_jobs_the_plan_is_the_policys_own() {
    for entry in POLICIES {
        assert!(drive(entry.name, None) > 10, "{}", entry.name);
        // With one it is not, from when it comes; it is a test of this test.
        drive(entry.name, Some(20));
    }
}

#[test]
fn names_are_the_policys_own() {
    for entry in POLICIES {
        let (node_constrained, bare) = (policy(entry.name).unwrap(), bare(entry.name).unwrap());
        assert_eq!(
            (node_constrained.name(), node_constrained.decides()),
            (bare.name(), bare.decides())
        );
    }
}
