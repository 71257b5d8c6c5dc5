//! The loop around the engine, without a clock of its own.

mod image;

pub use image::Opened;

use crate::backend::{Backend, BackendError, Known, News, Report};
use crate::desk::{Desk, Ledger};
use crate::directory::{Directory, Note};
use crate::emulated::Emulated;
use crate::store::{Entry, Keep, Saved, Store, StoreError};
use std::collections::BTreeMap;
use thiserror::Error;
use wattline_core::Timestamp;
use wattline_core::action::Action;
use wattline_core::engine::{Engine, Event, EventError};
use wattline_core::ids::ActionId;
use wattline_core::image::ImageError;
use wattline_core::policy::Policy;
use wattline_core::predictor::Measurement;
use wattline_core::state::Phase;
use wattline_core::units::Seconds;

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
    /// It names a policy that there is not.
    #[error("the journal names a policy that this program does not have: {0}")]
    Policy(String),
    /// What it knows cannot be written down as a whole.
    #[error("a snapshot cannot be made: {0}")]
    Image(#[from] ImageError),
    /// The cluster does not answer. Nothing was heard from it, and nothing follows from that; it
    /// is asked again, and told again, at the next turn.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Where a turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// All was heard and written down; the engine takes it in, and plans if that is due.
    Thinks,
    /// It has; the cluster is told.
    Acts,
}

/// An action that the cluster has not confirmed.
struct Sent {
    action: Action,
    /// When it was sent last; not by this controller yet, if none.
    at: Option<Timestamp>,
}

/// Makes policies by the names that users give them, or says why not.
pub type Policies = Box<dyn Fn(&str) -> Result<Box<dyn Policy>, String> + Send>;

/// All that follows from a journal, and nothing else.
struct Replica {
    engine: Engine<'static>,
    policies: Policies,
    /// The policy that decides; none: the one that it began with.
    policy: Option<Box<str>>,
    directory: Directory,
    /// Never goes back, whatever the clock does.
    now: Timestamp,
    /// The number of the report to hear next.
    next_report: u64,
    sent: BTreeMap<ActionId, Sent>,
    /// What was measured, for whoever learns beside the engine.
    learned: Vec<Measurement>,
}

impl Replica {
    fn new(begin: Beginning) -> Self {
        Self {
            engine: begin.engine,
            policies: begin.policies,
            policy: None,
            directory: Directory::new(begin.workloads),
            now: begin.at,
            next_report: 1,
            sent: BTreeMap::new(),
            learned: Vec::new(),
        }
    }

    fn take_in(&mut self, entry: Entry) -> Result<(), ControllerError> {
        // A real cluster begins when it is first heard of.
        if self.now == Timestamp::ZERO {
            self.engine.begin_at(entry.at);
        }
        self.now = self.now.max(entry.at);
        self.next_report = entry.next_report;
        for note in &entry.notes {
            self.directory.note(note);
            match note {
                Note::Saved => self.engine.look_at_everything(),
                Note::Policy(name) => self.decide_by(name)?,
                _ => {}
            }
        }
        for event in entry.events {
            let measured = match &event {
                Event::Measured(measured) => {
                    Some(Measurement { at: measured.at.min(self.now), ..*measured })
                }
                _ => None,
            };
            // What makes no sense changes nothing, also when it is read again.
            if self.engine.handle(self.now, event).is_ok() {
                self.learned.extend(measured);
            }
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
        Ok(())
    }

    /// Another policy decides from here on.
    fn decide_by(&mut self, name: &str) -> Result<(), ControllerError> {
        let policy = (self.policies)(name).map_err(ControllerError::Policy)?;
        self.engine.change_policy(self.now, policy);
        self.policy = Some(name.into());
        Ok(())
    }

    /// What is to be remembered about events, so that whoever looks back need not plan again.
    fn particulars(&self, at: Timestamp, events: &[Event], notes: &mut Vec<Note>) {
        for event in events {
            match event {
                Event::Started { job, action } => {
                    let state = self.engine.state().find_job(*job);
                    let started = state.filter(|state| state.phase == Phase::Starting(*action));
                    if let Some(placement) = started.and_then(|state| state.held.clone()) {
                        let after = self.engine.told_at(*action).map(|told| at.since(told));
                        notes.push(Note::Placed { job: *job, placement, after });
                    }
                }
                Event::Stopped { job, .. } => {
                    let Some(state) = self.engine.state().find_job(*job) else { continue };
                    let Phase::Stopping(action) = state.phase else { continue };
                    let Some(told) = self.engine.told_at(action) else { continue };
                    let save = self.engine.predictor().restart(&state.job).save;
                    let after = (at.since(told) - save).max(Seconds::ZERO);
                    notes.push(Note::Left { job: *job, after });
                }
                Event::Limited { job, action } => {
                    let limit = self.engine.limit_under_way(*job, *action);
                    notes.extend(limit.map(|limit| Note::Limited { job: *job, limit }));
                }
                _ => {}
            }
        }
    }

    fn known(&self) -> Known<'_> {
        Known { engine: &self.engine, directory: &self.directory }
    }
}

/// How things were before the first entry of the journal. Must be the same each time.
pub struct Beginning {
    /// Over an idle cluster.
    pub engine: Engine<'static>,
    /// The workloads that are known by then.
    pub workloads: Vec<Box<str>>,
    /// When; zero: at the first entry.
    pub at: Timestamp,
    /// Policies that came later.
    pub policies: Policies,
}

/// The engine, its journal and its cluster.
pub struct Controller<B> {
    replica: Replica,
    desk: Desk,
    backend: B,
    opened: Opened,
}

impl<B: Backend> Controller<B> {
    /// A controller as the journal left it.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn open(begin: Beginning, store: Store, backend: B) -> Result<Self, ControllerError> {
        let desk = Desk::new(store, begin.at, &begin.workloads);
        let mut replica = Replica::new(begin);
        let opened = image::recall(&desk, &mut replica, |_, _| Ok(()))?;
        // This controller has sent nothing yet.
        replica.sent.values_mut().for_each(|sent| sent.at = None);
        read(&desk, opened.after, |entry| {
            replica.take_in(entry)?;
            replica.learned.clear();
            Ok(())
        })?;
        Ok(Self { replica, desk, backend, opened })
    }

    /// The policy that decides; `begun`: the one that the journal was begun with.
    #[must_use]
    pub fn decides<'a>(&'a self, begun: &'a str) -> &'a str {
        self.replica.policy.as_deref().unwrap_or(begun)
    }

    /// Lets another policy decide from now on, if it is another than `begun`, the one that the
    /// journal was begun with, or the last one that came after. It is an entry of the journal like
    /// everything else: it is there as a whole or not at all.
    ///
    /// # Errors
    /// When there is no such policy, or it cannot be written down; nothing has changed then.
    pub fn decide_by(
        &mut self,
        now: Timestamp,
        begun: &str,
        policy: &str,
    ) -> Result<bool, ControllerError> {
        self.hear_requests()?;
        if self.decides(begun) == policy {
            return Ok(false);
        }
        (self.replica.policies)(policy).map_err(ControllerError::Policy)?;
        let now = self.replica.now.max(now);
        self.desk.ledger().tell(now, Vec::new(), vec![Note::Policy(policy.into())])?;
        self.hear_requests()?;
        Ok(true)
    }

    /// What it began with.
    #[must_use]
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// How many entries a restart would have to read now.
    #[must_use]
    pub fn entries_to_read(&self) -> u64 {
        self.desk.journal(|store| store.len().saturating_sub(store.last_saved()))
    }

    /// Writes all that it knows into the journal, so that a restart need not read what came before.
    /// For the time between turns. If it fails, nothing is lost: the restart takes longer.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&mut self, keep: &Keep) -> Result<(), ControllerError> {
        let (number, counts) = {
            let mut ledger = self.desk.ledger();
            for entry in ledger.take_unread() {
                self.replica.take_in(entry)?;
            }
            ledger.after_snapshot = true;
            (ledger.store.len(), ledger.counts.clone())
        };
        // Requests are taken while this is put together.
        let image = image::of(&self.replica, counts, self.backend.image())?;
        let saved = Saved { number, at: self.replica.now };
        Ok(self.desk.ledger().store.save(saved, &image, keep)?)
    }

    /// What it knows.
    #[must_use]
    pub fn engine(&self) -> &Engine<'static> {
        &self.replica.engine
    }

    /// Names and origins.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.replica.directory
    }

    /// The next thing an administrator should hear of.
    pub fn poll_alert(&mut self) -> Option<wattline_core::engine::Alert> {
        self.replica.engine.poll_alert()
    }

    /// What was measured since the last time, for whoever learns beside the engine.
    pub fn take_learned(&mut self) -> Vec<Measurement> {
        std::mem::take(&mut self.replica.learned)
    }

    /// Its cluster.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Its cluster, for whoever ends it.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Where requests are taken.
    #[must_use]
    pub fn desk(&self) -> &Desk {
        &self.desk
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
        [self.replica.engine.poll_timeout(), self.backend.next_event(), again]
            .into_iter()
            .flatten()
            .min()
    }

    /// Hears what happened, plans if that is due, and acts.
    ///
    /// # Errors
    /// When what was heard cannot be written down: then it will be heard again, and nothing was
    /// done. When the cluster does not answer: then whatever else was to be done has been done.
    pub fn turn(&mut self, now: Timestamp) -> Result<(), ControllerError> {
        self.turn_watched(now, &mut |_| ())
    }

    /// As [`Controller::turn`], and tells where it is, for whoever has a clock.
    ///
    /// # Errors
    /// As [`Controller::turn`].
    pub fn turn_watched(
        &mut self,
        now: Timestamp,
        is_at: &mut dyn FnMut(Moment),
    ) -> Result<(), ControllerError> {
        self.hear_requests()?;
        let now = self.replica.now.max(now);
        let heard = self.backend.reports(now, self.replica.next_report, self.replica.known());
        let (mut reports, answer) = match heard {
            Ok(reports) => (reports, Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        };
        reports.sort_by_key(|report| report.number);
        let now = self.write_down(now, reports, is_at)?;
        Ok(answer.and(act(&mut self.backend, &mut self.replica, now))?)
    }

    /// What was written down at the desk since the last turn.
    fn hear_requests(&mut self) -> Result<(), ControllerError> {
        let unread = self.desk.ledger().take_unread();
        unread.into_iter().try_for_each(|entry| self.replica.take_in(entry))
    }

    /// What was heard goes into the journal first, then into the engine, if there is anything to
    /// plan or to do. Says what time it is.
    fn write_down(
        &mut self,
        now: Timestamp,
        reports: Vec<Report>,
        is_at: &mut dyn FnMut(Moment),
    ) -> Result<Timestamp, ControllerError> {
        let mut ledger = self.desk.ledger();
        for entry in ledger.take_unread() {
            self.replica.take_in(entry)?;
        }
        let mut next = self.replica.next_report;
        let (mut events, mut notes, mut jobs) = (Vec::new(), Vec::new(), 0);
        // Of what comes twice the first counts, and what comes before its turn comes again.
        for Report { number, news } in reports {
            if number != next {
                continue;
            }
            next += 1;
            match news {
                News::Event(event) => events.push(event),
                News::Noted(event, note) => {
                    events.push(event);
                    notes.push(note);
                }
                News::Submission(submission) => {
                    ledger.admit(*submission, jobs, &mut events, &mut notes);
                    jobs += 1;
                }
            }
        }
        let at = ledger.time(now);
        let due = self.replica.engine.poll_timeout().is_some_and(|due| due <= at);
        // When the cluster hears of an action is written down too.
        let unsent = self.replica.sent.values().any(|sent| sent.at.is_none());
        if !due && !unsent && events.is_empty() {
            return Ok(at);
        }
        self.replica.particulars(at, &events, &mut notes);
        let entry = Entry { at, events, next_report: next, acts: true, notes };
        let entry = ledger.write_down(entry)?;
        // Requests are taken while the engine thinks.
        drop(ledger);
        is_at(Moment::Thinks);
        self.replica.take_in(entry)?;
        is_at(Moment::Acts);
        Ok(at)
    }
}

/// Sends what was not sent yet, and again what was not confirmed for long. What lowers power must
/// not wait for something that could not be sent.
fn act(
    backend: &mut impl Backend,
    replica: &mut Replica,
    now: Timestamp,
) -> Result<(), BackendError> {
    let Replica { engine, directory, sent, .. } = replica;
    let mut outcome = Ok(());
    for sent in sent.values_mut() {
        if sent.at.is_some_and(|at| now < at + AGAIN) {
            continue;
        }
        tracing::debug!(action = sent.action.id.0, kind = ?sent.action.kind, "sent");
        match backend.send(now, &sent.action, Known { engine, directory }) {
            Ok(()) => sent.at = Some(now),
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}

/// Reads the journal after an entry.
fn read(
    desk: &Desk,
    after: u64,
    mut take: impl FnMut(Entry) -> Result<(), ControllerError>,
) -> Result<(), ControllerError> {
    let mut ledger = desk.ledger();
    let Ledger { store, counts, .. } = &mut *ledger;
    store.read_after(after, |entry| {
        counts.follow(&entry);
        take(entry)
    })
}

impl Controller<Emulated> {
    /// As [`Controller::open`], with an emulated cluster that died with its controller: it begins
    /// anew, or as a snapshot has it, and all that the journal says after that is done to it once
    /// more, so that it is the same again.
    ///
    /// # Errors
    /// When the journal cannot be read, or the cluster does otherwise than the journal says.
    pub fn reenact(
        begin: Beginning,
        store: Store,
        mut backend: Emulated,
    ) -> Result<Self, ControllerError> {
        let desk = Desk::new(store, begin.at, &begin.workloads);
        let mut replica = Replica::new(begin);
        let opened = image::recall(&desk, &mut replica, |image, job| backend.restore(image, job))?;
        let mut number = opened.after;
        read(&desk, opened.after, |entry| {
            number += 1;
            let (at, acts) = (entry.at, entry.acts);
            let again = backend.reports(at, replica.next_report, replica.known())?;
            let again = again.into_iter().filter(|report| report.number < entry.next_report);
            let again: Vec<News> = again.map(|report| report.news).collect();
            let reported = entry.next_report - replica.next_report;
            let told = entry.events.iter().cloned().map(News::Event);
            if again.len() as u64 != reported || (reported > 0 && !told.eq(again)) {
                return Err(ControllerError::Otherwise(number));
            }
            replica.take_in(entry)?;
            replica.learned.clear();
            if acts {
                act(&mut backend, &mut replica, at)?;
            }
            Ok(())
        })?;
        Ok(Self { replica, desk, backend, opened })
    }
}
