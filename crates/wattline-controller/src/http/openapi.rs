//! The API's description.

use super::{advice, budget, events, explain, jobs, limits, metrics, nodes, plan, reports, status};
use axum::body::Bytes;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::sync::OnceLock;
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
        limits::show,
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
pub(super) async fn show() -> Response {
    /// Made once: anybody may ask for it as often as he likes.
    static TEXT: OnceLock<Bytes> = OnceLock::new();
    let text = TEXT.get_or_init(|| serde_json::to_vec(&document()).unwrap_or_default().into());
    ([(header::CONTENT_TYPE, "application/json")], text.clone()).into_response()
}
