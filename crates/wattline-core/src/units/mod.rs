//! Physical and monetary quantities as types.
//!
//! Only the arithmetic that physics allows compiles: `Watts * Seconds` is `Joules`, `Watts + Joules`
//! is a type error. Every quantity is parsed from and printed with its unit (`"12 kW"`, `"4 h"`,
//! `"0.17 EUR/kWh"`); a bare number is refused, because nobody can tell watts from kilowatts in it.
//!
//! Milliwatts, milliseconds and the like exist only at the edges (NVML, SLURM), never here.

mod parse;
mod quantity;

pub use parse::UnitError;
pub use quantity::{
    CarbonIntensity, CarbonPrice, EnergyPrice, Euros, EurosPerSecond, Grams, Joules, Megahertz,
    Seconds, Watts,
};
