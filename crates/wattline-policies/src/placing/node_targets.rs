//! Which nodes are up and which sleep, given who is where.
//!
//! For policies that plan the whole cluster anew; `held` is what each node holds in the plan.

use wattline_core::ids::NodeId;
use wattline_core::plan::{NodeChange, Plan, Reason};
use wattline_core::policy::ClusterView;
use wattline_core::power::{self, NodePower, Occupancy};
use wattline_core::state::Target;
use wattline_core::units::{Seconds, Watts};

/// Nodes that jobs need are up. Of the others, those sleep that were idle for long enough, and as
/// many more as the budget does not carry.
pub(crate) fn say_nodes(
    view: &ClusterView<'_>,
    held: &[Occupancy],
    sleep_after: Option<Seconds>,
    plan: &mut Plan,
) {
    let mut targets = NodeTargets::new(view);
    for id in view.state.cluster().node_ids() {
        match held[id.index()].busy {
            0 => targets.idle(id, sleep_after, plan),
            _ => targets.needed(id),
        }
    }
    targets.keep_budget(held, view.state.cluster().node_ids().collect());
    targets.say(plan);
}

/// What every node is to be, to begin with what it was to be before. Nodes that are lost stay as
/// they are.
pub(crate) struct NodeTargets<'a, 'v> {
    view: &'a ClusterView<'v>,
    targets: Vec<(Target, Reason)>,
}

impl<'a, 'v> NodeTargets<'a, 'v> {
    pub(crate) fn new(view: &'a ClusterView<'v>) -> Self {
        let nodes = view.state.cluster().node_ids().map(|id| view.state.node(id));
        Self { view, targets: nodes.map(|node| (node.target, node.reason)).collect() }
    }

    /// The node is up, woken if it must be.
    pub(crate) fn needed(&mut self, id: NodeId) {
        let here = &mut self.targets[id.index()];
        if here.0 == Target::Asleep && self.view.state.node(id).is_ours() {
            *here = (Target::Up, Reason::NodeNeeded);
        }
    }

    /// Nobody needs the node: it sleeps if that has been so for long enough, and otherwise the
    /// plan is looked at again when it will have been.
    pub(crate) fn idle(&mut self, id: NodeId, sleep_after: Option<Seconds>, plan: &mut Plan) {
        let node = self.view.state.node(id);
        let here = &mut self.targets[id.index()];
        if here.0 == Target::Asleep || !node.is_ours() {
            return;
        }
        let now = self.view.now;
        let idle_since = if node.planned.is_empty() { node.idle_since } else { now };
        match sleep_after.map(|after| idle_since + after) {
            Some(at) if at <= now => *here = (Target::Asleep, Reason::NodeIdle),
            Some(at) => plan.revisit = Some(plan.revisit.map_or(at, |t| t.min(at))),
            None => {}
        }
    }

    /// Idle nodes sleep, the last of `order` first, until the budget carries the rest.
    pub(crate) fn keep_budget(&mut self, held: &[Occupancy], mut order: Vec<NodeId>) {
        let state = self.view.state;
        let cluster = state.cluster();
        let committed = |id: NodeId, target: Target| {
            let power = state.node(id).power_under(target);
            power::committed(cluster, id, power, held[id.index()]).get()
        };
        let of = |id: NodeId| committed(id, self.targets[id.index()].0);
        let mut sum: f64 = cluster.node_ids().map(of).sum();
        let budget = self.view.budget.map_or(f64::INFINITY, Watts::get);
        while sum > budget
            && let Some(id) = order.pop()
        {
            let idle = held[id.index()].busy == 0 && state.node(id).is_ours();
            if idle && self.targets[id.index()].0 == Target::Up {
                sum += committed(id, Target::Asleep) - committed(id, Target::Up);
                self.targets[id.index()] = (Target::Asleep, Reason::NodeOverBudget);
            }
        }
    }

    /// What is new, into the plan.
    pub(crate) fn say(self, plan: &mut Plan) {
        let state = self.view.state;
        for (node, (target, reason)) in state.cluster().node_ids().zip(self.targets) {
            if target != state.node(node).target {
                plan.nodes.push(NodeChange { node, target, reason });
            }
        }
    }
}

/// After how long an idle node has drawn what sleeping and booting again costs; `None` where sleep
/// saves nothing.
pub(crate) fn pays_after(view: &ClusterView<'_>, id: NodeId) -> Option<Seconds> {
    let cluster = view.state.cluster();
    let node = cluster.node(id);
    let idle = power::committed(cluster, id, NodePower::Up, Occupancy::default());
    let boot = node.boot * node.boot_time + idle * node.shutdown_time;
    let saved = (idle - node.sleep).get();
    (saved > 0.0).then(|| Seconds::new(boot.get() / saved))
}
