//! Jobs as they are listed, asked for and changed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One job, with what is foreseen for it. What nobody foresees is `null`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobRow {
    /// Its number: under SLURM, SLURM's number of its record (`SLURM_JOB_ID`).
    pub id: u32,
    /// What commands print and take: the same, or `138_4` for a task of an array and `138+1` for a
    /// part of a heterogeneous job.
    #[serde(default)]
    pub number: String,
    /// What its user calls it.
    pub name: String,
    /// Whose it is.
    pub user: String,
    /// What it trains.
    pub workload: String,
    /// `waiting`, `starting`, `running`, `stopping`, `on_hold`, `backing_off` (would not start,
    /// tried again later), `finished` or `cancelled`.
    pub state: String,
    /// GPUs it asked for.
    pub gpus_asked: u32,
    /// The fewest and the most it may get.
    pub gpus_bounds: [u32; 2],
    /// GPUs it holds.
    pub gpus_held: u32,
    /// What may be changed about it.
    pub elasticity: String,
    /// The nodes it holds GPUs of.
    pub nodes: Vec<String>,
    /// The power limit of each of its GPUs.
    pub power_limit_w: Option<f64>,
    /// When it was asked for.
    pub submitted_s: f64,
    /// When it should be done.
    pub deadline_s: Option<f64>,
    /// What each hour past that costs.
    pub weight_eur_per_h: f64,
    /// The share of its work that is believed to be done.
    pub progress: f64,
    /// When it started for the first time, or is foreseen to.
    pub start_s: Option<f64>,
    /// When it ended, or is foreseen to.
    pub finish_s: Option<f64>,
    /// Whether start and finish have happened already.
    pub start_is_past: bool,
    /// See `start_is_past`.
    pub finish_is_past: bool,
    /// Energy of its GPUs: what it took, or will have taken when it is done.
    pub energy_kwh: Option<f64>,
    /// What that energy and being late cost.
    pub cost_eur: Option<f64>,
    /// How probable it is that the deadline is missed, from 0 to 1.
    pub risk: Option<f64>,
    /// Why it is planned as it is.
    pub why: String,
    /// How often it was started again.
    pub restarts: u32,
}

/// Where and how a job runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Placement {
    /// The kind of GPU.
    pub gpu: String,
    /// How many.
    pub gpus: u32,
    /// The global batch.
    pub batch: u32,
    /// The power limit of each.
    pub power_limit_w: f64,
    /// Nodes and GPUs there.
    pub on: Vec<super::plan::On>,
}

/// A job that somebody asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitRequest {
    /// What to call it: 1 to 128 characters, none of them a control character.
    pub name: String,
    /// What it trains.
    pub workload: String,
    /// GPUs asked for.
    #[serde(default = "one")]
    pub gpus: u32,
    /// The fewest it may get, if it is elastic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_gpus: Option<u32>,
    /// The most it may get, if it is elastic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_gpus: Option<u32>,
    /// `rigid`, `moldable`, `malleable` or `adaptive`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elasticity: Option<String>,
    /// The global batch; the workload's usual one if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// How much there is to do, in the workload's own unit (samples, mostly).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<f64>,
    /// Instead of `work`: how long it takes with the GPUs asked for, on the fastest kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_s: Option<f64>,
    /// When it should be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
    /// Instead of `deadline_s`: so long after it was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_in_s: Option<f64>,
    /// What each hour past the deadline costs; 1 EUR or your limit, if that is less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_eur_per_h: Option<f64>,
    /// Whether it may be taken off its GPUs once it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<bool>,
}

fn one() -> u32 {
    1
}

/// What to change about a job. What is not named stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateRequest {
    /// Another deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
    /// Another deadline, so long from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_in_s: Option<f64>,
    /// No deadline any more.
    #[serde(default)]
    pub no_deadline: bool,
    /// What each hour past the deadline costs from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_eur_per_h: Option<f64>,
}

/// A request was written down and will not be lost. It takes effect with the next plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Accepted {
    /// `wattline.accepted/1`.
    pub schema: String,
    /// Which job it is about.
    pub job: u32,
    /// What commands print and take for it.
    #[serde(default)]
    pub number: String,
    /// What was written down: `submitted`, `updated`, `cancelled`, `on_hold` or `released`.
    pub what: String,
    /// Whether the same submission, by its `Idempotency-Key`, had been written down before.
    #[serde(default)]
    pub again: bool,
}
