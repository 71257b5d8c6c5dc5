//! The planner beside the loop: a policy in a thread of its own, with a deadline.
//!
//! The loop hands over a copy of the state and goes on; the answer wakes it. A plan that takes
//! longer than its limit is dropped, and the next one searches less. Only when a policy does as
//! little as it can is its plan taken however late it comes: there is none that would be quicker,
//! and what no longer holds of it is dropped by the engine.

use super::fork::{SharedPredictor, step_back};
use super::shared::Waker;
use crate::daemon::Fresh;
use crate::plan_time::PlanTimeGovernor;
use crate::planner::{Answer, Planner};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use wattline_core::effort::Effort;
use wattline_core::engine::{PlanInput, PlanRequest};
use wattline_core::plan::Plan;
use wattline_core::predictor::Predictor;

type Asked = (PlanInput, Effort);
/// No plan: the policy panicked.
type Told = (PlanRequest, Option<Plan>, Duration);

/// A plan that takes more than so many limits, and this long, is taken for one that never comes. A
/// first plan, at full effort, for 20,000 jobs takes some ten times the usual limit.
const STUCK_LIMITS: u32 = 30;
const STUCK_LEAST: Duration = Duration::from_secs(60);

/// A policy that panicked is asked again after this long; sooner it would do nothing but panic.
const RETRY_AFTER_PANIC: Duration = Duration::from_secs(1);
/// So many panics in a row are no accident of one state: nothing is planned any more.
const MOST_PANICS: u32 = 3;

/// The loop's side of it.
pub(super) struct PlannerThread {
    policy: Box<str>,
    requests: SyncSender<Asked>,
    answers: Receiver<Told>,
    /// Since when it makes a plan.
    busy: Option<Instant>,
    /// Plans in a row in which the policy panicked, and when the last one did.
    panics: (u32, Instant),
    governor: PlanTimeGovernor,
    effort: Effort,
    notices: Vec<String>,
}

impl PlannerThread {
    /// Starts it. It ends when this is dropped, after the plan that it is making.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub(super) fn start(
        name: &str,
        policy: Arc<Fresh>,
        shared_predictor: SharedPredictor,
        limit: Duration,
        waker: Waker,
    ) -> std::io::Result<Self> {
        // One request at a time, and so one answer.
        let (requests, asked) = sync_channel::<Asked>(1);
        let (tell, answers) = sync_channel::<Told>(1);
        thread::Builder::new().name("wattline-planner".to_owned()).spawn(move || {
            step_back();
            let mut own = policy();
            while let Ok((input, effort)) = asked.recv() {
                shared_predictor.learn();
                let began = Instant::now();
                let planned = catch_unwind(AssertUnwindSafe(|| {
                    own.plan(&input.view(&shared_predictor, effort))
                }));
                let took = began.elapsed();
                if planned.is_err() {
                    // Its index may be in any state.
                    own = policy();
                }
                if tell.send((input.into_request(), planned.ok(), took)).is_err() {
                    return;
                }
                waker.wake();
            }
        })?;
        Ok(Self {
            policy: name.into(),
            requests,
            answers,
            busy: None,
            panics: (0, Instant::now()),
            governor: PlanTimeGovernor::new(limit),
            effort: Effort::FULL,
            notices: Vec::new(),
        })
    }

    /// Whether a plan that took so long with that effort comes too late; adapts the effort.
    fn is_late(&mut self, took: Duration) -> bool {
        let before = self.effort;
        let limit = self.governor.limit();
        let late = took > limit && before.get() > Effort::LEAST.get();
        if let Some(effort) = self.governor.planned(took, before) {
            self.effort = effort;
            let share = 100.0 * effort.get();
            self.notices.push(if effort.get() < before.get() {
                format!(
                    "a plan took {took:.1?}, the limit is {limit:?}: it is dropped, and the next ones search {share:.1} % of the usual amount"
                )
            } else {
                format!("plans are quick again: they search {share:.1} % of the usual amount")
            });
        }
        late
    }
}

impl Planner for PlannerThread {
    fn policy(&self) -> &str {
        &self.policy
    }

    fn decides(&self) -> bool {
        true
    }

    fn is_free(&self) -> bool {
        let (panics, last) = self.panics;
        self.busy.is_none() && (panics == 0 || last.elapsed() >= RETRY_AFTER_PANIC)
    }

    fn is_stuck(&self) -> bool {
        let most = STUCK_LEAST.max(self.governor.limit() * STUCK_LIMITS);
        self.busy.is_some_and(|since| since.elapsed() > most)
    }

    fn fails(&self) -> bool {
        self.panics.0 >= MOST_PANICS
    }

    fn begin(&mut self, input: PlanInput, _: &dyn Predictor) {
        // The thread is free: it has answered, and so has room for one.
        let taken = self.requests.try_send((input, self.effort)).is_ok();
        self.busy = taken.then(Instant::now);
        if !taken {
            self.notices.push("the planner does not take requests; restart the controller".into());
        }
    }

    fn poll(&mut self) -> Option<Answer> {
        match self.answers.try_recv() {
            Ok((request, plan, took)) => {
                self.busy = None;
                self.panics = match (&plan, self.panics.0) {
                    (Some(_), _) => (0, Instant::now()),
                    (None, before) => (before + 1, Instant::now()),
                };
                if self.panics.0 == 1 {
                    self.notices.push(format!(
                        "{} panicked while planning; the plan before stays, and it is tried again",
                        self.policy
                    ));
                }
                let late = self.is_late(took);
                Some(Answer { request, plan: plan.filter(|_| !late), took })
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    fn effort(&self) -> Effort {
        self.effort
    }

    fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }
}
