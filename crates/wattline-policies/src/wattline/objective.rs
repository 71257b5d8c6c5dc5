//! What a plan is judged by.

use wattline_core::policy::ClusterView;
use wattline_core::state::JobState;

/// What to minimise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Goal {
    /// Weighted tardiness and energy, in EUR.
    #[default]
    Cost,
    /// Weighted tardiness; energy only breaks ties.
    Tardiness,
    /// Mean time from submission to completion.
    Jct,
    /// The same, spending at most this share of the energy that the jobs would take as requested.
    JctUnderEnergy {
        /// The share.
        share: f64,
    },
}

/// The goal in numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Objective {
    pub(super) goal: Goal,
}

/// A job that has been there for this many times its shortest run time, but at least `LEAST` and at
/// most `MOST` seconds, is overdue: it goes first, and GPUs are kept for it (`owed.rs`).
const PATIENCE: f64 = 20.0;
const LEAST: f64 = 12.0 * 3600.0;
const MOST: f64 = 7.0 * 24.0 * 3600.0;

/// Energy counts this part of its price where it only breaks ties: enough that a job with slack is
/// run frugally, too little to be worth a second of tardiness at usual weights.
const TIE_BREAK: f64 = 0.02;

impl Objective {
    pub(super) fn new(goal: Goal) -> Self {
        Self { goal }
    }

    /// Whether tardiness past deadlines counts, and not every second.
    pub(super) fn has_deadlines(&self) -> bool {
        matches!(self.goal, Goal::Cost | Goal::Tardiness)
    }

    /// What a euro of energy counts, over a euro of tardiness.
    pub(super) fn energy_share(&self) -> f64 {
        match self.goal {
            Goal::Cost => 1.0,
            Goal::Tardiness => TIE_BREAK,
            Goal::Jct | Goal::JctUnderEnergy { .. } => 0.0,
        }
    }

    /// The weight of lateness per second, and from when on it counts, in seconds from now.
    pub(super) fn lateness(&self, view: &ClusterView<'_>, job: &JobState) -> (f64, f64) {
        match (self.goal, job.job.deadline) {
            (Goal::Cost | Goal::Tardiness, Some(deadline)) => {
                (job.job.weight.get(), signed(deadline.micros() - view.now.micros()))
            }
            (Goal::Cost | Goal::Tardiness, None) => (0.0, f64::INFINITY),
            (Goal::Jct | Goal::JctUnderEnergy { .. }, _) => {
                (1.0, signed(job.job.submit.micros() - view.now.micros()))
            }
        }
    }

    /// Whether power limits are worth choosing.
    pub(super) fn limits(&self, view: &ClusterView<'_>) -> bool {
        self.goal != Goal::Jct || view.budget.is_some()
    }

    /// After how many seconds a job with that shortest run time is overdue.
    pub(super) fn patience(&self, fastest: f64) -> f64 {
        (PATIENCE * fastest).clamp(LEAST, MOST)
    }
}

fn signed(micros: i64) -> f64 {
    micros as f64 * 1e-6
}
