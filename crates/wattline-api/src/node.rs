//! Nodes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// The kind of its GPUs.
    pub gpu: String,
    /// How many it has.
    pub gpus: u32,
    /// How many of them are held.
    pub gpus_held: u32,
    /// `up`, `closed` (up, and takes no more jobs), `booting`, `falling_asleep`, `asleep` or `down`.
    pub state: String,
    /// What the plan wants it to be: `up` or `asleep`.
    pub target: String,
    /// The jobs on it; a user sees only his own.
    pub jobs: Vec<u32>,
    /// What commands print and take for these jobs, in the same order.
    #[serde(default)]
    pub job_numbers: Vec<String>,
    /// What it could draw at worst.
    pub committed_w: f64,
    /// Why it is planned as it is.
    pub why: String,
}

/// All nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeList {
    /// `wattline.nodes/1`.
    pub schema: String,
    /// The time on the cluster's clock.
    pub now_s: f64,
    /// By name, as the cluster lists them.
    pub nodes: Vec<NodeRow>,
}
