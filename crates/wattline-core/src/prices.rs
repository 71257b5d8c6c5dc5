//! What energy costs and emits.

use crate::calendar::Calendar;
use crate::time::Timestamp;
use crate::units::{CarbonIntensity, CarbonPrice, EnergyPrice, Euros, Watts};
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// Prices over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prices {
    /// Of energy.
    pub energy: Calendar<EnergyPrice>,
    /// Billed energy per energy drawn by the machines.
    pub pue: f64,
    /// Emitted per energy.
    pub carbon: Calendar<CarbonIntensity>,
    /// What emitting costs.
    pub carbon_price: CarbonPrice,
}

impl Prices {
    /// The next time any of the prices changes.
    #[must_use]
    pub fn next_change(&self, time: Timestamp) -> Option<Timestamp> {
        match (self.energy.next_change(time), self.carbon.next_change(time)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// What some energy cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bill {
    /// The energy itself.
    pub energy: Euros,
    /// What emitting for it cost.
    pub carbon: Euros,
}

impl Bill {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> Euros {
        self.energy + self.carbon
    }
}

impl AddAssign for Bill {
    fn add_assign(&mut self, other: Self) {
        self.energy += other.energy;
        self.carbon += other.carbon;
    }
}

impl Prices {
    /// What a constant power costs from one time to another; `billed` is with cooling. Prices that
    /// change in between split the time.
    #[must_use]
    pub fn bill(&self, billed: Watts, from: Timestamp, to: Timestamp) -> Bill {
        let mut bill = Bill::default();
        let mut now = from;
        while now < to {
            let until = self.next_change(now).map_or(to, |change| change.min(to));
            let energy = billed * (until - now);
            bill += Bill {
                energy: energy * self.energy.at(now),
                carbon: energy * self.carbon.at(now) * self.carbon_price,
            };
            now = until;
        }
        bill
    }
}

impl Default for Prices {
    /// The price and PUE that the ANDREAS authors use, no carbon price.
    fn default() -> Self {
        Self {
            energy: Calendar::constant(EnergyPrice::new(0.171_683_13)),
            pue: 1.33,
            carbon: Calendar::constant(CarbonIntensity::ZERO),
            carbon_price: CarbonPrice::ZERO,
        }
    }
}
