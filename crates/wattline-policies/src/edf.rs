//! Earliest deadline first.

use crate::list::{ListOptions, ListPolicy, rank_of_time};
use wattline_core::policy::Policy;
use wattline_core::time::Timestamp;

/// Jobs by deadline; those without one come last, in the order in which they were taken in.
pub(crate) fn edf(options: ListOptions) -> Box<dyn Policy> {
    Box::new(ListPolicy::new(
        "edf",
        |job| rank_of_time(job.deadline.unwrap_or(Timestamp::FAR_FUTURE)),
        options,
    ))
}
