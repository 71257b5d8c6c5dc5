//! A placement in SLURM's words, and back.

use super::Slurm;
use super::instruction::{Begin, Gpus, JobShape, JobUpdate};
use super::read::SlurmJob;
use crate::job_registry::{Per, Request, SlurmOrigin};
use wattline_core::placement::Placement;

/// How a job runs, next to what was planned for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runs {
    /// SLURM does not say yet.
    Unknown,
    AsPlanned,
    /// On those nodes, with fewer GPUs than were kept for it.
    Within,
    Elsewhere,
}

impl Slurm {
    /// The changes that make a waiting job run so and there; none if SLURM has no words for it:
    /// GPUs are the same on all nodes.
    pub(super) fn told(&self, slurm: &SlurmOrigin, placement: &Placement) -> Option<JobUpdate> {
        let names = self.names(placement).join(",");
        if slurm.as_asked {
            return Some(only(names));
        }
        Some(update(&self.request(slurm, placement)?, names))
    }

    /// The changes that make a waiting job ask for what it asked for when it came.
    pub(super) fn told_as_before(&self, job: &SlurmJob, slurm: &SlurmOrigin) -> JobUpdate {
        let names = slurm.asked.required.join(",");
        if job.leads() {
            // SLURM lets no nodes be named for the first part of such a job.
            let (begin, excluded) = (Some(Begin::Now), Some(slurm.asked.excluded.join(",")));
            return JobUpdate { excluded, begin, ..JobUpdate::default() };
        }
        if slurm.as_asked {
            return only(names);
        }
        update(&slurm.asked, names)
    }

    fn request(&self, slurm: &SlurmOrigin, placement: &Placement) -> Option<Request> {
        let mut counts = placement.allocation.shares().map(|share| share.count());
        let per_node = counts.next()?;
        if !counts.all(|count| count == per_node) {
            return None;
        }
        let nodes = placement.allocation.shares().count() as u32;
        let asked = &slurm.asked;
        let (gpus, asked_gpus) = (per_node * nodes, (asked.gpus_per_node * asked.nodes).max(1));
        let most = placement.allocation.shares().filter_map(|share| {
            let node = self.site.node(share.node);
            let seen = self.seen.as_ref()?.nodes.get(&*node.name)?;
            Some(seen.cpus / u32::from(node.gpus))
        });
        let most = most.min().unwrap_or(u32::MAX).max(1);
        // As many tasks for each GPU as it asked for, or one on each node.
        let tasks = match asked.way {
            Per::Task(each) => gpus / each.max(1),
            _ if asked.tasks <= asked.nodes => nodes,
            _ => asked.tasks.saturating_mul(gpus).div_ceil(asked_gpus),
        };
        let tasks = tasks.max(1).next_multiple_of(nodes);
        let cpus_per_gpu = asked.cpus.div_ceil(asked_gpus).clamp(1, most);
        Some(Request {
            nodes,
            tasks,
            cpus: (cpus_per_gpu * gpus).max(tasks),
            gpus_per_node: per_node,
            tasks_per_node: asked.tasks_per_node.map(|_| tasks / nodes),
            ..asked.clone()
        })
    }

    pub(super) fn names(&self, placement: &Placement) -> Vec<String> {
        placement.allocation.shares().map(|s| self.site.node(s.node).name.to_string()).collect()
    }

    /// Whether a waiting job asks for just this.
    pub(super) fn asks_for(
        &self,
        job: &SlurmJob,
        slurm: &SlurmOrigin,
        placement: &Placement,
    ) -> bool {
        let mut required = job.required_nodes.clone();
        required.sort();
        let mut names = self.names(placement);
        names.sort();
        if job.leads() {
            return job.excluded_nodes.len() == self.all_but(&names).len();
        }
        let gpus = slurm.as_asked || job.gpus_asked() == placement.configuration.gpus;
        required == names && gpus
    }

    /// The names of all other nodes.
    pub(super) fn all_but(&self, names: &[String]) -> Vec<String> {
        let Some(seen) = &self.seen else { return Vec::new() };
        seen.nodes.keys().filter(|name| !names.contains(name)).cloned().collect()
    }

    /// How a job runs, next to a placement.
    pub(super) fn runs(&self, job: &SlurmJob, slurm: &SlurmOrigin, placement: &Placement) -> Runs {
        let shares = placement.allocation.shares();
        let planned: Vec<(&str, u32)> =
            shares.map(|share| (&*self.site.node(share.node).name, share.count())).collect();
        if slurm.asked.gpus_per_node == 0 {
            // It has no GPUs of its own.
            let there = job.nodes.len() == planned.len()
                && planned.iter().all(|(name, _)| job.nodes.iter().any(|node| node == name));
            return if there { Runs::AsPlanned } else { Runs::Elsewhere };
        }
        if job.gpus.is_empty() {
            return Runs::Unknown;
        }
        let kept = |on: &super::read::NodeGpus| {
            planned.iter().find(|(name, _)| on.node == *name).map_or(0, |(_, count)| *count)
        };
        let same = job.gpus.len() == planned.len();
        if same && job.gpus.iter().all(|on| on.count == kept(on)) {
            Runs::AsPlanned
        } else if slurm.as_asked && job.gpus.iter().all(|on| on.count <= kept(on)) {
            Runs::Within
        } else {
            Runs::Elsewhere
        }
    }
}

/// Only the nodes of a waiting job change.
fn only(names: String) -> JobUpdate {
    JobUpdate { required: Some(names), begin: Some(Begin::Now), ..JobUpdate::default() }
}

/// A waiting job asks for this.
fn update(request: &Request, names: String) -> JobUpdate {
    let Request { nodes, tasks, cpus, gpus_per_node, gpu_type, way, tasks_per_node, .. } = request;
    let gpus = |count: u32| match gpu_type {
        Some(gpu_type) => format!("gpu:{gpu_type}:{count}"),
        None => format!("gpu:{count}"),
    };
    let gpus = match way {
        Per::Node => Gpus::PerNode(gpus(*gpus_per_node)),
        // As many as there are tasks: but with `--cpus-per-gpu` SLURM 22.05 answers `BadConstraints`
        // unless it is told how many in all.
        Per::Job | Per::Task(_) => Gpus::PerJob(gpus(gpus_per_node * nodes)),
    };
    let shape = JobShape {
        nodes: *nodes,
        tasks: *tasks,
        cpus: *cpus,
        gpus,
        tasks_per_node: *tasks_per_node,
    };
    JobUpdate { shape: Some(shape), ..only(names) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::instruction::{Instruction, JobName};
    use super::*;

    fn asked(way: Per, gpu_type: Option<&str>) -> Request {
        Request {
            nodes: 1,
            tasks: 2,
            cpus: 4,
            gpus_per_node: 2,
            gpu_type: gpu_type.map(Into::into),
            way,
            tasks_per_node: None,
            required: Vec::new(),
            excluded: Vec::new(),
        }
    }

    /// SLURM refuses an update that leaves the type out, and one that leaves the sum out where GPUs are
    /// asked for by task and CPUs by GPU.
    #[test]
    fn an_update_keeps_the_type_and_says_how_many_gpus_in_all() {
        let has = |way, gpu_type, text: &str| {
            let update = update(&asked(way, gpu_type), "n1".into());
            let line = Instruction::Update(JobName::numbered(7), update).line();
            let args = line.args;
            assert!(args.iter().any(|arg| arg == text), "{text}: {args:?}");
        };
        has(Per::Node, Some("h100"), "Gres=gpu:h100:2");
        has(Per::Node, None, "Gres=gpu:2");
        has(Per::Job, Some("h100"), "TresPerJob=gres:gpu:h100:2");
        has(Per::Task(1), Some("h100"), "TresPerJob=gres:gpu:h100:2");
        has(Per::Task(1), None, "NumTasks=2");
    }
}
