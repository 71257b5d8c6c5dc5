//! The API's description.

use super::{advice, budget, events, explain, jobs, metrics, nodes, plan, reports, status};
use axum::Json;
use utoipa::OpenApi;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Wattline",
        description = "Energy-aware scheduling of deep-learning training. Unix socket: the kernel says who asks. TCP: send a bearer token."
    ),
    paths(
        jobs::list,
        jobs::submit,
        jobs::show,
        jobs::update,
        jobs::cancel,
        jobs::hold,
        jobs::release,
        explain::explain,
        explain::what_if,
        nodes::list,
        plan::show,
        plan::plan,
        budget::show,
        budget::set,
        reports::show,
        advice::show,
        events::stream,
        status::show,
        status::health,
        metrics::show,
        show,
    )
)]
struct Document;

/// The description of all paths, in OpenAPI.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

/// This description. Anybody may ask.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, body = Object)))]
pub(super) async fn show() -> Json<utoipa::openapi::OpenApi> {
    Json(document())
}
