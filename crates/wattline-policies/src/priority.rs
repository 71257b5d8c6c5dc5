//! Weightiest first.

use crate::list::{ListOptions, ListPolicy, rank_of_weight};
use wattline_core::policy::Policy;

/// Jobs by weight, the largest first, equal ones in the order in which they were taken in.
pub(crate) fn priority(options: ListOptions) -> Box<dyn Policy> {
    Box::new(ListPolicy::new("priority", |job| rank_of_weight(job.weight.get()), options))
}
