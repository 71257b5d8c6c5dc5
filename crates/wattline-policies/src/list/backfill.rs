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
use wattline_core::placement::{Allocation, Share};
use wattline_core::plan::Reason;
use wattline_core::policy::ClusterView;
use wattline_core::power::NodePower;
use wattline_core::time::Timestamp;
use wattline_core::units::Seconds;

/// However little is left to do, a job holds its GPUs for a moment: time that nothing takes
/// would be free on a full node.
const SHORTEST: Seconds = Seconds::new(1.0);

impl ListPolicy {
    /// Walks the first `depth` waiting jobs in order.
    pub(super) fn backfill(
        &mut self,
        view: &ClusterView<'_>,
        draft: &mut Draft<'_, '_>,
        depth: usize,
    ) {
        let order: Vec<JobId> = self.waiting.in_order().take(depth).collect();
        if order.is_empty() {
            return;
        }
        let cluster = view.state.cluster();
        let mut timeline = Timeline::new(view, &self.free);
        let mut someone_waits = false;
        for id in order {
            let job = view.state.job(id);
            let mut tried = std::mem::take(&mut self.choices);
            choices(view, job, &mut tried);
            for choice in &mut tried {
                choice.time = choice.time.max(SHORTEST);
            }
            let now = tried.iter().find_map(|choice| {
                let (start, nodes) = timeline.earliest(cluster, choice.shape, choice.time)?;
                if start > view.now {
                    return None;
                }
                let place = allocation(&self.free, cluster, choice.shape, &nodes);
                draft.can_start(&place, choice.limit).then_some((*choice, place))
            });
            let later = || {
                tried
                    .iter()
                    .filter_map(|choice| {
                        let (start, nodes) = timeline.earliest(cluster, choice.shape, choice.time)?;
                        Some((start + choice.time, start, *choice, nodes))
                    })
                    .min_by_key(|(end, start, ..)| (*end, *start))
            };
            match now {
                Some((choice, place)) => {
                    timeline.reserve(&shares(&place), view.now, view.now + choice.time);
                    let reason = if someone_waits { Reason::Backfilled } else { choice.reason };
                    self.choices = tried;
                    self.start(draft, id, Choice { reason, ..choice }, place);
                }
                None => {
                    if let Some((end, start, choice, nodes)) = later() {
                        let place = counts(cluster, choice.shape, &nodes);
                        timeline.reserve(&place, start, end);
                        if job.reason == Reason::Arrived {
                            draft.explain(id, Reason::Reserved { at: start });
                        }
                    }
                    someone_waits = true;
                    self.choices = tried;
                }
            }
        }
        if self.running.is_empty() && view.budget.is_some() {
            self.start_one_at_any_limit(view, draft);
        }
    }
}

/// Free GPUs of every node from now on.
struct Timeline {
    /// Per node: from this time on, so many are free. Rising in time, the first is now.
    nodes: Vec<Vec<(Timestamp, u32)>>,
}

impl Timeline {
    fn new(view: &ClusterView<'_>, free: &FreeGpus) -> Self {
        let nodes = view
            .state
            .cluster()
            .node_ids()
            .map(|id| {
                let node = view.state.node(id);
                let usable = node.power != NodePower::Down;
                let mut steps = vec![(view.now, if usable { free.free_on(id) } else { 0 })];
                let mut ends: Vec<(Timestamp, u32)> = node
                    .planned
                    .iter()
                    .map(|r| (predicted_end(view, r.job), r.mask.count_ones()))
                    .collect();
                ends.sort_unstable();
                let mut count = steps[0].1;
                for (end, gpus) in ends {
                    count += gpus;
                    // A job that should be over by now still holds its GPUs.
                    let end = end.max(view.now + SHORTEST);
                    steps.push((end, count));
                }
                steps
            })
            .collect();
        Self { nodes }
    }

    /// The earliest time at which a shape fits for that long, and where.
    fn earliest(&self, cluster: &Cluster, shape: Shape, time: Seconds) -> Option<(Timestamp, Vec<NodeId>)> {
        let of_type = || cluster.node_ids().filter(|n| cluster.node(*n).gpu_type == shape.gpu_type);
        let largest = cluster.largest_node(shape.gpu_type);
        if shape.gpus <= largest {
            return of_type()
                .filter_map(|node| {
                    let start = self.earliest_on(node, shape.gpus, time)?;
                    Some((start, self.free_at(node, start), node))
                })
                .min()
                .map(|(start, _, node)| (start, vec![node]));
        }
        // Whole nodes: try the times at which one of them becomes free.
        let wanted = shape.gpus.div_ceil(largest) as usize;
        let whole: Vec<NodeId> =
            of_type().filter(|n| u32::from(cluster.node(*n).gpus) == largest).collect();
        let mut times: Vec<Timestamp> =
            whole.iter().flat_map(|n| self.nodes[n.index()].iter().map(|s| s.0)).collect();
        times.sort_unstable();
        times.dedup();
        times.into_iter().find_map(|start| {
            let free: Vec<NodeId> = whole
                .iter()
                .copied()
                .filter(|node| self.is_free(*node, largest, start, start + time))
                .take(wanted)
                .collect();
            (free.len() == wanted).then_some((start, free))
        })
    }

    fn earliest_on(&self, node: NodeId, gpus: u32, time: Seconds) -> Option<Timestamp> {
        self.nodes[node.index()]
            .iter()
            .map(|(start, _)| *start)
            .find(|start| self.is_free(node, gpus, *start, *start + time))
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

fn predicted_end(view: &ClusterView<'_>, id: JobId) -> Timestamp {
    let job = view.state.job(id);
    let rate = if job.progress.rate.0 > 0.0 {
        job.progress.rate
    } else {
        job.planned
            .as_ref()
            .and_then(|p| view.predictor.predict(&job.job, &p.configuration))
            .map_or(WorkRate(0.0), |p| p.rate)
    };
    let time = job.remaining(view.now) / rate;
    if time.is_finite() { view.now.max(job.progress.as_of) + time } else { Timestamp::FAR_FUTURE }
}

/// How many GPUs of each node: whole nodes, and the rest on the last.
fn counts(cluster: &Cluster, shape: Shape, nodes: &[NodeId]) -> Vec<(NodeId, u32)> {
    let mut left = shape.gpus;
    nodes
        .iter()
        .map(|node| {
            let here = left.min(cluster.node(*node).gpus.into());
            left -= here;
            (*node, here)
        })
        .collect()
}

fn allocation(free: &FreeGpus, cluster: &Cluster, shape: Shape, nodes: &[NodeId]) -> Allocation {
    let shares: Vec<Share> =
        counts(cluster, shape, nodes).into_iter().map(|(node, n)| free.part_of(node, n)).collect();
    Allocation::over(shares.into())
}

fn shares(place: &Allocation) -> Vec<(NodeId, u32)> {
    place.shares().map(|share| (share.node, share.count())).collect()
}
