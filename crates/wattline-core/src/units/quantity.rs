//! The quantities themselves and the products that physics allows between them.

use super::parse::{self, UnitError, Units};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign};
use std::str::FromStr;

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, what: $what:literal, example: $example:literal,
     units: [$(($unit:literal, $factor:expr)),+ $(,)?], print: [$(($punit:literal, $pfactor:expr)),+ $(,)?]) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
        pub struct $name(f64);

        impl $name {
            /// Nothing of it.
            pub const ZERO: Self = Self(0.0);
            const UNITS: Units = Units {
                what: $what,
                example: $example,
                table: &[$(($unit, $factor)),+],
                print: &[$(($punit, $pfactor)),+],
            };

            /// From a number in the base unit.
            #[must_use]
            pub const fn new(value: f64) -> Self {
                Self(value)
            }

            /// The number in the base unit.
            #[must_use]
            pub const fn get(self) -> f64 {
                self.0
            }

            /// The smaller of the two.
            #[must_use]
            pub fn min(self, other: Self) -> Self {
                Self(self.0.min(other.0))
            }

            /// The larger of the two.
            #[must_use]
            pub fn max(self, other: Self) -> Self {
                Self(self.0.max(other.0))
            }

            /// A total order (as `f64::total_cmp`).
            #[must_use]
            pub fn total_cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.0.total_cmp(&other.0)
            }

            /// Neither NaN nor infinite.
            #[must_use]
            pub fn is_finite(self) -> bool {
                self.0.is_finite()
            }
        }

        impl Add for $name { type Output = Self; fn add(self, o: Self) -> Self { Self(self.0 + o.0) } }
        impl Sub for $name { type Output = Self; fn sub(self, o: Self) -> Self { Self(self.0 - o.0) } }
        impl Neg for $name { type Output = Self; fn neg(self) -> Self { Self(-self.0) } }
        impl AddAssign for $name { fn add_assign(&mut self, o: Self) { self.0 += o.0 } }
        impl SubAssign for $name { fn sub_assign(&mut self, o: Self) { self.0 -= o.0 } }
        impl Mul<f64> for $name { type Output = Self; fn mul(self, k: f64) -> Self { Self(self.0 * k) } }
        impl Mul<$name> for f64 { type Output = $name; fn mul(self, q: $name) -> $name { $name(self * q.0) } }
        impl Div<f64> for $name { type Output = Self; fn div(self, k: f64) -> Self { Self(self.0 / k) } }
        impl Div for $name { type Output = f64; fn div(self, o: Self) -> f64 { self.0 / o.0 } }
        impl Sum for $name { fn sum<I: Iterator<Item = Self>>(i: I) -> Self { Self(i.map(|q| q.0).sum()) } }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                parse::print(self.0, &Self::UNITS, f)
            }
        }
        impl FromStr for $name {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<Self, UnitError> {
                parse::parse(text, &Self::UNITS).map(Self)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                // Nobody reads an image: the very number, also where it is none or has no end.
                if !s.is_human_readable() {
                    return s.serialize_f64(self.0);
                }
                // What is read must be what was written, to the last digit.
                let text = self.to_string();
                if text.parse() == Ok(*self) {
                    s.serialize_str(&text)
                } else {
                    s.serialize_str(&parse::in_base_unit(self.0, &Self::UNITS))
                }
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                if !d.is_human_readable() {
                    return f64::deserialize(d).map(Self);
                }
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        write!(f, concat!($what, " as text with its unit, for example \"", $example, "\""))
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                d.deserialize_str(Text).map_err(D::Error::custom)
            }
        }
    };
}

quantity!(
    /// Power.
    Watts, what: "a power", example: "12 kW",
    units: [("mW", 1e-3), ("W", 1.0), ("kW", 1e3), ("MW", 1e6)],
    print: [("W", 1.0), ("kW", 1e3), ("MW", 1e6)]
);
quantity!(
    /// Energy.
    Joules, what: "an energy", example: "3 kWh",
    units: [("J", 1.0), ("kJ", 1e3), ("MJ", 1e6), ("Wh", 3.6e3), ("kWh", 3.6e6), ("MWh", 3.6e9)],
    print: [("J", 1.0), ("Wh", 3.6e3), ("kWh", 3.6e6), ("MWh", 3.6e9)]
);
quantity!(
    /// A length of time. Points in time are [`Timestamp`](crate::Timestamp)s.
    Seconds, what: "a duration", example: "4 h",
    units: [("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86400.0), ("w", 604_800.0)],
    print: [("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86400.0)]
);
quantity!(
    /// Money.
    Euros, what: "an amount of money", example: "12.50 EUR",
    units: [("EUR", 1.0), ("€", 1.0), ("kEUR", 1e3)],
    print: [("EUR", 1.0)]
);
quantity!(
    /// What a second of tardiness costs: a job's weight.
    EurosPerSecond, what: "a weight", example: "1.20 EUR/h",
    units: [("EUR/s", 1.0), ("EUR/min", 1.0 / 60.0), ("EUR/h", 1.0 / 3600.0), ("EUR/d", 1.0 / 86400.0)],
    print: [("EUR/h", 1.0 / 3600.0)]
);
quantity!(
    /// What energy costs; the base unit is EUR per kWh.
    EnergyPrice, what: "an energy price", example: "0.17 EUR/kWh",
    units: [("EUR/kWh", 1.0), ("€/kWh", 1.0), ("ct/kWh", 0.01), ("EUR/MWh", 1e-3), ("€/MWh", 1e-3)],
    print: [("EUR/kWh", 1.0)]
);
quantity!(
    /// Carbon emitted per energy; the base unit is grams of CO2 equivalent per kWh.
    CarbonIntensity, what: "a carbon intensity", example: "350 g/kWh",
    units: [("g/kWh", 1.0), ("kg/MWh", 1.0), ("kg/kWh", 1e3), ("t/MWh", 1e3)],
    print: [("g/kWh", 1.0)]
);
quantity!(
    /// A mass of emitted carbon (CO2 equivalent).
    Grams, what: "a mass", example: "3 kg",
    units: [("g", 1.0), ("kg", 1e3), ("t", 1e6)],
    print: [("g", 1.0), ("kg", 1e3), ("t", 1e6)]
);
quantity!(
    /// What emitting carbon costs; the base unit is EUR per tonne.
    CarbonPrice, what: "a carbon price", example: "80 EUR/t",
    units: [("EUR/t", 1.0), ("€/t", 1.0), ("EUR/kg", 1e3)],
    print: [("EUR/t", 1.0)]
);
quantity!(
    /// A clock rate.
    Megahertz, what: "a clock rate", example: "1980 MHz",
    units: [("MHz", 1.0), ("GHz", 1e3)],
    print: [("MHz", 1.0)]
);

impl Mul<Seconds> for Watts {
    type Output = Joules;
    fn mul(self, time: Seconds) -> Joules {
        Joules(self.0 * time.0)
    }
}
impl Mul<Watts> for Seconds {
    type Output = Joules;
    fn mul(self, power: Watts) -> Joules {
        power * self
    }
}
impl Div<Seconds> for Joules {
    type Output = Watts;
    fn div(self, time: Seconds) -> Watts {
        Watts(self.0 / time.0)
    }
}
impl Div<Watts> for Joules {
    type Output = Seconds;
    fn div(self, power: Watts) -> Seconds {
        Seconds(self.0 / power.0)
    }
}
impl Mul<EnergyPrice> for Joules {
    type Output = Euros;
    fn mul(self, price: EnergyPrice) -> Euros {
        Euros(self.kilowatt_hours() * price.0)
    }
}
impl Mul<CarbonIntensity> for Joules {
    type Output = Grams;
    fn mul(self, intensity: CarbonIntensity) -> Grams {
        Grams(self.kilowatt_hours() * intensity.0)
    }
}
impl Mul<CarbonPrice> for Grams {
    type Output = Euros;
    fn mul(self, price: CarbonPrice) -> Euros {
        Euros(self.0 * 1e-6 * price.0)
    }
}
impl Mul<Seconds> for EurosPerSecond {
    type Output = Euros;
    fn mul(self, time: Seconds) -> Euros {
        Euros(self.0 * time.0)
    }
}
impl Joules {
    /// The energy in kilowatt-hours, the unit bills are written in.
    #[must_use]
    pub fn kilowatt_hours(self) -> f64 {
        self.0 / 3.6e6
    }
}
impl Seconds {
    /// From hours.
    #[must_use]
    pub const fn hours(hours: f64) -> Self {
        Self(hours * 3600.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_the_manual_writes() {
        assert_eq!("12 kW".parse(), Ok(Watts::new(12_000.0)));
        assert_eq!("4 h".parse(), Ok(Seconds::new(14_400.0)));
        assert_eq!("0.17 EUR/kWh".parse(), Ok(EnergyPrice::new(0.17)));
        assert_eq!("1e3W".parse(), Ok(Watts::new(1000.0)));
        assert_eq!(" 350 g/kWh ".parse(), Ok(CarbonIntensity::new(350.0)));
    }

    #[test]
    fn prints_what_it_reads() {
        assert_eq!(Watts::new(12_000.0).to_string(), "12 kW");
        assert_eq!(Seconds::new(14_400.0).to_string(), "4 h");
        assert_eq!(EnergyPrice::new(0.17).to_string(), "0.17 EUR/kWh");
        assert_eq!(format!("{:.1}", Watts::new(12_345.0)), "12.3 kW");
    }

    #[test]
    fn refuses_what_it_cannot_know() {
        let message = |r: Result<Watts, UnitError>| r.unwrap_err().to_string();
        assert!(message("12".parse()).contains("has no unit"));
        assert!(message("12 kWh".parse()).contains("unknown unit 'kWh'"));
        assert!(message("twelve kW".parse()).contains("expected a number"));
        assert!(message("-3 W".parse()).contains("not negative"));
        assert!(message("1e400 W".parse()).contains("finite"));
        assert!(message("NaN W".parse()).contains("expected a number"));
        assert!(message(String::from_utf8(vec![b'9'; 5000]).unwrap().parse()).len() < 200);
    }

    #[test]
    fn physics() {
        let energy = Watts::new(1000.0) * Seconds::hours(1.0);
        assert!((energy.kilowatt_hours() - 1.0).abs() < 1e-12);
        assert!(((energy * EnergyPrice::new(0.2)).get() - 0.2).abs() < 1e-12);
        assert_eq!(energy / Seconds::hours(1.0), Watts::new(1000.0));
    }

    proptest! {
        #![proptest_config(wattline_testing::cases(256, 2))]

        #[test]
        fn text_round_trips(value in 0.0_f64..1e12) {
            let watts = Watts::new(value);
            let again: Watts = watts.to_string().parse().unwrap();
            prop_assert!((again.get() - value).abs() <= 1e-12 * value.max(1.0));
            let time = Seconds::new(value);
            let again: Seconds = time.to_string().parse().unwrap();
            prop_assert!((again.get() - value).abs() <= 1e-9 * value.max(1.0));
            let written = serde_json::to_string(&Seconds::new(value)).unwrap();
            prop_assert_eq!(serde_json::from_str::<Seconds>(&written).unwrap().get(), value);
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = text.parse::<Watts>();
            let _ = text.parse::<Seconds>();
        }
    }
}
