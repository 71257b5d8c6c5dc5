//! One HTTP request to slurmrestd, within a time and a size. A new connection for each: slurmrestd
//! may be restarted at any time, and a request costs it milliseconds anyway.

use super::answer::Answer;
use super::error::RestError;
use super::orders::{Request, Verb};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, header};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};

/// Where slurmrestd listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::slurm) enum Place {
    Unix(PathBuf),
    Tcp(String),
}

impl Place {
    /// From `unix:/path` or `http://host:port`.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        if let Some(path) = url.strip_prefix("unix:") {
            // `unix:///path` is written as well.
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') {
                Ok(Self::Unix(PathBuf::from(path)))
            } else {
                Err(format!("'{path}' is no absolute path"))
            };
        }
        if url.starts_with("https://") {
            return Err("TLS is not spoken here: let slurmrestd listen on a Unix socket or on \
                        loopback, or put a TLS proxy on this machine before it"
                .to_owned());
        }
        let host = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        let fine = |host: &&str| {
            let port = host.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            port.is_some() && !host.contains(['/', '@', ' ', '?', '#', '\n', '\r'])
        };
        match host.filter(fine) {
            Some(host) => Ok(Self::Tcp(host.to_owned())),
            None => Err("expected unix:/path/of/socket or http://host:port".to_owned()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(host) => write!(f, "http://{host}"),
        }
    }
}

/// What goes with each request.
pub(super) struct Sender<'a> {
    pub(super) place: &'a Place,
    pub(super) user: &'a str,
    pub(super) token: &'a str,
    pub(super) limit: Duration,
    pub(super) most_bytes: usize,
}

/// What went wrong on the way.
enum Lost {
    Broken(String),
    TooLong,
}

impl Sender<'_> {
    /// Sends a request and waits for its answer.
    pub(super) fn send(&self, request: &Request) -> Result<Answer, RestError> {
        let broken = |why: String| RestError::Unreachable { url: self.place.to_string(), why };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| broken(error.to_string()))?;
        let answer = runtime
            .block_on(async { tokio::time::timeout(self.limit, self.exchange(request)).await });
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Lost::Broken(why))) => Err(broken(why)),
            Ok(Err(Lost::TooLong)) => Err(RestError::TooLong(self.most_bytes)),
            Err(_) => Err(RestError::TimedOut { url: self.place.to_string(), limit: self.limit }),
        }
    }

    async fn exchange(&self, request: &Request) -> Result<Answer, Lost> {
        let broken = |error: &dyn std::error::Error| Lost::Broken(error.to_string());
        match self.place {
            Place::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|error| broken(&error))?;
                self.talk(stream, request).await
            }
            Place::Tcp(host) => {
                let stream = TcpStream::connect(host).await.map_err(|error| broken(&error))?;
                self.talk(stream, request).await
            }
        }
    }

    async fn talk(
        &self,
        stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
        request: &Request,
    ) -> Result<Answer, Lost> {
        let broken = |error: &dyn std::error::Error| {
            // hyper says what was tried, and its source why it failed.
            let why = error.source().map(|source| format!(": {source}")).unwrap_or_default();
            Lost::Broken(format!("{error}{why}"))
        };
        let http = self.http(request).map_err(|error| broken(&error))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
        let connection = tokio::spawn(connection);
        let answer = async {
            let answer = sender.send_request(http).await.map_err(|error| broken(&error))?;
            let status = answer.status().as_u16();
            let (mut body, mut bytes) = (answer.into_body(), Vec::new());
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| broken(&error))?;
                if let Some(data) = frame.data_ref() {
                    if bytes.len() + data.len() > self.most_bytes {
                        return Err(Lost::TooLong);
                    }
                    bytes.extend_from_slice(data);
                }
            }
            // Users may put any bytes into names and comments.
            Ok(Answer { status, text: String::from_utf8_lossy(&bytes).into_owned() })
        }
        .await;
        connection.abort();
        answer
    }

    fn http(&self, request: &Request) -> Result<hyper::Request<Full<Bytes>>, hyper::http::Error> {
        let method = match request.verb {
            Verb::Get => Method::GET,
            Verb::Post => Method::POST,
            Verb::Delete => Method::DELETE,
        };
        let host = match self.place {
            Place::Unix(_) => "localhost",
            Place::Tcp(host) => host,
        };
        let mut builder = hyper::Request::builder()
            .method(method)
            .uri(&request.path)
            .header(header::HOST, host)
            .header(header::USER_AGENT, concat!("wattline/", env!("CARGO_PKG_VERSION")))
            .header(header::ACCEPT, "application/json")
            .header("X-SLURM-USER-NAME", self.user)
            .header("X-SLURM-USER-TOKEN", self.token);
        if request.body.is_some() {
            builder = builder.header(header::CONTENT_TYPE, "application/json");
        }
        let body = request.body.clone().unwrap_or_default();
        builder.body(Full::new(Bytes::from(body)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    const GET: fn() -> Request = || Request::get("/slurm/v0.0.38/jobs".into());

    fn send(place: &Place, limit: u64) -> Result<Answer, RestError> {
        let limit = Duration::from_millis(limit);
        Sender { place, user: "root", token: "a.b.c", limit, most_bytes: 1000 }.send(&GET())
    }

    /// Says what was asked, and answers with this.
    fn answers(mut stream: impl Read + Write, text: &str) -> String {
        let mut asked = vec![0; 4096];
        let read = stream.read(&mut asked).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        String::from_utf8_lossy(&asked[..read]).into_owned()
    }

    #[test]
    fn places_are_read() {
        let parse = |url: &str| Place::parse(url).map(|place| place.to_string());
        assert_eq!(parse("unix:/run/slurmrestd"), Ok("unix:/run/slurmrestd".into()));
        assert_eq!(parse("unix:///run/slurmrestd"), Ok("unix:/run/slurmrestd".into()));
        assert_eq!(parse("http://[::1]:6820/"), Ok("http://[::1]:6820".into()));
        for url in ["", "unix:", "unix:run/x", "http://host", "http://h:1/x", "http://u@h:1", "h:1"]
        {
            assert!(parse(url).is_err(), "{url}");
        }
        assert!(parse("https://h:1").unwrap_err().contains("TLS"));
    }

    #[test]
    fn a_request_has_the_user_and_the_token_on_both_kinds_of_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (unix, tcp) =
            (UnixListener::bind(&path).unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let host = tcp.local_addr().unwrap().to_string();
        // As slurmrestd 22.05 answers when nothing has changed: no length, and it stays connected.
        let same = "HTTP/1.1 304 NOT MODIFIED\r\n\r\n";
        let asked = std::thread::spawn(move || {
            [
                answers(unix.accept().unwrap().0, same),
                answers(tcp.accept().unwrap().0, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
            ]
        });
        assert_eq!(send(&Place::Unix(path), 5000).unwrap().status, 304);
        let answer = send(&Place::Tcp(host), 5000).unwrap();
        assert_eq!((answer.status, answer.text.as_str()), (200, "{}"));
        for asked in asked.join().unwrap() {
            let asked = asked.to_lowercase();
            assert!(asked.starts_with("get /slurm/v0.0.38/jobs http/1.1"), "{asked}");
            assert!(asked.contains("x-slurm-user-name: root"), "{asked}");
            assert!(asked.contains("x-slurm-user-token: a.b.c"), "{asked}");
        }
    }

    #[test]
    fn what_hangs_is_given_up_and_what_is_long_is_not_read() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = Place::Tcp(tcp.local_addr().unwrap().to_string());
        let began = Instant::now();
        let error = send(&place, 200).unwrap_err();
        assert!(matches!(error, RestError::TimedOut { .. }) && error.is_unanswered(), "{error}");
        assert!(began.elapsed() < Duration::from_secs(5));
        let listener = tcp.try_clone().unwrap();
        let served = std::thread::spawn(move || {
            let text = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(5000));
            // The one that was given up came first.
            drop(listener.accept().unwrap());
            let mut stream = listener.accept().unwrap().0;
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(text.as_bytes());
        });
        let error = send(&place, 5000).unwrap_err();
        assert!(matches!(error, RestError::TooLong(1000)), "{error}");
        served.join().unwrap();
        drop(tcp);
        let error = send(&place, 5000).unwrap_err();
        assert!(matches!(error, RestError::Unreachable { .. }) && error.is_unanswered(), "{error}");
    }
}
