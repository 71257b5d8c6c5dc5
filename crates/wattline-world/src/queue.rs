//! A queue of things to come, in an order that never depends on anything but what was put in.

use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use wattline_core::Timestamp;

/// Earliest first; at the same time, first in, first out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EventQueue<T> {
    #[serde(bound(deserialize = "T: Deserialize<'de>"))]
    heap: BinaryHeap<Entry<T>>,
    pushed: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry<T> {
    time: Timestamp,
    number: u64,
    what: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl<T> Eq for Entry<T> {}
impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Entry<T> {
    /// Reversed: the heap's largest is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.time, other.number).cmp(&(self.time, self.number))
    }
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), pushed: 0 }
    }
}

impl<T> EventQueue<T> {
    /// Something will happen.
    pub fn push(&mut self, time: Timestamp, what: T) {
        self.heap.push(Entry { time, number: self.pushed, what });
        self.pushed += 1;
    }

    /// All of it, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.heap.iter().map(|entry| &entry.what)
    }

    /// When the next thing happens.
    #[must_use]
    pub fn next_time(&self) -> Option<Timestamp> {
        self.heap.peek().map(|entry| entry.time)
    }

    /// The next thing, if it happens by then.
    pub fn pop_by(&mut self, now: Timestamp) -> Option<(Timestamp, T)> {
        if self.next_time()? > now {
            return None;
        }
        self.heap.pop().map(|entry| (entry.time, entry.what))
    }
}
