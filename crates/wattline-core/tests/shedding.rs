//! What happens when the budget falls: limits first, then idle nodes, then the least weighty jobs.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{BASE, Bench, FULL, IDLE, LEAST, SLEEP, constant, job, on, runs};
use proptest::collection::vec;
use proptest::prelude::*;
use wattline_core::check;
use wattline_core::engine::{Alert, Event};
use wattline_core::ids::{JobId, NodeId};
use wattline_core::job::{Job, Work};
use wattline_core::placement::Placement;
use wattline_core::plan::{Decision, Plan, Reason};
use wattline_core::power::NodePower;
use wattline_core::prices::Prices;
use wattline_core::shed::{Shed, Shedding, shed};
use wattline_core::state::Target;
use wattline_core::time::Timestamp;
use wattline_core::units::{EurosPerSecond, Watts};

fn weighing(weight: f64) -> Job {
    Job { weight: EurosPerSecond::new(weight), ..job() }
}

/// Three jobs of two GPUs on nodes 0 and 1, the middle one the least weighty; node 2 is idle.
fn three_jobs() -> Bench {
    let jobs = vec![weighing(2.0), weighing(1.0), weighing(3.0)];
    let mut bench = Bench::with(&[(0, 4), (0, 4), (0, 4)], jobs, None);
    let placed = vec![
        runs(0, on(&[(0, 0b0011)], FULL)),
        runs(1, on(&[(1, 0b0011)], FULL)),
        runs(2, on(&[(0, 0b1100)], FULL)),
    ];
    bench.settle(placed, vec![]);
    bench
}

fn shed_to(bench: &Bench, budget: f64) -> Plan {
    shedding(bench, budget, Shed::Stop).plan
}

fn shedding(bench: &Bench, budget: f64, may: Shed) -> Shedding {
    shed(bench.state(), Watts::new(budget), bench.engine.plan_id(), may).unwrap()
}

/// Jobs that stop, limits of jobs that go on, nodes that sleep.
fn in_short(plan: &Plan) -> (Vec<u32>, Vec<f64>, Vec<u32>) {
    let stopped = |d: &Decision| *d == Decision::Wait;
    let stops = plan.jobs.iter().filter(|c| stopped(&c.decision)).map(|c| c.job.0).collect();
    let limits = plan.jobs.iter().filter_map(|c| match &c.decision {
        Decision::Run(p) => Some(p.configuration.power_limit.get()),
        Decision::Wait => None,
    });
    assert!(plan.nodes.iter().all(|c| c.target == Target::Asleep));
    (stops, limits.collect(), plan.nodes.iter().map(|c| c.node.0).collect())
}

const ALL_AT_FULL: f64 = 3.0 * BASE + 6.0 * IDLE + 6.0 * FULL;
const ALL_AT_LEAST: f64 = 3.0 * BASE + 6.0 * IDLE + 6.0 * LEAST;
const NODE_2_ASLEEP: f64 = ALL_AT_LEAST - (BASE + 4.0 * IDLE - SLEEP);
/// Job 1 stops and node 1, which only it was on, sleeps.
const JOB_1_GONE: f64 = NODE_2_ASLEEP - (BASE + 2.0 * LEAST + 2.0 * IDLE - SLEEP);

#[test]
fn what_fits_is_left_alone() {
    let bench = three_jobs();
    assert_eq!(bench.state().planned_committed(), Watts::new(ALL_AT_FULL));
    assert_eq!(
        shed(bench.state(), Watts::new(ALL_AT_FULL), bench.engine.plan_id(), Shed::Stop),
        None
    );
}

#[test]
fn limits_go_down_before_anything_else_and_all_together() {
    let bench = three_jobs();
    let (stops, limits, asleep) = in_short(&shed_to(&bench, ALL_AT_FULL - 1.0));
    assert_eq!((stops, asleep), (vec![], vec![]));
    // One of 32 levels lower.
    let one_level = FULL - (FULL - LEAST) / 32.0;
    assert_eq!(limits, [one_level; 3]);
    let (stops, limits, asleep) = in_short(&shed_to(&bench, ALL_AT_LEAST));
    assert_eq!((stops, limits, asleep), (vec![], vec![LEAST; 3], vec![]));
}

#[test]
fn idle_nodes_sleep_before_a_job_stops() {
    let bench = three_jobs();
    let plan = shed_to(&bench, ALL_AT_LEAST - 1.0);
    assert_eq!(in_short(&plan), (vec![], vec![LEAST; 3], vec![2]));
    assert_eq!(plan.nodes[0].reason, Reason::NodeOverBudget);
    assert_eq!(in_short(&shed_to(&bench, NODE_2_ASLEEP)), (vec![], vec![LEAST; 3], vec![2]));
}

#[test]
fn the_least_weighty_job_stops_first_and_its_node_sleeps() {
    let bench = three_jobs();
    let plan = shed_to(&bench, NODE_2_ASLEEP - 1.0);
    assert_eq!(in_short(&plan), (vec![1], vec![LEAST; 2], vec![1, 2]));
    let stop = plan.jobs.iter().find(|c| c.job == JobId(1)).unwrap();
    assert_eq!(stop.reason, Reason::ShedForBudget);
    let next = shed_to(&bench, JOB_1_GONE - 1.0);
    assert_eq!(in_short(&next), (vec![0, 1], vec![LEAST], vec![1, 2]));
}

#[test]
fn among_equally_weighty_jobs_the_last_started_stops_first() {
    let mut bench = Bench::with(&[(0, 4)], vec![weighing(1.0); 2], None);
    bench.settle(vec![runs(1, on(&[(0, 0b01)], FULL))], vec![]);
    bench.pass(10.0);
    bench.settle(vec![runs(0, on(&[(0, 0b10)], FULL))], vec![]);
    let budget = BASE + 2.0 * IDLE + 2.0 * LEAST - 1.0;
    assert_eq!(in_short(&shed_to(&bench, budget)), (vec![0], vec![LEAST], vec![]));
}

#[test]
fn a_lost_node_cannot_be_put_to_sleep_and_still_counts() {
    let mut bench = three_jobs();
    bench.hear(Event::NodeLost(NodeId(2)));
    let lost = bench.state().cluster().most_power(NodeId(2)).get();
    let plan = shed_to(&bench, lost + 2.0 * SLEEP);
    assert_eq!(in_short(&plan), (vec![0, 1, 2], vec![], vec![0, 1]));
}

#[test]
fn the_engine_sheds_by_itself_when_the_budget_falls() {
    let mut bench = three_jobs();
    bench.hear(Event::BudgetSet(constant(NODE_2_ASLEEP - 1.0)));
    bench.hear(Event::Clock);
    let actions = bench.actions();
    let expected = ["stop j1", "limit j0 100", "limit j2 100", "sleep n2"];
    assert_eq!(common::kinds(&actions), expected, "node 1 sleeps when job 1 has left it");
    bench.carry_out(actions);
    assert!(bench.state().held_committed() <= Watts::new(JOB_1_GONE + 1e-6));
    assert_eq!(bench.state().node(NodeId(1)).power, NodePower::Asleep);
}

fn fixed(weight: f64) -> Job {
    Job { preemptible: false, ..weighing(weight) }
}

/// As [`three_jobs`], with jobs 0 and 1 not preemptible.
fn two_of_them_fixed() -> Bench {
    let jobs = vec![fixed(2.0), fixed(1.0), weighing(3.0)];
    let mut bench = Bench::with(&[(0, 4), (0, 4), (0, 4)], jobs, None);
    let placed = vec![
        runs(0, on(&[(0, 0b0011)], FULL)),
        runs(1, on(&[(1, 0b0011)], FULL)),
        runs(2, on(&[(0, 0b1100)], FULL)),
    ];
    bench.settle(placed, vec![]);
    bench
}

/// Job 2 is gone, node 2 sleeps, and the others are at their lowest limits.
const JOB_2_GONE: f64 = NODE_2_ASLEEP - 2.0 * (LEAST - IDLE);

#[test]
fn a_job_without_checkpoints_is_never_killed_for_the_budget() {
    let mut bench = two_of_them_fixed();
    let shedding = shedding(&bench, JOB_2_GONE - 1.0, Shed::Stop);
    assert_eq!(in_short(&shedding.plan), (vec![2], vec![LEAST; 2], vec![2]));
    assert!(!shedding.kept && shedding.killed.is_empty());
    assert_eq!(shedding.unstoppable, [JobId(1), JobId(0)], "the least weighty first");
    assert_eq!(shedding.committed, Watts::new(JOB_2_GONE));
    // It is carried out as far as it goes, and no plan may go further.
    let budget = Watts::new(JOB_2_GONE - 1.0);
    bench.hear(Event::BudgetSet(constant(budget.get())));
    bench.hear(Event::Clock);
    let actions = bench.actions();
    bench.carry_out(actions);
    assert_eq!(bench.state().held_committed(), Watts::new(JOB_2_GONE));
    let stop = Plan { jobs: vec![common::waits(1)], ..Plan::unchanged(bench.engine.plan_id()) };
    let judged = check::check(bench.state(), stop, bench.engine.plan_id(), Some(budget));
    assert_eq!(judged.unwrap_err(), [check::Violation::Pinned(JobId(1))]);
}

#[test]
fn a_line_that_cannot_be_kept_is_said_once_and_shown_until_it_is_kept_again() {
    let mut bench = two_of_them_fixed();
    let budget = Watts::new(JOB_2_GONE - 1.0);
    bench.hear(Event::BudgetSet(constant(budget.get())));
    bench.hear(Event::Clock);
    let alerts = bench.alerts();
    let [Alert::BudgetFell { .. }, Alert::BudgetCannotBeKept(shortfall)] = &alerts[..] else {
        panic!("{alerts:?}")
    };
    assert_eq!((shortfall.committed, shortfall.budget), (Watts::new(JOB_2_GONE), budget));
    assert_eq!((&shortfall.jobs[..], shortfall.more), (&[JobId(0), JobId(1)][..], 0));
    let actions = bench.actions();
    bench.carry_out(actions);
    for _ in 0..3 {
        bench.pass(60.0);
        bench.hear(Event::PricesSet(Prices::default()));
        bench.hear(Event::Clock);
    }
    assert_eq!(bench.alerts(), [], "once");
    assert_eq!(bench.engine.shortfall().unwrap().since, Timestamp::ZERO);
    assert_eq!(bench.engine.stats().refused, 0);
    bench.hear(Event::Finished(JobId(1)));
    bench.hear(Event::Clock);
    let committed = bench.state().planned_committed();
    assert_eq!(bench.alerts(), [Alert::BudgetKeptAgain { committed, budget }]);
    assert_eq!(bench.engine.shortfall(), None);
}

#[test]
fn where_the_site_lets_jobs_be_killed_they_are_last_and_the_least_weighty_first() {
    let bench = two_of_them_fixed();
    let shedding = shedding(&bench, JOB_2_GONE - 1.0, Shed::Kill);
    assert_eq!(in_short(&shedding.plan).0, [1, 2]);
    let reason = |id| shedding.plan.jobs.iter().find(|c| c.job == JobId(id)).unwrap().reason;
    assert_eq!((reason(1), reason(2)), (Reason::KilledForBudget, Reason::ShedForBudget));
    assert!(shedding.kept);
    assert_eq!(
        (&shedding.killed[..], &shedding.unstoppable[..]),
        (&[JobId(1)][..], &[JobId(0)][..])
    );
}

#[test]
fn what_has_not_started_may_always_be_unplanned() {
    let mut bench = Bench::with(&[(0, 4)], vec![fixed(1.0)], Some(1e6));
    // Nobody has heard yet that it started: it may run already.
    let start = bench.plan(vec![runs(0, on(&[(0, 0b1)], FULL))], vec![]);
    let few = BASE + 4.0 * IDLE;
    assert_eq!(in_short(&shed_to(&bench, few)).0, [0_u32; 0], "it may have started");
    bench.hear(Event::Failed { action: common::only(&start) });
    assert!(bench.state().job(JobId(0)).planned.is_some(), "it is tried again");
    assert_eq!(in_short(&shed_to(&bench, few)).0, [0], "it holds nothing");
}

#[test]
fn a_job_that_may_still_run_on_a_lost_node_is_not_told_to_stop() {
    let mut bench = two_of_them_fixed();
    bench.hear(Event::NodeLost(NodeId(1)));
    bench.hear(Event::Clock);
    assert_eq!(common::kinds(&bench.actions()), Vec::<String>::new());
    assert!(bench.state().job(JobId(1)).planned.is_some());
    assert_eq!(check::audit(bench.state(), None), []);
    // The node is back, and so is the job.
    bench.hear(Event::NodeUp(NodeId(1)));
    bench.hear(Event::Clock);
    assert_eq!(common::kinds(&bench.actions()), Vec::<String>::new());
    assert!(bench.state().job(JobId(1)).is_pinned() && bench.state().job(JobId(1)).is_plannable());
    // Lost for good: it waits.
    bench.hear(Event::NodeLost(NodeId(1)));
    let run = bench.state().job(JobId(1)).run.unwrap();
    bench.hear(Event::Stopped { job: JobId(1), run, done: Work(0.0) });
    let job = bench.state().job(JobId(1));
    assert!(job.planned.is_none() && job.held.is_none() && job.is_waiting());
}

#[test]
fn a_job_on_hold_that_cannot_go_on_later_runs_on() {
    let mut bench = two_of_them_fixed();
    for job in [JobId(1), JobId(2)] {
        bench.hear(Event::OnHold { job, hold: true });
    }
    assert_eq!(common::kinds(&bench.actions()), ["stop j2"]);
    // Its limit can still be lowered.
    let plan = shed_to(&bench, 3.0 * BASE);
    let judged = check::check(bench.state(), plan, bench.engine.plan_id(), Some(Watts::ZERO));
    assert!(judged.is_ok(), "{judged:?}");
    let run = bench.state().job(JobId(1)).run.unwrap();
    bench.hear(Event::Stopped { job: JobId(1), run, done: Work(0.0) });
    assert!(!bench.state().job(JobId(1)).is_plannable(), "it waits now");
}

#[test]
fn a_stop_that_is_refused_for_good_is_not_tried_again() {
    let mut bench = three_jobs();
    bench.hear(Event::BudgetSet(constant(NODE_2_ASLEEP - 1.0)));
    bench.hear(Event::Clock);
    let actions = bench.actions();
    assert_eq!(common::kinds(&actions)[0], "stop j1");
    let refused = Event::StopRefused { job: JobId(1), action: actions[0].id };
    bench.alerts();
    bench.hear(refused.clone());
    bench.hear(refused);
    bench.carry_out(actions[1..].to_vec());
    let told = |bench: &mut Bench| common::kinds(&bench.actions());
    let mut all = told(&mut bench);
    for _ in 0..50 {
        bench.pass(30.0);
        let actions = bench.actions();
        all.extend(common::kinds(&actions));
        bench.carry_out(actions);
    }
    assert!(!all.contains(&"stop j1".to_owned()), "{all:?}");
    let alerts = bench.alerts();
    assert_eq!(alerts.iter().filter(|a| matches!(a, Alert::CannotBeStopped(_))).count(), 1);
    assert!(!bench.state().job(JobId(1)).job.preemptible);
    // Another one goes instead.
    assert!(all.contains(&"stop j0".to_owned()), "{all:?}");
}

#[test]
fn a_forecast_says_what_accepting_a_budget_would_do_and_does_nothing() {
    let bench = two_of_them_fixed();
    let before = bench.everything();
    let forecast = |watts: f64| bench.engine.budget_forecast(bench.now, &constant(watts).unwrap());
    let harmless = forecast(ALL_AT_FULL);
    assert!(harmless.kept && harmless.slower.is_empty() && harmless.stopped.is_empty());
    let slower = forecast(ALL_AT_LEAST);
    assert_eq!(slower.slower.len(), 3);
    assert!(slower.slower.iter().all(|(_, from, to)| (from.get(), to.get()) == (FULL, LEAST)));
    assert!(slower.kept && slower.asleep.is_empty() && slower.unstoppable.is_empty());
    let short = forecast(JOB_2_GONE - 1.0);
    assert_eq!((&short.stopped[..], &short.asleep[..]), (&[JobId(2)][..], &[NodeId(2)][..]));
    assert_eq!(short.unstoppable.len(), 2);
    assert!(!short.kept && short.killed.is_empty());
    assert_eq!(short.committed, Watts::new(JOB_2_GONE));
    assert_eq!(before, bench.everything());
}

#[derive(Clone, Debug)]
struct Load {
    sizes: Vec<u8>,
    jobs: Vec<(usize, u8, f64, u32)>,
    asleep: Vec<bool>,
    lost: Vec<bool>,
    budget: f64,
}

fn load() -> impl Strategy<Value = Load> {
    let job = (0_usize..5, 1_u8..=4, prop_oneof![Just(1.0), 0.0..3.0], 0_u32..=4);
    let often = |p: f64| vec(prop::bool::weighted(p), 5);
    (vec(1_u8..=4, 1..=5), vec(job, 0..8), often(0.2), often(0.1), 0.0..1.1)
        .prop_map(|(sizes, jobs, asleep, lost, budget)| Load { sizes, jobs, asleep, lost, budget })
}

/// Puts the jobs where there is room; those for which there is none wait.
fn loaded(load: &Load) -> Bench {
    let nodes: Vec<(u16, u8)> = load.sizes.iter().map(|gpus| (0, *gpus)).collect();
    let jobs = load.jobs.iter().map(|(_, _, weight, _)| weighing(*weight)).collect();
    let mut bench = Bench::with(&nodes, jobs, None);
    let mut used = vec![0_u8; nodes.len()];
    let mut placed = Vec::new();
    for (id, (node, gpus, _, level)) in load.jobs.iter().enumerate() {
        let node = node % nodes.len();
        if used[node] + gpus <= load.sizes[node] {
            let mask = ((1_u64 << gpus) - 1) << used[node];
            used[node] += gpus;
            let limit = LEAST + 50.0 * f64::from(*level);
            placed.push(runs(id as u32, on(&[(node as u32, mask)], limit)));
        }
    }
    let sleeping = (0..nodes.len()).filter(|n| used[*n] == 0 && load.asleep[*n]);
    let sleeping = sleeping.map(|n| common::wants(n as u32, Target::Asleep)).collect();
    bench.settle(placed, sleeping);
    for node in (0..nodes.len()).filter(|n| load.lost[*n]) {
        bench.hear(Event::NodeLost(NodeId(node as u32)));
    }
    bench
}

fn limit_of(placement: &Placement) -> f64 {
    placement.configuration.power_limit.get()
}

proptest! {
    #![proptest_config(wattline_testing::cases(256, 11))]

    #[test]
    fn shedding_gets_below_the_budget_whenever_sleep_does_and_in_the_right_order(load in load()) {
        let mut bench = loaded(&load);
        let state = bench.state();
        let budget = state.cluster().peak_power() * load.budget;
        let ids: Vec<NodeId> = state.cluster().node_ids().collect();
        let at_least: Watts = ids.iter().map(|id| match state.node(*id).power {
            NodePower::Down => state.cluster().most_power(*id),
            _ => state.cluster().node(*id).sleep,
        }).sum();
        let fits = state.planned_committed() <= budget;
        let Some(Shedding { plan, .. }) = shed(state, budget, bench.engine.plan_id(), Shed::Stop) else {
            prop_assert!(fits);
            return Ok(());
        };
        prop_assert!(!fits);
        let weight = |id: JobId| state.job(id).job.weight.get();
        let stopped: Vec<JobId> = plan.jobs.iter()
            .filter(|c| c.decision == Decision::Wait).map(|c| c.job).collect();
        let kept: Vec<JobId> = state.unfinished_jobs()
            .filter(|(id, j)| j.planned.is_some() && !stopped.contains(id))
            .map(|(id, _)| id).collect();
        for stop in &stopped {
            prop_assert!(kept.iter().all(|keep| weight(*stop) <= weight(*keep)));
        }
        for change in &plan.jobs {
            if let Decision::Run(lowered) = &change.decision {
                let before = state.job(change.job).planned.clone().unwrap();
                prop_assert!(before.same_but_limit(lowered), "nobody is moved");
                prop_assert!(limit_of(lowered) < limit_of(&before));
            }
        }
        // Nothing sleeps and nobody stops while limits could still go down.
        if !stopped.is_empty() || !plan.nodes.is_empty() {
            for id in kept {
                let limit = plan.jobs.iter().find(|c| c.job == id).map_or_else(
                    || limit_of(state.job(id).planned.as_ref().unwrap()),
                    |c| match &c.decision { Decision::Run(p) => limit_of(p), Decision::Wait => 0.0 },
                );
                prop_assert_eq!(limit, LEAST);
            }
        }
        prop_assert!(check::check(state, plan, bench.engine.plan_id(), Some(budget)).is_ok());

        bench.hear(Event::BudgetSet(constant(budget.get())));
        bench.hear(Event::Clock);
        let actions = bench.actions();
        bench.carry_out(actions);
        prop_assert_eq!(bench.engine.stats().refused, 0);
        let end = bench.state();
        let line = budget.max(at_least) + Watts::new(1e-6);
        prop_assert!(end.planned_committed() <= line, "{} > {line}", end.planned_committed());
        prop_assert!(end.held_committed() <= line, "{} > {line}", end.held_committed());
        prop_assert_eq!(check::audit(end, None), []);
    }
}
