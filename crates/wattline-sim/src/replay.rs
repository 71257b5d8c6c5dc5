//! A trace on a cluster: what a real cluster's jobs would do on this one.

use crate::instance::{Instance, widen};
use crate::scenario::plain_cluster;
use crate::trace::{self, Format, ReadStats, TraceError, TraceJob};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use thiserror::Error;
use wattline_core::cluster::ClusterError;
use wattline_core::ids::UserId;
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work};
use wattline_core::units::{EurosPerSecond, Seconds};
use wattline_world::catalogue::Catalogue;
use wattline_world::physics::Physics;

/// How a trace is put on a cluster.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// How many GPUs the cluster has; as many as `load` takes, if not set.
    pub gpus: Option<u32>,
    /// GPU-seconds asked for over GPU-seconds there.
    pub load: f64,
    /// GPUs in a node.
    pub gpus_per_node: u8,
    /// Which GPUs, by their name in the catalogue.
    pub gpu_type: String,
    /// What may be changed about the jobs; by format, if not set.
    pub elasticity: Option<Elasticity>,
    /// Whether running jobs may be stopped and started again; by format, if not set.
    pub preemptible: Option<bool>,
    /// What an hour of tardiness costs, for traces without weights.
    pub weight: EurosPerSecond,
    /// Gives jobs without a deadline one: this many times their run time after submission.
    pub deadline_slack: Option<f64>,
    /// Only the first so many jobs, by submission.
    pub first: Option<usize>,
    /// What a restart costs where the catalogue does not know the model.
    pub restart: Seconds,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self {
            gpus: None,
            load: 0.9,
            gpus_per_node: 8,
            gpu_type: "v100".to_owned(),
            elasticity: None,
            preemptible: None,
            weight: EurosPerSecond::new(1.0 / 3600.0),
            deadline_slack: None,
            first: None,
            restart: Seconds::new(60.0),
        }
    }
}

/// Why a trace cannot be replayed.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The trace itself.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// No such GPU.
    #[error("unknown GPU type '{name}': the catalogue has {known}")]
    UnknownGpu {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A size that makes no cluster.
    #[error("a cluster of {gpus} GPUs in nodes of {per_node} cannot be: {source}")]
    Cluster {
        /// GPUs.
        gpus: u32,
        /// GPUs in a node.
        per_node: u8,
        /// What is wrong.
        source: ClusterError,
    },
    /// Nodes without GPUs.
    #[error("a node needs 1 to 64 GPUs, not {0}")]
    PerNode(u8),
}

/// What a format's jobs let a scheduler do, unless somebody says otherwise: only ElasticFlow's
/// were recorded as elastic.
#[must_use]
pub fn default_elasticity(format: Format) -> Elasticity {
    match format {
        Format::Elasticflow => Elasticity::Malleable,
        _ => Elasticity::Rigid,
    }
}

/// Whether a format's jobs may be stopped and started again, unless somebody says otherwise. Only
/// ElasticFlow ran its jobs that way; accounting of other clusters does not say that a job can be
/// stopped without losing its work.
#[must_use]
pub fn default_preemptible(format: Format) -> bool {
    match format {
        Format::Elasticflow => true,
        Format::Philly | Format::Helios | Format::Alibaba | Format::Sacct => false,
    }
}

/// Reads a trace and puts it on a cluster.
///
/// # Errors
/// When the trace cannot be read or the cluster cannot be.
pub fn replay(
    path: &Path,
    format: Format,
    options: &ReplayOptions,
) -> Result<(Instance, ReadStats), ReplayError> {
    if options.gpus_per_node == 0 || options.gpus_per_node > 64 {
        return Err(ReplayError::PerNode(options.gpus_per_node));
    }
    let catalogue = Catalogue::built_in();
    let Some(card) = catalogue.gpu(&options.gpu_type) else {
        let known: Vec<&str> = catalogue.gpus().iter().map(|g| &*g.name).collect();
        return Err(ReplayError::UnknownGpu {
            name: options.gpu_type.chars().take(40).collect(),
            known: known.join(", "),
        });
    };
    let mut read: Vec<TraceJob> = Vec::new();
    let stats = trace::read(path, format, &mut |job| read.push(job))?;
    if let Some(first) = options.first {
        read.sort_by_key(|job| job.submit);
        read.truncate(first);
    }
    let (gpus, mut notes) = size(&read, options);
    let cluster = plain_cluster(&card.gpu_type(), gpus, options.gpus_per_node)
        .map_err(|source| ReplayError::Cluster { gpus, per_node: options.gpus_per_node, source })?;
    let cluster = Arc::new(cluster);
    let mut physics = Physics::new(Arc::clone(&cluster), None);
    let permitted = Permitted {
        elasticity: options.elasticity.unwrap_or_else(|| default_elasticity(format)),
        preemptible: options.preemptible.unwrap_or_else(|| default_preemptible(format)),
    };
    let mut users: HashMap<Box<str>, UserId> = HashMap::new();
    let mut clamped = 0_usize;
    let jobs = read
        .into_iter()
        .map(|job| {
            clamped += usize::from(job.gpus > gpus);
            let next = UserId(users.len() as u32);
            let user =
                job.user.clone().map_or(UserId(u32::MAX), |u| *users.entry(u).or_insert(next));
            fit(job, user, gpus, permitted, options, catalogue, &mut physics)
        })
        .collect();
    if clamped > 0 {
        notes.push(format!(
            "{clamped} jobs ask for more GPUs than the cluster has; they run on all {gpus}"
        ));
    }
    let name = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
    let mut instance = Instance::new(name, physics, cluster, jobs);
    notes.push(format!(
        "{} jobs on {gpus} GPUs ({} nodes of up to {} {}), offered load {:.2}, {}, {}",
        instance.jobs.len(),
        instance.cluster.nodes().len(),
        options.gpus_per_node,
        options.gpu_type,
        instance.offered_load(),
        permitted.elasticity,
        if permitted.preemptible { "preemptible" } else { "not preemptible" },
    ));
    instance.notes = notes;
    Ok((instance, stats))
}

/// How many GPUs: as asked, or as the load takes, in whole nodes, and enough for the largest job.
fn size(jobs: &[TraceJob], options: &ReplayOptions) -> (u32, Vec<String>) {
    if let Some(gpus) = options.gpus {
        return (gpus, Vec::new());
    }
    let asked: f64 = jobs.iter().map(|j| j.duration.get() * f64::from(j.gpus)).sum();
    let first = jobs.iter().map(|j| j.submit).min();
    let last = jobs.iter().map(|j| j.submit).max();
    let span = first.zip(last).map_or(0.0, |(first, last)| (last - first).get());
    let per_node = u32::from(options.gpus_per_node);
    let nodes =
        if span > 0.0 { (asked / (options.load * span) / f64::from(per_node)).ceil() } else { 1.0 };
    let largest = jobs.iter().map(|j| j.gpus).max().unwrap_or(1);
    let for_load = (nodes.clamp(1.0, 1e6) as u32).saturating_mul(per_node);
    let gpus = for_load.max(largest.div_ceil(per_node) * per_node);
    let mut notes = Vec::new();
    if gpus > for_load {
        notes.push(format!(
            "load {} takes {for_load} GPUs, the largest job {largest}: the cluster has {gpus}",
            options.load
        ));
    }
    (gpus, notes)
}

/// What may be changed about all jobs of a trace.
#[derive(Clone, Copy)]
struct Permitted {
    elasticity: Elasticity,
    preemptible: bool,
}

/// One trace job as a job of this cluster.
fn fit(
    trace: TraceJob,
    user: UserId,
    cluster_gpus: u32,
    permitted: Permitted,
    options: &ReplayOptions,
    catalogue: &Catalogue,
    physics: &mut Physics,
) -> Job {
    let known = trace.model.as_deref().and_then(|model| catalogue.workload(model));
    let workload = physics.by_duration(trace.model.as_deref());
    let slack = options.deadline_slack.map(|slack| trace.submit + trace.duration * slack);
    let gpus = trace.gpus.min(cluster_gpus);
    // Work is in seconds at the size that runs; on fewer GPUs than asked for there is more of it.
    let stretch =
        (f64::from(trace.gpus) / f64::from(gpus)).powf(wattline_world::physics::DEFAULT_SCALING);
    let mut job = Job {
        name: trace.name,
        user,
        workload,
        work: Work(trace.duration.get() * stretch),
        submit: trace.submit,
        deadline: trace.deadline.or(slack),
        weight: options.weight,
        elasticity: permitted.elasticity,
        gpus: Bounds::exactly(gpus),
        batch: Bounds::exactly(trace.batch.unwrap_or(256).max(gpus)),
        restart: known
            .map_or(RestartCost { save: Seconds::ZERO, load: options.restart }, |w| w.restart()),
        preemptible: permitted.preemptible,
        shapes: None,
        nodes: None,
    };
    widen(&mut job, cluster_gpus);
    job
}
