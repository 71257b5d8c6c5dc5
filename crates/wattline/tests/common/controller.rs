//! A controller on real sockets, and a client that is not ours.

#![allow(dead_code, reason = "not every test needs all of it")]

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A cluster with nothing to do at first.
pub(crate) const QUIET: &str = "name = \"quiet\"\nseed = 3\n\
    [[nodes]]\ncount = 2\ngpu = \"h200\"\ngpus = 4\n\
    [jobs]\ncount = 1\nload = 0.9\n\
    duration = { median = \"6 min\", sigma = 0.1, min = \"1 min\", max = \"15 min\" }\n\
    gpus = [{ count = 1, share = 1.0 }]\n\
    [[jobs.workloads]]\nname = \"resnet50\"\n\
    [[jobs.workloads]]\nname = \"gpt2\"\n\
    [budget]\npower = \"6 kW\"\n";

/// One that runs, and ends with the test.
pub(crate) struct Running {
    child: Child,
    pub(crate) folder: PathBuf,
    pub(crate) tcp: Option<SocketAddr>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Who asks.
#[derive(Clone, Copy)]
pub(crate) enum Caller<'a> {
    /// Over the Unix socket, as whoever runs the test.
    Unix,
    /// Over TCP, with this token.
    Token(&'a str),
}

impl Running {
    /// Starts one in this folder. Tokens are `NAME-token` for alice, bob (users), eve (read-only)
    /// and carol (admin).
    pub(crate) fn start(folder: &Path, extra: &[&str]) -> Self {
        let scenario = folder.join("scenario.toml");
        if !scenario.exists() {
            fs::write(&scenario, QUIET).unwrap();
        }
        let tokens = folder.join("tokens");
        let roles = [("alice", "user"), ("bob", "user"), ("eve", "read-only"), ("carol", "admin")];
        let lines = roles.map(|(name, role)| {
            let hash = Sha256::digest(format!("{name}-token").as_bytes());
            let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{name} {role} {hex}\n")
        });
        fs::write(&tokens, lines.concat()).unwrap();
        fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_wattline"))
            .args(["serve", "--scenario", "scenario.toml", "--journal", "journal", "--stay"])
            .args(["--socket", "sock", "--listen", "127.0.0.1:0", "--tokens", "tokens"])
            .args(["--max-weight", "5 EUR/h", "--json"])
            .args(extra)
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut tcp = None;
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        while tcp.is_none() {
            let mut line = String::new();
            if errors.read_line(&mut line).unwrap() == 0 {
                panic!("it did not come up: {said}");
            }
            let at = line.trim().split_once("answers at http://");
            tcp = at.map(|(_, at)| at.parse().unwrap());
            said += &line;
        }
        Self { child, folder: folder.to_owned(), tcp }
    }

    pub(crate) fn socket(&self) -> String {
        self.folder.join("sock").to_str().unwrap().to_owned()
    }

    /// Asks, with a new connection each time.
    pub(crate) fn ask(
        &self,
        who: Caller<'_>,
        method: &str,
        path: &str,
        body: Option<&str>,
    ) -> Reply {
        self.try_ask(who, method, path, body, &[]).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub(crate) fn try_ask(
        &self,
        who: Caller<'_>,
        method: &str,
        path: &str,
        body: Option<&str>,
        headers: &[(&str, &str)],
    ) -> std::io::Result<Reply> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        if let Caller::Token(token) = who {
            text += &format!("authorization: Bearer {token}\r\n");
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = body {
            text +=
                &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        text += "\r\n";
        text += body.unwrap_or_default();
        let answer = match who {
            Caller::Unix => talk(UnixStream::connect(self.folder.join("sock"))?, text.as_bytes()),
            Caller::Token(_) => talk(TcpStream::connect(self.tcp.unwrap())?, text.as_bytes()),
        }?;
        let (head, body) =
            answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if length.is_some_and(|length| body.len() < length.parse().unwrap()) {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Reply { status, head: head.to_owned(), body: body.to_owned() })
    }

    /// The audit log.
    pub(crate) fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.join("journal.audit")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Kills it as a power cut would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as systemd would.
    pub(crate) fn stop(&mut self) {
        let id = self.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        assert!(self.wait().success());
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn talk(mut stream: impl Read + Write, text: &[u8]) -> std::io::Result<String> {
    // Whoever refuses a large body may hang up before all of it was sent.
    let sent = stream.write_all(text);
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    if answer.is_empty() {
        sent?;
        read?;
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Waits until something is so.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        sleep(Duration::from_millis(20));
    }
}
