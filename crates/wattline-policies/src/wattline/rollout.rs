//! A plan rolled forward to every job's own end.
//!
//! What a plan costs is known when the last job is done. So jobs that wait follow one another in
//! the order of the rule, on the GPUs that become free first, each in the way that is cheapest at
//! its turn.
//!
//! Here GPUs of a type are one pool. Which node a waiting job will be on decides little, and leaving
//! it open makes the cost a smooth function of the plan: with nodes in it, every change of a plan
//! shuffles all that follows, and a search would choose by the noise of that. Jobs of the plan
//! itself are on their nodes, with the watts these draw for as long as they are in use.

use super::model::{Problem, Slot};
use super::nodes::Nodes;
use super::rule::{Moment, Rule};

/// Who runs where; by item.
pub(super) type Draft = Vec<Option<Slot>>;

/// The line of jobs that wait, as a rule has it.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    /// All items, also those that run: they stand here should they lose their place.
    pub(super) order: Vec<u32>,
    /// What a GPU-second of the best type and a watt-second are worth at each turn.
    worth: Vec<(f64, f64)>,
}

/// Working memory of rollouts.
pub(super) struct Roller<'p, 'v, 'a> {
    pub(super) problem: &'p Problem<'v, 'a>,
    /// By GPU type: when its GPUs become free, soonest first.
    pools: Vec<Vec<f64>>,
    /// By node that is in use: ends of its jobs and their GPUs.
    on_nodes: Vec<Vec<(f64, u8)>>,
    used: Vec<u32>,
    /// Jobs looked at so far: the work that is bounded.
    pub(super) work: u64,
}

/// The line is sorted anew this often while it is made.
const SORTS: usize = 10;

impl<'p, 'v, 'a> Roller<'p, 'v, 'a> {
    pub(super) fn new(problem: &'p Problem<'v, 'a>) -> Self {
        Self {
            problem,
            pools: vec![Vec::new(); problem.gpus_of.len()],
            on_nodes: vec![Vec::new(); problem.view.state.cluster().nodes().len()],
            used: Vec::new(),
            work: 0,
        }
    }

    /// Seconds from now to the end of a job that the draft runs so.
    pub(super) fn ends_at(&self, at: usize, slot: &Slot) -> f64 {
        let problem = self.problem;
        problem.items[at].work / problem.way(slot.way).rate + problem.lost(at, slot)
    }

    /// When GPUs become free under a draft.
    fn fill_pools(&mut self, draft: &Draft) {
        let problem = self.problem;
        self.pools.iter_mut().for_each(Vec::clear);
        for (at, slot) in draft.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let end = self.ends_at(at, slot);
            let shape = problem.way(slot.way).shape;
            let pool = &mut self.pools[shape.gpu_type.index()];
            pool.resize(pool.len() + shape.gpus as usize, end);
        }
        // What is free now and not taken is free until something happens.
        let next = self.pools.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        let next = if next.is_finite() { next } else { 0.0 };
        for (pool, all) in self.pools.iter_mut().zip(&problem.empty.free_of) {
            pool.resize((*all as usize).max(pool.len()), next);
            pool.sort_unstable_by(f64::total_cmp);
        }
    }

    /// Makes the line that a rule leads to, with the draft's jobs where they are.
    pub(super) fn line(&mut self, draft: &Draft, rule: &Rule, moment: &mut Moment) -> Line {
        let problem = self.problem;
        self.fill_pools(draft);
        let count = problem.items.len();
        let mut left: Vec<u32> = (0..count as u32).collect();
        let mut keys = Vec::new();
        let mut line = Line { order: Vec::with_capacity(count), worth: Vec::with_capacity(count) };
        let mut time = 0.0;
        let waits = |at: u32| draft[at as usize].is_none();
        moment.gpu_price.iter_mut().for_each(|price| *price = 0.0);
        let chunk = (count / SORTS).max(8);
        let mut first = None;
        while !left.is_empty() {
            moment.time = time;
            // Twice at the beginning: the order follows the prices and the prices the order.
            for _ in 0..if line.order.is_empty() { 2 } else { 1 } {
                problem.sort(rule, moment, &mut left, &mut keys, waits);
                self.work += left.len() as u64;
            }
            if first.is_none() {
                first = Some(moment.clone());
            }
            let turn = chunk.min(left.len());
            for at in left.drain(..turn) {
                line.order.push(at);
                line.worth.push((moment.price, moment.watt_price));
                if waits(at) {
                    time = self.next(at as usize, (moment.price, moment.watt_price)).0.max(time);
                }
            }
        }
        if let Some(first) = first {
            *moment = first;
        }
        line
    }

    /// The next job in the line takes GPUs of the pools: its start and what it costs.
    fn next(&mut self, at: usize, worth: (f64, f64)) -> (f64, f64) {
        let problem = self.problem;
        let item = &problem.items[at];
        let mut best = (f64::INFINITY, 0.0, 0.0, 0.0, 0, 0);
        for (_, way) in problem.ways_of(at) {
            let gpu_type = way.shape.gpu_type.index();
            let gpus = way.shape.gpus as usize;
            let Some(free) = self.pools[gpu_type].get(gpus - 1) else { continue };
            let start = *free;
            let time = item.work / way.rate + item.load;
            let idle = self.pools[gpu_type].get(gpus).is_some_and(|free| *free <= start);
            let watts = if idle { problem.alone_watts(way) } else { problem.usual_watts(way) };
            let cost = problem.prices.watt(start, start + time) * watts
                + problem.late(item, way, start, time);
            let cost = cost + problem.toll(way, start, time);
            let taken = worth.0 * problem.worth[gpu_type] + worth.1 * way.limit;
            let score = cost + time * way.gpus() * taken;
            if score < best.0 {
                best = (score, start, cost, start + time, gpu_type, gpus);
            }
        }
        let (score, start, cost, end, gpu_type, gpus) = best;
        if score.is_finite() {
            let pool = &mut self.pools[gpu_type];
            let place = pool.partition_point(|free| *free < end);
            let behind = place.max(gpus);
            pool.copy_within(gpus..behind, 0);
            pool[behind - gpus..behind].fill(end);
        }
        (start, cost)
    }

    /// What the draft costs in the end.
    pub(super) fn evaluate(&mut self, draft: &Draft, line: &Line) -> f64 {
        let problem = self.problem;
        let mut sum = 0.0;
        for (at, slot) in draft.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let (item, way) = (&problem.items[at], problem.way(slot.way));
            let end = self.ends_at(at, slot);
            sum += problem.late(item, way, 0.0, end) + problem.toll(way, 0.0, end);
            let own = problem.own_watts(slot);
            sum += own * problem.prices.watt(0.0, end);
            for (node, gpus) in &slot.spot {
                let on = &mut self.on_nodes[*node as usize];
                if on.is_empty() {
                    self.used.push(*node);
                }
                on.push((end, *gpus));
            }
        }
        for node in self.used.drain(..) {
            let on = &mut self.on_nodes[node as usize];
            let class = &problem.classes[usize::from(problem.empty.class_of(node))];
            let mut busy = class.size - problem.empty.free(node);
            let empty = class.billed[usize::from(busy)];
            busy += on.iter().map(|(_, gpus)| gpus).sum::<u8>();
            on.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            let mut time = 0.0;
            for (end, gpus) in on.drain(..) {
                let watts = class.billed[usize::from(busy)] - empty;
                sum += watts * problem.prices.watt(time, end);
                time = end;
                busy -= gpus;
            }
        }
        self.fill_pools(draft);
        self.work += draft.len() as u64 / 4;
        for (turn, at) in line.order.iter().enumerate() {
            if draft[*at as usize].is_some() {
                continue;
            }
            self.work += 1;
            sum += self.next(*at as usize, line.worth[turn]).1;
        }
        sum
    }
}

impl Problem<'_, '_> {
    /// Billed watts of a way on a node that is full: what it draws where little is wasted.
    pub(super) fn usual_watts(&self, way: &super::ways::Way) -> f64 {
        let class = self.classes_of[way.shape.gpu_type.index()].first();
        let Some(class) = class.map(|c| &self.classes[usize::from(*c)]) else { return 0.0 };
        let share = class.billed[usize::from(class.size)] / f64::from(class.size);
        way.gpus() * (share + class.pue * way.power)
    }

    /// What GPU time costs those who come later: nothing at once, when what is not used is lost, and
    /// more and more as they come.
    pub(super) fn toll(&self, way: &super::ways::Way, start: f64, time: f64) -> f64 {
        let until = |time: f64| time - self.soon * (1.0 - (-time / self.soon).exp());
        let gpus = way.gpus() * self.worth[way.shape.gpu_type.index()];
        self.toll * gpus * (until(start + time) - until(start))
    }

    /// Billed watts of a way on a node of its own.
    fn alone_watts(&self, way: &super::ways::Way) -> f64 {
        let class = self.classes_of[way.shape.gpu_type.index()].first();
        let Some(class) = class.map(|c| &self.classes[usize::from(*c)]) else { return 0.0 };
        let (size, gpus) = (u32::from(class.size), way.shape.gpus);
        let whole = class.billed[usize::from(class.size)] - class.billed[0];
        let rest = class.billed[(gpus % size) as usize] - class.billed[0];
        whole * f64::from(gpus / size) + rest + class.pue * way.power * way.gpus()
    }

    /// Billed watts that a job's GPUs draw, where that is counted apart from their node.
    pub(super) fn own_watts(&self, slot: &Slot) -> f64 {
        let way = self.way(slot.way);
        let pue = |node: u32| self.classes[usize::from(self.empty.class_of(node))].pue;
        slot.spot.iter().map(|(n, g)| pue(*n) * way.power * f64::from(*g)).sum()
    }

    /// Whether the job keeps the GPUs and, but for the limit, the way it has now.
    pub(super) fn stays(&self, at: usize, slot: &Slot) -> bool {
        let now = self.items[at].now.as_ref();
        now.is_some_and(|now| now.spot == slot.spot && self.same_but_limit(now.way, slot.way))
    }

    /// The nodes with all jobs of a draft.
    pub(super) fn filled(&self, draft: &Draft) -> Nodes {
        let mut nodes = self.empty.clone();
        for slot in draft.iter().flatten() {
            nodes.take(&self.classes, &slot.spot, self.way(slot.way).limit);
        }
        nodes
    }

    /// Seconds lost before a job works on in that slot.
    pub(super) fn lost(&self, at: usize, slot: &Slot) -> f64 {
        let item = &self.items[at];
        if self.stays(at, slot) {
            return if item.runs { 0.0 } else { item.load };
        }
        let wake = slot.spot.iter().map(|(n, _)| self.wake(*n)).fold(0.0, f64::max);
        wake + if item.runs { item.restart } else { item.load }
    }

    /// Seconds until the node can start a job.
    fn wake(&self, node: u32) -> f64 {
        self.classes[usize::from(self.empty.class_of(node))].wake
    }

    pub(super) fn same_but_limit(&self, a: u32, b: u32) -> bool {
        let (a, b) = (self.way(a), self.way(b));
        a.shape == b.shape && a.batch == b.batch && a.nodes == b.nodes
    }
}
