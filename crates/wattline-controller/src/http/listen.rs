//! Sockets.

use super::Api;
use super::access::Peer;
use super::audit::{Line, wall_clock};
use super::connections::Connection;
use super::progress::Progress;
use super::refusals::sentence;
use super::router::router;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Why a socket cannot be had.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Somebody answers there.
    #[error("{}: another controller answers there; stop it, or name another socket", .0.display())]
    InUse(PathBuf),
    /// Something else is there.
    #[error("{}: this is not a socket; name another one", .0.display())]
    Foreign(PathBuf),
    /// Anything else.
    #[error("cannot listen at {at}: {source}")]
    Io {
        /// Where.
        at: String,
        /// Why.
        source: io::Error,
    },
}

/// Where to listen.
#[derive(Default)]
pub struct Sockets {
    /// A Unix socket.
    pub unix: Option<unix::UnixListener>,
    /// TCP.
    pub tcp: Option<std::net::TcpListener>,
}

/// Takes a Unix socket's path, also if a controller that died has left its socket there.
/// Everybody may connect: the kernel says who does.
///
/// # Errors
/// When somebody answers there, or something else is there.
pub fn claim(path: &Path) -> Result<unix::UnixListener, ListenError> {
    let io = |source| ListenError::Io { at: path.display().to_string(), source };
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ListenError::Foreign(path.to_owned()));
        }
        Ok(_) => match unix::UnixStream::connect(path) {
            Ok(_) => return Err(ListenError::InUse(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(io)?;
            }
            Err(error) => return Err(io(error)),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
    }
    let listener = unix::UnixListener::bind(path).map_err(io)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(io)?;
    listener.set_nonblocking(true).map_err(io)?;
    Ok(listener)
}

/// Reads the configuration again; says what was read again and what needs a restart, or what is
/// wrong with it, in which case nothing has changed.
pub type Reload = Box<dyn FnMut() -> Result<Vec<String>, String> + Send>;

/// An API that is being served. Dropping it ends that.
pub struct Listening {
    runtime: Option<tokio::runtime::Runtime>,
    api: Api,
    /// Where TCP listens.
    pub address: Option<SocketAddr>,
}

impl Listening {
    /// Serves an API on threads of its own. `SIGINT` and `SIGTERM` end the loop; `SIGHUP` reloads.
    ///
    /// # Errors
    /// When a socket or a thread cannot be had.
    pub fn start(api: &Api, sockets: Sockets, reload: Reload) -> Result<Self, ListenError> {
        let io = |source| ListenError::Io { at: "a socket".to_owned(), source };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(32)
            .thread_name("wattline-http")
            .enable_all()
            .build()
            .map_err(io)?;
        let _inside = runtime.enter();
        let served = (api.clone(), router(api));
        let mut address = None;
        if let Some(listener) = sockets.unix {
            let listener = UnixListener::from_std(listener).map_err(io)?;
            runtime.spawn(accept_unix(served.clone(), listener));
        }
        if let Some(listener) = sockets.tcp {
            listener.set_nonblocking(true).map_err(io)?;
            address = listener.local_addr().ok();
            let listener = TcpListener::from_std(listener).map_err(io)?;
            runtime.spawn(accept_tcp(served, listener));
        }
        // Caught from here on: one that nobody waits for yet would end the process.
        let hang_up = signal(SignalKind::hangup()).map_err(io)?;
        runtime.spawn(reload_at(hang_up, reload));
        runtime.spawn(tell_refusals(api.clone()));
        let signals = api.daemon.waker();
        runtime.spawn(async move {
            if wait_for_signal().await.is_ok() {
                signals.stop();
            }
        });
        drop(_inside);
        Ok(Self { runtime: Some(runtime), api: api.clone(), address })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Answers that are under way are finished; streams are not.
            runtime.block_on(write_refusals(&self.api, true));
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
    }
}

async fn wait_for_signal() -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

/// How often the audit log is told of refusals that were only counted.
const TELL_EVERY: Duration = Duration::from_secs(10);

async fn tell_refusals(api: Api) {
    loop {
        tokio::time::sleep(TELL_EVERY).await;
        write_refusals(&api, false).await;
    }
}

async fn write_refusals(api: &Api, all: bool) {
    for (user, count) in api.refusals.take_left_out(Instant::now(), all) {
        let what = sentence(user.as_deref(), count);
        let line = Line {
            time: wall_clock(),
            who: user.as_deref().unwrap_or_default(),
            role: "none",
            remote: "",
            method: "",
            path: "",
            outcome: "refused",
            status: 0,
            what: &what,
        };
        if let Some(text) = line.written() {
            api.audit.write(text, true).await;
        }
    }
}

async fn reload_at(mut hang_up: Signal, mut reload: Reload) {
    while hang_up.recv().await.is_some() {
        // Reads files.
        let reloaded = tokio::task::spawn_blocking(move || (reload(), reload)).await;
        let Ok((said, again)) = reloaded else {
            tracing::error!("SIGHUP: reloading the configuration panicked; restart to reload it");
            return ignore(hang_up).await;
        };
        reload = again;
        match said {
            Ok(lines) => lines.iter().for_each(|line| tracing::info!("SIGHUP: {line}")),
            Err(why) => tracing::error!("SIGHUP: {why}; the configuration before stays in force"),
        }
    }
}

async fn ignore(mut signal: Signal) {
    while signal.recv().await.is_some() {}
}

/// After an error of the listener itself, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

async fn accept_unix(api: (Api, Router), listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Without knowing who it is there is nothing to say.
                let Ok(peer) = stream.peer_cred() else { continue };
                let uid = peer.uid();
                let privileged = api.0.access().is_privileged(uid);
                // Who has too many is hung up on.
                let Some(place) = api.0.connections.local(uid, privileged) else { continue };
                serve(&api, TokioIo::new(stream), Peer::Unix { uid }, place, None);
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn accept_tcp(api: (Api, Router), listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let _ = stream.set_nodelay(true);
                let (place, close) = api.0.connections.remote(address.ip());
                serve(&api, TokioIo::new(stream), Peer::Tcp(address), place, Some(close));
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

fn serve<S>(
    (api, router): &(Api, Router),
    stream: S,
    peer: Peer,
    place: Arc<Connection>,
    close: Option<oneshot::Receiver<()>>,
) where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let router = router.clone().layer(Extension(peer)).layer(Extension(Arc::clone(&place)));
    let service = TowerToHyperService::new(router);
    let (read, write) = (api.limits.read, api.limits.write);
    let unknown_time = api.connections.limits().unknown_time;
    tokio::spawn(async move {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(read)
            .max_buf_size(64 << 10)
            .serve_connection(Progress::new(stream, write), service);
        tokio::select! {
            // Whoever is at the other end knows that it broke.
            _ = connection => {}
            () = unwanted(close, unknown_time) => {}
        }
        drop(place);
    });
}

/// Ends when a connection must: another needs its place, or nobody has said who he is in time.
async fn unwanted(close: Option<oneshot::Receiver<()>>, unknown_time: Duration) {
    if let Some(close) = close {
        match tokio::time::timeout(unknown_time, close).await {
            Err(_) | Ok(Ok(())) => return,
            // Who it is, is known now.
            Ok(Err(_)) => {}
        }
    }
    std::future::pending().await
}
