//! A job that nothing is to be gained for does not wait, however dear energy is.

use super::super::{WattlineOptions, wattline};
use super::Formula;
use proptest::prelude::*;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::calendar::{Calendar, Rule, UtcOffset};
use wattline_core::cluster::{Cluster, GpuType, Node, NodeDraw};
use wattline_core::effort::Effort;
use wattline_core::engine::{EngineConfig, Event};
use wattline_core::ids::{GpuTypeId, JobId, NodeId, PlanId, UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work};
use wattline_core::placement::{Allocation, Configuration, Placement, Share};
use wattline_core::plan::{Decision, Plan, Reason};
use wattline_core::policy::{Changes, ClusterView};
use wattline_core::prices::Prices;
use wattline_core::scheduler::Scheduler;
use wattline_core::state::State;
use wattline_core::units::{EnergyPrice, EurosPerSecond, Seconds, Watts};

/// Machines and prices.
#[derive(Clone, Debug)]
struct Site {
    nodes: u32,
    gpus: u8,
    /// By node.
    asleep: Vec<bool>,
    boot: f64,
    /// EUR/kWh.
    price: f64,
    /// More than all can draw; schedules are tried whole only without one.
    budget: bool,
}

/// A job; all times in seconds.
#[derive(Clone, Debug)]
struct Draw {
    work: f64,
    /// EUR/h.
    weight: f64,
    deadline: f64,
    gpus: (u32, u32),
    elasticity: Elasticity,
    preemptible: bool,
}

/// Evenly over orders of magnitude.
fn spread(from: f64, to: f64) -> impl Strategy<Value = f64> {
    (from.ln()..to.ln()).prop_map(f64::exp)
}

fn sites() -> impl Strategy<Value = Site> {
    let asleep = prop::collection::vec(any::<bool>(), 5);
    let gpus = prop::sample::select(vec![1_u8, 2, 4, 8]);
    (1_u32..5, gpus, asleep, 0.0..300.0, spread(0.05, 500.0), any::<bool>()).prop_map(
        |(nodes, gpus, asleep, boot, price, budget)| Site {
            nodes,
            gpus,
            asleep,
            boot,
            price,
            budget,
        },
    )
}

fn jobs() -> impl Strategy<Value = Draw> {
    let elasticity = prop::sample::select(vec![
        Elasticity::Rigid,
        Elasticity::Moldable,
        Elasticity::Malleable,
        Elasticity::Adaptive,
    ]);
    (
        spread(1.0, 1e5),
        spread(0.01, 1000.0),
        spread(1.0, 1e6),
        (1_u32..9, 1_u32..9),
        elasticity,
        any::<bool>(),
    )
        .prop_map(|(work, weight, deadline, (a, b), elasticity, preemptible)| Draw {
            work,
            weight,
            deadline,
            gpus: (a.min(b), a.max(b)),
            elasticity,
            preemptible,
        })
}

impl Draw {
    /// As submitted at that time, for nodes of so many GPUs.
    fn job(&self, submit: f64, gpus: u8) -> Job {
        let most = u32::from(gpus);
        let (min, max) = (self.gpus.0.min(most), self.gpus.1.min(most));
        let rigid = self.elasticity == Elasticity::Rigid;
        Job {
            name: "job".into(),
            user: UserId(0),
            workload: WorkloadId(0),
            work: Work(self.work),
            submit: Timestamp::from_seconds(submit),
            deadline: Some(Timestamp::from_seconds(submit + self.deadline)),
            weight: EurosPerSecond::new(self.weight / 3600.0),
            elasticity: self.elasticity,
            gpus: Bounds { min: if rigid { max } else { min }, max, requested: max },
            batch: Bounds { min: 64, max: 64, requested: 64 },
            restart: RestartCost { save: Seconds::new(1.0), load: Seconds::new(3.0) },
            preemptible: self.preemptible,
            shapes: None,
            nodes: None,
        }
    }
}

/// Nodes as those of the lab.
fn cluster(site: &Site) -> Arc<Cluster> {
    let watts = Watts::new;
    let card = GpuType {
        name: "lab".into(),
        idle: watts(50.0),
        busy: watts(350.0),
        min_limit: watts(200.0),
        default_limit: watts(400.0),
        max_limit: watts(400.0),
        limit_step: watts(50.0),
        tflops: None,
        links: None,
    };
    let node = |number: u32| Node {
        name: format!("n{number}").into(),
        gpu_type: GpuTypeId(0),
        gpus: site.gpus,
        draw: NodeDraw::Additive { base: watts(300.0) },
        sleep: watts(10.0),
        boot: watts(550.0),
        boot_time: Seconds::new(site.boot),
        shutdown_time: Seconds::new(10.0),
        rack: 0,
    };
    Arc::new(Cluster::new(vec![card], (0..site.nodes).map(node).collect()).unwrap())
}

/// The first plan for jobs that came at 0, on a cluster that was idle until then.
fn plan(site: &Site, jobs: &[Draw], now: f64) -> Plan {
    plan_at(site, jobs, 0.0, now, Calendar::constant(EnergyPrice::new(site.price)))
}

fn plan_at(
    site: &Site,
    jobs: &[Draw],
    submit: f64,
    now: f64,
    energy: Calendar<EnergyPrice>,
) -> Plan {
    let mut state = State::new(cluster(site), Timestamp::ZERO);
    for (node, _) in (0..site.nodes).zip(&site.asleep).filter(|(_, asleep)| **asleep) {
        state.begin_asleep(NodeId(node));
    }
    for job in jobs {
        state.submit(Arc::new(job.job(submit, site.gpus)), |_| true);
    }
    let prices = Prices { energy, ..Prices::default() };
    let view = ClusterView {
        now: Timestamp::from_seconds(now),
        state: &state,
        budget: site.budget.then_some(Watts::new(1e6)),
        prices: &prices,
        predictor: &Formula,
        effort: Effort::FULL,
        plan: PlanId(0),
        changes: Changes::Everything,
    };
    wattline(WattlineOptions::default()).plan(&view)
}

fn starts(plan: &Plan) -> usize {
    plan.jobs.iter().filter(|change| matches!(change.decision, Decision::Run(_))).count()
}

proptest! {
    #![proptest_config(wattline_testing::cases(256, 1))]

    /// Late or not: nobody else comes, and energy will cost what it does.
    #[test]
    fn one_job_on_an_idle_cluster_starts_at_once(
        site in sites(),
        job in jobs(),
        late in spread(1e-3, 3e4),
    ) {
        for now in [0.0, job.deadline.min(1e4) + late] {
            let plan = plan(&site, std::slice::from_ref(&job), now);
            prop_assert_eq!(starts(&plan), 1, "at {} s: {:?}", now, plan);
        }
    }

    /// Some may wait for others to end, for room or because to share a node or to run one after the
    /// other costs less. But somebody runs, and where schedules are not tried whole, those who wait
    /// have no room.
    #[test]
    fn of_several_late_jobs_nobody_waits_for_nothing(
        site in sites(),
        jobs in prop::collection::vec(jobs(), 2..12),
        late in spread(1e-3, 1e3),
    ) {
        let due = jobs.iter().map(|job| job.deadline.min(1e4)).fold(0.0, f64::max);
        let plan = plan(&site, &jobs, due + late);
        prop_assert!(starts(&plan) > 0, "nobody starts: {:?}", plan);
        if site.budget {
            let by_choice = |change: &&wattline_core::plan::JobChange| {
                change.reason == Reason::BetterLater
            };
            let movable = |change: &&wattline_core::plan::JobChange| {
                let job = &jobs[change.job.index()];
                job.preemptible && job.elasticity != Elasticity::Moldable
            };
            let waits = plan.jobs.iter().filter(by_choice).filter(movable).count();
            prop_assert_eq!(waits, 0, "{:?}", plan);
        }
    }
}

/// A job that waits for a cheaper hour is looked at again, and sooner where jobs take seconds.
#[test]
fn a_job_that_waits_is_looked_at_again() {
    let site =
        Site { nodes: 4, gpus: 4, asleep: vec![false; 4], boot: 4.0, price: 150.0, budget: true };
    // From two o'clock on energy costs little.
    let rule = Rule {
        days: "all".into(),
        from: "02:00".into(),
        to: "06:00".into(),
        value: EnergyPrice::new(1.0),
    };
    let dear = EnergyPrice::new(site.price);
    let energy = Calendar::from_rules(dear, &[rule], UtcOffset::default()).unwrap();
    let revisit = |work: f64, ahead: f64| {
        let draw = Draw {
            work,
            weight: 0.01,
            deadline: 1e6,
            gpus: (1, 4),
            elasticity: Elasticity::Malleable,
            preemptible: true,
        };
        let now = 2.0 * 3600.0 - ahead;
        let plan = plan_at(&site, &[draw], now, now, energy.clone());
        assert_eq!(starts(&plan), 0, "{plan:?}");
        plan.revisit.unwrap().seconds() - now
    };
    let (short, long) = (revisit(60.0, 10.0), revisit(60_000.0, 3600.0));
    assert!((1.0..3.0).contains(&short) && (59.0..61.0).contains(&long), "{short} {long}");
}

/// One that has a node to itself pays for all of it: it takes the node's other GPUs as soon as
/// nobody else wants them, with a budget as without.
#[test]
fn a_job_that_is_left_alone_takes_the_whole_node() {
    for budget in [true, false] {
        let site = Site { nodes: 2, gpus: 4, asleep: vec![], boot: 4.0, price: 150.0, budget };
        let draw = Draw {
            work: 1000.0,
            weight: 20.0,
            deadline: 100.0,
            gpus: (1, 4),
            elasticity: Elasticity::Malleable,
            preemptible: true,
        };
        let at = Timestamp::from_seconds;
        let energy = Calendar::constant(EnergyPrice::new(site.price));
        let mut engine = Scheduler::new(
            EngineConfig::default(),
            State::new(cluster(&site), Timestamp::ZERO),
            wattline(WattlineOptions::default()),
            Box::new(Formula),
            Prices { energy, ..Prices::default() },
            budget.then(|| Calendar::constant(Watts::new(1e6))),
        );
        engine.handle(at(0.0), Event::Submitted(Arc::new(draw.job(0.0, site.gpus)))).unwrap();
        let configuration = Configuration {
            gpu_type: GpuTypeId(0),
            gpus: 1,
            nodes: 1,
            batch: 64,
            power_limit: Watts::new(200.0),
        };
        let share = Share { node: NodeId(1), mask: 0b100 };
        let allocation = Allocation::over([share].into_iter().collect());
        let placement = Placement { configuration, allocation };
        engine.handle(at(0.0), Event::Found { job: JobId(0), placement }).unwrap();
        engine.handle(at(60.0), Event::Clock).unwrap();
        let planned = engine.state().job(JobId(0)).planned.clone().unwrap();
        assert_eq!(planned.configuration.gpus, 4, "budget: {budget}");
    }
}
