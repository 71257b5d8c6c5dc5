//! Lists in pages.

use crate::job::JobRow;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The most rows of one page.
pub const MOST_IN_A_PAGE: u32 = 1000;

/// Which jobs to list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobQuery {
    /// Only jobs in this state; `unfinished` are all that are not over, `all` are all. Without it:
    /// `unfinished`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Only this user's jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where the last page ended: its `next`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u32>,
    /// Rows of a page, 1 to 1000; 100 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// How far is foreseen. What is not foreseen of a job comes later than that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Reach {
    /// When it was foreseen.
    pub at_s: f64,
    /// How far it reaches.
    pub until_s: f64,
    /// Until then every plan was made that will be; after that fewer, and times are less exact.
    pub exact_until_s: f64,
    /// Jobs that were not over,
    pub jobs: usize,
    /// and how many of them end within its reach.
    pub ended: usize,
    /// In a sentence.
    pub text: String,
}

/// Some jobs, by number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobPage {
    /// `wattline.queue/1`.
    pub schema: String,
    /// The time on the cluster's clock.
    pub now_s: f64,
    /// The jobs.
    pub jobs: Vec<JobRow>,
    /// How far is foreseen; none: nothing yet.
    #[serde(default)]
    pub outlook: Option<Reach>,
    /// Ask with `after` set to this for the next page; none if this is the last.
    pub next: Option<u32>,
}
