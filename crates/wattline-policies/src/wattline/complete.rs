//! Complete schedules, for when few jobs are there.
//!
//! With a handful of jobs every one of them can be given its node, its way and its turn, and the
//! whole schedule is judged as the machines will bill it, node by node. Annealing over such
//! schedules comes close to the best one there is; with many jobs it would not, and what a line
//! over pools says is then as good.

use super::model::{Draft, Problem, Slot};
use super::search::Effort;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// No more jobs than this are scheduled completely.
const MOST_JOBS: usize = 10;
const MOST_NODES: usize = 64;
/// Schedules tried.
const TRIES: usize = 8000;
/// What a try counts as work.
const WORK_PER_TRY: usize = 10;
/// Where annealing begins and ends, as parts of the cost.
const HOT: f64 = 0.05;
const COLD: f64 = 0.0002;

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
}

struct Judge<'p, 'v, 'a> {
    problem: &'p Problem<'v, 'a>,
    /// By node and GPU, soonest first.
    free: Vec<Vec<f64>>,
    /// By node: starts, ends and GPUs.
    runs: Vec<Vec<(f64, f64, u8)>>,
    starts: Vec<f64>,
    times: Vec<f64>,
}

/// Improves a solution by scheduling all jobs completely, if they are few.
pub(super) fn complete(
    problem: &Problem<'_, '_>,
    found: &Draft,
    order: impl FnOnce() -> Vec<u32>,
    restarts: impl Fn(&Draft) -> f64,
    effort: &Effort,
) -> Option<Draft> {
    let nodes = problem.view.state.cluster().nodes().len();
    let jobs = problem.items.len();
    if jobs == 0 || jobs > MOST_JOBS || nodes > MOST_NODES || problem.budget.is_finite() {
        return None;
    }
    if problem.ways.iter().any(|way| way.nodes > 1) || problem.items.iter().any(|i| i.overdue) {
        return None;
    }
    let mut judge = Judge {
        problem,
        free: vec![Vec::new(); nodes],
        runs: vec![Vec::new(); nodes],
        starts: vec![0.0; jobs],
        times: vec![0.0; jobs],
    };
    // A job that no node can take now cannot be scheduled.
    if (0..jobs)
        .any(|at| !problem.items[at].ways.clone().any(|w| judge.nodes_for(w).next().is_some()))
    {
        return None;
    }
    let tries = TRIES.min(effort.work as usize / WORK_PER_TRY);
    let mut random = Pcg64Mcg::seed_from_u64(effort.seed);
    let mut now = judge.schedule_of(found, &order());
    let value = |judge: &mut Judge<'_, '_, '_>, schedule: &Schedule| {
        let cost = judge.cost(schedule);
        cost + restarts(&judge.draft(schedule))
    };
    let mut cost = value(&mut judge, &now);
    let (mut best, mut least) = (now.clone(), cost);
    for attempt in 0..tries {
        let done = attempt as f64 / tries as f64;
        let heat = least.abs().max(1e-9) * HOT * (COLD / HOT).powf(done);
        let mut next = now.clone();
        if !judge.disturb(&mut next, &mut random) {
            continue;
        }
        let new = value(&mut judge, &next);
        let accepted = new <= cost || random.random::<f64>() < ((cost - new) / heat).exp();
        if accepted {
            (now, cost) = (next, new);
        }
        if cost < least - 1e-12 {
            (best, least) = (now.clone(), cost);
        }
    }
    judge.cost(&best).is_finite().then(|| judge.draft(&best))
}

impl Judge<'_, '_, '_> {
    /// The schedule that a draft and the line behind it stand for.
    fn schedule_of(&self, draft: &Draft, line: &[u32]) -> Schedule {
        let problem = self.problem;
        let mut order: Vec<usize> = line.iter().map(|at| *at as usize).collect();
        order.sort_by_key(|at| (!problem.items[*at].pinned, draft[*at].is_none()));
        let tasks = draft.iter().enumerate().map(|(at, slot)| match slot {
            Some(slot) => Task { way: slot.way, node: slot.spot[0].0, waits: false },
            None => {
                let mut ways = problem.items[at].ways.clone();
                let way = ways.find(|way| self.nodes_for(*way).next().is_some()).unwrap_or(0);
                Task { way, node: self.nodes_for(way).next().unwrap_or(0), waits: false }
            }
        });
        Schedule { tasks: tasks.collect(), order }
    }

    /// Nodes that a way could be on.
    fn nodes_for(&self, way: u32) -> impl Iterator<Item = u32> + '_ {
        let problem = self.problem;
        let shape = problem.way(way).shape;
        (0..self.free.len() as u32).filter(move |node| {
            let class = problem.empty.class_of(*node);
            class != super::nodes::NO_CLASS
                && problem.classes[usize::from(class)].gpu_type == shape.gpu_type.index()
                && u32::from(problem.empty.free(*node)) >= shape.gpus
        })
    }

    /// Changes one thing.
    fn disturb(&self, schedule: &mut Schedule, random: &mut Pcg64Mcg) -> bool {
        let problem = self.problem;
        let jobs = schedule.order.len();
        // Those that may not move come first, and stay there.
        let free = schedule.order.iter().filter(|at| problem.items[**at].pinned).count();
        if free == jobs {
            return false;
        }
        let turn = random.random_range(free..jobs);
        let at = schedule.order[turn];
        match random.random_range(0..10) {
            0..=4 => {
                let way = random.random_range(problem.items[at].ways.clone());
                let nodes: Vec<u32> = self.nodes_for(way).collect();
                if nodes.is_empty() {
                    return false;
                }
                let node = nodes[random.random_range(0..nodes.len())];
                let task = Task { way, node, ..schedule.tasks[at] };
                let changed = task != schedule.tasks[at];
                schedule.tasks[at] = task;
                changed
            }
            5 => {
                schedule.tasks[at].waits ^= true;
                true
            }
            6 | 7 => {
                let other = random.random_range(free..jobs);
                schedule.order.swap(turn, other);
                other != turn
            }
            _ => {
                let to = random.random_range(free..jobs);
                let job = schedule.order.remove(turn);
                schedule.order.insert(to, job);
                to != turn
            }
        }
    }

    /// What the schedule costs, as machines bill it.
    fn cost(&mut self, schedule: &Schedule) -> f64 {
        let problem = self.problem;
        for (node, free) in self.free.iter_mut().enumerate() {
            free.clear();
            free.resize(usize::from(problem.empty.free(node as u32)), 0.0);
            self.runs[node].clear();
        }
        let mut cost = 0.0;
        for at in &schedule.order {
            let task = schedule.tasks[*at];
            let (item, way) = (&problem.items[*at], problem.way(task.way));
            let gpus = way.shape.gpus as usize;
            let free = &mut self.free[task.node as usize];
            if free.len() < gpus {
                return f64::INFINITY;
            }
            let mut start = free[gpus - 1];
            let runs = &mut self.runs[task.node as usize];
            if task.waits {
                // The next time after that at which something happens on the node.
                let later = runs.iter().flat_map(|run| [run.0, run.1]).filter(|t| *t > start);
                let next = later.fold(f64::INFINITY, f64::min);
                if next.is_finite() {
                    start = next;
                }
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
            let class = &problem.classes[usize::from(problem.empty.class_of(task.node))];
            let wake = if start == 0.0 { class.wake } else { 0.0 };
            let time = item.work / way.rate + lost + if stays { 0.0 } else { wake };
            // A job that takes no time takes its turn all the same.
            let end = start + time.max(1e-6);
            free.drain(..gpus);
            let place = free.partition_point(|t| *t < end);
            free.splice(place..place, std::iter::repeat_n(end, gpus));
            runs.push((start, end, gpus as u8));
            self.starts[*at] = start;
            self.times[*at] = time;
            cost += problem.late(item, way, start, time) + problem.toll(way, start, time);
            cost += class.pue * way.power * way.gpus() * problem.prices.watt(start, end);
        }
        cost + self.node_energy()
    }

    fn node_energy(&self) -> f64 {
        let problem = self.problem;
        let mut cost = 0.0;
        let mut changes: Vec<(f64, i16)> = Vec::new();
        for (node, runs) in self.runs.iter().enumerate().filter(|(_, runs)| !runs.is_empty()) {
            let class = &problem.classes[usize::from(problem.empty.class_of(node as u32))];
            let fixed = i16::from(class.size - problem.empty.free(node as u32));
            changes.clear();
            for (start, end, gpus) in runs {
                changes.push((*start, i16::from(*gpus)));
                changes.push((*end, -i16::from(*gpus)));
            }
            changes.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            let idle = class.billed[fixed as usize];
            let (mut busy, mut time) = (fixed, 0.0);
            for (at, gpus) in &changes {
                let watts = class.billed[busy as usize] - idle;
                if watts != 0.0 {
                    cost += watts * problem.prices.watt(time, *at);
                }
                time = *at;
                busy += gpus;
            }
        }
        cost
    }

    /// Who starts at once; after the schedule has been judged.
    fn draft(&self, schedule: &Schedule) -> Draft {
        let problem = self.problem;
        let slot = |(at, task): (usize, &Task)| {
            let gpus = problem.way(task.way).shape.gpus as u8;
            let spot = std::iter::once((task.node, gpus)).collect();
            (self.starts[at] == 0.0).then_some(Slot { way: task.way, spot })
        };
        schedule.tasks.iter().enumerate().map(slot).collect()
    }
}
