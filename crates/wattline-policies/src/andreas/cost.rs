//! What a plan is expected to cost: the authors' proxy.
//!
//! Everything is judged at the first completion in the plan: energy is counted until then, and
//! lateness is what a running job has by then, not what it will have at its own end. A postponed
//! job counts a hundred times the lateness of its slowest configuration.

use super::problem::Problem;
use super::search::Placed;
use super::space::Space;

/// The cost in EUR of running exactly `placed`, which filled `space`.
pub(super) fn proxy(problem: &Problem<'_, '_>, placed: &[Placed], space: &Space) -> f64 {
    let time = |p: &Placed| problem.items[p.item].ways[p.way].time.get();
    let first_end = placed.iter().map(time).fold(f64::INFINITY, f64::min);
    if placed.is_empty() {
        return problem.all_postponed;
    }
    let energy = first_end * space.billed(problem) * problem.price;
    let mut cost = energy + problem.all_postponed;
    for p in placed {
        let item = &problem.items[p.item];
        cost += item.weight * (first_end - item.due).max(0.0) - item.postponed;
    }
    cost
}
