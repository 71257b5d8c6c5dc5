//! Where a constrained job can go: nodes that it may have, and who would have to leave them.

use super::host;
use crate::placing::lowest;
use smallvec::SmallVec;
use std::cmp::Ordering;
use wattline_core::cluster::Shape;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::job::NodeChoice;
use wattline_core::placement::{Allocation, Configuration, Placement, Share, mask_of};
use wattline_core::policy::ClusterView;
use wattline_core::state::{JobState, Phase, Target};
use wattline_core::units::Seconds;

/// One way to run a constrained job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// On the nodes it asks for, at the card's default limit.
    pub(super) configuration: Configuration,
    /// GPUs on each of its nodes.
    pub(super) per_node: u32,
    /// How long it would run from now on.
    pub(super) time: Seconds,
}

/// The ways a constrained job may run, the fastest first.
pub(super) fn ways(view: &ClusterView<'_>, job: &JobState, choice: &NodeChoice) -> Vec<Way> {
    let cluster = view.state.cluster();
    let even = |shape: &&Shape| shape.gpus.is_multiple_of(choice.count);
    let menu = view.state.menu(job.menu).iter().filter(even);
    let mut ways: Vec<Way> = menu
        .filter_map(|shape| {
            let plain = cluster.plain_configuration(&job.job, *shape);
            let configuration = Configuration { nodes: choice.count, ..plain };
            // What nobody knows over so many nodes may be known over as few as possible.
            let prediction = view.predictor.predict(&job.job, &configuration);
            let prediction = prediction.or_else(|| view.predictor.predict(&job.job, &plain))?;
            let runs = match prediction.rate.0 > 0.0 {
                true => job.remaining(view.now) / prediction.rate,
                false => Seconds::new(f64::INFINITY),
            };
            let time = runs + job.load_time(view.predictor);
            Some(Way { configuration, per_node: shape.gpus / choice.count, time })
        })
        .collect();
    ways.sort_by(|a, b| a.time.total_cmp(&b.time));
    ways
}

/// Whose leaving is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// Everybody stays until he is done.
    WhenDone,
    /// Whoever may be moved makes room now.
    WhenAsked,
}

/// Nodes for a constrained job.
#[derive(Clone, Debug)]
pub(super) struct Rooms {
    pub(super) nodes: Vec<NodeId>,
    /// Who must leave them first.
    pub(super) leaving: Vec<JobId>,
    /// When the last of these is believed to have left; infinite if nobody knows.
    pub(super) ready: f64,
}

/// Whether a job may be told to leave its GPUs for a constrained job: it runs there, and can go on later. One
/// that is on its way gets there first.
pub(super) fn may_move(job: &JobState) -> bool {
    let (held, planned) = (job.held.as_ref(), job.planned.as_ref());
    let there = held.zip(planned).is_some_and(|(held, planned)| held.same_but_limit(planned));
    will_move(job) && there && job.phase == Phase::Running
}

/// Whether it may be told so once it is there.
pub(super) fn will_move(job: &JobState) -> bool {
    job.is_plannable() && job.job.preemptible && job.nodes().is_none()
}

/// GPU-seconds that are lost if the job has to leave.
pub(super) fn lost(view: &ClusterView<'_>, id: JobId) -> f64 {
    let planned = view.state.job(id).planned.as_ref();
    f64::from(planned.map_or(0, |planned| planned.configuration.gpus)) * restart(view, id)
}

/// Seconds that moving the job takes.
pub(super) fn restart(view: &ClusterView<'_>, id: JobId) -> f64 {
    let cost = view.predictor.restart(&view.state.job(id).job);
    (cost.save + cost.load).get()
}

/// Seconds until the job is believed to be done.
fn ends(view: &ClusterView<'_>, id: JobId) -> f64 {
    let job = view.state.job(id);
    let left = job.remaining(view.now);
    if job.progress.rate.0 <= 0.0 {
        return f64::INFINITY;
    }
    (left / job.progress.rate + job.progress.as_of.since(view.now)).get()
}

/// One node that a constrained job may have.
struct Room {
    node: NodeId,
    leaving: Vec<JobId>,
    ready: f64,
    lost: f64,
    asleep: bool,
    left_free: u32,
}

impl Room {
    /// None where its CPUs or memory do not suffice, whoever of those who are known leaves.
    fn new(
        view: &ClusterView<'_>,
        id: JobId,
        node: NodeId,
        per_node: u32,
        leave: Leave,
    ) -> Option<Self> {
        let here = view.state.node(node);
        let mut residents: Vec<(f64, f64, JobId, u32)> = here
            .planned
            .iter()
            .map(|r| {
                let moves = leave == Leave::WhenAsked && may_move(view.state.job(r.job));
                let (ends, lost) =
                    if moves { (0.0, lost(view, r.job)) } else { (ends(view, r.job), 0.0) };
                (ends, lost, r.job, r.mask.count_ones())
            })
            .collect();
        residents.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        let mut free =
            (mask_of(view.state.cluster().node(node).gpus) & !here.planned.mask()).count_ones();
        let asleep = here.target == Target::Asleep;
        let mut room =
            Self { node, leaving: Vec::new(), ready: 0.0, lost: 0.0, asleep, left_free: 0 };
        let fits = |leaving: &[JobId]| host::fits(view, id, per_node, node, leaving);
        let mut suffices = fits(&room.leaving);
        for (ends, lost, id, gpus) in residents {
            if free >= per_node && suffices {
                break;
            }
            free += gpus;
            room.leaving.push(id);
            suffices = fits(&room.leaving);
            room.ready = room.ready.max(ends);
            room.lost += lost;
        }
        room.left_free = free.saturating_sub(per_node);
        suffices.then_some(room)
    }

    /// Free before busy, soon before late, cheap before dear, awake before asleep, full before
    /// empty.
    fn before(&self, other: &Self) -> Ordering {
        let busy = |room: &Self| !room.leaving.is_empty();
        busy(self)
            .cmp(&busy(other))
            .then(self.ready.total_cmp(&other.ready))
            .then(self.lost.total_cmp(&other.lost))
            .then(self.asleep.cmp(&other.asleep))
            .then(self.left_free.cmp(&other.left_free))
            .then(self.node.cmp(&other.node))
    }
}

impl Rooms {
    /// The best nodes for a way; `None` where too few that the constrained job may have are ours, or are
    /// large enough.
    pub(super) fn find(
        view: &ClusterView<'_>,
        id: JobId,
        choice: &NodeChoice,
        way: &Way,
        taken: &[NodeId],
        leave: Leave,
    ) -> Option<Self> {
        let cluster = view.state.cluster();
        let possible = |id: &NodeId| {
            let Some(node) = cluster.nodes().get(id.index()) else { return false };
            node.gpu_type == way.configuration.gpu_type
                && u32::from(node.gpus) >= way.per_node
                && view.state.node(*id).is_ours()
                && !taken.contains(id)
        };
        if !choice.required.iter().all(possible) {
            return None;
        }
        let room = |node: NodeId| Room::new(view, id, node, way.per_node, leave);
        let chosen: Option<Vec<Room>> = choice.required.iter().map(|id| room(*id)).collect();
        let mut chosen = chosen?;
        let free = choice.allowed.iter().filter(|id| choice.required.binary_search(id).is_err());
        let mut others: Vec<Room> =
            free.filter(|id| possible(id)).filter_map(|id| room(*id)).collect();
        others.sort_by(Room::before);
        let missing = (choice.count as usize).saturating_sub(chosen.len());
        if others.len() < missing {
            return None;
        }
        chosen.extend(others.into_iter().take(missing));
        let mut rooms = Self {
            nodes: chosen.iter().map(|room| room.node).collect(),
            leaving: chosen.iter().flat_map(|room| room.leaving.iter().copied()).collect(),
            ready: chosen.iter().map(|room| room.ready).fold(0.0, f64::max),
        };
        rooms.nodes.sort_unstable();
        rooms.leaving.sort_unstable();
        rooms.leaving.dedup();
        rooms.spare(view, id, way.per_node);
        Some(rooms)
    }

    /// Nobody leaves who need not: those with most to lose are asked first whether they must.
    fn spare(&mut self, view: &ClusterView<'_>, constrained_job: JobId, per_node: u32) {
        let mut order = self.leaving.clone();
        order.sort_by(|a, b| lost(view, *b).total_cmp(&lost(view, *a)).then(b.cmp(a)));
        for id in order {
            let without: Vec<JobId> = self.leaving.iter().copied().filter(|j| *j != id).collect();
            let enough = |node: &NodeId| {
                free(view, *node, &without).count_ones() >= per_node
                    && host::fits(view, constrained_job, per_node, *node, &without)
            };
            if self.nodes.iter().all(enough) {
                self.leaving = without;
            }
        }
    }

    /// The GPUs that a constrained job gets here when those who must have left; rather some that nobody holds
    /// any more.
    pub(super) fn placement(&self, view: &ClusterView<'_>, way: &Way) -> Placement {
        let share = |node: &NodeId| {
            let free = free(view, *node, &self.leaving);
            let idle = free & !view.state.node(*node).held.mask();
            let first = lowest(idle, way.per_node.min(idle.count_ones()));
            let rest = lowest(free & !idle, way.per_node.saturating_sub(first.count_ones()));
            Share { node: *node, mask: first | rest }
        };
        let shares: SmallVec<[Share; 1]> = self.nodes.iter().map(share).collect();
        Placement { configuration: way.configuration, allocation: Allocation::over(shares) }
    }
}

/// GPUs of a node that nobody is planned on but those who leave.
fn free(view: &ClusterView<'_>, node: NodeId, leaving: &[JobId]) -> u64 {
    let all = mask_of(view.state.cluster().node(node).gpus);
    let stay = view.state.node(node).planned.iter().filter(|r| !leaving.contains(&r.job));
    stay.fold(all, |mask, resident| mask & !resident.mask)
}
