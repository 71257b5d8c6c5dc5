//! Steps come in the order in which power is safe.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Bench, FULL, LEAST, kinds, on, runs, waits, wants};
use wattline_core::diff::{Step, diff};
use wattline_core::engine::Event;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::state::Target;

/// Jobs 0 to 2 run, node 4 sleeps; the next plan asks for one step of every kind.
fn one_of_each() -> (Bench, Vec<wattline_core::action::Action>) {
    let mut bench = Bench::new(&[(0, 4); 5], 4, None);
    let running = vec![
        runs(0, on(&[(0, 0b1)], FULL)),
        runs(1, on(&[(1, 0b1)], FULL)),
        runs(2, on(&[(2, 0b1)], LEAST)),
    ];
    bench.settle(running, vec![wants(4, Target::Asleep)]);
    // Named in the reverse of the order wanted.
    let actions = bench.plan(
        vec![
            runs(3, on(&[(1, 0b10)], FULL)),
            runs(2, on(&[(2, 0b1)], FULL)),
            runs(1, on(&[(1, 0b1)], LEAST)),
            waits(0),
        ],
        vec![wants(4, Target::Up), wants(3, Target::Asleep)],
    );
    (bench, actions)
}

#[test]
fn what_lowers_power_comes_before_what_raises_it_and_waking_before_starting() {
    let (_, actions) = one_of_each();
    let expected = ["stop j0", "limit j1 100", "sleep n3", "wake n4", "limit j2 300", "start j3"];
    assert_eq!(kinds(&actions), expected);
}

#[test]
fn steps_that_failed_are_found_again_in_the_same_order() {
    let (mut bench, actions) = one_of_each();
    for action in actions.iter().rev() {
        bench.hear(Event::Failed { action: action.id });
    }
    assert_eq!(kinds(&bench.actions()), [""; 0], "nothing is tried again at once");
    let mut steps = vec![Step::Start(JobId(99))];
    let jobs: Vec<JobId> = [3, 2, 1, 0].map(JobId).into();
    diff(bench.state(), &jobs, &[NodeId(4), NodeId(3), NodeId(0)], &mut steps);
    let expected = [
        Step::Stop(JobId(0)),
        Step::LowerLimit(JobId(1)),
        Step::Sleep(NodeId(3)),
        Step::Wake(NodeId(4)),
        Step::RaiseLimit(JobId(2)),
        Step::Start(JobId(3)),
    ];
    assert_eq!(steps, expected);
}

#[test]
fn among_equals_the_order_given_stays() {
    let mut bench = Bench::new(&[(0, 4)], 3, None);
    let actions = bench.plan(
        vec![
            runs(2, on(&[(0, 0b100)], FULL)),
            runs(0, on(&[(0, 0b001)], FULL)),
            runs(1, on(&[(0, 0b010)], FULL)),
        ],
        vec![],
    );
    assert_eq!(kinds(&actions), ["start j2", "start j0", "start j1"]);
}

#[test]
fn what_is_as_planned_or_under_way_has_no_step() {
    let mut bench = Bench::new(&[(0, 4), (0, 4)], 2, None);
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    bench.plan(vec![runs(1, on(&[(0, 2)], FULL))], vec![wants(1, Target::Asleep)]);
    let mut steps = Vec::new();
    diff(bench.state(), &[JobId(0), JobId(1)], &[NodeId(0), NodeId(1)], &mut steps);
    assert_eq!(steps, []);
}

#[test]
fn another_place_or_size_is_a_stop_first_and_a_start_after_it() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    bench.settle(vec![runs(0, on(&[(0, 0b1)], FULL))], vec![]);
    let actions = bench.plan(vec![runs(0, on(&[(0, 0b11)], FULL))], vec![]);
    assert_eq!(kinds(&actions), ["stop j0"]);
    bench.hear(common::confirmation(&actions[0]));
    assert_eq!(kinds(&bench.actions()), ["start j0"]);
}
