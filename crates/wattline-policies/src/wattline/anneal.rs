//! Move: complete schedules of few jobs are annealed.
//!
//! Each job is given its node, its candidate and its turn, and the whole schedule is evaluated as
//! the machines will bill it, node by node: a change concerns one node or two, and only these are
//! evaluated again. With few jobs this comes close to the optimum; with many it would not, and the
//! market's plan is then as good.

use super::{Candidate, Class, Draft, Item, Problem, Search, Slot, ordered_par_map};
use rand::seq::IteratorRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Task {
    candidate: u32,
    node: u32,
    /// It starts when another job on its node starts or ends, not before, to share watts.
    waits: bool,
}

#[derive(Clone, Debug)]
struct Schedule {
    /// In which order jobs take their GPUs.
    order: Vec<usize>,
    tasks: Vec<Task>,
    /// By node: no node's depends on what is on another.
    costs: Vec<f64>,
}

impl Schedule {
    fn cost(&self) -> f64 {
        self.costs.iter().sum()
    }

    fn copy(&mut self, other: &Self) {
        self.order.clone_from(&other.order);
        self.tasks.clone_from(&other.tasks);
        self.costs.clone_from(&other.costs);
    }
}

/// What is the same for all schedules.
struct Context {
    moving: Vec<f64>,
    /// Nodes that a candidate could be on, by candidate.
    hosts: Vec<Vec<u32>>,
}

impl Context {
    fn new(problem: &Problem<'_, '_>) -> Self {
        Self {
            moving: (0..problem.items.len()).map(|at| moving(problem, at)).collect(),
            hosts: problem.candidates.iter().map(|candidate| hosts(problem, candidate)).collect(),
        }
    }
}

struct Evaluator<'p, 'v, 'a> {
    problem: &'p Problem<'v, 'a>,
    context: &'p Context,
    /// Of a node: when its GPUs are free, soonest first, and when more or fewer are in use.
    free: Vec<f64>,
    changes: Vec<(f64, i16)>,
    starts: Vec<f64>,
}

/// Improves a solution by scheduling all jobs completely, if they are few.
pub(super) fn anneal(
    problem: &Problem<'_, '_>,
    found: &Draft,
    order: impl FnOnce() -> Vec<u32>,
    bounds: &Search,
) -> Option<Draft> {
    let nodes = problem.view.state.cluster().nodes().len();
    let (jobs, tuning) = (problem.items.len(), problem.tuning);
    let few = (1..=tuning.anneal_jobs_max).contains(&jobs) && nodes <= tuning.anneal_nodes_max;
    if !tuning.annealing || !few || problem.budget.is_finite() {
        return None;
    }
    if problem.candidates.iter().any(|candidate| candidate.nodes > 1)
        || problem.items.iter().any(|i| i.overdue)
    {
        return None;
    }
    let context = Context::new(problem);
    // A job that no node can take now cannot be scheduled.
    let homeless = |item: &Item| {
        item.candidates.clone().all(|candidate| context.hosts[candidate as usize].is_empty())
    };
    if problem.items.iter().any(homeless) {
        return None;
    }
    let first = Evaluator::new(problem, &context).schedule_of(found, &order());
    let hot = tuning.anneal_hot;
    let tries = (tuning.anneal_tries_per_job * jobs).min(bounds.work as usize / hot.len());
    let chains: Vec<(f64, u64)> =
        hot.into_iter().zip((0..).map(|chain: u64| bounds.seed ^ chain << 32)).collect();
    let ends = ordered_par_map(&chains, |(hot, seed)| {
        Evaluator::new(problem, &context).anneal(first.clone(), *hot, tries, *seed)
    });
    let best = ends.iter().min_by(|a, b| a.cost().total_cmp(&b.cost()))?;
    best.cost().is_finite().then(|| Evaluator::new(problem, &context).draft(best))
}

fn hosts(problem: &Problem<'_, '_>, candidate: &Candidate) -> Vec<u32> {
    let of_type = problem.empty.usable().filter(|(_, c)| c.gpu_type == candidate.gpu_type());
    let free = |node: &u32| u32::from(problem.empty.free(*node)) >= candidate.shape.gpus;
    of_type.map(|(node, _)| node).filter(free).collect()
}

/// What a job must gain beyond what its restart costs.
fn moving(problem: &Problem<'_, '_>, at: usize) -> f64 {
    let (item, tuning) = (&problem.items[at], problem.tuning);
    let Some(now) = item.running() else { return 0.0 };
    let candidate = problem.of(now);
    let time = item.work / candidate.rate + item.restart;
    let own = candidate.gpus() * candidate.power.max(tuning.anneal_min_gpu_w);
    let energy = tuning.anneal_restart_energy * problem.prices.watt(0.0, time) * own;
    tuning.hysteresis * (energy + item.weight * item.restart * tuning.anneal_restart)
}

/// A job comes before or after another on its node.
fn move_in_order(
    schedule: &mut Schedule,
    turn: usize,
    free: Range<usize>,
    random: &mut Pcg64Mcg,
) -> bool {
    let node_of = |turn: usize| schedule.tasks[schedule.order[turn]].node;
    let others = free.filter(|other| *other != turn && node_of(*other) == node_of(turn));
    let Some(other) = others.choose(random) else { return false };
    let job = schedule.order.remove(turn);
    schedule.order.insert(other, job);
    true
}

impl<'p, 'v, 'a> Evaluator<'p, 'v, 'a> {
    fn new(problem: &'p Problem<'v, 'a>, context: &'p Context) -> Self {
        let starts = vec![0.0; problem.items.len()];
        Self { problem, context, free: Vec::new(), changes: Vec::new(), starts }
    }

    /// Mutates a schedule and keeps what is better, or hardly worse; returns the best one.
    fn anneal(&mut self, first: Schedule, hot: f64, tries: usize, seed: u64) -> Schedule {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let cooling = (self.problem.tuning.anneal_cold / hot).powf(1.0 / tries.max(1) as f64);
        let (mut now, mut cost) = (first.clone(), first.cost());
        let (mut best, mut least) = (first.clone(), cost);
        let (mut next, mut heat) = (first, hot);
        for _ in 0..tries {
            heat *= cooling;
            next.copy(&now);
            if !self.mutate(&mut next, &mut random) {
                continue;
            }
            let new = next.cost();
            let worse = (new - cost) / (heat * least.abs().max(1e-9));
            if worse <= 0.0 || random.random::<f64>() < (-worse).exp() {
                std::mem::swap(&mut now, &mut next);
                cost = new;
            }
            if cost < least - 1e-12 {
                best.copy(&now);
                least = cost;
            }
        }
        best
    }

    /// The schedule that a draft and the line behind it stand for.
    fn schedule_of(&mut self, draft: &Draft, line: &[u32]) -> Schedule {
        let problem = self.problem;
        let mut order: Vec<usize> = line.iter().map(|at| *at as usize).collect();
        order.sort_by_key(|at| (!problem.items[*at].pinned, draft[*at].is_none()));
        let tasks = draft.iter().enumerate().map(|(at, slot)| match slot {
            Some(slot) => Task { candidate: slot.candidate, node: slot.spot[0].0, waits: false },
            None => {
                let hosts = |candidate: u32| {
                    self.context.hosts[candidate as usize].first().map(|node| (candidate, *node))
                };
                let (candidate, node) =
                    problem.items[at].candidates.clone().find_map(hosts).unwrap_or((0, 0));
                Task { candidate, node, waits: false }
            }
        });
        let mut schedule = Schedule { tasks: tasks.collect(), order, costs: Vec::new() };
        let nodes = problem.view.state.cluster().nodes().len() as u32;
        schedule.costs = (0..nodes).map(|node| self.node_cost(&schedule, node)).collect();
        schedule
    }

    fn mutate(&mut self, schedule: &mut Schedule, random: &mut Pcg64Mcg) -> bool {
        let jobs = schedule.order.len();
        // Those that may not move come first, and stay there.
        let pinned = |at: &&usize| self.problem.items[**at].pinned;
        let free = schedule.order.iter().take_while(pinned).count()..jobs;
        if free.is_empty() {
            return false;
        }
        let turn = random.random_range(free.clone());
        let at = schedule.order[turn];
        let before = schedule.tasks[at];
        let changed = match random.random_range(0..10) {
            0 => {
                schedule.tasks[at].waits ^= true;
                true
            }
            1 => {
                let other = schedule.order[random.random_range(free)];
                self.swap_nodes(schedule, at, other)
            }
            2..=4 => {
                move_in_order(schedule, turn, free, random) || self.reassign(schedule, at, random)
            }
            _ => self.reassign(schedule, at, random),
        };
        if changed {
            // Where it was and where it is; two that change places have both in common.
            let node = schedule.tasks[at].node;
            schedule.costs[node as usize] = self.node_cost(schedule, node);
            if node != before.node {
                schedule.costs[before.node as usize] = self.node_cost(schedule, before.node);
            }
        }
        changed
    }

    fn reassign(&self, schedule: &mut Schedule, at: usize, random: &mut Pcg64Mcg) -> bool {
        let before = schedule.tasks[at];
        let candidate = random.random_range(self.problem.items[at].candidates.clone());
        let hosts = &self.context.hosts[candidate as usize];
        let stays = random.random_range(0..3) == 0 && hosts.contains(&before.node);
        let elsewhere = || hosts.get(random.random_range(0..hosts.len().max(1))).copied();
        let Some(node) = Some(before.node).filter(|_| stays).or_else(elsewhere) else {
            return false;
        };
        schedule.tasks[at] = Task { candidate, node, ..before };
        schedule.tasks[at] != before
    }

    fn swap_nodes(&self, schedule: &mut Schedule, at: usize, other: usize) -> bool {
        let (one, two) = (schedule.tasks[at], schedule.tasks[other]);
        let suits =
            |task: Task, node: u32| self.context.hosts[task.candidate as usize].contains(&node);
        let can = one.node != two.node && suits(one, two.node) && suits(two, one.node);
        if can {
            schedule.tasks[at].node = two.node;
            schedule.tasks[other].node = one.node;
        }
        can
    }

    /// What the jobs on a node and the node itself cost, as machines bill it.
    fn node_cost(&mut self, schedule: &Schedule, node: u32) -> f64 {
        let problem = self.problem;
        let mut here = schedule.order.iter().filter(|at| schedule.tasks[**at].node == node);
        let Some(first) = here.next() else { return 0.0 };
        let class = &problem.classes[usize::from(problem.empty.class_of(node))];
        self.free.clear();
        self.free.resize(usize::from(problem.empty.free(node)), 0.0);
        self.changes.clear();
        let mut cost = 0.0;
        for at in std::iter::once(first).chain(here) {
            let task = schedule.tasks[*at];
            let (item, candidate) = (&problem.items[*at], problem.candidate(task.candidate));
            let gpus = candidate.shape.gpus as usize;
            if self.free.len() < gpus {
                return f64::INFINITY;
            }
            let mut start = self.free[gpus - 1];
            if task.waits {
                // The next time after that at which something happens on the node.
                let next = self.changes.iter().find(|change| change.0 > start);
                start = next.map_or(start, |change| change.0);
            }
            let stays = start == 0.0
                && item.runs
                && item.now.as_ref().is_some_and(|now| {
                    now.spot[0].0 == task.node && problem.of(now).same_but_limit(candidate)
                });
            let lost = match (stays, item.runs) {
                (true, _) => 0.0,
                (false, true) => item.restart,
                (false, false) => item.load,
            };
            let wake = if start == 0.0 { class.wake } else { 0.0 };
            let time = item.work / candidate.rate + lost + if stays { 0.0 } else { wake };
            // A job that takes no time takes its turn all the same.
            let end = start + time.max(1e-6);
            // Those that it takes are the first, and free again after others.
            let place = gpus + self.free[gpus..].partition_point(|time| *time < end);
            self.free.copy_within(gpus..place, 0);
            self.free[place - gpus..place].fill(end);
            for change in [(start, gpus as i16), (end, -(gpus as i16))] {
                let place = self.changes.partition_point(|other| other.0 <= change.0);
                self.changes.insert(place, change);
            }
            self.starts[*at] = start;
            cost += problem.late(item, candidate, start, time)
                + problem.arrival_toll(candidate, start, time);
            cost +=
                class.pue * candidate.power * candidate.gpus() * problem.prices.watt(start, end);
            cost += if stays { 0.0 } else { self.context.moving[*at] };
        }
        cost + self.node_energy(class, problem.empty.free(node))
    }

    /// What the node draws beside its jobs, for as long as they are there.
    fn node_energy(&self, class: &Class, free: u8) -> f64 {
        let fixed = i16::from(class.size - free);
        let idle = class.billed[fixed as usize];
        let (mut cost, mut busy, mut time) = (0.0, fixed, 0.0);
        for (at, gpus) in &self.changes {
            let watts = class.billed[busy as usize] - idle;
            if watts != 0.0 {
                cost += watts * self.problem.prices.watt(time, *at);
            }
            time = *at;
            busy += gpus;
        }
        cost
    }

    fn draft(&mut self, schedule: &Schedule) -> Draft {
        let problem = self.problem;
        for node in 0..schedule.costs.len() as u32 {
            self.node_cost(schedule, node);
        }
        let slot = |(at, task): (usize, &Task)| {
            let gpus = problem.candidate(task.candidate).shape.gpus as u8;
            let spot = std::iter::once((task.node, gpus)).collect();
            (self.starts[at] == 0.0).then_some(Slot { candidate: task.candidate, spot })
        };
        schedule.tasks.iter().enumerate().map(slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::objective::Goal;
    use super::super::tests::{look_for, many};
    use super::*;

    #[test]
    fn only_what_changed_is_evaluated_again() {
        look_for(Goal::Cost, 0.0, many(8), None, |problem| {
            let context = Context::new(problem);
            let mut evaluator = Evaluator::new(problem, &context);
            let line: Vec<u32> = (0..8).collect();
            let mut schedule = evaluator.schedule_of(&vec![None; 8], &line);
            let mut random = Pcg64Mcg::seed_from_u64(1);
            let mut costs = Vec::new();
            for _ in 0..2000 {
                evaluator.mutate(&mut schedule, &mut random);
                let nodes = 0..schedule.costs.len() as u32;
                let whole: Vec<f64> =
                    nodes.map(|node| evaluator.node_cost(&schedule, node)).collect();
                assert_eq!(schedule.costs, whole);
                costs.push(schedule.cost());
            }
            costs.dedup();
            assert!(costs.len() > 1000, "most moves change something: {}", costs.len());
        });
    }
}
