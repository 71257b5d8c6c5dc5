//! Every way in which a plan can be wrong is found, and named with the right data.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{BASE, Bench, FULL, IDLE, LEAST, SLEEP, job, on, runs, waits, wants};
use std::sync::Arc;
use wattline_core::check::{self, Violation};
use wattline_core::engine::Event;
use wattline_core::ids::{GpuId, GpuTypeId, JobId, NodeId, PlanId};
use wattline_core::job::{Bounds, Elasticity, Job, NodeChoice};
use wattline_core::plan::{JobChange, NodeChange, Plan};
use wattline_core::state::Target;
use wattline_core::units::Watts;

fn judge(
    bench: &Bench,
    jobs: Vec<JobChange>,
    nodes: Vec<NodeChange>,
    budget: Option<f64>,
) -> Vec<Violation> {
    let current = bench.engine.plan_id();
    let plan = Plan { jobs, nodes, ..Plan::unchanged(current) };
    match check::check(bench.state(), plan.clone(), current, budget.map(Watts::new)) {
        Ok(passed) => {
            assert_eq!(passed.plan(), &plan, "what passes is what was asked about");
            Vec::new()
        }
        Err(violations) => {
            assert!(!violations.is_empty());
            violations
        }
    }
}

fn judge_job(bench: &Bench, change: JobChange) -> Vec<Violation> {
    judge(bench, vec![change], vec![], None)
}

const TWO_NODES: &[(u16, u8)] = &[(0, 4), (0, 4)];

#[test]
fn a_sound_plan_passes() {
    let bench = Bench::new(TWO_NODES, 2, None);
    let jobs = vec![runs(0, on(&[(0, 0b11)], FULL)), runs(1, on(&[(0, 0b1100)], LEAST))];
    assert_eq!(judge(&bench, jobs, vec![wants(1, Target::Asleep)], None), []);
}

#[test]
fn a_plan_made_for_another_state_is_stale() {
    let bench = Bench::new(TWO_NODES, 1, None);
    let (based_on, current) = (PlanId(7), bench.engine.plan_id());
    let wrong = check::check(bench.state(), Plan::unchanged(based_on), current, None).unwrap_err();
    assert_eq!(wrong, [Violation::Stale { based_on, current }]);
}

#[test]
fn a_job_that_is_unknown_over_or_held_back_cannot_be_planned() {
    let mut bench = Bench::new(TWO_NODES, 3, None);
    bench.hear(Event::Finished(JobId(1)));
    bench.settle(vec![runs(2, on(&[(0, 1)], FULL))], vec![]);
    // Cancelled, and not yet gone.
    bench.hear(Event::Cancelled(JobId(2)));
    for id in [9, 1, 2] {
        let expected = vec![Violation::NotPlannable(JobId(id))];
        assert_eq!(judge_job(&bench, runs(id, on(&[(1, 1)], FULL))), expected);
        assert_eq!(judge_job(&bench, waits(id)), expected);
    }
}

#[test]
fn a_job_or_a_node_named_twice_is_found() {
    let bench = Bench::new(TWO_NODES, 1, None);
    let jobs = vec![waits(0), runs(0, on(&[(0, 1)], FULL))];
    assert_eq!(judge(&bench, jobs, vec![], None), [Violation::JobTwice(JobId(0))]);
    let nodes = vec![wants(1, Target::Up), wants(1, Target::Asleep)];
    assert_eq!(judge(&bench, vec![], nodes, None), [Violation::NodeTwice(NodeId(1))]);
}

#[test]
fn a_node_that_does_not_exist_is_found_as_a_target_and_as_a_place() {
    let bench = Bench::new(TWO_NODES, 1, None);
    let nodes = vec![wants(2, Target::Up)];
    assert_eq!(judge(&bench, vec![], nodes, None), [Violation::UnknownNode(NodeId(2))]);
    let change = runs(0, on(&[(5, 1)], FULL));
    assert_eq!(judge_job(&bench, change), [Violation::UnknownNode(NodeId(5))]);
}

#[test]
fn a_gpu_given_to_two_jobs_is_found_whether_the_other_is_new_or_stays() {
    let mut bench = Bench::new(TWO_NODES, 2, None);
    let twice = |first, second| Violation::GpuTwice {
        gpu: GpuId { node: NodeId(0), index: 1 },
        first: JobId(first),
        second: JobId(second),
    };
    let both = vec![runs(0, on(&[(0, 0b11)], FULL)), runs(1, on(&[(0, 0b110)], FULL))];
    assert_eq!(judge(&bench, both, vec![], None), [twice(0, 1)]);
    bench.settle(vec![runs(0, on(&[(0, 0b11)], FULL))], vec![]);
    assert_eq!(judge_job(&bench, runs(1, on(&[(0, 0b110)], FULL))), [twice(0, 1)]);
    // The first one goes in the same plan.
    let swap = vec![runs(1, on(&[(0, 0b110)], FULL)), waits(0)];
    assert_eq!(judge(&bench, swap, vec![], None), []);
}

#[test]
fn a_gpu_that_the_node_does_not_have_is_found() {
    let bench = Bench::new(TWO_NODES, 1, None);
    let gpu = GpuId { node: NodeId(1), index: 4 };
    let expected = [Violation::UnknownGpu { job: JobId(0), gpu }];
    assert_eq!(judge_job(&bench, runs(0, on(&[(1, 0b11000)], FULL))), expected);
}

#[test]
fn a_gang_must_be_whole_on_as_many_nodes_as_it_says_and_in_order() {
    let bench = Bench::new(TWO_NODES, 1, None);
    let gang = |gpus, nodes, given, given_nodes| {
        vec![Violation::Gang { job: JobId(0), gpus, nodes, given, given_nodes }]
    };
    let mut short = on(&[(0, 0b111)], FULL);
    short.configuration.gpus = 4;
    assert_eq!(judge_job(&bench, runs(0, short)), gang(4, 1, 3, 1));
    let mut spread = on(&[(0, 0b11), (1, 0b11)], FULL);
    spread.configuration.nodes = 1;
    assert_eq!(judge_job(&bench, runs(0, spread)), gang(4, 1, 4, 2));
    let reversed = on(&[(1, 0b11), (0, 0b11)], FULL);
    assert_eq!(judge_job(&bench, runs(0, reversed)), gang(4, 2, 4, 2));
    let same_node_twice = on(&[(0, 0b01), (0, 0b10)], FULL);
    assert_eq!(judge_job(&bench, runs(0, same_node_twice)), gang(2, 2, 2, 2));
    let empty_share = on(&[(0, 0b1), (1, 0)], FULL);
    assert_eq!(judge_job(&bench, runs(0, empty_share)), gang(1, 2, 1, 2));
}

#[test]
fn a_node_of_another_gpu_type_is_found() {
    let bench = Bench::new(&[(0, 4), (1, 4)], 1, None);
    let expected = [Violation::WrongType { job: JobId(0), node: NodeId(1) }];
    assert_eq!(judge_job(&bench, runs(0, on(&[(1, 1)], FULL))), expected);
}

#[test]
fn a_shape_that_the_job_may_not_take_is_found() {
    let rigid = Job { elasticity: Elasticity::Rigid, ..job() };
    let moldable = Job { elasticity: Elasticity::Moldable, ..job() };
    let mut bench = Bench::with(TWO_NODES, vec![rigid, moldable], None);
    let shape = |id, gpus| vec![Violation::Shape { job: JobId(id), gpus, gpu_type: GpuTypeId(0) }];
    assert_eq!(judge_job(&bench, runs(0, on(&[(0, 0b111)], FULL))), shape(0, 3));
    assert_eq!(judge_job(&bench, runs(1, on(&[(0, 0b111)], FULL))), []);
    // Once it has started, a moldable job keeps its size.
    bench.settle(vec![runs(1, on(&[(0, 0b1)], FULL))], vec![]);
    assert_eq!(judge_job(&bench, runs(1, on(&[(0, 0b111)], FULL))), shape(1, 3));
    // Types that the cluster does not have.
    let mut nowhere = on(&[(0, 0b11)], FULL);
    nowhere.configuration.gpu_type = GpuTypeId(3);
    let expected = [Violation::Shape { job: JobId(0), gpus: 2, gpu_type: GpuTypeId(3) }];
    assert_eq!(judge_job(&bench, runs(0, nowhere)), expected);
}

#[test]
fn a_job_that_may_not_be_preempted_stays_also_when_the_budget_fell() {
    let pinned = Job { preemptible: false, ..job() };
    let mut bench = Bench::with(TWO_NODES, vec![pinned], None);
    let elsewhere = || runs(0, on(&[(1, 0b1)], FULL));
    assert_eq!(judge_job(&bench, elsewhere()), [], "before it has started, it may go anywhere");
    bench.settle(vec![runs(0, on(&[(0, 0b1)], FULL))], vec![]);
    let found = [Violation::Pinned(JobId(0))];
    assert_eq!(judge_job(&bench, elsewhere()), found);
    assert_eq!(judge_job(&bench, waits(0)), found);
    assert_eq!(judge_job(&bench, runs(0, on(&[(0, 0b1)], LEAST))), []);
    let below = Some(bench.state().planned_committed().get() - 1.0);
    assert_eq!(judge(&bench, vec![waits(0)], vec![], below), found);
    let lowered = vec![runs(0, on(&[(0, 0b1)], LEAST))];
    assert_eq!(judge(&bench, lowered, vec![], below), [], "going down is all one can do");
}

/// A job for so many of these nodes, one of which it must have.
fn constrained_job(count: u32, required: &[u32], allowed: &[u32]) -> Job {
    let ids = |ids: &[u32]| ids.iter().map(|id| NodeId(*id)).collect();
    let nodes = NodeChoice { count, required: ids(required), allowed: ids(allowed) };
    Job { preemptible: false, nodes: Some(Arc::new(nodes)), ..job() }
}

const THREE_NODES: &[(u16, u8)] = &[(0, 4), (0, 4), (0, 4)];

#[test]
fn a_constrained_job_gets_nodes_that_it_may_have_as_many_as_it_wants_and_the_same_of_each() {
    let jobs = vec![constrained_job(1, &[], &[1, 2]), constrained_job(2, &[1], &[0, 1, 2])];
    let bench = Bench::with(THREE_NODES, jobs, None);
    let found = |id, shares: &[(u32, u64)]| judge_job(&bench, runs(id, on(shares, FULL)));
    let wrong = |id| vec![Violation::Nodes(JobId(id))];
    assert_eq!(found(0, &[(1, 0b11)]), []);
    assert_eq!(found(0, &[(2, 0b11)]), []);
    assert_eq!(found(0, &[(0, 0b11)]), wrong(0), "a node that it may not have");
    assert_eq!(found(0, &[(1, 0b1), (2, 0b1)]), wrong(0), "two nodes for one");
    assert_eq!(found(1, &[(0, 0b11), (1, 0b1100)]), []);
    assert_eq!(found(1, &[(1, 0b11)]), wrong(1), "one node for two");
    assert_eq!(found(1, &[(0, 0b1), (1, 0b1), (2, 0b11)]), wrong(1), "three nodes for two");
    assert_eq!(found(1, &[(0, 0b11), (2, 0b11)]), wrong(1), "without the one that it must have");
    assert_eq!(found(1, &[(0, 0b111), (1, 0b1)]), wrong(1), "more of one than of the other");
}

#[test]
fn a_constrained_job_that_runs_is_left_alone_and_its_node_awake() {
    let mut bench = Bench::with(THREE_NODES, vec![constrained_job(1, &[], &[0, 1])], None);
    assert_eq!(judge_job(&bench, waits(0)), [], "before it is there, it may be planned");
    bench.settle(vec![runs(0, on(&[(0, 0b11)], FULL))], vec![]);
    let elsewhere = runs(0, on(&[(1, 0b11)], FULL));
    assert_eq!(judge_job(&bench, elsewhere), [Violation::NotPlannable(JobId(0))]);
    assert_eq!(judge_job(&bench, waits(0)), [Violation::Pinned(JobId(0))]);
    assert_eq!(judge_job(&bench, runs(0, on(&[(0, 0b11)], LEAST))), []);
    let not_up = Violation::NodeNotUp { job: JobId(0), node: NodeId(0) };
    assert_eq!(judge(&bench, vec![], vec![wants(0, Target::Asleep)], None), [not_up]);
    let below = Some(bench.state().planned_committed().get() - 1.0);
    let pinned = [Violation::Pinned(JobId(0))];
    assert_eq!(judge(&bench, vec![waits(0)], vec![], below), pinned, "nor does the budget");
}

#[test]
fn only_an_adaptive_job_may_have_another_batch_and_only_within_its_bounds() {
    let adaptive = Job { elasticity: Elasticity::Adaptive, ..job() };
    let bench = Bench::with(TWO_NODES, vec![job(), adaptive], None);
    let with_batch = |id, batch| {
        let mut placement = on(&[(0, 1)], FULL);
        placement.configuration.batch = batch;
        judge_job(&bench, runs(id, placement))
    };
    assert_eq!(with_batch(0, 65), [Violation::Batch { job: JobId(0), batch: 65 }]);
    assert_eq!(with_batch(1, 65), []);
    assert_eq!(with_batch(1, 15), [Violation::Batch { job: JobId(1), batch: 15 }]);
    assert_eq!(with_batch(1, 257), [Violation::Batch { job: JobId(1), batch: 257 }]);
}

#[test]
fn a_limit_out_of_the_cards_range_or_not_a_number_is_found() {
    let bench = Bench::new(TWO_NODES, 1, None);
    for limit in [LEAST - 1.0, 351.0, f64::INFINITY] {
        let expected = [Violation::Limit { job: JobId(0), limit: Watts::new(limit) }];
        assert_eq!(judge_job(&bench, runs(0, on(&[(0, 1)], limit))), expected);
    }
    let not_a_number = judge_job(&bench, runs(0, on(&[(0, 1)], f64::NAN)));
    assert!(matches!(not_a_number[..], [Violation::Limit { job: JobId(0), .. }]));
}

#[test]
fn a_job_on_a_node_that_is_lost_or_shall_sleep_is_found() {
    let mut bench = Bench::new(TWO_NODES, 2, None);
    let not_up = |job, node| Violation::NodeNotUp { job: JobId(job), node: NodeId(node) };
    let onto = vec![runs(0, on(&[(0, 1)], FULL))];
    let sleeps = vec![wants(0, Target::Asleep)];
    assert_eq!(judge(&bench, onto, sleeps.clone(), None), [not_up(0, 0)]);
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    assert_eq!(judge(&bench, vec![], sleeps, None), [not_up(0, 0)]);
    bench.hear(Event::NodeLost(NodeId(1)));
    assert_eq!(judge_job(&bench, runs(1, on(&[(1, 1)], FULL))), [not_up(1, 1)]);
}

#[test]
fn a_plan_above_the_budget_is_found_with_what_it_commits() {
    let bench = Bench::new(TWO_NODES, 1, None);
    let committed = 2.0 * BASE + 6.0 * IDLE + 2.0 * FULL;
    let change = || vec![runs(0, on(&[(0, 0b11)], FULL))];
    assert_eq!(judge(&bench, change(), vec![], Some(committed)), []);
    let wrong = judge(&bench, change(), vec![], Some(committed - 1.0));
    let (committed, budget) = (Watts::new(committed), Watts::new(committed - 1.0));
    assert_eq!(wrong, [Violation::OverBudget { committed, budget }]);
    // A node that sleeps makes room.
    assert_eq!(judge(&bench, change(), vec![wants(1, Target::Asleep)], Some(budget.get())), []);
}

#[test]
fn above_the_budget_a_plan_may_only_go_down() {
    let mut bench = Bench::new(TWO_NODES, 2, None);
    bench.settle(vec![runs(0, on(&[(0, 0b11)], FULL))], vec![]);
    let budget = Some(2.0 * SLEEP);
    assert_eq!(judge(&bench, vec![runs(0, on(&[(0, 0b11)], LEAST))], vec![], budget), []);
    assert_eq!(judge(&bench, vec![], vec![wants(1, Target::Asleep)], budget), []);
    // Down by 2 × 200 W on one node does not excuse up by 50 W on another.
    let trade = vec![runs(0, on(&[(0, 0b11)], LEAST)), runs(1, on(&[(1, 1)], LEAST))];
    let wrong = judge(&bench, trade, vec![], budget);
    assert!(matches!(wrong[..], [Violation::OverBudget { .. }]), "{wrong:?}");
}

#[test]
fn the_audit_says_when_what_is_held_is_above_the_budget() {
    let bench = Bench::new(TWO_NODES, 0, None);
    let idle = Watts::new(2.0 * (BASE + 4.0 * IDLE));
    assert_eq!(check::audit(bench.state(), Some(idle)), []);
    let budget = idle - Watts::new(1.0);
    let expected = [Violation::OverBudget { committed: idle, budget }];
    assert_eq!(check::audit(bench.state(), Some(budget)), expected);
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let bounds = Bounds::exactly(2);
    let bench = Bench::with(TWO_NODES, vec![Job { gpus: bounds, ..job() }, job()], None);
    let mut bad = on(&[(0, 0b100001)], 10.0);
    bad.configuration.batch = 1;
    let wrong = judge(&bench, vec![runs(0, bad), waits(8)], vec![wants(4, Target::Up)], None);
    let gpu = GpuId { node: NodeId(0), index: 5 };
    let expected = [
        Violation::UnknownNode(NodeId(4)),
        Violation::Batch { job: JobId(0), batch: 1 },
        Violation::Limit { job: JobId(0), limit: Watts::new(10.0) },
        Violation::UnknownGpu { job: JobId(0), gpu },
        Violation::NotPlannable(JobId(8)),
    ];
    assert_eq!(wrong, expected);
}
