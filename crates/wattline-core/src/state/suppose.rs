//! States that are only supposed: for policies that let another policy plan what they leave to it.

use super::{State, Target};
use crate::ids::{JobId, NodeId};
use crate::plan::{Decision, JobChange, Reason};
use crate::power::NodePower;
use crate::time::Timestamp;

impl State {
    /// As if this were planned.
    pub fn suppose(&mut self, now: Timestamp, change: &JobChange) {
        let placement = match &change.decision {
            Decision::Wait => None,
            Decision::Run(placement) => Some(placement.clone()),
        };
        for share in placement.iter().flat_map(|p| p.allocation.shares()) {
            if self.node(share.node).target == Target::Asleep {
                self.set_target(share.node, Target::Up, Reason::NodeNeeded);
            }
        }
        self.set_planned(change.job, placement, change.reason, now);
    }

    /// As if nobody could plan this job: what is planned for it stays, and it does not come in if
    /// nothing is.
    pub fn suppose_settled(&mut self, id: JobId) {
        let job = self.job_mut(id);
        if job.planned.is_some() {
            job.stays = true;
        } else {
            job.on_hold = true;
        }
    }

    /// As if this node took no more jobs.
    pub fn suppose_closed(&mut self, id: NodeId) {
        self.set_power(id, NodePower::Closed);
        self.set_target(id, Target::Up, Reason::NodeClosed);
    }
}
