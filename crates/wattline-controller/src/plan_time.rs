//! How much plans may search so that they are ready in time.

use std::time::Duration;
use wattline_core::effort::Effort;

/// Default of `serve --plan-limit`. Jobs that run for minutes gain nothing from plans that are ready
/// sooner, and a plan that is a second old mostly still holds.
pub const PLAN_LIMIT: Duration = Duration::from_secs(1);
/// After a plan that was too slow, the next one should take this part of the limit: plans of the
/// same size differ by a third.
const TARGET: f64 = 0.7;
/// One slow plan lowers the effort by no more than this factor: it may have been an exception.
const LARGEST_CUT: f64 = 1.0 / 16.0;
/// After this many plans in a row within a quarter of the limit the effort grows by half. Less than
/// a quarter, because growing by half must not lead above the limit.
const QUICK_PLANS: u32 = 20;
const QUICK: f64 = 0.25;
const GROWTH: f64 = 1.5;

/// Keeps plans below a time limit by the share of their usual work that they do.
#[derive(Clone, Copy, Debug)]
pub struct PlanTimeGovernor {
    limit: Duration,
    /// Plans in a row that were quick.
    quick: u32,
}

impl Default for PlanTimeGovernor {
    fn default() -> Self {
        Self::new(PLAN_LIMIT)
    }
}

impl PlanTimeGovernor {
    /// A governor with this limit.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { limit, quick: 0 }
    }

    /// The limit.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Records how long a plan took with an effort. Returns the effort for the next, if it changes.
    pub fn planned(&mut self, took: Duration, effort: Effort) -> Option<Effort> {
        let part = took.as_secs_f64() / self.limit.as_secs_f64().max(1e-9);
        self.quick = if part < QUICK { self.quick + 1 } else { 0 };
        let factor = if part > 1.0 {
            (TARGET / part).max(LARGEST_CUT)
        } else if self.quick >= QUICK_PLANS {
            self.quick = 0;
            GROWTH
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
        let (mut governor, mut effort, mut slow) = (PlanTimeGovernor::new(limit), Effort::FULL, 0);
        for _ in 0..1000 {
            let took = Duration::from_secs_f64(0.01 + seconds * effort.get());
            slow += u32::from(took > limit);
            effort = governor.planned(took, effort).unwrap_or(effort);
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
        let (mut governor, second) = (PlanTimeGovernor::default(), Duration::from_secs(1));
        let mut effort = governor.planned(4 * second, Effort::FULL).unwrap_or_default();
        assert!(effort.get() < 0.2);
        let mut plans = 0;
        while effort != Effort::FULL {
            effort = governor.planned(second / 10, effort).unwrap_or(effort);
            plans += 1;
        }
        assert!((QUICK_PLANS..20 * QUICK_PLANS).contains(&plans), "{plans}");
        assert_eq!(governor.planned(second / 10, Effort::FULL), None);
    }
}
