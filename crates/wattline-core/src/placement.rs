//! Where and how a job runs: its configuration and the very GPUs.

use crate::cluster::Shape;
use crate::ids::{GpuId, GpuTypeId, NodeId};
use crate::units::Watts;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// One way to run a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// Which GPUs.
    pub gpu_type: GpuTypeId,
    /// How many.
    pub gpus: u32,
    /// Over how many nodes.
    pub nodes: u32,
    /// The global batch.
    pub batch: u32,
    /// The power limit of each of its GPUs.
    pub power_limit: Watts,
}

impl Configuration {
    /// Its GPU type and count.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape { gpu_type: self.gpu_type, gpus: self.gpus }
    }

    /// The same but for the power limit, which can change without a restart.
    #[must_use]
    pub fn same_but_limit(&self, other: &Self) -> bool {
        Self { power_limit: other.power_limit, ..*self } == *other
    }
}

/// Some GPUs of one node, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Share {
    /// The node.
    pub node: NodeId,
    /// Which of its GPUs.
    pub mask: u64,
}

impl Share {
    /// How many GPUs.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.mask.count_ones()
    }
}

/// All GPUs of a node that has so many.
#[must_use]
pub fn mask_of(gpus: u8) -> u64 {
    if gpus >= 64 { u64::MAX } else { (1 << gpus) - 1 }
}

/// The GPUs a job holds; nodes in rising order, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Allocation(pub SmallVec<[Share; 1]>);

impl Allocation {
    /// On a single node.
    #[must_use]
    pub fn on(node: NodeId, mask: u64) -> Self {
        Self(smallvec::smallvec![Share { node, mask }])
    }

    /// Over several nodes.
    #[must_use]
    pub fn over(mut shares: SmallVec<[Share; 1]>) -> Self {
        shares.sort_unstable_by_key(|s| s.node);
        Self(shares)
    }

    /// How many GPUs in all.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.iter().map(Share::count).sum()
    }

    /// The node it is on, if it is on one.
    #[must_use]
    pub fn only_node(&self) -> Option<NodeId> {
        match self.0[..] {
            [Share { node, .. }] => Some(node),
            _ => None,
        }
    }

    /// The shares, node by node.
    pub fn shares(&self) -> impl Iterator<Item = Share> + '_ {
        self.0.iter().copied()
    }

    /// Every GPU.
    pub fn gpus(&self) -> impl Iterator<Item = GpuId> + '_ {
        self.shares().flat_map(|share| {
            (0..64_u8)
                .filter(move |bit| share.mask >> bit & 1 == 1)
                .map(move |index| GpuId { node: share.node, index })
        })
    }
}

/// A configuration on particular GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// How.
    pub configuration: Configuration,
    /// Where.
    pub allocation: Allocation,
}

impl Placement {
    /// Whether the running job can take on `other` without a restart.
    #[must_use]
    pub fn same_but_limit(&self, other: &Self) -> bool {
        self.allocation == other.allocation
            && self.configuration.same_but_limit(&other.configuration)
    }
}
