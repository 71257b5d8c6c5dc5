//! CPUs and memory: what jobs ask for and what nodes have, as SLURM's records show them.
//!
//! A job that waits is counted with the least that it can take. What SLURM gives beyond that, and what
//! is taken by jobs that the engine does not know, is the difference between what a node's record says
//! is allocated and what the engine counts there: it is taken by others.

use super::Slurm;
use super::read::{Memory, SlurmJob, SlurmNode};
use super::rules::Rules;
use crate::backend::{BackendEvent, Known};
use wattline_core::engine::Event;
use wattline_core::host::{HostAmount, HostRequest, NodeHost};
use wattline_core::ids::NodeId;

/// What a job takes of its nodes. `fixed`: its number of GPUs does not change, so that SLURM divides
/// what it asks for as a whole among its nodes; otherwise it goes with the GPUs.
pub(super) fn request(job: &SlurmJob, fixed: bool, rules: &Rules) -> HostRequest {
    let none = HostAmount::default();
    let nodes = match job.nodes.len() as u32 {
        0 => job.node_count.unwrap_or(1).max(1),
        there => there,
    };
    let gpus = job.gpus_asked();
    let cpus = job.cpus.unwrap_or(0);
    let (mut per_node, mut per_gpu) = (none, none);
    match job.cpus_per_gpu {
        Some(each) if gpus > 0 => per_gpu.cpus = each,
        _ if fixed || gpus == 0 => per_node.cpus = cpus / nodes,
        _ => per_gpu.cpus = cpus / gpus,
    }
    let mut all_memory = false;
    match (job.memory_per_gpu, job.memory) {
        (Some(each), _) if gpus > 0 => per_gpu.memory_mib = each.into(),
        (_, Some(Memory::PerNode(0) | Memory::PerCpu(0))) => all_memory = true,
        (_, Some(Memory::PerNode(amount))) => per_node.memory_mib = amount,
        (_, Some(Memory::PerCpu(each))) => {
            per_node.memory_mib = each.saturating_mul(per_node.cpus.into());
            per_gpu.memory_mib = each.saturating_mul(per_gpu.cpus.into());
        }
        (_, None) => {}
    }
    if !rules.counts_memory {
        (per_node.memory_mib, per_gpu.memory_mib, all_memory) = (0, 0, false);
    }
    HostRequest { per_node, per_gpu, all_cpus: job.exclusive, all_memory }
}

/// What a node has for jobs; what is not counted there is without limit.
pub(super) fn all_of(node: &SlurmNode, rules: &Rules) -> HostAmount {
    let counts_memory = rules.counts_memory && node.real_memory > 0;
    let shares = |name: &String| rules.partitions.get(name).is_some_and(|p| p.shares_cpus);
    let shares = node.partitions.iter().any(shares);
    HostAmount {
        cpus: if shares { u32::MAX } else { node.cpus },
        memory_mib: if counts_memory { node.real_memory } else { u64::MAX },
    }
}

impl Slurm {
    /// Nodes whose CPUs or memory are not as they are known.
    pub(super) fn host_news(&mut self, known: Known<'_>, news: &mut Vec<BackendEvent>) {
        let Some(seen) = self.seen.clone() else { return };
        if self.host_looked == Some(seen.nodes_began) {
            return;
        }
        self.host_looked = Some(seen.nodes_began);
        for id in self.site.cluster.node_ids() {
            let Some(node) = seen.nodes.get(&*self.site.node(id).name) else { continue };
            let all = all_of(node, &seen.rules);
            let memory_mib = if all.memory_mib < u64::MAX { node.alloc_memory } else { 0 };
            let cpus = if all.cpus < u32::MAX { node.alloc_cpus } else { 0 };
            let engine = known.engine.state();
            let is_there =
                |job: &SlurmJob| job.state.holds_gpus() && job.nodes.contains(&node.name);
            let counted = engine.node(id).held.iter().fold(HostAmount::default(), |sum, held| {
                let there = seen.job(held.job).is_some_and(is_there);
                let request = engine.find_job(held.job).and_then(|job| job.host).filter(|_| there);
                sum.plus(request.map_or(HostAmount::default(), |request| {
                    request.on(held.mask.count_ones(), all)
                }))
            });
            let taken = HostAmount { cpus, memory_mib }.minus(counted);
            let host = NodeHost { all, taken };
            if self.is_new_host(id, engine.node(id).host, host) {
                news.push(BackendEvent::Event(Event::NodeHost { node: id, host }));
            }
        }
    }

    /// Jobs and nodes are not read at the same instant, so that a job that starts in between looks for
    /// one look as if others had taken more. So more counts when two looks agree, less at once.
    fn is_new_host(&mut self, id: NodeId, known: Option<NodeHost>, host: NodeHost) -> bool {
        if known == Some(host) {
            self.host_seen.remove(&id);
            return false;
        }
        let less = known.is_none_or(|known| {
            known.all != host.all
                || (host.taken.cpus <= known.taken.cpus
                    && host.taken.memory_mib <= known.taken.memory_mib)
        });
        let agrees = self.host_seen.insert(id, host) == Some(host);
        if less || agrees {
            self.host_seen.remove(&id);
        }
        less || agrees
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::read;
    use super::*;

    fn job(fields: &str) -> SlurmJob {
        let text = format!(
            "{{\"jobs\":[{{\"job_id\":7,\"submit_time\":1795043307,\"restart_cnt\":0,\
             \"user_id\":1000,\"name\":\"x\",\"partition\":\"gpu\",\"job_state\":\"PENDING\",\
             \"priority\":0,{fields}}}]}}"
        );
        read::jobs(&text).unwrap().remove(0)
    }

    fn amount(cpus: u32, memory_mib: u64) -> HostAmount {
        HostAmount { cpus, memory_mib }
    }

    #[test]
    fn what_a_job_asks_for_is_read_in_each_of_slurms_ways() {
        let rules = Rules::default();
        let all = amount(64, 500_000);
        let of = |fields: &str, fixed, gpus| request(&job(fields), fixed, &rules).on(gpus, all);
        let gpus = "\"tres_per_node\":\"gres:gpu:4\",\"node_count\":1";
        let per_cpu = format!("{gpus},\"cpus\":8,\"memory_per_cpu\":100");
        assert_eq!(of(&per_cpu, true, 4), amount(8, 800));
        assert_eq!(of(&per_cpu, false, 2), amount(4, 400), "an elastic job takes less with fewer");
        let per_node = format!("{gpus},\"cpus\":8,\"memory_per_node\":200000");
        assert_eq!(of(&per_node, true, 4), amount(8, 200_000));
        let per_gpu = format!(
            "{gpus},\"cpus\":1,\"cpus_per_tres\":\"gres:gpu:6\",\"memory_per_tres\":\"gres:gpu:1000\""
        );
        assert_eq!(of(&per_gpu, true, 4), amount(24, 4000));
        let whole = format!("{gpus},\"cpus\":1,\"memory_per_node\":0,\"shared\":\"none\"");
        assert_eq!(of(&whole, true, 4), all, "all memory, and all CPUs for itself");
        let two = "\"tres_per_node\":\"gres:gpu:4\",\"node_count\":2,\"cpus\":16";
        assert_eq!(of(two, true, 4), amount(8, 0), "divided among its nodes");
        let uncounted = Rules { counts_memory: false, ..Rules::default() };
        assert_eq!(request(&job(&per_node), true, &uncounted).on(4, all), amount(8, 0));
    }
}
