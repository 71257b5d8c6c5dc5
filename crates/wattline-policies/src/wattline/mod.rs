//! Wattline's own policy: one search over order, GPU count and type, place, batch, power limit and
//! sleeping nodes, for cost, completion time, or completion time under an energy bound.
//!
//! Jobs that are there, and those that are expected ([`arrivals`]), bid for GPU time and watts until
//! prices over the hours to come balance what is asked for and what there is ([`market`]). So every
//! job is judged by what it costs to its own end, now and later. Nodes are then filled ([`fill`]):
//! whoever loses most by waiting goes first, in the way that is cheapest at these prices. A job that
//! runs pays its restart before it is moved, so few are. With a handful of jobs whole schedules are
//! tried instead ([`anneal`]). Whoever had to hurry takes less as soon as there is time ([`downshift`]).
//! Where time counts, GPUs are also split by what one more is worth to
//! each ([`share`]), and the plan is taken that does best when all jobs are run to their ends
//! ([`rollout`]). To whoever has waited too long a place is owed ([`starvation`]).
//!
//! Where most jobs must keep what they get, all of them are given reservations in a complete schedule
//! instead ([`reservations`]).

mod anneal;
mod arrivals;
mod candidates;
mod constants;
mod costs;
mod downshift;
mod energy;
mod fill;
mod market;
mod model;
mod nodes;
mod objective;
mod place;
mod prices;
mod reservations;
mod rollout;
mod search;
mod settle;
mod share;
mod starvation;
#[cfg(test)]
mod tests;
mod waiting;

pub(crate) use constants::Tuning;
use model::Problem;
pub(crate) use objective::Goal;
use objective::Objective;
use reservations::Planned;
use search::Search;
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

/// The policy.
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
            energy::price(&mut problem, share);
        }
        let bounds = Search { work: view.effort.of(options.work), seed: options.seed };
        let planned = if problem.rigid {
            reservations::plan(&problem)
        } else {
            Planned { draft: search::search(&problem, &bounds), starts: Vec::new() }
        };
        settle::settle(&problem, &planned)
    }
}
