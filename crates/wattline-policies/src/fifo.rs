//! First come, first served.

use crate::list::{ListOptions, ListPolicy, rank_of_time};
use wattline_core::policy::Policy;

/// Jobs in the order in which they were submitted.
pub(crate) fn fifo(options: ListOptions) -> Box<dyn Policy> {
    Box::new(ListPolicy::new("fifo", |job| rank_of_time(job.submit), options))
}
