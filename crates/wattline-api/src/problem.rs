//! What went wrong, and what to do about it (RFC 9457).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Names the kind of problem: `urn:wattline:problem:not-yours` and the like.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What is wrong here.
    pub detail: String,
    /// What to do about it.
    pub help: String,
    /// Which field of the request is wrong, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}
