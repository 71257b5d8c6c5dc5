//! From "this job in this shape" to the very GPUs, moving as few jobs as possible.
//!
//! The proxy does not see which of several equal nodes a job is on, so jobs whose shape stays keep
//! their GPUs wherever that costs nothing.

use super::cost::proxy;
use super::problem::{Class, Problem, committed_if};
use super::search::{Placed, Solution};
use super::space::{Part, Space};
use crate::placing::{Choice, lowest};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use wattline_core::ids::NodeId;
use wattline_core::placement::{Allocation, Placement, Share};

/// Equal but for rounding.
const ROUNDING: f64 = 1e-9;
const WATTS_ROUNDING: f64 = 1e-7;

/// Who runs where; by item.
pub(super) type Placements = Vec<Option<Placement>>;

/// The solution on GPUs.
pub(super) fn settle(problem: &Problem<'_, '_>, solution: &Solution) -> Placements {
    let settler = Settler { problem, free: free_masks(problem), space: Space::empty(problem) };
    let again = Settler { problem, free: settler.free.clone(), space: settler.space.clone() };
    let stayed = settler.stay(solution);
    stayed.unwrap_or_else(|| again.pack_anew(&solution.placed))
}

fn free_masks(problem: &Problem<'_, '_>) -> Vec<u64> {
    problem.view.state.cluster().node_ids().map(|id| problem.free_mask(id)).collect()
}

/// Where the job of an item is planned now, if in that shape and batch.
fn present<'v>(problem: &Problem<'v, '_>, item: usize, choice: &Choice) -> Option<&'v Placement> {
    let placement = problem.view.state.job(problem.items[item].id).planned.as_ref()?;
    let configuration = &placement.configuration;
    let same = configuration.shape() == choice.shape && configuration.batch == choice.batch;
    same.then_some(placement)
}

struct Settler<'p, 'v, 'a> {
    problem: &'p Problem<'v, 'a>,
    /// By node.
    free: Vec<u64>,
    space: Space,
}

impl Settler<'_, '_, '_> {
    fn choice(&self, p: Placed) -> &Choice {
        &self.problem.items[p.item].ways[p.way]
    }

    /// A node of the class with so many GPUs free. There is one, because space and masks count the
    /// same nodes; were there none, the checker would refuse the plan.
    fn node(&self, part: Part) -> Option<NodeId> {
        let class: &Class = &self.problem.classes[part.class];
        let fits = |id: &&NodeId| self.free[id.index()].count_ones() == part.free;
        class.nodes.iter().find(fits).copied()
    }

    fn take(&mut self, p: Placed, class: usize, share: Share) {
        let free = self.free[share.node.index()];
        let part = Part { class, free: free.count_ones(), gpus: share.count() };
        let power = self.choice(p).power;
        self.space.take_part(self.problem, part, power);
        self.free[share.node.index()] = free & !share.mask;
    }

    /// Jobs that keep their shape keep their GPUs, the others fill what is left; `None` where they
    /// do not fit so or the plan would cost more.
    fn stay(mut self, solution: &Solution) -> Option<Placements> {
        let mut placements: Placements = vec![None; self.problem.items.len()];
        let mut others = Vec::new();
        for p in &solution.placed {
            let choice = *self.choice(*p);
            let Some(kept) = present(self.problem, p.item, &choice) else {
                others.push(*p);
                continue;
            };
            for share in kept.allocation.shares() {
                let class = self.problem.class_of[share.node.index()]?;
                if self.free[share.node.index()] & share.mask != share.mask {
                    return None;
                }
                self.take(*p, class, share);
            }
            placements[p.item] = Some(choice.placed(kept.allocation.clone()));
        }
        others.sort_by_key(|p| Reverse(self.choice(*p).shape.gpus));
        for p in others {
            let choice = *self.choice(p);
            let fit = self.space.fit_anyhow(self.problem, choice.shape)?;
            let mut allocation = Allocation::default().0;
            for part in fit.parts() {
                let node = self.node(*part)?;
                let mask = lowest(self.free[node.index()], part.gpus);
                let share = Share { node, mask };
                self.take(p, part.class, share);
                allocation.push(share);
            }
            placements[p.item] = Some(choice.placed(Allocation::over(allocation)));
        }
        let cost = proxy(self.problem, &solution.placed, &self.space);
        let as_cheap = cost <= solution.cost + ROUNDING * solution.cost.abs();
        let fits = self.space.committed() <= self.problem.budget + WATTS_ROUNDING;
        (as_cheap && fits).then_some(placements)
    }

    /// Packed as the search packed them; of nodes that are alike each job gets the one it is on,
    /// as far as that goes.
    fn pack_anew(mut self, placed: &[Placed]) -> Placements {
        let mut parts: Vec<(Placed, NodeId, u32)> = Vec::new();
        for p in placed {
            let choice = *self.choice(*p);
            let fit = self.space.fit(self.problem, choice.shape);
            for part in fit.iter().flat_map(|fit| fit.parts()) {
                let Some(node) = self.node(*part) else { continue };
                let mask = lowest(self.free[node.index()], part.gpus);
                self.take(*p, part.class, Share { node, mask });
                parts.push((*p, node, part.gpus));
            }
        }
        let names = self.rename(&parts);
        let mut free = free_masks(self.problem);
        let mut shares: Vec<Option<Share>> = vec![None; parts.len()];
        for ((p, node, gpus), share) in parts.iter().zip(&mut shares) {
            let node = names[node];
            let kept = present(self.problem, p.item, self.choice(*p))
                .and_then(|now| now.allocation.shares().find(|s| s.node == node))
                .filter(|s| s.count() == *gpus && free[node.index()] & s.mask == s.mask);
            if let Some(kept) = kept {
                free[node.index()] &= !kept.mask;
                *share = Some(kept);
            }
        }
        let mut allocations: BTreeMap<usize, (Placed, Allocation)> = BTreeMap::new();
        for ((p, node, gpus), share) in parts.iter().zip(shares) {
            let node = names[node];
            let share = share.unwrap_or_else(|| {
                let mask = lowest(free[node.index()], *gpus);
                free[node.index()] &= !mask;
                Share { node, mask }
            });
            let entry = allocations.entry(p.item).or_insert_with(|| (*p, Allocation::default()));
            entry.1.0.push(share);
        }
        let mut placements: Placements = vec![None; self.problem.items.len()];
        for (item, (p, allocation)) in allocations {
            placements[item] = Some(self.choice(p).placed(Allocation::over(allocation.0)));
        }
        placements
    }

    /// Which node stands for which, of nodes that are alike: the pairs that keep most jobs first.
    fn rename(&self, parts: &[(Placed, NodeId, u32)]) -> BTreeMap<NodeId, NodeId> {
        let class = |node: NodeId| self.problem.class_of[node.index()];
        let mut keeps: BTreeMap<(NodeId, NodeId), u32> = BTreeMap::new();
        for (p, node, _) in parts {
            let Some(now) = present(self.problem, p.item, self.choice(*p)) else { continue };
            for share in now.allocation.shares().filter(|s| class(s.node) == class(*node)) {
                *keeps.entry((*node, share.node)).or_default() += 1;
            }
        }
        let mut pairs: Vec<(NodeId, NodeId)> = keeps.keys().copied().collect();
        pairs.sort_by_key(|pair| Reverse(keeps[pair]));
        let mut names: BTreeMap<NodeId, NodeId> = BTreeMap::new();
        let mut taken: BTreeSet<NodeId> = BTreeSet::new();
        for (node, name) in pairs {
            if !names.contains_key(&node) && taken.insert(name) {
                names.insert(node, name);
            }
        }
        for (_, node, _) in parts {
            if names.contains_key(node) {
                continue;
            }
            let nodes = class(*node).map(|class| &self.problem.classes[class].nodes);
            let left = nodes.into_iter().flatten().find(|name| !taken.contains(name));
            let name = *left.unwrap_or(node);
            taken.insert(name);
            names.insert(*node, name);
        }
        names
    }
}

/// For when nothing fits below the budget at full power, even with all other nodes asleep: the
/// first job by pressure that some lower limit carries, at the highest such limit.
pub(super) fn at_any_limit(
    problem: &Problem<'_, '_>,
    order: &[usize],
) -> Option<(usize, Placement)> {
    let empty = Space::empty(problem);
    let free = free_masks(problem);
    let cluster = problem.view.state.cluster();
    for &item in order {
        for way in &problem.items[item].ways {
            let largest = cluster.largest_node(way.shape.gpu_type);
            let mut places: Vec<Allocation> = Vec::new();
            if way.shape.gpus <= largest {
                let now = present(problem, item, way).and_then(|now| now.allocation.only_node());
                for class in problem.of_type[way.shape.gpu_type.index()].clone() {
                    let nodes = &problem.classes[class].nodes;
                    let here = now.filter(|node| problem.class_of[node.index()] == Some(class));
                    let node = here.unwrap_or(nodes[0]);
                    let mask = free[node.index()];
                    if mask.count_ones() >= way.shape.gpus {
                        places.push(Allocation::on(node, lowest(mask, way.shape.gpus)));
                    }
                }
            } else if let Some(fit) = empty.fit_anyhow(problem, way.shape) {
                let mut shares = Allocation::default().0;
                for part in fit.parts() {
                    let nodes = &problem.classes[part.class].nodes;
                    let node = nodes
                        .iter()
                        .find(|node| shares.iter().all(|share: &Share| share.node != **node));
                    let Some(node) = node.copied() else { continue };
                    shares.push(Share { node, mask: lowest(free[node.index()], part.gpus) });
                }
                places.push(Allocation::over(shares));
            }
            for limit in cluster.gpu_type(way.shape.gpu_type).limits_down() {
                let choice = Choice { limit, ..*way };
                let carried = places.iter().find(|place| carries(problem, place, &choice));
                if let Some(place) = carried {
                    return Some((item, choice.placed(place.clone())));
                }
            }
        }
    }
    None
}

/// Whether the budget carries the choice there, with all idle nodes asleep.
fn carries(problem: &Problem<'_, '_>, place: &Allocation, choice: &Choice) -> bool {
    let rise = |share: Share| {
        let held = problem.fixed(share.node).with(share.count(), choice.limit);
        let class = problem.class_of[share.node.index()].map(|at| &problem.classes[at]);
        let before = class.map_or(0.0, |class| class.committed[class.free as usize]);
        committed_if(problem.view, share.node, held).get() - before
    };
    problem.base + place.shares().map(rise).sum::<f64>() <= problem.budget
}
