//! Tiresias: discretised two-dimensional least attained service.
//!
//! A job's service is the GPU-seconds it has held. Service sorts jobs into a few queues; a job in
//! a lower queue gives way to one in a higher queue, and within a queue jobs are taken in the
//! order in which they first started, new ones last and by submission. Few queues mean few
//! preemptions. Jobs keep the GPU count they asked for.
//!
//! After J. Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019.

use crate::list::{Rank, WaitingJobs, rank_of_time};
use crate::placing::{Choice, Draft, FreeGpus, raise_limits, start_at_any_limit};
use std::collections::{BTreeMap, BTreeSet};
use wattline_core::cluster::Shape;
use wattline_core::ids::{JobId, MenuId, NodeId};
use wattline_core::job_table::JobTable;
use wattline_core::placement::{Allocation, Placement};
use wattline_core::plan::{Plan, Reason};
use wattline_core::policy::{Changes, ClusterView, Policy};
use wattline_core::state::{JobState, Target};
use wattline_core::time::Timestamp;
use wattline_core::units::Seconds;

/// What Tiresias can be told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TiresiasOptions {
    /// A job leaves queue `k` when it has held `thresholds[k]` GPU-seconds.
    pub(crate) thresholds: Vec<f64>,
}

impl Default for TiresiasOptions {
    /// Two boundaries, one and ten GPU-hours.
    fn default() -> Self {
        Self { thresholds: vec![3600.0, 36_000.0] }
    }
}

/// Service within this many GPU-seconds of a boundary counts as across, so that rounding does not
/// decide.
const SLACK: f64 = 1e-3;
/// The most jobs that give way for one.
const MOST_VICTIMS: usize = 64;
/// A rank is the queue, then whether the job is new, then the time to within 32 microseconds.
const QUEUE_SHIFT: u32 = 60;
const NEW: u64 = 1 << 59;
/// Ranks have room for so many queues.
pub(crate) const MOST_QUEUES: usize = 16;

/// Tiresias with its index.
struct Tiresias {
    options: TiresiasOptions,
    waiting: WaitingJobs,
    /// Jobs with the same menu that ask for the same number of GPUs fit in the same places.
    groups: BTreeMap<(MenuId, u32), MenuId>,
    free: FreeGpus,
    /// Jobs planned to run, by rank: the last gives way first.
    running: BTreeSet<(Rank, JobId)>,
    /// When a job that runs, or still holds GPUs, reaches its queue's boundary; at the earliest.
    crossings: BTreeSet<(Timestamp, JobId)>,
    crosses_at: JobTable<Timestamp>,
    capped: BTreeSet<JobId>,
    known: JobTable<Running>,
    nodes: Vec<OnNode>,
    blocked: Vec<bool>,
}

#[derive(Clone, Debug)]
struct Running {
    rank: Rank,
    placement: Placement,
}

/// Who runs on a node, and how many GPUs each queue has there.
#[derive(Clone, Debug, Default)]
struct OnNode {
    jobs: Vec<JobId>,
    gpus: [u32; MOST_QUEUES],
}

impl OnNode {
    fn below(&self, queue: usize) -> u32 {
        self.gpus[queue + 1..].iter().sum()
    }
}

/// Two-dimensional attained service with discretised queues.
pub(crate) fn tiresias(options: TiresiasOptions) -> Box<dyn Policy> {
    Box::new(Tiresias {
        options,
        waiting: WaitingJobs::default(),
        groups: BTreeMap::new(),
        free: FreeGpus::default(),
        running: BTreeSet::new(),
        crossings: BTreeSet::new(),
        crosses_at: JobTable::default(),
        capped: BTreeSet::new(),
        known: JobTable::default(),
        nodes: Vec::new(),
        blocked: Vec::new(),
    })
}

fn queue_of(rank: Rank) -> usize {
    (rank >> QUEUE_SHIFT) as usize
}

impl Tiresias {
    /// A job that may not be taken off its GPUs stays in the first queue, where nobody makes it
    /// give way.
    fn rank(&self, view: &ClusterView<'_>, job: &JobState) -> Rank {
        let attained = job.attained(view.now) + SLACK;
        let sinks = |t: &&f64| **t <= attained && job.job.preemptible;
        let queue = self.options.thresholds.iter().filter(sinks).count();
        let (new, time) = match job.first_start {
            Some(time) => (0, time),
            None => (NEW, job.job.submit),
        };
        (queue as u64) << QUEUE_SHIFT | new | (rank_of_time(time) >> 5)
    }

    /// When the job will have crossed into the next queue if it goes on holding GPUs. One that is
    /// being stopped does so too, while it writes its checkpoint.
    fn crossing(
        &self,
        view: &ClusterView<'_>,
        job: &JobState,
        planned: Option<&Placement>,
    ) -> Option<Timestamp> {
        if !job.job.preemptible {
            return None;
        }
        let placements = planned.into_iter().chain(&job.held);
        let gpus = placements.map(|p| p.configuration.gpus).max()?;
        let attained = job.attained(view.now) + SLACK;
        let next = self.options.thresholds.iter().find(|t| **t > attained)?;
        let micros = ((next - attained) / f64::from(gpus) * 1e6).ceil().max(1.0);
        Some(Timestamp::from_micros(view.now.micros() + micros as i64))
    }

    fn set_crossing(&mut self, id: JobId, at: Option<Timestamp>) {
        let old = match at {
            Some(at) => self.crosses_at.insert(id, at),
            None => self.crosses_at.remove(id),
        };
        if let Some(old) = old {
            self.crossings.remove(&(old, id));
        }
        if let Some(at) = at {
            self.crossings.insert((at, id));
        }
    }

    fn sync(&mut self, view: &ClusterView<'_>) {
        match view.changes {
            Changes::Everything => {
                self.waiting = WaitingJobs::default();
                self.running.clear();
                self.crossings.clear();
                self.crosses_at = JobTable::default();
                self.capped.clear();
                self.known = JobTable::default();
                self.nodes = vec![OnNode::default(); view.state.cluster().nodes().len()];
                self.free = FreeGpus::new(view.state);
                for (id, _) in view.state.unfinished_jobs() {
                    self.sync_job(view, id);
                }
            }
            Changes::Only { jobs, nodes } => {
                for id in jobs {
                    self.sync_job(view, *id);
                }
                for id in nodes {
                    self.free.sync(view.state, *id);
                }
            }
        }
        // A little early, because when exactly a job is across is a matter of rounding.
        let soon = view.now + Seconds::new(1e-5);
        let across = self.crossings.iter().take_while(|(time, _)| *time <= soon);
        for id in across.map(|(_, id)| *id).collect::<Vec<_>>() {
            self.sync_job(view, id);
        }
    }

    fn sync_job(&mut self, view: &ClusterView<'_>, id: JobId) {
        let job = view.state.job(id);
        self.forget_running(id);
        let rank = self.rank(view, job);
        let waits = job.is_waiting() && !view.state.menu(job.menu).is_empty();
        let group = self.group(view, id);
        self.waiting.set(id, waits.then_some((group, rank)));
        self.set_crossing(id, self.crossing(view, job, None));
        if let Some(placement) = job.planned.as_ref().filter(|_| job.is_plannable()) {
            self.remember_running(view, id, rank, placement.clone());
        }
    }

    fn remember_running(
        &mut self,
        view: &ClusterView<'_>,
        id: JobId,
        rank: Rank,
        placement: Placement,
    ) {
        self.set_crossing(id, self.crossing(view, view.state.job(id), Some(&placement)));
        for share in placement.allocation.shares() {
            let node = &mut self.nodes[share.node.index()];
            node.gpus[queue_of(rank)] += share.count();
            node.jobs.push(id);
        }
        self.running.insert((rank, id));
        let card = view.state.cluster().gpu_type(placement.configuration.gpu_type);
        if placement.configuration.power_limit < card.default_limit {
            self.capped.insert(id);
        }
        self.known.insert(id, Running { rank, placement });
    }

    fn forget_running(&mut self, id: JobId) -> Option<Running> {
        let running = self.known.remove(id)?;
        self.running.remove(&(running.rank, id));
        self.capped.remove(&id);
        for share in running.placement.allocation.shares() {
            let node = &mut self.nodes[share.node.index()];
            node.gpus[queue_of(running.rank)] -= share.count();
            node.jobs.retain(|job| *job != id);
        }
        Some(running)
    }

    /// The GPU count a job gets: of those it can run with, the nearest to what it asked for.
    fn count(view: &ClusterView<'_>, job: &JobState) -> u32 {
        let wanted = job.job.gpus.requested;
        let counts = view.state.menu(job.menu).iter().map(|shape| shape.gpus);
        counts.min_by_key(|gpus| gpus.abs_diff(wanted)).unwrap_or(wanted)
    }

    fn group(&mut self, view: &ClusterView<'_>, id: JobId) -> MenuId {
        let job = view.state.job(id);
        let next = MenuId(self.groups.len() as u32);
        *self.groups.entry((job.menu, Self::count(view, job))).or_insert(next)
    }

    /// What the job asked for, on every GPU type that has it: Tiresias does not reshape jobs.
    fn choices(view: &ClusterView<'_>, id: JobId) -> Vec<Choice> {
        let job = view.state.job(id);
        let count = Self::count(view, job);
        let shapes = view.state.menu(job.menu).iter().filter(|s| s.gpus == count);
        shapes
            .map(|shape| Choice {
                shape: *shape,
                batch: job.job.batch.requested,
                limit: view.state.cluster().gpu_type(shape.gpu_type).default_limit,
                time: Seconds::ZERO,
                power: view.state.cluster().gpu_type(shape.gpu_type).busy,
                late: false,
                reason: Reason::AsRequested,
            })
            .collect()
    }

    fn unblock(&mut self) {
        self.blocked.clear();
        self.blocked.resize(self.groups.len(), false);
    }

    fn raise_limits(&mut self, view: &ClusterView<'_>, draft: &mut Draft<'_, '_>) {
        let known = &self.known;
        let planned = |id: JobId| known.get(id).map(|running| &running.placement);
        for (id, limit) in raise_limits(view, draft, (&mut self.capped, None), planned) {
            if let Some(running) = self.known.get_mut(id) {
                running.placement.configuration.power_limit = limit;
            }
        }
    }

    /// Starts what can start; says whether somebody gave way, who may have left watts.
    fn schedule(&mut self, view: &ClusterView<'_>, draft: &mut Draft<'_, '_>) -> bool {
        let mut some_gave_way = false;
        loop {
            self.unblock();
            let mut started = false;
            while let Some((rank, id, group)) = self.waiting.first(&self.blocked) {
                let choices = Self::choices(view, id);
                if self.start_on_free(view, draft, id, rank, &choices) {
                    started = true;
                } else if self.start_on_others(view, draft, id, rank, &choices) {
                    // Those who gave way may have left more than was needed.
                    some_gave_way = true;
                    self.unblock();
                } else {
                    self.blocked[group.index()] = true;
                }
            }
            // Under a budget a job that found no watts may find some after others started: where
            // the best fit is taken by then, another node is, and nodes may have gone to sleep.
            let again = started && view.budget.is_some();
            if !again && !self.start_one_at_any_limit(view, draft) {
                return some_gave_way;
            }
        }
    }

    /// Where nothing runs for want of watts: see [`start_at_any_limit`].
    fn start_one_at_any_limit(
        &mut self,
        view: &ClusterView<'_>,
        draft: &mut Draft<'_, '_>,
    ) -> bool {
        self.unblock();
        if !self.running.is_empty() || view.budget.is_none() {
            return false;
        }
        while let Some((rank, id, group)) = self.waiting.first(&self.blocked) {
            let choices = Self::choices(view, id);
            if let Some(found) = start_at_any_limit(view, draft, &mut self.free, &choices) {
                self.start(view, draft, id, rank, found.choice, found.place);
                return true;
            }
            self.blocked[group.index()] = true;
        }
        false
    }

    fn start_on_free(
        &mut self,
        view: &ClusterView<'_>,
        draft: &mut Draft<'_, '_>,
        id: JobId,
        rank: Rank,
        choices: &[Choice],
    ) -> bool {
        let found = choices.iter().find_map(|choice| {
            let place = self.free.place(view.state.cluster(), choice.shape)?;
            draft.can_start(&place, choice.limit).then_some((*choice, place))
        });
        let Some((choice, place)) = found else { return false };
        self.start(view, draft, id, rank, choice, place);
        true
    }

    /// Starts a job on GPUs, and with watts, that jobs in lower queues give up.
    fn start_on_others(
        &mut self,
        view: &ClusterView<'_>,
        draft: &mut Draft<'_, '_>,
        id: JobId,
        rank: Rank,
        choices: &[Choice],
    ) -> bool {
        let queue = queue_of(rank);
        if self.running.last().is_none_or(|(last, _)| queue_of(*last) <= queue) {
            return false;
        }
        for choice in choices {
            let Some(mut victims) = self.victims(view, choice.shape, queue) else { continue };
            // Where there is room, only watts can be missing: then the last in line give way too.
            let last_in_line: Vec<JobId> = self
                .running
                .iter()
                .rev()
                .take_while(|(last, _)| view.budget.is_some() && queue_of(*last) > queue)
                .map(|(_, job)| *job)
                .take(MOST_VICTIMS)
                .collect();
            let mut last_in_line = last_in_line.into_iter();
            loop {
                if let Some(place) = self.place_without(view, draft, &victims, choice) {
                    for victim in &victims {
                        self.give_way(draft, *victim, id, view);
                    }
                    self.start(view, draft, id, rank, *choice, place);
                    return true;
                }
                match last_in_line.find(|job| !victims.contains(job)) {
                    Some(job) => victims.push(job),
                    None => break,
                }
            }
        }
        false
    }

    /// Where the job could go if the victims were gone.
    fn place_without(
        &mut self,
        view: &ClusterView<'_>,
        draft: &Draft<'_, '_>,
        victims: &[JobId],
        choice: &Choice,
    ) -> Option<Allocation> {
        let gone: Vec<&Placement> = victims
            .iter()
            .filter_map(|victim| self.known.get(*victim).map(|running| &running.placement))
            .collect();
        for placement in &gone {
            self.free.give_back(&placement.allocation);
        }
        let place = self.free.place(view.state.cluster(), choice.shape);
        for placement in &gone {
            self.free.take(&placement.allocation);
        }
        place.filter(|place| draft.can_start_without(&gone, place, choice.limit))
    }

    /// Jobs in lower queues whose GPUs make room for the shape: as few GPUs as possible.
    fn victims(&self, view: &ClusterView<'_>, shape: Shape, queue: usize) -> Option<Vec<JobId>> {
        let cluster = view.state.cluster();
        let largest = cluster.largest_node(shape.gpu_type);
        let wanted = cluster.nodes_for(shape) as usize;
        let per_node = shape.gpus.min(largest);
        let mut candidates: Vec<(u32, NodeId)> = cluster
            .node_ids()
            .filter(|id| cluster.node(*id).gpu_type == shape.gpu_type)
            .filter(|id| view.state.node(*id).is_ours())
            .filter_map(|id| {
                let free = self.free.free_on(id);
                let enough = free + self.nodes[id.index()].below(queue) >= per_node;
                enough.then(|| (per_node.saturating_sub(free), id))
            })
            .collect();
        if candidates.len() < wanted {
            return None;
        }
        candidates.sort_unstable();
        candidates.truncate(wanted);
        let mut victims: Vec<JobId> = Vec::new();
        for (mut needed, id) in candidates {
            let mut here: Vec<(Rank, JobId, u32)> = self.nodes[id.index()]
                .jobs
                .iter()
                .filter_map(|job| {
                    let running = self.known.get(*job)?;
                    let share = running.placement.allocation.shares().find(|s| s.node == id)?;
                    (queue_of(running.rank) > queue).then_some((running.rank, *job, share.count()))
                })
                .collect();
            here.sort_unstable_by(|a, b| b.cmp(a));
            for (_, job, gpus) in here {
                if needed == 0 {
                    break;
                }
                needed = needed.saturating_sub(gpus);
                if !victims.contains(&job) {
                    victims.push(job);
                }
            }
        }
        Some(victims)
    }

    fn give_way(
        &mut self,
        draft: &mut Draft<'_, '_>,
        victim: JobId,
        to: JobId,
        view: &ClusterView<'_>,
    ) {
        let Some(running) = self.forget_running(victim) else { return };
        self.free.give_back(&running.placement.allocation);
        draft.stop(victim, &running.placement, Reason::GaveWay { to });
        let group = self.group(view, victim);
        self.waiting.set(victim, Some((group, running.rank)));
    }

    fn start(
        &mut self,
        view: &ClusterView<'_>,
        draft: &mut Draft<'_, '_>,
        id: JobId,
        rank: Rank,
        choice: Choice,
        on: Allocation,
    ) {
        for share in on.shares() {
            if self.free.is_asleep(share.node) {
                draft.node_target(share.node, Target::Up, Reason::NodeNeeded);
            }
        }
        self.free.take(&on);
        self.waiting.set(id, None);
        let placement = choice.placed(on);
        self.remember_running(view, id, rank, placement.clone());
        draft.start(id, placement, choice.reason);
    }
}

impl Policy for Tiresias {
    fn name(&self) -> &str {
        "tiresias"
    }

    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        self.sync(view);
        let mut draft = Draft::new(view);
        self.raise_limits(view, &mut draft);
        if self.schedule(view, &mut draft) {
            self.raise_limits(view, &mut draft);
        }
        draft.explain_new(&self.free);
        draft.plan().revisit = self.crossings.first().map(|(time, _)| *time);
        draft.finish()
    }
}
