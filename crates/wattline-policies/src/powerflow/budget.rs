//! Keeps a plan below the power budget, to the watt.
//!
//! The greedy counts the watts of nodes by the part that is used, which is too little where nodes
//! are used in part. Here limits go down together as far as is needed, and if that is not enough
//! the last jobs wait.

use super::problem::{Placements, Problem};
use crate::packing::{Space, Where};
use wattline_core::placement::{Allocation, Configuration, Placement};
use wattline_core::power::TOLERANCE;
use wattline_core::units::Watts;

/// How finely the common level of limits is chosen.
const LEVELS: u32 = 32;

/// Brings the plan below the budget.
pub(super) fn keep(
    problem: &Problem<'_, '_>,
    present: &Placements,
    order: &[usize],
    placements: &mut Placements,
) {
    if problem.view.budget.is_none() {
        return;
    }
    if committed(problem, placements, LEVELS) > problem.budget {
        for item in order.iter().rev() {
            if committed(problem, placements, 0) <= problem.budget {
                break;
            }
            if !problem.items[*item].is_pinned() {
                placements[*item] = None;
            }
        }
        let fits = |level: &u32| committed(problem, placements, *level) <= problem.budget;
        let level = (0..=LEVELS).rev().find(fits).unwrap_or(0);
        for placement in placements.iter_mut().flatten() {
            placement.configuration.power_limit = limit_at(problem, placement, level);
        }
    }
    if placements.iter().all(Option::is_none)
        && let Some((item, placement)) = at_any_limit(problem, present, order)
    {
        placements[item] = Some(placement);
    }
}

/// Whether the budget carries a plan with the limits it has.
pub(super) fn carries(problem: &Problem<'_, '_>, placements: &Placements) -> bool {
    committed(problem, placements, LEVELS) <= problem.budget
}

fn limit_at(problem: &Problem<'_, '_>, placement: &Placement, level: u32) -> Watts {
    let c = &placement.configuration;
    if level == LEVELS {
        return c.power_limit;
    }
    let card = problem.view.state.cluster().gpu_type(c.gpu_type);
    let part = f64::from(level) / f64::from(LEVELS);
    let cap = card.min_limit + (card.default_limit - card.min_limit) * part;
    c.power_limit.min(cap).max(card.min_limit)
}

/// Committed power with limits at a level and all idle nodes asleep.
fn committed(problem: &Problem<'_, '_>, placements: &Placements, level: u32) -> f64 {
    let cluster = problem.view.state.cluster();
    let mut held: Vec<_> = cluster.node_ids().map(|id| problem.fixed(id)).collect();
    for placement in placements.iter().flatten() {
        let limit = limit_at(problem, placement, level);
        for share in placement.allocation.shares() {
            let node = &mut held[share.node.index()];
            *node = node.with(share.count(), limit);
        }
    }
    cluster.node_ids().map(|id| problem.committed_if(id, held[id.index()])).sum::<f64>()
        - TOLERANCE.get()
}

/// For when nothing fits: the first job that the budget carries in some way with all other nodes
/// asleep, at the highest limit. So no job waits for ever.
fn at_any_limit(
    problem: &Problem<'_, '_>,
    present: &Placements,
    order: &[usize],
) -> Option<(usize, Placement)> {
    let cluster = problem.view.state.cluster();
    let mut space = Space::new(cluster, problem.ready());
    for id in cluster.node_ids() {
        space.give_back(&Allocation::on(id, problem.free_mask(id)));
    }
    let nothing = vec![None; problem.items.len()];
    let base = committed(problem, &nothing, LEVELS);
    let carries = |placement: &Placement| {
        let rise = |share: wattline_core::placement::Share| {
            let fixed = problem.fixed(share.node);
            let held = fixed.with(share.count(), placement.configuration.power_limit);
            problem.committed_if(share.node, held) - problem.committed_if(share.node, fixed)
        };
        base + placement.allocation.shares().map(rise).sum::<f64>() <= problem.budget
    };
    for &item in order {
        for way in problem.rungs(item) {
            let largest = cluster.largest_node(way.shape.gpu_type);
            let mut places: Vec<Allocation> = Vec::new();
            if way.shape.gpus <= largest {
                for id in
                    cluster.node_ids().filter(|id| space.free(*id).count_ones() >= way.shape.gpus)
                {
                    if cluster.node(id).gpu_type == way.shape.gpu_type {
                        let mask = crate::placing::lowest(space.free(id), way.shape.gpus);
                        places.push(Allocation::on(id, mask));
                    }
                }
            } else {
                places.extend(space.place(way.shape, Where::Anywhere));
            }
            // Where it is already comes first: a node may be on its way up for it.
            if let Some(now) = &present[item]
                && now.configuration.shape() == way.shape
                && now.allocation.shares().all(|s| space.free(s.node) & s.mask == s.mask)
            {
                places.insert(0, now.allocation.clone());
            }
            let card = cluster.gpu_type(way.shape.gpu_type);
            for limit in card.limits_down() {
                for place in &places {
                    let configuration = Configuration {
                        gpu_type: way.shape.gpu_type,
                        gpus: way.shape.gpus,
                        nodes: place.0.len() as u32,
                        batch: way.batch,
                        power_limit: limit,
                    };
                    let placement = Placement { configuration, allocation: place.clone() };
                    if carries(&placement) {
                        return Some((item, placement));
                    }
                }
            }
        }
    }
    None
}
