//! How much a policy may search.
//!
//! Policies bound their work by counting it, so that a plan is the same on every machine. Live, a
//! plan must also be there in time: the planner, which has a clock, then asks for less work.

use serde::{Deserialize, Serialize};

/// A share of a policy's usual work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "f64", into = "f64")]
pub struct Effort(f64);

impl Effort {
    /// All of it.
    pub const FULL: Self = Self(1.0);
    /// Less than this is as good as nothing.
    pub const LEAST: Self = Self(1.0 / 256.0);

    /// A share; too large or too small ones, and what is no number, are brought into the range.
    #[must_use]
    pub fn new(share: f64) -> Self {
        if share.is_nan() { Self::FULL } else { Self(share.clamp(Self::LEAST.0, Self::FULL.0)) }
    }

    /// As a number from above 0 to 1.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }

    /// So much of a counted work; something is always left of something.
    #[must_use]
    pub fn of(self, work: u64) -> u64 {
        if self == Self::FULL { work } else { ((work as f64 * self.0) as u64).max(work.min(1)) }
    }
}

impl Default for Effort {
    fn default() -> Self {
        Self::FULL
    }
}

impl From<f64> for Effort {
    fn from(share: f64) -> Self {
        Self::new(share)
    }
}

impl From<Effort> for f64 {
    fn from(effort: Effort) -> Self {
        effort.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_left_of_any_work_and_all_of_it_at_full_effort() {
        for work in [0, 1, 7, 100_000, u64::MAX] {
            assert_eq!(Effort::FULL.of(work), work);
            assert_eq!(Effort::LEAST.of(work) > 0, work > 0);
        }
        assert_eq!(Effort::new(0.5).of(100_000), 50_000);
        for share in [f64::NAN, 2.0, f64::INFINITY] {
            assert_eq!(Effort::new(share), Effort::FULL);
        }
        for share in [0.0, -1.0, f64::NEG_INFINITY] {
            assert_eq!(Effort::new(share), Effort::LEAST);
        }
    }
}
