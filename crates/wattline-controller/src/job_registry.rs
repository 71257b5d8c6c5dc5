//! What the engine has no word for: names, and what jobs are to SLURM.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use wattline_core::engine::Event;
use wattline_core::host::HostRequest;
use wattline_core::ids::{JobId, NodeId, UserId, WorkloadId};
use wattline_core::job::Job;
use wattline_core::placement::Placement;
use wattline_core::plan::Refusal;
use wattline_core::units::{Euros, EurosPerSecond, Joules, Seconds, Watts};

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

/// How a job ended that SLURM does not show any more.
pub(crate) const ENDED_UNSEEN: &str = "gone";

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
    /// What SLURM's commands call it where that is not its plain number: a task of an array
    /// (`138_4`) or a part of a heterogeneous job (`138+1`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Box<str>>,
    /// The account that pays for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Box<str>>,
    /// Its quality of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<Box<str>>,
}

/// What people call a job. Where SLURM has it, both are SLURM's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobNumber {
    /// The number that stands in JSON: SLURM's number of the record, or the journal's.
    pub id: u32,
    /// What commands print and take: `138`, `138_4`, `138+1`.
    pub called: Arc<str>,
    /// Whether it is SLURM's.
    pub is_slurms: bool,
}

impl JobNumber {
    /// A job that SLURM does not have.
    #[must_use]
    pub fn of_journal(job: JobId) -> Self {
        Self { id: job.0, called: job.0.to_string().into(), is_slurms: false }
    }

    /// A job of SLURM.
    #[must_use]
    pub fn of_slurm(id: u32, address: Option<&str>) -> Self {
        let called = address.map_or_else(|| id.to_string().into(), Arc::from);
        Self { id, called, is_slurms: true }
    }
}

impl fmt::Display for JobNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.called)
    }
}

/// What a job's weight is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Priority {
    /// What its user said, or the site's default, cut at what is allowed.
    pub weight: EurosPerSecond,
    /// Its QOS, if that counts.
    pub qos: Option<Box<str>>,
    /// The factor for that.
    pub qos_factor: f64,
    /// The fairshare of its user in its account, from 0 to 1, if that counts.
    pub fairshare: Option<f64>,
    /// The factor for that.
    pub fairshare_factor: f64,
}

impl Priority {
    /// The weight that it comes to.
    #[must_use]
    pub fn comes_to(&self) -> EurosPerSecond {
        self.weight * (self.qos_factor * self.fairshare_factor)
    }
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
        origin: Arc<Origin>,
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
    /// A job was told to save and end, in the run that goes on.
    Asked {
        /// Which.
        job: JobId,
    },
    /// A job was restarted too often and is held; or it is no longer.
    RestartHold {
        /// Which.
        job: JobId,
        /// What its owner is told while it is held.
        said: Option<Box<str>>,
        /// Restarts before this time do not count, in seconds since 1970.
        since: i64,
    },
    /// What a job's weight is made of from now on.
    Priority {
        /// Which.
        job: JobId,
        /// What.
        priority: Priority,
    },
    /// Jobs of a user took so many times as long as the work they declared would have.
    Overrun {
        /// Whose.
        user: UserId,
        /// Of what workload.
        workload: Box<str>,
        /// How many times as long.
        factor: f64,
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
    /// What its weight is made of, where more than its user's word counts.
    pub priority: Option<Priority>,
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

/// No more restarts of a job are remembered: the most that a site may allow in a day.
pub(crate) const MOST_RESTARTS: usize = 1000;
/// No more users and workloads are remembered whose declared work did not hold. At 100 bytes each
/// this is a megabyte; beyond it the one with the smallest name is forgotten.
const MOST_OVERRUNS: usize = 10_000;

/// What became of a job's restarts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Restarts {
    /// When it was requeued, in seconds since 1970, of late.
    at: VecDeque<i64>,
    /// Restarts before this time do not count.
    since: i64,
    /// What its owner is told while it is held for them.
    held: Option<Arc<str>>,
    /// It was told to save and end in this run.
    asked: bool,
}

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
    #[serde(default)]
    restarts: BTreeMap<JobId, Restarts>,
    #[serde(default)]
    priorities: BTreeMap<JobId, Arc<Priority>>,
    /// How many times as long jobs took as they declared, by user and workload.
    #[serde(default)]
    overruns: BTreeMap<Box<str>, f64>,
    /// Jobs of SLURM that have ended, in that order: SLURM shows them for a while.
    lately: VecDeque<JobId>,
    /// Those of them that were cancelled, and may still have to be cancelled there.
    cancelled: BTreeSet<JobId>,
    #[serde(skip)]
    by_name: BTreeMap<Box<str>, WorkloadId>,
    #[serde(skip)]
    by_number: BTreeMap<u32, JobId>,
}

fn overrun_key(user: UserId, workload: &str) -> Box<str> {
    format!("{}/{workload}", user.0).into()
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
                self.origins.insert(*job, Arc::clone(origin));
            }
            // These are for whoever looks back, or for the engine.
            JournalNote::Placed { .. } | JournalNote::Left { .. } | JournalNote::Limited { .. } => {
            }
            JournalNote::Key { job, key } => {
                let origin = self.origins.get_mut(job).map(Arc::make_mut);
                if let Some(slurm) = origin.and_then(|origin| origin.slurm.as_mut()) {
                    if key.restarts > slurm.key.restarts {
                        let restarts = self.restarts.entry(*job).or_default();
                        restarts.asked = false;
                        restarts.at.push_back(key.submitted);
                        if restarts.at.len() > MOST_RESTARTS {
                            restarts.at.pop_front();
                        }
                    }
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
            JournalNote::Asked { job } => self.restarts.entry(*job).or_default().asked = true,
            JournalNote::RestartHold { job, said, since } => {
                let restarts = self.restarts.entry(*job).or_default();
                (restarts.held, restarts.since) = (said.as_deref().map(Arc::from), *since);
            }
            JournalNote::Priority { job, priority } => {
                self.priorities.insert(*job, Arc::new(priority.clone()));
            }
            JournalNote::Overrun { user, workload, factor } => {
                self.overruns.insert(overrun_key(*user, workload), *factor);
                if self.overruns.len() > MOST_OVERRUNS {
                    self.overruns.pop_first();
                }
            }
            // Only the intake must know.
            JournalNote::Request { .. } => {}
        }
    }

    /// A job has ended. Of a job that is not SLURM's, or not ours to decide about, or that SLURM does not
    /// show any more, nothing is kept: if it is seen again it comes in again.
    pub(crate) fn job_ended(&mut self, job: JobId, cancelled: bool) {
        // SLURM may show a job again that it did not show for a while: nobody has cancelled that one.
        let unseen = self.ended(job) == Some(ENDED_UNSEEN);
        if unseen || self.slurm(job).is_none_or(|slurm| !slurm.controlled) {
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
        self.restarts.remove(&job);
        self.priorities.remove(&job);
    }

    /// What people call a job. All commands, answers, alerts and log lines go by this.
    #[must_use]
    pub fn number(&self, job: JobId) -> JobNumber {
        self.slurm(job).map_or_else(
            || JobNumber::of_journal(job),
            |slurm| JobNumber::of_slurm(slurm.key.id, slurm.address.as_deref()),
        )
    }

    /// Whether a job was told to save and end in the run that goes on.
    #[must_use]
    pub fn was_asked(&self, job: JobId) -> bool {
        self.restarts.get(&job).is_some_and(|restarts| restarts.asked)
    }

    /// How often a job was restarted after that time, in seconds since 1970, and when first.
    #[must_use]
    pub fn restarts_after(&self, job: JobId, time: i64) -> (u32, Option<i64>) {
        let Some(restarts) = self.restarts.get(&job) else { return (0, None) };
        let counts = |at: &&i64| **at > time.max(restarts.since);
        let mut lately = restarts.at.iter().filter(counts).copied();
        let first = lately.next();
        (first.map_or(0, |_| 1 + lately.count() as u32), first)
    }

    /// Restarts of a job before this time do not count, in seconds since 1970.
    #[must_use]
    pub fn restarts_count_since(&self, job: JobId) -> i64 {
        self.restarts.get(&job).map_or(0, |restarts| restarts.since)
    }

    /// What the owner of a job is told that is held because it was restarted too often.
    #[must_use]
    pub fn restart_hold(&self, job: JobId) -> Option<&Arc<str>> {
        self.restarts.get(&job)?.held.as_ref()
    }

    /// What a job's weight is made of, where more than its user's word counts.
    #[must_use]
    pub fn priority(&self, job: JobId) -> Option<&Arc<Priority>> {
        self.priorities.get(&job)
    }

    /// How many times as long a user's jobs of a workload took as the work they declared. Of a
    /// workload that he has not run before, the most of his others: a new name buys nothing.
    #[must_use]
    pub fn overrun(&self, user: UserId, workload: &str) -> f64 {
        let known = self.overruns.get(&overrun_key(user, workload)).copied();
        let all = || {
            let first = overrun_key(user, "");
            let own = self.overruns.range(first.clone()..);
            let own = own.take_while(|(key, _)| key.starts_with(&*first));
            own.map(|(_, factor)| *factor).fold(1.0, f64::max)
        };
        known.unwrap_or_else(all)
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
        let key = self.slurm(job)?.key;
        // A job that has ended and that its owner requeues is a new one: it takes GPUs again.
        let ended = self.ended.contains_key(&job) || self.cancelled.contains(&job);
        let again = ended && now.restarts != key.restarts;
        (!again && key.is_now(now)).then_some(job)
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn registry(address: Option<&str>) -> JobRegistry {
        let asked = Request {
            nodes: 1,
            tasks: 1,
            cpus: 1,
            gpus_per_node: 1,
            gpu_type: None,
            way: Per::Node,
            tasks_per_node: None,
            required: Vec::new(),
            excluded: Vec::new(),
        };
        let slurm = SlurmOrigin {
            key: SlurmKey { id: 142, submitted: 1000, restarts: 0 },
            partition: "gpu".into(),
            asked,
            checkpoint: Checkpoint::None,
            controlled: true,
            as_asked: false,
            address: address.map(Into::into),
            account: None,
            qos: None,
        };
        let mut registry = JobRegistry::default();
        let origin = Origin { user: "alice".into(), slurm: Some(slurm) };
        registry.note(&JournalNote::Origin { job: JobId(3), origin: Arc::new(origin) });
        registry
    }

    #[test]
    fn jobs_are_called_as_slurm_calls_them_and_others_by_the_journal() {
        let number = registry(Some("138_4")).number(JobId(3));
        assert_eq!((number.id, &*number.called, number.is_slurms), (142, "138_4", true));
        assert_eq!(registry(None).number(JobId(3)).to_string(), "142");
        let other = registry(None).number(JobId(7));
        assert_eq!((other.id, other.to_string().as_str(), other.is_slurms), (7, "7", false));
    }

    #[test]
    fn restarts_are_counted_and_forgiven() {
        let mut registry = registry(None);
        let key = |restarts, submitted| SlurmKey { id: 142, submitted, restarts };
        for (restarts, submitted) in [(0, 1000), (1, 2000), (1, 2000), (2, 3000)] {
            registry.note(&JournalNote::Key { job: JobId(3), key: key(restarts, submitted) });
        }
        assert_eq!(registry.restarts_after(JobId(3), 0), (2, Some(2000)), "starts do not count");
        assert_eq!(registry.restarts_after(JobId(3), 2000), (1, Some(3000)));
        let note = JournalNote::RestartHold { job: JobId(3), said: None, since: 3000 };
        registry.note(&note);
        assert_eq!(registry.restarts_after(JobId(3), 0), (0, None));
        registry.note(&JournalNote::Asked { job: JobId(3) });
        assert!(registry.was_asked(JobId(3)));
        registry.note(&JournalNote::Key { job: JobId(3), key: key(3, 4000) });
        assert!(!registry.was_asked(JobId(3)), "it was asked in another run");
    }
}
