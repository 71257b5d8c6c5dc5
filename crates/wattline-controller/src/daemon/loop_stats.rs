//! What the loop counts.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How long turns took.
#[derive(Clone, Debug, Default)]
pub struct LoopStats {
    /// The last ones.
    last: VecDeque<Duration>,
    /// How many there were.
    pub count: u64,
    /// All of them together.
    pub sum: Duration,
    /// How many plans took at most so long, for each of [`LoopStats::BOUNDS`].
    pub within: [u64; LoopStats::BOUNDS.len()],
    /// Plans that were made.
    pub plans: u64,
    /// All of those together.
    pub plan_sum: Duration,
    /// The longest turn of all.
    pub longest: Duration,
    /// How often the engine was copied for whoever looks ahead.
    pub copies: u64,
    /// The longest that took.
    pub longest_copy: Duration,
}

impl LoopStats {
    /// Seconds.
    pub const BOUNDS: [f64; 10] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 5.0, 10.0];
    const KEPT: usize = 1000;

    /// A turn took so long.
    pub(super) fn count(&mut self, took: Duration) {
        self.count += 1;
        self.sum += took;
        self.longest = self.longest.max(took);
        if self.last.len() == Self::KEPT {
            self.last.pop_front();
        }
        self.last.push_back(took);
    }

    /// A plan took so long, beside the loop.
    pub(super) fn planned(&mut self, took: Duration) {
        self.plans += 1;
        self.plan_sum += took;
        for (bound, within) in Self::BOUNDS.iter().zip(&mut self.within) {
            *within += u64::from(took.as_secs_f64() <= *bound);
        }
    }

    /// The engine was copied for whoever looks ahead, and the loop had to wait for so long.
    pub(super) fn forked(&mut self, took: Duration) {
        self.copies += 1;
        self.longest_copy = self.longest_copy.max(took);
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

/// What is predicted, and how far off that was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// How long a run took.
    Time,
    /// What its GPUs drew on average.
    Power,
    /// And in all.
    Energy,
}

impl Quantity {
    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Power => "power",
            Self::Energy => "energy",
        }
    }
}

/// What came of the jobs.
#[derive(Clone, Debug, Default)]
pub struct PredictionErrors {
    /// Jobs that ended after their deadline, ever.
    pub deadlines_missed: u64,
    /// What was realised over what was predicted when the last run began, minus 1, of the last jobs
    /// that ended since this controller came up.
    errors: BTreeMap<Quantity, VecDeque<f64>>,
}

impl PredictionErrors {
    /// Nothing was compared yet; so many deadlines were missed before.
    pub(super) fn after(deadlines_missed: u64) -> Self {
        Self { deadlines_missed, ..Self::default() }
    }

    const KEPT: usize = 100;

    pub(super) fn erred(&mut self, quantity: Quantity, error: f64) {
        let errors = self.errors.entry(quantity).or_default();
        if errors.len() == Self::KEPT {
            errors.pop_front();
        }
        errors.push_back(error);
    }

    /// The mean of the errors' sizes, where there are any.
    pub fn errors(&self) -> impl Iterator<Item = (Quantity, f64)> + '_ {
        self.errors.iter().map(|(quantity, errors)| {
            let sum: f64 = errors.iter().map(|error| error.abs()).sum();
            (*quantity, sum / errors.len().max(1) as f64)
        })
    }
}
