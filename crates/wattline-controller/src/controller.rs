//! The loop around the engine, without a clock of its own.

use crate::backend::{Backend, BackendError, Report};
use crate::emulated::Emulated;
use crate::store::{Entry, Store, StoreError};
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;
use wattline_core::Timestamp;
use wattline_core::action::{Action, ActionKind};
use wattline_core::calendar::Calendar;
use wattline_core::engine::{Engine, Event, EventError};
use wattline_core::ids::{ActionId, JobId};
use wattline_core::job::Job;
use wattline_core::units::{Seconds, Watts};

/// An action that is not confirmed after this long is sent again.
const AGAIN: Seconds = Seconds::new(10.0);

/// Why the controller could not do something.
#[derive(Debug, Error)]
pub enum ControllerError {
    /// It could not be written down.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It makes no sense.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The emulated cluster does otherwise.
    #[error(
        "the emulated cluster does not repeat what entry {0} of the journal says: it was written by another version; name another file to begin anew"
    )]
    Otherwise(u64),
    /// The cluster does not answer. Nothing was heard from it, and nothing follows from that; it
    /// is asked again, and told again, at the next turn.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// An action that the cluster has not confirmed.
struct Sent {
    action: Action,
    /// When it was sent last; not by this controller yet, if none.
    at: Option<Timestamp>,
}

/// All that follows from a journal, and nothing else.
struct Replica {
    engine: Engine<'static>,
    /// Never goes back, whatever the clock does.
    now: Timestamp,
    /// The number of the report to hear next.
    next_report: u64,
    sent: BTreeMap<ActionId, Sent>,
}

impl Replica {
    fn take_in(&mut self, entry: Entry) {
        self.now = self.now.max(entry.at);
        self.next_report = entry.next_report;
        for event in entry.events {
            // What makes no sense changes nothing, also when it is read again.
            let _ = self.engine.handle(self.now, event);
        }
        // Plans are made at turns, so that all that is told between two of them is one plan.
        if entry.acts {
            let _ = self.engine.handle(self.now, Event::Clock);
        }
        while let Some(action) = self.engine.poll_action() {
            self.sent.insert(action.id, Sent { action, at: None });
        }
        let engine = &self.engine;
        self.sent.retain(|id, _| engine.is_under_way(*id));
    }
}

/// The engine, its journal and its cluster.
pub struct Controller<B> {
    replica: Replica,
    store: Store,
    told: Told<B>,
}

impl<B: Backend> Controller<B> {
    /// A controller as the journal left it. `engine` must be made as it was when the journal was
    /// begun.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn open(
        engine: Engine<'static>,
        store: Store,
        backend: B,
        begin: Timestamp,
    ) -> Result<Self, ControllerError> {
        let mut replica = Replica { engine, now: begin, next_report: 1, sent: BTreeMap::new() };
        store.read(|entry| -> Result<(), StoreError> {
            replica.take_in(entry);
            Ok(())
        })?;
        Ok(Self { replica, store, told: Told { backend, admitted: 0 } })
    }

    /// What it knows.
    #[must_use]
    pub fn engine(&self) -> &Engine<'static> {
        &self.replica.engine
    }

    /// Its cluster.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.told.backend
    }

    /// Its journal.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The time it goes by.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.replica.now
    }

    /// When to call [`Controller::turn`] at the latest.
    #[must_use]
    pub fn next_turn(&self) -> Option<Timestamp> {
        let again = self
            .replica
            .sent
            .values()
            .map(|sent| sent.at.map_or(self.replica.now, |at| at + AGAIN))
            .min();
        [self.replica.engine.poll_timeout(), self.told.backend.next_event(), again]
            .into_iter()
            .flatten()
            .min()
    }

    /// Takes a job. When this returns it will not be lost.
    ///
    /// # Errors
    /// When the job makes no sense or cannot be written down; nothing has changed then.
    pub fn submit(&mut self, now: Timestamp, job: Arc<Job>) -> Result<JobId, ControllerError> {
        job.validate().map_err(EventError::from)?;
        let id = JobId(self.replica.engine.state().job_count() as u32);
        self.tell(now, Event::Submitted(job))?;
        Ok(id)
    }

    /// A user takes a job back.
    ///
    /// # Errors
    /// When there is no such job or it cannot be written down; nothing has changed then.
    pub fn cancel(&mut self, now: Timestamp, id: JobId) -> Result<(), ControllerError> {
        if id.index() >= self.replica.engine.state().job_count() {
            return Err(EventError::UnknownJob(id).into());
        }
        self.tell(now, Event::Cancelled(id))
    }

    /// The administrator sets another budget.
    ///
    /// # Errors
    /// When it cannot be written down; nothing has changed then.
    pub fn set_budget(
        &mut self,
        now: Timestamp,
        budget: Option<Calendar<Watts>>,
    ) -> Result<(), ControllerError> {
        self.tell(now, Event::BudgetSet(budget))
    }

    fn tell(&mut self, now: Timestamp, event: Event) -> Result<(), ControllerError> {
        let Replica { now: last, next_report, .. } = self.replica;
        let at = last.max(now);
        self.write_down(Entry { at, events: vec![event], next_report, acts: false })
    }

    /// Hears what happened, plans if that is due, and acts.
    ///
    /// # Errors
    /// When what was heard cannot be written down: then it will be heard again, and nothing was
    /// done. When the cluster does not answer: then whatever else was to be done has been done.
    pub fn turn(&mut self, now: Timestamp) -> Result<(), ControllerError> {
        let now = self.replica.now.max(now);
        let heard = self.told.backend.reports(now, self.replica.next_report);
        let (mut reports, answer) = match heard {
            Ok(reports) => (reports, Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        };
        reports.sort_by_key(|report| report.number);
        let mut next = self.replica.next_report;
        let mut events = Vec::new();
        // Of what comes twice the first counts, and what comes before its turn comes again.
        for Report { number, event } in reports {
            if number == next {
                events.push(event);
                next += 1;
            }
        }
        let due = self.replica.engine.poll_timeout().is_some_and(|due| due <= now);
        // When the cluster hears of an action is written down too.
        let unsent = self.replica.sent.values().any(|sent| sent.at.is_none());
        if due || unsent || !events.is_empty() {
            let at = self.replica.now.max(now);
            self.write_down(Entry { at, events, next_report: next, acts: true })?;
        }
        Ok(answer.and(self.told.act(&mut self.replica, now))?)
    }

    /// First into the journal, then into the engine.
    fn write_down(&mut self, entry: Entry) -> Result<(), ControllerError> {
        self.store.append(&entry)?;
        self.replica.take_in(entry);
        Ok(())
    }
}

/// The cluster, and how much it has heard from this controller.
struct Told<B> {
    backend: B,
    /// Jobs.
    admitted: u32,
}

impl<B: Backend> Told<B> {
    /// Sends what was not sent yet, and again what was not confirmed for long. What lowers power
    /// must not wait for something that could not be sent.
    fn act(&mut self, replica: &mut Replica, now: Timestamp) -> Result<(), BackendError> {
        let Replica { engine, sent, .. } = replica;
        let mut outcome = Ok(());
        for sent in sent.values_mut() {
            if sent.at.is_some_and(|at| now < at + AGAIN) {
                continue;
            }
            let admitted = match &sent.action.kind {
                ActionKind::Start { job, .. } => self.admit(engine, *job),
                _ => Ok(()),
            };
            match admitted.and_then(|()| self.backend.send(now, &sent.action)) {
                Ok(()) => sent.at = Some(now),
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    /// Tells the cluster of all jobs up to this one.
    fn admit(&mut self, engine: &Engine<'static>, job: JobId) -> Result<(), BackendError> {
        while self.admitted <= job.0 {
            let id = JobId(self.admitted);
            self.backend.admit(id, &engine.state().job(id).job)?;
            self.admitted += 1;
        }
        Ok(())
    }
}

impl Controller<Emulated> {
    /// As [`Controller::open`], with an emulated cluster that died with its controller: it begins
    /// anew, and all that the journal says is done to it once more, so that it is the same again.
    ///
    /// # Errors
    /// When the journal cannot be read, or the cluster does otherwise than the journal says.
    pub fn reenact(
        engine: Engine<'static>,
        store: Store,
        backend: Emulated,
        begin: Timestamp,
    ) -> Result<Self, ControllerError> {
        let mut replica = Replica { engine, now: begin, next_report: 1, sent: BTreeMap::new() };
        let mut told = Told { backend, admitted: 0 };
        let mut number = 0;
        store.read(|entry| -> Result<(), ControllerError> {
            number += 1;
            let (at, acts) = (entry.at, entry.acts);
            let again = told.backend.reports(at, replica.next_report)?;
            let again = again.into_iter().filter(|report| report.number < entry.next_report);
            let again: Vec<Event> = again.map(|report| report.event).collect();
            let reported = entry.next_report - replica.next_report;
            if again.len() as u64 != reported || (reported > 0 && again != entry.events) {
                return Err(ControllerError::Otherwise(number));
            }
            replica.take_in(entry);
            if acts {
                told.act(&mut replica, at)?;
            }
            Ok(())
        })?;
        Ok(Self { replica, store, told })
    }
}
