//! The exact image of a state.

use super::{Delays, JobState, LATEST_SUBMISSIONS, NodeState, Phase, Residents, State};
use crate::cluster::{Cluster, Menu};
use crate::ids::{JobId, MenuId, NodeId};
use crate::image::{ImageError, require};
use crate::job::Job;
use crate::job_table::JobTable;
use crate::placement::{Placement, mask_of};
use crate::time::Timestamp;
use crate::units::Watts;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// All of a [`State`] but the machines. Sums are kept as they are: added up in another order they
/// would differ in their last digits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateImage {
    jobs: Vec<(JobId, JobState)>,
    next_job: JobId,
    first_submit: Option<Timestamp>,
    nodes: Vec<NodeState>,
    menus: Vec<Menu>,
    unfinished: usize,
    held_jobs: usize,
    planned_committed: Watts,
    held_committed: Watts,
    touched_jobs: Vec<JobId>,
    touched_nodes: Vec<NodeId>,
    #[serde(default)]
    delays: Delays,
}

impl State {
    /// All it knows.
    #[must_use]
    pub fn image(&self) -> StateImage {
        // Named one by one, so that none is forgotten.
        let Self {
            cluster: _,
            jobs,
            // Ended jobs before it have left, and are not looked for again.
            swept: _,
            first_submit,
            nodes,
            menus,
            menu_ids: _,
            unfinished,
            held_jobs,
            planned_committed,
            held_committed,
            touched_jobs,
            touched_nodes,
            delays,
            // Counted anew.
            nodes_with_host: _,
        } = self;
        StateImage {
            jobs: jobs.iter().map(|(id, job)| (id, job.clone())).collect(),
            next_job: jobs.next_id(),
            first_submit: *first_submit,
            nodes: nodes.clone(),
            menus: menus.clone(),
            unfinished: *unfinished,
            held_jobs: *held_jobs,
            planned_committed: *planned_committed,
            held_committed: *held_committed,
            touched_jobs: touched_jobs.clone(),
            touched_nodes: touched_nodes.clone(),
            delays: delays.clone(),
        }
    }

    /// The state that an image was taken of, on the same machines.
    ///
    /// # Errors
    /// When they are not the same, or the image contradicts itself.
    pub fn from_image(cluster: Arc<Cluster>, image: StateImage) -> Result<Self, ImageError> {
        image.check(&cluster)?;
        let ids = (0..).map(MenuId);
        let menu_ids = image.menus.iter().cloned().zip(ids).collect();
        let StateImage {
            jobs,
            next_job,
            first_submit,
            nodes,
            menus,
            unfinished,
            held_jobs,
            planned_committed,
            held_committed,
            touched_jobs,
            touched_nodes,
            delays,
        } = image;
        let nodes_with_host = nodes.iter().filter(|node| node.host.is_some()).count();
        let first = jobs.first().map_or(next_job, |(id, _)| *id);
        let jobs = JobTable::from_rows(jobs, next_job.0)
            .ok_or(ImageError::Wrong("jobs that are not in the order of their ids"))?;
        Ok(Self {
            cluster,
            swept: first.min(JobId(next_job.0.saturating_sub(LATEST_SUBMISSIONS as u32))),
            jobs,
            first_submit,
            nodes,
            menus,
            menu_ids,
            unfinished,
            held_jobs,
            planned_committed,
            held_committed,
            touched_jobs,
            touched_nodes,
            delays,
            nodes_with_host,
        })
    }
}

impl StateImage {
    pub(crate) fn jobs(&self) -> impl Iterator<Item = (JobId, &Arc<Job>)> {
        self.jobs.iter().map(|(id, state)| (*id, &state.job))
    }

    /// As if a policy had seen all changes, and jobs that are over had left.
    pub(crate) fn forget_changes(&mut self) {
        self.touched_jobs.clear();
        self.touched_nodes.clear();
        let latest = self.next_job.0.saturating_sub(LATEST_SUBMISSIONS as u32);
        self.jobs.retain(|(id, job)| id.0 >= latest || !job.has_ended());
        self.jobs.iter_mut().for_each(|(_, job)| job.touched = false);
        self.nodes.iter_mut().for_each(|node| node.touched = false);
    }

    pub(crate) fn has_job(&self, id: JobId) -> bool {
        self.jobs.binary_search_by_key(&id, |(id, _)| *id).is_ok()
    }

    pub(crate) fn has_node(&self, id: NodeId) -> bool {
        id.index() < self.nodes.len()
    }

    /// Everything that is named is there, and what is counted is what there is.
    fn check(&self, cluster: &Cluster) -> Result<(), ImageError> {
        require(self.nodes.len() == cluster.nodes().len(), "another number of nodes")?;
        let fits = |placement: &Placement| {
            placement.configuration.gpu_type.index() < cluster.gpu_types().len()
                && placement.allocation.shares().all(|share| {
                    let node = cluster.nodes().get(share.node.index());
                    node.is_some_and(|node| share.mask & !mask_of(node.gpus) == 0)
                })
        };
        for (_, job) in &self.jobs {
            require(job.menu.index() < self.menus.len(), "a job without shapes")?;
            let before = job.molded.map(|molded| molded.before);
            let known = before.is_none_or(|menu| menu.index() < self.menus.len());
            require(known, "a started job without shapes")?;
            let mut placements = job.planned.iter().chain(&job.held);
            require(placements.all(fits), "a job on GPUs that are not there")?;
        }
        let known = |residents: &Residents| residents.iter().all(|r| self.has_job(r.job));
        let known = |node: &NodeState| known(&node.planned) && known(&node.held);
        require(self.nodes.iter().all(known), "an unknown job on a node")?;
        let jobs = self.touched_jobs.iter().all(|id| self.has_job(*id));
        let nodes = self.touched_nodes.iter().all(|id| self.has_node(*id));
        require(jobs && nodes, "something unknown has changed")?;
        let count =
            |what: fn(&JobState) -> bool| self.jobs.iter().filter(|(_, job)| what(job)).count();
        require(
            count(|job| job.phase != Phase::Finished) == self.unfinished
                && count(|job| job.held.is_some()) == self.held_jobs,
            "another number of jobs than it says",
        )
    }
}
