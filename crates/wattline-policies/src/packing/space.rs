//! Free GPUs, indexed by the whole blocks that nodes have.

use super::buddy;
use super::gang::{Free, place_gang};
use std::collections::BTreeSet;
use wattline_core::cluster::{Cluster, Shape};
use wattline_core::ids::NodeId;
use wattline_core::placement::{Allocation, Share};

/// On which nodes a job may be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Where {
    /// Those that are up.
    Ready,
    /// All, those that are up first.
    Anywhere,
}

impl Where {
    /// How many groups of nodes that is: those that are up, then the others.
    fn groups(self) -> usize {
        1 + usize::from(self == Self::Anywhere)
    }
}

/// Nodes with a whole block of some size, those with fewest free GPUs first.
type Nodes = BTreeSet<(u32, NodeId)>;

/// The GPUs that nobody has in a plan that is being made.
#[derive(Clone, Debug)]
pub(crate) struct Space<'c> {
    cluster: &'c Cluster,
    free: Vec<u64>,
    /// `None`: the node cannot be used. Otherwise whether it is up.
    ready: Vec<Option<bool>>,
    /// By GPU type; up first, then the others; by the exponent of the block's size.
    blocks: Vec<[[Nodes; buddy::SIZES]; 2]>,
    /// By GPU type.
    count: Vec<u32>,
}

impl<'c> Space<'c> {
    /// Nothing is free yet. `ready` says of each node whether it can be used, and whether it is up.
    pub(crate) fn new(cluster: &'c Cluster, ready: Vec<Option<bool>>) -> Self {
        let types = cluster.gpu_types().len();
        Self {
            cluster,
            free: vec![0; cluster.nodes().len()],
            ready,
            blocks: vec![Default::default(); types],
            count: vec![0; types],
        }
    }

    /// The free GPUs of a node.
    pub(crate) fn free(&self, node: NodeId) -> u64 {
        self.free[node.index()]
    }

    /// Whether the node can be used, and whether it is up.
    pub(super) fn ready(&self, node: NodeId) -> Option<bool> {
        self.ready[node.index()]
    }

    pub(super) fn cluster(&self) -> &'c Cluster {
        self.cluster
    }

    fn set(&mut self, node: NodeId, mask: u64) {
        let Some(ready) = self.ready[node.index()] else { return };
        let t = self.cluster.node(node).gpu_type.index();
        let old = std::mem::replace(&mut self.free[node.index()], mask);
        let sets = &mut self.blocks[t][usize::from(!ready)];
        let (before, after) = (buddy::whole_blocks(old), buddy::whole_blocks(mask));
        for (k, set) in sets.iter_mut().enumerate() {
            if before >> k & 1 == 1 {
                set.remove(&(old.count_ones(), node));
            }
            if after >> k & 1 == 1 {
                set.insert((mask.count_ones(), node));
            }
        }
        self.count[t] = self.count[t] + mask.count_ones() - old.count_ones();
    }

    /// Gives GPUs back.
    pub(crate) fn give_back(&mut self, on: &Allocation) {
        for share in on.shares() {
            self.set(share.node, self.free[share.node.index()] | share.mask);
        }
    }

    /// Takes GPUs, if all of them are free.
    pub(crate) fn take(&mut self, on: &Allocation) -> bool {
        let has = |share: Share| {
            self.ready[share.node.index()].is_some()
                && self.free[share.node.index()] & share.mask == share.mask
        };
        let all = on.shares().all(has);
        if all {
            for share in on.shares() {
                self.set(share.node, self.free[share.node.index()] & !share.mask);
            }
        }
        all
    }

    /// The best place for a shape: in one node out of the smallest whole block that holds it;
    /// beyond one, whole nodes of as few racks as possible and, for what is left, a part of one
    /// more.
    pub(crate) fn place(&self, shape: Shape, whither: Where) -> Option<Allocation> {
        if self.count[shape.gpu_type.index()] < shape.gpus {
            return None;
        }
        let groups = whither.groups();
        place_gang(&Within { space: self, groups }, self.cluster, shape, groups)
    }

    /// Nodes of that size with nothing on them.
    fn whole_nodes(&self, shape: Shape, size: u32, group: usize) -> Vec<NodeId> {
        let sets = &self.blocks[shape.gpu_type.index()][group];
        let k = (size.ilog2() as usize).min(buddy::SIZES - 1);
        let is_whole = |node: &NodeId| u32::from(self.cluster.node(*node).gpus) == size;
        let free = sets[k].range((size, NodeId(0))..(size + 1, NodeId(0)));
        free.map(|(_, node)| *node).filter(is_whole).collect()
    }

    fn part_of_a_node(&self, shape: Shape, groups: usize, skip: &[Share]) -> Option<Share> {
        let k = buddy::exponent(shape.gpus);
        let skipped = |node: NodeId| skip.iter().any(|share| share.node == node);
        for sets in &self.blocks[shape.gpu_type.index()][..groups] {
            let block = sets.iter().skip(k).flatten().find(|(_, node)| !skipped(*node));
            // No aligned block: some node that has enough, the fullest.
            let scattered = || {
                let nodes = sets.iter().take(k).flatten();
                nodes.filter(|(free, node)| *free >= shape.gpus && !skipped(*node)).min()
            };
            if let Some((_, node)) = block.or_else(scattered) {
                let mask = buddy::take(self.free[node.index()], shape.gpus)?;
                return Some(Share { node: *node, mask });
            }
        }
        None
    }

    /// So many of an allocation's own GPUs, of as few of its nodes as possible.
    pub(crate) fn part_of(on: &Allocation, gpus: u32) -> Option<Allocation> {
        let mut shares: Vec<Share> = on.shares().collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.count()));
        let mut left = gpus;
        let mut kept = Allocation::default().0;
        for share in shares {
            let count = left.min(share.count());
            if count > 0 {
                kept.push(Share { node: share.node, mask: buddy::take(share.mask, count)? });
                left -= count;
            }
        }
        (left == 0).then(|| Allocation::over(kept))
    }
}

/// The space as far as a job may go.
struct Within<'s, 'c> {
    space: &'s Space<'c>,
    groups: usize,
}

impl Free for Within<'_, '_> {
    fn whole_nodes(&self, shape: Shape, size: u32, group: usize) -> Vec<NodeId> {
        self.space.whole_nodes(shape, size, group)
    }
    fn mask(&self, node: NodeId) -> u64 {
        self.space.free(node)
    }
    fn part_of_a_node(&self, shape: Shape, skip: &[Share]) -> Option<Share> {
        self.space.part_of_a_node(shape, self.groups, skip)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::cluster;
    use super::super::{Mover, make_room};
    use super::*;
    use wattline_core::ids::GpuTypeId;

    fn space<'c>(cluster: &'c Cluster, free: &[u64]) -> Space<'c> {
        let mut space = Space::new(cluster, vec![Some(true); free.len()]);
        for (node, mask) in cluster.node_ids().zip(free) {
            space.give_back(&Allocation::on(node, *mask));
        }
        space
    }

    fn gpus(gpus: u32) -> Shape {
        Shape { gpu_type: GpuTypeId(0), gpus }
    }

    #[test]
    fn small_jobs_go_into_small_holes() {
        let cluster = cluster(&[0; 3]);
        let space = space(&cluster, &[0xff, 0b0000_0011, 0b0000_1111]);
        let place = |n| space.place(gpus(n), Where::Ready).unwrap();
        assert_eq!(place(1), Allocation::on(NodeId(1), 0b1));
        assert_eq!(place(2), Allocation::on(NodeId(1), 0b11));
        assert_eq!(place(3), Allocation::on(NodeId(2), 0b111));
        assert_eq!(place(4), Allocation::on(NodeId(2), 0b1111));
        assert_eq!(place(8), Allocation::on(NodeId(0), 0xff));
        assert_eq!(space.place(gpus(16), Where::Ready), None);
    }

    #[test]
    fn large_jobs_stay_in_a_rack() {
        let cluster = cluster(&[0, 1, 0, 1, 1]);
        let space = space(&cluster, &[0xff; 5]);
        let nodes = |n| -> Vec<u32> {
            let on = space.place(gpus(n), Where::Ready).unwrap();
            on.shares().map(|share| share.node.0).collect()
        };
        assert_eq!(nodes(16), [0, 2]);
        assert_eq!(nodes(24), [1, 3, 4]);
        assert_eq!(nodes(32), [0, 1, 3, 4]);
    }

    #[test]
    fn nodes_that_sleep_are_the_last_choice() {
        let cluster = cluster(&[0; 2]);
        let mut space = Space::new(&cluster, vec![Some(false), None]);
        space.give_back(&Allocation::on(NodeId(0), 0xff));
        space.give_back(&Allocation::on(NodeId(1), 0xff));
        assert_eq!(space.place(gpus(1), Where::Ready), None);
        assert_eq!(space.place(gpus(8), Where::Anywhere), Some(Allocation::on(NodeId(0), 0xff)));
        // The other node is lost.
        assert_eq!(space.place(gpus(16), Where::Anywhere), None);
    }

    #[test]
    fn what_is_taken_comes_back() {
        let cluster = cluster(&[0; 2]);
        let mut space = space(&cluster, &[0xff, 0x0f]);
        let on = space.place(gpus(12), Where::Ready).unwrap();
        assert!(space.take(&on));
        assert!(!space.take(&on));
        assert_eq!(space.place(gpus(1), Where::Ready), None);
        space.give_back(&on);
        assert_eq!(space.place(gpus(12), Where::Ready), Some(on));
    }

    #[test]
    fn two_half_used_nodes_become_a_full_and_an_empty_one() {
        let cluster = cluster(&[0; 2]);
        let mut space = space(&cluster, &[0b1111_0000, 0b1111_1100]);
        let share = Share { node: NodeId(1), mask: 0b11 };
        let on = |node: NodeId| match node.0 {
            1 => vec![Mover { item: 7, share, cost: 5.0 }],
            _ => Vec::new(),
        };
        assert_eq!(make_room(&mut space, gpus(8), &on, 3, 4.0), None);
        assert_eq!(make_room(&mut space, gpus(8), &on, 0, 10.0), None);
        let moves = make_room(&mut space, gpus(8), &on, 3, 10.0).unwrap();
        assert_eq!(moves.len(), 1);
        assert_eq!((moves[0].item, moves[0].from), (7, share));
        assert_eq!(moves[0].to, Allocation::on(NodeId(0), 0b0011_0000));
        // Nothing was taken.
        assert_eq!(space.free(NodeId(1)), 0b1111_1100);
    }
}
