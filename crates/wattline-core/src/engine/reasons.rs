//! Why things are as they are *now*, where what was decided then no longer explains it.

use super::Engine;
use crate::ids::NodeId;
use crate::plan::Reason;
use crate::power::{self, NodePower, TOLERANCE};
use crate::state::Target;
use crate::time::Timestamp;

impl Engine<'_> {
    /// Why a node is as it is. A node that was put to sleep for a budget goes on sleeping when the
    /// budget carries it again, until a job needs it: then the budget is no longer the reason.
    ///
    /// This is derived and not kept: budgets change with the clock, and a replayed journal, which
    /// has no clock, must come to the same state.
    #[must_use]
    pub fn node_reason(&self, id: NodeId, now: Timestamp) -> Reason {
        let (state, node) = (self.state(), self.state().node(id));
        if node.target != Target::Asleep || node.reason != Reason::NodeOverBudget {
            return node.reason;
        }
        let planned = node.planned.occupancy();
        let booting = power::committed(state.cluster(), id, NodePower::Booting, planned);
        let woken = state.planned_committed() - node.planned_committed() + booting;
        let carried = self.budget_at(now).is_none_or(|budget| woken <= budget + TOLERANCE);
        if carried { Reason::NodeNotNeeded } else { Reason::NodeOverBudget }
    }
}
