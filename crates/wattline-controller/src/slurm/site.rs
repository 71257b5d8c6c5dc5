//! A cluster under SLURM: what an administrator says about it, and its nodes by name.

use super::actuator::{Actuator, Files};
use super::config::Config;
use super::rest::Version;
use super::seen::Seen;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;
use wattline_core::cluster::{Cluster, Node};
use wattline_core::ids::{GpuTypeId, NodeId};

/// What does not fit between a site's file and SLURM.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SiteError {
    /// SLURM has no such node.
    #[error("nodes: SLURM has no node {0}; see `sinfo -N`")]
    NoNode(String),
    /// It has other GPUs.
    #[error("nodes: {node} has {says} GPUs here and {has} in SLURM (Gres)")]
    Gpus {
        /// Which node.
        node: String,
        /// What the file says.
        says: u32,
        /// What SLURM says.
        has: u32,
    },
    /// A partition that does not have a node.
    #[error(
        "nodes: {node} is not in partition {partition} in SLURM; say under [[nodes]] which partitions its nodes are in"
    )]
    Partition {
        /// Which.
        partition: String,
        /// Which node is missing.
        node: String,
    },
    /// Not everything that control needs can be done.
    #[error(
        "slurm.rest: slurmrestd {version} cannot {lacking}; mode = \"control\" needs SLURM's commands for that \
         ({commands}). Install them here, or say slurm.rest.partial = true: then jobs that it cannot stop are left \
         where they run, nodes stay as they are, and arrays wait"
    )]
    Orders {
        /// The version that it speaks.
        version: Version,
        /// What it cannot do.
        lacking: String,
        /// Why the commands do not help.
        commands: String,
    },
}

/// The cluster as the engine knows it, and how to reach it.
pub struct Site {
    pub(super) config: Config,
    pub(super) cluster: Arc<Cluster>,
    by_name: BTreeMap<Box<str>, NodeId>,
    /// GPU type by GPU type, the partitions that its nodes are in; empty: all.
    partitions: Vec<Vec<String>>,
    /// Node by node; none where limits cannot be set.
    actuators: Vec<Option<Box<dyn Actuator>>>,
}

impl Site {
    /// A site. `limits`: node by node, the folder of its limits if it has one. `partitions`: GPU
    /// type by GPU type, those that its nodes are in; empty: all.
    #[must_use]
    pub fn new(
        config: Config,
        cluster: Arc<Cluster>,
        limits: &[Option<PathBuf>],
        partitions: Vec<Vec<String>>,
    ) -> Self {
        let actuator = |folder: &Option<PathBuf>| {
            folder.clone().map(|folder| Box::new(Files(folder)) as Box<dyn Actuator>)
        };
        let by_name = cluster.node_ids().map(|id| (cluster.node(id).name.clone(), id)).collect();
        let actuators = limits.iter().map(actuator).collect();
        Self { config, cluster, by_name, partitions, actuators }
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        self.cluster.node(id)
    }

    pub(super) fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    pub(super) fn actuator(&self, id: NodeId) -> Option<&dyn Actuator> {
        self.actuators.get(id.index())?.as_deref()
    }

    pub(super) fn looks_after(&self, partition: &str) -> bool {
        // A job may name several, of which SLURM takes one.
        partition.split(',').any(|one| self.config.partitions.iter().any(|mine| mine == one))
    }

    /// Whether a job of this partition, or of one of several, may have GPUs of this type.
    pub(super) fn serves(&self, gpu_type: GpuTypeId, partition: &str) -> bool {
        let has = self.partitions_of(gpu_type);
        partition.split(',').any(|one| has.iter().any(|mine| mine == one))
    }

    fn partitions_of(&self, gpu_type: GpuTypeId) -> &[String] {
        let own = self.partitions.get(gpu_type.index()).filter(|own| !own.is_empty());
        own.unwrap_or(&self.config.partitions)
    }

    /// Whether SLURM has what the file says.
    pub(super) fn check(&self, seen: &Seen) -> Vec<SiteError> {
        let mut wrong = Vec::new();
        for node in self.cluster.nodes() {
            let name = node.name.to_string();
            let Some(slurm) = seen.nodes.get(&name) else {
                wrong.push(SiteError::NoNode(name));
                continue;
            };
            if slurm.gpus.count != u32::from(node.gpus) {
                let (says, has) = (node.gpus.into(), slurm.gpus.count);
                wrong.push(SiteError::Gpus { node: name.clone(), says, has });
            }
            for partition in self.partitions_of(node.gpu_type) {
                if !slurm.partitions.contains(partition) {
                    let (partition, node) = (partition.clone(), name.clone());
                    wrong.push(SiteError::Partition { partition, node });
                }
            }
        }
        wrong
    }
}
