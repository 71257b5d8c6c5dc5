//! The document, field by field. Numbers carry their unit in the name.

use crate::calendar::{Rule, UtcOffset};
use crate::cluster::Links;
use crate::host::{HostRequest, NodeHost};
use crate::job::Elasticity;
use crate::plan::Reason;
use crate::power::NodePower;
use crate::state::Target;
use serde::{Deserialize, Serialize};

/// What the `schema` field says.
pub const SCHEMA: &str = "wattline.view/1";

/// A cluster at an instant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: String,
    /// The time, in seconds since the Unix epoch or since any other zero that all times share.
    pub now_s: f64,
    /// The number of the plan in force.
    #[serde(default)]
    pub plan: u64,
    /// Kinds of GPU.
    pub gpu_types: Vec<GpuTypeEntry>,
    /// Servers.
    pub nodes: Vec<NodeEntry>,
    /// What is known of the workloads.
    pub workloads: Vec<WorkloadEntry>,
    /// Jobs that are not finished.
    pub jobs: Vec<JobEntry>,
    /// The power budget in watts; none, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_w: Option<Changing>,
    /// Kept free below the budget.
    #[serde(default)]
    pub budget_margin_w: f64,
    /// Be below a lower budget this long before it begins.
    #[serde(default = "five_minutes")]
    pub budget_lead_s: f64,
    /// What energy costs.
    #[serde(default)]
    pub prices: PricesEntry,
}

/// A value that may change over the week; later rules win.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changing {
    /// What holds where no rule does.
    pub value: f64,
    /// Other values at other times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule<f64>>,
    /// Local time minus UTC.
    #[serde(default)]
    pub utc_offset: UtcOffset,
}

impl Changing {
    /// Always the same.
    #[must_use]
    pub fn constant(value: f64) -> Self {
        Self { value, rules: Vec::new(), utc_offset: UtcOffset::default() }
    }
}

/// Prices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PricesEntry {
    /// Of energy.
    pub energy_eur_per_kwh: Changing,
    /// Billed energy per energy drawn.
    pub pue: f64,
    /// Emitted per energy.
    pub carbon_g_per_kwh: Changing,
    /// What emitting costs.
    pub carbon_eur_per_t: f64,
}

impl Default for PricesEntry {
    fn default() -> Self {
        Self {
            energy_eur_per_kwh: Changing::constant(0.171_683_13),
            pue: 1.33,
            carbon_g_per_kwh: Changing::constant(0.0),
            carbon_eur_per_t: 0.0,
        }
    }
}

/// A kind of GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuTypeEntry {
    /// What it is called.
    pub name: Box<str>,
    /// Drawn when no job holds it.
    pub idle_w: f64,
    /// Drawn by a demanding job at the default limit.
    pub busy_w: f64,
    /// The lowest limit the card accepts.
    pub min_limit_w: f64,
    /// The limit it has when nobody sets one.
    pub default_limit_w: f64,
    /// The highest limit the card accepts.
    pub max_limit_w: f64,
    /// Limits we use are this far apart.
    pub limit_step_w: f64,
    /// Half-precision speed by its data sheet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tflops: Option<f64>,
    /// How fast they exchange gradients, by data sheets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links_gb_per_s: Option<Links>,
}

/// Power of a node with some number of busy GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BusyEntry {
    /// Drawn.
    pub power_w: f64,
    /// Billed per watt drawn.
    pub pue: f64,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeEntry {
    /// What it is called.
    pub name: Box<str>,
    /// Its GPUs' type.
    pub gpu: Box<str>,
    /// How many it has.
    pub gpus: u8,
    /// Drawn beside its GPUs when up.
    #[serde(default)]
    pub base_w: f64,
    /// Or what it draws as a whole with 0, 1, … busy GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_busy_gpus: Vec<BusyEntry>,
    /// Drawn asleep.
    #[serde(default)]
    pub sleep_w: f64,
    /// Drawn booting, at most.
    #[serde(default)]
    pub boot_w: f64,
    /// How long it boots.
    #[serde(default = "three_minutes")]
    pub boot_s: f64,
    /// How long it takes to go to sleep.
    #[serde(default = "half_a_minute")]
    pub shutdown_s: f64,
    /// The rack, or the switch, it hangs on.
    #[serde(default)]
    pub rack: u32,
    /// What it is: up, closed, asleep, booting, falling_asleep or down.
    #[serde(default = "up")]
    pub state: NodePower,
    /// What the plan in force wants it to be: up or asleep; as it is, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Since when nobody is planned on it; since now, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since_s: Option<f64>,
    /// Why it is planned so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Its CPUs and memory, and what jobs that are not in the document take of them; without limit, if
    /// not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<NodeHost>,
}

/// What is known of a workload: times, or measurements to predict from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadEntry {
    /// What it is called.
    pub name: Box<str>,
    /// Known times; what lies between is interpolated, other GPU counts cannot run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<TimeEntry>,
    /// Measurements: a predictor is fitted to them and to those of the other workloads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measurements: Vec<MeasurementEntry>,
}

/// How long a unit of work takes in a configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeEntry {
    /// On which GPUs.
    pub gpu: Box<str>,
    /// On how many.
    pub gpus: u32,
    /// Over how many nodes; as few as possible, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// With which global batch; with any, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// Under which limit; under any, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit_w: Option<f64>,
    /// Only for jobs that asked for so many GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_gpus: Option<u32>,
    /// Only for jobs that asked for this batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_batch: Option<u32>,
    /// Time for one unit of work: of the whole job, where its `work` is 1.
    pub seconds: f64,
    /// Drawn by each GPU; the type's busy power up to the limit, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
    /// 90 % of all runs take between `low` and `high` times the predicted time.
    #[serde(default = "one")]
    pub low: f64,
    /// See `low`.
    #[serde(default = "one")]
    pub high: f64,
    /// How many measurements stand behind it.
    #[serde(default)]
    pub measurements: u32,
}

/// One measurement, in the columns of `wattline predict import`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasurementEntry {
    /// On which GPUs.
    pub gpu: Box<str>,
    /// Over how many nodes.
    #[serde(default = "one_node")]
    pub nodes: u32,
    /// On how many.
    pub gpus: u32,
    /// The global batch.
    pub global_batch: u32,
    /// The limit of each GPU; the type's default, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit_w: Option<f64>,
    /// How many samples.
    pub samples: f64,
    /// In what time.
    pub seconds: f64,
    /// Mean power of each GPU, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
}

/// A GPU type and count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShapeEntry {
    /// Which GPUs.
    pub gpu: Box<str>,
    /// How many.
    pub gpus: u32,
}

/// Which nodes a job may have; its GPUs are the same number on each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeChoiceEntry {
    /// So many nodes.
    pub count: u32,
    /// All of these are among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub required: Vec<Box<str>>,
    /// Only these are.
    pub allowed: Vec<Box<str>>,
}

/// What a restart costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RestartEntry {
    /// Writing the checkpoint.
    pub save_s: f64,
    /// Loading it, before work goes on.
    pub load_s: f64,
}

/// GPUs of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnNode {
    /// Which node.
    pub node: Box<str>,
    /// Which of its GPUs, from 0.
    pub gpus: Vec<u8>,
}

/// Where and how a job runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementEntry {
    /// The GPUs, node by node, all of one type.
    pub on: Vec<OnNode>,
    /// The global batch; the one asked for, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// The limit of each GPU; the type's default, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit_w: Option<f64>,
}

/// A job that is not finished.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobEntry {
    /// What it is called.
    pub name: Box<str>,
    /// Whose it is, as a number.
    #[serde(default)]
    pub user: u32,
    /// What it trains.
    pub workload: Box<str>,
    /// How much: samples, or 1 where times are those of the whole job.
    #[serde(default = "one")]
    pub work: f64,
    /// When it was asked for.
    pub submit_s: f64,
    /// When it should be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
    /// What an hour past the deadline costs.
    #[serde(default)]
    pub weight_eur_per_h: f64,
    /// rigid, moldable, malleable or adaptive.
    #[serde(default)]
    pub elasticity: Elasticity,
    /// GPUs asked for.
    pub gpus: u32,
    /// The fewest; as asked for, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_gpus: Option<u32>,
    /// The most; as asked for, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_gpus: Option<u32>,
    /// The global batch asked for; as many as GPUs, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// The smallest; as asked for, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_batch: Option<u32>,
    /// The largest; as asked for, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_batch: Option<u32>,
    /// What a restart costs.
    #[serde(default)]
    pub restart: RestartEntry,
    /// Whether it may be taken off its GPUs once it runs.
    #[serde(default = "yes")]
    pub preemptible: bool,
    /// Its user wants it to wait until it is let go.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_hold: bool,
    /// The only shapes it may take; they follow from the bounds, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shapes: Option<Vec<ShapeEntry>>,
    /// The nodes it may have; any with the right GPUs, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeChoiceEntry>,
    /// The shape that a moldable job has started with, the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_as: Option<ShapeEntry>,
    /// Work done at `as_of_s`.
    #[serde(default)]
    pub done: f64,
    /// When `done` was true: now, if not there; later than now while a restart loads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of_s: Option<f64>,
    /// Work per second since then; as predicted for what it holds, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// What it holds: it runs there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<PlacementEntry>,
    /// What the plan in force wants for it, where that is another thing than what it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moves_to: Option<PlacementEntry>,
    /// It holds GPUs that the plan in force wants it to leave, and shall wait then.
    #[serde(default, skip_serializing_if = "is_false")]
    pub leaves: bool,
    /// It would not start and is left alone until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back_until_s: Option<f64>,
    /// When it first ran; now, if it runs and this is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_start_s: Option<f64>,
    /// How often it was started again.
    #[serde(default)]
    pub restarts: u32,
    /// GPU-seconds it has held so far.
    #[serde(default)]
    pub attained_gpu_s: f64,
    /// Why it is planned so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// What it takes of its nodes' CPUs and memory; nothing, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostRequest>,
}

fn one() -> f64 {
    1.0
}
fn one_node() -> u32 {
    1
}
fn yes() -> bool {
    true
}
fn up() -> NodePower {
    NodePower::Up
}
fn three_minutes() -> f64 {
    180.0
}
fn half_a_minute() -> f64 {
    30.0
}
fn five_minutes() -> f64 {
    300.0
}
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
