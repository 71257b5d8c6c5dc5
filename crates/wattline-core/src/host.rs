//! CPUs and memory of nodes, and what jobs take of them beside their GPUs.
//!
//! Both are optional: a node without figures has no limit, and a job without a request takes nothing.
//! What is counted for a waiting job is the least that it can take. A cluster may round that up (whole
//! cores, for example); then it refuses the start, which is heard as a refusal.

use crate::ids::{JobId, NodeId};
use crate::plan::{Decision, JobChange};
use crate::state::{Resident, State};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

/// CPUs, and memory in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostAmount {
    /// CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
}

impl HostAmount {
    /// The sum; what is more than can be counted stays that.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpus: self.cpus.saturating_add(other.cpus),
            memory_mib: self.memory_mib.saturating_add(other.memory_mib),
        }
    }

    /// What is left; nothing where more is taken than there is.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            cpus: self.cpus.saturating_sub(other.cpus),
            memory_mib: self.memory_mib.saturating_sub(other.memory_mib),
        }
    }

    /// What of it `free` does not have.
    #[must_use]
    pub fn short_of(self, free: Self) -> Option<Shortage> {
        if self.memory_mib > free.memory_mib {
            Some(Shortage::Memory { needed_mib: self.memory_mib, free_mib: free.memory_mib })
        } else if self.cpus > free.cpus {
            Some(Shortage::Cpus { needed: self.cpus, free: free.cpus })
        } else {
            None
        }
    }
}

/// What a job takes on each of its nodes: so much whatever its GPUs there, and so much for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostRequest {
    /// Whatever its GPUs are.
    pub per_node: HostAmount,
    /// For each of its GPUs.
    pub per_gpu: HostAmount,
    /// It takes all CPUs of its nodes.
    pub all_cpus: bool,
    /// It takes all memory of its nodes.
    pub all_memory: bool,
}

impl HostRequest {
    /// What it takes with so many GPUs on a node that has `all`.
    #[must_use]
    pub fn on(&self, gpus: u32, all: HostAmount) -> HostAmount {
        let for_gpus = HostAmount {
            cpus: self.per_gpu.cpus.saturating_mul(gpus),
            memory_mib: self.per_gpu.memory_mib.saturating_mul(u64::from(gpus)),
        };
        let sum = self.per_node.plus(for_gpus);
        HostAmount {
            cpus: if self.all_cpus { sum.cpus.max(all.cpus) } else { sum.cpus },
            memory_mib: if self.all_memory {
                sum.memory_mib.max(all.memory_mib)
            } else {
                sum.memory_mib
            },
        }
    }

    /// Whether it asks for no less than another one, whatever the GPUs.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let more = |a: HostAmount, b: HostAmount| a.cpus >= b.cpus && a.memory_mib >= b.memory_mib;
        more(self.per_node, other.per_node)
            && more(self.per_gpu, other.per_gpu)
            && self.all_cpus >= other.all_cpus
            && self.all_memory >= other.all_memory
    }
}

/// The CPUs and the memory of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeHost {
    /// All there is for jobs.
    pub all: HostAmount,
    /// What is taken by those who are not among the engine's jobs.
    pub taken: HostAmount,
}

/// Which of them there is too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortage {
    /// CPUs.
    Cpus {
        /// What the job takes there.
        needed: u32,
        /// What is free.
        free: u32,
    },
    /// Memory, in MiB.
    Memory {
        /// What the job takes there.
        needed_mib: u64,
        /// What is free.
        free_mib: u64,
    },
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpus { needed, free } => {
                write!(f, "needs {needed} CPUs on a node, {free} are free on one with its GPUs")
            }
            Self::Memory { needed_mib, free_mib } => write!(
                f,
                "needs {needed_mib} MiB of memory on a node, {free_mib} are free on one with its GPUs"
            ),
        }
    }
}

impl State {
    /// What these jobs take on a node.
    fn host_taken<'r>(
        &self,
        node: NodeId,
        residents: impl Iterator<Item = &'r Resident>,
    ) -> HostAmount {
        let Some(host) = self.node(node).host else { return HostAmount::default() };
        let none = HostAmount::default();
        residents.fold(none, |sum, resident| {
            let request = self.find_job(resident.job).and_then(|job| job.host);
            let own = request.map_or(none, |r| r.on(resident.mask.count_ones(), host.all));
            sum.plus(own)
        })
    }

    /// What is left on a node beside these jobs. None: there is no limit.
    pub fn host_left<'r>(
        &self,
        node: NodeId,
        residents: impl Iterator<Item = &'r Resident>,
    ) -> Option<HostAmount> {
        let host = self.node(node).host?;
        Some(host.all.minus(host.taken).minus(self.host_taken(node, residents)))
    }

    /// Whether what a job takes with so many GPUs fits on a node beside these jobs, or what is short.
    ///
    /// # Errors
    /// What there is too little of.
    pub fn host_fits<'r>(
        &self,
        id: JobId,
        gpus: u32,
        node: NodeId,
        residents: impl Iterator<Item = &'r Resident>,
    ) -> Result<(), Shortage> {
        let (Some(host), Some(request)) = (self.node(node).host, self.job(id).host) else {
            return Ok(());
        };
        let left = self.host_left(node, residents.filter(|resident| resident.job != id));
        let short = left.and_then(|left| request.on(gpus, host.all).short_of(left));
        short.map_or(Ok(()), Err)
    }

    /// Jobs that a plan puts on nodes without enough CPUs or memory for them, beside whoever stays
    /// there or was put there before them, and where.
    #[must_use]
    pub fn host_misfits(&self, changes: &[JobChange]) -> Vec<(JobId, NodeId, Shortage)> {
        if !self.counts_host() {
            return Vec::new();
        }
        let mut wrong = Vec::new();
        let mut changed: Vec<JobId> = changes.iter().map(|change| change.job).collect();
        changed.sort_unstable();
        let mut after: std::collections::BTreeMap<NodeId, SmallVec<[Resident; 4]>> =
            std::collections::BTreeMap::new();
        let is_there = |id: JobId, node: NodeId, mask: u64| {
            let planned = self.job(id).planned.as_ref();
            planned.is_some_and(|p| p.allocation.shares().any(|s| s.node == node && s.mask == mask))
        };
        let runs = |change: &JobChange| match &change.decision {
            Decision::Run(placement) => Some((change.job, placement.clone())),
            Decision::Wait => None,
        };
        // Who is there already was counted when he came.
        for comes in [false, true] {
            for (id, placement) in changes.iter().filter_map(runs) {
                for share in placement.allocation.shares() {
                    if is_there(id, share.node, share.mask) == comes {
                        continue;
                    }
                    let here = after.entry(share.node).or_insert_with(|| {
                        let residents = self.node(share.node).planned.iter();
                        let stays = |r: &&Resident| changed.binary_search(&r.job).is_err();
                        residents.filter(stays).copied().collect()
                    });
                    let gpus = share.mask.count_ones();
                    if comes && let Err(short) = self.host_fits(id, gpus, share.node, here.iter()) {
                        wrong.push((id, share.node, short));
                        continue;
                    }
                    let limit = placement.configuration.power_limit;
                    here.push(Resident { job: id, mask: share.mask, limit });
                }
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_job_takes_grows_with_its_gpus() {
        let amount = |cpus, memory_mib| HostAmount { cpus, memory_mib };
        let request = HostRequest {
            per_node: amount(1, 100),
            per_gpu: amount(4, 1000),
            ..HostRequest::default()
        };
        let all = amount(64, 500_000);
        assert_eq!(request.on(0, all), amount(1, 100));
        assert_eq!(request.on(8, all), amount(33, 8100));
        let whole = HostRequest { all_cpus: true, all_memory: true, ..request };
        assert_eq!(whole.on(1, all), all);
        assert!(whole.covers(&request) && !request.covers(&whole));
        let most = HostRequest { per_gpu: amount(u32::MAX, u64::MAX), ..request };
        assert_eq!(most.on(8, all), amount(u32::MAX, u64::MAX), "saturates");
    }

    #[test]
    fn what_is_short_is_told_with_numbers() {
        let free = HostAmount { cpus: 4, memory_mib: 1000 };
        let needs = |cpus, memory_mib| HostAmount { cpus, memory_mib }.short_of(free);
        assert_eq!(needs(4, 1000), None);
        assert_eq!(needs(5, 1000), Some(Shortage::Cpus { needed: 5, free: 4 }));
        let memory = Shortage::Memory { needed_mib: 1001, free_mib: 1000 };
        assert_eq!(needs(5, 1001), Some(memory));
        assert!(memory.to_string().contains("needs 1001 MiB of memory"), "{memory}");
    }
}
