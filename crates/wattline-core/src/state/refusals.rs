//! Where a job is not tried again before when, because the cluster refused to start it there.
//!
//! A refusal names nodes, or is about the job wherever it would run. Of a job that is refused by some
//! nodes, the others are tried at once. Each refusal in a row makes the pause longer; a start ends
//! the row. A refusal for another reason begins a new row: what stood in the way before has gone.

use super::State;
use crate::cluster::Shape;
use crate::ids::{JobId, NodeId};
use crate::job::NodeChoice;
use crate::plan::Refusal;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The refusals of one job that still count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Refusals {
    /// Why, the last time.
    pub(crate) reason: Refusal,
    /// How many there were for this reason since it last ran.
    pub(crate) in_a_row: u32,
    /// Nodes that it does not get before a time. In rising order.
    pub(crate) nodes: Vec<(NodeId, Timestamp)>,
    /// The nodes that are left, if they are not all.
    pub(crate) left: Option<Arc<NodeChoice>>,
}

impl State {
    /// Counts a refusal; says how many there were in a row for this reason.
    pub(crate) fn count_refusal(&mut self, id: JobId, reason: Refusal) -> u32 {
        let new = || Refusals { reason, in_a_row: 0, nodes: Vec::new(), left: None };
        let refusals = self.job_mut(id).refusals.get_or_insert_with(|| Box::new(new()));
        if refusals.reason != reason {
            (refusals.reason, refusals.in_a_row) = (reason, 0);
        }
        refusals.in_a_row += 1;
        refusals.in_a_row
    }

    /// The job does not get these nodes before then. Says whether others are left that could run it.
    pub(crate) fn bar(&mut self, id: JobId, nodes: &[NodeId], until: Timestamp, over: u32) -> bool {
        let Some(refusals) = &mut self.job_mut(id).refusals else { return false };
        for node in nodes {
            match refusals.nodes.binary_search_by_key(node, |(node, _)| *node) {
                Ok(at) => refusals.nodes[at].1 = refusals.nodes[at].1.max(until),
                Err(at) => refusals.nodes.insert(at, (*node, until)),
            }
        }
        self.choose_among_the_rest(id, over)
    }

    /// Forgets the bars that have expired.
    pub(crate) fn lift_bars(&mut self, id: JobId, now: Timestamp) {
        let Some(refusals) = self.jobs.get_mut(id).and_then(|job| job.refusals.as_mut()) else {
            return;
        };
        let before = refusals.nodes.len();
        refusals.nodes.retain(|(_, until)| *until > now);
        if refusals.nodes.len() == before {
            return;
        }
        let over = refusals.left.as_ref().map_or(1, |left| left.count);
        self.choose_among_the_rest(id, over);
        self.touch_job(id);
    }

    /// The job runs: what was refused is over. Nodes that it may not have yet stay barred, so that
    /// it is not moved there.
    pub(crate) fn end_refusals(&mut self, id: JobId) {
        let Some(refusals) = &mut self.job_mut(id).refusals else { return };
        refusals.in_a_row = 0;
        if refusals.nodes.is_empty() {
            self.job_mut(id).refusals = None;
        }
    }

    /// Finds the nodes that are left for a job over so many nodes; whether they could run it.
    fn choose_among_the_rest(&mut self, id: JobId, over: u32) -> bool {
        let job = self.job(id);
        let Some(refusals) = &job.refusals else { return true };
        let may = |node: &NodeId| refusals.nodes.binary_search_by_key(node, |(n, _)| *n).is_err();
        let left = if refusals.nodes.is_empty() {
            None
        } else if let Some(choice) = &job.job.nodes {
            let allowed = choice.allowed.iter().copied().filter(may).collect();
            Some(NodeChoice { allowed, ..(**choice).clone() })
        } else {
            let allowed = self.cluster.node_ids().filter(may).collect();
            Some(NodeChoice { count: over.max(1), required: Box::default(), allowed })
        };
        let could = left.as_ref().is_none_or(|left| {
            let required = left.required.iter().all(|node| left.allowed.contains(node));
            let shapes = self.menu(job.menu).iter();
            required && shapes.into_iter().any(|shape| self.could_run_on(*shape, left))
        });
        if let Some(refusals) = &mut self.job_mut(id).refusals {
            refusals.left = left.map(Arc::new);
        }
        could
    }

    /// Whether these nodes, as far as they are ours, could run a shape if they were empty.
    fn could_run_on(&self, shape: Shape, choice: &NodeChoice) -> bool {
        let each = shape.gpus / choice.count.max(1);
        let fits = |id: &&NodeId| {
            let node = self.cluster.node(**id);
            node.gpu_type == shape.gpu_type
                && u32::from(node.gpus) >= each
                && self.node(**id).is_ours()
        };
        shape.gpus.is_multiple_of(choice.count.max(1))
            && choice.allowed.iter().filter(fits).count() >= choice.count as usize
    }
}
