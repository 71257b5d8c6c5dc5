//! For clusters that are only watched: a policy that decides nothing.

use wattline_core::plan::Plan;
use wattline_core::policy::{ClusterView, Policy};

/// Leaves everything as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch;

impl Policy for Watch {
    fn name(&self) -> &str {
        "watch"
    }

    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        Plan::unchanged(view.plan)
    }

    fn decides(&self) -> bool {
        false
    }
}
