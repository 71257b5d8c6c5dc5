//! What SLURM shows at one time.

use super::command::{CommandError, Commands};
use super::orders::{Stamp, Ticks};
use super::progress::{self, Said};
use super::read::{self, JobKey, NodeBase, NodeFlag, ReadError, SlurmJob, SlurmNode};
use crate::job_registry::{JobRegistry, SlurmKey};
use std::collections::BTreeMap;
use std::path::Path;
use thiserror::Error;
use wattline_core::ids::JobId;

/// Why it is not known what SLURM does.
#[derive(Debug, Error)]
pub enum SeenError {
    /// It was not asked.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// Its answer is none.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// All jobs and nodes.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) jobs: Vec<SlurmJob>,
    pub(super) nodes: BTreeMap<String, SlurmNode>,
    /// Jobs that are known.
    known: BTreeMap<JobId, usize>,
    /// What jobs say about themselves, by their numbers.
    pub(super) said: BTreeMap<u32, Said>,
    /// When it was looked.
    pub(super) began: Stamp,
}

impl Seen {
    /// Asks SLURM.
    pub(super) fn look(commands: &Commands) -> Result<Self, SeenError> {
        let jobs = commands.run("squeue", &["--json", "--states=all"])?;
        let jobs = read::jobs(&jobs)?;
        let nodes = match read::nodes(&commands.run("sinfo", &["--json"])?) {
            Ok(nodes) => nodes,
            // Newer releases show groups of nodes there, and older ones know only the first.
            Err(error) => commands
                .run("scontrol", &["show", "nodes", "--json"])
                .ok()
                .and_then(|text| read::nodes(&text).ok())
                .ok_or(error)?,
        };
        let nodes = nodes.into_iter().map(|node| (node.name.clone(), node)).collect();
        let (known, said) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { jobs, nodes, known, said, began: Stamp::default() })
    }

    /// As if it had been shown.
    #[cfg(test)]
    pub(super) fn of(jobs: Vec<SlurmJob>, nodes: Vec<SlurmNode>, began: Stamp) -> Self {
        let nodes = nodes.into_iter().map(|node| (node.name.clone(), node)).collect();
        Self { jobs, nodes, known: BTreeMap::new(), said: BTreeMap::new(), began }
    }

    /// The same, with what jobs say about themselves there. `ended` keeps what those said last that
    /// have ended: they say nothing new.
    pub(super) fn look_all(
        commands: &Commands,
        ticks: &Ticks,
        progress: Option<&Path>,
        ended: &mut BTreeMap<JobKey, Option<Said>>,
    ) -> Result<Self, SeenError> {
        let began = ticks.next();
        let mut seen = Self { began, ..Self::look(commands)? };
        let Some(folder) = progress else { return Ok(seen) };
        let mut still = BTreeMap::new();
        for job in &seen.jobs {
            if job.state.waits() && job.key.restarts == 0 {
                continue;
            }
            let read = || progress::read(folder, job.key.id, job.user_id);
            let said = if job.state.is_over() {
                *still.entry(job.key).or_insert_with(|| ended.remove(&job.key).unwrap_or_else(read))
            } else {
                read()
            };
            seen.said.extend(said.map(|said| (job.key.id, said)));
        }
        *ended = still;
        Ok(seen)
    }

    /// Finds the jobs that are known.
    pub(super) fn recognise(&mut self, registry: &JobRegistry) {
        let numbered = self.jobs.iter().enumerate();
        self.known =
            numbered.filter_map(|(at, job)| Some((registry.find(&key(job))?, at))).collect();
    }

    /// A job that is known.
    pub(super) fn job(&self, id: JobId) -> Option<&SlurmJob> {
        self.jobs.get(*self.known.get(&id)?)
    }

    /// All jobs that are known.
    pub(super) fn known(&self) -> impl Iterator<Item = (JobId, &SlurmJob)> {
        self.known.iter().filter_map(|(id, at)| Some((*id, self.jobs.get(*at)?)))
    }

    /// Jobs that nobody has told of yet.
    pub(super) fn strangers<'a>(
        &'a self,
        registry: &'a JobRegistry,
    ) -> impl Iterator<Item = &'a SlurmJob> {
        self.jobs.iter().filter(|job| registry.find(&key(job)).is_none())
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
    if any(&[PowerDown, PoweringDown, PowerDrain, PowerUp, PoweringUp]) {
        // A node that was asleep and did not come up is down.
        return if node.base == NodeBase::Down { NodeIs::Lost } else { NodeIs::Moving };
    }
    if node.is_usable() {
        return NodeIs::Up;
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
