//! What rollouts say of candidate plans.

use super::super::model::{Draft, Problem, Slot};
use super::super::nodes::Spot;
use super::super::objective::Goal;
use super::super::rollout::{Rollout, best};
use super::{job, look_for};
use wattline_core::job::{Bounds, Elasticity, Job, Work};

fn jobs() -> [Job; 2] {
    [1800.0, 3600.0].map(|work| Job { work: Work(work), ..job(0.0, Elasticity::Malleable) })
}

/// The candidate with this many GPUs of the fast type, at full power.
fn candidate(problem: &Problem<'_, '_>, item: usize, gpus: u32) -> u32 {
    let of = problem.candidates_of(item).iter().filter(|candidate| candidate.shape.gpus == gpus);
    of.max_by(|a, b| a.rate.total_cmp(&b.rate)).unwrap().index
}

fn slot(candidate: u32) -> Option<Slot> {
    Some(Slot { candidate, spot: Spot::new() })
}

fn time(problem: &Problem<'_, '_>, item: usize, candidate: u32) -> f64 {
    problem.items[item].work / problem.candidate(candidate).rate
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

#[test]
fn a_waiting_job_starts_when_another_ends() {
    look_for(Goal::Jct, 0.0, jobs(), None, |problem| {
        let rollout = Rollout::new(problem);
        let (first, second) = (candidate(problem, 0, 4), candidate(problem, 1, 4));
        let (short, long) = (time(problem, 0, first), time(problem, 1, second));
        let both = rollout.cost(&vec![slot(first), slot(second)]);
        assert!(both <= short + long + 1e-6, "{both} {short} {long}");
        let in_turn = rollout.cost(&vec![slot(first), None]);
        // It starts when the first ends, and is no faster than with all GPUs.
        let most = problem.items[1].work / problem.top_speed(&problem.items[1]);
        assert!(in_turn >= short + short + most - 1e-6, "{in_turn}");
        assert!(in_turn <= short + short + long + 1e-6, "{in_turn}");
        let drafts = vec![vec![slot(first), None], vec![slot(first), slot(second)]];
        assert_eq!(best(problem, drafts)[1], slot(second));
    });
}

#[test]
fn a_job_left_alone_takes_more_if_that_pays_for_the_restart() {
    look_for(Goal::Jct, 0.0, jobs(), None, |problem| {
        let narrow = candidate(problem, 1, 1);
        let first = candidate(problem, 0, 4);
        let (end, slow) = (time(problem, 0, first), time(problem, 1, narrow));
        let mut cost = |restart: f64| {
            problem.items[1].restart = restart;
            Rollout::new(problem).cost(&vec![slot(first), slot(narrow)]) - end
        };
        let costs = [10.0, 1e6].map(&mut cost);
        let left = problem.items[1].work - end * problem.candidate(narrow).rate;
        let grown = end + 10.0 + left / problem.top_speed(&problem.items[1]);
        assert!(close(costs[0], grown), "{} {grown}", costs[0]);
        assert!(close(costs[1], slow), "{} {slow}", costs[1]);
    });
}

#[test]
fn a_restart_now_must_bring_more_than_it_costs() {
    look_for(Goal::Jct, 0.0, jobs(), None, |problem| {
        let (narrow, wide) = (candidate(problem, 0, 1), candidate(problem, 0, 4));
        let other = slot(candidate(problem, 1, 4));
        (problem.items[0].now, problem.items[0].runs) = (slot(narrow), true);
        let mut costs = |restart: f64, draft: Draft| {
            problem.items[0].restart = restart;
            Rollout::new(problem).cost(&draft)
        };
        for (restart, moves) in [(0.0, true), (20.0, true), (1e4, false)] {
            let stays = costs(restart, vec![slot(narrow), other.clone()]);
            let moved = costs(restart, vec![slot(wide), other.clone()]);
            assert_eq!(moved < stays, moves, "{restart} s: {moved} against {stays}");
        }
    });
}

#[test]
fn a_job_that_never_starts_does_not_hide_what_others_gain() {
    let [short, long] = jobs();
    let huge = Job { gpus: Bounds { min: 4, max: 4, requested: 4 }, ..long };
    // There are watts for some GPUs, but never for four.
    look_for(Goal::Jct, 0.0, [short, huge], Some(500.0), |problem| {
        let (one, two) = (candidate(problem, 0, 1), candidate(problem, 0, 2));
        let rollout = Rollout::new(problem);
        let costs = [None, slot(one), slot(two)].map(|slot| rollout.cost(&vec![slot, None]));
        assert!(costs[0] > costs[1] && costs[1] > costs[2], "{costs:?}");
        let drafts = [None, slot(one), slot(two)].map(|slot| vec![slot, None]);
        assert_eq!(best(problem, drafts.to_vec())[0], slot(two));
    });
}
