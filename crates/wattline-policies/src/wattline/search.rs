//! The search: nodes are filled at several levels of prices, and the best of these plans is taken.
//!
//! The market's prices are right for all jobs together and over hours. At one moment more or fewer
//! GPUs may be free than it reckons with, so nodes are filled at dearer and cheaper levels too.

use super::complete;
use super::fill::{Filled, Filler};
use super::market::{Level, Market};
use super::model::{Draft, Problem};
use super::waiting::Company;

/// How much to search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Bounds the bidding and the plans tried; more jobs take more of it.
    pub(super) work: u64,
    pub(super) seed: u64,
}

/// Factors on the prices of GPUs and watts, those first that promise most.
const GPUS: [f64; 6] = [1.0, 0.5, 0.25, 0.0, 2.0, 0.1];
const WATTS: [f64; 4] = [1.0, 2.0, 0.3, 4.0];
/// Jobs looked at while nodes are filled count so many times as work.
const WORK_PER_JOB: u64 = 10;

/// The best plan found.
pub(super) fn search(problem: &Problem<'_, '_>, effort: &Effort) -> Draft {
    let market = Market::new(problem, effort.work);
    let filler = Filler { problem, market: &market, company: Company::new(problem) };
    if problem.shares {
        let draft = filler.share();
        if problem.broken_promises(&draft) == 0 {
            return draft;
        }
    }
    let usual = Level { gpus: 1.0, watts: 1.0 };
    let mut best = filler.fill(usual, false);
    let mut take = |other: Filled| {
        if other.gain > best.gain + 1e-9 * best.gain.abs() {
            best = other;
        }
    };
    take(filler.fill(usual, true));
    let watts = if problem.budget.is_finite() { &WATTS[..] } else { &WATTS[..1] };
    let levels = GPUS.iter().flat_map(|gpus| watts.iter().map(|watts| (*gpus, *watts)));
    let affordable = effort.work / (WORK_PER_JOB * problem.items.len().max(1) as u64);
    for (gpus, watts) in levels.skip(1).take(affordable as usize) {
        take(filler.fill(Level { gpus, watts }, false));
    }
    let order = || filler.order(usual);
    let restarts = |draft: &Draft| restarts(problem, draft);
    complete::complete(problem, &best.draft, order, restarts, effort).unwrap_or(best.draft)
}

/// What is lost by a restart counts so many times where whole schedules are judged.
const RESTARTS: f64 = 2.5;
/// And a part of what the rest of the job's energy costs.
const ENERGY: f64 = 0.1;

/// What the draft's restarts must gain beyond what they cost.
fn restarts(problem: &Problem<'_, '_>, draft: &Draft) -> f64 {
    let mut sum = 0.0;
    for (at, (item, slot)) in problem.items.iter().zip(draft).enumerate() {
        let Some(now) = item.now.as_ref().filter(|_| item.runs) else { continue };
        if !slot.as_ref().is_some_and(|slot| problem.stays(at, slot)) {
            let way = problem.way(now.way);
            let time = item.work / way.rate + item.restart;
            let own = way.gpus() * way.power.max(100.0);
            sum += ENERGY * problem.prices.watt(0.0, time) * own;
            sum += item.weight * item.restart * RESTARTS;
        }
    }
    problem.hysteresis * sum
}
