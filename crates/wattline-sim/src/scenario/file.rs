//! The scenario file, field by field.

use super::{BOOT_TIME, SHUTDOWN_TIME, ScenarioError};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use wattline_core::Timestamp;
use wattline_core::calendar::{Rule, UtcOffset};
use wattline_core::cluster::{GpuType, MOST_GPU_POWER, MOST_NODE_POWER};
use wattline_core::job::Elasticity;
use wattline_core::shed::Shed;
use wattline_core::units::{
    CarbonIntensity, CarbonPrice, EnergyPrice, EurosPerSecond, Seconds, Watts,
};

/// A cluster and its work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it is called.
    pub name: String,
    /// What it shows, in a sentence.
    #[serde(default)]
    pub about: String,
    /// Seed of everything random.
    #[serde(default = "one")]
    pub seed: u64,
    /// When it begins, UTC; a Monday unless said otherwise.
    #[serde(default = "a_monday")]
    pub start: String,
    /// Measurements of a site's own machines, a file beside this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measurements: Option<PathBuf>,
    /// What policies may know of times and powers; what they have learned unless said otherwise.
    #[serde(default)]
    pub foresight: Foreseen,
    /// GPU types that the catalogue does not have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu: Vec<GpuType>,
    /// The machines.
    pub nodes: Vec<NodeGroup>,
    /// The work; a site's file has none.
    #[serde(default)]
    pub jobs: JobsSection,
    /// How the machines are reached where SLURM has them: for `wattline serve`, and nothing to a
    /// simulation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm: Option<toml::Table>,
    /// The power budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetSection>,
    /// Prices.
    #[serde(default)]
    pub prices: PricesSection,
    /// How the world departs from the physics.
    #[serde(default)]
    pub world: WorldSection,
    /// How the engine goes about it.
    #[serde(default)]
    pub engine: EngineSection,
    /// Where the file lies.
    #[serde(skip)]
    pub folder: Option<PathBuf>,
}

/// What policies may know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Foreseen {
    /// What runs have shown.
    #[default]
    Learned,
    /// The physics.
    Oracle,
    /// The physics with an error.
    NoisyOracle {
        /// Standard deviation of its logarithm.
        sigma: f64,
    },
}

/// Some equal nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeGroup {
    /// How many; as many as there are names, if these are given.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub count: u32,
    /// What they are called, as SLURM writes it: `n[1-4],gpu07`; n1, n2, … unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<String>,
    /// Where the power limits of their GPUs are set, a folder with one for each node; they keep
    /// their default limit, if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<PathBuf>,
    /// The partitions of SLURM that they are in, of those that are looked after; all, unless said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<String>,
    /// Their GPU type.
    pub gpu: Box<str>,
    /// GPUs in each.
    pub gpus: u8,
    /// Drawn beside the GPUs when up; a fifth of the GPUs' full power unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Watts>,
    /// Or what a whole node draws with 0, 1, … busy GPUs, where a site knows only that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_busy_gpus: Vec<Watts>,
    /// Drawn asleep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep: Option<Watts>,
    /// Drawn booting, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<Watts>,
    /// Time to boot.
    #[serde(default = "boot_time")]
    pub boot_time: Seconds,
    /// Time to go to sleep.
    #[serde(default = "shutdown_time")]
    pub shutdown_time: Seconds,
    /// Nodes that hang on one switch.
    #[serde(default = "four")]
    pub nodes_per_rack: u32,
}

impl Default for NodeGroup {
    fn default() -> Self {
        Self {
            count: 1,
            names: None,
            limits: None,
            partitions: Vec::new(),
            gpu: "h200".into(),
            gpus: 8,
            base: None,
            by_busy_gpus: Vec::new(),
            sleep: None,
            boot: None,
            boot_time: BOOT_TIME,
            shutdown_time: SHUTDOWN_TIME,
            nodes_per_rack: 4,
        }
    }
}

/// The generated work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobsSection {
    /// How many jobs.
    pub count: u32,
    /// GPU-seconds asked for over GPU-seconds there: sets the arrival rate.
    #[serde(default = "load")]
    pub load: f64,
    /// How they arrive.
    #[serde(default)]
    pub arrivals: Arrivals,
    /// How long they run at the size they ask for.
    #[serde(default)]
    pub duration: DurationSection,
    /// What they train; all that is known on these GPUs, in equal shares, unless said.
    #[serde(default)]
    pub workloads: Vec<WorkloadShare>,
    /// How many GPUs they ask for.
    #[serde(default = "gpu_counts")]
    pub gpus: Vec<GpuCount>,
    /// What may be changed about them.
    #[serde(default)]
    pub elasticity: Elasticity,
    /// Their deadlines.
    #[serde(default)]
    pub deadlines: DeadlineSection,
    /// Their weights.
    #[serde(default = "weights")]
    pub weights: Vec<WeightClass>,
    /// What a restart costs; the workload's own figure unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Seconds>,
    /// Among how many users they are spread.
    #[serde(default = "users")]
    pub users: u32,
}

impl Default for JobsSection {
    fn default() -> Self {
        Self {
            count: 0,
            load: load(),
            arrivals: Arrivals::default(),
            duration: DurationSection::default(),
            workloads: Vec::new(),
            gpus: gpu_counts(),
            elasticity: Elasticity::default(),
            deadlines: DeadlineSection::default(),
            weights: weights(),
            restart: None,
            users: users(),
        }
    }
}

/// How jobs arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, tag = "pattern", rename_all = "snake_case")]
pub enum Arrivals {
    /// Independently, at a constant rate.
    #[default]
    Poisson,
    /// Independently, with a rate that follows the day: highest at 15:00, lowest at 03:00.
    Diurnal {
        /// Highest rate over lowest.
        swing: f64,
    },
    /// In bursts: groups of jobs submitted within minutes.
    Bursts {
        /// Jobs in a burst, on average.
        size: f64,
        /// Within this time.
        within: Seconds,
    },
}

/// Log-normal run times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DurationSection {
    /// Half run shorter.
    pub median: Seconds,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
    /// None shorter.
    pub min: Seconds,
    /// None longer.
    pub max: Seconds,
}

impl Default for DurationSection {
    fn default() -> Self {
        Self {
            median: Seconds::hours(1.0),
            sigma: 1.0,
            min: Seconds::new(60.0),
            max: Seconds::hours(48.0),
        }
    }
}

/// A workload and its share of the jobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadShare {
    /// Its name or alias in the catalogue, or in the measurements.
    pub name: String,
    /// Relative to the others.
    #[serde(default = "one_share")]
    pub share: f64,
    /// The global batch on one GPU; the catalogue's unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
}

/// A number of GPUs and its share of the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuCount {
    /// How many.
    pub count: u32,
    /// Relative to the others.
    #[serde(default = "one_share")]
    pub share: f64,
}

/// How deadlines are set: submission plus a multiple of the run time at the requested size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeadlineSection {
    /// Share of jobs that have one.
    pub share: f64,
    /// The tightest multiple.
    pub tightest: f64,
    /// The loosest.
    pub loosest: f64,
}

impl Default for DeadlineSection {
    fn default() -> Self {
        Self { share: 1.0, tightest: 1.2, loosest: 4.0 }
    }
}

/// A weight and its share of the jobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightClass {
    /// What people call it.
    pub name: String,
    /// What an hour of tardiness costs.
    pub weight: EurosPerSecond,
    /// Relative to the others.
    #[serde(default = "one_share")]
    pub share: f64,
}

/// The power budget.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetSection {
    /// Watts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<Watts>,
    /// Or a share of what the machines draw at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_peak: Option<f64>,
    /// Other budgets at other times.
    pub rules: Vec<Rule<Watts>>,
    /// Kept free below it.
    pub margin: Watts,
    /// What may be done about running jobs that are not preemptible, where a budget cannot be kept
    /// otherwise: "stop" leaves them alone, "kill" ends them, the least weighty first.
    pub shed: Shed,
}

/// Prices.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PricesSection {
    /// Of energy.
    pub energy: EnergyPrice,
    /// Other prices at other times.
    pub energy_rules: Vec<Rule<EnergyPrice>>,
    /// Billed energy per energy drawn.
    pub pue: f64,
    /// Carbon emitted per energy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carbon: Option<CarbonIntensity>,
    /// Other intensities at other times.
    pub carbon_rules: Vec<Rule<CarbonIntensity>>,
    /// What emitting costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carbon_price: Option<CarbonPrice>,
    /// Local time minus UTC, for all calendars of the scenario.
    pub utc_offset: UtcOffset,
}

impl Default for PricesSection {
    fn default() -> Self {
        Self {
            energy: EnergyPrice::new(0.171_683_13),
            energy_rules: Vec::new(),
            pue: 1.33,
            carbon: None,
            carbon_rules: Vec::new(),
            carbon_price: None,
            utc_offset: UtcOffset::default(),
        }
    }
}

/// How the world departs from the physics.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorldSection {
    /// Standard deviation of the logarithm of each run's speed.
    pub noise: f64,
    /// Share of nodes that are slow.
    pub straggler_share: f64,
    /// How many times longer things take there.
    pub straggler_slowdown: f64,
    /// Mean time between failures of a node; none fails unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_mtbf: Option<Seconds>,
    /// Time until a failed node is back.
    pub node_repair: Seconds,
    /// Share of actions that fail.
    pub action_failures: f64,
    /// Jobs save by themselves this often.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_every: Option<Seconds>,
    /// Measurements are reported this often; every five minutes where something is to be learned
    /// and nothing else is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measure_every: Option<Seconds>,
    /// From the order to start a job until it runs.
    pub start_delay: Seconds,
    /// From when a job has saved, or is done, until its GPUs are free.
    pub stop_delay: Seconds,
}

impl Default for WorldSection {
    fn default() -> Self {
        Self {
            noise: 0.0,
            straggler_share: 0.0,
            straggler_slowdown: 1.5,
            node_mtbf: None,
            node_repair: Seconds::hours(1.0),
            action_failures: 0.0,
            checkpoint_every: None,
            measure_every: None,
            start_delay: Seconds::ZERO,
            stop_delay: Seconds::ZERO,
        }
    }
}

/// How the engine goes about it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineSection {
    /// Wait this long after an event before planning.
    pub debounce: Seconds,
    /// Plan at least this often.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replan_every: Option<Seconds>,
    /// Be below a lower budget this long before it begins.
    pub budget_lead: Seconds,
}

impl Default for EngineSection {
    fn default() -> Self {
        Self { debounce: Seconds::ZERO, replan_every: None, budget_lead: Seconds::new(300.0) }
    }
}

fn one() -> u64 {
    1
}
fn one_share() -> f64 {
    1.0
}
fn four() -> u32 {
    4
}
fn users() -> u32 {
    8
}
fn load() -> f64 {
    0.8
}
fn a_monday() -> String {
    "2026-01-05T00:00:00Z".into()
}
fn boot_time() -> Seconds {
    BOOT_TIME
}
fn shutdown_time() -> Seconds {
    SHUTDOWN_TIME
}
fn is_zero(count: &u32) -> bool {
    *count == 0
}
fn gpu_counts() -> Vec<GpuCount> {
    [(1, 0.5), (2, 0.2), (4, 0.2), (8, 0.1)]
        .map(|(count, share)| GpuCount { count, share })
        .to_vec()
}
fn weights() -> Vec<WeightClass> {
    [("batch", 0.2, 0.5), ("normal", 1.0, 0.35), ("urgent", 5.0, 0.15)]
        .map(|(name, hourly, share)| WeightClass {
            name: name.to_owned(),
            weight: EurosPerSecond::new(hourly / 3600.0),
            share,
        })
        .to_vec()
}

impl Scenario {
    /// When it begins.
    #[must_use]
    pub fn start_time(&self) -> Timestamp {
        // `check` has refused everything that is not a time.
        self.start.parse::<jiff::Timestamp>().map_or(Timestamp::ZERO, |time| {
            Timestamp::from_seconds(time.as_duration().as_secs_f64())
        })
    }

    /// Ranges that types do not express.
    pub(super) fn check(&self, file: &str) -> Result<(), ScenarioError> {
        let within = |field, value: f64, low: f64, high: f64, expected| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(ScenarioError::Value {
                file: file.to_owned(),
                field,
                value: value.to_string(),
                expected,
            })
        };
        if self.start.parse::<jiff::Timestamp>().is_err() {
            return Err(ScenarioError::Value {
                file: file.to_owned(),
                field: "start",
                value: format!("{:?}", self.start.chars().take(40).collect::<String>()),
                expected: "a time like \"2026-01-05T00:00:00Z\"",
            });
        }
        const SHARE: &str = "a number from 0 to 1";
        const POSITIVE: &str = "a number above 0";
        const FACTOR: &str = "a number of at least 1";
        const SPEED: &str = "a number from 0.001 to 1000000";
        let jobs = &self.jobs;
        let fewest = if self.slurm.is_some() { 0.0 } else { 1.0 };
        within("jobs.count", f64::from(jobs.count), fewest, 1e7, "from 1 to 10 million jobs")?;
        within("jobs.load", jobs.load, 1e-6, 1e6, POSITIVE)?;
        within("jobs.users", f64::from(jobs.users), 1.0, 1e6, "at least 1")?;
        within("jobs.duration.median", jobs.duration.median.get(), 1e-3, 1e9, POSITIVE)?;
        within("jobs.duration.sigma", jobs.duration.sigma, 0.0, 10.0, "a number from 0 to 10")?;
        let (min, max) = (jobs.duration.min.get(), jobs.duration.max.get());
        within("jobs.duration.max", max, min, 1e9, "at least jobs.duration.min")?;
        within("jobs.deadlines.share", jobs.deadlines.share, 0.0, 1.0, SHARE)?;
        within("jobs.deadlines.tightest", jobs.deadlines.tightest, 0.0, 1e6, POSITIVE)?;
        let tightest = jobs.deadlines.tightest;
        within(
            "jobs.deadlines.loosest",
            jobs.deadlines.loosest,
            tightest,
            1e6,
            "at least jobs.deadlines.tightest",
        )?;
        match jobs.arrivals {
            Arrivals::Poisson => {}
            Arrivals::Diurnal { swing } => within("jobs.arrivals.swing", swing, 1.0, 1e3, FACTOR)?,
            Arrivals::Bursts { size, .. } => within("jobs.arrivals.size", size, 1.0, 1e5, FACTOR)?,
        }
        let shares = (jobs.workloads.iter().map(|w| ("jobs.workloads.share", w.share)))
            .chain(jobs.gpus.iter().map(|g| ("jobs.gpus.share", g.share)))
            .chain(jobs.weights.iter().map(|w| ("jobs.weights.share", w.share)));
        for (field, share) in shares {
            within(field, share, 1e-9, 1e9, POSITIVE)?;
        }
        for gpu in &self.gpu {
            let tflops = gpu.tflops.unwrap_or(1.0);
            within("gpu.tflops", tflops, 1e-3, 1e6, SPEED)?;
            for (field, speed) in gpu
                .links
                .iter()
                .flat_map(|links| [("gpu.links.node", links.node), ("gpu.links.net", links.net)])
            {
                within(field, speed, 1e-3, 1e6, SPEED)?;
            }
        }
        within("jobs.gpus", jobs.gpus.len() as f64, 1.0, 1e3, "at least one entry")?;
        within("jobs.weights", jobs.weights.len() as f64, 1.0, 1e3, "at least one entry")?;
        for g in &jobs.gpus {
            within("jobs.gpus.count", f64::from(g.count), 1.0, 1e6, "at least 1")?;
        }
        for w in jobs.workloads.iter().filter_map(|w| w.batch) {
            within("jobs.workloads.batch", f64::from(w), 1.0, 1e9, "at least 1")?;
        }
        within("nodes", self.nodes.len() as f64, 1.0, 1e5, "at least one group of nodes")?;
        for group in &self.nodes {
            if group.names.is_none() {
                within("nodes.count", f64::from(group.count), 1.0, 1e6, "at least 1, or names")?;
            }
            let powers = group.by_busy_gpus.len();
            if powers > 0 && (powers != usize::from(group.gpus) + 1 || group.base.is_some()) {
                return Err(ScenarioError::Value {
                    file: file.to_owned(),
                    field: "nodes.by_busy_gpus",
                    value: format!("a list of {powers}"),
                    expected: "a power for each number of busy GPUs, 0 included, and no nodes.base",
                });
            }
        }
        const NODE: &str = "from 0 W to 10 MW";
        const GPU: &str = "from 0 W to 100 kW";
        for gpu in &self.gpu {
            let fields = [
                ("gpu.idle", gpu.idle),
                ("gpu.min_limit", gpu.min_limit),
                ("gpu.default_limit", gpu.default_limit),
                ("gpu.busy", gpu.busy),
                ("gpu.max_limit", gpu.max_limit),
                ("gpu.limit_step", gpu.limit_step),
            ];
            for (field, watts) in fields {
                within(field, watts.get(), 0.0, MOST_GPU_POWER.get(), GPU)?;
            }
        }
        const PRICE: &str = "from 0 to a million EUR/kWh";
        within("prices.energy", self.prices.energy.get(), 0.0, 1e6, PRICE)?;
        // Coal emits some 1,000 g/kWh, and the dearest carbon tax is some 130 EUR/t.
        const CARBON: &str = "from 0 to 100 kg/kWh";
        const CARBON_PRICE: &str = "from 0 to a million EUR/t";
        let prices = &self.prices;
        for rule in &prices.energy_rules {
            within("prices.energy_rules.value", rule.value.get(), 0.0, 1e6, PRICE)?;
        }
        within("prices.carbon", prices.carbon.unwrap_or_default().get(), 0.0, 1e5, CARBON)?;
        for rule in &prices.carbon_rules {
            within("prices.carbon_rules.value", rule.value.get(), 0.0, 1e5, CARBON)?;
        }
        let carbon_price = prices.carbon_price.unwrap_or_default().get();
        within("prices.carbon_price", carbon_price, 0.0, 1e6, CARBON_PRICE)?;
        for group in &self.nodes {
            let most = MOST_NODE_POWER.get();
            let drawn = group.by_busy_gpus.iter().map(|watts| ("nodes.by_busy_gpus", Some(*watts)));
            let fields = [
                ("nodes.base", group.base),
                ("nodes.sleep", group.sleep),
                ("nodes.boot", group.boot),
            ];
            for (field, watts) in fields.into_iter().chain(drawn) {
                within(field, watts.map_or(0.0, Watts::get), 0.0, most, NODE)?;
            }
        }
        if let Some(budget) = &self.budget {
            // A terawatt is beyond all computers.
            const BUDGET: &str = "from 0 W to 1 TW";
            within("budget.power", budget.power.map_or(0.0, Watts::get), 0.0, 1e12, BUDGET)?;
            within("budget.margin", budget.margin.get(), 0.0, 1e12, BUDGET)?;
            for rule in &budget.rules {
                within("budget.rules.value", rule.value.get(), 0.0, 1e12, BUDGET)?;
            }
        }
        for class in &self.jobs.weights {
            let hourly = class.weight.get() * 3600.0;
            within("jobs.weights.weight", hourly, 0.0, 1e9, "at most a milliard of EUR/h")?;
        }
        if self.budget.as_ref().is_some_and(|b| b.power.is_some() && b.share_of_peak.is_some()) {
            return Err(ScenarioError::Value {
                file: file.to_owned(),
                field: "budget",
                value: "given twice".to_owned(),
                expected: "either power or share_of_peak",
            });
        }
        if let Some(share) = self.budget.as_ref().and_then(|b| b.share_of_peak) {
            within("budget.share_of_peak", share, 0.0, 1.0, SHARE)?;
        }
        if let Foreseen::NoisyOracle { sigma } = self.foresight {
            within("foresight.noisy_oracle.sigma", sigma, 0.0, 5.0, "a number from 0 to 5")?;
        }
        within("prices.pue", self.prices.pue, 1.0, 10.0, "a number from 1 to 10")?;
        let world = &self.world;
        within("world.noise", world.noise, 0.0, 2.0, "a number from 0 to 2")?;
        within("world.straggler_share", world.straggler_share, 0.0, 1.0, SHARE)?;
        within("world.straggler_slowdown", world.straggler_slowdown, 1.0, 1e3, FACTOR)?;
        within("world.action_failures", world.action_failures, 0.0, 0.9, "a number from 0 to 0.9")?;
        for (field, delay) in
            [("world.start_delay", world.start_delay), ("world.stop_delay", world.stop_delay)]
        {
            within(field, delay.get(), 0.0, 3600.0, "0 s to 1 h")?;
        }
        // Sums of such times stay within what a time stamp can hold.
        const TIME: &str = "from 0 s to 1e9 s, which are 30 years";
        let times = [
            ("jobs.restart", jobs.restart.unwrap_or_default()),
            ("jobs.duration.min", jobs.duration.min),
            ("world.node_repair", world.node_repair),
            ("engine.debounce", self.engine.debounce),
            ("engine.budget_lead", self.engine.budget_lead),
        ];
        let of_nodes = self.nodes.iter().flat_map(|group| {
            [("nodes.boot_time", group.boot_time), ("nodes.shutdown_time", group.shutdown_time)]
        });
        let of_bursts = match jobs.arrivals {
            Arrivals::Bursts { within, .. } => Some(("jobs.arrivals.within", within)),
            _ => None,
        };
        for (field, time) in times.into_iter().chain(of_nodes).chain(of_bursts) {
            within(field, time.get(), 0.0, 1e9, TIME)?;
        }
        for (field, every) in [
            ("world.measure_every", world.measure_every),
            ("world.checkpoint_every", world.checkpoint_every),
            ("world.node_mtbf", world.node_mtbf),
            ("engine.replan_every", self.engine.replan_every),
        ] {
            if let Some(every) = every {
                within(field, every.get(), 1.0, 1e12, "at least a second")?;
            }
        }
        Ok(())
    }
}
