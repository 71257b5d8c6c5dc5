//! Looks and orders against a slurmrestd that says what it is told to say.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::super::config::{Config, ConfigError, Reader};
use super::super::instruction::JobName;
use super::super::link::{Link, is_unsayable};
use super::super::look::Looker;
use super::super::orders::Ticks;
use super::super::seen::Seen;
use super::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

const TOKEN: &str = "SLURM_JWT=e30.e30.x\n";

/// slurmrestd, as far as it is needed.
#[derive(Default)]
struct Fake {
    /// What was asked: method, path and token.
    asked: Vec<String>,
    /// What it answers next instead of what it would.
    instead: Vec<(u16, String)>,
    /// Nothing has changed since then.
    changed: i64,
    /// The token that it takes.
    token: String,
}

fn fixture(what: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/slurm/rest");
    let text = std::fs::read_to_string(format!("{folder}/0.0.38.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).unwrap()[what].to_string()
}

impl Fake {
    fn answer(&mut self, head: &str) -> (u16, String) {
        let mut words = head.split_whitespace();
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let token = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("x-slurm-user-token").then(|| value.trim().to_owned())
        });
        self.asked.push(format!("{method} {path}"));
        if token.as_deref() != Some(self.token.as_str()) {
            return (401, "Authentication failure".to_owned());
        }
        if let Some(instead) = self.instead.pop() {
            return instead;
        }
        let since = path.split_once("update_time=").and_then(|(_, time)| time.parse::<i64>().ok());
        match path.split('?').next().unwrap_or_default() {
            "/openapi/v3" => (200, r#"{"paths":{"\/slurm\/v0.0.38\/jobs":{}}}"#.to_owned()),
            "/slurm/v0.0.38/diag" => (200, fixture("diag")),
            "/slurm/v0.0.38/jobs" if since.is_some_and(|since| since > self.changed) => {
                (304, String::new())
            }
            "/slurm/v0.0.38/jobs" => (200, fixture("jobs")),
            "/slurm/v0.0.38/nodes" => (200, fixture("nodes")),
            "/slurm/v0.0.38/job/7" => (200, r#"{"errors":[]}"#.to_owned()),
            _ => (404, "Unable find requested URL".to_owned()),
        }
    }
}

struct Site {
    folder: tempfile::TempDir,
    fake: Arc<Mutex<Fake>>,
    link: Link,
    looker: Looker,
    ticks: Ticks,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let fake = Arc::new(Mutex::new(Fake { token: "e30.e30.x".into(), ..Fake::default() }));
        let serves = Arc::clone(&fake);
        // It ends with the test.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = vec![0; 8192];
                let read = stream.read(&mut head).unwrap();
                let head = String::from_utf8_lossy(&head[..read]).into_owned();
                let (status, text) = serves.lock().unwrap().answer(&head);
                let length = match status {
                    304 => String::new(),
                    _ => format!("Content-Length: {}\r\n", text.len()),
                };
                let _ = write!(stream, "HTTP/1.1 {status} X\r\n{length}\r\n{text}");
            }
        });
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, TOKEN).unwrap();
        let url = format!("unix:{}", socket.display());
        let (user, version, partial) = ("root".to_owned(), None, false);
        let rest = RestConfig { url, token_file, user, version, partial };
        let config = Config { reader: Reader::Rest, rest: Some(rest), ..Config::default() };
        assert_eq!(config.check(), Ok(()));
        let (mut link, looker) = (Link::new(&config), Looker::default());
        // Whatever is installed on this machine.
        link.commands.folder = Some(folder.path().join("bin"));
        Self { folder, fake, link, looker, ticks: Ticks::default() }
    }

    fn look(&mut self) -> Result<Seen, String> {
        self.looker.look(&self.link, &self.ticks).map_err(|error| error.to_string())
    }

    /// SLURM's commands, which do this and count how often.
    fn install(&self, script: &str) {
        let folder = self.folder.path().join("bin");
        std::fs::create_dir_all(&folder).unwrap();
        let text = format!("#!/bin/sh\necho >> {}/runs\n{script}\n", folder.display());
        let source = self.folder.path().join("script");
        std::fs::write(&source, text).unwrap();
        for program in ["scontrol", "scancel"] {
            // Written by another process: a file that one of our own has open for writing, and be it
            // only for the time between fork and exec, cannot be run.
            let mut copy = std::process::Command::new("install");
            copy.args(["-m", "755"]).arg(&source).arg(folder.join(program));
            assert!(copy.status().unwrap().success());
        }
    }

    /// How often commands were run.
    fn runs(&self) -> usize {
        let text = std::fs::read_to_string(self.folder.path().join("bin/runs"));
        text.unwrap_or_default().lines().count()
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.fake.lock().unwrap().asked)
    }

    fn instead(&self, status: u16, text: &str) {
        self.fake.lock().unwrap().instead.push((status, text.to_owned()));
    }

    fn write_token(&self, text: &str) {
        let next = self.folder.path().join("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, self.folder.path().join("token")).unwrap();
    }
}

#[test]
fn a_queue_that_has_not_changed_is_not_read_again() {
    let mut site = Site::new();
    let first: Vec<u32> = site.look().unwrap().jobs().map(|job| job.key.id).collect();
    assert_eq!(first.len(), 4);
    let prefix = "GET /slurm/v0.0.38";
    let asked = site.asked();
    let expected = ["diag", "jobs", "nodes"].map(|path| format!("{prefix}/{path}"));
    assert_eq!(asked[0], "GET /openapi/v3");
    assert_eq!(asked[1..], expected);
    let again: Vec<u32> = site.look().unwrap().jobs().map(|job| job.key.id).collect();
    assert_eq!(again, first);
    // slurmctld's own time, and not this machine's: its second and one more may have changes.
    let asked = site.asked();
    let since = asked[0].strip_prefix(&format!("{prefix}/jobs?update_time=")).unwrap();
    // Some seconds may have passed on a busy machine.
    let since: i64 = since.parse().unwrap();
    assert!(asked.len() == 1 && (1_794_786_118..1_794_786_130).contains(&since), "{asked:?}");
    // When something has changed all of it is read, and nodes with it.
    site.fake.lock().unwrap().changed = 1_794_786_130;
    assert_eq!(site.look().unwrap().jobs().count(), 4);
    let asked = site.asked();
    assert!(asked[0].contains("update_time=") && asked[1] == expected[2], "{asked:?}");
}

#[test]
fn an_empty_list_is_not_believed_where_only_changes_were_asked_for() {
    let mut site = Site::new();
    assert_eq!(site.look().unwrap().jobs().count(), 4);
    site.asked();
    site.instead(200, r#"{"errors":[],"jobs":[]}"#);
    assert_eq!(site.look().unwrap().jobs().count(), 4);
    assert_eq!(site.asked()[1], "GET /slurm/v0.0.38/jobs", "asked again, for all");
    // Asked for all, it is the truth.
    let mut other = Site::new();
    other.look().unwrap();
    other.looker = Looker::default();
    other.instead(200, r#"{"errors":[],"jobs":[]}"#);
    assert_eq!(other.look().unwrap().jobs().count(), 0);
}

#[test]
fn an_error_makes_the_cluster_unknown_until_it_is_over() {
    let mut site = Site::new();
    assert!(site.look().is_ok());
    let down = r#"{"errors":[{"error":"Unspecified error","error_number":-1}],"jobs":[]}"#;
    for (status, text) in [(500, down), (200, down), (502, "<html>"), (200, "{"), (404, "")] {
        site.instead(status, text);
        assert!(site.look().is_err(), "{status} {text}");
        assert_eq!(site.look().unwrap().jobs().count(), 4, "after {status} {text}");
    }
    drop(std::fs::remove_file(site.folder.path().join("socket")));
    let error = site.look().err().unwrap();
    assert!(error.contains("slurmrestd at unix:"), "{error}");
}

#[test]
fn a_token_is_read_again_when_it_changes_and_a_wrong_one_is_told_as_such() {
    let mut site = Site::new();
    assert!(site.look().is_ok());
    // slurmctld takes another one from now on; the file has it later.
    site.fake.lock().unwrap().token = "e30.e30.y".into();
    let error = site.look().err().unwrap();
    assert!(error.contains("refuses the token in"), "{error}");
    site.write_token("e30.e30.y");
    assert!(site.look().is_ok());
    // One that ended long ago says so itself.
    let ended = "e30.eyJleHAiOjE3OTUwNjg3MjMsImlhdCI6MTc5NTA2ODYyMywic3VuIjoiYWxpY2UifQ.x";
    site.write_token(ended);
    let error = site.look().err().unwrap();
    assert!(error.contains("ended") || error.contains("is of user alice"), "{error}");
    site.write_token("nonsense");
    let error = site.look().err().unwrap();
    assert!(error.contains("slurm.rest.token_file"), "{error}");
    site.write_token("e30.e30.y");
    assert!(site.look().is_ok());
}

#[test]
fn orders_go_to_slurmrestd_and_what_it_cannot_say_is_refused_for_good() {
    let site = Site::new();
    let job = JobName::numbered(7);
    site.link.tell(&Instruction::Release(job.clone())).unwrap();
    assert_eq!(site.asked().last().unwrap(), "POST /slurm/v0.0.38/job/7");
    site.link.tell(&Instruction::Cancel(job.clone())).unwrap();
    assert_eq!(site.asked(), ["DELETE /slurm/v0.0.38/job/7"]);
    let (version, lacking) = site.link.lacking().unwrap();
    assert_eq!(version, Version::V38);
    assert_eq!(lacking, [Kind::RequeueHold, Kind::SignalBatch, Kind::Power]);
    let rest = site.link.rest.as_ref().unwrap();
    assert!(rest.tell(&Instruction::RequeueHold(job.clone())).is_err());
    let denied = r#"{"errors":[{"error":"Access/permission denied","error_number":2002}]}"#;
    site.instead(200, denied);
    let failure = site.link.tell(&Instruction::Release(job)).unwrap_err();
    assert!(failure.said.contains("permission denied") && !failure.unanswered, "{failure:?}");
}

/// An image may have them without a `slurm.conf`: that is as if they were not there.
#[test]
fn commands_that_are_not_set_up_are_done_without() {
    for said in [
        "scontrol: fatal: Could not establish a configuration source",
        "slurm_load_reservations error: Unable to contact slurm controller (connect failure)",
        "slurm_load_reservations error: Protocol authentication error",
    ] {
        let mut site = Site::new();
        site.install(&format!("echo '{said}' >&2; exit 1"));
        for _ in 0..5 {
            assert_eq!(site.look().unwrap().jobs().count(), 4, "{said}");
        }
        assert_eq!(site.runs(), 1, "they are not tried at each look");
        assert!(!site.link.can(Kind::Power));
        let failure = site.link.tell(&Instruction::RequeueHold(JobName::numbered(7))).unwrap_err();
        assert!(is_unsayable(&failure.said) && !failure.unanswered, "{failure:?}");
        assert_eq!(site.runs(), 1);
    }
}

/// A site whose reservations are not known is not one without any.
#[test]
fn commands_that_have_worked_and_fail_make_the_cluster_unknown() {
    const WORKS: &str = r#"case "$*" in
        *reservation*) echo 'No reservations in the system' ;;
        *partition*) echo 'PartitionName=gpu MaxTime=UNLIMITED OverSubscribe=NO' ;;
    esac"#;
    let mut site = Site::new();
    site.install(WORKS);
    assert!(site.look().unwrap().rules.partitions.contains_key("gpu"));
    site.looker = Looker::default();
    site.install("echo 'scontrol: error' >&2; exit 1");
    assert!(site.look().is_err());
    // What makes no sense is no reason to do without either.
    let mut site = Site::new();
    site.install("");
    assert!(site.look().is_err());
    site.install(WORKS);
    assert!(site.look().is_ok() && site.link.can(Kind::Power));
}

#[test]
fn settings_that_contradict_each_other_are_refused_by_their_names() {
    let rest = || RestConfig {
        url: "unix:/run/slurmrestd".into(),
        token_file: Path::new("/etc/token").to_owned(),
        user: "root".into(),
        version: None,
        partial: false,
    };
    let of = |reader, rest| Config { reader, rest, ..Config::default() }.check();
    assert_eq!(of(Reader::Rest, Some(rest())), Ok(()));
    assert_eq!(of(Reader::Commands, None), Ok(()));
    let field = |config: Result<(), ConfigError>| config.unwrap_err().field;
    assert_eq!(field(of(Reader::Rest, None)), "rest");
    assert_eq!(field(of(Reader::Commands, Some(rest()))), "reader");
    let with = |change: fn(&mut RestConfig)| {
        let mut rest = rest();
        change(&mut rest);
        field(of(Reader::Rest, Some(rest)))
    };
    assert_eq!(with(|rest| rest.url = "https://host:6820".into()), "rest.url");
    assert_eq!(with(|rest| rest.token_file = "".into()), "rest.token_file");
    assert_eq!(with(|rest| rest.user = "a\r\nb".into()), "rest.user");
    assert_eq!(with(|rest| rest.version = Some("v0.0.37".into())), "rest.version");
}
