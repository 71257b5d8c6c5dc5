//! Conservative backfill: every job looked at gets a reservation at the earliest time at which it
//! fits without moving an earlier job's, and starts now only if that time is now.
//!
//! Reservations count GPUs per node against predicted ends. Watts are not reserved: a job that
//! could start but for the budget keeps its place in the timeline and waits.
//!
//! The timeline keeps what it found from plan to plan; plans are the same as without that.

use super::ListPolicy;
use super::timeline::{Counts, Residents, Taken, Turn};
use crate::placing::{Choice, Draft, FreeGpus, choices};
use wattline_core::ids::{JobId, NodeId};
use wattline_core::job::WorkRate;
use wattline_core::placement::{Allocation, Placement};
use wattline_core::plan::Reason;
use wattline_core::policy::ClusterView;
use wattline_core::state::JobState;
use wattline_core::time::Timestamp;
use wattline_core::units::{Seconds, Watts};

/// However little is left to do, a job holds its GPUs for a moment: time that nothing takes
/// would be free on a full node.
const SHORTEST: Seconds = Seconds::new(1.0);

impl ListPolicy {
    /// Walks the first `depth` waiting jobs in order, until none of them can start: each start
    /// lets another job in among the first, and may move a reservation.
    pub(super) fn backfill(
        &mut self,
        view: &ClusterView<'_>,
        draft: &mut Draft<'_, '_>,
        depth: usize,
        raised: &[(JobId, Watts)],
    ) {
        // Jobs that this plan changes, as it has them. One that does not run yet ends when its new
        // limit lets it.
        let mut changed: Vec<(JobId, Placement)> = raised
            .iter()
            .filter_map(|(id, limit)| {
                let mut placement = view.state.job(*id).planned.clone()?;
                placement.configuration.power_limit = *limit;
                Some((*id, placement))
            })
            .collect();
        loop {
            let before = changed.len();
            self.walk(view, draft, depth, &mut changed);
            if changed.len() == before {
                let Some(one) = self.start_one_at_any_limit(view, draft) else { return };
                changed.push(one);
            }
        }
    }

    fn walk(
        &mut self,
        view: &ClusterView<'_>,
        draft: &mut Draft<'_, '_>,
        depth: usize,
        changed: &mut Vec<(JobId, Placement)>,
    ) {
        let order: Vec<Turn> = self.waiting.in_order().take(depth).collect();
        let arrived = |turn: &Turn| view.state.job(turn.1).reason == Reason::Arrived;
        if order.is_empty() || (self.free.is_full() && !order.iter().any(arrived)) {
            // No job can start, and each has been told what it waits for.
            return;
        }
        let cluster = view.state.cluster();
        let free = &self.free;
        self.timeline.begin(view.now, |node, into| residents(view, free, changed, node, into));
        let mut someone_waits = false;
        for turn in order {
            let id = turn.1;
            let job = view.state.job(id);
            let mut tried = std::mem::take(&mut self.choices);
            choices(view, job, self.cap.as_ref(), &mut tried);
            for choice in &mut tried {
                choice.time = choice.time.max(SHORTEST);
            }
            self.timeline.turn(cluster, turn, tried.iter().map(|c| (c.shape, c.time)));
            let timeline = &self.timeline;
            let slots = || {
                tried.iter().enumerate().filter_map(move |(at, choice)| {
                    let (start, counts) = timeline.earliest(at)?;
                    Some((choice, start, counts))
                })
            };
            let now = slots().filter(|(_, start, _)| *start <= view.now).find_map(
                |(choice, _, counts)| {
                    let place = allocation(&self.free, counts);
                    draft.can_start(&place, choice.limit).then_some((*choice, place))
                },
            );
            if let Some((choice, place)) = now {
                let reason = if someone_waits { Reason::Backfilled } else { choice.reason };
                let placement = self.start(draft, id, Choice { reason, ..choice }, place);
                let (from, to) = (view.now, ends(view, job, &placement));
                self.timeline.settle(Some(Taken { on: counts(&placement), from, to }));
                changed.push((id, placement));
            } else {
                let later = slots().map(|(choice, from, on)| (from + choice.time, from, on));
                let first = later.min_by_key(|(end, start, _)| (*end, *start));
                let taken = first.map(|(to, from, on)| Taken { on: on.clone(), from, to });
                if let Some(Taken { from: at, .. }) = taken
                    && job.reason == Reason::Arrived
                {
                    draft.explain(id, Reason::Reserved { at });
                }
                self.timeline.settle(taken);
                someone_waits = true;
            }
            self.choices = tried;
        }
    }
}

/// What runs on a node: the jobs that are planned, and those that are `changed` by the plan in the
/// making.
fn residents(
    view: &ClusterView<'_>,
    free: &FreeGpus,
    changed: &[(JobId, Placement)],
    id: NodeId,
    into: &mut Residents,
) {
    let node = view.state.node(id);
    into.free = if node.is_ours() { free.free_on(id) } else { 0 };
    for resident in node.planned.iter() {
        let is_changed = changed.iter().any(|(job, _)| *job == resident.job);
        let job = view.state.job(resident.job);
        let Some(placement) = job.planned.as_ref().filter(|_| !is_changed) else { continue };
        into.ends.push((ends(view, job, placement), resident.mask.count_ones()));
    }
    for (job, placement) in changed {
        let here = placement.allocation.shares().filter(|share| share.node == id);
        for share in here {
            into.ends.push((ends(view, view.state.job(*job), placement), share.count()));
        }
    }
    into.ends.sort_unstable();
}

/// When a job that is planned so should be over; never now, for it still holds its GPUs.
fn ends(view: &ClusterView<'_>, job: &JobState, placement: &Placement) -> Timestamp {
    let time = if job.progress.rate.0 > 0.0 {
        job.remaining(view.now) / job.progress.rate
    } else {
        let predicted = view.predictor.predict(&job.job, &placement.configuration);
        let rate = predicted.map_or(WorkRate(0.0), |p| p.rate);
        job.remaining(view.now) / rate + job.load_time(view.predictor)
    };
    let end = view.now.max(job.progress.as_of) + time;
    if time.is_finite() { end.max(view.now + SHORTEST) } else { Timestamp::FAR_FUTURE }
}

fn counts(placement: &Placement) -> Counts {
    placement.allocation.shares().map(|share| (share.node, share.count())).collect()
}

fn allocation(free: &FreeGpus, counts: &Counts) -> Allocation {
    Allocation::over(counts.iter().map(|(node, gpus)| free.part_of(*node, *gpus)).collect())
}
