//! CPUs and memory under any policy.
//!
//! Policies divide GPUs and know nothing of what jobs need beside them. What a policy puts where CPUs
//! or memory do not suffice is found by the same function as in the checker. Such a job is then
//! decided about before the policy, like a constrained job: on nodes where it fits, exactly counted; and the
//! policy plans the rest anew. Where every job fits, which is the usual case, nothing is done twice.

use std::collections::BTreeMap;
use wattline_core::host::Shortage;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::job::NodeChoice;
use wattline_core::plan::{Decision, Plan, Reason};
use wattline_core::policy::ClusterView;
use wattline_core::state::State;

/// How often a plan is made anew because CPUs or memory do not suffice. Each time all jobs that ask for
/// as much are taken out, so that a few kinds of such jobs are through after as many. What does not
/// fit then waits. Twice as many, and planning takes twice as long where the queue is full of them.
pub(super) const ROUNDS: usize = 4;

/// Of the jobs that are placed for their CPUs and memory, so many are looked at in one plan. The others
/// wait for the next one; with twice as many a plan takes longer by some 20 us each on 100 nodes.
pub(super) const MOST_PLACED: usize = 64;

/// Jobs that are placed exactly, and over how many nodes each runs.
pub(super) type Exact = BTreeMap<JobId, u32>;

/// Adds the jobs that a plan puts where they do not fit, and those that wait and ask for no less.
/// Says whether there are any.
pub(super) fn add_misfits(state: &State, plan: &Plan, exact: &mut Exact) -> bool {
    let misfits = state.host_misfits(&plan.jobs);
    let mut kinds: Vec<(wattline_core::host::HostRequest, u32)> = Vec::new();
    for (id, ..) in &misfits {
        let over = nodes_of(plan, *id);
        exact.insert(*id, over);
        if let Some(request) = state.job(*id).host
            && !kinds.iter().any(|(kind, _)| request.covers(kind))
        {
            kinds.push((request, over));
        }
    }
    if misfits.is_empty() {
        return false;
    }
    for (id, job) in state.unfinished_jobs() {
        let as_much = |kind: &&(wattline_core::host::HostRequest, u32)| {
            job.host.is_some_and(|request| request.covers(&kind.0))
        };
        if job.is_waiting()
            && job.held.is_none()
            && let Some((_, over)) = kinds.iter().find(as_much)
        {
            exact.entry(id).or_insert(*over);
        }
    }
    true
}

fn nodes_of(plan: &Plan, id: JobId) -> u32 {
    let of = |change: &&wattline_core::plan::JobChange| change.job == id;
    match plan.jobs.iter().find(of).map(|change| &change.decision) {
        Some(Decision::Run(placement)) => placement.configuration.nodes.max(1),
        _ => 1,
    }
}

/// Takes out of a plan what does not fit: such a job waits. One that was to move gives up what it has,
/// which may be another's in this plan, unless it may not be taken off.
pub(super) fn take_out(state: &State, plan: &mut Plan) {
    for (id, _, short) in state.host_misfits(&plan.jobs) {
        let Some(at) = plan.jobs.iter().position(|change| change.job == id) else { continue };
        if state.job(id).planned.is_none() && state.job(id).reason == Reason::NoHost(short) {
            plan.jobs.remove(at);
        } else {
            plan.jobs[at].decision = Decision::Wait;
            plan.jobs[at].reason = Reason::NoHost(short);
        }
    }
}

/// The nodes that a job may have: all, if it names none.
pub(super) fn choice(state: &State, exact: &Exact, id: JobId) -> Option<NodeChoice> {
    let named = state.job(id).nodes().map(|choice| (**choice).clone());
    let any = || {
        let allowed = state.cluster().node_ids().collect();
        let count = *exact.get(&id)?;
        Some(NodeChoice { count, required: Box::default(), allowed })
    };
    named.or_else(any)
}

/// What keeps a job from nodes that have GPUs enough for it free: where least is missing. None where
/// it is the GPUs.
pub(super) fn shortage(
    view: &ClusterView<'_>,
    id: JobId,
    choice: &NodeChoice,
    per_node: u32,
) -> Option<Shortage> {
    let state = view.state;
    state.job(id).host?;
    let mut least: Option<Shortage> = None;
    for node in &choice.allowed {
        let here = state.node(*node);
        let gpus = u32::from(state.cluster().node(*node).gpus);
        let busy = here.planned.mask().count_ones();
        if !here.is_ours() || gpus.saturating_sub(busy) < per_node {
            continue;
        }
        // Where it fits, something else is in its way.
        let short = state.host_fits(id, per_node, *node, here.planned.iter()).err()?;
        least = match least {
            Some(before) if missing(before) <= missing(short) => Some(before),
            _ => Some(short),
        };
    }
    least
}

fn missing(short: Shortage) -> u64 {
    match short {
        Shortage::Cpus { needed, free } => u64::from(needed.saturating_sub(free)),
        Shortage::Memory { needed_mib, free_mib } => needed_mib.saturating_sub(free_mib),
    }
}

/// Whether a job fits on a node when these jobs have left.
pub(super) fn fits(
    view: &ClusterView<'_>,
    id: JobId,
    per_node: u32,
    node: NodeId,
    leaving: &[JobId],
) -> bool {
    let residents = view.state.node(node).planned.iter();
    let stay = residents.filter(|resident| !leaving.contains(&resident.job));
    view.state.host_fits(id, per_node, node, stay).is_ok()
}
