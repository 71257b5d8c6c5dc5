//! What happens, as it happens.

use super::Api;
use super::access::{Identity, Role};
use super::refusal::{Answer, Refusal};
use crate::daemon::Since;
use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event as SseEvent, KeepAlive};
use axum::response::{IntoResponse, Response, Sse};
use std::convert::Infallible;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use wattline_api::{Event, Problem};

/// A stream of events (`text/event-stream`); with `Last-Event-ID`, from there on. An event `gap`
/// says that some are missing.
#[utoipa::path(get, path = "/v1/events",
    params(("Last-Event-ID" = Option<String>, Header, description = "the last event that was heard")),
    responses(
        (status = 200, content_type = "text/event-stream", body = Event), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn stream(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
    headers: HeaderMap,
) -> Answer<Response> {
    let since = match headers.get("last-event-id") {
        None => Since::Now,
        Some(value) => {
            let parse = |text: &str| {
                let (epoch, number) = text.split_once('-')?;
                Some(Since::Event(epoch.parse().ok()?, number.parse().ok()?))
            };
            value.to_str().ok().and_then(parse).ok_or_else(|| {
                let help = "send the id of an event of this stream, or none";
                Refusal::bad("Last-Event-ID is no event's id", help)
            })?
        }
    };
    let slot = Slot::take(&api, &who)?;
    let (send, receive) = mpsc::channel(64);
    // Subscribed before it looks, so that nothing falls in between.
    let position = api.daemon.event_log().listen();
    tokio::spawn(listen(api, who, since, send, position, slot));
    let alive = KeepAlive::new().interval(Duration::from_secs(15));
    Ok(Sse::new(ReceiverStream::new(receive)).keep_alive(alive).into_response())
}

async fn listen(
    api: Api,
    who: Identity,
    mut since: Since,
    send: mpsc::Sender<Result<SseEvent, Infallible>>,
    mut position: tokio::sync::watch::Receiver<u64>,
    _slot: Slot,
) {
    let event_log = api.daemon.event_log();
    let epoch = event_log.epoch();
    if since == Since::Now {
        since = Since::Event(epoch, *position.borrow_and_update());
        // So that whoever listens knows from where on.
        let hello = SseEvent::default().comment("listening");
        if send.send(Ok(hello)).await.is_err() {
            return;
        }
    }
    loop {
        let last = *position.borrow_and_update();
        let told = event_log.since(since);
        if told.gap {
            let gap = SseEvent::default().event("gap").data("events are missing here");
            if send.send(Ok(gap)).await.is_err() {
                return;
            }
        }
        let newest = told.events.last().map_or(last, |event| event.number);
        for event in told.events.iter().filter(|event| may_hear(&who, event)) {
            let text = serde_json::to_string(&**event).unwrap_or_default();
            let id = format!("{epoch}-{}", event.number);
            let event = SseEvent::default().id(id).event(&event.kind).data(text);
            if send.send(Ok(event)).await.is_err() {
                return;
            }
        }
        since = Since::Event(epoch, newest);
        tokio::select! {
            changed = position.changed() => if changed.is_err() { return },
            () = send.closed() => return,
        }
    }
}

/// Users hear of their own jobs, of nodes and of the budget; alerts and advice name others' jobs.
fn may_hear(who: &Identity, event: &Event) -> bool {
    match &event.user {
        Some(user) => who.sees(user),
        None => {
            who.role != Role::User || !matches!(event.kind.as_str(), "alert" | "trouble" | "advice")
        }
    }
}

/// One open stream.
struct Slot {
    api: Api,
    user: Arc<str>,
}

impl Slot {
    fn take(api: &Api, who: &Identity) -> Answer<Self> {
        let mut streams = api.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = streams.values().sum();
        let own = streams.get(&who.user).copied().unwrap_or(0);
        if own >= api.limits.streams_each || all >= api.limits.streams {
            let detail = format!("{own} of your event streams are open, {all} in all");
            return Err(Refusal::unavailable(detail, "close one of them"));
        }
        streams.insert(Arc::clone(&who.user), own + 1);
        Ok(Self { api: api.clone(), user: Arc::clone(&who.user) })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut streams = self.api.streams.lock().unwrap_or_else(PoisonError::into_inner);
        match streams.get_mut(&self.user) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(streams.remove(&self.user)),
        }
    }
}
