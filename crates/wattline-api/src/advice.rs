//! What a policy would do.

use crate::job::Placement;
use crate::plan::{Foreseen, PlannedNode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a policy would do now, and what would come of it. Nothing is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Advice {
    /// `wattline.advice/1`.
    pub schema: String,
    /// The time on the cluster's clock.
    pub now_s: f64,
    /// The policy that was asked.
    pub policy: String,
    /// Whether it decides here. If not, the cluster is only watched, and this stays advice.
    pub decides: bool,
    /// In a sentence.
    pub text: String,
    /// Whether the checker would let the plan pass.
    pub accepted: bool,
    /// What the checker says, if not.
    pub violations: Vec<String>,
    /// What the cluster could draw at worst right now.
    pub committed_now_w: f64,
    /// And if that were done.
    pub committed_w: f64,
    /// What that must stay below.
    pub budget_w: Option<f64>,
    /// Jobs about which something would change.
    pub jobs: Vec<AdvisedJob>,
    /// Nodes that would be woken or put to sleep.
    pub nodes: Vec<PlannedNode>,
    /// Jobs that would stay as they run.
    pub staying: usize,
    /// Jobs that would go on waiting.
    pub waiting: usize,
    /// How far the plan was run forward, and who decides in that.
    pub outlook: String,
}

/// A job about which something would change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AdvisedJob {
    /// Which.
    pub job: u32,
    /// What commands print and take for it.
    #[serde(default)]
    pub number: String,
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub user: String,
    /// `start`, `stop`, `move`, `resize` or `limit`.
    pub action: String,
    /// What it holds.
    pub holds: Option<Placement>,
    /// How it would run.
    pub runs: Option<Placement>,
    /// Why.
    pub why: String,
    /// What would become of it.
    pub forecast: Option<Foreseen>,
}
