//! The power budget.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};
use wattline_core::snapshot::Changing;

/// The budget in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Budget {
    /// `wattline.budget/1`.
    pub schema: String,
    /// The time on the cluster's clock.
    pub now_s: f64,
    /// What committed power must stay below now; `null`: no budget.
    pub now_w: Option<f64>,
    /// What the cluster could draw at worst right now.
    pub committed_w: f64,
    /// What it draws, if that is measured.
    pub drawn_w: Option<f64>,
    /// What all machines could draw at worst.
    pub peak_w: f64,
    /// The calendar: a default and the rules that override it, in watts; `null`: no budget.
    #[schema(value_type = Option<Object>)]
    pub calendar: Option<Changing>,
}

/// Another budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetRequest {
    /// `{"value": 22000, "rules": [{"days": "mon-fri", "from": "09:00", "to": "18:00", "value":
    /// 16000}], "utc_offset": "+01:00"}`, in watts; `null`: no budget. Must be named: nothing is not
    /// the same as none.
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<Object>, required)]
    pub calendar: Option<Changing>,
    /// Change nothing: answer with a [`BudgetForecast`] instead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// How a budget is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BudgetQuery {
    /// Change nothing: answer with a forecast. The same as in the body.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a budget would do at its worst moment, if the jobs were those of now. The first steps of the
/// controller itself are foreseen, not what the policy makes of the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BudgetForecast {
    /// `wattline.budget-forecast/1`.
    pub schema: String,
    /// The time on the cluster's clock.
    pub now_s: f64,
    /// When the budget is lowest: now, or the next time at which it is.
    pub at_s: f64,
    /// What there is then, less the margin; `null`: no budget.
    pub budget_w: Option<f64>,
    /// What is planned to be drawn at most now.
    pub committed_now_w: f64,
    /// What will be drawn at most when all of this is done.
    pub committed_w: f64,
    /// Whether that is within the budget.
    pub kept: bool,
    /// Jobs that go on with a lower power limit.
    pub slower: ForecastJobs,
    /// Running jobs that stop, and go on later.
    pub stopped: ForecastJobs,
    /// Jobs that were about to start, and wait.
    pub not_started: ForecastJobs,
    /// Running jobs that are ended for good, because the site wrote `shed = "kill"`.
    pub killed: ForecastJobs,
    /// Running jobs that may not be stopped. None while lower limits and sleeping nodes are enough.
    pub cannot_be_stopped: ForecastJobs,
    /// Nodes that are put to sleep.
    pub asleep: ForecastNodes,
}

/// Some jobs, and how many there are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForecastJobs {
    /// All of them.
    pub count: usize,
    /// The first ones.
    pub jobs: Vec<ForecastJob>,
}

/// A job that a budget changes something for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForecastJob {
    /// Its number.
    pub job: u32,
    /// What commands print and take for it.
    #[serde(default)]
    pub number: String,
    /// Its number in SLURM, where it has one: the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_job: Option<u32>,
    /// Its name.
    pub name: String,
    /// The power limit of each of its GPUs now, if that changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_now_w: Option<f64>,
    /// And then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_w: Option<f64>,
}

/// Some nodes, and how many there are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForecastNodes {
    /// All of them.
    pub count: usize,
    /// The names of the first ones.
    pub nodes: Vec<String>,
}

/// With a function of its own, a field that may be `null` may still not be left out.
fn named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Changing>, D::Error> {
    Option::deserialize(deserializer)
}
