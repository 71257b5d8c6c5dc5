//! A site's rules as `scontrol -o show` prints them: reservations, partitions, what is counted.
//!
//! `scontrol` of SLURM 22.05 has no JSON for these, and all later ones still print this text. Times are
//! seconds since 1970, which the environment of [`compact`](super::compact) makes SLURM print.

use super::{ReadError, hostlist, shown};
use std::collections::BTreeMap;
use wattline_core::time::Timestamp;
use wattline_core::units::Seconds;

/// What SLURM prints when there is no reservation. Silence is not an answer.
const NONE: &str = "No reservations in the system";

/// Nodes that are set aside for some time.
#[derive(Clone, Debug, PartialEq)]
pub struct Reservation {
    /// Its name.
    pub name: String,
    /// From when on.
    pub start: Timestamp,
    /// Until when.
    pub end: Timestamp,
    /// Which nodes; empty if it is about licences, for example.
    pub nodes: Vec<String>,
    /// How many CPUs of them, if it says so: it may be fewer than they have.
    pub cpus: Option<u32>,
    /// Its flags, as SLURM writes them.
    pub flags: Vec<String>,
}

impl Reservation {
    /// Whether it is for maintenance.
    #[must_use]
    pub fn is_maintenance(&self) -> bool {
        self.flags.iter().any(|flag| flag == "MAINT")
    }
}

/// What matters about a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Partition {
    /// The longest time limit; none without one.
    pub max_time: Option<Seconds>,
    /// Jobs may share CPUs there.
    pub shares_cpus: bool,
}

/// One record as `Key=Value` words.
fn words(line: &str) -> BTreeMap<&str, &str> {
    let mut words = BTreeMap::new();
    for word in line.split_whitespace() {
        if let Some((key, value)) = word.split_once('=') {
            // A free text comes last, if at all: it cannot replace what came before it.
            words.entry(key).or_insert(match value {
                "(null)" | "N/A" | "n/a" => "",
                value => value,
            });
        }
    }
    words
}

struct Record<'a> {
    owner: String,
    words: BTreeMap<&'a str, &'a str>,
}

impl<'a> Record<'a> {
    fn error(&self, field: &'static str, why: impl Into<String>) -> ReadError {
        ReadError::Field { owner: self.owner.clone(), field, why: why.into() }
    }

    fn needed(&self, field: &'static str) -> Result<&'a str, ReadError> {
        let found = self.words.get(field).copied().filter(|value| !value.is_empty());
        found.ok_or_else(|| self.error(field, "is missing"))
    }

    fn text(&self, field: &'static str) -> &'a str {
        self.words.get(field).copied().unwrap_or_default()
    }

    fn time(&self, field: &'static str) -> Result<Timestamp, ReadError> {
        let text = self.needed(field)?;
        let seconds: Option<i64> = text.parse().ok();
        let seconds = seconds.ok_or_else(|| {
            self.error(field, format!("is '{}', expected seconds since 1970", shown(text)))
        })?;
        Ok(Timestamp::from_micros(seconds.saturating_mul(1_000_000)))
    }
}

fn records<'a>(text: &'a str, key: &'static str) -> Result<Vec<Record<'a>>, ReadError> {
    let mut records = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words = words(line);
        let record = Record { owner: format!("'{}'", shown(line)), words };
        // Each line is a record: anything else is not what was asked for.
        let prefix = line.split_once('=').map(|(first, _)| first);
        if prefix != Some(key) {
            return Err(record.error(key, "does not begin the line"));
        }
        let owner = format!("{key} {}", shown(record.needed(key)?));
        records.push(Record { owner, ..record });
    }
    Ok(records)
}

/// All reservations, from `scontrol -o show reservation`.
///
/// # Errors
/// Whatever is not understood: then nothing is known about reservations.
pub fn reservations(text: &str) -> Result<Vec<Reservation>, ReadError> {
    if text.trim() == NONE {
        return Ok(Vec::new());
    }
    let records = records(text, "ReservationName")?;
    if records.is_empty() {
        return Err(ReadError::Missing {
            key: "ReservationName",
            hint: ": scontrol says so where there is no reservation",
        });
    }
    let read = |record: &Record<'_>| {
        let nodes = hostlist::expand(record.text("Nodes"));
        let nodes = nodes.map_err(|why| record.error("Nodes", why.to_string()))?;
        let cpus = record.text("TRES").split(',').find_map(|one| one.strip_prefix("cpu="));
        Ok(Reservation {
            name: record.needed("ReservationName")?.to_owned(),
            start: record.time("StartTime")?,
            end: record.time("EndTime")?,
            nodes,
            cpus: cpus.and_then(|cpus| cpus.parse().ok()),
            flags: record.text("Flags").split(',').map(str::to_owned).collect(),
        })
    };
    records.iter().map(read).collect()
}

/// All partitions by name, from `scontrol -o show partition`.
///
/// # Errors
/// Whatever is not understood.
pub fn partitions(text: &str) -> Result<BTreeMap<String, Partition>, ReadError> {
    let records = records(text, "PartitionName")?;
    if records.is_empty() {
        return Err(ReadError::Missing { key: "PartitionName", hint: "" });
    }
    let read = |record: &Record<'_>| {
        let max_time = match record.needed("MaxTime")? {
            "UNLIMITED" | "INFINITE" | "NONE" => None,
            text => Some(duration(text).ok_or_else(|| {
                let why = format!("is '{}', expected days-hours:minutes:seconds", shown(text));
                record.error("MaxTime", why)
            })?),
        };
        let shares = record.text("OverSubscribe");
        let shares_cpus = shares.starts_with("FORCE") || shares.starts_with("YES");
        let partition = Partition { max_time, shares_cpus };
        Ok((record.needed("PartitionName")?.to_owned(), partition))
    };
    records.iter().map(read).collect()
}

/// Whether SLURM counts memory as a resource, from `scontrol show config`; none if it does not say.
#[must_use]
pub fn counts_memory(text: &str) -> Option<bool> {
    let line = text.lines().find(|line| line.starts_with("SelectTypeParameters"))?;
    Some(line.to_ascii_uppercase().contains("MEMORY"))
}

/// `days-hours:minutes:seconds`, where days and hours may be missing.
fn duration(text: &str) -> Option<Seconds> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let parts: Vec<&str> = clock.split(':').collect();
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    let mut seconds = f64::from(days.parse::<u32>().ok()?) * 86_400.0;
    for (part, unit) in parts.iter().rev().zip([1.0, 60.0, 3600.0]) {
        seconds += f64::from(part.parse::<u32>().ok()?) * unit;
    }
    Some(Seconds::new(seconds))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// As SLURM 22.05.8 prints it.
    const TWO: &str = "ReservationName=service StartTime=1795043526 EndTime=1795044126 \
        Duration=00:10:00 Nodes=n[1-2] NodeCnt=2 CoreCnt=128 Features=(null) PartitionName=(null) \
        Flags=MAINT,SPEC_NODES TRES=cpu=128 Users=root Groups=(null) Accounts=(null) \
        Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)\n\
        ReservationName=seats StartTime=1795043526 EndTime=1795044126 Duration=00:10:00 \
        Nodes=(null) NodeCnt=0 CoreCnt=0 Features=(null) PartitionName=gpu Flags=ANY_NODES \
        TRES=(null) Users=bob Groups=(null) Accounts=(null) Licenses=matlab:1 State=ACTIVE \
        BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)\n";

    #[test]
    fn reservations_are_read_as_scontrol_prints_them() {
        let both = reservations(TWO).unwrap();
        assert_eq!(both.len(), 2);
        assert_eq!(
            (both[0].name.as_str(), &both[0].nodes[..]),
            ("service", &["n1", "n2"].map(String::from)[..])
        );
        assert!(both[0].is_maintenance() && !both[1].is_maintenance());
        assert_eq!((both[0].cpus, both[1].cpus), (Some(128), None));
        assert_eq!(both[0].end - both[0].start, Seconds::new(600.0));
        assert!(both[1].nodes.is_empty(), "a reservation of licences");
        assert_eq!(reservations("No reservations in the system\n").unwrap(), []);
    }

    #[test]
    fn what_is_no_answer_is_never_no_reservations() {
        let broken = [
            "",
            "\n",
            "slurm_load_reservations error: Unable to contact slurm controller",
            "ReservationName=x",
            "ReservationName=x StartTime=2026-11-19T06:00:00 EndTime=1795044126 Nodes=n1",
            "ReservationName= StartTime=1795043526 EndTime=1795044126 Nodes=n1",
            "ReservationName=x StartTime=1795043526 EndTime=1795044126 Nodes=n[1-",
            "No reservations in the system\nReservationName=x",
        ];
        for text in broken {
            assert!(reservations(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn partitions_say_how_long_jobs_may_run_there() {
        let text = "PartitionName=gpu AllowGroups=ALL Default=YES MaxTime=1-00:00:00 \
            OverSubscribe=NO State=UP\nPartitionName=open MaxTime=UNLIMITED OverSubscribe=FORCE:4\n";
        let partitions = partitions(text).unwrap();
        assert_eq!(partitions["gpu"].max_time, Some(Seconds::new(86_400.0)));
        assert_eq!(partitions["open"], Partition { max_time: None, shares_cpus: true });
        for broken in ["", "PartitionName=gpu", "PartitionName=gpu MaxTime=soon"] {
            assert!(super::partitions(broken).is_err(), "{broken}");
        }
        assert_eq!(
            counts_memory("SelectType = x\nSelectTypeParameters    = CR_CPU_MEMORY\n"),
            Some(true)
        );
        assert_eq!(counts_memory("SelectTypeParameters    = CR_CORE\n"), Some(false));
        assert_eq!(counts_memory(""), None);
    }
}
