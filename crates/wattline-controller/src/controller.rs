//! The loop around the engine, without a clock of its own.
//!
//! A turn hears what happened, writes it down and applies it; sheds load if the budget has fallen;
//! takes the planner's answer, writes the decision down and applies it; asks for the next plan; and
//! sends actions. What is in the journal determines the state ([`replica`]); nothing is done that
//! is not written down.

mod image;
mod replica;

pub use image::Opened;

use crate::backend::{Backend, BackendError, BackendEvent, Known, Report};
use crate::emulated::Emulated;
use crate::job_history::EndedJob;
use crate::job_registry::JobRegistry;
use crate::journal::{Decision, Entry, Keep, Saved, Store, StoreError};
use crate::planner::{Answer, Planner};
use crate::request_intake::{JournalWriter, RequestIntake};
use replica::Replica;
use std::time::Duration;
use thiserror::Error;
use wattline_core::Timestamp;
use wattline_core::check::CheckedPlan;
use wattline_core::engine::{Alert, Engine, EventError, PlanRequest, Verdict};
use wattline_core::image::ImageError;
use wattline_core::plan::Plan;
use wattline_core::predictor::Measurement;
use wattline_core::units::Seconds;

/// An action that is not confirmed after this long is sent again.
const AGAIN: Seconds = Seconds::new(10.0);

/// While a journal is read, so many ended jobs are filed in one transaction.
const FILED_TOGETHER: usize = 1000;

/// Who decides, in the journal, when load is shed.
pub(crate) const SHED: &str = "shed";

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
    EmulationDiffers(u64),
    /// What it knows cannot be written down as a whole.
    #[error("a snapshot cannot be made: {0}")]
    Image(#[from] ImageError),
    /// The cluster does not answer. Nothing was heard from it, and nothing follows from that; it
    /// is asked again, and told again, at the next turn.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// How things were before the first entry of the journal. Must be the same each time.
pub struct InitialState {
    /// Over an idle cluster.
    pub engine: Engine<'static>,
    /// The workloads that are known by then.
    pub workloads: Vec<Box<str>>,
    /// When; zero: at the first entry.
    pub at: Timestamp,
}

/// The engine, its journal and its cluster.
pub struct Controller<B> {
    replica: Replica,
    intake: RequestIntake,
    backend: B,
    planner: Box<dyn Planner>,
    opened: Opened,
    /// Jobs that have ended since that was asked.
    ended: Vec<EndedJob>,
    /// How long plans took since the last time that was asked.
    plan_times: Vec<Duration>,
    /// Whoever plans has just begun to, which is to be written down.
    takes_over: bool,
}

impl<B: Backend> Controller<B> {
    /// A controller as the journal left it.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn open(
        initial: InitialState,
        store: Store,
        backend: B,
        planner: Box<dyn Planner>,
    ) -> Result<Self, ControllerError> {
        let intake = RequestIntake::new(store, initial.at, &initial.workloads);
        let mut replica = Replica::new(initial);
        let opened = image::load_snapshot(&intake, &mut replica, |_, _| Ok(()))?;
        // This controller has sent nothing yet.
        replica.sent.values_mut().for_each(|sent| sent.at = None);
        let mut backend = backend;
        read(&intake, opened.after, |store, entry| {
            replica.replay(entry);
            replica.learned.clear();
            file_ended(store, &mut replica, &mut backend, FILED_TOGETHER).map(drop)
        })?;
        let mut controller = Self::over(replica, intake, backend, planner, opened);
        controller.file_ended()?;
        // They ended before the controller was restarted.
        controller.ended.clear();
        Ok(controller)
    }

    fn over(
        replica: Replica,
        intake: RequestIntake,
        backend: B,
        planner: Box<dyn Planner>,
        opened: Opened,
    ) -> Self {
        let plan_times = Vec::new();
        let takes_over = true;
        let mut controller = Self {
            replica,
            intake,
            backend,
            planner,
            opened,
            ended: Vec::new(),
            plan_times,
            takes_over,
        };
        controller.replica.engine.set_controls(controller.planner.decides());
        if controller.intake.journal(Store::len) > 0 {
            controller.replica.engine.plan_again(controller.replica.now);
        }
        controller
    }

    /// Lets another planner decide from now on. Nobody knows what the one before had in mind: the
    /// next plan looks at everything.
    pub fn set_planner(&mut self, planner: Box<dyn Planner>) {
        self.hear_requests();
        self.planner = planner;
        self.takes_over = true;
        self.replica.engine.set_controls(self.planner.decides());
        self.replica.engine.plan_again(self.replica.now);
    }

    /// The policy that made the last decision in the journal.
    #[must_use]
    pub fn last_policy(&self) -> Option<&str> {
        self.replica.last_policy.as_deref()
    }

    /// Who plans.
    #[must_use]
    pub fn planner(&self) -> &dyn Planner {
        &*self.planner
    }

    /// What an administrator should know about planning since the last time.
    pub fn take_notices(&mut self) -> Vec<String> {
        self.planner.take_notices()
    }

    /// How long plans took, of those that were made since the last time.
    pub fn take_plan_times(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.plan_times)
    }

    /// What it began with.
    #[must_use]
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// A digest of all that follows from the journal; see [`Engine::digest`].
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.replica.engine.digest()
    }

    /// How many entries a restart would have to read now.
    #[must_use]
    pub fn entries_to_read(&self) -> u64 {
        self.intake.journal(|store| store.len().saturating_sub(store.last_saved()))
    }

    /// Writes all that it knows into the journal, so that a restart need not read what came before.
    /// For the time between turns. If it fails, nothing is lost: the restart takes longer.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&mut self, keep: &Keep) -> Result<(), ControllerError> {
        let (number, counts) = {
            let mut writer = self.intake.writer();
            for entry in writer.take_unread() {
                self.replica.apply(entry);
            }
            let filed = file_ended(&writer.store, &mut self.replica, &mut self.backend, 1)?;
            self.ended.extend(filed);
            (writer.store.len(), writer.counts.clone())
        };
        // Requests are taken while this is put together.
        let image = image::of(&self.replica, counts, self.backend.image())?;
        let saved = Saved { number, at: self.replica.now };
        Ok(self.intake.writer().store.save(saved, &image, keep)?)
    }

    /// What it knows.
    #[must_use]
    pub fn engine(&self) -> &Engine<'static> {
        &self.replica.engine
    }

    /// Names and origins.
    #[must_use]
    pub fn registry(&self) -> &JobRegistry {
        &self.replica.registry
    }

    /// The next thing an administrator should hear of.
    pub fn poll_alert(&mut self) -> Option<Alert> {
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
    pub fn intake(&self) -> &RequestIntake {
        &self.intake
    }

    /// The time it goes by.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.replica.now
    }

    /// When to call [`Controller::turn`] at the latest.
    #[must_use]
    pub fn next_turn(&self) -> Option<Timestamp> {
        // While a plan is being made, nothing is to be planned; its answer wakes the loop. Of an
        // unknown cluster the backend wakes it.
        let current = self.backend.is_current(self.replica.now);
        let engine = if current && self.planner.is_free() {
            self.replica.engine.poll_timeout()
        } else {
            self.replica.engine.next_retry()
        };
        let again = self
            .replica
            .sent
            .values()
            .map(|sent| sent.at.map_or(self.replica.now, |at| at + AGAIN))
            .min();
        [engine, self.backend.next_event(), again].into_iter().flatten().min()
    }

    /// Hears what happened, plans if that is due, and acts.
    ///
    /// # Errors
    /// When what was heard cannot be written down: then it will be heard again, and nothing was
    /// done. When the cluster does not answer: then whatever else was to be done has been done.
    pub fn turn(&mut self, now: Timestamp) -> Result<(), ControllerError> {
        self.hear_requests();
        let now = self.replica.now.max(now);
        let heard = self.backend.reports(now, self.replica.next_report, self.replica.known());
        let (mut reports, answer) = match heard {
            Ok(reports) => (reports, Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        };
        reports.sort_by_key(|report| report.number);
        let now = self.write_down(now, reports)?;
        let acted = self.act(now);
        let planned = self.plan(now);
        let filed = self.file_ended();
        planned?;
        filed?;
        Ok(answer.and(acted)?)
    }

    /// The cluster is told what to do right after each entry that says so, at the time of that
    /// entry: a replay does the same to an emulated cluster. In between nothing new is sent.
    fn act(&mut self, now: Timestamp) -> Result<(), BackendError> {
        act(&mut self.backend, &mut self.replica, now)
    }

    fn file_ended(&mut self) -> Result<(), ControllerError> {
        let writer = self.intake.writer();
        let filed = file_ended(&writer.store, &mut self.replica, &mut self.backend, 1)?;
        self.ended.extend(filed);
        Ok(())
    }

    /// Jobs that have ended and were filed since this was asked the last time.
    pub fn take_ended(&mut self) -> Vec<EndedJob> {
        std::mem::take(&mut self.ended)
    }

    /// Sheds load if the budget has fallen, takes answers of the planner and asks for the next
    /// plan. Shedding waits for no plan, and for no cluster: of one that is unknown nothing else is
    /// decided.
    fn plan(&mut self, now: Timestamp) -> Result<(), ControllerError> {
        if self.takes_over {
            self.take_over(now)?;
        }
        let current = self.backend.is_current(now);
        let due = self.replica.engine.plan_due(now).is_some();
        if due || !current || !self.planner.is_free() {
            let intake = self.intake.clone();
            let mut writer = intake.writer();
            self.hear(&mut writer);
            if let Some(plan) = self.replica.engine.load_to_shed(now)
                && self.record(&mut writer, now, None, plan, Duration::ZERO)?
            {
                drop(writer);
                self.act(self.replica.now)?;
            }
        }
        if !current {
            // It was made for a cluster that may be another one by now.
            while let Some(answer) = self.planner.poll() {
                self.plan_times.push(answer.took);
                self.replica.engine.plan_again(now);
            }
            return Ok(());
        }
        self.take_answers(now)?;
        if self.planner.is_free()
            && let Some(input) = self.replica.engine.fork_for_planning(now)
        {
            self.planner.begin(input, self.replica.engine.predictor());
            self.take_answers(now)?;
        }
        Ok(())
    }

    /// That another policy decides from now on is written down. One that decides nothing leaves
    /// everything as it is: what was planned and is not so yet is no longer wanted.
    fn take_over(&mut self, now: Timestamp) -> Result<(), ControllerError> {
        let intake = self.intake.clone();
        let mut writer = intake.writer();
        self.hear(&mut writer);
        let engine = &self.replica.engine;
        let plan = match self.planner.decides() {
            true => Plan::unchanged(engine.plan_id()),
            false => engine.plan_as_is(),
        };
        let same = self.last_policy() == Some(self.planner.policy());
        let changes = !plan.is_empty();
        if changes || !same {
            let decision = Decision {
                policy: self.planner.policy().into(),
                trigger: "takes_over".into(),
                ..self.decision(None, &plan, Duration::ZERO)
            };
            let entry = writer.decided(now, decision);
            let entry = writer.write_down(entry)?;
            self.replica.replay(entry);
        }
        drop(writer);
        self.takes_over = false;
        if changes {
            self.act(self.replica.now)?;
        }
        Ok(())
    }

    fn take_answers(&mut self, now: Timestamp) -> Result<(), ControllerError> {
        while let Some(Answer { request, plan, took }) = self.planner.poll() {
            self.plan_times.push(took);
            let Some(plan) = plan else {
                self.replica.engine.plan_again(now);
                continue;
            };
            // No request comes between the judgement and the decision in the journal.
            let intake = self.intake.clone();
            let mut writer = intake.writer();
            self.hear(&mut writer);
            let engine = &mut self.replica.engine;
            match engine.judge(now, &request, plan) {
                Verdict::Good { plan, dropped } => {
                    if dropped > 0 {
                        tracing::debug!(dropped, "parts of a plan no longer held");
                    }
                    if self.record(&mut writer, now, Some(&request), plan, took)? {
                        drop(writer);
                        self.act(self.replica.now)?;
                    }
                }
                Verdict::Stale => tracing::debug!("a plan no longer held"),
                Verdict::Refused(violations) => engine.refuse(self.planner.policy(), violations),
            }
        }
        Ok(())
    }

    /// Writes a decision down and applies it, unless it changes nothing; says whether it did. If it
    /// cannot be written, it is planned again.
    fn record(
        &mut self,
        writer: &mut JournalWriter,
        now: Timestamp,
        request: Option<&PlanRequest>,
        plan: CheckedPlan,
        took: Duration,
    ) -> Result<bool, ControllerError> {
        if plan.plan().is_empty() {
            return Ok(false);
        }
        let decision = self.decision(request, plan.plan(), took);
        let policy = decision.policy.clone();
        let entry = writer.decided(now, decision);
        match writer.write_down(entry) {
            Ok(entry) => {
                self.replica.decide(entry.at, &policy, plan);
                Ok(true)
            }
            Err(error) => {
                self.replica.engine.plan_again(now);
                Err(error)
            }
        }
    }

    fn decision(&self, request: Option<&PlanRequest>, plan: &Plan, took: Duration) -> Decision {
        let engine = &self.replica.engine;
        Decision {
            based_on: request.map_or(engine.revision(), |request| request.revision).0,
            policy: if request.is_none() && self.planner.decides() {
                SHED.into()
            } else {
                self.planner.policy().into()
            },
            version: env!("CARGO_PKG_VERSION").into(),
            trigger: request.map_or("budget", |request| request.trigger.name()).into(),
            took: Seconds::new(took.as_secs_f64()),
            plan: plan.clone(),
        }
    }

    /// What was written down at the intake since the last turn.
    fn hear_requests(&mut self) {
        let intake = self.intake.clone();
        self.hear(&mut intake.writer());
    }

    fn hear(&mut self, writer: &mut JournalWriter) {
        for entry in writer.take_unread() {
            self.replica.apply(entry);
        }
    }

    /// What was heard goes into the journal first, then into the engine, if there is anything to
    /// plan or to do. Says what time it is.
    fn write_down(
        &mut self,
        now: Timestamp,
        reports: Vec<Report>,
    ) -> Result<Timestamp, ControllerError> {
        let mut writer = self.intake.writer();
        for entry in writer.take_unread() {
            self.replica.apply(entry);
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
                BackendEvent::Event(event) => events.push(event),
                BackendEvent::Noted(event, note) => {
                    events.push(event);
                    notes.push(note);
                }
                BackendEvent::Submission(submission) => {
                    writer.admit(*submission, jobs, &mut events, &mut notes);
                    jobs += 1;
                }
            }
        }
        let at = writer.time(now);
        let due = self.replica.engine.next_retry().is_some_and(|retry| retry <= at);
        // When the cluster hears of an action is written down too.
        let unsent = self.replica.sent.values().any(|sent| sent.at.is_none());
        if !due && !unsent && events.is_empty() {
            return Ok(at);
        }
        self.replica.particulars(at, &events, &mut notes);
        let decisions = Vec::new();
        let entry = Entry { at, events, next_report: next, acts: true, notes, decisions };
        let entry = writer.write_down(entry)?;
        drop(writer);
        self.replica.apply(entry);
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
    let Replica { engine, registry, sent, .. } = replica;
    let mut outcome = Ok(());
    for sent in sent.values_mut() {
        if sent.at.is_some_and(|at| now < at + AGAIN) {
            continue;
        }
        tracing::debug!(action = sent.action.id.0, kind = ?sent.action.kind, "sent");
        match backend.send(now, &sent.action, Known { engine, registry }) {
            Ok(()) => sent.at = Some(now),
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}

/// Reads the journal after an entry.
fn read(
    intake: &RequestIntake,
    after: u64,
    mut take: impl FnMut(&Store, Entry) -> Result<(), ControllerError>,
) -> Result<(), ControllerError> {
    let mut writer = intake.writer();
    let JournalWriter { store, counts, .. } = &mut *writer;
    let store = &*store;
    store.read_after(after, |entry| {
        counts.follow(&entry);
        take(store, entry)
    })
}

/// Files the jobs that have ended, if they are so many or more, and returns them. What cannot be
/// written is kept.
fn file_ended(
    store: &Store,
    replica: &mut Replica,
    backend: &mut impl Backend,
    least: usize,
) -> Result<Vec<EndedJob>, ControllerError> {
    let (ended, later) = (&mut replica.ended, &mut replica.drawn_later);
    if ended.len().max(later.len()) < least {
        return Ok(Vec::new());
    }
    for job in ended.iter_mut() {
        let drawn = backend.job_ended(replica.now, job.id);
        job.drawn = job.drawn.or(drawn.map(|drawn| (drawn.energy, drawn.bill)));
    }
    if !ended.is_empty() {
        store.file_ended(ended)?;
    }
    if !later.is_empty() {
        store.correct_drawn(later)?;
        later.clear();
    }
    Ok(std::mem::take(ended))
}

impl Controller<Emulated> {
    /// As [`Controller::open`], with an emulated cluster that died with its controller: it begins
    /// anew, or as a snapshot has it, and all that the journal says after that is done to it once
    /// more, so that it is the same again.
    ///
    /// # Errors
    /// When the journal cannot be read, or the cluster does otherwise than the journal says.
    pub fn open_emulated(
        initial: InitialState,
        store: Store,
        mut backend: Emulated,
        planner: Box<dyn Planner>,
    ) -> Result<Self, ControllerError> {
        let intake = RequestIntake::new(store, initial.at, &initial.workloads);
        let mut replica = Replica::new(initial);
        let opened =
            image::load_snapshot(&intake, &mut replica, |image, job| backend.restore(image, job))?;
        let mut number = opened.after;
        read(&intake, opened.after, |store, entry| {
            number += 1;
            let (at, acts) = (entry.at, entry.acts);
            let again = backend.reports(at, replica.next_report, replica.known())?;
            let again = again.into_iter().filter(|report| report.number < entry.next_report);
            let again: Vec<BackendEvent> = again.map(|report| report.news).collect();
            let reported = entry.next_report - replica.next_report;
            let told = entry.events.iter().cloned().map(BackendEvent::Event);
            if again.len() as u64 != reported || (reported > 0 && !told.eq(again)) {
                return Err(ControllerError::EmulationDiffers(number));
            }
            replica.replay(entry);
            replica.learned.clear();
            if acts {
                act(&mut backend, &mut replica, at)?;
            }
            file_ended(store, &mut replica, &mut backend, FILED_TOGETHER).map(drop)
        })?;
        let mut controller = Self::over(replica, intake, backend, planner, opened);
        controller.file_ended()?;
        // They ended before the controller was restarted.
        controller.ended.clear();
        Ok(controller)
    }
}
