//! What the loop counts.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How long turns took.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// The last ones.
    last: VecDeque<Duration>,
    /// How many there were.
    pub count: u64,
    /// All of them together.
    pub sum: Duration,
    /// How many of those with a plan took at most so long, for each of [`Turns::BOUNDS`].
    pub within: [u64; Turns::BOUNDS.len()],
    /// Turns with a plan.
    pub plans: u64,
    /// All of those together.
    pub plan_sum: Duration,
    /// The longest of all.
    pub longest: Duration,
}

impl Turns {
    /// Seconds.
    pub const BOUNDS: [f64; 10] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 5.0, 10.0];
    const KEPT: usize = 1000;

    pub(super) fn count(&mut self, took: Duration, planned: bool) {
        self.count += 1;
        self.sum += took;
        self.longest = self.longest.max(took);
        if self.last.len() == Self::KEPT {
            self.last.pop_front();
        }
        self.last.push_back(took);
        if planned {
            self.plans += 1;
            self.plan_sum += took;
            for (bound, within) in Self::BOUNDS.iter().zip(&mut self.within) {
                *within += u64::from(took.as_secs_f64() <= *bound);
            }
        }
    }

    /// What this share of the last thousand turns stays below.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let mut sorted: Vec<Duration> = self.last.iter().copied().collect();
        sorted.sort_unstable();
        let at = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(at.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or_default()
    }
}

/// What was done and what came of it, since this controller came up.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Actions that were seen done, by kind.
    pub done: BTreeMap<&'static str, u64>,
    /// Jobs that ended after their deadline.
    pub deadlines_missed: u64,
    /// Realised run time over the predicted one, minus 1, of the last jobs that ended.
    pub time_errors: VecDeque<f64>,
}

impl Tally {
    const KEPT: usize = 100;

    pub(super) fn did(&mut self, kind: &'static str) {
        *self.done.entry(kind).or_default() += 1;
    }

    pub(super) fn erred(&mut self, error: f64) {
        if self.time_errors.len() == Self::KEPT {
            self.time_errors.pop_front();
        }
        self.time_errors.push_back(error);
    }
}
