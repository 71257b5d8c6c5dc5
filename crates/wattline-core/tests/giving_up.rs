//! What failed too often is tried again, later each time, and said once.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{
    BASE, BOOT, Bench, FULL, IDLE, SLEEP, constant, job, kinds, on, only, runs, waits, wants,
};
use wattline_core::action::{Action, ActionKind};
use wattline_core::check;
use wattline_core::engine::{Alert, Event};
use wattline_core::ids::{GpuTypeId, JobId, NodeId};
use wattline_core::job::{Bounds, Elasticity, Job};
use wattline_core::placement::Placement;
use wattline_core::plan::Reason;
use wattline_core::power::NodePower;
use wattline_core::state::{Phase, Target};
use wattline_core::units::{Seconds, Watts};

const NODE: NodeId = NodeId(0);
const JOB: JobId = JobId(0);

/// Fails actions, one after the other; the pauses after which the next one came.
fn fail_times(
    bench: &mut Bench,
    mut actions: Vec<Action>,
    times: usize,
) -> (Vec<f64>, Vec<Action>) {
    let mut pauses = Vec::new();
    for _ in 0..times {
        let failed_at = bench.now;
        bench.hear(Event::Failed { action: only(&actions) });
        actions = bench.actions();
        while actions.is_empty() {
            let next = bench.engine.poll_timeout().unwrap();
            bench.pass(next.since(bench.now).get());
            actions = bench.actions();
        }
        pauses.push(bench.now.since(failed_at).get());
    }
    (pauses, actions)
}

/// A node that sleeps, and a job that it is woken for.
fn waking() -> (Bench, Vec<Action>) {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    bench.settle(vec![], vec![wants(0, Target::Asleep)]);
    let wake = bench.plan(vec![runs(0, on(&[(0, 1)], FULL))], vec![wants(0, Target::Up)]);
    (bench, wake)
}

/// It was lost for ever, and nobody was told to do anything about it.
#[test]
fn a_node_that_does_not_wake_is_woken_again_after_growing_pauses_and_said_once() {
    let (mut bench, actions) = waking();
    let (pauses, actions) = fail_times(&mut bench, actions, 11);
    let growing = [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0, 600.0, 600.0];
    assert_eq!(pauses, growing);
    assert_eq!(kinds(&actions), ["wake n0"]);
    assert_eq!(bench.alerts(), [Alert::WakeGivenUp(NODE)]);
    let node = bench.state().node(NODE);
    assert_eq!((node.power, node.reason), (NodePower::Down, Reason::WakeFailed));
    let most = bench.state().cluster().most_power(NODE);
    assert_eq!(bench.state().held_committed(), most, "unknown is worst, also while it is tried");
    assert_eq!(bench.state().planned_committed(), most);

    bench.carry_out(actions);
    assert_eq!(bench.alerts(), [Alert::WokenAtLast(NODE)]);
    let node = bench.state().node(NODE);
    assert_eq!(
        (node.power, node.target, node.reason),
        (NodePower::Up, Target::Up, Reason::Arrived)
    );
    assert_eq!(bench.state().held_committed(), Watts::new(BASE + 4.0 * IDLE));
    let woken = bench.engine.stats().outcomes;
    let woken =
        woken.counts().find(|(kind, outcome, _)| *kind == "wake" && outcome.name() == "done");
    assert_eq!(woken.map(|(.., count)| count), Some(1));
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    assert_eq!(bench.state().job(JOB).phase, Phase::Running);
    assert_eq!(check::audit(bench.state(), None), []);
}

/// A backend that looks again and again says that it sleeps, which it did before too.
#[test]
fn a_node_that_did_not_wake_is_not_planned_with_because_it_is_said_to_sleep() {
    let (mut bench, actions) = waking();
    let (_, actions) = fail_times(&mut bench, actions, 4);
    bench.hear(Event::NodeAsleep(NODE));
    assert_eq!(bench.state().node(NODE).power, NodePower::Down);
    assert!(bench.state().node(NODE).is_unwoken());
    bench.carry_out(actions);
    assert_eq!(bench.state().node(NODE).power, NodePower::Up);
}

/// A node that the backend lost is not ours to wake, also if it did not wake before.
#[test]
fn a_node_that_is_lost_comes_back_only_when_the_backend_says_so() {
    let (mut bench, actions) = waking();
    fail_times(&mut bench, actions, 5);
    bench.hear(Event::NodeLost(NODE));
    assert!(!bench.state().node(NODE).is_unwoken());
    assert_eq!(bench.state().node(NODE).reason, Reason::NodeLost);
    for _ in 0..100 {
        bench.pass(600.0);
        assert_eq!(kinds(&bench.actions()), [""; 0]);
    }
    bench.hear(Event::NodeAsleep(NODE));
    let node = bench.state().node(NODE);
    assert_eq!(
        (node.power, node.target, node.reason),
        (NodePower::Asleep, Target::Asleep, Reason::Arrived)
    );
    assert_eq!(bench.state().held_committed(), Watts::new(SLEEP));
    assert_eq!(
        bench.alerts(),
        [Alert::WakeGivenUp(NODE)],
        "it did not wake, it was lost and found"
    );
}

#[test]
fn a_node_that_does_not_fall_asleep_is_said_once_however_often_the_plan_wants_it() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    let mut pauses = Vec::new();
    for _ in 0..10 {
        let wanted_at = bench.now;
        let mut actions = bench.plan(vec![], vec![wants(0, Target::Asleep)]);
        while actions.is_empty() {
            let next = bench.engine.poll_timeout().unwrap();
            bench.pass(next.since(bench.now).get());
            actions = bench.actions();
        }
        pauses.push(bench.now.since(wanted_at).get());
        bench.hear(Event::Failed { action: only(&actions) });
    }
    assert_eq!(bench.alerts(), [Alert::SleepGivenUp(NODE)]);
    assert_eq!(pauses, [0.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]);
    let node = bench.state().node(NODE);
    assert_eq!(
        (node.power, node.target, node.reason),
        (NodePower::Up, Target::Up, Reason::ActionFailed)
    );
}

#[test]
fn a_job_that_does_not_start_is_left_alone_for_longer_each_time_and_said_once() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    let mut pauses = Vec::new();
    for _ in 0..9 {
        let actions = bench.plan(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
        let mut actions = actions;
        while actions.is_empty() {
            let next = bench.engine.poll_timeout().unwrap();
            bench.pass(next.since(bench.now).get());
            actions = bench.actions();
        }
        bench.hear(Event::Failed { action: only(&actions) });
        if let Phase::BackingOff(until) = bench.state().job(JOB).phase {
            let pause = until.since(bench.now);
            pauses.push(pause.get());
            bench.pass(pause.get());
        }
    }
    assert_eq!(pauses, [600.0, 1200.0, 2400.0, 3600.0, 3600.0, 3600.0]);
    assert_eq!(bench.alerts(), [Alert::StartGivenUp(JOB)]);
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    assert_eq!(bench.state().job(JOB).phase, Phase::Running);
}

#[test]
fn a_job_that_does_not_stop_is_told_at_least_once_a_minute_and_said_once() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    bench.hear(Event::Cancelled(JOB));
    let actions = bench.actions();
    let (pauses, actions) = fail_times(&mut bench, actions, 8);
    assert_eq!(pauses, [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0, 60.0]);
    assert_eq!(bench.alerts(), [Alert::StopGivenUp(JOB)]);
    bench.carry_out(actions);
    assert_eq!(bench.state().unfinished(), 0);
}

/// Both were counted together: a stop was given up at its first failure, and nobody heard of it.
#[test]
fn limits_that_could_not_be_set_are_not_counted_as_stops_that_failed() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    let actions = bench.plan(vec![runs(0, on(&[(0, 1)], 200.0))], vec![]);
    let (_, actions) = fail_times(&mut bench, actions, 3);
    bench.hear(Event::Failed { action: only(&actions) });
    assert_eq!(bench.alerts(), [Alert::LimitGivenUp(JOB)]);
    bench.pass(3600.0);
    // What may be in force is set again.
    let again = only(&bench.actions());
    bench.hear(Event::Limited { job: JOB, action: again });
    let actions = bench.plan(vec![waits(0)], vec![]);
    let (_, actions) = fail_times(&mut bench, actions, 3);
    assert_eq!(bench.alerts(), []);
    bench.hear(Event::Failed { action: only(&actions) });
    assert_eq!(bench.alerts(), [Alert::StopGivenUp(JOB)]);
}

/// On type 1, which node 1 has.
fn on_the_other_type() -> Placement {
    let mut placement = on(&[(1, 0b11)], FULL);
    placement.configuration.gpu_type = GpuTypeId(1);
    placement
}

fn moldable() -> Job {
    let gpus = Bounds { min: 1, requested: 2, max: 4 };
    Job { elasticity: Elasticity::Moldable, gpus, ..job() }
}

fn types_left(bench: &Bench) -> Vec<(u16, u32)> {
    let menu = bench.state().menu(bench.state().job(JOB).menu);
    menu.iter().map(|shape| (shape.gpu_type.0, shape.gpus)).collect()
}

/// It kept its GPU type for ever, also after the last node of that type had been lost.
#[test]
fn a_moldable_job_goes_on_with_as_many_gpus_of_another_type_while_its_own_is_gone() {
    let mut bench = Bench::with(&[(0, 4), (1, 4)], vec![moldable()], None);
    bench.settle(vec![runs(0, on(&[(0, 0b11)], FULL))], vec![]);
    assert_eq!(types_left(&bench), [(0, 2)]);
    // It keeps its type when it is stopped for another job.
    bench.settle(vec![waits(0)], vec![]);
    assert_eq!(types_left(&bench), [(0, 2)]);
    bench.hear(Event::NodeLost(NODE));
    assert_eq!(types_left(&bench), [(0, 2), (1, 2)]);
    // It has its type again when that is back, if it did not go elsewhere meanwhile.
    bench.hear(Event::NodeUp(NODE));
    assert_eq!(types_left(&bench), [(0, 2)]);
    bench.hear(Event::NodeClosed(NODE));
    bench.settle(vec![runs(0, on_the_other_type())], vec![]);
    assert_eq!(types_left(&bench), [(1, 2)]);
    bench.hear(Event::NodeUp(NODE));
    assert_eq!(types_left(&bench), [(1, 2)]);
    assert_eq!(bench.state().job(JOB).phase, Phase::Running);
    assert_eq!(check::audit(bench.state(), None), []);
}

/// A job that runs when its node is lost is free as soon as it has left it.
#[test]
fn a_moldable_job_that_lost_its_node_goes_on_elsewhere() {
    let mut bench = Bench::with(&[(0, 4), (1, 4)], vec![moldable()], None);
    bench.settle(vec![runs(0, on(&[(0, 0b11)], FULL))], vec![]);
    let run = bench.state().job(JOB).run.unwrap();
    bench.hear(Event::NodeLost(NODE));
    let done = wattline_core::job::Work(7.0);
    bench.hear(Event::Stopped { job: JOB, run, done });
    assert_eq!(types_left(&bench), [(0, 2), (1, 2)]);
    bench.settle(vec![runs(0, on_the_other_type())], vec![]);
    assert_eq!(types_left(&bench), [(1, 2)]);
}

#[test]
fn a_moldable_job_that_declared_its_gpu_type_waits_for_it() {
    let shapes = [2, 4].map(|gpus| wattline_core::cluster::Shape { gpu_type: GpuTypeId(0), gpus });
    let bound = Job { shapes: Some(shapes.into()), ..moldable() };
    let mut bench = Bench::with(&[(0, 4), (1, 4)], vec![bound], None);
    bench.settle(vec![runs(0, on(&[(0, 0b11)], FULL))], vec![]);
    bench.settle(vec![waits(0)], vec![]);
    bench.hear(Event::NodeLost(NODE));
    assert_eq!(types_left(&bench), [(0, 2)]);
}

/// With several nodes left, a type is gone once they are too few for the job.
#[test]
fn a_type_is_gone_when_what_is_left_of_it_is_too_small() {
    let gpus = Bounds { min: 1, requested: 6, max: 8 };
    let wide = Job { gpus, ..moldable() };
    let nodes = [(0, 4), (0, 4), (0, 4), (1, 4), (1, 4)];
    let mut bench = Bench::with(&nodes, vec![wide], None);
    bench.settle(vec![runs(0, on(&[(0, 0b1111), (1, 0b11)], FULL))], vec![]);
    bench.settle(vec![waits(0)], vec![]);
    bench.hear(Event::NodeLost(NODE));
    assert_eq!(types_left(&bench), [(0, 6)], "two nodes are left");
    bench.hear(Event::NodeLost(NodeId(1)));
    assert_eq!(types_left(&bench), [(0, 6), (1, 6)]);
}

#[test]
fn pauses_begin_again_once_an_action_succeeds() {
    let (mut bench, actions) = waking();
    let (_, actions) = fail_times(&mut bench, actions, 6);
    bench.carry_out(actions);
    bench.settle(vec![waits(0)], vec![wants(0, Target::Asleep)]);
    let actions = bench.plan(vec![], vec![wants(0, Target::Up)]);
    let (pauses, _) = fail_times(&mut bench, actions, 2);
    assert_eq!(pauses, [5.0, 10.0]);
    assert_eq!(Seconds::new(5.0), bench.engine.config().retry_after);
}

/// Only orders that the backend knows are given to a node that does not wake.
#[test]
fn a_node_that_did_not_wake_gets_one_order_at_a_time() {
    let (mut bench, actions) = waking();
    let (_, actions) = fail_times(&mut bench, actions, 4);
    assert!(matches!(actions[0].kind, ActionKind::Wake { node: NODE }));
    for _ in 0..20 {
        bench.pass(600.0);
        assert_eq!(kinds(&bench.actions()), [""; 0]);
    }
}

/// It was said to sleep for the budget when nine tenths of the budget were free.
#[test]
fn the_reason_why_a_node_sleeps_is_the_present_one() {
    let up = BASE + 4.0 * IDLE;
    let mut bench = Bench::new(&[(0, 4), (0, 4)], 1, Some(up + SLEEP));
    bench.pass(0.0);
    bench.carry_out(Vec::new());
    let sleeper = bench
        .state()
        .cluster()
        .node_ids()
        .find(|id| bench.state().node(*id).reason == Reason::NodeOverBudget);
    let sleeper = sleeper.unwrap();
    assert_eq!(bench.engine.node_reason(sleeper, bench.now), Reason::NodeOverBudget);
    // What it takes to boot must be free, too.
    bench.hear(Event::BudgetSet(constant(2.0 * up)));
    bench.pass(0.0);
    assert_eq!(bench.engine.node_reason(sleeper, bench.now), Reason::NodeOverBudget);
    bench.hear(Event::BudgetSet(constant(up + BOOT)));
    bench.pass(0.0);
    assert_eq!(bench.state().node(sleeper).reason, Reason::NodeOverBudget, "nobody decided anew");
    assert_eq!(bench.engine.node_reason(sleeper, bench.now), Reason::NodeNotNeeded);
    // It stays what it is where the budget is not the reason.
    let other = NodeId(1 - sleeper.0);
    assert_eq!(bench.engine.node_reason(other, bench.now), bench.state().node(other).reason);
}
