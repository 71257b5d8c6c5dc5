//! How good a schedule is: lower is better.

use super::Counted;
use super::genome::Genome;
use super::problem::Problem;

pub(super) fn score(problem: &Problem<'_, '_>, genome: &Genome, counted: Counted) -> f64 {
    match counted {
        Counted::Running => running(problem, genome),
        Counted::Waiting => waiting(problem, genome),
    }
}

/// Remaining utilisation, as published: the GPU-time to their ends of all jobs that run.
fn running(problem: &Problem<'_, '_>, genome: &Genome) -> f64 {
    let ways = problem.items.iter().zip(genome.ways());
    ways.filter_map(|(item, way)| Some(item.ways[way?].gpu_time())).sum()
}

/// Seconds, summed over all jobs: those that run count their own time, those that wait their own
/// and the GPU-time of everything before them, spread over the cluster.
fn waiting(problem: &Problem<'_, '_>, genome: &Genome) -> f64 {
    let (mut sum, mut ahead) = (0.0, 0.0);
    for (item, way) in problem.items.iter().zip(genome.ways()) {
        if let Some(way) = way {
            let way = &item.ways[way];
            sum += way.time;
            ahead += way.gpu_time();
        }
    }
    for (item, way) in problem.items.iter().zip(genome.ways()) {
        if way.is_none() {
            sum += item.wait_time + ahead / problem.gpus;
            ahead += item.wait_gpu_time;
        }
    }
    sum + problem.left_out.len() as f64 * ahead / problem.gpus
}

#[cfg(test)]
mod tests {
    use super::super::tests::Bench;
    use super::*;

    #[test]
    fn as_published_only_jobs_that_run_count_with_the_gpus_they_hold() {
        let bench = Bench::new(1, 4, &[600.0, 300.0]);
        bench.with(|problem| {
            let mut genome = Genome::waiting(2);
            assert!(score(problem, &genome, Counted::Running) == 0.0);
            genome.set(0, Some(1));
            let way = &problem.items[0].ways[1];
            assert_eq!(way.shape.gpus, 2);
            let expected = 2.0 * way.time;
            assert!((score(problem, &genome, Counted::Running) - expected).abs() < 1e-9);
        });
    }

    #[test]
    fn a_short_job_before_a_long_one_is_better() {
        let bench = Bench::new(1, 1, &[600.0, 300.0]);
        bench.with(|problem| {
            assert_eq!(problem.items.iter().map(|item| item.id.0).collect::<Vec<_>>(), [1, 0]);
            let with = |runs: Option<usize>| {
                let mut genome = Genome::waiting(2);
                if let Some(at) = runs {
                    genome.set(at, Some(0));
                }
                score(problem, &genome, Counted::Waiting)
            };
            let (short, long) = (problem.items[0].ways[0].time, problem.items[1].ways[0].time);
            assert!(short > 0.0 && (long / short - 2.0).abs() < 1e-9);
            assert!((with(Some(0)) - (short + short + long)).abs() < 1e-9);
            assert!((with(Some(1)) - (long + long + short)).abs() < 1e-9);
        });
    }
}
