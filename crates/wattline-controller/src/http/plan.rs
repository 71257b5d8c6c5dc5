//! The plan in force, and plans for other clusters.

use super::Api;
use super::access::{Identity, Role};
use super::body::{self, Asked};
use super::refusal::{Answer, Refusal};
use super::rows::{placement, why};
use crate::planning::{
    self, PlanningError, PlanningLimits, SHARED_OPTIONS, action, node_action, reason_value, word,
};
use axum::extract::{Request, State};
use axum::{Extension, Json};
use wattline_api::{PlanInForce, PlanQuery, Planned, PlannedNode, PlannedRow, Problem};
use wattline_core::snapshot::{SizeLimits, Snapshot};
use wattline_core::units::Watts;

/// A forecast beside a running cluster does not go on for ever.
const STEPS: u32 = 2_000;

/// The plan in force.
#[utoipa::path(get, path = "/v1/plan", responses(
    (status = 200, body = PlanInForce), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn show(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
) -> Json<PlanInForce> {
    let read_model = api.daemon.read_model();
    let now = api.daemon.cluster_clock().now();
    let (mut jobs, mut waiting) = (Vec::new(), 0);
    for view in read_model.unfinished.iter().filter_map(|id| read_model.job(*id)) {
        let action = action(view.held.as_ref(), view.planned.as_ref());
        if action == "wait" {
            waiting += 1;
        } else if who.sees(&view.user) {
            jobs.push(PlannedRow {
                job: view.number.id,
                number: view.number.to_string(),
                action: action.to_owned(),
                runs: view.planned.as_ref().map(|planned| placement(&read_model, planned)),
                why: why(view, &who, now),
            });
        }
    }
    let nodes =
        read_model.cluster.node_ids().zip(read_model.nodes.iter()).filter_map(|(id, node)| {
            let action = node_action(node.power, node.target);
            (action != "stay").then(|| PlannedNode {
                node: read_model.cluster.node(id).name.to_string(),
                state: word(node.power),
                target: word(node.target),
                action: action.to_owned(),
                reason: reason_value(node.reason),
                why: node.reason.to_string(),
            })
        });
    Json(PlanInForce {
        schema: "wattline.plan-in-force/1".to_owned(),
        now_s: now.seconds(),
        plan: read_model.plan.0,
        policy: api.daemon.policy().to_owned(),
        committed_w: read_model.planned_committed.get(),
        budget_w: read_model.budget_now.map(Watts::get),
        jobs,
        nodes: nodes.collect(),
        waiting,
    })
}

/// Plans a view (schema `wattline.view/1`), as `wattline plan` does. Changes nothing.
#[utoipa::path(post, path = "/v1/plan", params(PlanQuery), request_body = Object, responses(
    (status = 200, body = Planned), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn plan(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
    Asked(query): Asked<PlanQuery>,
    request: Request,
) -> Answer<Json<Planned>> {
    if who.role == Role::ReadOnly {
        let help = "ask an administrator for another role";
        return Err(Refusal::forbidden("your role is read-only: you cannot plan views", help));
    }
    // A view of 4 MB takes memory too, and a client that sends it slowly must not block planning.
    let reading = api.reading.take(&who)?;
    let text = body::read(request, &api, api.limits.view).await?;
    let slot = api.planning.take(&who)?;
    drop(reading);
    let nesting = api.limits.nesting;
    let policy = query.policy.unwrap_or_else(|| "wattline".to_owned());
    let steps = query.forecast.then_some(STEPS);
    let limits = PlanningLimits {
        size: SizeLimits::SHARED,
        time: api.limits.plan,
        steps,
        options: SHARED_OPTIONS,
    };
    let planned = tokio::task::spawn_blocking(move || {
        // Until it is done, whether somebody waits for it or not.
        let _slot = slot;
        let snapshot: Snapshot = body::parse(&text, nesting)?;
        planning::plan(&snapshot, &policy, &limits).map_err(|error| match error {
            error @ PlanningError::TooLong(_) => Refusal::took_too_long(
                error.to_string(),
                "ask for less, or plan it with `wattline plan --view FILE`",
            ),
            error => Refusal::bad(
                error.to_string(),
                "correct the view; `wattline plan --example` prints a complete one",
            ),
        })
    });
    let planned = planned.await.map_err(|_| Refusal::internal("planning broke"))?;
    Ok(Json(planned?))
}
