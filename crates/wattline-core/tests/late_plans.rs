//! What becomes of a plan that was made beside the engine, when other things happened meanwhile:
//! one test for each clause of the rule that `engine/planning.rs` states.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{BASE, Bench, FULL, SLEEP, constant, job, on, runs, waits, wants};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::effort::Effort;
use wattline_core::engine::{Engine, Event, PlanRequest, Verdict};
use wattline_core::ids::{JobId, NodeId, PlanId};
use wattline_core::plan::{JobChange, NodeChange, Plan};
use wattline_core::policy::Changes;
use wattline_core::state::Target;

const TWO_NODES: &[(u16, u8)] = &[(0, 4), (0, 4)];

/// An engine that has asked for a plan.
struct Asked {
    engine: Engine<'static>,
    now: Timestamp,
    request: PlanRequest,
    plan: PlanId,
}

impl Asked {
    fn of(bench: Bench) -> Self {
        let now = bench.now;
        let mut engine = bench.engine.into_engine();
        engine.plan_again(now);
        let input = engine.fork_for_planning(now).unwrap();
        let plan = input.view(engine.predictor(), Effort::FULL).plan;
        Self { engine, now, request: input.into_request(), plan }
    }

    /// So many equal jobs wait on two nodes.
    fn idle(jobs: usize) -> Self {
        Self::of(Bench::new(TWO_NODES, jobs, None))
    }

    /// Job 0 runs on two GPUs of the first node, the others wait.
    fn busy(jobs: usize) -> Self {
        let mut bench = Bench::new(TWO_NODES, jobs, None);
        bench.settle(vec![runs(0, on(&[(0, 0b11)], FULL))], vec![]);
        Self::of(bench)
    }

    fn hear(&mut self, event: Event) {
        self.engine.handle(self.now, event).unwrap();
    }

    fn judge(&mut self, jobs: Vec<JobChange>, nodes: Vec<NodeChange>) -> Verdict {
        let plan = Plan { jobs, nodes, ..Plan::unchanged(self.plan) };
        self.engine.judge(self.now, &self.request, plan)
    }

    /// What is left of a plan, and how much was dropped.
    fn left(&mut self, jobs: Vec<JobChange>, nodes: Vec<NodeChange>) -> (Plan, usize) {
        match self.judge(jobs, nodes) {
            Verdict::Good { plan, dropped } => (plan.plan().clone(), dropped),
            other => panic!("{other:?}"),
        }
    }

    /// Whether a plan is wanted next, which looks at everything.
    fn looks_again(&mut self) -> bool {
        let Some(input) = self.engine.fork_for_planning(self.now) else { return false };
        let view = input.view(self.engine.predictor(), Effort::FULL);
        matches!(view.changes, Changes::Everything)
    }
}

fn jobs_of(plan: &Plan) -> Vec<JobId> {
    plan.jobs.iter().map(|change| change.job).collect()
}

#[test]
fn what_others_did_meanwhile_leaves_a_plan_as_it_is() {
    let mut asked = Asked::idle(2);
    // A third job comes, and the prices change.
    asked.hear(Event::Submitted(Arc::new(job())));
    asked.hear(Event::PricesSet(wattline_core::prices::Prices::default()));
    let jobs = vec![runs(0, on(&[(0, 0b11)], FULL)), runs(1, on(&[(1, 0b11)], FULL))];
    let (plan, dropped) = asked.left(jobs.clone(), vec![]);
    assert_eq!((plan.jobs, dropped), (jobs, 0));
    assert!(asked.looks_again(), "the third job is planned for next");
}

#[test]
fn a_change_of_a_job_that_has_changed_is_dropped() {
    for happens in [
        Event::Cancelled(JobId(0)),
        Event::Asked { job: JobId(0), asked: Arc::new(job()) },
        Event::Found { job: JobId(0), placement: on(&[(0, 0b11)], FULL) },
    ] {
        let mut asked = Asked::idle(2);
        let what = format!("{happens:?}");
        asked.hear(happens);
        let jobs = vec![runs(0, on(&[(0, 0b1100)], FULL)), runs(1, on(&[(1, 0b11)], FULL))];
        let (plan, dropped) = asked.left(jobs, vec![]);
        assert_eq!((jobs_of(&plan), dropped), (vec![JobId(1)], 1), "{what}");
        assert!(asked.looks_again(), "{what}");
    }
}

#[test]
fn a_change_on_a_node_that_has_changed_is_dropped() {
    for happens in [Event::NodeLost(NodeId(1)), Event::NodeClosed(NodeId(1))] {
        let mut asked = Asked::idle(3);
        asked.hear(happens);
        let jobs = vec![
            runs(0, on(&[(0, 0b11)], FULL)),
            runs(1, on(&[(1, 0b11)], FULL)),
            // A part of it is there.
            runs(2, on(&[(0, 0b1000), (1, 0b1000)], FULL)),
        ];
        let (plan, dropped) = asked.left(jobs, vec![wants(1, Target::Asleep)]);
        assert_eq!((jobs_of(&plan), dropped), (vec![JobId(0)], 3));
        assert!(plan.nodes.is_empty());
        assert!(asked.looks_again());
    }
}

/// The job that was to profit may be the one whose change was dropped.
#[test]
fn nobody_is_taken_off_gpus_where_anything_was_dropped() {
    let makes_room =
        || vec![waits(0), runs(1, on(&[(0, 0b1111)], FULL)), runs(2, on(&[(1, 0b11)], FULL))];
    let mut asked = Asked::busy(3);
    asked.hear(Event::Cancelled(JobId(1)));
    let (plan, dropped) = asked.left(makes_room(), vec![]);
    assert_eq!((jobs_of(&plan), dropped), (vec![JobId(2)], 2));
    // Nor is it moved.
    let mut asked = Asked::busy(3);
    asked.hear(Event::Cancelled(JobId(1)));
    let mut moves = makes_room();
    moves[0] = runs(0, on(&[(1, 0b1100)], FULL));
    assert_eq!(jobs_of(&asked.left(moves, vec![]).0), [JobId(2)]);
    // Its limit may change: it keeps its GPUs.
    let mut asked = Asked::busy(3);
    asked.hear(Event::Cancelled(JobId(1)));
    let mut limits = makes_room();
    limits[0] = runs(0, on(&[(0, 0b11)], 200.0));
    let (plan, dropped) = asked.left(limits, vec![]);
    assert_eq!((jobs_of(&plan), dropped), (vec![JobId(0), JobId(2)], 1));
    // Where nothing was dropped, it makes room.
    let mut asked = Asked::busy(3);
    asked.hear(Event::Submitted(Arc::new(job())));
    assert_eq!(asked.left(makes_room(), vec![]).1, 0);
}

#[test]
fn a_start_on_gpus_that_stay_with_another_is_dropped() {
    let mut asked = Asked::busy(3);
    asked.hear(Event::NodeClosed(NodeId(1)));
    // The first job was to move to the second node, which is closed now.
    let jobs = vec![
        runs(0, on(&[(1, 0b11)], FULL)),
        runs(1, on(&[(0, 0b110)], FULL)),
        runs(2, on(&[(0, 0b1000)], FULL)),
    ];
    let (plan, dropped) = asked.left(jobs, vec![]);
    assert_eq!((jobs_of(&plan), dropped), (vec![JobId(2)], 2));
}

#[test]
fn a_node_does_not_go_to_sleep_under_a_job_whose_move_was_dropped() {
    let mut asked = Asked::busy(1);
    asked.hear(Event::NodeClosed(NodeId(1)));
    let moves = vec![runs(0, on(&[(1, 0b11)], FULL))];
    let (plan, dropped) = asked.left(moves, vec![wants(0, Target::Asleep)]);
    assert_eq!((plan.is_empty(), dropped), (true, 2));
}

#[test]
fn what_is_left_and_breaks_a_rule_is_stale_and_nobodys_fault() {
    let mut asked = Asked::idle(2);
    // Room for one of the jobs, and not for both.
    let one = BASE + 4.0 * FULL + SLEEP;
    asked.hear(Event::BudgetSet(constant(one)));
    let jobs = vec![runs(0, on(&[(0, 0b1111)], FULL)), runs(1, on(&[(1, 0b1111)], FULL))];
    let verdict = asked.judge(jobs, vec![]);
    assert!(matches!(verdict, Verdict::Stale), "{verdict:?}");
    assert_eq!(asked.engine.stats().refused, 0);
    assert!(asked.looks_again());
}

/// Nobody would plan at that time, or ever again if nothing else happens.
#[test]
fn a_time_to_plan_again_that_has_passed_meanwhile_is_now() {
    let at = |seconds: f64| Timestamp::from_seconds(seconds);
    for (wants, expected) in [(100.0, 100.0), (5.0, 20.0)] {
        let mut asked = Asked::idle(1);
        asked.now = at(20.0);
        asked.hear(Event::PricesSet(wattline_core::prices::Prices::default()));
        while asked.engine.fork_for_planning(asked.now).is_some() {}
        let plan = Plan { revisit: Some(at(wants)), ..Plan::unchanged(asked.plan) };
        let verdict = asked.engine.judge(asked.now, &asked.request, plan);
        assert!(matches!(verdict, Verdict::Good { dropped: 0, .. }), "{verdict:?}");
        assert_eq!(asked.engine.poll_timeout(), Some(at(expected)));
    }
}

#[test]
fn a_plan_for_the_present_state_that_breaks_a_rule_is_refused() {
    let mut asked = Asked::idle(2);
    let twice = vec![runs(0, on(&[(0, 0b11)], FULL)), runs(1, on(&[(0, 0b11)], FULL))];
    let verdict = asked.judge(twice, vec![]);
    assert!(matches!(verdict, Verdict::Refused(_)), "{verdict:?}");
}
