//! What the policy would do.

use super::Api;
use super::access::{Identity, Role};
use super::explain::{LONGEST_FORECAST, ask};
use super::refusal::{Answer, Refusal};
use crate::advice::advise;
use axum::extract::State;
use axum::{Extension, Json};
use std::time::Instant;
use wattline_api::{Advice, Problem};

/// What the policy would do now about the whole cluster, and what would come of it. Nothing is
/// done. Not for users: it names others' jobs.
#[utoipa::path(get, path = "/v1/advice", responses(
    (status = 200, body = Advice), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn show(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
) -> Answer<Json<Advice>> {
    if who.role == Role::User {
        let detail = "your role is user: advice is about everybody's jobs";
        return Err(Refusal::forbidden(detail, "ask an administrator"));
    }
    let name = api.daemon.policy().to_owned();
    let advice = ask(&api, &who, move |inside| {
        let began = Instant::now();
        let in_time = || began.elapsed() < LONGEST_FORECAST;
        let policy = (name.as_str(), (inside.policy)(), inside.effort);
        advise(inside.engine, inside.registry, policy, inside.now, Some(&in_time))
    });
    Ok(Json(advice.await?))
}
