//! What the engine has no word for: names, and what jobs are to SLURM.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use wattline_core::engine::Event;
use wattline_core::host::HostRequest;
use wattline_core::ids::{JobId, NodeId, UserId, WorkloadId};
use wattline_core::job::Job;
use wattline_core::placement::Placement;
use wattline_core::plan::Refusal;
use wattline_core::units::{Euros, Joules, Seconds, Watts};

/// What SLURM calls a job at some time. The number alone does not name it: after a crash SLURM may
/// give it to another job. And a job that is requeued counts as submitted again, under its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlurmKey {
    /// Its number.
    pub id: u32,
    /// When it was submitted, or requeued, in seconds since 1970.
    pub submitted: i64,
    /// How often it was requeued.
    pub restarts: u32,
}

impl SlurmKey {
    /// Whether what SLURM shows now is the job that was known by this key.
    #[must_use]
    pub fn is_now(&self, now: &Self) -> bool {
        let requeued = now.restarts > self.restarts && now.submitted >= self.submitted;
        let same = now.restarts == self.restarts && now.submitted == self.submitted;
        self.id == now.id && (same || requeued)
    }
}

/// Where a job comes from, and what a backend must know about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Whose it is, by name; empty if nobody knows.
    pub user: Box<str>,
    /// In SLURM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm: Option<SlurmOrigin>,
}

/// A job as SLURM has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlurmOrigin {
    /// What it is called.
    pub key: SlurmKey,
    /// Where it was submitted.
    pub partition: Box<str>,
    /// What it asked for, so that it can be given back as it was.
    pub asked: Request,
    /// How it saves what it has done.
    pub checkpoint: Checkpoint,
    /// Whether Wattline decides about it; others are only watched.
    pub controlled: bool,
    /// Whether what it asks for is left as it is: it is only told on which nodes, and SLURM gives
    /// it what it wants there.
    #[serde(default)]
    pub as_asked: bool,
}

/// What a job asked SLURM for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Nodes.
    pub nodes: u32,
    /// Tasks.
    pub tasks: u32,
    /// CPUs in all.
    pub cpus: u32,
    /// GPUs on each node.
    pub gpus_per_node: u32,
    /// Of this type, if it named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<Box<str>>,
    /// How it asked for GPUs.
    #[serde(default)]
    pub way: Per,
    /// Tasks on each node, if it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks_per_node: Option<u32>,
    /// Nodes that it must have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub required: Vec<Box<str>>,
    /// Nodes that it must not have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<Box<str>>,
}

/// How a job asks SLURM for GPUs. SLURM lets a request be changed only in the way it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// So many on each node.
    #[default]
    Node,
    /// So many in all.
    Job,
    /// So many for each task.
    Task(u32),
}

/// How a job saves what it has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checkpoint {
    /// When it gets SIGUSR1, however long that takes; then it ends by itself.
    Usr1,
    /// When it gets SIGTERM, before SLURM loses patience.
    #[default]
    Term,
    /// Never.
    None,
}

/// Energy, and what it cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drawn {
    /// What was drawn.
    pub energy: Joules,
    /// What that cost, with cooling and carbon.
    pub bill: Euros,
}

/// Something to remember beside the engine's events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalNote {
    /// A workload that was not known yet; it gets the next id.
    Workload(Box<str>),
    /// Where a job comes from.
    Origin {
        /// Which.
        job: JobId,
        /// From where.
        origin: Origin,
    },
    /// SLURM calls a job so from now on: it was started, or requeued.
    Key {
        /// Which.
        job: JobId,
        /// How.
        key: SlurmKey,
    },
    /// The power limits of a node's GPUs before they were touched.
    Before {
        /// Which node.
        node: Box<str>,
        /// In watts, GPU by GPU.
        limits: Vec<f64>,
    },
    /// A job has ended so, in SLURM's words.
    Ended {
        /// Which.
        job: JobId,
        /// How.
        how: Box<str>,
    },
    /// What a job's GPUs were measured to have drawn so far, in all.
    Drawn {
        /// Which.
        job: JobId,
        /// What, and what that cost.
        drawn: Drawn,
    },
    /// A job was started like this. What decides may change; what was done is kept.
    Placed {
        /// Which.
        job: JobId,
        /// How and where.
        placement: Placement,
        /// How long after it was told to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<Seconds>,
    },
    /// A job that was told to stop has left its GPUs, so long after it had saved.
    Left {
        /// Which.
        job: JobId,
        /// How long.
        after: Seconds,
    },
    /// A job's power limit was set.
    Limited {
        /// Which.
        job: JobId,
        /// To what.
        limit: Watts,
    },
    /// A job was asked for under a key, so that asking again does not make it twice.
    Request {
        /// Which.
        job: JobId,
        /// The key, with whose it is.
        key: Box<str>,
        /// Tells one request from another.
        fingerprint: u64,
    },
    /// The cluster would not start a job, in its own words.
    Refused {
        /// Which.
        job: JobId,
        /// What it said.
        said: Box<str>,
    },
}

/// A job that is to be taken in, by names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// What is asked for; which workload, follows from its name if there is one.
    pub job: Job,
    /// What it trains.
    pub workload: Option<Box<str>>,
    /// Where it comes from.
    pub origin: Option<Origin>,
    /// Whether it shall wait until its user lets it go.
    pub hold: bool,
    /// What it takes of its nodes' CPUs and memory, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostRequest>,
    /// The nodes that rules keep it from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bars: Option<Bars>,
}

/// Nodes that rules keep a job from, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bars {
    /// Which. In rising order.
    pub nodes: Vec<NodeId>,
    /// Over how many nodes it would run.
    pub over: u32,
    /// Which kind of rule.
    pub why: Refusal,
    /// In words, for its owner.
    pub said: Box<str>,
}

impl Bars {
    /// As the engine hears it, and what is remembered about it.
    #[must_use]
    pub fn told(self, job: JobId) -> (Event, JournalNote) {
        let Self { nodes, over, why, said } = self;
        (Event::Barred { job, nodes, over, why }, JournalNote::Refused { job, said })
    }
}

/// How many ended jobs of SLURM are remembered: more than SLURM shows, which is at most its
/// `MaxJobCount` (10,000 unless the site says otherwise).
const ENDED_IN_SLURM: usize = 16_384;

/// Names, and what jobs that are not over are to SLURM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobRegistry {
    workloads: Vec<Box<str>>,
    /// Shared with copies: there is one for each job that ever was.
    origins: BTreeMap<JobId, Arc<Origin>>,
    before: BTreeMap<Box<str>, Vec<f64>>,
    ended: BTreeMap<JobId, Arc<str>>,
    #[serde(default)]
    drawn: BTreeMap<JobId, Drawn>,
    /// Why jobs were not started the last time, in the cluster's words.
    #[serde(default)]
    refused: BTreeMap<JobId, Arc<str>>,
    /// Jobs of SLURM that have ended, in that order: SLURM shows them for a while.
    lately: VecDeque<JobId>,
    /// Those of them that were cancelled, and may still have to be cancelled there.
    cancelled: BTreeSet<JobId>,
    #[serde(skip)]
    by_name: BTreeMap<Box<str>, WorkloadId>,
    #[serde(skip)]
    by_number: BTreeMap<u32, JobId>,
}

impl JobRegistry {
    /// Knows these workloads.
    #[must_use]
    pub fn new(workloads: impl IntoIterator<Item = Box<str>>) -> Self {
        let mut registry = Self::default();
        for name in workloads {
            registry.note(&JournalNote::Workload(name));
        }
        registry
    }

    /// As it was written down: what can be looked up follows from that.
    #[must_use]
    pub(crate) fn looked_up(mut self) -> Self {
        for (name, id) in self.workloads.iter().zip((0..).map(WorkloadId)) {
            self.by_name.entry(name.clone()).or_insert(id);
        }
        for (job, origin) in &self.origins {
            self.by_number.extend(origin.slurm.as_ref().map(|slurm| (slurm.key.id, *job)));
        }
        self
    }

    /// Takes a note.
    pub fn note(&mut self, note: &JournalNote) {
        match note {
            JournalNote::Workload(name) => {
                let id = WorkloadId(self.workloads.len() as u32);
                self.by_name.entry(name.clone()).or_insert(id);
                self.workloads.push(name.clone());
            }
            JournalNote::Origin { job, origin } => {
                if let Some(slurm) = &origin.slurm {
                    self.by_number.insert(slurm.key.id, *job);
                }
                self.origins.insert(*job, Arc::new(origin.clone()));
            }
            // These are for whoever looks back, or for the engine.
            JournalNote::Placed { .. } | JournalNote::Left { .. } | JournalNote::Limited { .. } => {
            }
            JournalNote::Key { job, key } => {
                let origin = self.origins.get_mut(job).map(Arc::make_mut);
                if let Some(slurm) = origin.and_then(|origin| origin.slurm.as_mut()) {
                    slurm.key = *key;
                }
                self.refused.remove(job);
            }
            JournalNote::Before { node, limits } => {
                self.before.entry(node.clone()).or_insert_with(|| limits.clone());
            }
            JournalNote::Ended { job, how } => drop(self.ended.insert(*job, Arc::from(&**how))),
            JournalNote::Refused { job, said } => {
                self.refused.insert(*job, Arc::from(&**said));
            }
            JournalNote::Drawn { job, drawn } => drop(self.drawn.insert(*job, *drawn)),
            // Only the intake must know.
            JournalNote::Request { .. } => {}
        }
    }

    /// A job has ended. Of a job that is not SLURM's, or not ours to decide about, nothing is kept:
    /// if it runs again it comes in again.
    pub(crate) fn job_ended(&mut self, job: JobId, cancelled: bool) {
        if self.slurm(job).is_none_or(|slurm| !slurm.controlled) {
            self.forget(job);
            return;
        }
        self.lately.push_back(job);
        if cancelled {
            self.cancelled.insert(job);
        }
        if self.lately.len() > ENDED_IN_SLURM
            && let Some(oldest) = self.lately.pop_front()
        {
            self.forget(oldest);
        }
    }

    fn forget(&mut self, job: JobId) {
        let origin = self.origins.remove(&job);
        if let Some(slurm) = origin.as_ref().and_then(|origin| origin.slurm.as_ref())
            && self.by_number.get(&slurm.key.id) == Some(&job)
        {
            self.by_number.remove(&slurm.key.id);
        }
        self.ended.remove(&job);
        self.drawn.remove(&job);
        self.refused.remove(&job);
        self.cancelled.remove(&job);
    }

    /// Whether it is a job of SLURM that ended lately because it was cancelled.
    #[must_use]
    pub fn was_cancelled(&self, job: JobId) -> bool {
        self.cancelled.contains(&job)
    }

    /// What a workload is called.
    #[must_use]
    pub fn workload(&self, id: WorkloadId) -> Option<&str> {
        self.workloads.get(id.index()).map(|name| &**name)
    }

    /// The workload of that name.
    #[must_use]
    pub fn find_workload(&self, name: &str) -> Option<WorkloadId> {
        self.by_name.get(name).copied()
    }

    /// All workloads, by id.
    pub fn workloads(&self) -> impl Iterator<Item = &str> {
        self.workloads.iter().map(|name| &**name)
    }

    /// Where a job comes from.
    #[must_use]
    pub fn origin(&self, job: JobId) -> Option<&Origin> {
        self.origins.get(&job).map(|origin| &**origin)
    }

    /// Whose a job is, by name; by number, if nobody knows the name.
    #[must_use]
    pub fn user_of(&self, job: JobId, user: UserId) -> String {
        let named = self.origin(job).map(|origin| &*origin.user).filter(|name| !name.is_empty());
        named.map_or_else(|| format!("user-{}", user.0), str::to_owned)
    }

    /// What a job is to SLURM.
    #[must_use]
    pub fn slurm(&self, job: JobId) -> Option<&SlurmOrigin> {
        self.origins.get(&job)?.slurm.as_ref()
    }

    /// Why a job that waits was not started the last time, in the cluster's words.
    #[must_use]
    pub fn refused(&self, job: JobId) -> Option<&Arc<str>> {
        self.refused.get(&job)
    }

    /// The job that SLURM shows under this key.
    #[must_use]
    pub fn find(&self, now: &SlurmKey) -> Option<JobId> {
        let job = *self.by_number.get(&now.id)?;
        self.slurm(job)?.key.is_now(now).then_some(job)
    }

    /// What a job's GPUs were measured to have drawn.
    #[must_use]
    pub fn drawn(&self, job: JobId) -> Option<Drawn> {
        self.drawn.get(&job).copied()
    }

    /// All jobs that are SLURM's.
    pub fn in_slurm(&self) -> impl Iterator<Item = (JobId, &SlurmOrigin)> {
        self.origins.iter().filter_map(|(job, origin)| Some((*job, origin.slurm.as_ref()?)))
    }

    /// The power limits of a node's GPUs before they were touched.
    #[must_use]
    pub fn limits_before(&self, node: &str) -> Option<&[f64]> {
        self.before.get(node).map(|limits| &**limits)
    }

    /// How a job has ended.
    #[must_use]
    pub fn ended(&self, job: JobId) -> Option<&str> {
        self.ended.get(&job).map(|how| &**how)
    }
}
