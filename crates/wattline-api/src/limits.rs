//! What whoever asks may ask for at most.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A limit, and how much of it is used.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitRow {
    /// The most; `null`: no limit.
    pub limit: Option<f64>,
    /// What is used now; `null`: that is not counted.
    pub used: Option<f64>,
}

/// Your limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// `wattline.limits/1`.
    pub schema: String,
    /// Who asks.
    pub user: String,
    /// As what.
    pub role: String,
    /// Jobs that hold no GPUs yet.
    pub jobs_waiting: LimitRow,
    /// Submissions in a minute.
    pub jobs_per_minute: LimitRow,
    /// Requests in a second.
    pub requests_per_second: LimitRow,
    /// The weight of a job.
    pub weight_eur_per_h: LimitRow,
    /// Views that are planned at a time.
    pub views_at_a_time: LimitRow,
    /// Reports that are made at a time.
    pub reports_at_a_time: LimitRow,
    /// Questions (`explain`, `whatif`, `advice`) that are answered or wait at a time.
    pub questions_at_a_time: LimitRow,
    /// Event streams that are open at a time.
    pub event_streams: LimitRow,
    /// Limits that you share with others.
    pub accounts: Vec<AccountLimits>,
}

/// What the users of an account may ask for together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AccountLimits {
    /// The account.
    pub name: String,
    /// Jobs that hold no GPUs yet.
    pub jobs_waiting: LimitRow,
    /// Submissions in a minute.
    pub jobs_per_minute: LimitRow,
}
