//! The power budget.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;
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
}

/// With a function of its own, a field that may be `null` may still not be left out.
fn named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Changing>, D::Error> {
    Option::deserialize(deserializer)
}
