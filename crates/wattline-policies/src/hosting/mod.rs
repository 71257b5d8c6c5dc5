//! Guests under any policy: jobs that may have certain nodes only, so many of them, with as many
//! GPUs on each.
//!
//! Policies choose among nodes that are as good as each other and know nothing of guests. This one
//! stands before another policy, decides about guests itself, and lets the other plan the rest on a
//! state in which that is supposed to be done. Where every guest runs or may not be planned, the
//! other policy is asked as if this one were not there.
//!
//! Guests are taken by deadline, those without one after them by submission. One that finds its
//! nodes free, and watts for its cards at their default limit, starts. Idle nodes sleep for it if
//! that gives the watts. The first one that cannot start gets a reservation: the nodes that are
//! free for it soonest take nobody else, and watts are kept as they become free. Guests after it
//! may start beside that.
//!
//! **How long a guest waits.** A reservation alone would wait for whoever is there. So jobs that may
//! be moved make room when the guest has waited longer than both its own predicted run and five
//! times what the longest of their restarts takes; those that lose least go first, and no more of
//! them than needed. Where they can go on elsewhere, they do so in the same plan. From when it is
//! the first one waiting, a guest that the cluster and the budget carry thus waits no longer than
//!
//! ```text
//! max(predicted run, 5 × (save + load) of those who go)
//!   + the longer of: save of those who go, boot of the nodes
//!   + the time until jobs that may not be moved have left the nodes, or the watts, that it needs
//!   + the time until jobs that are just on their way there have arrived, and 10 s
//! ```
//!
//! and nobody new comes to these nodes while it waits. Guests are not moved, and never make room
//! for guests. Where nothing else is left and the watts are still too few, a guest starts at the
//! highest limit that fits; one that no limit carries waits without a reservation.

mod host;
mod reception;
mod rooms;
#[cfg(test)]
mod tests;
mod watts;

use host::{Exact, MOST_PLACED, ROUNDS};
use reception::{LOOK_AGAIN, Reception};
use std::collections::{BTreeMap, BTreeSet};
use wattline_core::ids::{JobId, NodeId};
use wattline_core::plan::{JobChange, NodeChange, Plan, Reason};
use wattline_core::policy::{Changes, ClusterView, Policy};
use wattline_core::state::{Phase, Target};

/// A policy, and what it does not know about guests.
pub(crate) struct Hosting {
    inner: Box<dyn Policy>,
    /// Jobs that are choosy about nodes, and not over.
    guests: BTreeSet<JobId>,
    /// The inner policy saw the state itself the last time, and not one that was supposed.
    direct: bool,
}

impl Hosting {
    /// Stands before that policy.
    pub(crate) fn before(inner: Box<dyn Policy>) -> Box<dyn Policy> {
        Box::new(Self { inner, guests: BTreeSet::new(), direct: true })
    }

    fn sync(&mut self, view: &ClusterView<'_>) {
        let state = view.state;
        let guest = |id: &JobId| state.job(*id).nodes().is_some();
        match view.changes {
            Changes::Everything => {
                self.guests = state.unfinished_jobs().map(|(id, _)| id).filter(guest).collect();
            }
            Changes::Only { jobs, .. } => {
                self.guests.extend(jobs.iter().copied().filter(guest));
                self.guests.retain(|id| state.job(*id).phase != Phase::Finished && guest(id));
            }
        }
    }
}

impl Policy for Hosting {
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

impl Hosting {
    /// A plan in which these jobs are placed as guests are, besides those who are.
    fn plan_with(&mut self, view: &ClusterView<'_>, exact: &Exact) -> Plan {
        let mut guests = std::borrow::Cow::Borrowed(&self.guests);
        if !exact.is_empty() {
            guests.to_mut().extend(exact.keys());
        }
        let nobody_asks = guests.iter().all(|id| !view.state.job(*id).is_plannable());
        let raised = watts::raised(view, &guests);
        if !self.inner.decides() || (nobody_asks && raised.is_empty()) {
            let seen = std::mem::replace(&mut self.direct, true);
            let changes = if seen { view.changes } else { Changes::Everything };
            return self.inner.plan(&ClusterView { changes, ..*view });
        }
        self.direct = false;
        let mut reception = Reception::open(view, raised);
        let mut placed = 0;
        for id in in_order(view, &guests) {
            placed += usize::from(exact.contains_key(&id));
            if placed <= MOST_PLACED || self.guests.contains(&id) {
                reception.receive(id, exact);
            }
        }
        reception.close(&guests);
        let rest = self.inner.plan(&reception.view());
        merge(view, &guests, reception, rest)
    }
}

/// Guests that a policy may decide about: by deadline, then by submission, weight and id.
fn in_order(view: &ClusterView<'_>, guests: &BTreeSet<JobId>) -> Vec<JobId> {
    let plannable = |id: &JobId| view.state.job(*id).is_plannable();
    let mut waiting: Vec<JobId> = guests.iter().copied().filter(plannable).collect();
    waiting.sort_by(|a, b| {
        let (x, y) = (&view.state.job(*a).job, &view.state.job(*b).job);
        let when = |job: &wattline_core::job::Job| {
            (job.deadline.is_none(), job.deadline.unwrap_or(job.submit))
        };
        when(x).cmp(&when(y)).then(y.weight.total_cmp(&x.weight)).then(a.cmp(b))
    });
    waiting
}

/// Guests first; about everybody else the inner policy has the last word.
fn merge(
    view: &ClusterView<'_>,
    guests: &BTreeSet<JobId>,
    reception: Reception<'_, '_>,
    rest: Plan,
) -> Plan {
    let (decided, supposed) = reception.finish();
    // What the inner policy gives up may be what a guest waits for, and nobody tells.
    let waits = |id: &JobId| {
        let job = supposed.job(*id);
        let asked = view.state.job(*id).is_plannable();
        asked && job.planned.is_none() && job.reason != Reason::NeverFits
    };
    let again = !rest.is_empty() && guests.iter().any(waits);
    let again = again.then(|| view.now + LOOK_AGAIN);
    let mut jobs: BTreeMap<JobId, JobChange> =
        decided.jobs.into_iter().map(|change| (change.job, change)).collect();
    let others = rest.jobs.into_iter().filter(|change| !guests.contains(&change.job));
    jobs.extend(others.map(|change| (change.job, change)));
    let mut nodes: BTreeMap<NodeId, NodeChange> =
        decided.nodes.into_iter().map(|change| (change.node, change)).collect();
    let has_guest = |node: NodeId| {
        supposed.node(node).planned.iter().any(|resident| guests.contains(&resident.job))
    };
    let others = rest.nodes.into_iter();
    let others = others.filter(|c| c.target == Target::Up || !has_guest(c.node));
    nodes.extend(others.map(|change| (change.node, change)));
    nodes.retain(|id, change| view.state.node(*id).target != change.target);
    Plan {
        based_on: rest.based_on,
        jobs: jobs.into_values().collect(),
        nodes: nodes.into_values().collect(),
        revisit: [rest.revisit, decided.revisit, again].into_iter().flatten().min(),
    }
}
