//! Who makes the plans that the engine asks for.

use std::time::Duration;
use wattline_core::effort::Effort;
use wattline_core::engine::{PlanInput, PlanRequest};
use wattline_core::plan::Plan;
use wattline_core::policy::Policy;
use wattline_core::predictor::Predictor;

/// What came of a request for a plan.
pub struct Answer {
    /// The request.
    pub request: PlanRequest,
    /// The plan; none if it came too late or there is none, and the next one is to be asked for.
    pub plan: Option<Plan>,
    /// How long it took, on the wall clock; zero where nobody has one.
    pub took: Duration,
}

/// Makes plans. The controller asks for one at a time, writes what is decided into its journal and
/// then acts on it; a replay asks for none.
pub trait Planner {
    /// The policy, as its user named it.
    fn policy(&self) -> &str;

    /// Whether it decides anything. Where nothing is decided the cluster is only observed.
    fn decides(&self) -> bool;

    /// Whether it can take a request now.
    fn is_free(&self) -> bool;

    /// Whether the plan that it makes takes so long that it will hardly come.
    fn is_stuck(&self) -> bool {
        false
    }

    /// Whether its policy fails again and again, so that no plan comes.
    fn fails(&self) -> bool {
        false
    }

    /// Asks for a plan. `predictor` is the engine's, for a planner that answers at once.
    fn begin(&mut self, input: PlanInput, predictor: &dyn Predictor);

    /// An answer, if there is one. Never waits.
    fn poll(&mut self) -> Option<Answer>;

    /// How much of its usual work the policy does.
    fn effort(&self) -> Effort {
        Effort::FULL
    }

    /// What an administrator should know of it since the last time.
    fn take_notices(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// Plans at once, in its caller's time: in virtual time, and in tests.
pub struct InlinePlanner {
    name: Box<str>,
    policy: Box<dyn Policy>,
    effort: Effort,
    answer: Option<Answer>,
}

impl InlinePlanner {
    /// A policy, as its user named it.
    #[must_use]
    pub fn new(name: &str, policy: Box<dyn Policy>) -> Self {
        Self { name: name.into(), policy, effort: Effort::FULL, answer: None }
    }

    /// The same with less, or more, of its usual work.
    #[must_use]
    pub fn with_effort(self, effort: Effort) -> Self {
        Self { effort, ..self }
    }
}

impl Planner for InlinePlanner {
    fn policy(&self) -> &str {
        &self.name
    }

    fn decides(&self) -> bool {
        self.policy.decides()
    }

    fn is_free(&self) -> bool {
        self.answer.is_none()
    }

    fn begin(&mut self, input: PlanInput, predictor: &dyn Predictor) {
        let plan = self.policy.plan(&input.view(predictor, self.effort));
        let request = input.into_request();
        self.answer = Some(Answer { request, plan: Some(plan), took: Duration::ZERO });
    }

    fn poll(&mut self) -> Option<Answer> {
        self.answer.take()
    }

    fn effort(&self) -> Effort {
        self.effort
    }
}
