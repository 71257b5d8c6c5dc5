//! What holds for every policy, on every cluster, whatever goes wrong.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::drive::{Watch, run};
use common::{
    ANYTHING, CALM_AND_CONSTANT, CALM_AND_FEASIBLE, CALM_AND_TIGHT, DISTURBED_BUT_FEASIBLE, SPECS,
    cases, scenario,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::BTreeMap;
use std::sync::Arc;

fn holds_for_all(scenario: &common::Scenario, watch: Watch) -> Result<(), TestCaseError> {
    // A search that goes on from the plan in force may find a better one when it is asked again.
    for spec in SPECS.into_iter().filter(|s| !(watch.idempotence && s.starts_with("wattline"))) {
        run(scenario, spec, watch).map_err(TestCaseError::fail)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(256, 1))]

    #[test]
    fn no_plan_is_refused_and_committed_power_never_rises_above_the_budget(
        scenario in scenario(ANYTHING),
    ) {
        holds_for_all(&scenario, Watch::default())?;
    }
}

proptest! {
    #![proptest_config(cases(256, 2))]

    #[test]
    fn planning_with_the_index_equals_planning_from_scratch(scenario in scenario(ANYTHING)) {
        holds_for_all(&scenario, Watch { scratch: true, ..Watch::default() })?;
    }
}

proptest! {
    #![proptest_config(cases(256, 3))]

    #[test]
    fn every_job_that_fits_ends_when_nothing_goes_wrong(scenario in scenario(CALM_AND_FEASIBLE)) {
        holds_for_all(&scenario, Watch { liveness: true, ..Watch::default() })?;
    }
}

proptest! {
    #![proptest_config(cases(256, 4))]

    #[test]
    fn every_job_that_fits_ends_once_things_stop_going_wrong(
        scenario in scenario(DISTURBED_BUT_FEASIBLE),
    ) {
        holds_for_all(&scenario, Watch { liveness: true, ..Watch::default() })?;
    }
}

proptest! {
    #![proptest_config(cases(256, 8))]

    #[test]
    fn a_job_that_the_budget_carries_ends_even_if_others_never_can(
        scenario in scenario(CALM_AND_TIGHT),
    ) {
        holds_for_all(&scenario, Watch { liveness: true, ..Watch::default() })?;
    }
}

proptest! {
    #![proptest_config(cases(256, 5))]

    #[test]
    fn a_constant_budget_that_carries_a_job_is_never_exceeded(
        scenario in scenario(CALM_AND_CONSTANT),
    ) {
        holds_for_all(&scenario, Watch { never_exceeded: true, ..Watch::default() })?;
    }
}

proptest! {
    #![proptest_config(cases(256, 6))]

    /// Jobs that may not be moved once they hold something make the second plan another problem. So
    /// do constrained jobs: what a policy gives up in one plan they may take in the next.
    #[test]
    fn planning_again_at_the_same_instant_changes_nothing(
        mut scenario in scenario(ANYTHING.without_constraints()),
    ) {
        for job in &mut scenario.jobs {
            Arc::make_mut(job).preemptible = true;
        }
        holds_for_all(&scenario, Watch { idempotence: true, ..Watch::default() })?;
    }
}

proptest! {
    #![proptest_config(cases(256, 10))]

    /// What holds of `wattline` instead: nobody is sent to and fro before it has got anywhere.
    #[test]
    fn planning_again_at_the_same_instant_leaves_those_on_their_way_alone(scenario in scenario(ANYTHING)) {
        for spec in SPECS.into_iter().filter(|spec| spec.starts_with("wattline")) {
            run(&scenario, spec, Watch { on_the_way: true, ..Watch::default() })
                .map_err(TestCaseError::fail)?;
        }
    }
}

proptest! {
    #![proptest_config(cases(256, 7))]

    #[test]
    fn hearing_news_twice_does_no_harm(scenario in scenario(ANYTHING)) {
        holds_for_all(&scenario, Watch { twice: true, ..Watch::default() })?;
    }
}

#[test]
fn the_random_runs_go_through_everything_that_can_happen() {
    let mut runner = TestRunner::new(cases(1, 9));
    let strategy = scenario(ANYTHING);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut finished = 0;
    for _ in 0..64 {
        let scenario = strategy.new_tree(&mut runner).unwrap().current();
        for spec in SPECS {
            let ran = run(&scenario, spec, Watch::default()).unwrap();
            finished += ran.finished;
            for (kind, count) in ran.seen {
                *seen.entry(kind).or_default() += count;
            }
        }
    }
    for kind in [
        "Start",
        "Stop",
        "Limit",
        "Wake",
        "Sleep",
        "BudgetFell",
        "NeverFits",
        "StartGivenUp",
        "StopGivenUp",
        "LimitGivenUp",
        "WakeGivenUp",
        "SleepGivenUp",
    ] {
        assert!(seen.get(kind).is_some_and(|count| *count >= 5), "{kind}: {seen:?}");
    }
    assert!(finished > 64 * SPECS.len(), "{finished} jobs finished");
}
