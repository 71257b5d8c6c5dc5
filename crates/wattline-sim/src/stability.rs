//! Plan stability: how many reservations plans change.
//!
//! Policies say a reservation by [`Reason::Reserved`]. What a policy reserves without saying it is
//! not seen here, except that a job which starts later than it was told counts as moved.

use std::sync::{Arc, Mutex, PoisonError};
use wattline_core::Timestamp;
use wattline_core::plan::{Decision, Plan, Reason};
use wattline_core::policy::{ClusterView, Policy};
use wattline_core::units::Seconds;

/// A reserved start that moves by no more than this counts as kept. `squeue --start` and most
/// people's plans are to the minute; half of it would count what restarts of a few seconds shift,
/// twice of it would hide a job of a minute that goes first.
pub const TOLERANCE: Seconds = Seconds::new(60.0);

/// Reservations over a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Reservations {
    /// Waiting jobs that were told a start and had none before.
    pub(crate) given: u64,
    /// Reserved starts that a plan moved or withdrew, and those that passed without the job
    /// having started.
    pub(crate) moved: u64,
    /// Plans made while jobs waited.
    plans: u64,
    /// Over these plans, the sum of moved reservations over waiting jobs.
    shares: f64,
}

impl Reservations {
    /// The mean over plans of moved reservations over waiting jobs.
    pub(crate) fn moved_share(&self) -> f64 {
        if self.plans > 0 { self.shares / self.plans as f64 } else { 0.0 }
    }

    /// Costs what the plan changes and not what waits.
    fn count(&mut self, view: &ClusterView<'_>, plan: &Plan) {
        let waiting = view.state.unfinished().saturating_sub(view.state.held_jobs());
        let mut moved = 0_u64;
        for change in &plan.jobs {
            let Some(job) = view.state.find_job(change.job) else { continue };
            let before = reserved(&job.reason).filter(|_| job.planned.is_none());
            match (before, &change.decision, reserved(&change.reason)) {
                (None, Decision::Wait, Some(_)) => self.given += 1,
                (Some(before), Decision::Wait, after) => {
                    let kept = after.is_some_and(|after| !exceeds(after - before));
                    moved += u64::from(!kept);
                }
                // At the reserved time or before it: that was the promise.
                (Some(before), Decision::Run(_), _) => {
                    moved += u64::from(view.now > before + TOLERANCE);
                }
                (None, ..) => {}
            }
        }
        self.moved += moved;
        if waiting > 0 {
            self.plans += 1;
            self.shares += moved as f64 / waiting as f64;
        }
    }
}

fn reserved(reason: &Reason) -> Option<Timestamp> {
    match reason {
        Reason::Reserved { at } => Some(*at),
        _ => None,
    }
}

fn exceeds(moved: Seconds) -> bool {
    moved.get().abs() > TOLERANCE.get()
}

/// A policy whose reservations are counted.
pub(crate) struct Counted {
    policy: Box<dyn Policy>,
    reservations: Arc<Mutex<Reservations>>,
}

impl Counted {
    /// The policy, and where the counts are found.
    pub(crate) fn new(policy: Box<dyn Policy>) -> (Self, Arc<Mutex<Reservations>>) {
        let reservations = Arc::default();
        (Self { policy, reservations: Arc::clone(&reservations) }, reservations)
    }
}

impl Policy for Counted {
    fn name(&self) -> &str {
        self.policy.name()
    }

    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        let plan = self.policy.plan(view);
        let mut reservations = self.reservations.lock().unwrap_or_else(PoisonError::into_inner);
        reservations.count(view, &plan);
        plan
    }

    fn decides(&self) -> bool {
        self.policy.decides()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::begin::begin_with;
    use crate::scenario::Scenario;
    use std::collections::VecDeque;
    use wattline_core::engine::Event;
    use wattline_core::ids::JobId;
    use wattline_core::plan::JobChange;

    /// What a plan says of the first job.
    enum Says {
        Nothing,
        Waits(Reason),
        /// All jobs start that fit.
        Start,
    }

    struct Script(VecDeque<Says>);

    impl Policy for Script {
        fn name(&self) -> &str {
            "script"
        }
        fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
            let mut plan = Plan::unchanged(view.plan);
            match self.0.pop_front().unwrap() {
                Says::Nothing => {}
                Says::Waits(reason) => {
                    plan.jobs.push(JobChange { job: JobId(0), decision: Decision::Wait, reason });
                }
                Says::Start => return wattline_policies::policy("fifo").unwrap().plan(view),
            }
            plan
        }
    }

    fn four_jobs() -> crate::instance::Instance {
        let text = "name = \"four\"\n[[nodes]]\ncount = 4\ngpu = \"v100\"\ngpus = 8\n\
                    [jobs]\ncount = 4\n";
        Scenario::parse(text, "four").unwrap().instance("four", None).unwrap()
    }

    /// What is counted when plans, each this many seconds after the beginning, say this; four jobs
    /// wait.
    fn counted(says: Vec<(f64, Says)>) -> Reservations {
        let instance = four_jobs();
        let times: Vec<f64> = says.iter().map(|(time, _)| *time).collect();
        let script = Script(says.into_iter().map(|(_, says)| says).collect());
        let (policy, counts) = Counted::new(Box::new(script));
        let (mut engine, _) = begin_with(&instance, Box::new(policy), false);
        let start = instance.jobs.last().unwrap().submit;
        for job in &instance.jobs {
            engine.handle(start, Event::Submitted(Arc::clone(job))).unwrap();
        }
        for time in times {
            engine.plan_now(start + Seconds::new(time));
        }
        assert_eq!(engine.stats().refused, 0);
        *counts.lock().unwrap()
    }

    /// A reservation so many seconds after the last job has come.
    fn at(seconds: f64) -> Says {
        let instance = four_jobs();
        let start = instance.jobs.last().unwrap().submit;
        Says::Waits(Reason::Reserved { at: start + Seconds::new(seconds) })
    }

    fn assert_counts(counts: Reservations, given: u64, moved: u64, share: f64) {
        assert_eq!((counts.given, counts.moved), (given, moved), "{counts:?}");
        assert!((counts.moved_share() - share).abs() < 1e-12, "{counts:?}");
    }

    #[test]
    fn starts_that_move_by_more_than_the_tolerance_are_counted() {
        // Each against the plan before it, so that many small moves are none.
        let small = vec![(0.0, at(1000.0)), (1.0, at(1060.0)), (2.0, at(1000.0))];
        assert_counts(counted(small), 1, 0, 0.0);
        // Later by 61 s, the same, earlier by 61 s: two of four plans move one of four jobs.
        let large =
            vec![(0.0, at(1000.0)), (1.0, at(1061.0)), (2.0, Says::Nothing), (3.0, at(1000.0))];
        assert_counts(counted(large), 1, 2, 2.0 / 4.0 / 4.0);
    }

    #[test]
    fn withdrawn_reservations_are_counted_and_given_anew() {
        let says = vec![
            (0.0, at(1000.0)),
            (1.0, Says::Waits(Reason::NoRoom)),
            (2.0, Says::Waits(Reason::Postponed)),
            (3.0, at(1000.0)),
        ];
        assert_counts(counted(says), 2, 1, 1.0 / 4.0 / 4.0);
    }

    #[test]
    fn a_job_that_starts_later_than_it_was_told_counts_as_moved() {
        for (start, moved) in [(500.0, 0), (1000.0, 0), (1060.0, 0), (1061.0, 1)] {
            let counts = counted(vec![(0.0, at(1000.0)), (start, Says::Start)]);
            assert_counts(counts, 1, moved, moved as f64 / 4.0 / 2.0);
        }
    }
}
