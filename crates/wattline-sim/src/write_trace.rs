//! Traces out: the two CSV formats that others read too.

use crate::instance::{Instance, ideal_times};
use crate::report::plain_cell;
use crate::trace::TraceJob;
use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;
use thiserror::Error;
use wattline_core::units::Seconds;

/// A format that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// `timestamp,duration,num_gpus,gpu_time,cluster`.
    Philly,
    /// `job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration`.
    Elasticflow,
}

/// A name that is none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot write format '{0}': expected philly or elasticflow")]
pub struct UnknownTarget(String);

impl FromStr for Target {
    type Err = UnknownTarget;
    fn from_str(text: &str) -> Result<Self, UnknownTarget> {
        match text {
            "philly" => Ok(Self::Philly),
            "elasticflow" => Ok(Self::Elasticflow),
            _ => Err(UnknownTarget(text.chars().take(40).collect())),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Philly => "philly",
            Self::Elasticflow => "elasticflow",
        })
    }
}

/// The jobs of an instance as a trace tells them: with their run time at the size they ask for.
#[must_use]
pub fn from_instance(instance: &Instance) -> Vec<TraceJob> {
    instance
        .jobs
        .iter()
        .map(|job| {
            let asked = ideal_times(instance, job)
                .filter(|(gpus, _)| *gpus == job.gpus.requested)
                .map(|(_, time)| time)
                .fold(Seconds::new(f64::INFINITY), Seconds::min);
            TraceJob {
                name: job.name.clone(),
                user: Some(job.user.to_string().into()),
                submit: job.submit,
                duration: asked,
                gpus: job.gpus.requested,
                model: Some(instance.physics.name(job.workload).into()),
                batch: Some(job.batch.requested),
                deadline: job.deadline,
            }
        })
        .collect()
}

/// Writes jobs, in the order of their submission.
///
/// # Errors
/// What the output says.
pub fn write(jobs: &[TraceJob], target: Target, out: &mut dyn Write) -> io::Result<()> {
    let mut order: Vec<&TraceJob> = jobs.iter().collect();
    order.sort_by_key(|job| job.submit);
    let mut csv = csv::Writer::from_writer(out);
    match target {
        Target::Philly => {
            csv.write_record(["timestamp", "duration", "num_gpus", "gpu_time", "cluster"])?;
            for job in order {
                let time = jiff::Timestamp::from_microsecond(job.submit.micros())
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                csv.write_record([
                    time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
                    job.duration.get().to_string(),
                    job.gpus.to_string(),
                    (job.duration.get() * f64::from(job.gpus)).to_string(),
                    plain_cell(job.user.as_deref().unwrap_or("none")),
                ])?;
            }
        }
        Target::Elasticflow => {
            csv.write_record([
                "job_id",
                "submission_time",
                "num_iteration",
                "model_name",
                "deadline",
                "batch_size",
                "num_gpu",
                "duration",
            ])?;
            for job in order {
                csv.write_record([
                    plain_cell(&job.name),
                    job.submit.seconds().to_string(),
                    String::new(),
                    plain_cell(job.model.as_deref().unwrap_or_default()),
                    job.deadline.map_or_else(String::new, |due| due.seconds().to_string()),
                    job.batch.map_or_else(String::new, |batch| batch.to_string()),
                    job.gpus.to_string(),
                    job.duration.get().to_string(),
                ])?;
            }
        }
    }
    csv.flush()
}
