//! Why, and what if: what needs the engine itself.

use super::access::{Identity, Role};
use super::body::Input;
use super::ended::ended_row;
use super::jobs::{Found, find};
use super::refusal::{Answer, Refusal};
use super::rows::{job_row, per_hour, placement};
use super::{Api, admit};
use crate::daemon::{Effort, Inside, JobView, chance_of_more};
use crate::job_registry::Priority;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use std::sync::Arc;
use std::time::Duration;
use wattline_api::{Choice, Explanation, Problem, SubmitRequest, WeightParts, WhatIf};
use wattline_core::Timestamp;
use wattline_core::engine::Event;
use wattline_core::forecast::{Horizon, roll_forward};
use wattline_core::ids::JobId;
use wattline_core::job::Job;
use wattline_core::units::{Joules, Seconds};

/// Whoever asks what if has a little patience, and whoever else asks waits for him; the loop does
/// not.
pub(super) const LONGEST_FORECAST: Duration = Duration::from_secs(3);
/// Shapes that are shown.
const MOST_CHOICES: usize = 64;

/// Why a job is planned as it is, and what else it could be.
#[utoipa::path(get, path = "/v1/jobs/{id}/explain", params(("id" = String, Path, description = "its number")), responses(
    (status = 200, body = Explanation), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn explain(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
    Path(id): Path<String>,
) -> Answer<Json<Explanation>> {
    let now = api.daemon.cluster_clock().now();
    let (read_model, view) = match find(&api, &who, &id).await? {
        Found::Live(read_model, view) => (read_model, view),
        Found::Ended(job) => {
            return Ok(Json(Explanation {
                schema: "wattline.explain/1".to_owned(),
                now_s: now.seconds(),
                plan: api.daemon.read_model().plan.0,
                job: ended_row(&job),
                holds: None,
                planned: None,
                outlook: "it is over".to_owned(),
                weight: None,
                options: Vec::new(),
            }));
        }
    };
    let job = view.id;
    let options = if view.is_over() {
        Vec::new()
    } else {
        ask(&api, &who, move |inside| choices(inside, job)).await?
    };
    let outlook = &read_model.outlook;
    let known = outlook.jobs.get(&job).is_some_and(|one| one.end.is_some());
    let made = now.since(outlook.at);
    let reach = match (view.is_over(), known, outlook.reach.is_empty()) {
        (true, ..) => "it is over".to_owned(),
        (_, _, true) => "nothing was foreseen yet".to_owned(),
        (_, true, _) => format!("foreseen {made:.0} ago; {}", outlook.reach),
        (_, false, _) => format!("its end is not foreseen; {}", outlook.reach),
    };
    Ok(Json(Explanation {
        schema: "wattline.explain/1".to_owned(),
        now_s: now.seconds(),
        plan: read_model.plan.0,
        job: job_row(&read_model, &view, &who, now),
        holds: view.held.as_ref().map(|held| placement(&read_model, held)),
        planned: view.planned.as_ref().map(|planned| placement(&read_model, planned)),
        outlook: reach,
        weight: weight(&view),
        options,
    }))
}

fn weight(view: &JobView) -> Option<WeightParts> {
    let Priority { weight, qos, qos_factor, fairshare, fairshare_factor } =
        Priority::clone(view.priority.as_ref()?);
    Some(WeightParts {
        said_eur_per_h: per_hour(weight),
        qos: qos.map(String::from),
        qos_factor,
        account: view.account.as_deref().map(str::to_owned),
        fairshare,
        fairshare_factor,
    })
}

fn choices(inside: &Inside<'_>, id: JobId) -> Vec<Choice> {
    let state = inside.engine.state();
    // It may be written down and not heard yet.
    let Some(job) = state.find_job(id) else { return Vec::new() };
    let left = job.remaining(inside.now);
    let shapes = state.menu(job.menu).iter().take(MOST_CHOICES);
    let choice = |shape: &wattline_core::cluster::Shape| {
        let configuration = state.cluster().plain_configuration(&job.job, *shape);
        let predicted = inside.engine.predictor().predict(&job.job, &configuration);
        let time = predicted.map(|p| left / p.rate).filter(|time| time.is_finite());
        let power = predicted.map(|p| p.power * f64::from(shape.gpus));
        let between = |p: wattline_core::predictor::Prediction| {
            time.map(|time| [time.get() * p.time_low, time.get() * p.time_high])
        };
        Choice {
            gpu: state.cluster().gpu_type(shape.gpu_type).name.to_string(),
            gpus: shape.gpus,
            left_s: time.map(Seconds::get),
            left_between_s: predicted.and_then(between),
            power_w: power.map(wattline_core::units::Watts::get),
            energy_kwh: power.zip(time).map(|(power, time)| (power * time).kilowatt_hours()),
            measurements: predicted.map_or(0, |p| p.measurements),
        }
    };
    shapes.map(choice).collect()
}

/// What a submission would get. Nothing is submitted.
#[utoipa::path(post, path = "/v1/whatif", request_body = SubmitRequest, responses(
    (status = 200, body = WhatIf), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn what_if(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
    input: Input<SubmitRequest>,
) -> Answer<Json<WhatIf>> {
    let now = api.daemon.cluster_clock().now();
    let submission = admit::submission(&api, &who, &input.value, now)?;
    let known = api.workloads.names().is_some();
    let workload = submission.workload.clone().unwrap_or_default();
    let answer = ask(&api, &who, move |inside| {
        let mut job = submission.job;
        match inside.registry.find_workload(&workload) {
            Some(id) => job.workload = id,
            None if known => {}
            None => return nothing(inside.now, "nobody has measured this workload yet"),
        }
        foresee(inside, job)
    });
    Ok(Json(answer.await?))
}

fn nothing(now: Timestamp, why: &str) -> WhatIf {
    WhatIf {
        schema: "wattline.whatif/1".to_owned(),
        now_s: now.seconds(),
        foreseen: false,
        start_s: None,
        finish_s: None,
        late_s: None,
        energy_kwh: None,
        cost_eur: None,
        risk: None,
        text: format!("not foreseen: {why}"),
    }
}

fn foresee(inside: &Inside<'_>, mut job: Job) -> WhatIf {
    let now = inside.now;
    job.submit = now;
    let id = JobId(inside.engine.state().job_count() as u32);
    let job = Arc::new(job);
    let mut fork = inside.engine.fork((inside.policy)());
    fork.set_effort(inside.effort);
    if let Err(error) = fork.handle(now, Event::Submitted(Arc::clone(&job))) {
        return nothing(now, &error.to_string());
    }
    let effort = Effort::new(&fork, now, LONGEST_FORECAST, &|| true);
    let (go_on, apart) = (|| effort.goes_on(), |looked, left| effort.apart(looked, left));
    let asked = [id];
    let horizon = Horizon { go_on: &go_on, apart: &apart, ..Horizon::ended(&asked) };
    let seen = roll_forward(fork, now, &horizon);
    let Some((one, end)) = seen.job(id).and_then(|one| Some((*one, one.end?))) else {
        let far = seen.until.since(now);
        return nothing(now, &format!("it does not end within the {far:.0} that were looked at"));
    };
    let start = one.start.unwrap_or(now);
    let state = inside.engine.state();
    let shape = state.cluster().menu(&job).iter().copied().find(|s| s.gpus == job.gpus.requested);
    let configuration = shape.map(|shape| state.cluster().plain_configuration(&job, shape));
    let predicted = configuration.and_then(|c| inside.engine.predictor().predict(&job, &c));
    let risk = job.deadline.zip(predicted).map(|(deadline, prediction)| {
        chance_of_more(&prediction, end.since(start), deadline.since(start))
    });
    WhatIf {
        foreseen: true,
        start_s: one.start.map(Timestamp::seconds),
        finish_s: Some(end.seconds()),
        late_s: Some(job.tardiness(end).get()),
        energy_kwh: Some(Joules::kilowatt_hours(one.energy)),
        cost_eur: Some(one.cost().get()),
        risk,
        text: format!(
            "would start in {:.0} and be done in {:.0}, for {:.2}",
            start.since(now),
            end.since(now),
            one.cost()
        ),
        ..nothing(now, "")
    }
}

/// Asks whoever answers beside the loop, and waits for the answer.
pub(super) async fn ask<T: Send + 'static>(
    api: &Api,
    who: &Identity,
    question: impl FnOnce(&Inside<'_>) -> T + Send + 'static,
) -> Answer<T> {
    let (tell, told) = tokio::sync::oneshot::channel();
    let slot = api.questions.take(who)?;
    let user = (who.role != Role::Admin).then_some(&who.user);
    let asked = api.daemon.ask(
        user,
        Box::new(move |inside| {
            // Until it is answered, whether somebody waits for it or not.
            let _slot = slot;
            // Whoever asked may be gone.
            if !tell.is_closed() {
                let _ = tell.send(question(inside));
            }
        }),
    );
    let busy = || Refusal::unavailable("the controller is busy planning", "try again in a moment");
    if !asked {
        return Err(busy());
    }
    match tokio::time::timeout(api.limits.answer, told).await {
        Ok(Ok(answer)) => Ok(answer),
        _ => Err(busy()),
    }
}
