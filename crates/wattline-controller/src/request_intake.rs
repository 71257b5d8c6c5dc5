//! Where requests are taken, also while the engine thinks.
//!
//! A request is written down and acknowledged here; the engine hears of it at the next turn. So
//! nobody waits for a plan, and the journal has everything in the order in which the engine takes
//! it in.

use crate::controller::ControllerError;
use crate::job_registry::{JournalNote, Origin, Submission};
use crate::journal::{Decision, Entry, Store};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::engine::{Event, EventError};
use wattline_core::ids::{JobId, WorkloadId};
use wattline_core::job::Job;
use wattline_core::prices::Prices;
use wattline_core::units::{EurosPerSecond, Seconds, Watts};

/// The intake. Copies are the same intake.
#[derive(Clone)]
pub struct RequestIntake(Arc<Mutex<JournalWriter>>);

/// The journal, and what must be known to write into it.
pub(crate) struct JournalWriter {
    pub(crate) store: Store,
    pub(crate) counts: IdCounters,
    /// Written down, and not heard by the engine yet.
    unread: Vec<Entry>,
}

/// What follows from the journal for the next entry.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IdCounters {
    /// Never goes back, whatever the clock does.
    now: Timestamp,
    next_report: u64,
    next_job: JobId,
    /// Jobs that came without an origin: a scenario's arrivals.
    without_origin: u32,
    workloads: BTreeMap<Box<str>, WorkloadId>,
    workload_count: u32,
    /// Jobs by the keys they were asked for under, with what tells one request from another.
    requests: BTreeMap<Box<str>, (JobId, u64)>,
    /// The same keys, in the order in which they came, with when they did.
    keys: VecDeque<(Timestamp, Box<str>)>,
}

/// How long a request is known by its key. Clients that retry do so within minutes; a day covers
/// one that was switched off over night.
const KEY_LIFETIME: Seconds = Seconds::new(86_400.0);
/// No more keys than this are known: ten megabytes of them.
const MOST_KEYS: usize = 65_536;

/// What became of a request that may come twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once {
    /// It is a new job.
    New(JobId),
    /// It had been taken before.
    Again(JobId),
    /// Something else had been asked for under the same key.
    Other(JobId),
}

impl RequestIntake {
    pub(crate) fn new(store: Store, begin: Timestamp, workloads: &[Box<str>]) -> Self {
        let mut counts = IdCounters {
            now: begin,
            next_report: 1,
            next_job: JobId(0),
            without_origin: 0,
            workloads: BTreeMap::new(),
            workload_count: 0,
            requests: BTreeMap::new(),
            keys: VecDeque::new(),
        };
        for name in workloads {
            counts.count(&JournalNote::Workload(name.clone()));
        }
        Self(Arc::new(Mutex::new(JournalWriter { store, counts, unread: Vec::new() })))
    }

    pub(crate) fn writer(&self) -> MutexGuard<'_, JournalWriter> {
        // Whoever panicked with it has written an entry or has not.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job. When this returns it will not be lost.
    ///
    /// # Errors
    /// When the job makes no sense or cannot be written down; nothing has changed then.
    pub fn submit(&self, now: Timestamp, submission: Submission) -> Result<JobId, ControllerError> {
        submission.job.validate().map_err(EventError::from)?;
        let mut writer = self.writer();
        let (mut events, mut notes) = (Vec::new(), Vec::new());
        let id = writer.admit(submission, 0, &mut events, &mut notes);
        writer.tell(now, events, notes)?;
        Ok(id)
    }

    /// Takes a job once, however often it is asked for under this key, also by way of another
    /// controller that has read the same journal.
    ///
    /// # Errors
    /// As [`RequestIntake::submit`].
    pub fn submit_once(
        &self,
        now: Timestamp,
        submission: Submission,
        key: &str,
        fingerprint: u64,
    ) -> Result<Once, ControllerError> {
        submission.job.validate().map_err(EventError::from)?;
        let mut writer = self.writer();
        if let Some((job, known)) = writer.counts.requests.get(key) {
            let same = *known == fingerprint;
            return Ok(if same { Once::Again(*job) } else { Once::Other(*job) });
        }
        let (mut events, mut notes) = (Vec::new(), Vec::new());
        let job = writer.admit(submission, 0, &mut events, &mut notes);
        notes.push(JournalNote::Request { job, key: key.into(), fingerprint });
        writer.tell(now, events, notes)?;
        Ok(Once::New(job))
    }

    /// What was asked for under this key before, if anything was.
    #[must_use]
    pub fn asked_before(&self, key: &str, fingerprint: u64) -> Option<Once> {
        let writer = self.writer();
        let (job, known) = writer.counts.requests.get(key)?;
        Some(if *known == fingerprint { Once::Again(*job) } else { Once::Other(*job) })
    }

    /// Takes a job whose workload is known by its id.
    ///
    /// # Errors
    /// As [`RequestIntake::submit`].
    pub fn submit_job(&self, now: Timestamp, job: Arc<Job>) -> Result<JobId, ControllerError> {
        let job = Arc::unwrap_or_clone(job);
        self.submit(
            now,
            Submission {
                job,
                workload: None,
                origin: None,
                hold: false,
                host: None,
                bars: None,
                priority: None,
            },
        )
    }

    /// A user cancels a job.
    ///
    /// # Errors
    /// When there is no such job or it cannot be written down; nothing has changed then.
    pub fn cancel(&self, now: Timestamp, id: JobId) -> Result<(), ControllerError> {
        self.about(now, id, Event::Cancelled(id))
    }

    /// A user lets a job wait, or go on.
    ///
    /// # Errors
    /// As [`RequestIntake::cancel`].
    pub fn hold(&self, now: Timestamp, id: JobId, hold: bool) -> Result<(), ControllerError> {
        self.about(now, id, Event::OnHold { job: id, hold })
    }

    /// A user wants another deadline or weight.
    ///
    /// # Errors
    /// As [`RequestIntake::cancel`]. Values that make no sense are written down and change nothing: whoever
    /// calls this has checked them.
    pub fn update(
        &self,
        now: Timestamp,
        id: JobId,
        deadline: Option<Timestamp>,
        weight: EurosPerSecond,
    ) -> Result<(), ControllerError> {
        self.about(now, id, Event::Updated { job: id, deadline, weight })
    }

    /// The administrator sets another budget.
    ///
    /// # Errors
    /// When it cannot be written down; nothing has changed then.
    pub fn set_budget(
        &self,
        now: Timestamp,
        budget: Option<Calendar<Watts>>,
    ) -> Result<(), ControllerError> {
        self.writer().tell(now, vec![Event::BudgetSet(budget)], Vec::new())
    }

    /// Energy has another price.
    ///
    /// # Errors
    /// When it cannot be written down; nothing has changed then.
    pub fn set_prices(&self, now: Timestamp, prices: Prices) -> Result<(), ControllerError> {
        self.writer().tell(now, vec![Event::PricesSet(prices)], Vec::new())
    }

    /// How many jobs were ever submitted that say nothing of where they come from: the arrivals
    /// of a scenario.
    #[must_use]
    pub fn jobs_without_origin(&self) -> usize {
        self.writer().counts.without_origin as usize
    }

    /// Looks at the journal; nobody can write into it meanwhile.
    pub fn journal<T>(&self, look: impl FnOnce(&Store) -> T) -> T {
        look(&self.writer().store)
    }

    /// Ends writing: after that the journal's file is complete by itself, and requests are refused.
    ///
    /// # Errors
    /// When the disk fails. Nothing is lost then.
    pub fn close_journal(&self) -> Result<(), ControllerError> {
        Ok(self.writer().store.close()?)
    }

    fn about(&self, now: Timestamp, id: JobId, event: Event) -> Result<(), ControllerError> {
        let mut writer = self.writer();
        if id >= writer.counts.next_job {
            return Err(EventError::UnknownJob(id).into());
        }
        writer.tell(now, vec![event], Vec::new())
    }
}

impl JournalWriter {
    /// What a submission is to the engine. `before`: jobs of the same entry.
    pub(crate) fn admit(
        &self,
        submission: Submission,
        before: u32,
        events: &mut Vec<Event>,
        notes: &mut Vec<JournalNote>,
    ) -> JobId {
        let Submission { mut job, workload, origin, hold, host, bars, priority } = submission;
        let counts = &self.counts;
        let id = JobId(counts.next_job.0 + before);
        if let Some(name) = workload {
            let noted = |note: &&JournalNote| matches!(note, JournalNote::Workload(_));
            let same = |note: &JournalNote| *note == JournalNote::Workload(name.clone());
            let new = notes.iter().filter(noted).position(same);
            job.workload = match (counts.workloads.get(&name), new) {
                (Some(id), _) => *id,
                (None, Some(at)) => WorkloadId(counts.workload_count + at as u32),
                (None, None) => {
                    let at = notes.iter().filter(noted).count() as u32;
                    notes.push(JournalNote::Workload(name));
                    WorkloadId(counts.workload_count + at)
                }
            };
        }
        if let Some(origin) = origin.filter(|origin| *origin != Origin::default()) {
            notes.push(JournalNote::Origin { job: id, origin: Arc::new(origin) });
        }
        notes.extend(priority.map(|priority| JournalNote::Priority { job: id, priority }));
        events.push(Event::Submitted(Arc::new(job)));
        events.extend(host.map(|request| Event::HostAsked { job: id, request }));
        if let Some((event, note)) = bars.map(|bars| bars.told(id)) {
            events.push(event);
            notes.push(note);
        }
        if hold {
            events.push(Event::OnHold { job: id, hold });
        }
        id
    }

    /// Something that the engine shall hear at its next turn.
    pub(crate) fn tell(
        &mut self,
        now: Timestamp,
        events: Vec<Event>,
        notes: Vec<JournalNote>,
    ) -> Result<(), ControllerError> {
        let (at, next_report) = (self.time(now), self.counts.next_report);
        let decisions = Vec::new();
        let entry = Entry { at, events, next_report, acts: false, notes, decisions };
        let entry = self.write_down(entry)?;
        self.unread.push(entry);
        Ok(())
    }

    /// The entry for a decision.
    pub(crate) fn decided(&self, now: Timestamp, decision: Decision) -> Entry {
        Entry {
            at: self.time(now),
            events: Vec::new(),
            next_report: self.counts.next_report,
            acts: true,
            notes: Vec::new(),
            decisions: vec![decision],
        }
    }

    /// Into the journal, and nowhere else.
    pub(crate) fn write_down(&mut self, entry: Entry) -> Result<Entry, ControllerError> {
        self.store.append(&entry)?;
        self.counts.follow(&entry);
        Ok(entry)
    }

    /// What the engine has not heard yet.
    pub(crate) fn take_unread(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.unread)
    }

    /// The time that an entry written at `now` gets.
    pub(crate) fn time(&self, now: Timestamp) -> Timestamp {
        self.counts.now.max(now)
    }
}

impl IdCounters {
    /// Knows what the journal says.
    pub(crate) fn follow(&mut self, entry: &Entry) {
        self.now = self.now.max(entry.at);
        self.next_report = entry.next_report;
        let first = self.next_job;
        let submitted = entry.events.iter().filter(|event| matches!(event, Event::Submitted(_)));
        let submitted = submitted.count() as u32;
        let origin =
            |note: &&JournalNote| matches!(note, JournalNote::Origin { job, .. } if *job >= first);
        let with_origin = entry.notes.iter().filter(origin).count() as u32;
        self.next_job = JobId(first.0 + submitted);
        self.without_origin += submitted.saturating_sub(with_origin);
        for note in &entry.notes {
            self.count(note);
        }
        let is_old = |(at, _): &(Timestamp, Box<str>)| self.now.since(*at) > KEY_LIFETIME;
        while self.keys.len() > MOST_KEYS || self.keys.front().is_some_and(is_old) {
            if let Some((_, key)) = self.keys.pop_front() {
                self.requests.remove(&key);
            }
        }
    }

    fn count(&mut self, note: &JournalNote) {
        if let JournalNote::Workload(name) = note {
            let id = WorkloadId(self.workload_count);
            self.workloads.entry(name.clone()).or_insert(id);
            self.workload_count += 1;
        }
        if let JournalNote::Request { job, key, fingerprint } = note {
            self.requests.insert(key.clone(), (*job, *fingerprint));
            self.keys.push_back((self.now, key.clone()));
        }
    }
}
