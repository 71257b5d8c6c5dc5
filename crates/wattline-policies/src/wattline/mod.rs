//! Wattline's own policy. A plan is made from a `Problem`: the view in dense numbers (`model.rs`),
//! with the candidates of each job (`candidates.rs`: shape, batch, power limit), what is free on
//! nodes (`nodes.rs`), what a joule costs when (`prices.rs`) and jobs that are expected
//! (`arrivals.rs`).
//!
//! 1. **Generators** make plans.
//!    - `market.rs`: jobs bid for GPU time and watts until prices over the hours to come balance
//!      demand and supply. `fill.rs`: at these prices, and at dearer and cheaper ones, nodes are
//!      filled; the job that loses most by waiting goes first, in its cheapest candidate.
//!    - `share.rs`: where completion time counts, GPUs are also split by marginal gain.
//!    - `reservations.rs`: where most jobs must keep what they get, all jobs get reservations in
//!      one complete schedule instead.
//! 2. **Evaluators** choose one. `objective.rs`: what is minimised. `costs.rs`: what a candidate
//!    costs in lateness, energy and restarts. `fill.rs`: what running now gains against a later
//!    start. `rollout.rs`: all jobs run to their ends, where completion time counts.
//! 3. **Moves** improve it. `anneal.rs`: few jobs change node, turn and candidate. `downshift.rs`:
//!    a job that had to hurry goes on frugally. `waiting.rs`: a job waits on purpose, for cheaper
//!    energy or a shared node. `starvation.rs`: overdue jobs come first.
//! 4. **Constants**: all of them are in `constants.rs`; `wattline bench ablation` prints what each
//!    is worth.
//!
//! `settle.rs` turns the result into a plan with GPUs, nodes and reasons. In detail: the book,
//! `docs/src/explanation/wattline.md`.

mod anneal;
mod arrivals;
mod candidates;
mod constants;
mod costs;
mod downshift;
mod fill;
mod market;
mod model;
mod nodes;
mod objective;
mod prices;
mod reservations;
mod rollout;
mod settle;
mod share;
mod starvation;
#[cfg(test)]
mod tests;
mod waiting;

use crate::ordered_par_map::ordered_par_map;
use candidates::{Candidate, CandidateCache};
pub(crate) use constants::Tuning;
use fill::{Filled, Filler};
use market::{Level, Market, USUAL};
use model::{Class, Draft, Item, Problem, Slot};
use nodes::{NO_CLASS, Nodes, Spot};
pub(crate) use objective::Goal;
use objective::{Lateness, Objective};
use reservations::Planned;
use waiting::NodeSharing;
use wattline_core::plan::Plan;
use wattline_core::policy::{ClusterView, Policy};

/// What the policy can be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WattlineOptions {
    pub(crate) goal: Goal,
    /// Of everything random.
    pub(crate) seed: u64,
    /// Bounds the work of a plan.
    pub(crate) work: u64,
    /// Parts that can be turned off, and constants.
    pub(crate) tuning: Tuning,
}

impl Default for WattlineOptions {
    fn default() -> Self {
        Self { goal: Goal::Cost, seed: 1, work: 100_000, tuning: Tuning::default() }
    }
}

struct Wattline {
    options: WattlineOptions,
}

pub(crate) fn wattline(options: WattlineOptions) -> Box<dyn Policy> {
    Box::new(Wattline { options })
}

impl Policy for Wattline {
    fn name(&self) -> &str {
        "wattline"
    }

    /// From scratch each time: all it goes by is in the view.
    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        let options = &self.options;
        let objective = Objective { goal: options.goal, tuning: &options.tuning };
        let mut problem = Problem::new(view, &objective);
        if let Goal::JctUnderEnergy { share } = options.goal {
            prices::price_under_energy_bound(&mut problem, share);
        }
        let bounds = Search { work: view.effort.of(options.work), seed: options.seed };
        let planned = if problem.rigid {
            reservations::plan(&problem)
        } else {
            Planned { draft: search(&problem, &bounds), starts: Vec::new() }
        };
        settle::settle(&problem, &planned)
    }
}

#[derive(Clone, Copy, Debug)]
struct Search {
    /// Bounds the bidding and the plans tried; more jobs take more of it.
    work: u64,
    seed: u64,
}

fn search(problem: &Problem<'_, '_>, bounds: &Search) -> Draft {
    let market = Market::new(problem, bounds.work);
    let filler = Filler { problem, market: &market, sharing: NodeSharing::new(problem) };
    if problem.deadlines { least_cost(&filler, bounds) } else { least_time(&filler, bounds) }
}

fn least_cost(filler: &Filler<'_, '_, '_>, bounds: &Search) -> Draft {
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

fn least_time(filler: &Filler<'_, '_, '_>, bounds: &Search) -> Draft {
    let problem = filler.problem;
    let jobs = problem.items.len() as u64;
    let tuning = problem.tuning;
    // A rollout takes the square of the jobs.
    if jobs.saturating_mul(jobs) > bounds.work || !tuning.rollouts {
        let draft = filler.split_gpus(tuning.split_restarts[0]);
        if problem.broken_promises(&draft) == 0 {
            return draft;
        }
        return filler.fill(USUAL, false).draft;
    }
    let splits = if tuning.splits { &tuning.split_restarts[..] } else { &[] };
    let mut drafts = ordered_par_map(splits, |restarts| filler.split_gpus(*restarts));
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
