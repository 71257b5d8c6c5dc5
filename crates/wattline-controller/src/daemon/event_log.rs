//! The last things that happened, for whoever listens.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use wattline_api::Event;

/// How many are kept.
const KEPT: usize = 4096;

/// A ring of events. Whoever is too slow for it is told that something is missing.
pub struct EventLog {
    /// Tells this controller's events from those of the one before.
    epoch: u64,
    ring: Mutex<VecDeque<Arc<Event>>>,
    last: watch::Sender<u64>,
}

/// What happened since some event.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Events in between are gone.
    pub gap: bool,
    /// The rest, by number.
    pub events: Vec<Arc<Event>>,
}

/// Where a listener stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// Wants what comes.
    Now,
    /// Has heard this event of this epoch.
    Event(u64, u64),
}

impl EventLog {
    pub(super) fn new(epoch: u64) -> Self {
        Self { epoch, ring: Mutex::default(), last: watch::Sender::new(0) }
    }

    fn ring(&self) -> MutexGuard<'_, VecDeque<Arc<Event>>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells this controller's events from those of others.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Writes events down and wakes the listeners. Their numbers are set here.
    pub(super) fn tell(&self, events: impl IntoIterator<Item = Event>) {
        let mut ring = self.ring();
        let mut number = *self.last.borrow();
        for mut event in events {
            number += 1;
            event.number = number;
            if ring.len() == KEPT {
                ring.pop_front();
            }
            ring.push_back(Arc::new(event));
        }
        drop(ring);
        self.last.send_if_modified(|last| std::mem::replace(last, number) != number);
    }

    /// The number of the last event, and of those to come.
    #[must_use]
    pub fn listen(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// What happened after an event. One of another epoch is before all that is kept, and so much
    /// may be missing.
    #[must_use]
    pub fn since(&self, since: Since) -> Told {
        let ring = self.ring();
        let last = *self.last.borrow();
        let (from, other) = match since {
            Since::Now => (last, false),
            Since::Event(epoch, number) if epoch == self.epoch => (number.min(last), false),
            Since::Event(..) => (0, true),
        };
        let first = ring.front().map_or(last + 1, |event| event.number);
        Told {
            gap: other || from + 1 < first,
            events: ring.iter().filter(|event| event.number > from).cloned().collect(),
        }
    }
}
