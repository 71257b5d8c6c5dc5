//! When the next snapshot is due.

use std::time::Duration;

/// Most entries after a snapshot, which a restart has to replay: some 5 ms (`bench history` replays
/// about 400,000 a second). Twice as many would double that, half as many the snapshots written.
const MAX_ENTRIES: u64 = 2_000;
/// A snapshot is taken earlier when turns of the loop have taken this long since the last one, for
/// then there was much in few entries.
const MAX_TURN_TIME: Duration = Duration::from_secs(1);
/// But not after fewer entries than this: a snapshot is larger than they are.
const MIN_ENTRIES: u64 = 50;
/// Turns take at least this many times as long as snapshots, which are so at most 5 % of the work.
const TURN_TIME_PER_SNAPSHOT: u32 = 20;

/// Keeps restarts short without spending much on it. The caller has the clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SnapshotSchedule {
    turn_time: Duration,
    last_snapshot: Duration,
}

impl SnapshotSchedule {
    /// Adds the time that a turn took.
    pub fn turned(&mut self, took: Duration) {
        self.turn_time = self.turn_time.saturating_add(took);
    }

    /// Whether a snapshot is due, this many entries after the last.
    #[must_use]
    pub fn is_due(&self, entries: u64) -> bool {
        let enough = self.last_snapshot.saturating_mul(TURN_TIME_PER_SNAPSHOT);
        let long = self.turn_time >= MAX_TURN_TIME && entries >= MIN_ENTRIES;
        (long || entries >= MAX_ENTRIES) && self.turn_time >= enough
    }

    /// A snapshot was tried, and that took this long.
    pub fn saved(&mut self, took: Duration) {
        *self = Self { turn_time: Duration::ZERO, last_snapshot: took };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_come_when_restarts_would_be_long_and_cost_little() {
        let (second, blink) = (Duration::from_secs(1), Duration::from_millis(1));
        let mut schedule = SnapshotSchedule::default();
        assert!(schedule.is_due(2_000) && !schedule.is_due(1_999));
        schedule.turned(second);
        assert!(schedule.is_due(50) && !schedule.is_due(49));
        schedule.saved(10 * blink);
        assert!(!schedule.is_due(2_000), "nothing was done since");
        schedule.turned(200 * blink);
        assert!(schedule.is_due(2_000) && !schedule.is_due(1_999));
        // A large one is not taken each second.
        schedule.saved(second);
        schedule.turned(19 * second);
        assert!(!schedule.is_due(100_000));
        schedule.turned(second);
        assert!(schedule.is_due(100_000));
    }
}
