//! Which nodes are up and which sleep, given who is where.

use wattline_core::ids::NodeId;
use wattline_core::plan::{NodeChange, Plan, Reason};
use wattline_core::policy::ClusterView;
use wattline_core::power::{self, NodePower, Occupancy};
use wattline_core::state::Target;
use wattline_core::units::{Seconds, Watts};

/// Nodes that jobs need are up. Of the others, those sleep that were idle for long enough, and as
/// many more as the budget does not carry.
///
/// For policies that plan the whole cluster anew; `held` is what each node holds in the plan.
pub(crate) fn say_nodes(
    view: &ClusterView<'_>,
    held: &[Occupancy],
    sleep_after: Option<Seconds>,
    plan: &mut Plan,
) {
    let cluster = view.state.cluster();
    let mut targets: Vec<(Target, Reason)> = Vec::with_capacity(held.len());
    for id in cluster.node_ids() {
        let node = view.state.node(id);
        let mut target = (node.target, node.reason);
        let lost = node.power == NodePower::Down;
        match (node.target, held[id.index()].busy) {
            (Target::Asleep, 1..) if !lost => target = (Target::Up, Reason::NodeNeeded),
            (Target::Up, 0) if !lost => {
                let idle_since = if node.planned.is_empty() { node.idle_since } else { view.now };
                match sleep_after.map(|after| idle_since + after) {
                    Some(at) if at <= view.now => target = (Target::Asleep, Reason::NodeIdle),
                    Some(at) => plan.revisit = Some(plan.revisit.map_or(at, |t| t.min(at))),
                    None => {}
                }
            }
            _ => {}
        }
        targets.push(target);
    }
    let committed = |id: NodeId, target: Target| {
        let power = view.state.node(id).power_under(target);
        power::committed(cluster, id, power, held[id.index()]).get()
    };
    let mut sum: f64 = cluster.node_ids().map(|id| committed(id, targets[id.index()].0)).sum();
    let mut ids: Vec<NodeId> = cluster.node_ids().collect();
    let budget = view.budget.map_or(f64::INFINITY, Watts::get);
    while sum > budget
        && let Some(id) = ids.pop()
    {
        let idle = held[id.index()].busy == 0 && view.state.node(id).power != NodePower::Down;
        if idle && targets[id.index()].0 == Target::Up {
            sum += committed(id, Target::Asleep) - committed(id, Target::Up);
            targets[id.index()] = (Target::Asleep, Reason::NodeOverBudget);
        }
    }
    for id in cluster.node_ids() {
        let (target, reason) = targets[id.index()];
        if target != view.state.node(id).target {
            plan.nodes.push(NodeChange { node: id, target, reason });
        }
    }
}
