//! Why, and what if.

use crate::job::{JobRow, Placement};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a job is planned as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// `wattline.explain/1`.
    pub schema: String,
    /// The time on the cluster's clock.
    pub now_s: f64,
    /// The plan it follows from.
    pub plan: u64,
    /// The job.
    pub job: JobRow,
    /// What it holds.
    pub holds: Option<Placement>,
    /// What the plan wants for it; none: to wait.
    pub planned: Option<Placement>,
    /// What could be said about its end and cost, or why nothing could.
    pub outlook: String,
    /// What its weight is made of, where SLURM's priorities count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<WeightParts>,
    /// The shapes it may take, with what is predicted for each at the default power limit.
    pub options: Vec<Choice>,
}

/// What a weight is made of: what was said, times both factors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WeightParts {
    /// What its user said, or the default, cut at what is allowed.
    pub said_eur_per_h: f64,
    /// Its QOS, if that counts.
    pub qos: Option<String>,
    /// The factor of the QOS.
    pub qos_factor: f64,
    /// Its account.
    pub account: Option<String>,
    /// The fairshare of its user there, from 0 to 1, if that counts.
    pub fairshare: Option<f64>,
    /// The factor of the fairshare.
    pub fairshare_factor: f64,
}

/// One way to run the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Choice {
    /// The kind of GPU.
    pub gpu: String,
    /// How many.
    pub gpus: u32,
    /// How long the rest would take; none: it cannot run so.
    pub left_s: Option<f64>,
    /// 90 of 100 runs take between these.
    pub left_between_s: Option<[f64; 2]>,
    /// Drawn by all of them.
    pub power_w: Option<f64>,
    /// Energy for the rest.
    pub energy_kwh: Option<f64>,
    /// Measurements behind the prediction.
    pub measurements: u32,
}

/// What a submission would get.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WhatIf {
    /// `wattline.whatif/1`.
    pub schema: String,
    /// The time on the cluster's clock.
    pub now_s: f64,
    /// Whether its end could be foreseen. If not, the next four are `null`.
    pub foreseen: bool,
    /// When it would start.
    pub start_s: Option<f64>,
    /// When it would be done.
    pub finish_s: Option<f64>,
    /// How late that is.
    pub late_s: Option<f64>,
    /// Energy of its GPUs.
    pub energy_kwh: Option<f64>,
    /// What that and being late cost.
    pub cost_eur: Option<f64>,
    /// How probable it is that the deadline is missed.
    pub risk: Option<f64>,
    /// In a sentence.
    pub text: String,
}
