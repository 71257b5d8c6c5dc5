//! The cluster's clock.

use std::time::{Duration, Instant};
use wattline_core::Timestamp;
use wattline_core::units::Seconds;

/// A clock that goes on evenly from some time, whatever is done to the machine's clock: in real
/// time, or so many times faster.
#[derive(Clone, Copy, Debug)]
pub struct ClusterClock {
    first: Timestamp,
    began: Instant,
    speed: f64,
}

impl ClusterClock {
    /// A clock that shows `first` now. The speed must be finite and positive.
    #[must_use]
    pub fn new(first: Timestamp, speed: f64) -> Self {
        Self { first, began: Instant::now(), speed }
    }

    /// What it shows.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.first + Seconds::new(self.began.elapsed().as_secs_f64() * self.speed)
    }

    /// Seconds of the cluster in a second.
    #[must_use]
    pub fn speed(&self) -> f64 {
        self.speed
    }

    /// How long until it shows this.
    #[must_use]
    pub fn until(&self, time: Timestamp) -> Duration {
        // A year is as good as never.
        let wait = (time.since(self.now()).get() / self.speed).min(3.2e7);
        Duration::try_from_secs_f64(wait).unwrap_or_default()
    }
}
