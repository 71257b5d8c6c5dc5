//! The view in dense numbers: jobs as items, nodes as classes, and what follows from all of them.

use super::arrivals::Arrival;
use super::prices::PriceCurve;
use super::starvation::Starvation;
use super::{
    Candidate, CandidateCache, Goal, Lateness, NO_CLASS, Nodes, Objective, Spot, Tuning, arrivals,
};
use crate::placing::alike;
use std::ops::Range;
use std::sync::Arc;
use wattline_core::cluster::{Node, NodeDraw};
use wattline_core::ids::{JobId, NodeId};
use wattline_core::job::Elasticity;
use wattline_core::policy::ClusterView;
use wattline_core::power::NodePower;
use wattline_core::state::{JobState, Phase};

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) id: JobId,
    /// What a second past `due` costs.
    pub(super) weight: f64,
    /// What missing the deadline costs at once.
    pub(super) missed: f64,
    /// Seconds from now; infinite if lateness costs nothing.
    pub(super) due: f64,
    pub(super) work: f64,
    /// Lost when it leaves the GPUs it has: saving and loading, and what the cluster takes to stop
    /// and start it.
    pub(super) restart: f64,
    /// Lost when it starts: what the cluster takes for that, and loading, if it has run before.
    pub(super) load: f64,
    pub(super) candidates: Range<u32>,
    /// The one that takes least energy, where that counts.
    pub(super) frugal: Option<u32>,
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
    pub(super) age: f64,
}

impl Item {
    /// A job that has nothing yet and has not run.
    pub(super) fn new(
        (id, state): (JobId, &JobState),
        Lateness { weight, missed, due }: Lateness,
        candidates: Range<u32>,
    ) -> Self {
        let job = &state.job;
        let molds = job.elasticity == Elasticity::Moldable && state.first_start.is_none();
        Self {
            id,
            weight,
            missed,
            due,
            work: job.work.0,
            restart: 0.0,
            load: 0.0,
            candidates,
            frugal: None,
            now: None,
            runs: false,
            pinned: false,
            stays: !job.preemptible,
            commits: !job.preemptible || molds,
            overdue: false,
            over: 0.0,
            granted: None,
            leaves: false,
            age: 0.0,
        }
    }

    /// Where it runs, if a restart would cost something.
    pub(super) fn running(&self) -> Option<&Slot> {
        self.now.as_ref().filter(|_| self.runs)
    }

    /// Where it is before anything is decided about it.
    pub(super) fn at_first(&self) -> Option<Slot> {
        self.granted.clone().or_else(|| self.now.clone().filter(|_| !self.leaves))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slot {
    pub(super) candidate: u32,
    pub(super) spot: Spot,
}

/// Where each item runs.
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
    /// Committed watts of a node whose limits sum up to `limits`.
    pub(super) fn commits(&self, busy: usize, limits: f64) -> f64 {
        match (busy, self.additive) {
            (0, _) => self.committed[0],
            (_, true) => (self.committed[busy] + limits).max(self.boot),
            (_, false) => self.committed[busy].max(self.boot),
        }
    }
}

pub(super) struct Problem<'v, 'a> {
    pub(super) view: &'v ClusterView<'a>,
    pub(super) tuning: &'v Tuning,
    /// Whether lateness counts, and not every second.
    pub(super) deadlines: bool,
    /// Whether most jobs must keep what they get.
    pub(super) rigid: bool,
    /// Whether time is all that counts, and no energy.
    pub(super) time_only: bool,
    /// Whether lateness alone counts, and energy only breaks ties.
    pub(super) lateness_only: bool,
    pub(super) items: Vec<Item>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) classes: Arc<[Class]>,
    /// By GPU type.
    pub(super) classes_of: Vec<Vec<u16>>,
    /// GPUs by type that are there.
    pub(super) gpus_of: Vec<f64>,
    /// How much a GPU-second of a type is worth, relative to the best one.
    pub(super) worth: Vec<f64>,
    pub(super) arrivals: Vec<Arrival>,
    /// What a second costs all jobs together, if all are late.
    pub(super) weights: f64,
    /// Of a job in the candidate that takes least GPU time, on average.
    pub(super) mean_time: f64,
    /// Of a job in its fastest candidate, on average.
    pub(super) mean_fastest: f64,
    /// GPUs, those of slower types counted for less.
    pub(super) capacity: f64,
    /// What a GPU-second costs the jobs to come, when they have come.
    pub(super) arrival_toll: f64,
    /// Seconds in which most of the free GPUs will be wanted.
    pub(super) soon: f64,
    /// All nodes without the jobs above.
    pub(super) empty: Nodes,
    pub(super) budget: f64,
    pub(super) prices: PriceCurve,
    pub(super) starvation: Starvation,
}

impl<'v, 'a> Problem<'v, 'a> {
    pub(super) fn new(view: &'v ClusterView<'a>, objective: &Objective<'v>) -> Self {
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
        let empty = Nodes::new(classes.clone(), class_of, cluster.gpu_types().len());
        let lost: f64 = cluster
            .node_ids()
            .map(|id| view.state.node(id))
            .filter(|node| !node.is_ours())
            .map(|node| node.planned_committed().get())
            .sum();
        let mut problem = Self {
            view,
            tuning: objective.tuning,
            deadlines: objective.has_deadlines(),
            rigid: false,
            time_only: objective.goal == Goal::Jct,
            lateness_only: objective.is_lateness_only(),
            items: Vec::new(),
            candidates: Vec::new(),
            classes,
            classes_of,
            worth: vec![1.0; gpus_of.len()],
            gpus_of,
            arrivals: Vec::new(),
            weights: 0.0,
            mean_time: 0.0,
            mean_fastest: 0.0,
            capacity: 1.0,
            arrival_toll: 0.0,
            soon: 1.0,
            empty,
            budget: view.budget.map_or(f64::INFINITY, |b| b.get() - lost),
            prices,
            starvation: Starvation::default(),
        };
        let mut known = CandidateCache::new(objective.limits(view), objective.tuning);
        problem.add_items(objective, &mut known);
        problem.rigid = problem.is_mostly_rigid();
        if problem.rigid {
            for item in problem.items.iter_mut().filter(|item| item.missed > 0.0) {
                (item.weight, item.missed) = objective.rigid_lateness(item.weight, item.missed);
            }
        } else if problem.tuning.starvation_guard {
            problem.serve_overdue();
        }
        problem.weigh_types();
        problem.sum_up();
        // Where every second counts and jobs can be moved, a job is served when it has come.
        if problem.deadlines && !problem.rigid && problem.tuning.expected_jobs {
            arrivals::forecast(&mut problem, objective, &mut known);
        }
        problem
    }

    fn sum_up(&mut self) {
        let jobs = self.items.len().max(1) as f64;
        self.weights = self.items.iter().map(|item| item.weight).sum();
        self.mean_time = self.items.iter().map(|item| self.frugal(item).0).sum::<f64>() / jobs;
        let fastest = |item: &Item| item.work / self.top_speed(item);
        self.mean_fastest = self.items.iter().map(fastest).sum::<f64>() / jobs;
        self.soon = (self.mean_time * self.tuning.arrival_toll_delay_share).max(1.0);
        self.capacity = self.gpus_of.iter().zip(&self.worth).map(|(n, w)| n * w).sum();
        let gpus: f64 = self.gpus_of.iter().sum();
        let crowd = (self.items.len() as f64 / gpus.max(1.0)).min(1.0);
        let mean_weight = self.weights / jobs;
        let jobs_to_come =
            if self.tuning.arrival_toll { self.tuning.arrival_toll_jobs } else { 0.0 };
        self.arrival_toll = jobs_to_come * mean_weight * crowd * crowd / self.capacity.max(1.0);
    }

    fn add_items(&mut self, objective: &Objective<'_>, known: &mut CandidateCache) {
        let view = self.view;
        for (id, job) in view.state.unfinished_jobs() {
            let candidates = if job.is_plannable() { known.of(view, job) } else { &[] };
            let first = self.candidates.len() as u32;
            self.extend(candidates);
            let now = job.planned.as_ref().and_then(|placement| {
                let spot: Spot = placement
                    .allocation
                    .shares()
                    .map(|share| (share.node.0, share.count() as u8))
                    .collect();
                let usable = spot.iter().all(|(n, _)| self.empty.class_of(*n) != NO_CLASS);
                let c = &placement.configuration;
                let same = |candidate: &Candidate| {
                    candidate.shape == c.shape()
                        && candidate.nodes == c.nodes
                        && candidate.batch == c.batch
                        && (candidate.limit - c.power_limit.get()).abs() < 1e-6
                };
                let candidate = match self.candidates[first as usize..].iter().position(same) {
                    Some(at) => first + at as u32,
                    None => {
                        self.extend(&[Candidate::new(job, view, *c, self.tuning)?]);
                        self.candidates.len() as u32 - 1
                    }
                };
                usable.then_some(Slot { candidate, spot })
            });
            let last = self.candidates.len() as u32;
            if !job.is_plannable() || first == last {
                // It stays where it is, if it is anywhere.
                self.candidates.truncate(first as usize);
                self.block(id);
                continue;
            }
            let restart = view.predictor.restart(&job.job);
            let runs = match (&job.held, &job.planned) {
                // One that starts or stops at present is on its way.
                (Some(held), Some(planned)) if job.phase == Phase::Running => {
                    held.same_but_limit(planned)
                }
                _ => false,
            };
            let delays = view.state.delays();
            let (stop, again) = (delays.stop().get(), delays.start(true).get());
            let start = delays.start(job.first_start.is_some()).get();
            let load = job.load_time(view.predictor).get() + start;
            self.items.push(Item {
                work: job.remaining(view.now).0,
                restart: restart.save.get() + stop + again + restart.load.get(),
                load: if matches!(job.phase, Phase::Starting(_)) { 0.0 } else { load },
                runs,
                // A job on the way to its GPUs gets there first: plans at one instant would
                // otherwise send it to and fro.
                pinned: job.is_pinned() || (now.is_some() && !runs),
                age: view.now.since(job.job.submit).get(),
                now,
                ..Item::new((id, job), objective.lateness(view, job), first..last)
            });
        }
        for at in 0..self.items.len() {
            let mut item = self.items[at].clone();
            let work = self.view.state.job(item.id).job.work.0;
            item.over = item.age - objective.patience(work / self.top_speed(&item));
            item.overdue = self.tuning.starvation_guard && item.over >= 0.0;
            self.without_deadline(&mut item);
            item.frugal =
                self.most_frugal(&item).filter(|_| self.deadlines && self.tuning.downshift);
            self.items[at] = item;
        }
    }

    /// A job that may be late for nothing is not left waiting for ever all the same.
    pub(super) fn without_deadline(&self, item: &mut Item) {
        if item.weight <= 0.0 || item.due == f64::INFINITY {
            let usual = self.candidates_in(item).first().map_or(0.0, |c| self.usual_watts(c));
            let upkeep = self.prices.watt(0.0, 1.0) * usual;
            (item.weight, item.due) = (self.tuning.no_deadline_share * upkeep, -item.age);
        }
    }

    /// A job that nothing is decided about keeps its GPUs from others.
    fn block(&mut self, id: JobId) {
        let Some(placement) = &self.view.state.job(id).planned else { return };
        for share in placement.allocation.shares() {
            if self.empty.class_of(share.node.0) != NO_CLASS {
                let spot: Spot = std::iter::once((share.node.0, share.count() as u8)).collect();
                let limit = placement.configuration.power_limit.get();
                self.empty.take(&spot, limit);
            }
        }
    }

    /// Adds candidates to those of all jobs.
    pub(super) fn extend(&mut self, candidates: &[Candidate]) {
        let next = self.candidates.len() as u32..;
        self.candidates
            .extend(candidates.iter().zip(next).map(|(c, index)| Candidate { index, ..*c }));
    }

    pub(super) fn candidates_of(&self, item: usize) -> &[Candidate] {
        self.candidates_in(&self.items[item])
    }

    pub(super) fn candidates_in(&self, item: &Item) -> &[Candidate] {
        &self.candidates[item.candidates.start as usize..item.candidates.end as usize]
    }

    /// Whether a job fits anywhere.
    pub(super) fn has_room(&self, at: usize, nodes: &Nodes) -> bool {
        self.candidates_of(at).iter().any(|candidate| self.place(nodes, candidate).is_some())
    }

    /// Where it runs, if it would go on in this candidate, apart from its limit.
    pub(super) fn goes_on<'i>(&self, item: &'i Item, candidate: &Candidate) -> Option<&'i Slot> {
        item.running().filter(|now| self.of(now).same_but_limit(candidate))
    }

    pub(super) fn of(&self, slot: &Slot) -> &Candidate {
        self.candidate(slot.candidate)
    }

    pub(super) fn candidate(&self, at: u32) -> &Candidate {
        &self.candidates[at as usize]
    }

    pub(super) fn top_speed(&self, item: &Item) -> f64 {
        self.candidates_in(item).iter().map(|candidate| candidate.rate).fold(0.0, f64::max)
    }

    /// What is a short time here, in seconds: a minute, or less where jobs take no longer.
    pub(super) fn short_time(&self) -> f64 {
        let tuning = self.tuning;
        (tuning.moment_share * self.mean_time).max(1.0).min(tuning.moment_max_s)
    }

    /// The time of a job in the candidate that takes least GPU time, and that GPU time.
    pub(super) fn frugal(&self, item: &Item) -> (f64, f64) {
        let speed = |candidate: &Candidate| candidate.rate / self.takes(candidate);
        let best = self.candidates_in(item).iter().max_by(|a, b| speed(a).total_cmp(&speed(b)));
        best.map_or((0.0, 0.0), |candidate| {
            let time = item.work / candidate.rate;
            (time, time * self.takes(candidate))
        })
    }

    /// How much a GPU of each type gets done, relative to the best type for each job.
    fn weigh_types(&mut self) {
        let types = self.gpus_of.len();
        let mut sums = vec![(0.0, 0.0); types];
        for item in 0..self.items.len() {
            let mut best = vec![0.0_f64; types];
            for candidate in self.candidates_of(item) {
                let speed = candidate.rate / candidate.gpus();
                let of_type = &mut best[candidate.gpu_type()];
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

fn classes(view: &ClusterView<'_>) -> (Arc<[Class]>, Vec<u16>) {
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
    (classes.into(), class_of)
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
