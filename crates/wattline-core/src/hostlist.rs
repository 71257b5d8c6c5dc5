//! SLURM's shorthand for lists of host names: `n[1-4,7],gpu[01-03]b`.

use thiserror::Error;

/// The most names that one list may stand for.
pub const MOST_NAMES: usize = 1 << 17;
/// The longest name of a host.
pub const LONGEST_NAME: usize = 255;

/// Why a text is not a list of hosts.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HostlistError {
    /// A bracket without its other half, or inside another.
    #[error("has brackets that do not match")]
    Brackets,
    /// Something between brackets that is no number and no range.
    #[error("has the range '{0}', expected for example 1-4 or 01-12")]
    Range(String),
    /// A character that host names do not have.
    #[error("has the character '{}', which no host name has", .0.escape_debug())]
    Character(char),
    /// A comma with no name before or after it.
    #[error("has an empty name")]
    Empty,
    /// Too many or too long.
    #[error(
        "stands for more than {MOST_NAMES} names or for one of more than {LONGEST_NAME} characters"
    )]
    TooMany,
}

/// The names in the order they are written. An empty text and SLURM's `(null)` are no names.
///
/// # Errors
/// If the text is not a list of hosts, or a longer one than [`MOST_NAMES`].
pub fn expand(text: &str) -> Result<Vec<String>, HostlistError> {
    let text = text.trim();
    if text.is_empty() || text == "(null)" || text == "None assigned" {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for item in items(text)? {
        let names = names(item)?;
        if all.len() + names.len() > MOST_NAMES {
            return Err(HostlistError::TooMany);
        }
        all.extend(names);
    }
    Ok(all)
}

/// Splits at commas outside brackets.
fn items(text: &str) -> Result<Vec<&str>, HostlistError> {
    let mut items = Vec::new();
    let mut start = 0;
    let mut inside = false;
    for (at, c) in text.char_indices() {
        match c {
            '[' if inside => return Err(HostlistError::Brackets),
            '[' => inside = true,
            ']' if !inside => return Err(HostlistError::Brackets),
            ']' => inside = false,
            ',' if !inside => {
                items.push(text.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(HostlistError::Brackets);
    }
    items.push(text.get(start..).unwrap_or_default());
    Ok(items)
}

/// The names of one item: fixed parts and bracketed ranges in turn, the last range going fastest.
fn names(item: &str) -> Result<Vec<String>, HostlistError> {
    if item.is_empty() {
        return Err(HostlistError::Empty);
    }
    let mut names = vec![String::new()];
    let mut rest = item;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let (ranges, after) = after.split_once(']').ok_or(HostlistError::Brackets)?;
            let numbers = numbers(ranges)?;
            if names.len().saturating_mul(numbers.len()) > MOST_NAMES {
                return Err(HostlistError::TooMany);
            }
            names = names
                .iter()
                .flat_map(|name| numbers.iter().map(move |number| format!("{name}{number}")))
                .collect();
            rest = after;
        } else {
            let (fixed, after) = rest.split_at(rest.find('[').unwrap_or(rest.len()));
            if let Some(c) = fixed.chars().find(|c| !is_of_a_name(*c)) {
                return Err(HostlistError::Character(c));
            }
            if fixed.len() > LONGEST_NAME {
                return Err(HostlistError::TooMany);
            }
            for name in &mut names {
                name.push_str(fixed);
            }
            rest = after;
        }
    }
    if names.iter().any(|name| name.len() > LONGEST_NAME) {
        return Err(HostlistError::TooMany);
    }
    Ok(names)
}

fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// `1-4,07` as written numbers: a range keeps the width of its first number.
fn numbers(ranges: &str) -> Result<Vec<String>, HostlistError> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let wrong =
            || HostlistError::Range(range.chars().take(40).flat_map(char::escape_debug).collect());
        let (from, to) = (number(first).ok_or_else(wrong)?, number(last).ok_or_else(wrong)?);
        if from > to {
            return Err(wrong());
        }
        if to - from >= MOST_NAMES as u64 || numbers.len() >= MOST_NAMES {
            return Err(HostlistError::TooMany);
        }
        let width = first.len();
        numbers.extend((from..=to).map(|n| format!("{n:0width$}")));
    }
    Ok(numbers)
}

fn number(digits: &str) -> Option<u64> {
    let fine =
        !digits.is_empty() && digits.len() <= 18 && digits.bytes().all(|b| b.is_ascii_digit());
    if fine { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<String> {
        expand(text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn ranges_widths_and_suffixes() {
        assert_eq!(of("n1"), ["n1"]);
        assert_eq!(of("n[1-4,7]"), ["n1", "n2", "n3", "n4", "n7"]);
        assert_eq!(of("gpu[01-03]b,login"), ["gpu01b", "gpu02b", "gpu03b", "login"]);
        assert_eq!(of("n[8-11]"), ["n8", "n9", "n10", "n11"]);
        assert_eq!(of("n[098-101]"), ["n098", "n099", "n100", "n101"]);
        assert_eq!(of("r[1-2]n[1-2]"), ["r1n1", "r1n2", "r2n1", "r2n2"]);
        assert_eq!(of("a-b.c_d"), ["a-b.c_d"]);
        assert_eq!(of("[1-2]"), ["1", "2"]);
        for none in ["", "  ", "(null)", "None assigned"] {
            assert!(of(none).is_empty());
        }
    }

    #[test]
    fn what_is_no_list_of_hosts() {
        for wrong in [
            "n[1-4",
            "n1]",
            "n[[1]]",
            "n[]",
            "n[4-1]",
            "n[a]",
            "n[1-]",
            "n1,,n2",
            "n1,",
            "n 1",
            "n$(reboot)",
            "n[1-2]/x",
            "n\0",
            "n[+1]",
            "é",
            "n[1-99999999999999999999]",
        ] {
            assert!(expand(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_short_text_never_stands_for_a_huge_list() {
        assert_eq!(expand("n[1-999999999]"), Err(HostlistError::TooMany));
        assert_eq!(expand("n[1-1000]x[1-1000]"), Err(HostlistError::TooMany));
        assert_eq!(
            expand(&format!("n[{}]", ["1-100000"; 3].join(","))),
            Err(HostlistError::TooMany)
        );
        assert_eq!(expand(&"n[1-100000],".repeat(3)), Err(HostlistError::TooMany));
        assert_eq!(expand(&"n".repeat(300)), Err(HostlistError::TooMany));
        assert_eq!(of("n[1-131072]").len(), MOST_NAMES);
    }
}
