//! An engine and a policy that plans in line, in its caller's time: the simulator, forecasts and
//! tests. The live controller plans beside its loop instead; the engine is the same.

use crate::calendar::Calendar;
use crate::check;
use crate::effort::Effort;
use crate::engine::{Engine, EngineConfig, Event, EventError};
use crate::ids::PlanId;
use crate::policy::Policy;
use crate::predictor::Predictor;
use crate::prices::Prices;
use crate::state::State;
use crate::time::Timestamp;
use crate::units::Watts;
use std::ops::{Deref, DerefMut};

/// See the module's description. Everything that an engine can do, it can; its
/// [`handle`](Self::handle) also plans.
pub struct Scheduler<'p> {
    engine: Engine<'p>,
    policy: Box<dyn Policy>,
    effort: Effort,
}

impl<'p> Scheduler<'p> {
    /// A policy over an idle cluster.
    #[must_use]
    pub fn new(
        config: EngineConfig,
        state: State,
        policy: Box<dyn Policy>,
        predictor: Box<dyn Predictor + 'p>,
        prices: Prices,
        budget: Option<Calendar<Watts>>,
    ) -> Self {
        Self::over(Engine::new(config, state, predictor, prices, budget), policy)
    }

    /// A policy over an engine, which it looks at as a whole first.
    #[must_use]
    pub fn over(mut engine: Engine<'p>, policy: Box<dyn Policy>) -> Self {
        engine.set_controls(policy.decides());
        engine.look_at_everything();
        Self { engine, policy, effort: Effort::FULL }
    }

    /// As [`Engine::resume`].
    #[must_use]
    pub fn resume(self, plan: PlanId, now: Timestamp) -> Self {
        Self { engine: self.engine.resume(plan, now), ..self }
    }

    /// Takes in an event; with [`Event::Clock`] it plans if that is due.
    ///
    /// # Errors
    /// As [`Engine::handle`].
    pub fn handle(&mut self, now: Timestamp, event: Event) -> Result<(), EventError> {
        if !matches!(event, Event::Clock) {
            return self.engine.handle(now, event);
        }
        // Everything of an instant is one plan, and nothing is done before it is made.
        self.engine.end_hold_offs(now);
        if self.engine.plan_due(now).is_some() {
            self.engine.begin_plan(now);
            self.plan(now);
        }
        self.engine.actuate(now);
        Ok(())
    }

    /// Plans now, whether that is due or not, looking at everything.
    pub fn plan_now(&mut self, now: Timestamp) {
        self.engine.begin_plan(now);
        self.engine.look_at_everything();
        self.plan(now);
        self.engine.actuate(now);
    }

    /// The policy does this share of its usual work from now on.
    pub fn set_effort(&mut self, effort: Effort) {
        self.effort = effort;
    }

    fn plan(&mut self, now: Timestamp) {
        if let Some(plan) = self.engine.load_to_shed(now) {
            self.engine.apply_plan(now, plan.into_plan());
        }
        let view = self.engine.view_of_changes(now, self.effort);
        let budget = view.budget;
        let plan = self.policy.plan(&view);
        self.engine.changes_seen();
        self.engine.revisit_at(now, plan.revisit);
        match check::check(self.engine.state(), plan, self.engine.plan_id(), budget) {
            Ok(plan) => self.engine.apply_plan(now, plan.into_plan()),
            Err(violations) => self.engine.refuse(self.policy.name(), violations),
        }
    }

    /// The engine alone.
    #[must_use]
    pub fn into_engine(self) -> Engine<'p> {
        self.engine
    }
}

impl<'p> Deref for Scheduler<'p> {
    type Target = Engine<'p>;

    fn deref(&self) -> &Engine<'p> {
        &self.engine
    }
}

impl DerefMut for Scheduler<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.engine
    }
}
