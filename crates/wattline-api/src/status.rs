//! How things are.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How things are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// `wattline.status/1`.
    pub schema: String,
    /// The program's version.
    pub version: String,
    /// The time on the cluster's clock.
    pub now_s: f64,
    /// Seconds of the cluster in a second.
    pub speed: f64,
    /// The policy.
    pub policy: String,
    /// Jobs that wait.
    pub waiting: usize,
    /// Jobs that hold GPUs.
    pub running: usize,
    /// Jobs that are over.
    pub finished: usize,
    /// GPUs of the cluster.
    pub gpus: u32,
    /// GPUs that are held.
    pub gpus_held: u32,
    /// Nodes that are up.
    pub nodes_up: usize,
    /// Nodes that sleep.
    pub nodes_asleep: usize,
    /// All nodes.
    pub nodes: usize,
    /// What the cluster draws, if that is measured.
    pub drawn_w: Option<f64>,
    /// What it could draw at worst.
    pub committed_w: f64,
    /// What that must stay below.
    pub budget_w: Option<f64>,
    /// Plans made.
    pub plans: u64,
    /// The plan in force.
    pub plan: u64,
    /// Entries of the journal that have been heard.
    pub journal: u64,
    /// The longest turn (hearing, planning, acting) of the last thousand.
    pub turn_max_ms: f64,
    /// The turn that 99 of 100 stay below.
    pub turn_p99_ms: f64,
    /// What is wrong right now; empty if nothing is.
    pub troubles: Vec<String>,
    /// Who asks, and as what.
    pub you: String,
    /// See `you`.
    pub role: String,
    /// The highest weight you may give a job; `null`: any.
    pub max_weight_eur_per_h: Option<f64>,
    /// The workloads that may be named; `null`: any.
    pub workloads: Option<Vec<String>>,
}
