//! Jobs that came in by `sbatch`.

use super::Slurm;
use super::command::printable;
use super::metadata::{self, Asked, Range, Told, When};
use super::read::{SlurmJob, SlurmNode};
use super::seen::key;
use crate::backend::{Known, News};
use crate::directory::{Checkpoint, Origin, Request, SlurmOrigin, Submission};
use jiff::tz::{Offset, TimeZone};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::cluster::Shape;
use wattline_core::ids::{GpuTypeId, UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work};

/// What is said of a job's name at most.
const LONGEST_NAME: usize = 128;
/// Jobs of which only the run time at the size they ask for is known: their work is in seconds.
pub const SECONDS: &str = "seconds";

impl Slurm {
    /// Jobs that nobody has told of yet. Those of other partitions count while they run: they hold
    /// GPUs.
    pub(super) fn submissions(&mut self, known: Known<'_>, news: &mut Vec<News>) {
        let Some(seen) = self.seen.clone() else { return };
        for job in seen.strangers(known.directory) {
            if job.state.is_over() {
                continue;
            }
            let mine = self.site.looks_after(&job.partition);
            let here = job.nodes.iter().any(|node| self.site.find(node).is_some());
            let counts = mine || (here && job.state.holds_gpus());
            // Tasks of arrays are jobs as soon as they have records of their own.
            if !counts || job.gpus_asked() == 0 || job.is_whole_array() {
                continue;
            }
            match self.submission(job, mine) {
                Ok(submission) => news.push(News::Submission(Box::new(submission))),
                // Where nobody decides it waits for SLURM, and is known as soon as it runs.
                Err(why) => {
                    if self.controls() && self.refused.insert(job.key.id) {
                        self.complaints.push(format!("job {} waits: {why}", job.address()));
                    }
                }
            }
        }
    }

    /// What a job asks for. One that cannot be placed is left alone.
    fn submission(&mut self, job: &SlurmJob, mine: bool) -> Result<Submission, &'static str> {
        let waits = job.state.waits();
        if job.het_job_id.is_some() {
            return Err(
                "heterogeneous jobs are not placed yet; `wattline release` gives it to SLURM",
            );
        }
        if waits && job.key.restarts == 0 && job.names_nodes() {
            return Err(
                "jobs for certain nodes (-w, -x) are not placed yet; `wattline release` gives it to SLURM",
            );
        }
        let told = self.told(job);
        for complaint in &told.complaints {
            self.complain(format!("job {}: {complaint}", job.address()));
        }
        let asked = told.asked;
        let controlled = mine && self.controls();
        let defaults = &self.site.config.defaults;
        let requested = job.gpus_asked();
        let nodes = job.node_count.unwrap_or(1).max(1);
        let request = Request {
            nodes,
            tasks: job.tasks.unwrap_or(nodes).max(1),
            cpus: job.cpus.unwrap_or(1).max(1),
            gpus_per_node: requested.div_ceil(nodes),
            gpu_type: job.gpu_type().map(|name| printable(name).into()),
        };
        let checkpoint = asked.checkpoint.unwrap_or(defaults.checkpoint);
        let gpus = bounds(asked.gpus, requested);
        let preemptible = mine && job.requeue && checkpoint != Checkpoint::None;
        let elasticity = elasticity(&asked, defaults.elasticity, preemptible);
        let submit = Timestamp::from_seconds(job.key.submit.seconds());
        let limit = job.time_limit.unwrap_or(defaults.time_limit);
        let (workload, work) = match asked.work {
            Some(work) => (self.workload(job, &asked), work),
            None => (SECONDS.to_owned(), Work(limit.get())),
        };
        let mut name: String = printable(&job.name).chars().take(LONGEST_NAME).collect();
        if let Some(task) = job.array_task_id {
            name += &format!("_{task}");
        }
        let weight = asked.weight.unwrap_or(defaults.weight);
        let due = asked.deadline.unwrap_or(submit + limit * defaults.deadline.clamp(0.0, 1e6));
        let mut shaped = Job {
            name: name.into(),
            user: UserId(job.user_id),
            workload: WorkloadId(0),
            work,
            submit,
            deadline: Some(due.max(submit)),
            weight: if weight > defaults.max_weight { defaults.max_weight } else { weight },
            elasticity,
            gpus: if elasticity == Elasticity::Rigid { Bounds::exactly(requested) } else { gpus },
            batch: Bounds::exactly(bounds(asked.batch, defaults.batch).requested),
            restart: RestartCost {
                save: asked.save.unwrap_or(defaults.save),
                load: asked.load.unwrap_or(defaults.load),
            },
            preemptible,
            shapes: None,
            nodes: None,
        };
        if waits {
            let shapes = self.shapes(&shaped, job);
            if shapes.is_empty() {
                return Err(
                    "its partition has no such GPUs with the features it names on all of their nodes, or not as many on each node",
                );
            }
            shaped.shapes = Some(shapes);
        }
        shaped.validate().map_err(|_| "what it asks for makes no sense")?;
        let user = job.user_name.as_deref().map(printable).unwrap_or_default();
        let slurm = SlurmOrigin {
            key: key(job),
            partition: printable(&job.partition).into(),
            asked: request,
            checkpoint,
            controlled,
        };
        let origin = Some(Origin { user: user.into(), slurm: Some(slurm) });
        let hold = waits && asked.hold.unwrap_or(false);
        Ok(Submission { job: shaped, workload: Some(workload.into()), origin, hold })
    }

    /// Jobs of the same name of the same user are taken for the same workload unless he says
    /// otherwise.
    fn workload(&self, job: &SlurmJob, asked: &Asked) -> String {
        asked.workload.clone().unwrap_or_else(|| {
            let name: String = printable(&job.name).chars().take(LONGEST_NAME).collect();
            format!("{}/{name}", job.user_id)
        })
    }

    /// What the user says: what the gate kept of it, where there is one.
    fn told(&self, job: &SlurmJob) -> Told {
        self.told_by_gate(job).unwrap_or_else(|| {
            let comment = job.comment.as_deref().unwrap_or("");
            metadata::comment(comment, When { submit: job.key.submit, zone: &self.zone() })
        })
    }

    /// What the gate kept of what the user says; none if the job did not come through it.
    pub(super) fn told_by_gate(&self, job: &SlurmJob) -> Option<Told> {
        let when = When { submit: job.key.submit, zone: &self.zone() };
        metadata::admin_comment(job.admin_comment.as_deref()?, when)
    }

    fn zone(&self) -> TimeZone {
        let offset = self.site.config.defaults.utc_offset.seconds();
        TimeZone::fixed(Offset::from_seconds(offset as i32).unwrap_or(Offset::UTC))
    }

    /// The shapes that SLURM can give: GPUs of the job's partition and of the type it names, as many
    /// on each node.
    fn shapes(&self, shaped: &Job, job: &SlurmJob) -> Arc<[Shape]> {
        let cluster = &self.site.cluster;
        let even = |shape: &Shape| {
            let size = cluster.largest_node(shape.gpu_type);
            shape.gpus <= size || shape.gpus.is_multiple_of(size)
        };
        let meant = |shape: &Shape| {
            self.site.serves(shape.gpu_type, &job.partition)
                && job.gpu_type().is_none_or(|name| self.is_called(shape.gpu_type, name))
                && job.features.as_deref().is_none_or(|list| self.has_all(shape.gpu_type, list))
        };
        cluster.menu(shaped).iter().copied().filter(even).filter(meant).collect()
    }

    /// Whether SLURM calls GPUs of this type so.
    fn is_called(&self, gpu_type: GpuTypeId, name: &str) -> bool {
        self.all_nodes(gpu_type, |node| node.gpus.gpu_type.as_deref() == Some(name))
    }

    /// Whether all nodes with GPUs of this type have these features: names with `&` in between.
    /// What else SLURM lets one write is understood by no node.
    fn has_all(&self, gpu_type: GpuTypeId, features: &str) -> bool {
        let has = |node: &SlurmNode, one: &str| node.features.iter().any(|feature| feature == one);
        self.all_nodes(gpu_type, |node| features.split('&').all(|one| has(node, one.trim())))
    }

    fn all_nodes(&self, gpu_type: GpuTypeId, is: impl Fn(&SlurmNode) -> bool) -> bool {
        let Some(seen) = &self.seen else { return false };
        let mut of_type = self.site.cluster.nodes().iter().filter(|n| n.gpu_type == gpu_type);
        of_type.all(|node| seen.nodes.get(&*node.name).is_some_and(&is))
    }
}

fn bounds(range: Option<Range>, default: u32) -> Bounds {
    let default = default.max(1);
    let Some(Range { min, max, requested }) = range else { return Bounds::exactly(default) };
    let (min, max) = (min.max(1), max.max(min).max(1));
    Bounds { min, max, requested: requested.unwrap_or(default).clamp(min, max) }
}

/// A batch cannot be changed from here: that is for the job to do.
fn elasticity(asked: &Asked, default: Elasticity, preemptible: bool) -> Elasticity {
    let ranges = asked.gpus.is_some_and(|range| range.min < range.max);
    let wish = asked.elasticity.unwrap_or(match (ranges, preemptible) {
        (true, true) => Elasticity::Malleable,
        (true, false) => Elasticity::Moldable,
        (false, _) => default,
    });
    match wish {
        Elasticity::Adaptive | Elasticity::Malleable if preemptible => Elasticity::Malleable,
        Elasticity::Adaptive | Elasticity::Malleable => Elasticity::Moldable,
        other => other,
    }
}
