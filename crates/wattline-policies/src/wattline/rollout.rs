//! A plan rolled forward to every job's own end.
//!
//! What a plan costs is known when the last job is done: until then the rule decides who comes
//! next, jobs take as long as predicted, and nobody new arrives. No job is moved on the way; what
//! moving gains is seen when it is planned.

use super::model::{Problem, Slot};
use super::nodes::Nodes;
use super::rule::{Moment, Rule};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Who runs where; by item.
pub(super) type Draft = Vec<Option<Slot>>;

/// Orders floats that are numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Time(f64);
impl Eq for Time {}
impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// What a rollout comes to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) cost: f64,
    /// Billed joules.
    pub(super) energy: f64,
}

/// Working memory of rollouts.
pub(super) struct Roller<'p, 'v, 'a> {
    pub(super) problem: &'p Problem<'v, 'a>,
    nodes: Nodes,
    slots: Draft,
    ends: BinaryHeap<Reverse<(Time, u32)>>,
    waiting: Vec<u32>,
    keys: Vec<(f64, u32)>,
    pub(super) moment: Moment,
    /// By GPU type: busy GPUs, and the sum of their ends.
    busy: Vec<(f64, f64)>,
    /// Jobs looked at so far: the work that is bounded.
    pub(super) work: u64,
}

/// The order is made anew this often over a rollout.
const SORTS: usize = 12;
/// After so many jobs that do not fit, nobody else is tried at that moment.
const TRIES: usize = 6;

impl<'p, 'v, 'a> Roller<'p, 'v, 'a> {
    pub(super) fn new(problem: &'p Problem<'v, 'a>) -> Self {
        let types = problem.gpus_of.len();
        Self {
            problem,
            nodes: problem.empty.clone(),
            slots: vec![None; problem.items.len()],
            ends: BinaryHeap::new(),
            waiting: Vec::new(),
            keys: Vec::new(),
            moment: Moment {
                gpu_price: vec![0.0; types],
                freed: vec![0.0; types],
                ahead: vec![0.0; types],
                ..Moment::default()
            },
            busy: vec![(0.0, 0.0); types],
            work: 0,
        }
    }

    /// Seconds from now to the end of a job that the draft runs so.
    pub(super) fn ends_at(&self, at: usize, slot: &Slot) -> f64 {
        let problem = self.problem;
        let item = &problem.items[at];
        let way = problem.way(slot.way);
        item.work / way.rate + problem.lost(at, slot)
    }

    /// What the draft costs in the end.
    pub(super) fn evaluate(&mut self, draft: &Draft, rule: &Rule) -> Outcome {
        let problem = self.problem;
        self.nodes.clone_from(&problem.empty);
        self.slots.clone_from(draft);
        self.ends.clear();
        self.waiting.clear();
        self.busy.iter_mut().for_each(|b| *b = (0.0, 0.0));
        let mut outcome = Outcome::default();
        let mut own = 0.0;
        for (at, slot) in draft.iter().enumerate() {
            match slot {
                Some(slot) => {
                    let way = problem.way(slot.way);
                    self.nodes.take(&problem.classes, &slot.spot, way.limit);
                    let lost = problem.lost(at, slot);
                    own += self.start(at, 0.0, lost, &mut outcome);
                }
                None => self.waiting.push(at as u32),
            }
        }
        let mut time = 0.0;
        let mut since_sort = usize::MAX;
        self.moment.time = 0.0;
        while let Some(Reverse((Time(end), _))) = self.ends.peek().copied() {
            let watts = self.nodes.billed + own;
            outcome.cost += watts * problem.prices.watt(time, end);
            outcome.energy += watts * (end - time);
            time = end;
            while let Some(Reverse((Time(next), at))) = self.ends.peek().copied()
                && next <= end
            {
                self.ends.pop();
                own -= self.leave(at as usize, end);
            }
            if self.waiting.is_empty() {
                continue;
            }
            self.moment.time = time;
            since_sort = since_sort.saturating_add(1);
            if since_sort > self.waiting.len() / SORTS {
                since_sort = 0;
                let mut waiting = std::mem::take(&mut self.waiting);
                let mut keys = std::mem::take(&mut self.keys);
                problem.sort(rule, &mut self.moment, &mut waiting, &mut keys, |_| true);
                self.work += waiting.len() as u64;
                self.waiting = waiting;
                self.keys = keys;
            }
            own += self.dispatch(&mut outcome);
        }
        // Nothing runs, and nothing that waits can start: it never will.
        for at in &self.waiting {
            outcome.cost += problem.items[*at as usize].weight * 1e9 + 1e3;
        }
        outcome
    }

    /// Starts whoever fits; returns the watts its GPUs draw.
    fn dispatch(&mut self, outcome: &mut Outcome) -> f64 {
        let problem = self.problem;
        self.look_at_ends();
        let mut own = 0.0;
        let mut tried = 0;
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|at| {
            if tried >= TRIES || self.nodes.free_of.iter().all(|free| *free == 0) {
                return true;
            }
            self.work += 1;
            let Some(offer) = problem.offer(*at as usize, &self.nodes, &self.moment) else {
                tried += 1;
                problem.stand_in_line(*at as usize, &mut self.moment);
                return true;
            };
            let way = problem.way(offer.way);
            let item = &problem.items[*at as usize];
            self.nodes.take(&problem.classes, &offer.spot, way.limit);
            self.slots[*at as usize] = Some(Slot { way: offer.way, spot: offer.spot });
            own += self.start(*at as usize, self.moment.time, item.load, outcome);
            false
        });
        self.waiting = waiting;
        own
    }

    /// How fast GPUs become free.
    fn look_at_ends(&mut self) {
        let moment = &mut self.moment;
        for (gpu_type, (gpus, ends)) in self.busy.iter().enumerate() {
            let left = (ends - gpus * moment.time) / gpus.max(1.0);
            moment.freed[gpu_type] = if *gpus > 0.0 { gpus / left.max(1.0) } else { 1e-9 };
            moment.ahead[gpu_type] = 0.0;
        }
    }

    fn start(&mut self, at: usize, now: f64, lost: f64, outcome: &mut Outcome) -> f64 {
        let problem = self.problem;
        let Some(slot) = &self.slots[at] else { return 0.0 };
        let (item, way) = (&problem.items[at], problem.way(slot.way));
        let time = item.work / way.rate + lost;
        outcome.cost += problem.late(item, way, now, time);
        self.ends.push(Reverse((Time(now + time), at as u32)));
        let busy = &mut self.busy[way.shape.gpu_type.index()];
        *busy = (busy.0 + way.gpus(), busy.1 + way.gpus() * (now + time));
        problem.own_watts(slot)
    }

    fn leave(&mut self, at: usize, end: f64) -> f64 {
        let problem = self.problem;
        let Some(slot) = self.slots[at].take() else { return 0.0 };
        let way = problem.way(slot.way);
        self.nodes.give_back(&problem.classes, &slot.spot, way.limit);
        let busy = &mut self.busy[way.shape.gpu_type.index()];
        *busy = (busy.0 - way.gpus(), busy.1 - way.gpus() * end);
        problem.own_watts(&slot)
    }
}

impl Problem<'_, '_> {
    /// Billed watts that a job's GPUs draw, where that is counted apart from their node.
    pub(super) fn own_watts(&self, slot: &Slot) -> f64 {
        let way = self.way(slot.way);
        let pue = |node: u32| self.classes[usize::from(self.empty.class_of(node))].pue;
        slot.spot.iter().map(|(n, g)| pue(*n) * way.power * f64::from(*g)).sum()
    }

    /// Seconds lost before a job works on in that slot.
    pub(super) fn lost(&self, at: usize, slot: &Slot) -> f64 {
        let item = &self.items[at];
        if let Some(now) = &item.now
            && now.spot == slot.spot
            && self.same_but_limit(now.way, slot.way)
        {
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
