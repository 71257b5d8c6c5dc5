//! Asking a controller, over its Unix socket or TCP.

use crate::failure::{Failure, Result};
use crate::output::harmless;
use crate::socket;
use anyhow::{Context, anyhow};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::env;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use wattline_api::{Problem, Status};

/// Nobody waits longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which controller.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Controller")]
pub(crate) struct Server {
    /// Its Unix socket [default: $WATTLINE_SOCKET, $XDG_RUNTIME_DIR/wattline.sock, or
    /// /run/wattline/wattline.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "url")]
    socket: Option<PathBuf>,
    /// Its address, http://HOST:PORT, instead of a socket [default: $WATTLINE_URL]; the token is
    /// taken from $WATTLINE_TOKEN
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

enum Place {
    Unix(PathBuf),
    Tcp(String),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(host) => write!(f, "http://{}", harmless(host)),
        }
    }
}

/// What did not work. A request may or may not have arrived.
enum Broken {
    /// It has not.
    Unreachable(std::io::Error),
    /// Nobody knows.
    Lost(String),
}

impl Server {
    fn place(&self) -> Result<Place> {
        if let Some(path) = &self.socket {
            return Ok(Place::Unix(path.clone()));
        }
        let url = self.url.clone().or_else(|| env::var("WATTLINE_URL").ok());
        let Some(url) = url.filter(|url| !url.is_empty()) else {
            let named = env::var_os("WATTLINE_SOCKET").filter(|path| !path.is_empty());
            return Ok(Place::Unix(named.map_or_else(socket::usual, PathBuf::from)));
        };
        let host = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        match host.filter(|host| !host.is_empty() && !host.contains(['/', '@', ' '])) {
            Some(host) => Ok(Place::Tcp(host.to_owned())),
            None => Err(Failure::input(anyhow!(
                "--url: '{}' is not http://HOST:PORT (for TLS, go through a proxy or a tunnel)",
                harmless(&url)
            ))),
        }
    }

    /// Looks at something.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.ask(Method::GET, path, None::<&()>, None)
    }

    /// What is wrong with the controller and its cluster right now, a line each. Nothing, if it does
    /// not say: this stands beside an answer that was asked for.
    pub(crate) fn troubles(&self) -> String {
        let status = self.get::<Status>("/v1/status");
        let troubles = status.map(|status| status.troubles).unwrap_or_default();
        troubles.iter().map(|trouble| format!("\ntrouble: {}", harmless(trouble))).collect()
    }

    /// Asks for something; again, under the same key, if the answer gets lost.
    pub(crate) fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        key: Option<&str>,
    ) -> Result<T> {
        let place = self.place()?;
        let body = body.map(serde_json::to_vec).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let may_repeat = key.is_some() || method == Method::GET;
        let mut left = if may_repeat { 3 } else { 1 };
        let (status, text) = loop {
            let request = request(&place, &method, path, body.clone(), key)?;
            let answer = runtime
                .block_on(async { tokio::time::timeout(PATIENCE, send(&place, request)).await });
            let broken = match answer {
                Ok(Ok(answer)) => break answer,
                Ok(Err(broken)) => broken,
                Err(_) => Broken::Lost("no answer in 30 seconds".to_owned()),
            };
            left -= 1;
            match broken {
                Broken::Unreachable(error) => return Err(unreachable_at(&place, &error)),
                Broken::Lost(why) if left == 0 => {
                    return Err(Failure::Failed(anyhow!("{place}: the answer was lost: {why}")));
                }
                Broken::Lost(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        };
        if !status.is_success() {
            return Err(refused(status, &text));
        }
        let value = serde_json::from_slice(&text);
        let value = value.with_context(|| format!("{place}: the answer makes no sense"));
        value.map_err(Failure::Failed)
    }
}

fn request(
    place: &Place,
    method: &Method,
    path: &str,
    body: Option<Vec<u8>>,
    key: Option<&str>,
) -> Result<Request<Full<Bytes>>> {
    let host = match place {
        Place::Unix(_) => "wattline",
        Place::Tcp(host) => host,
    };
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, host)
        .header(header::USER_AGENT, concat!("wattline/", env!("CARGO_PKG_VERSION")));
    if body.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    if let (Place::Tcp(_), Ok(token)) = (place, env::var("WATTLINE_TOKEN")) {
        request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.trim()));
    }
    let body = Full::new(Bytes::from(body.unwrap_or_default()));
    request.body(body).context("the request makes no sense").map_err(Failure::Input)
}

async fn send(
    place: &Place,
    request: Request<Full<Bytes>>,
) -> std::result::Result<(StatusCode, Bytes), Broken> {
    match place {
        Place::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(Broken::Unreachable)?;
            over(TokioIo::new(stream), request).await
        }
        Place::Tcp(host) => {
            let stream = TcpStream::connect(host).await.map_err(Broken::Unreachable)?;
            over(TokioIo::new(stream), request).await
        }
    }
}

async fn over<S>(
    stream: S,
    request: Request<Full<Bytes>>,
) -> std::result::Result<(StatusCode, Bytes), Broken>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let lost = |error: hyper::Error| Broken::Lost(error.to_string());
    let (mut sender, connection) = http1::handshake(stream).await.map_err(lost)?;
    tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(lost)?;
    let status = answer.status();
    let text = answer.into_body().collect().await.map_err(lost)?.to_bytes();
    Ok((status, text))
}

fn unreachable_at(place: &Place, error: &std::io::Error) -> Failure {
    let help = match (place, error.kind()) {
        (_, std::io::ErrorKind::PermissionDenied) => "you may not connect there",
        (Place::Unix(_), _) => {
            "start one with `wattline serve`, or say where it is with --socket or --url"
        }
        (Place::Tcp(_), _) => "start one with `wattline serve --listen`, or check the address",
    };
    Failure::Failed(anyhow!("no controller answers at {place} ({error}): {help}"))
}

/// What the controller said, in its own words. Its fault is a failure, ours bad input.
fn refused(status: StatusCode, text: &[u8]) -> Failure {
    let error = match serde_json::from_slice::<Problem>(text) {
        Ok(problem) => anyhow!("{}: {}", harmless(&problem.detail), harmless(&problem.help)),
        Err(_) => anyhow!("the controller answered {status}"),
    };
    if status.is_client_error() { Failure::Input(error) } else { Failure::Failed(error) }
}

/// A value of a query.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    text.bytes()
        .map(
            |byte| {
                if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
            },
        )
        .collect()
}

/// A job's number, as people write it, for a path.
pub(crate) fn job_number(text: &str) -> Result<String> {
    let number = |text: &str| text.parse::<u32>().is_ok();
    let (first, second) = match text.split_once(['_', '+']) {
        Some((first, second)) => (first, Some(second)),
        None => (text.strip_prefix('j').unwrap_or(text), None),
    };
    if number(first) && second.is_none_or(number) {
        return Ok(encoded(text));
    }
    Err(Failure::input(anyhow!(
        "'{}' is not a job's number: write 138, 138_4 for a task of an array, 138+1 for a part of \
         a heterogeneous job, or j12 for the journal's own number",
        harmless(text)
    )))
}
