//! What the cluster will not start keeps nothing from others, and what is not ours is left alone.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Bench, FULL, IDLE, confirmation, job, kinds, on, only, runs, waits, wants};
use std::sync::Arc;
use wattline_core::check;
use wattline_core::engine::{Alert, Event};
use wattline_core::ids::{JobId, NodeId};
use wattline_core::job::{Job, NodeChoice};
use wattline_core::plan::{Reason, Refusal};
use wattline_core::state::{Phase, Target};
use wattline_core::units::Watts;

const JOB: JobId = JobId(0);

#[test]
fn a_refused_job_gives_everything_back_at_once_and_is_tried_on_other_nodes() {
    let mut bench = Bench::new(&[(0, 4), (0, 4)], 1, None);
    let before = bench.state().held_committed();
    let start = bench.plan(vec![runs(0, on(&[(0, 3)], FULL))], vec![]);
    assert!(bench.state().held_committed() > before);
    bench.hear(Event::Refused { action: only(&start), why: Refusal::Resources });
    let job = bench.state().job(JOB);
    assert_eq!((job.phase, job.reason), (Phase::Waiting, Reason::Refused(Refusal::Resources)));
    assert!(job.held.is_none() && job.planned.is_none());
    assert_eq!(bench.state().held_committed(), before, "watts are free");
    assert!(bench.state().node(NodeId(0)).held.is_empty(), "GPUs are free");
    let allowed = &bench.state().job(JOB).nodes().unwrap().allowed;
    assert_eq!(**allowed, [NodeId(1)], "the other node is left");

    // A plan that puts it there again is refused; one for the other node is not.
    bench.plan(vec![runs(0, on(&[(0, 3)], FULL))], vec![]);
    let refused = |alert: &Alert| matches!(alert, Alert::PlanRefused { .. });
    assert!(bench.alerts().iter().any(refused));
    let start = bench.plan(vec![runs(0, on(&[(1, 3)], FULL))], vec![]);
    assert_eq!(kinds(&start), ["start j0"]);
    bench.carry_out(start);
    // After the pause it may go anywhere again.
    bench.pass(16.0);
    assert!(bench.state().job(JOB).nodes().is_none());
}

#[test]
fn what_is_refused_wherever_it_would_run_waits_after_growing_pauses() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    let mut pauses = Vec::new();
    for _ in 0..7 {
        let start = bench.plan(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
        bench.hear(Event::Refused { action: only(&start), why: Refusal::Licences });
        let Phase::BackingOff(until) = bench.state().job(JOB).phase else { panic!() };
        let pause = until.since(bench.now).get();
        pauses.push(pause);
        bench.pass(pause);
        assert_eq!(bench.state().job(JOB).phase, Phase::Waiting);
    }
    assert_eq!(pauses, [15.0, 30.0, 60.0, 120.0, 240.0, 300.0, 300.0]);
    assert!(bench.alerts().is_empty(), "a limit is no failure");
    // For another reason the row begins anew, and a start ends it.
    let start = bench.plan(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    bench.hear(Event::Refused { action: only(&start), why: Refusal::Limit });
    let Phase::BackingOff(until) = bench.state().job(JOB).phase else { panic!() };
    assert_eq!(until.since(bench.now).get(), 15.0);
}

#[test]
fn no_node_left_is_a_pause_and_not_for_ever() {
    let mut bench = Bench::new(&[(0, 4), (0, 4)], 1, None);
    for node in 0..2 {
        let start = bench.plan(vec![runs(0, on(&[(node, 1)], FULL))], vec![]);
        bench.hear(Event::Refused { action: only(&start), why: Refusal::Nodes });
    }
    assert!(matches!(bench.state().job(JOB).phase, Phase::BackingOff(_)));
    bench.pass(15.0);
    // The first node's bar is over.
    let allowed = bench.state().job(JOB).nodes().unwrap().allowed.clone();
    assert_eq!(*allowed, [NodeId(0)]);
    bench.pass(15.0);
    assert_eq!(bench.state().job(JOB).phase, Phase::Waiting);
    assert!(bench.state().job(JOB).nodes().is_none());
}

/// A limit of its user may be free again when another of his jobs has ended: then it is asked again
/// at once.
#[test]
fn the_end_of_a_users_job_is_a_reason_to_ask_again() {
    let mut bench = Bench::new(&[(0, 4)], 2, None);
    bench.settle(vec![runs(1, on(&[(0, 1)], FULL))], vec![]);
    let start = bench.plan(vec![runs(0, on(&[(0, 2)], FULL))], vec![]);
    bench.hear(Event::Refused { action: only(&start), why: Refusal::Limit });
    assert!(matches!(bench.state().job(JOB).phase, Phase::BackingOff(_)));
    bench.hear(Event::Finished(JobId(1)));
    assert_eq!(bench.state().job(JOB).phase, Phase::Waiting);
}

#[test]
fn a_refused_job_that_was_cancelled_meanwhile_is_over() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    let start = bench.plan(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    bench.hear(Event::Cancelled(JOB));
    bench.hear(Event::Refused { action: only(&start), why: Refusal::Resources });
    assert_eq!(bench.state().job(JOB).phase, Phase::Finished);
    // Said twice, or of an action that never was, it does nothing.
    let before = bench.everything();
    bench.hear(Event::Refused { action: only(&start), why: Refusal::Limit });
    assert_eq!(bench.everything(), before);
}

/// Of another partition: it counts for what it holds, and is told nothing whatever happens.
#[test]
fn what_is_not_ours_counts_and_is_never_started_stopped_or_limited() {
    let mut bench = Bench::new(&[(0, 4)], 2, Some(4000.0));
    bench.hear(Event::Foreign { job: JOB, foreign: true });
    // It is not planned.
    assert!(!bench.state().job(JOB).is_plannable());
    bench.plan(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    assert!(matches!(bench.alerts()[..], [Alert::PlanRefused { .. }]));
    let idle = bench.state().held_committed();
    bench.hear(Event::Found { job: JOB, placement: on(&[(0, 3)], FULL) });
    assert_eq!(bench.state().held_committed(), idle + Watts::new(2.0 * (FULL - IDLE)));
    // A plan can neither stop nor limit it.
    for change in [waits(0), runs(0, on(&[(0, 3)], 200.0))] {
        bench.plan(vec![change], vec![]);
        assert!(matches!(bench.alerts()[..], [Alert::PlanRefused { .. }]));
    }
    // Nor can a budget that it exceeds alone.
    bench.hear(Event::BudgetSet(common::constant(100.0)));
    bench.pass(1.0);
    assert_eq!(kinds(&bench.actions()), Vec::<String>::new());
    // Its node is lost, and still nobody tells it anything.
    bench.hear(Event::NodeLost(NodeId(0)));
    bench.pass(1.0);
    assert_eq!(kinds(&bench.actions()), Vec::<String>::new());
    assert_eq!(check::audit(bench.state(), None), []);
    bench.hear(Event::NodeUp(NodeId(0)));
    bench.hear(Event::BudgetSet(None));
    // When it becomes ours it is planned as it runs.
    bench.hear(Event::Foreign { job: JOB, foreign: false });
    bench.hear(Event::Finished(JOB));
    assert_eq!(bench.state().job(JOB).phase, Phase::Finished);
}

/// A start that is under way when it turns out that the job is not ours is neither finished nor
/// undone by us.
#[test]
fn what_turns_out_not_to_be_ours_while_it_starts_is_let_be() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    let start = bench.plan(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    bench.hear(Event::Foreign { job: JOB, foreign: true });
    bench.hear(Event::Failed { action: only(&start) });
    bench.pass(1000.0);
    assert_eq!(kinds(&bench.actions()), Vec::<String>::new());
    assert_eq!(check::audit(bench.state(), None), []);
}

fn barred(nodes: &[u32], over: u32) -> Event {
    let nodes = nodes.iter().copied().map(NodeId).collect();
    Event::Barred { job: JOB, nodes, over, why: Refusal::Nodes }
}

/// It waits for its node to boot when it turns out that it needs two nodes: not only the nodes that
/// rules name count.
#[test]
fn a_rule_that_asks_for_more_nodes_takes_back_what_is_planned_on_fewer() {
    let mut bench = Bench::new(&[(0, 4), (0, 4), (0, 4)], 1, None);
    bench.settle(vec![], (0..3).map(|node| wants(node, Target::Asleep)).collect());
    let wake = bench.plan(vec![runs(0, on(&[(0, 3)], FULL))], vec![wants(0, Target::Up)]);
    assert_eq!(kinds(&wake), ["wake n0"]);
    bench.hear(barred(&[2], 2));
    assert_eq!(check::audit(bench.state(), None), []);
    assert!(bench.state().job(JOB).planned.is_none());
    bench.carry_out(wake);
    assert_eq!(bench.state().job(JOB).phase, Phase::Waiting);
    let start = bench.plan(
        vec![runs(0, on(&[(0, 1), (1, 1)], FULL))],
        vec![wants(0, Target::Up), wants(1, Target::Up)],
    );
    bench.carry_out(start);
    assert_eq!(bench.state().job(JOB).phase, Phase::Running);
}

/// A job that runs is not stopped for a place that it may not have any more.
#[test]
fn a_job_that_was_to_move_where_rules_do_not_let_it_stays() {
    let here = || on(&[(0, 3)], FULL);
    let mut bench = Bench::new(&[(0, 4), (0, 4)], 1, None);
    bench.settle(vec![runs(0, here())], vec![]);
    // It is told to stop after a while only: the first try failed.
    let stop = bench.plan(vec![runs(0, on(&[(1, 3)], FULL))], vec![]);
    bench.hear(Event::Failed { action: only(&stop) });
    bench.hear(barred(&[1], 1));
    assert_eq!(check::audit(bench.state(), None), []);
    assert_eq!(bench.state().job(JOB).planned, Some(here()));
    bench.pass(1000.0);
    assert_eq!(kinds(&bench.actions()), Vec::<String>::new());
    assert_eq!(bench.state().job(JOB).phase, Phase::Running);
}

/// What is under way goes on, and what was planned for later is not done.
#[test]
fn a_job_that_has_left_or_could_not_start_does_not_go_where_rules_do_not_let_it() {
    for nodes in [&[0][..], &[1], &[0, 1]] {
        // It is stopping, to go on elsewhere.
        let mut bench = Bench::new(&[(0, 4), (0, 4)], 1, None);
        bench.settle(vec![runs(0, on(&[(0, 3)], FULL))], vec![]);
        let stop = bench.plan(vec![runs(0, on(&[(1, 3)], FULL))], vec![]);
        bench.hear(barred(nodes, 1));
        assert_eq!(check::audit(bench.state(), None), [], "{nodes:?}");
        bench.hear(confirmation(&stop[0]));
        assert_eq!(check::audit(bench.state(), None), [], "{nodes:?}");
        let starts = !nodes.contains(&1);
        assert_eq!(bench.actions().len(), usize::from(starts), "{nodes:?}");

        // It is starting, and that fails.
        let mut bench = Bench::new(&[(0, 4), (0, 4)], 1, None);
        let start = bench.plan(vec![runs(0, on(&[(0, 3)], FULL))], vec![]);
        bench.hear(barred(nodes, 1));
        assert_eq!(check::audit(bench.state(), None), [], "{nodes:?}");
        bench.hear(Event::Failed { action: only(&start) });
        assert_eq!(check::audit(bench.state(), None), [], "{nodes:?}");
        assert_eq!(bench.state().job(JOB).planned.is_some(), !nodes.contains(&0), "{nodes:?}");
    }
}

/// What rules leave it follows from what it asks for now.
#[test]
fn a_job_that_asks_for_other_nodes_gets_those_that_rules_leave_of_them() {
    let choice = |allowed: &[u32]| {
        let allowed = allowed.iter().copied().map(NodeId).collect();
        Some(Arc::new(NodeChoice { count: 1, required: Box::default(), allowed }))
    };
    let mut bench = Bench::with(&[(0, 4); 4], vec![Job { nodes: choice(&[0, 1]), ..job() }], None);
    bench.hear(barred(&[0, 3], 1));
    assert_eq!(bench.state().job(JOB).nodes().cloned(), choice(&[1]));
    let asked = Arc::new(Job { nodes: choice(&[2, 3]), ..job() });
    bench.hear(Event::Asked { job: JOB, asked });
    assert_eq!(bench.state().job(JOB).nodes().cloned(), choice(&[2]));
    let asked = Arc::new(Job { nodes: choice(&[3]), ..job() });
    bench.hear(Event::Asked { job: JOB, asked });
    assert!(bench.state().job(JOB).is_barred_everywhere());
}

/// Found by random reports: it stayed planned, and the next time load was shed the plan was refused.
#[test]
fn a_job_put_on_hold_while_it_starts_waits_if_the_start_fails() {
    let kept = Job { preemptible: false, ..job() };
    let mut bench = Bench::with(&[(0, 4)], vec![kept], None);
    let start = bench.plan(vec![runs(0, on(&[(0, 3)], FULL))], vec![]);
    bench.hear(Event::OnHold { job: JOB, hold: true });
    bench.hear(Event::Failed { action: only(&start) });
    let job = bench.state().job(JOB);
    assert!(job.planned.is_none() && job.held.is_none(), "{job:?}");
    assert_eq!((job.phase, job.reason), (Phase::Waiting, Reason::OnHold));
    assert_eq!(check::audit(bench.state(), None), []);
}
