//! List scheduling: waiting jobs are taken in an order, each gets the first of its configurations
//! that fits, running jobs are left alone.
//!
//! With the order by submission, deadline or weight these are exactly the first-principle methods
//! of the ANDREAS authors. A job that fits nowhere waits and the next one is tried.
//!
//! Power: a job starts when its full power fits below the budget. Only when nothing at all runs
//! may a job start at a lower limit, and idle nodes be put to sleep for it, so that no job waits
//! for ever. Limits that the engine lowered for a smaller budget are raised again first.

mod backfill;
mod queue;
mod timeline;

pub(crate) use queue::{Rank, WaitingJobs};

use crate::placing::{
    Choice, Draft, FreeGpus, UniformCap, choices, raise_limits, start_at_any_limit,
};
use std::collections::BTreeSet;
use timeline::Timeline;
use wattline_core::ids::{JobId, MenuId, NodeId};
use wattline_core::job::Job;
use wattline_core::placement::{Allocation, Placement};
use wattline_core::plan::{Plan, Reason};
use wattline_core::policy::{Changes, ClusterView, Policy};
use wattline_core::state::Target;
use wattline_core::time::Timestamp;
use wattline_core::units::Seconds;

/// What list policies can be told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ListOptions {
    /// Conservative backfill: the first so many waiting jobs get reservations, and no job starts
    /// that would delay one of them. `None`: any job that fits may start.
    pub(crate) backfill: Option<usize>,
    /// Nodes that were idle for so long go to sleep. `None`: nodes stay up.
    pub(crate) sleep_after: Option<Seconds>,
    /// Under a budget all GPUs have one power limit, with which the budget carries all of them.
    pub(crate) uniform_cap: bool,
}

/// A list policy with its index.
pub(crate) struct ListPolicy {
    name: String,
    rank: fn(&Job) -> Rank,
    options: ListOptions,
    waiting: WaitingJobs,
    free: FreeGpus,
    /// Jobs that are planned to run.
    running: BTreeSet<JobId>,
    /// Those of them with a limit below their card's default.
    capped: BTreeSet<JobId>,
    /// Nodes nobody is planned on, by when that began; only kept if nodes may sleep.
    idle: BTreeSet<(Timestamp, NodeId)>,
    idle_since: Vec<Option<Timestamp>>,
    blocked: Vec<bool>,
    choices: Vec<Choice>,
    /// Only used for backfill.
    timeline: Timeline,
    /// Of the present plan.
    cap: Option<UniformCap>,
}

impl ListPolicy {
    pub(crate) fn new(name: &str, rank: fn(&Job) -> Rank, options: ListOptions) -> Self {
        Self {
            name: name.to_owned(),
            rank,
            options,
            waiting: WaitingJobs::default(),
            free: FreeGpus::default(),
            running: BTreeSet::new(),
            capped: BTreeSet::new(),
            idle: BTreeSet::new(),
            idle_since: Vec::new(),
            blocked: Vec::new(),
            choices: Vec::new(),
            timeline: Timeline::default(),
            cap: None,
        }
    }

    /// Brings the index up to date.
    fn sync(&mut self, view: &ClusterView<'_>) {
        match view.changes {
            Changes::Everything => {
                self.waiting = WaitingJobs::default();
                self.running.clear();
                self.capped.clear();
                self.idle.clear();
                self.idle_since = vec![None; view.state.cluster().nodes().len()];
                self.free = FreeGpus::new(view.state);
                self.timeline = Timeline::new(view.state.cluster());
                for (id, _) in view.state.unfinished_jobs() {
                    self.sync_job(view, id);
                }
                for id in view.state.cluster().node_ids() {
                    self.sync_node(view, id);
                }
            }
            Changes::Only { jobs, nodes } => {
                for id in jobs {
                    self.sync_job(view, *id);
                }
                for id in nodes {
                    self.free.sync(view.state, *id);
                    self.sync_node(view, *id);
                }
            }
        }
    }

    fn sync_job(&mut self, view: &ClusterView<'_>, id: JobId) {
        let job = view.state.job(id);
        let waits = job.is_waiting() && !view.state.menu(job.menu).is_empty();
        self.waiting.set(id, waits.then(|| (job.menu, (self.rank)(&job.job))));
        let (mut runs, mut capped) = (false, false);
        // One that stays where it is whatever is planned runs, and is left alone.
        if let Some(placement) = &job.planned {
            let card = view.state.cluster().gpu_type(placement.configuration.gpu_type);
            runs = true;
            capped = job.is_plannable() && placement.configuration.power_limit < card.default_limit;
        }
        member(&mut self.running, id, runs);
        member(&mut self.capped, id, capped);
    }

    fn sync_node(&mut self, view: &ClusterView<'_>, id: NodeId) {
        if self.options.sleep_after.is_none() {
            return;
        }
        let node = view.state.node(id);
        let idle = node.planned.is_empty() && node.target == Target::Up && node.is_ours();
        self.set_idle(id, idle.then_some(node.idle_since));
    }

    fn set_idle(&mut self, id: NodeId, since: Option<Timestamp>) {
        if self.options.sleep_after.is_none() {
            return;
        }
        if let Some(old) = std::mem::replace(&mut self.idle_since[id.index()], since) {
            self.idle.remove(&(old, id));
        }
        if let Some(since) = since {
            self.idle.insert((since, id));
        }
    }

    /// Starts what fits, in order.
    fn start_jobs(&mut self, view: &ClusterView<'_>, draft: &mut Draft<'_, '_>) {
        loop {
            self.unblock();
            let mut started = false;
            while let Some((_, id, menu)) = self.waiting.first(&self.blocked) {
                if self.has_room(view, menu) && self.start_first_that_fits(view, draft, id) {
                    started = true;
                } else {
                    self.blocked[menu.index()] = true;
                }
            }
            // Under a budget a job that found no watts may find some after others started: where
            // the best fit is taken by then, another node is, and nodes may have gone to sleep.
            let again = started && view.budget.is_some();
            if !again && self.start_one_at_any_limit(view, draft).is_none() {
                return;
            }
        }
    }

    fn unblock(&mut self) {
        self.blocked.clear();
        self.blocked.resize(self.waiting.menu_count(), false);
    }

    /// Predictions are not worth asking for where there is no room anyway.
    fn has_room(&self, view: &ClusterView<'_>, menu: MenuId) -> bool {
        let room = |shape| self.free.place(view.state.cluster(), shape).is_some();
        view.state.menu(menu).iter().copied().any(room)
    }

    fn start_first_that_fits(
        &mut self,
        view: &ClusterView<'_>,
        draft: &mut Draft<'_, '_>,
        id: JobId,
    ) -> bool {
        let cluster = view.state.cluster();
        let job = view.state.job(id);
        let mut tried = std::mem::take(&mut self.choices);
        choices(view, job, self.cap.as_ref(), &mut tried);
        let taken = tried.iter().find_map(|choice| {
            let place = self.free.place(cluster, choice.shape)?;
            draft.can_start(&place, choice.limit).then_some((*choice, place))
        });
        self.choices = tried;
        let Some((choice, place)) = taken else { return false };
        self.start(draft, id, choice, place);
        true
    }

    fn start(
        &mut self,
        draft: &mut Draft<'_, '_>,
        id: JobId,
        choice: Choice,
        on: Allocation,
    ) -> Placement {
        for share in on.shares() {
            if self.free.is_asleep(share.node) {
                draft.node_target(share.node, Target::Up, Reason::NodeNeeded);
            }
            self.set_idle(share.node, None);
        }
        self.free.take(&on);
        self.waiting.set(id, None);
        self.running.insert(id);
        let placement = choice.placed(on);
        draft.start(id, placement.clone(), choice.reason);
        placement
    }

    /// Where nothing runs for want of watts: see [`start_at_any_limit`]. Says what was started.
    fn start_one_at_any_limit(
        &mut self,
        view: &ClusterView<'_>,
        draft: &mut Draft<'_, '_>,
    ) -> Option<(JobId, Placement)> {
        if !self.running.is_empty() || view.budget.is_none() {
            return None;
        }
        self.unblock();
        while let Some((_, id, menu)) = self.waiting.first(&self.blocked) {
            let mut tried = std::mem::take(&mut self.choices);
            choices(view, view.state.job(id), self.cap.as_ref(), &mut tried);
            let found = start_at_any_limit(view, draft, &mut self.free, &tried);
            self.choices = tried;
            let Some(found) = found else {
                self.blocked[menu.index()] = true;
                continue;
            };
            for node in found.asleep {
                self.set_idle(node, None);
            }
            let card = view.state.cluster().gpu_type(found.choice.shape.gpu_type);
            member(&mut self.capped, id, found.choice.limit < card.default_limit);
            return Some((id, self.start(draft, id, found.choice, found.place)));
        }
        None
    }

    /// Nodes that were idle for long enough sleep.
    fn put_to_sleep(&mut self, view: &ClusterView<'_>, draft: &mut Draft<'_, '_>) {
        while let Some((at, node)) = self.next_to_sleep()
            && at <= view.now
        {
            self.set_idle(node, None);
            self.free.sleep(node);
            draft.node_target(node, Target::Asleep, Reason::NodeIdle);
        }
    }

    /// The node that will next have been idle for long enough, and when.
    fn next_to_sleep(&self) -> Option<(Timestamp, NodeId)> {
        let (since, node) = self.idle.first()?;
        Some((*since + self.options.sleep_after?, *node))
    }
}

impl Policy for ListPolicy {
    fn name(&self) -> &str {
        &self.name
    }

    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        self.sync(view);
        let mut draft = Draft::new(view);
        // First of all, so that the watts it frees can be used at once.
        self.put_to_sleep(view, &mut draft);
        let planned = |id: JobId| view.state.job(id).planned.as_ref();
        self.cap = if self.options.uniform_cap { UniformCap::new(view) } else { None };
        let cap = self.cap.as_ref();
        let raised = raise_limits(view, &mut draft, (&mut self.capped, cap), planned);
        if let Some(depth) = self.options.backfill {
            self.backfill(view, &mut draft, depth, &raised);
        } else {
            self.start_jobs(view, &mut draft);
        }
        draft.explain_new(&self.free);
        draft.plan().revisit = self.next_to_sleep().map(|(at, _)| at);
        draft.finish()
    }
}

fn member<T: Ord>(set: &mut BTreeSet<T>, item: T, is_in: bool) {
    if is_in {
        set.insert(item);
    } else {
        set.remove(&item);
    }
}

/// Sorts like the number, but as unsigned: for ranks by time.
pub(crate) fn rank_of_time(time: Timestamp) -> Rank {
    (time.micros() as u64) ^ (1 << 63)
}

/// Sorts the largest first; weights are never negative, so their bits sort as they do.
pub(crate) fn rank_of_weight(weight: f64) -> Rank {
    !weight.to_bits()
}
