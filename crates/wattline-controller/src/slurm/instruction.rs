//! What slurmctld is told, as values. [`Instruction::line`] says it in the words of SLURM's commands,
//! `rest/orders.rs` in those of slurmrestd.

use super::deferred;
use super::orders::CommandLine;
use super::read::SlurmJob;
use wattline_core::Timestamp;

/// A job, as SLURM is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobName {
    /// Its own number; none for a task of an array that has no record yet.
    pub(super) number: Option<u32>,
    /// How commands name it: a task as `ARRAY_TASK`, since the array's own number, which one task
    /// has, means all of them.
    pub(super) address: String,
}

impl JobName {
    pub(super) fn of(job: &SlurmJob) -> Self {
        Self { number: Some(job.key.id), address: job.address() }
    }

    /// By its number alone: a part of a heterogeneous job.
    pub(super) fn numbered(number: u32) -> Self {
        Self { number: Some(number), address: number.to_string() }
    }

    /// A task of an array that has no record of its own.
    pub(super) fn task(array: u32, task: u32) -> Self {
        Self { number: None, address: format!("{array}_{task}") }
    }
}

/// When a waiting job may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    Now,
    At(Timestamp),
}

/// GPUs that a job asks for: `gpu:4`, `gpu:h100:4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Gpus {
    PerNode(String),
    PerJob(String),
}

/// What a waiting job asks for. All of it goes together: stale values of some make SLURM hold the
/// job again (`BadConstraints`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobShape {
    pub(super) nodes: u32,
    pub(super) tasks: u32,
    pub(super) cpus: u32,
    pub(super) gpus: Gpus,
    pub(super) tasks_per_node: Option<u32>,
}

impl JobShape {
    pub(super) fn cpus_per_task(&self) -> u32 {
        (self.cpus / self.tasks.max(1)).max(1)
    }

    pub(super) fn cpus_per_node(&self) -> u32 {
        (self.cpus / self.nodes.max(1)).max(1)
    }
}

/// Changes of a waiting job; what is none stays. Lists of nodes have commas, empty means any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct JobUpdate {
    pub(super) shape: Option<JobShape>,
    pub(super) excluded: Option<String>,
    pub(super) required: Option<String>,
    pub(super) begin: Option<Begin>,
    pub(super) priority: Option<u64>,
    pub(super) time_limit_minutes: Option<u32>,
    pub(super) comment: Option<String>,
    pub(super) admin_comment: Option<String>,
}

/// What a node's power is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Power {
    Up,
    Down,
}

impl Power {
    /// SLURM's word.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Up => "POWER_UP",
            Self::Down => "POWER_DOWN",
        }
    }
}

/// One thing that slurmctld is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    /// Hold jobs as if their users had: only then do the gate's fallback and users find them as the
    /// gate left them.
    Hold(Vec<JobName>),
    Release(JobName),
    Update(JobName, JobUpdate),
    /// Take a job off its nodes; it waits, held. One that has ended meanwhile stays ended: without
    /// `Incomplete` SLURM would run it again.
    RequeueHold(JobName),
    /// One that SLURM has ended, because of its node, waits again, held.
    RequeueEnded(JobName),
    Cancel(JobName),
    /// Send USR1 to the batch script, and to nothing that it has started.
    SignalBatch(JobName),
    Power(String, Power),
}

impl Instruction {
    pub(super) fn hold(job: &SlurmJob) -> Self {
        Self::Hold(vec![JobName::of(job)])
    }

    pub(super) fn release(job: &SlurmJob) -> Self {
        Self::Release(JobName::of(job))
    }

    /// In the words of SLURM's commands.
    pub(super) fn line(&self) -> CommandLine {
        let scontrol = |args: &[&str]| CommandLine::new("scontrol", args);
        match self {
            Self::Hold(jobs) => {
                let names: Vec<&str> = jobs.iter().map(|job| job.address.as_str()).collect();
                scontrol(&["uhold", &names.join(",")])
            }
            Self::Release(job) => scontrol(&["release", &job.address]),
            Self::Update(job, update) => CommandLine::new("scontrol", &words(job, update)),
            Self::RequeueHold(job) => scontrol(&["requeuehold", "Incomplete", &job.address]),
            Self::RequeueEnded(job) => scontrol(&["requeuehold", &job.address]),
            Self::Cancel(job) => CommandLine::new("scancel", &[&job.address]),
            Self::SignalBatch(job) => {
                CommandLine::new("scancel", &["--signal=USR1", "--batch", &job.address])
            }
            Self::Power(node, power) => {
                let (node, state) = (format!("NodeName={node}"), power.word());
                scontrol(&["update", &node, &format!("State={state}")])
            }
        }
    }
}

/// The arguments of `scontrol`.
fn words(job: &JobName, update: &JobUpdate) -> Vec<String> {
    let mut args = vec!["update".into(), format!("JobId={}", job.address)];
    if let Some(shape) = &update.shape {
        let JobShape { nodes, tasks, cpus, .. } = shape;
        args.extend([
            format!("NumNodes={nodes}-{nodes}"),
            format!("NumTasks={tasks}"),
            format!("NumCPUs={cpus}"),
            format!("CPUsPerTask={}", shape.cpus_per_task()),
            format!("MinCPUsNode={}", shape.cpus_per_node()),
        ]);
    }
    let mut one = |name: &str, value: &Option<String>| {
        args.extend(value.as_ref().map(|value| format!("{name}={value}")));
    };
    one("ExcNodeList", &update.excluded);
    one("ReqNodeList", &update.required);
    one("StartTime", &update.begin.and_then(start_time));
    one("Priority", &update.priority.map(|priority| priority.to_string()));
    one("TimeLimit", &update.time_limit_minutes.map(|minutes| minutes.to_string()));
    if let Some(shape) = &update.shape {
        match &shape.gpus {
            Gpus::PerNode(gpus) => args.push(format!("Gres={gpus}")),
            Gpus::PerJob(gpus) => args.push(format!("TresPerJob=gres:{gpus}")),
        }
        args.extend(shape.tasks_per_node.map(|tasks| format!("TasksPerNode={tasks}")));
    }
    args.extend(update.comment.as_ref().map(|comment| format!("Comment={comment}")));
    args.extend(update.admin_comment.as_ref().map(|comment| format!("AdminComment={comment}")));
    args
}

fn start_time(begin: Begin) -> Option<String> {
    match begin {
        Begin::Now => Some("now".to_owned()),
        Begin::At(at) => deferred::told(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_slurms_commands() {
        let job = JobName::task(7, 3);
        let shape = JobShape {
            nodes: 2,
            tasks: 4,
            cpus: 16,
            gpus: Gpus::PerNode("gpu:h100:2".into()),
            tasks_per_node: Some(2),
        };
        let update = JobUpdate {
            shape: Some(shape.clone()),
            required: Some("n1,n2".into()),
            begin: Some(Begin::Now),
            comment: Some(String::new()),
            ..JobUpdate::default()
        };
        let per_job =
            JobShape { gpus: Gpus::PerJob("gpu:4".into()), tasks_per_node: None, ..shape };
        let per_job = JobUpdate { shape: Some(per_job), ..JobUpdate::default() };
        let first = JobUpdate { priority: Some(9), ..JobUpdate::default() };
        for (instruction, line) in [
            (Instruction::Hold(vec![job.clone(), JobName::task(7, 4)]), "scontrol uhold 7_3,7_4"),
            (Instruction::Release(job.clone()), "scontrol release 7_3"),
            (
                Instruction::Update(job.clone(), update),
                "scontrol update JobId=7_3 NumNodes=2-2 NumTasks=4 NumCPUs=16 CPUsPerTask=4 \
                 MinCPUsNode=8 ReqNodeList=n1,n2 StartTime=now Gres=gpu:h100:2 TasksPerNode=2 \
                 Comment=",
            ),
            (
                Instruction::Update(JobName::numbered(8), per_job),
                "scontrol update JobId=8 NumNodes=2-2 NumTasks=4 NumCPUs=16 CPUsPerTask=4 \
                 MinCPUsNode=8 TresPerJob=gres:gpu:4",
            ),
            (Instruction::Update(job.clone(), first), "scontrol update JobId=7_3 Priority=9"),
            (Instruction::RequeueHold(job.clone()), "scontrol requeuehold Incomplete 7_3"),
            (Instruction::RequeueEnded(job.clone()), "scontrol requeuehold 7_3"),
            (Instruction::Cancel(job.clone()), "scancel 7_3"),
            (Instruction::SignalBatch(job), "scancel --signal=USR1 --batch 7_3"),
            (
                Instruction::Power("n1".into(), Power::Down),
                "scontrol update NodeName=n1 State=POWER_DOWN",
            ),
        ] {
            let CommandLine { program, args } = instruction.line();
            assert_eq!(format!("{program} {}", args.join(" ")), line);
        }
    }
}
