//! Scenarios: a cluster, a workload, prices and a budget in one TOML file.
//!
//! Powers, durations and prices carry their units; unknown fields are refused; what is left out
//! has a default that `wattline config show` prints.

mod file;
mod generate;

pub use file::{
    Arrivals, BudgetSection, DeadlineSection, DurationSection, EngineSection, Foreseen, GpuCount,
    JobsSection, NodeGroup, PricesSection, Scenario, WeightClass, WorkloadShare, WorldSection,
};
pub use generate::generate;

use crate::foresight::Foresight;
use crate::instance::Instance;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use wattline_core::calendar::{Calendar, CalendarError};
use wattline_core::cluster::{BusyPower, Cluster, ClusterError, GpuType, Node, NodeDraw};
use wattline_core::engine::EngineConfig;
use wattline_core::hostlist;
use wattline_core::ids::GpuTypeId;
use wattline_core::prices::Prices;
use wattline_core::shed::Shed;
use wattline_core::units::{CarbonIntensity, CarbonPrice, Seconds, Watts};
use wattline_world::catalogue::Catalogue;
use wattline_world::faults::{Faults, Stragglers};
use wattline_world::measured::{Measured, MeasuredError};
use wattline_world::physics::Physics;
use wattline_world::world::WorldConfig;

/// A scenario that describes a cluster and a workload is a few kilobytes.
const MOST_BYTES: u64 = 4 << 20;

/// Why a scenario cannot be simulated.
#[derive(Debug, Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read scenario {file}; check the path and its permissions")]
    Read {
        /// Which file.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Too long to be one.
    #[error("{file}: longer than {MOST_BYTES} bytes; is this a scenario?")]
    TooLong {
        /// Which file.
        file: String,
    },
    /// Not text.
    #[error("{file}: not UTF-8 text")]
    NotUtf8 {
        /// Which file.
        file: String,
    },
    /// Not TOML, an unknown field, or a value that is not what the field is for.
    #[error("{file}: {message}")]
    Toml {
        /// Which file.
        file: String,
        /// Line, field and what is wrong.
        message: String,
    },
    /// A value out of its range.
    #[error("{file}: field `{field}` is {value}, expected {expected}")]
    Value {
        /// Which file.
        file: String,
        /// Which field.
        field: &'static str,
        /// What stands there.
        value: String,
        /// What should.
        expected: &'static str,
    },
    /// A GPU type that is neither in the catalogue nor in the file.
    #[error(
        "{file}: field `nodes.gpu` is \"{name}\": the catalogue has {known}; describe others in [[gpu]]"
    )]
    UnknownGpu {
        /// Which file.
        file: String,
        /// What stands there.
        name: String,
        /// What there is.
        known: String,
    },
    /// A workload that nobody knows on these GPUs.
    #[error(
        "{file}: field `jobs.workloads.name` is \"{name}\", which is not known on these GPUs; known are {known}; or give measurements"
    )]
    UnknownWorkload {
        /// Which file.
        file: String,
        /// What stands there.
        name: String,
        /// What there is.
        known: String,
    },
    /// A calendar that is none.
    #[error("{file}: {source}")]
    Calendar {
        /// Which file.
        file: String,
        /// What is wrong.
        source: CalendarError,
    },
    /// Machines that make no sense.
    #[error("{file}: {source}")]
    Cluster {
        /// Which file.
        file: String,
        /// What is wrong.
        source: ClusterError,
    },
    /// Measurements that cannot be read.
    #[error(transparent)]
    Measured(#[from] MeasuredError),
}

/// The machines of a site.
pub struct SiteParts {
    /// Which.
    pub cluster: Arc<Cluster>,
    /// Node by node, the folder where its limits are set.
    pub limits: Vec<Option<PathBuf>>,
    /// GPU type by GPU type, the partitions that its nodes are in; empty: all. Equal GPUs in other
    /// partitions are types of their own.
    pub partitions: Vec<Vec<String>>,
    /// What energy costs.
    pub prices: Prices,
    /// The power budget, if there is one.
    pub budget: Option<Calendar<Watts>>,
    /// How the engine goes about it.
    pub engine: EngineConfig,
    /// Where measurements lie that were made before.
    pub measurements: Option<PathBuf>,
}

impl Scenario {
    /// Reads a file.
    ///
    /// # Errors
    /// Names the file, the line and the field.
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        let file = path.display().to_string();
        let failed = |source| ScenarioError::Read { file: file.clone(), source };
        let mut bytes = Vec::new();
        let input = File::open(path).map_err(failed)?;
        input.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(ScenarioError::TooLong { file });
        }
        let Ok(text) = String::from_utf8(bytes) else {
            return Err(ScenarioError::NotUtf8 { file });
        };
        let mut scenario = Self::parse(&text, &file)?;
        scenario.folder = path.parent().map(PathBuf::from);
        Ok(scenario)
    }

    /// From a text; `file` names it in errors.
    ///
    /// # Errors
    /// Names the line and the field.
    pub fn parse(text: &str, file: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text).map_err(|error| ScenarioError::Toml {
            file: file.to_owned(),
            message: error.to_string().trim_end().to_owned(),
        })?;
        scenario.check(file)?;
        Ok(scenario)
    }

    /// Makes the instance: machines, physics and the generated jobs.
    ///
    /// # Errors
    /// When the scenario names something that does not exist.
    pub fn instance(&self, file: &str, seed: Option<u64>) -> Result<Instance, ScenarioError> {
        let seed = seed.unwrap_or(self.seed);
        let cluster = Arc::new(self.cluster(file)?.0);
        let mut physics = Physics::new(Arc::clone(&cluster), self.read_measurements()?);
        let jobs = generate(self, file, &cluster, &mut physics, seed)?;
        let mut instance = Instance::new(self.name.clone(), physics, cluster, jobs);
        instance.start = self.start_time().min(instance.start);
        instance.prices = self.prices(file)?;
        instance.budget = self.budget(file, instance.cluster.peak_power())?;
        instance.world = self.world_config(seed);
        instance.engine = self.engine_config();
        instance.foresight = match self.foresight {
            Foreseen::Learned => Foresight::Learned,
            Foreseen::Oracle => Foresight::Oracle,
            Foreseen::NoisyOracle { sigma } => Foresight::NoisyOracle(sigma),
        };
        Ok(instance)
    }

    /// The machines of a site, with what they may draw and what that costs; no work.
    ///
    /// # Errors
    /// When the file names something that does not exist.
    pub fn site(&self, file: &str) -> Result<SiteParts, ScenarioError> {
        let (cluster, partitions) = self.cluster(file)?;
        let cluster = Arc::new(cluster);
        let mut limits = Vec::new();
        for group in &self.nodes {
            for name in group.names(file, limits.len())? {
                let folder = self.folder.as_deref().unwrap_or(Path::new(""));
                limits.push(group.limits.as_ref().map(|path| folder.join(path).join(&*name)));
            }
        }
        Ok(SiteParts {
            prices: self.prices(file)?,
            budget: self.budget(file, cluster.peak_power())?,
            engine: self.engine_config(),
            measurements: self.measurements_path(),
            cluster,
            limits,
            partitions,
        })
    }

    fn measurements_path(&self) -> Option<PathBuf> {
        let folder = self.folder.as_deref().unwrap_or(Path::new(""));
        self.measurements.as_ref().map(|path| folder.join(path))
    }

    fn read_measurements(&self) -> Result<Option<Measured>, ScenarioError> {
        let Some(path) = self.measurements_path() else {
            return Ok(None);
        };
        let file = path.display().to_string();
        let input = File::open(&path)
            .map_err(|source| ScenarioError::Read { file: file.clone(), source })?;
        Ok(Some(Measured::read(input, &file)?))
    }

    /// The machines, and the partitions of each GPU type.
    fn cluster(&self, file: &str) -> Result<(Cluster, Vec<Vec<String>>), ScenarioError> {
        let catalogue = Catalogue::built_in();
        let mut cards: Vec<(GpuType, Vec<String>)> = Vec::new();
        let mut nodes = Vec::new();
        for group in &self.nodes {
            let own = self.gpu.iter().find(|g| g.name == group.gpu);
            let card = own.cloned().or_else(|| catalogue.gpu(&group.gpu).map(|g| g.gpu_type()));
            let Some(mut card) = card else {
                let known: Vec<&str> = catalogue.gpus().iter().map(|g| &*g.name).collect();
                return Err(ScenarioError::UnknownGpu {
                    file: file.to_owned(),
                    name: group.gpu.to_string(),
                    known: known.join(", "),
                });
            };
            // Where nobody sets limits, the default is all there is.
            if self.slurm.is_some() && group.limits.is_none() {
                (card.min_limit, card.max_limit) = (card.default_limit, card.default_limit);
            }
            let mut partitions = group.partitions.clone();
            partitions.sort();
            let same = |c: &(GpuType, Vec<String>)| c.0 == card && c.1 == partitions;
            let at = cards.iter().position(same).unwrap_or_else(|| {
                cards.push((card.clone(), partitions));
                cards.len() - 1
            });
            for name in group.names(file, nodes.len())? {
                let mut node = group.node(nodes.len(), GpuTypeId(at as u16), &card);
                node.name = name;
                if !group.by_busy_gpus.is_empty() {
                    let pue = self.prices.pue;
                    let power = |watts: &Watts| BusyPower { watts: *watts, pue };
                    node.draw =
                        NodeDraw::ByBusyGpus(group.by_busy_gpus.iter().map(power).collect());
                }
                nodes.push(node);
            }
        }
        let (cards, partitions) = cards.into_iter().unzip();
        let cluster = Cluster::new(cards, nodes)
            .map_err(|source| ScenarioError::Cluster { file: file.to_owned(), source })?;
        Ok((cluster, partitions))
    }

    fn prices(&self, file: &str) -> Result<Prices, ScenarioError> {
        let p = &self.prices;
        let offset = p.utc_offset;
        let wrong = |source| ScenarioError::Calendar { file: file.to_owned(), source };
        Ok(Prices {
            energy: Calendar::from_rules(p.energy, &p.energy_rules, offset).map_err(wrong)?,
            pue: p.pue,
            carbon: Calendar::from_rules(
                p.carbon.unwrap_or(CarbonIntensity::ZERO),
                &p.carbon_rules,
                offset,
            )
            .map_err(wrong)?,
            carbon_price: p.carbon_price.unwrap_or(CarbonPrice::ZERO),
        })
    }

    fn budget(&self, file: &str, peak: Watts) -> Result<Option<Calendar<Watts>>, ScenarioError> {
        let Some(budget) = &self.budget else {
            return Ok(None);
        };
        let share = budget.share_of_peak.map(|share| peak * share);
        // Without a default the machines' peak is all there can be.
        let default = budget.power.or(share).unwrap_or(peak);
        Calendar::from_rules(default, &budget.rules, self.prices.utc_offset)
            .map(Some)
            .map_err(|source| ScenarioError::Calendar { file: file.to_owned(), source })
    }

    fn world_config(&self, seed: u64) -> WorldConfig {
        let w = &self.world;
        WorldConfig {
            seed,
            noise: w.noise,
            stragglers: (w.straggler_share > 0.0)
                .then_some(Stragglers { share: w.straggler_share, slowdown: w.straggler_slowdown }),
            faults: w
                .node_mtbf
                .map(|mean_time_between| Faults { mean_time_between, repair: w.node_repair }),
            action_failures: w.action_failures,
            checkpoint_every: w.checkpoint_every,
            measure_every: w.measure_every,
            start_delay: w.start_delay,
            stop_delay: w.stop_delay,
            keep_log: false,
        }
    }

    fn engine_config(&self) -> EngineConfig {
        let e = &self.engine;
        EngineConfig {
            debounce: e.debounce,
            replan_every: e.replan_every,
            margin: self.budget.as_ref().map_or(Watts::ZERO, |b| b.margin),
            budget_lead: e.budget_lead,
            shed: self.budget.as_ref().map_or_else(Shed::default, |budget| budget.shed),
            ..EngineConfig::default()
        }
    }
}

impl NodeGroup {
    /// What its nodes are called, `before` others.
    fn names(&self, file: &str, before: usize) -> Result<Vec<Box<str>>, ScenarioError> {
        let Some(text) = &self.names else {
            return Ok((1..=self.count as usize)
                .map(|n| format!("n{}", before + n).into())
                .collect());
        };
        let wrong = |value: String, expected| ScenarioError::Value {
            file: file.to_owned(),
            field: "nodes.names",
            value,
            expected,
        };
        let names = hostlist::expand(text)
            .map_err(|error| wrong(error.to_string(), "names like n[1-4],gpu07"))?;
        if self.count != 0 && self.count as usize != names.len() {
            let value = format!("{} names", names.len());
            return Err(wrong(value, "as many as nodes.count, which need not be given"));
        }
        Ok(names.into_iter().map(Into::into).collect())
    }

    fn node(&self, number: usize, gpu_type: GpuTypeId, card: &GpuType) -> Node {
        let gpus = f64::from(self.gpus);
        // Estimates where nothing is said: a server's base is a fifth of its GPUs' full power,
        // sleep a fiftieth of that; booting draws the base and its GPUs idle, and half as much again.
        let base = self.base.unwrap_or(card.default_limit * gpus * 0.2);
        let boot = self.boot.unwrap_or((base + card.idle * gpus) * 1.5);
        Node {
            name: format!("n{}", number + 1).into(),
            gpu_type,
            gpus: self.gpus,
            draw: NodeDraw::Additive { base },
            sleep: self.sleep.unwrap_or(base * 0.02),
            boot,
            boot_time: self.boot_time,
            shutdown_time: self.shutdown_time,
            rack: (number as u32) / self.nodes_per_rack.max(1),
        }
    }
}

/// `count` equal nodes of a catalogue GPU, the last one smaller if the GPUs do not fill it.
pub(crate) fn plain_cluster(
    card: &GpuType,
    gpus: u32,
    per_node: u8,
) -> Result<Cluster, ClusterError> {
    let group = NodeGroup { gpus: per_node, ..NodeGroup::default() };
    let whole = gpus / u32::from(per_node);
    let rest = (gpus % u32::from(per_node)) as u8;
    let mut nodes: Vec<Node> =
        (0..whole).map(|n| group.node(n as usize, GpuTypeId(0), card)).collect();
    if rest > 0 {
        let last = NodeGroup { gpus: rest, ..group };
        nodes.push(last.node(whole as usize, GpuTypeId(0), card));
    }
    Cluster::new(vec![card.clone()], nodes)
}

pub(crate) const BOOT_TIME: Seconds = Seconds::new(180.0);
pub(crate) const SHUTDOWN_TIME: Seconds = Seconds::new(30.0);
