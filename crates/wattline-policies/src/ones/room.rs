//! From "this job in this way" to the very GPUs: the reordering, so that few GPUs change hands.

use super::genome::Genome;
use super::problem::{Problem, committed_if};
use crate::placing::FreeGpus;
use wattline_core::cluster::Shape;
use wattline_core::ids::NodeId;
use wattline_core::placement::{Allocation, Placement};
use wattline_core::policy::ClusterView;
use wattline_core::power::Occupancy;
use wattline_core::units::Watts;

/// Who runs where; by item.
pub(super) type Placements = Vec<Option<Placement>>;

/// A partly filled cluster.
#[derive(Clone)]
pub(super) struct Room<'v, 'a> {
    view: &'v ClusterView<'a>,
    free: FreeGpus,
    /// By node; only kept where there is a budget.
    held: Vec<Occupancy>,
    /// With all idle nodes asleep.
    committed: Watts,
}

impl<'v, 'a> Room<'v, 'a> {
    pub(super) fn new(view: &'v ClusterView<'a>, free: FreeGpus, held: Vec<Occupancy>) -> Self {
        let ids = view.state.cluster().node_ids();
        let committed = ids.map(|id| committed_if(view, id, held[id.index()])).sum();
        let held = if view.budget.is_some() { held } else { Vec::new() };
        Self { view, free, held, committed }
    }

    /// Whether all of these GPUs are free.
    pub(super) fn has(&self, on: &Allocation) -> bool {
        on.shares().all(|share| self.free.has(share))
    }

    /// The best fit for a shape, whatever it draws.
    pub(super) fn place(&self, shape: Shape) -> Option<Allocation> {
        self.free.place(self.view.state.cluster(), shape)
    }

    fn committed_with(&self, on: &Allocation, limit: Watts) -> Watts {
        on.shares().fold(self.committed, |sum, share| {
            let held = self.held[share.node.index()];
            let after = held.with(share.count(), limit);
            sum + committed_if(self.view, share.node, after)
                - committed_if(self.view, share.node, held)
        })
    }

    /// Whether the budget carries that.
    fn carries(&self, on: &Allocation, limit: Watts) -> bool {
        self.view.budget.is_none_or(|budget| self.committed_with(on, limit) <= budget)
    }

    /// Takes the GPUs, if they are free and the budget carries it.
    fn take(&mut self, on: &Allocation, limit: Watts) -> bool {
        if !self.has(on) || !self.carries(on, limit) {
            return false;
        }
        if self.view.budget.is_some() {
            self.committed = self.committed_with(on, limit);
            for share in on.shares() {
                let held = &mut self.held[share.node.index()];
                *held = held.with(share.count(), limit);
            }
        }
        self.free.take(on);
        true
    }

    /// Takes the best fit.
    fn take_best(&mut self, shape: Shape, limit: Watts) -> Option<Allocation> {
        let on = self.place(shape)?;
        self.take(&on, limit).then_some(on)
    }
}

/// Puts a schedule on GPUs: jobs that go on as they are keep theirs, the others take the best fit,
/// large ones first. One that does not fit gets fewer GPUs or waits, and at last waiting jobs take
/// what is still free. The genome says afterwards what came of it.
pub(super) fn reorder(problem: &Problem<'_, '_>, genome: &mut Genome) -> Vec<Option<Allocation>> {
    let mut room = problem.empty.clone();
    let mut places: Vec<Option<Allocation>> = vec![None; problem.items.len()];
    let mut others: Vec<(u32, usize, usize)> = Vec::new();
    for (at, item) in problem.items.iter().enumerate() {
        let Some(way) = genome.get(at) else { continue };
        match &item.present {
            Some((now, on)) if *now == way && room.take(on, item.ways[way].limit) => {
                places[at] = Some(on.clone());
            }
            _ => others.push((item.ways[way].shape.gpus, at, way)),
        }
    }
    others.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    for (_, at, way) in others {
        let ways = &problem.items[at].ways;
        let found = (0..=way).rev().find_map(|smaller| {
            let on = room.take_best(ways[smaller].shape, ways[smaller].limit)?;
            Some((smaller, on))
        });
        genome.set(at, found.as_ref().map(|(way, _)| *way));
        places[at] = found.map(|(_, on)| on);
    }
    for (at, item) in problem.items.iter().enumerate() {
        if room.free.is_full() {
            break;
        }
        if genome.get(at).is_some() {
            continue;
        }
        let first = std::iter::once(item.frugal).chain(0..item.ways.len());
        let found = first.into_iter().find_map(|way| {
            let on = room.take_best(item.ways[way].shape, item.ways[way].limit)?;
            Some((way, on))
        });
        if let Some((way, on)) = found {
            genome.set(at, Some(way));
            places[at] = Some(on);
        }
    }
    places
}

/// The best schedule as a plan: jobs that were planned so before keep their place in the plan,
/// as far as the others find theirs.
pub(super) fn settle(problem: &Problem<'_, '_>, best: &Genome) -> Placements {
    let mut genome = best.clone();
    let places = reorder(problem, &mut genome);
    let kept = keep_planned(problem, &genome, &places);
    let places = kept.unwrap_or(places);
    let mut placements: Placements = vec![None; problem.items.len()];
    for (at, on) in places.into_iter().enumerate() {
        if let (Some(way), Some(on)) = (genome.get(at), on) {
            placements[at] = Some(problem.items[at].ways[way].placed(on));
        }
    }
    placements
}

fn keep_planned(
    problem: &Problem<'_, '_>,
    genome: &Genome,
    places: &[Option<Allocation>],
) -> Option<Vec<Option<Allocation>>> {
    let mut room = problem.empty.clone();
    let mut kept: Vec<Option<Allocation>> = vec![None; problem.items.len()];
    let mut others = Vec::new();
    for (at, item) in problem.items.iter().enumerate() {
        let Some(way) = genome.get(at).map(|way| &item.ways[way]) else { continue };
        let planned = problem.view.state.job(item.id).planned.as_ref();
        match planned.filter(|planned| way.is_of(planned)).map(|planned| &planned.allocation) {
            Some(on) if room.take(on, way.limit) => kept[at] = Some(on.clone()),
            Some(_) => return None,
            None => others.push((at, way)),
        }
    }
    let mut homeless = Vec::new();
    for (at, way) in others {
        match places[at].as_ref().filter(|on| room.take(on, way.limit)) {
            Some(on) => kept[at] = Some(on.clone()),
            None => homeless.push((at, way)),
        }
    }
    for (at, way) in homeless {
        kept[at] = Some(room.take_best(way.shape, way.limit)?);
    }
    Some(kept)
}

/// The cluster with all of that placed.
pub(super) fn filled<'v, 'a>(problem: &Problem<'v, 'a>, placements: &Placements) -> Room<'v, 'a> {
    let mut room = problem.empty.clone();
    for placement in placements.iter().flatten() {
        room.free.take(&placement.allocation);
    }
    room
}

/// For when nothing fits below the budget at full power, even with all other nodes asleep: the
/// first job that some lower limit carries, at the highest such limit.
pub(super) fn at_any_limit(problem: &Problem<'_, '_>) -> Option<(usize, Placement)> {
    let state = problem.view.state;
    let cluster = state.cluster();
    let room = &problem.empty;
    for (at, item) in problem.items.iter().enumerate() {
        for way in &item.ways {
            let here = |node: &NodeId| {
                let right = cluster.node(*node).gpu_type == way.shape.gpu_type;
                let there = state.node(*node).is_ours();
                right && there && room.free.free_on(*node) >= way.shape.gpus
            };
            let places: Vec<Allocation> =
                if way.shape.gpus > cluster.largest_node(way.shape.gpu_type) {
                    room.place(way.shape).into_iter().collect()
                } else {
                    let nodes = cluster.node_ids().filter(here);
                    let part = |node| room.free.part_of(node, way.shape.gpus);
                    nodes.map(part).map(|share| Allocation::on(share.node, share.mask)).collect()
                };
            for limit in cluster.gpu_type(way.shape.gpu_type).limits_down() {
                if let Some(place) = places.iter().find(|place| room.carries(place, limit)) {
                    return Some((at, way.choice(limit).placed(place.clone())));
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::tests::Bench;
    use super::*;

    #[test]
    fn a_job_that_does_not_fit_gets_fewer_gpus_and_others_fill_the_rest() {
        let bench = Bench::new(2, 4, &[600.0, 300.0, 900.0]);
        bench.with(|problem| {
            let mut genome = Genome::waiting(3);
            let of =
                |gpus: u32| problem.items[0].ways.iter().position(|way| way.shape.gpus == gpus);
            for at in 0..2 {
                genome.set(at, of(3));
            }
            genome.set(2, of(4));
            let places = reorder(problem, &mut genome);
            let mut taken = [0_u64; 2];
            for (at, on) in places.iter().enumerate() {
                let gpus = genome.get(at).map(|way| problem.items[at].ways[way].shape.gpus);
                assert_eq!(on.as_ref().map(Allocation::count), gpus);
                for share in on.iter().flat_map(Allocation::shares) {
                    assert_eq!(taken[share.node.index()] & share.mask, 0, "a GPU given twice");
                    taken[share.node.index()] |= share.mask;
                }
            }
            assert_eq!(taken, [0xF, 0xF]);
            assert_eq!(genome.get(2), of(4));
        });
    }

    #[test]
    fn below_a_budget_that_carries_nothing_one_job_runs_at_a_lower_limit() {
        // Base 100 W, 20 W idle and 100 to 200 W for each busy GPU.
        let bench = Bench::new(1, 1, &[600.0, 300.0]).budget(270.0);
        bench.with(|problem| {
            let mut genome = Genome::waiting(2);
            assert!(reorder(problem, &mut genome).iter().all(Option::is_none));
            let (item, placement) = at_any_limit(problem).unwrap();
            assert_eq!(problem.items[item].id.0, 1);
            assert_eq!(placement.configuration.power_limit, Watts::new(150.0));
        });
    }
}
