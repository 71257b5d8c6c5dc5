//! In a hurry first, frugal later: a job that would be late in the way that takes least energy may
//! begin in a faster one and go on in the frugal one as soon as it will be in time all the same.
//!
//! What such a job costs to its end is judged with that change ahead, when a fast way is weighed
//! against being late. The change itself is made when its time has come, whatever else is planned: it
//! takes fewer GPUs, less GPU time and less energy than going on as it is, and the job is in time.

use super::candidates::Way;
use super::model::{Draft, Item, Problem, Slot};

/// A job goes on in a frugal way.
pub(super) struct Change<'p> {
    pub(super) to: &'p Way,
    /// Seconds from now until then, and until its end.
    pub(super) at: f64,
    pub(super) end: f64,
}

impl Problem<'_, '_> {
    /// The change that is ahead of a job that goes on, or starts after so long, in some way.
    pub(super) fn change_ahead(&self, item: &Item, way: &Way, lost: f64) -> Option<Change<'_>> {
        if item.commits || item.pinned || item.due == f64::INFINITY {
            return None;
        }
        let to = self.way(item.frugal?);
        if to.rate >= way.rate || self.joules(to) >= self.joules(way) {
            return None;
        }
        let (fast, slow) = (item.work / way.rate * way.later, item.work / to.rate * to.later);
        // A part of the work in one way and the rest in the other take as long as there is.
        let share = (lost + item.restart + slow - item.due) / (slow - fast);
        (share > 0.0 && share < 1.0).then(|| {
            let at = lost + share * item.work / way.rate;
            let end = at + item.restart + (1.0 - share) * item.work / to.rate;
            Change { to, at, end }
        })
    }

    /// What a restart must gain, beyond what it costs, for a job that is in time.
    pub(super) fn worth_a_restart(&self, item: &Item, way: &Way) -> f64 {
        let second = self.prices.watt(0.0, 1.0) * self.usual_watts(way);
        self.tuning.hysteresis * self.tuning.restart_margin * item.restart * second
    }

    /// The way that takes least energy.
    pub(super) fn most_frugal(&self, item: &Item) -> Option<u32> {
        let ways = self.ways_in(item);
        ways.min_by(|a, b| self.joules(a.1).total_cmp(&self.joules(b.1))).map(|(index, _)| index)
    }

    /// For a unit of work, on a node that is full.
    fn joules(&self, way: &Way) -> f64 {
        self.usual_watts(way) / way.rate
    }
}

/// Whoever goes on as it is, and would be in time in a way that takes less, changes to that.
pub(super) fn downshift(problem: &Problem<'_, '_>, draft: &mut Draft) {
    let mut nodes = problem.filled(draft);
    for (at, place) in draft.iter_mut().enumerate() {
        let item = &problem.items[at];
        let Some(slot) = place.as_ref().filter(|slot| problem.stays(at, slot)) else { continue };
        if !item.runs || item.pinned || item.commits {
            continue;
        }
        let has = problem.way(slot.way);
        let (takes, time) = (problem.takes(has), item.work / has.rate);
        let eases = |(_, way): &(u32, &Way)| {
            let then = item.work / way.rate;
            let in_time = then * way.later + item.restart <= item.due;
            let less = problem.takes(way) * (then + item.restart) <= takes * time;
            in_time && less && problem.takes(way) < takes
        };
        let mut ways = problem.ways_of(at).filter(eases).peekable();
        if ways.peek().is_none() {
            continue;
        }
        nodes.give_back(&problem.classes, &slot.spot, has.limit);
        // Others will come, and share a node that is half empty; nobody is sure to.
        let freed = problem.added_watts(&nodes, has, &slot.spot).min(problem.usual_watts(has));
        let mut best: Option<(f64, Slot)> = None;
        for (index, way) in ways {
            let Some((spot, watts, wake)) = problem.place(&nodes, way) else { continue };
            let watts = watts.max(problem.usual_watts(way));
            let end = item.work / way.rate + item.restart;
            let saves =
                (1.0 - problem.tuning.downshift_gain) * problem.prices.watt(0.0, time) * freed
                    - problem.prices.watt(0.0, end) * watts
                    - problem.worth_a_restart(item, way);
            let better = best.as_ref().map_or(saves > 0.0, |best| saves > best.0);
            if wake == 0.0 && better {
                best = Some((saves, Slot { way: index, spot }));
            }
        }
        if let Some((_, new)) = best {
            *place = Some(new);
        }
        if let Some(slot) = place {
            nodes.take(&problem.classes, &slot.spot, problem.way(slot.way).limit);
        }
    }
}

/// Seconds until the first change that is ahead of somebody who runs.
pub(super) fn first_change(problem: &Problem<'_, '_>, draft: &Draft) -> Option<f64> {
    let change = |(at, slot): (usize, &Option<Slot>)| {
        let slot = slot.as_ref()?;
        let lost = problem.lost(at, slot);
        let change = problem.change_ahead(&problem.items[at], problem.way(slot.way), lost)?;
        Some(change.at)
    };
    draft.iter().enumerate().filter_map(change).reduce(f64::min)
}
