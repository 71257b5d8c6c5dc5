//! One node of `sinfo --json` or `scontrol show nodes --json`.

use super::gres::{self, GpuCount};
use super::record::Record;
use super::{ReadError, hostlist};
use std::collections::BTreeSet;
use wattline_core::time::Timestamp;

/// What a node mainly is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeBase {
    /// Nobody uses it.
    Idle,
    /// All of it is used.
    Allocated,
    /// Some of it is used.
    Mixed,
    /// Not to be used.
    Down,
    /// In error.
    Error,
    /// Configured, but not there.
    Future,
    /// slurmctld does not know yet.
    Unknown,
    /// A word that is not known here.
    Other(String),
}

/// What else is true of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeFlag {
    /// No new jobs.
    Drain,
    /// A job is being cleaned up.
    Completing,
    /// slurmd does not answer.
    NotResponding,
    /// Expected to fail soon.
    Fail,
    /// To be put to sleep.
    PowerDown,
    /// Going to sleep.
    PoweringDown,
    /// Asleep.
    PoweredDown,
    /// To be put to sleep when its jobs are done.
    PowerDrain,
    /// To be woken up.
    PowerUp,
    /// Waking up.
    PoweringUp,
    /// In a maintenance reservation.
    Maintenance,
    /// In a reservation.
    Reserved,
    /// To be rebooted.
    RebootRequested,
    /// Rebooting.
    RebootIssued,
    /// Set aside for a waiting job.
    Planned,
    /// Registered with something wrong.
    InvalidRegistration,
    /// A word that is not known here.
    Other(String),
}

impl NodeFlag {
    fn from_word(word: &str) -> Self {
        match word {
            "DRAIN" => Self::Drain,
            "COMPLETING" => Self::Completing,
            "NOT_RESPONDING" | "NO_RESPOND" => Self::NotResponding,
            "FAIL" => Self::Fail,
            "POWER_DOWN" => Self::PowerDown,
            "POWERING_DOWN" => Self::PoweringDown,
            "POWERED_DOWN" => Self::PoweredDown,
            "POWER_DRAIN" => Self::PowerDrain,
            "POWER_UP" => Self::PowerUp,
            "POWERING_UP" => Self::PoweringUp,
            "MAINTENANCE" | "MAINT" => Self::Maintenance,
            "RESERVED" => Self::Reserved,
            "REBOOT" | "REBOOT_REQUESTED" => Self::RebootRequested,
            "REBOOT_ISSUED" => Self::RebootIssued,
            "PLANNED" => Self::Planned,
            "INVALID_REG" => Self::InvalidRegistration,
            other => Self::Other(other.chars().take(64).collect()),
        }
    }
}

/// One node as SLURM sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct SlurmNode {
    /// Its name.
    pub name: String,
    /// What it mainly is.
    pub base: NodeBase,
    /// What else is true of it.
    pub flags: BTreeSet<NodeFlag>,
    /// The GPUs it has.
    pub gpus: GpuCount,
    /// How many of them jobs hold.
    pub gpus_used: u32,
    /// Which ones, where SLURM says so.
    pub gpus_used_indices: Vec<u32>,
    /// CPUs it has.
    pub cpus: u32,
    /// CPUs that jobs hold.
    pub alloc_cpus: u32,
    /// Memory it has for jobs, in MiB; 0 if it does not say.
    pub real_memory: u64,
    /// Memory that jobs hold, in MiB.
    pub alloc_memory: u64,
    /// The partitions it is in.
    pub partitions: Vec<String>,
    /// What it is said to have.
    pub features: Vec<String>,
    /// Free text that administrators and tools may set.
    pub extra: Option<String>,
    /// What administrators say about it.
    pub comment: Option<String>,
    /// Why it is down or drained.
    pub reason: Option<String>,
    /// When a job last used it.
    pub last_busy: Option<Timestamp>,
    /// When it booted.
    pub boot: Option<Timestamp>,
    /// When its slurmd started.
    pub slurmd_start: Option<Timestamp>,
}

impl SlurmNode {
    /// Whether a flag is set.
    #[must_use]
    pub fn is(&self, flag: &NodeFlag) -> bool {
        self.flags.contains(flag)
    }

    /// Asleep, for sure: it was put to sleep and nobody wakes it.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        self.is(&NodeFlag::PoweredDown)
            && !self.is(&NodeFlag::PoweringUp)
            && !self.is(&NodeFlag::PowerUp)
    }

    /// Awake, answering, and open for new jobs. One that was told to wake while it came up keeps the
    /// word `POWER_UP` for good, and runs jobs all the same.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        use NodeFlag::*;
        matches!(self.base, NodeBase::Idle | NodeBase::Mixed | NodeBase::Allocated)
            && ![
                Drain,
                NotResponding,
                Fail,
                PowerDown,
                PoweringDown,
                PoweredDown,
                PowerDrain,
                PoweringUp,
                Maintenance,
                RebootRequested,
                RebootIssued,
                InvalidRegistration,
            ]
            .iter()
            .any(|flag| self.is(flag))
    }
}

/// The fields of a node that are looked at.
pub(super) struct Wanted;

impl super::record::Wanted for Wanted {
    const FIELDS: &'static [&'static str] = &[
        "name",
        "state",
        "state_flags",
        "gres",
        "gres_used",
        "cpus",
        "alloc_cpus",
        "effective_cpus",
        "real_memory",
        "specialized_memory",
        "alloc_memory",
        "partitions",
        "features",
        "extra",
        "comment",
        "reason",
        "last_busy",
        "boot_time",
        "slurmd_start_time",
    ];
}

/// Reads one entry; `index` names it where its name cannot be read.
pub(super) fn read(index: usize, record: &Record<Wanted>) -> Result<SlurmNode, ReadError> {
    let nameless = format!("the node at place {index}");
    let name = record.of(&nameless).needed_text("name")?;
    // It goes into the argument vectors of commands, so it must be a name and nothing else.
    if !matches!(hostlist::expand(name).as_deref(), Ok([only]) if only == name) {
        let why = format!("is '{}', which is no name of a node", super::shown(name));
        return Err(record.of(&nameless).error("name", why));
    }
    let owner = format!("node {name}");
    let fields = record.of(&owner);
    let mut words = fields.texts("state")?;
    if words.is_empty() {
        return Err(fields.error("state", "is missing"));
    }
    words.extend(fields.texts("state_flags")?);
    let (base, flags) = state(&words);
    let gpus = gres::used(fields.text("gres")?).map_err(|why| fields.error("gres", why))?.0;
    let (used, gpus_used_indices) =
        gres::used(fields.text("gres_used")?).map_err(|why| fields.error("gres_used", why))?;
    Ok(SlurmNode {
        base,
        flags,
        gpus,
        gpus_used: used.count,
        gpus_used_indices,
        // Without those that are kept for the system.
        cpus: match fields.count32("effective_cpus")? {
            Some(cpus) if cpus > 0 => cpus,
            _ => fields.needed_count32("cpus")?,
        },
        alloc_cpus: fields.count32("alloc_cpus")?.unwrap_or(0),
        real_memory: fields
            .count("real_memory")?
            .unwrap_or(0)
            .saturating_sub(fields.count("specialized_memory")?.unwrap_or(0)),
        alloc_memory: fields.count("alloc_memory")?.unwrap_or(0),
        partitions: fields.texts("partitions")?,
        features: fields.texts("features")?,
        extra: fields.owned("extra")?,
        comment: fields.owned("comment")?,
        reason: fields.owned("reason")?,
        last_busy: fields.time("last_busy")?,
        boot: fields.time("boot_time")?,
        slurmd_start: fields.time("slurmd_start_time")?,
        name: name.to_owned(),
    })
}

fn state(words: &[String]) -> (NodeBase, BTreeSet<NodeFlag>) {
    let mut base = None;
    let mut flags = BTreeSet::new();
    let mut unknown = Vec::new();
    for word in words {
        let word = word.trim().to_ascii_uppercase();
        let known = match word.as_str() {
            "IDLE" => NodeBase::Idle,
            "ALLOCATED" => NodeBase::Allocated,
            "MIXED" => NodeBase::Mixed,
            "DOWN" => NodeBase::Down,
            "ERROR" => NodeBase::Error,
            "FUTURE" => NodeBase::Future,
            "UNKNOWN" => NodeBase::Unknown,
            flag => {
                let flag = NodeFlag::from_word(flag);
                if let NodeFlag::Other(word) = &flag {
                    unknown.push(word.clone());
                }
                flags.insert(flag);
                continue;
            }
        };
        // Two base words contradict each other; the later one is no better than the first.
        base = Some(match base {
            None => known,
            Some(_) => NodeBase::Unknown,
        });
    }
    (base.unwrap_or_else(|| NodeBase::Other(unknown.join("+").chars().take(200).collect())), flags)
}
