//! The loop.

use super::adviser::Adviser;
use super::metered::Metered;
use super::outlook::{Outlook, Prophet, is_foreseeable};
use super::pace::Pace;
use super::picture::{Frame, Painter, Picture, plain};
use super::question::{Inside, Question};
use super::shared::Daemon;
use super::tally::Turns;
use crate::advice::advise;
use crate::backend::Backend;
use crate::controller::{Controller, ControllerError};
use crate::desk::Desk;
use crate::saving::Saving;
use crate::store::{Keep, Store, StoreError};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use thiserror::Error;
use wattline_api::Event;
use wattline_core::Timestamp;
use wattline_core::engine::Alert;
use wattline_core::policy::Policy;
use wattline_core::state::State;

/// Nobody waits longer than this for a turn.
const LONGEST_NAP: Duration = Duration::from_secs(1);
const SHORTEST_NAP: Duration = Duration::from_millis(1);
/// Pictures are painted no more often than this, unless somebody asked for something.
const PAINT_EVERY: Duration = Duration::from_millis(25);
/// After something failed that may work later.
const AFTER_TROUBLE: Duration = Duration::from_secs(1);

/// Makes a fresh policy of the kind that plans.
pub type Fresh = Box<dyn Fn() -> Box<dyn Policy> + Send>;

/// Why the loop ended.
#[derive(Debug, Error)]
pub enum DriveError {
    /// The controller cannot go on.
    #[error(transparent)]
    Controller(#[from] ControllerError),
}

/// Where jobs come from beside people: a scenario's arrivals.
pub trait Feed {
    /// Submits what is due.
    ///
    /// # Errors
    /// When it could not be written down. It is tried again.
    fn submit(&mut self, desk: &Desk, now: Timestamp) -> Result<(), ControllerError>;
    /// When the next one is due; `None`: no more will come.
    fn next(&self) -> Option<Timestamp>;
}

/// Nobody.
impl Feed for () {
    fn submit(&mut self, _: &Desk, _: Timestamp) -> Result<(), ControllerError> {
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
    questions: Receiver<Question>,
    policy: Fresh,
    painter: Painter,
    prophet: Prophet,
    turns: Turns,
    outlook: Arc<Outlook>,
    troubles: Vec<String>,
    heard: u64,
    /// Go on when nothing is left to do.
    stay: bool,
    saving: Saving,
    keep: Keep,
    adviser: Option<Adviser>,
}

impl<B: Backend + Metered> Drive<B> {
    /// Takes a controller over. `policy` is the kind that plans, by its name and fresh, for
    /// forecasts. With `stay` it goes on when nothing is left to do.
    #[must_use]
    pub fn new(controller: Controller<B>, pace: Pace, policy: (&str, Fresh), stay: bool) -> Self {
        let mut painter = Painter::new();
        let heard = controller.desk().journal(Store::len);
        let frame = Frame {
            heard,
            turns: Arc::default(),
            outlook: Arc::default(),
            troubles: Arc::from([]),
        };
        let now = controller.now();
        let (engine, directory) = (controller.engine(), controller.directory());
        let (picture, _) = painter.paint(engine, directory, controller.backend(), now, frame);
        let desk = controller.desk().clone();
        let (daemon, questions) = Daemon::new(desk, pace, picture, heard, policy.0);
        Self {
            controller,
            daemon,
            questions,
            policy: policy.1,
            painter,
            prophet: Prophet::new(),
            turns: Turns::default(),
            outlook: Arc::default(),
            troubles: Vec::new(),
            heard,
            stay,
            saving: Saving::default(),
            keep: Keep::default(),
            adviser: None,
        }
    }

    /// Tells what the policy would do, whenever that changes.
    pub fn advise(&mut self) {
        self.adviser = Some(Adviser::default());
    }

    /// What of the journal is kept that no restart needs; everything, unless said.
    pub fn keep(&mut self, keep: Keep) {
        self.keep = keep;
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
    /// shown each picture.
    ///
    /// # Errors
    /// When the controller cannot go on.
    pub fn run(
        &mut self,
        mut feed: impl Feed,
        mut look: impl FnMut(&Picture),
    ) -> Result<(), DriveError> {
        let mut painted = Instant::now();
        let mut rang = true;
        loop {
            let now = self.daemon.pace().now();
            let trouble = self.turn(&mut feed, now)?;
            let over = self.is_over(&feed);
            self.answer();
            let due = rang || over || painted.elapsed() >= PAINT_EVERY;
            if due {
                self.paint(&mut look);
                painted = Instant::now();
            }
            if over {
                return Ok(());
            }
            let mut nap = self.nap(&feed);
            if nap > SHORTEST_NAP && self.tell_advice() {
                nap = self.nap(&feed);
            }
            // With time to spare it looks ahead.
            if nap > SHORTEST_NAP && self.foresee() {
                self.paint(&mut look);
                painted = Instant::now();
                nap = self.nap(&feed);
            } else if !due {
                let left = PAINT_EVERY.saturating_sub(painted.elapsed());
                nap = nap.min(left.max(SHORTEST_NAP));
            }
            if trouble {
                nap = nap.max(AFTER_TROUBLE);
            }
            rang = self.daemon.wait(nap);
        }
    }

    /// Whether something failed that may work later.
    fn turn(&mut self, feed: &mut impl Feed, now: Timestamp) -> Result<bool, DriveError> {
        let plans = self.controller.engine().stats().plans;
        let began = Instant::now();
        let fed = feed.submit(self.controller.desk(), now);
        // All that is written down by now is heard in this turn.
        self.heard = self.controller.desk().journal(Store::len);
        let turned = fed.and(self.controller.turn(now));
        let planned = self.controller.engine().stats().plans > plans;
        self.turns.count(began.elapsed(), planned);
        let troubles = match turned {
            Ok(()) => Vec::new(),
            Err(error) if may_work_later(&error) => vec![error.to_string()],
            Err(error) => return Err(error.into()),
        };
        self.saving.turned(began.elapsed());
        let mut events: Vec<Event> = Vec::new();
        if troubles != self.troubles {
            events.extend(troubles.iter().map(|text| plain(now, "trouble", text.clone())));
            self.troubles = troubles;
        }
        if let Some(trouble) = self.save() {
            events.push(plain(now, "trouble", trouble));
        }
        for complaint in self.controller.backend_mut().complaints() {
            events.push(plain(now, "trouble", complaint));
        }
        while let Some(alert) = self.controller.poll_alert() {
            let text = in_words(&alert, self.controller.engine().state());
            events.push(plain(now, "alert", text));
        }
        if !events.is_empty() {
            self.daemon.chronicle().tell(events);
        }
        Ok(!self.troubles.is_empty())
    }

    /// Takes a snapshot if one is due. Without it the next start takes longer, no more.
    fn save(&mut self) -> Option<String> {
        if !self.saving.is_due(self.controller.entries_to_read()) {
            return None;
        }
        let began = Instant::now();
        let saved = self.controller.save(&self.keep);
        self.saving.saved(began.elapsed());
        saved.err().map(|error| format!("no snapshot: {error}"))
    }

    fn is_over(&self, feed: &impl Feed) -> bool {
        let idle = feed.next().is_none() && self.controller.engine().state().unfinished() == 0;
        self.daemon.is_stopping() || (idle && !self.stay)
    }

    fn nap(&self, feed: &impl Feed) -> Duration {
        let next = feed.next().into_iter().chain(self.controller.next_turn()).min();
        let nap = next.map_or(LONGEST_NAP, |next| self.daemon.pace().until(next));
        nap.clamp(SHORTEST_NAP, LONGEST_NAP)
    }

    fn answer(&mut self) {
        let inside = Inside {
            engine: self.controller.engine(),
            directory: self.controller.directory(),
            now: self.controller.now(),
            policy: &*self.policy,
            foreseeable: is_foreseeable(self.controller.engine()),
        };
        while let Ok(question) = self.questions.try_recv() {
            question(&inside);
        }
    }

    /// Looks ahead if there is time. Says whether it did.
    fn foresee(&mut self) -> bool {
        let engine = self.controller.engine();
        let about = (engine.stats().plans, engine.state().job_count() as u64);
        if !self.prophet.wait().is_zero() || !self.prophet.is_stale(about) {
            return false;
        }
        let (now, meters) = (self.controller.now(), self.controller.backend());
        let policy: &dyn Fn() -> Box<dyn Policy> = &*self.policy;
        let policy = (self.daemon.policy(), policy);
        let outlook = self.prophet.look(engine, policy, meters, now, about);
        self.outlook = Arc::new(outlook);
        true
    }

    /// Tells what the policy would do, if that is due. Says whether it took time.
    fn tell_advice(&mut self) -> bool {
        let Some(adviser) = self.adviser.as_mut().filter(|adviser| adviser.is_due()) else {
            return false;
        };
        let (engine, directory) = (self.controller.engine(), self.controller.directory());
        let (name, now) = (self.daemon.policy(), self.controller.now());
        let began = Instant::now();
        let advice = advise(engine, directory, (name, (self.policy)()), now, None);
        if let Some(text) = adviser.news(advice, began) {
            self.daemon.chronicle().tell([plain(now, "advice", text)]);
        }
        true
    }

    fn paint(&mut self, look: &mut impl FnMut(&Picture)) {
        let controller = &self.controller;
        let frame = Frame {
            heard: self.heard,
            turns: Arc::new(self.turns.clone()),
            outlook: Arc::clone(&self.outlook),
            troubles: self.troubles.clone().into(),
        };
        let (engine, directory) = (controller.engine(), controller.directory());
        let meters = controller.backend();
        let now = controller.now();
        let (picture, events) = self.painter.paint(engine, directory, meters, now, frame);
        look(&picture);
        self.daemon.publish(picture);
        if !events.is_empty() {
            self.daemon.chronicle().tell(events);
        }
    }
}

/// The disk may have room again, the cluster may answer again.
fn may_work_later(error: &ControllerError) -> bool {
    match error {
        ControllerError::Backend(_) => true,
        ControllerError::Store(error) => {
            matches!(error, StoreError::Full(_) | StoreError::Io { .. } | StoreError::Sql { .. })
        }
        ControllerError::Event(_)
        | ControllerError::Otherwise(_)
        | ControllerError::Policy(_)
        | ControllerError::Image(_) => false,
    }
}

fn in_words(alert: &Alert, state: &State) -> String {
    let job = |id| {
        let found = state.find_job(id);
        found.map_or_else(|| format!("{id}"), |job| format!("{id} ({})", job.job.name))
    };
    let node = |id: &wattline_core::ids::NodeId| {
        let found = state.cluster().nodes().get(id.index());
        found.map_or_else(|| format!("{id}"), |node| node.name.to_string())
    };
    match alert {
        Alert::PlanRefused { policy, violations } => {
            let said: Vec<String> = violations.iter().take(3).map(ToString::to_string).collect();
            format!("the checker refused a plan of {policy}: {}", said.join("; "))
        }
        Alert::BudgetFell { committed, budget } => {
            format!("the budget is {budget:.1}, {committed:.1} were committed: load is shed")
        }
        Alert::NeverFits(id) => format!("{}: no shape it may take exists here; it waits", job(*id)),
        Alert::StartGivenUp(id) => format!("{}: would not start; tried again later", job(*id)),
        Alert::StopGivenUp(id) => format!("{}: would not stop", job(*id)),
        Alert::LimitGivenUp(id) => format!("{}: its power limit could not be set", job(*id)),
        Alert::WakeGivenUp(id) => format!("{}: would not come up; it counts as lost", node(id)),
        Alert::SleepGivenUp(id) => format!("{}: would not sleep", node(id)),
    }
}
