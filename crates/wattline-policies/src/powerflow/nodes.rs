//! Which nodes are up.

use super::Sleep;
use super::problem::{Placements, Problem};
use crate::placing::{NodeTargets, pays_after};
use wattline_core::ids::NodeId;
use wattline_core::plan::Plan;
use wattline_core::power::NodePower;
use wattline_core::units::Seconds;

/// Nodes that jobs need are up, and as many more as running jobs would grow onto (`wanted` GPUs by
/// type). Of the others, those sleep that were idle for long enough, and as many more as the budget
/// does not carry.
pub(super) fn say_nodes(
    problem: &Problem<'_, '_>,
    placements: &Placements,
    wanted: &[u32],
    plan: &mut Plan,
) {
    let view = problem.view;
    let cluster = view.state.cluster();
    let held = problem.held(placements);
    let mut wanted = wanted.to_vec();
    let mut targets = NodeTargets::new(view);
    let mut grown = vec![false; held.len()];
    // Nodes that are up or coming serve the wanted GPUs before nodes that sleep.
    let mut ids: Vec<NodeId> = cluster.node_ids().collect();
    ids.sort_by_key(|id| match view.state.node(*id).power {
        NodePower::Up => 0,
        NodePower::Booting => 1,
        _ => 2,
    });
    for id in ids {
        if !view.state.node(id).is_ours() {
            continue;
        }
        if held[id.index()].busy > 0 {
            targets.needed(id);
            continue;
        }
        let kind = cluster.node(id);
        let want = &mut wanted[kind.gpu_type.index()];
        if *want >= u32::from(kind.gpus) {
            *want -= u32::from(kind.gpus);
            grown[id.index()] = true;
            targets.needed(id);
        } else {
            targets.idle(id, pause(problem, id), plan);
        }
    }
    // Nodes that are only wanted for growth are the last to go.
    let mut order: Vec<NodeId> = cluster.node_ids().collect();
    order.sort_by_key(|id| !grown[id.index()]);
    targets.keep_budget(&held, order);
    targets.say(plan);
}

/// How long a node stays up for nobody.
fn pause(problem: &Problem<'_, '_>, id: NodeId) -> Option<Seconds> {
    match problem.options.sleep {
        Sleep::Never => None,
        Sleep::After(after) => Some(after),
        Sleep::WhenItPays => pays_after(problem.view, id),
    }
}
