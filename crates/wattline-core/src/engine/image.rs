//! The exact image of an engine, so that one that was made anew goes on where another was.
//!
//! A policy has nothing to keep: a plan is a function of the view, and a restored engine lets it
//! look at everything. Alerts are told when they are raised, and not again.

use super::rhythm::Rhythm;
use super::{Engine, EngineStats, HandedOut, InFlight, Revision};
use crate::action::{Action, ActionKind};
use crate::calendar::Calendar;
use crate::ids::{ActionId, JobId, NodeId, PlanId};
use crate::image::{ImageError, require};
use crate::job::Job;
use crate::prices::Prices;
use crate::state::{State, StateImage};
use crate::time::Timestamp;
use crate::units::Watts;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// All that an engine has come to know and to do since it was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineImage {
    state: StateImage,
    #[serde(with = "serde_bytes")]
    predictor: Vec<u8>,
    prices: Prices,
    budget: Option<Calendar<Watts>>,
    plan: PlanId,
    revision: Revision,
    plan_due: Option<Timestamp>,
    #[serde(default)]
    rhythm: Rhythm,
    revisit: Option<Timestamp>,
    periodic: Option<Timestamp>,
    budget_change: Option<Timestamp>,
    wake_ups: BTreeMap<Timestamp, Vec<JobId>>,
    dirty_jobs: Vec<JobId>,
    dirty_nodes: Vec<NodeId>,
    in_flight: BTreeMap<ActionId, HandedOut>,
    next_action: ActionId,
    actions: VecDeque<Action>,
    stats: EngineStats,
}

impl Engine<'_> {
    /// All it knows.
    #[must_use]
    pub fn image(&self) -> EngineImage {
        // Named one by one, so that none is forgotten.
        let Self {
            config: _,
            state,
            predictor,
            prices,
            budget,
            plan,
            revision,
            shed_refused: _,
            shortfall: _,
            look_at_everything: _,
            plan_due,
            rhythm,
            revisit,
            periodic,
            budget_change,
            wake_ups,
            dirty_jobs,
            dirty_nodes,
            steps: _,
            in_flight,
            next_action,
            actions,
            alerts: _,
            stats,
        } = self;
        EngineImage {
            state: state.image(),
            predictor: predictor.image(),
            prices: prices.clone(),
            budget: budget.clone(),
            plan: *plan,
            revision: *revision,
            plan_due: *plan_due,
            rhythm: *rhythm,
            revisit: *revisit,
            periodic: *periodic,
            budget_change: *budget_change,
            wake_ups: wake_ups.clone(),
            dirty_jobs: dirty_jobs.clone(),
            dirty_nodes: dirty_nodes.clone(),
            in_flight: in_flight.clone(),
            next_action: *next_action,
            actions: actions.clone(),
            stats: *stats,
        }
    }

    /// Goes on where another engine was. This one must have been made as that one was: with the
    /// same machines, policy, predictor and configuration.
    ///
    /// # Errors
    /// When the image is of something else; nothing has changed then.
    pub fn restore(&mut self, image: EngineImage) -> Result<(), ImageError> {
        image.check()?;
        let EngineImage {
            state,
            predictor,
            prices,
            budget,
            plan,
            revision,
            plan_due,
            rhythm,
            revisit,
            periodic,
            budget_change,
            wake_ups,
            dirty_jobs,
            dirty_nodes,
            in_flight,
            next_action,
            actions,
            stats,
        } = image;
        let state = State::from_image(Arc::clone(self.state.cluster()), state)?;
        self.predictor.restore(&predictor)?;
        self.state = state;
        self.prices = prices;
        self.budget = budget;
        self.plan = plan;
        self.revision = revision;
        self.shed_refused = None;
        self.shortfall = None;
        self.look_at_everything = true;
        self.plan_due = plan_due;
        self.rhythm = rhythm;
        self.revisit = revisit;
        self.periodic = periodic;
        self.budget_change = budget_change;
        self.wake_ups = wake_ups;
        self.dirty_jobs = dirty_jobs;
        self.dirty_nodes = dirty_nodes;
        self.in_flight = in_flight;
        self.next_action = next_action;
        self.actions = actions;
        self.alerts.clear();
        self.stats = stats;
        Ok(())
    }
}

impl Engine<'_> {
    /// A digest of all that follows from facts and decisions: two engines that were told the same
    /// have the same, whoever planned. When plans are due, and which changes a policy has not seen
    /// yet, is not part of it: that belongs to whoever plans.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut image = self.image();
        image.plan_due = None;
        image.rhythm = Rhythm::default();
        image.revisit = None;
        image.periodic = None;
        image.budget_change = None;
        image.stats.plans = 0;
        image.stats.refused = 0;
        image.state.forget_changes();
        // FNV-1a over text in which numbers are exact.
        format!("{image:?}").bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

impl EngineImage {
    /// Its jobs, by id.
    pub fn jobs(&self) -> impl Iterator<Item = (JobId, &Arc<Job>)> {
        self.state.jobs()
    }

    /// Everything that is named is there.
    fn check(&self) -> Result<(), ImageError> {
        let (job, node) = (|id| self.state.has_job(id), |id| self.state.has_node(id));
        let mut waking = self.wake_ups.values().flatten();
        require(waking.all(|id| job(*id)), "it waits for an unknown job")?;
        let dirty = self.dirty_jobs.iter().all(|id| job(*id))
            && self.dirty_nodes.iter().all(|id| node(*id));
        require(dirty, "it works on something unknown")?;
        let mut under_way = self.in_flight.iter();
        let known = under_way.all(|(action, out)| {
            *action < self.next_action
                && match out.about {
                    InFlight::Start(id) | InFlight::Stop(id) | InFlight::Limit(id) => job(id),
                    InFlight::Wake(id) | InFlight::Sleep(id) => node(id),
                }
        });
        let mut queued = self.actions.iter();
        let queued = queued.all(|action| match &action.kind {
            ActionKind::Start { job: id, .. }
            | ActionKind::Stop { job: id, .. }
            | ActionKind::Limit { job: id, .. } => job(*id),
            ActionKind::Wake { node: id } | ActionKind::Sleep { node: id } => node(*id),
        });
        require(known && queued, "an action on something unknown")
    }
}
