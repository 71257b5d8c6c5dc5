//! Where ways to run fit, and what that adds in watts.

use super::candidates::Way;
use super::model::{Draft, Problem};
use super::nodes::{Nodes, Spot};

impl Problem<'_, '_> {
    /// Where a way fits best: the fewest more watts, then the fewest GPUs left over.
    pub(super) fn place(&self, nodes: &Nodes, way: &Way) -> Option<(Spot, f64, f64)> {
        let gpu_type = way.shape.gpu_type.index();
        if nodes.free_of[gpu_type] < way.shape.gpus {
            return None;
        }
        let own = way.power * way.gpus();
        if way.nodes <= 1 {
            let gpus = way.shape.gpus as u8;
            let mut best: Option<(f64, u8, u32, f64, f64)> = None;
            for c in &self.classes_of[gpu_type] {
                let class = &self.classes[usize::from(*c)];
                for free in gpus..=class.size {
                    let Some(node) = nodes.with_free(*c, free).last() else { continue };
                    let busy = usize::from(class.size - free);
                    let after = busy + usize::from(gpus);
                    let watts = class.billed[after] - class.billed[busy] + class.pue * own;
                    let wake = if busy == 0 { class.wake } else { 0.0 };
                    let rise = nodes.rise(&self.classes, *node, gpus, way.limit);
                    if nodes.committed + rise > self.budget - self.owed.watts {
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
        self.place_over(nodes, way)
    }

    /// Whole nodes, and a part of one more.
    fn place_over(&self, nodes: &Nodes, way: &Way) -> Option<(Spot, f64, f64)> {
        let gpu_type = way.shape.gpu_type.index();
        let mut left = way.shape.gpus;
        let mut spot = Spot::new();
        let (mut watts, mut wake, mut committed) = (0.0, 0.0_f64, 0.0);
        let mut take = |spot: &mut Spot, node: u32, c: u16, gpus: u8| {
            let class = &self.classes[usize::from(c)];
            let busy = usize::from(class.size - nodes.free(node));
            let after = busy + usize::from(gpus);
            let own = way.power * f64::from(gpus);
            watts += class.billed[after] - class.billed[busy] + class.pue * own;
            committed += nodes.rise(&self.classes, node, gpus, way.limit);
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
        let fits = nodes.committed + committed <= self.budget - self.owed.watts;
        spot.sort_unstable();
        fits.then_some((spot, watts, wake))
    }

    /// Billed watts more with a job on those GPUs.
    pub(super) fn added_watts(&self, nodes: &Nodes, way: &Way, spot: &Spot) -> f64 {
        let added = |(node, gpus): &(u32, u8)| {
            let class = &self.classes[usize::from(nodes.class_of(*node))];
            let busy = usize::from(class.size - nodes.free(*node));
            let own = class.pue * way.power * f64::from(*gpus);
            class.billed[busy + usize::from(*gpus)] - class.billed[busy] + own
        };
        spot.iter().map(added).sum()
    }

    /// Whether a job can run on those GPUs, at that limit, beside the others.
    pub(super) fn fits(&self, nodes: &Nodes, spot: &Spot, limit: f64) -> bool {
        let rise = |(node, gpus): &(u32, u8)| nodes.rise(&self.classes, *node, *gpus, limit);
        nodes.has_room(spot) && nodes.committed + spot.iter().map(rise).sum::<f64>() <= self.budget
    }

    /// The nodes with all jobs of a draft.
    pub(super) fn filled(&self, draft: &Draft) -> Nodes {
        let mut nodes = self.empty.clone();
        for slot in draft.iter().flatten() {
            nodes.take(&self.classes, &slot.spot, self.way(slot.way).limit);
        }
        nodes
    }
}
