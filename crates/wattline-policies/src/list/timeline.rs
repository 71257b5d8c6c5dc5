//! Free GPUs of every node over time, and the earliest place in it of each waiting job in turn.
//!
//! **An event costs what it changes.** A walk gives each waiting job its turn, in order. The start
//! found on each node for each job is kept for the next walk, which notes the intervals in which
//! other GPUs of a node are taken than at the same turn of the last walk. On a node without such
//! an interval the start that was found still holds unless it has passed, because time that goes
//! on only removes starts before now. So a job that ends when it was predicted to end, or that
//! starts where and when its reservation was, changes nothing for the jobs behind it.
//!
//! What is found depends on the number of free GPUs as a function of time alone, not on how that
//! function is cut into steps; otherwise a start that is kept could differ from one found again.

use super::queue::Rank;
use wattline_core::cluster::{Cluster, Shape};
use wattline_core::ids::{JobId, NodeId};
use wattline_core::time::Timestamp;
use wattline_core::units::Seconds;

/// Nodes, each with a number of its GPUs.
pub(super) type Counts = Vec<(NodeId, u32)>;

/// A waiting job and its place in the order.
pub(super) type Turn = (Rank, JobId);

/// What runs on a node: its free GPUs now, and the GPUs that become free later, by time.
#[derive(Clone, Debug, Default)]
pub(super) struct Residents {
    pub(super) free: u32,
    pub(super) ends: Vec<(Timestamp, u32)>,
}

impl Residents {
    /// GPUs that will be free in the end.
    fn total(&self) -> u32 {
        self.free + self.ends.iter().map(|(_, gpus)| gpus).sum::<u32>()
    }
}

/// GPUs of a node that are taken in an interval and were not in the last walk; negative: the other
/// way round.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Difference {
    from: Timestamp,
    to: Timestamp,
    gpus: i64,
}

/// No difference cancels this one: all later jobs of the walk search the node again.
const UNLIKE: Difference = Difference { from: Timestamp::ZERO, to: Timestamp::FAR_FUTURE, gpus: 0 };

#[derive(Clone, Debug, Default)]
struct Node {
    size: u32,
    /// Its index among the nodes of its GPU type.
    at: usize,
    residents: Residents,
    /// Those of the last walk.
    before: Residents,
    /// Free GPUs from a time on. Times rise strictly, the first is now.
    steps: Vec<(Timestamp, u32)>,
    differences: Vec<Difference>,
}

impl Node {
    /// The beginning of the first stretch with enough GPUs that is long enough.
    fn earliest(&self, gpus: u32, time: i64) -> Option<Timestamp> {
        let mut since = None;
        for (at, (start, free)) in self.steps.iter().enumerate() {
            if *free < gpus {
                since = None;
                continue;
            }
            let since = *since.get_or_insert(*start);
            let until = self.steps.get(at + 1).map_or(Timestamp::FAR_FUTURE, |(next, _)| *next);
            if since.micros().saturating_add(time) <= until.micros() {
                return Some(since);
            }
        }
        None
    }

    fn is_free(&self, gpus: u32, from: Timestamp, to: Timestamp) -> bool {
        let first = self.steps.partition_point(|(start, _)| *start <= from).saturating_sub(1);
        self.steps[first..].iter().take_while(|(start, _)| *start < to).all(|(_, f)| *f >= gpus)
    }

    fn free_at(&self, time: Timestamp) -> u32 {
        self.steps[self.steps.partition_point(|(start, _)| *start <= time).saturating_sub(1)].1
    }

    /// The index of the step that begins at that time; inserted if there is none.
    fn cut(&mut self, time: Timestamp) -> usize {
        let at = self.steps.partition_point(|(start, _)| *start < time);
        if self.steps.get(at).is_none_or(|(start, _)| *start != time) {
            let free = self.steps[at.saturating_sub(1)].1;
            self.steps.insert(at, (time, free));
        }
        at
    }

    /// Takes GPUs in an interval; says whether all of them were free.
    fn take(&mut self, gpus: u32, from: Timestamp, to: Timestamp) -> bool {
        let first = self.cut(from);
        let last = self.cut(to).max(first);
        let steps = &mut self.steps[first..last];
        let all = steps.iter().all(|(_, free)| *free >= gpus);
        for (_, free) in steps {
            *free = free.saturating_sub(gpus);
        }
        all
    }
}

/// The earliest place for a shape.
#[derive(Clone, Debug)]
struct Search {
    shape: Shape,
    /// How long it needs it, in microseconds.
    time: i64,
    /// If it fits on one node: by node of its type, the start there and the GPUs free then.
    cells: Vec<Option<(Timestamp, u32)>>,
    found: Option<(Timestamp, Counts)>,
}

/// A waiting job of a walk.
#[derive(Clone, Debug)]
struct Slot {
    turn: Turn,
    searches: Vec<Search>,
    /// Its reservation, or its GPUs if it started.
    taken: Option<Taken>,
}

/// GPUs in an interval.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Taken {
    pub(super) on: Counts,
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    now: Timestamp,
    nodes: Vec<Node>,
    /// By GPU type.
    of_type: Vec<Vec<NodeId>>,
    /// By GPU type, the largest nodes first.
    largest_first: Vec<Vec<NodeId>>,
    /// By GPU type: the size of its nodes, if all have the same.
    uniform: Vec<Option<u32>>,
    /// Nodes with differences.
    unlike: Vec<NodeId>,
    /// The last walk, from the first turn that this one has not come to.
    last: std::vec::IntoIter<Slot>,
    walked: Vec<Slot>,
    /// More GPUs were taken than were free, so that differences do not add up: the next walk
    /// searches everything again.
    overdrawn: bool,
    /// Searches of a node, and searches of all nodes for a gang.
    #[cfg(test)]
    pub(super) searches: usize,
}

impl Timeline {
    pub(super) fn new(cluster: &Cluster) -> Self {
        let mut timeline = Self {
            nodes: vec![Node::default(); cluster.nodes().len()],
            of_type: vec![Vec::new(); cluster.gpu_types().len()],
            ..Self::default()
        };
        for id in cluster.node_ids() {
            let of_type = &mut timeline.of_type[cluster.node(id).gpu_type.index()];
            let node = &mut timeline.nodes[id.index()];
            (node.size, node.at) = (cluster.node(id).gpus.into(), of_type.len());
            of_type.push(id);
        }
        let size = |id: &NodeId| timeline.nodes[id.index()].size;
        timeline.largest_first.clone_from(&timeline.of_type);
        for nodes in &mut timeline.largest_first {
            nodes.sort_by_key(|id| std::cmp::Reverse(size(id)));
            let (first, last) = (nodes.first().map(size), nodes.last().map(size));
            timeline.uniform.push(first.filter(|_| first == last));
        }
        timeline
    }

    /// Begins a walk over the waiting jobs. `fill` adds what runs on a node to an empty list.
    pub(super) fn begin(&mut self, now: Timestamp, fill: impl Fn(NodeId, &mut Residents)) {
        self.now = now;
        self.unlike.clear();
        self.last = std::mem::take(&mut self.walked).into_iter();
        if std::mem::take(&mut self.overdrawn) {
            self.last = Vec::new().into_iter();
        }
        for (at, node) in self.nodes.iter_mut().enumerate() {
            let id = NodeId(at as u32);
            node.differences.clear();
            std::mem::swap(&mut node.residents, &mut node.before);
            node.residents.ends.clear();
            fill(id, &mut node.residents);
            compare(now, &node.before, &node.residents, &mut node.differences);
            let mut free = node.residents.free;
            node.steps.clear();
            node.steps.push((now, free));
            for (end, gpus) in &node.residents.ends {
                free += gpus;
                // Jobs that end together make one step. Of two, the first would lack GPUs for no
                // time at all once a reservation begins there, and no job would run past it.
                match node.steps.last_mut() {
                    Some((last, count)) if last == end => *count = free,
                    _ => node.steps.push((*end, free)),
                }
            }
            if !node.differences.is_empty() {
                self.unlike.push(id);
            }
        }
    }

    /// Comes to the next job of the order, which can run in one of these shapes for that long.
    pub(super) fn turn(
        &mut self,
        cluster: &Cluster,
        turn: Turn,
        wanted: impl ExactSizeIterator<Item = (Shape, Seconds)>,
    ) {
        let mut slot = Slot { turn, searches: Vec::new(), taken: None };
        while self.last.as_slice().first().is_some_and(|old| old.turn <= turn)
            && let Some(old) = self.last.next()
        {
            if old.turn == turn {
                slot = old;
                break;
            }
            if let Some(taken) = &old.taken {
                self.differ(taken, -1);
            }
        }
        let count = wanted.len();
        for (at, (shape, time)) in wanted.enumerate() {
            let time = (Timestamp::ZERO + time).micros();
            let is = |search: &Search| search.shape == shape && search.time == time;
            if let Some(known) = slot.searches[at..].iter().position(is) {
                slot.searches.swap(at, at + known);
                self.repair(cluster, &mut slot.searches[at]);
            } else {
                slot.searches.insert(at, self.search(cluster, shape, time));
            }
        }
        slot.searches.truncate(count);
        self.walked.push(slot);
    }

    /// The earliest time at which the present job's shape fits, and where.
    pub(super) fn earliest(&self, at: usize) -> Option<(Timestamp, &Counts)> {
        let (start, on) = self.walked.last()?.searches.get(at)?.found.as_ref()?;
        Some((*start, on))
    }

    /// Takes the GPUs that the present job gets, if any.
    pub(super) fn settle(&mut self, taken: Option<Taken>) {
        let Some(present) = self.walked.len().checked_sub(1) else { return };
        let before = self.walked[present].taken.take();
        let from = |taken: &Taken| taken.from.max(self.now);
        let same = match (&before, &taken) {
            (Some(a), Some(b)) => a.on == b.on && a.to == b.to && from(a) == from(b),
            _ => false,
        };
        if !same {
            before.iter().for_each(|before| self.differ(before, -1));
            taken.iter().for_each(|taken| self.differ(taken, 1));
        }
        if let Some(Taken { on, from, to }) = &taken {
            for (node, gpus) in on {
                if !self.nodes[node.index()].take(*gpus, *from, *to) {
                    self.overdrawn = true;
                    self.note(*node, UNLIKE);
                }
            }
        }
        self.walked[present].taken = taken;
    }

    fn differ(&mut self, taken: &Taken, sign: i64) {
        let from = taken.from.max(self.now);
        if taken.to <= from {
            return;
        }
        for (node, gpus) in &taken.on {
            self.note(*node, Difference { from, to: taken.to, gpus: sign * i64::from(*gpus) });
        }
    }

    fn note(&mut self, id: NodeId, new: Difference) {
        let differences = &mut self.nodes[id.index()].differences;
        add(differences, new);
        let known = self.unlike.iter().position(|node| *node == id);
        match (known, differences.is_empty()) {
            (Some(at), true) => {
                self.unlike.swap_remove(at);
            }
            (None, false) => self.unlike.push(id),
            _ => {}
        }
    }

    fn is_on_one_node(cluster: &Cluster, shape: Shape) -> bool {
        shape.gpus <= cluster.largest_node(shape.gpu_type)
    }

    fn search(&mut self, cluster: &Cluster, shape: Shape, time: i64) -> Search {
        let mut search = Search { shape, time, cells: Vec::new(), found: None };
        if Self::is_on_one_node(cluster, shape) {
            let count = self.of_type[shape.gpu_type.index()].len();
            search.cells.resize(count, None);
            for at in 0..count {
                self.search_node(&mut search, at);
            }
            self.choose(&mut search);
        } else {
            search.found = self.gang(shape, time);
        }
        search
    }

    /// Searches again only where the start that was found may no longer hold.
    fn repair(&mut self, cluster: &Cluster, search: &mut Search) {
        let mut changed = search.found.as_ref().is_some_and(|(start, _)| *start < self.now);
        if !Self::is_on_one_node(cluster, search.shape) {
            let is = |id: &NodeId| cluster.node(*id).gpu_type == search.shape.gpu_type;
            // Where nothing is different, no later time fits sooner: the nodes that are free from a
            // time on are also free from the last change before it on, and more free nodes never
            // leave a gang without a place.
            if changed || self.unlike.iter().any(is) {
                search.found = self.gang(search.shape, search.time);
            }
            return;
        }
        for at in 0..self.unlike.len() {
            let id = self.unlike[at];
            if cluster.node(id).gpu_type == search.shape.gpu_type {
                self.search_node(search, self.nodes[id.index()].at);
                changed = true;
            }
        }
        if changed {
            for at in 0..search.cells.len() {
                if search.cells[at].is_some_and(|(start, _)| start < self.now) {
                    self.search_node(search, at);
                }
            }
            self.choose(search);
        }
    }

    fn search_node(&mut self, search: &mut Search, at: usize) {
        #[cfg(test)]
        {
            self.searches += 1;
        }
        let node = &self.nodes[self.of_type[search.shape.gpu_type.index()][at].index()];
        let start = node.earliest(search.shape.gpus, search.time);
        search.cells[at] = start.map(|start| (start, node.free_at(start)));
    }

    /// The earliest; of several nodes the one with the fewest GPUs free, the first of these.
    fn choose(&self, search: &mut Search) {
        let nodes = &self.of_type[search.shape.gpu_type.index()];
        let cells = search.cells.iter().zip(nodes).filter_map(|(cell, id)| cell.zip(Some(*id)));
        let best = cells.min().map(|((start, _), id)| (start, id));
        let is = |found: &(Timestamp, Counts)| best == Some((found.0, found.1[0].0));
        if !search.found.as_ref().is_some_and(is) {
            search.found = best.map(|(start, id)| (start, vec![(id, search.shape.gpus)]));
        }
    }

    /// A shape larger than any node: tries the times at which the free GPUs of a node change.
    fn gang(&mut self, shape: Shape, time: i64) -> Option<(Timestamp, Counts)> {
        #[cfg(test)]
        {
            self.searches += 1;
        }
        let nodes = &self.largest_first[shape.gpu_type.index()];
        let not_before = match self.uniform[shape.gpu_type.index()] {
            // Each whole node must be free by then, and none is free for that long before the
            // first time at which it alone is.
            Some(size) => {
                let mut starts: Vec<Timestamp> = nodes
                    .iter()
                    .filter_map(|id| self.nodes[id.index()].earliest(size, time))
                    .collect();
                let needed = (shape.gpus / size) as usize;
                if starts.len() < needed {
                    return None;
                }
                *starts.select_nth_unstable(needed - 1).1
            }
            None => self.now,
        };
        let mut times: Vec<Timestamp> = nodes
            .iter()
            .flat_map(|id| self.nodes[id.index()].steps.iter().map(|step| step.0))
            .filter(|start| *start >= not_before)
            .collect();
        times.sort_unstable();
        times.dedup();
        times.into_iter().find_map(|start| {
            let end = Timestamp::from_micros(start.micros().saturating_add(time));
            Some((start, self.over_nodes(nodes, shape.gpus, start, end)?))
        })
    }

    /// Whole nodes, and the rest on a part of one more, as [`FreeGpus::place`] has it.
    ///
    /// [`FreeGpus::place`]: crate::placing::FreeGpus::place
    fn over_nodes(
        &self,
        largest_first: &[NodeId],
        gpus: u32,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<Counts> {
        let mut left = gpus;
        let mut counts = Counts::new();
        for id in largest_first {
            let node = &self.nodes[id.index()];
            if node.size <= left && node.is_free(node.size, from, to) {
                left -= node.size;
                counts.push((*id, node.size));
            }
        }
        if left > 0 {
            let rest = largest_first
                .iter()
                .filter(|id| counts.iter().all(|(whole, _)| whole != *id))
                .filter(|id| self.nodes[id.index()].is_free(left, from, to))
                .min_by_key(|id| (self.nodes[id.index()].free_at(from), **id))?;
            counts.push((*rest, left));
        }
        Some(counts)
    }
}

/// Adds a difference; one that takes back another cancels it.
fn add(differences: &mut Vec<Difference>, new: Difference) {
    let reverse = Difference { gpus: -new.gpus, ..new };
    match differences.iter().position(|old| new.gpus != 0 && *old == reverse) {
        Some(at) => {
            differences.swap_remove(at);
        }
        None => differences.push(new),
    }
}

/// How what runs on a node from now on differs from what was expected before.
fn compare(now: Timestamp, before: &Residents, after: &Residents, out: &mut Vec<Difference>) {
    if before.total() != after.total() {
        out.push(UNLIKE);
        return;
    }
    let past = before.ends.partition_point(|(end, _)| *end <= now);
    let (mut old, mut new) = (&before.ends[past..], &after.ends[..]);
    while let (Some(a), Some(b)) = (old.first(), new.first())
        && a == b
    {
        (old, new) = (&old[1..], &new[1..]);
    }
    let difference = |(to, gpus): &(Timestamp, u32), sign: i64| Difference {
        from: now,
        to: *to,
        gpus: sign * i64::from(*gpus),
    };
    old.iter().for_each(|end| add(out, difference(end, -1)));
    new.iter().for_each(|end| add(out, difference(end, 1)));
}

#[cfg(test)]
mod tests;
