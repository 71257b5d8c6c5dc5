//! What every request goes through: who asks, how often, and the audit log.

use super::Api;
use super::access::{Identity, Peer, Role};
use super::audit::{Line, wall_clock};
use super::refusal::{Noted, Refusal};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::time::Instant;

/// Paths that anybody may ask for.
const OPEN: [&str; 2] = ["/healthz", "/openapi.json"];

/// Lets a request through, or not, and writes down what must be.
pub(super) async fn guard(
    State(api): State<Api>,
    axum::Extension(peer): axum::Extension<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    if OPEN.contains(&path.as_str()) {
        return next.run(request).await;
    }
    let value = request.headers().get(header::AUTHORIZATION);
    let token = value.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let token = token.map(|token| token.trim().to_owned());
    let known = identify(&api, peer, token.as_deref()).await;
    let who = known.as_ref().ok().cloned();
    let response = match known.and_then(|who| may_ask(&api, &who).map(|()| who)) {
        Err(refusal) => refusal.into_response(),
        Ok(identity) => {
            request.extensions_mut().insert(identity);
            next.run(request).await
        }
    };
    if let Some((line, keep)) = audited(peer, who.as_ref(), &method, &path, &response) {
        api.audit.write(line, keep).await;
    }
    response
}

async fn identify(api: &Api, peer: Peer, token: Option<&str>) -> Result<Identity, Refusal> {
    match peer {
        Peer::Unix { uid } => {
            // The user database may be elsewhere.
            let api = api.clone();
            let found = tokio::task::spawn_blocking(move || api.access.by_uid(uid)).await;
            found.map_err(|_| Refusal::internal("the user database broke"))
        }
        Peer::Tcp(address) => {
            let found = token.and_then(|token| api.access.by_token(token));
            found.ok_or_else(|| {
                // Whoever guesses is slowed down.
                let cost = api.limits.rate.burst / 10.0;
                let remote = address.ip().to_string();
                match api.buckets.take(&remote, cost, Instant::now()) {
                    Err(seconds) => Refusal::too_often(seconds),
                    Ok(()) if token.is_some() => Refusal::unknown_caller("the token is not known"),
                    Ok(()) => Refusal::unknown_caller("no token was sent"),
                }
            })
        }
    }
}

fn may_ask(api: &Api, who: &Identity) -> Result<(), Refusal> {
    let key = format!("user {}", who.user);
    api.buckets.take(&key, 1.0, Instant::now()).map_err(Refusal::too_often)
}

/// What the audit log says of a request, if anything, and whether that must be on the disk before it
/// is answered. All changes, and all refusals; a user's change is on the disk already.
fn audited(
    peer: Peer,
    who: Option<&Identity>,
    method: &Method,
    path: &str,
    response: &Response,
) -> Option<(String, bool)> {
    let status = response.status();
    let noted = response.extensions().get::<Noted>().map_or("", |noted| &noted.0);
    let refused = status.is_client_error() || status.is_server_error();
    let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    // Planning a view, or asking what if, changes nothing.
    let changes = !reads && !noted.is_empty();
    if !refused && !changes {
        return None;
    }
    // A path that is too long is nobody's job.
    let path: String = path.chars().take(200).collect();
    let remote = peer.to_string();
    let role = who.map_or_else(|| "none".to_owned(), |who| who.role.to_string());
    let keep = refused || who.is_some_and(|who| who.role == Role::Admin);
    let line = Line {
        time: wall_clock(),
        who: who.map_or("", |who| &who.user),
        role: &role,
        remote: &remote,
        method: method.as_str(),
        path: &path,
        outcome: if refused { "refused" } else { "accepted" },
        status: status.as_u16(),
        what: if status == StatusCode::METHOD_NOT_ALLOWED { "no such method" } else { noted },
    };
    Some((line.written()?, keep))
}
