//! An instance as the lower bound sees it: pools of GPUs, and for each job the corners of what it
//! can do on them.
//!
//! Everything here errs to the cheap side. A GPU's part of its node's power is the least that any
//! neighbours can make it; of a power limit between two levels the speed is that of the upper one
//! and the draw that of the lower one; nodes that run nothing cost what their cheapest state does.

use super::job::{BoundJob, Candidate};
use std::collections::BTreeMap;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::cluster::{Cluster, Node, NodeDraw, Shape};
use wattline_core::job::{Elasticity, Job};
use wattline_core::placement::Configuration;
use wattline_core::prices::Prices;
use wattline_core::units::Watts;
use wattline_world::physics::Physics;

/// What a lower bound is asked for.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// The machines.
    pub cluster: &'a Cluster,
    /// How they behave.
    pub physics: &'a Physics,
    /// The jobs.
    pub jobs: &'a [Arc<Job>],
    /// When metering begins.
    pub start: Timestamp,
    /// What energy costs.
    pub prices: &'a Prices,
    /// What may be drawn.
    pub budget: Option<&'a Calendar<Watts>>,
    /// Whether nodes can be lost; lost nodes draw nothing.
    pub nodes_fail: bool,
}

/// All GPUs of a type.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) gpus: f64,
}

/// The instance, made cheaper where that makes it simpler.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) pools: Vec<Pool>,
    /// Only those that can run at all.
    pub(crate) jobs: Vec<BoundJob>,
    /// Jobs that no configuration can run.
    pub(crate) impossible: usize,
    /// Billed for all nodes whatever they do.
    pub(crate) floor_billed: f64,
    /// Drawn by all nodes whatever they do.
    pub(crate) floor_drawn: f64,
    /// What a busy GPU draws, about: prices of watts are in units of it, so that they are alike to
    /// prices of GPUs.
    pub(crate) watts_per_gpu: f64,
}

/// Power limits are looked at in so many levels, or so many where the batch can change too.
const LEVELS: u32 = 96;
const LEVELS_ADAPTIVE: u32 = 32;
/// Batches looked at one by one; of a wider range only so many parts.
const MOST_BATCHES: u32 = 128;
/// Corners of speed and power kept for each shape.
const MOST_CORNERS: usize = 10;

impl Problem {
    pub(crate) fn new(input: &Input<'_>) -> Self {
        let cluster = input.cluster;
        let kinds = Kinds::of(input);
        let mut known: BTreeMap<Key, Arc<[Candidate]>> = BTreeMap::new();
        let mut jobs = Vec::with_capacity(input.jobs.len());
        // Work that is nothing is done at once and costs nothing.
        for job in input.jobs.iter().filter(|job| job.work.0 > 0.0) {
            let menu = cluster.menu(job);
            let key = Key::of(job, &menu);
            let found = || ways(input, &kinds, job, &menu).into();
            jobs.push(BoundJob {
                submit: (job.submit - input.start).get().max(0.0),
                deadline: job.deadline.map_or(f64::INFINITY, |due| (due - input.start).get()),
                weight: job.weight.get(),
                work: job.work.0,
                ways: Arc::clone(known.entry(key).or_insert_with(found)),
            });
        }
        let all = jobs.len();
        jobs.retain(|job| !job.ways.is_empty());
        let pools = cluster
            .gpu_type_ids()
            .map(|id| Pool { gpus: f64::from(cluster.gpus_of(id)) })
            .collect();
        let ways = || jobs.iter().flat_map(|job| job.ways.iter());
        let watts: f64 = ways().map(|way| way.drawn / way.gpus).sum();
        Self {
            watts_per_gpu: (watts / ways().count().max(1) as f64).max(1.0),
            pools,
            impossible: all - jobs.len(),
            jobs,
            floor_billed: kinds.floor(cluster, |floor| floor.billed),
            floor_drawn: kinds.floor(cluster, |floor| floor.drawn),
        }
    }
}

/// What decides a job's ways, but for the amount of work.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    workload: u32,
    asked: u32,
    batch: (u32, u32, u32),
    adaptive: bool,
    menu: Vec<Shape>,
}

impl Key {
    fn of(job: &Job, menu: &[Shape]) -> Self {
        Self {
            workload: job.workload.0,
            asked: job.gpus.requested,
            batch: (job.batch.min, job.batch.requested, job.batch.max),
            adaptive: job.elasticity == Elasticity::Adaptive,
            menu: menu.to_vec(),
        }
    }
}

/// The least a node costs whatever it does, watts.
#[derive(Clone, Copy, Debug)]
struct Floor {
    billed: f64,
    drawn: f64,
}

/// Nodes that differ in their power, each once.
struct Kinds<'a> {
    nodes: Vec<(&'a Node, Floor)>,
    kind_of: Vec<usize>,
    pue: f64,
}

impl<'a> Kinds<'a> {
    fn of(input: &Input<'a>) -> Self {
        let pue = input.prices.pue;
        let mut nodes: Vec<(&Node, Floor)> = Vec::new();
        let mut kind_of = Vec::new();
        for node in input.cluster.nodes() {
            let same = |(other, _): &(&Node, Floor)| {
                other.gpu_type == node.gpu_type
                    && other.gpus == node.gpus
                    && other.draw == node.draw
                    && other.sleep == node.sleep
                    && other.boot == node.boot
            };
            let at = nodes.iter().position(same).unwrap_or_else(|| {
                nodes.push((node, floor(node, pue, input.nodes_fail)));
                nodes.len() - 1
            });
            kind_of.push(at);
        }
        Self { nodes, kind_of, pue }
    }

    fn floor(&self, cluster: &Cluster, of: impl Fn(&Floor) -> f64) -> f64 {
        debug_assert_eq!(self.kind_of.len(), cluster.nodes().len());
        self.kind_of.iter().map(|at| of(&self.nodes[*at].1)).sum()
    }

    /// The least that a GPU of a job with that shape adds to what is billed and drawn, above the
    /// floor: the job's own GPUs draw `per_gpu`, and neighbours are as good as they can be.
    fn share(&self, cluster: &Cluster, shape: Shape, nodes: u32, per_gpu: f64) -> (f64, f64) {
        let mut least = (f64::INFINITY, f64::INFINITY);
        for (node, floor) in &self.nodes {
            let size = u32::from(node.gpus);
            // On one node at least the job's own GPUs are busy.
            let fewest = if nodes == 1 { shape.gpus } else { 1 };
            if node.gpu_type != shape.gpu_type || size < fewest {
                continue;
            }
            for busy in fewest..=size {
                let by = f64::from(busy);
                let (billed, drawn) = match &node.draw {
                    NodeDraw::Additive { base } => {
                        let idle = cluster.gpu_type(node.gpu_type).idle.get();
                        let rest = base.get() + idle * f64::from(size - busy);
                        let part = per_gpu * self.pue;
                        (
                            (rest * self.pue - floor.billed) / by + part,
                            (rest - floor.drawn) / by + per_gpu,
                        )
                    }
                    NodeDraw::ByBusyGpus(table) => {
                        let entry = table[busy as usize];
                        (
                            (entry.watts.get() * entry.pue - floor.billed) / by,
                            (entry.watts.get() - floor.drawn) / by,
                        )
                    }
                };
                least = (least.0.min(billed), least.1.min(drawn));
            }
        }
        least
    }

    /// Whether what a job draws matters on GPUs of this type.
    fn draws(&self, shape: Shape) -> bool {
        self.nodes.iter().any(|(node, _)| node.gpu_type == shape.gpu_type && node.is_additive())
    }

    /// Whether it matters on some nodes of this type and not on others.
    fn is_mixed(&self, shape: Shape) -> bool {
        let table = |node: &Node| node.gpu_type == shape.gpu_type && !node.is_additive();
        self.draws(shape) && self.nodes.iter().any(|(node, _)| table(node))
    }
}

fn floor(node: &Node, pue: f64, nodes_fail: bool) -> Floor {
    if nodes_fail {
        return Floor { billed: 0.0, drawn: 0.0 };
    }
    let resting = node.sleep.min(node.boot).get();
    match &node.draw {
        NodeDraw::Additive { base } => {
            let drawn = resting.min(base.get());
            Floor { billed: drawn * pue, drawn }
        }
        NodeDraw::ByBusyGpus(table) => Floor {
            billed: table.iter().map(|b| b.watts.get() * b.pue).fold(resting * pue, f64::min),
            drawn: table.iter().map(|b| b.watts.get()).fold(resting, f64::min),
        },
    }
}

/// The ways of a job, by rising rate; dominated ones are left out.
fn ways(input: &Input<'_>, kinds: &Kinds<'_>, job: &Job, menu: &[Shape]) -> Vec<Candidate> {
    let mut all = Vec::new();
    for shape in menu {
        let fewest = input.cluster.nodes_for(*shape);
        // More nodes than needed are never faster than one more, and cost as little.
        for nodes in [fewest, fewest + 1] {
            if nodes > shape.gpus.max(1) || nodes as usize > input.cluster.nodes().len() {
                continue;
            }
            let mut here: Vec<Candidate> = Vec::new();
            for (rate, per_gpu) in corners(input, kinds, job, *shape, nodes) {
                let (billed, drawn) = kinds.share(input.cluster, *shape, nodes, per_gpu);
                let gpus = f64::from(shape.gpus);
                if rate > 0.0 && rate.is_finite() && billed.is_finite() {
                    here.push(Candidate {
                        pool: shape.gpu_type.index(),
                        gpus,
                        rate,
                        billed: billed * gpus,
                        drawn: drawn * gpus,
                    });
                }
            }
            all.append(&mut if kinds.is_mixed(*shape) { here } else { frontier(here) });
        }
    }
    // A way that is slower, not cheaper and takes no fewer GPUs of its type is never needed.
    let mut kept: Vec<Candidate> = Vec::with_capacity(all.len());
    all.sort_by(|a: &Candidate, b: &Candidate| {
        b.rate.total_cmp(&a.rate).then(a.gpus.total_cmp(&b.gpus))
    });
    for way in all {
        let beaten = kept.iter().any(|other| {
            other.pool == way.pool
                && other.gpus <= way.gpus
                && other.billed <= way.billed
                && other.drawn <= way.drawn
        });
        if !beaten {
            kept.push(way);
        }
    }
    kept.reverse();
    kept
}

/// Ways on the same GPUs that no mixture of others beats; they differ in speed and power only, and
/// billed and drawn power go together.
fn frontier(mut ways: Vec<Candidate>) -> Vec<Candidate> {
    ways.sort_by(|a, b| a.rate.total_cmp(&b.rate).then(b.billed.total_cmp(&a.billed)));
    let mut hull: Vec<Candidate> = Vec::new();
    for way in ways {
        while let Some(last) = hull.last() {
            let before = hull.len().checked_sub(2).map(|at| hull[at]);
            let above = match before {
                None => last.billed >= way.billed,
                Some(a) => {
                    (last.billed - a.billed) * (way.rate - a.rate)
                        >= (way.billed - a.billed) * (last.rate - a.rate)
                }
            };
            if !above {
                break;
            }
            hull.pop();
        }
        hull.push(way);
    }
    while hull.len() > MOST_CORNERS && thin_out(&mut hull) {}
    hull
}

/// Takes the edge of a hull out that is missed least: the edges beside it are drawn on until they
/// meet, below it. So the hull never gets dearer. Says whether there was one.
fn thin_out(hull: &mut Vec<Candidate>) -> bool {
    let slope = |a: &Candidate, b: &Candidate| (b.billed - a.billed) / (b.rate - a.rate);
    let mut least: Option<(f64, usize, Candidate)> = None;
    for at in 1..hull.len().saturating_sub(2) {
        let (a, b, c, d) = (&hull[at - 1], &hull[at], &hull[at + 1], &hull[at + 2]);
        let (left, right) = (slope(a, b), slope(c, d));
        if right <= left || c.rate <= b.rate {
            continue;
        }
        let rate = (c.billed - b.billed + left * b.rate - right * c.rate) / (left - right);
        let rate = rate.clamp(b.rate, c.rate);
        let billed = b.billed + left * (rate - b.rate);
        // Drawn power follows billed power along a straight line.
        let along =
            if c.billed > b.billed { (c.drawn - b.drawn) / (c.billed - b.billed) } else { 0.0 };
        let drawn = b.drawn + along * (billed - b.billed);
        let missed = (slope(b, c) * (rate - b.rate) + b.billed - billed) * (c.rate - b.rate);
        if least.as_ref().is_none_or(|(so_far, _, _)| missed < *so_far) {
            least = Some((missed, at, Candidate { rate, billed, drawn, ..*b }));
        }
    }
    let Some((_, at, corner)) = least else { return false };
    hull[at] = corner;
    hull.remove(at + 1);
    true
}

/// Speed and power per GPU at the corners of each cell of power limits and batches.
fn corners(
    input: &Input<'_>,
    kinds: &Kinds<'_>,
    job: &Job,
    shape: Shape,
    nodes: u32,
) -> Vec<(f64, f64)> {
    let card = input.cluster.gpu_type(shape.gpu_type);
    let (low, high) = (card.min_limit.get(), card.max_limit.get());
    let levels: Vec<f64> = if kinds.draws(shape) && high > low {
        let adaptive = job.elasticity == Elasticity::Adaptive;
        let levels = if adaptive { LEVELS_ADAPTIVE } else { LEVELS };
        (0..=levels).map(|k| low + (high - low) * f64::from(k) / f64::from(levels)).collect()
    } else {
        // Only the speed matters, or there is but one limit.
        vec![high]
    };
    let speed = |batch: u32, limit: f64| {
        let configuration = Configuration {
            gpu_type: shape.gpu_type,
            gpus: shape.gpus,
            nodes,
            batch,
            power_limit: Watts::new(limit),
        };
        let speed = input.physics.speed(job, &configuration)?;
        Some((speed.rate.0, speed.power.get(), f64::from(batch) * speed.worth))
    };
    let mut corners = Vec::new();
    for (small, large) in batches(job) {
        // A model may not fit with few samples on many GPUs.
        let Some(small) = (small..=large).find(|batch| speed(*batch, high).is_some()) else {
            continue;
        };
        let mut below: Option<(f64, f64)> = None;
        for limit in &levels {
            let here = match (speed(small, *limit), speed(large, *limit)) {
                _ if small == large => speed(small, *limit).map(|(rate, power, _)| (rate, power)),
                // The larger batch's worth in the smaller batch's step.
                (Some(a), Some(b)) => Some((a.0 * b.2 / a.2, a.1.min(b.1))),
                _ => None,
            };
            if let Some((rate, power)) = here {
                let (slower, less) = below.unwrap_or((rate, power));
                corners.push((rate.max(slower), power.min(less)));
            }
            below = here.or(below);
        }
    }
    corners
}

/// Ranges of batches that are looked at as one; each is a single batch where there are few.
fn batches(job: &Job) -> Vec<(u32, u32)> {
    if job.elasticity != Elasticity::Adaptive {
        return vec![(job.batch.requested, job.batch.requested)];
    }
    let (min, max) = (job.batch.min, job.batch.max);
    if max - min < MOST_BATCHES {
        return (min..=max).map(|batch| (batch, batch)).collect();
    }
    let step = (f64::from(max) / f64::from(min.max(1))).powf(1.0 / f64::from(MOST_BATCHES));
    let mut ranges = Vec::new();
    let mut small = min;
    while small <= max {
        let large = ((f64::from(small) * step) as u32).clamp(small, max);
        ranges.push((small, large));
        small = large + 1;
    }
    ranges
}
