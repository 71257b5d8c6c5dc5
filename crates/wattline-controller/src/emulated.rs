//! The simulator's world as a cluster that outlives its controllers.

use crate::backend::{Backend, BackendError, Report};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::action::Action;
use wattline_core::ids::{ActionId, JobId};
use wattline_core::job::Job;
use wattline_world::world::World;

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

    /// Ends its metering.
    pub fn close(&mut self, now: Timestamp) {
        self.happen(now);
        self.world.close(self.now);
    }

    /// Time goes on, never back.
    fn happen(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        while let Some(event) = self.world.poll_event(self.now) {
            self.reports.push_back(Report { number: self.next, event });
            self.next += 1;
        }
    }
}

impl Backend for Emulated {
    fn admit(&mut self, id: JobId, job: &Arc<Job>) -> Result<(), BackendError> {
        if id.0 > self.jobs {
            return Err(BackendError(format!("{id} comes before {}", JobId(self.jobs))));
        }
        if id.0 == self.jobs {
            self.world.submit(Arc::clone(job));
            self.jobs += 1;
        }
        Ok(())
    }

    fn send(&mut self, now: Timestamp, action: &Action) -> Result<(), BackendError> {
        self.happen(now);
        if self.heard.insert(action.id) {
            self.world.apply(self.now, action);
            self.happen(now);
        }
        Ok(())
    }

    fn reports(&mut self, now: Timestamp, from: u64) -> Result<Vec<Report>, BackendError> {
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
}
