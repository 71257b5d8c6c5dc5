//! Where a shape goes that may be larger than any node.

use super::racks::fewest_racks;
use wattline_core::cluster::{Cluster, Shape};
use wattline_core::ids::NodeId;
use wattline_core::placement::{Allocation, Share};

/// What is free, as far as placing a gang needs to know it. Nodes are in groups, of which the first
/// is taken before the others.
pub(crate) trait Free {
    /// Nodes of that size and group with nothing on them.
    fn whole_nodes(&self, shape: Shape, size: u32, group: usize) -> Vec<NodeId>;
    /// The free GPUs of a node.
    fn mask(&self, node: NodeId) -> u64;
    /// A part of one node, but for those.
    fn part_of_a_node(&self, shape: Shape, skip: &[Share]) -> Option<Share>;
}

/// The best place for a shape: a part of a node, if one can hold it. Otherwise whole nodes, large
/// ones first, of as few racks as possible, and for what is left a part of one more.
pub(crate) fn place_gang(
    free: &impl Free,
    cluster: &Cluster,
    shape: Shape,
    groups: usize,
) -> Option<Allocation> {
    let largest = cluster.largest_node(shape.gpu_type);
    if shape.gpus <= largest {
        let share = free.part_of_a_node(shape, &[])?;
        return Some(Allocation::on(share.node, share.mask));
    }
    let mut left = shape.gpus;
    let mut shares = Allocation::default().0;
    for size in (1..=largest).rev() {
        for group in 0..groups {
            if left < size {
                break;
            }
            let whole = free.whole_nodes(shape, size, group);
            for node in fewest_racks(cluster, &whole, (left / size) as usize) {
                left -= size;
                shares.push(Share { node, mask: free.mask(node) });
            }
        }
    }
    // Not enough whole nodes: what is left does not fit on one more.
    if left >= largest {
        return None;
    }
    if left > 0 {
        let rest = Shape { gpus: left, ..shape };
        shares.push(free.part_of_a_node(rest, &shares)?);
    }
    Some(Allocation::over(shares))
}
