//! Points in time.

use crate::units::Seconds;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, Sub};

/// A point in time: whole microseconds since the Unix epoch, or since a trace's own zero.
///
/// An integer, so that times are totally ordered and hashable, so that two things that happen "at
/// the same time" compare equal whatever arithmetic led there, and so that a journal replays to
/// the very same instants.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Time zero.
    pub const ZERO: Self = Self(0);
    /// Later than everything.
    pub const FAR_FUTURE: Self = Self(i64::MAX);

    /// From seconds, rounded to the nearest microsecond; saturates at the ends.
    #[must_use]
    pub fn from_seconds(seconds: f64) -> Self {
        Self(whole_micros(Seconds::new(seconds)))
    }

    /// From whole microseconds.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Whole microseconds.
    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Seconds since time zero.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The time from `earlier` to `self`, or zero if `earlier` is in fact later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Seconds {
        (self - earlier).max(Seconds::ZERO)
    }
}

impl Add<Seconds> for Timestamp {
    type Output = Self;
    fn add(self, time: Seconds) -> Self {
        Self(self.0.saturating_add(whole_micros(time)))
    }
}
impl Sub<Seconds> for Timestamp {
    type Output = Self;
    fn sub(self, time: Seconds) -> Self {
        Self(self.0.saturating_sub(whole_micros(time)))
    }
}
impl Sub for Timestamp {
    type Output = Seconds;
    fn sub(self, earlier: Self) -> Seconds {
        Seconds::new(Self(self.0.saturating_sub(earlier.0)).seconds())
    }
}

/// To the nearest microsecond.
fn whole_micros(time: Seconds) -> i64 {
    (time.get() * 1e6).round() as i64
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s", self.seconds())
    }
}
