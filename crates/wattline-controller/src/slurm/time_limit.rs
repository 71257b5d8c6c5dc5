//! Shapes in which a job ends before SLURM ends it.
//!
//! SLURM counts the time limit anew at each start, so a shape is good if the whole job fits. What is
//! predicted too short would end the job in TIMEOUT: a shape is only taken with some time to spare.
//! Nothing is known of a workload that was never measured, but that its user gave it time enough with
//! the GPUs that he asked for: it gets no fewer.

use std::sync::Arc;
use wattline_core::cluster::Shape;
use wattline_core::job::Job;
use wattline_core::predictor::Prediction;
use wattline_core::units::Seconds;

/// The share of a time limit that a job may be predicted to take: predictions of what was measured a
/// few times are off by up to a fifth. A larger share, and a job is ended just before its own end.
const MOST: f64 = 0.8;

/// Those shapes in which a job is predicted to end in time; if there are none, those with as many
/// GPUs as it asks for.
pub(super) fn in_time(
    job: &Job,
    shapes: &Arc<[Shape]>,
    limit: Seconds,
    predict: impl Fn(Shape) -> Option<Prediction>,
) -> Arc<[Shape]> {
    let ends = |shape: &Shape| {
        predict(*shape).is_some_and(|predicted| {
            predicted.rate.0 > 0.0 && job.work / predicted.rate + job.restart.load <= limit * MOST
        })
    };
    let in_time: Arc<[Shape]> = shapes.iter().copied().filter(ends).collect();
    if in_time.is_empty() { no_fewer(job, shapes) } else { in_time }
}

/// Those shapes with no fewer GPUs than a job asks for.
pub(super) fn no_fewer(job: &Job, shapes: &Arc<[Shape]>) -> Arc<[Shape]> {
    let enough = |shape: &Shape| shape.gpus >= job.gpus.requested;
    let enough: Arc<[Shape]> = shapes.iter().copied().filter(enough).collect();
    if enough.is_empty() { Arc::clone(shapes) } else { enough }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use wattline_core::Timestamp;
    use wattline_core::ids::{GpuTypeId, UserId, WorkloadId};
    use wattline_core::job::{Bounds, Elasticity, RestartCost, Work, WorkRate};
    use wattline_core::units::{EurosPerSecond, Watts};

    fn job() -> Job {
        Job {
            name: "job".into(),
            user: UserId(1),
            workload: WorkloadId(1),
            work: Work(4000.0),
            submit: Timestamp::ZERO,
            deadline: None,
            weight: EurosPerSecond::new(1.0),
            elasticity: Elasticity::Malleable,
            gpus: Bounds { min: 1, max: 4, requested: 2 },
            batch: Bounds::exactly(64),
            restart: RestartCost::default(),
            preemptible: true,
            shapes: None,
            nodes: None,
        }
    }

    fn linear(shape: Shape) -> Option<Prediction> {
        Some(Prediction {
            rate: WorkRate(10.0 * f64::from(shape.gpus)),
            power: Watts::new(300.0),
            time_low: 1.0,
            time_high: 1.0,
            power_within: 1.0,
            energy_within: 1.0,
            measurements: 3,
        })
    }

    fn counts(shapes: &Arc<[Shape]>) -> Vec<u32> {
        shapes.iter().map(|shape| shape.gpus).collect()
    }

    #[test]
    fn an_elastic_job_gets_no_shape_in_which_it_would_run_into_its_time_limit() {
        let shapes: Arc<[Shape]> =
            (1..=4).map(|gpus| Shape { gpu_type: GpuTypeId(0), gpus }).collect();
        // It takes 400, 200, 133 and 100 s.
        let of = |limit| counts(&in_time(&job(), &shapes, Seconds::new(limit), linear));
        assert_eq!(of(1000.0), [1, 2, 3, 4]);
        assert_eq!(of(260.0), [2, 3, 4]);
        assert_eq!(of(240.0), [3, 4], "with a fifth to spare");
        assert_eq!(of(60.0), [2, 3, 4], "none is good: what it asks for, or more");
        assert_eq!(counts(&no_fewer(&job(), &shapes)), [2, 3, 4], "nothing is known of it");
        let loads =
            Job { restart: RestartCost { save: Seconds::ZERO, load: Seconds::new(50.0) }, ..job() };
        assert_eq!(counts(&in_time(&loads, &shapes, Seconds::new(260.0), linear)), [3, 4]);
    }
}
