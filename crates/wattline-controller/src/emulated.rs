//! The simulator's world as a cluster that outlives its controllers.

use crate::backend::{Backend, BackendError, Known, News, Report};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::action::{Action, ActionKind};
use wattline_core::ids::{ActionId, JobId};
use wattline_core::image::ImageError;
use wattline_core::job::Job;
use wattline_core::state::State;
use wattline_world::world::{World, WorldImage};

/// An emulated cluster.
pub struct Emulated {
    world: World,
    jobs: u32,
    /// Actions that were carried out, or begun.
    heard: BTreeSet<ActionId>,
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
    /// Actions, as ranges: after a while nearly all were heard.
    heard: Vec<(u64, u64)>,
    reports: VecDeque<Report>,
    next: u64,
    now: Timestamp,
}

/// Numbers as ranges, in rising order.
fn ranges(numbers: &BTreeSet<ActionId>) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for ActionId(number) in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    ranges
}

impl Emulated {
    /// A cluster that nobody has used yet.
    #[must_use]
    pub fn new(world: World, now: Timestamp) -> Self {
        Self { world, jobs: 0, heard: BTreeSet::new(), reports: VecDeque::new(), next: 1, now }
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
        let jobs = world.job_count() as u32;
        self.world.restore(world, job)?;
        let heard = heard.into_iter().flat_map(|(first, last)| (first..=last).map(ActionId));
        self.jobs = jobs;
        self.heard = heard.collect();
        self.reports = reports;
        self.next = next;
        self.now = now;
        Ok(())
    }

    /// Whether it has heard of a job.
    pub(crate) fn knows(&self, job: JobId) -> bool {
        job.0 < self.jobs
    }

    /// Ends its metering.
    pub fn close(&mut self, now: Timestamp) {
        self.happen(now);
        self.world.close(self.now);
    }

    /// The world counts jobs as the engine does: it hears of all of them up to this one.
    fn admit(&mut self, job: JobId, state: &State) {
        while self.jobs <= job.0 {
            self.world.submit(Arc::clone(&state.job(JobId(self.jobs)).job));
            self.jobs += 1;
        }
    }

    /// Time goes on, never back.
    fn happen(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        while let Some(event) = self.world.poll_event(self.now) {
            self.reports.push_back(Report { number: self.next, news: News::Event(event) });
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
        if let ActionKind::Start { job, .. } = &action.kind {
            self.admit(*job, known.engine.state());
        }
        if self.heard.insert(action.id) {
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

    fn image(&self) -> Vec<u8> {
        // Named one by one, so that none is forgotten; the world knows how many jobs it has.
        let Self { world, jobs: _, heard, reports, next, now } = self;
        let image = Image {
            world: world.image(),
            heard: ranges(heard),
            reports: reports.clone(),
            next: *next,
            now: *now,
        };
        rmp_serde::to_vec_named(&image)
            .unwrap_or_else(|_| unreachable!("numbers and lists can be written to memory"))
    }
}
