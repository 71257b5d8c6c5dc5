//! Schedules as they are bred: which way each job runs, if it runs.

use super::problem::{Problem, Way};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

/// By item: 0 if it waits, else one more than the number of its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Genome(Vec<u16>);

/// The authors' chance that a job is removed.
const REMOVED: f64 = 0.3;
/// The chance that a waiting job is passed over when idle GPUs are filled.
const PASSED_OVER: f64 = 0.1;
/// So many jobs compete for idle GPUs at a time.
const COMPETITORS: usize = 3;
/// Or, without chance, so many.
const MOST_COMPETITORS: usize = 64;
/// After so many competitions in a row that nobody won, GPUs stay idle.
const MOST_LOST: usize = 8;

impl Genome {
    /// Everybody waits.
    pub(super) fn waiting(items: usize) -> Self {
        Self(vec![0; items])
    }

    /// What runs now: finished jobs are gone, and what is above its limit waits.
    pub(super) fn refreshed(problem: &Problem<'_, '_>) -> Self {
        let mut genome = Self::waiting(problem.items.len());
        for (at, item) in problem.items.iter().enumerate() {
            genome.set(at, item.present.as_ref().map(|(way, _)| *way));
        }
        genome
    }

    pub(super) fn ways(&self) -> impl Iterator<Item = Option<usize>> + '_ {
        self.0.iter().map(|way| usize::from(*way).checked_sub(1))
    }

    pub(super) fn get(&self, item: usize) -> Option<usize> {
        usize::from(self.0[item]).checked_sub(1)
    }

    pub(super) fn set(&mut self, item: usize, way: Option<usize>) {
        self.0[item] = way.map_or(0, |way| way as u16 + 1);
    }

    /// Uniform crossover: each job as in one parent or the other.
    pub(super) fn cross(&self, other: &Self, random: &mut Pcg64Mcg) -> Self {
        let pairs = self.0.iter().zip(&other.0);
        Self(pairs.map(|(a, b)| if random.random_bool(0.5) { *a } else { *b }).collect())
    }

    /// Removes each running job with the same chance.
    pub(super) fn mutate(&mut self, random: &mut Pcg64Mcg) {
        for way in self.0.iter_mut().filter(|way| **way != 0) {
            if random.random_bool(REMOVED) {
                *way = 0;
            }
        }
    }

    /// Gives idle GPUs away: to waiting jobs in their most frugal way, shortest first, then one
    /// step at a time to the job that gains most by it. By `chance` some waiting jobs are passed
    /// over, and only a few compete for each step.
    pub(super) fn fill(
        &mut self,
        problem: &Problem<'_, '_>,
        random: &mut Pcg64Mcg,
        chance: bool,
        wide: f64,
    ) {
        let mut free = self.free(problem);
        let mut waiting = problem.left_out.len();
        for (at, item) in problem.items.iter().enumerate() {
            if self.0[at] != 0 {
                continue;
            }
            let fits = |way: &usize| {
                let shape = item.ways[*way].shape;
                i64::from(shape.gpus) <= free[shape.gpu_type.index()]
            };
            let wanted = if random.random_bool(wide) { item.knee } else { item.frugal };
            let way = (0..=wanted).rev().chain(0..item.ways.len()).find(fits);
            match way {
                Some(way) if !(chance && random.random_bool(PASSED_OVER)) => {
                    let shape = item.ways[way].shape;
                    free[shape.gpu_type.index()] -= i64::from(shape.gpus);
                    self.set(at, Some(way));
                }
                _ => waiting += 1,
            }
        }
        let competitors = if chance { COMPETITORS } else { MOST_COMPETITORS };
        self.grow(problem, random, &mut free, waiting, competitors);
    }

    /// GPUs that nobody has, by type; below 0 where there are more takers than GPUs.
    fn free(&self, problem: &Problem<'_, '_>) -> Vec<i64> {
        let mut free: Vec<i64> = problem.gpus_of.iter().map(|gpus| i64::from(*gpus)).collect();
        for (item, way) in problem.items.iter().zip(self.ways()) {
            if let Some(way) = way {
                let shape = item.ways[way].shape;
                free[shape.gpu_type.index()] -= i64::from(shape.gpus);
            }
        }
        free
    }

    /// Steps up, while the score falls by it.
    fn grow(
        &mut self,
        problem: &Problem<'_, '_>,
        random: &mut Pcg64Mcg,
        free: &mut [i64],
        waiting: usize,
        competitors: usize,
    ) {
        let running: Vec<usize> = (0..self.0.len()).filter(|at| self.0[*at] != 0).collect();
        if running.is_empty() {
            return;
        }
        // What a GPU-second delays those who wait.
        let delay = waiting as f64 / problem.gpus;
        let mut lost = 0;
        while lost < MOST_LOST && free.iter().any(|gpus| *gpus > 0) {
            let first = random.random_range(0..running.len());
            let mut best: Option<(f64, usize, usize)> = None;
            for k in 0..competitors.min(running.len()) {
                // A few at random, or all of them in turn.
                let k = if competitors == COMPETITORS && k > 0 {
                    random.random_range(0..running.len())
                } else {
                    (first + k) % running.len()
                };
                let Some((gain, way)) = self.step_up(problem, running[k], free, delay) else {
                    continue;
                };
                if best.is_none_or(|(most, ..)| gain > most) {
                    best = Some((gain, running[k], way));
                }
            }
            let Some((_, at, way)) = best else {
                lost += if competitors == COMPETITORS { 1 } else { MOST_LOST };
                continue;
            };
            lost = 0;
            let ways = &problem.items[at].ways;
            let old = self.get(at).map_or(0, |way| ways[way].shape.gpus);
            let shape = ways[way].shape;
            free[shape.gpu_type.index()] -= i64::from(shape.gpus) - i64::from(old);
            self.set(at, Some(way));
        }
    }

    /// The next larger way of a running job on the same GPU type that fits, and what the score
    /// falls by per GPU, if it falls.
    fn step_up(
        &self,
        problem: &Problem<'_, '_>,
        at: usize,
        free: &[i64],
        delay: f64,
    ) -> Option<(f64, usize)> {
        let ways = &problem.items[at].ways;
        let now = &ways[self.get(at)?];
        let value = |way: &Way| way.time + delay * way.gpu_time();
        let larger = ways.iter().enumerate().filter(|(_, way)| {
            way.shape.gpu_type == now.shape.gpu_type && way.shape.gpus > now.shape.gpus
        });
        let idle = free[now.shape.gpu_type.index()];
        larger
            .map(|(at, way)| (at, way, way.shape.gpus - now.shape.gpus))
            .filter(|(_, _, more)| i64::from(*more) <= idle)
            .map(|(at, way, more)| ((value(now) - value(way)) / f64::from(more), at))
            .filter(|(gain, _)| *gain > 0.0)
            .max_by(|a, b| a.0.total_cmp(&b.0))
    }
}
