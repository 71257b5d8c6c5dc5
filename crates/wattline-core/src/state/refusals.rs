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
    /// The nodes that are left, if they are not all: in images of earlier versions. Now the job has
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) left: Option<Arc<NodeChoice>>,
}

/// Nodes that a job does not get as long as a rule of the cluster says so: a reservation, for
/// example.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Barred {
    /// Which. In rising order.
    pub(crate) nodes: Vec<NodeId>,
    /// Over how many nodes the job would run.
    pub(crate) over: u32,
    /// Which kind of rule.
    pub(crate) why: Refusal,
    /// No others could run it.
    pub(crate) everywhere: bool,
}

impl State {
    /// From now on rules keep the job from these nodes, and from no others. Says whether that is new.
    pub(crate) fn set_barred(
        &mut self,
        id: JobId,
        nodes: &[NodeId],
        over: u32,
        why: Refusal,
    ) -> bool {
        let known = |node: &NodeId| node.index() < self.cluster.nodes().len();
        let mut nodes: Vec<NodeId> = nodes.iter().copied().filter(known).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let over = over.max(1);
        let same = match self.job(id).barred() {
            None => nodes.is_empty(),
            Some(barred) => barred == (&nodes[..], over, why),
        };
        if same {
            return false;
        }
        let barred = Barred { nodes, over, why, everywhere: false };
        self.job_mut(id).barred = Some(Box::new(barred)).filter(|barred| !barred.nodes.is_empty());
        self.choose_again(id, over);
        self.touch_job(id);
        true
    }

    /// The job asks for something else: which nodes are left for it may be others now.
    pub(crate) fn renew_choice(&mut self, id: JobId) {
        let job = self.job(id);
        let left = job.left.as_ref().map_or(1, |left| left.count);
        let over = job.barred.as_ref().map_or(left, |barred| barred.over);
        self.choose_again(id, over);
    }

    fn choose_again(&mut self, id: JobId, over: u32) {
        self.choose_among_the_rest(id, over);
        let everywhere = !self.could_run_in(id, false);
        if let Some(barred) = &mut self.job_mut(id).barred {
            barred.everywhere = everywhere;
        }
    }

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
        let before = refusals.left.as_ref().map(|left| left.count);
        let left = self.job(id).left.as_ref().map(|left| left.count);
        self.choose_among_the_rest(id, left.or(before).unwrap_or(1));
        self.touch_job(id);
    }

    /// The job runs: what was refused is over. Nodes that it may not have yet stay barred, so that
    /// it is not moved there.
    pub(crate) fn end_refusals(&mut self, id: JobId) {
        let Some(refusals) = &mut self.job_mut(id).refusals else { return };
        refusals.in_a_row = 0;
        if refusals.nodes.is_empty() {
            self.job_mut(id).refusals = None;
            let over = self.job(id).left.as_ref().map_or(1, |left| left.count);
            self.choose_among_the_rest(id, over);
        }
    }

    /// Finds the nodes that are left for a job over so many nodes; whether they could run it.
    fn choose_among_the_rest(&mut self, id: JobId, over: u32) -> bool {
        let job = self.job(id);
        let refused = job.refusals.as_ref().map_or(&[][..], |refusals| &refusals.nodes);
        let barred = job.barred.as_ref().map_or(&[][..], |barred| &barred.nodes);
        let may = |node: &NodeId| {
            refused.binary_search_by_key(node, |(n, _)| *n).is_err()
                && barred.binary_search(node).is_err()
        };
        let left = if refused.is_empty() && barred.is_empty() {
            None
        } else if let Some(choice) = &job.job.nodes {
            let allowed = choice.allowed.iter().copied().filter(may).collect();
            Some(NodeChoice { allowed, ..(**choice).clone() })
        } else {
            let allowed = self.cluster.node_ids().filter(may).collect();
            Some(NodeChoice { count: over.max(1), required: Box::default(), allowed })
        };
        if let Some(refusals) = &mut self.job_mut(id).refusals {
            refusals.left = None;
        }
        self.job_mut(id).left = left.map(Arc::new);
        self.could_run_in(id, true)
    }

    /// Whether the nodes that are left for a job could run it if they were empty. `ours`: those alone
    /// that are neither lost nor closed.
    fn could_run_in(&self, id: JobId, ours: bool) -> bool {
        let job = self.job(id);
        job.left.as_ref().is_none_or(|left| {
            let required = left.required.iter().all(|node| left.allowed.contains(node));
            let shapes = self.menu(job.menu).iter();
            required && shapes.into_iter().any(|shape| self.could_run_on(*shape, left, ours))
        })
    }

    /// Whether these nodes could run a shape if they were empty.
    fn could_run_on(&self, shape: Shape, choice: &NodeChoice, ours: bool) -> bool {
        let each = shape.gpus / choice.count.max(1);
        let fits = |id: &&NodeId| {
            let node = self.cluster.node(**id);
            node.gpu_type == shape.gpu_type
                && u32::from(node.gpus) >= each
                && (!ours || self.node(**id).is_ours())
        };
        shape.gpus.is_multiple_of(choice.count.max(1))
            && choice.allowed.iter().filter(fits).count() >= choice.count as usize
    }
}
