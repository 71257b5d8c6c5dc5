//! How often a job is started again, and when that ends.
//!
//! A job that exits with the agreed code saves its work and is started again only if it was asked to
//! save. One that exits so by itself has ended. And no job is started again more often in a day than
//! the site allows: whatever makes it leave its GPUs so often (a script that fails at once, a node
//! that kills it, SLURM's own preemption, our own moves) would otherwise go on for ever. It is held
//! until its owner lets it go, or until so many of its restarts are more than a day ago.

use super::Slurm;
use super::instruction::{Instruction, JobName, JobUpdate};
use super::orders::{Order, Target};
use super::read::{SlurmJob, State};
use super::seen::key;
use crate::backend::{BackendEvent, Known};
use crate::job_registry::JournalNote;
use wattline_core::Timestamp;
use wattline_core::engine::Event;
use wattline_core::ids::JobId;
use wattline_core::state::JobState;

/// The window in which restarts are counted, in seconds: what the setting's name says.
const DAY: i64 = 86_400;
/// From this share of the allowed restarts on a job is no longer moved for others or for a better
/// place. With all of them a job that is moved often is soon held for our own moves; with none it
/// could never be moved twice.
const SETTLED_FROM: f64 = 0.5;
/// The exit code with which a job says that it has saved.
pub(super) const SAVED: u32 = 86;
/// How a job ended that exits with the agreed code by itself.
pub(super) const EXITED_UNASKED: &str =
    "it exited with 86 without having been asked to save, so it is not started again";

/// Whether SLURM holds a job because of its exit code, and the code is the agreed one as far as
/// SLURM tells: some releases forget the code when they requeue.
pub(super) fn exited_as_agreed(job: &SlurmJob) -> bool {
    job.state == State::SpecialExit && matches!(job.exit.code, 0 | SAVED)
}

impl Slurm {
    /// Whether a job of ours that runs, as far as is known, has ended by itself with the agreed code.
    pub(super) fn exited_unasked(&self, id: JobId, job: &SlurmJob, known: Known<'_>) -> bool {
        let slurm = known.registry.slurm(id);
        let ran =
            slurm.is_some_and(|slurm| slurm.controlled && slurm.key.restarts < job.key.restarts);
        ran && self.controls() && exited_as_agreed(job) && !known.registry.was_asked(id)
    }

    /// What is told of such a job: it is known by its new key, so that what SLURM still holds of it
    /// can be cancelled, and it is over.
    pub(super) fn ended_unasked(id: JobId, job: &SlurmJob, news: &mut Vec<BackendEvent>) {
        let mut note = |note| news.push(BackendEvent::Noted(Event::Clock, note));
        note(JournalNote::Key { job: id, key: key(job) });
        note(JournalNote::Ended { job: id, how: EXITED_UNASKED.into() });
        news.push(BackendEvent::Event(Event::Cancelled(id)));
    }

    /// Holds a waiting job that was restarted too often, and lets it go when that is over. `new`: so
    /// many restarts are told at this look, and not counted yet.
    pub(super) fn limit_restarts(
        &mut self,
        now: Timestamp,
        (id, job, new): (JobId, &SlurmJob, u32),
        known: Known<'_>,
        news: &mut Vec<BackendEvent>,
    ) {
        let mine = known.registry.slurm(id).is_some_and(|slurm| slurm.controlled);
        let Some(state) = known.engine.state().find_job(id) else { return };
        if !mine || !self.controls() || !job.state.waits() {
            return;
        }
        let most = self.site.config.max_restarts_per_day;
        let seconds = now.seconds() as i64;
        let (lately, first) = known.registry.restarts_after(id, seconds - DAY);
        let lately = lately + new;
        let since = known.registry.restarts_count_since(id);
        let held = known.registry.restart_hold(id).is_some();
        let hold = |hold| Event::OnHold { job: id, hold };
        let mut note = |event, said: Option<&str>, since| {
            let said = said.map(Into::into);
            news.push(BackendEvent::Noted(
                event,
                JournalNote::RestartHold { job: id, said, since },
            ));
        };
        match (held, state.is_on_hold()) {
            (false, false) if lately >= most => {
                let free_at = first.unwrap_or(seconds) + DAY;
                let number = known.registry.number(id);
                let said = format!(
                    "restarted {lately} times in 24 hours (max_restarts_per_day is {most}); \
                     `wattline job release {number}` lets it go on, or it goes on by itself at {}",
                    super::shown(Timestamp::from_seconds(free_at as f64))
                );
                note(hold(true), Some(&said), since);
                self.set_remark(now, job, Some(&said));
                self.complain(format!("job {number} is held: {said}"));
            }
            // Somebody let it go: what was before does not count.
            (true, false) => {
                note(Event::Clock, None, seconds);
                self.set_remark(now, job, None);
            }
            (true, true) if lately < most => {
                note(hold(false), None, since);
                self.set_remark(now, job, None);
            }
            _ => {}
        }
    }

    /// A job that was moved often of late stays where it is.
    pub(super) fn settle(
        &self,
        now: Timestamp,
        id: JobId,
        state: &JobState,
        known: Known<'_>,
        news: &mut Vec<BackendEvent>,
    ) {
        let most = f64::from(self.site.config.max_restarts_per_day);
        let (lately, _) = known.registry.restarts_after(id, now.seconds() as i64 - DAY);
        let stays = f64::from(lately) >= (most * SETTLED_FROM).max(1.0);
        // It was let go, and has started before that was seen: what was before does not count.
        if self.controls() && known.registry.restart_hold(id).is_some() && !state.is_on_hold() {
            let since = now.seconds() as i64;
            let note = JournalNote::RestartHold { job: id, said: None, since };
            news.push(BackendEvent::Noted(Event::Clock, note));
        }
        if self.controls() && !state.is_foreign() && state.stays_put() != stays {
            news.push(BackendEvent::Event(Event::StaysPut { job: id, stays }));
        }
    }

    /// Writes something where the owner of a waiting job looks, or takes it away.
    pub(super) fn set_remark(&mut self, now: Timestamp, job: &SlurmJob, said: Option<&str>) {
        let Some(comment) = self.remark(job, said) else { return };
        let update = JobUpdate { comment: Some(comment), ..JobUpdate::default() };
        let told = vec![Instruction::Update(JobName::of(job), update)];
        let complaint = format!("the comment of job {} cannot be set", job.address());
        self.order(now, Order::tell(Target::Job(job.key.id), told, complaint));
    }
}
