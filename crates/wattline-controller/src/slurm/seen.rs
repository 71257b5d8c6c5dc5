//! What SLURM shows at one time.

use super::command::CommandError;
use super::orders::Stamp;
use super::progress::Said;
use super::read::{NodeBase, NodeFlag, ReadError, SlurmJob, SlurmNode};
use super::rest::RestError;
use super::rules::Rules;
use crate::job_registry::{JobRegistry, SlurmKey};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use thiserror::Error;
use wattline_core::ids::JobId;

/// Why it is not known what SLURM does.
#[derive(Debug, Error)]
pub enum SeenError {
    /// It was not asked.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// slurmrestd was not asked, or its answer is none.
    #[error(transparent)]
    Rest(#[from] RestError),
    /// Its answer is none.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Nodes by name.
pub(super) type Nodes = BTreeMap<String, SlurmNode>;

/// All jobs and nodes.
#[derive(Debug)]
pub(super) struct Seen {
    jobs: Vec<Arc<SlurmJob>>,
    pub(super) nodes: Arc<Nodes>,
    /// Jobs that are known.
    known: BTreeMap<JobId, usize>,
    /// Reservations, partitions, what is counted.
    pub(super) rules: Arc<Rules>,
    /// Jobs that hold GPUs, of which it is not known yet which.
    pub(super) lacks_gpus: BTreeSet<u32>,
    /// What jobs say about themselves, by their numbers.
    pub(super) said: BTreeMap<u32, Said>,
    /// When it was looked at jobs.
    pub(super) began: Stamp,
    /// And at nodes, which may be earlier.
    pub(super) nodes_began: Stamp,
}

impl Seen {
    /// What was read.
    pub(super) fn new(
        jobs: Vec<Arc<SlurmJob>>,
        (nodes, nodes_began): (Arc<Nodes>, Stamp),
        began: Stamp,
    ) -> Self {
        let (known, said) = (BTreeMap::new(), BTreeMap::new());
        let (rules, lacks_gpus) = (Arc::default(), BTreeSet::new());
        Self { jobs, nodes, known, rules, lacks_gpus, said, began, nodes_began }
    }

    /// As if it had been shown.
    #[cfg(test)]
    pub(super) fn of(jobs: Vec<SlurmJob>, nodes: Vec<SlurmNode>, began: Stamp) -> Self {
        let nodes: Nodes = nodes.into_iter().map(|node| (node.name.clone(), node)).collect();
        Self::new(jobs.into_iter().map(Arc::new).collect(), (Arc::new(nodes), began), began)
    }

    /// All jobs.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &SlurmJob> {
        self.jobs.iter().map(|job| &**job)
    }

    /// Finds the jobs that are known.
    pub(super) fn recognise(&mut self, registry: &JobRegistry) {
        let numbered = self.jobs.iter().enumerate();
        self.known =
            numbered.filter_map(|(at, job)| Some((registry.find(&key(job))?, at))).collect();
    }

    /// A job that is known.
    pub(super) fn job(&self, id: JobId) -> Option<&SlurmJob> {
        self.jobs.get(*self.known.get(&id)?).map(|job| &**job)
    }

    /// The record of a job that is known.
    pub(super) fn record(&self, id: JobId) -> Option<&Arc<SlurmJob>> {
        self.jobs.get(*self.known.get(&id)?)
    }

    /// All jobs that are known.
    pub(super) fn known(&self) -> impl Iterator<Item = (JobId, &SlurmJob)> {
        self.known.iter().filter_map(|(id, at)| Some((*id, &**self.jobs.get(*at)?)))
    }

    /// Jobs that nobody has told of yet.
    pub(super) fn strangers<'a>(
        &'a self,
        registry: &'a JobRegistry,
    ) -> impl Iterator<Item = &'a SlurmJob> {
        self.jobs().filter(|job| registry.find(&key(job)).is_none())
    }
}

/// What a job is called now.
pub(super) fn key(job: &SlurmJob) -> SlurmKey {
    SlurmKey {
        id: job.key.id,
        submitted: job.key.submit.micros().div_euclid(1_000_000),
        restarts: job.key.restarts,
    }
}

/// What a node is, for Wattline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeIs {
    Up,
    Asleep,
    /// On its way to sleep or up.
    Moving,
    /// Not to be used.
    Lost,
    /// Not to be taken for anything new; who is there goes on.
    Closed,
    /// Nobody knows yet.
    Unsure,
}

pub(super) fn node_is(node: &SlurmNode) -> NodeIs {
    use NodeFlag::{
        Drain, Fail, InvalidRegistration, Maintenance, PowerDown, PowerDrain, PowerUp,
        PoweringDown, PoweringUp, RebootIssued, RebootRequested,
    };
    let any = |flags: &[NodeFlag]| flags.iter().any(|flag| node.is(flag));
    if node.is_asleep() {
        return NodeIs::Asleep;
    }
    if node.is_usable() {
        return NodeIs::Up;
    }
    // SLURM starts nothing there, and cannot be told otherwise: it sleeps when its jobs have ended.
    if node.is(&PowerDown) && node.alloc_cpus > 0 {
        return NodeIs::Closed;
    }
    if any(&[PowerDown, PoweringDown, PowerDrain, PowerUp, PoweringUp]) {
        // A node that was asleep and did not come up is down.
        return if node.base == NodeBase::Down { NodeIs::Lost } else { NodeIs::Moving };
    }
    let leaving = any(&[Drain, Fail, Maintenance, RebootRequested, RebootIssued]);
    match node.base {
        NodeBase::Down | NodeBase::Error | NodeBase::Future => NodeIs::Lost,
        _ if any(&[InvalidRegistration]) => NodeIs::Lost,
        // Jobs on a node that is drained go on; then it is somebody else's.
        _ if leaving && node.alloc_cpus == 0 => NodeIs::Lost,
        _ if leaving => NodeIs::Closed,
        _ => NodeIs::Unsure,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::slurm::read;

    fn is(flags: &str) -> NodeIs {
        used(flags, 0)
    }

    fn used(flags: &str, cpus: u32) -> NodeIs {
        let text = format!(
            "{{\"meta\":{{}},\"errors\":[],\"nodes\":[{{\"name\":\"n1\",\"state\":\"idle\",\
             \"state_flags\":[{flags}],\"gres\":\"gpu:h200:4\",\"cpus\":64,\
             \"alloc_cpus\":{cpus}}}]}}"
        );
        node_is(&read::nodes(&text).unwrap()[0])
    }

    /// SLURM 22.05 leaves the word on a node that was told to wake just before it came up.
    #[test]
    fn a_node_that_was_told_twice_to_wake_is_up_when_it_is_up() {
        assert_eq!(is("\"POWER_UP\""), NodeIs::Up);
        assert_eq!(is("\"POWERED_DOWN\",\"POWER_UP\""), NodeIs::Moving);
        assert_eq!(is("\"POWERING_UP\",\"NOT_RESPONDING\""), NodeIs::Moving);
        assert_eq!(is("\"POWERED_DOWN\""), NodeIs::Asleep);
        assert_eq!(is("\"POWER_DOWN\""), NodeIs::Moving);
        assert_eq!(is(""), NodeIs::Up);
    }

    /// Jobs were planned there, and waited until others' had ended.
    #[test]
    fn a_node_that_sleeps_as_soon_as_its_jobs_have_ended_takes_nothing_new() {
        assert_eq!(used("\"POWER_DOWN\"", 2), NodeIs::Closed);
        assert_eq!(used("\"POWERING_DOWN\"", 0), NodeIs::Moving);
    }
}
