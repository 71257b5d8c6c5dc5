//! Node-constrained jobs under any policy: jobs that may have certain nodes only, so many of them, with as many
//! GPUs on each.
//!
//! Policies choose among nodes that are as good as each other and know nothing of constrained jobs. This one
//! stands before another policy, decides about constrained jobs itself, and lets the other plan the rest on a
//! state in which that is supposed to be done. Where every constrained job runs or may not be planned, the
//! other policy is asked as if this one were not there.
//!
//! Constrained jobs are taken by deadline, those without one after them by submission. One that finds its
//! nodes free, and watts for its cards at their default limit, starts. Idle nodes sleep for it if
//! that gives the watts. The first one that cannot start gets a reservation: the nodes that are
//! free for it soonest take nobody else, and watts are kept as they become free. Constrained jobs after it
//! may start beside that.
//!
//! **How long a constrained job waits.** A reservation alone would wait for whoever is there. So jobs that may
//! be moved make room when the constrained job has waited longer than both its own predicted run and five
//! times what the longest of their restarts takes; those that lose least go first, and no more of
//! them than needed. Where they can go on elsewhere, they do so in the same plan. From when it is
//! the first one waiting, a constrained job that the cluster and the budget carry thus waits no longer than
//!
//! ```text
//! max(predicted run, 5 × (save + load) of those who go)
//!   + the longer of: save of those who go, boot of the nodes
//!   + the time until jobs that may not be moved have left the nodes, or the watts, that it needs
//!   + the time until jobs that are just on their way there have arrived, and 10 s
//! ```
//!
//! and nobody new comes to these nodes while it waits. Constrained jobs are not moved, and never make room
//! for constrained jobs. Where nothing else is left and the watts are still too few, a constrained job starts at the
//! highest limit that fits; one that no limit carries waits without a reservation.

mod host;
mod planner;
mod rooms;
#[cfg(test)]
mod tests;
mod watts;

use host::{Exact, MOST_PLACED, ROUNDS};
use planner::{ConstrainedPlanner, PLAN_AGAIN_AFTER};
use std::collections::{BTreeMap, BTreeSet};
use wattline_core::ids::{JobId, NodeId};
use wattline_core::plan::{JobChange, NodeChange, Plan, Reason};
use wattline_core::policy::{Changes, ClusterView, Policy};
use wattline_core::state::{Phase, Target};

/// A policy, and what it does not know about constrained jobs.
pub(crate) struct NodeConstrained {
    inner: Box<dyn Policy>,
    /// Jobs that are choosy about nodes, and not over.
    constrained: BTreeSet<JobId>,
    /// The inner policy saw the state itself the last time, and not one that was supposed.
    direct: bool,
}

impl NodeConstrained {
    /// Stands before that policy.
    pub(crate) fn before(inner: Box<dyn Policy>) -> Box<dyn Policy> {
        Box::new(Self { inner, constrained: BTreeSet::new(), direct: true })
    }

    fn sync(&mut self, view: &ClusterView<'_>) {
        let state = view.state;
        let constrained_job = |id: &JobId| state.job(*id).nodes().is_some();
        match view.changes {
            Changes::Everything => {
                self.constrained =
                    state.unfinished_jobs().map(|(id, _)| id).filter(constrained_job).collect();
            }
            Changes::Only { jobs, .. } => {
                self.constrained.extend(jobs.iter().copied().filter(constrained_job));
                self.constrained
                    .retain(|id| state.job(*id).phase != Phase::Finished && constrained_job(id));
            }
        }
    }
}

impl Policy for NodeConstrained {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn decides(&self) -> bool {
        self.inner.decides()
    }

    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        self.sync(view);
        let mut exact = Exact::new();
        let mut plan = self.plan_with(view, &exact);
        // Without figures of any node this is the only round.
        for _ in 1..ROUNDS {
            if !host::add_misfits(view.state, &plan, &mut exact) {
                return plan;
            }
            plan = self.plan_with(&ClusterView { changes: Changes::Everything, ..*view }, &exact);
        }
        host::take_out(view.state, &mut plan);
        plan
    }
}

impl NodeConstrained {
    /// A plan in which these jobs are placed as constrained jobs are, besides those who are.
    fn plan_with(&mut self, view: &ClusterView<'_>, exact: &Exact) -> Plan {
        let mut constrained = std::borrow::Cow::Borrowed(&self.constrained);
        if !exact.is_empty() {
            constrained.to_mut().extend(exact.keys());
        }
        let nobody_asks = constrained.iter().all(|id| !view.state.job(*id).is_plannable());
        let raised = watts::raised(view, &constrained);
        if !self.inner.decides() || (nobody_asks && raised.is_empty()) {
            let seen = std::mem::replace(&mut self.direct, true);
            let changes = if seen { view.changes } else { Changes::Everything };
            return self.inner.plan(&ClusterView { changes, ..*view });
        }
        self.direct = false;
        let mut planner = ConstrainedPlanner::open(view, raised);
        let mut placed = 0;
        for id in in_order(view, &constrained) {
            placed += usize::from(exact.contains_key(&id));
            if placed <= MOST_PLACED || self.constrained.contains(&id) {
                planner.plan_job(id, exact);
            }
        }
        planner.close(&constrained);
        let rest = self.inner.plan(&planner.view());
        merge(view, &constrained, planner, rest)
    }
}

/// Constrained jobs that a policy may decide about: by deadline, then by submission, weight and id.
fn in_order(view: &ClusterView<'_>, constrained: &BTreeSet<JobId>) -> Vec<JobId> {
    let plannable = |id: &JobId| view.state.job(*id).is_plannable();
    let mut waiting: Vec<JobId> = constrained.iter().copied().filter(plannable).collect();
    waiting.sort_by(|a, b| {
        let (x, y) = (&view.state.job(*a).job, &view.state.job(*b).job);
        let when = |job: &wattline_core::job::Job| {
            (job.deadline.is_none(), job.deadline.unwrap_or(job.submit))
        };
        when(x).cmp(&when(y)).then(y.weight.total_cmp(&x.weight)).then(a.cmp(b))
    });
    waiting
}

/// Constrained jobs first; about everybody else the inner policy has the last word.
fn merge(
    view: &ClusterView<'_>,
    constrained: &BTreeSet<JobId>,
    planner: ConstrainedPlanner<'_, '_>,
    rest: Plan,
) -> Plan {
    let (decided, supposed) = planner.finish();
    // What the inner policy gives up may be what a constrained job waits for, and nobody tells.
    let waits = |id: &JobId| {
        let job = supposed.job(*id);
        let asked = view.state.job(*id).is_plannable();
        asked && job.planned.is_none() && job.reason != Reason::NeverFits
    };
    let again = !rest.is_empty() && constrained.iter().any(waits);
    let again = again.then(|| view.now + PLAN_AGAIN_AFTER);
    let mut jobs: BTreeMap<JobId, JobChange> =
        decided.jobs.into_iter().map(|change| (change.job, change)).collect();
    let others = rest.jobs.into_iter().filter(|change| !constrained.contains(&change.job));
    jobs.extend(others.map(|change| (change.job, change)));
    let mut nodes: BTreeMap<NodeId, NodeChange> =
        decided.nodes.into_iter().map(|change| (change.node, change)).collect();
    let has_constrained = |node: NodeId| {
        supposed.node(node).planned.iter().any(|resident| constrained.contains(&resident.job))
    };
    let others = rest.nodes.into_iter();
    let others = others.filter(|c| c.target == Target::Up || !has_constrained(c.node));
    nodes.extend(others.map(|change| (change.node, change)));
    nodes.retain(|id, change| view.state.node(*id).target != change.target);
    Plan {
        based_on: rest.based_on,
        jobs: jobs.into_values().collect(),
        nodes: nodes.into_values().collect(),
        revisit: [rest.revisit, decided.revisit, again].into_iter().flatten().min(),
    }
}
