//! The price of a joule that keeps jobs within an energy bound.
//!
//! It follows from the latest jobs, finished or not, and not from who waits at the moment: a price
//! that moved with every event would have jobs change shape with it.

use super::candidates::{Way, Ways};
use super::constants::ENERGY_HALVINGS;
use super::model::Problem;
use super::prices::PriceCurve;
use wattline_core::state::JobState;

/// Sets the least price of a joule, in seconds of waiting, at which jobs that choose by time and
/// energy alone take at most this share of the energy that they would take as requested. Jobs that
/// compete for GPUs take fewer of them, and less energy still.
pub(super) fn price(problem: &mut Problem<'_, '_>, share: f64) {
    let jobs = latest(problem);
    let asked: f64 = jobs.iter().map(|job| job.asked).sum();
    let takes = |joule: f64| -> f64 { jobs.iter().map(|job| job.energy(joule)).sum() };
    let dearest = problem.tuning.energy_max_s_per_j;
    // The last joules cost endless time: less than that is not asked for.
    let bound = (share * asked).max((1.0 + problem.tuning.energy_min_margin) * takes(dearest));
    let mut price = 0.0;
    if takes(0.0) > bound {
        // Seconds per joule, from next to nothing to more than any job is worth.
        let (mut low, mut high) = (1e-9_f64, dearest);
        for _ in 0..ENERGY_HALVINGS {
            let middle = (low * high).sqrt();
            if takes(middle) <= bound {
                high = middle;
            } else {
                low = middle;
            }
        }
        price = high;
    }
    problem.prices = PriceCurve::constant(price);
}

/// A job's ways as seconds and joules.
struct Choices {
    ways: Vec<(f64, f64)>,
    asked: f64,
}

impl Choices {
    fn energy(&self, joule: f64) -> f64 {
        let cost = |way: &&(f64, f64)| way.0 + joule * way.1;
        let best = self.ways.iter().min_by(|a, b| cost(a).total_cmp(&cost(b)));
        best.map_or(0.0, |way| way.1)
    }
}

fn latest(problem: &Problem<'_, '_>) -> Vec<Choices> {
    let view = problem.view;
    let cluster = view.state.cluster();
    let mut known = Ways::new(true, problem.tuning);
    let latest: Vec<&JobState> = view
        .state
        .latest_submissions()
        .rev()
        .take(problem.tuning.energy_latest_jobs)
        .map(|(_, job)| job)
        .collect();
    let mut jobs = Vec::new();
    for job in latest.into_iter().rev() {
        let work = job.job.work.0;
        let spends = |way: &Way| {
            let time = work / way.rate;
            (time, time * problem.usual_watts(way))
        };
        let ways: Vec<(f64, f64)> = known.of(view, job).iter().map(spends).collect();
        let asked = job.job.gpus.requested;
        let menu = view.state.menu(job.menu).iter();
        let shape = menu.min_by_key(|shape| shape.gpus.abs_diff(asked)).copied();
        let plain = shape.map(|shape| cluster.plain_configuration(&job.job, shape));
        let requested = plain.and_then(|plain| Way::new(job, view, plain, problem.tuning));
        if let Some(requested) = requested {
            jobs.push(Choices { ways, asked: spends(&requested).1 });
        }
    }
    jobs
}
