//! Evaluator: a plan is judged by running all known jobs to their ends from it.
//!
//! What a change of GPUs is worth depends on how long it lasts, and that on which jobs end when. So
//! each plan is followed by the same simple rule: when a job ends, the GPUs are split anew by what
//! one GPU more brings each job. Jobs with little time left on their smallest size weigh more
//! (`shortness`), so they go first without starving long ones. GPUs are pooled by type and no job
//! arrives: with nodes, or guessed arrivals, small differences would drown in noise.

use super::constants::{NEVER, PROMISE};
use super::share::{Choice, Pool, split};
use super::{Candidate, Draft, Problem, Slot, ordered_par_map};

struct Job {
    weight: f64,
    work: f64,
    /// Seconds lost when it starts for the first time, and when it restarts.
    load: f64,
    restart: f64,
    /// Work per second in its smallest size.
    small: f64,
    now: Option<usize>,
    /// Once it has started it does not change.
    stays: bool,
    /// Worth is filled in at each split.
    choices: Vec<Choice>,
    /// By choice: work per second, and what its energy costs each second.
    speeds: Vec<(f64, f64)>,
}

struct Progress {
    choice: Option<usize>,
    /// From when on it works, and what is left then.
    from: f64,
    left: f64,
    started: bool,
    done: bool,
}

impl Progress {
    fn end(&self, job: &Job) -> Option<f64> {
        let choice = self.choice.filter(|_| !self.done)?;
        Some(self.from + self.left / job.speeds[choice].0)
    }
}

/// The plan after which all jobs together cost least.
pub(super) fn best(problem: &Problem<'_, '_>, drafts: Vec<Draft>) -> Draft {
    let rollout = Rollout::new(problem);
    let costs = ordered_par_map(&drafts, |draft| {
        rollout.cost(draft) + PROMISE * problem.broken_promises(draft) as f64
    });
    let ranked = drafts.into_iter().zip(costs);
    ranked.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(draft, _)| draft).unwrap_or_default()
}

pub(super) struct Rollout<'p, 'v, 'a> {
    problem: &'p Problem<'v, 'a>,
    jobs: Vec<Job>,
    /// GPUs and watts without these jobs.
    pool: Pool,
}

impl<'p, 'v, 'a> Rollout<'p, 'v, 'a> {
    pub(super) fn new(problem: &'p Problem<'v, 'a>) -> Self {
        let joule = problem.prices.watt(0.0, 1.0);
        let job = |at: usize| {
            let item = &problem.items[at];
            let candidates = problem.candidates_of(at);
            let now = item.now.as_ref().filter(|_| item.runs || item.pinned);
            let of_slot = |now: &Slot| candidates.iter().position(|c| c.index == now.candidate);
            let smallest = candidates
                .iter()
                .min_by(|a, b| a.shape.gpus.cmp(&b.shape.gpus).then(b.rate.total_cmp(&a.rate)));
            let speed = |c: &Candidate| (c.rate, joule * problem.usual_watts(c));
            Job {
                weight: item.weight,
                work: item.work,
                load: item.load,
                restart: item.restart,
                small: smallest.map_or(1.0, |candidate| candidate.rate),
                now: now.and_then(of_slot),
                stays: item.pinned || item.commits,
                choices: candidates.iter().map(|c| problem.choice(c, 0.0)).collect(),
                speeds: candidates.iter().map(speed).collect(),
            }
        };
        let jobs = (0..problem.items.len()).map(job).collect();
        Self { problem, jobs, pool: problem.pool(&problem.empty) }
    }

    /// What all jobs cost from now to their ends, if a draft is followed by the rule.
    pub(super) fn cost(&self, draft: &Draft) -> f64 {
        let mut all: Vec<Progress> =
            self.jobs.iter().zip(draft).map(|(job, slot)| self.begin(job, slot.as_ref())).collect();
        let (mut cost, mut time) = (0.0, 0.0);
        loop {
            let ends = self.jobs.iter().zip(&all).filter_map(|(job, progress)| progress.end(job));
            let Some(next) = ends.reduce(f64::min) else { break };
            for (job, progress) in self.jobs.iter().zip(&mut all) {
                let Some(choice) = progress.choice.filter(|_| !progress.done) else { continue };
                let (rate, bill) = job.speeds[choice];
                cost += bill * (next - time);
                if progress.end(job).is_some_and(|end| end <= next) {
                    progress.done = true;
                    cost += job.weight * next;
                } else if next > progress.from {
                    progress.left -= (next - progress.from) * rate;
                    progress.from = next;
                }
            }
            time = next;
            self.split_anew(time, &mut all);
        }
        // Nothing makes room for those that are left. Another plan may, and if none does, the
        // rest of the cost counts.
        cost + NEVER * all.iter().filter(|progress| !progress.done).count() as f64
    }

    fn begin(&self, job: &Job, slot: Option<&Slot>) -> Progress {
        let tuning = self.problem.tuning;
        let of_candidate =
            |candidate: u32| job.choices.iter().position(|choice| choice.candidate == candidate);
        let choice = slot.and_then(|slot| of_candidate(slot.candidate));
        let of = |choice: usize| self.problem.candidate(job.choices[choice].candidate);
        let same = |now: usize, then: usize| of(now).same_but_limit(of(then));
        let from = match (choice, job.now) {
            (Some(then), Some(now)) if same(now, then) => 0.0,
            (Some(_), Some(_)) => job.restart * tuning.hysteresis * tuning.rollout_restart_now,
            (Some(_), None) => job.load,
            (None, _) => 0.0,
        };
        let started = choice.is_some() || job.now.is_some();
        Progress { choice, from, left: job.work, started, done: false }
    }

    /// All GPUs go to the jobs that gain most by one more.
    fn split_anew(&self, time: f64, all: &mut [Progress]) {
        let undone = || self.jobs.iter().zip(all.iter()).filter(|(_, progress)| !progress.done);
        let times = undone().map(|(job, progress)| progress.left / job.small);
        let (count, sum) = times.fold((0.0_f64, 0.0), |(n, sum), time| (n + 1.0, sum + time));
        if count == 0.0 {
            return;
        }
        let tuning = self.problem.tuning;
        // A job of mean length weighs as it does, so that its energy counts on the same scale.
        let mean = (sum / count).max(1.0);
        let mut pool = self.pool.clone();
        let mut kept = vec![false; all.len()];
        let mut choices: Vec<Vec<Choice>> = Vec::with_capacity(all.len());
        for (at, (job, progress)) in self.jobs.iter().zip(all.iter()).enumerate() {
            if progress.done {
                choices.push(Vec::new());
                continue;
            }
            if let Some(choice) = progress.choice.filter(|_| job.stays) {
                pool.take(None, &job.choices[choice]);
                kept[at] = true;
                choices.push(Vec::new());
                continue;
            }
            let short = (mean / (progress.left / job.small).max(1.0)).powf(tuning.shortness);
            let unit = job.weight * short / job.small;
            let worth = |(index, choice): (usize, &Choice)| {
                let (rate, bill) = job.speeds[index];
                let mut worth = unit * rate;
                if progress.choice == Some(index) {
                    let lasts = tuning.split_lasts(progress.left / rate);
                    let restart = job.restart * tuning.hysteresis * tuning.rollout_restart;
                    worth *= 1.0 + restart / lasts;
                }
                choice.with_worth(worth - bill)
            };
            choices.push(job.choices.iter().enumerate().map(worth).collect());
        }
        let chosen = split(pool, &choices, |_| 0.0);
        for (at, progress) in all.iter_mut().enumerate().filter(|(_, progress)| !progress.done) {
            let choice = chosen[at].map(|choice| choice as usize);
            if kept[at] || choice == progress.choice {
                continue;
            }
            let job = &self.jobs[at];
            if choice.is_some() {
                progress.from = time + if progress.started { job.restart } else { job.load };
                progress.started = true;
            }
            progress.choice = choice;
        }
    }
}
