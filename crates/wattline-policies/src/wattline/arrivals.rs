//! Jobs that are expected: those of the last while, once more.

use super::candidates::Ways;
use super::model::{Item, Problem, commits};
use super::objective::{Lateness, Objective};
use wattline_core::ids::JobId;
use wattline_core::state::JobState;

/// A job that is expected.
pub(super) struct Coming {
    /// Seconds from now.
    pub(super) at: f64,
    /// So many like it.
    pub(super) many: f64,
    pub(super) item: Item,
}

/// Who comes within a while, if the next while is like the last.
pub(super) fn foresee(problem: &mut Problem<'_, '_>, objective: &Objective<'_>, known: &mut Ways) {
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
    known: &mut Ways,
    (id, job): (JobId, &JobState),
    at: f64,
    many: f64,
) {
    let view = problem.view;
    let ways = known.of(view, job);
    if ways.is_empty() {
        return;
    }
    let first = problem.ways.len() as u32;
    problem.ways.extend_from_slice(ways);
    let last = problem.ways.len() as u32;
    let age = view.now.since(job.job.submit).get();
    let Lateness { weight, missed, due } = objective.lateness(view, job);
    let mut item = Item {
        id,
        weight,
        missed,
        due: due + age + at,
        work: job.job.work.0,
        restart: 0.0,
        load: view.state.delays().start(false).get(),
        ways: first..last,
        frugal: None,
        runs: false,
        pinned: false,
        stays: !job.job.preemptible,
        commits: commits(job),
        overdue: false,
        over: 0.0,
        granted: None,
        leaves: false,
        age: -at,
        now: None,
    };
    problem.without_deadline(&mut item);
    problem.coming.push(Coming { at, many, item });
}
