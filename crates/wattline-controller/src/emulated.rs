//! The simulator's world as a cluster that outlives its controllers.

use crate::backend::{Backend, BackendError, BackendEvent, Known, Report};
use crate::job_registry::Drawn;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::action::{Action, ActionKind};
use wattline_core::ids::{ActionId, JobId};
use wattline_core::image::ImageError;
use wattline_core::job::Job;
use wattline_world::world::{World, WorldImage};

/// An emulated cluster.
pub struct Emulated {
    world: World,
    heard: Heard,
    /// Reports that no controller has written down yet.
    reports: VecDeque<Report>,
    /// The number of the next one.
    next: u64,
    now: Timestamp,
}

/// All that has become of it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Image {
    world: WorldImage,
    heard: Heard,
    reports: VecDeque<Report>,
    next: u64,
    now: Timestamp,
}

/// Actions that were carried out, or begun, as ranges from first to last: nearly all are, sooner
/// or later.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct Heard(BTreeMap<u64, u64>);

impl Heard {
    /// Whether the action is new; it is heard from now on.
    fn insert(&mut self, ActionId(id): ActionId) -> bool {
        let before = self.0.range(..=id).next_back().map(|(first, last)| (*first, *last));
        let mut first = id;
        match before {
            Some((_, last)) if id <= last => return false,
            Some((start, last)) if last + 1 == id => first = start,
            _ => {}
        }
        let last = self.0.remove(&(id + 1)).unwrap_or(id);
        self.0.insert(first, last);
        true
    }
}

impl Emulated {
    /// A cluster that nobody has used yet.
    #[must_use]
    pub fn new(world: World, now: Timestamp) -> Self {
        Self { world, heard: Heard::default(), reports: VecDeque::new(), next: 1, now }
    }

    /// What it does and draws.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// As another was when its image was taken. This one must have been made as that one was;
    /// `job` gives the jobs that the controller knew.
    ///
    /// # Errors
    /// When the image is of something else; nothing has changed then.
    pub(crate) fn restore(
        &mut self,
        image: &[u8],
        job: impl Fn(JobId) -> Option<Arc<Job>>,
    ) -> Result<(), ImageError> {
        let image: Image = rmp_serde::from_slice(image)
            .map_err(|error| ImageError::Unreadable(format!("the cluster: {error}")))?;
        let Image { world, heard, reports, next, now } = image;
        self.world.restore(world, job)?;
        self.heard = heard;
        self.reports = reports;
        self.next = next;
        self.now = now;
        Ok(())
    }

    /// What a job has drawn so far, if it ever ran.
    pub(crate) fn job_drawn(&self, job: JobId, now: Timestamp) -> Option<Drawn> {
        let (energy, bill) = self.world.knows(job).then(|| self.world.job_account(job, now))?;
        Some(Drawn { energy, bill: bill.total() })
    }

    /// Ends its metering.
    pub fn close(&mut self, now: Timestamp) {
        self.happen(now);
        self.world.close(self.now);
    }

    /// Time goes on, never back.
    fn happen(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        while let Some(event) = self.world.poll_event(self.now) {
            self.reports.push_back(Report { number: self.next, news: BackendEvent::Event(event) });
            self.next += 1;
        }
    }
}

impl Backend for Emulated {
    fn send(
        &mut self,
        now: Timestamp,
        action: &Action,
        known: Known<'_>,
    ) -> Result<(), BackendError> {
        self.happen(now);
        if self.heard.insert(action.id) {
            // It hears of a job when it is to start.
            if let ActionKind::Start { job, .. } = &action.kind
                && let Some(state) = known.engine.state().find_job(*job)
            {
                self.world.submit_as(*job, &state.job);
            }
            self.world.apply(self.now, action);
            self.happen(now);
        }
        Ok(())
    }

    fn reports(
        &mut self,
        now: Timestamp,
        from: u64,
        _: Known<'_>,
    ) -> Result<Vec<Report>, BackendError> {
        self.happen(now);
        while self.reports.front().is_some_and(|report| report.number < from) {
            self.reports.pop_front();
        }
        Ok(self.reports.iter().cloned().collect())
    }

    fn next_event(&self) -> Option<Timestamp> {
        let unheard = (!self.reports.is_empty()).then_some(self.now);
        unheard.or_else(|| self.world.next_event())
    }

    fn job_ended(&mut self, now: Timestamp, job: JobId) -> Option<Drawn> {
        let drawn = self.job_drawn(job, now);
        self.world.forget(job);
        drawn
    }

    fn image(&self) -> Vec<u8> {
        // Named one by one, so that none is forgotten.
        let Self { world, heard, reports, next, now } = self;
        let image = Image {
            world: world.image(),
            heard: heard.clone(),
            reports: reports.clone(),
            next: *next,
            now: *now,
        };
        rmp_serde::to_vec_named(&image)
            .unwrap_or_else(|_| unreachable!("numbers and lists can be written to memory"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_action_is_new_once_whatever_the_order() {
        let (mut heard, mut seen) = (Heard::default(), BTreeSet::new());
        for step in 0..20_000_u64 {
            // A full period over 0..4096, and then everything again.
            let id = step.wrapping_mul(2_654_435_761) % 4096;
            assert_eq!(heard.insert(ActionId(id)), seen.insert(id), "{id}");
        }
        let whole: Vec<(u64, u64)> = heard.0.into_iter().collect();
        assert_eq!(whole, [(0, 4095)], "what is heard without a gap is one range");
    }
}
