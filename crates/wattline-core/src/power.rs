//! Committed power: what nodes could draw at worst, given what is enforced on them.

use crate::cluster::{Cluster, Node, NodeDraw};
use crate::ids::NodeId;
use crate::units::Watts;
use serde::{Deserialize, Serialize};

/// Rounding in sums of watts must not decide whether a plan fits; a microwatt never matters.
pub const TOLERANCE: Watts = Watts::new(1e-6);

/// What state of power a node is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodePower {
    /// Running, can take jobs.
    Up,
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
        NodePower::Up | NodePower::FallingAsleep => awake(cluster, node, held),
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
