//! What a journal says became of the jobs.

use crate::store::{Entry, Store, StoreError};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::engine::Event;
use wattline_core::ids::JobId;
use wattline_core::job::Job;
use wattline_core::units::Joules;

/// A job and what became of it.
#[derive(Clone, Debug)]
pub struct Past {
    /// As it was submitted.
    pub job: Arc<Job>,
    /// When it first ran.
    pub first_start: Option<Timestamp>,
    /// When it was done.
    pub end: Option<Timestamp>,
    /// How often it was started.
    pub starts: u32,
    /// Its user took it back.
    pub cancelled: bool,
    /// What its GPUs drew, as far as that was measured.
    pub gpu_energy: Joules,
}

/// All that was kept of a journal.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Entries that were read.
    pub entries: u64,
    /// From when to when.
    pub span: Option<(Timestamp, Timestamp)>,
    /// The jobs that were submitted in that time.
    pub jobs: Vec<Past>,
    /// How many were submitted before; they are left out.
    pub earlier_jobs: u64,
    /// What users and administrators wanted, by time. Jobs by their place in `jobs`.
    pub orders: Vec<(Timestamp, Event)>,
}

impl History {
    /// Reads what is there.
    ///
    /// # Errors
    /// When the journal cannot be read to its end.
    pub fn read(store: &Store) -> Result<Self, StoreError> {
        let mut history = Self { earlier_jobs: store.pruned_jobs()?, ..Self::default() };
        store.read(|entry| -> Result<(), StoreError> {
            history.take_in(entry);
            Ok(())
        })?;
        Ok(history)
    }

    fn take_in(&mut self, entry: Entry) {
        let at = entry.at;
        self.entries += 1;
        self.span = Some((self.span.map_or(at, |(first, _)| first), at));
        for event in entry.events {
            self.hear(at, event);
        }
    }

    fn hear(&mut self, at: Timestamp, event: Event) {
        match event {
            Event::Submitted(job) => self.jobs.push(Past {
                job,
                first_start: None,
                end: None,
                starts: 0,
                cancelled: false,
                gpu_energy: Joules::ZERO,
            }),
            Event::Started { job, .. } | Event::Found { job, .. } => {
                if let Some((_, past)) = self.find(job) {
                    past.first_start.get_or_insert(at);
                    past.starts += 1;
                }
            }
            Event::Finished(job) => {
                if let Some((_, past)) = self.find(job) {
                    past.end.get_or_insert(at);
                }
            }
            Event::Measured(measured) => {
                if let (Some((_, past)), Some(power)) = (self.find(measured.job), measured.power) {
                    let gpus = f64::from(measured.configuration.gpus);
                    past.gpu_energy += power * gpus * measured.seconds;
                }
            }
            Event::Cancelled(job) => {
                if let Some((id, past)) = self.find(job) {
                    past.cancelled |= past.end.is_none();
                    self.orders.push((at, Event::Cancelled(id)));
                }
            }
            Event::Updated { job, deadline, weight } => {
                if let Some((job, _)) = self.find(job) {
                    self.orders.push((at, Event::Updated { job, deadline, weight }));
                }
            }
            Event::OnHold { job, hold } => {
                if let Some((job, _)) = self.find(job) {
                    self.orders.push((at, Event::OnHold { job, hold }));
                }
            }
            event @ (Event::BudgetSet(_) | Event::PricesSet(_)) => self.orders.push((at, event)),
            Event::Clock
            | Event::Stopped { .. }
            | Event::Progress { .. }
            | Event::Limited { .. }
            | Event::NodeUp(_)
            | Event::NodeAsleep(_)
            | Event::NodeLost(_)
            | Event::NodeClosed(_)
            | Event::Failed { .. } => {}
        }
    }

    /// A job that was submitted in this time, and its place.
    fn find(&mut self, id: JobId) -> Option<(JobId, &mut Past)> {
        let at = u64::from(id.0).checked_sub(self.earlier_jobs)?;
        Some((JobId(at as u32), self.jobs.get_mut(at as usize)?))
    }

    /// The same with jobs by submission, as simulations want them.
    #[must_use]
    pub fn by_submission(mut self) -> Self {
        let mut order: Vec<usize> = (0..self.jobs.len()).collect();
        order.sort_by_key(|at| self.jobs[*at].job.submit);
        let mut place = vec![JobId(0); order.len()];
        for (new, old) in order.iter().enumerate() {
            place[*old] = JobId(new as u32);
        }
        self.jobs.sort_by_key(|past| past.job.submit);
        for (_, order) in &mut self.orders {
            if let Event::Cancelled(job) | Event::Updated { job, .. } | Event::OnHold { job, .. } =
                order
            {
                *job = place.get(job.index()).copied().unwrap_or(*job);
            }
        }
        self
    }
}
