//! A circuit breaker: what does not answer is left alone for a while, and then tried once.

use wattline_core::Timestamp;
use wattline_core::units::Seconds;

/// So many orders in a row without an answer open it: one may be bad luck, and each costs a worker
/// its whole time limit (20 s).
const FAILURES: u32 = 3;
/// The first pause. Restarting slurmctld or slurmd takes a few seconds.
const FIRST_PAUSE: Seconds = Seconds::new(5.0);
/// Pauses double up to this, so that what comes back after hours is used again within a minute.
const LONGEST_PAUSE: Seconds = Seconds::new(60.0);

/// A breaker. It is closed as long as there are answers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Breaker {
    /// Orders in a row without an answer.
    failures: u32,
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    since: Timestamp,
    until: Timestamp,
    pause: Seconds,
    /// One order is out to see whether there is an answer again.
    probes: bool,
}

impl Breaker {
    /// Whether an order may go out now.
    pub(super) fn permits(&self, now: Timestamp) -> bool {
        self.open.is_none_or(|open| now >= open.until && !open.probes)
    }

    /// An order goes out.
    pub(super) fn tried(&mut self, now: Timestamp) {
        if let Some(open) = &mut self.open {
            open.probes |= now >= open.until;
        }
    }

    /// There was an answer, whatever it said. Says whether it was open.
    pub(super) fn answered(&mut self) -> bool {
        let was_open = self.open.is_some();
        *self = Self::default();
        was_open
    }

    /// There was none. Says whether it has just opened.
    pub(super) fn failed(&mut self, now: Timestamp) -> bool {
        self.failures += 1;
        let before = self.open;
        if self.failures >= FAILURES {
            let pause = before.map_or(FIRST_PAUSE, |open| {
                // Orders that were out before it opened say nothing new.
                if open.probes { (open.pause * 2.0).min(LONGEST_PAUSE) } else { open.pause }
            });
            let since = before.map_or(now, |open| open.since);
            self.open = Some(Open { since, until: now + pause, pause, probes: false });
        }
        before.is_none() && self.open.is_some()
    }

    /// Since when it is open, how many orders had no answer, and when the next one goes out.
    pub(super) fn is_open(&self) -> Option<(Timestamp, u32, Timestamp)> {
        self.open.map(|open| (open.since, self.failures, open.until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_seconds(seconds)
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_probes_with_growing_pauses() {
        let mut breaker = Breaker::default();
        assert!(!breaker.failed(at(0.0)) && !breaker.failed(at(1.0)));
        assert!(!breaker.answered(), "it was not open");
        // An answer in between begins the count anew.
        assert!(!breaker.failed(at(2.0)) && !breaker.failed(at(3.0)) && breaker.permits(at(3.0)));
        assert!(breaker.failed(at(4.0)), "the third in a row");
        let mut now = 4.0;
        for pause in [5.0, 10.0, 20.0, 40.0, 60.0, 60.0] {
            assert!(!breaker.permits(at(now + pause - 0.1)));
            now += pause;
            assert!(breaker.permits(at(now)));
            breaker.tried(at(now));
            assert!(!breaker.permits(at(now + 1000.0)), "one probe at a time");
            now += 20.0;
            assert!(!breaker.failed(at(now)), "open already");
        }
        assert_eq!(breaker.is_open().map(|(since, count, _)| (since, count)), Some((at(4.0), 9)));
        assert!(breaker.answered() && breaker.permits(at(now)) && breaker.is_open().is_none());
    }
}
