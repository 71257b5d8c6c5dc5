//! A small cluster, plain jobs, and a policy that plans what the test says.

// Each test crate uses its own part of this.
#![allow(dead_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use wattline_core::Timestamp;
use wattline_core::action::{Action, ActionKind};
use wattline_core::calendar::Calendar;
use wattline_core::cluster::{Cluster, GpuType, Node, NodeDraw};
use wattline_core::engine::{Alert, EngineConfig, Event};
use wattline_core::ids::{ActionId, GpuTypeId, JobId, NodeId, UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work, WorkRate};
use wattline_core::placement::{Allocation, Configuration, Placement, Share};
use wattline_core::plan::{Decision, JobChange, NodeChange, Plan, Reason};
use wattline_core::policy::{ClusterView, Policy};
use wattline_core::predictor::{Measurement, Prediction, Predictor};
use wattline_core::prices::Prices;
use wattline_core::scheduler::Scheduler;
use wattline_core::state::{State, Target};
use wattline_core::units::{EurosPerSecond, Seconds, Watts};

/// Every node draws this, GPUs not counted.
pub(crate) const BASE: f64 = 200.0;
pub(crate) const SLEEP: f64 = 10.0;
pub(crate) const BOOT: f64 = 700.0;
pub(crate) const IDLE: f64 = 50.0;
pub(crate) const LEAST: f64 = 100.0;
pub(crate) const FULL: f64 = 300.0;

/// Nodes of these GPU types and sizes.
pub(crate) fn cluster(nodes: &[(u16, u8)]) -> Arc<Cluster> {
    let gpu_type = |n: u16| GpuType {
        name: format!("type{n}").into(),
        idle: Watts::new(IDLE),
        busy: Watts::new(FULL),
        min_limit: Watts::new(LEAST),
        default_limit: Watts::new(FULL),
        max_limit: Watts::new(350.0),
        limit_step: Watts::new(50.0),
        tflops: None,
        links: None,
    };
    let node = |(at, (gpu_type, gpus)): (usize, &(u16, u8))| Node {
        name: format!("node{at}").into(),
        gpu_type: GpuTypeId(*gpu_type),
        gpus: *gpus,
        draw: NodeDraw::Additive { base: Watts::new(BASE) },
        sleep: Watts::new(SLEEP),
        boot: Watts::new(BOOT),
        boot_time: Seconds::new(60.0),
        shutdown_time: Seconds::new(10.0),
        rack: 0,
    };
    let types = nodes.iter().map(|(t, _)| *t).max().unwrap_or(0);
    let nodes = nodes.iter().enumerate().map(node).collect();
    Arc::new(Cluster::new((0..=types).map(gpu_type).collect(), nodes).unwrap())
}

/// A malleable job for 1 to 8 GPUs.
pub(crate) fn job() -> Job {
    Job {
        name: "job".into(),
        user: UserId(0),
        workload: WorkloadId(0),
        work: Work(1000.0),
        submit: Timestamp::ZERO,
        deadline: None,
        weight: EurosPerSecond::new(1.0),
        elasticity: Elasticity::Malleable,
        gpus: Bounds { min: 1, requested: 2, max: 8 },
        batch: Bounds { min: 16, requested: 64, max: 256 },
        restart: RestartCost::default(),
        preemptible: true,
        shapes: None,
        nodes: None,
    }
}

/// Type 0, these GPUs of these nodes, at that limit.
pub(crate) fn on(shares: &[(u32, u64)], limit: f64) -> Placement {
    let shares: Vec<Share> =
        shares.iter().map(|(node, mask)| Share { node: NodeId(*node), mask: *mask }).collect();
    let allocation = Allocation(shares.into());
    Placement {
        configuration: Configuration {
            gpu_type: GpuTypeId(0),
            gpus: allocation.count(),
            nodes: allocation.0.len() as u32,
            batch: 64,
            power_limit: Watts::new(limit),
        },
        allocation,
    }
}

pub(crate) fn runs(job: u32, placement: Placement) -> JobChange {
    JobChange { job: JobId(job), decision: Decision::Run(placement), reason: Reason::AsRequested }
}

pub(crate) fn waits(job: u32) -> JobChange {
    JobChange { job: JobId(job), decision: Decision::Wait, reason: Reason::NoRoom }
}

pub(crate) fn wants(node: u32, target: Target) -> NodeChange {
    NodeChange { node: NodeId(node), target, reason: Reason::NodeIdle }
}

type Changes = (Vec<JobChange>, Vec<NodeChange>);

/// Plans what it is told, once, and then nothing more.
struct Script(Arc<Mutex<VecDeque<Changes>>>);

impl Policy for Script {
    fn name(&self) -> &str {
        "script"
    }
    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        let (jobs, nodes) = self.0.lock().unwrap().pop_front().unwrap_or_default();
        Plan { jobs, nodes, ..Plan::unchanged(view.plan) }
    }
}

/// One unit of work per GPU and second at full power.
struct Linear;

impl Predictor for Linear {
    fn predict(&self, _: &Job, configuration: &Configuration) -> Option<Prediction> {
        let limit = configuration.power_limit / Watts::new(FULL);
        Some(Prediction {
            rate: WorkRate(f64::from(configuration.gpus) * limit),
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

/// An engine whose plans and events are the test's.
pub(crate) struct Bench {
    pub(crate) engine: Scheduler<'static>,
    script: Arc<Mutex<VecDeque<Changes>>>,
    pub(crate) now: Timestamp,
}

pub(crate) fn constant(watts: f64) -> Option<Calendar<Watts>> {
    Some(Calendar::constant(Watts::new(watts)))
}

impl Bench {
    /// An idle cluster with so many equal jobs waiting.
    pub(crate) fn new(nodes: &[(u16, u8)], jobs: usize, budget: Option<f64>) -> Self {
        Self::with(nodes, vec![job(); jobs], budget)
    }

    pub(crate) fn with(nodes: &[(u16, u8)], jobs: Vec<Job>, budget: Option<f64>) -> Self {
        let script = Arc::new(Mutex::new(VecDeque::new()));
        let engine = Scheduler::new(
            EngineConfig { budget_lead: Seconds::ZERO, ..EngineConfig::default() },
            State::new(cluster(nodes), Timestamp::ZERO),
            Box::new(Script(Arc::clone(&script))),
            Box::new(Linear),
            Prices::default(),
            budget.and_then(constant),
        );
        let mut bench = Self { engine, script, now: Timestamp::ZERO };
        for job in jobs {
            bench.hear(Event::Submitted(Arc::new(job)));
        }
        bench
    }

    pub(crate) fn hear(&mut self, event: Event) {
        self.engine.handle(self.now, event).unwrap();
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, seconds: f64) {
        self.now = self.now + Seconds::new(seconds);
        self.hear(Event::Clock);
    }

    /// The policy says so now; returns what is to be done about it.
    pub(crate) fn plan(&mut self, jobs: Vec<JobChange>, nodes: Vec<NodeChange>) -> Vec<Action> {
        self.script.lock().unwrap().push_back((jobs, nodes));
        self.hear(Event::PricesSet(Prices::default()));
        self.hear(Event::Clock);
        self.actions()
    }

    pub(crate) fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.engine.poll_action()).collect()
    }

    pub(crate) fn alerts(&mut self) -> Vec<Alert> {
        std::iter::from_fn(|| self.engine.poll_alert()).collect()
    }

    /// Carries everything out at once, as a willing backend does, until nothing is left to do.
    pub(crate) fn carry_out(&mut self, mut actions: Vec<Action>) {
        while !actions.is_empty() {
            for action in actions {
                self.hear(confirmation(&action));
            }
            actions = self.actions();
        }
    }

    /// Plans and carries out.
    pub(crate) fn settle(&mut self, jobs: Vec<JobChange>, nodes: Vec<NodeChange>) {
        let actions = self.plan(jobs, nodes);
        self.carry_out(actions);
        assert_eq!(self.engine.stats().refused, 0, "{:?}", self.alerts());
    }

    pub(crate) fn state(&self) -> &State {
        self.engine.state()
    }

    /// Everything there is to know, as text.
    pub(crate) fn everything(&self) -> String {
        let Self { engine, .. } = self;
        let (stats, plan, next) = (engine.stats(), engine.plan_id(), engine.poll_timeout());
        format!("{:?} {stats:?} {plan:?} {next:?}", engine.state())
    }
}

/// What a backend says when it has done it.
pub(crate) fn confirmation(action: &Action) -> Event {
    match &action.kind {
        ActionKind::Start { job, .. } => Event::Started { job: *job, action: action.id },
        ActionKind::Stop { job, run } => Event::Stopped { job: *job, run: *run, done: Work(1.0) },
        ActionKind::Limit { job, .. } => Event::Limited { job: *job, action: action.id },
        ActionKind::Wake { node } => Event::NodeUp(*node),
        ActionKind::Sleep { node } => Event::NodeAsleep(*node),
    }
}

/// In short, what the actions are.
pub(crate) fn kinds(actions: &[Action]) -> Vec<String> {
    let kind = |action: &Action| match &action.kind {
        ActionKind::Start { job, .. } => format!("start {job}"),
        ActionKind::Stop { job, .. } => format!("stop {job}"),
        ActionKind::Limit { job, limit } => format!("limit {job} {}", limit.get()),
        ActionKind::Wake { node } => format!("wake {node}"),
        ActionKind::Sleep { node } => format!("sleep {node}"),
    };
    actions.iter().map(kind).collect()
}

/// The only action there is.
pub(crate) fn only(actions: &[Action]) -> ActionId {
    assert_eq!(actions.len(), 1, "{:?}", kinds(actions));
    actions[0].id
}
