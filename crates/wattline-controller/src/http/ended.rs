//! Jobs that have ended, looked up in the history.

use super::Api;
use super::access::Identity;
use super::refusal::{Answer, Refusal};
use super::rows::per_hour;
use crate::job_history::{EndedJob, HistoryError, JobHistory};
use std::time::Duration;
use wattline_api::JobRow;
use wattline_core::Timestamp;
use wattline_core::units::Joules;

/// The longest that a request waits for the look-ups of others.
const PATIENCE: Duration = Duration::from_secs(10);

/// Looks something up on a thread that may wait for the disk, in a share of the user's: a page may
/// have to look at every ended job, and threads are few.
pub(super) async fn look_up<T: Send + 'static>(
    api: &Api,
    who: &Identity,
    ask: impl FnOnce(&JobHistory) -> Result<T, HistoryError> + Send + 'static,
) -> Answer<T> {
    let slot = api.looking_up.wait(who, PATIENCE).await?;
    let daemon = api.daemon.clone();
    let answer = tokio::task::spawn_blocking(move || {
        // Until it is done, whether somebody waits for it or not.
        let _slot = slot;
        ask(daemon.history())
    });
    let answer = answer.await;
    let answer = answer.map_err(|_| Refusal::internal("the request broke"))?;
    answer.map_err(|error| unreadable(&error))
}

pub(super) fn unreadable(error: &HistoryError) -> Refusal {
    Refusal::unavailable(error.to_string(), "try again later")
}

pub(super) fn ended_row(job: &EndedJob) -> JobRow {
    let late = job.weight * job.tardiness();
    let missed =
        if job.ended.since(job.deadline.unwrap_or(job.ended)).get() > 0.0 { 1.0 } else { 0.0 };
    let number = job.number();
    JobRow {
        id: number.id,
        number: number.to_string(),
        name: job.name.clone(),
        user: job.user.clone(),
        workload: job.workload.clone(),
        state: if job.cancelled { "cancelled" } else { "finished" }.to_owned(),
        gpus_asked: job.gpus[0],
        gpus_bounds: [job.gpus[1], job.gpus[2]],
        gpus_held: 0,
        elasticity: job.elasticity.clone(),
        nodes: Vec::new(),
        power_limit_w: None,
        submitted_s: job.submit.seconds(),
        deadline_s: job.deadline.map(Timestamp::seconds),
        weight_eur_per_h: per_hour(job.weight),
        progress: job.done,
        start_s: job.first_start.map(Timestamp::seconds),
        finish_s: Some(job.ended.seconds()),
        start_is_past: job.first_start.is_some(),
        finish_is_past: true,
        energy_kwh: job.drawn.map(|(energy, _)| Joules::kilowatt_hours(energy)),
        cost_eur: job.drawn.map(|(_, bill)| (bill + late).get()),
        risk: job.deadline.filter(|due| *due > job.submit).map(|_| missed),
        why: why(job),
        restarts: job.restarts,
    }
}

fn why(job: &EndedJob) -> String {
    match (&job.how, job.cancelled) {
        (Some(how), true) if how != "cancelled" => format!("ended: {how}"),
        (_, true) => "was cancelled".to_owned(),
        (_, false) => "is done".to_owned(),
    }
}
