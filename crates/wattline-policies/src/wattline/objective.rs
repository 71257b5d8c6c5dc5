//! Evaluator: what is minimised.

use super::Tuning;
use wattline_core::Timestamp;
use wattline_core::policy::ClusterView;
use wattline_core::state::JobState;

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
    JctUnderEnergy { share: f64 },
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

#[derive(Clone, Copy, Debug)]
pub(super) struct Objective<'t> {
    pub(super) goal: Goal,
    pub(super) tuning: &'t Tuning,
}

impl Objective<'_> {
    /// Whether tardiness past deadlines counts, and not every second.
    pub(super) fn has_deadlines(&self) -> bool {
        matches!(self.goal, Goal::Cost | Goal::Tardiness | Goal::Deadlines)
    }

    /// What a euro of energy counts, over a euro of tardiness.
    pub(super) fn energy_share(&self) -> f64 {
        match self.goal {
            Goal::Cost => 1.0,
            Goal::Tardiness | Goal::Deadlines => self.tuning.tie_break_share,
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
                let missed = weight * self.tuning.missed_deadline_s;
                Lateness { weight, missed, due: since(deadline) }
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
    pub(super) fn rigid_lateness(&self, weight: f64, missed: f64) -> (f64, f64) {
        (weight * self.tuning.tie_break_share, missed * self.tuning.missed_deadline_rigid)
    }

    /// Whether power limits are worth choosing.
    pub(super) fn limits(&self, view: &ClusterView<'_>) -> bool {
        self.goal != Goal::Jct || view.budget.is_some()
    }

    /// After how many seconds a job with that shortest run time is overdue.
    pub(super) fn patience(&self, fastest: f64) -> f64 {
        let tuning = self.tuning;
        (tuning.patience_runs * fastest).max(tuning.patience_min_s).min(tuning.patience_max_s)
    }
}

fn signed(micros: i64) -> f64 {
    micros as f64 * 1e-6
}
