//! Who may do what: each path and method of the API's description, by each kind of caller.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;
#[path = "common/controller.rs"]
mod controller;

use controller::{Caller, Running};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// What comes back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum May {
    /// It is done, or answered.
    Yes,
    /// It is not allowed.
    No,
    /// There is no such thing, as far as he is concerned.
    NotSeen,
    /// Nobody knows who asks.
    Unknown,
}

use May::{No, NotSeen, Unknown, Yes};

/// Path, method, and what an administrator, a user (about his own job), another user (about that
/// job), a read-only caller and an unknown one get.
const TABLE: [(&str, &str, [May; 5]); 22] = [
    ("/v1/jobs", "get", [Yes, Yes, Yes, Yes, Unknown]),
    ("/v1/jobs", "post", [Yes, Yes, Yes, No, Unknown]),
    ("/v1/jobs/{id}", "get", [Yes, Yes, NotSeen, Yes, Unknown]),
    ("/v1/jobs/{id}", "patch", [Yes, Yes, NotSeen, No, Unknown]),
    ("/v1/jobs/{id}", "delete", [Yes, Yes, NotSeen, No, Unknown]),
    ("/v1/jobs/{id}/hold", "post", [Yes, Yes, NotSeen, No, Unknown]),
    ("/v1/jobs/{id}/release", "post", [Yes, Yes, NotSeen, No, Unknown]),
    ("/v1/jobs/{id}/explain", "get", [Yes, Yes, NotSeen, Yes, Unknown]),
    ("/v1/whatif", "post", [Yes, Yes, Yes, No, Unknown]),
    ("/v1/nodes", "get", [Yes, Yes, Yes, Yes, Unknown]),
    ("/v1/plan", "get", [Yes, Yes, Yes, Yes, Unknown]),
    ("/v1/plan", "post", [Yes, Yes, Yes, No, Unknown]),
    ("/v1/budget", "get", [Yes, Yes, Yes, Yes, Unknown]),
    ("/v1/budget", "put", [Yes, No, No, No, Unknown]),
    ("/v1/reports", "get", [Yes, Yes, Yes, Yes, Unknown]),
    ("/v1/advice", "get", [Yes, No, No, Yes, Unknown]),
    ("/v1/limits", "get", [Yes, Yes, Yes, Yes, Unknown]),
    ("/v1/events", "get", [Yes, Yes, Yes, Yes, Unknown]),
    ("/v1/status", "get", [Yes, Yes, Yes, Yes, Unknown]),
    ("/metrics", "get", [Yes, Yes, Yes, Yes, Unknown]),
    ("/healthz", "get", [Yes, Yes, Yes, Yes, Yes]),
    ("/openapi.json", "get", [Yes, Yes, Yes, Yes, Yes]),
];

const CALLERS: [(&str, Caller<'_>); 5] = [
    ("admin", Caller::Token("carol-token")),
    ("user", Caller::Token("alice-token")),
    ("other user", Caller::Token("bob-token")),
    ("read-only", Caller::Token("eve-token")),
    ("unknown", Caller::Token("guessed")),
];

fn job() -> String {
    json!({"name": "a", "workload": "gpt2", "gpus": 2, "duration_s": 36_000}).to_string()
}

fn alices_job(running: &Running) -> String {
    let reply = running.ask(Caller::Token("alice-token"), "POST", "/v1/jobs", Some(&job()));
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.json()["job"].to_string()
}

/// The status of an answer; streams are not read to their end.
fn status(running: &Running, who: Caller<'_>, method: &str, path: &str, body: Option<&str>) -> u16 {
    if path != "/v1/events" {
        return running.ask(who, method, path, body).status;
    }
    use std::io::{BufRead, BufReader, Write};
    let Caller::Token(token) = who else { unreachable!("all callers have tokens") };
    let mut stream = std::net::TcpStream::connect(running.tcp.unwrap()).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn each_route_of_the_description_says_who_may_use_it() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &["--speed", "1"]);
    let document = running.ask(Caller::Unix, "GET", "/openapi.json", None).json();
    let mut described = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, about) in methods.as_object().unwrap() {
            described.insert((path.clone(), method.clone()));
            let refusal = &about["responses"]["default"]["content"];
            let open = path == "/healthz" || path == "/openapi.json";
            assert!(
                open || refusal.get("application/problem+json").is_some(),
                "{method} {path}: errors are problems: {refusal}"
            );
        }
    }
    let stated = TABLE.iter().map(|(path, method, _)| ((*path).into(), (*method).into()));
    assert_eq!(described, stated.collect(), "each route has a line in the table of this test");
    let view = include_str!("../src/commands/plan/example.json");
    let one = job();
    let mut wrong = Vec::new();
    for (path, method, expected) in TABLE {
        let body = match (path, method) {
            ("/v1/jobs" | "/v1/whatif", "post") => Some(one.as_str()),
            ("/v1/jobs/{id}", "patch") => Some(r#"{"deadline_in_s":90000}"#),
            ("/v1/plan", "post") => Some(view),
            ("/v1/budget", "put") => Some(r#"{"calendar":{"value":6000}}"#),
            _ => None,
        };
        for ((name, who), expected) in CALLERS.into_iter().zip(expected) {
            // One of her own for each, as some of them end it.
            let at = if path.contains("{id}") { alices_job(&running) } else { String::new() };
            let path = path.replace("{id}", &at);
            // Whoever guesses tokens is slowed down.
            let status = controller::until("it answers", || {
                let status = status(&running, who, &method.to_uppercase(), &path, body);
                (status != 429).then_some(status)
            });
            let found = match status {
                200 | 201 => Yes,
                403 => No,
                404 => NotSeen,
                401 => Unknown,
                other => panic!("{name}: {method} {path}: {other}"),
            };
            if found != expected {
                wrong.push(format!("{name}: {method} {path}: {found:?}, stated is {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `--admin eve` made her read-only token an administrator's.
#[test]
fn a_token_never_raises_its_users_role_nor_the_other_way_round() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &["--admin", "eve,alice"]);
    for (who, role) in [("eve-token", "read-only"), ("alice-token", "user")] {
        let status = running.ask(Caller::Token(who), "GET", "/v1/status", None).json();
        assert_eq!(status["role"], role, "{who}");
        let budget = r#"{"calendar":{"value":1000}}"#;
        let refused = running.ask(Caller::Token(who), "PUT", "/v1/budget", Some(budget));
        assert_eq!(refused.status, 403, "{who}: {refused:?}");
    }
}

/// SIGHUP ended the process, and the token file was read once.
#[test]
fn a_hang_up_reads_tokens_and_limits_again_and_a_broken_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let limits = folder.path().join("limits.toml");
    fs::write(&limits, "[users.bob]\njobs_waiting = 7\n").unwrap();
    let running = Running::start(folder.path(), &["--limits", "limits.toml"]);
    let hang_up = || {
        let id = running.id().to_string();
        assert!(std::process::Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
    };
    let tokens = folder.path().join("tokens");
    let before = fs::read_to_string(&tokens).unwrap();
    let write = |text: &str| {
        fs::write(&tokens, text).unwrap();
        fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).unwrap();
    };
    let may = |who: &str| running.ask(Caller::Token(who), "GET", "/v1/limits", None);
    let waiting = || may("bob-token").json()["jobs_waiting"]["limit"].as_f64();
    assert_eq!(waiting(), Some(7.0));
    // Alice's token is taken away, and bob may have more.
    let without: String = before.lines().skip(1).map(|line| format!("{line}\n")).collect();
    write(&without);
    fs::write(&limits, "[users.bob]\njobs_waiting = 9\n").unwrap();
    assert_eq!(may("alice-token").status, 200, "nothing is read before the signal");
    hang_up();
    controller::until("alice is unknown", || (may("alice-token").status == 401).then_some(()));
    assert_eq!(waiting(), Some(9.0));
    // Nothing of a broken configuration holds.
    write("alice king 00\n");
    fs::write(&limits, "[users.bob]\njobs_waiting = 11\n").unwrap();
    hang_up();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!((may("bob-token").status, waiting()), (200, Some(9.0)));
    write(&before);
    hang_up();
    controller::until("alice is known", || (may("alice-token").status == 200).then_some(()));
    assert_eq!(waiting(), Some(11.0));
}
