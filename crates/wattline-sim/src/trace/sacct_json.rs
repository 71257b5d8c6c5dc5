//! SLURM's accounting as `sacct --json` prints it: an object with `jobs`, `errors` and `warnings`.
//! Its schema is that of slurmdbd in SLURM's OpenAPI, <https://slurm.schedmd.com/rest_api.html>,
//! and changes from version to version: numbers are plain or `{"set", "infinite", "number"}`, and a
//! job's state is a text or, from SLURM 23.11 on, a list of them. All of these are read.
//!
//! * Times are seconds since the Unix epoch, and so in UTC whatever the zone of the cluster.
//! * Steps are nested in their job and not looked at.
//! * A task of an array is named `123_4`, as `sacct -P` does.
//! * Jobs are otherwise read by the rules of `sacct -P`; see there.

use super::error::clip;
use super::json::{self, JobError, Jobs, Progress};
use super::lines::Source;
use super::sacct::{GpuCount, is_unfinished};
use super::value;
use super::{Outcome, SkipReason, Tally, TraceError, TraceJob};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// A number, which may not be set.
#[derive(Deserialize, Default)]
#[serde(untagged, expecting = "expected a number, or an object with set, infinite and number")]
enum Number {
    Plain(f64),
    Full {
        set: Option<bool>,
        infinite: Option<bool>,
        number: f64,
    },
    #[default]
    None,
}

impl Number {
    fn get(&self) -> Option<f64> {
        match self {
            Self::Plain(number) => Some(*number),
            Self::Full { set, infinite, number } => {
                (set.unwrap_or(true) && !infinite.unwrap_or(false)).then_some(*number)
            }
            Self::None => None,
        }
    }

    /// A time: SLURM's zero is the time of what has not happened.
    fn time(&self) -> Option<f64> {
        self.get().filter(|seconds| *seconds != 0.0)
    }
}

/// The state, by version: `"A"`, `["A"]`, `{"current": "A"}` or `{"current": ["A"]}`. A list holds
/// the state and flags such as `COMPLETING`.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a job state: a text, a list of texts, or either as current"
)]
enum State {
    One(Box<str>),
    Many(Vec<Box<str>>),
    Nested { current: Box<State> },
}

impl State {
    fn words(&self) -> &[Box<str>] {
        match self {
            Self::One(word) => std::slice::from_ref(word),
            Self::Many(words) => words,
            Self::Nested { current } => current.words(),
        }
    }
}

#[derive(Deserialize)]
struct Job {
    job_id: Number,
    #[serde(default)]
    array: Option<Array>,
    #[serde(default)]
    user: Option<Box<str>>,
    #[serde(default)]
    association: Option<Association>,
    state: State,
    time: Time,
    #[serde(default)]
    tres: Option<AllTres>,
}

#[derive(Deserialize)]
struct Array {
    #[serde(default)]
    job_id: Number,
    #[serde(default)]
    task_id: Number,
}

#[derive(Deserialize)]
struct Association {
    #[serde(default)]
    user: Option<Box<str>>,
}

#[derive(Deserialize)]
struct Time {
    submission: Number,
    start: Number,
    #[serde(default)]
    end: Number,
    #[serde(default)]
    elapsed: Number,
}

#[derive(Deserialize)]
struct AllTres {
    #[serde(default)]
    allocated: Option<Vec<Tres>>,
    #[serde(default)]
    requested: Option<Vec<Tres>>,
}

#[derive(Deserialize)]
struct Tres {
    #[serde(rename = "type")]
    kind: Box<str>,
    #[serde(default)]
    name: Option<Box<str>>,
    #[serde(default)]
    count: Number,
}

/// An entry of `errors`; what it holds varies, so all of it is shown.
type Reported = serde_json::Value;

/// What else is in the object besides the jobs.
#[derive(Default)]
struct Rest {
    has_jobs: bool,
    errors: Option<Vec<Reported>>,
    keys: Vec<String>,
}

pub(super) fn read(source: Source<'_>, tally: &mut Tally<'_>) -> Result<(), TraceError> {
    let file = source.file;
    let rest = json::parse(source, |deserializer, progress| {
        Output { tally, progress }.deserialize(deserializer)
    })?;
    // Checked first: sacct prints an empty list of jobs with its errors.
    if let Some(error) = rest.errors.as_ref().and_then(|errors| errors.first()) {
        let message = clip_error(error);
        return Err(TraceError::SacctFailed { file: file.into(), message });
    }
    if !rest.has_jobs {
        return Err(TraceError::MissingColumn {
            file: file.into(),
            column: "jobs",
            found: format!("\"{}\"", rest.keys.join(", ")),
            hint: "export it with: sacct -a --json -S 2025-01-01",
        });
    }
    Ok(())
}

/// The part of an error that is for people, or all of it.
fn clip_error(error: &Reported) -> String {
    let text = ["description", "error"].iter().find_map(|key| {
        error.get(key).and_then(serde_json::Value::as_str).filter(|text| !text.is_empty())
    });
    text.map_or_else(|| clip(&error.to_string()), clip)
}

struct Output<'a, 't> {
    tally: &'a mut Tally<'t>,
    progress: &'a Progress,
}

impl<'de> DeserializeSeed<'de> for Output<'_, '_> {
    type Value = Rest;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Rest, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Output<'_, '_> {
    type Value = Rest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the object that sacct --json prints")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Rest, A::Error> {
        let mut rest = Rest::default();
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "jobs" => {
                    let (tally, progress) = (&mut *self.tally, self.progress);
                    map.next_value_seed(Jobs {
                        tally,
                        progress,
                        read: read_job,
                        job: PhantomData::<Job>,
                    })?;
                    rest.has_jobs = true;
                }
                "errors" => rest.errors = map.next_value()?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            // Only for an error message, so a few are enough.
            if rest.keys.len() < 10 {
                rest.keys.push(clip(&key));
            }
        }
        Ok(rest)
    }
}

fn read_job(job: Job) -> Result<Outcome, JobError> {
    let words = job.state.words();
    if words.is_empty() {
        return Err(JobError::Missing { field: "state" });
    }
    if words.iter().any(|word| is_unfinished(word)) {
        return Ok(Outcome::Skip(SkipReason::NotFinished));
    }
    let Some(submit) = job.time.submission.time() else {
        return Ok(Outcome::Skip(SkipReason::NoSubmitTime));
    };
    let submit =
        value::instant_number(submit).map_err(JobError::value("time.submission", submit))?;
    let instant = |field, number: &Number| {
        let seconds = number.time();
        seconds
            .map(|seconds| value::instant_number(seconds).map_err(JobError::value(field, seconds)))
            .transpose()
    };
    let Some(start) = instant("time.start", &job.time.start)? else {
        return Ok(Outcome::Skip(SkipReason::NeverRan));
    };
    let duration = match job.time.elapsed.get() {
        Some(elapsed) => {
            value::duration_number(elapsed).map_err(JobError::value("time.elapsed", elapsed))?
        }
        None => match value::run_time(Some(start), instant("time.end", &job.time.end)?) {
            Ok(duration) => duration,
            Err(reason) => return Ok(Outcome::Skip(reason)),
        },
    };
    let (allocated, requested) =
        job.tres.map_or((None, None), |tres| (tres.allocated, tres.requested));
    if duration.get() == 0.0 && allocated.as_ref().is_none_or(Vec::is_empty) {
        return Ok(Outcome::Skip(SkipReason::NeverRan));
    }
    let gpus = match gpus(allocated.as_deref())? {
        Some(gpus) => gpus,
        None => gpus(requested.as_deref())?.unwrap_or(0),
    };
    if gpus == 0 {
        return Ok(Outcome::Skip(SkipReason::NoGpus));
    }
    let user = job.user.or(job.association.and_then(|association| association.user));
    Ok(Outcome::Job(TraceJob {
        name: name(&job.job_id, job.array.as_ref())?,
        user: user.filter(|user| !value::is_none(user)),
        submit,
        duration,
        gpus,
        model: None,
        batch: None,
        deadline: None,
    }))
}

fn name(job_id: &Number, array: Option<&Array>) -> Result<Box<str>, JobError> {
    let array = array.and_then(|array| Some((array.job_id.time()?, array.task_id.get()?)));
    let name = match (array, job_id.get()) {
        (Some((job, task)), _) => format!("{job}_{task}"),
        (None, Some(job)) => job.to_string(),
        (None, None) => return Err(JobError::Missing { field: "job_id" }),
    };
    Ok(name.into())
}

fn gpus(tres: Option<&[Tres]>) -> Result<Option<u32>, JobError> {
    let mut gpus = GpuCount::default();
    for tres in tres.unwrap_or_default().iter().filter(|tres| &*tres.kind == "gres") {
        let name = tres.name.as_deref().unwrap_or_default();
        let typed = name.starts_with("gpu:");
        if typed || name == "gpu" {
            let count = tres.count.get().unwrap_or(0.0);
            gpus.add(
                typed,
                value::count_number(count).map_err(JobError::value("tres.count", count))?,
            );
        }
    }
    Ok(gpus.get())
}
