//! Why something was not done, for whoever asked and for the audit log.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use wattline_api::{PROBLEM, Problem};

/// A refusal.
#[derive(Debug)]
pub(super) struct Refusal {
    problem: Box<Problem>,
    /// What only the audit log says.
    private: Option<String>,
    retry_after: Option<f64>,
}

/// For the audit log.
#[derive(Clone, Debug)]
pub(super) struct Noted(pub(super) String);

pub(super) type Answer<T> = Result<T, Refusal>;

impl Refusal {
    fn new(status: StatusCode, kind: &str, title: &str, detail: String, help: &str) -> Self {
        let problem = Problem {
            kind: format!("urn:wattline:problem:{kind}"),
            title: title.to_owned(),
            status: status.as_u16(),
            detail,
            help: help.to_owned(),
            field: None,
        };
        Self { problem: Box::new(problem), private: None, retry_after: None }
    }

    /// A request that makes no sense.
    pub(super) fn bad(detail: impl Into<String>, help: &str) -> Self {
        let title = "The request makes no sense";
        Self::new(StatusCode::BAD_REQUEST, "bad-request", title, detail.into(), help)
    }

    /// A field that makes no sense.
    pub(super) fn field(field: &str, detail: impl Into<String>) -> Self {
        let help = "correct the field and send it again; /openapi.json describes all fields";
        let detail = format!("field `{field}`: {}", detail.into());
        Self::bad(detail, help).of(field)
    }

    fn of(mut self, field: &str) -> Self {
        self.problem.field = Some(field.to_owned());
        self
    }

    /// Nobody knows who asks.
    pub(super) fn unknown_caller(detail: &str) -> Self {
        let help = "send \"Authorization: Bearer TOKEN\" with a token of the controller's token file, or use the Unix socket";
        let title = "Who are you?";
        Self::new(StatusCode::UNAUTHORIZED, "who-are-you", title, detail.to_owned(), help)
    }

    /// He may not.
    pub(super) fn forbidden(detail: impl Into<String>, help: &str) -> Self {
        let title = "You may not do that";
        Self::new(StatusCode::FORBIDDEN, "forbidden", title, detail.into(), help)
    }

    /// There is no such job, as far as he is concerned. Why, only the audit log says.
    pub(super) fn no_job(id: &str, private: Option<String>) -> Self {
        let help = "list your jobs with GET /v1/jobs?state=all, or `wattline queue --all`";
        let title = "There is no such job";
        let detail = format!("you have no job {id}");
        let mut refusal = Self::new(StatusCode::NOT_FOUND, "no-such-job", title, detail, help);
        refusal.private = private;
        refusal
    }

    /// The number of an array names no single job.
    pub(super) fn an_array(id: &str, task: &str) -> Self {
        let help = "name one of its tasks as SLURM does; `wattline queue` lists them";
        let title = "That is an array";
        let detail = format!("{id} is an array, and each of its tasks is a job, such as {task}");
        Self::new(StatusCode::CONFLICT, "array", title, detail, help)
    }

    /// There is no such path.
    pub(super) fn no_path() -> Self {
        let help = "GET /openapi.json lists all paths";
        let title = "There is nothing here";
        Self::new(StatusCode::NOT_FOUND, "nothing-here", title, "no such path".to_owned(), help)
    }

    /// Not with this method.
    pub(super) fn no_method() -> Self {
        let help = "GET /openapi.json lists all paths and their methods";
        let title = "Not with this method";
        let detail = "the path does not have this method".to_owned();
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "no-such-method", title, detail, help)
    }

    /// It contradicts how things are.
    pub(super) fn conflict(detail: impl Into<String>, help: &str) -> Self {
        let title = "That is not possible now";
        Self::new(StatusCode::CONFLICT, "conflict", title, detail.into(), help)
    }

    /// The same key stood for something else.
    pub(super) fn other_request(job: u32) -> Self {
        let help = "use a new Idempotency-Key for a new request";
        let title = "The key was used for another request";
        let detail = format!("job {job} was submitted under this key, with another body");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "key-reused", title, detail, help)
    }

    /// Too much at once.
    pub(super) fn too_large(most: usize) -> Self {
        let help = "send less in one request";
        let title = "The request is too large";
        let detail = format!("a body may have {most} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", title, detail, help)
    }

    /// Too slow.
    pub(super) fn too_slow() -> Self {
        let title = "The request came too slowly";
        let detail = "the body did not arrive in time".to_owned();
        let help = "send it again";
        Self::new(StatusCode::REQUEST_TIMEOUT, "too-slow", title, detail, help)
    }

    /// Too often.
    pub(super) fn too_often(seconds: f64) -> Self {
        let help = "wait as long as Retry-After says; use GET /v1/events instead of asking again and again";
        let title = "You ask too often";
        let detail = format!("come again in {seconds:.2} seconds");
        let status = StatusCode::TOO_MANY_REQUESTS;
        let mut refusal = Self::new(status, "too-often", title, detail, help);
        refusal.retry_after = Some(seconds);
        refusal
    }

    /// He has as much under way as he may.
    pub(super) fn own_share(detail: &str) -> Self {
        let help = "wait for the answers to what you asked before";
        let title = "You have too much under way";
        let status = StatusCode::TOO_MANY_REQUESTS;
        let mut refusal = Self::new(status, "own-share", title, detail.to_owned(), help);
        refusal.retry_after = Some(1.0);
        refusal
    }

    /// Beyond a limit that the site has set.
    pub(super) fn limit(detail: impl Into<String>, help: &str, retry_after: Option<f64>) -> Self {
        let title = "That is beyond a limit of this site";
        let status = match retry_after {
            Some(_) => StatusCode::TOO_MANY_REQUESTS,
            None => StatusCode::UNPROCESSABLE_ENTITY,
        };
        let mut refusal = Self::new(status, "limit", title, detail.into(), help);
        refusal.retry_after = retry_after;
        refusal
    }

    /// It took longer than anything may.
    pub(super) fn took_too_long(detail: impl Into<String>, help: &str) -> Self {
        let title = "That takes too long";
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Self::new(status, "too-long", title, detail.into(), help)
    }

    #[cfg(test)]
    pub(super) fn status(&self) -> u16 {
        self.problem.status
    }

    /// It cannot be done now.
    pub(super) fn unavailable(detail: impl Into<String>, help: &str) -> Self {
        let title = "That cannot be done now";
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let mut refusal = Self::new(status, "unavailable", title, detail.into(), help);
        refusal.retry_after = Some(1.0);
        refusal
    }

    /// A bug.
    pub(super) fn internal(detail: &str) -> Self {
        let help = "this is a bug; what the controller printed to standard error helps to find it";
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new(status, "internal", "Something broke", detail.to_owned(), help)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let noted = Noted(self.private.unwrap_or_else(|| self.problem.detail.clone()));
        let status = StatusCode::from_u16(self.problem.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.problem).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.ceil() as u64));
        }
        response.extensions_mut().insert(noted);
        response
    }
}
