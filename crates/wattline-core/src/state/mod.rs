//! What the engine knows: every job, every node, what is planned and what is held.
//!
//! *Planned* is the complete desired state, kept up by applying each plan's changes. *Held* is what
//! the backend has been told and has not yet confirmed to be over: GPUs that cannot be given to
//! anybody else and watts that must be counted. The engine works until the two agree.
//!
//! Changes are recorded as touched ids. A reader looks the thing itself up, so that being told
//! twice, or late, does no harm.

mod delays;
mod image;
mod job;
mod mold;
mod node;
mod refusals;
mod restore;
mod suppose;

pub use delays::Delays;
pub use image::StateImage;
pub use job::{JobState, Phase, Progress};
pub use node::{NodeState, Resident, Residents, Target};
pub(crate) use refusals::Refusals;
pub use restore::RestoredJob;

use crate::cluster::{Cluster, Menu, Shape};
use crate::host::{HostRequest, NodeHost};
use crate::ids::{JobId, MenuId, NodeId};
use crate::job::Job;
use crate::job_table::JobTable;
use crate::placement::{Placement, Share};
use crate::plan::Reason;
use crate::power::{self, NodePower};
use crate::time::Timestamp;
use crate::units::Watts;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// How many of the latest submissions are kept also after their end, because policies expect the
/// near future to be like the near past. A power of two above what any of them looks at (200 jobs,
/// or those of one mean run time); twice as many cost half a megabyte.
pub const LATEST_SUBMISSIONS: usize = 1024;

/// Everything the engine knows about the cluster and its jobs: those that are not over, and the
/// latest submissions. What has ended leaves once a policy has seen that.
#[derive(Clone, Debug)]
pub struct State {
    cluster: Arc<Cluster>,
    jobs: JobTable<JobState>,
    /// Ended jobs before this one have left.
    swept: JobId,
    /// When the first job of all was submitted.
    first_submit: Option<Timestamp>,
    nodes: Vec<NodeState>,
    menus: Vec<Menu>,
    menu_ids: HashMap<Menu, MenuId>,
    unfinished: usize,
    held_jobs: usize,
    planned_committed: Watts,
    held_committed: Watts,
    touched_jobs: Vec<JobId>,
    touched_nodes: Vec<NodeId>,
    delays: Delays,
    /// Nodes whose CPUs and memory are known.
    nodes_with_host: usize,
}

impl State {
    /// A cluster with nothing to do, all nodes up.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, now: Timestamp) -> Self {
        let nodes = cluster.node_ids().map(|_| NodeState::new(now)).collect();
        let mut state = Self {
            cluster,
            jobs: JobTable::default(),
            swept: JobId(0),
            first_submit: None,
            nodes,
            menus: Vec::new(),
            menu_ids: HashMap::new(),
            unfinished: 0,
            held_jobs: 0,
            planned_committed: Watts::ZERO,
            held_committed: Watts::ZERO,
            touched_jobs: Vec::new(),
            touched_nodes: Vec::new(),
            delays: Delays::default(),
            nodes_with_host: 0,
        };
        for id in state.cluster.node_ids() {
            state.recompute_committed(id);
        }
        state
    }

    /// A node that sleeps from the beginning.
    pub fn begin_asleep(&mut self, id: NodeId) {
        self.set_power(id, NodePower::Asleep);
        self.set_target(id, Target::Asleep, Reason::NodeOverBudget);
    }

    /// The machines.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }
    /// How long the cluster takes to do what it is told.
    #[must_use]
    pub fn delays(&self) -> &Delays {
        &self.delays
    }
    pub(crate) fn delays_mut(&mut self) -> &mut Delays {
        &mut self.delays
    }
    /// One job that is known to be here: it is not over, or ended since the last plan.
    #[must_use]
    pub fn job(&self, id: JobId) -> &JobState {
        &self.jobs[id]
    }
    /// One job, if it is here: submitted, and not gone after its end.
    #[must_use]
    pub fn find_job(&self, id: JobId) -> Option<&JobState> {
        self.jobs.get(id)
    }
    /// Whether a job of this id was submitted once and has left after its end.
    #[must_use]
    pub fn has_left(&self, id: JobId) -> bool {
        id < self.jobs.next_id() && self.jobs.get(id).is_none()
    }
    /// Where a job stands among the [`State::job_slots`], for dense tables that do not outlive a
    /// view.
    ///
    /// # Panics
    /// When the job is not here: a bug.
    #[must_use]
    pub fn job_slot(&self, id: JobId) -> usize {
        self.jobs.slot(id).unwrap_or_else(|| panic!("{id} has left: a bug"))
    }
    /// How many jobs are here.
    #[must_use]
    pub fn job_slots(&self) -> usize {
        self.jobs.len()
    }
    /// The latest submissions, at most [`LATEST_SUBMISSIONS`], by id; whether over or not.
    pub fn latest_submissions(&self) -> impl DoubleEndedIterator<Item = (JobId, &JobState)> {
        self.jobs_from(self.first_of_the_latest())
    }
    fn first_of_the_latest(&self) -> JobId {
        JobId(self.jobs.next_id().0.saturating_sub(LATEST_SUBMISSIONS as u32))
    }
    /// When the first job of all was submitted.
    #[must_use]
    pub fn first_submit(&self) -> Option<Timestamp> {
        self.first_submit
    }
    /// One node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &NodeState {
        &self.nodes[id.index()]
    }
    /// How many jobs were ever taken in; also the next job's id.
    #[must_use]
    pub fn job_count(&self) -> usize {
        self.jobs.next_id().index()
    }
    /// How many of them are not finished.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }
    /// How many jobs hold GPUs.
    #[must_use]
    pub fn held_jobs(&self) -> usize {
        self.held_jobs
    }
    /// Ids and states of all jobs that are not finished, by id: for rebuilding an index, not for
    /// every event.
    pub fn unfinished_jobs(&self) -> impl Iterator<Item = (JobId, &JobState)> {
        self.jobs.iter().filter(|(_, job)| job.phase != Phase::Finished)
    }
    /// The jobs that are here, from this id on, by id; whether over or not.
    pub fn jobs_from(&self, first: JobId) -> impl DoubleEndedIterator<Item = (JobId, &JobState)> {
        self.jobs.iter_from(first)
    }
    /// The shapes of a menu.
    #[must_use]
    pub fn menu(&self, id: MenuId) -> &Menu {
        &self.menus[id.index()]
    }
    /// How many different menus there are.
    #[must_use]
    pub fn menu_count(&self) -> usize {
        self.menus.len()
    }
    /// What the cluster could draw at worst once everything planned is carried out.
    #[must_use]
    pub fn planned_committed(&self) -> Watts {
        self.planned_committed
    }
    /// What the cluster could draw at worst right now.
    #[must_use]
    pub fn held_committed(&self) -> Watts {
        self.held_committed
    }
    /// Jobs that changed since the last plan.
    #[must_use]
    pub fn touched_jobs(&self) -> &[JobId] {
        &self.touched_jobs
    }
    /// Nodes that changed since the last plan.
    #[must_use]
    pub fn touched_nodes(&self) -> &[NodeId] {
        &self.touched_nodes
    }

    /// Takes a job in, with those of its shapes that `can_run` in. It waits until a plan says
    /// otherwise.
    pub fn submit(&mut self, job: Arc<Job>, can_run: impl Fn(Shape) -> bool) -> JobId {
        let shapes = self.cluster.menu(&job);
        let menu = if shapes.iter().all(|shape| can_run(*shape)) {
            shapes
        } else {
            shapes.iter().copied().filter(|shape| can_run(*shape)).collect()
        };
        let menu = self.intern(menu);
        self.first_submit.get_or_insert(job.submit);
        let id = self.jobs.push(JobState::new(job, menu));
        self.unfinished += 1;
        self.touch_job(id);
        id
    }

    fn intern(&mut self, menu: Menu) -> MenuId {
        let next = MenuId(self.menus.len() as u32);
        let id = *self.menu_ids.entry(menu.clone()).or_insert(next);
        if id == next {
            self.menus.push(menu);
        }
        id
    }

    pub(crate) fn job_mut(&mut self, id: JobId) -> &mut JobState {
        &mut self.jobs[id]
    }
    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut NodeState {
        &mut self.nodes[id.index()]
    }

    /// Tells the policy that a job is not as it was.
    pub(crate) fn touch_job(&mut self, id: JobId) {
        let job = &mut self.jobs[id];
        if !job.touched {
            job.touched = true;
            self.touched_jobs.push(id);
        }
    }
    /// Tells the policy that a node is not as it was.
    pub(crate) fn touch_node(&mut self, id: NodeId) {
        let node = &mut self.nodes[id.index()];
        if !node.touched {
            node.touched = true;
            self.touched_nodes.push(id);
        }
    }
    /// The policy has seen all of that.
    pub(crate) fn clear_touched(&mut self) {
        let latest = self.first_of_the_latest();
        for id in self.touched_jobs.drain(..) {
            self.jobs[id].touched = false;
            if id < self.swept && self.jobs[id].has_ended() {
                self.jobs.remove(id);
            }
        }
        for id in self.touched_nodes.drain(..) {
            self.nodes[id.index()].touched = false;
        }
        // Jobs that are no longer among the latest submissions.
        while self.swept < latest {
            if self.jobs.get(self.swept).is_some_and(JobState::has_ended) {
                self.jobs.remove(self.swept);
            }
            self.swept = JobId(self.swept.0 + 1);
        }
    }

    /// Whether CPUs and memory of any node are known.
    #[must_use]
    pub fn counts_host(&self) -> bool {
        self.nodes_with_host > 0
    }

    /// Sets a node's CPUs and memory, and what others take of them.
    pub fn set_node_host(&mut self, id: NodeId, host: Option<NodeHost>) {
        let node = &mut self.nodes[id.index()];
        self.nodes_with_host -= usize::from(node.host.is_some());
        self.nodes_with_host += usize::from(host.is_some());
        node.host = host;
        self.touch_node(id);
    }

    /// Sets what a job takes of CPUs and memory.
    pub fn set_host_request(&mut self, id: JobId, request: Option<HostRequest>) {
        self.jobs[id].host = request;
        self.touch_job(id);
    }

    /// A waiting job asks for something else from now on.
    pub(crate) fn ask_anew(&mut self, id: JobId, job: Arc<Job>, can_run: impl Fn(Shape) -> bool) {
        let shapes = self.cluster.menu(&job);
        let menu = shapes.iter().copied().filter(|shape| can_run(*shape)).collect();
        let menu = self.intern(menu);
        let state = &mut self.jobs[id];
        (state.job, state.menu, state.molded) = (job, menu, None);
        self.end_refusals(id);
        self.renew_choice(id);
        self.touch_job(id);
    }

    /// Sets what is planned for a job.
    pub(crate) fn set_planned(
        &mut self,
        id: JobId,
        placement: Option<Placement>,
        reason: Reason,
        now: Timestamp,
    ) {
        let job = &mut self.jobs[id];
        job.reason = reason;
        let old = std::mem::replace(&mut job.planned, placement);
        if let Some(old) = old {
            for share in old.allocation.shares() {
                let node = &mut self.nodes[share.node.index()];
                node.planned.remove(id);
                if node.planned.is_empty() {
                    node.idle_since = now;
                }
                self.recompute_committed(share.node);
            }
        }
        if let Some(new) = self.jobs[id].planned.clone() {
            let limit = new.configuration.power_limit;
            for share in new.allocation.shares() {
                let node = &mut self.nodes[share.node.index()];
                node.planned.insert(Resident { job: id, mask: share.mask, limit });
                self.recompute_committed(share.node);
            }
        }
        self.settle_job(id);
    }

    /// Sets what a node should be.
    pub(crate) fn set_target(&mut self, id: NodeId, target: Target, reason: Reason) {
        let node = &mut self.nodes[id.index()];
        node.target = target;
        node.reason = reason;
        self.recompute_committed(id);
    }

    /// Sets what a node is.
    pub(crate) fn set_power(&mut self, id: NodeId, power: NodePower) {
        self.nodes[id.index()].power = power;
        self.recompute_committed(id);
        let here: SmallVec<[JobId; 8]> =
            self.nodes[id.index()].planned.iter().map(|r| r.job).collect();
        for job in here {
            self.settle_job(job);
        }
    }

    /// From now on the job holds these GPUs.
    pub(crate) fn hold(&mut self, id: JobId, placement: Placement) {
        let limit = placement.configuration.power_limit;
        for share in placement.allocation.shares() {
            let node = &mut self.nodes[share.node.index()];
            node.held.insert(Resident { job: id, mask: share.mask, limit });
            self.recompute_committed(share.node);
        }
        self.jobs[id].held = Some(placement);
        self.held_jobs += 1;
        self.settle_job(id);
    }

    /// The job holds nothing any more.
    pub(crate) fn release(&mut self, id: JobId) {
        let Some(placement) = self.jobs[id].held.take() else { return };
        self.held_jobs -= 1;
        for share in placement.allocation.shares() {
            self.nodes[share.node.index()].held.remove(id);
            self.recompute_committed(share.node);
        }
        self.settle_job(id);
    }

    /// The limit that is counted for a job's GPUs.
    pub(crate) fn counted_limit(&self, id: JobId) -> Option<Watts> {
        let share = self.jobs[id].held.as_ref()?.allocation.shares().next()?;
        let residents = &self.nodes[share.node.index()].held;
        residents.iter().find(|r| r.job == id).map(|r| r.limit)
    }

    /// The limit that must be counted for a job's GPUs.
    pub(crate) fn count_limit(&mut self, id: JobId, limit: Watts) {
        let Some(placement) = &self.jobs[id].held else { return };
        for share in placement.allocation.clone().shares() {
            self.nodes[share.node.index()].held.set_limit(id, limit);
            self.recompute_committed(share.node);
        }
    }

    pub(crate) fn finish(&mut self, id: JobId) {
        let job = &mut self.jobs[id];
        if job.phase != Phase::Finished {
            job.phase = Phase::Finished;
            self.unfinished -= 1;
            // It leaves when policies have seen this.
            self.touch_job(id);
        }
    }

    /// A job that is where it is planned stays there if a node of it is closed, or if it is choosy
    /// about nodes. One that is not preemptible also stays if a node of it is lost, because it may
    /// still run there, or if its user wants it to wait, because it cannot.
    pub(crate) fn settle_job(&mut self, id: JobId) {
        let job = &self.jobs[id];
        let is = |share: Share, power| self.nodes[share.node.index()].power == power;
        let closed = |share: Share| is(share, NodePower::Closed);
        let lost = |share: Share| is(share, NodePower::Down);
        let stays = match (&job.held, &job.planned) {
            (Some(held), Some(planned)) => {
                held.same_but_limit(planned)
                    && (job.job.nodes.is_some()
                        || job.stays_put
                        || held.allocation.shares().any(closed)
                        || (!job.job.preemptible
                            && (job.on_hold || held.allocation.shares().any(lost))))
            }
            _ => false,
        };
        if job.stays != stays {
            self.jobs[id].stays = stays;
            self.touch_job(id);
        }
    }

    /// Recomputes a node's committed power and brings the totals up to date.
    fn recompute_committed(&mut self, id: NodeId) {
        let node = &mut self.nodes[id.index()];
        let planned =
            power::committed(&self.cluster, id, node.planned_power(), node.planned.occupancy());
        let held = power::committed(&self.cluster, id, node.power, node.held.occupancy());
        self.planned_committed += planned - node.planned_committed;
        self.held_committed += held - node.held_committed;
        node.planned_committed = planned;
        node.held_committed = held;
    }
}
