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
const MOST_COMPETITORS: usize = 16;
/// After so many competitions in a row that nobody won, GPUs stay idle.
const MOST_LOST: usize = 8;
/// A job steps up by at most so many of its ways at once.
const LARGEST_STEP: usize = 4;

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

    /// Gives idle GPUs away, as published: to the shortest job first, and to each as many as bring
    /// its end nearer.
    pub(super) fn fill(&mut self, problem: &Problem<'_, '_>) {
        let mut free = self.free(problem);
        for (at, item) in problem.items.iter().enumerate() {
            let has = self.get(at).map(|way| &item.ways[way]);
            let more = |way: &Way| {
                let gpus = i64::from(way.shape.gpus);
                has.map_or(gpus, |has| gpus - i64::from(has.shape.gpus))
            };
            let sooner = |(_, way): &(usize, &Way)| {
                let grows = |has: &Way| {
                    way.shape.gpu_type == has.shape.gpu_type && more(way) > 0 && way.time < has.time
                };
                more(way) <= free[way.shape.gpu_type.index()] && has.is_none_or(grows)
            };
            let ways = item.ways.iter().enumerate().filter(sooner);
            if let Some((best, way)) = ways.min_by(|a, b| a.1.time.total_cmp(&b.1.time)) {
                free[way.shape.gpu_type.index()] -= more(way);
                self.set(at, Some(best));
            }
        }
    }

    /// Gives idle GPUs away: to waiting jobs in their most frugal way, shortest first, then one
    /// step at a time to the job that gains most by it. By `chance` some waiting jobs are passed
    /// over, and only a few compete for each step.
    pub(super) fn fill_by_gain(
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

    /// One of the next larger ways of a running job on the same GPU type that fits, and what the
    /// score falls by per GPU, if it falls: the one by which it falls most.
    fn step_up(
        &self,
        problem: &Problem<'_, '_>,
        at: usize,
        free: &[i64],
        delay: f64,
    ) -> Option<(f64, usize)> {
        let ways = &problem.items[at].ways;
        let old = self.get(at)?;
        let now = &ways[old];
        let value = |way: &Way| way.time + delay * way.gpu_time();
        let idle = free[now.shape.gpu_type.index()];
        let before = value(now);
        (old + 1..ways.len())
            .take(LARGEST_STEP)
            .take_while(|at| ways[*at].shape.gpu_type == now.shape.gpu_type)
            .filter_map(|at| {
                let more = ways[at].shape.gpus - now.shape.gpus;
                let gain = (before - value(&ways[at])) / f64::from(more.max(1));
                (more > 0 && i64::from(more) <= idle && gain > 0.0).then_some((gain, at))
            })
            .max_by(|a, b| a.0.total_cmp(&b.0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Bench, random};
    use super::*;

    #[test]
    fn crossover_takes_each_job_from_one_of_the_parents() {
        let (mother, father) =
            (Genome(vec![1, 2, 0, 3, 4, 1, 0, 5]), Genome(vec![2, 2, 3, 0, 1, 4, 0, 6]));
        let mut seen = [false; 2];
        for seed in 0..20 {
            let child = mother.cross(&father, &mut random(seed));
            for (at, way) in child.0.iter().enumerate() {
                assert!(*way == mother.0[at] || *way == father.0[at]);
                seen[0] |= *way != mother.0[at];
                seen[1] |= *way != father.0[at];
            }
        }
        assert_eq!(seen, [true, true]);
    }

    #[test]
    fn mutation_removes_three_jobs_in_ten_and_adds_none() {
        let mut genome = Genome([1, 0].repeat(5000));
        genome.mutate(&mut random(1));
        let left = genome.0.iter().filter(|way| **way != 0).count();
        assert!((3300..3700).contains(&left), "{left}");
        assert!(genome.0.iter().skip(1).step_by(2).all(|way| *way == 0));
    }

    #[test]
    fn as_published_the_shortest_takes_all_that_helps_it_and_the_next_the_rest() {
        let bench = Bench::new(3, 4, &[600.0, 300.0, 900.0]);
        bench.with(|problem| {
            let gpus = |genome: &Genome| {
                let of = |at: usize| problem.items[at].ways[genome.get(at)?].shape.gpus.into();
                (0..3).map(of).collect::<Vec<Option<u32>>>()
            };
            let mut genome = Genome::waiting(3);
            genome.fill(problem);
            assert_eq!(gpus(&genome), [Some(8), Some(4), None]);
            // Who has some already takes more, and nobody loses any.
            let mut genome = Genome::waiting(3);
            genome.set(2, Some(0));
            genome.set(0, Some(1));
            genome.fill(problem);
            assert_eq!(gpus(&genome), [Some(8), Some(3), Some(1)]);
        });
    }

    #[test]
    fn filling_leaves_no_gpu_idle_while_somebody_can_use_it() {
        let bench = Bench::new(2, 4, &[600.0, 300.0, 900.0]);
        bench.with(|problem| {
            for chance in [true, false] {
                let mut genome = Genome::waiting(3);
                genome.fill_by_gain(problem, &mut random(3), chance, 0.0);
                assert!(genome.free(problem).iter().all(|free| *free == 0), "{genome:?}");
            }
        });
    }

    #[test]
    fn filling_starts_the_shortest_first() {
        let bench = Bench::new(1, 1, &[600.0, 300.0, 900.0]);
        bench.with(|problem| {
            let mut genome = Genome::waiting(3);
            genome.fill_by_gain(problem, &mut random(3), false, 1.0);
            let runs: Vec<u32> = (0..3)
                .filter(|at| genome.get(*at).is_some())
                .map(|at| problem.items[at].id.0)
                .collect();
            assert_eq!(runs, [1]);
        });
    }
}
