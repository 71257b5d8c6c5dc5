//! Plans: the one in force, and one made for a view.

use crate::job::Placement;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The plan in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanInForce {
    /// `wattline.plan-in-force/1`.
    pub schema: String,
    /// The time on the cluster's clock.
    pub now_s: f64,
    /// Its number.
    pub plan: u64,
    /// The policy that made it.
    pub policy: String,
    /// What the cluster could draw at worst once it is carried out.
    pub committed_w: f64,
    /// What that must stay below.
    pub budget_w: Option<f64>,
    /// Jobs that shall run, and jobs that hold something and shall not; a user sees only his own.
    pub jobs: Vec<PlannedRow>,
    /// Nodes that shall become something else than they are.
    pub nodes: Vec<PlannedNode>,
    /// Jobs that shall wait.
    pub waiting: usize,
}

/// One job of the plan in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlannedRow {
    /// Which.
    pub job: u32,
    /// What commands print and take for it.
    #[serde(default)]
    pub number: String,
    /// `start`, `stop`, `move`, `limit` or `stay`.
    pub action: String,
    /// How it shall run.
    pub runs: Option<Placement>,
    /// Why.
    pub why: String,
}

/// How to plan a view.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PlanQuery {
    /// The policy; `wattline` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Whether to foresee ends and costs; it takes longer.
    #[serde(default)]
    pub forecast: bool,
}

/// One plan for a view, with the reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Planned {
    /// `wattline.plan/1`.
    pub schema: String,
    /// The policy that made it.
    pub policy: String,
    /// The view's time.
    pub now_s: f64,
    /// The plan that was in force.
    pub based_on: u64,
    /// Whether the checker let the plan pass.
    pub accepted: bool,
    /// What the checker said, if not.
    pub violations: Vec<String>,
    /// What else an administrator would hear of.
    pub alerts: Vec<String>,
    /// What the cluster could draw at worst right now.
    pub committed_now_w: f64,
    /// And once the plan is carried out.
    pub committed_w: f64,
    /// What that must stay below.
    pub budget_w: Option<f64>,
    /// By the view's order.
    pub jobs: Vec<PlannedJob>,
    /// By the view's order.
    pub nodes: Vec<PlannedNode>,
    /// Whether all jobs end within what was looked at.
    pub forecast_complete: Option<bool>,
}

/// One job of a plan for a view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlannedJob {
    /// Its name.
    pub job: String,
    /// `start`, `stop`, `move`, `limit`, `stay` or `wait`.
    pub action: String,
    /// How it shall run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs: Option<Runs>,
    /// Why, for programs.
    #[schema(value_type = Object)]
    pub reason: serde_json::Value,
    /// Why, in words.
    pub why: String,
    /// What becomes of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Foreseen>,
}

/// How a job of a plan for a view shall run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Runs {
    /// The kind of GPU.
    pub gpu: String,
    /// How many.
    pub gpus: u32,
    /// The global batch.
    pub batch: u32,
    /// The power limit of each.
    pub power_limit_w: f64,
    /// Node and GPUs there.
    pub on: Vec<On>,
    /// Of the whole job, by the predictor; `null` where it cannot run so.
    pub predicted_power_w: Option<f64>,
    /// How long the rest takes, by the predictor.
    pub predicted_left_s: Option<f64>,
}

/// Some GPUs of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct On {
    /// The node.
    pub node: String,
    /// Which GPUs of it.
    pub gpus: Vec<u8>,
}

/// If nothing unforeseen happens and the policy goes on planning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Foreseen {
    /// When it starts.
    pub start_s: Option<f64>,
    /// When it is done.
    pub end_s: Option<f64>,
    /// How late that is.
    pub tardiness_s: Option<f64>,
    /// Energy from now on.
    pub energy_kwh: f64,
    /// What that and being late cost.
    pub cost_eur: f64,
}

/// One node of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlannedNode {
    /// Its name.
    pub node: String,
    /// What it is.
    pub state: String,
    /// What it shall be.
    pub target: String,
    /// `wake`, `sleep` or `stay`.
    pub action: String,
    /// Why, for programs.
    #[schema(value_type = Object)]
    pub reason: serde_json::Value,
    /// Why, in words.
    pub why: String,
}
