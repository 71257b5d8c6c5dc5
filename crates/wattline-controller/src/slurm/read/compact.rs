//! One line of squeue's text for each job: what may change while a job waits or runs.
//!
//! `squeue --json` prints some 3 kB for each job and takes seconds for ten thousand; a line here has
//! 200 bytes. So the JSON is read once for each job, and a line says what became of it since:
//! [`Entry::apply`] gives the record that the JSON would give now. Nothing that a user may word
//! freely is asked for (names, comments, paths), so that nobody can forge a line; lines are cut at a
//! control character that no field may have, and a line with more or fewer fields is an error.
//!
//! Not in a line, for squeue cannot print it as text: excluded nodes, tasks on each node, memory as
//! a number (its text is there, so that one that differs from the record is noticed), which GPUs of a node a job holds (see
//! [`gpus`]). These are as old as the last full answer.

use super::gres::{self, NodeGpus};
use super::job::{Exit, Memory, SlurmJob};
use super::state::State;
use super::{ReadError, hostlist, shown};
use std::collections::BTreeSet;
use wattline_core::time::Timestamp;
use wattline_core::units::Seconds;

/// ASCII's unit separator: in no name of a node, partition, feature or resource.
const SEPARATOR: char = '\u{1f}';

/// The fields of a line, as `squeue --Format` calls them.
const FIELDS: [&str; 30] = [
    "jobid",
    "arrayjobid",
    "arraytaskid",
    "submittime",
    "restartcnt",
    "userid",
    "partition",
    "state",
    "reason",
    "prioritylong",
    "nice",
    "nodelist",
    "reqnodes",
    "oversubscribe",
    "feature",
    "tres-per-node",
    "tres-per-job",
    "tres-per-task",
    "tres-alloc",
    "numcpus",
    "numtasks",
    "numnodes",
    "minmemory",
    "timelimit",
    "starttime",
    "endtime",
    "eligibletime",
    "exit_code",
    "dependency",
    "requeue",
];

/// Numbers from here on stand for "not set" and "without limit".
const UNSET: u64 = 0xffff_fffd;

/// The arguments of squeue for one line for each job, and for each task of an array.
#[must_use]
pub fn arguments() -> Vec<String> {
    let format: Vec<String> = FIELDS.iter().map(|field| format!("{field}:0{SEPARATOR}")).collect();
    let fixed = ["--noheader", "--all", "--array", "--states=all"];
    let format = format!("--Format={}", format.join(","));
    fixed.into_iter().map(str::to_owned).chain([format]).collect()
}

/// What squeue's environment must have: times in seconds since 1970, whatever the time zone.
pub const ENVIRONMENT: [(&str, &str); 1] = [("SLURM_TIME_FORMAT", "%s")];

/// The lines of one record: several where it is the rest of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// SLURM's number.
    pub id: u32,
    /// Place and text of each line.
    lines: Vec<(usize, &'a str)>,
}

/// What follows from a line for a job whose record was read before.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The record as it is now.
    pub job: SlurmJob,
    /// It holds GPUs, and the line does not say which.
    pub lacks_gpus: bool,
    /// Something has changed that lines do not tell enough about.
    pub is_vague: bool,
}

/// The lines that squeue printed, by job.
///
/// # Errors
/// When a line has other fields than were asked for, or no number: then nothing is known.
pub fn entries(text: &str) -> Result<Vec<Entry<'_>>, ReadError> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    let whole = text.strip_suffix('\n').unwrap_or(text);
    let lines = whole.split('\n').enumerate().filter(|_| !text.is_empty());
    for (at, line) in lines {
        let found = line.matches(SEPARATOR).count();
        if found != FIELDS.len() || !line.ends_with(SEPARATOR) {
            let why = format!("has {found} fields, expected {}: '{}'", FIELDS.len(), shown(line));
            return Err(ReadError::Field { owner: place(at), field: "line", why });
        }
        let id = line.split(SEPARATOR).next().unwrap_or_default();
        let id = id.parse().ok().filter(|id| *id != 0).ok_or_else(|| {
            let why = format!("is '{}', expected a number", shown(id));
            ReadError::Field { owner: place(at), field: "jobid", why }
        })?;
        entries.push(Entry { id, lines: vec![(at, line)] });
    }
    entries.sort_by_key(|entry| entry.id);
    entries.dedup_by(|next, first| {
        let same = next.id == first.id;
        if same {
            first.lines.append(&mut next.lines);
        }
        same
    });
    Ok(entries)
}

fn place(at: usize) -> String {
    format!("line {} of squeue", at + 1)
}

impl Entry<'_> {
    /// Whether it says the same as the text of an entry before.
    #[must_use]
    pub fn is(&self, before: &str) -> bool {
        let mut rest = before;
        let same = self.lines.iter().all(|(_, line)| match rest.strip_prefix(line) {
            Some(after) => {
                rest = after;
                true
            }
            None => false,
        });
        same && rest.is_empty()
    }

    /// All of it, to compare with later.
    #[must_use]
    pub fn text(&self) -> Box<str> {
        self.lines.iter().map(|(_, line)| *line).collect()
    }

    /// The array that it belongs to, by number.
    #[must_use]
    pub fn array(&self) -> Option<u32> {
        self.fields().array_task().and(self.fields().get("arrayjobid").parse().ok())
    }

    fn fields(&self) -> Fields<'_> {
        let (at, line) = self.lines.first().copied().unwrap_or_default();
        let mut values = [""; FIELDS.len()];
        for (value, text) in values.iter_mut().zip(line.split(SEPARATOR)) {
            *value = text;
        }
        Fields { at, id: self.id, values }
    }

    /// The tasks of an array that have no record of their own, where several lines say so.
    fn tasks(&self) -> Option<String> {
        let task = |(at, line): &(usize, &str)| {
            let lines = vec![(*at, *line)];
            Entry { id: self.id, lines }.fields().array_task()
        };
        self.lines.iter().map(task).collect::<Option<BTreeSet<u32>>>().map(|tasks| ranges(&tasks))
    }

    /// The record that SLURM's JSON would give now, from the one that it gave before. None: the
    /// number is another job's by now.
    ///
    /// # Errors
    /// When a field cannot be understood.
    pub fn apply(&self, base: &SlurmJob) -> Result<Option<Applied>, ReadError> {
        let fields = self.fields();
        let key = fields.key(self.id)?;
        let same = key.restarts == base.key.restarts && key.submit == base.key.submit;
        let requeued = key.restarts > base.key.restarts && key.submit >= base.key.submit;
        if !(same || requeued) || fields.count("userid")? != Some(base.user_id) {
            return Ok(None);
        }
        let (mut job, mut is_vague) = (base.clone(), false);
        job.key = key;
        if base.is_whole_array() {
            // One line may be the last task, which has become a job of its own.
            is_vague |= self.lines.len() == 1;
            job.array_tasks = self.tasks().or(job.array_tasks);
        } else {
            is_vague |= base.array_task_id != base.array_job_id.and(fields.array_task());
        }
        is_vague |= fields.shows_other_memory(&job);
        let lacks_gpus = fields.update(&mut job, base)?;
        Ok(Some(Applied { job, lacks_gpus, is_vague }))
    }

    /// The record of a task that has just got one, from its array's. None: it is not of that array.
    ///
    /// # Errors
    /// When a field cannot be understood.
    pub fn split_from(&self, array: &SlurmJob) -> Result<Option<Applied>, ReadError> {
        let fields = self.fields();
        let task = fields.array_task().filter(|_| self.lines.len() == 1);
        let of_array = array.is_whole_array() && self.array() == array.array_job_id;
        let of_array = of_array && fields.count("userid")? == Some(array.user_id);
        let (Some(task), true) = (task, of_array) else { return Ok(None) };
        let mut job = array.clone();
        job.key = fields.key(self.id)?;
        (job.array_task_id, job.array_tasks) = (Some(task), None);
        let is_vague = fields.shows_other_memory(&job);
        let lacks_gpus = fields.update(&mut job, array)?;
        Ok(Some(Applied { job, lacks_gpus, is_vague }))
    }
}

/// As SLURM writes lists of tasks: `0,4-6`.
pub(in crate::slurm) fn ranges(tasks: &BTreeSet<u32>) -> String {
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for task in tasks {
        match spans.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*task) => *last = *task,
            _ => spans.push((*task, *task)),
        }
    }
    let span = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    spans.iter().map(span).collect::<Vec<_>>().join(",")
}

/// The fields of a line.
struct Fields<'a> {
    at: usize,
    id: u32,
    values: [&'a str; FIELDS.len()],
}

impl<'a> Fields<'a> {
    /// Empty where SLURM writes that there is nothing.
    fn get(&self, field: &'static str) -> &'a str {
        let at = FIELDS.iter().position(|name| *name == field);
        match at.map_or("", |at| self.values[at].trim()) {
            "(null)" | "N/A" => "",
            text => text,
        }
    }

    fn error(&self, field: &'static str, why: impl Into<String>) -> ReadError {
        let owner = format!("{} (job {})", place(self.at), self.id);
        ReadError::Field { owner, field, why: why.into() }
    }

    fn odd(&self, field: &'static str, expected: &str) -> ReadError {
        let is = shown(self.get(field));
        self.error(field, format!("is '{is}', expected {expected}"))
    }

    fn key(&self, id: u32) -> Result<super::job::JobKey, ReadError> {
        let submit = self.time("submittime")?;
        let submit = submit.ok_or_else(|| self.odd("submittime", "seconds since 1970"))?;
        let restarts = self.count("restartcnt")?;
        let restarts = restarts.ok_or_else(|| self.odd("restartcnt", "a number"))?;
        Ok(super::job::JobKey { id, submit, restarts })
    }

    fn array_task(&self) -> Option<u32> {
        self.get("arraytaskid").parse().ok()
    }

    /// A number; large ones may end in K or M, which are exact.
    fn count(&self, field: &'static str) -> Result<Option<u32>, ReadError> {
        let text = self.get(field);
        if text.is_empty() {
            return Ok(None);
        }
        let (digits, unit) = match text.strip_suffix('K') {
            Some(digits) => (digits, 1024.0),
            None => text.strip_suffix('M').map_or((text, 1.0), |digits| (digits, 1024.0 * 1024.0)),
        };
        let number = digits.parse::<f64>().map(|number| number * unit);
        let number = number.ok().filter(|number| number.fract() == 0.0 && *number >= 0.0);
        let number = number.ok_or_else(|| self.odd(field, "a number"))?;
        // Beyond 32 bits nothing is meant.
        Ok(if number >= UNSET as f64 { None } else { Some(number as u32) })
    }

    fn time(&self, field: &'static str) -> Result<Option<Timestamp>, ReadError> {
        match self.get(field) {
            "" | "0" | "NONE" | "Unknown" => Ok(None),
            text => {
                let seconds: i64 =
                    text.parse().map_err(|_| self.odd(field, "seconds since 1970"))?;
                Ok(Some(Timestamp::from_micros(seconds.saturating_mul(1_000_000))))
            }
        }
    }

    /// `days-hours:minutes:seconds`, where what is not needed is left out.
    fn time_limit(&self) -> Result<Option<Seconds>, ReadError> {
        const FIELD: &str = "timelimit";
        let text = self.get(FIELD);
        if matches!(text, "" | "UNLIMITED" | "NOT_SET" | "INVALID" | "Partition_Limit") {
            return Ok(None);
        }
        let odd = || self.odd(FIELD, "days-hours:minutes:seconds");
        let (days, clock) = text.split_once('-').unwrap_or(("0", text));
        let days: u32 = days.parse().map_err(|_| odd())?;
        let mut seconds = f64::from(days) * 86_400.0;
        let parts: Vec<&str> = clock.split(':').collect();
        if !(2..=3).contains(&parts.len()) {
            return Err(odd());
        }
        for (part, unit) in parts.iter().rev().zip([1.0, 60.0, 3600.0]) {
            seconds += f64::from(part.parse::<u32>().map_err(|_| odd())?) * unit;
        }
        Ok(Some(Seconds::new(seconds)))
    }

    /// Whether its memory is another amount than the record's. SLURM rounds it: `100M`, `878.91G`.
    /// Words that are not understood say nothing.
    fn shows_other_memory(&self, job: &SlurmJob) -> bool {
        let text = self.get("minmemory");
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let mib = match text[digits.len()..].bytes().next() {
            None | Some(b'M') => 1.0,
            Some(b'G') => 1024.0,
            Some(b'T') => 1024.0 * 1024.0,
            Some(b'P') => 1024.0 * 1024.0 * 1024.0,
            Some(_) => return false,
        };
        let Ok(shown) = digits.parse::<f64>() else { return false };
        let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let Some(Memory::PerNode(amount) | Memory::PerCpu(amount)) = job.memory else {
            return shown != 0.0;
        };
        let rounded = if decimals == 0 { 0.0 } else { 0.51 * 0.1_f64.powi(decimals as i32) };
        (amount as f64 / mib - shown).abs() > rounded
    }

    fn hosts(&self, field: &'static str) -> Result<Vec<String>, ReadError> {
        hostlist::expand(self.get(field)).map_err(|error| self.error(field, error.to_string()))
    }

    fn asked(&self, field: &'static str) -> Result<Option<gres::GpuCount>, ReadError> {
        gres::asked(self.get(field)).map_err(|why| self.error(field, why))
    }

    /// All that the line says goes into the record. Says whether its GPUs must be asked for.
    fn update(&self, job: &mut SlurmJob, base: &SlurmJob) -> Result<bool, ReadError> {
        let text = |field| Some(self.get(field)).filter(|text| !text.is_empty()).map(str::to_owned);
        job.partition = text("partition").ok_or_else(|| self.odd("partition", "a name"))?;
        job.state =
            State::from_words([self.get("state")]).ok_or_else(|| self.odd("state", "a state"))?;
        job.state_reason = text("reason").unwrap_or_default();
        let priority = self.get("prioritylong").parse::<u64>();
        let priority = priority.map_err(|_| self.odd("prioritylong", "a number"))?;
        (job.priority, job.held) = (Some(priority), priority == 0);
        job.nice = self.get("nice").parse().map_err(|_| self.odd("nice", "a number"))?;
        job.nodes = self.hosts("nodelist")?;
        job.required_nodes = self.hosts("reqnodes")?;
        job.exclusive = matches!(self.get("oversubscribe"), "NO" | "USER" | "MCS" | "TOPO");
        job.features = text("feature");
        job.gpus_per_node = self.asked("tres-per-node")?;
        job.gpus_per_job = self.asked("tres-per-job")?;
        job.gpus_per_task = self.asked("tres-per-task")?;
        job.cpus = self.count("numcpus")?;
        job.tasks = self.count("numtasks")?;
        job.node_count = self.count("numnodes")?;
        job.time_limit = self.time_limit()?;
        job.start = self.time("starttime")?;
        job.end = self.time("endtime")?;
        job.eligible = self.time("eligibletime")?;
        let status = self.count("exit_code")?.unwrap_or(0);
        job.exit = Exit { code: (status >> 8) & 0xff, signal: status & 0x7f };
        job.dependency = text("dependency");
        job.requeue = self.get("requeue") == "1";
        self.update_gpus(job, base)
    }

    fn update_gpus(&self, job: &mut SlurmJob, base: &SlurmJob) -> Result<bool, ReadError> {
        (job.gpus, job.gpus_held) = (Vec::new(), None);
        if !job.state.holds_gpus() {
            return Ok(false);
        }
        let same_run = base.state.holds_gpus() && base.key == job.key && base.start == job.start;
        if same_run && job.nodes.iter().all(|node| base.nodes.contains(node)) {
            // Nodes leave one by one when it is over.
            let here = |gpus: &&NodeGpus| job.nodes.contains(&gpus.node);
            job.gpus = base.gpus.iter().filter(here).cloned().collect();
            job.gpus_held = match base.gpus.is_empty() {
                true => base.gpus_held,
                false => Some(sum(&job.gpus)),
            };
            return Ok(false);
        }
        let tracked = gres::tracked(self.get("tres-alloc"));
        let tracked = tracked.map_err(|why| self.error("tres-alloc", why))?;
        job.gpus_held = tracked.map(|gpus| gpus.count);
        Ok(true)
    }
}

/// How many GPUs these are.
#[must_use]
pub fn sum(gpus: &[NodeGpus]) -> u32 {
    gpus.iter().map(|gpus| gpus.count).fold(0, u32::saturating_add)
}

/// Which GPUs a job holds, from what `scontrol --details show job` prints about it.
///
/// There are names and comments in it, and whoever words these may write lines of his own: so what
/// is found must be one record with one entry for each of the job's nodes.
///
/// # Errors
/// When it is not.
pub fn gpus(text: &str, id: u32, nodes: &[String]) -> Result<Vec<NodeGpus>, ReadError> {
    const FIELD: &str = "GRES";
    let error = |why: String| ReadError::Field { owner: format!("job {id}"), field: FIELD, why };
    let (mut records, mut here) = (0, false);
    let mut found: Vec<(String, NodeGpus)> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("JobId=") {
            here = rest.split_whitespace().next() == Some(&id.to_string());
            records += u32::from(here);
        }
        let entry = line.trim_start().strip_prefix("Nodes=").filter(|_| here);
        let Some((hosts, rest)) = entry.and_then(|entry| entry.split_once(" CPU_IDs=")) else {
            continue;
        };
        let Some((_, list)) = rest.split_once(" GRES=") else { continue };
        let (used, indices) = gres::used(list).map_err(&error)?;
        if !indices.is_empty() && indices.len() != used.count as usize {
            return Err(error(format!("names {} GPUs and counts {}", indices.len(), used.count)));
        }
        for node in hostlist::expand(hosts).map_err(|why| error(why.to_string()))? {
            let (count, gpu_type) = (used.count, used.gpu_type.clone());
            let gpus = NodeGpus { node: node.clone(), count, gpu_type, indices: indices.clone() };
            found.push((node, gpus));
        }
    }
    let mut gpus = Vec::with_capacity(nodes.len());
    for node in nodes {
        let mut of_node = found.iter().filter(|(name, _)| name == node);
        match (of_node.next(), of_node.next()) {
            (Some((_, one)), None) => gpus.extend((one.count > 0).then(|| one.clone())),
            _ => return Err(error(format!("does not say once what it has on {}", shown(node)))),
        }
    }
    if records != 1 || found.len() != nodes.len() {
        let why = format!("tells of {} nodes in {records} records", found.len());
        return Err(error(format!("{why}, expected {} in one", nodes.len())));
    }
    Ok(gpus)
}
