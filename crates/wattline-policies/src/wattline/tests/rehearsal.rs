//! What is said of a plan that is tried out.

use super::super::model::{Draft, Problem, Slot};
use super::super::nodes::Spot;
use super::super::objective::Goal;
use super::super::rehearse::{Stage, best};
use super::{job, look_for};
use wattline_core::job::{Bounds, Elasticity, Job, Work};

fn jobs() -> [Job; 2] {
    [1800.0, 3600.0].map(|work| Job { work: Work(work), ..job(0.0, Elasticity::Malleable) })
}

/// The way with this many GPUs of the fast type, at full power.
fn way(problem: &Problem<'_, '_>, item: usize, gpus: u32) -> u32 {
    let of = problem.ways_of(item).filter(|(_, way)| way.shape.gpus == gpus);
    of.max_by(|a, b| a.1.rate.total_cmp(&b.1.rate)).unwrap().0
}

fn slot(way: u32) -> Option<Slot> {
    Some(Slot { way, spot: Spot::new() })
}

fn time(problem: &Problem<'_, '_>, item: usize, way: u32) -> f64 {
    problem.items[item].work / problem.way(way).rate
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

#[test]
fn whoever_waits_starts_when_somebody_ends() {
    look_for(Goal::Jct, 0.0, jobs(), None, |problem| {
        let stage = Stage::new(problem);
        let (first, second) = (way(problem, 0, 4), way(problem, 1, 4));
        let (short, long) = (time(problem, 0, first), time(problem, 1, second));
        let both = stage.play(&vec![slot(first), slot(second)]);
        assert!(close(both, short + long), "{both}");
        let in_turn = stage.play(&vec![slot(first), None]);
        assert!(close(in_turn, short + short + long), "{in_turn}");
        let drafts = vec![vec![slot(first), None], vec![slot(first), slot(second)]];
        assert_eq!(best(problem, drafts)[1], slot(second));
    });
}

#[test]
fn whoever_stays_behind_alone_takes_more_if_that_pays_for_the_restart() {
    look_for(Goal::Jct, 0.0, jobs(), None, |problem| {
        let (narrow, wide) = (way(problem, 1, 1), way(problem, 1, 4));
        let first = way(problem, 0, 4);
        let (end, slow) = (time(problem, 0, first), time(problem, 1, narrow));
        let play = |restart: f64| {
            let mut stage = Stage::new(problem);
            stage.actors[1].restart = restart;
            stage.play(&vec![slot(first), slot(narrow)]) - end
        };
        let left = problem.items[1].work - end * problem.way(narrow).rate;
        let grown = |restart: f64| end + restart + left / problem.way(wide).rate;
        assert!(close(play(10.0), grown(10.0)), "{} {}", play(10.0), grown(10.0));
        assert!(grown(1e4) > slow && close(play(1e4), slow), "{}", play(1e4));
    });
}

#[test]
fn a_restart_now_must_bring_more_than_it_costs() {
    look_for(Goal::Jct, 0.0, jobs(), None, |problem| {
        let (narrow, wide) = (way(problem, 0, 1), way(problem, 0, 4));
        let other = slot(way(problem, 1, 4));
        let costs = |restart: f64, draft: Draft| {
            let mut stage = Stage::new(problem);
            let runs = stage.actors[0].runs.clone();
            stage.actors[0].now = runs.into_iter().find(|run| stage.runs[*run].way == narrow);
            stage.actors[0].restart = restart;
            stage.play(&draft)
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
        let (one, two) = (way(problem, 0, 1), way(problem, 0, 2));
        let stage = Stage::new(problem);
        let costs = [None, slot(one), slot(two)].map(|slot| stage.play(&vec![slot, None]));
        assert!(costs[0] > costs[1] && costs[1] > costs[2], "{costs:?}");
        let drafts = [None, slot(one), slot(two)].map(|slot| vec![slot, None]);
        assert_eq!(best(problem, drafts.to_vec())[0], slot(two));
    });
}
