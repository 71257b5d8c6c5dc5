//! What systemd is told: when the API answers, how things are, and that the loop still turns.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SCENARIO: &str = "name = \"quiet\"\nseed = 3\n\
    [[nodes]]\ncount = 2\ngpu = \"h200\"\ngpus = 4\n[jobs]\ncount = 1\n";

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn systemd_hears_when_it_is_ready_and_that_it_turns() {
    let folder = tempfile::tempdir().unwrap();
    let notify = folder.path().join("notify");
    let heard = UnixDatagram::bind(&notify).unwrap();
    heard.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    fs::write(folder.path().join("scenario.toml"), SCENARIO).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_wattline"))
        .args(["serve", "--scenario", "scenario.toml", "--journal", "journal", "--stay"])
        .args(["--socket", "sock"])
        .env("NOTIFY_SOCKET", &notify)
        // Two seconds; whose it is is not said, so it is ours.
        .env("WATCHDOG_USEC", "2000000")
        .env_remove("WATCHDOG_PID")
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _running = Running(child.unwrap());
    let next = || {
        let mut bytes = [0; 4096];
        let length = heard.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).trim().to_owned()
    };
    assert_eq!(next(), "READY=1");
    assert!(UnixStream::connect(folder.path().join("sock")).is_ok(), "it answers by then");
    let (mut alive, mut status, began) = (Vec::new(), None, Instant::now());
    while alive.len() < 6 || status.is_none() {
        assert!(began.elapsed() < Duration::from_secs(60), "{alive:?} {status:?}");
        match next().as_str() {
            "WATCHDOG=1" => alive.push(Instant::now()),
            other => status = status.or(other.strip_prefix("STATUS=").map(str::to_owned)),
        }
    }
    assert!(status.is_some_and(|text| text.contains("running") && text.contains("kW")));
    let gaps = alive.windows(2).map(|pair| pair[1] - pair[0]);
    let longest = gaps.max().unwrap();
    assert!(longest < Duration::from_secs(2), "systemd would have ended it: {longest:?}");
}
