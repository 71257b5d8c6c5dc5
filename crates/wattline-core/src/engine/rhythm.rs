//! How often plans follow one another at an instant.
//!
//! Where nodes boot and jobs save in no time, a policy can go from one plan to another and back for
//! ever, and time would never go on. So after many plans at an instant the next one waits: a second
//! at first, and twice as long each time if that does not end it.

use crate::time::Timestamp;
use crate::units::Seconds;
use serde::{Deserialize, Serialize};

/// So many plans at an instant are enough; all events of an instant become one plan, and starts and
/// stops that take no time a few more.
const MOST: u32 = 100;
const SHORTEST: Seconds = Seconds::new(1.0);
const LONGEST: Seconds = Seconds::new(3600.0);

/// When plans were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rhythm {
    at: Timestamp,
    plans: u32,
    pause: Seconds,
}

impl Rhythm {
    /// A plan is made.
    pub(crate) fn beat(&mut self, now: Timestamp) {
        if now != self.at {
            if self.plans < MOST {
                self.pause = Seconds::ZERO;
            }
            (self.at, self.plans) = (now, 0);
        }
        self.plans += 1;
        if self.plans == MOST {
            self.pause = (self.pause * 2.0).max(SHORTEST).min(LONGEST);
        }
    }

    /// How long the next plan waits at least.
    pub(crate) fn pause(&self, now: Timestamp) -> Seconds {
        if now == self.at && self.plans >= MOST { self.pause } else { Seconds::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_that_go_round_in_circles_become_rarer() {
        let mut rhythm = Rhythm::default();
        let (mut now, mut plans) = (Timestamp::from_seconds(10.0), 0_u32);
        let begin = now;
        while now < begin + Seconds::new(86_400.0) {
            rhythm.beat(now);
            plans += 1;
            now = now + rhythm.pause(now);
        }
        assert!((3000..5000).contains(&plans), "{plans} plans in a day");
        // Who stops going round in circles plans as before.
        for _ in 0..3 {
            now = now + Seconds::new(1.0);
            rhythm.beat(now);
            assert_eq!(rhythm.pause(now), Seconds::ZERO);
        }
        for _ in 1..MOST {
            rhythm.beat(now);
        }
        assert_eq!(rhythm.pause(now), SHORTEST);
    }
}
