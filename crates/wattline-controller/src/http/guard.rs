//! What every request goes through: who asks, how often, and the audit log.

use super::Api;
use super::access::{Identity, Peer, Role};
use super::audit::{Line, wall_clock};
use super::connections::Connection;
use super::refusal::{Noted, Refusal};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Paths that anybody may ask for.
const OPEN: [&str; 2] = ["/healthz", "/openapi.json"];

/// Lets a request through, or not, and writes down what must be.
pub(super) async fn guard(
    State(api): State<Api>,
    axum::Extension(peer): axum::Extension<Peer>,
    axum::Extension(connection): axum::Extension<Arc<Connection>>,
    mut request: Request,
    next: Next,
) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    if OPEN.contains(&path.as_str()) {
        return match may_look(&api, peer) {
            Ok(()) => next.run(request).await,
            Err(refusal) => hung_up(refusal.into_response()),
        };
    }
    let value = request.headers().get(header::AUTHORIZATION);
    let token = value.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let token = token.map(|token| token.trim().to_owned());
    let known = identify(&api, peer, token.as_deref()).await;
    let who = known.as_ref().ok().cloned();
    let may_ask = |who: Identity| {
        connection.is_of(&who.user)?;
        api.quotas.request(&who).map(|()| who)
    };
    let response = match known.and_then(may_ask) {
        // Who is not known has no business here.
        Err(refusal) if who.is_none() => hung_up(refusal.into_response()),
        Err(refusal) => refusal.into_response(),
        Ok(identity) => {
            request.extensions_mut().insert(identity);
            next.run(request).await
        }
    };
    if let Some(line) = audited(&api, peer, who.as_ref(), &method, &path, &response) {
        api.audit.write(line.0, line.1).await;
    }
    response
}

/// The last answer of a connection.
fn hung_up(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// How long it is remembered what the user database says of somebody.
const REMEMBERED: Duration = Duration::from_secs(10);

async fn identify(api: &Api, peer: Peer, token: Option<&str>) -> Result<Identity, Refusal> {
    match peer {
        Peer::Unix { uid } => {
            let identities = || api.identities.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((known, at)) = identities().get(&uid)
                && at.elapsed() < REMEMBERED
            {
                return Ok(known.clone());
            }
            // The user database may be elsewhere.
            let access = api.access();
            let found = tokio::task::spawn_blocking(move || access.by_uid(uid)).await;
            let found = found.map_err(|_| Refusal::internal("the user database broke"))?;
            identities().insert(uid, (found.clone(), Instant::now()));
            Ok(found)
        }
        Peer::Tcp(address) => {
            let found = token.and_then(|token| api.access().by_token(token));
            found.ok_or_else(|| {
                // Whoever guesses is slowed down.
                let rate = api.limits.rate;
                let remote = address.ip().to_string();
                match api.buckets.take(&remote, rate.burst / 10.0, rate, Instant::now()) {
                    Err(seconds) => Refusal::too_often(seconds),
                    Ok(()) if token.is_some() => Refusal::unknown_caller("the token is not known"),
                    Ok(()) => Refusal::unknown_caller("no token was sent"),
                }
            })
        }
    }
}

/// Whether this peer may ask for what anybody may ask for.
fn may_look(api: &Api, peer: Peer) -> Result<(), Refusal> {
    let remote = match peer {
        Peer::Unix { uid } => format!("open uid {uid}"),
        // Apart from those who guess tokens: behind a proxy all come from one address.
        Peer::Tcp(address) => format!("open {}", address.ip()),
    };
    let taken = api.buckets.take(&remote, 1.0, api.limits.rate, Instant::now());
    taken.map_err(Refusal::too_often)
}

/// What the audit log says of a request, if anything, and whether that must be on the disk before it
/// is answered. All changes, and all refusals; a user's change is on the disk already.
fn audited(
    api: &Api,
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
    if refused && !api.refusals.is_written(who.map(|who| &who.user), Instant::now()) {
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
