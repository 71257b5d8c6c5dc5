//! What a joule costs from now on: the bill, or the price that keeps jobs within an energy bound.
//! That follows from the latest jobs, finished or not, and not from those that wait at the moment:
//! a price that moved with every event would have jobs change shape with it.

use super::constants::ENERGY_HALVINGS;
use super::{Candidate, CandidateCache, Objective, Problem};
use wattline_core::policy::ClusterView;
use wattline_core::state::JobState;
use wattline_core::units::{Seconds, Watts};

/// EUR per billed joule over time, as a sum from now on.
#[derive(Clone, Debug)]
pub(super) struct PriceCurve {
    /// Begin of a span, what a watt has cost by then, and what a second more costs.
    spans: Vec<(f64, f64, f64)>,
}

impl PriceCurve {
    pub(super) fn new(view: &ClusterView<'_>, objective: &Objective<'_>) -> Self {
        let share = objective.energy_share();
        if share == 0.0 {
            return Self::constant(0.0);
        }
        let mut spans = Vec::new();
        let (mut time, mut sum) = (view.now, 0.0);
        let second = Seconds::new(1.0);
        for _ in 0..objective.tuning.price_changes {
            let bill = view.prices.bill(Watts::new(1.0), time, time + second);
            let price = share * bill.total().get();
            let begin = (time - view.now).get();
            spans.push((begin, sum, price));
            let Some(next) = view.prices.next_change(time) else {
                return Self { spans };
            };
            sum += price * (next - time).get();
            time = next;
        }
        let span = (time - view.now).get();
        spans.push((span, sum, sum / span.max(1.0)));
        Self { spans }
    }

    pub(super) fn constant(joule: f64) -> Self {
        Self { spans: vec![(0.0, 0.0, joule)] }
    }

    fn until(&self, time: f64) -> f64 {
        let at = match &self.spans[..] {
            [_] => 0,
            many => many.partition_point(|(begin, _, _)| *begin <= time).max(1) - 1,
        };
        let (begin, sum, price) = self.spans[at];
        sum + (time - begin) * price
    }

    pub(super) fn watt(&self, from: f64, to: f64) -> f64 {
        if let [(_, _, price)] = self.spans[..] {
            (to - from) * price
        } else {
            self.until(to) - self.until(from)
        }
    }
}

/// Under an energy bound: sets the least price of a joule, in seconds of waiting, at which jobs
/// that choose by time and energy alone take at most this share of the energy that they would take
/// as requested. Jobs that compete for GPUs take fewer of them, and less energy still.
pub(super) fn price_under_energy_bound(problem: &mut Problem<'_, '_>, share: f64) {
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

struct Choices {
    candidates: Vec<(f64, f64)>,
    asked: f64,
}

impl Choices {
    fn energy(&self, joule: f64) -> f64 {
        let cost = |candidate: &&(f64, f64)| candidate.0 + joule * candidate.1;
        let best = self.candidates.iter().min_by(|a, b| cost(a).total_cmp(&cost(b)));
        best.map_or(0.0, |candidate| candidate.1)
    }
}

fn latest(problem: &Problem<'_, '_>) -> Vec<Choices> {
    let view = problem.view;
    let cluster = view.state.cluster();
    let mut known = CandidateCache::new(true, problem.tuning);
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
        let spends = |candidate: &Candidate| {
            let time = work / candidate.rate;
            (time, time * problem.usual_watts(candidate))
        };
        let candidates: Vec<(f64, f64)> = known.of(view, job).iter().map(spends).collect();
        let asked = job.job.gpus.requested;
        let menu = view.state.menu(job.menu).iter();
        let shape = menu.min_by_key(|shape| shape.gpus.abs_diff(asked)).copied();
        let plain = shape.map(|shape| cluster.plain_configuration(&job.job, shape));
        let requested = plain.and_then(|plain| Candidate::new(job, view, plain, problem.tuning));
        if let Some(requested) = requested {
            jobs.push(Choices { candidates, asked: spends(&requested).1 });
        }
    }
    jobs
}
