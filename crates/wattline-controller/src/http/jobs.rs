//! Jobs: listed, submitted, changed, cancelled.

use super::access::Identity;
use super::body::{Asked, Input, page_size};
use super::ended::{ended_row, look_up};
use super::refusal::{Answer, Noted, Refusal};
use super::rows::{job_row, per_hour, reach};
use super::{Api, admit};
use crate::controller::ControllerError;
use crate::daemon::{JobView, ReadModel};
use crate::job_history::{self as history, EndedJob};
use crate::job_registry::JobNumber;
use crate::journal::Store;
use crate::request_intake::Once;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use std::sync::{Arc, PoisonError};
use wattline_api::{Accepted, JobPage, JobQuery, JobRow, Problem, SubmitRequest, UpdateRequest};
use wattline_core::Timestamp;
use wattline_core::ids::JobId;

/// No more jobs than this are looked at for one page.
const MOST_LOOKED_AT: usize = 50_000;

const STATES: [&str; 8] = [
    "waiting",
    "starting",
    "running",
    "stopping",
    "on_hold",
    "backing_off",
    "finished",
    "cancelled",
];

/// Jobs, page by page.
#[utoipa::path(get, path = "/v1/jobs", params(JobQuery), responses(
    (status = 200, body = JobPage), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn list(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
    Asked(query): Asked<JobQuery>,
) -> Answer<Json<JobPage>> {
    let state = query.state.as_deref().unwrap_or("unfinished");
    if !STATES.contains(&state) && !matches!(state, "unfinished" | "all") {
        let detail =
            format!("is '{}'; known are unfinished, all, {}", clip(state), STATES.join(", "));
        return Err(Refusal::field("state", detail));
    }
    let limit = page_size(query.limit)?;
    if let Some(user) = &query.user
        && !who.sees(user)
    {
        let detail = format!("you may not see jobs of {}", clip(user));
        return Err(Refusal::forbidden(detail, "leave out `user` to see your own"));
    }
    let read_model = api.daemon.read_model();
    let now = api.daemon.cluster_clock().now();
    let first = query.after.map_or(JobId(0), |after| JobId(after.saturating_add(1)));
    let over = matches!(state, "all" | "finished" | "cancelled");
    let pending: Vec<Arc<JobView>> = pending(&api, &read_model, first);
    let mut page = Page { rows: Vec::new(), next: None, looked_at: 0, limit };
    let is_wanted = |view: &JobView| {
        let named = query.user.as_deref().is_none_or(|user| *view.user == *user);
        let fits = match state {
            "all" => true,
            "unfinished" => !view.is_over(),
            state => view.state() == state,
        };
        named && fits && who.sees(&view.user)
    };
    let cancelled = match state {
        "finished" => Some(false),
        "cancelled" => Some(true),
        _ => None,
    };
    let ended = if over {
        // Whoever sees only his own jobs asks for no others.
        let own = (!who.sees("")).then(|| who.user.to_string());
        let user = query.user.clone().or(own);
        look_up(&api, &who, move |history| {
            let user = user.as_deref();
            // One more than fits says that there are more.
            history.page(&history::Page { from: first, user, cancelled, limit: limit + 1 })
        })
        .await?
    } else {
        Vec::new()
    };
    // Both are in the order of their numbers; a job that ended just now may be in both.
    let mut ended = ended.iter().filter(|job| who.sees(&job.user)).peekable();
    let live = read_model.jobs_from(first).chain(&pending).filter(|view| over || !view.is_over());
    let _ = live.map(Some).chain([None]).try_for_each(|view| {
        let before = view.map_or(JobId(u32::MAX), |view| view.id);
        while let Some(job) = ended.next_if(|job| job.id < before) {
            page.take(job.id, true, || ended_row(job))?;
        }
        let Some(view) = view else { return Some(()) };
        if ended.peek().is_some_and(|job| job.id == view.id) {
            return Some(());
        }
        page.take(view.id, is_wanted(view), || job_row(&read_model, view, &who, now))
    });
    let Page { rows: jobs, next, .. } = page;
    let (schema, outlook) = ("wattline.queue/1".to_owned(), reach(&read_model));
    Ok(Json(JobPage { schema, now_s: now.seconds(), jobs, outlook, next }))
}

struct Page {
    rows: Vec<JobRow>,
    next: Option<u32>,
    looked_at: usize,
    limit: usize,
}

impl Page {
    /// `None`: the page is full, and more may follow.
    fn take(&mut self, id: JobId, wanted: bool, row: impl FnOnce() -> JobRow) -> Option<()> {
        if (wanted && self.rows.len() == self.limit) || self.looked_at == MOST_LOOKED_AT {
            self.next = Some(id.0.saturating_sub(1));
            return None;
        }
        self.looked_at += 1;
        if wanted {
            self.rows.push(row());
        }
        Some(())
    }
}

/// Jobs that are in no read model yet.
fn pending(api: &Api, read_model: &ReadModel, first: JobId) -> Vec<Arc<JobView>> {
    let from = first.max(JobId(read_model.job_count() as u32));
    let overlay = api.daemon.overlay();
    overlay.jobs.range(from..).map(|(_, (_, view))| Arc::clone(view)).collect()
}

/// One job.
#[utoipa::path(get, path = "/v1/jobs/{id}", params(("id" = String, Path, description = "its number")), responses(
    (status = 200, body = JobRow), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn show(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
    Path(id): Path<String>,
) -> Answer<Json<JobRow>> {
    Ok(Json(match find(&api, &who, &id).await? {
        Found::Live(read_model, view) => {
            job_row(&read_model, &view, &who, api.daemon.cluster_clock().now())
        }
        Found::Ended(job) => ended_row(&job),
    }))
}

/// A job as it is, or as it was.
pub(super) enum Found {
    /// Not over, or just now.
    Live(Arc<ReadModel>, Arc<JobView>),
    /// Over.
    Ended(Box<EndedJob>),
}

/// How somebody names a job.
enum Called {
    /// `j12`: by its number in the journal.
    InJournal(JobId),
    /// `138`, `138_4`, `138+1`: as SLURM does where the job is SLURM's.
    ByPeople(String),
}

impl Called {
    fn parse(id: &str) -> Option<Self> {
        if let Some(number) = id.strip_prefix('j') {
            return number.parse().ok().map(|number| Self::InJournal(JobId(number)));
        }
        let number = |text: &str| text.len() <= 10 && text.parse::<u32>().is_ok();
        let sound = match id.split_once(['_', '+']) {
            Some((first, second)) => number(first) && number(second),
            None => number(id),
        };
        sound.then(|| Self::ByPeople(id.to_owned()))
    }

    fn is(&self, view: &JobView) -> bool {
        match self {
            Self::InJournal(job) => view.id == *job,
            Self::ByPeople(called) => {
                *view.number.called == **called
                    || (view.number.is_slurms && view.number.id.to_string() == **called)
            }
        }
    }

    /// The number of an array means all of its tasks, also the one that has it as its own.
    fn is_a_whole_array(&self, view: &JobView) -> bool {
        let Self::ByPeople(called) = self else { return false };
        view.number.called.strip_prefix(&**called).is_some_and(|rest| rest.starts_with('_'))
    }

    /// SLURM gives numbers away again: the last job of that name.
    fn of_live(&self, read_model: &ReadModel) -> Option<Arc<JobView>> {
        match self {
            Self::InJournal(job) => read_model.job(*job).cloned(),
            Self::ByPeople(called) => {
                // A job that is not SLURM's is found by its place.
                let direct = called.parse().ok().and_then(|id| read_model.job(JobId(id)));
                let direct = direct.filter(|view| self.is(view)).cloned();
                let all = || read_model.jobs_from(JobId(0)).filter(|view| self.is(view)).last();
                direct.filter(|view| !view.number.is_slurms).or_else(|| all().cloned())
            }
        }
    }
}

/// A job that he sees. For anybody else there is none.
pub(super) async fn find(api: &Api, who: &Identity, id: &str) -> Answer<Found> {
    let shown = clip(id);
    let called = Called::parse(id).ok_or_else(|| Refusal::no_job(&shown, None))?;
    let read_model = api.daemon.read_model();
    let view = called.of_live(&read_model);
    let view = view.or_else(|| {
        let newer = pending(api, &read_model, JobId(0));
        newer.into_iter().find(|view| called.is(view))
    });
    // Between the two looks it may have moved from one to the other.
    let view = view.or_else(|| called.of_live(&api.daemon.read_model()));
    let found = match view {
        Some(view) if called.is_a_whole_array(&view) => {
            if !who.sees(&view.user) {
                return Err(Refusal::no_job(&shown, None));
            }
            return Err(Refusal::an_array(&shown, &view.number.to_string()));
        }
        Some(view) => Found::Live(read_model, view),
        None => {
            let ended = look_up(api, who, move |history| match called {
                Called::InJournal(job) => history.job(job),
                Called::ByPeople(called) => history.called(&called),
            });
            let ended = ended.await?;
            Found::Ended(Box::new(ended.ok_or_else(|| Refusal::no_job(&shown, None))?))
        }
    };
    let owner = match &found {
        Found::Live(_, view) => &*view.user,
        Found::Ended(job) => &*job.user,
    };
    if !who.sees(owner) {
        let private = format!("job {shown} belongs to {owner}");
        return Err(Refusal::no_job(&shown, Some(private)));
    }
    Ok(found)
}

/// A job that he may change, and that is not over.
async fn find_to_change(api: &Api, who: &Identity, id: &str) -> Answer<Arc<JobView>> {
    let found = find(api, who, id).await?;
    let owner = match &found {
        Found::Live(_, view) => &*view.user,
        Found::Ended(job) => &*job.user,
    };
    if !who.changes(owner) {
        let detail = format!("your role is {}: you cannot change jobs", who.role);
        return Err(Refusal::forbidden(detail, "ask an administrator for another role"));
    }
    let (job, state) = match found {
        Found::Live(_, view) if !view.is_over() => return Ok(view),
        Found::Live(_, view) => (view.number.clone(), view.state()),
        Found::Ended(job) => (job.number(), if job.cancelled { "cancelled" } else { "finished" }),
    };
    let detail = format!("job {job} is over: {state}");
    Err(Refusal::conflict(detail, "submit it again if it shall run again"))
}

/// Submits a job. It is on the disk when this is answered.
#[utoipa::path(post, path = "/v1/jobs", request_body = SubmitRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "asking again with the same key submits nothing twice")),
    responses(
        (status = 201, body = Accepted), (status = 200, body = Accepted, description = "submitted before, under the same key"),
        (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn submit(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
    headers: HeaderMap,
    input: Input<SubmitRequest>,
) -> Answer<Response> {
    let key = key(&headers, &who)?;
    let fingerprint = fingerprint(&input.text);
    let submitted = tokio::task::spawn_blocking(move || {
        submit_or_repeat(&api, &who, &input.value, key.as_deref(), fingerprint)
    });
    let once = submitted.await.map_err(|_| Refusal::internal("the request broke"))??;
    taken(once)
}

fn submit_or_repeat(
    api: &Api,
    who: &Identity,
    request: &SubmitRequest,
    key: Option<&str>,
    fingerprint: u64,
) -> Answer<Once> {
    let intake = api.daemon.intake();
    // First of all: what was answered once is answered so again, also when its deadline has
    // passed since or a limit was reached.
    if let Some(once) = key.and_then(|key| intake.asked_before(key, fingerprint)) {
        return Ok(once);
    }
    let now = api.daemon.cluster_clock().now();
    let submission = admit::submission(api, who, request, now)?;
    api.quotas.submission(&api.daemon, who, &api.access().quotas)?;
    // The view is made before the submission goes away.
    let shown = admit::view(JobId(0), &submission, &who.user);
    let once = match key {
        Some(key) => intake.submit_once(now, submission, key, fingerprint),
        None => intake.submit(now, submission).map(Once::New),
    };
    let once = once.map_err(|error| not_written(&error))?;
    if let Once::New(id) = once {
        let entries = intake.journal(Store::len);
        let view = Arc::new(JobView { id, number: JobNumber::of_journal(id), ..shown });
        let mut overlay = api.daemon.overlay();
        if api.daemon.read_model().heard < entries {
            overlay.jobs.insert(id, (entries, view));
        }
    }
    api.daemon.waker().wake();
    Ok(once)
}

/// The answer to a submission.
fn taken(once: Once) -> Answer<Response> {
    let (status, id, again) = match once {
        Once::New(id) => (StatusCode::CREATED, id, false),
        Once::Again(id) => (StatusCode::OK, id, true),
        Once::Other(id) => return Err(Refusal::other_request(id.0)),
    };
    let place = [(header::LOCATION, format!("/v1/jobs/{}", id.0))];
    let note = format!("submitted job {}{}", id.0, if again { " (again)" } else { "" });
    let number = JobNumber::of_journal(id);
    Ok(noted((status, place, Json(accepted(&number, "submitted", again))).into_response(), note))
}

/// Another deadline or weight.
#[utoipa::path(patch, path = "/v1/jobs/{id}", params(("id" = String, Path, description = "its number")), request_body = UpdateRequest, responses(
    (status = 200, body = Accepted), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn update(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
    Path(id): Path<String>,
    input: Input<UpdateRequest>,
) -> Answer<Response> {
    let view = find_to_change(&api, &who, &id).await?;
    let now = api.daemon.cluster_clock().now();
    let request = input.value;
    let (job, number) = (view.id, view.number.clone());
    let changed = tokio::task::spawn_blocking(move || -> Answer<_> {
        let _one = api.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let known = api.daemon.overlay().updates.get(&job).map(|(_, due, weight)| (*due, *weight));
        let latest = api.daemon.read_model().job(job).map(|v| (v.job.deadline, v.job.weight));
        let before = known.or(latest).unwrap_or((view.job.deadline, view.job.weight));
        let (due, weight) = admit::update(&who, &request, before, now)?;
        let intake = api.daemon.intake();
        intake.update(now, job, due, weight).map_err(|error| not_written(&error))?;
        let entries = intake.journal(Store::len);
        api.daemon.overlay().updates.insert(job, (entries, due, weight));
        api.daemon.waker().wake();
        Ok((due, weight))
    });
    let broke = |_| Refusal::internal("the request broke");
    let (due, weight) = changed.await.map_err(broke)??;
    let due = due.map_or_else(|| "none".to_owned(), |due| due.to_string());
    let note = format!("job {number}: deadline {due}, weight {} EUR/h", per_hour(weight));
    Ok(noted(Json(accepted(&number, "updated", false)).into_response(), note))
}

/// Cancels a job. A running job checkpoints first, then frees its GPUs.
#[utoipa::path(delete, path = "/v1/jobs/{id}", params(("id" = String, Path, description = "its number")), responses(
    (status = 200, body = Accepted), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn cancel(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
    Path(id): Path<String>,
) -> Answer<Response> {
    change(&api, &who, &id, "cancelled", |api, now, id| api.daemon.intake().cancel(now, id)).await
}

/// Lets a job wait until it is released.
#[utoipa::path(post, path = "/v1/jobs/{id}/hold", params(("id" = String, Path, description = "its number")), responses(
    (status = 200, body = Accepted), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn hold(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
    Path(id): Path<String>,
) -> Answer<Response> {
    hold_or_release(&api, &who, &id, true).await
}

/// Lets a job go on.
#[utoipa::path(post, path = "/v1/jobs/{id}/release", params(("id" = String, Path, description = "its number")), responses(
    (status = 200, body = Accepted), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn release(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
    Path(id): Path<String>,
) -> Answer<Response> {
    hold_or_release(&api, &who, &id, false).await
}

async fn hold_or_release(api: &Api, who: &Identity, id: &str, hold: bool) -> Answer<Response> {
    let what = if hold { "on_hold" } else { "released" };
    change(api, who, id, what, move |api, now, id| api.daemon.intake().hold(now, id, hold)).await
}

async fn change(
    api: &Api,
    who: &Identity,
    id: &str,
    what: &str,
    tell: impl FnOnce(&Api, Timestamp, JobId) -> Result<(), ControllerError> + Send + 'static,
) -> Answer<Response> {
    let view = find_to_change(api, who, id).await?;
    let (job, number) = (view.id, &view.number);
    let now = api.daemon.cluster_clock().now();
    write(api, move |api| tell(api, now, job)).await?;
    let note = format!("job {number}: {what}");
    Ok(noted(Json(accepted(number, what, false)).into_response(), note))
}

/// Writes something down on a thread that may wait for the disk, and wakes the loop.
pub(super) async fn write<T: Send + 'static>(
    api: &Api,
    tell: impl FnOnce(&Api) -> Result<T, ControllerError> + Send + 'static,
) -> Answer<T> {
    let api = api.clone();
    let told = tokio::task::spawn_blocking(move || {
        let told = tell(&api);
        api.daemon.waker().wake();
        told
    });
    let told = told.await.map_err(|_| Refusal::internal("the request broke"))?;
    told.map_err(|error| not_written(&error))
}

fn not_written(error: &ControllerError) -> Refusal {
    match error {
        ControllerError::Event(error) => Refusal::bad(error.to_string(), "correct it"),
        error => Refusal::unavailable(error.to_string(), "nothing was changed; try again later"),
    }
}

/// Marks an answer for the audit log.
pub(super) fn noted(mut response: Response, note: String) -> Response {
    response.extensions_mut().insert(Noted(note));
    response
}

fn accepted(number: &JobNumber, what: &str, again: bool) -> Accepted {
    let schema = "wattline.accepted/1".to_owned();
    let (job, number) = (number.id, number.to_string());
    Accepted { schema, job, number, what: what.to_owned(), again }
}

/// The key of a request that may come twice, with whose it is.
fn key(headers: &HeaderMap, who: &Identity) -> Answer<Option<String>> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let plain = |text: &&str| {
        (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let key = value.to_str().ok().filter(plain).ok_or_else(|| {
        let help = "use a UUID, or anything of 1 to 128 visible ASCII characters";
        Refusal::bad("the Idempotency-Key makes no sense", help)
    })?;
    // No user's name holds a colon.
    Ok(Some(format!("{}:{key}", who.user)))
}

/// Tells one body from another (FNV-1a).
fn fingerprint(text: &[u8]) -> u64 {
    text.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What somebody wrote, short enough for a message.
pub(super) fn clip(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_named_as_people_and_slurm_do() {
        for good in ["0", "138", "138_4", "138+1"] {
            assert!(matches!(Called::parse(good), Some(Called::ByPeople(_))), "{good}");
        }
        assert!(matches!(Called::parse("j12"), Some(Called::InJournal(JobId(12)))));
        for bad in
            ["", "j", "x", "138_", "_4", "138_4_5", "138+", "-1", "99999999999", "1 ", "j1_2"]
        {
            assert!(Called::parse(bad).is_none(), "{bad}");
        }
    }
}
