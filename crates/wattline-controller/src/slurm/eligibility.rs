//! Where a waiting job may run, in the engine's words.
//!
//! Jobs that may have other numbers of GPUs get the shapes that SLURM can be asked for. All others
//! keep what they asked for, and are told on which nodes. Where not any node will do, or SLURM alone
//! knows how it divides GPUs among nodes, enough is kept on so many nodes for whatever it does.

use super::Slurm;
use super::read::{SlurmJob, SlurmNode};
use crate::job_registry::Per;
use std::sync::Arc;
use wattline_core::cluster::Shape;
use wattline_core::ids::{GpuTypeId, NodeId};
use wattline_core::job::{Elasticity, Job, NodeChoice};

/// Where a job may run.
#[derive(Debug)]
pub(super) struct Eligibility {
    pub(super) shapes: Arc<[Shape]>,
    /// Only on these nodes; any that have the shape's GPUs, otherwise.
    pub(super) nodes: Option<NodeChoice>,
}

/// How a job asks for its GPUs.
pub(super) fn way(job: &SlurmJob) -> Per {
    match (&job.gpus_per_job, &job.gpus_per_node, &job.gpus_per_task) {
        (Some(_), ..) => Per::Job,
        (None, Some(_), _) | (None, None, None) => Per::Node,
        (None, None, Some(each)) => Per::Task(each.count.max(1)),
    }
}

impl Slurm {
    /// Where a job may run; none if its partition has no such place.
    pub(super) fn eligibility(&self, shaped: &Job, job: &SlurmJob) -> Option<Eligibility> {
        if job.het_job_id.is_some() {
            return self.eligibility_of_part(job);
        }
        let open = !job.names_nodes() && !job.exclusive;
        let shapes = if open { self.shapes(shaped, job) } else { Arc::default() };
        if shapes.is_empty() {
            self.certain(job)
        } else {
            Some(Eligibility { shapes, nodes: None })
        }
    }

    /// The shapes that SLURM can be asked for: GPUs of the job's partition and of the type it names,
    /// as many on each node.
    fn shapes(&self, shaped: &Job, job: &SlurmJob) -> Arc<[Shape]> {
        let cluster = &self.site.cluster;
        let (nodes, gpus) = (job.node_count.unwrap_or(1).max(1), job.gpus_asked());
        if gpus == 0 || gpus % nodes != 0 {
            return Arc::default();
        }
        let fits = |shape: &Shape| {
            let size = cluster.largest_node(shape.gpu_type);
            let whole = shape.gpus.is_multiple_of(size);
            match (shaped.elasticity, way(job)) {
                // It gets as many nodes as it asks for.
                (Elasticity::Rigid, _) if nodes == 1 => shape.gpus <= size,
                (Elasticity::Rigid, _) => whole && shape.gpus / size == nodes,
                (_, Per::Task(each)) if !shape.gpus.is_multiple_of(each) => false,
                // SLURM 22.05 gives a single task with `--cpus-per-gpu` the GPUs of two.
                (_, Per::Task(each)) if job.cpus_per_gpu.is_some() && shape.gpus <= each => false,
                _ => shape.gpus <= size || whole,
            }
        };
        let meant = |shape: &Shape| {
            let every = |is: &dyn Fn(&SlurmNode) -> bool| self.all_nodes(shape.gpu_type, is);
            self.site.serves(shape.gpu_type, &job.partition) && every(&|node| suits(job, node))
        };
        cluster.menu(shaped).iter().copied().filter(fits).filter(meant).collect()
    }

    fn all_nodes(&self, gpu_type: GpuTypeId, is: &dyn Fn(&SlurmNode) -> bool) -> bool {
        let Some(seen) = &self.seen else { return false };
        let mut of_type = self.site.cluster.nodes().iter().filter(|n| n.gpu_type == gpu_type);
        of_type.all(|node| seen.nodes.get(&*node.name).is_some_and(is))
    }

    /// Certain nodes, and on each as many GPUs as the job can get there at most.
    pub(super) fn certain(&self, job: &SlurmJob) -> Option<Eligibility> {
        let cluster = &self.site.cluster;
        let find = |names: &[String]| {
            let mut ids: Vec<NodeId> = names.iter().filter_map(|n| self.site.find(n)).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        let required = find(&job.required_nodes);
        if job.required_nodes.iter().any(|name| self.site.find(name).is_none()) {
            return None;
        }
        let mut found: Option<(u32, Vec<Shape>, Vec<NodeId>)> = None;
        for gpu_type in cluster.gpu_type_ids() {
            if !self.site.serves(gpu_type, &job.partition) {
                continue;
            }
            let allowed: Vec<NodeId> =
                cluster.node_ids().filter(|id| self.allows(job, *id, gpu_type)).collect();
            let (count, each) = room(job, cluster.largest_node(gpu_type), required.len() as u32);
            let all = required.iter().all(|id| allowed.contains(id));
            let enough = allowed.iter().filter(|id| u32::from(cluster.node(**id).gpus) >= each);
            if each == 0 || !all || enough.count() < count as usize {
                continue;
            }
            let (one, shapes, nodes) = found.get_or_insert((count, Vec::new(), Vec::new()));
            if *one == count {
                shapes.push(Shape { gpu_type, gpus: each * count });
                nodes.extend(allowed);
            }
        }
        let (count, shapes, mut allowed) = found?;
        if required.len() == count as usize {
            allowed.clone_from(&required);
        }
        allowed.sort_unstable();
        let nodes = NodeChoice { count, required: required.into(), allowed: allowed.into() };
        Some(Eligibility { shapes: shapes.into(), nodes: Some(nodes) })
    }

    fn allows(&self, job: &SlurmJob, id: NodeId, gpu_type: GpuTypeId) -> bool {
        let node = self.site.node(id);
        let seen = self.seen.as_ref().and_then(|seen| seen.nodes.get(&*node.name));
        node.gpu_type == gpu_type
            && !job.excluded_nodes.iter().any(|name| **name == *node.name)
            && seen.is_some_and(|seen| suits(job, seen))
    }
}

/// How many nodes a job takes, and how many GPUs it can get on one of them at most.
fn room(job: &SlurmJob, size: u32, required: u32) -> (u32, u32) {
    let gpus = job.gpus_asked();
    let asked = job.node_count.unwrap_or(1).max(1).max(required);
    let count = match way(job) {
        Per::Job | Per::Task(_) => asked.max(gpus.div_ceil(size.max(1))),
        Per::Node => asked,
    };
    let each = match way(job) {
        // Nobody else finds room beside it.
        _ if job.exclusive => size,
        // It takes the place of one on the books, so that its node is up and paid for.
        _ if gpus == 0 => 1,
        Per::Node => job.gpus_per_node.as_ref().map_or(0, |gpus| gpus.count),
        Per::Job | Per::Task(_) => size.min(gpus.saturating_sub(count - 1)),
    };
    (count, if each > size { 0 } else { each })
}

/// Whether a node has GPUs called as the job wants them, and the features it names: names with `&`
/// or `|` in between. What else SLURM lets one write is for SLURM to understand; all nodes that have
/// any of the names may be meant.
pub(super) fn suits(job: &SlurmJob, node: &SlurmNode) -> bool {
    let called = job.gpu_type().is_none_or(|name| node.gpus.gpu_type.as_deref() == Some(name));
    let has = |one: &str| node.features.iter().any(|feature| *feature == one.trim());
    let featured = job.features.as_deref().is_none_or(|list| {
        if list.contains(['|', '[', ']', '(', ')', '*', ',', '!']) {
            let names =
                list.split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '.')));
            names.filter(|name| !name.is_empty()).any(has)
        } else {
            list.split('&').all(has)
        }
    });
    called && featured
}
