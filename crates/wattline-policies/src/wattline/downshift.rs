//! Move: in a hurry first, frugal later. A job that would be late in its most frugal candidate may
//! start in a faster one and change as soon as it will be in time all the same.
//!
//! Where a fast candidate is weighed against being late, this change is part of its cost. The
//! change itself is made when it is due, whatever else is planned: it takes fewer GPUs, less GPU
//! time and less energy than going on, and the job is in time.

use super::{Candidate, Draft, Item, Problem, Slot};

/// A job goes on in a frugal candidate.
pub(super) struct Change<'p> {
    pub(super) to: &'p Candidate,
    /// Seconds from now until then, and until its end.
    pub(super) at: f64,
    pub(super) end: f64,
}

impl Problem<'_, '_> {
    /// The change that is ahead of a job that goes on, or starts after so long, in some candidate.
    pub(super) fn change_ahead(
        &self,
        item: &Item,
        candidate: &Candidate,
        lost: f64,
    ) -> Option<Change<'_>> {
        if item.commits || item.pinned || item.due == f64::INFINITY {
            return None;
        }
        let to = self.candidate(item.frugal?);
        if to.rate >= candidate.rate || self.joules(to) >= self.joules(candidate) {
            return None;
        }
        let (fast, slow) =
            (item.work / candidate.rate * candidate.later, item.work / to.rate * to.later);
        // A part of the work in one candidate and the rest in the other take as long as there is.
        let share = (lost + item.restart + slow - item.due) / (slow - fast);
        (share > 0.0 && share < 1.0).then(|| {
            let at = lost + share * item.work / candidate.rate;
            let end = at + item.restart + (1.0 - share) * item.work / to.rate;
            Change { to, at, end }
        })
    }

    /// What a restart must gain, beyond what it costs, for a job that is in time.
    pub(super) fn worth_a_restart(&self, item: &Item, candidate: &Candidate) -> f64 {
        let second = self.prices.watt(0.0, 1.0) * self.usual_watts(candidate);
        self.tuning.hysteresis * self.tuning.restart_margin * item.restart * second
    }

    pub(super) fn most_frugal(&self, item: &Item) -> Option<u32> {
        let candidates = self.candidates_in(item).iter();
        let best = candidates.min_by(|a, b| self.joules(a).total_cmp(&self.joules(b)));
        best.map(|candidate| candidate.index)
    }

    /// For a unit of work, on a node that is full.
    fn joules(&self, candidate: &Candidate) -> f64 {
        self.usual_watts(candidate) / candidate.rate
    }
}

/// A job that goes on as it is, and would be in time in a candidate that takes less, changes to it.
pub(super) fn downshift(problem: &Problem<'_, '_>, draft: &mut Draft) {
    let mut nodes = problem.filled(draft);
    for (at, place) in draft.iter_mut().enumerate() {
        let item = &problem.items[at];
        let Some(slot) = place.as_ref().filter(|slot| problem.stays(at, slot)) else { continue };
        if !item.runs || item.pinned || item.commits {
            continue;
        }
        let has = problem.of(slot);
        let (takes, time) = (problem.takes(has), item.work / has.rate);
        let is_smaller = |candidate: &&Candidate| {
            let then = item.work / candidate.rate;
            let in_time = then * candidate.later + item.restart <= item.due;
            let less = problem.takes(candidate) * (then + item.restart) <= takes * time;
            in_time && less && problem.takes(candidate) < takes
        };
        let mut candidates = problem.candidates_of(at).iter().filter(is_smaller).peekable();
        if candidates.peek().is_none() {
            continue;
        }
        problem.give_back(&mut nodes, slot);
        // Others may come to share a half-empty node: at most a full node's share is counted.
        let freed = problem.added_watts(&nodes, has, &slot.spot).min(problem.usual_watts(has));
        let mut best: Option<(f64, Slot)> = None;
        for candidate in candidates {
            let Some((spot, watts, wake)) = problem.place(&nodes, candidate) else { continue };
            let watts = watts.max(problem.usual_watts(candidate));
            let end = item.work / candidate.rate + item.restart;
            let saves =
                (1.0 - problem.tuning.downshift_gain) * problem.prices.watt(0.0, time) * freed
                    - problem.prices.watt(0.0, end) * watts
                    - problem.worth_a_restart(item, candidate);
            let better = best.as_ref().map_or(saves > 0.0, |best| saves > best.0);
            if wake == 0.0 && better {
                best = Some((saves, Slot { candidate: candidate.index, spot }));
            }
        }
        if let Some((_, new)) = best {
            *place = Some(new);
        }
        if let Some(slot) = place {
            problem.take(&mut nodes, slot);
        }
    }
}

/// Seconds until the first change that is ahead.
pub(super) fn first_change(problem: &Problem<'_, '_>, draft: &Draft) -> Option<f64> {
    let change = |(at, slot): (usize, &Option<Slot>)| {
        let slot = slot.as_ref()?;
        let lost = problem.lost(at, slot);
        let change = problem.change_ahead(&problem.items[at], problem.of(slot), lost)?;
        Some(change.at)
    };
    draft.iter().enumerate().filter_map(change).reduce(f64::min)
}
