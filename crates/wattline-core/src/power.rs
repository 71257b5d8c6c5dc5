//! Committed power: what nodes could draw at worst, given what is enforced on them.

use crate::cluster::{Cluster, Node, NodeDraw};
use crate::ids::NodeId;
use crate::units::Watts;
use serde::{Deserialize, Serialize};
use std::ops::Add;

/// Rounding in sums of watts must not decide whether a plan fits; a microwatt never matters.
pub const TOLERANCE: Watts = Watts::new(1e-6);

/// What state of power a node is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodePower {
    /// Running, can take jobs.
    Up,
    /// Running, and takes no more jobs: somebody wants it for himself when those on it are done.
    Closed,
    /// In its low-power state.
    Asleep,
    /// On its way up.
    Booting,
    /// On its way to sleep.
    FallingAsleep,
    /// Lost: nobody knows what it does.
    Down,
}

/// What runs on a node: how many GPUs are held and the sum of their limits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Occupancy {
    /// GPUs held by jobs.
    pub busy: u32,
    /// The sum of their enforced (or, in flight, the larger of old and new) limits.
    pub limits: Watts,
}

impl Occupancy {
    /// And so many GPUs more, with that limit each.
    #[must_use]
    pub fn with(self, gpus: u32, limit: Watts) -> Self {
        Self { busy: self.busy + gpus, limits: self.limits + limit * f64::from(gpus) }
    }
}

/// The most a node can draw in that state with that occupancy.
///
/// Unknown is worst case: a lost node counts at its maximum.
#[must_use]
pub fn committed(cluster: &Cluster, id: NodeId, power: NodePower, held: Occupancy) -> Watts {
    let node = cluster.node(id);
    match power {
        NodePower::Asleep => node.sleep,
        NodePower::Down => cluster.most_power(id),
        NodePower::Up | NodePower::Closed | NodePower::FallingAsleep => awake(cluster, node, held),
        NodePower::Booting => awake(cluster, node, held).max(node.boot),
    }
}

fn awake(cluster: &Cluster, node: &Node, held: Occupancy) -> Watts {
    match &node.draw {
        NodeDraw::Additive { base } => {
            let idle = u32::from(node.gpus).saturating_sub(held.busy);
            *base + held.limits + cluster.gpu_type(node.gpu_type).idle * f64::from(idle)
        }
        NodeDraw::ByBusyGpus(table) => table[(held.busy as usize).min(table.len() - 1)].watts,
    }
}

/// A job's part of its nodes' power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// As the machines draw it.
    pub drawn: Watts,
    /// With cooling.
    pub billed: Watts,
}

impl Add for Part {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { drawn: self.drawn + other.drawn, billed: self.billed + other.billed }
    }
}

/// The part of a node's power that a job on `count` of its `busy` GPUs, each drawing `per_gpu`,
/// stands for: what its GPUs draw; where a site knows only whole nodes, its share of the busy node.
/// A node's base and its idle GPUs are nobody's.
#[must_use]
pub fn part(node: &Node, busy: u32, count: u32, per_gpu: Watts, pue: f64) -> Part {
    match &node.draw {
        NodeDraw::Additive { .. } => {
            let drawn = per_gpu * f64::from(count);
            Part { drawn, billed: drawn * pue }
        }
        NodeDraw::ByBusyGpus(table) => {
            let entry = table[(busy as usize).min(table.len() - 1)];
            let drawn = entry.watts * (f64::from(count) / f64::from(busy.max(1)));
            Part { drawn, billed: drawn * entry.pue }
        }
    }
}
