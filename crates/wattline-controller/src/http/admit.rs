//! From a request to a job, with everything checked.

use super::access::{Identity, Role};
use super::refusal::{Answer, Refusal};
use super::rows::{HOUR, per_hour};
use super::{Api, MOST_WEIGHT};
use crate::daemon::JobView;
use crate::job_registry::{JobNumber, Origin, Submission};
use crate::log::hidden;
use std::sync::Arc;
use wattline_api::{SubmitRequest, UpdateRequest};
use wattline_core::Timestamp;
use wattline_core::ids::{JobId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, Work, WorkRate};
use wattline_core::plan::Reason;
use wattline_core::state::{Phase, Progress};
use wattline_core::units::{EurosPerSecond, Seconds};

/// Longest name of a job, in characters.
const LONGEST_NAME: usize = 128;
/// A century.
const LONGEST: f64 = 3.2e9;

/// The job that a request asks for.
pub(super) fn submission(
    api: &Api,
    who: &Identity,
    request: &SubmitRequest,
    now: Timestamp,
) -> Answer<Submission> {
    if who.role == Role::ReadOnly {
        let help = "ask an administrator for another role";
        return Err(Refusal::forbidden("your role is read-only: you cannot submit jobs", help));
    }
    if let Some(help) = api.workloads.elsewhere() {
        return Err(Refusal::bad("jobs of this cluster are submitted to SLURM", help));
    }
    name(&request.name, "name", LONGEST_NAME)?;
    let workload = workload(api, &request.workload)?;
    let read_model = api.daemon.read_model();
    let most = read_model.cluster.total_gpus();
    let gpus = bounds(request, most)?;
    let elasticity = match &request.elasticity {
        Some(word) => word.parse().map_err(|error: wattline_core::job::UnknownElasticity| {
            Refusal::field("elasticity", error.to_string())
        })?,
        None if gpus.min < gpus.max => Elasticity::Malleable,
        None => Elasticity::Rigid,
    };
    let usual = api.workloads.usual(&request.workload);
    let batch = request.batch.unwrap_or_else(|| usual.batch.saturating_mul(gpus.requested));
    if batch == 0 || batch > 1 << 30 {
        return Err(Refusal::field("batch", format!("{batch} is not between 1 and {}", 1 << 30)));
    }
    let mut batches = Bounds::exactly(batch);
    if elasticity == Elasticity::Adaptive {
        batches.min = (batch / 4).max(1);
        batches.max = batch.saturating_mul(8);
    }
    let (work, duration) = work(request)?;
    let asked = (request.deadline_s, request.deadline_in_s);
    let job = Job {
        name: request.name.as_str().into(),
        user: who.id,
        workload,
        work,
        submit: now,
        deadline: deadline(asked, now)?,
        weight: weight(who, request.weight_eur_per_h)?,
        elasticity,
        gpus,
        batch: batches,
        restart: usual.restart,
        preemptible: request.preemptible.unwrap_or(true),
        shapes: None,
        nodes: None,
    };
    job.validate().map_err(|error| Refusal::bad(error.to_string(), "correct it"))?;
    let job = api.workloads.fit(job, duration).ok_or_else(|| {
        let detail = "no node of this cluster can run it with these GPUs and this batch";
        Refusal::bad(detail, "ask for other GPUs or another batch; GET /v1/nodes lists the nodes")
    })?;
    job.validate().map_err(|error| Refusal::bad(error.to_string(), "correct it"))?;
    let origin = Origin { user: (*who.user).into(), slurm: None };
    let workload = Some(request.workload.as_str().into());
    let origin = Some(origin);
    Ok(Submission { job, workload, origin, hold: false, host: None, bars: None, priority: None })
}

/// How a job looks before the engine has heard of it.
pub(super) fn view(id: JobId, submission: &Submission, user: &Arc<str>) -> JobView {
    let job = Arc::new(submission.job.clone());
    JobView {
        id,
        number: JobNumber::of_journal(id),
        user: Arc::clone(user),
        workload: submission.workload.as_deref().unwrap_or_default().into(),
        phase: Phase::Waiting,
        on_hold: false,
        cancelled: false,
        planned: None,
        held: None,
        progress: Progress { done: Work::ZERO, as_of: job.submit, rate: WorkRate(0.0) },
        first_start: None,
        ended: None,
        restarts: 0,
        reason: Reason::Arrived,
        refused: None,
        restart_hold: None,
        gave_way_to: None,
        priority: None,
        account: None,
        energy: None,
        bill: None,
        job,
    }
}

/// Names are shown to people: nothing in them may move a cursor or turn text around.
fn name(text: &str, field: &str, most: usize) -> Answer<()> {
    if let Some(bad) = hidden(text) {
        let detail = format!("holds the character {}, which cannot be shown", bad.escape_unicode());
        return Err(Refusal::field(field, detail));
    }
    let length = text.chars().count();
    if text.trim().is_empty() || length > most {
        let detail = format!("has {length} characters, it must have 1 to {most}");
        return Err(Refusal::field(field, detail));
    }
    Ok(())
}

fn workload(api: &Api, text: &str) -> Answer<WorkloadId> {
    name(text, "workload", LONGEST_NAME)?;
    match api.workloads.names() {
        // Whoever takes any name gives it an id when it is written down.
        None => Ok(WorkloadId(0)),
        Some(names) => api.workloads.find(text).ok_or_else(|| {
            let shown: Vec<String> = names.into_iter().take(40).collect();
            let detail = format!("'{text}' is not known here; known are {}", shown.join(", "));
            Refusal::field("workload", detail)
        }),
    }
}

fn bounds(request: &SubmitRequest, most: u32) -> Answer<Bounds> {
    let SubmitRequest { gpus, min_gpus, max_gpus, .. } = request;
    let within = |field: &str, value: u32| {
        if (1..=most).contains(&value) {
            return Ok(value);
        }
        let detail = format!("{value} is not between 1 and {most}, all GPUs there are");
        Err(Refusal::field(field, detail))
    };
    let requested = within("gpus", *gpus)?;
    let min = within("min_gpus", min_gpus.unwrap_or(requested))?;
    let max = within("max_gpus", max_gpus.unwrap_or(requested))?;
    if min > requested {
        return Err(Refusal::field("min_gpus", format!("{min} is more than gpus, {requested}")));
    }
    if max < requested {
        return Err(Refusal::field("max_gpus", format!("{max} is less than gpus, {requested}")));
    }
    Ok(Bounds { min, max, requested })
}

fn work(request: &SubmitRequest) -> Answer<(Work, Option<Seconds>)> {
    let sound = |field: &str, value: f64, most: f64| {
        if value > 0.0 && value <= most {
            return Ok(value);
        }
        Err(Refusal::field(field, format!("{value} is not above 0 and at most {most}")))
    };
    match (request.work, request.duration_s) {
        (Some(work), None) => Ok((Work(sound("work", work, 1e18)?), None)),
        (None, Some(time)) => {
            let time = Seconds::new(sound("duration_s", time, LONGEST)?);
            Ok((Work::ZERO, Some(time)))
        }
        (Some(_), Some(_)) => Err(Refusal::field("work", "give work or duration_s, not both")),
        (None, None) => {
            Err(Refusal::field("work", "say how much there is to do: work or duration_s"))
        }
    }
}

/// A deadline, at a time or so long from now.
fn deadline(asked: (Option<f64>, Option<f64>), now: Timestamp) -> Answer<Option<Timestamp>> {
    let (field, due) = match asked {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(Refusal::field("deadline_s", "give deadline_s or deadline_in_s, not both"));
        }
        (Some(at), None) => ("deadline_s", at),
        (None, Some(after)) if (0.0..=LONGEST).contains(&after) => {
            return Ok(Some(now + Seconds::new(after)));
        }
        (None, Some(after)) => {
            let detail = format!("{after} is not between 0 and a century");
            return Err(Refusal::field("deadline_in_s", detail));
        }
    };
    if !(due.is_finite() && due.abs() < 1e11) {
        return Err(Refusal::field(field, format!("{due} is not a time")));
    }
    let due = Timestamp::from_seconds(due);
    if due < now {
        let early = now.since(due);
        let detail = format!("lies {early:.0} in the past (the cluster's clock shows {now})");
        return Err(Refusal::field(field, detail));
    }
    Ok(Some(due))
}

fn weight(who: &Identity, asked: Option<f64>) -> Answer<EurosPerSecond> {
    let asked = asked.unwrap_or_else(|| {
        // Who says nothing gets the usual, if he may have that much.
        who.max_weight.map_or(1.0, |limit| per_hour(limit).min(1.0))
    });
    if !(0.0..=MOST_WEIGHT).contains(&asked) {
        let detail = format!("{asked} is not between 0 and a milliard");
        return Err(Refusal::field("weight_eur_per_h", detail));
    }
    if let Some(limit) = who.max_weight
        && asked > per_hour(limit) * (1.0 + 1e-12)
    {
        let limit = per_hour(limit);
        let detail = format!("a weight of {asked} EUR/h is above your limit of {limit} EUR/h");
        let help = "ask for less, or ask an administrator to set the weight";
        return Err(Refusal::forbidden(detail, help));
    }
    Ok(EurosPerSecond::new(asked / HOUR))
}

/// What a job's deadline and weight shall be.
pub(super) fn update(
    who: &Identity,
    request: &UpdateRequest,
    before: (Option<Timestamp>, EurosPerSecond),
    now: Timestamp,
) -> Answer<(Option<Timestamp>, EurosPerSecond)> {
    let asked = (request.deadline_s, request.deadline_in_s);
    let names_one = asked != (None, None);
    if !names_one && !request.no_deadline && request.weight_eur_per_h.is_none() {
        let help = "name a deadline or a weight";
        return Err(Refusal::bad("nothing is to be changed", help));
    }
    if names_one && request.no_deadline {
        return Err(Refusal::field("no_deadline", "a deadline and none: give one of them"));
    }
    let due = match deadline(asked, now)? {
        Some(due) => Some(due),
        None if request.no_deadline => None,
        None => before.0,
    };
    let weight = match request.weight_eur_per_h {
        Some(asked) => weight(who, Some(asked))?,
        None => before.1,
    };
    Ok((due, weight))
}
