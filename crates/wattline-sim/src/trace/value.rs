//! What the values in a trace mean. Every function returns what it expected if it got something
//! else; the caller knows the file, the line and the field.

use super::SkipReason;
use jiff::civil;
use wattline_core::Timestamp;
use wattline_core::units::Seconds;

/// What a value should have been, for people.
pub(crate) type Expected = &'static str;

/// Beyond this (about 3,000 years), a number of seconds is an error of units or of columns.
const MOST_SECONDS: f64 = 1e11;
/// Beyond this, a number of GPUs is an error of columns.
const MOST_COUNT: f64 = 1e7;

const DURATION: Expected = "a number of seconds, not negative";
const INSTANT: Expected = "a time in seconds";
const DATE_TIME: Expected = "a time like 2025-01-02 03:04:05";
const COUNT: Expected = "a whole number, not negative";
const CLOCK: Expected = "a duration like 1-02:03:04 (days-hours:minutes:seconds)";

/// Whether a value stands for none. Different tools print it differently.
pub(crate) fn is_none(text: &str) -> bool {
    ["", "none", "unknown", "null", "nan", "nat", "n/a"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word))
}

/// A length of time in seconds.
pub(crate) fn duration(text: &str) -> Result<Seconds, Expected> {
    text.parse().map_err(|_| DURATION).and_then(duration_number)
}

/// As [`duration`], from a number.
pub(crate) fn duration_number(seconds: f64) -> Result<Seconds, Expected> {
    // NaN is in no range.
    if (0.0..=MOST_SECONDS).contains(&seconds) { Ok(Seconds::new(seconds)) } else { Err(DURATION) }
}

/// A point in time in seconds.
pub(crate) fn instant(text: &str) -> Result<Timestamp, Expected> {
    text.parse().map_err(|_| INSTANT).and_then(instant_number)
}

/// As [`instant`], from a number.
pub(crate) fn instant_number(seconds: f64) -> Result<Timestamp, Expected> {
    if (-MOST_SECONDS..=MOST_SECONDS).contains(&seconds) {
        Ok(Timestamp::from_seconds(seconds))
    } else {
        Err(INSTANT)
    }
}

/// A point in time as a date and a time of day; UTC unless it says otherwise.
pub(crate) fn date_time(text: &str) -> Result<Timestamp, Expected> {
    // The shortest is 2025-01-02T03:04; a bare date would silently become midnight.
    let time = text.get("2025-01-02".len()..).filter(|time| time.len() >= 6).ok_or(DATE_TIME)?;
    if time.contains(['Z', 'z', '+', '-', '[']) {
        let instant: jiff::Timestamp = text.parse().map_err(|_| DATE_TIME)?;
        return Ok(Timestamp::from_seconds(instant.as_duration().as_secs_f64()));
    }
    let local: civil::DateTime = text.parse().map_err(|_| DATE_TIME)?;
    let epoch = civil::DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
    Ok(Timestamp::from_seconds(local.duration_since(epoch).as_secs_f64()))
}

/// How many of something. Traces that went through a data frame write 4 as 4.0.
pub(crate) fn count(text: &str) -> Result<u32, Expected> {
    text.parse().map_err(|_| COUNT).and_then(count_number)
}

/// As [`count`], from a number.
pub(crate) fn count_number(number: f64) -> Result<u32, Expected> {
    if (0.0..=MOST_COUNT).contains(&number) && number.fract() == 0.0 {
        Ok(number as u32)
    } else {
        Err(COUNT)
    }
}

/// An amount that need not be whole, such as a share of a GPU in percent.
pub(crate) fn amount(text: &str) -> Result<f64, Expected> {
    const AMOUNT: Expected = "a number, not negative";
    let number: f64 = text.parse().map_err(|_| AMOUNT)?;
    if (0.0..=MOST_COUNT).contains(&number) { Ok(number) } else { Err(AMOUNT) }
}

/// SLURM's `[days-]hours:minutes:seconds`.
pub(crate) fn clock_duration(text: &str) -> Result<Seconds, Expected> {
    let whole = |part: &str| -> Result<f64, Expected> {
        if part.is_empty() || part.len() > 9 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(CLOCK);
        }
        part.parse().map_err(|_| CLOCK)
    };
    let (days, time) = match text.split_once('-') {
        Some((days, time)) => (whole(days)?, time),
        None => (0.0, text),
    };
    // A fraction of a second is below what SLURM's accounting resolves.
    let time = time.split_once('.').map_or(time, |(time, _)| time);
    let mut parts = time.split(':');
    let (Some(hours), Some(minutes), Some(seconds), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(CLOCK);
    };
    let (hours, minutes, seconds) = (whole(hours)?, whole(minutes)?, whole(seconds)?);
    if minutes >= 60.0 || seconds >= 60.0 {
        return Err(CLOCK);
    }
    let total = ((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds;
    duration_number(total).map_err(|_| CLOCK)
}

/// How long something ran, given when it started and ended, or why that is not known.
pub(crate) fn run_time(
    start: Option<Timestamp>,
    end: Option<Timestamp>,
) -> Result<Seconds, SkipReason> {
    let start = start.ok_or(SkipReason::NeverRan)?;
    let end = end.ok_or(SkipReason::NotFinished)?;
    if end < start {
        return Err(SkipReason::EndsBeforeStart);
    }
    Ok(Seconds::new(end.seconds() - start.seconds()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn times_without_a_zone_are_utc_and_others_are_converted() {
        let seconds = |text| date_time(text).map(Timestamp::seconds);
        assert_eq!(seconds("1970-01-02 00:00:01"), Ok(86_401.0));
        assert_eq!(seconds("2025-01-02T03:04:05"), Ok(1_735_787_045.0));
        assert_eq!(seconds("2025-01-02T03:04:05Z"), Ok(1_735_787_045.0));
        assert_eq!(seconds("2025-01-02T05:04:05+02:00"), Ok(1_735_787_045.0));
        assert_eq!(seconds("2025-01-02T05:04:05+0200"), Ok(1_735_787_045.0));
        for bad in
            ["", "2025-01-02", "2025-02-30 00:00:00", "yesterday, at noon", "ä".repeat(20).as_str()]
        {
            assert_eq!(seconds(bad), Err(DATE_TIME), "{bad}");
        }
    }

    #[test]
    fn slurm_durations() {
        let seconds = |text| clock_duration(text).map(Seconds::get);
        assert_eq!(seconds("00:00:00"), Ok(0.0));
        assert_eq!(seconds("1-02:03:04"), Ok(93_784.0));
        assert_eq!(seconds("100:00:01.500"), Ok(360_001.0));
        for bad in
            ["", "1", "1:2", "00:60:00", "00:00:60", "-00:00:01", "1-2-3:4:5", "a:b:c", "1:2:3:4"]
        {
            assert_eq!(seconds(bad), Err(CLOCK), "{bad}");
        }
    }

    #[test]
    fn numbers_that_are_not_amounts_are_refused() {
        for bad in ["NaN", "inf", "-1", "1e300", "", "1 2"] {
            assert!(duration(bad).is_err(), "{bad}");
            assert!(count(bad).is_err(), "{bad}");
            assert!(amount(bad).is_err(), "{bad}");
        }
        assert!(count("1.5").is_err());
        assert_eq!(count("4.0"), Ok(4));
        assert!(instant("nan").is_err() && instant("1e12").is_err());
        assert_eq!(instant("-5").unwrap().seconds(), -5.0);
    }
}
