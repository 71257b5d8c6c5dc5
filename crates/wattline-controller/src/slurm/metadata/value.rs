//! What one value means.

use super::{Checkpoint, Range, When, shown};
use jiff::civil;
use wattline_core::job::Work;
use wattline_core::time::Timestamp;
use wattline_core::units::{EurosPerSecond, Seconds};

/// Farther ahead nobody plans.
const LONGEST: Seconds = Seconds::hours(10.0 * 366.0 * 24.0);
/// No GPU count and no batch is larger.
const LARGEST: u32 = 1 << 30;

/// A finite number that is not negative.
pub(super) fn number(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        // Words such as "inf" are numbers to the parser, and not what anyone means.
        Ok(n) if (0.0..1e30).contains(&n) => Ok(n),
        _ => Err(format!("'{}' is not a number that is finite and not negative", shown(text))),
    }
}

pub(super) fn work(samples: f64) -> Result<Work, String> {
    if samples.is_finite() && samples > 0.0 && samples < 1e30 {
        Ok(Work(samples))
    } else {
        Err(format!("{samples} samples are no work, expected more than none"))
    }
}

/// EUR per hour, or with another unit.
pub(super) fn weight(text: &str) -> Result<EurosPerSecond, String> {
    match number(text) {
        Ok(per_hour) => Ok(EurosPerSecond::new(per_hour / 3600.0)),
        Err(_) => text.parse().map_err(|_| {
            format!("'{}' is not a weight: expected EUR per hour, for example 2.5", shown(text))
        }),
    }
}

/// A duration from the submission, or a point in time.
pub(super) fn deadline(text: &str, when: When<'_>) -> Result<Timestamp, String> {
    let deadline = match text.strip_prefix("now") {
        Some("") => when.submit,
        Some(rest) => match rest.strip_prefix('+') {
            Some(rest) => when.submit + slurm_duration(rest).ok_or_else(|| no_deadline(text))?,
            None => return Err(no_deadline(text)),
        },
        None => match duration(text) {
            Some(duration) => when.submit + duration,
            None => instant(text, when)?,
        },
    };
    if deadline < when.submit {
        return Err(format!("'{}' lies before the submission", shown(text)));
    }
    if deadline - when.submit > LONGEST {
        return Err(format!("'{}' is more than ten years away", shown(text)));
    }
    Ok(deadline)
}

fn no_deadline(text: &str) -> String {
    format!(
        "'{}' is not a deadline: expected for example 6h, 90min, now+2hours, 2026-11-16T08:00 or 2026-11-16T08:00:00Z",
        shown(text)
    )
}

/// `6h`, `+6h`, `90min`; `None` if it is something else.
fn duration(text: &str) -> Option<Seconds> {
    text.strip_prefix('+').unwrap_or(text).parse().ok()
}

/// SLURM's `2hours`, `3600`; our own units too.
fn slurm_duration(text: &str) -> Option<Seconds> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at_checked(digits)?;
    let factor = match unit.trim_end_matches('s') {
        "" | "second" | "sec" => 1.0,
        "minute" | "min" => 60.0,
        "hour" => 3600.0,
        "day" => 86_400.0,
        "week" => 604_800.0,
        _ => return duration(text),
    };
    count.parse::<u32>().ok().map(|count| Seconds::new(f64::from(count) * factor))
}

fn instant(text: &str, when: When<'_>) -> Result<Timestamp, String> {
    if let Ok(instant) = text.parse::<jiff::Timestamp>() {
        return Ok(Timestamp::from_micros(instant.as_microsecond()));
    }
    // A date alone may mean its morning or its evening.
    if !text.contains(['T', 't']) {
        return Err(no_deadline(text));
    }
    let civil: civil::DateTime = text.parse().map_err(|_| no_deadline(text))?;
    let zoned =
        when.zone.to_ambiguous_timestamp(civil).compatible().map_err(|_| no_deadline(text))?;
    Ok(Timestamp::from_micros(zoned.as_microsecond()))
}

/// `4`, `1-8` or `1-8:4`.
pub(super) fn range(text: &str) -> Result<Range, String> {
    let read = || {
        let whole = |digits: &str| {
            let fine = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let n: u32 = if fine { digits.parse().ok()? } else { return None };
            (1..=LARGEST).contains(&n).then_some(n)
        };
        let (bounds, requested) = match text.split_once(':') {
            Some((bounds, requested)) => (bounds, Some(whole(requested)?)),
            None => (text, None),
        };
        let (min, max) = match bounds.split_once('-') {
            Some((min, max)) => (whole(min)?, whole(max)?),
            None => (whole(bounds)?, whole(bounds)?),
        };
        let sound = min <= max && requested.is_none_or(|n| (min..=max).contains(&n));
        sound.then_some(Range { min, max, requested })
    };
    read().ok_or_else(|| {
        format!("'{}' is not a count: expected for example 4, 1-8 or 1-8:4", shown(text))
    })
}

pub(super) fn workload(text: &str) -> Result<String, String> {
    let fine = (1..=64).contains(&text.len())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '/' | '+' | '-'));
    if fine {
        Ok(text.to_owned())
    } else {
        let why = "expected at most 64 letters, digits and . _ / + -";
        Err(format!("'{}' is not the name of a workload: {why}", shown(text)))
    }
}

/// A duration that saving or loading may take.
pub(super) fn cost(text: &str) -> Result<Seconds, String> {
    match text.parse::<Seconds>() {
        Ok(cost) if cost <= Seconds::hours(24.0) => Ok(cost),
        Ok(_) => Err(format!("'{}' is more than a day", shown(text))),
        Err(e) => Err(e.to_string()),
    }
}

pub(super) fn checkpoint(text: &str) -> Result<Checkpoint, String> {
    match text {
        "usr1" => Ok(Checkpoint::Usr1),
        "term" => Ok(Checkpoint::Term),
        "none" => Ok(Checkpoint::None),
        _ => Err(format!("'{}' is none of usr1, term, none", shown(text))),
    }
}

pub(super) fn hold(text: &str) -> Result<bool, String> {
    match text {
        "user" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("'{}' is none of user, no", shown(text))),
    }
}
