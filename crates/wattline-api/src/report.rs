//! What a period has come to.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Which period, and how many rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReportQuery {
    /// Where it begins; 7 days before its end, if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_s: Option<f64>,
    /// Where it ends; now, if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_s: Option<f64>,
    /// Where the last page of users ended: its `next`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users_after: Option<String>,
    /// Where the last page of workloads ended: its `next`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workloads_after: Option<String>,
    /// Where the last page of accounts ended: its `next`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounts_after: Option<String>,
    /// Rows of a page, 1 to 1000; 100 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// What a period has come to. Users see the figures of all jobs together, and rows of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Report {
    /// `wattline.report/1`.
    pub schema: String,
    /// The time on the cluster's clock.
    pub now_s: f64,
    /// Where the period begins.
    pub since_s: f64,
    /// Where it ends.
    pub until_s: f64,
    /// All jobs.
    pub totals: JobFigures,
    /// The whole cluster's power.
    pub power: PowerFigures,
    /// By user, by name.
    pub by_user: ReportRows,
    /// By workload, by name.
    pub by_workload: ReportRows,
    /// By account, by name, of jobs whose account is known.
    #[serde(default)]
    pub by_account: ReportRows,
}

/// Some rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportRows {
    /// The rows.
    pub rows: Vec<ReportRow>,
    /// Ask for what comes after this for the next page; none if this is the last.
    pub next: Option<String>,
}

/// The jobs of a user, or of a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportRow {
    /// Whose, or of what.
    pub name: String,
    /// What became of them.
    #[serde(flatten)]
    pub figures: JobFigures,
}

/// What became of jobs. All but `submitted` is about jobs that ended in the period, with all that
/// they ever took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobFigures {
    /// Jobs that were submitted in the period.
    pub submitted: u64,
    /// Jobs that were completed.
    pub finished: u64,
    /// Jobs that were cancelled, or lost.
    pub cancelled: u64,
    /// Completed jobs that had a deadline,
    pub with_deadline: u64,
    /// that met it,
    pub deadlines_met: u64,
    /// and that did not.
    pub late: u64,
    /// What being late cost.
    pub tardiness_eur: f64,
    /// What their GPUs drew, as far as that is known; `null` if of no job.
    pub energy_kwh: Option<f64>,
    /// What that cost.
    pub energy_eur: Option<f64>,
    /// Of how many jobs that is known.
    pub energy_known: u64,
    /// From submission to completion, of completed jobs: the mean,
    pub completion_mean_s: Option<f64>,
    /// what half of them stay below,
    pub completion_p50_s: Option<f64>,
    /// and what 99 of 100 do.
    pub completion_p99_s: Option<f64>,
    /// How often they were started again.
    pub restarts: u64,
}

/// The cluster's power over a period, in whole hours.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PowerFigures {
    /// How long it was measured; 0: never, and the rest is `null`.
    pub measured_s: f64,
    /// The mean,
    pub mean_w: Option<f64>,
    /// the most that was drawn,
    pub peak_w: Option<f64>,
    /// and the most that could have been.
    pub committed_peak_w: Option<f64>,
    /// What was drawn,
    pub energy_kwh: Option<f64>,
    /// and what that cost, with cooling and carbon.
    pub energy_eur: Option<f64>,
    /// The mean of the budget while there was one.
    pub budget_mean_w: Option<f64>,
    /// How long more than the budget was drawn.
    pub budget_exceeded_s: f64,
}
