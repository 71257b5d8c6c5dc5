//! Jobs that are expected: those of the last while, once more.

use super::candidates::Ways;
use super::model::{Item, Problem, commits};
use super::objective::{Lateness, Objective};
use wattline_core::ids::JobId;
use wattline_core::state::JobState;

/// How far ahead, in mean shortest run times: a job that may run on 64 GPUs in a hundredth of the time
/// does not need to look ahead for the days it would take on one. Sums of total cost over five seeds of
/// `overload` and `capped-60`, and of ElasticFlow's two peers: 2,252, 2,654 and 403 EUR; with 1.5 2,285,
/// 2,906 and 409, with 4 2,236, 2,897 and 403; with the mean time in the most frugal way 2,204, 2,866
/// and 591 (`andreas+greedy` 406).
pub(super) const AHEAD: f64 = 2.5;
/// No more jobs than this are expected; of more, some stand for all.
const MOST: usize = 300;

/// What has been seen is taken to repeat itself so often at most.
const REPEATS: f64 = 20.0;

/// A job that is expected.
pub(super) struct Coming {
    /// Seconds from now.
    pub(super) at: f64,
    /// So many like it.
    pub(super) many: f64,
    pub(super) item: Item,
}

/// Who comes within a while, if the next while is like the last.
pub(super) fn foresee(problem: &mut Problem<'_, '_>, objective: &Objective, known: &mut Ways) {
    let view = problem.view;
    let now = view.now;
    let ahead = AHEAD * problem.mean_fastest;
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
    let again = (ahead / seen).min(REPEATS);
    let step = (recent as f64 * again / MOST as f64).ceil().max(1.0) as usize;
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
    objective: &Objective,
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
