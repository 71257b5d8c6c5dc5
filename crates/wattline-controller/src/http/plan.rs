//! The plan in force, and plans for other clusters.

use super::Api;
use super::access::{Identity, Role};
use super::body::{self, Asked};
use super::refusal::{Answer, Refusal};
use super::rows::{placement, why};
use crate::planning::{self, action, node_action, reason_value, word};
use axum::extract::{Request, State};
use axum::{Extension, Json};
use wattline_api::{PlanInForce, PlanQuery, Planned, PlannedNode, PlannedRow, Problem};
use wattline_core::snapshot::Snapshot;
use wattline_core::units::Watts;

/// Most jobs and nodes of a view that is planned here.
const MOST_JOBS: usize = 5_000;
const MOST_NODES: usize = 2_000;
/// A forecast beside a running cluster does not go on for ever.
const STEPS: u32 = 2_000;

/// The plan in force.
#[utoipa::path(get, path = "/v1/plan", responses(
    (status = 200, body = PlanInForce), (status = "default", body = Problem)
))]
pub(super) async fn show(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
) -> Json<PlanInForce> {
    let picture = api.daemon.picture();
    let now = api.daemon.pace().now();
    let (mut jobs, mut waiting) = (Vec::new(), 0);
    for view in picture.unfinished.iter().filter_map(|id| picture.job(*id)) {
        let action = action(view.held.as_ref(), view.planned.as_ref());
        if action == "wait" {
            waiting += 1;
        } else if who.sees(&view.user) {
            jobs.push(PlannedRow {
                job: view.id.0,
                action: action.to_owned(),
                runs: view.planned.as_ref().map(|planned| placement(&picture, planned)),
                why: why(view, &who, now),
            });
        }
    }
    let nodes = picture.cluster.node_ids().zip(picture.nodes.iter()).filter_map(|(id, node)| {
        let action = node_action(node.power, node.target);
        (action != "stay").then(|| PlannedNode {
            node: picture.cluster.node(id).name.to_string(),
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
        plan: picture.plan.0,
        policy: api.daemon.policy().to_owned(),
        committed_w: picture.planned_committed.get(),
        budget_w: picture.budget_now.map(Watts::get),
        jobs,
        nodes: nodes.collect(),
        waiting,
    })
}

/// Plans a view (schema `wattline.view/1`), as `wattline plan` does. Changes nothing.
#[utoipa::path(post, path = "/v1/plan", params(PlanQuery), request_body = Object, responses(
    (status = 200, body = Planned), (status = "default", body = Problem)
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
    let text = body::read(request, &api, api.limits.view).await?;
    let snapshot: Snapshot = body::parse(&text, api.limits.nesting)?;
    let (jobs, nodes) = (snapshot.jobs.len(), snapshot.nodes.len());
    if jobs > MOST_JOBS || nodes > MOST_NODES {
        let detail = format!(
            "the view has {jobs} jobs and {nodes} nodes; {MOST_JOBS} and {MOST_NODES} are the most that are planned here"
        );
        return Err(Refusal::bad(detail, "plan it with `wattline plan --view FILE`"));
    }
    let busy = || Refusal::unavailable("another view is being planned", "try again in a moment");
    let slot = api.planning.try_acquire().map_err(|_| busy())?;
    let policy = query.policy.unwrap_or_else(|| "wattline".to_owned());
    let steps = query.forecast.then_some(STEPS);
    let planned =
        tokio::task::spawn_blocking(move || planning::plan(&snapshot, &policy, steps)).await;
    drop(slot);
    let planned = planned.map_err(|_| Refusal::internal("planning broke"))?;
    let planned = planned.map_err(|error| {
        Refusal::bad(error.to_string(), "`wattline plan --example` prints a complete view")
    })?;
    Ok(Json(planned))
}
