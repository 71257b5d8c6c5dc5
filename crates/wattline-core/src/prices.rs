//! What energy costs and emits.

use crate::calendar::Calendar;
use crate::time::Timestamp;
use crate::units::{CarbonIntensity, CarbonPrice, EnergyPrice};

/// Prices over time.
#[derive(Clone, Debug, PartialEq)]
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
