//! Generator: GPUs are split by what one more is worth to each job, where completion time counts.
//!
//! A unit of work that is done now brings the job's end nearer, so it is worth what is saved there:
//! the job's waiting, its energy, and its GPUs at their price *then*. Short jobs end while GPUs are
//! still wanted, and so go before long ones by as much as is best for all. GPUs go, a few at a
//! time, to the job that gains most for each. When a job comes or ends, they are split anew, as far
//! as that is worth the restarts.

use super::constants::OVERDUE;
use super::{Candidate, Draft, Filler, Level, Nodes, Problem, Slot, Spot, USUAL};
use crate::ranked::Ranked;
use std::collections::BinaryHeap;

#[derive(Clone, Copy)]
pub(super) struct Choice {
    pub(super) candidate: u32,
    gpu_type: usize,
    gpus: u32,
    /// GPUs, those of slower types counted for less.
    takes: f64,
    watts: f64,
    worth: f64,
}

impl Choice {
    pub(super) fn with_worth(self, worth: f64) -> Self {
        Self { worth, ..self }
    }
}

impl Problem<'_, '_> {
    pub(super) fn choice(&self, candidate: &Candidate, worth: f64) -> Choice {
        let watts = if self.budget.is_finite() { self.committed_watts(candidate) } else { 0.0 };
        let (gpu_type, gpus) = (candidate.gpu_type(), candidate.shape.gpus);
        let (candidate, takes) = (candidate.index, self.takes(candidate));
        Choice { candidate, gpu_type, gpus, takes, watts, worth }
    }

    pub(super) fn pool(&self, nodes: &Nodes) -> Pool {
        let watts = self.budget - self.starvation.watts - nodes.committed;
        Pool { gpus: nodes.free_of.clone(), watts, no_gpu: self.tuning.no_gpu_share }
    }
}

/// A job takes one candidate instead of another, or of none; ranked by what it gains for each GPU.
struct Step {
    from: Option<u32>,
    to: u32,
}

impl Filler<'_, '_, '_> {
    /// Splits all GPUs. What is lost by a restart counts `restarts` times.
    pub(super) fn split_gpus(&self, restarts: f64) -> Draft {
        let problem = self.problem;
        let fixed = problem.items.iter().map(|item| item.at_first().filter(|_| item.pinned));
        let mut draft: Draft = fixed.collect();
        let choices: Vec<Vec<Choice>> = (0..draft.len())
            .map(|at| if draft[at].is_some() { Vec::new() } else { self.choices(at, restarts) })
            .collect();
        let overdue = |at: usize| {
            let item = &problem.items[at];
            if item.overdue { OVERDUE + item.over } else { 0.0 }
        };
        let chosen = split(problem.pool(&problem.filled(&draft)), &choices, overdue);
        let slot = |candidate: u32| Slot { candidate, spot: Spot::new() };
        let mut list: Vec<(usize, Slot)> = Vec::new();
        for (at, choice) in chosen.iter().enumerate() {
            list.extend(choice.map(|choice| (at, slot(choices[at][choice as usize].candidate))));
        }
        // Large ones find room first.
        list.sort_by_key(|(at, slot)| (std::cmp::Reverse(problem.of(slot).shape.gpus), *at));
        self.place(&mut draft, list);
        self.repair(&mut draft, &choices, &chosen);
        draft
    }

    /// What a unit of a job's work is worth now.
    fn unit(&self, at: usize) -> f64 {
        let problem = self.problem;
        let item = &problem.items[at];
        let share = problem.tuning.last_share;
        let (mut least, mut unit) = (f64::INFINITY, f64::INFINITY);
        for candidate in problem.candidates_of(at) {
            let time = item.work / candidate.rate;
            let watts = problem.committed_watts(candidate);
            let taken = |time: f64| self.market.taken(candidate, watts, (0.0, time), USUAL);
            let energy = problem.prices.watt(0.0, time) * problem.usual_watts(candidate);
            let cost = item.weight * time + taken(time) + energy;
            if cost < least {
                let last = taken(time) - taken(time * (1.0 - share));
                let saves = share * (item.weight * time + energy) + last;
                (least, unit) = (cost, saves / (share * item.work).max(1e-9));
            }
        }
        unit
    }

    fn choices(&self, at: usize, restarts: f64) -> Vec<Choice> {
        let problem = self.problem;
        let item = &problem.items[at];
        let only_watts = Level { gpus: 0.0, watts: 1.0 };
        let joule = problem.prices.watt(0.0, 1.0);
        let unit = self.unit(at);
        let choice = |candidate: &Candidate| {
            let watts = problem.committed_watts(candidate);
            let mut worth = unit * candidate.rate - joule * problem.usual_watts(candidate);
            worth -= self.market.taken(candidate, watts, (0.0, 1.0), only_watts);
            if problem.goes_on(item, candidate).is_some() {
                // A job that stays does not restart, which is worth more the sooner it ends.
                let lasts = problem.tuning.split_lasts(item.work / candidate.rate);
                let restart = item.restart * problem.tuning.hysteresis * restarts;
                worth += unit * candidate.rate * restart / lasts;
            }
            problem.choice(candidate, worth)
        };
        problem.candidates_of(at).iter().map(choice).collect()
    }

    /// GPUs on different nodes do not suit all jobs: those that move or start take the best
    /// candidate that there is room for in the end, those first that found none.
    fn repair(&self, draft: &mut Draft, choices: &[Vec<Choice>], chosen: &[Option<u32>]) {
        let problem = self.problem;
        let mut nodes = problem.filled(draft);
        let moves = |at: &usize| {
            let keeps = draft[*at].as_ref().is_some_and(|slot| problem.stays(*at, slot));
            chosen[*at].is_some() && !keeps
        };
        let mut order: Vec<usize> = (0..draft.len()).filter(moves).collect();
        order.sort_by_key(|at| draft[*at].is_some());
        for at in order {
            if nodes.free_of.iter().all(|free| *free == 0) {
                return;
            }
            let has = draft[at].take();
            if let Some(slot) = &has {
                problem.give_back(&mut nodes, slot);
            }
            let least = has.as_ref().map_or(0.0, |slot| {
                let same = choices[at].iter().find(|choice| choice.candidate == slot.candidate);
                same.map_or(0.0, |choice| choice.worth)
            });
            let mut by_worth: Vec<&Choice> =
                choices[at].iter().filter(|choice| choice.worth > least).collect();
            by_worth.sort_by(|a, b| b.worth.total_cmp(&a.worth));
            let fitting =
                |choice: &&Choice| problem.slot(&nodes, problem.candidate(choice.candidate));
            let found = by_worth.iter().find_map(fitting);
            draft[at] = found.or(has);
            if let Some(slot) = &draft[at] {
                problem.take(&mut nodes, slot);
            }
        }
    }
}

/// The best step, again and again, until there is none: which choice each job has in the end. A
/// job's first step ranks higher by what `ahead` says of it.
pub(super) fn split(
    mut pool: Pool,
    choices: &[Vec<Choice>],
    ahead: impl Fn(usize) -> f64,
) -> Vec<Option<u32>> {
    let mut chosen: Vec<Option<u32>> = vec![None; choices.len()];
    let next = |at: usize, from: Option<u32>, pool: &Pool| {
        let step = pool.best_step(&choices[at], at, from)?;
        let ahead = if from.is_none() { ahead(at) } else { 0.0 };
        Some(Ranked { rank: step.rank + ahead, ..step })
    };
    let mut heap: BinaryHeap<Ranked<Step>> =
        (0..choices.len()).filter_map(|at| next(at, None, &pool)).collect();
    while let Some(Ranked { place: at, what: step, .. }) = heap.pop() {
        let of = |index: u32| &choices[at][index as usize];
        let from = step.from.map(of);
        if pool.suffices(from, of(step.to)) {
            pool.take(from, of(step.to));
            chosen[at] = Some(step.to);
        }
        if pool.gpus.iter().all(|gpus| *gpus == 0) {
            break;
        }
        heap.extend(next(at, chosen[at], &pool));
    }
    chosen
}

/// GPUs and watts that no job has.
#[derive(Clone)]
pub(super) struct Pool {
    gpus: Vec<u32>,
    watts: f64,
    /// A change that takes no more GPUs counts as this share of one.
    no_gpu: f64,
}

impl Pool {
    /// The step that gains most for each GPU of those there is room for.
    fn best_step(
        &self,
        choices: &[Choice],
        item: usize,
        from: Option<u32>,
    ) -> Option<Ranked<Step>> {
        let has = from.map(|from| &choices[from as usize]);
        let (takes, worth) = has.map_or((0.0, 0.0), |has| (has.takes, has.worth));
        let step = |(to, choice): (usize, &Choice)| {
            let better = choice.worth > worth && choice.takes >= takes;
            (better && self.suffices(has, choice)).then(|| Ranked {
                rank: (choice.worth - worth) / (choice.takes - takes).max(self.no_gpu),
                place: item,
                what: Step { from, to: to as u32 },
            })
        };
        choices.iter().enumerate().filter_map(step).max()
    }

    fn suffices(&self, from: Option<&Choice>, to: &Choice) -> bool {
        let back = from.filter(|from| from.gpu_type == to.gpu_type).map_or(0, |from| from.gpus);
        let watts = to.watts - from.map_or(0.0, |from| from.watts);
        self.gpus[to.gpu_type] + back >= to.gpus && watts <= self.watts
    }

    pub(super) fn take(&mut self, from: Option<&Choice>, to: &Choice) {
        if let Some(from) = from {
            self.gpus[from.gpu_type] += from.gpus;
            self.watts += from.watts;
        }
        self.gpus[to.gpu_type] = self.gpus[to.gpu_type].saturating_sub(to.gpus);
        self.watts -= to.watts;
    }
}
