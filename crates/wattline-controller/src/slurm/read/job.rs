//! One job of `squeue --json`.

use super::gres::{self, GpuCount, NodeGpus};
use super::record::{Fields, Number, Record, number};
use super::state::State;
use super::{ReadError, hostlist};
use serde_json::Value;
use wattline_core::time::Timestamp;
use wattline_core::units::Seconds;

/// What tells one run of one job from all others. Ids alone do not: slurmctld may give one out
/// again after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    /// SLURM's number.
    pub id: u32,
    /// When it was submitted.
    pub submit: Timestamp,
    /// How often it was requeued since.
    pub restarts: u32,
}

/// How a job ended, as far as it did; zeros otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// What it returned.
    pub code: u32,
    /// The signal that ended it, or 0.
    pub signal: u32,
}

/// Memory that a job asks for, in MiB; 0 per node stands for all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// On each node.
    PerNode(u64),
    /// For each CPU.
    PerCpu(u64),
}

/// One job as SLURM sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct SlurmJob {
    /// Which job.
    pub key: JobKey,
    /// What its user calls it.
    pub name: String,
    /// Whose it is.
    pub user_id: u32,
    /// The user's name, where SLURM could find it.
    pub user_name: Option<String>,
    /// The partition, or several with commas.
    pub partition: String,
    /// What squeue shows.
    pub state: State,
    /// Why it is in that state.
    pub state_reason: String,
    /// SLURM's priority; 0 means held.
    pub priority: Option<u64>,
    /// Whether it waits for somebody to release it.
    pub held: bool,
    /// What the user took off the priority.
    pub nice: i64,
    /// The nodes it has, or had last.
    pub nodes: Vec<String>,
    /// The nodes it must run on.
    pub required_nodes: Vec<String>,
    /// The nodes it must not run on.
    pub excluded_nodes: Vec<String>,
    /// Whether it wants its nodes for itself.
    pub exclusive: bool,
    /// Features that its nodes must have.
    pub features: Option<String>,
    /// GPUs asked on each node.
    pub gpus_per_node: Option<GpuCount>,
    /// GPUs asked in all.
    pub gpus_per_job: Option<GpuCount>,
    /// GPUs asked for each task.
    pub gpus_per_task: Option<GpuCount>,
    /// GPUs it holds, node by node; empty where SLURM does not say.
    pub gpus: Vec<NodeGpus>,
    /// GPUs it holds in all, where SLURM says so.
    pub gpus_held: Option<u32>,
    /// CPUs.
    pub cpus: Option<u32>,
    /// Tasks.
    pub tasks: Option<u32>,
    /// Tasks on each node, if it says so.
    pub tasks_per_node: Option<u32>,
    /// CPUs for each GPU, if it says so.
    pub cpus_per_gpu: Option<u32>,
    /// Memory for each GPU in MiB, if it says so.
    pub memory_per_gpu: Option<u32>,
    /// Nodes, at least.
    pub node_count: Option<u32>,
    /// Memory.
    pub memory: Option<Memory>,
    /// The longest it may run; none without a limit.
    pub time_limit: Option<Seconds>,
    /// When it started, or when SLURM thinks that it will.
    pub start: Option<Timestamp>,
    /// When it ended, or must end.
    pub end: Option<Timestamp>,
    /// From when on it may start.
    pub eligible: Option<Timestamp>,
    /// How it ended.
    pub exit: Exit,
    /// What the user says about it; anyone's text, to be shown escaped.
    pub comment: Option<String>,
    /// What administrators say about it.
    pub admin_comment: Option<String>,
    /// The script.
    pub command: Option<String>,
    /// Where it runs.
    pub working_directory: Option<String>,
    /// Whether it is a batch job.
    pub batch: bool,
    /// The array it belongs to.
    pub array_job_id: Option<u32>,
    /// Which task of the array.
    pub array_task_id: Option<u32>,
    /// The tasks of an array that have no record of their own yet, as SLURM writes them.
    pub array_tasks: Option<String>,
    /// How many tasks of the array may run at a time, if its user says so.
    pub array_at_once: Option<u32>,
    /// The heterogeneous job it belongs to.
    pub het_job_id: Option<u32>,
    /// Which part of that.
    pub het_job_offset: Option<u32>,
    /// The account that pays for it.
    pub account: Option<String>,
    /// Its quality of service.
    pub qos: Option<String>,
    /// What it waits for.
    pub dependency: Option<String>,
    /// The reservations it may run in, with commas, if it names any.
    pub reservation: Option<String>,
    /// Whether it may be requeued.
    pub requeue: bool,
}

impl SlurmJob {
    /// How commands name it. A task of an array is named as such: one of them has the array's own
    /// number, and that number alone means all of them.
    #[must_use]
    pub fn address(&self) -> String {
        match (self.array_job_id, self.array_task_id) {
            (Some(array), Some(task)) => format!("{array}_{task}"),
            _ => self.key.id.to_string(),
        }
    }

    /// What squeue shows as its number: `138`, `138_4`, or `138+1` for a part of a heterogeneous job.
    #[must_use]
    pub fn shown(&self) -> String {
        match (self.het_job_id, self.het_job_offset) {
            (Some(whole), Some(offset)) => format!("{whole}+{offset}"),
            _ => self.address(),
        }
    }

    /// The type of GPU that it asks for, if it names one.
    #[must_use]
    pub fn gpu_type(&self) -> Option<&str> {
        let asked = [&self.gpus_per_node, &self.gpus_per_job, &self.gpus_per_task];
        asked.into_iter().flatten().find_map(|gpus| gpus.gpu_type.as_deref())
    }

    /// Whether not any node will do, whatever it is like.
    #[must_use]
    pub fn names_nodes(&self) -> bool {
        !self.required_nodes.is_empty() || !self.excluded_nodes.is_empty()
    }

    /// Whether SLURM takes it off its GPUs and starts it again later: batch jobs whose users allow
    /// it. Only the first part of a heterogeneous job is marked as a batch job; the others go with it.
    #[must_use]
    pub fn can_be_requeued(&self) -> bool {
        self.requeue && (self.batch || self.het_job_offset.is_some_and(|offset| offset > 0))
    }

    /// Whether it is the rest of an array, of tasks that have no record of their own yet.
    #[must_use]
    pub fn is_whole_array(&self) -> bool {
        self.array_task_id.is_none() && self.array_tasks.as_ref().is_some_and(|t| !t.is_empty())
    }

    /// All GPUs that it asks for, by whichever way it asks; 0 if none. What it asks for in a way that
    /// is not read here (per socket) is known only once it holds them.
    #[must_use]
    pub fn gpus_asked(&self) -> u32 {
        let times = |gpus: &Option<GpuCount>, n: Option<u32>| {
            gpus.as_ref().map(|gpus| gpus.count.saturating_mul(n.unwrap_or(1).max(1)))
        };
        times(&self.gpus_per_job, Some(1))
            .or_else(|| times(&self.gpus_per_node, self.node_count))
            .or_else(|| times(&self.gpus_per_task, self.tasks))
            .or(self.gpus_held)
            .unwrap_or(0)
    }
}

/// The fields of a job that are looked at.
pub(super) struct Wanted;

impl super::record::Wanted for Wanted {
    const FIELDS: &'static [&'static str] = &[
        "job_id",
        "submit_time",
        "restart_cnt",
        "name",
        "user_id",
        "user_name",
        "partition",
        "job_state",
        "state_reason",
        "priority",
        "hold",
        "nice",
        "nodes",
        "required_nodes",
        "excluded_nodes",
        "shared",
        "features",
        "tres_per_node",
        "tres_per_job",
        "tres_per_task",
        "tres_alloc_str",
        "gres_detail",
        "cpus",
        "cpus_per_tres",
        "memory_per_tres",
        "tasks",
        "tasks_per_node",
        "node_count",
        "memory_per_node",
        "memory_per_cpu",
        "time_limit",
        "start_time",
        "end_time",
        "eligible_time",
        "exit_code",
        "comment",
        "admin_comment",
        "command",
        "current_working_directory",
        "batch_flag",
        "array_job_id",
        "array_task_id",
        "array_task_string",
        "array_max_tasks",
        "het_job_id",
        "het_job_offset",
        "account",
        "qos",
        "dependency",
        "resv_name",
        "requeue",
    ];
}

/// Reads one entry; `index` names it where its id cannot be read.
pub(super) fn read(index: usize, record: &Record<Wanted>) -> Result<SlurmJob, ReadError> {
    let nameless = format!("the job at place {index}");
    let id = record.of(&nameless).needed_count32("job_id")?;
    let owner = format!("job {id}");
    let fields = record.of(&owner);
    let submit = fields.time("submit_time")?;
    let submit = submit.ok_or_else(|| fields.error("submit_time", "is missing or not set"))?;
    let restarts = fields.needed_count32("restart_cnt")?;
    let words = fields.texts("job_state")?;
    let state = State::from_words(words.iter().map(String::as_str))
        .ok_or_else(|| fields.error("job_state", "is missing"))?;
    let priority = fields.count("priority")?;
    let held = match (fields.flag("hold")?, priority) {
        (None, None) => return Err(fields.error("priority", "is missing or not set")),
        (hold, priority) => hold == Some(true) || priority == Some(0),
    };
    let nodes = hosts(fields, "nodes")?;
    let (gpus, gpus_held) = gpus_held(fields, &state, &nodes)?;
    let array_job_id = nonzero(fields.count32("array_job_id")?);
    let het_job_id = nonzero(fields.count32("het_job_id")?);
    Ok(SlurmJob {
        key: JobKey { id, submit, restarts },
        name: fields.text("name")?.to_owned(),
        user_id: fields.needed_count32("user_id")?,
        user_name: fields.owned("user_name")?,
        partition: fields.needed_text("partition")?.to_owned(),
        state,
        state_reason: fields.text("state_reason")?.to_owned(),
        priority,
        held,
        nice: match fields.number("nice")? {
            Number::Is(nice) => nice,
            Number::Unset | Number::Infinite => 0,
        },
        required_nodes: hosts(fields, "required_nodes")?,
        excluded_nodes: hosts(fields, "excluded_nodes")?,
        // With nobody, or nobody but its user.
        exclusive: fields
            .texts("shared")?
            .iter()
            .any(|with| matches!(with.as_str(), "none" | "user" | "mcs" | "topo")),
        features: fields.owned("features")?,
        nodes,
        gpus_per_node: asked(fields, "tres_per_node")?,
        gpus_per_job: asked(fields, "tres_per_job")?,
        gpus_per_task: asked(fields, "tres_per_task")?,
        gpus,
        gpus_held,
        cpus: fields.count32("cpus")?,
        cpus_per_gpu: per_gpu(fields, "cpus_per_tres")?,
        memory_per_gpu: per_gpu(fields, "memory_per_tres")?,
        tasks: fields.count32("tasks")?,
        tasks_per_node: nonzero(fields.count32("tasks_per_node")?),
        node_count: fields.count32("node_count")?,
        memory: match fields.count("memory_per_node")? {
            Some(amount) => Some(Memory::PerNode(amount)),
            None => fields.count("memory_per_cpu")?.map(Memory::PerCpu),
        },
        time_limit: fields.count32("time_limit")?.map(|min| Seconds::new(f64::from(min) * 60.0)),
        start: fields.time("start_time")?,
        end: fields.time("end_time")?,
        eligible: fields.time("eligible_time")?,
        exit: exit(fields)?,
        comment: fields.owned("comment")?,
        admin_comment: fields.owned("admin_comment")?,
        command: fields.owned("command")?,
        working_directory: fields.owned("current_working_directory")?,
        batch: fields.flag("batch_flag")?.unwrap_or(false),
        array_job_id,
        array_task_id: array_job_id.and(fields.count32("array_task_id")?),
        array_tasks: fields.owned("array_task_string")?,
        array_at_once: nonzero(fields.count32("array_max_tasks")?),
        het_job_id,
        het_job_offset: het_job_id.and(fields.count32("het_job_offset")?),
        account: fields.owned("account")?,
        qos: fields.owned("qos")?,
        dependency: fields.owned("dependency")?,
        reservation: fields.owned("resv_name")?,
        requeue: fields.flag("requeue")?.unwrap_or(false),
    })
}

fn nonzero(id: Option<u32>) -> Option<u32> {
    id.filter(|id| *id != 0)
}

fn hosts(fields: Fields<'_>, field: &'static str) -> Result<Vec<String>, ReadError> {
    hostlist::expand(fields.text(field)?).map_err(|e| fields.error(field, e.to_string()))
}

fn asked(fields: Fields<'_>, field: &'static str) -> Result<Option<GpuCount>, ReadError> {
    gres::asked(fields.text(field)?).map_err(|why| fields.error(field, why))
}

/// So much for each GPU.
fn per_gpu(fields: Fields<'_>, field: &'static str) -> Result<Option<u32>, ReadError> {
    Ok(nonzero(asked(fields, field)?.map(|each| each.count)))
}

/// What a job holds: from the list per node if it is there, otherwise only the sum.
fn gpus_held(
    fields: Fields<'_>,
    state: &State,
    nodes: &[String],
) -> Result<(Vec<NodeGpus>, Option<u32>), ReadError> {
    // A job that waits or is over has nothing, whatever is left in these fields.
    if !state.holds_gpus() {
        return Ok((Vec::new(), None));
    }
    let details: Vec<String> = match fields.get("gres_detail") {
        Some(Value::Array(_)) => fields.texts("gres_detail")?,
        Some(Value::String(one)) => vec![one.clone()],
        None => Vec::new(),
        Some(_) => return Err(fields.error("gres_detail", "is no list of texts")),
    };
    if details.is_empty() {
        let tracked = gres::tracked(fields.text("tres_alloc_str")?)
            .map_err(|why| fields.error("tres_alloc_str", why))?;
        return Ok((Vec::new(), tracked.map(|gpus| gpus.count)));
    }
    if details.len() != nodes.len() {
        let why = format!("has {} entries for {} nodes", details.len(), nodes.len());
        return Err(fields.error("gres_detail", why));
    }
    let mut gpus = Vec::with_capacity(nodes.len());
    for (node, detail) in nodes.iter().zip(&details) {
        let (used, indices) = gres::used(detail).map_err(|why| fields.error("gres_detail", why))?;
        if !indices.is_empty() && indices.len() != used.count as usize {
            let why = format!("names {} GPUs and counts {}", indices.len(), used.count);
            return Err(fields.error("gres_detail", why));
        }
        if used.count > 0 {
            let (count, gpu_type) = (used.count, used.gpu_type);
            gpus.push(NodeGpus { node: node.clone(), count, gpu_type, indices });
        }
    }
    let sum = gpus.iter().map(|gpus| gpus.count).fold(0, u32::saturating_add);
    Ok((gpus, Some(sum)))
}

/// A wait status up to 0.0.39, code and signal apart later.
fn exit(fields: Fields<'_>) -> Result<Exit, ReadError> {
    const FIELD: &str = "exit_code";
    let parts = match fields.get(FIELD) {
        Some(Value::Object(object)) if !object.contains_key("number") => object,
        _ => {
            let status = fields.count32(FIELD)?.unwrap_or(0);
            return Ok(Exit { code: (status >> 8) & 0xff, signal: status & 0x7f });
        }
    };
    let part = |value: Option<&Value>| match value.map_or(Some(Number::Unset), number) {
        Some(Number::Is(n)) => u32::try_from(n).ok(),
        Some(Number::Unset | Number::Infinite) => Some(0),
        None => None,
    };
    let code = part(parts.get("return_code"));
    let signal = part(match parts.get("signal") {
        Some(Value::Object(signal)) => signal.get("id").or_else(|| signal.get("signal_id")),
        other => other,
    });
    match (code, signal) {
        (Some(code), Some(signal)) => Ok(Exit { code, signal }),
        _ => Err(fields.error(FIELD, "has no return code or signal that can be understood")),
    }
}
