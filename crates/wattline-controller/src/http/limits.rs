//! The limits of whoever asks, and how much of them he uses.

use super::Api;
use super::access::{Identity, Role};
use super::rows::per_hour;
use axum::extract::State;
use axum::{Extension, Json};
use wattline_api::{LimitRow, Limits, Problem};

/// Your limits, and how much of them you use. Administrators have few.
#[utoipa::path(get, path = "/v1/limits", responses(
    (status = 200, body = Limits), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn show(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
) -> Json<Limits> {
    let row = |(limit, used): (usize, usize)| LimitRow {
        limit: Some(limit as f64),
        used: Some(used as f64),
    };
    let access = api.access();
    let weight = (who.role != Role::Admin).then(|| who.max_weight.map(per_hour)).flatten();
    Json(Limits {
        schema: "wattline.limits/1".to_owned(),
        user: who.user.to_string(),
        role: who.role.to_string(),
        jobs_waiting: api.quotas.waiting(&api.daemon, &who),
        jobs_per_minute: api.quotas.submitted(&who),
        requests_per_second: api.quotas.requested(&who),
        weight_eur_per_h: LimitRow { limit: weight, used: None },
        views_at_a_time: row(api.planning.of(&who)),
        reports_at_a_time: row(api.reporting.of(&who)),
        questions_at_a_time: row(api.questions.of(&who)),
        event_streams: row((api.limits.streams_each, api.streams_of(&who.user))),
        accounts: api.quotas.accounts(&who, &access.quotas),
    })
}
