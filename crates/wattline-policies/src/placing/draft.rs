//! A plan in the making, with the watts it commits.

use super::FreeGpus;
use std::collections::BTreeMap;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::placement::{Allocation, Placement};
use wattline_core::plan::{Decision, JobChange, NodeChange, Plan, Reason};
use wattline_core::policy::{Changes, ClusterView};
use wattline_core::power::{self, Occupancy, TOLERANCE};
use wattline_core::state::Target;
use wattline_core::units::Watts;

/// Collects changes and keeps count of committed power where there is a budget.
pub(crate) struct Draft<'v, 'a> {
    view: &'v ClusterView<'a>,
    plan: Plan,
    committed: Watts,
    /// Nodes that differ from the view, only kept where there is a budget.
    nodes: BTreeMap<NodeId, (Occupancy, Target)>,
    /// Where in the plan it says something about a job.
    said: BTreeMap<JobId, usize>,
}

impl<'v, 'a> Draft<'v, 'a> {
    pub(crate) fn new(view: &'v ClusterView<'a>) -> Self {
        Self {
            view,
            plan: Plan::unchanged(view.plan),
            committed: view.state.planned_committed(),
            nodes: BTreeMap::new(),
            said: BTreeMap::new(),
        }
    }

    /// The same watts, to try something out on.
    pub(crate) fn trial(&self) -> Self {
        Self { committed: self.committed, nodes: self.nodes.clone(), ..Self::new(self.view) }
    }

    pub(crate) fn finish(self) -> Plan {
        self.plan
    }

    pub(crate) fn plan(&mut self) -> &mut Plan {
        &mut self.plan
    }

    fn node(&self, id: NodeId) -> (Occupancy, Target) {
        let state = self.view.state.node(id);
        self.nodes.get(&id).copied().unwrap_or_else(|| (state.planned.occupancy(), state.target))
    }

    fn committed_on(&self, id: NodeId, (held, target): (Occupancy, Target)) -> Watts {
        let power = self.view.state.node(id).power_under(target);
        power::committed(self.view.state.cluster(), id, power, held)
    }

    /// Committed power of the draft if these GPUs went from one limit to another; `starting`: they
    /// were free before.
    fn committed_with(&self, on: &Allocation, from: Watts, to: Watts, starting: bool) -> Watts {
        on.shares().fold(self.committed, |sum, share| {
            let (held, target) = self.node(share.node);
            let count = share.count();
            let after = Occupancy {
                busy: held.busy + if starting { count } else { 0 },
                limits: held.limits + (to - from) * f64::from(count),
            };
            sum + self.committed_on(share.node, (after, Target::Up))
                - self.committed_on(share.node, (held, target))
        })
    }

    fn fits(&self, committed: Watts) -> bool {
        self.view.budget.is_none_or(|budget| committed <= budget + TOLERANCE)
    }

    /// Whether a start fits below the budget.
    pub(crate) fn can_start(&self, on: &Allocation, limit: Watts) -> bool {
        self.view.budget.is_none() || self.fits(self.committed_with(on, Watts::ZERO, limit, true))
    }

    /// Whether a start fits below the budget once these jobs are gone.
    pub(crate) fn can_start_without(
        &self,
        gone: &[&Placement],
        on: &Allocation,
        limit: Watts,
    ) -> bool {
        if self.view.budget.is_none() {
            return true;
        }
        let mut after = self.trial();
        for placement in gone {
            let limit = placement.configuration.power_limit;
            after.change(&placement.allocation, limit, Watts::ZERO, -1);
        }
        after.can_start(on, limit)
    }

    /// Whether raising a running job's limit fits below the budget.
    pub(crate) fn can_raise(&self, on: &Allocation, from: Watts, to: Watts) -> bool {
        self.fits(self.committed_with(on, from, to, false))
    }

    fn change(&mut self, on: &Allocation, from: Watts, to: Watts, count: i64) {
        if self.view.budget.is_none() {
            return;
        }
        for share in on.shares() {
            let before = self.node(share.node);
            let gpus = f64::from(share.count());
            let busy = i64::from(before.0.busy) + count * i64::from(share.count());
            let after = Occupancy {
                busy: busy.max(0) as u32,
                limits: before.0.limits + (to - from) * gpus,
            };
            let target = if count >= 0 { Target::Up } else { before.1 };
            self.committed += self.committed_on(share.node, (after, target))
                - self.committed_on(share.node, before);
            self.nodes.insert(share.node, (after, target));
        }
    }

    /// The job runs so from now on.
    pub(crate) fn start(&mut self, job: JobId, placement: Placement, reason: Reason) {
        let limit = placement.configuration.power_limit;
        self.change(&placement.allocation, Watts::ZERO, limit, 1);
        self.decide(job, Decision::Run(placement), reason);
    }

    /// The job gives its GPUs back.
    pub(crate) fn stop(&mut self, job: JobId, placement: &Placement, reason: Reason) {
        let limit = placement.configuration.power_limit;
        self.change(&placement.allocation, limit, Watts::ZERO, -1);
        self.decide(job, Decision::Wait, reason);
    }

    /// The job's limit changes.
    pub(crate) fn limit(&mut self, job: JobId, placement: &Placement, to: Watts, reason: Reason) {
        let from = placement.configuration.power_limit;
        self.change(&placement.allocation, from, to, 0);
        let mut placement = placement.clone();
        placement.configuration.power_limit = to;
        self.decide(job, Decision::Run(placement), reason);
    }

    /// A job that waits hears why.
    pub(crate) fn explain(&mut self, job: JobId, reason: Reason) {
        self.decide(job, Decision::Wait, reason);
    }

    /// The last word about a job counts.
    fn decide(&mut self, job: JobId, decision: Decision, reason: Reason) {
        let change = JobChange { job, decision, reason };
        if let Some(at) = self.said.get(&job) {
            self.plan.jobs[*at] = change;
        } else {
            self.said.insert(job, self.plan.jobs.len());
            self.plan.jobs.push(change);
        }
    }

    /// Jobs that nobody has been told about yet hear why they wait.
    pub(crate) fn explain_new(&mut self, free: &FreeGpus) {
        let view = self.view;
        let mut explain = |id: JobId| {
            let job = view.state.job(id);
            if !job.is_waiting() || job.reason != Reason::Arrived || self.said.contains_key(&id) {
                return;
            }
            let menu = view.state.menu(job.menu);
            let room = |shape| free.place(view.state.cluster(), shape).is_some();
            let reason = match menu.iter().copied().any(room) {
                _ if menu.is_empty() => Reason::NeverFits,
                true if view.budget.is_some() => Reason::NoPower,
                _ => Reason::NoRoom,
            };
            self.decide(id, Decision::Wait, reason);
        };
        match view.changes {
            Changes::Only { jobs, .. } => jobs.iter().for_each(|id| explain(*id)),
            Changes::Everything => view.state.unfinished_jobs().for_each(|(id, _)| explain(id)),
        }
    }

    /// The node is wanted so.
    pub(crate) fn node_target(&mut self, node: NodeId, target: Target, reason: Reason) {
        self.count_node(node, target);
        let change = NodeChange { node, target, reason };
        match self.plan.nodes.iter_mut().rev().find(|c| c.node == node) {
            Some(earlier) => *earlier = change,
            None => self.plan.nodes.push(change),
        }
    }

    /// Counts a node as asleep, without deciding so yet.
    pub(crate) fn count_asleep(&mut self, node: NodeId) {
        self.count_node(node, Target::Asleep);
    }

    fn count_node(&mut self, node: NodeId, target: Target) {
        if self.view.budget.is_some() {
            let before = self.node(node);
            self.committed +=
                self.committed_on(node, (before.0, target)) - self.committed_on(node, before);
            self.nodes.insert(node, (before.0, target));
        }
    }
}
