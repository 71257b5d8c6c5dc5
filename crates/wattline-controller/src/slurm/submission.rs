//! Jobs that came in by `sbatch`.

use super::Slurm;
use super::command::printable;
use super::eligibility::{self, Eligibility};
use super::host;
use super::metadata::{self, Asked, Range, Told, When};
use super::orders::Target;
use super::owner::Asks;
use super::priority::priority;
use super::read::SlurmJob;
use super::reconcile::is_running;
use super::rules::Subject;
use super::seen::key;
use super::time_limit;
use crate::backend::{BackendEvent, Known};
use crate::job_registry::{Checkpoint, Origin, Priority, Request, SlurmOrigin, Submission};
use jiff::tz::{Offset, TimeZone};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::ids::{UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work};
use wattline_core::units::Seconds;

/// What is said of a job's name at most.
const LONGEST_NAME: usize = 128;
/// Jobs of which only the run time at the size they ask for is known: their work is in seconds.
pub const SECONDS: &str = "seconds";

impl Slurm {
    /// Jobs that nobody has told of yet. Those of other partitions count while they run: they hold
    /// GPUs.
    pub(super) fn submissions(
        &mut self,
        now: Timestamp,
        known: Known<'_>,
        news: &mut Vec<BackendEvent>,
    ) {
        let Some(seen) = self.seen.clone() else { return };
        for job in seen.strangers(known.registry) {
            if job.state.is_over() || !self.is_settled(Target::Job(job.key.id)) {
                continue;
            }
            let mine = self.site.looks_after(&job.partition);
            let here = job.nodes.iter().any(|node| self.site.find(node).is_some());
            let counts = mine || (here && is_running(job));
            // One without GPUs needs a node that is up, and only we let it go.
            let bare = job.gpus_asked() == 0 && !(mine && self.controls() && job.state.waits());
            // Tasks of arrays are jobs as soon as they have records of their own.
            if !counts || bare || job.is_whole_array() || self.is_early(now, job, mine) {
                continue;
            }
            match self.submission(now, job, mine, known) {
                Ok(submission) => {
                    self.adopts |= job.state.holds_gpus();
                    self.submitted.insert(job.key.id, Asks::of(job));
                    news.push(BackendEvent::Submission(Box::new(submission)));
                }
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
    pub(super) fn submission(
        &mut self,
        now: Timestamp,
        job: &SlurmJob,
        mine: bool,
        known: Known<'_>,
    ) -> Result<Submission, &'static str> {
        let waits = job.state.waits();
        let told = self.asked(job);
        for complaint in &told.complaints {
            self.complain(format!("job {}: {complaint}", job.address()));
        }
        let asked = told.asked;
        let controlled = mine && self.controls();
        let defaults = &self.site.config.defaults;
        let requested = job.gpus_asked();
        let nodes = job.node_count.unwrap_or(1).max(1);
        // SLURM counts those that come with GPUs only when it starts the job. It refuses fewer CPUs for
        // each task than come with its GPUs.
        let with_gpus = job.cpus_per_gpu.unwrap_or(0).saturating_mul(requested);
        let request = Request {
            nodes,
            tasks: job.tasks.unwrap_or(nodes).max(1),
            cpus: job.cpus.unwrap_or(1).max(with_gpus).max(1),
            gpus_per_node: requested.div_ceil(nodes),
            gpu_type: job.gpu_type().map(|name| printable(name).into()),
            way: eligibility::way(job),
            tasks_per_node: job.tasks_per_node,
            required: job.required_nodes.iter().map(|name| name.as_str().into()).collect(),
            excluded: job.excluded_nodes.iter().map(|name| name.as_str().into()).collect(),
        };
        let checkpoint = asked.checkpoint.unwrap_or(defaults.checkpoint);
        let gpus = bounds(asked.gpus, requested);
        let preemptible = mine && job.can_be_requeued() && checkpoint != Checkpoint::None;
        let elasticity = elasticity(&asked, defaults.elasticity, preemptible);
        // Users' times are SLURM's.
        let ahead = self.clock_ahead;
        let submit = Timestamp::from_seconds(job.key.submit.seconds()) - ahead;
        let limit = job.time_limit.unwrap_or(defaults.time_limit);
        let time_to_end = self.time_to_end(job, limit);
        let workload_is_known = asked.work.is_some();
        let (workload, work) = match asked.work {
            Some(work) => {
                let workload = self.workload(job, &asked);
                // Work that was declared and did not hold before is not believed again.
                let times = known.registry.overrun(UserId(job.user_id), &workload);
                (workload, Work(work.0 * times))
            }
            None => (SECONDS.to_owned(), Work(limit.get())),
        };
        let mut name: String = printable(&job.name).chars().take(LONGEST_NAME).collect();
        if let Some(task) = job.array_task_id {
            name += &format!("_{task}");
        }
        let weight = asked.weight.unwrap_or(defaults.weight);
        let accounting = self.accounting.as_ref().filter(|_| controlled);
        let priority = priority(&self.site.config, accounting, job, weight);
        let due = asked
            .deadline
            .map(|due| due - ahead)
            .unwrap_or(submit + limit * defaults.deadline.clamp(0.0, 1e6));
        let mut shaped = Job {
            name: name.into(),
            user: UserId(job.user_id),
            workload: WorkloadId(0),
            work,
            submit,
            deadline: Some(due.max(submit)),
            weight: priority.comes_to(),
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
            let Eligibility { shapes, nodes } = match self.eligibility(&shaped, job) {
                Some(found) => found,
                // It waits all the same, and its owner is told why.
                None if controlled => Eligibility { shapes: Arc::default(), nodes: None },
                None => return Err("no node of its partition has such GPUs"),
            };
            if let (Some(_), Some(shape)) = (&nodes, shapes.first()) {
                // What it gets on those nodes is SLURM's to say, so it keeps it.
                shaped.elasticity = Elasticity::Rigid;
                shaped.gpus = Bounds::exactly(shape.gpus);
                shaped.preemptible = false;
            }
            shaped.nodes = nodes.map(Arc::new);
            let shapes = match known.registry.find_workload(&workload) {
                _ if shaped.elasticity == Elasticity::Rigid => shapes,
                Some(workload) if workload_is_known => {
                    shaped.workload = workload;
                    let (cluster, predictor) = (&self.site.cluster, known.engine.predictor());
                    time_limit::in_time(&shaped, &shapes, time_to_end, |shape| {
                        predictor.predict(&shaped, &cluster.plain_configuration(&shaped, shape))
                    })
                }
                _ => time_limit::no_fewer(&shaped, &shapes),
            };
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
            as_asked: shaped.elasticity == Elasticity::Rigid,
            address: Some(job.shown())
                .filter(|shown| *shown != job.key.id.to_string())
                .map(Into::into),
            account: job.account.as_deref().map(|account| printable(account).into()),
            qos: job.qos.as_deref().map(|qos| printable(qos).into()),
        };
        let origin = Some(Origin { user: user.into(), slurm: Some(slurm) });
        let hold = waits && asked.hold.unwrap_or(false);
        let fixed = shaped.elasticity == Elasticity::Rigid;
        let host = self.seen.as_ref().map(|seen| host::request(job, fixed, &seen.rules));
        let bars = self.seen.as_ref().filter(|_| waits && mine).and_then(|seen| {
            let over = self.over(&shaped);
            let subject = Subject { shown: job, job: &shaped, host, over, runs: false };
            self.bars(now, subject, seen)
        });
        let says = |priority: &Priority| priority.qos.is_some() || priority.fairshare.is_some();
        let (workload, priority) = (Some(workload.into()), Some(priority).filter(says));
        Ok(Submission { job: shaped, workload, origin, hold, host, bars, priority })
    }

    /// How long it may take: its time limit, or what that may become.
    fn time_to_end(&self, job: &SlurmJob, limit: Seconds) -> Seconds {
        let seen = self.seen.as_ref().filter(|_| self.site.config.extend_time_limit);
        let most = seen.map(|seen| seen.rules.max_time(&job.partition));
        most.map_or(limit, |most| most.map_or(Seconds::new(f64::INFINITY), |most| most.max(limit)))
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
    fn asked(&self, job: &SlurmJob) -> Told {
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
