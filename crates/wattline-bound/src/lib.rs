//! How far from the limit: yardsticks that share no code with any policy.
//!
//! * [`lower`]: a cost that no schedule of an instance stays below, however clever, preemptive and
//!   clairvoyant it is. For instances of any size.
//! * [`exact`]: the best schedule of a small problem, for policies to be measured by, and a
//!   generator of such problems.
//!
//! **Invariant.** Nothing here knows a policy, the engine or the simulator; the lower bound looks
//! at machines, physics, jobs and prices only. Nothing reads a clock: effort is counted work, so
//! a result is a function of its input.

pub mod exact;
pub mod lower;

pub use lower::{Effort, Input, LowerBound, lower_bound};
