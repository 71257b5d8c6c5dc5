//! Text with a unit in, a number in the base unit out; and back.

use thiserror::Error;

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnitError {
    /// No number at the front.
    #[error("'{text}' is not {what}: expected a number with a unit, for example \"{example}\"")]
    NotANumber {
        /// What was given.
        text: String,
        /// Which quantity was expected.
        what: &'static str,
        /// A text that would be accepted.
        example: &'static str,
    },
    /// A number without a unit.
    #[error("'{text}' has no unit: write {what} as for example \"{example}\"")]
    NoUnit {
        /// What was given.
        text: String,
        /// Which quantity was expected.
        what: &'static str,
        /// A text that would be accepted.
        example: &'static str,
    },
    /// A unit that this quantity does not have.
    #[error("'{text}' is not {what}: unknown unit '{unit}', expected one of {known}")]
    UnknownUnit {
        /// What was given.
        text: String,
        /// Which quantity was expected.
        what: &'static str,
        /// The unit that was not understood.
        unit: String,
        /// The units that are.
        known: String,
    },
    /// NaN or infinite, or out of the quantity's range.
    #[error("'{text}' is not {what}: the value must be finite and not negative")]
    OutOfRange {
        /// What was given.
        text: String,
        /// Which quantity was expected.
        what: &'static str,
    },
}

/// The units of one quantity: name and factor to the base unit, smallest first.
pub(super) struct Units {
    pub(super) what: &'static str,
    pub(super) example: &'static str,
    pub(super) table: &'static [(&'static str, f64)],
    /// Units used for printing, largest last; the last one whose factor is ≤ |value| is taken.
    pub(super) print: &'static [(&'static str, f64)],
}

pub(super) fn parse(text: &str, units: &Units) -> Result<f64, UnitError> {
    let trimmed = text.trim();
    // The number ends where no character of a float literal follows; 'e' only counts as an
    // exponent when a digit or a sign comes after it, so that "5 eV"-like units stay units.
    let bytes = trimmed.as_bytes();
    let mut end = 0;
    while end < bytes.len() {
        let exponent = matches!(bytes[end], b'e' | b'E')
            && end > 0
            && bytes.get(end + 1).is_some_and(|c| c.is_ascii_digit() || *c == b'-' || *c == b'+');
        let sign = matches!(bytes[end], b'+' | b'-')
            && (end == 0 || matches!(bytes[end - 1], b'e' | b'E'));
        if bytes[end].is_ascii_digit() || bytes[end] == b'.' || exponent || sign {
            end += 1;
        } else {
            break;
        }
    }
    let (number, unit) = trimmed.split_at(end);
    let shown = || clip(text);
    let Ok(number) = number.parse::<f64>() else {
        return Err(UnitError::NotANumber {
            text: shown(),
            what: units.what,
            example: units.example,
        });
    };
    let unit = unit.trim();
    if unit.is_empty() {
        return Err(UnitError::NoUnit { text: shown(), what: units.what, example: units.example });
    }
    let Some((_, factor)) = units.table.iter().find(|(name, _)| *name == unit) else {
        let known: Vec<&str> = units.table.iter().map(|(name, _)| *name).collect();
        return Err(UnitError::UnknownUnit {
            text: shown(),
            what: units.what,
            unit: clip(unit),
            known: known.join(", "),
        });
    };
    let value = number * factor;
    if !value.is_finite() || value < 0.0 {
        return Err(UnitError::OutOfRange { text: shown(), what: units.what });
    }
    Ok(value)
}

/// The number as it is, in the unit that it is kept in.
pub(super) fn in_base_unit(value: f64, units: &Units) -> String {
    let base = units.table.iter().find(|(_, factor)| *factor == 1.0);
    format!("{value} {}", base.map_or("", |(name, _)| name))
}

/// Prints with the largest unit that keeps the number at 1 or above, and no more digits than needed.
pub(super) fn print(
    value: f64,
    units: &Units,
    f: &mut std::fmt::Formatter<'_>,
) -> std::fmt::Result {
    let magnitude = value.abs();
    let (name, factor) = units
        .print
        .iter()
        .rev()
        .find(|(_, factor)| magnitude >= *factor)
        .or_else(|| units.print.first())
        .copied()
        .unwrap_or(("", 1.0));
    let scaled = value / factor;
    match f.precision() {
        Some(precision) => write!(f, "{scaled:.precision$} {name}"),
        None => write!(f, "{scaled} {name}"),
    }
}

/// Error messages quote what was given, but never a megabyte of it.
fn clip(text: &str) -> String {
    const MOST: usize = 60;
    if text.chars().count() <= MOST {
        text.escape_debug().to_string()
    } else {
        let head: String = text.chars().take(MOST).collect();
        format!("{}…", head.escape_debug())
    }
}
