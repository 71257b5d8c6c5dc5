//! The power budget.

use super::Api;
use super::access::{Identity, Role};
use super::body::{Asked, Input};
use super::budget_forecast::forecast;
use super::explain::ask;
use super::jobs::{noted, write};
use super::refusal::{Answer, Refusal};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;
use utoipa::ToSchema;
use wattline_api::{Budget, BudgetForecast, BudgetQuery, BudgetRequest, Problem};
use wattline_core::calendar::{Calendar, Rule};
use wattline_core::snapshot::Changing;
use wattline_core::units::Watts;

/// Most rules of a calendar.
const MOST_RULES: usize = 200;

/// The budget in force.
#[utoipa::path(get, path = "/v1/budget", responses(
    (status = 200, body = Budget), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn show(State(api): State<Api>) -> Json<Budget> {
    let read_model = api.daemon.read_model();
    Json(Budget {
        schema: "wattline.budget/1".to_owned(),
        now_s: api.daemon.cluster_clock().now().seconds(),
        now_w: read_model.budget_now.map(Watts::get),
        committed_w: read_model.committed.get(),
        drawn_w: read_model.drawn.map(Watts::get),
        peak_w: read_model.cluster.peak_power().get(),
        calendar: read_model.budget.as_ref().map(written),
    })
}

/// Sets another budget. Only administrators may. With `dry_run`, in the query or in the body, nothing
/// changes, and the answer is a `BudgetForecast`: what the budget would do.
#[utoipa::path(put, path = "/v1/budget", params(BudgetQuery), request_body = BudgetRequest, responses(
    (status = 200, body = inline(SetAnswer)), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn set(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
    query: Asked<BudgetQuery>,
    input: Input<BudgetRequest>,
) -> Answer<Response> {
    if who.role != Role::Admin {
        let detail = format!("your role is {}: only an administrator sets the budget", who.role);
        return Err(Refusal::forbidden(detail, "ask an administrator"));
    }
    let calendar = input.value.calendar.as_ref().map(calendar).transpose()?;
    if query.0.dry_run || input.value.dry_run {
        let forecast = ask(&api, &who, move |inside| forecast(inside, calendar.as_ref())).await?;
        return Ok(Json(SetAnswer::Forecast(Box::new(forecast))).into_response());
    }
    let now = api.daemon.cluster_clock().now();
    let (at_once, budget) = (calendar.as_ref().map(|c| c.at(now)), calendar.clone());
    write(&api, move |api| api.daemon.intake().set_budget(now, budget)).await?;
    let note = at_once.map_or_else(
        || "the budget was taken away".to_owned(),
        |watts| format!("the budget was set: {watts:.1} now"),
    );
    let answer = BudgetRequest { calendar: calendar.as_ref().map(written), dry_run: false };
    Ok(noted(Json(SetAnswer::Set(answer)).into_response(), note))
}

/// What was set, or what setting it would do.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum SetAnswer {
    Set(BudgetRequest),
    Forecast(Box<BudgetForecast>),
}

fn calendar(changing: &Changing) -> Answer<Calendar<Watts>> {
    let watts = |field: String, value: f64| {
        if value.is_finite() && (0.0..=1e12).contains(&value) {
            return Ok(Watts::new(value));
        }
        Err(Refusal::field(&field, format!("{value} is not a power in watts")))
    };
    if changing.rules.len() > MOST_RULES {
        let detail = format!("has {} rules, {MOST_RULES} are enough", changing.rules.len());
        return Err(Refusal::field("calendar.rules", detail));
    }
    let default = watts("calendar.value".to_owned(), changing.value)?;
    let mut rules = Vec::new();
    for (at, rule) in changing.rules.iter().enumerate() {
        let Rule { days, from, to, value } = rule.clone();
        let value = watts(format!("calendar.rules[{at}].value"), value)?;
        rules.push(Rule { days, from, to, value });
    }
    let made = Calendar::from_rules(default, &rules, changing.utc_offset);
    made.map_err(|error| Refusal::field("calendar.rules", error.to_string()))
}

fn written(calendar: &Calendar<Watts>) -> Changing {
    let (value, rules, utc_offset) = calendar.rules();
    let rule = |rule: Rule<Watts>| {
        let Rule { days, from, to, value } = rule;
        Rule { days, from, to, value: value.get() }
    };
    Changing { value: value.get(), rules: rules.into_iter().map(rule).collect(), utc_offset }
}
