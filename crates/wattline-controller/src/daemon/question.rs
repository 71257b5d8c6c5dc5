//! What needs the engine itself, answered on a copy of it.

use super::drive::Fresh;
use super::fork::{Borrower, Fork, step_back};
use crate::directory::Directory;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use wattline_core::Timestamp;
use wattline_core::engine::Engine;
use wattline_core::policy::Policy;

/// What whoever answers a question sees: a copy, as the loop had it a moment ago.
pub struct Inside<'a> {
    /// What is planned and held. To try something, fork it.
    pub engine: &'a Engine<'static>,
    /// Names and origins.
    pub directory: &'a Directory,
    /// The time.
    pub now: Timestamp,
    /// A fresh policy of the kind that plans.
    pub policy: &'a dyn Fn() -> Box<dyn Policy>,
}

/// Is asked beside the loop, one after the other.
pub type Question = Box<dyn FnOnce(&Inside<'_>) + Send>;

/// A copy that is older is not asked.
const FRESH: Duration = Duration::from_secs(1);
/// A copy that nobody has asked for so long is thrown away.
const FORGET: Duration = Duration::from_secs(10);
/// Turns may take long. Whoever asks waits no longer for an answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Answers until the loop is over.
pub(super) fn answer(questions: &Receiver<Question>, borrower: &Borrower, policy: &Arc<Fresh>) {
    step_back();
    let mut fork: Option<Fork> = None;
    while !borrower.is_over() {
        let question = match questions.recv_timeout(FRESH) {
            Ok(question) => question,
            Err(RecvTimeoutError::Timeout) => {
                fork = fork.filter(|fork| fork.made.elapsed() < FORGET);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let heard = borrower.daemon.picture().heard;
        let is_fresh = |fork: &Fork| fork.made.elapsed() < FRESH && fork.picture.heard >= heard;
        if !fork.as_ref().is_some_and(is_fresh) {
            // If the loop is busy for long, an older one is better than none.
            fork = borrower.fork(PATIENCE).or(fork);
        }
        let Some(fork) = &fork else { continue };
        let inside = Inside {
            engine: &fork.engine,
            directory: &fork.directory,
            now: fork.now,
            policy: &***policy,
        };
        // Whoever asked hears that it broke; the next one is answered.
        let _ = catch_unwind(AssertUnwindSafe(|| question(&inside)));
    }
}
