//! The generations.

use super::OnesOptions;
use super::genome::Genome;
use super::problem::Problem;
use super::room::reorder;
use super::score::score;
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

fn bear(problem: &Problem<'_, '_>, mut genome: Genome) -> Individual {
    reorder(problem, &mut genome);
    let score = score(problem, &genome);
    Individual { genome, score }
}

/// The best schedule of all generations.
pub(super) fn evolve(problem: &Problem<'_, '_>, options: &OnesOptions) -> Genome {
    let mut random = Pcg64Mcg::seed_from_u64(options.seed);
    let nodes = problem.view.state.cluster().nodes().len();
    let size = options.population.max(2);
    let generations = MOST_WORK / (size * (problem.items.len() + nodes)).max(1);
    let generations = options.generations.min(generations.max(1));
    let mut population = first(problem, size, &mut random);
    for _ in 0..generations {
        let parents = population.len();
        for _ in 0..size {
            let mother = random.random_range(0..parents);
            let father = random.random_range(0..parents);
            let mut child =
                population[mother].genome.cross(&population[father].genome, &mut random);
            if random.random_bool(0.5) {
                child.mutate(&mut random);
            }
            let wide = WIDE[random.random_range(0..WIDE.len())];
            child.fill(problem, &mut random, true, wide);
            population.push(bear(problem, child));
        }
        select(&mut population, size);
    }
    population.swap_remove(0).genome
}

/// What runs now with idle GPUs filled, everything anew, and disturbed copies of both.
fn first(problem: &Problem<'_, '_>, size: usize, random: &mut Pcg64Mcg) -> Vec<Individual> {
    let mut population = Vec::with_capacity(2 * size);
    for start in [Genome::refreshed(problem), Genome::waiting(problem.items.len())] {
        for wide in WIDE {
            let mut genome = start.clone();
            genome.fill(problem, random, false, wide);
            population.push(bear(problem, genome));
        }
    }
    for k in population.len()..size {
        let mut genome = population[k % (2 * WIDE.len())].genome.clone();
        genome.mutate(random);
        genome.fill(problem, random, true, WIDE[k % WIDE.len()]);
        population.push(bear(problem, genome));
    }
    select(&mut population, size);
    population
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
            let after = |generations| {
                let options = OnesOptions { generations, population: 6, seed: 3 };
                evolve(problem, &options)
            };
            assert_eq!(after(5), after(5));
            let scores = [1, 4, 16].map(|generations| score(problem, &after(generations)));
            assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
            let first = first(problem, 6, &mut random(3));
            assert!(scores[2] <= first[0].score);
        });
    }
}
