//! Which of several nodes to take so that they hang on as few switches as possible.

use std::collections::BTreeMap;
use wattline_core::cluster::Cluster;
use wattline_core::ids::NodeId;

/// Of these nodes, which are as good as each other, `count` on as few racks as possible; all of
/// them if there are not more. A job that one rack can hold goes to the rack that it leaves fewest
/// such nodes on; a larger one takes the racks with most of them.
pub(super) fn fewest_racks(cluster: &Cluster, nodes: &[NodeId], count: usize) -> Vec<NodeId> {
    if nodes.len() <= count {
        return nodes.to_vec();
    }
    let mut racks: BTreeMap<u32, Vec<NodeId>> = BTreeMap::new();
    for node in nodes {
        racks.entry(cluster.node(*node).rack).or_default().push(*node);
    }
    let mut chosen = Vec::with_capacity(count);
    while chosen.len() < count {
        let left = count - chosen.len();
        let fitting = racks.iter().filter(|(_, free)| free.len() >= left);
        let best = fitting.min_by_key(|(_, free)| free.len());
        let largest = || racks.iter().rev().max_by_key(|(_, free)| free.len());
        let Some(rack) = best.or_else(largest).map(|(rack, _)| *rack) else { break };
        chosen.extend(racks.remove(&rack).into_iter().flatten().take(left));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::super::sample::cluster;
    use super::*;

    fn racks_of(racks: &[u32], count: usize) -> Vec<u32> {
        let cluster = cluster(racks);
        let nodes: Vec<NodeId> = cluster.node_ids().collect();
        let chosen = fewest_racks(&cluster, &nodes, count);
        assert_eq!(chosen.len(), count.min(racks.len()));
        chosen.iter().map(|node| cluster.node(*node).rack).collect()
    }

    #[test]
    fn one_rack_if_it_can_be_and_the_fullest_of_these() {
        assert_eq!(racks_of(&[0, 1, 1, 2, 2, 2], 1), [0]);
        assert_eq!(racks_of(&[0, 1, 1, 2, 2, 2], 2), [1, 1]);
        assert_eq!(racks_of(&[0, 1, 1, 2, 2, 2], 3), [2, 2, 2]);
    }

    #[test]
    fn else_as_few_as_possible() {
        assert_eq!(racks_of(&[0, 1, 1, 2, 2, 2], 4), [2, 2, 2, 0]);
        assert_eq!(racks_of(&[0, 1, 1, 2, 2, 2], 5), [2, 2, 2, 1, 1]);
        assert_eq!(racks_of(&[0, 1, 1], 9).len(), 3);
    }
}
