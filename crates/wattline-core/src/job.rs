//! Jobs: what users ask for.

use crate::cluster::Shape;
use crate::ids::{NodeId, UserId, WorkloadId};
use crate::placement::Allocation;
use crate::time::Timestamp;
use crate::units::{EurosPerSecond, Seconds};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, Div, Mul, Sub};
use std::str::FromStr;
use std::sync::Arc;
use thiserror::Error;

/// How much there is to do. The unit is the workload's own: samples where a model is known, seconds
/// at the requested size where only a duration is, the whole job (1) where a site lists run times.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Work(pub f64);

/// Work done per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkRate(pub f64);

impl Work {
    /// Nothing to do.
    pub const ZERO: Self = Self(0.0);
}
impl Add for Work {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}
impl Sub for Work {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}
impl Div<WorkRate> for Work {
    type Output = Seconds;
    fn div(self, rate: WorkRate) -> Seconds {
        Seconds::new(self.0 / rate.0)
    }
}
impl Mul<Seconds> for WorkRate {
    type Output = Work;
    fn mul(self, time: Seconds) -> Work {
        Work(self.0 * time.get())
    }
}

/// What the scheduler may change about a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Elasticity {
    /// Order, place and power limit only.
    #[default]
    Rigid,
    /// The GPU count too, when the job starts.
    Moldable,
    /// The GPU count too, at any time, by checkpoint and restart.
    Malleable,
    /// The batch size as well.
    Adaptive,
}

impl Elasticity {
    /// All of them, from the least to the most elastic.
    pub const ALL: [Self; 4] = [Self::Rigid, Self::Moldable, Self::Malleable, Self::Adaptive];
}

impl fmt::Display for Elasticity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rigid => "rigid",
            Self::Moldable => "moldable",
            Self::Malleable => "malleable",
            Self::Adaptive => "adaptive",
        })
    }
}

/// A word that is not an elasticity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown elasticity '{0}': expected rigid, moldable, malleable or adaptive")]
pub struct UnknownElasticity(String);

impl FromStr for Elasticity {
    type Err = UnknownElasticity;
    fn from_str(text: &str) -> Result<Self, UnknownElasticity> {
        Self::ALL
            .into_iter()
            .find(|e| e.to_string() == text)
            .ok_or_else(|| UnknownElasticity(text.chars().take(40).collect()))
    }
}

/// Fewest, most and requested; `min ≤ requested ≤ max`, all at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bounds {
    /// The fewest.
    pub min: u32,
    /// The most.
    pub max: u32,
    /// What the user asked for.
    pub requested: u32,
}

impl Bounds {
    /// Exactly this many.
    #[must_use]
    pub const fn exactly(n: u32) -> Self {
        Self { min: n, max: n, requested: n }
    }

    fn is_sound(self) -> bool {
        1 <= self.min && self.min <= self.requested && self.requested <= self.max
    }
}

/// What it costs to take a running job off its GPUs and put it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RestartCost {
    /// Writing the checkpoint, with the GPUs still held.
    pub save: Seconds,
    /// Process start, loading the checkpoint and the first step, before work goes on.
    pub load: Seconds,
}

/// One training run that a user asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// What users and SLURM call it.
    pub name: Box<str>,
    /// Whose it is.
    pub user: UserId,
    /// What is trained.
    pub workload: WorkloadId,
    /// How much of it.
    pub work: Work,
    /// When it was asked for.
    pub submit: Timestamp,
    /// When it should be done; missing it costs, it is never a reason to reject or kill.
    pub deadline: Option<Timestamp>,
    /// What each second past the deadline costs.
    pub weight: EurosPerSecond,
    /// What may be changed.
    pub elasticity: Elasticity,
    /// How many GPUs.
    pub gpus: Bounds,
    /// Which global batch.
    pub batch: Bounds,
    /// What a restart costs.
    pub restart: RestartCost,
    /// Whether it may be taken off its GPUs once it runs. A job that saves no checkpoints may not:
    /// it keeps what it has, but for the power limit, until it ends.
    #[serde(default = "yes")]
    pub preemptible: bool,
    /// The only shapes it may take, where a site lists them; otherwise they follow from the bounds.
    pub shapes: Option<Arc<[Shape]>>,
    /// The nodes it may have, where not any with the right GPUs will do. Such a job stays where it
    /// was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Arc<NodeChoice>>,
}

/// Which nodes a job may have, and how many of them; its GPUs are the same number on each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeChoice {
    /// So many nodes.
    pub count: u32,
    /// All of these are among them. In rising order, each allowed.
    pub required: Box<[NodeId]>,
    /// Only these are. In rising order.
    pub allowed: Box<[NodeId]>,
}

impl NodeChoice {
    /// Whether these GPUs are where the job may have them.
    #[must_use]
    pub fn allows(&self, allocation: &Allocation) -> bool {
        let has = |node: &NodeId| allocation.shares().any(|share| share.node == *node);
        let mut counts = allocation.shares().map(|share| share.count());
        let even = counts.next().is_none_or(|first| counts.all(|count| count == first));
        allocation.shares().count() == self.count as usize
            && even
            && allocation.shares().all(|share| self.allowed.binary_search(&share.node).is_ok())
            && self.required.iter().all(has)
    }

    fn is_sound(&self) -> bool {
        let rising = |nodes: &[NodeId]| nodes.windows(2).all(|pair| pair[0] < pair[1]);
        1 <= self.count
            && self.required.len() <= self.count as usize
            && self.count as usize <= self.allowed.len()
            && rising(&self.required)
            && rising(&self.allowed)
            && self.required.iter().all(|node| self.allowed.binary_search(node).is_ok())
    }
}

fn yes() -> bool {
    true
}

/// Why a job cannot be taken in.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum JobError {
    /// NaN, infinite or negative work.
    #[error("job '{name}': work is {work}, it must be finite and not negative")]
    Work {
        /// Whose.
        name: Box<str>,
        /// What was given.
        work: f64,
    },
    /// The deadline lies before the submission.
    #[error("job '{name}': the deadline lies {early} before the submission")]
    DeadlineBeforeSubmit {
        /// Whose.
        name: Box<str>,
        /// By how much.
        early: Seconds,
    },
    /// A weight that is not a number or negative.
    #[error("job '{name}': weight is {weight}, it must be finite and not negative")]
    Weight {
        /// Whose.
        name: Box<str>,
        /// What was given.
        weight: f64,
    },
    /// Bounds out of order.
    #[error(
        "job '{name}': {what} must satisfy 1 ≤ min ≤ requested ≤ max, got {}, {}, {}",
        bounds.min, bounds.requested, bounds.max
    )]
    Bounds {
        /// Whose.
        name: Box<str>,
        /// Which bounds.
        what: &'static str,
        /// What was given.
        bounds: Bounds,
    },
    /// Nodes that cannot be chosen so.
    #[error(
        "job '{name}': the nodes it may have must be at least as many as it takes, in rising order, and have among them all that it must have"
    )]
    Nodes {
        /// Whose.
        name: Box<str>,
    },
    /// A restart cost that is not a duration.
    #[error("job '{name}': the restart cost must be finite and not negative")]
    Restart {
        /// Whose.
        name: Box<str>,
    },
}

impl Job {
    /// Whether the job makes sense.
    ///
    /// # Errors
    /// Says what does not.
    pub fn validate(&self) -> Result<(), JobError> {
        let name = || self.name.clone();
        if !self.work.0.is_finite() || self.work.0 < 0.0 {
            return Err(JobError::Work { name: name(), work: self.work.0 });
        }
        if !self.weight.is_finite() || self.weight.get() < 0.0 {
            return Err(JobError::Weight { name: name(), weight: self.weight.get() });
        }
        if let Some(deadline) = self.deadline
            && deadline < self.submit
        {
            return Err(JobError::DeadlineBeforeSubmit {
                name: name(),
                early: self.submit - deadline,
            });
        }
        for (what, bounds) in [("gpus", self.gpus), ("batch", self.batch)] {
            if !bounds.is_sound() {
                return Err(JobError::Bounds { name: name(), what, bounds });
            }
        }
        if self.nodes.as_ref().is_some_and(|nodes| !nodes.is_sound()) {
            return Err(JobError::Nodes { name: name() });
        }
        let sound = |time: Seconds| time.is_finite() && time >= Seconds::ZERO;
        if !sound(self.restart.save) || !sound(self.restart.load) {
            return Err(JobError::Restart { name: name() });
        }
        Ok(())
    }

    /// How late the job is if it ends at `end`.
    #[must_use]
    pub fn tardiness(&self, end: Timestamp) -> Seconds {
        self.deadline.map_or(Seconds::ZERO, |deadline| end.since(deadline))
    }
}
