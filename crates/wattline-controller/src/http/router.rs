//! All paths.

use super::refusal::Refusal;
use super::{
    Api, advice, budget, events, explain, guard, jobs, limits, metrics, nodes, openapi, plan,
    reports, status,
};
use axum::Router;
use axum::http::{HeaderValue, header};
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::set_header::SetResponseHeaderLayer;

pub(super) fn router(api: &Api) -> Router {
    let fixed =
        |name, value| SetResponseHeaderLayer::if_not_present(name, HeaderValue::from_static(value));
    let broke = |_: Box<dyn std::any::Any + Send>| {
        Refusal::internal("the request broke the handler").into_response()
    };
    Router::new()
        .route("/v1/jobs", get(jobs::list).post(jobs::submit))
        .route("/v1/jobs/{id}", get(jobs::show).patch(jobs::update).delete(jobs::cancel))
        .route("/v1/jobs/{id}/hold", post(jobs::hold))
        .route("/v1/jobs/{id}/release", post(jobs::release))
        .route("/v1/jobs/{id}/explain", get(explain::explain))
        .route("/v1/nodes", get(nodes::list))
        .route("/v1/plan", get(plan::show).post(plan::plan))
        .route("/v1/budget", get(budget::show).put(budget::set))
        .route("/v1/whatif", post(explain::what_if))
        .route("/v1/reports", get(reports::show))
        .route("/v1/advice", get(advice::show))
        .route("/v1/limits", get(limits::show))
        .route("/v1/events", get(events::stream))
        .route("/v1/status", get(status::show))
        .route("/metrics", get(metrics::show))
        .route("/healthz", get(status::health))
        .route("/openapi.json", get(openapi::show))
        .fallback(async || Refusal::no_path())
        .method_not_allowed_fallback(async || Refusal::no_method())
        .layer(CatchPanicLayer::custom(broke))
        .layer(from_fn_with_state(api.clone(), guard::guard))
        // What users write must not be taken for a page.
        .layer(fixed(header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .layer(fixed(header::CACHE_CONTROL, "no-store"))
        .with_state(api.clone())
}
