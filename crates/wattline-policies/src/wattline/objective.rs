//! What a plan is judged by.

use wattline_core::Timestamp;
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
    /// Weighted deadlines missed; tardiness and energy only break ties.
    Deadlines,
    /// Mean time from submission to completion.
    Jct,
    /// The same, spending at most this share of the energy that the jobs would take as requested.
    JctUnderEnergy {
        /// The share.
        share: f64,
    },
}

/// What lateness costs a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lateness {
    /// Each second.
    pub(super) weight: f64,
    /// Once, when the deadline is missed.
    pub(super) missed: f64,
    /// Seconds from now; infinite if lateness costs nothing.
    pub(super) due: f64,
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
/// Where met deadlines count, a missed one costs as much as this many seconds of tardiness, beside its
/// tardiness. With 8 hours and a fiftieth of the tardiness the market's prices, which follow from the
/// weights, did not tell jobs apart that must hurry: 473 deadlines of 560 met with seed 101 of
/// `overload`, 136 of 160 and 299 of 300 with 101 of `demo` and 102 of `bursts`; so 484, 140 and 300.
/// With 2 hours (restarts cheaper) 482, 139 and 300.
const MISSED: f64 = 4.0 * 3600.0;
/// Reservations are given without the market's prices, and a wrong start cannot be made good. There a
/// missed deadline counts so many times as much, and tardiness the tie-breaking part: with the figures
/// above 401 instead of 450 deadlines of 1,000 are met on ElasticFlow's second cluster.
const MISSED_RIGID: f64 = 2.0;

impl Objective {
    pub(super) fn new(goal: Goal) -> Self {
        Self { goal }
    }

    /// Whether tardiness past deadlines counts, and not every second.
    pub(super) fn has_deadlines(&self) -> bool {
        matches!(self.goal, Goal::Cost | Goal::Tardiness | Goal::Deadlines)
    }

    /// What a euro of energy counts, over a euro of tardiness.
    pub(super) fn energy_share(&self) -> f64 {
        match self.goal {
            Goal::Cost => 1.0,
            Goal::Tardiness | Goal::Deadlines => TIE_BREAK,
            Goal::Jct | Goal::JctUnderEnergy { .. } => 0.0,
        }
    }

    /// Whether lateness alone counts and energy only breaks ties.
    pub(super) fn is_lateness_only(&self) -> bool {
        matches!(self.goal, Goal::Tardiness | Goal::Deadlines)
    }

    /// What lateness costs a job, and from when on it counts.
    pub(super) fn lateness(&self, view: &ClusterView<'_>, job: &JobState) -> Lateness {
        let weight = job.job.weight.get();
        let since = |time: Timestamp| signed(time.micros() - view.now.micros());
        match (self.goal, job.job.deadline) {
            (Goal::Cost | Goal::Tardiness, Some(deadline)) => {
                Lateness { weight, missed: 0.0, due: since(deadline) }
            }
            (Goal::Deadlines, Some(deadline)) => {
                Lateness { weight, missed: weight * MISSED, due: since(deadline) }
            }
            (Goal::Cost | Goal::Tardiness | Goal::Deadlines, None) => {
                Lateness { weight: 0.0, missed: 0.0, due: f64::INFINITY }
            }
            (Goal::Jct | Goal::JctUnderEnergy { .. }, _) => {
                Lateness { weight: 1.0, missed: 0.0, due: since(job.job.submit) }
            }
        }
    }

    /// What lateness costs in reservations a job that has a deadline to miss.
    pub(super) fn rigid_lateness(weight: f64, missed: f64) -> (f64, f64) {
        (weight * TIE_BREAK, missed * MISSED_RIGID)
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
