//! Sockets.

use super::Api;
use super::access::Peer;
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
use std::time::Duration;
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

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

/// An API that is being served. Dropping it ends that.
pub struct Listening {
    runtime: Option<tokio::runtime::Runtime>,
    /// Where TCP listens.
    pub address: Option<SocketAddr>,
}

impl Listening {
    /// Serves an API on threads of its own. `SIGINT` and `SIGTERM` end the loop.
    ///
    /// # Errors
    /// When a socket or a thread cannot be had.
    pub fn start(api: &Api, sockets: Sockets) -> Result<Self, ListenError> {
        let io = |source| ListenError::Io { at: "a socket".to_owned(), source };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(32)
            .thread_name("wattline-http")
            .enable_all()
            .build()
            .map_err(io)?;
        let _inside = runtime.enter();
        let slots = Arc::new(Semaphore::new(api.limits.connections));
        let served = (api.clone(), router(api));
        let mut address = None;
        if let Some(listener) = sockets.unix {
            let listener = UnixListener::from_std(listener).map_err(io)?;
            runtime.spawn(accept_unix(served.clone(), listener, Arc::clone(&slots)));
        }
        if let Some(listener) = sockets.tcp {
            listener.set_nonblocking(true).map_err(io)?;
            address = listener.local_addr().ok();
            let listener = TcpListener::from_std(listener).map_err(io)?;
            runtime.spawn(accept_tcp(served, listener, slots));
        }
        let signals = api.daemon.waker();
        runtime.spawn(async move {
            if wait_for_signal().await.is_ok() {
                signals.stop();
            }
        });
        drop(_inside);
        Ok(Self { runtime: Some(runtime), address })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Answers that are under way are finished; streams are not.
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
    }
}

async fn wait_for_signal() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

/// After an error of the listener itself, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

async fn accept_unix(api: (Api, Router), listener: UnixListener, slots: Arc<Semaphore>) {
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                // Without knowing who it is there is nothing to say.
                let Ok(peer) = stream.peer_cred() else { continue };
                let peer = Peer::Unix { uid: peer.uid() };
                serve(&api, TokioIo::new(stream), peer, slot);
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn accept_tcp(api: (Api, Router), listener: TcpListener, slots: Arc<Semaphore>) {
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, address)) => {
                let _ = stream.set_nodelay(true);
                serve(&api, TokioIo::new(stream), Peer::Tcp(address), slot);
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

fn serve<S>(
    (api, router): &(Api, Router),
    stream: S,
    peer: Peer,
    slot: tokio::sync::OwnedSemaphorePermit,
) where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let service = TowerToHyperService::new(router.clone().layer(Extension(peer)));
    let read = api.limits.read;
    tokio::spawn(async move {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(read)
            .max_buf_size(64 << 10)
            .serve_connection(stream, service);
        // Whoever is at the other end knows that it broke.
        let _ = connection.await;
        drop(slot);
    });
}
