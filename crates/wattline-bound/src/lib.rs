//! Yardsticks.

pub mod exact;
pub mod lower;

pub use lower::{Effort, Input, LowerBound, lower_bound};
