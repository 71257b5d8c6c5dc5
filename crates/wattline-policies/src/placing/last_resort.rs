//! What keeps jobs going when the budget is tight.

use super::{Choice, Draft, FreeGpus, UniformCap};
use std::collections::BTreeSet;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::placement::{Allocation, Placement};
use wattline_core::plan::Reason;
use wattline_core::policy::ClusterView;
use wattline_core::state::Target;
use wattline_core::units::Watts;

/// Limits that were lowered for a smaller budget go up again as far as there is room; says which
/// and how far. What a job has in the draft is `planned`.
pub(crate) fn raise_limits<'p>(
    view: &ClusterView<'_>,
    draft: &mut Draft<'_, '_>,
    (capped, cap): (&mut BTreeSet<JobId>, Option<&UniformCap>),
    planned: impl Fn(JobId) -> Option<&'p Placement>,
) -> Vec<(JobId, Watts)> {
    let mut all_raised = Vec::new();
    capped.retain(|id| {
        let Some(placement) = planned(*id) else { return true };
        let now = placement.configuration.power_limit;
        let card = view.state.cluster().gpu_type(placement.configuration.gpu_type);
        let raised = card
            .limits_down()
            .take_while(|limit| *limit > now)
            .filter(|limit| {
                cap.is_none_or(|cap| *limit <= cap.of(placement.configuration.gpu_type))
            })
            .find(|limit| draft.can_raise(&placement.allocation, now, *limit));
        if let Some(limit) = raised {
            draft.limit(*id, placement, limit, Reason::LimitRaised);
            all_raised.push((*id, limit));
        }
        raised.unwrap_or(now) < card.default_limit
    });
    all_raised
}

/// A way to start a job that does not fit at full power.
pub(crate) struct Found {
    pub(crate) choice: Choice,
    pub(crate) place: Allocation,
    /// Nodes that sleep for it.
    pub(crate) asleep: Vec<NodeId>,
}

/// For when nothing runs that a plan decides about, and nothing could start at full power: the
/// highest limit that fits, and if none does, idle nodes sleep until one does. So no job waits for
/// ever.
pub(crate) fn start_at_any_limit(
    view: &ClusterView<'_>,
    draft: &mut Draft<'_, '_>,
    free: &mut FreeGpus,
    choices: &[Choice],
) -> Option<Found> {
    let cluster = view.state.cluster();
    let places: Vec<(Choice, Allocation)> = choices
        .iter()
        .filter_map(|choice| Some((*choice, free.place(cluster, choice.shape)?)))
        .collect();
    let highest = |draft: &Draft<'_, '_>, choice: &Choice, place: &Allocation| {
        let card = cluster.gpu_type(choice.shape.gpu_type);
        let limit = card.limits_down().find(|limit| draft.can_start(place, *limit))?;
        Some(Choice { limit, ..*choice })
    };
    for (choice, place) in &places {
        if let Some(choice) = highest(draft, choice, place) {
            return Some(Found { choice, place: place.clone(), asleep: Vec::new() });
        }
    }
    let could_sleep: Vec<NodeId> = cluster
        .node_ids()
        .filter(|node| !free.is_asleep(*node))
        .filter(|node| view.state.node(*node).is_ours())
        .filter(|node| free.free_on(*node) == u32::from(cluster.node(*node).gpus))
        .collect();
    for (choice, place) in places {
        let mut trial = draft.trial();
        let mut asleep = Vec::new();
        let needed = |node: NodeId| place.shares().any(|share| share.node == node);
        for node in could_sleep.iter().rev().copied().filter(|node| !needed(*node)) {
            trial.count_asleep(node);
            asleep.push(node);
            let Some(choice) = highest(&trial, &choice, &place) else { continue };
            for node in &asleep {
                draft.node_target(*node, Target::Asleep, Reason::NodeOverBudget);
                free.sleep(*node);
            }
            return Some(Found { choice, place, asleep });
        }
    }
    None
}
