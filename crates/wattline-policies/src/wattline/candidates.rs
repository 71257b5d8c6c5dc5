//! Candidates: shape, batch and power limit of a job, with what they take in time and power.
//!
//! A job may have hundreds. Those that another beats in GPUs, time and energy alike are dropped,
//! and what is left of a shape is thinned to its fastest, its most frugal and some between.

use super::Tuning;
use std::collections::BTreeMap;
use std::iter::{once, successors};
use wattline_core::cluster::Shape;
use wattline_core::ids::{MenuId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity};
use wattline_core::placement::Configuration;
use wattline_core::policy::ClusterView;
use wattline_core::state::JobState;

#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Among the candidates of all jobs.
    pub(super) index: u32,
    pub(super) shape: Shape,
    pub(super) nodes: u32,
    pub(super) batch: u32,
    pub(super) limit: f64,
    pub(super) rate: f64,
    /// Predicted power of each GPU in W.
    pub(super) power: f64,
    /// Factors on the predicted time that one and four of five runs stay below.
    pub(super) sooner: f64,
    pub(super) later: f64,
}

impl Candidate {
    pub(super) fn gpu_type(&self) -> usize {
        self.shape.gpu_type.index()
    }

    pub(super) fn same_but_limit(&self, other: &Self) -> bool {
        (self.shape, self.batch, self.nodes) == (other.shape, other.batch, other.nodes)
    }

    pub(super) fn gpus(&self) -> f64 {
        f64::from(self.shape.gpus)
    }

    /// A configuration as a candidate, if it can be predicted.
    pub(super) fn new(
        job: &JobState,
        view: &ClusterView<'_>,
        configuration: Configuration,
        tuning: &Tuning,
    ) -> Option<Self> {
        let prediction = view.predictor.predict(&job.job, &configuration)?;
        let sound = prediction.rate.0.is_finite() && prediction.rate.0 > 0.0;
        let tail = tuning.run_time_tail;
        let (sooner, later) =
            (prediction.time_quantile(tail), prediction.time_quantile(1.0 - tail));
        sound.then_some(Self {
            index: 0,
            shape: configuration.shape(),
            nodes: configuration.nodes,
            batch: configuration.batch,
            limit: configuration.power_limit.get(),
            rate: prediction.rate.0,
            power: prediction.power.get(),
            sooner,
            later,
        })
    }

    fn energy(&self) -> f64 {
        self.power * self.gpus() / self.rate
    }
}

type Key = (WorkloadId, MenuId, bool, [u32; 3], [u32; 3]);

/// The candidates of all jobs, looked up once for jobs that are alike.
pub(super) struct CandidateCache<'t> {
    known: BTreeMap<Key, Vec<Candidate>>,
    /// Whether a power limit is worth choosing: not where all that is counted is time.
    limits: bool,
    tuning: &'t Tuning,
}

impl<'t> CandidateCache<'t> {
    pub(super) fn new(limits: bool, tuning: &'t Tuning) -> Self {
        Self { known: BTreeMap::new(), limits, tuning }
    }

    pub(super) fn of(&mut self, view: &ClusterView<'_>, job: &JobState) -> &[Candidate] {
        let bounds = |b: Bounds| [b.min, b.requested, b.max];
        let adaptive = job.job.elasticity == Elasticity::Adaptive;
        let (gpus, batch) = (bounds(job.job.gpus), bounds(job.job.batch));
        let key = (job.job.workload, job.menu, adaptive, gpus, batch);
        let (limits, tuning) = (self.limits, self.tuning);
        self.known.entry(key).or_insert_with(|| look_up(view, job, (adaptive, limits), tuning))
    }
}

fn look_up(
    view: &ClusterView<'_>,
    job: &JobState,
    (adaptive, limits): (bool, bool),
    tuning: &Tuning,
) -> Vec<Candidate> {
    let cluster = view.state.cluster();
    let batches = if adaptive { batches(job.job.batch) } else { vec![job.job.batch.requested] };
    let mut all = Vec::new();
    for shape in few(view.state.menu(job.menu), job.job.gpus.requested, tuning.shapes_max) {
        let mut of_shape = Vec::new();
        let card = cluster.gpu_type(shape.gpu_type);
        let plain = cluster.plain_configuration(&job.job, shape);
        for batch in &batches {
            for power_limit in card.limits_down() {
                let configuration = Configuration { batch: *batch, power_limit, ..plain };
                of_shape.extend(Candidate::new(job, view, configuration, tuning));
                if !limits {
                    break;
                }
            }
        }
        let lowest = of_shape.iter().copied().min_by(|a, b| a.limit.total_cmp(&b.limit));
        thin(&mut of_shape, tuning.limits_per_shape);
        all.extend(of_shape);
        // Under a budget the lowest limit may be all there is room for.
        all.extend(lowest.filter(|_| view.budget.is_some()));
    }
    let beaten = |candidate: &Candidate, by: &Candidate| {
        let same = candidate.gpu_type() == by.gpu_type();
        let not_worse = by.shape.gpus <= candidate.shape.gpus
            && by.rate >= candidate.rate
            && by.energy() <= candidate.energy()
            && by.limit * by.gpus() <= candidate.limit * candidate.gpus();
        let better = by.shape.gpus < candidate.shape.gpus
            || by.rate > candidate.rate
            || by.energy() < candidate.energy()
            || by.limit < candidate.limit;
        same && not_worse && better
    };
    all.dedup_by(|a, b| a.shape == b.shape && a.batch == b.batch && a.limit == b.limit);
    all.iter().filter(|candidate| !all.iter().any(|by| beaten(candidate, by))).copied().collect()
}

/// Powers of two between the bounds, and what was asked for.
fn batches(bounds: Bounds) -> Vec<u32> {
    let halves = successors(Some(bounds.requested / 2), |size| Some(size / 2));
    let halves = halves.take_while(|size| *size >= bounds.min.max(1));
    let doubles = successors(bounds.requested.checked_mul(2), |size| size.checked_mul(2));
    let doubles = doubles.take_while(|size| *size <= bounds.max);
    once(bounds.requested).chain(halves).chain(doubles).collect()
}

/// Of a long menu, per GPU type, the counts that double, and what was asked for.
fn few(menu: &[Shape], asked: u32, most: usize) -> Vec<Shape> {
    let mut kept = Vec::new();
    for of_type in menu.chunk_by(|a, b| a.gpu_type == b.gpu_type) {
        if of_type.len() <= most {
            kept.extend_from_slice(of_type);
            continue;
        }
        let mut next = 0;
        for (at, shape) in of_type.iter().enumerate() {
            let last = at + 1 == of_type.len();
            if shape.gpus >= next || shape.gpus == asked || last {
                kept.push(*shape);
                next = shape.gpus.saturating_mul(2).max(next);
            }
        }
    }
    kept
}

/// Leaves those of a shape that none beats in time and energy, and of these a few.
fn thin(candidates: &mut Vec<Candidate>, most: usize) {
    candidates.sort_by(|a, b| b.rate.total_cmp(&a.rate).then(a.energy().total_cmp(&b.energy())));
    let mut least = f64::INFINITY;
    candidates.retain(|candidate| {
        let better = candidate.energy() < least * (1.0 - 1e-9);
        if better {
            least = candidate.energy();
        }
        better
    });
    while candidates.len() > most.max(2) {
        // The one whose neighbours stand for it best.
        let close = |at: usize| (candidates[at - 1].rate / candidates[at + 1].rate).ln();
        let Some(at) = (1..candidates.len() - 1).min_by(|a, b| close(*a).total_cmp(&close(*b)))
        else {
            return;
        };
        candidates.remove(at);
    }
}
