//! A site's file: machines, prices and budget as in a scenario, and a `[slurm]` table.

use crate::commands::predict::read_groups;
use crate::failure::{Failure, Result};
use crate::output;
use crate::source::read_scenario;
use anyhow::anyhow;
use std::path::Path;
use std::sync::Arc;
use wattline_controller::slurm::{Config, Mode, SECONDS, Site, Slurm};
use wattline_controller::{Beginning, Foresight, Watch};
use wattline_core::Timestamp;
use wattline_core::cluster::Node;
use wattline_core::engine::Engine;
use wattline_core::ids::{GpuTypeId, WorkloadId};
use wattline_core::state::State;
use wattline_predict::learner::Learner;
use wattline_sim::scenario::SiteParts;

/// Where the package puts a site's file, and the controller's journal.
pub(crate) const USUAL: &str = "/etc/wattline/wattline.toml";
pub(crate) const USUAL_JOURNAL: &str = "/var/lib/wattline/journal";

/// A site that was read.
pub(crate) struct Live {
    name: String,
    pub(crate) file: String,
    pub(crate) config: Config,
    pub(crate) parts: SiteParts,
}

/// Reads a site's file.
pub(crate) fn read(path: &Path) -> Result<Live> {
    let (scenario, file) = read_scenario(path)?;
    let Some(table) = scenario.slurm.clone() else {
        return Err(Failure::input(anyhow!(
            "{file}: no [slurm] table; this is a scenario, not a site"
        )));
    };
    let config: Config = serde_path_to_error::deserialize(table).map_err(|error| {
        let field = error.path().to_string();
        Failure::input(anyhow!("{file}: slurm.{field}: {}", error.into_inner()))
    })?;
    if config.partitions.is_empty() {
        return Err(Failure::input(anyhow!(
            "{file}: slurm.partitions: name at least one partition; `sinfo -s` lists them"
        )));
    }
    let parts = scenario.site(&file).map_err(Failure::input)?;
    let mut named = parts.partitions.iter().flatten();
    if let Some(other) = named.find(|name| !config.partitions.contains(name)) {
        return Err(Failure::input(anyhow!(
            "{file}: nodes.partitions: {} is not among slurm.partitions",
            output::harmless(other)
        )));
    }
    Ok(Live { name: scenario.name, file, config, parts })
}

impl Live {
    /// The engine as it begins, and SLURM behind it.
    pub(crate) fn begin(&self, policy: &str) -> Result<(Beginning, Slurm)> {
        let at = Timestamp::ZERO;
        let cluster = Arc::clone(&self.parts.cluster);
        let mut learner = Learner::new(Arc::clone(&cluster));
        let mut workloads: Vec<Box<str>> = vec![SECONDS.into()];
        if let Some(path) = &self.parts.measurements {
            for ((workload, gpu), readings) in read_groups(path)? {
                let types = cluster.gpu_type_ids();
                let types: Vec<GpuTypeId> =
                    types.filter(|id| *cluster.gpu_type(*id).name == *gpu).collect();
                let at = workloads.iter().position(|name| **name == *workload);
                let at = at.unwrap_or_else(|| {
                    workloads.push(workload.clone());
                    workloads.len() - 1
                });
                for (gpu, reading) in
                    types.iter().flat_map(|gpu| readings.iter().map(move |r| (gpu, r)))
                {
                    if let Err(error) = learner.import(WorkloadId(at as u32), *gpu, reading) {
                        output::note(&format!("{}: {workload}: {error}", path.display()));
                    }
                }
            }
        }
        let controls = self.config.mode == Mode::Control;
        let policy: Box<dyn wattline_core::policy::Policy> = if controls {
            wattline_policies::policy(policy).map_err(Failure::input)?
        } else {
            Box::new(Watch)
        };
        let engine = Engine::new(
            self.parts.engine.clone(),
            State::new(Arc::clone(&cluster), at),
            policy,
            Box::new(Foresight::new(learner, Arc::clone(&cluster))),
            self.parts.prices.clone(),
            // What is only watched is not kept below anything.
            self.parts.budget.clone().filter(|_| controls),
        );
        let partitions = self.parts.partitions.clone();
        let site = Site::new(self.config.clone(), cluster, &self.parts.limits, partitions);
        Ok((Beginning { engine, workloads, at }, Slurm::new(site)))
    }

    /// What a journal of it says it is about: the machines, as they count for the engine.
    pub(crate) fn identity(&self) -> String {
        let node = |node: &Node| format!("{}:{}x{}", node.name, node.gpus, node.gpu_type.0);
        let nodes: Vec<String> = self.parts.cluster.nodes().iter().map(node).collect();
        format!("{}: {}", self.name, nodes.join(","))
    }

    /// Whether SLURM answers and has what the file says.
    pub(crate) fn check(&self, slurm: &Slurm) -> Result<()> {
        let wrong = slurm.check().map_err(|error| Failure::Failed(error.into()))?;
        let Some(first) = wrong.first() else { return Ok(()) };
        for error in &wrong[1..] {
            output::note(&error.to_string());
        }
        Err(Failure::input(anyhow!("{}: {first}", self.file)))
    }
}
