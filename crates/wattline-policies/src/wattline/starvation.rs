//! Move: overdue jobs come first.
//!
//! They stand in a line, the job that became overdue first at its head. The first of them that can
//! run at all on the present nodes within the budget is served before the search begins:
//!
//! - It fits beside all others: then it must be in the plan ([`Starvation::must`]).
//! - It fits if jobs leave that may be moved and are not before it in the line: it is given GPUs,
//!   and the fewest leave that can be found.
//! - Otherwise it waits for jobs that stay to end. GPUs are kept for it where it can start soonest:
//!   those that are free, or become free, go to no other job, nor do the watts it needs.
//!
//! Nothing is remembered from plan to plan, so the GPUs that are kept may change with predictions.
//! Left to new jobs each time, it would wait for ever. So it does not wait for jobs that started
//! after it was overdue, if there is a choice; if not, it waits for those that started first.
//! Either way its wait ends with the last of the jobs that were there when it was first in line.

use super::{Draft, Nodes, Problem, Slot, Spot};

/// What the search must keep to.
#[derive(Clone, Debug, Default)]
pub(super) struct Starvation {
    /// It fits beside all others: it may not be left waiting.
    pub(super) must: Option<usize>,
    pub(super) kept_for: Option<usize>,
    /// Others stand in line behind the one that is served.
    pub(super) line_behind: bool,
    /// Seconds until the next job that waits is overdue.
    pub(super) next: Option<f64>,
    /// Watts of the budget that are kept from all jobs that start.
    pub(super) watts: f64,
}

impl Problem<'_, '_> {
    /// Serves the first overdue job that can run, out of what there is to give.
    pub(super) fn serve_overdue(&mut self) {
        let waiting = || self.items.iter().enumerate().filter(|(_, item)| item.now.is_none());
        let yet = waiting().filter(|(_, item)| !item.overdue).map(|(_, item)| -item.over);
        self.starvation.next = yet.reduce(f64::min);
        let mut line: Vec<usize> =
            waiting().filter(|(_, item)| item.overdue).map(|(at, _)| at).collect();
        line.sort_by(|a, b| self.items[*b].over.total_cmp(&self.items[*a].over).then(a.cmp(b)));
        for (turn, at) in line.iter().enumerate() {
            if self.serve(*at) {
                self.starvation.line_behind = turn + 1 < line.len();
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
                self.take(&mut nodes, slot);
            }
        }
        nodes
    }

    fn fastest_fit(&self, at: usize, nodes: &Nodes) -> Option<Slot> {
        let mut best: Option<(f64, Slot)> = None;
        for candidate in self.candidates_of(at) {
            if best.as_ref().is_none_or(|(rate, _)| *rate < candidate.rate)
                && let Some(slot) = self.slot(nodes, candidate)
            {
                best = Some((candidate.rate, slot));
            }
        }
        best.map(|(_, slot)| slot)
    }

    /// Evicts jobs in that order, besides those that are gone, until the one in line fits: which
    /// are gone then, and its place.
    fn evict(&self, at: usize, gone: &[bool], order: &[usize]) -> Option<(Vec<bool>, Slot)> {
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
        let none = vec![false; self.items.len()];
        let all_stay = self.without(&none);
        if self.fastest_fit(at, &all_stay).is_some() {
            self.starvation.must = Some(at);
            return true;
        }
        let placed = || (0..self.items.len()).filter(|other| self.items[*other].now.is_some());
        let mut movable: Vec<usize> = placed().filter(|other| !self.blocks(*other, at)).collect();
        // Those first that lose least by a restart.
        let loss = |other: &usize| {
            let item = &self.items[*other];
            let gpus = item.now.as_ref().map_or(0.0, |slot| self.of(slot).gpus());
            if item.runs { item.restart * gpus } else { 0.0 }
        };
        movable.sort_by(|a, b| loss(a).total_cmp(&loss(b)).then(b.cmp(a)));
        if let Some((gone, slot)) = self.evict(at, &none, &movable) {
            self.grant(at, slot, &gone, &movable);
            return true;
        }
        let mut moved = none;
        movable.iter().for_each(|other| moved[*other] = true);
        let blocking: Vec<usize> = placed().filter(|other| self.blocks(*other, at)).collect();
        let Some((gone, slot)) = self.soonest(at, &moved, blocking) else { return false };
        self.keep_for(at, &slot, &all_stay, &moved, &gone);
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
            self.items[*other].now.as_ref().map_or(0.0, |slot| self.end(*other, slot))
        };
        let before = |other: &usize| since(*other) >= over || self.precedes(*other, at);
        let mut known: Vec<usize> = blocking.iter().copied().filter(before).collect();
        known.sort_by(|a, b| end(a).total_cmp(&end(b)).then(a.cmp(b)));
        self.evict(at, moved, &known).or_else(|| {
            blocking.sort_by(|a, b| since(*b).total_cmp(&since(*a)).then(a.cmp(b)));
            self.evict(at, moved, &blocking)
        })
    }

    /// The job gets GPUs, and jobs that do not fit beside it leave.
    fn grant(&mut self, at: usize, slot: Slot, gone: &[bool], movable: &[usize]) {
        let mut nodes = self.without(gone);
        self.take(&mut nodes, &slot);
        // Those that would lose most by leaving come back first.
        for other in movable.iter().rev().filter(|other| gone[**other]) {
            let Some(now) = &self.items[*other].now else { continue };
            let limit = self.of(now).limit;
            if nodes.has_room(&now.spot) {
                nodes.take(&now.spot, limit);
                if nodes.committed <= self.budget {
                    continue;
                }
                nodes.give_back(&now.spot, limit);
            }
            self.items[*other].leaves = true;
            self.items[*other].pinned = false;
        }
        self.items[at].pinned = true;
        self.items[at].granted = Some(slot);
    }

    fn keep_for(
        &mut self,
        at: usize,
        slot: &Slot,
        all_stay: &Nodes,
        moved: &[bool],
        gone: &[bool],
    ) {
        let limit = self.of(slot).limit;
        let mut kept = Spot::new();
        // A job that may be moved stays until this one can start; no other job is put there.
        let mut full = Vec::new();
        for (node, gpus) in &slot.spot {
            let free = all_stay.free(*node);
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
        then.take(&slot.spot, limit);
        self.empty.take(&kept, limit);
        let now = self.without(moved);
        self.starvation.watts = (then.committed - now.committed).max(0.0);
        for (item, moved) in self.items.iter_mut().zip(moved) {
            if *moved && item.now.as_ref().is_some_and(|now| on(&now.spot, &full)) {
                item.pinned = true;
            }
        }
        self.starvation.kept_for = Some(at);
    }

    /// Jobs that a draft may not leave without GPUs, and does.
    pub(super) fn broken_promises(&self, draft: &Draft) -> usize {
        let promised = |at: usize| {
            let item = &self.items[at];
            self.starvation.must == Some(at) || (item.overdue && item.now.is_some() && !item.leaves)
        };
        (0..draft.len()).filter(|at| draft[*at].is_none() && promised(*at)).count()
    }
}
