//! Plans are tried out: all jobs are run to their ends, with every restart they would pay for.
//!
//! What a change is worth depends on how long it lasts, and that on who ends when. So where time
//! counts, a plan is judged by what follows from it under a simple rule: whenever somebody ends,
//! those who wait start, short ones first, each with the GPUs that cost least in this crowd; if
//! nobody waits, whoever gains most by it takes more. GPUs are pooled by type here, and nobody new
//! comes: with nodes, or with one guess at who comes, small differences between plans would drown in
//! what they happen to shuffle.

use super::fill::PROMISE;
use super::model::{Draft, Problem};
use super::ways::Way;
use crate::ordered_par_map::ordered_par_map;
use std::ops::Range;

/// What is lost by a restart now counts so many times: whoever comes may undo what it is for.
const RESTARTS: f64 = 2.0;
/// A job that never starts counts for longer than anything but a broken promise.
const NEVER: f64 = 1e12;

/// A way to run.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) way: u32,
    gpu_type: usize,
    gpus: u32,
    /// Committed watts, where there is a budget.
    watts: f64,
    rate: f64,
    /// What its energy costs each second.
    bill: f64,
}

/// A job.
pub(super) struct Actor {
    weight: f64,
    work: f64,
    /// Seconds lost when it starts for the first time, or again, and when it changes as it runs.
    load: f64,
    pub(super) restart: f64,
    pub(super) runs: Range<usize>,
    /// As it runs at present, or is about to.
    pub(super) now: Option<usize>,
    /// Once it has started it does not change.
    stays: bool,
}

/// A job that runs.
#[derive(Clone, Copy)]
struct Going {
    actor: usize,
    run: usize,
    /// When it began, from when on it works, what was left to do then, and when it ends.
    began: f64,
    from: f64,
    left: f64,
    end: f64,
}

/// What nobody has.
#[derive(Clone)]
struct Left {
    /// By type.
    gpus: Vec<u32>,
    watts: f64,
}

impl Left {
    /// Whether there is room for a run instead of another.
    fn suffices(&self, from: Option<&Run>, to: &Run) -> bool {
        let from = from.filter(|from| from.gpu_type == to.gpu_type);
        let (gpus, watts) = from.map_or((0, 0.0), |from| (from.gpus, from.watts));
        to.gpus <= self.gpus[to.gpu_type] + gpus && to.watts <= self.watts + watts
    }

    fn take(&mut self, run: &Run) {
        self.gpus[run.gpu_type] = self.gpus[run.gpu_type].saturating_sub(run.gpus);
        self.watts -= run.watts;
    }

    fn give_back(&mut self, run: &Run) {
        self.gpus[run.gpu_type] += run.gpus;
        self.watts += run.watts;
    }

    fn nothing(&self) -> bool {
        self.gpus.iter().all(|gpus| *gpus == 0)
    }
}

/// The plan after which all jobs together cost least.
pub(super) fn best(problem: &Problem<'_, '_>, drafts: Vec<Draft>) -> Draft {
    let stage = Stage::new(problem);
    let costs = ordered_par_map(&drafts, |draft| {
        stage.play(draft) + PROMISE * problem.broken_promises(draft) as f64
    });
    let ranked = drafts.into_iter().zip(costs);
    ranked.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(draft, _)| draft).unwrap_or_default()
}

/// Where plans are tried out.
pub(super) struct Stage<'p, 'v, 'a> {
    problem: &'p Problem<'v, 'a>,
    pub(super) actors: Vec<Actor>,
    pub(super) runs: Vec<Run>,
    /// Those with least to do first.
    order: Vec<usize>,
    /// What there is without these jobs.
    all: Left,
}

impl<'p, 'v, 'a> Stage<'p, 'v, 'a> {
    pub(super) fn new(problem: &'p Problem<'v, 'a>) -> Self {
        let joule = problem.prices.watt(0.0, 1.0);
        let run = |(index, way): (u32, &Way)| Run {
            way: index,
            gpu_type: way.shape.gpu_type.index(),
            gpus: way.shape.gpus,
            watts: if problem.budget.is_finite() { problem.committed_watts(way) } else { 0.0 },
            rate: way.rate,
            bill: joule * problem.usual_watts(way),
        };
        let (mut actors, mut runs) = (Vec::new(), Vec::new());
        for (at, item) in problem.items.iter().enumerate() {
            let first = runs.len();
            runs.extend(problem.ways_of(at).map(run));
            let now = item.now.as_ref().filter(|_| item.runs || item.pinned);
            actors.push(Actor {
                weight: item.weight,
                work: item.work,
                load: item.load,
                restart: item.restart,
                now: now.and_then(|now| (first..runs.len()).find(|run| runs[*run].way == now.way)),
                runs: first..runs.len(),
                stays: item.pinned || item.commits,
            });
        }
        let takes: Vec<f64> = problem.items.iter().map(|item| problem.frugal(item).1).collect();
        let mut order: Vec<usize> = (0..actors.len()).collect();
        order.sort_by(|a, b| takes[*a].total_cmp(&takes[*b]));
        let all = Left {
            gpus: problem.empty.free_of.clone(),
            watts: problem.budget - problem.owed.watts - problem.empty.committed,
        };
        Self { problem, actors, runs, order, all }
    }

    /// What all jobs cost from now to their ends.
    pub(super) fn play(&self, draft: &Draft) -> f64 {
        let mut left = self.all.clone();
        let mut going = Vec::with_capacity(self.actors.len());
        let mut waits = vec![false; self.actors.len()];
        let mut cost = 0.0;
        for (at, (actor, slot)) in self.actors.iter().zip(draft).enumerate() {
            let of_way = |way: u32| actor.runs.clone().find(|run| self.runs[*run].way == way);
            let Some(run) = slot.as_ref().and_then(|slot| of_way(slot.way)) else {
                waits[at] = true;
                continue;
            };
            let same =
                |now: usize| self.problem.same_but_limit(self.runs[now].way, self.runs[run].way);
            let lost = match actor.now {
                Some(now) if same(now) => 0.0,
                Some(_) => actor.restart * self.problem.hysteresis * RESTARTS,
                None => actor.load,
            };
            left.take(&self.runs[run]);
            going.push(self.start(at, run, 0.0, lost, actor.work));
        }
        while let Some(time) = going.iter().map(|job| job.end).reduce(f64::min) {
            going.retain(|job| {
                let ends = job.end <= time;
                if ends {
                    left.give_back(&self.runs[job.run]);
                    cost += self.actors[job.actor].weight * job.end + self.bill(job, job.end);
                }
                !ends
            });
            self.begin(time, &mut left, &mut going, &mut waits);
            if !waits.contains(&true) {
                self.grow(time, &mut left, &mut going, &mut cost);
            }
        }
        // Nobody makes room for those who are left. Other plans may, and if none does, the rest counts.
        cost + NEVER * waits.iter().filter(|waits| **waits).count() as f64
    }

    fn start(&self, actor: usize, run: usize, time: f64, lost: f64, left: f64) -> Going {
        let from = time + lost;
        Going { actor, run, began: time, from, left, end: from + left / self.runs[run].rate }
    }

    /// Those who wait start, short ones first.
    fn begin(&self, time: f64, left: &mut Left, going: &mut Vec<Going>, waits: &mut [bool]) {
        let weight = |(at, actor): (usize, &Actor)| if waits[at] { actor.weight } else { 0.0 };
        let waiting: f64 = self.actors.iter().enumerate().map(weight).sum();
        let crowd = waiting + going.iter().map(|job| self.actors[job.actor].weight).sum::<f64>();
        let price = crowd / self.problem.capacity.max(1.0);
        for at in self.order.iter().copied().filter(|at| waits[*at]).collect::<Vec<_>>() {
            if left.nothing() {
                return;
            }
            let actor = &self.actors[at];
            let lost = if actor.now.is_some() { actor.restart } else { actor.load };
            let cost = |run: &usize| {
                let run = &self.runs[*run];
                let each = actor.weight + run.bill + price * f64::from(run.gpus);
                (lost + actor.work / run.rate) * each
            };
            let fit = actor.runs.clone().filter(|run| left.suffices(None, &self.runs[*run]));
            let Some(run) = fit.min_by(|a, b| cost(a).total_cmp(&cost(b))) else { continue };
            left.take(&self.runs[run]);
            going.push(self.start(at, run, time, lost, actor.work));
            waits[at] = false;
        }
    }

    /// What a job has cost in energy since it runs in this way.
    fn bill(&self, job: &Going, time: f64) -> f64 {
        self.runs[job.run].bill * (time - job.began)
    }

    /// Whoever gains most by more GPUs takes them.
    fn grow(&self, time: f64, left: &mut Left, going: &mut [Going], cost: &mut f64) {
        while !left.nothing() {
            let mut best: Option<(f64, usize, Going)> = None;
            for (at, job) in going.iter().enumerate() {
                let (actor, has) = (&self.actors[job.actor], &self.runs[job.run]);
                if actor.stays || job.end - time <= actor.restart {
                    continue;
                }
                let undone = job.left - (time - job.from).max(0.0) * has.rate;
                for run in actor.runs.clone() {
                    let new = &self.runs[run];
                    let more = new.gpus > has.gpus && new.gpu_type == has.gpu_type;
                    if !(more && new.rate > has.rate && left.suffices(Some(has), new)) {
                        continue;
                    }
                    let then = self.start(job.actor, run, time, actor.restart, undone);
                    let bills = has.bill * (job.end - time) - new.bill * (then.end - time);
                    let gain = actor.weight * (job.end - then.end) + bills;
                    let each = gain / f64::from(new.gpus - has.gpus);
                    if gain > 0.0 && best.as_ref().is_none_or(|best| each > best.0) {
                        best = Some((each, at, then));
                    }
                }
            }
            let Some((_, at, then)) = best else { return };
            *cost += self.bill(&going[at], time);
            left.give_back(&self.runs[going[at].run]);
            left.take(&self.runs[then.run]);
            going[at] = then;
        }
    }
}
