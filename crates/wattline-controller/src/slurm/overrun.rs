//! Declared work that does not hold.
//!
//! A job with little work left goes before others of equal weight, so declaring too little would pay.
//! When a job has run to its end, the time it took is set against the time its declared work would
//! have taken at the predicted speed. How many times as long it took is remembered for its user and
//! workload, and the work that is declared next is multiplied by it, until it holds again.

use super::read::SlurmJob;
use super::{SECONDS, Slurm};
use crate::backend::{BackendEvent, Known};
use crate::job_registry::JournalNote;
use wattline_core::engine::Event;
use wattline_core::ids::JobId;
use wattline_core::state::JobState;
use wattline_core::units::Seconds;

/// A job that took this many times as long as predicted has declared too little: predictions of what
/// was never measured are off by a factor of two and more, honest declarations with them.
const TOO_LONG: f64 = 3.0;
/// What starting and loading may take, beside the work, before it counts.
const START: Seconds = Seconds::new(60.0);
/// A factor above this says no more: a second declared, eleven days run.
const MOST: f64 = 1e6;

/// How many times as long as declared the next job is taken to run: from how long one took, how long
/// it was predicted to take with the factor that held for it. None: what holds goes on holding.
fn times(took: Seconds, predicted: Seconds, before: f64) -> Option<f64> {
    let ratio = took.get() / predicted.get().max(1e-3);
    let longer = took > predicted * TOO_LONG && took > predicted + START;
    let shorter = before > 1.0 && ratio < 1.0 / TOO_LONG;
    let next = (before * ratio).clamp(1.0, MOST);
    (longer || shorter).then_some(next).filter(|next| *next != before)
}

impl Slurm {
    /// A job of ours has run to its end in one run: whether the work that it declared holds.
    pub(super) fn learn_overrun(
        &self,
        id: JobId,
        job: &SlurmJob,
        state: &JobState,
        known: Known<'_>,
        news: &mut Vec<BackendEvent>,
    ) {
        let mine = known.registry.slurm(id).is_some_and(|slurm| slurm.controlled);
        let Some(workload) = known.registry.workload(state.job.workload) else { return };
        // Of jobs that were stopped it is not known what they did twice.
        if !mine || workload == SECONDS || job.key.restarts > 0 {
            return;
        }
        let (Some(start), Some(end), Some(held)) = (job.start, job.end, &state.held) else {
            return;
        };
        let predicted = known.engine.predictor().predict(&state.job, &held.configuration);
        let Some(predicted) = predicted.filter(|predicted| predicted.rate.0 > 0.0) else { return };
        let (user, before) = (state.job.user, known.registry.overrun(state.job.user, workload));
        let predicted = state.job.work / predicted.rate;
        if let Some(factor) = times(end.since(start), predicted, before) {
            let note = JournalNote::Overrun { user, workload: workload.into(), factor };
            news.push(BackendEvent::Noted(Event::Clock, note));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_declared_and_does_not_hold_is_corrected_and_what_holds_is_believed() {
        let after = |took: f64, predicted: f64, before: f64| {
            times(Seconds::new(took), Seconds::new(predicted), before)
        };
        // A job of an hour that declared one sample.
        assert_eq!(after(3600.0, 0.1, 1.0), Some(36_000.0));
        assert_eq!(after(3600.0, 0.0, 1.0), Some(MOST), "bounded");
        // The next one with the same words is taken for what it is, and nothing changes.
        assert_eq!(after(3600.0, 3600.0, 36_000.0), None);
        // It declares honestly from now on: it is believed again.
        assert_eq!(after(3600.0, 3600.0 * 36_000.0, 36_000.0), Some(1.0));
        // Predictions are off, and starting takes time.
        assert_eq!(after(3600.0, 1800.0, 1.0), None);
        assert_eq!(after(50.0, 1.0, 1.0), None);
        assert_eq!(after(100.0, 3600.0, 1.0), None, "shorter is no lie");
    }
}
