//! Which nodes are up.

use super::Sleep;
use super::problem::{Placements, Problem};
use wattline_core::ids::NodeId;
use wattline_core::plan::{NodeChange, Plan, Reason};
use wattline_core::power::{self, NodePower, Occupancy};
use wattline_core::state::Target;
use wattline_core::units::{Joules, Seconds, Watts};

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
    let mut targets: Vec<(Target, Reason)> = cluster
        .node_ids()
        .map(|id| (view.state.node(id).target, view.state.node(id).reason))
        .collect();
    let mut grown = vec![false; targets.len()];
    // Nodes that are up or coming serve the wanted GPUs before nodes that sleep.
    let mut ids: Vec<NodeId> = cluster.node_ids().collect();
    ids.sort_by_key(|id| match view.state.node(*id).power {
        NodePower::Up => 0,
        NodePower::Booting => 1,
        _ => 2,
    });
    for id in ids {
        let node = view.state.node(id);
        let here = &mut targets[id.index()];
        if node.power == NodePower::Down {
            continue;
        }
        if held[id.index()].busy > 0 {
            if here.0 == Target::Asleep {
                *here = (Target::Up, Reason::NodeNeeded);
            }
            continue;
        }
        let kind = cluster.node(id);
        let want = &mut wanted[kind.gpu_type.index()];
        let needed = *want >= u32::from(kind.gpus);
        if needed {
            grown[id.index()] = true;
            *want -= u32::from(kind.gpus);
        }
        match here.0 {
            Target::Asleep if needed => *here = (Target::Up, Reason::NodeNeeded),
            Target::Up if !needed => {
                let idle_since = if node.planned.is_empty() { node.idle_since } else { view.now };
                match pause(problem, id).map(|after| idle_since + after) {
                    Some(at) if at <= view.now => *here = (Target::Asleep, Reason::NodeIdle),
                    Some(at) => plan.revisit = Some(plan.revisit.map_or(at, |t| t.min(at))),
                    None => {}
                }
            }
            _ => {}
        }
    }
    keep_budget(problem, &held, &grown, &mut targets);
    for id in cluster.node_ids() {
        let (target, reason) = targets[id.index()];
        if target != view.state.node(id).target {
            plan.nodes.push(NodeChange { node: id, target, reason });
        }
    }
}

/// Idle nodes sleep, the last first, until the budget carries the rest.
fn keep_budget(
    problem: &Problem<'_, '_>,
    held: &[Occupancy],
    grown: &[bool],
    targets: &mut [(Target, Reason)],
) {
    let view = problem.view;
    let cluster = view.state.cluster();
    let committed = |id: NodeId, target: Target| {
        let power = view.state.node(id).power_under(target);
        power::committed(cluster, id, power, held[id.index()]).get()
    };
    let mut sum: f64 = cluster.node_ids().map(|id| committed(id, targets[id.index()].0)).sum();
    // Nodes that are only wanted for growth are the last to go.
    let mut ids: Vec<NodeId> = cluster.node_ids().collect();
    ids.sort_by_key(|id| !grown[id.index()]);
    while sum > problem.budget
        && let Some(id) = ids.pop()
    {
        let idle = held[id.index()].busy == 0 && view.state.node(id).power != NodePower::Down;
        if idle && targets[id.index()].0 == Target::Up {
            sum += committed(id, Target::Asleep) - committed(id, Target::Up);
            targets[id.index()] = (Target::Asleep, Reason::NodeOverBudget);
        }
    }
}

/// How long a node stays up for nobody.
fn pause(problem: &Problem<'_, '_>, id: NodeId) -> Option<Seconds> {
    match problem.options.sleep {
        Sleep::Never => None,
        Sleep::After(after) => Some(after),
        Sleep::WhenItPays => {
            let cluster = problem.view.state.cluster();
            let node = cluster.node(id);
            let none = Occupancy::default();
            let idle: Watts = power::committed(cluster, id, NodePower::Up, none);
            let boot: Joules = node.boot * node.boot_time + idle * node.shutdown_time;
            let saved = (idle - node.sleep).get();
            (saved > 0.0).then(|| Seconds::new(boot.get() / saved))
        }
    }
}
