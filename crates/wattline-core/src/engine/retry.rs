//! When a failed action is tried again, and what becomes of it when it fails too often.
//!
//! An action that failed is tried again after [`EngineConfig::retry_after`], then after twice as
//! long, and so on up to a longest pause. After [`EngineConfig::retries`] retries the engine gives
//! up: it plans without the job or node, and raises one alert. Giving up is never the end: the
//! action is tried again, at the longest pause at the latest, until it succeeds, the plan no longer
//! wants it, or the backend reports something else. Only the first giving up raises an alert.
//!
//! See `docs/adr/0029-nothing-is-given-up-for-good.md`.

use super::{Alert, Engine, EngineConfig, HandedOut, InFlight, Outcome};
use crate::ids::{ActionId, JobId, NodeId, UserId};
use crate::plan::{Reason, Refusal};
use crate::power::NodePower;
use crate::state::{JobState, Phase, Refusals, Target};
use crate::time::Timestamp;
use crate::units::Seconds;
use std::sync::Arc;

/// Each pause is this many times the one before: the usual factor of an exponential backoff. With 5 s
/// at first, 10 min are reached at the eighth failure.
const FACTOR: f64 = 2.0;

/// Longest pause before a job is told again to stop or to lower its limit. Its GPUs and watts are
/// counted meanwhile, and the budget may depend on it, so it is short: a request to the backend once
/// a minute is no load. Twice as long would leave a budget exceeded for twice as long.
const LONGEST_TO_LOWER: Seconds = Seconds::new(60.0);

/// Longest pause before a node is told again to wake or to sleep: a node that an administrator has
/// repaired is used again within that time without anybody saying so, and one that stays broken
/// costs 144 power commands a day. A tenth of it would be 1440, some of which reset a machine that
/// somebody works on.
const LONGEST_FOR_NODES: Seconds = Seconds::new(600.0);

/// Longest time for which a job that would not start is left alone. It begins with
/// [`EngineConfig::hold_off`]; each try takes GPUs away from others while it fails.
const LONGEST_HOLD_OFF: Seconds = Seconds::new(3600.0);

/// What the cluster refused is not asked for again for this long. What stands in the way is mostly
/// another job; half of it would ask twice before a job of a minute is over.
const FIRST_REFUSED: Seconds = Seconds::new(15.0);

/// Longest such pause. Each try takes GPUs and watts from others for some seconds: at most
/// one percent of the time. Twice as long, and a job waits that much longer for what is free already.
const LONGEST_REFUSED: Seconds = Seconds::new(300.0);

/// The pause after `failures` failures in a row, the first of which is followed by `first`.
fn pause(first: Seconds, failures: u32, longest: Seconds) -> Seconds {
    // Beyond this exponent every pause is the longest one; it keeps the power finite.
    let doublings = failures.saturating_sub(1).min(30) as i32;
    (first * FACTOR.powi(doublings)).min(longest.max(first))
}

/// The pause before an action is tried again.
fn pause_before_retry(config: &EngineConfig, about: InFlight, failures: u32) -> Seconds {
    let longest = match about {
        InFlight::Start(_) | InFlight::Stop(_) | InFlight::Limit(_) => LONGEST_TO_LOWER,
        InFlight::Wake(_) | InFlight::Sleep(_) => LONGEST_FOR_NODES,
    };
    pause(config.retry_after, failures, longest)
}

impl Engine<'_> {
    /// An action failed: it is tried again, later each time; after the last retry the plan goes on
    /// without it.
    pub(super) fn failed(&mut self, now: Timestamp, action: ActionId) {
        let Some(HandedOut { about, .. }) = self.in_flight.remove(&action) else { return };
        self.stats.failures += 1;
        let failures = match about {
            InFlight::Start(id) | InFlight::Stop(id) => {
                let job = self.state.job_mut(id);
                job.attempts += 1;
                job.attempts
            }
            InFlight::Limit(id) => {
                let job = self.state.job_mut(id);
                job.limit_attempts += 1;
                job.limit_attempts
            }
            InFlight::Wake(id) | InFlight::Sleep(id) => {
                let node = self.state.node_mut(id);
                node.in_flight = None;
                node.attempts += 1;
                node.attempts
            }
        };
        let given_up = failures > self.config.retries;
        let first_time = failures == self.config.retries + 1;
        let again = now + pause_before_retry(&self.config, about, failures);
        let outcome = if given_up { Outcome::GivenUp } else { Outcome::Failed };
        self.stats.outcomes.came(about, outcome);
        self.wake_ups.entry(again).or_default();
        match about {
            InFlight::Start(id) | InFlight::Stop(id) | InFlight::Limit(id) => {
                self.state.job_mut(id).not_before = again;
            }
            InFlight::Wake(id) | InFlight::Sleep(id) => {
                self.state.node_mut(id).not_before = again;
            }
        }
        match about {
            InFlight::Start(id) => self.start_failed(now, id, given_up),
            InFlight::Stop(id) => self.stop_failed(now, id, given_up),
            InFlight::Limit(id) => self.limit_failed(now, id, given_up),
            InFlight::Wake(id) => self.wake_failed(now, id, given_up),
            InFlight::Sleep(id) => self.sleep_failed(now, id, given_up),
        }
        if first_time {
            self.alert(match about {
                InFlight::Start(id) => Alert::StartGivenUp(id),
                InFlight::Stop(id) => Alert::StopGivenUp(id),
                InFlight::Limit(id) => Alert::LimitGivenUp(id),
                InFlight::Wake(id) => Alert::WakeGivenUp(id),
                InFlight::Sleep(id) => Alert::SleepGivenUp(id),
            });
        }
    }

    fn start_failed(&mut self, now: Timestamp, id: JobId, given_up: bool) {
        self.state.release(id);
        let job = self.state.job_mut(id);
        job.run = None;
        job.phase = Phase::Waiting;
        let failures = job.attempts;
        if self.state.job(id).cancelled {
            // It was only waited for because it might have started.
            self.over_without_a_run(now, id);
        } else if given_up {
            self.unplan(now, id, Reason::StartFailed);
            let times = failures - self.config.retries;
            let until = now + pause(self.config.hold_off, times, LONGEST_HOLD_OFF);
            self.state.job_mut(id).phase = Phase::BackingOff(until);
            self.wake_ups.entry(until).or_default().push(id);
        } else if self.state.job(id).on_hold {
            // It was put on hold while it was told to start.
            self.unplan(now, id, Reason::OnHold);
        } else {
            self.avoid_closed(now, id);
            self.avoid_barred(now, id);
        }
        self.mark_job(id);
    }

    /// The cluster would not start a job: it gives back what was kept for it and is tried elsewhere,
    /// or here when the pause is over.
    pub(super) fn refused(&mut self, now: Timestamp, action: ActionId, why: Refusal) {
        let Some(InFlight::Start(id)) = self.in_flight.get(&action).map(|handed| handed.about)
        else {
            return self.failed(now, action);
        };
        self.in_flight.remove(&action);
        self.stats.failures += 1;
        self.stats.outcomes.came(InFlight::Start(id), Outcome::Failed);
        let placement = self.state.job(id).held.clone();
        self.state.release(id);
        let job = self.state.job_mut(id);
        job.run = None;
        job.phase = Phase::Waiting;
        if job.cancelled {
            // It was only waited for because it might have started.
            self.over_without_a_run(now, id);
        } else {
            self.unplan(now, id, Reason::Refused(why));
            let times = self.state.count_refusal(id, why);
            let until = now + pause(FIRST_REFUSED, times, LONGEST_REFUSED);
            let nodes: Vec<NodeId> = (placement.iter())
                .flat_map(|placement| placement.allocation.shares().map(|share| share.node))
                .collect();
            let elsewhere =
                !why.is_everywhere() && self.state.bar(id, &nodes, until, nodes.len() as u32);
            if !elsewhere {
                self.state.job_mut(id).phase = Phase::BackingOff(until);
            }
            self.wake_ups.entry(until).or_default().push(id);
        }
        self.mark_job(id);
    }

    /// A job of this user has ended: what a limit of his refused may be possible now.
    pub(super) fn ask_again(&mut self, now: Timestamp, user: UserId) {
        let waits = |job: &JobState| {
            let limited = |refusals: &Refusals| refusals.reason == Refusal::Limit;
            matches!(job.phase, Phase::BackingOff(_))
                && job.job.user == user
                && job.refusals.as_deref().is_some_and(limited)
        };
        let again: Vec<JobId> = (self.wake_ups.values().flatten().copied())
            .filter(|id| self.state.find_job(*id).is_some_and(waits))
            .collect();
        for id in again {
            self.state.job_mut(id).phase = Phase::Waiting;
            self.state.touch_job(id);
            self.request_plan(now);
        }
    }

    fn stop_failed(&mut self, now: Timestamp, id: JobId, given_up: bool) {
        self.state.job_mut(id).phase = Phase::Running;
        if given_up {
            self.plan_as_held(now, id, Reason::ActionFailed);
        }
        self.mark_job(id);
    }

    /// The backend cannot stop a job without ending it for good. So it is not preemptible, whatever
    /// was believed, and stays; trying again would not help.
    pub(super) fn stop_refused(&mut self, now: Timestamp, id: JobId, action: ActionId) {
        if self.state.job(id).phase != Phase::Stopping(action) {
            return;
        }
        self.conclude(action, Outcome::GivenUp);
        self.stats.failures += 1;
        let job = self.state.job_mut(id);
        job.phase = Phase::Running;
        job.attempts = 0;
        Arc::make_mut(&mut job.job).preemptible = false;
        self.plan_as_held(now, id, Reason::ActionFailed);
        self.mark_job(id);
        self.alert(Alert::CannotBeStopped(id));
    }

    fn limit_failed(&mut self, now: Timestamp, id: JobId, given_up: bool) {
        // A raise that failed may have happened all the same: the larger of the two limits stays
        // counted until one is confirmed.
        let job = self.state.job_mut(id);
        job.limiting = None;
        job.limit_unsure = true;
        if given_up {
            self.plan_as_held(now, id, Reason::ActionFailed);
        }
        self.mark_job(id);
    }

    /// A node that does not wake is planned without, and counted at its maximum: what it does is
    /// not known. It goes on being told to wake, because nobody else may ever do so.
    fn wake_failed(&mut self, now: Timestamp, id: NodeId, given_up: bool) {
        if !self.state.node(id).unwoken {
            self.state.set_power(id, NodePower::Asleep);
            if given_up {
                self.lose(now, id, Reason::WakeFailed);
                self.state.node_mut(id).unwoken = true;
            }
        }
        self.mark_node(id);
    }

    fn sleep_failed(&mut self, now: Timestamp, id: NodeId, given_up: bool) {
        self.state.set_power(id, NodePower::Up);
        if given_up {
            self.state.set_target(id, Target::Up, Reason::ActionFailed);
            self.state.touch_node(id);
            self.request_plan(now);
        }
        self.mark_node(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pauses = |longest: f64| -> Vec<f64> {
            let pause = |n| pause(Seconds::new(5.0), n, Seconds::new(longest)).get();
            (1..=6).chain([1000]).map(pause).collect()
        };
        assert_eq!(pauses(60.0), [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]);
        assert_eq!(pauses(600.0), [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 600.0]);
        // A site that waits longer at first than we would at last waits that long each time.
        assert_eq!(pauses(1.0), [5.0; 7]);
    }
}
