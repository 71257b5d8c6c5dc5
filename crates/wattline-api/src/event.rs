//! What happens, as it happens.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that happened. The stream's event id is `epoch-number`: epochs are told apart so that
/// nobody takes events of a controller that died for those of the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Counts from 1.
    pub number: u64,
    /// When, on the cluster's clock.
    pub at_s: f64,
    /// `submitted`, `started`, `stopped`, `limited`, `on_hold`, `released`, `updated`, `cancelled`,
    /// `finished`, `node`, `budget`, `advice`, `alert` or `trouble`.
    pub kind: String,
    /// The job it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<u32>,
    /// What commands print and take for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_number: Option<String>,
    /// The node it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whose job it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// In a sentence.
    pub text: String,
}
