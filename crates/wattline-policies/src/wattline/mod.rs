//! Wattline's own policy: one search over order, GPU count and type, place, batch, power limit and
//! sleeping nodes, for cost, completion time, or completion time under an energy bound.
//!
//! A plan is judged by rolling it forward to every job's own end ([`rollout`]) with a rule
//! ([`rule`]) that knows what GPU time and watts are worth at each moment. The search starts from
//! the plan in force, so few jobs move, and every move pays its restart.

mod complete;
mod energy;
mod model;
mod nodes;
mod objective;
mod owed;
mod prices;
mod rollout;
mod rule;
mod search;
mod settle;
mod ways;

use model::Problem;
pub(crate) use objective::Goal;
use objective::Objective;
use search::Effort;
use wattline_core::plan::Plan;
use wattline_core::policy::{ClusterView, Policy};

/// What the policy can be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WattlineOptions {
    pub(crate) goal: Goal,
    /// Of everything random.
    pub(crate) seed: u64,
    /// Jobs looked at per plan, over all rollouts.
    pub(crate) work: u64,
    /// What a restart must gain beyond its cost, as a part of the job's energy cost.
    pub(crate) hysteresis: f64,
}

impl Default for WattlineOptions {
    fn default() -> Self {
        Self { goal: Goal::Cost, seed: 1, work: 100_000, hysteresis: 0.1 }
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
        let objective = Objective::new(options.goal);
        let mut problem = Problem::new(view, &objective);
        if let Goal::JctUnderEnergy { share } = options.goal {
            energy::price(&mut problem, share);
        }
        let effort =
            Effort { work: options.work, seed: options.seed, hysteresis: options.hysteresis };
        let solution = search::search(&problem, &effort);
        settle::settle(&problem, &solution)
    }
}
