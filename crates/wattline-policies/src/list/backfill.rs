//! Conservative backfill: every job looked at gets a reservation at the earliest time at which it
//! fits without moving an earlier job's, and starts now only if that time is now.
//!
//! Reservations count GPUs per node against predicted ends. Watts are not reserved: a job that
//! could start but for the budget keeps its place in the timeline and waits.

use super::ListPolicy;
use crate::placing::{Choice, Draft, FreeGpus, choices};
use wattline_core::cluster::{Cluster, Shape};
use wattline_core::ids::{JobId, NodeId};
use wattline_core::job::WorkRate;
use wattline_core::placement::{Allocation, Placement};
use wattline_core::plan::Reason;
use wattline_core::policy::ClusterView;
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
        let order: Vec<JobId> = self.waiting.in_order().take(depth).collect();
        if order.is_empty() {
            return;
        }
        let cluster = view.state.cluster();
        let mut timeline = Timeline::new(view, &self.free, changed);
        let mut someone_waits = false;
        for id in order {
            let job = view.state.job(id);
            let mut tried = std::mem::take(&mut self.choices);
            choices(view, job, self.cap.as_ref(), &mut tried);
            for choice in &mut tried {
                choice.time = choice.time.max(SHORTEST);
            }
            let slots: Vec<(&Choice, Timestamp, Counts)> = tried
                .iter()
                .filter_map(|choice| {
                    let (start, counts) = timeline.earliest(cluster, choice.shape, choice.time)?;
                    Some((choice, start, counts))
                })
                .collect();
            let now = slots.iter().filter(|(_, start, _)| *start <= view.now).find_map(
                |(choice, _, counts)| {
                    let place = allocation(&self.free, counts);
                    draft.can_start(&place, choice.limit).then_some((**choice, place))
                },
            );
            if let Some((choice, place)) = now {
                let reason = if someone_waits { Reason::Backfilled } else { choice.reason };
                let placement = self.start(draft, id, Choice { reason, ..choice }, place);
                timeline.reserve(&counts(&placement), view.now, ends(view, id, &placement));
                changed.push((id, placement));
            } else {
                let later = slots
                    .into_iter()
                    .map(|(choice, start, counts)| (start + choice.time, start, counts));
                if let Some((end, start, counts)) =
                    later.min_by_key(|(end, start, _)| (*end, *start))
                {
                    timeline.reserve(&counts, start, end);
                    if job.reason == Reason::Arrived {
                        draft.explain(id, Reason::Reserved { at: start });
                    }
                }
                someone_waits = true;
            }
            self.choices = tried;
        }
    }
}

/// So many GPUs of these nodes.
type Counts = Vec<(NodeId, u32)>;

/// Free GPUs of every node from now on.
struct Timeline {
    /// Per node: from this time on, so many are free. Rising in time, the first is now.
    nodes: Vec<Vec<(Timestamp, u32)>>,
}

impl Timeline {
    /// With the jobs that are planned, and those that are `changed` by the plan in the making.
    fn new(view: &ClusterView<'_>, free: &FreeGpus, changed: &[(JobId, Placement)]) -> Self {
        let cluster = view.state.cluster();
        let mut ended: Vec<Vec<(Timestamp, u32)>> = vec![Vec::new(); cluster.nodes().len()];
        for node in cluster.node_ids() {
            for resident in view.state.node(node).planned.iter() {
                let planned = &view.state.job(resident.job).planned;
                let is_changed = changed.iter().any(|(job, _)| *job == resident.job);
                let Some(placement) = planned.as_ref().filter(|_| !is_changed) else { continue };
                let end = ends(view, resident.job, placement);
                ended[node.index()].push((end, resident.mask.count_ones()));
            }
        }
        for (job, placement) in changed {
            for (node, gpus) in counts(placement) {
                ended[node.index()].push((ends(view, *job, placement), gpus));
            }
        }
        let nodes = cluster
            .node_ids()
            .zip(ended)
            .map(|(id, mut ended)| {
                let usable = view.state.node(id).is_ours();
                let mut count = if usable { free.free_on(id) } else { 0 };
                let mut steps = vec![(view.now, count)];
                ended.sort_unstable();
                for (end, gpus) in ended {
                    count += gpus;
                    // Jobs that end together make one step. Of two, the first would lack GPUs for
                    // no time at all once a reservation begins there, and no job would run past it.
                    match steps.last_mut() {
                        Some((last, free)) if *last == end => *free = count,
                        _ => steps.push((end, count)),
                    }
                }
                steps
            })
            .collect();
        Self { nodes }
    }

    /// The earliest time at which a shape fits for that long, and where.
    fn earliest(
        &self,
        cluster: &Cluster,
        shape: Shape,
        time: Seconds,
    ) -> Option<(Timestamp, Counts)> {
        let of_type = || cluster.node_ids().filter(|n| cluster.node(*n).gpu_type == shape.gpu_type);
        if shape.gpus <= cluster.largest_node(shape.gpu_type) {
            return of_type()
                .filter_map(|node| {
                    let start = self.earliest_on(node, shape.gpus, time)?;
                    Some((start, self.free_at(node, start), node))
                })
                .min()
                .map(|(start, _, node)| (start, vec![(node, shape.gpus)]));
        }
        let mut largest_first: Vec<NodeId> = of_type().collect();
        largest_first.sort_by_key(|n| std::cmp::Reverse(cluster.node(*n).gpus));
        // Try the times at which one of them becomes free.
        let mut times: Vec<Timestamp> =
            largest_first.iter().flat_map(|n| self.nodes[n.index()].iter().map(|s| s.0)).collect();
        times.sort_unstable();
        times.dedup();
        times.into_iter().find_map(|start| {
            let counts =
                self.over_nodes(cluster, &largest_first, shape.gpus, start, start + time)?;
            Some((start, counts))
        })
    }

    /// Whole nodes, and the rest on a part of one more, as [`FreeGpus::place`] has it.
    fn over_nodes(
        &self,
        cluster: &Cluster,
        largest_first: &[NodeId],
        gpus: u32,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<Counts> {
        let mut left = gpus;
        let mut counts = Counts::new();
        for node in largest_first {
            let size = u32::from(cluster.node(*node).gpus);
            if size <= left && self.is_free(*node, size, from, to) {
                left -= size;
                counts.push((*node, size));
            }
        }
        if left > 0 {
            let rest = largest_first
                .iter()
                .filter(|node| counts.iter().all(|(whole, _)| whole != *node))
                .filter(|node| self.is_free(**node, left, from, to))
                .min_by_key(|node| (self.free_at(**node, from), **node))?;
            counts.push((*rest, left));
        }
        Some(counts)
    }

    /// One walk over the steps: the first stretch with enough GPUs that is long enough.
    fn earliest_on(&self, node: NodeId, gpus: u32, time: Seconds) -> Option<Timestamp> {
        let steps = &self.nodes[node.index()];
        let mut since = None;
        for (at, (start, free)) in steps.iter().enumerate() {
            if *free < gpus {
                since = None;
                continue;
            }
            let since = *since.get_or_insert(*start);
            let until = steps.get(at + 1).map_or(Timestamp::FAR_FUTURE, |(next, _)| *next);
            if since + time <= until {
                return Some(since);
            }
        }
        None
    }

    fn is_free(&self, node: NodeId, gpus: u32, from: Timestamp, to: Timestamp) -> bool {
        let steps = &self.nodes[node.index()];
        let first = steps.partition_point(|(start, _)| *start <= from).saturating_sub(1);
        steps[first..].iter().take_while(|(start, _)| *start < to).all(|(_, free)| *free >= gpus)
    }

    fn free_at(&self, node: NodeId, time: Timestamp) -> u32 {
        let steps = &self.nodes[node.index()];
        steps[steps.partition_point(|(start, _)| *start <= time).saturating_sub(1)].1
    }

    fn reserve(&mut self, on: &[(NodeId, u32)], from: Timestamp, to: Timestamp) {
        for (node, gpus) in on {
            for cut in [from, to] {
                let free = self.free_at(*node, cut);
                let steps = &mut self.nodes[node.index()];
                if let Err(at) = steps.binary_search_by_key(&cut, |(start, _)| *start) {
                    steps.insert(at, (cut, free));
                }
            }
            for (start, free) in &mut self.nodes[node.index()] {
                if *start >= from && *start < to {
                    *free = free.saturating_sub(*gpus);
                }
            }
        }
    }
}

/// When a job that is planned so should be over; never now, for it still holds its GPUs.
fn ends(view: &ClusterView<'_>, id: JobId, placement: &Placement) -> Timestamp {
    let job = view.state.job(id);
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
