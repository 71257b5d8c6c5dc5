//! Jobs that are expected: those of the last while, once more.

use super::{CandidateCache, Item, Objective, Problem};
use wattline_core::ids::JobId;
use wattline_core::state::JobState;

pub(super) struct Arrival {
    pub(super) at: f64,
    pub(super) count: f64,
    pub(super) item: Item,
}

pub(super) fn forecast(
    problem: &mut Problem<'_, '_>,
    objective: &Objective<'_>,
    known: &mut CandidateCache,
) {
    let view = problem.view;
    let now = view.now;
    let tuning = problem.tuning;
    let ahead = tuning.ahead_runs * problem.mean_fastest;
    let Some(first) = view.state.first_submit() else { return };
    // At the beginning little has been seen, and that is taken to repeat itself.
    let seen = ahead.min(now.since(first).get());
    if seen <= 0.0 {
        return;
    }
    let age = |job: &JobState| now.since(job.job.submit).get();
    let latest = view.state.latest_submissions().rev();
    let mut jobs: Vec<(JobId, &JobState)> = latest.take_while(|(_, j)| age(j) < seen).collect();
    jobs.reverse();
    let recent = jobs.len();
    let again = (ahead / seen).min(tuning.expected_repeats);
    let step = (recent as f64 * again / tuning.expected_max as f64).ceil().max(1.0) as usize;
    let mut turn = 0.0;
    while turn < again {
        for (id, job) in jobs.iter().step_by(step) {
            let release = seen * (turn + 1.0) - age(job);
            if release < ahead {
                add(problem, objective, known, (*id, job), release, step as f64);
            }
        }
        turn += 1.0;
    }
}

fn add(
    problem: &mut Problem<'_, '_>,
    objective: &Objective<'_>,
    known: &mut CandidateCache,
    (id, job): (JobId, &JobState),
    at: f64,
    count: f64,
) {
    let view = problem.view;
    let candidates = known.of(view, job);
    if candidates.is_empty() {
        return;
    }
    let first = problem.candidates.len() as u32;
    problem.extend(candidates);
    let last = problem.candidates.len() as u32;
    let age = view.now.since(job.job.submit).get();
    let mut item = Item {
        load: view.state.delays().start(false).get(),
        age: -at,
        ..Item::new((id, job), objective.lateness(view, job), first..last)
    };
    item.due = item.due + age + at;
    problem.without_deadline(&mut item);
    problem.arrivals.push(Arrival { at, count, item });
}
