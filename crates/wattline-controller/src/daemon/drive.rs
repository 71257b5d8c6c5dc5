//! The loop.

use super::cluster_clock::ClusterClock;
use super::forecaster::run;
use super::fork::{ForkClient, ForkServer, SharedPredictor};
use super::health::{Condition, Health};
use super::hours::{Hours, Load};
use super::loop_stats::LoopStats;
use super::metered::Metered;
use super::planner::PlannerThread;
use super::question::{Questions, answer};
use super::read_model::{BuildInputs, ReadModel, ReadModelBuilder, plain};
use super::shared::{Asked, Daemon};
use crate::backend::Backend;
use crate::controller::{Controller, ControllerError};
use crate::job_registry::JobRegistry;
use crate::journal::{Keep, Store, StoreError};
use crate::log::harmless;
use crate::request_intake::RequestIntake;
use crate::snapshot_schedule::SnapshotSchedule;
use regex::Regex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;
use wattline_api::Event;
use wattline_core::Timestamp;
use wattline_core::engine::{Alert, Shortfall};
use wattline_core::ids::JobId;
use wattline_core::policy::Policy;
use wattline_core::state::State;
use wattline_core::units::Watts;

/// Nobody waits longer than this for a turn.
const MAX_IDLE_WAIT: Duration = Duration::from_secs(1);
const SHORTEST_NAP: Duration = Duration::from_millis(1);
/// Least time between two rebuilds of the read model while nobody waits for one.
const REBUILD_EVERY: Duration = Duration::from_millis(25);
/// After something failed that may work later.
const RETRY_AFTER_ERROR: Duration = Duration::from_secs(1);
/// Jobs that an alert names; of the rest it says how many there are. More would not be read.
const MOST_LISTED: usize = 8;
/// How often power by the hour is written down.
const WRITE_HOURS: Duration = Duration::from_secs(10);

/// Makes a fresh policy of the kind that plans.
pub type Fresh = Box<dyn Fn() -> Box<dyn Policy> + Send + Sync>;

/// Why the loop ended.
#[derive(Debug, Error)]
pub enum DriveError {
    /// The controller cannot go on.
    #[error(transparent)]
    Controller(#[from] ControllerError),
    /// The machine gives it no thread.
    #[error("a thread beside the loop cannot be started: {0}")]
    Thread(std::io::Error),
}

/// Where jobs come from beside people: a scenario's arrivals.
pub trait Feed {
    /// Submits what is due.
    ///
    /// # Errors
    /// When it could not be written down. It is tried again.
    fn submit(&mut self, intake: &RequestIntake, now: Timestamp) -> Result<(), ControllerError>;
    /// When the next one is due; `None`: no more will come.
    fn next(&self) -> Option<Timestamp>;
}

/// Nobody.
impl Feed for () {
    fn submit(&mut self, _: &RequestIntake, _: Timestamp) -> Result<(), ControllerError> {
        Ok(())
    }
    fn next(&self) -> Option<Timestamp> {
        None
    }
}

/// A controller and what turns it.
pub struct Drive<B> {
    controller: Controller<B>,
    daemon: Daemon,
    fork_server: ForkServer,
    builder: ReadModelBuilder,
    turns: LoopStats,
    /// Tells those who look ahead that it is over.
    over: Arc<AtomicBool>,
    /// When the load was looked at last, and when it was last written down.
    loaded: Option<Timestamp>,
    hours_written: Instant,
    /// Who must know whether it does its work; none before it runs.
    health: Option<Health>,
    /// Why the journal could not be written when that was tried last. A turn that had nothing to write
    /// has not tried.
    unwritten: Option<String>,
    troubles: Vec<String>,
    heard: u64,
    /// Go on when nothing is left to do.
    stay: bool,
    snapshot_schedule: SnapshotSchedule,
    policy: Arc<Fresh>,
    shared_predictor: Option<SharedPredictor>,
    keep: Keep,
    /// Whoever listens is told what the policy would do.
    advises: Arc<AtomicBool>,
}

impl<B: Backend + Metered> Drive<B> {
    /// Takes a controller over. `policy` is the kind that plans, by its name and fresh, for
    /// forecasts. With `stay` it goes on when nothing is left to do.
    #[must_use]
    pub fn new(
        mut controller: Controller<B>,
        cluster_clock: ClusterClock,
        policy: (&str, Fresh),
        stay: bool,
    ) -> Self {
        let heard = controller.intake().journal(Store::len);
        // Without the history the count begins anew, as counters may.
        let missed = controller.intake().journal(Store::ended_late).unwrap_or_default();
        let mut builder = ReadModelBuilder::new(missed);
        let inputs = BuildInputs {
            reads: true,
            heard,
            effort: controller.planner().effort(),
            turns: Arc::default(),
            outlook: Arc::default(),
            troubles: Arc::from([]),
        };
        let now = controller.now();
        let (engine, registry) = (controller.engine(), controller.registry());
        let backend = controller.backend();
        let (read_model, _) = builder.build(engine, registry, backend, now, inputs, &[]);
        let intake = controller.intake().clone();
        // Without them reports know less, no more.
        let hours = Hours::new(intake.journal(Store::hours).unwrap_or_default());
        let (daemon, asked) =
            Daemon::new(intake, cluster_clock, read_model, heard, policy.0, hours);
        // All that was learned before is in the shared predictor from the beginning.
        drop(controller.take_learned());
        let shared_predictor = SharedPredictor::of(controller.engine().predictor());
        let Asked { questions, forks } = asked;
        let over = Arc::new(AtomicBool::new(false));
        let advises = Arc::new(AtomicBool::new(false));
        let policy = Arc::new(policy.1);
        let for_planner = shared_predictor.clone();
        for beside in [Beside::LooksAhead, Beside::Answers(questions)] {
            let fork_client = ForkClient {
                daemon: daemon.clone(),
                shared_predictor: shared_predictor.clone(),
                advises: Arc::clone(&advises),
                over: Arc::clone(&over),
            };
            beside.start(fork_client, Arc::clone(&policy));
        }
        Self {
            controller,
            daemon,
            fork_server: ForkServer::new(forks, shared_predictor),
            builder,
            turns: LoopStats::default(),
            over,
            loaded: None,
            hours_written: Instant::now(),
            health: None,
            unwritten: None,
            troubles: Vec::new(),
            heard,
            stay,
            snapshot_schedule: SnapshotSchedule::default(),
            policy,
            shared_predictor: for_planner,
            keep: Keep::default(),
            advises,
        }
    }

    /// Tells what the policy would do, whenever that changes.
    pub fn advise(&self) {
        self.advises.store(true, Ordering::Relaxed);
    }

    /// What of the journal is kept that no restart needs; everything, unless said.
    pub fn keep(&mut self, keep: Keep) {
        self.keep = keep;
    }

    /// Lets plans be made beside the loop, in a thread of their own, in at most this time each. A
    /// cluster that is only observed needs no plans, and stays as it is.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn plan_beside(&mut self, limit: Duration) -> Result<(), DriveError> {
        let Some(shared_predictor) =
            self.shared_predictor.clone().filter(|_| self.controller.planner().decides())
        else {
            return Ok(());
        };
        let (name, policy) = (self.daemon.policy(), Arc::clone(&self.policy));
        let planner =
            PlannerThread::start(name, policy, shared_predictor, limit, self.daemon.waker());
        let planner = planner.map_err(DriveError::Thread)?;
        self.controller.set_planner(Box::new(planner));
        Ok(())
    }

    /// For whoever asks it.
    #[must_use]
    pub fn daemon(&self) -> Daemon {
        self.daemon.clone()
    }

    /// Its controller.
    #[must_use]
    pub fn controller(&self) -> &Controller<B> {
        &self.controller
    }

    /// Turns until it is told to end or, unless it shall stay, nothing is left to do. `look` is
    /// shown each read model.
    ///
    /// # Errors
    /// When the controller cannot go on.
    pub fn run(
        &mut self,
        mut feed: impl Feed,
        mut look: impl FnMut(&ReadModel),
    ) -> Result<(), DriveError> {
        let waker = self.daemon.waker();
        let begun = self.controller.backend_mut().begin(Arc::new(move || waker.wake()));
        begun.map_err(DriveError::Thread)?;
        let heartbeat = self.controller.backend().heartbeat();
        self.health = Some(Health::start(heartbeat).map_err(DriveError::Thread)?);
        let mut built = Instant::now();
        let mut rang = true;
        loop {
            let now = self.daemon.cluster_clock().now();
            let trouble = self.turn(&mut feed, now)?;
            let over = self.is_over(&feed);
            let forks_due = self.fork_server.is_due();
            let due = rang || over || forks_due || built.elapsed() >= REBUILD_EVERY;
            if due {
                // Forecasts begin with what was drawn so far.
                let read_model = self.build(forks_due || over, &mut look);
                built = Instant::now();
                if forks_due {
                    self.send_forks(&read_model);
                }
            }
            if over {
                return self.write_hours();
            }
            let writes = self.unwritten.is_none();
            let pause = if writes { WRITE_HOURS } else { RETRY_AFTER_ERROR };
            if self.hours_written.elapsed() >= pause {
                self.write_hours()?;
            }
            let mut nap = self.nap(&feed);
            if !due {
                let left = REBUILD_EVERY.saturating_sub(built.elapsed());
                nap = nap.min(left.max(SHORTEST_NAP));
            }
            if trouble {
                nap = nap.max(RETRY_AFTER_ERROR);
            }
            rang = self.daemon.wait(nap);
        }
    }

    /// Whether something failed that may work later.
    fn turn(&mut self, feed: &mut impl Feed, now: Timestamp) -> Result<bool, DriveError> {
        let began = Instant::now();
        let fed = feed.submit(self.controller.intake(), now);
        // All that is written down by now is heard in this turn.
        self.heard = self.controller.intake().journal(Store::len);
        let turned = fed.and(self.controller.turn(now));
        self.turns.count(began.elapsed());
        for took in self.controller.take_plan_times() {
            self.turns.planned(took);
        }
        self.fork_server.tell(self.controller.take_learned());
        let failed = turned.is_err();
        let mut troubles = Vec::new();
        match turned {
            Ok(()) => {}
            Err(error) if !may_work_later(&error) => return Err(error.into()),
            // Only what is written next shows that it can be written again.
            Err(ControllerError::Store(error)) => self.unwritten = Some(error.to_string()),
            Err(error) => troubles.push(error.to_string()),
        }
        troubles.extend(self.unwritten.clone());
        troubles.extend(self.controller.backend().troubles(now));
        troubles.extend(self.report_health(now));
        troubles.extend(self.shortfall());
        self.snapshot_schedule.turned(began.elapsed());
        let mut events: Vec<Event> = Vec::new();
        if troubles != self.troubles {
            let new = troubles.iter().filter(|text| !self.troubles.contains(text));
            events.extend(new.map(|text| plain(now, "trouble", text.clone())));
            self.troubles = troubles;
        }
        if let Some(trouble) = self.save() {
            events.push(plain(now, "trouble", trouble));
        }
        let notices = self.controller.take_notices();
        events.extend(notices.into_iter().map(|notice| plain(now, "alert", notice)));
        for complaint in self.controller.backend_mut().complaints() {
            events.push(plain(now, "trouble", complaint));
        }
        for alert in self.controller.backend_mut().alerts() {
            events.push(plain(now, "alert", alert));
        }
        while let Some(alert) = self.controller.poll_alert() {
            let (engine, registry) = (self.controller.engine(), self.controller.registry());
            let text = in_words(&alert, engine.state(), registry);
            events.push(plain(now, "alert", text));
        }
        for event in &events {
            tracing::warn!("{}: {}", event.kind, harmless(&event.text));
        }
        if !events.is_empty() {
            self.daemon.event_log().tell(events);
        }
        Ok(failed)
    }

    /// Says how it is to whoever must know. Says what is wrong with that.
    fn report_health(&self, now: Timestamp) -> Vec<String> {
        let Some(health) = &self.health else { return Vec::new() };
        let planner = self.controller.planner();
        let (answers, plans) = (!planner.is_stuck(), !planner.fails());
        let cluster = self.controller.backend().is_current(now.max(self.controller.now()));
        let journal = self.unwritten.is_none();
        health.turned(Condition { journal, planner: answers, plans, cluster });
        let stuck = || "the planner does not answer; restart the controller".to_owned();
        let fails = || {
            let policy = planner.policy();
            format!("{policy} panics whenever it plans, so nothing is planned; use another policy")
        };
        let troubles = health.trouble().into_iter().chain((!answers).then(stuck));
        troubles.chain((!plans).then(fails)).collect()
    }

    /// That the budget cannot be kept, as long as that is so. Everybody may see this, so it names
    /// nobody's jobs; the alert does.
    fn shortfall(&self) -> Option<String> {
        let shortfall = self.controller.engine().shortfall()?;
        let jobs = match shortfall.jobs.len() + shortfall.more {
            0 => "nothing is left to give up".to_owned(),
            1 => "1 running job may not be stopped".to_owned(),
            jobs => format!("{jobs} running jobs may not be stopped"),
        };
        let Shortfall { committed, budget, .. } = shortfall;
        Some(format!(
            "the budget of {budget:.1} cannot be kept: {committed:.1} stay committed; {jobs}"
        ))
    }

    /// Takes a snapshot if one is due. Without it the next start takes longer, no more.
    fn save(&mut self) -> Option<String> {
        if !self.snapshot_schedule.is_due(self.controller.entries_to_read()) {
            return None;
        }
        let began = Instant::now();
        let saved = self.controller.save(&self.keep);
        self.snapshot_schedule.saved(began.elapsed());
        saved.err().map(|error| format!("no snapshot: {error}"))
    }

    fn is_over(&self, feed: &impl Feed) -> bool {
        let idle = feed.next().is_none() && self.controller.engine().state().unfinished() == 0;
        self.daemon.is_stopping() || (idle && !self.stay)
    }

    fn nap(&self, feed: &impl Feed) -> Duration {
        let next = feed.next().into_iter().chain(self.controller.next_turn()).min();
        let nap = next.map_or(MAX_IDLE_WAIT, |next| self.daemon.cluster_clock().until(next));
        nap.clamp(SHORTEST_NAP, MAX_IDLE_WAIT)
    }

    /// The cluster's clock; never before what was written down last.
    fn now(&self) -> Timestamp {
        self.daemon.cluster_clock().now().max(self.controller.now())
    }

    /// Copies the engine for those who look ahead.
    fn send_forks(&mut self, read_model: &Arc<ReadModel>) {
        let (engine, registry) = (self.controller.engine(), self.controller.registry());
        let took = self.fork_server.send_forks(engine, registry, read_model, read_model.at);
        self.turns.forked(took);
    }

    fn build(&mut self, reads: bool, look: &mut impl FnMut(&ReadModel)) -> Arc<ReadModel> {
        let now = self.now();
        let ended = self.controller.take_ended();
        let controller = &self.controller;
        let inputs = BuildInputs {
            reads,
            heard: self.heard,
            effort: controller.planner().effort(),
            turns: Arc::new(self.turns.clone()),
            outlook: self.daemon.outlook(),
            troubles: self.troubles.clone().into(),
        };
        let (engine, registry) = (controller.engine(), controller.registry());
        let meters = controller.backend();
        let (read_model, events) =
            self.builder.build(engine, registry, meters, now, inputs, &ended);
        let read_model = Arc::new(read_model);
        if let Some(health) = &self.health {
            health.say(in_a_line(&read_model));
        }
        look(&read_model);
        self.count_load(&read_model);
        self.daemon.publish(Arc::clone(&read_model));
        for event in &events {
            tracing::debug!("{}: {}", event.kind, harmless(&event.text));
        }
        if !events.is_empty() {
            self.daemon.event_log().tell(events);
        }
        read_model
    }

    /// What was drawn since the last read model, as it is drawn now.
    fn count_load(&mut self, read_model: &ReadModel) {
        let before = self.loaded.replace(read_model.at);
        let (Some(from), Some(drawn)) = (before, read_model.drawn) else { return };
        let engine = self.controller.engine();
        let budget = engine.budget().map(|calendar| calendar.at(read_model.at));
        let load = Load { drawn, committed: read_model.committed, budget };
        self.daemon.hours().add(from, read_model.at, load, engine.prices());
    }

    /// Without them reports know less, no more: trouble with the disk shows elsewhere. But a
    /// journal that is no longer this controller's ends it, also if there is nothing to write.
    fn write_hours(&mut self) -> Result<(), DriveError> {
        self.hours_written = Instant::now();
        let intake = self.controller.intake().clone();
        let tried = match &self.unwritten {
            None => Ok(()),
            Some(_) => intake.journal(Store::try_to_write),
        };
        let written = tried.and_then(|()| {
            let changed = self.daemon.hours().take_changed();
            intake.writer().store.write_hours(&changed)
        });
        self.unwritten = written.as_ref().err().map(ToString::to_string);
        match written {
            Err(error @ (StoreError::Fenced(_) | StoreError::Moved(_))) => {
                Err(ControllerError::from(error).into())
            }
            _ => Ok(()),
        }
    }
}

impl<B> Drop for Drive<B> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// What goes on beside the loop, each in a thread of its own until the loop is over.
enum Beside {
    LooksAhead,
    Answers(Questions),
}

impl Beside {
    fn start(self, fork_client: ForkClient, policy: Arc<Fresh>) {
        let name = match &self {
            Self::LooksAhead => "wattline-outlook",
            Self::Answers(_) => "wattline-answers",
        };
        // Without it nothing is foreseen, and the loop goes on.
        let _ = thread::Builder::new().name(name.to_owned()).spawn(move || match self {
            Self::LooksAhead => run(&fork_client, &policy),
            Self::Answers(questions) => answer(&questions, &fork_client, &policy),
        });
    }
}

/// How things are, for `systemctl status`.
fn in_a_line(read_model: &ReadModel) -> String {
    let waiting = read_model.unfinished.len().saturating_sub(read_model.running);
    let kilowatts = |watts: Watts| watts.get() / 1e3;
    let budget = read_model
        .budget_now
        .map_or_else(String::new, |budget| format!(" of {:.1} kW", kilowatts(budget)));
    let trouble = read_model.troubles.first();
    let trouble = trouble.map_or_else(String::new, |text| format!("; {}", harmless(text)));
    format!(
        "{} running, {waiting} waiting, {:.1} kW{budget} committed{trouble}",
        read_model.running,
        kilowatts(read_model.committed)
    )
}

/// The disk may have room again, the cluster may answer again.
fn may_work_later(error: &ControllerError) -> bool {
    match error {
        ControllerError::Backend(_) => true,
        ControllerError::Store(error) => {
            matches!(
                error,
                StoreError::Full(_)
                    | StoreError::Io { .. }
                    | StoreError::Disk { .. }
                    | StoreError::Sql { .. }
            )
        }
        ControllerError::Event(_)
        | ControllerError::EmulationDiffers(_)
        | ControllerError::Image(_) => false,
    }
}

/// A job, by the number that its users know.
fn named(id: JobId, state: &State, registry: &JobRegistry) -> String {
    let number = format!("job {}", registry.number(id));
    let found = state.find_job(id);
    found.map_or_else(|| number.clone(), |job| format!("{number} ({})", job.job.name))
}

/// How the engine writes jobs.
static JOB: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\bj([0-9]{1,10})\b").unwrap_or_else(|error| unreachable!("it is sound: {error}"))
});

/// The engine's words, with the numbers that people know.
fn numbered(text: &str, registry: &JobRegistry) -> String {
    let number = |found: &regex::Captures<'_>| match found[1].parse() {
        Ok(id) => format!("job {}", registry.number(JobId(id))),
        Err(_) => found[0].to_owned(),
    };
    JOB.replace_all(text, number).into_owned()
}

/// A budget that cannot be kept, and who would have to stop for it.
fn shortfall_in_words(shortfall: &Shortfall, job: &impl Fn(JobId) -> String) -> String {
    let Shortfall { committed, budget, jobs, more, .. } = shortfall;
    let why = if jobs.is_empty() {
        "nothing is left to give up".to_owned()
    } else {
        format!("these jobs may not be stopped: {}", listed(jobs, *more, job))
    };
    format!(
        "the budget of {budget:.1} cannot be kept: {committed:.1} stay committed with limits at \
         their lowest, idle nodes asleep and preemptible jobs stopped; {why}"
    )
}

/// Jobs in a line.
fn listed(ids: &[JobId], more: usize, job: &impl Fn(JobId) -> String) -> String {
    let named: Vec<String> = ids.iter().take(MOST_LISTED).map(|id| job(*id)).collect();
    let more = more + ids.len() - named.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    named.join(", ") + &rest
}

fn in_words(alert: &Alert, state: &State, registry: &JobRegistry) -> String {
    let job = |id| named(id, state, registry);
    let node = |id: &wattline_core::ids::NodeId| {
        let found = state.cluster().nodes().get(id.index());
        found.map_or_else(|| format!("{id}"), |node| node.name.to_string())
    };
    match alert {
        Alert::PlanRefused { policy, violations } => {
            let said = violations.iter().take(3);
            let said: Vec<String> = said.map(|one| numbered(&one.to_string(), registry)).collect();
            format!("the checker refused a plan of {policy}: {}", said.join("; "))
        }
        Alert::BudgetFell { committed, budget } => {
            format!("the budget is {budget:.1}, {committed:.1} were committed: load is shed")
        }
        Alert::BudgetCannotBeKept(shortfall) => shortfall_in_words(shortfall, &job),
        Alert::BudgetKeptAgain { committed, budget } => {
            format!("the budget of {budget:.1} is kept again: {committed:.1} are committed")
        }
        Alert::KilledForBudget(ids) => format!(
            "ended for good, because nothing else was left to give up for the budget and the site \
             wrote shed = \"kill\": {}",
            listed(ids, 0, &job)
        ),
        Alert::CannotBeStopped(id) => format!(
            "{}: cannot be stopped without ending it for good (no batch job, or not to be \
             requeued); it goes on and counts as not preemptible",
            job(*id)
        ),
        Alert::NeverFits(id) => format!("{}: no shape it may take exists here; it waits", job(*id)),
        Alert::StartGivenUp(id) => format!("{}: would not start; tried again later", job(*id)),
        Alert::StopGivenUp(id) => format!("{}: would not stop; tried again later", job(*id)),
        Alert::LimitGivenUp(id) => format!("{}: its power limit could not be set", job(*id)),
        Alert::WakeGivenUp(id) => format!(
            "{}: did not wake after several tries. It counts at its maximum power until it does; \
             look at the node. It is woken again from time to time",
            node(id)
        ),
        Alert::WokenAtLast(id) => format!("{}: is up after it did not wake before", node(id)),
        Alert::SleepGivenUp(id) => format!("{}: would not sleep; tried again later", node(id)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::backend::{BackendError, BackendEvent, Known, Report};
    use crate::{InitialState, InlinePlanner};
    use wattline_core::action::Action;
    use wattline_sim::scenario::Scenario;

    /// A cluster that has something to say, or nothing.
    struct Cluster {
        has_news: bool,
    }

    impl Backend for Cluster {
        fn send(&mut self, _: Timestamp, _: &Action, _: Known<'_>) -> Result<(), BackendError> {
            Ok(())
        }
        fn reports(
            &mut self,
            _: Timestamp,
            from: u64,
            _: Known<'_>,
        ) -> Result<Vec<Report>, BackendError> {
            let news = BackendEvent::Event(wattline_core::engine::Event::Clock);
            Ok(if self.has_news { vec![Report { number: from, news }] } else { Vec::new() })
        }
        fn next_event(&self) -> Option<Timestamp> {
            None
        }
    }

    impl Metered for Cluster {}

    /// Beside a full disk, turns that had nothing to write kept the gate closed.
    #[test]
    fn only_what_was_written_shows_that_a_full_disk_has_room_again() {
        let text =
            "name = \"d\"\n[[nodes]]\ncount = 1\ngpu = \"h200\"\ngpus = 1\n[jobs]\ncount = 1\n";
        let instance = Scenario::parse(text, "d").unwrap().instance("d", None).unwrap();
        let (engine, _) = wattline_sim::begin::begin(&instance, "fifo", false).unwrap();
        let (engine, at) = (engine.into_engine(), instance.start);
        let initial = InitialState { engine, workloads: Vec::new(), at };
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("journal"), &[]).unwrap();
        let fresh = || wattline_policies::policy("fifo").unwrap();
        let planner = Box::new(InlinePlanner::new("fifo", fresh()));
        let cluster = Cluster { has_news: true };
        let controller = Controller::open(initial, store, cluster, planner).unwrap();
        let clock = ClusterClock::new(at, 1.0);
        let mut drive = Drive::new(controller, clock, ("fifo", Box::new(fresh)), true);
        let fails = |drive: &mut Drive<Cluster>, has_news| {
            drive.controller.backend_mut().has_news = has_news;
            let now = drive.now();
            drive.turn(&mut (), now).unwrap()
        };
        let refuse = |drive: &Drive<Cluster>, refuse| {
            drive.controller.intake().journal(|store| store.refuse_writes(refuse)).unwrap();
        };
        let writes = |drive: &Drive<Cluster>| drive.unwritten.is_none();
        assert!(!fails(&mut drive, true) && writes(&drive));
        refuse(&drive, true);
        assert!(fails(&mut drive, true) && !writes(&drive));
        assert!(!fails(&mut drive, false) && !writes(&drive), "nothing was to be written");
        assert_eq!(drive.troubles.len(), 1, "it is shown until it is over");
        drive.write_hours().unwrap();
        assert!(!writes(&drive), "that was tried");
        refuse(&drive, false);
        drive.write_hours().unwrap();
        assert!(writes(&drive));
        assert!(!fails(&mut drive, true) && writes(&drive));
        assert!(drive.troubles.is_empty());
    }
}
