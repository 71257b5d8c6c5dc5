//! What others on the same SLURM mean for Wattline: other partitions on its nodes, limits of QOS,
//! the controller itself, the disk. Functions of text and numbers.

use super::{Finding, needed};
use crate::slurm::Config;
use crate::slurm::command::printable;
use crate::slurm::read::SlurmNode;
use std::collections::BTreeMap;
use wattline_core::Timestamp;
use wattline_core::units::Seconds;

/// Names that a finding lists: what fits a line.
const MOST_NAMED: usize = 8;
/// A controller that turns writes its heartbeat every second; after this long it hangs or is gone.
const STALE: Seconds = Seconds::new(30.0);
/// Clocks of two machines differ by less.
const FUTURE: Seconds = Seconds::new(2.0);
/// Below this the journal's disk is full within hours: a busy site writes some 100 MB a day, and
/// snapshots need room for a second copy.
const LOW_KIB: u64 = 1024 * 1024;
/// Below this a snapshot may no longer fit.
const FULL_KIB: u64 = 100 * 1024;

fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(MOST_NAMED);
    let named = names[..names.len() - more].join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}

/// Nodes of the site that are also in partitions that are not controlled.
pub(super) fn shared<'a>(nodes: impl Iterator<Item = &'a SlurmNode>, config: &Config) -> Finding {
    const WHAT: &str = "shared nodes";
    let mut others: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for node in nodes {
        let theirs = node.partitions.iter().filter(|name| !config.partitions.contains(name));
        for partition in theirs {
            others.entry(partition).or_default().push(printable(&node.name));
        }
    }
    if others.is_empty() {
        return Finding::ok(WHAT, "none: only controlled partitions have these nodes");
    }
    let each = others.iter().map(|(name, nodes)| format!("{}: {}", printable(name), listed(nodes)));
    let found = format!(
        "partitions that are not controlled have nodes of this site: {}",
        each.collect::<Vec<_>>().join("; ")
    );
    let fix = "their jobs are only counted: they are not limited or stopped, also where the budget \
               cannot be kept because of them, and take power before it is known. Give them other \
               nodes, or control these partitions too";
    Finding::warn(WHAT, found, fix)
}

/// The controller's heartbeat; `None`: there is no such file.
pub(super) fn heartbeat(text: Option<&str>, now: Timestamp, config: &Config) -> Finding {
    const WHAT: &str = "heartbeat";
    let Some(text) = text else {
        return Finding::ok(WHAT, "none: no controller decides now, and the gate is open");
    };
    let digits: String = text.chars().take_while(char::is_ascii_digit).take(20).collect();
    let Ok(beat) = digits.parse::<f64>() else {
        let found =
            format!("is no time: '{}'", printable(&text.chars().take(40).collect::<String>()));
        let fix = "remove the file; a running controller writes it again";
        return needed(config.mode, WHAT, found, fix);
    };
    let beat = Timestamp::from_seconds(beat);
    if beat > now + FUTURE {
        let found = format!("is {:.0} s in the future: it counts as none", beat.since(now).get());
        let fix = "set this machine's clock right (chrony) and restart the controller; until then \
                   the gate is open";
        return needed(config.mode, WHAT, found, fix);
    }
    let age = now.since(beat);
    if age > STALE {
        let found = format!("was written {:.0} s ago", age.get());
        let fix = "the controller hangs, or is gone, or cannot write its journal, or does not know \
                   its cluster: see `systemctl status wattline` and its log. If it was stopped for \
                   good, run `wattline release --all`";
        return Finding::warn(WHAT, found, fix);
    }
    Finding::ok(WHAT, format!("written {:.0} s ago", age.get()))
}

/// The room that `df -Pk` shows.
pub(super) fn disk(df: &str, folder: &str) -> Finding {
    const WHAT: &str = "disk of the journal";
    let line = df.lines().nth(1).unwrap_or_default();
    let free = line.split_whitespace().nth(3).and_then(|text| text.parse::<u64>().ok());
    let Some(free) = free else {
        return Finding::warn(
            WHAT,
            format!("{folder}: df does not say what is free"),
            "look at it",
        );
    };
    let found = format!("{folder}: {} MiB free", free / 1024);
    let fix = "make room: on a full disk nothing can be decided, the gate opens, and jobs run as SLURM \
               starts them; `wattline journal prune` throws old entries away";
    match free {
        0..FULL_KIB => Finding::wrong(WHAT, found, fix),
        FULL_KIB..LOW_KIB => Finding::warn(WHAT, found, fix),
        _ => Finding::ok(WHAT, found),
    }
}

/// The fields that sacctmgr is asked for.
pub(super) const QOS_FIELDS: &str =
    "format=name,maxtrespu,maxtrespa,maxtres,grptres,maxjobspu,grpjobs";

/// QOS whose limits keep controlled jobs waiting although GPUs are free.
pub(super) fn limits(qos: &str, enforced: &str) -> Finding {
    const WHAT: &str = "limits of QOS";
    const NAMES: [&str; 6] = [
        "MaxTRESPerUser",
        "MaxTRESPerAccount",
        "MaxTRESPerJob",
        "GrpTRES",
        "MaxJobsPerUser",
        "GrpJobs",
    ];
    let enforces = |word: &str| enforced.split(',').any(|one| one.trim() == word);
    if !enforces("limits") && !enforces("qos") && !enforces("safe") {
        return Finding::ok(WHAT, "not enforced (AccountingStorageEnforce)");
    }
    let mut limited = Vec::new();
    for line in qos.lines() {
        let mut fields = line.split('|');
        let name = printable(fields.next().unwrap_or_default());
        let set = NAMES.iter().zip(fields).filter(|(_, value)| !value.is_empty());
        let set: Vec<String> =
            set.map(|(field, value)| format!("{field}={}", printable(value))).collect();
        if !set.is_empty() {
            limited.push(format!("{name} ({})", set.join(" ")));
        }
    }
    if limited.is_empty() {
        return Finding::ok(WHAT, "enforced; no QOS has any");
    }
    let fix = "SLURM refuses to start jobs above them: they wait, their owners read why in `wattline \
               queue`, and they are tried again; nothing needs to be done";
    Finding::warn(WHAT, listed(&limited), fix)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::slurm::doctor::Verdict;
    use crate::slurm::{Mode, read};

    fn config() -> Config {
        Config { mode: Mode::Control, partitions: vec!["gpu".into()], ..Config::default() }
    }

    #[test]
    fn nodes_of_other_partitions_are_named() {
        let node = |name: &str, partitions: &str| {
            format!(r#"{{"name":"{name}","state":"idle","cpus":4,"partitions":[{partitions}]}}"#)
        };
        let text = format!(
            r#"{{"meta":{{}},"errors":[],"nodes":[{},{}]}}"#,
            node("n1", r#""gpu","open""#),
            node("n2", r#""gpu""#)
        );
        let nodes = read::nodes(&text).unwrap();
        let found = shared(nodes.iter(), &config());
        assert_eq!(found.verdict, Verdict::Warn);
        assert!(found.found.contains("open: n1") && !found.found.contains("n2"), "{found:?}");
        assert_eq!(shared(nodes[1..].iter(), &config()).verdict, Verdict::Ok);
    }

    #[test]
    fn a_heartbeat_is_young_old_or_from_the_future() {
        let now = Timestamp::from_seconds(1_794_789_709.0);
        let verdict = |text: Option<&str>| heartbeat(text, now, &config()).verdict;
        assert_eq!(verdict(None), Verdict::Ok);
        assert_eq!(verdict(Some("1794789708\n")), Verdict::Ok);
        assert_eq!(verdict(Some("1794789711\n")), Verdict::Ok, "clocks of two machines");
        assert_eq!(verdict(Some("1794789600\n")), Verdict::Warn);
        assert_eq!(verdict(Some("1794793309\n")), Verdict::Wrong);
        assert_eq!(verdict(Some("soon\n")), Verdict::Wrong);
        let watches = Config { mode: Mode::Observe, ..config() };
        assert_eq!(heartbeat(Some("1794793309\n"), now, &watches).verdict, Verdict::Warn);
    }

    #[test]
    fn a_disk_that_is_nearly_full_is_named() {
        let df = |free: u64| {
            let text = format!(
                "Filesystem 1024-blocks Used Available Capacity Mounted on\n\
                                /dev/sda1 100 50 {free} 50% /var\n"
            );
            disk(&text, "/var/lib/wattline").verdict
        };
        assert_eq!(df(10_000_000), Verdict::Ok);
        assert_eq!(df(500_000), Verdict::Warn);
        assert_eq!(df(50_000), Verdict::Wrong);
        assert_eq!(disk("nonsense", "/x").verdict, Verdict::Warn);
    }

    #[test]
    fn limits_of_qos_are_named_where_they_are_enforced() {
        let qos = "normal||||||\nsmall|gres/gpu=1|||||4\n";
        let found = limits(qos, "associations,limits,qos");
        assert_eq!(found.verdict, Verdict::Warn);
        assert!(found.found.contains("small (MaxTRESPerUser=gres/gpu=1 GrpJobs=4)"), "{found:?}");
        assert_eq!(limits(qos, "none").verdict, Verdict::Ok);
        assert_eq!(limits("normal||||||\n", "limits").verdict, Verdict::Ok);
    }
}
