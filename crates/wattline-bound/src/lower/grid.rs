//! Time in slots, and what energy costs at the least in each of them.

use super::job::BoundJob;
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::prices::Prices;
use wattline_core::units::{Joules, Seconds, Watts};

/// Slots up to a horizon and one without end after it.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    /// Where slots begin, in seconds from the start; the last one has no end.
    begins: Vec<f64>,
    /// The least a billed joule costs in each, EUR.
    prices: Vec<f64>,
    least_price: f64,
    /// The unit of watts that prices are in.
    pub(crate) watts_per_gpu: f64,
}

/// Changes of the price that become cuts, at most.
const MOST_CUTS: usize = 600;
/// The calendar repeats after this long.
const WEEK: f64 = 7.0 * 86_400.0;

impl Grid {
    /// So many equal slots up to the horizon, cut where prices change.
    pub(crate) fn new(
        start: Timestamp,
        prices: &Prices,
        horizon: f64,
        slots: usize,
        watts_per_gpu: f64,
    ) -> Self {
        let slots = slots.max(1);
        let mut begins: Vec<f64> =
            (0..=slots).map(|at| horizon * at as f64 / slots as f64).collect();
        begins.extend(changes(start, prices, horizon));
        Self::of(start, prices, begins, watts_per_gpu)
    }

    /// The same with every slot but the last cut in half.
    pub(crate) fn halved(&self, start: Timestamp, prices: &Prices) -> Self {
        let middles: Vec<f64> =
            self.begins.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
        let begins = self.begins.iter().copied().chain(middles).collect();
        Self::of(start, prices, begins, self.watts_per_gpu)
    }

    fn of(start: Timestamp, prices: &Prices, mut begins: Vec<f64>, watts_per_gpu: f64) -> Self {
        begins.sort_unstable_by(f64::total_cmp);
        begins.dedup();
        let at = |seconds: f64| start + Seconds::new(seconds);
        let ends = begins.iter().skip(1).copied().chain(begins.last().map(|last| last + WEEK));
        let least: Vec<f64> = begins
            .iter()
            .zip(ends)
            .map(|(begin, end)| least_price(prices, at(*begin), before(at(end.min(begin + WEEK)))))
            .collect();
        let least_price = least.iter().copied().fold(f64::INFINITY, f64::min);
        Self { begins, prices: least, least_price, watts_per_gpu }
    }

    pub(crate) fn slots(&self) -> usize {
        self.begins.len()
    }

    /// The slot that a time lies in.
    pub(crate) fn slot_at(&self, time: f64) -> usize {
        self.begins.partition_point(|begin| *begin <= time).saturating_sub(1)
    }

    pub(crate) fn begin(&self, slot: usize) -> f64 {
        self.begins[slot]
    }

    /// Where the slot ends; never, for the last.
    pub(crate) fn end(&self, slot: usize) -> Option<f64> {
        self.begins.get(slot + 1).copied()
    }

    /// How long a slot is for a job that is there from `begin` on. The last one is long enough to
    /// do the whole job in any way before or after its deadline.
    pub(crate) fn length(&self, slot: usize, begin: f64, job: &BoundJob) -> f64 {
        self.end(slot).map_or_else(
            || {
                let due = if job.deadline.is_finite() { job.deadline } else { begin };
                (due - begin).max(0.0) + 2.0 * job.most_time()
            },
            |end| end - begin,
        )
    }

    /// The least a billed joule costs in a slot.
    pub(crate) fn price(&self, slot: usize) -> f64 {
        self.prices[slot]
    }

    /// The least a billed joule ever costs.
    pub(crate) fn least_price(&self) -> f64 {
        self.least_price
    }

    /// The slot of another grid, cut from this one or equal to it, that each slot lies in.
    pub(crate) fn parents<'a>(&'a self, coarse: &'a Self) -> impl Iterator<Item = usize> + 'a {
        self.begins.iter().map(|begin| coarse.slot_at(*begin))
    }

    /// The most that is allowed in each slot.
    pub(crate) fn most(&self, start: Timestamp, budget: &Calendar<Watts>) -> Vec<f64> {
        let at = |seconds: f64| start + Seconds::new(seconds);
        (0..self.slots())
            .map(|slot| {
                let begin = self.begin(slot);
                let end = self.end(slot).unwrap_or(begin + WEEK).min(begin + WEEK);
                budget.least(at(begin), before(at(end)), |a, b| a > b).get()
            })
            .collect()
    }
}

/// What begins at a slot's end is no part of it.
fn before(end: Timestamp) -> Timestamp {
    Timestamp::from_micros(end.micros() - 1)
}

fn least_price(prices: &Prices, from: Timestamp, to: Timestamp) -> f64 {
    let energy = Joules::new(1.0) * prices.energy.least(from, to, |a, b| a < b);
    let carbon =
        Joules::new(1.0) * prices.carbon.least(from, to, |a, b| a < b) * prices.carbon_price;
    energy.get() + carbon.get()
}

/// When prices change before the horizon; nothing if that is too often.
fn changes(start: Timestamp, prices: &Prices, horizon: f64) -> Vec<f64> {
    let mut changes = Vec::new();
    let mut now = start;
    while let Some(next) = prices.next_change(now) {
        let at = (next - start).get();
        if at >= horizon {
            return changes;
        }
        changes.push(at);
        if changes.len() > MOST_CUTS {
            return Vec::new();
        }
        now = next;
    }
    changes
}
