//! What wakes the loop.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A wakeup that stays rung until somebody hears it.
#[derive(Debug, Default)]
pub(super) struct Wakeup {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Wakeup {
    pub(super) fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    /// Waits until it rings, at most this long. Says whether it rang.
    pub(super) fn wait(&self, most: Duration) -> bool {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut rung, _) = self
            .changed
            .wait_timeout_while(rung, most, |rung| !*rung)
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *rung)
    }
}
