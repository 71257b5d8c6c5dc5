//! The generations.

use super::genome::Genome;
use super::problem::Problem;
use super::room::reorder;
use super::score::score;
use super::{Counted, OnesOptions};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// The most jobs and nodes looked at in one plan: on a large cluster there are fewer generations,
/// but always one.
const MOST_WORK: usize = 200_000;

/// Which part of the jobs that idle GPUs go to start at the knee of their curve, and not in their
/// most frugal way.
const WIDE: [f64; 3] = [0.0, 0.5, 1.0];

/// A schedule and its score.
#[derive(Clone, Debug)]
struct Individual {
    genome: Genome,
    score: f64,
}

/// The best schedule of all generations.
pub(super) fn evolve(problem: &Problem<'_, '_>, options: &OnesOptions) -> Genome {
    let nodes = problem.view.state.cluster().nodes().len();
    let size = options.population.max(2);
    let generations = MOST_WORK / (size * (problem.items.len() + nodes)).max(1);
    let generations = options.generations.min(generations.max(1));
    let random = Pcg64Mcg::seed_from_u64(options.seed);
    let mut nursery = Nursery { problem, counted: options.counted, random };
    let mut population = nursery.first(size);
    for _ in 0..generations {
        let parents = population.len();
        for _ in 0..size {
            let mother = nursery.random.random_range(0..parents);
            let father = nursery.random.random_range(0..parents);
            let mut child =
                population[mother].genome.cross(&population[father].genome, &mut nursery.random);
            if nursery.random.random_bool(0.5) {
                child.mutate(&mut nursery.random);
            }
            population.push(nursery.raise(child, None));
        }
        select(&mut population, size);
    }
    population.swap_remove(0).genome
}

/// Where schedules come from.
struct Nursery<'p, 'v, 'a> {
    problem: &'p Problem<'v, 'a>,
    counted: Counted,
    random: Pcg64Mcg,
}

impl Nursery<'_, '_, '_> {
    /// What runs now with idle GPUs filled, everything anew, and disturbed copies of both.
    fn first(&mut self, size: usize) -> Vec<Individual> {
        let mut population = Vec::with_capacity(2 * size);
        for start in [Genome::refreshed(self.problem), Genome::waiting(self.problem.items.len())] {
            for wide in WIDE {
                population.push(self.raise(start.clone(), Some(wide)));
            }
        }
        let undisturbed = population.len();
        for k in undisturbed..size {
            let mut genome = population[k % undisturbed].genome.clone();
            genome.mutate(&mut self.random);
            population.push(self.raise(genome, None));
        }
        select(&mut population, size);
        population
    }

    /// Fills idle GPUs and puts jobs in order; not by chance if it is said how wide jobs start.
    fn raise(&mut self, mut genome: Genome, wide: Option<f64>) -> Individual {
        match self.counted {
            Counted::Running => genome.fill(self.problem),
            Counted::Waiting => {
                let any = WIDE[self.random.random_range(0..WIDE.len())];
                let (chance, wide) = (wide.is_none(), wide.unwrap_or(any));
                genome.fill_by_gain(self.problem, &mut self.random, chance, wide);
            }
        }
        reorder(self.problem, &mut genome);
        let score = score(self.problem, &genome, self.counted);
        Individual { genome, score }
    }
}

/// The best live on, each once.
fn select(population: &mut Vec<Individual>, size: usize) {
    population.sort_by(|a, b| a.score.total_cmp(&b.score));
    population.dedup_by(|a, b| a.genome == b.genome);
    population.truncate(size);
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Bench, random};
    use super::*;

    #[test]
    fn the_best_live_on_each_once() {
        let individual = |ways: usize, score| Individual { genome: Genome::waiting(ways), score };
        let mut population =
            vec![individual(1, 3.0), individual(2, 1.0), individual(2, 1.0), individual(3, 2.0)];
        select(&mut population, 2);
        assert_eq!(population.iter().map(|i| i.score).collect::<Vec<_>>(), [1.0, 2.0]);
    }

    #[test]
    fn more_generations_are_never_worse_and_a_seed_gives_one_result() {
        let bench = Bench::new(3, 4, &[600.0, 310.0, 900.0, 120.0, 60.0, 2000.0, 777.0, 50.0]);
        bench.with(|problem| {
            for counted in [Counted::Running, Counted::Waiting] {
                let after = |generations| {
                    evolve(problem, &OnesOptions { generations, population: 6, seed: 3, counted })
                };
                assert_eq!(after(5), after(5));
                let score = |genome: &Genome| score(problem, genome, counted);
                let scores = [1, 4, 16].map(|generations| score(&after(generations)));
                assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
                let mut nursery = Nursery { problem, counted, random: random(3) };
                assert!(scores[2] <= nursery.first(6)[0].score);
            }
        });
    }
}
