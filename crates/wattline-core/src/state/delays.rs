//! How long the cluster takes to do what it is told, as was seen.
//!
//! A resource manager needs a second or two to start a job and to have its GPUs free again. Plans
//! that do not reckon with it are late by that much each time. Where things happen at once nothing
//! is added.

use crate::units::Seconds;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// So many of the latest tell.
const LATEST: usize = 21;
/// Less than this is rounding.
const LEAST: Seconds = Seconds::new(1e-3);
/// No cluster is believed to take longer than this.
const MOST: Seconds = Seconds::new(600.0);

/// Delays that were seen lately.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delays {
    first: Recent,
    again: Recent,
    stop: Recent,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Recent(VecDeque<Seconds>);

impl Recent {
    fn add(&mut self, seen: Seconds) {
        if self.0.len() == LATEST {
            self.0.pop_front();
        }
        self.0.push_back(if seen < LEAST { Seconds::ZERO } else { seen.min(MOST) });
    }

    /// The middle one; one that hung tells nothing of the next.
    fn usual(&self) -> Option<Seconds> {
        let mut seen: Vec<Seconds> = self.0.iter().copied().collect();
        seen.sort_by(|a, b| a.get().total_cmp(&b.get()));
        seen.get(seen.len() / 2).copied()
    }
}

impl Delays {
    /// From when a job is told to start until it runs, for one that never ran, or did before.
    #[must_use]
    pub fn start(&self, again: bool) -> Seconds {
        let (this, other) =
            if again { (&self.again, &self.first) } else { (&self.first, &self.again) };
        this.usual().or_else(|| other.usual()).unwrap_or(Seconds::ZERO)
    }

    /// From when a job that was told to stop has saved until its GPUs are free.
    #[must_use]
    pub fn stop(&self) -> Seconds {
        self.stop.usual().unwrap_or(Seconds::ZERO)
    }

    /// A job that never ran, or did before, runs so long after it was told to start.
    pub fn started(&mut self, again: bool, after: Seconds) {
        if again { &mut self.again } else { &mut self.first }.add(after);
    }

    /// A job's GPUs are free so long after it has saved.
    pub fn stopped(&mut self, after: Seconds) {
        self.stop.add(after);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn the_middle_of_the_latest_counts() {
        let mut delays = Delays::default();
        assert_eq!((delays.start(false), delays.stop()), (Seconds::ZERO, Seconds::ZERO));
        for seconds in [1.0, 90.0, 2.0, -3.0, 1.5] {
            delays.started(false, Seconds::new(seconds));
        }
        assert_eq!(delays.start(false), Seconds::new(1.5));
        // What is not known of restarts is taken from first starts.
        assert_eq!(delays.start(true), Seconds::new(1.5));
        for _ in 0..LATEST {
            delays.started(true, Seconds::new(4.0));
            delays.started(false, Seconds::new(3.0));
        }
        assert_eq!(
            (delays.start(false), delays.start(true)),
            (Seconds::new(3.0), Seconds::new(4.0))
        );
        assert_eq!(delays.first.0.len(), LATEST);
    }
}
