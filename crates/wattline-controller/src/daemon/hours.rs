//! Power and energy by the hour, for reports.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use wattline_core::Timestamp;
use wattline_core::power::TOLERANCE;
use wattline_core::prices::Prices;
use wattline_core::units::{Euros, Joules, Seconds, Watts};

/// Microseconds.
const HOUR: i64 = 3_600_000_000;
/// Five years of them are kept.
const MOST: usize = 5 * 366 * 24;

/// One hour of the cluster's clock, as far as power was measured in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hour {
    /// How long it was measured.
    pub measured: Seconds,
    /// What was drawn.
    pub energy: Joules,
    /// What that cost, with cooling and carbon.
    pub cost: Euros,
    /// The most that was drawn.
    pub peak: Watts,
    /// The most that could have been drawn.
    pub committed: Watts,
    /// How long there was a budget,
    pub budgeted: Seconds,
    /// what it would have allowed in that time,
    pub allowed: Joules,
    /// and how long more was drawn.
    pub over: Seconds,
}

/// What is drawn from one look to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) drawn: Watts,
    pub(super) committed: Watts,
    pub(super) budget: Option<Watts>,
}

/// Hour by hour, by when they begin.
#[derive(Clone, Debug, Default)]
pub struct Hours {
    hours: BTreeMap<i64, Hour>,
    /// Those that changed since they were last written down.
    changed: Option<(i64, i64)>,
}

impl Hours {
    /// As they were written down.
    pub(super) fn new(hours: impl IntoIterator<Item = (Timestamp, Hour)>) -> Self {
        let hours = hours.into_iter().map(|(at, hour)| (at.micros(), hour));
        Self { hours: hours.collect(), changed: None }
    }

    /// This was the load from one time to another.
    pub(super) fn add(&mut self, from: Timestamp, to: Timestamp, load: Load, prices: &Prices) {
        let mut now = from;
        while now < to {
            let begin = now.micros().div_euclid(HOUR) * HOUR;
            let until = to.min(Timestamp::from_micros(begin + HOUR));
            self.in_an_hour(begin, (now, until), load, prices);
            now = until;
        }
    }

    fn in_an_hour(
        &mut self,
        begin: i64,
        (from, to): (Timestamp, Timestamp),
        load: Load,
        prices: &Prices,
    ) {
        let time = to.since(from);
        let hour = self.hours.entry(begin).or_default();
        hour.measured += time;
        hour.energy += load.drawn * time;
        hour.cost += prices.bill(load.drawn * prices.pue, from, to).total();
        hour.peak = hour.peak.max(load.drawn);
        hour.committed = hour.committed.max(load.committed);
        if let Some(budget) = load.budget {
            hour.budgeted += time;
            hour.allowed += budget * time;
            if load.drawn > budget + TOLERANCE {
                hour.over += time;
            }
        }
        let (first, last) = self.changed.unwrap_or((begin, begin));
        self.changed = Some((first.min(begin), last.max(begin)));
        if self.hours.len() > MOST {
            self.hours.pop_first();
        }
    }

    /// Those that changed since they were last taken, to be written down.
    pub(super) fn take_changed(&mut self) -> Vec<(Timestamp, Hour)> {
        let Some((first, last)) = self.changed.take() else { return Vec::new() };
        let changed = self.hours.range(first..=last);
        changed.map(|(at, hour)| (Timestamp::from_micros(*at), *hour)).collect()
    }

    /// The hours that begin in a period, and the one in which it begins.
    #[must_use]
    pub fn between(&self, since: Timestamp, until: Timestamp) -> Vec<Hour> {
        let first = since.micros().div_euclid(HOUR).saturating_mul(HOUR);
        if first >= until.micros() {
            return Vec::new();
        }
        self.hours.range(first..until.micros()).map(|(_, hour)| *hour).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_split_at_the_hours() {
        let at = |seconds: f64| Timestamp::from_seconds(seconds);
        let mut hours = Hours::default();
        let load = |drawn: f64, budget: Option<f64>| Load {
            drawn: Watts::new(drawn),
            committed: Watts::new(drawn * 2.0),
            budget: budget.map(Watts::new),
        };
        let prices = Prices::default();
        hours.add(at(3000.0), at(7800.0), load(1000.0, Some(900.0)), &prices);
        hours.add(at(7800.0), at(8000.0), load(500.0, None), &prices);
        let all = hours.between(at(0.0), at(1e6));
        let measured: Vec<f64> = all.iter().map(|hour| hour.measured.get()).collect();
        assert_eq!(measured, [600.0, 3600.0, 800.0]);
        let energy: f64 = all.iter().map(|hour| hour.energy.get()).sum();
        assert!((energy - (4800.0 * 1000.0 + 200.0 * 500.0)).abs() < 1e-6);
        let over: f64 = all.iter().map(|hour| hour.over.get()).sum();
        let budgeted: f64 = all.iter().map(|hour| hour.budgeted.get()).sum();
        assert_eq!((over, budgeted), (4800.0, 4800.0));
        assert_eq!(all[2].peak, Watts::new(1000.0));
        let cost: f64 = all.iter().map(|hour| hour.cost.get()).sum();
        let paid = prices.bill(Watts::new(1000.0) * prices.pue, at(3000.0), at(7800.0)).total()
            + prices.bill(Watts::new(500.0) * prices.pue, at(7800.0), at(8000.0)).total();
        assert!((cost - paid.get()).abs() < 1e-9);
        assert_eq!(hours.between(at(3600.0), at(7200.0)).len(), 1);
        assert_eq!(hours.between(at(3700.0), at(3800.0)).len(), 1);
        assert!(hours.between(at(7200.0), at(100.0)).is_empty());
        assert_eq!(hours.take_changed().len(), 3);
        assert!(hours.take_changed().is_empty());
        hours.add(at(7200.0), at(7201.0), load(1.0, None), &prices);
        assert_eq!(hours.take_changed().len(), 1);
    }
}
