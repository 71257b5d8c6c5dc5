//! The price of a joule that keeps jobs within an energy bound.

use super::model::Problem;
use super::prices::PriceCurve;
use super::search;

/// The price is found to a part of 2 to the power of this.
const HALVINGS: usize = 10;

/// Sets the least price of a joule, in seconds of waiting, at which all jobs together take at most
/// this share of the energy that they would take as they were requested.
pub(super) fn price(problem: &mut Problem<'_, '_>, share: f64) {
    let bound = share * as_requested(problem);
    let mut takes = |joule: f64| {
        problem.prices = PriceCurve::constant(joule);
        search::energy(problem)
    };
    if takes(0.0) <= bound {
        return;
    }
    // Seconds per joule: a day for a watt-second is more than any job is worth.
    let (mut low, mut high) = (1e-9_f64, 1.0_f64);
    for _ in 0..HALVINGS {
        let middle = (low * high).sqrt();
        if takes(middle) <= bound {
            high = middle;
        } else {
            low = middle;
        }
    }
    problem.prices = PriceCurve::constant(high);
}

/// Billed joules of all jobs with what they asked for, at the default limit, on nodes well used.
fn as_requested(problem: &Problem<'_, '_>) -> f64 {
    let view = problem.view;
    let cluster = view.state.cluster();
    let mut sum = 0.0;
    for (at, item) in problem.items.iter().enumerate() {
        let job = view.state.job(item.id);
        let asked = job.job.gpus.requested;
        let menu = view.state.menu(job.menu);
        let nearest = menu.iter().min_by_key(|shape| shape.gpus.abs_diff(asked));
        let shape = nearest.copied();
        let requested = shape.and_then(|shape| {
            let configuration = cluster.plain_configuration(&job.job, shape);
            super::ways::Way::present(job, view, &configuration)
        });
        let way = requested.or_else(|| problem.ways_of(at).next().map(|(_, way)| *way));
        if let Some(way) = way {
            sum += item.work / way.rate * problem.usual_watts(&way);
        }
    }
    sum
}
