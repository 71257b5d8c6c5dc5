//! One power limit for all GPUs, such that the budget carries all of them at work.
//!
//! What a site does that has a budget and no scheduler for it: every GPU is capped once, and jobs
//! are scheduled as if there were no budget.

use wattline_core::cluster::{Cluster, Node, NodeDraw};
use wattline_core::ids::GpuTypeId;
use wattline_core::policy::ClusterView;
use wattline_core::units::Watts;

/// The limit of each GPU type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UniformCap(Vec<Watts>);

impl UniformCap {
    /// The highest limits, each type as many steps below its default as the others in proportion,
    /// with which all nodes at work stay within the budget; the lowest ones if none do. Nothing
    /// without a budget.
    pub(crate) fn new(view: &ClusterView<'_>) -> Option<Self> {
        let budget = view.budget?;
        let cluster = view.state.cluster();
        let steps = |kind: usize| cluster.gpu_types()[kind].limits_down().count();
        let most = (0..cluster.gpu_types().len()).map(steps).max().unwrap_or(1);
        let at = |step: usize| {
            let limit = |kind: usize| {
                let of_kind = steps(kind);
                let step = step * (of_kind - 1) / (most - 1).max(1);
                let card = &cluster.gpu_types()[kind];
                card.limits_down().nth(step).unwrap_or(card.min_limit)
            };
            Self((0..cluster.gpu_types().len()).map(limit).collect())
        };
        let fits = |cap: &Self| cap.committed(cluster) <= budget;
        Some((0..most).map(at).find(fits).unwrap_or_else(|| at(most - 1)))
    }

    /// The limit of GPUs of a type.
    pub(crate) fn of(&self, kind: GpuTypeId) -> Watts {
        self.0[kind.index()]
    }

    /// What all nodes at work commit.
    fn committed(&self, cluster: &Cluster) -> Watts {
        let node = |node: &Node| match &node.draw {
            NodeDraw::Additive { base } => *base + self.of(node.gpu_type) * f64::from(node.gpus),
            NodeDraw::ByBusyGpus(table) => table[usize::from(node.gpus)].watts,
        };
        cluster.nodes().iter().map(node).fold(Watts::ZERO, |sum, watts| sum + watts)
    }
}
