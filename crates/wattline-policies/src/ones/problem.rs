//! What is to be planned: jobs with the ways they can run, and GPUs.
//!
//! Nothing here depends on what was planned before, only on what the jobs hold and have done. So
//! planning again at the same instant leads to the same plan.

use super::batch;
use super::room::Room;
use crate::placing::Decided;
use crate::placing::{Choice, FreeGpus};
use std::collections::BTreeMap;
use std::rc::Rc;
use wattline_core::cluster::Shape;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::job::Elasticity;
use wattline_core::placement::{Allocation, Configuration, Placement};
use wattline_core::plan::Reason;
use wattline_core::policy::ClusterView;
use wattline_core::power::{self, NodePower, Occupancy};
use wattline_core::predictor::Prediction;
use wattline_core::state::{JobState, Phase};
use wattline_core::units::{Seconds, Watts};

/// Of the jobs that hold nothing, at most this many per GPU are looked at, shortest first.
const CANDIDATES_PER_GPU: usize = 2;
/// A way with more GPUs must be faster by this factor to be one.
const FASTER: f64 = 1.03;
/// Standard deviations from the middle of an interval to its end.
const NINETY_FIVE: f64 = 1.645;
/// Intervals wider than this factor count as that wide.
const WIDEST: f64 = 10.0;

/// A restart of a job that runs counts this many times: what it gains is reckoned to the job's end,
/// and most plans do not last that long. From 2 to 8 it makes little difference.
const LASTING: f64 = 4.0;

/// One way to run a job.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) shape: Shape,
    pub(super) batch: u32,
    pub(super) limit: Watts,
    pub(super) power: Watts,
    /// Seconds to the job's end, a restart included where it takes one.
    pub(super) time: f64,
}

impl Way {
    /// GPU-seconds to the job's end.
    pub(super) fn gpu_time(&self) -> f64 {
        self.time * f64::from(self.shape.gpus)
    }

    /// The way on particular GPUs.
    pub(super) fn placed(&self, on: Allocation) -> Placement {
        self.choice(self.limit).placed(on)
    }

    pub(super) fn choice(&self, limit: Watts) -> Choice {
        Choice {
            shape: self.shape,
            batch: self.batch,
            limit,
            time: Seconds::new(self.time),
            power: self.power,
            late: false,
            reason: Reason::LeastGpuTime,
        }
    }

    /// Whether the placement has this shape and batch.
    pub(super) fn is_of(&self, placement: &Placement) -> bool {
        let Configuration { batch, .. } = placement.configuration;
        placement.configuration.shape() == self.shape && batch == self.batch
    }
}

/// A job and the ways it can run.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) id: JobId,
    /// By rising GPU count; each faster than the ones before it on that GPU type.
    pub(super) ways: Vec<Way>,
    /// The way it runs now, and where.
    pub(super) present: Option<(usize, Allocation)>,
    /// The way that takes the least GPU-time.
    pub(super) frugal: usize,
    /// The way after which more GPUs cost more than they gain: least time times GPU-time.
    pub(super) knee: usize,
    /// GPU-time left in that way without any restart: jobs are taken in the order of this, which
    /// must not depend on whether they run, or two of them could take turns for ever.
    pub(super) gpu_time_left: f64,
    /// Its time in that way, if it starts later.
    pub(super) wait_time: f64,
    /// The GPU-time of that.
    pub(super) wait_gpu_time: f64,
}

/// Everything a plan is made from.
pub(super) struct Problem<'v, 'a> {
    pub(super) view: &'v ClusterView<'a>,
    /// By rising GPU-time left.
    pub(super) items: Vec<Item>,
    /// Jobs that certainly wait.
    pub(super) left_out: Vec<JobId>,
    /// By job: whether it is among the items or left out. All others stay as they are.
    decides: Decided,
    /// The GPUs there are for the items.
    pub(super) gpus: f64,
    /// The same, by GPU type.
    pub(super) gpus_of: Vec<u32>,
    pub(super) empty: Room<'v, 'a>,
}

/// A way without the time that follows from what is left of a job.
#[derive(Clone, Copy)]
struct Rate {
    shape: Shape,
    batch: u32,
    limit: Watts,
    power: Watts,
    rate: f64,
}

/// Jobs that agree in these have the same rates.
type Kind = (u32, u32, bool, u32, u32, u32, u32);

impl<'v, 'a> Problem<'v, 'a> {
    pub(super) fn new(view: &'v ClusterView<'a>) -> Self {
        let state = view.state;
        let mut decides = Decided::nobody(state);
        let ours = |job: &JobState| job.is_plannable() && !job.is_pinned();
        let mut asked = 0_u64;
        for (id, job) in state.unfinished_jobs().filter(|(_, job)| ours(job)) {
            decides.add(state, id);
            asked += u64::from(job.job.gpus.requested);
        }
        let free = |id: NodeId| {
            let there = state.node(id).is_ours();
            there.then(|| decides.free_mask(state, id))
        };
        let cluster = state.cluster();
        let mut gpus_of = vec![0; cluster.gpu_types().len()];
        for id in cluster.node_ids() {
            gpus_of[cluster.node(id).gpu_type.index()] += free(id).map_or(0, u64::count_ones);
        }
        let gpus: u32 = gpus_of.iter().sum();
        let crowded = asked > u64::from(gpus);
        let held: Vec<Occupancy> = cluster.node_ids().map(|id| decides.fixed(state, id)).collect();
        let empty = Room::new(view, FreeGpus::of(cluster, free), held);
        let mut rates: BTreeMap<Kind, Rc<[Rate]>> = BTreeMap::new();
        let (mut items, mut left_out) = (Vec::new(), Vec::new());
        for (id, job) in state.unfinished_jobs().filter(|(_, job)| ours(job)) {
            let limit = batch::limit(job, view.now, crowded);
            let rates = rates.entry(kind(job, limit)).or_insert_with(|| find(view, job, limit));
            match item(view, id, job, limit, rates, &empty) {
                Some(item) => items.push(item),
                None => left_out.push(id),
            }
        }
        // A job for which too few machines are left must not take the place of one that can run.
        let left = gpus_left(view);
        items.retain(|item| {
            let could = |way: &Way| way.shape.gpus <= left[way.shape.gpu_type.index()];
            let kept = item.ways.iter().any(could);
            if !kept {
                left_out.push(item.id);
            }
            kept
        });
        items.sort_by(|a, b| a.gpu_time_left.total_cmp(&b.gpu_time_left).then(a.id.cmp(&b.id)));
        let mut waiting = 0;
        let most = CANDIDATES_PER_GPU * gpus as usize;
        items.retain(|item| {
            waiting += usize::from(item.present.is_none());
            let kept = item.present.is_some() || waiting <= most;
            if !kept {
                left_out.push(item.id);
            }
            kept
        });
        let gpus = f64::from(gpus.max(1));
        Self { view, items, left_out, decides, gpus, gpus_of, empty }
    }

    /// What each node holds with these placed.
    pub(super) fn held_with<'p>(
        &self,
        placements: impl Iterator<Item = &'p Placement>,
    ) -> Vec<Occupancy> {
        self.decides.held_with(self.view.state, placements)
    }
}

/// GPUs of all nodes that are neither lost nor closed, by type.
fn gpus_left(view: &ClusterView<'_>) -> Vec<u32> {
    let cluster = view.state.cluster();
    let mut left = vec![0; cluster.gpu_types().len()];
    for id in cluster.node_ids().filter(|id| view.state.node(*id).is_ours()) {
        let node = cluster.node(id);
        left[node.gpu_type.index()] += u32::from(node.gpus);
    }
    left
}

fn kind(job: &JobState, limit: u32) -> Kind {
    let j = &job.job;
    let adaptive = j.elasticity == Elasticity::Adaptive;
    let (requested, min) = (j.batch.requested, j.batch.min);
    (j.workload.0, job.menu.0, adaptive, requested, min, j.gpus.requested, limit)
}

/// Work per second, as the mean over the interval says: for times whose logarithm is normally
/// distributed the mean lies above the middle.
fn mean_rate(prediction: &Prediction) -> f64 {
    let deviation = prediction.time_high.clamp(1.0, WIDEST).ln() / NINETY_FIVE;
    prediction.rate.0 / (0.5 * deviation * deviation).exp()
}

/// The ways a job of this kind can run: each shape with its best batch.
fn find(view: &ClusterView<'_>, job: &JobState, limit: u32) -> Rc<[Rate]> {
    let cluster = view.state.cluster();
    let mut rates: Vec<Rate> = Vec::new();
    for shape in view.state.menu(job.menu).iter().copied() {
        let plain = cluster.plain_configuration(&job.job, shape);
        let predict = |batch| {
            let configuration = Configuration { batch, ..plain };
            let prediction = view.predictor.predict(&job.job, &configuration)?;
            Some((mean_rate(&prediction), prediction.power))
        };
        let Some((batch, rate, power)) = batch::best(&job.job, limit, predict) else { continue };
        let slower = |other: &Rate| other.rate * FASTER < rate;
        let before = rates.iter().rfind(|r| r.shape.gpu_type == shape.gpu_type);
        if rate.is_finite() && rate > 0.0 && before.is_none_or(slower) {
            rates.push(Rate { shape, batch, limit: plain.power_limit, power, rate });
        }
    }
    rates.into()
}

/// What the job holds and works on, if it may go on so. One that is told to stop counts as if it
/// ran on: between two plans at the same instant nothing else has changed.
fn present<'v>(job: &'v JobState, limit: u32, empty: &Room<'_, '_>) -> Option<&'v Placement> {
    let held = job.held.as_ref()?;
    let runs = matches!(job.phase, Phase::Running | Phase::Stopping(_));
    let small = held.configuration.batch <= limit;
    (runs && small && empty.has(&held.allocation)).then_some(held)
}

fn item(
    view: &ClusterView<'_>,
    id: JobId,
    job: &JobState,
    limit: u32,
    rates: &[Rate],
    empty: &Room<'_, '_>,
) -> Option<Item> {
    let restart = view.predictor.restart(&job.job);
    let present = present(job, limit, empty);
    let charge = match (present, job.first_start) {
        (Some(_), _) => LASTING * (restart.save + restart.load).get(),
        (None, Some(_)) => restart.load.get(),
        (None, None) => 0.0,
    };
    let left = job.remaining(view.now).0;
    let way = |r: &Rate| Way {
        shape: r.shape,
        batch: r.batch,
        limit: r.limit,
        power: r.power,
        time: left / r.rate + charge,
    };
    let mut ways: Vec<Way> = rates.iter().map(way).collect();
    let least = |power: i32| {
        let value = |r: &Rate| f64::from(r.shape.gpus) / r.rate.powi(power);
        let values = rates.iter().map(value).enumerate();
        values.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
    };
    let (mut frugal, mut knee) = (least(1)?, least(2)?);
    let gpu_time_left = left / rates[knee].rate * f64::from(rates[knee].shape.gpus);
    let (wait_time, wait_gpu_time) = (ways[knee].time, ways[knee].gpu_time());
    let mut now = None;
    if let Some(placement) = present {
        let c = placement.configuration;
        let at = ways.iter().position(|way| way.is_of(placement));
        let at = at.or_else(|| {
            let in_menu = view.state.menu(job.menu).binary_search(&c.shape()).is_ok();
            let power_limit = view.state.cluster().gpu_type(c.gpu_type).default_limit;
            let plain = Configuration { power_limit, ..c };
            let prediction = view.predictor.predict(&job.job, &plain).filter(|_| in_menu)?;
            let (rate, power) = (mean_rate(&prediction), prediction.power);
            let at = ways.partition_point(|way| way.shape <= c.shape());
            let r = Rate { shape: c.shape(), batch: c.batch, limit: power_limit, power, rate };
            (rate.is_finite() && rate > 0.0).then(|| ways.insert(at, way(&r)))?;
            frugal += usize::from(at <= frugal);
            knee += usize::from(at <= knee);
            Some(at)
        });
        if let Some(at) = at {
            ways[at].time -= charge;
            now = Some((at, placement.allocation.clone()));
        }
    }
    ways.iter().all(|way| way.time.is_finite()).then_some(())?;
    Some(Item { id, ways, present: now, frugal, knee, gpu_time_left, wait_time, wait_gpu_time })
}

/// Committed power of a node that holds this: asleep if that is nothing, and otherwise as if it
/// had to be woken first, because which nodes are up changes while a plan is carried out.
pub(super) fn committed_if(view: &ClusterView<'_>, id: NodeId, held: Occupancy) -> Watts {
    let power = match (view.state.node(id).power, held.busy) {
        (power @ (NodePower::Down | NodePower::Closed), _) => power,
        (_, 0) => NodePower::Asleep,
        (_, _) => NodePower::Booting,
    };
    power::committed(view.state.cluster(), id, power, held)
}
