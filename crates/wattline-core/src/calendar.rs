//! Values that change over the day and the week: budgets, prices, carbon intensity.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

const DAY: i64 = 86_400;
const WEEK: i64 = 7 * DAY;
/// The Unix epoch was a Thursday; weeks here begin on Monday.
const EPOCH_INTO_WEEK: i64 = 3 * DAY;
const MICROS: i64 = 1_000_000;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Local time minus UTC, written `"+01:00"` or `"-05:00"`. Summer time is not modelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UtcOffset {
    seconds: i64,
}

impl UtcOffset {
    /// Local time minus UTC.
    #[must_use]
    pub const fn seconds(self) -> i64 {
        self.seconds
    }
}

impl std::str::FromStr for UtcOffset {
    type Err = CalendarError;
    fn from_str(text: &str) -> Result<Self, CalendarError> {
        let wrong = || CalendarError::UtcOffset(text.chars().take(40).collect());
        let (sign, time) = match text.split_at_checked(1) {
            Some(("+", time)) => (1, time),
            Some(("-", time)) => (-1, time),
            _ => return Err(wrong()),
        };
        let seconds = time_of_day(time).map_err(|_| wrong())?;
        if seconds > 14 * 3600 {
            return Err(wrong());
        }
        Ok(Self { seconds: sign * seconds })
    }
}

impl std::fmt::Display for UtcOffset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.seconds < 0 { '-' } else { '+' };
        let minutes = self.seconds.abs() / 60;
        write!(f, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
    }
}

impl Serialize for UtcOffset {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UtcOffset {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A piecewise-constant value that repeats every week.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written<T>")]
pub struct Calendar<T> {
    /// Seconds into the week (from Monday 00:00 local time) at which a value begins; the first is 0.
    steps: Vec<(i64, T)>,
    /// Local time minus UTC, in seconds.
    utc_offset: i64,
}

/// A calendar as it was written down.
#[derive(Deserialize)]
struct Written<T> {
    steps: Vec<(i64, T)>,
    utc_offset: i64,
}

impl<T> TryFrom<Written<T>> for Calendar<T> {
    type Error = CalendarError;

    fn try_from(Written { steps, utc_offset }: Written<T>) -> Result<Self, CalendarError> {
        Self::from_steps(steps, utc_offset)
    }
}

impl<T> Calendar<T> {
    /// Made of the values and when in the week each begins to hold: seconds after Monday 00:00,
    /// local time.
    ///
    /// # Errors
    /// When the steps do not begin at 0, rise, and end within the week.
    pub fn from_steps(steps: Vec<(i64, T)>, utc_offset: i64) -> Result<Self, CalendarError> {
        let begins = steps.first().is_some_and(|first| first.0 == 0);
        let rises = steps.windows(2).all(|two| two[0].0 < two[1].0);
        let ends = steps.last().is_some_and(|last| last.0 < WEEK);
        if begins && rises && ends && utc_offset.abs() <= DAY {
            Ok(Self { steps, utc_offset })
        } else {
            Err(CalendarError::Steps)
        }
    }

    /// What [`Calendar::from_steps`] makes it of.
    #[must_use]
    pub fn steps(&self) -> &[(i64, T)] {
        &self.steps
    }

    /// How far local time is ahead of UTC.
    #[must_use]
    pub const fn utc_offset_seconds(&self) -> i64 {
        self.utc_offset
    }
}

/// Why rules do not make a calendar.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CalendarError {
    /// A day that is not one.
    #[error(
        "'{0}' is not a day or a range of days: write for example \"mon-fri\", \"sat,sun\" or \"all\""
    )]
    Days(String),
    /// A time of day that is not one.
    #[error("'{0}' is not a time of day: write it as \"HH:MM\", from 00:00 to 24:00")]
    TimeOfDay(String),
    /// An offset that is not one.
    #[error("'{0}' is not an offset from UTC: write it as \"+01:00\" or \"-05:00\"")]
    UtcOffset(String),
    /// Steps that do not make a week.
    #[error("the steps of a week must begin at 0, rise, and end within the week")]
    Steps,
}

/// On these days, between these times, the value is this. Later rules win over earlier ones.
/// A rule whose `to` is not after its `from` runs over midnight into the next day.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule<T> {
    /// `"mon-fri"`, `"sat,sun"`, `"all"`.
    #[serde(default = "all_days")]
    pub days: String,
    /// `"08:00"`.
    #[serde(default = "midnight")]
    pub from: String,
    /// `"20:00"`; `"24:00"` is the end of the day.
    #[serde(default = "end_of_day")]
    pub to: String,
    /// What holds then.
    pub value: T,
}

fn all_days() -> String {
    "all".into()
}
fn midnight() -> String {
    "00:00".into()
}
fn end_of_day() -> String {
    "24:00".into()
}

impl<T: Copy + PartialEq> Calendar<T> {
    /// Always the same.
    #[must_use]
    pub fn constant(value: T) -> Self {
        Self { steps: vec![(0, value)], utc_offset: 0 }
    }

    /// From a default and the rules that override it.
    ///
    /// # Errors
    /// When a rule names a day or a time that does not exist.
    pub fn from_rules(
        default: T,
        rules: &[Rule<T>],
        utc_offset: UtcOffset,
    ) -> Result<Self, CalendarError> {
        let mut spans: Vec<(i64, i64, T)> = Vec::new();
        for rule in rules {
            let from = time_of_day(&rule.from)?;
            let mut to = time_of_day(&rule.to)?;
            if to <= from {
                to += DAY;
            }
            for day in days(&rule.days)? {
                spans.push((day * DAY + from, day * DAY + to, rule.value));
            }
        }
        let mut cuts: Vec<i64> = vec![0];
        for (from, to, _) in &spans {
            cuts.push(from % WEEK);
            cuts.push(to % WEEK);
        }
        cuts.sort_unstable();
        cuts.dedup();
        let at = |t: i64| {
            spans
                .iter()
                .rev()
                .find(|(from, to, _)| (t >= *from && t < *to) || t + WEEK < *to)
                .map_or(default, |(_, _, value)| *value)
        };
        let mut steps: Vec<(i64, T)> = cuts.into_iter().map(|t| (t, at(t))).collect();
        steps.dedup_by(|b, a| a.1 == b.1);
        Ok(Self { steps, utc_offset: utc_offset.seconds })
    }

    /// The same calendar of other values.
    #[must_use]
    pub fn map<U: Copy + PartialEq>(&self, other: impl Fn(T) -> U) -> Calendar<U> {
        let mut steps: Vec<(i64, U)> = self.steps.iter().map(|(t, v)| (*t, other(*v))).collect();
        steps.dedup_by(|b, a| a.1 == b.1);
        Calendar { steps, utc_offset: self.utc_offset }
    }

    /// As it can be written: a default, the rules that override it, and the offset of its clock.
    /// [`Calendar::from_rules`] makes the same calendar of them.
    #[must_use]
    pub fn rules(&self) -> (T, Vec<Rule<T>>, UtcOffset) {
        let default = self.steps[0].1;
        let clock = |seconds: i64| format!("{:02}:{:02}", seconds / 3600, seconds / 60 % 60);
        let mut rules = Vec::new();
        for (at, (begin, value)) in self.steps.iter().enumerate() {
            let end = self.steps.get(at + 1).map_or(WEEK, |(next, _)| *next);
            // Rules are about days: a step over midnight is several.
            let mut from = *begin;
            while *value != default && from < end {
                let day = from / DAY;
                let to = end.min((day + 1) * DAY);
                rules.push(Rule {
                    days: DAYS[day as usize % DAYS.len()].to_owned(),
                    from: clock(from - day * DAY),
                    to: clock(to - day * DAY),
                    value: *value,
                });
                from = to;
            }
        }
        (default, rules, UtcOffset { seconds: self.utc_offset })
    }

    /// The value at a time.
    #[must_use]
    pub fn at(&self, time: Timestamp) -> T {
        self.steps[self.step_at(time).0].1
    }

    /// The next time after `time` at which the value changes; never, for a constant.
    #[must_use]
    pub fn next_change(&self, time: Timestamp) -> Option<Timestamp> {
        if self.steps.len() == 1 {
            return None;
        }
        let (step, into_week) = self.step_at(time);
        let (mut next, mut wrap) = (step + 1, 0);
        if next == self.steps.len() {
            // Over the week's end; where the first value equals the last, it goes on past Monday.
            (next, wrap) = (usize::from(self.steps[0].1 == self.steps[step].1), WEEK);
        }
        let next = (self.steps[next].0 + wrap) * MICROS;
        Some(Timestamp::from_micros(time.micros() + (next - into_week)))
    }

    /// The values it takes.
    pub fn values(&self) -> impl Iterator<Item = T> + '_ {
        self.steps.iter().map(|(_, value)| *value)
    }

    /// The smallest value over `[from, to]` by `less`.
    #[must_use]
    pub fn least(&self, from: Timestamp, to: Timestamp, less: impl Fn(T, T) -> bool) -> T {
        let mut best = self.at(from);
        let mut time = from;
        // A week holds every value, so the walk is bounded by the number of steps.
        for _ in 0..=self.steps.len() {
            match self.next_change(time) {
                Some(next) if next <= to => {
                    time = next;
                    let value = self.at(time);
                    if less(value, best) {
                        best = value;
                    }
                }
                _ => break,
            }
        }
        best
    }

    /// Index of the step in force and microseconds into the week.
    fn step_at(&self, time: Timestamp) -> (usize, i64) {
        let local = time.micros() + (self.utc_offset + EPOCH_INTO_WEEK) * MICROS;
        let into_week = local.rem_euclid(WEEK * MICROS);
        let step = self.steps.partition_point(|(start, _)| start * MICROS <= into_week) - 1;
        (step, into_week)
    }
}

fn days(text: &str) -> Result<Vec<i64>, CalendarError> {
    let wrong = || CalendarError::Days(text.chars().take(40).collect());
    let day = |name: &str| {
        let name = name.trim().to_ascii_lowercase();
        DAYS.iter().position(|n| *n == name).map(|d| d as i64).ok_or_else(wrong)
    };
    let mut out = Vec::new();
    for part in text.split(',') {
        if part.trim().eq_ignore_ascii_case("all") {
            out.extend(0..7);
        } else if let Some((a, b)) = part.split_once('-') {
            let (a, mut b) = (day(a)?, day(b)?);
            if b < a {
                b += 7;
            }
            out.extend((a..=b).map(|d| d % 7));
        } else {
            out.push(day(part)?);
        }
    }
    Ok(out)
}

fn time_of_day(text: &str) -> Result<i64, CalendarError> {
    let wrong = || CalendarError::TimeOfDay(text.chars().take(40).collect());
    let (hours, minutes) = text.trim().split_once(':').ok_or_else(wrong)?;
    let hours: i64 = hours.parse().map_err(|_| wrong())?;
    let minutes: i64 = minutes.parse().map_err(|_| wrong())?;
    // Before they are multiplied: a product of large numbers overflows.
    if !(0..=24).contains(&hours) || !(0..60).contains(&minutes) {
        return Err(wrong());
    }
    let seconds = hours * 3600 + minutes * 60;
    if seconds > DAY {
        return Err(wrong());
    }
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hours_beyond_all_days_are_refused_and_do_not_overflow() {
        for text in ["9223372036854775807:00", "25:00", "24:01", "00:60", "-1:00", "3:-5"] {
            assert!(time_of_day(text).is_err(), "{text}");
        }
        assert_eq!(time_of_day("24:00"), Ok(DAY));
    }

    fn rule(days: &str, from: &str, to: &str, value: u32) -> Rule<u32> {
        Rule { days: days.into(), from: from.into(), to: to.into(), value }
    }
    /// Monday 1970-01-05.
    fn monday(hours: f64) -> Timestamp {
        Timestamp::from_seconds(4.0 * 86_400.0 + hours * 3600.0)
    }

    #[test]
    fn office_hours() {
        let c =
            Calendar::from_rules(1, &[rule("mon-fri", "08:00", "20:00", 2)], UtcOffset::default())
                .unwrap();
        assert_eq!(c.at(monday(7.9)), 1);
        assert_eq!(c.at(monday(8.0)), 2);
        assert_eq!(c.at(monday(20.0)), 1);
        assert_eq!(c.at(monday(5.0 * 24.0 + 12.0)), 1, "Saturday");
        assert_eq!(c.next_change(monday(0.0)), Some(monday(8.0)));
        assert_eq!(c.next_change(monday(4.0 * 24.0 + 20.0)), Some(monday(7.0 * 24.0 + 8.0)));
        assert_eq!(c.least(monday(9.0), monday(21.0), |a, b| a < b), 1);
        assert_eq!(c.least(monday(9.0), monday(19.0), |a, b| a < b), 2);
    }

    #[test]
    fn other_values_change_at_the_same_times() {
        let rules = [rule("mon-fri", "08:00", "20:00", 2), rule("sat", "08:00", "20:00", 3)];
        let c = Calendar::from_rules(1, &rules, "+01:00".parse().unwrap()).unwrap();
        let doubled = c.map(|v| v * 2);
        for hour in 0..200 {
            let time = monday(f64::from(hour));
            assert_eq!(doubled.at(time), 2 * c.at(time));
            assert_eq!(doubled.next_change(time), c.next_change(time));
        }
        assert_eq!(c.map(|_| 7), Calendar { utc_offset: 3600, ..Calendar::constant(7) });
    }

    #[test]
    fn nights_run_over_midnight_and_the_week_end() {
        let c = Calendar::from_rules(1, &[rule("all", "22:00", "06:00", 2)], UtcOffset::default())
            .unwrap();
        assert_eq!(c.at(monday(1.0)), 2, "Sunday's night reaches into Monday");
        assert_eq!(c.at(monday(7.0)), 1);
        assert_eq!(c.at(monday(23.0)), 2);
        assert_eq!(c.next_change(monday(6.0 * 24.0 + 23.0)), Some(monday(7.0 * 24.0 + 6.0)));
    }

    #[test]
    fn local_time() {
        let c =
            Calendar::from_rules(1, &[rule("mon", "00:00", "01:00", 2)], "+02:00".parse().unwrap())
                .unwrap();
        assert_eq!(c.at(monday(-2.0)), 2);
        assert_eq!(c.at(monday(0.0)), 1);
    }

    #[test]
    fn offsets_east_and_west() {
        let west: UtcOffset = "-05:30".parse().unwrap();
        assert_eq!(west.to_string(), "-05:30");
        let c = Calendar::from_rules(1, &[rule("mon", "00:00", "01:00", 2)], west).unwrap();
        assert_eq!(c.at(monday(5.5)), 2);
        assert_eq!(c.at(monday(6.5)), 1);
        for bad in ["", "5", "+5", "05:00", "+15:00", "-24:00", "+ä"] {
            assert!(bad.parse::<UtcOffset>().is_err(), "{bad}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        let bad =
            Calendar::from_rules(1, &[rule("mon-fry", "08:00", "20:00", 2)], UtcOffset::default());
        assert!(bad.unwrap_err().to_string().contains("mon-fry"));
        let bad =
            Calendar::from_rules(1, &[rule("mon", "8 o'clock", "20:00", 2)], UtcOffset::default());
        assert!(bad.unwrap_err().to_string().contains("HH:MM"));
    }

    proptest! {
        #![proptest_config(wattline_testing::cases(256, 1))]

        /// Between two changes the value is constant, and at a change it differs.
        #[test]
        fn changes_are_exactly_the_changes(
            from in 0_i64..24, length in 1_i64..24, day in 0_usize..7, hour in -200.0_f64..400.0,
        ) {
            let names = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
            let rules = [
                rule(names[day], &format!("{from:02}:00"), &format!("{:02}:00", (from + length) % 24), 2),
                rule("wed", "11:00", "13:00", 3),
            ];
            let c = Calendar::from_rules(1, &rules, UtcOffset::default()).unwrap();
            let (default, written, offset) = c.rules();
            prop_assert_eq!(&Calendar::from_rules(default, &written, offset).unwrap(), &c);
            let now = monday(hour);
            if let Some(next) = c.next_change(now) {
                prop_assert!(next > now);
                prop_assert_ne!(c.at(next), c.at(now));
                let before = Timestamp::from_micros(next.micros() - 1);
                prop_assert_eq!(c.at(before), c.at(now));
            }
        }
    }
}
