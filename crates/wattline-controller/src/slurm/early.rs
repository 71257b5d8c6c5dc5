//! Jobs that cannot start yet, whatever is free: they wait for others, or for a time of their own.
//!
//! SLURM does not look at what a held job waits for. So such a job is let go with a begin far away:
//! SLURM then says when the others have ended, and does not start it. From then on it is a job like
//! all others.

use super::Slurm;
use super::read::SlurmJob;
use crate::backend::Known;
use wattline_core::Timestamp;

/// When a job that waits for others begins, as SLURM is told.
const NEVER: &str = "2099-01-01T00:00:00";
/// Who begins after this waits for others: 2098, in seconds since 1970.
const LATER: f64 = 4.039e9;

/// Whether a job was let go only so that SLURM sees what it waits for.
pub(super) fn is_parked(job: &SlurmJob) -> bool {
    job.state.waits() && job.eligible.or(job.start).is_some_and(|at| at.seconds() > LATER)
}

fn waits_for_others(job: &SlurmJob) -> bool {
    job.dependency.as_ref().is_some_and(|others| !others.is_empty())
}

impl Slurm {
    /// Whether a job of ours cannot start yet. What its user holds is for him to let go.
    pub(super) fn is_early(&self, now: Timestamp, job: &SlurmJob, mine: bool) -> bool {
        let later = job.eligible.is_some_and(|at| at > now) && !is_parked(job);
        let held = self.told_by_gate(job).is_some_and(|told| told.asked.hold == Some(true));
        let early = waits_for_others(job) || later;
        mine && self.controls() && job.state.waits() && early && !held
    }

    /// Lets SLURM see what jobs wait for.
    pub(super) fn park_early(&mut self, now: Timestamp, known: Known<'_>) {
        let Some(seen) = self.seen.clone() else { return };
        for job in seen.strangers(known.directory) {
            let mine = self.site.looks_after(&job.partition);
            let blind = waits_for_others(job) && (job.held || !is_parked(job));
            if !(self.is_early(now, job, mine) && blind && self.may_correct(now, job.key.id)) {
                continue;
            }
            let (number, id) = (job.address(), format!("JobId={}", job.address()));
            let parked = self
                .commands
                .run("scontrol", &["update", &id, &format!("StartTime={NEVER}")])
                .and_then(|_| self.commands.run("scontrol", &["release", &number]));
            if let Err(error) = parked {
                self.complain(format!("job {number} waits for others, unseen by SLURM: {error}"));
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn never_is_later() {
        let never: jiff::civil::DateTime = NEVER.parse().unwrap();
        let never = never.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp().as_second();
        assert!(never as f64 > LATER + 86_400.0);
    }
}
