//! What a budget would do to the jobs that run now, before it is accepted.

use crate::calendar::Calendar;
use crate::engine::Engine;
use crate::ids::{JobId, NodeId};
use crate::plan::{Decision, Reason};
use crate::shed::{self, Shedding};
use crate::state::Target;
use crate::time::Timestamp;
use crate::units::Watts;

/// What would be given up for a budget, at its worst moment, if the jobs were those of now.
///
/// It is what the engine does by itself when the budget falls ([`shed::shed`]). What a policy makes
/// of the rest afterwards is not foreseen.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetForecast {
    /// When the budget is lowest: now, or the next time at which it is.
    pub at: Timestamp,
    /// What there is then, without the margin.
    pub budget: Watts,
    /// What is planned now.
    pub committed_now: Watts,
    /// What is committed at most once it is carried out.
    pub committed: Watts,
    /// Whether that is within the budget.
    pub kept: bool,
    /// Jobs that go on with a lower power limit for each GPU: from, to.
    pub slower: Vec<(JobId, Watts, Watts)>,
    /// Running jobs that stop, and go on later.
    pub stopped: Vec<JobId>,
    /// Jobs that were about to start, and wait.
    pub not_started: Vec<JobId>,
    /// Running jobs that are ended for good, because the site lets that be done.
    pub killed: Vec<JobId>,
    /// Running jobs that may not be stopped. Empty while lower limits and sleeping nodes are enough.
    pub unstoppable: Vec<JobId>,
    /// Nodes that are put to sleep.
    pub asleep: Vec<NodeId>,
}

impl Engine<'_> {
    /// What accepting this budget would do. Nothing changes.
    #[must_use]
    pub fn budget_forecast(&self, now: Timestamp, budget: &Calendar<Watts>) -> BudgetForecast {
        let state = self.state();
        let (at, least) = lowest(budget, now);
        let least = (least - self.config().margin).max(Watts::ZERO);
        let committed_now = state.planned_committed();
        let mut forecast = BudgetForecast {
            at,
            budget: least,
            committed_now,
            committed: committed_now,
            kept: true,
            slower: Vec::new(),
            stopped: Vec::new(),
            not_started: Vec::new(),
            killed: Vec::new(),
            unstoppable: Vec::new(),
            asleep: Vec::new(),
        };
        let shedding = shed::shed(state, least, self.plan_id(), self.config().shed);
        if let Some(shedding) = shedding {
            self.fill_in(&mut forecast, shedding);
        }
        forecast
    }

    fn fill_in(&self, forecast: &mut BudgetForecast, shedding: Shedding) {
        let state = self.state();
        for change in shedding.plan.jobs {
            let job = state.job(change.job);
            match (change.decision, change.reason) {
                (Decision::Run(lowered), _) => {
                    let Some(planned) = &job.planned else { continue };
                    let (from, to) = (&planned.configuration, &lowered.configuration);
                    forecast.slower.push((change.job, from.power_limit, to.power_limit));
                }
                (Decision::Wait, Reason::KilledForBudget) => forecast.killed.push(change.job),
                (Decision::Wait, _) if job.held.is_none() => forecast.not_started.push(change.job),
                (Decision::Wait, _) => forecast.stopped.push(change.job),
            }
        }
        let asleep = shedding.plan.nodes.iter().filter(|change| change.target == Target::Asleep);
        forecast.asleep = asleep.map(|change| change.node).collect();
        forecast.committed = shedding.committed;
        forecast.kept = shedding.kept;
        forecast.unstoppable = shedding.unstoppable;
    }
}

/// When a calendar is lowest from `now` on for the first time, and how low.
fn lowest(calendar: &Calendar<Watts>, now: Timestamp) -> (Timestamp, Watts) {
    let (mut at, mut least, mut time) = (now, calendar.at(now), now);
    // A week holds every value, so the walk is bounded by the number of steps.
    for _ in calendar.values() {
        let Some(next) = calendar.next_change(time) else { break };
        time = next;
        if calendar.at(time) < least {
            (at, least) = (time, calendar.at(time));
        }
    }
    (at, least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calendar::{Rule, UtcOffset};

    #[test]
    fn the_worst_moment_of_a_week_is_found() {
        let always = Calendar::constant(Watts::new(5.0));
        let now = Timestamp::from_seconds(100.0);
        assert_eq!(lowest(&always, now), (now, Watts::new(5.0)));
        let rule = |from: &str, to: &str, value: f64| Rule {
            days: "all".into(),
            from: from.into(),
            to: to.into(),
            value: Watts::new(value),
        };
        let rules = [rule("08:00", "10:00", 3.0), rule("20:00", "21:00", 2.0)];
        let calendar = Calendar::from_rules(Watts::new(5.0), &rules, UtcOffset::default()).unwrap();
        let evening = Timestamp::from_seconds(20.0 * 3600.0);
        assert_eq!(lowest(&calendar, now), (evening, Watts::new(2.0)));
        let within = Timestamp::from_seconds(20.5 * 3600.0);
        assert_eq!(lowest(&calendar, within), (within, Watts::new(2.0)));
    }
}
