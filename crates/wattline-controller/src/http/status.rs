//! How things are.

use super::Api;
use super::access::Identity;
use super::rows::per_hour;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use std::time::Duration;
use wattline_api::{Problem, Status};
use wattline_core::power::NodePower;
use wattline_core::units::Watts;

/// A loop that has not been round for so long is stuck.
const STUCK: Duration = Duration::from_secs(30);

/// How things are.
#[utoipa::path(get, path = "/v1/status", responses(
    (status = 200, body = Status), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn show(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
) -> Json<Status> {
    let picture = api.daemon.picture();
    let is = |power: NodePower| picture.nodes.iter().filter(|node| node.power == power).count();
    let unfinished = picture.unfinished.len();
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    Json(Status {
        schema: "wattline.status/1".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        now_s: api.daemon.pace().now().seconds(),
        speed: api.daemon.pace().speed(),
        policy: api.daemon.policy().to_owned(),
        waiting: unfinished.saturating_sub(picture.running),
        running: picture.running,
        finished: picture.job_count() - unfinished,
        gpus: picture.cluster.total_gpus(),
        gpus_held: picture.nodes.iter().map(|node| node.gpus_held).sum(),
        nodes_up: is(NodePower::Up),
        nodes_asleep: is(NodePower::Asleep),
        nodes: picture.nodes.len(),
        drawn_w: picture.drawn.map(Watts::get),
        committed_w: picture.committed.get(),
        budget_w: picture.budget_now.map(Watts::get),
        plans: picture.stats.plans,
        plan: picture.plan.0,
        journal: picture.heard,
        turn_max_ms: milliseconds(picture.turns.quantile(1.0)),
        turn_p99_ms: milliseconds(picture.turns.quantile(0.99)),
        troubles: picture.troubles.to_vec(),
        you: who.user.to_string(),
        role: who.role.to_string(),
        max_weight_eur_per_h: who.max_weight.map(per_hour),
        workloads: api.workloads.names(),
    })
}

/// Whether it is well: 200 if so, 503 if not. Anybody may ask.
#[utoipa::path(get, path = "/healthz", responses(
    (status = 200, body = String, content_type = "text/plain"),
    (status = 503, body = String, content_type = "text/plain")
))]
pub(super) async fn health(State(api): State<Api>) -> Response {
    let picture = api.daemon.picture();
    if !picture.troubles.is_empty() {
        return (StatusCode::SERVICE_UNAVAILABLE, "in trouble\n").into_response();
    }
    if picture.painted.elapsed() > STUCK {
        return (StatusCode::SERVICE_UNAVAILABLE, "stuck\n").into_response();
    }
    "ok\n".into_response()
}
