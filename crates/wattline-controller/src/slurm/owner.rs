//! What owners change about jobs that wait: `scontrol update` on their GPUs, nodes, CPUs, memory, time
//! limit, features, partition.
//!
//! SLURM lets them, and shows the job as it asks now. What we have changed ourselves, to start it
//! somewhere, is no wish of its owner's. So a job that waits is compared with how it was shown the
//! look before, while nothing was sent about it: what differs, its owner has changed.

use super::Slurm;
use super::read::{GpuCount, Memory, SlurmJob};
use crate::backend::{BackendEvent, Known};
use crate::job_registry::{JournalNote, Origin, Per, SlurmOrigin};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::engine::Event;
use wattline_core::ids::JobId;
use wattline_core::job::{Elasticity, Job};
use wattline_core::units::Seconds;

/// What a job is shown to ask for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Asks {
    size: Size,
    required: Vec<String>,
    excluded: Vec<String>,
    exclusive: bool,
    features: Option<String>,
    memory: Option<Memory>,
    memory_per_gpu: Option<u32>,
    time_limit: Option<Seconds>,
    partition: String,
    reservation: Option<String>,
    /// How often it was requeued: an elastic job is looked at anew, since more is known of it.
    restarts: u32,
}

/// What we change ourselves when a job starts otherwise than it asked.
#[derive(Clone, Debug, PartialEq)]
struct Size {
    per_node: Option<GpuCount>,
    per_job: Option<GpuCount>,
    per_task: Option<GpuCount>,
    nodes: Option<u32>,
    tasks: Option<u32>,
    cpus: Option<u32>,
}

impl Asks {
    pub(super) fn of(job: &SlurmJob) -> Self {
        Self {
            size: Size {
                per_node: job.gpus_per_node.clone(),
                per_job: job.gpus_per_job.clone(),
                per_task: job.gpus_per_task.clone(),
                nodes: job.node_count,
                tasks: job.tasks,
                cpus: job.cpus,
            },
            required: job.required_nodes.clone(),
            excluded: job.excluded_nodes.clone(),
            exclusive: job.exclusive,
            features: job.features.clone(),
            memory: job.memory,
            memory_per_gpu: job.memory_per_gpu,
            time_limit: job.time_limit,
            partition: job.partition.clone(),
            reservation: job.reservation.clone(),
            restarts: job.key.restarts,
        }
    }
}

/// The job as its owner wants it: what he has not changed is as it was when it came, whatever we have
/// made of it since.
fn as_owner_wants(job: &SlurmJob, before: &Asks, slurm: &SlurmOrigin) -> SlurmJob {
    let (now, asked) = (Asks::of(job), &slurm.asked);
    let mut job = job.clone();
    if now.size == before.size && !slurm.as_asked {
        let gpu_type = asked.gpu_type.as_ref().map(|name| name.to_string());
        let count = |count| Some(GpuCount { count, gpu_type });
        (job.gpus_per_node, job.gpus_per_job, job.gpus_per_task) = (None, None, None);
        match asked.way {
            Per::Node => job.gpus_per_node = count(asked.gpus_per_node),
            Per::Job => job.gpus_per_job = count(asked.gpus_per_node * asked.nodes),
            Per::Task(each) => job.gpus_per_task = count(each),
        }
        job.node_count = Some(asked.nodes);
        (job.tasks, job.cpus) = (Some(asked.tasks), Some(asked.cpus));
    }
    if now.required == before.required {
        job.required_nodes = asked.required.iter().map(|name| name.to_string()).collect();
    }
    job
}

impl Slurm {
    /// A job that waits: what its owner has changed since the last look counts from now on.
    pub(super) fn owner_news(
        &mut self,
        now: Timestamp,
        id: JobId,
        job: &SlurmJob,
        known: Known<'_>,
        news: &mut Vec<BackendEvent>,
    ) {
        let Some(origin) = known.registry.origin(id) else { return };
        let Some(slurm) = origin.slurm.as_ref().filter(|slurm| slurm.controlled) else { return };
        if !self.controls() || !job.held || !job.state.waits() || job.het_job_id.is_some() {
            self.asks.remove(&id);
            self.submitted.remove(&job.key.id);
            return;
        }
        let Some(record) = self.seen.as_ref().and_then(|seen| seen.record(id)).cloned() else {
            return;
        };
        let before = self.asks.insert(id, Arc::clone(&record));
        // What its owner has changed since the look at which it came in counts too.
        let came = self.submitted.remove(&job.key.id).filter(|came| *came != Asks::of(job));
        let Some(state) = known.engine.state().find_job(id) else { return };
        let elastic = state.job.elasticity == Elasticity::Malleable;
        let empty = state.job.shapes.as_ref().is_some_and(|shapes| shapes.is_empty());
        let before = match before {
            // A record that says nothing new is the same one.
            Some(before) if Arc::ptr_eq(&before, &record) && !empty => return,
            Some(before) => {
                let (before, asks) = (Asks::of(&before), Asks::of(job));
                // What could not run anywhere may be possible since nodes have changed.
                if before == asks && !(empty && self.eligibility(&state.job, job).is_some()) {
                    return;
                }
                before
            }
            None => match came {
                Some(came) => came,
                // An elastic job that comes back: its time limit is looked at with what is known by now.
                None if job.key.restarts > 0 && elastic => Asks::of(job),
                None => return,
            },
        };
        let wanted = as_owner_wants(job, &before, slurm);
        let submission = match self.submission(now, &wanted, true, known) {
            Ok(submission) => submission,
            Err(why) => {
                self.complain(format!("job {}: what its owner has changed: {why}", job.address()));
                return;
            }
        };
        let asked = Job {
            workload: state.job.workload,
            work: if submission.workload.as_deref() == Some(super::SECONDS) {
                submission.job.work
            } else {
                state.job.work
            },
            deadline: state.job.deadline,
            weight: state.job.weight,
            submit: state.job.submit,
            // A stop that SLURM refused once it refuses again.
            preemptible: submission.job.preemptible && state.job.preemptible,
            ..submission.job
        };
        if asked != *state.job {
            let slurm = submission.origin.and_then(|origin| origin.slurm);
            let key = |slurm: SlurmOrigin| SlurmOrigin { controlled: true, ..slurm };
            let origin = Origin { user: origin.user.clone(), slurm: slurm.map(key) };
            let event = Event::Asked { job: id, asked: Arc::new(asked) };
            news.push(BackendEvent::Noted(
                event,
                JournalNote::Origin { job: id, origin: Arc::new(origin) },
            ));
        }
        if let Some(request) = submission.host.filter(|request| state.host != Some(*request)) {
            news.push(BackendEvent::Event(Event::HostAsked { job: id, request }));
        }
    }
}
