//! What a policy sees and what it must do.

use crate::effort::Effort;
use crate::ids::{JobId, NodeId, PlanId};
use crate::plan::Plan;
use crate::predictor::Predictor;
use crate::prices::Prices;
use crate::state::State;
use crate::time::Timestamp;
use crate::units::Watts;

/// What changed since the policy's last plan.
#[derive(Clone, Copy, Debug)]
pub enum Changes<'a> {
    /// Unknown: look at everything. The first view of a policy, and after a refused plan.
    Everything,
    /// Only these things may differ from what the policy's last plan left behind.
    Only {
        /// Jobs, each once.
        jobs: &'a [JobId],
        /// Nodes, each once.
        nodes: &'a [NodeId],
    },
}

/// An immutable snapshot: all a policy may know.
#[derive(Clone, Copy)]
pub struct ClusterView<'a> {
    /// The time.
    pub now: Timestamp,
    /// Jobs, nodes, and what the previous plan wants for them.
    pub state: &'a State,
    /// Committed power must stay at or below this; `None`: no budget.
    pub budget: Option<Watts>,
    /// Energy prices.
    pub prices: &'a Prices,
    /// Time and power of configurations.
    pub predictor: &'a dyn Predictor,
    /// How much of its usual work the policy may do.
    pub effort: Effort,
    /// The previous plan.
    pub plan: PlanId,
    /// What changed since.
    pub changes: Changes<'a>,
}

/// Decides who runs where and how.
///
/// A plan is a function of the view alone. A policy may keep an index that it brings up to date
/// from the view's changes, so that an event costs what changed and not what waits; planning with
/// the index must equal planning from [`Changes::Everything`].
pub trait Policy: Send {
    /// Its name, as users write it.
    fn name(&self) -> &str;

    /// The next plan.
    fn plan(&mut self, view: &ClusterView<'_>) -> Plan;

    /// Whether it decides anything. Where nothing is decided, no budget is kept either: somebody
    /// else runs the cluster.
    fn decides(&self) -> bool {
        true
    }
}
