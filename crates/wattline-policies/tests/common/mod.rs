//! Random clusters, jobs, budgets and disturbances, and what runs the engine over them.
//!
//! Everything random is drawn by proptest, so that a failing case shrinks to a small one; nothing
//! is drawn while a case runs. Where the list of choices ends, the rest of the run is calm.

// Each test crate uses its own part of this.
#![allow(dead_code)]

pub(crate) mod backend;
pub(crate) mod drive;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::Config;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::calendar::{Calendar, Rule, UtcOffset};
use wattline_core::cluster::{BusyPower, Cluster, GpuType, Node, NodeDraw, Shape};
use wattline_core::engine::EngineConfig;
use wattline_core::ids::{GpuTypeId, JobId, NodeId, UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, NodeChoice, RestartCost, Work, WorkRate};
use wattline_core::placement::Configuration;
use wattline_core::predictor::{Measurement, Prediction, Predictor};
use wattline_core::shed::Shed;
use wattline_core::units::{EurosPerSecond, Seconds, Watts};

/// Every policy, with the options that change what it does.
pub(crate) const SPECS: [&str; 21] = [
    "fifo",
    "edf",
    "priority",
    "fifo+backfill",
    "edf+backfill=5",
    "fifo+sleep=5min+cap=uniform",
    "priority+backfill+sleep=2min",
    "tiresias",
    "tiresias+queues=100/1000/5000",
    "andreas+greedy",
    "andreas+rounds=20",
    "andreas+rounds=5+improve+seed=3+sleep=2min",
    "wattline+work=400",
    "wattline+energy=0.9+work=400",
    "powerflow",
    "powerflow+energy=0.7+sleep=2min",
    "powerflow+energy=inf+sleep=never",
    "powerflow+lend",
    "ones+generations=3",
    "ones+generations=1+population=2+seed=3",
    "ones+generations=3+waiting",
];

/// The same cases on every machine and every run; a failure is kept as a test with a name, not as
/// a file of seeds.
pub(crate) fn cases(cases: u32, seed: u64) -> Config {
    Config { max_shrink_iters: 20_000, ..wattline_testing::cases(cases, seed) }
}

/// One thing that goes wrong, or is changed from outside.
#[derive(Clone, Debug)]
pub(crate) enum Disturbance {
    /// A node is lost and comes back, up or asleep.
    Lose { node: NodeId, gone_for: Seconds, comes_back_up: bool },
    /// The administrator sets another budget.
    Budget(Option<Calendar<Watts>>),
    /// A user takes a job back.
    Cancel(JobId),
}

/// One run, complete.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) cluster: Arc<Cluster>,
    /// By submission.
    pub(crate) jobs: Vec<Arc<Job>>,
    pub(crate) budget: Option<Calendar<Watts>>,
    pub(crate) config: EngineConfig,
    pub(crate) disturbances: Vec<(Timestamp, Disturbance)>,
    /// Consumed one per action and delivery: how late, and whether it fails.
    pub(crate) luck: Vec<u8>,
    /// Whether actions may fail at all.
    pub(crate) failures: bool,
}

/// What a scenario may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// Action failures, node losses, cancellations, budget changes.
    pub(crate) disturbed: bool,
    /// No budget ever below what one job needs.
    pub(crate) feasible: bool,
    /// A budget, if any, that never changes.
    pub(crate) constant: bool,
    /// Some jobs may have certain nodes only.
    pub(crate) constraints: bool,
}

impl Kind {
    /// The same, with jobs that take any nodes.
    pub(crate) const fn without_constraints(self) -> Self {
        Self { constraints: false, ..self }
    }
}

pub(crate) const ANYTHING: Kind =
    Kind { disturbed: true, feasible: false, constant: false, constraints: true };
pub(crate) const DISTURBED_BUT_FEASIBLE: Kind =
    Kind { disturbed: true, feasible: true, constant: false, constraints: true };
pub(crate) const CALM_AND_FEASIBLE: Kind =
    Kind { disturbed: false, feasible: true, constant: false, constraints: true };
pub(crate) const CALM_AND_CONSTANT: Kind =
    Kind { disturbed: false, feasible: true, constant: true, constraints: true };
pub(crate) const CALM_AND_TIGHT: Kind =
    Kind { disturbed: false, feasible: false, constant: true, constraints: true };

fn gpu_type(name: usize) -> impl Strategy<Value = GpuType> {
    let step = prop_oneof![Just(0.0), Just(10.0), Just(33.3), Just(80.0)];
    (5.0..60.0, 1.0..80.0, 0.0..250.0, 0.0..50.0, step).prop_map(
        move |(idle, to_min, to_default, to_max, step): (f64, f64, f64, f64, f64)| {
            let watts = |w: f64| Watts::new(w.round());
            GpuType {
                name: format!("type{name}").into(),
                idle: watts(idle),
                busy: watts(idle + to_min + to_default),
                min_limit: watts(idle + to_min),
                default_limit: watts(idle + to_min + to_default),
                max_limit: watts(idle + to_min + to_default + to_max),
                limit_step: Watts::new(step),
                tflops: None,
                links: None,
            }
        },
    )
}

#[derive(Clone, Debug)]
struct NodeDice {
    gpu_type: usize,
    gpus: u8,
    table: bool,
    base: f64,
    per_busy: f64,
    sleep: f64,
    boot: f64,
    times: (f64, f64),
    rack: u32,
}

fn node_dice() -> impl Strategy<Value = NodeDice> {
    let sizes = prop_oneof![Just(1_u8), Just(2), Just(4), Just(8), 1_u8..=8];
    let times = (prop_oneof![Just(0.0), 1.0..120.0], prop_oneof![Just(0.0), 1.0..40.0]);
    (
        (0_usize..3, sizes, any::<bool>(), 50.0..400.0, 0.0..200.0),
        (0.0..0.5, 0.0..1.5, times, 0_u32..3),
    )
        .prop_map(|((gpu_type, gpus, table, base, per_busy), (sleep, boot, times, rack))| {
            NodeDice { gpu_type, gpus, table, base, per_busy, sleep, boot, times, rack }
        })
}

fn node(number: usize, dice: &NodeDice, types: &[GpuType]) -> Node {
    let kind = dice.gpu_type % types.len();
    let card = &types[kind];
    let idle = dice.base.round() + card.idle.get() * f64::from(dice.gpus);
    let draw = if dice.table {
        let entry = |busy: u8| {
            let watts = idle + (dice.per_busy * f64::from(busy)).round();
            BusyPower { watts: Watts::new(watts), pue: 1.2 }
        };
        NodeDraw::ByBusyGpus((0..=dice.gpus).map(entry).collect())
    } else {
        NodeDraw::Additive { base: Watts::new(dice.base.round()) }
    };
    Node {
        name: format!("node{number}").into(),
        gpu_type: GpuTypeId(kind as u16),
        gpus: dice.gpus,
        draw,
        sleep: Watts::new((idle * dice.sleep).round()),
        boot: Watts::new((idle * dice.boot).round()),
        boot_time: Seconds::new(dice.times.0.round()),
        shutdown_time: Seconds::new(dice.times.1.round()),
        rack: dice.rack,
    }
}

/// 1 to 3 GPU types on 1 to 12 nodes of 1 to 8 GPUs, with both ways to draw power.
pub(crate) fn cluster() -> impl Strategy<Value = Arc<Cluster>> {
    let types = vec(gpu_type(0), 1..=3);
    (types, vec(node_dice(), 1..=12)).prop_map(|(mut types, dice)| {
        for (number, kind) in types.iter_mut().enumerate() {
            kind.name = format!("type{number}").into();
        }
        let nodes = dice.iter().enumerate().map(|(n, d)| node(n, d, &types)).collect();
        Arc::new(Cluster::new(types, nodes).unwrap())
    })
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let few = prop_oneof![4 => 1_u32..=4, 2 => 5_u32..=16, 1 => 17_u32..=40];
    (few, 0_u32..=4, 0_u32..=12).prop_map(|(min, to_requested, to_max)| Bounds {
        min,
        requested: min + to_requested,
        max: min + to_requested + to_max,
    })
}

/// All elasticities, work from none to an hour on a few GPUs, deadlines or none.
pub(crate) fn job() -> impl Strategy<Value = Job> {
    let work = prop_oneof![1 => Just(0.0), 1 => Just(1e-7), 6 => 1.0..4000.0];
    // Many jobs at the same instant: ties are where orders differ.
    let submit = prop_oneof![Just(0_u32), 0_u32..20, (0_u32..40).prop_map(|m| m * 60)];
    let elasticity = prop::sample::select(&Elasticity::ALL[..]);
    let shapes = option::weighted(0.15, vec((0_u16..3, 1_u32..=10), 1..4));
    (
        (work, submit, elasticity, bounds(), option::of(0.0..4000.0)),
        (prop_oneof![Just(0.0), 0.0..5.0], 0_u32..60, 0_u32..60, 0_u32..4, shapes),
    )
        .prop_map(|((work, submit, elasticity, gpus, deadline), rest)| {
            let (weight, save, load, workload, shapes) = rest;
            let submit = Timestamp::from_seconds(submit.into());
            let costly = |s: u32| Seconds::new(f64::from(s.saturating_sub(20)));
            let listed = |list: Vec<(u16, u32)>| {
                list.into_iter()
                    .map(|(gpu_type, gpus)| Shape { gpu_type: GpuTypeId(gpu_type), gpus })
                    .collect()
            };
            Job {
                name: "job".into(),
                user: UserId(0),
                workload: WorkloadId(workload),
                work: Work(work),
                submit,
                deadline: deadline.map(|after: f64| submit + Seconds::new(after)),
                weight: EurosPerSecond::new(weight),
                elasticity,
                gpus,
                batch: Bounds { min: 16, requested: 64, max: 256 },
                restart: RestartCost { save: costly(save), load: costly(load) },
                preemptible: (save + load) % 5 != 0,
                shapes: shapes.map(listed),
                nodes: None,
            }
        })
}

/// What makes a constrained job of a job: one that may have certain nodes only.
#[derive(Clone, Debug)]
struct ConstraintDice {
    anchor: u32,
    others: u16,
    count: u32,
    required: bool,
    per_node: u32,
    smaller_too: bool,
}

fn constraint_dice() -> impl Strategy<Value = ConstraintDice> {
    (0_u32..12, any::<u16>(), 1_u32..=2, any::<bool>(), 1_u32..=8, any::<bool>()).prop_map(
        |(anchor, others, count, required, per_node, smaller_too)| ConstraintDice {
            anchor,
            others,
            count,
            required,
            per_node,
            smaller_too,
        },
    )
}

impl ConstraintDice {
    /// The job as a constrained job, for nodes of one GPU type that are large enough for it.
    fn invite(&self, cluster: &Cluster, mut job: Job) -> Job {
        let ids: Vec<NodeId> = cluster.node_ids().collect();
        let anchor = ids[self.anchor as usize % ids.len()];
        let (gpu_type, size) = (cluster.node(anchor).gpu_type, cluster.node(anchor).gpus);
        let per_node = self.per_node.min(size.into());
        let fits = |id: &NodeId| {
            let node = cluster.node(*id);
            node.gpu_type == gpu_type && u32::from(node.gpus) >= per_node
        };
        let drawn = |id: &NodeId| *id == anchor || self.others >> id.0 & 1 == 1;
        let allowed: Box<[NodeId]> = ids.into_iter().filter(fits).filter(drawn).collect();
        let count = self.count.min(allowed.len() as u32);
        let required = self.required.then_some(anchor).into_iter().collect();
        let gpus = per_node * count;
        let smaller = self.smaller_too.then_some(count).into_iter();
        let shapes = smaller.chain([gpus]).map(|gpus| Shape { gpu_type, gpus }).collect();
        job.gpus = Bounds { min: gpus.min(job.gpus.min), requested: gpus, max: gpus };
        job.preemptible = false;
        job.shapes = Some(shapes);
        job.nodes = Some(Arc::new(NodeChoice { count, required, allowed }));
        job
    }
}

/// A budget as a part of what the cluster can draw: below 0 not even sleep fits, at 1 all does.
#[derive(Clone, Debug)]
enum BudgetDice {
    Constant(f64),
    Changing { usual: f64, other: f64, from: u32, minutes: u32 },
}

fn budget_dice(constant: bool) -> impl Strategy<Value = BudgetDice> {
    let level = || prop_oneof![1 => -0.1..0.05, 3 => 0.0..0.5, 2 => 0.3..1.1];
    let always = level().prop_map(BudgetDice::Constant);
    if constant {
        return always.boxed();
    }
    let changing =
        (level(), level(), 0_u32..30, 1_u32..30).prop_map(|(usual, other, from, minutes)| {
            BudgetDice::Changing { usual, other, from, minutes }
        });
    prop_oneof![always, changing].boxed()
}

impl BudgetDice {
    fn calendar(&self, cluster: &Cluster, least: Watts) -> Calendar<Watts> {
        let asleep: Watts = cluster.nodes().iter().map(|n| n.sleep).sum();
        let watts = |level: f64| {
            let part = asleep + (cluster.peak_power() - asleep) * level;
            Watts::new(part.get().max(least.get()).max(0.0))
        };
        match *self {
            Self::Constant(level) => Calendar::constant(watts(level)),
            Self::Changing { usual, other, from, minutes } => {
                let clock = |minute: u32| format!("{:02}:{:02}", minute / 60, minute % 60);
                let rule = Rule {
                    days: "all".into(),
                    from: clock(from),
                    to: clock(from + minutes),
                    value: watts(other),
                };
                Calendar::from_rules(watts(usual), &[rule], UtcOffset::default()).unwrap()
            }
        }
    }
}

/// What any one of these jobs needs at its lowest limit on the hungriest nodes of any type, with
/// all other nodes asleep. A policy that picks the place itself may pick the worst.
pub(crate) fn enough_for_any(cluster: &Cluster, jobs: &[Arc<Job>]) -> Watts {
    let asleep: Watts = cluster.nodes().iter().map(|n| n.sleep).sum();
    let need = |shape: &Shape| {
        let card = cluster.gpu_type(shape.gpu_type);
        let mut rises: Vec<f64> = cluster
            .nodes()
            .iter()
            .filter(|n| n.gpu_type == shape.gpu_type)
            .map(|n| {
                let awake = match &n.draw {
                    NodeDraw::Additive { base } => *base + card.min_limit * f64::from(n.gpus),
                    NodeDraw::ByBusyGpus(table) => table[table.len() - 1].watts,
                };
                (awake.max(n.boot) - n.sleep).get()
            })
            .collect();
        rises.sort_by(|a, b| b.total_cmp(a));
        // However small the nodes are, a job is never on more of them than it has GPUs.
        rises.iter().take(shape.gpus as usize).sum::<f64>()
    };
    let most = jobs
        .iter()
        .flat_map(|job| cluster.menu(job).iter().map(need).collect::<Vec<_>>())
        .fold(0.0, f64::max);
    // A sum in another order.
    asleep + Watts::new(most + 1e-3)
}

#[derive(Clone, Debug)]
enum DisturbanceDice {
    Lose { node: u32, gone_for: u32, comes_back_up: bool },
    Budget(Option<BudgetDice>),
    Cancel(u32),
}

fn disturbance_dice() -> impl Strategy<Value = (u32, DisturbanceDice)> {
    let lose = (0_u32..12, 1_u32..600, prop::bool::weighted(0.8)).prop_map(
        |(node, gone_for, comes_back_up)| DisturbanceDice::Lose { node, gone_for, comes_back_up },
    );
    let budget = option::weighted(0.9, budget_dice(false)).prop_map(DisturbanceDice::Budget);
    let cancel = (0_u32..14).prop_map(DisturbanceDice::Cancel);
    (0_u32..2400, prop_oneof![2 => lose, 2 => budget, 1 => cancel])
}

fn config() -> impl Strategy<Value = EngineConfig> {
    let debounce = prop_oneof![3 => Just(0.0), 1 => Just(5.0)];
    let every = prop_oneof![3 => Just(None), 1 => Just(Some(Seconds::new(97.0)))];
    let margin = prop_oneof![Just(0.0), Just(40.0)];
    let lead = prop_oneof![Just(0.0), Just(60.0), Just(300.0)];
    (debounce, every, margin, lead, 0_u32..4, prop_oneof![Just(60.0), Just(600.0)]).prop_map(
        |(debounce, replan_every, margin, lead, retries, hold_off)| EngineConfig {
            debounce: Seconds::new(debounce),
            replan_every,
            margin: Watts::new(margin),
            budget_lead: Seconds::new(lead),
            retries,
            retry_after: Seconds::new(5.0),
            hold_off: Seconds::new(hold_off),
            controls: true,
            shed: Shed::Stop,
        },
    )
}

/// A whole run of that kind.
pub(crate) fn scenario(kind: Kind) -> impl Strategy<Value = Scenario> {
    // Half of the runs are mostly unlucky, so that retries are used up.
    let luck = prop_oneof![vec(any::<u8>(), 0..150), vec(180_u8..=255, 0..150)];
    let disturbances = vec(disturbance_dice(), 0..if kind.disturbed { 6 } else { 1 });
    let jobs = if kind.constraints {
        vec((job(), option::weighted(0.25, constraint_dice())), 1..=14).boxed()
    } else {
        vec(job().prop_map(|job| (job, None)), 1..=14).boxed()
    };
    (
        cluster(),
        jobs,
        option::weighted(0.75, budget_dice(kind.constant)),
        config(),
        disturbances,
        luck,
    )
        .prop_map(move |(cluster, jobs, budget, config, disturbances, luck)| {
            let mut jobs: Vec<Arc<Job>> = jobs
                .into_iter()
                .map(|(job, constrained_job)| match constrained_job {
                    Some(dice) => Arc::new(dice.invite(&cluster, job)),
                    None => Arc::new(job),
                })
                .collect();
            jobs.sort_by_key(|job| job.submit);
            let enough = enough_for_any(&cluster, &jobs) + config.margin;
            let least = if kind.feasible { enough } else { Watts::ZERO };
            let budget = budget.map(|b| b.calendar(&cluster, least));
            let nodes = cluster.nodes().len() as u32;
            let mut disturbances: Vec<(Timestamp, Disturbance)> = disturbances
                .into_iter()
                .filter(|_| kind.disturbed)
                .map(|(at, dice)| {
                    let what = match dice {
                        DisturbanceDice::Lose { node, gone_for, comes_back_up } => {
                            Disturbance::Lose {
                                node: NodeId(node % nodes),
                                gone_for: Seconds::new(gone_for.into()),
                                comes_back_up,
                            }
                        }
                        DisturbanceDice::Budget(b) => {
                            Disturbance::Budget(b.map(|b| b.calendar(&cluster, least)))
                        }
                        DisturbanceDice::Cancel(job) => {
                            Disturbance::Cancel(JobId(job % jobs.len() as u32))
                        }
                    };
                    (Timestamp::from_seconds(at.into()), what)
                })
                .collect();
            disturbances.sort_by_key(|(at, _)| *at);
            let failures = kind.disturbed;
            Scenario { cluster, jobs, budget, config, disturbances, luck, failures }
        })
}

/// Whether the job can run in that shape at all: one workload in four knows only some GPU types.
pub(crate) fn can_run(job: &Job, shape: Shape) -> bool {
    job.workload.0 != 3 || shape.gpu_type.0.is_multiple_of(2)
}

/// Speed and power as a plain function of the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Formula;

impl Predictor for Formula {
    fn predict(&self, job: &Job, configuration: &Configuration) -> Option<Prediction> {
        let Configuration { gpu_type, gpus, nodes, power_limit, .. } = *configuration;
        if !can_run(job, configuration.shape()) {
            return None;
        }
        let card = 1.0 + 0.4 * f64::from(gpu_type.0) + 0.1 * f64::from(job.workload.0);
        let scaling = f64::from(gpus).powf(0.8) / (1.0 + 0.1 * f64::from(nodes - 1));
        let limit = power_limit.get() / (power_limit.get() + 100.0);
        Some(Prediction {
            rate: WorkRate(card * scaling * limit),
            power: power_limit * 0.9,
            time_low: 0.7,
            time_high: 1.4,
            power_within: 1.0,
            energy_within: 1.0,
            measurements: 3,
        })
    }

    fn observe(&mut self, _: &Measurement) {}
}
