//! What is to be planned, in dense numbers.

use super::foreseen::{self, Coming};
use super::nodes::{NO_CLASS, Nodes, Spot};
use super::objective::{Goal, Lateness, Objective};
use super::owed::Owed;
use super::prices::PriceCurve;
use super::ways::{Way, Ways};
use crate::placing::alike;
use std::ops::Range;
use wattline_core::cluster::{Node, NodeDraw};
use wattline_core::ids::{JobId, NodeId};
use wattline_core::job::Elasticity;
use wattline_core::policy::ClusterView;
use wattline_core::power::NodePower;
use wattline_core::state::{JobState, Phase};

/// Jobs that come later lose by GPU time that is taken then as this many waiting jobs would, when the
/// cluster is full; with half the jobs, a quarter of that. Total cost over the best reference method on
/// the ANDREAS instances at loads of 0.5 and less: 0.826 on average, 0.827 with 12, 0.826 with 3; above
/// the optimum of problems in which no job comes later (`wattline bench gap`): 4.8 %, 10 % and 3.5 %.
const TOLL: f64 = 6.0;
/// A job without a deadline loses by waiting this part of what its energy costs.
const IDLY: f64 = 0.5;
/// A part of a mean run time that is short, and seconds that are.
const SHORT: f64 = 0.1;
const MINUTE: f64 = 60.0;
/// They come within this part of a mean run time.
const SOON: f64 = 0.5;

/// A job.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) id: JobId,
    /// What a second past `due` costs.
    pub(super) weight: f64,
    /// What missing the deadline costs at once.
    pub(super) missed: f64,
    /// Seconds from now; infinite if lateness costs nothing.
    pub(super) due: f64,
    /// Work left.
    pub(super) work: f64,
    /// Lost when it leaves the GPUs it has: saving and loading, and what the cluster takes to stop
    /// and start it.
    pub(super) restart: f64,
    /// Lost when it starts: what the cluster takes for that, and loading, if it has run before.
    pub(super) load: f64,
    /// Into the problem's ways.
    pub(super) ways: Range<u32>,
    /// The one that takes least energy, where that counts.
    pub(super) frugal: Option<u32>,
    /// As it is planned now.
    pub(super) now: Option<Slot>,
    /// Leaving its GPUs costs a restart.
    pub(super) runs: bool,
    /// It may not leave its GPUs.
    pub(super) pinned: bool,
    /// It may never leave GPUs once it has them, so that where it starts matters for good.
    pub(super) stays: bool,
    /// Where it starts decides for good on its GPUs, or on how many of which kind.
    pub(super) commits: bool,
    /// It has waited for so long that it goes first.
    pub(super) overdue: bool,
    /// For how many seconds it is overdue; negative before.
    pub(super) over: f64,
    /// Where it goes, because it was overdue first.
    pub(super) granted: Option<Slot>,
    /// It leaves its GPUs for a job that is overdue.
    pub(super) leaves: bool,
    /// Seconds since it was submitted.
    pub(super) age: f64,
}

impl Item {
    /// Where it is before anything is decided about it.
    pub(super) fn at_first(&self) -> Option<Slot> {
        self.granted.clone().or_else(|| self.now.clone().filter(|_| !self.leaves))
    }
}

/// A job on some GPUs in some way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slot {
    pub(super) way: u32,
    pub(super) spot: Spot,
}

/// Who runs where; by item.
pub(super) type Draft = Vec<Option<Slot>>;

/// Nodes that differ in nothing that matters here.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) gpu_type: usize,
    pub(super) size: u8,
    /// Billed by busy GPUs, apart from what these draw themselves where that is known.
    pub(super) billed: Vec<f64>,
    /// Committed by busy GPUs, apart from limits where these count.
    pub(super) committed: Vec<f64>,
    /// Whether power is a base plus GPUs.
    pub(super) additive: bool,
    /// Billed per watt of a job's GPU.
    pub(super) pue: f64,
    /// Committed while it boots; nothing for a node that is up.
    boot: f64,
    /// Seconds until an idle node of it can start a job.
    pub(super) wake: f64,
}

impl Class {
    /// Committed watts of a node with so many GPUs in use, whose limits sum up to `limits`.
    pub(super) fn commits(&self, busy: usize, limits: f64) -> f64 {
        match (busy, self.additive) {
            (0, _) => self.committed[0],
            (_, true) => (self.committed[busy] + limits).max(self.boot),
            (_, false) => self.committed[busy].max(self.boot),
        }
    }
}

/// Everything a plan is made from.
pub(super) struct Problem<'v, 'a> {
    pub(super) view: &'v ClusterView<'a>,
    /// Whether lateness counts, and not every second.
    pub(super) deadlines: bool,
    /// Whether most jobs must keep what they get.
    pub(super) rigid: bool,
    /// Whether time is all that counts, and no energy.
    pub(super) time_only: bool,
    /// Whether lateness alone counts, and energy only breaks ties.
    pub(super) lateness_only: bool,
    pub(super) items: Vec<Item>,
    pub(super) ways: Vec<Way>,
    pub(super) classes: Vec<Class>,
    /// By GPU type.
    pub(super) classes_of: Vec<Vec<u16>>,
    /// GPUs by type that are there.
    pub(super) gpus_of: Vec<f64>,
    /// How much a GPU-second of a type is worth, relative to the best one.
    pub(super) worth: Vec<f64>,
    /// Jobs that are expected.
    pub(super) coming: Vec<Coming>,
    /// What a second costs all jobs together, if all are late.
    pub(super) weights: f64,
    /// Of a job in the way that takes least GPU time, on average.
    pub(super) mean_time: f64,
    /// Of a job in its fastest way, on average.
    pub(super) mean_fastest: f64,
    /// Multiplies what restarts must gain.
    pub(super) hysteresis: f64,
    /// The part of each GPU type that long rigid jobs leave to short ones.
    pub(super) headroom: f64,
    /// Jobs that can start do not wait for cheaper energy or for company.
    pub(super) eager: bool,
    /// GPUs, those of slower types counted for less.
    pub(super) capacity: f64,
    /// What a GPU-second costs those who will come, when they have come.
    pub(super) toll: f64,
    /// Seconds in which most of the free GPUs will be wanted.
    pub(super) soon: f64,
    /// All nodes without the jobs above.
    pub(super) empty: Nodes,
    pub(super) budget: f64,
    pub(super) prices: PriceCurve,
    /// To those who have waited too long.
    pub(super) owed: Owed,
}

impl<'v, 'a> Problem<'v, 'a> {
    pub(super) fn new(view: &'v ClusterView<'a>, objective: &Objective, hysteresis: f64) -> Self {
        let cluster = view.state.cluster();
        let prices = PriceCurve::new(view, objective);
        let (classes, class_of) = classes(view);
        let mut classes_of = vec![Vec::new(); cluster.gpu_types().len()];
        for (at, class) in classes.iter().enumerate() {
            classes_of[class.gpu_type].push(at as u16);
        }
        let mut gpus_of = vec![0.0; cluster.gpu_types().len()];
        for class in class_of.iter().filter(|c| **c != NO_CLASS) {
            let class = &classes[usize::from(*class)];
            gpus_of[class.gpu_type] += f64::from(class.size);
        }
        let empty = Nodes::new(&classes, class_of, cluster.gpu_types().len());
        let lost: f64 = cluster
            .node_ids()
            .map(|id| view.state.node(id))
            .filter(|node| !node.is_ours())
            .map(|node| node.planned_committed().get())
            .sum();
        let mut problem = Self {
            view,
            deadlines: objective.has_deadlines(),
            rigid: false,
            time_only: objective.goal == Goal::Jct,
            lateness_only: objective.is_lateness_only(),
            items: Vec::new(),
            ways: Vec::new(),
            classes,
            classes_of,
            worth: vec![1.0; gpus_of.len()],
            gpus_of,
            coming: Vec::new(),
            weights: 0.0,
            mean_time: 0.0,
            mean_fastest: 0.0,
            hysteresis,
            headroom: 0.0,
            eager: false,
            capacity: 1.0,
            toll: 0.0,
            soon: 1.0,
            empty,
            budget: view.budget.map_or(f64::INFINITY, |b| b.get() - lost),
            prices,
            owed: Owed::default(),
        };
        let mut known = Ways::new(objective.limits(view));
        problem.add_items(objective, &mut known);
        problem.rigid = problem.is_mostly_rigid();
        if problem.rigid {
            for item in problem.items.iter_mut().filter(|item| item.missed > 0.0) {
                (item.weight, item.missed) = Objective::rigid_lateness(item.weight, item.missed);
            }
        } else {
            problem.serve_overdue();
        }
        problem.weigh_types();
        problem.sum_up();
        // Where every second counts and jobs can be moved, whoever comes is served when it is there.
        if problem.deadlines && !problem.rigid {
            foreseen::foresee(&mut problem, objective, &mut known);
        }
        problem
    }

    /// What follows from all jobs together.
    fn sum_up(&mut self) {
        let jobs = self.items.len().max(1) as f64;
        self.weights = self.items.iter().map(|item| item.weight).sum();
        self.mean_time = self.items.iter().map(|item| self.frugal(item).0).sum::<f64>() / jobs;
        let fastest = |item: &Item| item.work / self.top_speed(item);
        self.mean_fastest = self.items.iter().map(fastest).sum::<f64>() / jobs;
        self.soon = (self.mean_time * SOON).max(1.0);
        self.capacity = self.gpus_of.iter().zip(&self.worth).map(|(n, w)| n * w).sum();
        let gpus: f64 = self.gpus_of.iter().sum();
        let crowd = (self.items.len() as f64 / gpus.max(1.0)).min(1.0);
        let mean_weight = self.weights / jobs;
        self.toll = TOLL * mean_weight * crowd * crowd / self.capacity.max(1.0);
    }

    fn add_items(&mut self, objective: &Objective, known: &mut Ways) {
        let view = self.view;
        for (id, job) in view.state.unfinished_jobs() {
            let ways = if job.is_plannable() { known.of(view, job) } else { &[] };
            let first = self.ways.len() as u32;
            self.ways.extend_from_slice(ways);
            let now = job.planned.as_ref().and_then(|placement| {
                let spot: Spot = placement
                    .allocation
                    .shares()
                    .map(|share| (share.node.0, share.count() as u8))
                    .collect();
                let usable = spot.iter().all(|(n, _)| self.empty.class_of(*n) != NO_CLASS);
                let c = &placement.configuration;
                let same = |way: &&Way| {
                    way.shape == c.shape()
                        && way.nodes == c.nodes
                        && way.batch == c.batch
                        && (way.limit - c.power_limit.get()).abs() < 1e-6
                };
                let at = self.ways[first as usize..].iter().find(same);
                let way = match at {
                    Some(_) => {
                        let ways = self.ways[first as usize..].iter();
                        first + ways.take_while(|way| !same(way)).count() as u32
                    }
                    None => {
                        self.ways.push(Way::new(job, view, *c)?);
                        self.ways.len() as u32 - 1
                    }
                };
                usable.then_some(Slot { way, spot })
            });
            let last = self.ways.len() as u32;
            if !job.is_plannable() || first == last {
                // It stays where it is, if it is anywhere.
                self.ways.truncate(first as usize);
                self.block(id);
                continue;
            }
            let Lateness { weight, missed, due } = objective.lateness(view, job);
            let restart = view.predictor.restart(&job.job);
            let runs = match (&job.held, &job.planned) {
                // One that starts or stops at present is on its way.
                (Some(held), Some(planned)) if job.phase == Phase::Running => {
                    held.same_but_limit(planned)
                }
                _ => false,
            };
            let ran = job.first_start.is_some();
            let delays = view.state.delays();
            let (start, stop) = (delays.start(ran).get(), delays.stop().get());
            let again = delays.start(true).get();
            let load = job.load_time(view.predictor).get() + start;
            let age = view.now.since(job.job.submit).get();
            self.items.push(Item {
                id,
                weight,
                missed,
                due,
                work: job.remaining(view.now).0,
                restart: restart.save.get() + stop + again + restart.load.get(),
                load: if matches!(job.phase, Phase::Starting(_)) { 0.0 } else { load },
                ways: first..last,
                frugal: None,
                runs,
                // Who is on the way to its GPUs gets there first; plans that follow one another at
                // an instant would otherwise send it to and fro.
                pinned: job.is_pinned() || (now.is_some() && !runs),
                stays: !job.job.preemptible,
                commits: commits(job),
                overdue: false,
                over: 0.0,
                granted: None,
                leaves: false,
                age,
                now,
            });
        }
        for at in 0..self.items.len() {
            let fastest = self.fastest(at);
            let mut item = self.items[at].clone();
            item.over = item.age - objective.patience(fastest);
            item.overdue = item.over >= 0.0;
            self.without_deadline(&mut item);
            item.frugal = self.most_frugal(&item).filter(|_| self.deadlines);
            self.items[at] = item;
        }
    }

    /// Who may be late for nothing is not left waiting for ever all the same.
    pub(super) fn without_deadline(&self, item: &mut Item) {
        if item.weight <= 0.0 || item.due == f64::INFINITY {
            let usual = self.ways_in(item).next().map_or(0.0, |(_, way)| self.usual_watts(way));
            let upkeep = self.prices.watt(0.0, 1.0) * usual;
            (item.weight, item.due) = (IDLY * upkeep, -item.age);
        }
    }

    /// A job that nothing is decided about keeps its GPUs from others.
    fn block(&mut self, id: JobId) {
        let Some(placement) = &self.view.state.job(id).planned else { return };
        for share in placement.allocation.shares() {
            if self.empty.class_of(share.node.0) != NO_CLASS {
                let spot: Spot = std::iter::once((share.node.0, share.count() as u8)).collect();
                let limit = placement.configuration.power_limit.get();
                self.empty.take(&self.classes, &spot, limit);
            }
        }
    }

    pub(super) fn ways_of(&self, item: usize) -> impl Iterator<Item = (u32, &Way)> {
        self.ways_in(&self.items[item])
    }

    pub(super) fn ways_in(&self, item: &Item) -> impl Iterator<Item = (u32, &Way)> {
        let range = item.ways.clone();
        range.clone().zip(&self.ways[range.start as usize..range.end as usize])
    }

    pub(super) fn way(&self, at: u32) -> &Way {
        &self.ways[at as usize]
    }

    /// The job's shortest time from its start to its end.
    pub(super) fn fastest(&self, item: usize) -> f64 {
        let item = &self.items[item];
        self.view.state.job(item.id).job.work.0 / self.top_speed(item)
    }

    /// Work per second in the fastest way.
    pub(super) fn top_speed(&self, item: &Item) -> f64 {
        self.ways_in(item).map(|(_, way)| way.rate).fold(0.0, f64::max)
    }

    /// What is a short time here, in seconds: a minute, or less where jobs take no longer.
    pub(super) fn moment(&self) -> f64 {
        (SHORT * self.mean_time).clamp(1.0, MINUTE)
    }

    /// The time of a job in the way that takes least GPU time, and that GPU time.
    pub(super) fn frugal(&self, item: &Item) -> (f64, f64) {
        let speed = |way: &Way| way.rate / self.takes(way);
        let best = self.ways_in(item).max_by(|a, b| speed(a.1).total_cmp(&speed(b.1)));
        best.map_or((0.0, 0.0), |(_, way)| {
            let time = item.work / way.rate;
            (time, time * self.takes(way))
        })
    }

    /// How much a GPU of each type gets done, relative to the best type for each job.
    fn weigh_types(&mut self) {
        let types = self.gpus_of.len();
        let mut sums = vec![(0.0, 0.0); types];
        for item in 0..self.items.len() {
            let mut best = vec![0.0_f64; types];
            for (_, way) in self.ways_of(item) {
                let speed = way.rate / way.gpus();
                let of_type = &mut best[way.shape.gpu_type.index()];
                *of_type = of_type.max(speed);
            }
            let most = best.iter().copied().fold(0.0, f64::max);
            for (sum, speed) in sums.iter_mut().zip(&best) {
                if *speed > 0.0 {
                    *sum = (sum.0 + speed / most, sum.1 + 1.0);
                }
            }
        }
        for (worth, (sum, count)) in self.worth.iter_mut().zip(sums) {
            *worth = if count > 0.0 { sum / count } else { 1.0 };
        }
    }
}

/// Where a job starts decides for good: it may not be moved, or not change its shape.
pub(super) fn commits(job: &JobState) -> bool {
    let molds = job.job.elasticity == Elasticity::Moldable && job.first_start.is_none();
    !job.job.preemptible || molds
}

fn classes(view: &ClusterView<'_>) -> (Vec<Class>, Vec<u16>) {
    let cluster = view.state.cluster();
    let mut known: Vec<(&Node, bool)> = Vec::new();
    let mut classes = Vec::new();
    let mut class_of = Vec::with_capacity(cluster.nodes().len());
    for id in cluster.node_ids() {
        let state = view.state.node(id);
        if !state.is_ours() {
            class_of.push(NO_CLASS);
            continue;
        }
        let node = cluster.node(id);
        let awake = state.power == NodePower::Up;
        // Sites have few kinds of nodes, and nodes of a kind stand together.
        let found = known.iter().rposition(|(other, up)| {
            let same_boot = other.boot_time == node.boot_time;
            *up == awake && alike(other, node) && other.gpu_type == node.gpu_type && same_boot
        });
        let at = found.unwrap_or_else(|| {
            known.push((node, awake));
            classes.push(class(view, id, awake));
            classes.len() - 1
        });
        class_of.push(at as u16);
    }
    (classes, class_of)
}

fn class(view: &ClusterView<'_>, id: NodeId, awake: bool) -> Class {
    let cluster = view.state.cluster();
    let node = cluster.node(id);
    let idle = cluster.gpu_type(node.gpu_type).idle;
    let (mut billed, mut committed) = (Vec::new(), Vec::new());
    for busy in 0..=node.gpus {
        let free = f64::from(node.gpus - busy);
        let (drawn, cost) = match &node.draw {
            // An idle node is put to sleep before long.
            NodeDraw::Additive { .. } if busy == 0 => (node.sleep, node.sleep * view.prices.pue),
            NodeDraw::Additive { base } => {
                let drawn = *base + idle * free;
                (drawn, drawn * view.prices.pue)
            }
            NodeDraw::ByBusyGpus(table) => {
                let entry = table[usize::from(busy)];
                (entry.watts, entry.watts * entry.pue)
            }
        };
        billed.push(cost.get());
        // An idle node can be put to sleep where watts are short.
        committed.push(if busy == 0 { node.sleep } else { drawn }.get());
    }
    Class {
        gpu_type: node.gpu_type.index(),
        size: node.gpus,
        billed,
        committed,
        additive: node.is_additive(),
        boot: if awake { 0.0 } else { node.boot.get() },
        pue: if node.is_additive() { view.prices.pue } else { 0.0 },
        wake: if awake { 0.0 } else { node.boot_time.get() },
    }
}
