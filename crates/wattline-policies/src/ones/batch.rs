//! Which batch a job gets on so many GPUs.
//!
//! The publication starts a job on one GPU and doubles its batch limit each time that proved worth
//! it. Growing step by step would cost a restart per step here, and the predictor can say before
//! what a larger batch is worth: so the batch is doubled, from the job's own batch on one GPU, for
//! as long as predicted goodput (samples a second times what a sample is worth) rises. Two of the
//! published rules lower the limit: a start that was rejected halves it, and so does long service,
//! while more GPUs are asked for than there are.
//!
//! The learning rate follows the batch linearly, after a warm-up; the plan's reason says by which
//! factor.

use wattline_core::job::{Elasticity, Job};
use wattline_core::placement::Configuration;
use wattline_core::plan::Reason;
use wattline_core::state::{JobState, Phase};
use wattline_core::time::Timestamp;

/// Goodput must rise by this factor for a doubling to be worth it.
const WORTH: f64 = 1.02;
/// GPU-seconds after which a job is a long one: ten GPU-hours.
const LONG_SERVICE: f64 = 36_000.0;

/// The largest batch a job may have now.
pub(super) fn limit(job: &JobState, now: Timestamp, crowded: bool) -> u32 {
    let bounds = job.job.batch;
    if job.job.elasticity != Elasticity::Adaptive {
        return bounds.requested;
    }
    let starts = matches!(job.phase, Phase::Waiting | Phase::Starting(_));
    let mut halvings = u32::from(starts && job.failed_attempts() > 0);
    let attained = job.attained(now) / LONG_SERVICE;
    if crowded && attained >= 1.0 {
        halvings += 1 + attained.log2() as u32;
    }
    let most = if halvings == 0 { bounds.max } else { bounds.requested >> halvings.min(31) };
    most.clamp(bounds.min, bounds.max)
}

/// The batches worth trying, from the smallest: the one-GPU batch, doubled up to the limit.
fn doublings(job: &Job, limit: u32) -> impl Iterator<Item = u32> {
    let bounds = job.batch;
    let one_gpu = (bounds.requested / job.gpus.requested.max(1)).clamp(1, limit);
    let first = one_gpu.max(bounds.min);
    std::iter::successors(Some(first), |batch| batch.checked_mul(2))
        .take_while(move |batch| *batch <= limit)
}

/// The batch with which goodput is highest, doubling while that is worth it; with its goodput and
/// whatever else `predict` says. `None` where the job cannot run so.
pub(super) fn best<T>(
    job: &Job,
    limit: u32,
    predict: impl Fn(u32) -> Option<(f64, T)>,
) -> Option<(u32, f64, T)> {
    if job.elasticity != Elasticity::Adaptive {
        let (goodput, rest) = predict(job.batch.requested)?;
        return Some((job.batch.requested, goodput, rest));
    }
    let mut best: Option<(u32, f64, T)> = None;
    for batch in doublings(job, limit) {
        let Some((goodput, rest)) = predict(batch) else { continue };
        if best.as_ref().is_some_and(|(_, before, _)| goodput < WORTH * before) {
            break;
        }
        best = Some((batch, goodput, rest));
    }
    best
}

/// Why a job runs as it does.
pub(super) fn reason(job: &Job, new: &Configuration) -> Reason {
    let (from, to) = (job.batch.requested, new.batch);
    if from != to {
        let learning_rate = f64::from(to) / f64::from(from);
        return Reason::BatchScaled { from, to, learning_rate };
    }
    if new.gpus == job.gpus.requested { Reason::AsRequested } else { Reason::LeastGpuTime }
}

#[cfg(test)]
mod tests {
    use super::super::tests::job;
    use super::*;

    #[test]
    fn the_batch_doubles_while_goodput_rises() {
        let job = job(100.0);
        let goodput = |batch: u32| Some((f64::from(batch.min(128)), ()));
        assert_eq!(best(&job, 256, goodput).map(|(batch, ..)| batch), Some(128));
        assert_eq!(best(&job, 64, goodput).map(|(batch, ..)| batch), Some(64));
        let too_small = |batch: u32| (batch >= 64).then_some((1.0, ()));
        assert_eq!(best(&job, 256, too_small).map(|(batch, ..)| batch), Some(64));
        assert!(best(&job, 256, |_| None::<(f64, ())>).is_none());
    }

    #[test]
    fn a_batch_that_is_not_ours_stays() {
        let job = Job { elasticity: Elasticity::Malleable, ..job(100.0) };
        let goodput = |batch: u32| Some((f64::from(batch), ()));
        assert_eq!(best(&job, 64, goodput).map(|(batch, ..)| batch), Some(64));
    }

    #[test]
    fn the_plan_says_how_the_learning_rate_follows() {
        let job = job(100.0);
        let configuration = |gpus, batch| Configuration {
            gpu_type: wattline_core::ids::GpuTypeId(0),
            gpus,
            nodes: 1,
            batch,
            power_limit: wattline_core::units::Watts::new(100.0),
        };
        let scaled = reason(&job, &configuration(4, 256));
        assert_eq!(scaled, Reason::BatchScaled { from: 64, to: 256, learning_rate: 4.0 });
        assert!(scaled.to_string().contains("learning rate times 4, with warm-up"));
        assert_eq!(reason(&job, &configuration(2, 64)), Reason::AsRequested);
        assert_eq!(reason(&job, &configuration(4, 64)), Reason::LeastGpuTime);
    }
}
