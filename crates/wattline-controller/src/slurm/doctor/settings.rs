//! What `scontrol show config` says.

use super::{Finding, needed};
use crate::job_registry::Checkpoint;
use crate::slurm::Config;
use crate::slurm::command::printable;
use std::collections::BTreeMap;
use wattline_core::Timestamp;
use wattline_core::units::Seconds;

/// Names and values.
pub(super) type Settings = BTreeMap<String, String>;

/// The exit code of a job that has saved because it was asked to.
const SAVED: u32 = 86;
/// SLURM must remember jobs that are over for this long, or they are taken for lost.
const MIN_JOB_AGE: f64 = 60.0;
/// Clocks may differ by this much, and by the second that SLURM does not show.
const CLOCKS: Seconds = Seconds::new(2.0);
/// SLURM's own power saving below this would put nodes to sleep beside ours.
const LONG: f64 = 86_400.0;

/// `Name = value` lines; `(null)` is nothing.
pub(super) fn read(text: &str) -> Settings {
    let lines = text.lines().filter_map(|line| line.split_once('='));
    let pairs = lines.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()));
    pairs.filter(|(_, value)| value != "(null)").collect()
}

/// The time in the first line, against this machine's before and after it was asked.
pub(super) fn clock(text: &str, before: Timestamp, after: Timestamp) -> Finding {
    const WHAT: &str = "clock";
    let shown = text.lines().next().and_then(|line| line.strip_prefix("Configuration data as of "));
    let time = shown.and_then(|time| format!("{}Z", time.trim()).parse::<jiff::Timestamp>().ok());
    let Some(time) = time else {
        return Finding::warn(WHAT, "scontrol does not say slurmctld's time", "compare by hand");
    };
    let time = Timestamp::from_micros(time.as_microsecond());
    let fine = format!("slurmctld says {} UTC", shown.unwrap_or_default());
    compared(time, before, after, fine)
}

/// The same of slurmctld's time in seconds since 1970.
pub(super) fn clock_of(seconds: i64, before: Timestamp, after: Timestamp) -> Finding {
    let time = Timestamp::from_micros(seconds.saturating_mul(1_000_000));
    compared(time, before, after, format!("slurmctld says {seconds} s since 1970"))
}

fn compared(time: Timestamp, before: Timestamp, after: Timestamp, fine: String) -> Finding {
    const WHAT: &str = "clock";
    // It shows whole seconds.
    let behind = before.since(time + Seconds::new(1.0));
    let ahead = time.since(after);
    let off = if behind > ahead { behind } else { ahead };
    if off > CLOCKS {
        let found = format!("slurmctld's clock is {:.0} s off", off.get());
        return Finding::wrong(WHAT, found, "let both machines keep time with NTP (chrony)");
    }
    Finding::ok(WHAT, fine)
}

/// Whether a list such as `86,100-110` has a number.
fn lists(text: &str, wanted: u32) -> bool {
    text.split(',').any(|part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        matches!((from.trim().parse(), to.trim().parse()), (Ok(from), Ok(to)) if (from..=to).contains(&wanted))
    })
}

/// The number that a value such as `300 sec` begins with.
fn number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

pub(super) fn judge(settings: &Settings, config: &Config) -> Vec<Finding> {
    let get = |name: &str| settings.get(name).map(|value| printable(value)).unwrap_or_default();
    let mode = config.mode;
    let mut found = Vec::new();
    let mut one = |name: &'static str, fine: bool, otherwise: &dyn Fn(String) -> Finding| {
        let value = get(name);
        found.push(if fine { Finding::ok(name, value) } else { otherwise(value) });
    };

    one("SelectType", get("SelectType") == "select/cons_tres", &|value| {
        let fix = "SelectType=select/cons_tres in slurm.conf: GPUs are counted there";
        Finding::wrong("SelectType", value, fix)
    });
    one("RequeueExitHold", lists(&get("RequeueExitHold"), SAVED), &|value| {
        let found = format!("{SAVED} is not in '{value}'");
        let fix = "RequeueExitHold=86 in slurm.conf: a job with checkpoint=usr1 that has saved \
                   exits so; without it such a job counts as failed";
        needed(mode, "RequeueExitHold", found, fix)
    });
    one("JobRequeue", get("JobRequeue") == "1", &|value| {
        let fix = "JobRequeue=1 in slurm.conf: jobs without --requeue cannot be moved or resized";
        Finding::warn("JobRequeue", value, fix)
    });
    one("JobFileAppend", get("JobFileAppend") == "1", &|value| {
        let fix = "JobFileAppend=1 in slurm.conf: the output of a job that is moved begins anew";
        Finding::warn("JobFileAppend", value, fix)
    });
    let age = number(&get("MinJobAge")).is_some_and(|age| age >= MIN_JOB_AGE);
    one("MinJobAge", age, &|value| {
        let fix = "MinJobAge=300 in slurm.conf: how jobs have ended is read from SLURM, which \
                   forgets it after that";
        needed(mode, "MinJobAge", value, fix)
    });

    let programs: Vec<&str> = ["SuspendProgram", "ResumeProgram"]
        .into_iter()
        .filter(|name| get(name).is_empty())
        .collect();
    found.push(if programs.is_empty() {
        Finding::ok("SuspendProgram, ResumeProgram", get("SuspendProgram"))
    } else {
        let fix = "set both in slurm.conf: SLURM calls them to put nodes to sleep and to wake them";
        let found = format!("no {}", programs.join(", "));
        needed(mode, "SuspendProgram, ResumeProgram", found, fix)
    });
    let suspend = get("SuspendTime");
    found.push(match number(&suspend) {
        Some(time) if time >= LONG => Finding::ok("SuspendTime", suspend),
        Some(time) if time >= 0.0 => Finding::warn(
            "SuspendTime",
            suspend,
            "SuspendTime=31536000 in slurm.conf: SLURM puts nodes to sleep beside Wattline",
        ),
        _ => needed(
            mode,
            "SuspendTime",
            suspend,
            "SuspendTime=31536000 in slurm.conf: without a finite one SLURM refuses POWER_DOWN",
        ),
    });

    let (wait, save) = (number(&get("KillWait")), config.defaults.save.get());
    found.push(match wait {
        Some(wait) if wait >= save || config.defaults.checkpoint != Checkpoint::Term => {
            Finding::ok("KillWait", get("KillWait"))
        }
        _ => Finding::warn(
            "KillWait",
            format!("{}; saving takes {save:.0} s by default", get("KillWait")),
            "raise KillWait in slurm.conf above slurm.defaults.save: a job that saves on SIGTERM \
             is killed after it",
        ),
    });
    // Only what is released takes part, so any order will do.
    found.push(Finding::ok("PriorityType", get("PriorityType")));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::Mode;
    use crate::slurm::doctor::Verdict;

    const GOOD: &str = "Configuration data as of 2026-11-16T00:41:49
SelectType              = select/cons_tres
RequeueExitHold         = 86
RequeueExit             = (null)
JobRequeue              = 1
JobFileAppend           = 1
MinJobAge               = 300 sec
SuspendProgram          = /usr/sbin/suspend
ResumeProgram           = /usr/sbin/resume
SuspendTime             = 31536000 sec
KillWait                = 30 sec
PriorityType            = priority/basic
";

    fn worse_than_ok(text: &str) -> Vec<(&'static str, Verdict)> {
        let config = Config { mode: Mode::Control, ..Config::default() };
        let all = judge(&read(text), &config).into_iter();
        all.filter(|f| f.verdict != Verdict::Ok).map(|f| (f.what, f.verdict)).collect()
    }

    #[test]
    fn each_setting_is_missed() {
        use Verdict::{Warn, Wrong};
        assert_eq!(worse_than_ok(GOOD), []);
        for (from, to, expected) in [
            ("cons_tres", "linear", ("SelectType", Wrong)),
            ("= 86", "= (null)", ("RequeueExitHold", Wrong)),
            ("= 86", "= 8,186", ("RequeueExitHold", Wrong)),
            ("JobRequeue              = 1", "JobRequeue = 0", ("JobRequeue", Warn)),
            ("JobFileAppend           = 1", "JobFileAppend = 0", ("JobFileAppend", Warn)),
            ("300 sec", "5 sec", ("MinJobAge", Wrong)),
            ("/usr/sbin/resume", "(null)", ("SuspendProgram, ResumeProgram", Wrong)),
            ("31536000 sec", "NONE", ("SuspendTime", Wrong)),
            ("31536000 sec", "-1 sec", ("SuspendTime", Wrong)),
            ("31536000 sec", "600 sec", ("SuspendTime", Warn)),
        ] {
            assert_eq!(worse_than_ok(&GOOD.replace(from, to)), [expected], "{to}");
        }
        assert_eq!(worse_than_ok(&GOOD.replace("= 86", "= 7, 80-90")), []);
        // Nothing is worse than everything that is not known.
        assert_eq!(worse_than_ok("").len(), 8);
    }

    #[test]
    fn clocks_may_differ_by_a_moment() {
        let at = |seconds: f64| Timestamp::from_seconds(1_794_789_709.0 + seconds);
        let verdict = |before, after| clock(GOOD, at(before), at(after)).verdict;
        assert_eq!(verdict(0.0, 0.1), Verdict::Ok);
        assert_eq!(verdict(2.9, 3.0), Verdict::Ok);
        assert_eq!(verdict(3.5, 3.6), Verdict::Wrong);
        assert_eq!(verdict(-2.1, -1.9), Verdict::Ok);
        assert_eq!(verdict(-3.0, -2.5), Verdict::Wrong);
        assert_eq!(verdict(-1.0, 40.0), Verdict::Ok);
        assert_eq!(clock("nonsense", at(0.0), at(0.0)).verdict, Verdict::Warn);
    }
}
