//! One knob turned: what follows for every policy.
//!
//! This module knows what the knobs are, how they are written and what they change about an
//! instance; and how two policies are compared at equal energy. The caller runs the simulations.

use crate::instance::Instance;
use crate::metrics::Summary;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;
use wattline_core::calendar::Calendar;
use wattline_core::units::{EnergyPrice, Seconds, Watts};

/// Where a policy's text takes a value.
pub const PLACEHOLDER: &str = "{}";

/// What can be varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Knob {
    /// GPU-seconds asked for over GPU-seconds there.
    Load,
    /// The power budget.
    Budget,
    /// What energy costs.
    EnergyPrice,
    /// What a restart costs.
    Restart,
    /// An option of the policies.
    Option,
}

/// A word that is no knob.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown knob '{0}': expected load, budget, energy-price, restart or option")]
pub struct UnknownKnob(String);

impl Knob {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Load, Self::Budget, Self::EnergyPrice, Self::Restart, Self::Option];

    /// Values worth trying where nobody says; none for a policy's option.
    #[must_use]
    pub fn defaults(self) -> &'static [&'static str] {
        match self {
            Self::Load => &["0.4", "0.6", "0.8", "1", "1.2"],
            Self::Budget => &["0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1"],
            Self::EnergyPrice => &["0.05", "0.1", "0.2", "0.4", "0.8"],
            Self::Restart => &["0", "30", "60", "300", "900"],
            Self::Option => &[],
        }
    }

    /// What it says on an axis.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Load => "offered load",
            Self::Budget => "power budget",
            Self::EnergyPrice => "energy price",
            Self::Restart => "time to restart",
            Self::Option => "option",
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Load => "load",
            Self::Budget => "budget",
            Self::EnergyPrice => "energy-price",
            Self::Restart => "restart",
            Self::Option => "option",
        })
    }
}

impl FromStr for Knob {
    type Err = UnknownKnob;
    fn from_str(text: &str) -> Result<Self, UnknownKnob> {
        let found = Self::ALL.into_iter().find(|knob| knob.to_string() == text);
        found.ok_or_else(|| UnknownKnob(text.chars().take(40).collect()))
    }
}

/// One position of a knob.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// Another load.
    Load(f64),
    /// A budget as a share of what the machines can draw at most.
    BudgetShare(f64),
    /// A budget in watts, at all times.
    Budget(Watts),
    /// A price, at all times.
    EnergyPrice(EnergyPrice),
    /// The source's own prices, so many times as high.
    PriceFactor(f64),
    /// What a restart costs.
    Restart(Seconds),
    /// What goes into the policies' texts.
    Option(String),
}

/// A text that is no value of its knob.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{text}' is not a value for {knob}: expected {expected}")]
pub struct BadValue {
    knob: Knob,
    text: String,
    expected: &'static str,
}

impl Setting {
    /// Reads a value of a knob.
    ///
    /// # Errors
    /// Says what is expected.
    pub fn parse(knob: Knob, text: &str) -> Result<Self, BadValue> {
        let text = text.trim();
        let number = |low: f64, high: f64| {
            text.parse::<f64>().ok().filter(|value| (low..=high).contains(value))
        };
        let percent = || text.strip_suffix('%')?.trim().parse::<f64>().ok().map(|x| x / 100.0);
        let share = |share: &f64| (1e-3..=10.0).contains(share);
        let factor =
            || text.strip_prefix('x')?.parse::<f64>().ok().filter(|x| (0.0..=1e6).contains(x));
        let (found, expected) = match knob {
            Knob::Load => (number(1e-3, 1e3).map(Self::Load), "a number like 0.8"),
            Knob::Budget => (
                number(1e-3, 10.0)
                    .or_else(|| percent().filter(share))
                    .map(Self::BudgetShare)
                    .or_else(|| text.parse().ok().map(Self::Budget)),
                "a share of the peak like 0.6 or 60%, or a power like \"12 kW\"",
            ),
            Knob::EnergyPrice => (
                number(0.0, 1e6)
                    .map(|price| Self::EnergyPrice(EnergyPrice::new(price)))
                    .or_else(|| factor().map(Self::PriceFactor))
                    .or_else(|| text.parse().ok().map(Self::EnergyPrice)),
                "EUR/kWh like 0.2, a price like \"20 ct/kWh\", or a factor on the source's own like x2",
            ),
            Knob::Restart => (
                number(0.0, 1e9).map(Seconds::new).or_else(|| text.parse().ok()).map(Self::Restart),
                "seconds like 60, or a duration like \"5 min\"",
            ),
            Knob::Option => {
                let found = (!text.is_empty()).then(|| Self::Option(text.to_owned()));
                (found, "the text that goes in place of {} in a policy")
            }
        };
        let clipped = || text.chars().take(40).collect();
        found.ok_or_else(|| BadValue { knob, text: clipped(), expected })
    }

    /// The load, where that is what is set: it is needed before the instance is there.
    #[must_use]
    pub fn load(&self) -> Option<f64> {
        match self {
            Self::Load(load) => Some(*load),
            _ => None,
        }
    }

    /// Turns the knob; a load and an option change nothing here.
    pub fn apply(&self, instance: &mut Instance) {
        match self {
            Self::Load(_) | Self::Option(_) => {}
            Self::BudgetShare(share) => {
                let watts = instance.cluster.peak_power() * *share;
                instance.budget = Some(Calendar::constant(watts));
            }
            Self::Budget(watts) => instance.budget = Some(Calendar::constant(*watts)),
            Self::EnergyPrice(price) => instance.prices.energy = Calendar::constant(*price),
            Self::PriceFactor(factor) => {
                instance.prices.energy = instance.prices.energy.map(|price| price * *factor);
            }
            Self::Restart(load) => instance.set_restart(*load),
        }
    }

    /// The policy's text with the value in it.
    #[must_use]
    pub fn policy(&self, text: &str) -> String {
        match self {
            Self::Option(value) => text.replace(PLACEHOLDER, value),
            _ => text.to_owned(),
        }
    }

    /// Where it stands on an axis; `None` for words.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Load(x) | Self::BudgetShare(x) | Self::PriceFactor(x) => Some(*x),
            Self::Budget(watts) => Some(watts.get()),
            Self::EnergyPrice(price) => Some(price.get()),
            Self::Restart(time) => Some(time.get()),
            Self::Option(text) => text.parse().ok().filter(|x: &f64| x.is_finite()),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(x) => write!(f, "{x}"),
            Self::BudgetShare(share) => write!(f, "{} %", (share * 1e6).round() / 1e4),
            Self::Budget(watts) => write!(f, "{watts}"),
            Self::EnergyPrice(price) => write!(f, "{price}"),
            Self::PriceFactor(factor) => write!(f, "x{factor}"),
            Self::Restart(time) => write!(f, "{time}"),
            Self::Option(text) => f.write_str(text),
        }
    }
}

/// What a sweep looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Total cost.
    #[default]
    Cost,
    /// Mean time from submission to completion.
    Jct,
    /// Energy drawn.
    Energy,
    /// Share of deadlines met.
    Deadlines,
    /// Mean time past the deadline.
    Tardiness,
}

impl Metric {
    /// Its value in a run.
    #[must_use]
    pub fn of(self, s: &Summary) -> f64 {
        match self {
            Self::Cost => s.total_cost,
            Self::Jct => s.jct_mean_s,
            Self::Energy => s.energy_kwh,
            Self::Deadlines => s.deadlines_met as f64 / s.deadlines.max(1) as f64,
            Self::Tardiness => s.tardiness_mean_s,
        }
    }

    /// What it says on an axis.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Cost => "total cost, EUR",
            Self::Jct => "mean JCT",
            Self::Energy => "energy, kWh",
            Self::Deadlines => "share of deadlines met",
            Self::Tardiness => "mean tardiness",
        }
    }
}

/// A mean over seeds and its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Its standard error; zero for a single seed.
    pub error: f64,
}

impl Estimate {
    /// Of these values.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let mean = crate::metrics::mean(values);
        let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
        let error = if values.len() > 1 { (squares / (n - 1.0) / n).sqrt() } else { 0.0 };
        Self { mean, error }
    }
}

/// Mean JCT of a curve at some energy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AtEnergy {
    /// Between two points of the curve.
    Between(f64),
    /// The whole curve needs less energy: the JCT of its most generous point, which may get better
    /// still with what is left.
    Below(f64),
    /// Every point needs more energy.
    Never,
}

impl AtEnergy {
    /// The JCT, where there is one.
    #[must_use]
    pub fn jct(self) -> Option<f64> {
        match self {
            Self::Between(jct) | Self::Below(jct) => Some(jct),
            Self::Never => None,
        }
    }
}

/// The mean JCT that a curve of (energy, JCT) has at an energy: along straight lines between its
/// points in the order of energy. A point that is worse in both than another is no part of the
/// curve.
#[must_use]
pub fn at_energy(points: &[(f64, f64)], energy: f64) -> AtEnergy {
    let mut points: Vec<(f64, f64)> =
        points.iter().copied().filter(|(e, j)| e.is_finite() && j.is_finite()).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut best = f64::INFINITY;
    points.retain(|(_, jct)| {
        let better = *jct < best;
        best = best.min(*jct);
        better
    });
    let above = points.partition_point(|(e, _)| *e <= energy);
    match (above.checked_sub(1).and_then(|at| points.get(at)), points.get(above)) {
        (None, _) => AtEnergy::Never,
        (Some(last), None) if last.0 < energy => AtEnergy::Below(last.1),
        (Some(last), None) => AtEnergy::Between(last.1),
        (Some(a), Some(b)) => {
            let share = (energy - a.0) / (b.0 - a.0);
            AtEnergy::Between(a.1 + share * (b.1 - a.1))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_people_write_them() {
        let parse = |knob, text| Setting::parse(knob, text).unwrap();
        assert_eq!(parse(Knob::Budget, "60%"), Setting::BudgetShare(0.6));
        assert_eq!(parse(Knob::Budget, "0.6"), Setting::BudgetShare(0.6));
        assert_eq!(parse(Knob::Budget, "12 kW"), Setting::Budget(Watts::new(12_000.0)));
        assert_eq!(parse(Knob::EnergyPrice, "x2"), Setting::PriceFactor(2.0));
        assert_eq!(
            parse(Knob::EnergyPrice, "20 ct/kWh"),
            Setting::EnergyPrice(EnergyPrice::new(0.2))
        );
        assert_eq!(parse(Knob::Restart, "5 min"), Setting::Restart(Seconds::new(300.0)));
        for knob in Knob::ALL {
            assert_eq!(knob.to_string().parse(), Ok(knob));
            for text in knob.defaults() {
                assert!(Setting::parse(knob, text).unwrap().number().is_some());
            }
            for text in ["", "-1", "NaN", "inf"] {
                assert!(knob == Knob::Option || Setting::parse(knob, text).is_err(), "{text}");
            }
        }
        assert!("speed".parse::<Knob>().unwrap_err().to_string().contains("energy-price"));
        assert_eq!(parse(Knob::Option, "3").policy("a+b={}+c={}"), "a+b=3+c=3");
    }

    #[test]
    fn curves_are_read_at_an_energy() {
        let curve = [(30.0, 100.0), (10.0, 300.0), (20.0, 200.0), (25.0, 250.0)];
        assert_eq!(at_energy(&curve, 15.0), AtEnergy::Between(250.0));
        assert_eq!(at_energy(&curve, 25.0), AtEnergy::Between(150.0), "25, 250 is no part of it");
        assert_eq!(at_energy(&curve, 30.0), AtEnergy::Between(100.0));
        assert_eq!(at_energy(&curve, 31.0), AtEnergy::Below(100.0));
        assert_eq!(at_energy(&curve, 9.0), AtEnergy::Never);
        assert_eq!(at_energy(&[], 9.0), AtEnergy::Never);
    }

    #[test]
    fn estimates() {
        assert_eq!(Estimate::of(&[3.0]), Estimate { mean: 3.0, error: 0.0 });
        let e = Estimate::of(&[1.0, 3.0]);
        assert_eq!((e.mean, e.error), (2.0, 1.0));
    }
}
