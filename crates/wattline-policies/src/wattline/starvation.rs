//! What is owed to jobs that have waited too long.
//!
//! They stand in a line, whoever became overdue first at its head. The first of them that can run
//! at all on the nodes that are there, within the budget, is served:
//!
//! - It fits beside everybody: then it must be in the plan ([`Owed::must`]).
//! - It fits if jobs leave that may be moved and are not before it in the line: it is given GPUs
//!   before the search begins, and the fewest leave that can be found.
//! - Otherwise it waits for jobs that stay to end. GPUs are kept for it, where it can start
//!   soonest: those of them that are free, or become free, go to nobody else, nor do the watts it
//!   will need.
//!
//! All of this is decided before the search and taken out of what the search can give away.
//!
//! Nothing is remembered from plan to plan, so the GPUs that are kept may change with predictions.
//! It may not happen that they are left to somebody new each time, and the job waits for ever. So
//! it does not wait for jobs that started after it was overdue, as long as there is another choice.
//! Where there is none, it waits for those that started first. Both ways, whoever starts while it
//! is first in line is never waited for, and its wait ends with the last of those who were there.

use super::model::{Draft, Problem, Slot};
use super::nodes::{Nodes, Spot};

/// What the search must keep to.
#[derive(Clone, Debug, Default)]
pub(super) struct Owed {
    /// It fits beside all others: it may not be left waiting.
    pub(super) must: Option<usize>,
    /// GPUs are kept for it.
    pub(super) kept_for: Option<usize>,
    /// Others stand in line behind the one that is served.
    pub(super) line_behind: bool,
    /// Seconds until the next job that waits is overdue.
    pub(super) next: Option<f64>,
    /// Watts of the budget that are kept and not to be given to anybody who starts.
    pub(super) watts: f64,
}

impl Problem<'_, '_> {
    /// Finds out what is owed, and takes it out of what there is to give.
    pub(super) fn serve_overdue(&mut self) {
        let waiting = || self.items.iter().enumerate().filter(|(_, item)| item.now.is_none());
        let yet = waiting().filter(|(_, item)| !item.overdue).map(|(_, item)| -item.over);
        self.owed.next = yet.reduce(f64::min);
        let mut line: Vec<usize> =
            waiting().filter(|(_, item)| item.overdue).map(|(at, _)| at).collect();
        line.sort_by(|a, b| self.items[*b].over.total_cmp(&self.items[*a].over).then(a.cmp(b)));
        for (turn, at) in line.iter().enumerate() {
            if self.serve(*at) {
                self.owed.line_behind = turn + 1 < line.len();
                break;
            }
        }
    }

    /// Whether a job that has GPUs does not give them up for the one in line: it may not be moved,
    /// or it was overdue before.
    fn blocks(&self, other: usize, at: usize) -> bool {
        self.items[other].stays || self.precedes(other, at)
    }

    fn precedes(&self, other: usize, at: usize) -> bool {
        let (a, b) = (&self.items[other], &self.items[at]);
        a.overdue && (a.over > b.over || (a.over == b.over && other < at))
    }

    /// The nodes with all jobs where they are, but for some.
    fn without(&self, gone: &[bool]) -> Nodes {
        let mut nodes = self.empty.clone();
        for (item, _) in self.items.iter().zip(gone).filter(|(_, gone)| !**gone) {
            if let Some(slot) = &item.now {
                nodes.take(&self.classes, &slot.spot, self.way(slot.way).limit);
            }
        }
        nodes
    }

    /// The fastest way of a job that fits.
    fn fastest_fit(&self, at: usize, nodes: &Nodes) -> Option<Slot> {
        let mut best: Option<(f64, Slot)> = None;
        for (way, ways) in self.ways_of(at) {
            if best.as_ref().is_some_and(|(rate, _)| *rate >= ways.rate) {
                continue;
            }
            if let Some((spot, _, _)) = self.place(nodes, ways) {
                best = Some((ways.rate, Slot { way, spot }));
            }
        }
        best.map(|(_, slot)| slot)
    }

    /// Lets jobs go in that order, besides those that are gone, until the one in line fits: who is
    /// gone then, and its place.
    fn let_go(&self, at: usize, gone: &[bool], order: &[usize]) -> Option<(Vec<bool>, Slot)> {
        let after = |count: usize| {
            let mut gone = gone.to_vec();
            order[..count].iter().for_each(|other| gone[*other] = true);
            let slot = self.fastest_fit(at, &self.without(&gone));
            slot.map(|slot| (gone, slot))
        };
        let all = after(order.len())?;
        let (mut low, mut high) = (0, order.len());
        while low < high {
            let middle = low.midpoint(high);
            if after(middle).is_some() {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Some(after(high).unwrap_or(all))
    }

    /// Serves one in line, if it can run at all.
    fn serve(&mut self, at: usize) -> bool {
        let nobody = vec![false; self.items.len()];
        let everyone = self.without(&nobody);
        if self.fastest_fit(at, &everyone).is_some() {
            self.owed.must = Some(at);
            return true;
        }
        let placed = || (0..self.items.len()).filter(|other| self.items[*other].now.is_some());
        let mut movable: Vec<usize> = placed().filter(|other| !self.blocks(*other, at)).collect();
        // Those first that lose least by a restart.
        let loss = |other: &usize| {
            let item = &self.items[*other];
            let gpus = item.now.as_ref().map_or(0.0, |slot| self.way(slot.way).gpus());
            if item.runs { item.restart * gpus } else { 0.0 }
        };
        movable.sort_by(|a, b| loss(a).total_cmp(&loss(b)).then(b.cmp(a)));
        if let Some((gone, slot)) = self.let_go(at, &nobody, &movable) {
            self.grant(at, slot, &gone, &movable);
            return true;
        }
        let mut moved = nobody;
        movable.iter().for_each(|other| moved[*other] = true);
        let blocking: Vec<usize> = placed().filter(|other| self.blocks(*other, at)).collect();
        let Some((gone, slot)) = self.soonest(at, &moved, blocking) else { return false };
        self.keep_for(at, &slot, &everyone, &moved, &gone);
        true
    }

    /// Where the job can start soonest once jobs end that block it.
    fn soonest(
        &self,
        at: usize,
        moved: &[bool],
        mut blocking: Vec<usize>,
    ) -> Option<(Vec<bool>, Slot)> {
        let now = self.view.now;
        let since = |other: usize| {
            let start = self.view.state.job(self.items[other].id).first_start;
            start.map_or(f64::NEG_INFINITY, |start| now.since(start).get())
        };
        let over = self.items[at].over;
        let end = |other: &usize| {
            let item = &self.items[*other];
            let slot = item.now.as_ref();
            slot.map_or(0.0, |slot| item.work / self.way(slot.way).rate + self.lost(*other, slot))
        };
        let before = |other: &usize| since(*other) >= over || self.precedes(*other, at);
        let mut known: Vec<usize> = blocking.iter().copied().filter(before).collect();
        known.sort_by(|a, b| end(a).total_cmp(&end(b)).then(a.cmp(b)));
        self.let_go(at, moved, &known).or_else(|| {
            blocking.sort_by(|a, b| since(*b).total_cmp(&since(*a)).then(a.cmp(b)));
            self.let_go(at, moved, &blocking)
        })
    }

    /// The job gets GPUs, and whoever does not fit beside it leaves.
    fn grant(&mut self, at: usize, slot: Slot, gone: &[bool], movable: &[usize]) {
        let mut nodes = self.without(gone);
        nodes.take(&self.classes, &slot.spot, self.way(slot.way).limit);
        // Those who would lose most by leaving come back first.
        for other in movable.iter().rev().filter(|other| gone[**other]) {
            let Some(now) = &self.items[*other].now else { continue };
            let limit = self.way(now.way).limit;
            if nodes.has_room(&now.spot) {
                nodes.take(&self.classes, &now.spot, limit);
                if nodes.committed <= self.budget {
                    continue;
                }
                nodes.give_back(&self.classes, &now.spot, limit);
            }
            self.items[*other].leaves = true;
            self.items[*other].pinned = false;
        }
        self.items[at].pinned = true;
        self.items[at].granted = Some(slot);
    }

    /// GPUs and watts are kept for the job.
    fn keep_for(
        &mut self,
        at: usize,
        slot: &Slot,
        everyone: &Nodes,
        moved: &[bool],
        gone: &[bool],
    ) {
        let limit = self.way(slot.way).limit;
        let mut kept = Spot::new();
        // Who may be moved stays until the job can start; the search must not put others there.
        let mut full = Vec::new();
        for (node, gpus) in &slot.spot {
            let free = everyone.free(*node);
            if free > 0 {
                kept.push((*node, free.min(*gpus)));
            }
            if free < *gpus {
                full.push(*node);
            }
        }
        let on = |spot: &Spot, nodes: &[u32]| spot.iter().any(|(node, _)| nodes.contains(node));
        let spared = |other: usize| {
            moved[other]
                || (gone[other]
                    && self.items[other].now.as_ref().is_some_and(|now| on(&now.spot, &full)))
        };
        let spared: Vec<bool> = (0..self.items.len()).map(spared).collect();
        let mut then = self.without(&spared);
        then.take(&self.classes, &slot.spot, limit);
        self.empty.take(&self.classes, &kept, limit);
        let now = self.without(moved);
        self.owed.watts = (then.committed - now.committed).max(0.0);
        for (item, moved) in self.items.iter_mut().zip(moved) {
            if *moved && item.now.as_ref().is_some_and(|now| on(&now.spot, &full)) {
                item.pinned = true;
            }
        }
        self.owed.kept_for = Some(at);
    }

    /// Jobs that a draft may not leave without GPUs, and does.
    pub(super) fn broken_promises(&self, draft: &Draft) -> usize {
        let owed = |at: usize| {
            let item = &self.items[at];
            self.owed.must == Some(at) || (item.overdue && item.now.is_some() && !item.leaves)
        };
        (0..draft.len()).filter(|at| draft[*at].is_none() && owed(*at)).count()
    }
}
