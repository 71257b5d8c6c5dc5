//! Jobs that cannot start yet, whatever is free: they wait for others, or for a time of their own.
//!
//! SLURM does not look at what a held job waits for. So such a job is let go with a begin far away:
//! SLURM then says when the others have ended, and does not start it. From then on it is a job like
//! all others. How far away tells when it may begin: calendars repeat after 400 years.

use super::Slurm;
use super::instruction::{Begin, Instruction, JobName, JobUpdate};
use super::orders::{Order, Target};
use super::read::SlurmJob;
use crate::backend::Known;
use wattline_core::Timestamp;
use wattline_core::units::Seconds;

/// 400 years.
pub(super) const AWAY: Seconds = Seconds::new(146_097.0 * 86_400.0);

/// Whether a job has a begin far away: it was let go only so that SLURM sees what it waits for, or we
/// hold it ([`is_held_by_us`]).
pub(super) fn is_parked(job: &SlurmJob) -> bool {
    job.state.waits() && away(job).is_some_and(|at| at.seconds() > AWAY.get())
}

/// Whether we have held a job over slurmrestd, where a hold looks like an administrator's: such a job
/// begins in twice as many years.
pub(super) fn is_held_by_us(job: &SlurmJob) -> bool {
    job.state.waits() && away(job).is_some_and(|at| at.seconds() > (AWAY * 2.0).get())
}

/// Whether an administrator holds a job. Ours look like its user's, or begin far away.
pub(super) fn is_held_by_admin(job: &SlurmJob) -> bool {
    job.state.waits() && job.held && job.state_reason == "JobHeldAdmin" && !is_held_by_us(job)
}

fn away(job: &SlurmJob) -> Option<Timestamp> {
    job.eligible.or(job.start)
}

/// Before when a job is not to begin, if anybody said so.
pub(super) fn begin(job: &SlurmJob) -> Option<Timestamp> {
    if is_held_by_us(job) {
        Some(away(job)? - AWAY * 2.0)
    } else if is_parked(job) {
        Some(away(job)? - AWAY)
    } else {
        job.eligible
    }
}

/// A time as SLURM's commands take it: this machine's.
pub(super) fn told(at: Timestamp) -> Option<String> {
    let at = jiff::Timestamp::from_second(at.seconds() as i64).ok()?;
    Some(at.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%dT%H:%M:%S").to_string())
}

fn waits_for_others(job: &SlurmJob) -> bool {
    job.dependency.as_ref().is_some_and(|others| !others.is_empty())
}

impl Slurm {
    /// Whether a job of ours cannot start yet. What its user holds is for him to let go.
    pub(super) fn is_early(&self, now: Timestamp, job: &SlurmJob, mine: bool) -> bool {
        let later = begin(job).is_some_and(|at| at > self.slurms_clock(now));
        let held = self.told_by_gate(job).is_some_and(|told| told.asked.hold == Some(true));
        let early = waits_for_others(job) || later;
        mine && self.controls() && job.state.waits() && early && !held
    }

    /// Lets SLURM see what jobs wait for.
    pub(super) fn park_early(&mut self, now: Timestamp, known: Known<'_>) {
        let Some(seen) = self.seen.clone() else { return };
        for job in seen.strangers(known.registry) {
            let mine = self.site.looks_after(&job.partition);
            let blind = waits_for_others(job) && (job.held || !is_parked(job));
            let blind = blind && !is_held_by_admin(job);
            let blind = blind && self.is_settled(Target::Job(job.key.id));
            if !(self.is_early(now, job, mine) && blind && self.may_correct(now, job.key.id)) {
                continue;
            }
            let (number, begin) = (job.address(), begin(job).unwrap_or(self.slurms_clock(now)));
            let begin = Some(Begin::At(begin + AWAY));
            let away = JobUpdate { begin, ..JobUpdate::default() };
            let away = Instruction::Update(JobName::of(job), away);
            let lines = vec![away, Instruction::release(job)];
            let complaint = format!("job {number} waits for others, unseen by SLURM");
            self.order(now, Order::tell(Target::Job(job.key.id), lines, complaint));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn after_four_hundred_years_it_is_the_same_day() {
        let begin = Timestamp::from_seconds(1_794_826_186.0);
        let (near, far) = (told(begin).unwrap(), told(begin + AWAY).unwrap());
        let year = |text: &str| text[..4].parse::<u32>().unwrap();
        assert_eq!((year(&far), &far[4..]), (year(&near) + 400, &near[4..]));
        assert_eq!(told(Timestamp::from_seconds(1e15)), None, "beyond all calendars");
    }
}
