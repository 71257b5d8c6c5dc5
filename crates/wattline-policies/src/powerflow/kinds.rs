//! The ways in which jobs of one kind can run, and what each takes per unit of work.

use wattline_core::cluster::{Cluster, NodeDraw, Shape};
use wattline_core::ids::{MenuId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job};
use wattline_core::placement::Configuration;
use wattline_core::policy::ClusterView;
use wattline_core::state::JobState;
use wattline_core::units::Watts;

/// Jobs that are alike in this are predicted alike.
pub(super) type Key = (WorkloadId, MenuId, u32, (u32, u32, u32), bool);

/// The kind of a job.
pub(super) fn key(job: &JobState) -> Key {
    let Bounds { min, max, requested } = job.job.batch;
    let adaptive = job.job.elasticity == Elasticity::Adaptive;
    (job.job.workload, job.menu, job.job.gpus.requested, (min, requested, max), adaptive)
}

/// A power limit that is worth having: every higher one is faster and takes more energy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) limit: Watts,
    /// Work per second.
    pub(super) rate: f64,
    /// Billed for its GPUs and their part of the node.
    pub(super) watts: f64,
}

/// A GPU type, count and batch with its power limits.
#[derive(Clone, Debug)]
pub(super) struct Rung {
    pub(super) shape: Shape,
    pub(super) batch: u32,
    /// By rising limit; the first takes least energy. Never empty.
    pub(super) points: Vec<Point>,
}

impl Rung {
    /// The highest point whose limit is not above that; the first, if there is none.
    pub(super) fn at_limit(&self, limit: Watts) -> usize {
        self.points.iter().rposition(|point| point.limit <= limit).unwrap_or(0)
    }

    fn least_energy(&self) -> f64 {
        self.points[0].watts / self.points[0].rate
    }
}

/// All that jobs of a kind have in common.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    /// One for each shape, with the batch that does best there; by type and count.
    pub(super) rungs: Vec<Rung>,
    /// Energy per unit of work as requested.
    pub(super) requested: f64,
}

impl Kind {
    /// `None` where jobs of that kind cannot run at all.
    pub(super) fn new(view: &ClusterView<'_>, job: &JobState) -> Option<Self> {
        let cluster = view.state.cluster();
        let menu = view.state.menu(job.menu);
        let mut rungs: Vec<Rung> = Vec::new();
        for (at, shape) in menu.iter().enumerate() {
            let least = at == 0 || menu[at - 1].gpu_type != shape.gpu_type;
            if least || shape.gpus == job.job.gpus.requested || is_round(cluster, *shape) {
                let best = batches(&job.job)
                    .into_iter()
                    .filter_map(|batch| rung(view, &job.job, *shape, batch))
                    .min_by(|a, b| product(a).total_cmp(&product(b)));
                rungs.extend(best);
            }
        }
        let asked = |rung: &&Rung| rung.shape.gpus.abs_diff(job.job.gpus.requested);
        let nearest = rungs.iter().map(|rung| asked(&rung)).min()?;
        let requested = rungs
            .iter()
            .filter(|rung| asked(rung) == nearest)
            .filter_map(|rung| as_requested(view, &job.job, rung.shape))
            .min_by(f64::total_cmp);
        let least = rungs.iter().map(Rung::least_energy).min_by(f64::total_cmp)?;
        Some(Self { requested: requested.unwrap_or(least), rungs })
    }
}

/// Time and energy per work, multiplied: the yardstick between batches.
fn product(rung: &Rung) -> f64 {
    rung.points.last().map_or(f64::INFINITY, |p| p.watts / p.rate / p.rate)
}

/// Powers of two inside a node and of whole nodes: what buddy blocks are made for.
fn is_round(cluster: &Cluster, shape: Shape) -> bool {
    let size = cluster.largest_node(shape.gpu_type).max(1);
    if shape.gpus <= size {
        return shape.gpus.is_power_of_two() || shape.gpus == size;
    }
    shape.gpus.is_multiple_of(size) && (shape.gpus / size).is_power_of_two()
}

/// The batches a job may have: the one asked for, halved and doubled.
fn batches(job: &Job) -> Vec<u32> {
    let Bounds { min, max, requested } = job.batch;
    if job.elasticity != Elasticity::Adaptive {
        return vec![requested];
    }
    let halved = std::iter::successors(Some(requested), |b| Some(b / 2)).skip(1);
    let doubled = std::iter::successors(Some(requested), |b| b.checked_mul(2));
    let halved = halved.take_while(|b| *b >= min.max(1));
    doubled.take_while(|b| *b <= max).chain(halved).collect()
}

fn predicted(view: &ClusterView<'_>, job: &Job, c: &Configuration) -> Option<Point> {
    let prediction = view.predictor.predict(job, c)?;
    let watts = billed(view, c.shape(), prediction.power);
    let rate = prediction.rate.0;
    let sound = rate.is_finite() && rate > 0.0 && watts.is_finite() && watts > 0.0;
    sound.then_some(Point { limit: c.power_limit, rate, watts })
}

/// Energy per unit of work with what the user asked for.
fn as_requested(view: &ClusterView<'_>, job: &Job, shape: Shape) -> Option<f64> {
    let plain = view.state.cluster().plain_configuration(job, shape);
    predicted(view, job, &plain).map(|point| point.watts / point.rate)
}

/// Watts that are billed for a shape: its GPUs, and its part of the nodes it is on. With jobs
/// enough these are full; the last few jobs have to pay for all of theirs, idle GPUs too.
fn billed(view: &ClusterView<'_>, shape: Shape, per_gpu: Watts) -> f64 {
    let cluster = view.state.cluster();
    let size = cluster.largest_node(shape.gpu_type);
    let of_type = |node: &&wattline_core::cluster::Node| {
        node.gpu_type == shape.gpu_type && u32::from(node.gpus) == size
    };
    match cluster.nodes().iter().find(of_type).map(|node| &node.draw) {
        Some(NodeDraw::Additive { base }) => {
            let gpus = f64::from(shape.gpus);
            let size = f64::from(size.max(1));
            let nodes = (gpus / size).max(1.0 / view.state.unfinished().max(1) as f64);
            let idle = cluster.gpu_type(shape.gpu_type).idle * (nodes * size - gpus);
            ((per_gpu * gpus + *base * nodes + idle) * view.prices.pue).get()
        }
        _ => cluster.power_alone(shape, per_gpu).get(),
    }
}

/// A shape with the limits that are worth having; `None` where the job cannot run so.
pub(super) fn rung(view: &ClusterView<'_>, job: &Job, shape: Shape, batch: u32) -> Option<Rung> {
    let cluster = view.state.cluster();
    let plain = Configuration { batch, ..cluster.plain_configuration(job, shape) };
    let mut points: Vec<Point> = Vec::new();
    // From the highest limit down, as long as less speed saves energy.
    for limit in cluster.gpu_type(shape.gpu_type).limits_down() {
        let c = Configuration { power_limit: limit, ..plain };
        let Some(point) = predicted(view, job, &c) else { break };
        match points.last() {
            // The same speed for fewer watts.
            Some(last) if point.rate >= last.rate && point.watts <= last.watts => {
                points.pop();
            }
            Some(last) if point.watts / point.rate >= last.watts / last.rate => break,
            _ => {}
        }
        points.push(point);
    }
    points.reverse();
    (!points.is_empty()).then_some(Rung { shape, batch, points })
}
