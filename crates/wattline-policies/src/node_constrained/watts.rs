//! The watts for a constrained job: whether they are there, who could give them, how many to keep.

use super::rooms::{Rooms, Way, lost, may_move};
use crate::placing::Draft;
use std::collections::BTreeSet;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::placement::Placement;
use wattline_core::plan::{JobChange, Reason};
use wattline_core::policy::ClusterView;
use wattline_core::power::{self, NodePower, Occupancy, TOLERANCE};
use wattline_core::state::{Resident, Target};
use wattline_core::units::Watts;

/// Constrained jobs that run with a limit that was lowered for a smaller budget, with the highest that fits
/// now. Nobody else may plan them.
pub(super) fn raised(view: &ClusterView<'_>, constrained: &BTreeSet<JobId>) -> Vec<JobChange> {
    let mut draft = Draft::new(view);
    for id in constrained {
        let job = view.state.job(*id);
        let (Some(held), Some(planned)) = (&job.held, &job.planned) else { continue };
        let card = view.state.cluster().gpu_type(planned.configuration.gpu_type);
        let now = planned.configuration.power_limit;
        let not_ours = job.is_unwanted() || job.is_foreign();
        if not_ours || !held.same_but_limit(planned) || now >= card.default_limit {
            continue;
        }
        let mut higher = card.limits_down().take_while(|limit| *limit > now);
        if let Some(limit) = higher.find(|to| draft.can_raise(&planned.allocation, now, *to)) {
            draft.limit(*id, planned, limit, Reason::LimitRaised);
        }
    }
    draft.finish().jobs
}

/// How far one goes for the watts of a constrained job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effort {
    /// It takes what is free.
    Free,
    /// Idle nodes sleep for it, and if nobody else is there it starts at any limit that fits.
    Sleep,
    /// Jobs on other nodes leave for it as well.
    Leave,
}

/// A constrained job in its rooms, with what that takes.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) placement: Placement,
    pub(super) leaving: Vec<JobId>,
    pub(super) asleep: Vec<NodeId>,
}

/// A way to start the constrained job in these rooms below the budget.
pub(super) fn offer(
    view: &ClusterView<'_>,
    way: &Way,
    rooms: &Rooms,
    effort: Effort,
) -> Option<Offer> {
    let state = view.state;
    let placement = rooms.placement(view, way);
    let (place, limit) = (&placement.allocation, way.configuration.power_limit);
    let mut draft = Draft::new(view);
    let stop = |draft: &mut Draft<'_, '_>, id: JobId| {
        if let Some(planned) = &state.job(id).planned {
            draft.stop(id, planned, Reason::MadeRoom);
        }
    };
    rooms.leaving.iter().for_each(|id| stop(&mut draft, *id));
    let mut leaving = rooms.leaving.clone();
    let mut asleep = Vec::new();
    if draft.can_start(place, limit) {
        return Some(Offer { placement, leaving, asleep });
    }
    if effort == Effort::Free {
        return None;
    }
    let others = others(view, &leaving);
    let may_leave = |id: &JobId| effort == Effort::Leave && may_move(state.job(*id));
    let mut movable = others.iter().copied().filter(may_leave);
    loop {
        let stays = |r: &Resident| !leaving.contains(&r.job);
        let could_sleep = |id: &NodeId| {
            let node = state.node(*id);
            node.is_ours()
                && node.target == Target::Up
                && !rooms.nodes.contains(id)
                && !asleep.contains(id)
                && !node.planned.iter().any(stays)
        };
        let mut idle: Vec<NodeId> = state.cluster().node_ids().filter(could_sleep).collect();
        while let Some(node) = idle.pop() {
            draft.count_asleep(node);
            asleep.push(node);
            if draft.can_start(place, limit) {
                return Some(Offer { placement, leaving, asleep });
            }
        }
        let Some(next) = movable.next() else { break };
        stop(&mut draft, next);
        leaving.push(next);
        if draft.can_start(place, limit) {
            return Some(Offer { placement, leaving, asleep });
        }
    }
    if others.iter().any(|id| !leaving.contains(id)) {
        return None;
    }
    let card = state.cluster().gpu_type(way.configuration.gpu_type);
    let limit = card.limits_down().find(|limit| draft.can_start(place, *limit))?;
    let mut placement = placement.clone();
    placement.configuration.power_limit = limit;
    Some(Offer { placement, leaving, asleep })
}

/// Everybody who is planned anywhere and does not leave; those with least to lose first.
pub(super) fn others(view: &ClusterView<'_>, leaving: &[JobId]) -> Vec<JobId> {
    let nodes = view.state.cluster().node_ids();
    let here = nodes.flat_map(|id| view.state.node(id).planned.iter().map(|r| r.job));
    let all: BTreeSet<JobId> = here.filter(|id| !leaving.contains(id)).collect();
    let mut all: Vec<JobId> = all.into_iter().collect();
    all.sort_by(|a, b| lost(view, *a).total_cmp(&lost(view, *b)).then(a.cmp(b)));
    all
}

/// How many watts more these nodes take with the constrained job on them, once those who must have left; none
/// if they take less.
pub(super) fn added(view: &ClusterView<'_>, way: &Way, rooms: &Rooms) -> Watts {
    let of = |id: &NodeId| {
        let node = view.state.node(*id);
        let stay = node.planned.iter().filter(|r| !rooms.leaving.contains(&r.job));
        let held = stay.fold(Occupancy::default(), |sum, r| sum.with(r.mask.count_ones(), r.limit));
        let after = held.with(way.per_node, way.configuration.power_limit);
        let power = node.power_under(Target::Up);
        power::committed(view.state.cluster(), *id, power, after) - node.planned_committed()
    };
    rooms.nodes.iter().map(of).sum::<Watts>().max(Watts::ZERO)
}

/// Whether the budget carries the constrained job there at its lowest limit, with nobody else and all other
/// nodes asleep.
pub(super) fn carried(view: &ClusterView<'_>, way: &Way, rooms: &Rooms) -> bool {
    let Some(budget) = view.budget else { return true };
    let cluster = view.state.cluster();
    let lowest = cluster.gpu_type(way.configuration.gpu_type).min_limit;
    let alone = Occupancy::default().with(way.per_node, lowest);
    let of = |id: NodeId| {
        let node = view.state.node(id);
        if rooms.nodes.contains(&id) {
            power::committed(cluster, id, node.power_under(Target::Up), alone)
        } else if node.is_ours() {
            power::committed(cluster, id, NodePower::Asleep, Occupancy::default())
        } else {
            node.planned_committed()
        }
    };
    cluster.node_ids().map(of).sum::<Watts>() <= budget + TOLERANCE
}
