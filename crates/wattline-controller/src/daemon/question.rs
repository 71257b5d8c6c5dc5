//! What needs the engine itself, answered on a copy of it.

use super::drive::Fresh;
use super::fork::{Fork, ForkClient, step_back};
use crate::job_registry::JobRegistry;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use wattline_core::Timestamp;
use wattline_core::effort::Effort;
use wattline_core::engine::Engine;
use wattline_core::policy::Policy;

/// What whoever answers a question sees: a copy, as the loop had it a moment ago.
pub struct Inside<'a> {
    /// What is planned and held. To try something, fork it.
    pub engine: &'a Engine<'static>,
    /// Names and origins.
    pub registry: &'a JobRegistry,
    /// The time.
    pub now: Timestamp,
    /// A fresh policy of the kind that plans.
    pub policy: &'a dyn Fn() -> Box<dyn Policy>,
    /// How much of its usual work the policy does in its plans now.
    pub effort: Effort,
}

/// Is asked beside the loop, one after the other.
pub type Question = Box<dyn FnOnce(&Inside<'_>) + Send>;

/// Questions of users that may wait. Each may take seconds.
const USERS_QUESTIONS: usize = 12;
/// Questions of administrators that may wait beside them.
const ADMINS_QUESTIONS: usize = 8;

/// Questions that wait: those of administrators first, then one of each user in turn, so that
/// nobody waits for another's flood. Copies are the same queue.
#[derive(Clone, Default)]
pub(super) struct Questions(Arc<(Mutex<Waiting>, Condvar)>);

#[derive(Default)]
struct Waiting {
    admins: VecDeque<Question>,
    /// By user, whose turn comes next first; each with at least one question.
    users: VecDeque<(Arc<str>, VecDeque<Question>)>,
}

impl Questions {
    /// Adds one; `user`: nobody means an administrator. False: too many wait.
    pub(super) fn add(&self, user: Option<&Arc<str>>, question: Question) -> bool {
        let mut waiting = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Waiting { admins, users } = &mut *waiting;
        let Some(user) = user else {
            let room = admins.len() < ADMINS_QUESTIONS;
            if room {
                admins.push_back(question);
                self.0.1.notify_one();
            }
            return room;
        };
        let count: usize = users.iter().map(|(_, own)| own.len()).sum();
        if count >= USERS_QUESTIONS {
            return false;
        }
        match users.iter_mut().find(|(name, _)| name == user) {
            Some((_, own)) => own.push_back(question),
            None => users.push_back((Arc::clone(user), VecDeque::from([question]))),
        }
        self.0.1.notify_one();
        true
    }

    /// The next one, if one comes within that time.
    fn next(&self, patience: Duration) -> Option<Question> {
        let waiting = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_empty = |w: &mut Waiting| w.admins.is_empty() && w.users.is_empty();
        let waited = self.0.1.wait_timeout_while(waiting, patience, is_empty);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        if let Some(question) = waiting.admins.pop_front() {
            return Some(question);
        }
        let (user, mut own) = waiting.users.pop_front()?;
        let question = own.pop_front();
        if !own.is_empty() {
            waiting.users.push_back((user, own));
        }
        question
    }
}

/// A copy that is older is not asked.
const FRESH: Duration = Duration::from_secs(1);
/// A copy that nobody has asked for so long is thrown away.
const FORGET: Duration = Duration::from_secs(10);
/// Turns may take long. Whoever asks waits no longer for an answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Answers until the loop is over.
pub(super) fn answer(questions: &Questions, fork_client: &ForkClient, policy: &Arc<Fresh>) {
    step_back();
    let mut fork: Option<Fork> = None;
    while !fork_client.is_over() {
        let Some(question) = questions.next(FRESH) else {
            fork = fork.filter(|fork| fork.made.elapsed() < FORGET);
            continue;
        };
        let heard = fork_client.daemon.read_model().heard;
        let is_fresh = |fork: &Fork| fork.made.elapsed() < FRESH && fork.read_model.heard >= heard;
        if !fork.as_ref().is_some_and(is_fresh) {
            // If the loop is busy for long, an older one is better than none.
            fork = fork_client.fork(PATIENCE).or(fork);
        }
        let Some(fork) = &fork else { continue };
        let inside = Inside {
            engine: &fork.engine,
            registry: &fork.registry,
            now: fork.now,
            policy: &***policy,
            effort: fork.read_model.effort,
        };
        // Whoever asked hears that it broke; the next one is answered.
        let _ = catch_unwind(AssertUnwindSafe(|| question(&inside)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a question is called is all that counts here: which one is run is seen by its length.
    fn order(questions: &Questions, told: &Arc<Mutex<Vec<&'static str>>>) -> usize {
        let mut count = 0;
        while let Some(question) = questions.next(Duration::ZERO) {
            drop(question);
            count += 1;
        }
        assert_eq!(told.lock().unwrap_or_else(PoisonError::into_inner).len(), count);
        count
    }

    /// Notes its name when it is taken.
    struct Named(&'static str, Arc<Mutex<Vec<&'static str>>>);

    impl Drop for Named {
        fn drop(&mut self) {
            self.1.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
        }
    }

    #[test]
    fn a_flood_of_one_user_delays_neither_administrators_nor_others() {
        let (questions, told) = (Questions::default(), Arc::default());
        let ask = |user: Option<&str>, name| {
            let named = Named(name, Arc::clone(&told));
            let question = Box::new(move |_: &Inside<'_>| drop(named));
            let user = user.map(Arc::from);
            questions.add(user.as_ref(), question)
        };
        assert!((0..USERS_QUESTIONS - 1).all(|_| ask(Some("alice"), "flood")));
        assert!(ask(Some("bob"), "bob"));
        assert!(!ask(Some("alice"), "refused") && ask(None, "admin"));
        told.lock().unwrap_or_else(PoisonError::into_inner).clear();
        assert_eq!(order(&questions, &told), USERS_QUESTIONS + 1);
        let told = told.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(told[..4], ["admin", "flood", "bob", "flood"]);
    }
}
