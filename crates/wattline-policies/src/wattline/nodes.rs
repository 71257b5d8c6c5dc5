//! Nodes by how many GPUs they have free, and where a candidate fits with the fewest watts.

use super::{Candidate, Class, Draft, Problem, Slot};
pub(super) use crate::schedule::Spot;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(super) struct Nodes {
    classes: Arc<[Class]>,
    class: Vec<u16>,
    free: Vec<u8>,
    at: Vec<u32>,
    /// Sum of the limits on a node in W.
    limits: Vec<f64>,
    /// By class and free GPUs.
    buckets: Vec<Vec<u32>>,
    starts: Vec<u32>,
    pub(super) free_of: Vec<u32>,
    pub(super) committed: f64,
}

/// A class no node is in: the node cannot be used.
pub(super) const NO_CLASS: u16 = u16::MAX;

impl Nodes {
    pub(super) fn new(classes: Arc<[Class]>, class: Vec<u16>, gpu_types: usize) -> Self {
        let mut starts = Vec::new();
        let mut next = 0;
        for c in classes.iter() {
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
            classes,
            committed: 0.0,
            class,
        };
        for node in 0..nodes {
            let c = all.class[node];
            if c == NO_CLASS {
                continue;
            }
            let class = &all.classes[usize::from(c)];
            all.free[node] = class.size;
            all.free_of[class.gpu_type] += u32::from(class.size);
            all.committed += class.committed[0];
            all.push(node as u32);
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

    /// Nodes that can be used.
    pub(super) fn usable(&self) -> impl Iterator<Item = (u32, &Class)> {
        let known = (0_u32..).zip(&self.class).filter(|(_, class)| **class != NO_CLASS);
        known.map(|(node, class)| (node, &self.classes[usize::from(*class)]))
    }

    pub(super) fn free(&self, node: u32) -> u8 {
        self.free[node as usize]
    }

    pub(super) fn has_room(&self, spot: &Spot) -> bool {
        spot.iter().all(|(node, gpus)| self.free(*node) >= *gpus)
    }

    pub(super) fn with_free(&self, class: u16, free: u8) -> &[u32] {
        &self.buckets[self.bucket(class, free)]
    }

    fn class(&self, node: u32) -> &Class {
        &self.classes[usize::from(self.class_of(node))]
    }

    /// GPUs of a node that are in use.
    fn busy(&self, node: u32) -> usize {
        usize::from(self.class(node).size - self.free(node))
    }

    fn commits(&self, node: u32) -> f64 {
        self.class(node).commits(self.busy(node), self.limits[node as usize])
    }

    /// Committed watts that `gpus` more on a node add, each at that limit.
    pub(super) fn rise(&self, node: u32, gpus: u8, limit: f64) -> f64 {
        let limits = self.limits[node as usize] + limit * f64::from(gpus);
        self.class(node).commits(self.busy(node) + usize::from(gpus), limits) - self.commits(node)
    }

    pub(super) fn take(&mut self, spot: &Spot, limit: f64) {
        for (node, gpus) in spot {
            self.set(*node, self.free(*node) - gpus, limit * f64::from(*gpus));
        }
    }

    pub(super) fn give_back(&mut self, spot: &Spot, limit: f64) {
        for (node, gpus) in spot {
            self.set(*node, self.free(*node) + gpus, -(limit * f64::from(*gpus)));
        }
    }

    /// Sets how many GPUs of a node are free, and adds to the sum of its limits.
    fn set(&mut self, node: u32, free: u8, limits: f64) {
        let n = node as usize;
        self.committed -= self.commits(node);
        self.pull(node);
        let of_type = &mut self.free_of[self.classes[usize::from(self.class[n])].gpu_type];
        *of_type = *of_type + u32::from(free) - u32::from(self.free[n]);
        self.free[n] = free;
        self.limits[n] += limits;
        self.push(node);
        self.committed += self.commits(node);
    }
}

impl Problem<'_, '_> {
    /// Where a candidate fits best: the fewest more watts, then the fewest GPUs left over.
    pub(super) fn place(&self, nodes: &Nodes, candidate: &Candidate) -> Option<(Spot, f64, f64)> {
        let gpu_type = candidate.gpu_type();
        if nodes.free_of[gpu_type] < candidate.shape.gpus {
            return None;
        }
        let own = candidate.power * candidate.gpus();
        if candidate.nodes <= 1 {
            let gpus = candidate.shape.gpus as u8;
            let mut best: Option<(f64, u8, u32, f64, f64)> = None;
            for c in &self.classes_of[gpu_type] {
                let class = &self.classes[usize::from(*c)];
                for free in gpus..=class.size {
                    let Some(node) = nodes.with_free(*c, free).last() else { continue };
                    let busy = usize::from(class.size - free);
                    let after = busy + usize::from(gpus);
                    let watts = class.billed[after] - class.billed[busy] + class.pue * own;
                    let wake = if busy == 0 { class.wake } else { 0.0 };
                    let rise = nodes.rise(*node, gpus, candidate.limit);
                    if nodes.committed + rise > self.budget - self.starvation.watts {
                        continue;
                    }
                    // A node that must be woken is taken only where none is up.
                    let key = watts + wake * self.tuning.wake_w_per_s;
                    let better =
                        best.is_none_or(|b| key < b.0 - 1e-9 || (key <= b.0 && free < b.1));
                    if better {
                        best = Some((key, free, *node, watts, wake));
                    }
                }
            }
            let (_, _, node, watts, wake) = best?;
            return Some((std::iter::once((node, gpus)).collect(), watts, wake));
        }
        self.place_over(nodes, candidate)
    }

    /// That place as a slot.
    pub(super) fn slot(&self, nodes: &Nodes, candidate: &Candidate) -> Option<Slot> {
        let (spot, _, _) = self.place(nodes, candidate)?;
        Some(Slot { candidate: candidate.index, spot })
    }

    /// Whole nodes, and a part of one more.
    fn place_over(&self, nodes: &Nodes, candidate: &Candidate) -> Option<(Spot, f64, f64)> {
        let gpu_type = candidate.gpu_type();
        let mut left = candidate.shape.gpus;
        let mut spot = Spot::new();
        let (mut watts, mut wake, mut committed) = (0.0, 0.0_f64, 0.0);
        let mut take = |spot: &mut Spot, node: u32, c: u16, gpus: u8| {
            let class = &self.classes[usize::from(c)];
            let busy = usize::from(class.size - nodes.free(node));
            let after = busy + usize::from(gpus);
            let own = candidate.power * f64::from(gpus);
            watts += class.billed[after] - class.billed[busy] + class.pue * own;
            committed += nodes.rise(node, gpus, candidate.limit);
            wake = wake.max(if busy == 0 { class.wake } else { 0.0 });
            spot.push((node, gpus));
        };
        let classes = &self.classes_of[gpu_type];
        let size = |c: u16| self.classes[usize::from(c)].size;
        let largest = classes.iter().map(|c| size(*c)).max()?;
        // Large nodes before small ones, and those that are up before those that sleep.
        for whole in (1..=largest).rev() {
            for asleep in [false, true] {
                let alike = |c: &&u16| {
                    size(**c) == whole && (self.classes[usize::from(**c)].wake > 0.0) == asleep
                };
                for c in classes.iter().filter(alike) {
                    for node in nodes.with_free(*c, whole).iter().rev() {
                        if left < u32::from(whole) {
                            break;
                        }
                        take(&mut spot, *node, *c, whole);
                        left -= u32::from(whole);
                    }
                }
            }
        }
        if left > 0 {
            let gpus = u8::try_from(left).ok().filter(|gpus| *gpus < largest)?;
            let unused = |spot: &Spot, node: u32| spot.iter().all(|(used, _)| *used != node);
            let (c, node) = (gpus..=largest).find_map(|free| {
                classes.iter().filter(|c| size(**c) >= free).find_map(|c| {
                    let list = nodes.with_free(*c, free).iter().rev();
                    let mut fitting = list.filter(|node| unused(&spot, **node));
                    fitting.next().map(|node| (*c, *node))
                })
            })?;
            take(&mut spot, node, c, gpus);
        }
        let fits = nodes.committed + committed <= self.budget - self.starvation.watts;
        spot.sort_unstable();
        fits.then_some((spot, watts, wake))
    }

    /// Billed watts more with a job on those GPUs.
    pub(super) fn added_watts(&self, nodes: &Nodes, candidate: &Candidate, spot: &Spot) -> f64 {
        let added = |(node, gpus): &(u32, u8)| {
            let class = &self.classes[usize::from(nodes.class_of(*node))];
            let busy = usize::from(class.size - nodes.free(*node));
            let own = class.pue * candidate.power * f64::from(*gpus);
            class.billed[busy + usize::from(*gpus)] - class.billed[busy] + own
        };
        spot.iter().map(added).sum()
    }

    /// Whether a job can run on those GPUs, at that limit, beside the others.
    pub(super) fn fits(&self, nodes: &Nodes, spot: &Spot, limit: f64) -> bool {
        let rise = |(node, gpus): &(u32, u8)| nodes.rise(*node, *gpus, limit);
        nodes.has_room(spot) && nodes.committed + spot.iter().map(rise).sum::<f64>() <= self.budget
    }

    pub(super) fn take(&self, nodes: &mut Nodes, slot: &Slot) {
        nodes.take(&slot.spot, self.of(slot).limit);
    }

    pub(super) fn give_back(&self, nodes: &mut Nodes, slot: &Slot) {
        nodes.give_back(&slot.spot, self.of(slot).limit);
    }

    pub(super) fn filled(&self, draft: &Draft) -> Nodes {
        let mut nodes = self.empty.clone();
        for slot in draft.iter().flatten() {
            self.take(&mut nodes, slot);
        }
        nodes
    }
}
