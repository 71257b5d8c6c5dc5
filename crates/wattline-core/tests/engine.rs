//! The engine against a backend that is late, wrong or lying.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{
    BASE, BOOT, Bench, FULL, IDLE, LEAST, SLEEP, confirmation, constant, job, kinds, on, only,
    runs, waits, wants,
};
use wattline_core::Timestamp;
use wattline_core::check::{self, Violation};
use wattline_core::engine::{Alert, Event, EventError};
use wattline_core::ids::{ActionId, JobId, NodeId};
use wattline_core::job::{Elasticity, Job, JobError, Work};
use wattline_core::plan::Reason;
use wattline_core::power::NodePower;
use wattline_core::state::{Phase, Target};
use wattline_core::units::{Seconds, Watts};

const NOTHING: [&str; 0] = [];

fn fail(bench: &mut Bench, action: ActionId) {
    bench.hear(Event::Failed { action });
}

/// Waits for the next retry and returns what is tried.
fn next_try(bench: &mut Bench) -> Vec<wattline_core::action::Action> {
    bench.hear(Event::Clock);
    assert_eq!(kinds(&bench.actions()), NOTHING, "a failure is not followed by a try at once");
    let at = bench.engine.poll_timeout().unwrap();
    let wait = at.since(bench.now);
    bench.pass((wait - Seconds::new(0.001)).get());
    assert_eq!(kinds(&bench.actions()), NOTHING, "not before its time");
    bench.pass(0.001);
    bench.actions()
}

#[test]
fn a_start_that_fails_is_tried_again_later_each_time_then_held_off_then_tried_again() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    let place = || vec![runs(0, on(&[(0, 1)], FULL))];
    let mut actions = bench.plan(place(), vec![]);
    for wait in [5.0, 10.0, 20.0] {
        fail(&mut bench, only(&actions));
        assert_eq!(bench.state().held_committed(), Watts::new(BASE + 4.0 * IDLE), "holds nothing");
        let failed_at = bench.now;
        actions = next_try(&mut bench);
        assert_eq!(bench.now.since(failed_at), Seconds::new(wait));
        assert_eq!(kinds(&actions), ["start j0"]);
    }
    assert_eq!(bench.alerts(), []);
    fail(&mut bench, only(&actions));
    assert_eq!(bench.alerts(), [Alert::StartGivenUp(JobId(0))]);
    let job = bench.state().job(JobId(0));
    let until = bench.now + Seconds::new(600.0);
    assert_eq!((job.phase, job.reason), (Phase::BackingOff(until), Reason::StartFailed));
    assert!(!job.is_plannable() && job.planned.is_none());

    bench.pass(599.0);
    assert_eq!(kinds(&bench.plan(place(), vec![])), NOTHING);
    assert_eq!(bench.engine.stats().refused, 1, "it is held back");
    bench.pass(1.0);
    assert!(bench.state().job(JobId(0)).is_waiting());
    // The next failure is followed by a longer pause.
    let actions = bench.plan(place(), vec![]);
    fail(&mut bench, only(&actions));
    let until = bench.now + Seconds::new(1200.0);
    assert_eq!(bench.state().job(JobId(0)).phase, Phase::BackingOff(until));
    bench.pass(1200.0);
    let actions = bench.plan(place(), vec![]);
    bench.carry_out(actions);
    assert_eq!(bench.state().job(JobId(0)).phase, Phase::Running);
}

#[test]
fn a_started_that_belongs_to_an_earlier_start_is_ignored() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    let first = only(&bench.plan(vec![runs(0, on(&[(0, 1)], FULL))], vec![]));
    fail(&mut bench, first);
    let second = only(&next_try(&mut bench));
    let job = JobId(0);
    bench.hear(Event::Started { job, action: first });
    assert_eq!(bench.state().job(job).phase, Phase::Starting(second));
    assert_eq!(bench.state().job(job).first_start, None);
    bench.hear(Event::Started { job, action: second });
    assert_eq!(bench.state().job(job).phase, Phase::Running);
    let before = bench.everything();
    bench.hear(Event::Started { job, action: second });
    bench.hear(Event::Failed { action: second });
    assert_eq!(bench.everything(), before, "what is over is over");
}

#[test]
fn a_start_with_fewer_gpus_than_were_kept_gives_the_rest_back() {
    let idle = BASE + 4.0 * IDLE;
    let mut bench = Bench::new(&[(0, 4), (0, 4)], 2, None);
    // Two GPUs on each node are kept for it; it is seen with two on one and one on the other.
    let start = bench.plan(vec![runs(0, on(&[(0, 0b11), (1, 0b11)], FULL))], vec![]);
    let each = FULL - IDLE;
    assert_eq!(bench.state().held_committed(), Watts::new(2.0 * idle + 4.0 * each));
    let placement = on(&[(0, 0b11), (1, 0b01)], FULL);
    let found = Event::Found { job: JobId(0), placement: placement.clone() };
    bench.hear(found.clone());
    let job = bench.state().job(JobId(0));
    assert_eq!((job.phase, job.reason), (Phase::Running, Reason::Found));
    assert_eq!((job.held.as_ref(), job.planned.as_ref()), (Some(&placement), Some(&placement)));
    assert_eq!(bench.state().held_committed(), Watts::new(2.0 * idle + 3.0 * each));
    assert!(!bench.engine.is_under_way(only(&start)));
    // What comes late, or twice, changes nothing.
    bench.hear(Event::Started { job: JobId(0), action: only(&start) });
    bench.hear(Event::Failed { action: only(&start) });
    bench.hear(found);
    assert_eq!(bench.state().held_committed(), Watts::new(2.0 * idle + 3.0 * each));
    assert_eq!(bench.state().job(JobId(0)).restarts, 0);
    // The rest is free for another.
    let actions = bench.plan(vec![runs(1, on(&[(1, 0b10)], FULL))], vec![]);
    assert_eq!(kinds(&actions), ["start j1"]);
    assert_eq!(bench.engine.stats().refused, 0);
}

#[test]
fn a_raise_waits_until_the_lowering_is_confirmed() {
    let committed = BASE + 2.0 * IDLE + FULL + LEAST;
    let mut bench = Bench::new(&[(0, 4)], 2, Some(committed));
    let at = |first: f64, second: f64| {
        vec![runs(0, on(&[(0, 0b01)], first)), runs(1, on(&[(0, 0b10)], second))]
    };
    bench.settle(at(FULL, LEAST), vec![]);
    assert_eq!(bench.state().held_committed(), Watts::new(committed));
    let actions = bench.plan(at(LEAST, FULL), vec![]);
    assert_eq!(kinds(&actions), ["limit j0 100"]);
    assert_eq!(bench.state().held_committed(), Watts::new(committed), "not before it is confirmed");
    bench.pass(100.0);
    assert_eq!(kinds(&bench.actions()), NOTHING);
    bench.hear(confirmation(&actions[0]));
    let actions = bench.actions();
    assert_eq!(kinds(&actions), ["limit j1 300"]);
    assert_eq!(bench.state().held_committed(), Watts::new(committed), "a raise counts at once");
}

#[test]
fn a_start_waits_until_the_watts_and_the_gpus_are_given_back() {
    let mut bench = Bench::new(&[(0, 2), (0, 2)], 3, Some(2.0 * BASE + 3.0 * IDLE + FULL));
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    // Job 1 needs the watts, job 2 the very GPU.
    let actions = bench.plan(vec![waits(0), runs(1, on(&[(1, 1)], FULL))], vec![]);
    assert_eq!(kinds(&actions), ["stop j0"]);
    bench.hear(confirmation(&actions[0]));
    let actions = bench.actions();
    assert_eq!(kinds(&actions), ["start j1"]);
    bench.carry_out(actions);
    let actions = bench.plan(vec![waits(1), runs(2, on(&[(1, 1)], FULL))], vec![]);
    assert_eq!(kinds(&actions), ["stop j1"]);
    bench.hear(confirmation(&actions[0]));
    assert_eq!(kinds(&bench.actions()), ["start j2"]);
}

#[test]
fn a_start_on_a_sleeping_node_waits_until_the_node_is_up() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    bench.settle(vec![], vec![wants(0, Target::Asleep)]);
    assert_eq!(bench.state().held_committed(), Watts::new(SLEEP));
    let actions = bench.plan(vec![runs(0, on(&[(0, 1)], FULL))], vec![wants(0, Target::Up)]);
    assert_eq!(kinds(&actions), ["wake n0"]);
    assert_eq!(bench.state().held_committed(), Watts::new(BOOT), "it boots at its maximum");
    bench.pass(100.0);
    assert_eq!(kinds(&bench.actions()), NOTHING);
    bench.hear(Event::NodeUp(NodeId(0)));
    assert_eq!(kinds(&bench.actions()), ["start j0"]);
}

#[test]
fn a_node_is_woken_only_when_its_boot_fits_below_the_budget() {
    let idle = BASE + 4.0 * IDLE;
    let mut bench = Bench::new(&[(0, 4), (0, 4)], 2, Some(2.0 * idle));
    bench.settle(vec![], vec![wants(1, Target::Asleep)]);
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    bench.hear(Event::BudgetSet(constant(BOOT + idle)));
    bench.hear(Event::Clock);
    // Planned, it fits: the job goes, and what it held with it.
    let actions = bench.plan(vec![waits(0)], vec![wants(1, Target::Up)]);
    assert_eq!(kinds(&actions), ["stop j0"], "{:?}", bench.alerts());
    bench.hear(confirmation(&actions[0]));
    assert_eq!(kinds(&bench.actions()), ["wake n1"]);
    assert_eq!(bench.state().held_committed(), Watts::new(BOOT + idle));
}

#[test]
fn a_run_that_goes_quite_otherwise_than_believed_is_planned_for_once() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    let (mut done, mut plans) = (0.0, bench.engine.stats().plans);
    let mut planned = |bench: &mut Bench, seconds: f64, speed: f64| {
        bench.pass(seconds);
        done += seconds * speed;
        bench.hear(Event::Progress { job: JobId(0), done: Work(done) });
        bench.pass(1.0);
        done += speed;
        let now = bench.engine.stats().plans;
        std::mem::replace(&mut plans, now) < now
    };
    assert!(!planned(&mut bench, 60.0, 1.3), "a bit faster than predicted");
    assert!(planned(&mut bench, 60.0, 0.5), "less than half as fast as it was");
    assert!(!planned(&mut bench, 60.0, 0.5), "that is known by now");
    assert!(!planned(&mut bench, 5.0, 5.0), "too short to say much");
    assert!(planned(&mut bench, 60.0, 1.0));
}

#[test]
fn work_that_is_not_a_number_is_refused_and_changes_nothing() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    let before = bench.everything();
    let job = JobId(0);
    let run = bench.state().job(job).run.unwrap();
    for done in [f64::NAN, f64::INFINITY, -1.0] {
        let reports = [
            Event::Stopped { job, run, done: Work(done) },
            Event::Progress { job, done: Work(done) },
        ];
        for report in reports {
            let refused = bench.engine.handle(bench.now, report).unwrap_err();
            assert!(matches!(refused, EventError::Work { job: JobId(0), .. }), "{refused}");
            assert_eq!(bench.everything(), before);
        }
    }
    bench.hear(Event::Stopped { job, run, done: Work(3.0) });
    assert_eq!(bench.state().job(job).progress.done, Work(3.0));
}

#[test]
fn what_is_unknown_is_an_error_and_changes_nothing() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    let before = bench.everything();
    let (job, action, node) = (JobId(1), ActionId(0), NodeId(1));
    let done = Work(1.0);
    for event in [
        Event::Cancelled(job),
        Event::Started { job, action },
        Event::Stopped { job, run: action, done },
        Event::Finished(job),
        Event::Progress { job, done },
        Event::Limited { job, action },
    ] {
        let answer = bench.engine.handle(bench.now, event);
        assert_eq!(answer, Err(EventError::UnknownJob(job)));
    }
    for event in [
        Event::NodeUp(node),
        Event::NodeAsleep(node),
        Event::NodeLost(node),
        Event::NodeClosed(node),
    ] {
        let answer = bench.engine.handle(bench.now, event);
        assert_eq!(answer, Err(EventError::UnknownNode(node)));
    }
    let senseless = Job { work: Work(f64::NAN), ..common::job() };
    let answer = bench.engine.handle(bench.now, Event::Submitted(senseless.into()));
    assert!(matches!(answer, Err(EventError::Job(JobError::Work { .. }))));
    // Actions are forgotten when they are over, so an unknown one is not an error.
    bench.hear(Event::Failed { action: ActionId(99) });
    assert_eq!(bench.everything(), before);
}

#[test]
fn reports_that_come_twice_or_for_a_job_that_waits_change_nothing() {
    let mut bench = Bench::new(&[(0, 4)], 2, None);
    let action = only(&bench.plan(vec![runs(0, on(&[(0, 1)], FULL))], vec![]));
    let started = Event::Started { job: JobId(0), action };
    bench.hear(started.clone());
    let before = bench.everything();
    bench.hear(started);
    bench.hear(Event::Stopped { job: JobId(1), run: action, done: Work(5.0) });
    bench.hear(Event::Limited { job: JobId(0), action });
    bench.hear(Event::NodeUp(NodeId(0)));
    assert_eq!(bench.everything(), before);
    bench.hear(Event::Finished(JobId(0)));
    let before = bench.everything();
    bench.hear(Event::Finished(JobId(0)));
    bench.hear(Event::Cancelled(JobId(0)));
    bench.hear(Event::Stopped { job: JobId(0), run: action, done: Work(5.0) });
    assert_eq!(bench.everything(), before);
    assert_eq!(bench.state().unfinished(), 1);
}

/// The backend reports a stop, the job starts again, and the report comes a second time.
#[test]
fn a_stop_that_is_reported_twice_does_not_end_the_next_run() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    let place = || runs(0, on(&[(0, 1)], FULL));
    bench.settle(vec![place()], vec![]);
    let job = JobId(0);
    let run = bench.state().job(job).run.unwrap();
    bench.settle(vec![waits(0)], vec![]);
    bench.settle(vec![place()], vec![]);
    let before = bench.everything();
    bench.hear(Event::Stopped { job, run, done: Work(1.0) });
    assert_eq!(bench.everything(), before);
    assert_ne!(bench.state().job(job).run, Some(run));
}

#[test]
fn a_refused_plan_leaves_the_one_before_in_force_and_raises_an_alert() {
    let mut bench = Bench::new(&[(0, 4)], 2, None);
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    let (plan, planned) = (bench.engine.plan_id(), bench.state().job(JobId(0)).planned.clone());
    let actions = bench.plan(vec![waits(0), runs(1, on(&[(0, 0b10000)], FULL))], vec![]);
    assert_eq!(kinds(&actions), NOTHING);
    assert_eq!(bench.engine.plan_id(), plan);
    assert_eq!(bench.state().job(JobId(0)).planned, planned);
    let alerts = bench.alerts();
    let [Alert::PlanRefused { policy, violations }] = &alerts[..] else { panic!("{alerts:?}") };
    assert_eq!(&**policy, "script");
    assert!(matches!(violations[..], [Violation::UnknownGpu { job: JobId(1), .. }]));
}

#[test]
fn a_job_that_will_not_stop_is_planned_as_it_is_and_its_rival_waits() {
    let mut bench = Bench::new(&[(0, 4)], 2, None);
    bench.settle(vec![runs(0, on(&[(0, 0b11)], FULL))], vec![]);
    let mut actions = bench.plan(vec![waits(0), runs(1, on(&[(0, 0b110)], FULL))], vec![]);
    for _ in 0..3 {
        fail(&mut bench, only(&actions));
        actions = next_try(&mut bench);
        assert_eq!(kinds(&actions), ["stop j0"]);
    }
    fail(&mut bench, only(&actions));
    assert_eq!(bench.alerts(), [Alert::StopGivenUp(JobId(0))]);
    let state = bench.state();
    assert_eq!(state.job(JobId(0)).planned, Some(on(&[(0, 0b11)], FULL)));
    assert_eq!(state.job(JobId(0)).reason, Reason::ActionFailed);
    assert_eq!(state.job(JobId(1)).planned, None);
    assert_eq!(check::audit(state, None), []);
}

#[test]
fn a_node_that_will_not_wake_counts_as_lost_until_it_is_heard_of() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    bench.settle(vec![], vec![wants(0, Target::Asleep)]);
    let mut actions = bench.plan(vec![runs(0, on(&[(0, 1)], FULL))], vec![wants(0, Target::Up)]);
    for _ in 0..3 {
        fail(&mut bench, only(&actions));
        actions = next_try(&mut bench);
    }
    fail(&mut bench, only(&actions));
    assert_eq!(bench.alerts(), [Alert::WakeGivenUp(NodeId(0))]);
    assert_eq!(bench.state().job(JobId(0)).planned, None);
    let most = bench.state().cluster().most_power(NodeId(0));
    assert_eq!(bench.state().held_committed(), most, "unknown is worst");
    bench.hear(Event::NodeUp(NodeId(0)));
    assert_eq!(bench.state().held_committed(), Watts::new(BASE + 4.0 * IDLE));
    assert_eq!(bench.state().node(NodeId(0)).target, Target::Up);
}

/// A raise that failed may be in force. It was counted for ever, and never set right, once the
/// plan went back to the limit on record.
#[test]
fn a_limit_that_may_have_been_raised_is_counted_and_set_again() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    let at = |limit| vec![runs(0, on(&[(0, 1)], limit))];
    bench.settle(at(LEAST), vec![]);
    let low = Watts::new(BASE + 3.0 * IDLE + LEAST);
    let action = only(&bench.plan(at(FULL), vec![]));
    fail(&mut bench, action);
    let high = Watts::new(BASE + 3.0 * IDLE + FULL);
    assert_eq!(bench.state().held_committed(), high);
    assert_eq!(kinds(&bench.plan(at(LEAST), vec![])), NOTHING, "not before the next try");
    let actions = next_try(&mut bench);
    assert_eq!(kinds(&actions), ["limit j0 100"]);
    assert_eq!(bench.state().held_committed(), high);
    bench.carry_out(actions);
    assert_eq!(bench.state().held_committed(), low);
}

/// A second raise, to less than the first, made the first one's watts disappear.
#[test]
fn a_smaller_raise_after_one_that_failed_still_counts_the_larger() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    let at = |limit| vec![runs(0, on(&[(0, 1)], limit))];
    bench.settle(at(LEAST), vec![]);
    let action = only(&bench.plan(at(FULL), vec![]));
    fail(&mut bench, action);
    bench.plan(at(200.0), vec![]);
    let actions = next_try(&mut bench);
    assert_eq!(kinds(&actions), ["limit j0 200"]);
    assert_eq!(bench.state().held_committed(), Watts::new(BASE + 3.0 * IDLE + FULL));
    bench.carry_out(actions);
    assert_eq!(bench.state().held_committed(), Watts::new(BASE + 3.0 * IDLE + 200.0));
}

/// The watts of a raise that failed are counted; asking for them a second time never fitted.
#[test]
fn a_raise_that_failed_can_be_tried_again_below_a_tight_budget() {
    let high = BASE + 3.0 * IDLE + FULL;
    let mut bench = Bench::new(&[(0, 4)], 1, Some(high));
    let at = |limit| vec![runs(0, on(&[(0, 1)], limit))];
    bench.settle(at(LEAST), vec![]);
    let action = only(&bench.plan(at(FULL), vec![]));
    fail(&mut bench, action);
    let actions = next_try(&mut bench);
    assert_eq!(kinds(&actions), ["limit j0 300"]);
    bench.carry_out(actions);
    assert_eq!(bench.state().held_committed(), Watts::new(high));
}

/// It waited for ever, neither planned nor over.
#[test]
fn a_job_cancelled_while_it_starts_is_over_when_the_start_fails() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    let action = only(&bench.plan(vec![runs(0, on(&[(0, 1)], FULL))], vec![]));
    bench.hear(Event::Cancelled(JobId(0)));
    assert_eq!(bench.state().unfinished(), 1, "it may have started");
    fail(&mut bench, action);
    assert_eq!(bench.state().job(JobId(0)).phase, Phase::Finished);
    assert_eq!(bench.state().unfinished(), 0);
}

/// It was planned as it is, which no plan could change any more: nobody may plan a cancelled job.
#[test]
fn a_cancelled_job_that_will_not_stop_is_told_so_again_and_again() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    bench.hear(Event::Cancelled(JobId(0)));
    let mut actions = bench.actions();
    for _ in 0..9 {
        assert_eq!(kinds(&actions), ["stop j0"]);
        fail(&mut bench, only(&actions));
        assert_eq!(bench.state().job(JobId(0)).planned, None);
        actions = next_try(&mut bench);
    }
    assert_eq!(bench.alerts(), [Alert::StopGivenUp(JobId(0))]);
    bench.carry_out(actions);
    assert_eq!(bench.state().unfinished(), 0);
    assert_eq!(check::audit(bench.state(), None), []);
}

/// It was planned on the lost node, and every plan that touched the node was refused.
#[test]
fn a_job_that_will_not_stop_on_a_lost_node_is_not_planned_there() {
    let mut bench = Bench::new(&[(0, 4), (0, 4)], 1, None);
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    bench.hear(Event::NodeLost(NodeId(0)));
    let mut actions = bench.actions();
    for _ in 0..4 {
        assert_eq!(kinds(&actions), ["stop j0"]);
        fail(&mut bench, only(&actions));
        actions = next_try(&mut bench);
    }
    assert_eq!(bench.state().job(JobId(0)).planned, None);
    bench.carry_out(actions);
    bench.settle(vec![runs(0, on(&[(1, 1)], FULL))], vec![]);
    assert_eq!(bench.state().job(JobId(0)).phase, Phase::Running);
}

/// The plan went on with a shape that the job could not take any more once it had started.
#[test]
fn a_moldable_job_replanned_while_it_starts_keeps_the_size_it_started_with() {
    let moldable = Job { elasticity: Elasticity::Moldable, ..job() };
    let mut bench = Bench::with(&[(0, 4)], vec![moldable], None);
    let actions = bench.plan(vec![runs(0, on(&[(0, 0b1)], FULL))], vec![]);
    assert_eq!(kinds(&bench.plan(vec![runs(0, on(&[(0, 0b11)], FULL))], vec![])), NOTHING);
    bench.carry_out(actions);
    assert_eq!(check::audit(bench.state(), None), []);
    let job = bench.state().job(JobId(0));
    assert_eq!(job.planned, None, "it is up to the policy again");
    assert_eq!(bench.state().menu(job.menu).len(), 1);
    bench.settle(vec![runs(0, on(&[(0, 0b10)], FULL))], vec![]);
    assert_eq!(bench.engine.stats().refused, 0);
}

/// The node counted as asleep while it booted, and was woken a second time.
#[test]
fn news_from_before_a_node_was_woken_are_ignored() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    let node = NodeId(0);
    bench.settle(vec![], vec![wants(0, Target::Asleep)]);
    let wake = only(&bench.plan(vec![], vec![wants(0, Target::Up)]));
    bench.hear(Event::NodeAsleep(node));
    assert_eq!(bench.state().node(node).power, NodePower::Booting);
    assert_eq!(bench.state().held_committed(), Watts::new(BOOT));
    assert_eq!(kinds(&bench.actions()), NOTHING);
    bench.hear(Event::NodeUp(node));
    let sleep = only(&bench.plan(vec![], vec![wants(0, Target::Asleep)]));
    bench.hear(Event::NodeUp(node));
    assert_eq!(bench.state().node(node).power, NodePower::FallingAsleep);
    assert_eq!(kinds(&bench.actions()), NOTHING);
    // A failure is news of its own.
    fail(&mut bench, sleep);
    assert_eq!(bench.state().node(node).power, NodePower::Up);
    assert_ne!(wake, sleep);
}

#[test]
fn events_of_one_instant_become_one_plan() {
    let mut bench = Bench::new(&[(0, 4)], 5, None);
    assert_eq!(bench.engine.stats().plans, 0);
    assert_eq!(bench.engine.poll_timeout(), Some(Timestamp::ZERO));
    bench.hear(Event::Clock);
    bench.hear(Event::Clock);
    assert_eq!(bench.engine.stats().plans, 1);
    assert_eq!(bench.engine.poll_timeout(), None);
}

/// An administrator drains a node: who is there stays, nobody comes, and its power counts as it is.
#[test]
fn a_closed_node_keeps_its_jobs_and_takes_no_more() {
    let mut bench = Bench::new(&[(0, 4), (0, 4)], 3, None);
    let node = NodeId(0);
    bench.settle(vec![runs(0, on(&[(0, 0b1)], FULL))], vec![]);
    let committed = bench.state().held_committed();
    // One is on its way to the node when it is closed, one only planned there.
    let start = only(&bench.plan(vec![runs(1, on(&[(0, 0b10)], FULL))], vec![]));
    bench.hear(Event::NodeClosed(node));
    assert_eq!(bench.state().node(node).power, NodePower::Closed);
    fail(&mut bench, start);
    assert_eq!(bench.state().job(JobId(1)).planned, None);
    assert_eq!(bench.state().held_committed(), committed);
    let there = bench.state().job(JobId(0));
    assert!(there.phase == Phase::Running && there.planned.is_some() && !there.is_plannable());
    let refused = bench.engine.stats().refused;
    bench.plan(vec![runs(2, on(&[(0, 0b100)], FULL))], vec![]);
    bench.plan(vec![runs(0, on(&[(1, 0b1)], FULL))], vec![]);
    assert_eq!(bench.engine.stats().refused, refused + 2);
    let elsewhere = bench.plan(vec![runs(1, on(&[(1, 0b1)], FULL))], vec![]);
    bench.carry_out(elsewhere);
    assert_eq!(check::audit(bench.state(), None), []);
    bench.hear(Event::Finished(JobId(0)));
    bench.hear(Event::NodeUp(node));
    let there = bench.plan(vec![runs(2, on(&[(0, 0b100)], FULL))], vec![]);
    bench.carry_out(there);
    assert_eq!(bench.state().job(JobId(2)).phase, Phase::Running);
    assert_eq!(bench.engine.stats().refused, refused + 2);
}

/// What was handed out has ended in one way, or is under way.
#[test]
fn every_action_is_counted_once_by_what_came_of_it() {
    let mut bench = Bench::new(&[(0, 4), (0, 4)], 3, None);
    let count = |bench: &Bench, kind: &str, outcome: &str| {
        let outcomes = bench.engine.stats().outcomes;
        let mut counts = outcomes.counts().filter(|(k, o, _)| *k == kind && o.name() == outcome);
        counts.next().unwrap().2
    };
    let sent = |bench: &Bench, kind: &str| {
        let outcomes = bench.engine.stats().outcomes;
        outcomes.handed_out().find(|(k, _)| *k == kind).unwrap().1
    };
    // A start that fails until it is given up, and one that is confirmed twice.
    let mut actions = bench.plan(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    for _ in 0..3 {
        fail(&mut bench, only(&actions));
        actions = next_try(&mut bench);
    }
    fail(&mut bench, only(&actions));
    fail(&mut bench, only(&actions));
    assert_eq!((count(&bench, "start", "failed"), count(&bench, "start", "given_up")), (3, 1));
    let actions = bench.plan(vec![runs(1, on(&[(0, 2)], FULL))], vec![]);
    let start = confirmation(&actions[0]);
    bench.hear(start.clone());
    bench.hear(start);
    assert_eq!((sent(&bench, "start"), count(&bench, "start", "done")), (5, 1));
    // A limit that its job's end overtakes, and one that is set.
    let raise = bench.plan(vec![runs(1, on(&[(0, 2)], 150.0))], vec![]);
    bench.carry_out(raise);
    let raise = bench.plan(vec![runs(1, on(&[(0, 2)], 200.0))], vec![]);
    assert_eq!(kinds(&raise), ["limit j1 200"]);
    bench.hear(Event::Finished(JobId(1)));
    assert_eq!((count(&bench, "limit", "done"), count(&bench, "limit", "overtaken")), (1, 1));
    // A stop as asked, and one that comes too late.
    bench.settle(vec![runs(2, on(&[(0, 1)], FULL))], vec![]);
    bench.settle(vec![waits(2)], vec![]);
    bench.settle(vec![runs(2, on(&[(0, 1)], FULL))], vec![]);
    let stop = bench.plan(vec![waits(2)], vec![]);
    assert_eq!(kinds(&stop), ["stop j2"]);
    bench.hear(Event::Finished(JobId(2)));
    assert_eq!((count(&bench, "stop", "done"), count(&bench, "stop", "overtaken")), (1, 1));
    // Nodes.
    bench.settle(vec![], vec![wants(1, Target::Asleep)]);
    let wake = bench.plan(vec![], vec![wants(1, Target::Up)]);
    assert_eq!(kinds(&wake), ["wake n1"]);
    assert_eq!((count(&bench, "sleep", "done"), sent(&bench, "wake")), (1, 1));
    bench.hear(Event::NodeLost(NodeId(1)));
    assert_eq!((count(&bench, "wake", "done"), count(&bench, "wake", "overtaken")), (0, 1));
    let outcomes = bench.engine.stats().outcomes;
    let all: u64 = outcomes.counts().map(|(.., count)| count).sum();
    assert_eq!(all, bench.engine.stats().actions, "none is under way");
}

/// When a job that never ran was over is known from its state alone.
#[test]
fn a_job_taken_back_before_it_ran_says_when_that_was() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    bench.pass(70.0);
    bench.hear(Event::Cancelled(JobId(0)));
    let job = bench.state().job(JobId(0));
    assert_eq!((job.phase, job.progress.as_of), (Phase::Finished, bench.now));
}
