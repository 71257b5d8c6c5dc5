//! Longer time limits for jobs that would run into them, where the site lets us set them.
//!
//! A job that was given fewer GPUs, or less power, than it asked for takes longer, and its owner could
//! not know. With `extend_time_limit` the controller gives it the time it is predicted to need, up to
//! what its partition allows, and says so.

use super::instruction::{Instruction, JobName, JobUpdate};
use super::orders::{Order, Target};
use super::reconcile::is_running;
use super::{SECONDS, Slurm};
use crate::backend::Known;
use wattline_core::Timestamp;
use wattline_core::units::Seconds;

/// A job that is predicted to run into its limit gets a longer one when this much, or this share of the
/// time it has left by its prediction, is left: early enough for slurmctld to be down for a while,
/// late enough for its own speed to be known.
const AHEAD: Seconds = Seconds::new(600.0);
/// Time to spare, as a share of what is predicted to be left: predictions of what was measured a few
/// times are off by up to a fifth.
const SPARE: f64 = 0.25;
/// And at least this: SLURM counts in minutes.
const LEAST_SPARE: Seconds = Seconds::new(60.0);

/// The time limit in whole minutes that a job needs, if it is predicted to run into the one it has and
/// may have a longer one.
pub(super) fn longer(
    now: Timestamp,
    start: Timestamp,
    limit: Seconds,
    left: Seconds,
    most: Option<Seconds>,
) -> Option<u32> {
    let end = start + limit;
    let spare = (left * SPARE).max(LEAST_SPARE);
    let soon = now + AHEAD >= end;
    if !left.is_finite() || !soon || now + left + spare <= end {
        return None;
    }
    let needed = (now + left + spare).since(start);
    let needed = most.map_or(needed, |most| needed.min(most));
    let minutes = if most.is_some_and(|most| needed >= most) {
        (needed.get() / 60.0).floor()
    } else {
        (needed.get() / 60.0).ceil()
    };
    (minutes * 60.0 > limit.get() && minutes < f64::from(u32::MAX)).then_some(minutes as u32)
}

impl Slurm {
    pub(super) fn extend_limits(&mut self, now: Timestamp, known: Known<'_>) {
        if !self.site.config.extend_time_limit || !self.controls() {
            return;
        }
        let Some(seen) = self.seen.clone() else { return };
        for (id, job) in seen.known() {
            let (Some(start), Some(limit)) = (job.start, job.time_limit) else { continue };
            let mine = known.registry.slurm(id).is_some_and(|slurm| slurm.controlled);
            if !mine || !is_running(job) || !self.is_settled(Target::Job(job.key.id)) {
                continue;
            }
            let Some(state) = known.engine.state().find_job(id) else { continue };
            // Of work in seconds nothing is known but the limit itself.
            let measured = known.registry.workload(state.job.workload) != Some(SECONDS);
            if !measured || state.is_foreign() || state.progress.rate.0 <= 0.0 {
                continue;
            }
            let left = state.remaining(now) / state.progress.rate;
            let most = seen.rules.max_time(&job.partition);
            let Some(minutes) = longer(self.slurms_clock(now), start, limit, left, most) else {
                continue;
            };
            if !self.may_correct(now, job.key.id) {
                continue;
            }
            let number = job.address();
            let update = JobUpdate { time_limit_minutes: Some(minutes), ..JobUpdate::default() };
            let told = vec![Instruction::Update(JobName::of(job), update)];
            let complaint = format!("job {number} gets no longer time limit");
            if self.order(now, Order::tell(Target::Job(job.key.id), told, complaint)) {
                self.complain(format!(
                    "job {number}: time limit raised from {:.0} to {minutes} min, because it is \
                     predicted to run for another {:.0} min",
                    limit.get() / 60.0,
                    left.get() / 60.0
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_gets_the_time_it_needs_and_no_more_than_its_partition_allows() {
        let at = Timestamp::from_seconds;
        let (start, limit) = (at(0.0), Seconds::new(3600.0));
        let of = |now, left, most: Option<f64>| {
            longer(at(now), start, limit, Seconds::new(left), most.map(Seconds::new))
        };
        assert_eq!(of(3500.0, 30.0, None), None, "it ends in time, with a minute to spare");
        assert_eq!(of(3500.0, 400.0, None), Some(67), "3500 + 500 s");
        assert_eq!(of(3500.0, 400.0, Some(3900.0)), Some(65), "the partition's longest");
        assert_eq!(of(3500.0, 400.0, Some(3600.0)), None, "it has that already");
        assert_eq!(of(1000.0, 4000.0, None), None, "there is time to see how fast it is");
        assert_eq!(of(3500.0, f64::INFINITY, None), None, "nothing is known of its end");
    }
}
