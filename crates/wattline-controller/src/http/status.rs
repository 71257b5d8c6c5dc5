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
    let read_model = api.daemon.read_model();
    let is = |power: NodePower| read_model.nodes.iter().filter(|node| node.power == power).count();
    let unfinished = read_model.unfinished.len();
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    Json(Status {
        schema: "wattline.status/1".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        now_s: api.daemon.cluster_clock().now().seconds(),
        speed: api.daemon.cluster_clock().speed(),
        policy: api.daemon.policy().to_owned(),
        waiting: unfinished.saturating_sub(read_model.running),
        running: read_model.running,
        finished: read_model.job_count() - unfinished,
        gpus: read_model.cluster.total_gpus(),
        gpus_held: read_model.nodes.iter().map(|node| node.gpus_held).sum(),
        nodes_up: is(NodePower::Up),
        nodes_asleep: is(NodePower::Asleep),
        nodes: read_model.nodes.len(),
        drawn_w: read_model.drawn.map(Watts::get),
        committed_w: read_model.committed.get(),
        budget_w: read_model.budget_now.map(Watts::get),
        plans: read_model.stats.plans,
        plan: read_model.plan.0,
        journal: read_model.heard,
        turn_max_ms: milliseconds(read_model.turns.quantile(1.0)),
        turn_p99_ms: milliseconds(read_model.turns.quantile(0.99)),
        troubles: read_model.troubles.to_vec(),
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
    let read_model = api.daemon.read_model();
    if !read_model.troubles.is_empty() {
        return (StatusCode::SERVICE_UNAVAILABLE, "in trouble\n").into_response();
    }
    if read_model.built.elapsed() > STUCK {
        return (StatusCode::SERVICE_UNAVAILABLE, "stuck\n").into_response();
    }
    "ok\n".into_response()
}
