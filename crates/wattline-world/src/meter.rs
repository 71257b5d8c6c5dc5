//! The electricity meter: energy by cause, its cost and carbon, and the budget kept or not.
//!
//! Power is piecewise constant, so integrals are sums of exact products; prices and budgets that
//! change in between split the interval.

use serde::{Deserialize, Serialize};
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::power::TOLERANCE;
use wattline_core::prices::Prices;
use wattline_core::units::{Euros, Grams, Joules, Seconds, Watts};

/// Power of a node, or of the cluster, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerSplit {
    /// GPUs that jobs hold (and, where a site measures whole nodes, all of a busy node).
    pub jobs: Watts,
    /// GPUs that nobody holds.
    pub idle: Watts,
    /// Everything else in nodes that are up.
    pub base: Watts,
    /// Booting nodes, and nodes falling asleep.
    pub boot: Watts,
    /// Sleeping nodes.
    pub sleep: Watts,
    /// What is billed for all of that, cooling included.
    pub billed: Watts,
}

impl PowerSplit {
    /// All of it, as drawn by the machines.
    #[must_use]
    pub fn drawn(&self) -> Watts {
        self.jobs + self.idle + self.base + self.boot + self.sleep
    }

    pub(crate) fn add(&mut self, other: &Self, sign: f64) {
        self.jobs += other.jobs * sign;
        self.idle += other.idle * sign;
        self.base += other.base * sign;
        self.boot += other.boot * sign;
        self.sleep += other.sleep * sign;
        self.billed += other.billed * sign;
    }
}

/// Energy by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnergySplit {
    /// See [`PowerSplit`].
    pub jobs: Joules,
    /// See [`PowerSplit`].
    pub idle: Joules,
    /// See [`PowerSplit`].
    pub base: Joules,
    /// See [`PowerSplit`].
    pub boot: Joules,
    /// See [`PowerSplit`].
    pub sleep: Joules,
    /// See [`PowerSplit`].
    pub billed: Joules,
    /// Integral of the total, kept apart from its parts so that the two can be compared.
    pub total: Joules,
}

/// Integrates power over time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meter {
    now: Timestamp,
    power: PowerSplit,
    drawn: Watts,
    energy: EnergySplit,
    cost: Euros,
    carbon: Grams,
    carbon_cost: Euros,
    peak: Watts,
    over_budget: Seconds,
    prices: Prices,
    budget: Option<Calendar<Watts>>,
}

impl Meter {
    /// A meter that starts at `now` with nothing drawn.
    #[must_use]
    pub fn new(now: Timestamp, prices: Prices, budget: Option<Calendar<Watts>>) -> Self {
        Self {
            now,
            power: PowerSplit::default(),
            drawn: Watts::ZERO,
            energy: EnergySplit::default(),
            cost: Euros::ZERO,
            carbon: Grams::ZERO,
            carbon_cost: Euros::ZERO,
            peak: Watts::ZERO,
            over_budget: Seconds::ZERO,
            prices,
            budget,
        }
    }

    /// Runs on to `to`.
    pub fn advance(&mut self, to: Timestamp) {
        while self.now < to {
            let price_change = self.prices.next_change(self.now);
            let budget_change = self.budget.as_ref().and_then(|b| b.next_change(self.now));
            let until =
                [price_change, budget_change].into_iter().flatten().fold(to, Timestamp::min);
            self.interval(until - self.now);
            self.now = until;
        }
    }

    /// An interval over which nothing changes.
    fn interval(&mut self, time: Seconds) {
        let (p, e) = (&self.power, &mut self.energy);
        e.jobs += p.jobs * time;
        e.idle += p.idle * time;
        e.base += p.base * time;
        e.boot += p.boot * time;
        e.sleep += p.sleep * time;
        e.billed += p.billed * time;
        e.total += self.drawn * time;
        let billed = p.billed * time;
        self.cost += billed * self.prices.energy.at(self.now);
        let carbon = billed * self.prices.carbon.at(self.now);
        self.carbon += carbon;
        self.carbon_cost += carbon * self.prices.carbon_price;
        self.peak = self.peak.max(self.drawn);
        if self.budget.as_ref().is_some_and(|b| self.drawn > b.at(self.now) + TOLERANCE) {
            self.over_budget += time;
        }
    }

    /// A node's power changes now.
    pub fn change(&mut self, now: Timestamp, old: &PowerSplit, new: &PowerSplit) {
        self.advance(now);
        self.power.add(old, -1.0);
        self.power.add(new, 1.0);
        self.drawn += new.drawn() - old.drawn();
    }

    /// From now on it bills by these prices.
    pub fn set_prices(&mut self, now: Timestamp, prices: Prices) {
        self.advance(now);
        self.prices = prices;
    }

    /// From now on this is the budget.
    pub fn set_budget(&mut self, now: Timestamp, budget: Option<Calendar<Watts>>) {
        self.advance(now);
        self.budget = budget;
    }

    /// The power right now.
    #[must_use]
    pub fn power(&self) -> &PowerSplit {
        &self.power
    }
    /// Drawn right now.
    #[must_use]
    pub fn drawn(&self) -> Watts {
        self.drawn
    }
    /// Energy so far.
    #[must_use]
    pub fn energy(&self) -> &EnergySplit {
        &self.energy
    }
    /// What that energy cost, carbon not counted.
    #[must_use]
    pub fn cost(&self) -> Euros {
        self.cost
    }
    /// What it emitted.
    #[must_use]
    pub fn carbon(&self) -> Grams {
        self.carbon
    }
    /// What emitting it cost.
    #[must_use]
    pub fn carbon_cost(&self) -> Euros {
        self.carbon_cost
    }
    /// The most that was drawn for any length of time.
    #[must_use]
    pub fn peak(&self) -> Watts {
        self.peak
    }
    /// How long more than the budget was drawn.
    #[must_use]
    pub fn over_budget(&self) -> Seconds {
        self.over_budget
    }
    /// The prices it bills by.
    #[must_use]
    pub fn prices(&self) -> &Prices {
        &self.prices
    }
    /// The budget at a time.
    #[must_use]
    pub fn budget_at(&self, time: Timestamp) -> Option<Watts> {
        self.budget.as_ref().map(|b| b.at(time))
    }
}
