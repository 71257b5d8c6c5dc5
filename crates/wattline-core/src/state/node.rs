//! What is known about one node.

use crate::host::NodeHost;
use crate::ids::{ActionId, JobId};
use crate::plan::Reason;
use crate::power::{NodePower, Occupancy};
use crate::time::Timestamp;
use crate::units::Watts;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// What a plan wants a node to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Up.
    Up,
    /// In its low-power state.
    Asleep,
}

/// A job on a node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resident {
    /// Which job.
    pub job: JobId,
    /// Its GPUs here.
    pub mask: u64,
    /// The limit counted for each of them.
    pub limit: Watts,
}

/// The jobs on a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Residents(SmallVec<[Resident; 2]>);

impl Residents {
    /// Nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Resident> {
        self.0.iter()
    }
    /// All their GPUs.
    #[must_use]
    pub fn mask(&self) -> u64 {
        self.0.iter().fold(0, |mask, r| mask | r.mask)
    }
    /// GPUs held and the sum of their limits.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        let none = Occupancy::default();
        self.0.iter().fold(none, |sum, r| sum.with(r.mask.count_ones(), r.limit))
    }
    pub(crate) fn insert(&mut self, resident: Resident) {
        self.0.push(resident);
    }
    pub(crate) fn remove(&mut self, job: JobId) {
        self.0.retain(|r| r.job != job);
    }
    pub(crate) fn set_limit(&mut self, job: JobId, limit: Watts) {
        for resident in self.0.iter_mut().filter(|r| r.job == job) {
            resident.limit = limit;
        }
    }
}

/// One node, what is planned for it and what it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeState {
    /// What it is.
    pub power: NodePower,
    /// What it should be.
    pub target: Target,
    /// Who is planned on it.
    pub planned: Residents,
    /// Who holds GPUs of it.
    pub held: Residents,
    /// Since when nobody is planned on it.
    pub idle_since: Timestamp,
    /// Why it is planned so.
    pub reason: Reason,
    /// Its CPUs and memory; no limit, if nobody has said.
    #[serde(default)]
    pub host: Option<NodeHost>,
    pub(super) planned_committed: Watts,
    pub(super) held_committed: Watts,
    pub(crate) in_flight: Option<ActionId>,
    pub(crate) attempts: u32,
    pub(crate) not_before: Timestamp,
    /// Waking it was given up: it counts as lost until the backend says that it is up, and goes on
    /// being told to wake.
    #[serde(default)]
    pub(crate) unwoken: bool,
    pub(crate) touched: bool,
    pub(crate) dirty: bool,
}

impl NodeState {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            power: NodePower::Up,
            target: Target::Up,
            planned: Residents::default(),
            held: Residents::default(),
            idle_since: now,
            reason: Reason::Arrived,
            host: None,
            planned_committed: Watts::ZERO,
            held_committed: Watts::ZERO,
            in_flight: None,
            attempts: 0,
            not_before: Timestamp::from_micros(i64::MIN),
            unwoken: false,
            touched: false,
            dirty: false,
        }
    }

    /// Whether it is ours to plan with: neither lost nor closed.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        !matches!(self.power, NodePower::Down | NodePower::Closed)
    }

    /// Whether waking it was given up. It is tried again; a backend need not report that it sleeps.
    #[must_use]
    pub fn is_unwoken(&self) -> bool {
        self.unwoken
    }

    /// It did not wake, and is not being told to at the moment.
    pub(crate) fn must_be_woken_again(&self) -> bool {
        self.unwoken && self.in_flight.is_none()
    }

    /// The power state to count for what is planned: a node that must come up counts as booting.
    #[must_use]
    pub fn planned_power(&self) -> NodePower {
        self.power_under(self.target)
    }

    /// The same, under another target.
    #[must_use]
    pub fn power_under(&self, target: Target) -> NodePower {
        match (self.power, target) {
            (NodePower::Down, _) => NodePower::Down,
            (NodePower::Closed, _) => NodePower::Closed,
            (_, Target::Asleep) => NodePower::Asleep,
            (NodePower::Up, Target::Up) => NodePower::Up,
            (_, Target::Up) => NodePower::Booting,
        }
    }

    /// What it could draw at worst once the plan is carried out.
    #[must_use]
    pub fn planned_committed(&self) -> Watts {
        self.planned_committed
    }

    /// What it could draw at worst right now.
    #[must_use]
    pub fn held_committed(&self) -> Watts {
        self.held_committed
    }
}
