//! All sets of jobs on one node: the cheapest schedule of each.
//!
//! Schedules are built in the order of starts. What matters for the rest is which jobs are there
//! and when each GPU becomes free, not before the last start; of states that agree in that, the
//! cheapest is kept. See [`super`] for why these starts are enough.

use super::{ExactError, MOST_GPUS, Placed, SmallNode, SmallProblem, SmallWay};
use std::collections::HashMap;

/// Free times of the GPUs, rising; beyond the node's last GPU, `u32::MAX`.
type Free = [u32; MOST_GPUS];

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    set: usize,
    free: Free,
}

#[derive(Clone, Copy)]
struct State {
    key: Key,
    cost: f64,
    /// The state before and what was added to it: job, way and start.
    before: u32,
    placed: (u8, u8, u32),
}

pub(super) struct NodeSearch<'a> {
    pub(super) problem: &'a SmallProblem,
    pub(super) node: &'a SmallNode,
    /// What the jobs outside each set cost at the least.
    pub(super) rest: &'a [f64],
    /// Sets that cost more than this with the rest are of no interest.
    pub(super) cutoff: f64,
}

/// The cheapest schedule of each set, where it is of interest.
pub(super) struct Row {
    states: Vec<State>,
    best: Vec<Option<u32>>,
}

impl Row {
    pub(super) fn cost(&self, set: usize) -> f64 {
        self.best[set].map_or(f64::INFINITY, |at| self.states[at as usize].cost)
    }

    pub(super) fn states(&self) -> usize {
        self.states.len()
    }

    pub(super) fn schedule(&self, set: usize, node: usize) -> Vec<Placed> {
        let mut placed = Vec::new();
        let mut at = self.best[set];
        while let Some(state) = at.map(|at| self.states[at as usize])
            && state.key.set != 0
        {
            let (job, way, start) = state.placed;
            placed.push(Placed { job: job.into(), way: way.into(), node, start });
            at = Some(state.before);
        }
        placed
    }
}

impl NodeSearch<'_> {
    pub(super) fn run(&self, most: usize) -> Result<Row, ExactError> {
        let sets = self.rest.len();
        let mut free = [u32::MAX; MOST_GPUS];
        free[..usize::from(self.node.gpus)].fill(0);
        let first = State { key: Key { set: 0, free }, cost: 0.0, before: 0, placed: (0, 0, 0) };
        let mut states = vec![first];
        let mut by_set: Vec<Vec<u32>> = vec![Vec::new(); sets];
        by_set[0].push(0);
        let mut known: HashMap<Key, u32> = HashMap::new();
        let mut best = vec![None; sets];
        // Every set comes after those it is made from.
        for set in 0..sets {
            let here = self.undominated(&mut by_set[set], &states);
            best[set] = here
                .iter()
                .copied()
                .min_by(|a, b| states[*a as usize].cost.total_cmp(&states[*b as usize].cost));
            for at in here {
                self.expand(at, &mut states, &mut known, &mut by_set);
                if states.len() > most {
                    return Err(ExactError::TooHard(most));
                }
            }
        }
        Ok(Row { states, best })
    }

    /// Adds every job that is not there yet, in every way, at every start worth trying.
    fn expand(
        &self,
        at: u32,
        states: &mut Vec<State>,
        known: &mut HashMap<Key, u32>,
        by_set: &mut [Vec<u32>],
    ) {
        let state = states[at as usize];
        let size = usize::from(self.node.gpus);
        let Key { set, free } = state.key;
        let busy_until = free[size - 1];
        let saved = self.company(&free);
        for (job, small) in self.problem.jobs.iter().enumerate() {
            if set >> job & 1 == 1 {
                continue;
            }
            let with = set | 1 << job;
            for (number, way) in small.ways.iter().enumerate() {
                let gpus = usize::from(way.gpus);
                if way.kind != self.node.kind || gpus > size || gpus == 0 {
                    continue;
                }
                let soonest = free[gpus - 1].max(small.release);
                let latest = if self.node.is_additive() {
                    soonest
                } else {
                    self.latest(set, busy_until).max(soonest)
                };
                for start in soonest..=latest {
                    let late = self.problem.late(job, start + way.time);
                    if state.cost - saved + late + self.rest[with] > self.cutoff {
                        break;
                    }
                    let cost = state.cost + late + self.energy(&free, start, *way);
                    let key = Key { set: with, free: self.taken(&free, start, *way) };
                    if cost - self.company(&key.free) + self.rest[with] > self.cutoff {
                        continue;
                    }
                    let new =
                        State { key, cost, before: at, placed: (job as u8, number as u8, start) };
                    match known.get(&key) {
                        Some(old) if states[*old as usize].cost <= cost => {}
                        Some(old) => states[*old as usize] = new,
                        None => {
                            known.insert(key, states.len() as u32);
                            by_set[with].push(states.len() as u32);
                            states.push(new);
                        }
                    }
                }
            }
        }
    }

    /// No start after all is over is worth trying, unless a job is not there before.
    fn latest(&self, set: usize, busy_until: u32) -> u32 {
        let missing = self.problem.jobs.iter().enumerate().filter(|(job, _)| set >> job & 1 == 0);
        missing.map(|(_, job)| job.release).fold(busy_until, u32::max)
    }

    /// What a run adds to the node's energy, beside those that started before it.
    fn energy(&self, free: &Free, start: u32, way: SmallWay) -> f64 {
        let size = usize::from(self.node.gpus);
        let own = usize::from(way.gpus);
        let end = start + way.time;
        let mut watts_units = 0.0;
        let mut now = start;
        while now < end {
            let others = free[..size].iter().filter(|until| **until > now).count();
            let next =
                free[..size].iter().copied().find(|until| *until > now).unwrap_or(end).min(end);
            let more = self.node.watts(others + own) - self.node.watts(others);
            watts_units += more * f64::from(next - now);
            now = next;
        }
        self.problem.euros_per_unit(watts_units)
    }

    /// The most that company to come can take off what is counted for the runs so far: where GPUs
    /// are still free, each busy one stands for at least the least share it can have of the node.
    /// Jobs to come are counted with their own least shares, so that this much less the runs so far
    /// and all the rest together are never more than what they will cost.
    fn company(&self, free: &Free) -> f64 {
        let size = usize::from(self.node.gpus);
        let mut watts_units = 0.0;
        for at in 1..size {
            // GPUs from `at` on are busy between these two.
            let (from, to) = (free[at - 1], free[at]);
            let busy = size - at;
            let least =
                (busy..=size).map(|k| self.node.watts(k) / k as f64).fold(f64::INFINITY, f64::min);
            let more = self.node.watts(busy) - least * busy as f64;
            watts_units += more * f64::from(to - from);
        }
        self.problem.euros_per_unit(watts_units)
    }

    /// Free times after a run was added. GPUs that are free at its start are all alike.
    fn taken(&self, free: &Free, start: u32, way: SmallWay) -> Free {
        let size = usize::from(self.node.gpus);
        let mut new = *free;
        for until in &mut new[..size] {
            *until = (*until).max(start);
        }
        new[..usize::from(way.gpus)].fill(start + way.time);
        new[..size].sort_unstable();
        new
    }

    /// On nodes where neighbours do not matter, a state that is later in everything and no cheaper
    /// than another leads nowhere.
    fn undominated(&self, here: &mut Vec<u32>, states: &[State]) -> Vec<u32> {
        let mut here = std::mem::take(here);
        if !self.node.is_additive() {
            return here;
        }
        here.sort_by(|a, b| states[*a as usize].cost.total_cmp(&states[*b as usize].cost));
        let mut kept: Vec<u32> = Vec::new();
        for at in here {
            let state = &states[at as usize];
            let beaten = kept.iter().any(|other| {
                let other = &states[*other as usize];
                other.key.free.iter().zip(&state.key.free).all(|(a, b)| a <= b)
            });
            if !beaten {
                kept.push(at);
            }
        }
        kept
    }
}
