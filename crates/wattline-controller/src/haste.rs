//! How much plans may search so that they are there in time.

use std::time::Duration;
use wattline_core::effort::Effort;

/// A plan may take this long, unless somebody says otherwise.
pub const PLAN_LIMIT: Duration = Duration::from_secs(1);
/// Who was too slow is to need this part of the limit the next time,
const AIM: f64 = 0.7;
/// and is not slowed to less than this part of what it did at once.
const MOST_AT_ONCE: f64 = 1.0 / 16.0;
/// After so many plans in a row that took less than this part of the limit, they may do more again.
const CALM: u32 = 20;
const QUICK: f64 = 0.25;
const MORE: f64 = 1.5;

/// Keeps plans below a limit by the work that they may do. Whoever has a clock tells how long they
/// took; what follows is told to the engine and written down, so that the same plans are made when
/// the journal is read again.
#[derive(Clone, Copy, Debug)]
pub struct Haste {
    limit: Duration,
    /// Plans in a row that were quick.
    quick: u32,
}

impl Default for Haste {
    fn default() -> Self {
        Self::new(PLAN_LIMIT)
    }
}

impl Haste {
    /// Plans shall take this long at the most.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { limit, quick: 0 }
    }

    /// What plans shall take at the most.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// A plan took so long with that effort. Says with how much to go on, if that changes.
    pub fn planned(&mut self, took: Duration, effort: Effort) -> Option<Effort> {
        let part = took.as_secs_f64() / self.limit.as_secs_f64().max(1e-9);
        self.quick = if part < QUICK { self.quick + 1 } else { 0 };
        let factor = if part > 1.0 {
            (AIM / part).max(MOST_AT_ONCE)
        } else if self.quick >= CALM {
            self.quick = 0;
            MORE
        } else {
            return None;
        };
        let next = Effort::new(effort.get() * factor);
        (next != effort).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long plans take on a machine where all of the work takes so many seconds, and a
    /// hundredth of one is needed for the rest: the effort in the end, and how many were too slow.
    fn settled(seconds: f64, limit: Duration) -> (Effort, u32) {
        let (mut haste, mut effort, mut slow) = (Haste::new(limit), Effort::FULL, 0);
        for _ in 0..1000 {
            let took = Duration::from_secs_f64(0.01 + seconds * effort.get());
            slow += u32::from(took > limit);
            effort = haste.planned(took, effort).unwrap_or(effort);
        }
        (effort, slow)
    }

    #[test]
    fn slow_machines_search_less_and_quick_ones_all_they_may() {
        let limit = Duration::from_secs(1);
        assert_eq!(settled(0.9, limit), (Effort::FULL, 0));
        let (effort, slow) = settled(10.0, limit);
        assert!(effort.get() > 0.02 && effort.get() < 0.1, "{effort:?}");
        assert_eq!(slow, 1, "one plan too slow is enough to know");
        // Where it is not the work that takes the time, it is not brought below the least.
        let (effort, _) = settled(1e9, limit);
        assert_eq!(effort, Effort::LEAST);
    }

    #[test]
    fn who_was_slow_for_a_while_gets_back_to_all_of_the_work() {
        let (mut haste, second) = (Haste::default(), Duration::from_secs(1));
        let mut effort = haste.planned(4 * second, Effort::FULL).unwrap_or_default();
        assert!(effort.get() < 0.2);
        let mut plans = 0;
        while effort != Effort::FULL {
            effort = haste.planned(second / 10, effort).unwrap_or(effort);
            plans += 1;
        }
        assert!((CALM..20 * CALM).contains(&plans), "{plans}");
        assert_eq!(haste.planned(second / 10, Effort::FULL), None);
    }
}
