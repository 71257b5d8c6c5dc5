//! The search: nodes are filled at several levels of prices, and the best of these plans is taken.
//!
//! The market's prices are right for all jobs together and over hours. At one moment more or fewer
//! GPUs may be free than it reckons with, so nodes are filled at dearer and cheaper levels too.

use super::anneal;
use super::downshift;
use super::fill::{Filled, Filler};
use super::market::{Level, Market, USUAL};
use super::model::{Draft, Problem};
use super::rollout;
use super::waiting::Company;
use crate::ordered_par_map::ordered_par_map;

/// How much to search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// Bounds the bidding and the plans tried; more jobs take more of it.
    pub(super) work: u64,
    pub(super) seed: u64,
}

/// The best plan found.
pub(super) fn search(problem: &Problem<'_, '_>, bounds: &Search) -> Draft {
    let market = Market::new(problem, bounds.work);
    let filler = Filler { problem, market: &market, company: Company::new(problem) };
    if problem.deadlines { cheapest(&filler, bounds) } else { soonest(&filler, bounds) }
}

/// What counts is cost.
fn cheapest(filler: &Filler<'_, '_, '_>, bounds: &Search) -> Draft {
    let problem = filler.problem;
    let mut best: Option<Filled> = None;
    for other in fill(filler, bounds) {
        if best.as_ref().is_none_or(|best| other.gain > best.gain + 1e-9 * best.gain.abs()) {
            best = Some(other);
        }
    }
    let best = best.map(|best| best.draft).unwrap_or_default();
    let order = || filler.order(USUAL);
    let mut best = anneal::anneal(problem, &best, order, bounds).unwrap_or(best);
    if problem.tuning.downshift {
        downshift::downshift(problem, &mut best);
    }
    best
}

/// What counts is time.
fn soonest(filler: &Filler<'_, '_, '_>, bounds: &Search) -> Draft {
    let problem = filler.problem;
    let jobs = problem.items.len() as u64;
    let tuning = problem.tuning;
    // A rollout takes the square of the jobs.
    if jobs.saturating_mul(jobs) > bounds.work || !tuning.rollouts {
        let draft = filler.share(tuning.split_restarts[0]);
        if problem.broken_promises(&draft) == 0 {
            return draft;
        }
        return filler.fill(USUAL, false).draft;
    }
    let splits = if tuning.splits { &tuning.split_restarts[..] } else { &[] };
    let mut drafts = ordered_par_map(splits, |restarts| filler.share(*restarts));
    drafts.extend(fill(filler, bounds).into_iter().map(|filled| filled.draft));
    rollout::best(problem, drafts)
}

/// Nodes filled at all levels of prices.
fn fill(filler: &Filler<'_, '_, '_>, bounds: &Search) -> Vec<Filled> {
    let problem = filler.problem;
    let tuning = problem.tuning;
    let watts =
        if problem.budget.is_finite() { &tuning.watt_levels[..] } else { &tuning.watt_levels[..1] };
    let gpus = if tuning.price_levels { &tuning.gpu_levels[..] } else { &[] };
    let levels = gpus
        .iter()
        .flat_map(|gpus| watts.iter().map(|watts| (Level { gpus: *gpus, watts: *watts }, false)));
    let affordable = bounds.work / (tuning.fill_work_per_job * problem.items.len().max(1)) as u64;
    let mut fills = vec![(USUAL, false), (USUAL, true)];
    fills.extend(levels.skip(1).take(affordable as usize));
    ordered_par_map(&fills, |(level, keep)| filler.fill(*level, *keep))
}
