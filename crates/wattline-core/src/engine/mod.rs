//! The engine: a state machine without input or output.
//!
//! Events and the time go in through [`Engine::handle`], actions come out of
//! [`Engine::poll_action`], and [`Engine::poll_timeout`] says when it wants to be called even if
//! nothing happens. The simulator drives it in virtual time, the controller in real time; it
//! cannot tell which.
//!
//! It holds no policy. It says when a plan is wanted (a moment after something changed, so that a
//! burst of events is one plan), lets the checker judge the one that it is given ([`planning`]), and
//! then works until what is held equals what is planned. Power is safe at every instant because a step that raises committed power is only
//! handed out when it fits below the budget *next to everything still held*, that is, after the
//! steps that lower it were confirmed.

mod actuate;
mod event;
mod image;
mod outcome;
mod planning;
mod reasons;
mod retry;
mod rhythm;
mod shortfall;
mod transitions;

pub use event::{Alert, Event, EventError};
pub use image::EngineImage;
pub use outcome::{Outcome, Outcomes};
pub use planning::{PlanInput, PlanRequest, Revision, Trigger, Verdict};
pub use shortfall::Shortfall;

use crate::action::{Action, ActionKind};
use crate::calendar::Calendar;
use crate::check::Violation;
use crate::diff::Step;
use crate::effort::Effort;
use crate::ids::{ActionId, JobId, NodeId, PlanId};
use crate::job::{Job, RestartCost};
use crate::placement::Configuration;
use crate::policy::{Changes, ClusterView, Policy};
use crate::power::NodePower;
use crate::predictor::{Measurement, Prediction, Predictor};
use crate::prices::Prices;
use crate::scheduler::Scheduler;
use crate::shed::Shed;
use crate::state::{Phase, State};
use crate::time::Timestamp;
use crate::units::{Seconds, Watts};
use rhythm::Rhythm;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// How the engine goes about it.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Wait this long after an event before planning, so that a burst of events is one plan. Zero
    /// still joins events of the same instant.
    pub debounce: Seconds,
    /// Plan at least this often while jobs are there; never, if not set.
    pub replan_every: Option<Seconds>,
    /// Kept free below the budget.
    pub margin: Watts,
    /// Be below a lower budget this long before it begins.
    pub budget_lead: Seconds,
    /// Try an action again this often before giving up. What was given up is tried again all the
    /// same, after longer pauses.
    pub retries: u32,
    /// Wait this long before the first retry, twice as long before each further one.
    pub retry_after: Seconds,
    /// Leave a job that would not start alone for this long, twice as long each further time.
    pub hold_off: Seconds,
    /// Whether the cluster is controlled. One that is only observed keeps no budget.
    pub controls: bool,
    /// What may be done about running jobs that are not preemptible, where a budget cannot be kept
    /// without it.
    pub shed: Shed,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            debounce: Seconds::ZERO,
            replan_every: None,
            margin: Watts::ZERO,
            budget_lead: Seconds::new(300.0),
            retries: 3,
            retry_after: Seconds::new(5.0),
            hold_off: Seconds::new(600.0),
            controls: true,
            shed: Shed::default(),
        }
    }
}

/// What the engine has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineStats {
    /// Plans made.
    pub plans: u64,
    /// Of these, refused by the checker.
    pub refused: u64,
    /// Actions handed out.
    pub actions: u64,
    /// Actions reported as failed.
    pub failures: u64,
    /// What came of them, by kind.
    pub outcomes: Outcomes,
}

/// The loop's state. See the module's description. `'p` is how long its predictor lives: a fork
/// borrows that of its original.
pub struct Engine<'p> {
    config: EngineConfig,
    state: State,
    predictor: Box<dyn Predictor + 'p>,
    prices: Prices,
    budget: Option<Calendar<Watts>>,
    /// The plan in force.
    plan: PlanId,
    revision: Revision,
    /// Load could not be shed at this revision, and an alert said so.
    shed_refused: Option<Revision>,
    /// The budget cannot be kept, and an alert said so. Found again after a restart.
    shortfall: Option<Shortfall>,
    /// The policy must look at everything.
    look_at_everything: bool,
    plan_due: Option<Timestamp>,
    rhythm: Rhythm,
    revisit: Option<Timestamp>,
    periodic: Option<Timestamp>,
    budget_change: Option<Timestamp>,
    /// Retries and ends of hold-offs; may name times that no longer matter.
    wake_ups: BTreeMap<Timestamp, Vec<JobId>>,
    dirty_jobs: Vec<JobId>,
    dirty_nodes: Vec<NodeId>,
    steps: Vec<Step>,
    in_flight: BTreeMap<ActionId, HandedOut>,
    next_action: ActionId,
    actions: VecDeque<Action>,
    alerts: VecDeque<Alert>,
    stats: EngineStats,
}

/// An action that was handed out and not confirmed yet.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct HandedOut {
    pub(crate) about: InFlight,
    pub(crate) at: Timestamp,
}

/// What an action that was handed out is about.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum InFlight {
    Start(JobId),
    Stop(JobId),
    Limit(JobId),
    Wake(NodeId),
    Sleep(NodeId),
}

/// Alerts nobody fetches must not fill the memory.
const MOST_ALERTS: usize = 1024;

/// What a fork looks through: its original's predictor, which learns nothing from what did not
/// happen.
struct Frozen<'p>(&'p (dyn Predictor + 'p));

impl Predictor for Frozen<'_> {
    fn predict(&self, job: &Job, configuration: &Configuration) -> Option<Prediction> {
        self.0.predict(job, configuration)
    }
    fn restart(&self, job: &Job) -> RestartCost {
        self.0.restart(job)
    }
    fn observe(&mut self, _: &Measurement) {}
    fn image(&self) -> Vec<u8> {
        self.0.image()
    }
}

impl<'p> Engine<'p> {
    /// An engine over an idle cluster.
    #[must_use]
    pub fn new(
        config: EngineConfig,
        state: State,
        predictor: Box<dyn Predictor + 'p>,
        prices: Prices,
        budget: Option<Calendar<Watts>>,
    ) -> Self {
        Self {
            config,
            state,
            predictor,
            prices,
            budget,
            plan: PlanId(0),
            revision: Revision::default(),
            shed_refused: None,
            shortfall: None,
            look_at_everything: true,
            plan_due: None,
            rhythm: Rhythm::default(),
            revisit: None,
            periodic: None,
            budget_change: None,
            wake_ups: BTreeMap::new(),
            dirty_jobs: Vec::new(),
            dirty_nodes: Vec::new(),
            steps: Vec::new(),
            in_flight: BTreeMap::new(),
            next_action: ActionId(0),
            actions: VecDeque::new(),
            alerts: VecDeque::new(),
            stats: EngineStats::default(),
        }
    }

    /// An engine over a cluster in the middle of its work: the plan in force is `plan`, nodes on
    /// their way up or to sleep have just been told to. It plans at the next clock.
    #[must_use]
    pub fn resume(mut self, plan: PlanId, now: Timestamp) -> Self {
        self.plan = plan;
        // Starts of restored jobs are numbered as the jobs are.
        self.next_action = ActionId(self.state.job_count() as u64);
        let jobs: Vec<JobId> = self.state.unfinished_jobs().map(|(id, _)| id).collect();
        for id in jobs {
            self.mark_job(id);
            if let Phase::BackingOff(until) = self.state.job(id).phase {
                self.wake_ups.entry(until).or_default().push(id);
            }
        }
        for id in self.state.cluster().node_ids() {
            let about = match self.state.node(id).power {
                NodePower::Booting => InFlight::Wake(id),
                NodePower::FallingAsleep => InFlight::Sleep(id),
                NodePower::Up | NodePower::Closed | NodePower::Asleep | NodePower::Down => {
                    self.mark_node(id);
                    continue;
                }
            };
            let action = self.next_action;
            self.next_action = ActionId(action.0 + 1);
            self.in_flight.insert(action, HandedOut { about, at: now });
            self.state.node_mut(id).in_flight = Some(action);
        }
        self.look_at_everything = true;
        self.request_plan(now);
        self
    }

    /// Nothing is known from before `now`: nodes count as idle since then.
    pub fn begin_at(&mut self, now: Timestamp) {
        for id in self.state.cluster().node_ids() {
            self.state.node_mut(id).idle_since = now;
        }
    }

    /// A copy to try things on: the same state, plan, actions under way, budget and prices, with a
    /// policy that looks at everything. Nothing that happens to it reaches the original; it predicts
    /// as the original does and learns nothing. It plans when the original would: to try another
    /// policy at once, use [`Scheduler::plan_now`]. See [`crate::forecast`].
    #[must_use]
    pub fn fork(&self, policy: Box<dyn Policy>) -> Scheduler<'_> {
        Scheduler::over(self.fork_onto(Box::new(Frozen(&*self.predictor))), policy)
    }

    /// A copy with a predictor of its own, which should know what this one's does: it may outlive
    /// the original and go to another thread.
    #[must_use]
    pub fn fork_onto<'q>(&self, predictor: Box<dyn Predictor + 'q>) -> Engine<'q> {
        Engine {
            config: self.config.clone(),
            state: self.state.clone(),
            predictor,
            prices: self.prices.clone(),
            budget: self.budget.clone(),
            plan: self.plan,
            revision: self.revision,
            shed_refused: self.shed_refused,
            shortfall: self.shortfall.clone(),
            look_at_everything: true,
            plan_due: self.plan_due,
            rhythm: self.rhythm,
            revisit: self.revisit,
            periodic: self.periodic,
            budget_change: self.budget_change,
            wake_ups: self.wake_ups.clone(),
            dirty_jobs: self.dirty_jobs.clone(),
            dirty_nodes: self.dirty_nodes.clone(),
            steps: Vec::new(),
            in_flight: self.in_flight.clone(),
            next_action: self.next_action,
            actions: self.actions.clone(),
            alerts: VecDeque::new(),
            stats: self.stats,
        }
    }

    /// Whether the cluster is controlled, or only observed.
    pub fn set_controls(&mut self, controls: bool) {
        self.config.controls = controls;
    }

    /// Whether the cluster is controlled, or only observed.
    #[must_use]
    pub fn controls(&self) -> bool {
        self.config.controls
    }

    /// How often its state has changed.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// What it knows.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }
    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.stats
    }
    /// What it expects of configurations.
    #[must_use]
    pub fn predictor(&self) -> &dyn Predictor {
        &*self.predictor
    }
    /// What energy costs.
    #[must_use]
    pub fn prices(&self) -> &Prices {
        &self.prices
    }
    /// The budget over time.
    #[must_use]
    pub fn budget(&self) -> Option<&Calendar<Watts>> {
        self.budget.as_ref()
    }
    /// How it goes about it.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }
    /// Actions that a backend has and has not confirmed, with when it got them.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = (ActionId, HandedOut)> + '_ {
        let waiting = |id: ActionId| self.actions.iter().any(|action| action.id == id);
        self.in_flight.iter().map(|(id, out)| (*id, *out)).filter(move |(id, _)| !waiting(*id))
    }
    /// Whether an action was handed out and not confirmed yet.
    #[must_use]
    pub fn is_under_way(&self, action: ActionId) -> bool {
        self.in_flight.contains_key(&action)
    }
    /// The job that an action under way starts.
    #[must_use]
    pub fn started_by(&self, action: ActionId) -> Option<JobId> {
        match self.in_flight.get(&action)?.about {
            InFlight::Start(job) => Some(job),
            _ => None,
        }
    }
    /// When an action under way was handed out.
    #[must_use]
    pub fn told_at(&self, action: ActionId) -> Option<Timestamp> {
        self.in_flight.get(&action).map(|out| out.at)
    }
    /// The power limit that an action under way sets for a job.
    #[must_use]
    pub fn limit_under_way(&self, job: JobId, action: ActionId) -> Option<Watts> {
        let (expected, limit) = self.state.find_job(job)?.limiting?;
        (expected == action).then_some(limit)
    }
    /// The plan in force.
    #[must_use]
    pub fn plan_id(&self) -> PlanId {
        self.plan
    }

    /// Takes in an event, or, with [`Event::Clock`], just the time.
    ///
    /// # Errors
    /// When the event names something that does not exist or a job that makes no sense; nothing
    /// has changed then. Reports about things that are over are not errors.
    pub fn handle(&mut self, now: Timestamp, event: Event) -> Result<(), EventError> {
        let clock = matches!(event, Event::Clock);
        self.apply_event(now, event)?;
        if clock {
            self.end_hold_offs(now);
        } else {
            self.revision.0 += 1;
        }
        self.actuate(now);
        Ok(())
    }

    /// The next action, if there is one to hand out now.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next thing an administrator should hear of.
    pub fn poll_alert(&mut self) -> Option<Alert> {
        self.alerts.pop_front()
    }

    /// When to call [`Engine::handle`] with [`Event::Clock`] if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        // With no unfinished job there is nothing left to plan for but the budget.
        let periodic = self.periodic.filter(|_| self.state.unfinished() > 0);
        [self.plan_due, self.revisit, periodic, self.budget_change, self.next_retry()]
            .into_iter()
            .flatten()
            .min()
    }

    /// When something that failed is to be tried again: what remains of [`Engine::poll_timeout`]
    /// while a plan is being made.
    #[must_use]
    pub fn next_retry(&self) -> Option<Timestamp> {
        self.wake_ups.first_key_value().map(|(time, _)| *time)
    }

    /// What committed power must stay below at `now` and until the lead time is over.
    #[must_use]
    pub fn budget_at(&self, now: Timestamp) -> Option<Watts> {
        let calendar = self.budget.as_ref()?;
        let least = calendar.least(now, now + self.config.budget_lead, |a, b| a < b);
        Some((least - self.config.margin).max(Watts::ZERO))
    }

    /// Whoever plans next looks at everything.
    pub fn look_at_everything(&mut self) {
        self.look_at_everything = true;
    }

    /// The view a policy would get now, with everything marked as changed.
    #[must_use]
    pub fn view(&self, now: Timestamp) -> ClusterView<'_> {
        ClusterView {
            now,
            state: &self.state,
            budget: self.budget_at(now),
            prices: &self.prices,
            predictor: &*self.predictor,
            effort: Effort::FULL,
            plan: self.plan,
            changes: Changes::Everything,
        }
    }

    /// Asks for a plan after the debounce time.
    fn request_plan(&mut self, now: Timestamp) {
        let due = now + self.config.debounce.max(self.rhythm.pause(now));
        self.plan_due = Some(self.plan_due.map_or(due, |d| d.min(due)));
    }

    /// A plan that was made for the present state breaks rules. Everything stays as it was.
    pub fn refuse(&mut self, policy: &str, violations: Vec<Violation>) {
        self.stats.refused += 1;
        self.look_at_everything = true;
        self.alert(Alert::PlanRefused { policy: policy.into(), violations });
    }

    fn mark_job(&mut self, id: JobId) {
        let job = self.state.job_mut(id);
        // What is not ours is never told anything.
        if !job.dirty && !job.foreign {
            job.dirty = true;
            self.dirty_jobs.push(id);
        }
    }

    fn mark_node(&mut self, id: NodeId) {
        let node = self.state.node_mut(id);
        if !node.dirty {
            node.dirty = true;
            self.dirty_nodes.push(id);
        }
    }

    fn alert(&mut self, alert: Alert) {
        if self.alerts.len() == MOST_ALERTS {
            self.alerts.pop_front();
        }
        self.alerts.push_back(alert);
    }

    /// An action is over.
    fn conclude(&mut self, action: ActionId, outcome: Outcome) -> Option<HandedOut> {
        let told = self.in_flight.remove(&action)?;
        self.stats.outcomes.came(told.about, outcome);
        Some(told)
    }

    fn emit(&mut self, now: Timestamp, about: InFlight, kind: ActionKind) -> ActionId {
        let id = self.next_action;
        self.next_action = ActionId(id.0 + 1);
        self.in_flight.insert(id, HandedOut { about, at: now });
        self.stats.outcomes.sent(&kind);
        self.actions.push_back(Action { id, generation: self.plan, kind });
        self.stats.actions += 1;
        id
    }
}
