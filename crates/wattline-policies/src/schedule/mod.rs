//! Complete schedules: who starts when and where, until all known jobs have ended.

mod profile;

pub(crate) use profile::{Bare, MIN_HOLD, Place, Profile};
use smallvec::SmallVec;

/// GPUs of a job: nodes by number, with how many on each.
pub(crate) type Spot = SmallVec<[(u32, u8); 2]>;
