//! Instructions in the words of slurmrestd, version by version; pure functions.
//!
//! v0.0.38 was tried on SLURM 22.05. v0.0.39 and later follow their descriptions (`/openapi`).

use super::version::Version;
use crate::slurm::deferred::AWAY;
use crate::slurm::instruction::{Begin, Gpus, Instruction, JobName, JobShape, JobUpdate, Power};
use serde_json::{Map, Value, json};
use std::fmt;
use wattline_core::Timestamp;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Get,
    Post,
    Delete,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) verb: Verb,
    pub(super) path: String,
    pub(super) body: Option<String>,
}

impl Request {
    pub(super) fn get(path: String) -> Self {
        Self { verb: Verb::Get, path, body: None }
    }
}

/// A kind of instruction that some versions have no words for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Anything about a task of an array.
    ArrayTask,
    /// A job leaves its nodes and waits, held.
    RequeueHold,
    /// A signal to the batch script alone.
    SignalBatch,
    /// A node goes to sleep, or is woken.
    Power,
}

impl Kind {
    /// All of them.
    pub(crate) const ALL: [Self; 4] =
        [Self::ArrayTask, Self::RequeueHold, Self::SignalBatch, Self::Power];

    /// Whether a version has words for it.
    ///
    /// - Tasks of arrays: from v0.0.39 on a change goes by the job's own number; a task that has none
    ///   yet, or has the array's, would be taken for all of them.
    /// - Requeue: there is no request for it up to SLURM 25.05, and the later one was not tried.
    /// - Signals go to all processes of a job before v0.0.40, so to those that would die of one.
    /// - Nodes can be changed from v0.0.39 on.
    pub(super) fn is_known_to(self, version: Version) -> bool {
        match self {
            Self::ArrayTask => version == Version::V38,
            Self::RequeueHold => false,
            Self::SignalBatch => version >= Version::V40,
            Self::Power => version >= Version::V39,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ArrayTask => "address tasks of job arrays",
            Self::RequeueHold => "requeue jobs and hold them (scontrol requeuehold)",
            Self::SignalBatch => "signal batch scripts alone (scancel --batch)",
            Self::Power => "put nodes to sleep and wake them",
        })
    }
}

/// The requests of an instruction; none if this version has no words for it.
pub(super) fn requests(
    version: Version,
    instruction: &Instruction,
    now: Timestamp,
) -> Result<Vec<Request>, Kind> {
    let known = |kind: Kind| if kind.is_known_to(version) { Ok(()) } else { Err(kind) };
    let post = |job: &JobName, changes: Map<String, Value>| {
        let (path, body) = (job_path(version, job)?, Value::Object(changes).to_string());
        Ok(Request { verb: Verb::Post, path, body: Some(body) })
    };
    match instruction {
        Instruction::Hold(jobs) => {
            let held = |job| {
                // A hold that does not come from its user looks like an administrator's. A begin
                // in 800 years says that it is ours.
                let away = begin(version, Begin::At(now + AWAY * 2.0), now);
                post(job, fields([("hold", Some(json!(true))), ("begin_time", Some(away))]))
            };
            jobs.iter().map(held).collect()
        }
        Instruction::Release(job) => Ok(vec![post(job, fields([("hold", Some(json!(false)))]))?]),
        Instruction::Update(job, update) => Ok(vec![post(job, changes(version, update, now))?]),
        Instruction::Cancel(job) => {
            let path = job_path(version, job)?;
            Ok(vec![Request { verb: Verb::Delete, path, body: None }])
        }
        Instruction::SignalBatch(job) => {
            known(Kind::SignalBatch)?;
            let path = format!("{}?signal=USR1&flags=BATCH_JOB", job_path(version, job)?);
            Ok(vec![Request { verb: Verb::Delete, path, body: None }])
        }
        Instruction::RequeueHold(_) | Instruction::RequeueEnded(_) => Err(Kind::RequeueHold),
        Instruction::Power(node, power) => {
            known(Kind::Power)?;
            let path = format!("/slurm/{version}/node/{}", escaped(node));
            Ok(vec![Request { verb: Verb::Post, path, body: Some(state(*power)) }])
        }
    }
}

fn state(power: Power) -> String {
    json!({ "state": [power.word()] }).to_string()
}

fn job_path(version: Version, job: &JobName) -> Result<String, Kind> {
    let name = match job.number {
        // A task is named as such.
        _ if version == Version::V38 => escaped(&job.address),
        // The array's own number would mean all of its tasks.
        Some(number) if !job.address.starts_with(&format!("{number}_")) => number.to_string(),
        _ => return Err(Kind::ArrayTask),
    };
    Ok(format!("/slurm/{version}/job/{name}"))
}

/// A part of a path.
fn escaped(text: &str) -> String {
    let mut path = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                path.push(char::from(byte));
            }
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}

fn fields<const N: usize>(values: [(&str, Option<Value>); N]) -> Map<String, Value> {
    let there = values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    there.collect()
}

fn changes(version: Version, update: &JobUpdate, now: Timestamp) -> Map<String, Value> {
    let old = version == Version::V38;
    let nodes = |list: &Option<String>| {
        let list = list.as_ref()?;
        Some(if old {
            json!(list)
        } else {
            json!(list.split(',').filter(|name| !name.is_empty()).collect::<Vec<_>>())
        })
    };
    let (required, excluded) =
        if old { ("nodelist", "exclude_nodes") } else { ("required_nodes", "excluded_nodes") };
    let priority = update.priority.map(|priority| number(version, priority));
    let mut all = fields([
        (required, nodes(&update.required)),
        (excluded, nodes(&update.excluded)),
        ("begin_time", update.begin.map(|at| begin(version, at, now))),
        ("priority", priority),
        ("time_limit", update.time_limit_minutes.map(|minutes| number(version, minutes.into()))),
        ("comment", update.comment.as_ref().map(|comment| json!(comment))),
        ("admin_comment", update.admin_comment.as_ref().map(|comment| json!(comment))),
    ]);
    if let Some(shape) = &update.shape {
        all.append(&mut shaped(version, shape));
    }
    all
}

fn shaped(version: Version, shape: &JobShape) -> Map<String, Value> {
    let JobShape { nodes, tasks, cpus, gpus, tasks_per_node } = shape;
    let mut all = fields([
        ("nodes", Some(json!(format!("{nodes}-{nodes}")))),
        ("tasks", Some(json!(tasks))),
        ("cpus_per_task", Some(json!(shape.cpus_per_task()))),
        ("minimum_cpus_per_node", Some(json!(shape.cpus_per_node()))),
        ("tasks_per_node", tasks_per_node.map(|tasks| json!(tasks))),
    ]);
    let mut more = if version == Version::V38 {
        match gpus {
            Gpus::PerNode(gpus) => fields([("gres", Some(json!(gpus)))]),
            // `--gpus` takes no name of a resource.
            Gpus::PerJob(gpus) => {
                let count = gpus.strip_prefix("gpu:").unwrap_or(gpus);
                fields([("gpus", Some(json!(count)))])
            }
        }
    } else {
        // SLURM 23.11 writes a slash there.
        let mark = if version == Version::V39 { "gres:" } else { "gres/" };
        let named = |gpus: &String| Some(json!(format!("{mark}{gpus}")));
        let (name, gpus) = match gpus {
            Gpus::PerNode(gpus) => ("tres_per_node", named(gpus)),
            Gpus::PerJob(gpus) => ("tres_per_job", named(gpus)),
        };
        fields([
            (name, gpus),
            ("minimum_cpus", Some(json!(cpus))),
            ("minimum_nodes", Some(json!(nodes))),
            ("maximum_nodes", Some(json!(nodes))),
        ])
    };
    all.append(&mut more);
    all
}

/// A number that may be unset in newer versions.
fn number(version: Version, number: u64) -> Value {
    if version >= Version::V40 {
        json!({ "set": true, "infinite": false, "number": number })
    } else {
        json!(number)
    }
}

/// v0.0.38 reads a time as sbatch does, in the time zone of slurmrestd: so it is told how far away it
/// is. Later versions take seconds since 1970.
fn begin(version: Version, at: Begin, now: Timestamp) -> Value {
    let seconds = |at: Timestamp| at.seconds().max(1.0) as u64;
    match (version == Version::V38, at) {
        (true, Begin::Now) => json!("now"),
        (true, Begin::At(at)) => json!(format!("now+{}", at.since(now).get().max(0.0) as u64)),
        (false, Begin::Now) => number(version, seconds(now)),
        (false, Begin::At(at)) => number(version, seconds(at)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const NOW: f64 = 1_795_068_000.0;

    fn said(version: &str, instruction: &Instruction) -> Vec<String> {
        let version = Version::parse(version).unwrap();
        match requests(version, instruction, Timestamp::from_seconds(NOW)) {
            Ok(all) => all
                .into_iter()
                .map(|Request { verb, path, body }| {
                    format!("{verb:?} {path} {}", body.unwrap_or_default()).trim().to_owned()
                })
                .collect(),
            Err(kind) => vec![format!("cannot {kind:?}")],
        }
    }

    fn update() -> JobUpdate {
        let gpus = Gpus::PerNode("gpu:h100:2".into());
        let shape = JobShape { nodes: 2, tasks: 4, cpus: 16, gpus, tasks_per_node: Some(2) };
        JobUpdate {
            shape: Some(shape),
            required: Some("n1,n2".into()),
            excluded: Some(String::new()),
            begin: Some(Begin::Now),
            priority: Some(7),
            time_limit_minutes: None,
            comment: Some("x\"y".into()),
            admin_comment: None,
        }
    }

    /// As SLURM 22.05 was seen to take it.
    #[test]
    fn version_38_takes_the_words_of_sbatch() {
        let job = JobName::numbered(8);
        let told = Instruction::Update(job.clone(), update());
        let expected = r#"Post /slurm/v0.0.38/job/8 {"begin_time":"now","comment":"x\"y","cpus_per_task":4,"exclude_nodes":"","gres":"gpu:h100:2","minimum_cpus_per_node":8,"nodelist":"n1,n2","nodes":"2-2","priority":7,"tasks":4,"tasks_per_node":2}"#;
        assert_eq!(said("v0.0.38", &told), [expected]);
        let mut per_job = update();
        per_job.shape.as_mut().unwrap().gpus = Gpus::PerJob("gpu:h100:4".into());
        let told = said("v0.0.38", &Instruction::Update(job.clone(), per_job));
        assert!(told[0].contains(r#""gpus":"h100:4""#) && !told[0].contains("gres"), "{told:?}");
        let tasks = vec![JobName::task(7, 1), JobName::task(7, 2)];
        let held = |task: u32| {
            format!(
                "Post /slurm/v0.0.38/job/7_{task} {{\"begin_time\":\"now+25245561600\",\"hold\":true}}"
            )
        };
        assert_eq!(said("v0.0.38", &Instruction::Hold(tasks)), [held(1), held(2)]);
        let released = Instruction::Release(job.clone());
        assert_eq!(said("v0.0.38", &released), [r#"Post /slurm/v0.0.38/job/8 {"hold":false}"#]);
        let cancelled = Instruction::Cancel(JobName { number: Some(9), address: "7_2".into() });
        assert_eq!(said("v0.0.38", &cancelled), ["Delete /slurm/v0.0.38/job/7_2"]);
        let away = Begin::At(Timestamp::from_seconds(NOW + 60.0));
        let away = JobUpdate { begin: Some(away), ..JobUpdate::default() };
        let told = said("v0.0.38", &Instruction::Update(job.clone(), away));
        assert_eq!(told, [r#"Post /slurm/v0.0.38/job/8 {"begin_time":"now+60"}"#]);
        let power = Instruction::Power("n1".into(), Power::Down);
        for cannot in
            [Instruction::RequeueHold(job.clone()), Instruction::SignalBatch(job.clone()), power]
        {
            assert!(said("v0.0.38", &cannot)[0].starts_with("cannot"), "{cannot:?}");
        }
    }

    /// As their descriptions say; they were not tried.
    #[test]
    fn later_versions_take_their_own_words() {
        let job = JobName::numbered(8);
        let told = Instruction::Update(job.clone(), update());
        let old = said("v0.0.39", &told);
        assert!(old[0].contains(r#""required_nodes":["n1","n2"]"#), "{old:?}");
        assert!(old[0].contains(r#""tres_per_node":"gres:gpu:h100:2""#), "{old:?}");
        assert!(old[0].contains(r#""begin_time":1795068000,"#), "{old:?}");
        for version in ["v0.0.40", "v0.0.41", "v0.0.42", "v0.0.43", "v0.0.44", "v0.0.45"] {
            let expected = format!(
                "Post /slurm/{version}/job/8 {}",
                r#"{"begin_time":{"infinite":false,"number":1795068000,"set":true},"comment":"x\"y","cpus_per_task":4,"excluded_nodes":[],"maximum_nodes":2,"minimum_cpus":16,"minimum_cpus_per_node":8,"minimum_nodes":2,"nodes":"2-2","priority":{"infinite":false,"number":7,"set":true},"required_nodes":["n1","n2"],"tasks":4,"tasks_per_node":2,"tres_per_node":"gres/gpu:h100:2"}"#
            );
            assert_eq!(said(version, &told), [expected]);
            let signal = Instruction::SignalBatch(job.clone());
            let path = format!("Delete /slurm/{version}/job/8?signal=USR1&flags=BATCH_JOB");
            assert_eq!(said(version, &signal), [path]);
            let node = format!(r#"Post /slurm/{version}/node/n1 {{"state":["POWER_UP"]}}"#);
            assert_eq!(said(version, &Instruction::Power("n1".into(), Power::Up)), [node]);
            assert_eq!(
                said(version, &Instruction::RequeueHold(job.clone())),
                ["cannot RequeueHold"]
            );
        }
    }

    /// The number of an array means all of its tasks.
    #[test]
    fn a_task_is_never_taken_for_its_array() {
        let own = JobName { number: Some(9), address: "7_2".into() };
        assert_eq!(said("v0.0.40", &Instruction::Cancel(own)), ["Delete /slurm/v0.0.40/job/9"]);
        let last = JobName { number: Some(7), address: "7_2".into() };
        assert_eq!(said("v0.0.40", &Instruction::Cancel(last)), ["cannot ArrayTask"]);
        let none = JobName::task(7, 2);
        assert_eq!(said("v0.0.41", &Instruction::Hold(vec![none])), ["cannot ArrayTask"]);
    }

    #[test]
    fn names_cannot_leave_their_place_in_a_path() {
        assert_eq!(escaped("n-1.a_b"), "n-1.a_b");
        assert_eq!(escaped("../x?y=1#z /é"), "..%2Fx%3Fy%3D1%23z%20%2F%C3%A9");
    }
}
