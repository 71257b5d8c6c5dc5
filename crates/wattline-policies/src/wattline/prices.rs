//! What a joule costs from now on.

use super::objective::Objective;
use wattline_core::policy::ClusterView;
use wattline_core::units::{Seconds, Watts};

/// EUR per billed joule over time, as a sum from now on.
#[derive(Clone, Debug)]
pub(super) struct PriceCurve {
    /// Begin of a stretch, what a watt has cost by then, and what a second more costs.
    stretches: Vec<(f64, f64, f64)>,
}

impl PriceCurve {
    pub(super) fn new(view: &ClusterView<'_>, objective: &Objective<'_>) -> Self {
        let share = objective.energy_share();
        if share == 0.0 {
            return Self::constant(0.0);
        }
        let mut stretches = Vec::new();
        let (mut time, mut sum) = (view.now, 0.0);
        let second = Seconds::new(1.0);
        for _ in 0..objective.tuning.price_changes {
            let bill = view.prices.bill(Watts::new(1.0), time, time + second);
            let price = share * bill.total().get();
            let begin = (time - view.now).get();
            stretches.push((begin, sum, price));
            let Some(next) = view.prices.next_change(time) else {
                return Self { stretches };
            };
            sum += price * (next - time).get();
            time = next;
        }
        let span = (time - view.now).get();
        stretches.push((span, sum, sum / span.max(1.0)));
        Self { stretches }
    }

    /// A joule always costs the same.
    pub(super) fn constant(joule: f64) -> Self {
        Self { stretches: vec![(0.0, 0.0, joule)] }
    }

    /// What a watt costs from now to that second.
    fn until(&self, time: f64) -> f64 {
        let at = match &self.stretches[..] {
            [_] => 0,
            many => many.partition_point(|(begin, _, _)| *begin <= time).max(1) - 1,
        };
        let (begin, sum, price) = self.stretches[at];
        sum + (time - begin) * price
    }

    /// What a watt costs between two times.
    pub(super) fn watt(&self, from: f64, to: f64) -> f64 {
        if let [(_, _, price)] = self.stretches[..] {
            (to - from) * price
        } else {
            self.until(to) - self.until(from)
        }
    }
}
