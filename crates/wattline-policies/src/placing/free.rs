//! Which GPUs nobody is planned on, indexed so that the best fit is found without looking at
//! every node.

use super::node_set::NodeSet;
use crate::packing::{Free, place_gang};
use wattline_core::cluster::{Cluster, Shape};
use wattline_core::ids::{GpuTypeId, NodeId};
use wattline_core::placement::{Allocation, Share, mask_of};
use wattline_core::power::NodePower;
use wattline_core::state::{State, Target};

/// Whether a node can take a job at once, after waking, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Awake,
    Asleep,
    Gone,
}

/// Free GPUs of all nodes. Nodes that are up (or coming up) go before nodes that must be woken.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeGpus {
    masks: Vec<u64>,
    groups: Vec<Group>,
    kinds: Vec<(GpuTypeId, u8)>,
    awake: Vec<ByFree>,
    asleep: Vec<ByFree>,
}

/// Nodes of one GPU type by how many GPUs they have free, and those wholly free by size.
#[derive(Clone, Debug)]
struct ByFree {
    free: Vec<NodeSet>,
    whole: Vec<NodeSet>,
    /// Bit `f`: some node has `f` GPUs free.
    some: u128,
}

impl ByFree {
    fn new(largest: u32, nodes: usize) -> Self {
        let sets = vec![NodeSet::with_capacity(nodes); largest as usize + 1];
        Self { free: sets.clone(), whole: sets, some: 0 }
    }
    fn insert(&mut self, node: NodeId, free: u32, size: u8) {
        self.free[free as usize].insert(node);
        self.some |= 1 << free;
        if free == u32::from(size) {
            self.whole[usize::from(size)].insert(node);
        }
    }
    fn remove(&mut self, node: NodeId, free: u32, size: u8) {
        self.free[free as usize].remove(node);
        if self.free[free as usize].len() == 0 {
            self.some &= !(1 << free);
        }
        if free == u32::from(size) {
            self.whole[usize::from(size)].remove(node);
        }
    }
    /// The node with the fewest free GPUs that still has `gpus`, the first of these.
    fn best_fit(&self, gpus: u32, skip: &[Share]) -> Option<NodeId> {
        let mut candidates = self.some >> gpus << gpus;
        while candidates != 0 {
            let free = candidates.trailing_zeros();
            let fitting = self.free[free as usize]
                .iter()
                .find(|node| skip.iter().all(|share| share.node != *node));
            if fitting.is_some() {
                return fitting;
            }
            candidates &= candidates - 1;
        }
        None
    }
}

impl FreeGpus {
    /// From what is planned.
    pub(crate) fn new(state: &State) -> Self {
        let cluster = state.cluster();
        let nodes = cluster.nodes().len();
        let by_type = |cluster: &Cluster| {
            cluster.gpu_type_ids().map(|t| ByFree::new(cluster.largest_node(t), nodes)).collect()
        };
        let mut index = Self {
            masks: vec![0; nodes],
            groups: vec![Group::Gone; nodes],
            kinds: cluster.nodes().iter().map(|n| (n.gpu_type, n.gpus)).collect(),
            awake: by_type(cluster),
            asleep: by_type(cluster),
        };
        for node in cluster.node_ids() {
            index.sync(state, node);
        }
        index
    }

    /// From what is free on each node, whether it sleeps or not; `None`: the node is gone.
    pub(crate) fn of(cluster: &Cluster, free: impl Fn(NodeId) -> Option<u64>) -> Self {
        let nodes = cluster.nodes().len();
        let by_type: Vec<ByFree> =
            cluster.gpu_type_ids().map(|t| ByFree::new(cluster.largest_node(t), nodes)).collect();
        let mut index = Self {
            masks: vec![0; nodes],
            groups: vec![Group::Gone; nodes],
            kinds: cluster.nodes().iter().map(|n| (n.gpu_type, n.gpus)).collect(),
            awake: by_type.clone(),
            asleep: by_type,
        };
        for id in cluster.node_ids() {
            if let Some(mask) = free(id) {
                index.set(id, Group::Awake, mask);
            }
        }
        index
    }

    /// Whether these GPUs are there and free.
    pub(crate) fn has(&self, share: Share) -> bool {
        let there = self.groups[share.node.index()] != Group::Gone;
        there && self.masks[share.node.index()] & share.mask == share.mask
    }

    /// Whether no GPU is free.
    pub(crate) fn is_full(&self) -> bool {
        self.awake.iter().chain(&self.asleep).all(|by_free| by_free.some <= 1)
    }

    /// Brings one node up to date.
    pub(crate) fn sync(&mut self, state: &State, id: NodeId) {
        let node = state.node(id);
        let group = match (node.power, node.target) {
            (NodePower::Down | NodePower::Closed, _) => Group::Gone,
            (_, Target::Up) => Group::Awake,
            (_, Target::Asleep) => Group::Asleep,
        };
        let free = mask_of(self.kinds[id.index()].1) & !node.planned.mask();
        self.set(id, group, free);
    }

    fn set(&mut self, id: NodeId, group: Group, mask: u64) {
        let (gpu_type, size) = self.kinds[id.index()];
        let old = self.masks[id.index()].count_ones();
        match self.groups[id.index()] {
            Group::Awake => self.awake[gpu_type.index()].remove(id, old, size),
            Group::Asleep => self.asleep[gpu_type.index()].remove(id, old, size),
            Group::Gone => {}
        }
        self.masks[id.index()] = mask;
        self.groups[id.index()] = group;
        match group {
            Group::Awake => self.awake[gpu_type.index()].insert(id, mask.count_ones(), size),
            Group::Asleep => self.asleep[gpu_type.index()].insert(id, mask.count_ones(), size),
            Group::Gone => {}
        }
    }

    /// Whether the node must be woken first.
    pub(crate) fn is_asleep(&self, node: NodeId) -> bool {
        self.groups[node.index()] == Group::Asleep
    }

    /// How many GPUs of a node are free.
    pub(crate) fn free_on(&self, node: NodeId) -> u32 {
        self.masks[node.index()].count_ones()
    }

    /// The best place for a shape: on the node that it leaves fewest GPUs free on; a shape larger
    /// than any node takes whole nodes, of as few racks as possible, and the rest of it a part of
    /// one more.
    pub(crate) fn place(&self, cluster: &Cluster, shape: Shape) -> Option<Allocation> {
        place_gang(self, cluster, shape, 2)
    }

    /// That many GPUs of that node.
    pub(crate) fn part_of(&self, node: NodeId, gpus: u32) -> Share {
        Share { node, mask: lowest(self.masks[node.index()], gpus) }
    }

    /// Takes GPUs; their nodes are awake from now on.
    pub(crate) fn take(&mut self, allocation: &Allocation) {
        for share in allocation.shares() {
            let mask = self.masks[share.node.index()] & !share.mask;
            self.set(share.node, Group::Awake, mask);
        }
    }

    /// Gives GPUs back.
    pub(crate) fn give_back(&mut self, allocation: &Allocation) {
        for share in allocation.shares() {
            let mask = self.masks[share.node.index()] | share.mask;
            let group = self.groups[share.node.index()];
            self.set(share.node, group, mask);
        }
    }

    /// A node goes to sleep.
    pub(crate) fn sleep(&mut self, node: NodeId) {
        self.set(node, Group::Asleep, self.masks[node.index()]);
    }
}

impl Free for FreeGpus {
    fn whole_nodes(&self, shape: Shape, size: u32, group: usize) -> Vec<NodeId> {
        let groups = [&self.awake, &self.asleep];
        groups[group][shape.gpu_type.index()].whole[size as usize].iter().collect()
    }
    fn mask(&self, node: NodeId) -> u64 {
        self.masks[node.index()]
    }
    fn part_of_a_node(&self, shape: Shape, skip: &[Share]) -> Option<Share> {
        let t = shape.gpu_type.index();
        let asleep = || self.asleep[t].best_fit(shape.gpus, skip);
        let node = self.awake[t].best_fit(shape.gpus, skip).or_else(asleep)?;
        Some(self.part_of(node, shape.gpus))
    }
}

/// The lowest `count` bits that are set.
pub(crate) fn lowest(mask: u64, count: u32) -> u64 {
    let mut left = mask;
    for _ in 0..count {
        left &= left.wrapping_sub(1);
    }
    mask & !left
}
