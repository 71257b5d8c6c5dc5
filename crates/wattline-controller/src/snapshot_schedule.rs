//! When the next snapshot is due.

use std::time::Duration;

/// A snapshot is due after so many entries at the latest.
const MOST_ENTRIES: u64 = 2_000;
/// And when turns since the last have taken so long: that is how long a restart would take.
const MOST_TURNING: Duration = Duration::from_secs(1);
/// But not after fewer entries than this,
const FEWEST_ENTRIES: u64 = 50;
/// and not before turns have taken so many times longer than a snapshot does.
const TIMES_SAVING: u32 = 20;

/// Keeps restarts short without spending much on it. Whoever has a clock tells how long things took.
#[derive(Clone, Copy, Debug, Default)]
pub struct SnapshotSchedule {
    turning: Duration,
    snapshot_schedule: Duration,
}

impl SnapshotSchedule {
    /// A turn took so long.
    pub fn turned(&mut self, took: Duration) {
        self.turning = self.turning.saturating_add(took);
    }

    /// Whether a snapshot is due, with so many entries after the last.
    #[must_use]
    pub fn is_due(&self, entries: u64) -> bool {
        let enough = self.snapshot_schedule.saturating_mul(TIMES_SAVING);
        let long = self.turning >= MOST_TURNING && entries >= FEWEST_ENTRIES;
        (long || entries >= MOST_ENTRIES) && self.turning >= enough
    }

    /// It was taken, or could not be, and that took so long.
    pub fn saved(&mut self, took: Duration) {
        *self = Self { turning: Duration::ZERO, snapshot_schedule: took };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_come_when_restarts_would_be_long_and_cost_little() {
        let (second, blink) = (Duration::from_secs(1), Duration::from_millis(1));
        let mut saving = SnapshotSchedule::default();
        assert!(saving.is_due(2_000) && !saving.is_due(1_999));
        saving.turned(second);
        assert!(saving.is_due(50) && !saving.is_due(49));
        saving.saved(10 * blink);
        assert!(!saving.is_due(2_000), "nothing was done since");
        saving.turned(200 * blink);
        assert!(saving.is_due(2_000) && !saving.is_due(1_999));
        // A large one is not taken each second.
        saving.saved(second);
        saving.turned(19 * second);
        assert!(!saving.is_due(100_000));
        saving.turned(second);
        assert!(saving.is_due(100_000));
    }
}
