//! What nodes say about their power and limits at one time.

use super::orders::{Stamp, Ticks};
use super::site::Site;
use wattline_core::ids::NodeId;
use wattline_core::units::Watts;

/// All nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Readings {
    /// When they were begun.
    pub(super) began: Stamp,
    nodes: Vec<OfNode>,
}

/// One node; nothing where it does not say.
#[derive(Clone, Debug, Default)]
struct OfNode {
    power: Option<Watts>,
    limits: Vec<Option<Watts>>,
}

impl Readings {
    /// Asks all nodes. Not for the loop.
    pub(super) fn take(site: &Site, ticks: &Ticks) -> Self {
        let began = ticks.next();
        let of_node = |id: NodeId| {
            let Some(actuator) = site.actuator(id) else { return OfNode::default() };
            let gpus = 0..u32::from(site.node(id).gpus);
            OfNode {
                power: actuator.power().ok().flatten(),
                limits: gpus.map(|gpu| actuator.read(gpu).ok()).collect(),
            }
        };
        Self { began, nodes: site.cluster.node_ids().map(of_node).collect() }
    }

    /// What a node draws.
    pub(super) fn power(&self, node: NodeId) -> Option<Watts> {
        self.nodes.get(node.index())?.power
    }

    /// The limit that a GPU has.
    pub(super) fn limit(&self, node: NodeId, gpu: u32) -> Option<Watts> {
        *self.nodes.get(node.index())?.limits.get(gpu as usize)?
    }

    /// The limits of a node's GPUs, as far as they are known.
    pub(super) fn limits(&self, node: NodeId) -> impl Iterator<Item = (u8, Watts)> + '_ {
        let limits = self.nodes.get(node.index()).map_or(&[][..], |node| &node.limits);
        (0..).zip(limits).filter_map(|(gpu, limit)| Some((gpu, (*limit)?)))
    }
}
