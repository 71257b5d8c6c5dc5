//! Microsoft's Philly trace (Jeon et al., USENIX ATC 2019,
//! <https://github.com/msr-fiddle/philly-traces>), in two forms told apart by their first
//! character:
//!
//! * `cluster_job_log`, the published JSON array; its keys are documented in that repository's
//!   README. A job's duration is the sum over its attempts, because that is the work that was done;
//!   its GPUs are those of the last attempt that lists any. As the README says, a job whose last
//!   attempt has no end was still running, and attempts without a start or an end are gaps in the
//!   log: they add nothing.
//! * a CSV made from it, with the header `timestamp,duration,num_gpus,gpu_time,cluster`: submit
//!   time, seconds, GPUs, their product, and the virtual cluster, which stands for the user. Jobs
//!   have no name there and are numbered.
//!
//! Times have no zone (that of the trace's utilisation logs is Pacific time) and are taken as UTC.

use super::json::{self, JobError, Jobs};
use super::lines::Source;
use super::table::{Row, Style, Table};
use super::value;
use super::{Outcome, SkipReason, Tally, TraceError, TraceJob};
use serde::Deserialize;
use serde::de::{DeserializeSeed, IgnoredAny};
use std::marker::PhantomData;
use wattline_core::Timestamp;
use wattline_core::units::Seconds;

pub(super) fn read_csv(source: Source<'_>, tally: &mut Tally<'_>) -> Result<(), TraceError> {
    let table = Table::open(source, Style::Comma, |_| None)?;
    let submit = table.column("timestamp")?;
    let duration = table.column("duration")?;
    let gpus = table.column("num_gpus")?;
    let cluster = table.find("cluster");
    table.each(tally, |row: &Row<'_>, number| {
        let job = TraceJob {
            name: format!("philly-{number}").into(),
            user: row.some_box(cluster),
            submit: row.value(submit, value::date_time)?,
            duration: row.value(duration, value::duration)?,
            gpus: row.value(gpus, value::count)?,
            model: None,
            batch: None,
            deadline: None,
        };
        if job.gpus == 0 {
            return Ok(Outcome::Skip(SkipReason::NoGpus));
        }
        Ok(Outcome::Job(job))
    })
}

#[derive(Deserialize)]
struct Job {
    jobid: Box<str>,
    user: Option<Box<str>>,
    submitted_time: Option<Box<str>>,
    attempts: Option<Vec<Attempt>>,
}

#[derive(Deserialize)]
struct Attempt {
    start_time: Option<Box<str>>,
    end_time: Option<Box<str>>,
    detail: Option<Vec<Server>>,
}

#[derive(Deserialize)]
struct Server {
    gpus: Option<Vec<IgnoredAny>>,
}

impl Attempt {
    fn gpus(&self) -> usize {
        let servers = self.detail.iter().flatten();
        servers.filter_map(|server| server.gpus.as_ref()).map(Vec::len).sum()
    }
}

pub(super) fn read_json(source: Source<'_>, tally: &mut Tally<'_>) -> Result<(), TraceError> {
    json::parse(source, |deserializer, progress| {
        Jobs { tally, progress, read: read_job, job: PhantomData::<Job> }.deserialize(deserializer)
    })
}

fn read_job(job: Job) -> Result<Outcome, JobError> {
    let Some(submit) = time("submitted_time", job.submitted_time.as_deref())? else {
        return Ok(Outcome::Skip(SkipReason::NoSubmitTime));
    };
    let attempts = job.attempts.unwrap_or_default();
    let mut duration = None;
    let mut running = false;
    for attempt in &attempts {
        let start = time("start_time", attempt.start_time.as_deref())?;
        let end = time("end_time", attempt.end_time.as_deref())?;
        running = end.is_none();
        match value::run_time(start, end) {
            Ok(ran) => *duration.get_or_insert(Seconds::new(0.0)) += ran,
            Err(SkipReason::EndsBeforeStart) => {
                return Ok(Outcome::Skip(SkipReason::EndsBeforeStart));
            }
            Err(_) => {}
        }
    }
    if running {
        return Ok(Outcome::Skip(SkipReason::NotFinished));
    }
    let Some(duration) = duration else {
        return Ok(Outcome::Skip(SkipReason::NeverRan));
    };
    let gpus = attempts.iter().rev().map(Attempt::gpus).find(|gpus| *gpus > 0);
    let Some(gpus) = gpus else {
        return Ok(Outcome::Skip(SkipReason::NoGpus));
    };
    Ok(Outcome::Job(TraceJob {
        name: job.jobid,
        user: job.user.filter(|user| !value::is_none(user)),
        submit,
        duration,
        gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
        model: None,
        batch: None,
        deadline: None,
    }))
}

fn time(field: &'static str, text: Option<&str>) -> Result<Option<Timestamp>, JobError> {
    let text = text.map(str::trim).filter(|text| !value::is_none(text));
    text.map(|text| value::date_time(text).map_err(JobError::value(field, text))).transpose()
}
