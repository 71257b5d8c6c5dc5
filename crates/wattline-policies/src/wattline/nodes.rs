//! Nodes by how many GPUs they have free, and what filling them costs in watts.

use super::model::Class;
pub(super) use crate::schedule::Spot;

/// Which nodes have how many GPUs free.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    class: Vec<u16>,
    free: Vec<u8>,
    at: Vec<u32>,
    /// Sum of the limits on a node in W.
    limits: Vec<f64>,
    /// By class and free GPUs.
    buckets: Vec<Vec<u32>>,
    starts: Vec<u32>,
    /// Free GPUs of a type.
    pub(super) free_of: Vec<u32>,
    types: Vec<u16>,
    /// Committed watts.
    pub(super) committed: f64,
}

/// A class no node is in: the node cannot be used.
pub(super) const NO_CLASS: u16 = u16::MAX;

impl Nodes {
    /// All nodes empty.
    pub(super) fn new(classes: &[Class], class: Vec<u16>, gpu_types: usize) -> Self {
        let mut starts = Vec::new();
        let mut next = 0;
        for c in classes {
            starts.push(next);
            next += u32::from(c.size) + 1;
        }
        let nodes = class.len();
        let mut all = Self {
            free: vec![0; nodes],
            at: vec![0; nodes],
            limits: vec![0.0; nodes],
            buckets: vec![Vec::new(); next as usize],
            starts,
            free_of: vec![0; gpu_types],
            types: classes.iter().map(|c| c.gpu_type as u16).collect(),
            committed: 0.0,
            class,
        };
        for node in 0..nodes {
            let c = all.class[node];
            if c == NO_CLASS {
                continue;
            }
            let known = &classes[usize::from(c)];
            all.free[node] = known.size;
            all.push(node as u32);
            all.free_of[known.gpu_type] += u32::from(known.size);
            all.committed += known.committed[0];
        }
        all
    }

    fn bucket(&self, class: u16, free: u8) -> usize {
        (self.starts[usize::from(class)] + u32::from(free)) as usize
    }

    fn push(&mut self, node: u32) {
        let n = node as usize;
        let bucket = self.bucket(self.class[n], self.free[n]);
        self.at[n] = self.buckets[bucket].len() as u32;
        self.buckets[bucket].push(node);
    }

    fn pull(&mut self, node: u32) {
        let n = node as usize;
        let bucket = self.bucket(self.class[n], self.free[n]);
        let list = &mut self.buckets[bucket];
        let at = self.at[n];
        list.swap_remove(at as usize);
        if let Some(moved) = list.get(at as usize) {
            self.at[*moved as usize] = at;
        }
    }

    pub(super) fn class_of(&self, node: u32) -> u16 {
        self.class[node as usize]
    }

    pub(super) fn free(&self, node: u32) -> u8 {
        self.free[node as usize]
    }

    /// Whether all these GPUs are free.
    pub(super) fn has_room(&self, spot: &Spot) -> bool {
        spot.iter().all(|(node, gpus)| self.free(*node) >= *gpus)
    }

    /// Nodes of a class with so many free.
    pub(super) fn with_free(&self, class: u16, free: u8) -> &[u32] {
        &self.buckets[self.bucket(class, free)]
    }

    fn count(&mut self, classes: &[Class], node: u32, sign: f64) {
        let n = node as usize;
        let class = &classes[usize::from(self.class[n])];
        let busy = usize::from(class.size - self.free[n]);
        self.committed += sign * class.commits(busy, self.limits[n]);
    }

    /// Committed watts more with so many GPUs more on a node, each at that limit.
    pub(super) fn rise(&self, classes: &[Class], node: u32, gpus: u8, limit: f64) -> f64 {
        let n = node as usize;
        let class = &classes[usize::from(self.class[n])];
        let busy = usize::from(class.size - self.free[n]);
        let limits = self.limits[n] + limit * f64::from(gpus);
        class.commits(busy + usize::from(gpus), limits) - class.commits(busy, self.limits[n])
    }

    /// A job takes GPUs there.
    pub(super) fn take(&mut self, classes: &[Class], spot: &Spot, limit: f64) {
        for (node, gpus) in spot {
            let n = *node as usize;
            self.count(classes, *node, -1.0);
            self.pull(*node);
            self.free[n] -= gpus;
            self.limits[n] += limit * f64::from(*gpus);
            self.push(*node);
            self.count(classes, *node, 1.0);
            self.free_of[usize::from(self.types[usize::from(self.class[n])])] -= u32::from(*gpus);
        }
    }

    /// A job gives them back.
    pub(super) fn give_back(&mut self, classes: &[Class], spot: &Spot, limit: f64) {
        for (node, gpus) in spot {
            let n = *node as usize;
            self.count(classes, *node, -1.0);
            self.pull(*node);
            self.free[n] += gpus;
            self.limits[n] -= limit * f64::from(*gpus);
            self.push(*node);
            self.count(classes, *node, 1.0);
            self.free_of[usize::from(self.types[usize::from(self.class[n])])] += u32::from(*gpus);
        }
    }
}
