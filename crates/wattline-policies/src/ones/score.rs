//! How good a schedule is: lower is better.

use super::genome::Genome;
use super::problem::Problem;

/// Seconds, summed over all jobs: those that run count their own time, those that wait their own
/// and the GPU-time of everything before them, spread over the cluster.
pub(super) fn score(problem: &Problem<'_, '_>, genome: &Genome) -> f64 {
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
