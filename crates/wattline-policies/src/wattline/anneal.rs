//! Complete schedules, for when few jobs are there.
//!
//! With a handful of jobs every one of them can be given its node, its way and its turn, and the
//! whole schedule is judged as the machines will bill it, node by node: a change concerns one node
//! or two, and only these are judged again. Annealing over such schedules comes close to the best
//! one there is; with many jobs it would not, and what the market says is then as good.

use super::candidates::Way;
use super::model::{Class, Draft, Item, Problem, Slot};
use super::nodes::NO_CLASS;
use super::search::Search;
use crate::ordered_par_map::ordered_par_map;
use rand::seq::IteratorRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::ops::Range;

/// What is decided for a job.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Task {
    way: u32,
    node: u32,
    /// It starts when the job before it in the order that is on its node ends, or starts, and not
    /// as soon as it could: company saves watts.
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

    /// Takes over another without new memory.
    fn copy(&mut self, other: &Self) {
        self.order.clone_from(&other.order);
        self.tasks.clone_from(&other.tasks);
        self.costs.clone_from(&other.costs);
    }
}

/// What is the same for all schedules.
struct Terms {
    /// What each job must gain to leave the GPUs it has.
    moving: Vec<f64>,
    /// Nodes that a way could be on, by way.
    hosts: Vec<Vec<u32>>,
}

impl Terms {
    fn new(problem: &Problem<'_, '_>) -> Self {
        Self {
            moving: (0..problem.items.len()).map(|at| moving(problem, at)).collect(),
            hosts: problem.ways.iter().map(|way| hosts(problem, way)).collect(),
        }
    }
}

struct Judge<'p, 'v, 'a> {
    problem: &'p Problem<'v, 'a>,
    terms: &'p Terms,
    /// Of the node that is judged: when its GPUs are free, soonest first, and when more or fewer are
    /// in use, in order.
    free: Vec<f64>,
    changes: Vec<(f64, i16)>,
    /// By job.
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
    if problem.ways.iter().any(|way| way.nodes > 1) || problem.items.iter().any(|i| i.overdue) {
        return None;
    }
    let terms = Terms::new(problem);
    // A job that no node can take now cannot be scheduled.
    let homeless = |item: &Item| item.ways.clone().all(|way| terms.hosts[way as usize].is_empty());
    if problem.items.iter().any(homeless) {
        return None;
    }
    let first = Judge::new(problem, &terms).schedule_of(found, &order());
    let hot = tuning.anneal_hot;
    let tries = (tuning.anneal_tries_per_job * jobs).min(bounds.work as usize / hot.len());
    let chains: Vec<(f64, u64)> =
        hot.into_iter().zip((0..).map(|chain: u64| bounds.seed ^ chain << 32)).collect();
    let ends = ordered_par_map(&chains, |(hot, seed)| {
        Judge::new(problem, &terms).anneal(first.clone(), *hot, tries, *seed)
    });
    let best = ends.iter().min_by(|a, b| a.cost().total_cmp(&b.cost()))?;
    best.cost().is_finite().then(|| Judge::new(problem, &terms).draft(best))
}

/// Nodes that a way could be on.
fn hosts(problem: &Problem<'_, '_>, way: &Way) -> Vec<u32> {
    let nodes = 0..problem.view.state.cluster().nodes().len() as u32;
    let takes = |node: &u32| {
        let class = problem.empty.class_of(*node);
        class != NO_CLASS
            && problem.classes[usize::from(class)].gpu_type == way.shape.gpu_type.index()
            && u32::from(problem.empty.free(*node)) >= way.shape.gpus
    };
    nodes.filter(takes).collect()
}

/// What a job must gain beyond what its restart costs.
fn moving(problem: &Problem<'_, '_>, at: usize) -> f64 {
    let (item, tuning) = (&problem.items[at], problem.tuning);
    let Some(now) = item.now.as_ref().filter(|_| item.runs) else { return 0.0 };
    let way = problem.way(now.way);
    let time = item.work / way.rate + item.restart;
    let own = way.gpus() * way.power.max(tuning.anneal_min_gpu_w);
    let energy = tuning.anneal_restart_energy * problem.prices.watt(0.0, time) * own;
    tuning.hysteresis * (energy + item.weight * item.restart * tuning.anneal_restart)
}

/// A job comes before or after another on its node.
fn take_turns(
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

impl<'p, 'v, 'a> Judge<'p, 'v, 'a> {
    fn new(problem: &'p Problem<'v, 'a>, terms: &'p Terms) -> Self {
        let starts = vec![0.0; problem.items.len()];
        Self { problem, terms, free: Vec::new(), changes: Vec::new(), starts }
    }

    /// Disturbs a schedule again and again and keeps what is better, or hardly worse: less and less
    /// of that. Gives the best one there was.
    fn anneal(&mut self, first: Schedule, hot: f64, tries: usize, seed: u64) -> Schedule {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let cooling = (self.problem.tuning.anneal_cold / hot).powf(1.0 / tries.max(1) as f64);
        let (mut now, mut cost) = (first.clone(), first.cost());
        let (mut best, mut least) = (first.clone(), cost);
        let (mut next, mut heat) = (first, hot);
        for _ in 0..tries {
            heat *= cooling;
            next.copy(&now);
            if !self.disturb(&mut next, &mut random) {
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
            Some(slot) => Task { way: slot.way, node: slot.spot[0].0, waits: false },
            None => {
                let hosts =
                    |way: u32| self.terms.hosts[way as usize].first().map(|node| (way, *node));
                let (way, node) = problem.items[at].ways.clone().find_map(hosts).unwrap_or((0, 0));
                Task { way, node, waits: false }
            }
        });
        let mut schedule = Schedule { tasks: tasks.collect(), order, costs: Vec::new() };
        let nodes = problem.view.state.cluster().nodes().len() as u32;
        schedule.costs = (0..nodes).map(|node| self.node_cost(&schedule, node)).collect();
        schedule
    }

    /// Changes one thing; whether it did.
    fn disturb(&mut self, schedule: &mut Schedule, random: &mut Pcg64Mcg) -> bool {
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
                self.change_places(schedule, at, other)
            }
            2..=4 => {
                take_turns(schedule, turn, free, random) || self.reassign(schedule, at, random)
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

    /// Another way, there or elsewhere.
    fn reassign(&self, schedule: &mut Schedule, at: usize, random: &mut Pcg64Mcg) -> bool {
        let before = schedule.tasks[at];
        let way = random.random_range(self.problem.items[at].ways.clone());
        let hosts = &self.terms.hosts[way as usize];
        let stays = random.random_range(0..3) == 0 && hosts.contains(&before.node);
        let elsewhere = || hosts.get(random.random_range(0..hosts.len().max(1))).copied();
        let Some(node) = Some(before.node).filter(|_| stays).or_else(elsewhere) else {
            return false;
        };
        schedule.tasks[at] = Task { way, node, ..before };
        schedule.tasks[at] != before
    }

    /// Two jobs are each where the other was.
    fn change_places(&self, schedule: &mut Schedule, at: usize, other: usize) -> bool {
        let (one, two) = (schedule.tasks[at], schedule.tasks[other]);
        let suits = |task: Task, node: u32| self.terms.hosts[task.way as usize].contains(&node);
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
            let (item, way) = (&problem.items[*at], problem.way(task.way));
            let gpus = way.shape.gpus as usize;
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
                    now.spot[0].0 == task.node && problem.same_but_limit(now.way, task.way)
                });
            let lost = match (stays, item.runs) {
                (true, _) => 0.0,
                (false, true) => item.restart,
                (false, false) => item.load,
            };
            let wake = if start == 0.0 { class.wake } else { 0.0 };
            let time = item.work / way.rate + lost + if stays { 0.0 } else { wake };
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
            cost += problem.late(item, way, start, time) + problem.toll(way, start, time);
            cost += class.pue * way.power * way.gpus() * problem.prices.watt(start, end);
            cost += if stays { 0.0 } else { self.terms.moving[*at] };
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

    /// Who starts at once.
    fn draft(&mut self, schedule: &Schedule) -> Draft {
        let problem = self.problem;
        for node in 0..schedule.costs.len() as u32 {
            self.node_cost(schedule, node);
        }
        let slot = |(at, task): (usize, &Task)| {
            let gpus = problem.way(task.way).shape.gpus as u8;
            let spot = std::iter::once((task.node, gpus)).collect();
            (self.starts[at] == 0.0).then_some(Slot { way: task.way, spot })
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
    fn what_is_judged_again_is_all_that_changed() {
        look_for(Goal::Cost, 0.0, many(8), None, |problem| {
            let terms = Terms::new(problem);
            let mut judge = Judge::new(problem, &terms);
            let line: Vec<u32> = (0..8).collect();
            let mut schedule = judge.schedule_of(&vec![None; 8], &line);
            let mut random = Pcg64Mcg::seed_from_u64(1);
            let mut costs = Vec::new();
            for _ in 0..2000 {
                judge.disturb(&mut schedule, &mut random);
                let nodes = 0..schedule.costs.len() as u32;
                let whole: Vec<f64> = nodes.map(|node| judge.node_cost(&schedule, node)).collect();
                assert_eq!(schedule.costs, whole);
                costs.push(schedule.cost());
            }
            costs.dedup();
            assert!(costs.len() > 1000, "most moves change something: {}", costs.len());
        });
    }
}
