//! A site's file: machines, prices and budget as in a scenario, and a `[slurm]` table.

use crate::commands::predict::read_groups;
use crate::failure::{Failure, Result};
use crate::output;
use crate::source::read_scenario;
use anyhow::anyhow;
use std::path::Path;
use std::sync::Arc;
use wattline_controller::journal::Store;
use wattline_controller::slurm::{Config, Mode, SECONDS, Site, Slurm};
use wattline_controller::{Foresight, InitialState, InlinePlanner, Planner, Watch};
use wattline_core::Timestamp;
use wattline_core::cluster::Node;
use wattline_core::engine::Engine;
use wattline_core::ids::{GpuTypeId, WorkloadId};
use wattline_core::policy::Policy;
use wattline_core::state::State;
use wattline_predict::learner::Learner;
use wattline_predict::reading::Reading;
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
    config.check().map_err(|error| Failure::input(anyhow!("{file}: {error}")))?;
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

/// What a journal says who decides of a cluster that is only watched.
pub(crate) const WATCH: &str = "watch";
/// What a journal says about the workloads that were known when it was begun.
const WORKLOADS: &str = "workloads";

/// Plans in line with the policy of that name; the one that decides nothing is among them.
pub(crate) fn planner(name: &str) -> Result<Box<dyn Planner>> {
    let policy: Box<dyn Policy> = match name {
        WATCH => Box::new(Watch),
        name => wattline_policies::policy(name).map_err(Failure::input)?,
    };
    Ok(Box::new(InlinePlanner::new(name, policy)))
}

/// What was measured before anything ran under Wattline.
pub(crate) struct Known {
    /// Workloads, by id.
    pub(crate) workloads: Vec<Box<str>>,
    /// What was measured of them.
    pub(crate) readings: Vec<(WorkloadId, GpuTypeId, Reading)>,
}

impl Known {
    /// A learner that knows this.
    pub(crate) fn learner(&self, live: &Live) -> Learner {
        let mut learner = Learner::new(Arc::clone(&live.parts.cluster));
        for (workload, gpu, reading) in &self.readings {
            if let Err(error) = learner.import(*workload, *gpu, reading) {
                output::note(&format!("{}: a measurement was left out: {error}", live.file));
            }
        }
        learner
    }
}

impl Live {
    /// Who decides: the policy, or nobody.
    pub(crate) fn decided_by<'a>(&self, policy: &'a str) -> &'a str {
        if self.config.mode == Mode::Control { policy } else { WATCH }
    }

    /// What is known. A journal has the workloads in the order in which they were known when it was
    /// begun, whatever was measured since; of others it knows nothing before a job names them.
    pub(crate) fn known(&self, begun: Option<String>) -> Result<Known> {
        let groups = self.parts.measurements.as_deref().map(read_groups).transpose()?;
        let groups = groups.unwrap_or_default();
        let workloads: Vec<Box<str>> = match begun {
            Some(text) => serde_json::from_str(&text)?,
            None => {
                let mut names: Vec<Box<str>> = vec![SECONDS.into()];
                for ((workload, _), _) in &groups {
                    if !names.contains(workload) {
                        names.push(workload.clone());
                    }
                }
                names
            }
        };
        let cluster = &self.parts.cluster;
        let mut readings = Vec::new();
        for ((workload, gpu), measured) in groups {
            let Some(at) = workloads.iter().position(|name| *name == workload) else { continue };
            let types = cluster.gpu_type_ids().filter(|id| *cluster.gpu_type(*id).name == *gpu);
            for id in types {
                readings.extend(measured.iter().map(|r| (WorkloadId(at as u32), id, *r)));
            }
        }
        Ok(Known { workloads, readings })
    }

    /// What is known of the workloads that a journal was begun with. A new one is begun with those
    /// that were measured.
    pub(crate) fn known_in(&self, store: &mut Store) -> Result<Known> {
        let first = serde_json::to_string(&self.known(None)?.workloads)?;
        let begun = store.begun_with(WORKLOADS, &first).map_err(Failure::input)?;
        self.known(Some(begun))
    }

    /// The same of a journal that is only looked at.
    pub(crate) fn known_at(&self, store: &Store) -> Result<Known> {
        self.known(store.about(WORKLOADS).map_err(Failure::input)?)
    }

    /// The engine as it begins.
    pub(crate) fn initial(&self, known: &Known) -> InitialState {
        let at = Timestamp::ZERO;
        let cluster = Arc::clone(&self.parts.cluster);
        let engine = Engine::new(
            self.parts.engine.clone(),
            State::new(Arc::clone(&cluster), at),
            Box::new(Foresight::new(known.learner(self), cluster)),
            self.parts.prices.clone(),
            self.parts.budget.clone(),
        );
        InitialState { engine, workloads: known.workloads.clone(), at }
    }

    /// SLURM, behind it.
    pub(crate) fn slurm(&self) -> Slurm {
        let cluster = Arc::clone(&self.parts.cluster);
        let partitions = self.parts.partitions.clone();
        Slurm::new(Site::new(self.config.clone(), cluster, &self.parts.limits, partitions))
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
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
