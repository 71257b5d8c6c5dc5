//! The checker: no plan reaches the cluster without passing here, whoever wrote it.
//!
//! It knows nothing of any policy. Its work is in proportion to what a plan changes; [`audit`]
//! looks at everything and is what tests compare it with.

use crate::host::Shortage;
use crate::ids::{GpuId, JobId, NodeId, PlanId};
use crate::job::Elasticity;
use crate::placement::{Placement, mask_of};
use crate::plan::{Decision, JobChange, Plan};
use crate::power::{self, TOLERANCE};
use crate::shed::Shed;
use crate::state::{JobState, Phase, Resident, State, Target};
use crate::units::Watts;
use smallvec::SmallVec;
use thiserror::Error;

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Violation {
    /// Made for another state.
    #[error("the plan was made for {based_on}, the present one is {current}")]
    Stale {
        /// What it was made for.
        based_on: PlanId,
        /// What is in force.
        current: PlanId,
    },
    /// No such job, or it is over, or it is held back.
    #[error("{0} cannot be planned: it is unknown, finished or held back")]
    NotPlannable(JobId),
    /// A job that may not be taken off its GPUs.
    #[error("{0} may not be taken off its GPUs: only its power limit can change")]
    Pinned(JobId),
    /// A job named twice.
    #[error("{0} is named twice")]
    JobTwice(JobId),
    /// A node named twice.
    #[error("{0} is named twice")]
    NodeTwice(NodeId),
    /// No such node.
    #[error("{0} does not exist")]
    UnknownNode(NodeId),
    /// A GPU given to two jobs.
    #[error("{gpu} is given to {first} and to {second}")]
    GpuTwice {
        /// Which GPU.
        gpu: GpuId,
        /// One job.
        first: JobId,
        /// The other.
        second: JobId,
    },
    /// A GPU that the node does not have.
    #[error("{job}: {gpu} does not exist")]
    UnknownGpu {
        /// For which job.
        job: JobId,
        /// Which.
        gpu: GpuId,
    },
    /// Not all GPUs of the configuration, or too many, or on another number of nodes.
    #[error(
        "{job}: the configuration says {gpus} GPUs on {nodes} nodes, the allocation has {given} on {given_nodes}"
    )]
    Gang {
        /// Which job.
        job: JobId,
        /// Asked for.
        gpus: u32,
        /// Asked for.
        nodes: u32,
        /// Given.
        given: u32,
        /// Given.
        given_nodes: u32,
    },
    /// A node of another GPU type.
    #[error("{job}: {node} has another GPU type than the configuration says")]
    WrongType {
        /// Which job.
        job: JobId,
        /// Which node.
        node: NodeId,
    },
    /// A shape that the job may not take.
    #[error("{job}: {gpus} GPUs of {gpu_type} is not among the shapes it may take")]
    Shape {
        /// Which job.
        job: JobId,
        /// How many GPUs.
        gpus: u32,
        /// Of which type.
        gpu_type: crate::ids::GpuTypeId,
    },
    /// Nodes that the job may not have.
    #[error("{0}: not on nodes, or as many of them, as it may have")]
    Nodes(JobId),
    /// A batch that the job may not have.
    #[error("{job}: a batch of {batch} is out of its bounds")]
    Batch {
        /// Which job.
        job: JobId,
        /// Which batch.
        batch: u32,
    },
    /// A limit that the card does not accept.
    #[error("{job}: a power limit of {limit} is out of the card's range")]
    Limit {
        /// Which job.
        job: JobId,
        /// Which limit.
        limit: Watts,
    },
    /// A job on a node that is lost or shall sleep.
    #[error("{job}: {node} is not there to run it")]
    NodeNotUp {
        /// Which job.
        job: JobId,
        /// Which node.
        node: NodeId,
    },
    /// Too few CPUs, or too little memory.
    #[error("{job} {short}: {node}")]
    Host {
        /// Which job.
        job: JobId,
        /// Which node.
        node: NodeId,
        /// What is missing.
        short: Shortage,
    },
    /// Above the wattline.
    #[error("committed power would be {committed:.1}, the budget is {budget:.1}")]
    OverBudget {
        /// What the plan commits.
        committed: Watts,
        /// What there is.
        budget: Watts,
    },
    /// Bookkeeping is wrong: a bug.
    #[error("committed power is recorded as {recorded}, it is {actual}")]
    Ledger {
        /// What is on record.
        recorded: Watts,
        /// What it is.
        actual: Watts,
    },
}

/// A plan that has passed. Only [`check`] makes one, so nothing else can be applied.
#[derive(Debug)]
pub struct CheckedPlan(Plan);

impl CheckedPlan {
    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.0
    }
    pub(crate) fn into_plan(self) -> Plan {
        self.0
    }
}

type NodeResidents = SmallVec<[Resident; 4]>;

/// Checks a plan against the state it would change.
///
/// A plan over the budget passes only if it raises nothing: where even sleep does not fit below
/// the line, going down is all one can do.
///
/// A job that is pinned is not taken off its GPUs, above the budget either: see
/// [`JobState::is_pinned`].
///
/// # Errors
/// Everything that is wrong with it.
pub fn check(
    state: &State,
    plan: Plan,
    current: PlanId,
    budget: Option<Watts>,
) -> Result<CheckedPlan, Vec<Violation>> {
    check_plan(state, plan, current, budget, Shed::Stop)
}

/// The same for load that the engine sheds by itself: where the site allows it, jobs that are pinned
/// may be ended. No policy's plan may.
pub(crate) fn check_shedding(
    state: &State,
    plan: Plan,
    current: PlanId,
    budget: Watts,
    may: Shed,
) -> Result<CheckedPlan, Vec<Violation>> {
    check_plan(state, plan, current, Some(budget), may)
}

fn check_plan(
    state: &State,
    plan: Plan,
    current: PlanId,
    budget: Option<Watts>,
    may: Shed,
) -> Result<CheckedPlan, Vec<Violation>> {
    let mut wrong = Vec::new();
    if plan.based_on != current {
        wrong.push(Violation::Stale { based_on: plan.based_on, current });
    }
    let mut jobs: SmallVec<[JobId; 8]> = plan.jobs.iter().map(|c| c.job).collect();
    jobs.sort_unstable();
    wrong.extend(jobs.windows(2).filter(|w| w[0] == w[1]).map(|w| Violation::JobTwice(w[0])));
    let mut targets: SmallVec<[(NodeId, Target); 8]> =
        plan.nodes.iter().map(|c| (c.node, c.target)).collect();
    targets.sort_unstable_by_key(|(node, _)| *node);
    wrong.extend(
        targets.windows(2).filter(|w| w[0].0 == w[1].0).map(|w| Violation::NodeTwice(w[0].0)),
    );
    let node_count = state.cluster().nodes().len();
    wrong.extend(
        targets
            .iter()
            .filter(|(node, _)| node.index() >= node_count)
            .map(|(node, _)| Violation::UnknownNode(*node)),
    );
    let over = budget.is_some_and(|budget| state.planned_committed() > budget + TOLERANCE);
    let may_kill = over && may == Shed::Kill;
    for change in &plan.jobs {
        match state.find_job(change.job) {
            Some(job) if job.is_plannable() || leaves_or_stays(job, change) => {
                if moves_pinned(job, change) && !(may_kill && change.decision == Decision::Wait) {
                    wrong.push(Violation::Pinned(change.job));
                }
                if let Decision::Run(placement) = &change.decision {
                    check_placement(state, change.job, placement, &mut wrong);
                }
            }
            _ => wrong.push(Violation::NotPlannable(change.job)),
        }
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }

    for (job, node, short) in state.host_misfits(&plan.jobs) {
        wrong.push(Violation::Host { job, node, short });
    }
    // From here on all ids are good. Who is on the nodes that the plan touches, afterwards?
    let mut touched: SmallVec<[NodeId; 16]> = targets.iter().map(|(node, _)| *node).collect();
    for change in &plan.jobs {
        if let Some(old) = &state.job(change.job).planned {
            touched.extend(old.allocation.shares().map(|s| s.node));
        }
        if let Decision::Run(new) = &change.decision {
            touched.extend(new.allocation.shares().map(|s| s.node));
        }
    }
    touched.sort_unstable();
    touched.dedup();
    let mut after: SmallVec<[NodeResidents; 4]> = touched
        .iter()
        .map(|node| {
            let stays = |r: &&Resident| jobs.binary_search(&r.job).is_err();
            state.node(*node).planned.iter().filter(stays).copied().collect()
        })
        .collect();
    for change in &plan.jobs {
        let Decision::Run(new) = &change.decision else { continue };
        for share in new.allocation.shares() {
            let Ok(at) = touched.binary_search(&share.node) else { continue };
            let limit = new.configuration.power_limit;
            after[at].push(Resident { job: change.job, mask: share.mask, limit });
        }
    }

    let mut committed = state.planned_committed();
    let mut raises = false;
    for (node, residents) in touched.iter().zip(&after) {
        one_job_per_gpu(*node, residents, &mut wrong);
        let target = match targets.binary_search_by_key(node, |(id, _)| *id) {
            Ok(at) => targets[at].1,
            Err(_) => state.node(*node).target,
        };
        let ours = state.node(*node).is_ours();
        if !(ours && target == Target::Up) {
            // Who was there before the node was closed stays.
            let wrongly = residents.iter().filter(|r| ours || !state.job(r.job).stays);
            wrong.extend(wrongly.map(|r| Violation::NodeNotUp { job: r.job, node: *node }));
        }
        let (old, new) = (
            state.node(*node).planned_committed(),
            power::committed(
                state.cluster(),
                *node,
                state.node(*node).power_under(target),
                occupancy(residents),
            ),
        );
        raises |= new > old + TOLERANCE;
        committed += new - old;
    }
    if let Some(budget) = budget
        && committed > budget + TOLERANCE
        && (raises || committed > state.planned_committed() + TOLERANCE)
    {
        wrong.push(Violation::OverBudget { committed, budget });
    }
    if wrong.is_empty() { Ok(CheckedPlan(plan)) } else { Err(wrong) }
}

/// A job that stays where it is may be told to go, or to go on with another limit, where the budget
/// wants it; it is not moved.
fn leaves_or_stays(job: &JobState, change: &JobChange) -> bool {
    let same = match (&change.decision, &job.held) {
        (Decision::Run(new), Some(held)) => new.same_but_limit(held),
        (Decision::Run(_), None) => false,
        (Decision::Wait, _) => true,
    };
    job.stays && !job.is_foreign() && same
}

fn moves_pinned(job: &JobState, change: &JobChange) -> bool {
    let stays = match (&change.decision, &job.held) {
        (Decision::Run(new), Some(held)) => new.same_but_limit(held),
        (Decision::Run(_), None) => true,
        (Decision::Wait, _) => false,
    };
    job.is_pinned() && !stays
}

fn check_placement(state: &State, id: JobId, placement: &Placement, wrong: &mut Vec<Violation>) {
    let cluster = state.cluster();
    let job = state.job(id);
    let configuration = &placement.configuration;
    let shape = configuration.shape();
    // What a job for certain nodes gets there is for the cluster to say; it goes on with that.
    let there = job.held.as_ref().is_some_and(|held| placement.same_but_limit(held));
    let goes_on = there && job.nodes().is_some();
    if !goes_on && state.menu(job.menu).binary_search(&shape).is_err() {
        wrong.push(Violation::Shape { job: id, gpus: shape.gpus, gpu_type: shape.gpu_type });
        return;
    }
    if !goes_on && job.nodes().is_some_and(|n| !n.allows(&placement.allocation)) {
        wrong.push(Violation::Nodes(id));
    }
    let bounds = job.job.batch;
    let allowed = match job.job.elasticity {
        Elasticity::Adaptive => bounds.min..=bounds.max,
        _ => bounds.requested..=bounds.requested,
    };
    if !allowed.contains(&configuration.batch) {
        wrong.push(Violation::Batch { job: id, batch: configuration.batch });
    }
    let card = cluster.gpu_type(shape.gpu_type);
    let limit = configuration.power_limit;
    if !(limit >= card.min_limit - TOLERANCE && limit <= card.max_limit + TOLERANCE) {
        wrong.push(Violation::Limit { job: id, limit });
    }
    let allocation = &placement.allocation;
    let (given, given_nodes) = (allocation.count(), allocation.0.len() as u32);
    let rising = allocation.0.windows(2).all(|w| w[0].node < w[1].node);
    let none_empty = allocation.shares().all(|s| s.mask != 0);
    if given != shape.gpus || given_nodes != configuration.nodes || !rising || !none_empty {
        wrong.push(Violation::Gang {
            job: id,
            gpus: shape.gpus,
            nodes: configuration.nodes,
            given,
            given_nodes,
        });
    }
    for share in allocation.shares() {
        if share.node.index() >= cluster.nodes().len() {
            wrong.push(Violation::UnknownNode(share.node));
            continue;
        }
        let node = cluster.node(share.node);
        if node.gpu_type != shape.gpu_type {
            wrong.push(Violation::WrongType { job: id, node: share.node });
        }
        let beyond = share.mask & !mask_of(node.gpus);
        if beyond != 0 {
            let gpu = GpuId { node: share.node, index: beyond.trailing_zeros() as u8 };
            wrong.push(Violation::UnknownGpu { job: id, gpu });
        }
    }
}

fn one_job_per_gpu(node: NodeId, residents: &[Resident], wrong: &mut Vec<Violation>) {
    let mut taken = 0;
    for (k, second) in residents.iter().enumerate() {
        let both = taken & second.mask;
        taken |= second.mask;
        if both != 0
            && let Some(first) = residents[..k].iter().find(|r| r.mask & both != 0)
        {
            let index = (both & first.mask).trailing_zeros() as u8;
            let gpu = GpuId { node, index };
            wrong.push(Violation::GpuTwice { gpu, first: first.job, second: second.job });
        }
    }
}

fn occupancy(residents: &[Resident]) -> power::Occupancy {
    let none = power::Occupancy::default();
    residents.iter().fold(none, |sum, r| sum.with(r.mask.count_ones(), r.limit))
}

/// Looks at everything, from scratch: planned and held. For tests and `doctor`, not for events.
#[must_use]
pub fn audit(state: &State, budget: Option<Watts>) -> Vec<Violation> {
    let mut wrong = Vec::new();
    let (mut planned_total, mut held_total) = (Watts::ZERO, Watts::ZERO);
    for id in state.cluster().node_ids() {
        let node = state.node(id);
        for (residents, kind) in [(&node.planned, true), (&node.held, false)] {
            let list: Vec<Resident> = residents.iter().copied().collect();
            one_job_per_gpu(id, &list, &mut wrong);
            for r in &list {
                let job = state.job(r.job);
                let placement = if kind { &job.planned } else { &job.held };
                let named = placement.as_ref().is_some_and(|p| {
                    p.allocation.shares().any(|s| s.node == id && s.mask == r.mask)
                });
                if !named || job.phase == Phase::Finished {
                    wrong.push(Violation::NotPlannable(r.job));
                }
            }
            let power = if kind { node.planned_power() } else { node.power };
            let committed = power::committed(state.cluster(), id, power, occupancy(&list));
            *(if kind { &mut planned_total } else { &mut held_total }) += committed;
        }
    }
    for (id, job) in state.unfinished_jobs() {
        if let Some(placement) = &job.planned {
            check_placement(state, id, placement, &mut wrong);
        }
    }
    let recorded =
        [(state.planned_committed(), planned_total), (state.held_committed(), held_total)];
    for (recorded, actual) in recorded {
        if (recorded - actual).get().abs() > 1e-6 * actual.get().max(1.0) {
            wrong.push(Violation::Ledger { recorded, actual });
        }
    }
    if let Some(budget) = budget
        && state.held_committed() > budget + Watts::new(1e-3)
    {
        wrong.push(Violation::OverBudget { committed: state.held_committed(), budget });
    }
    wrong
}
