//! The API on real sockets: who may do what, what is refused, what survives.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;
#[path = "common/controller.rs"]
mod controller;

use common::wattline;
use controller::{Caller, Running, until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

const ALICE: Caller<'_> = Caller::Token("alice-token");
const BOB: Caller<'_> = Caller::Token("bob-token");
const EVE: Caller<'_> = Caller::Token("eve-token");
const CAROL: Caller<'_> = Caller::Token("carol-token");

fn job(name: &str) -> String {
    json!({"name": name, "workload": "gpt2", "gpus": 2, "duration_s": 36000}).to_string()
}

fn submit(running: &Running, who: Caller<'_>, name: &str) -> u64 {
    let reply = running.ask(who, "POST", "/v1/jobs", Some(&job(name)));
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.json()["job"].as_u64().unwrap()
}

#[test]
fn nobody_sees_or_changes_anothers_job() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &["--speed", "1"]);
    let bobs = submit(&running, BOB, "bobs-secret");
    let own = submit(&running, ALICE, "alices");
    let path = format!("/v1/jobs/{bobs}");
    let heavy = r#"{"weight_eur_per_h":6}"#;
    let light = r#"{"weight_eur_per_h":4}"#;
    let budget = r#"{"calendar":{"value":1000}}"#;
    let heavy_job =
        r#"{"name":"x","workload":"gpt2","duration_s":60,"weight_eur_per_h":5.01}"#.to_owned();
    let own_path = format!("/v1/jobs/{own}");
    let explain = format!("{path}/explain");
    let (hold, release) = (format!("{path}/hold"), format!("{path}/release"));
    let refused: Vec<(Caller<'_>, &str, &str, Option<&str>, u16)> = vec![
        (ALICE, "GET", &path, None, 404),
        (ALICE, "GET", &explain, None, 404),
        (ALICE, "PATCH", &path, Some(light), 404),
        (ALICE, "DELETE", &path, None, 404),
        (ALICE, "POST", &hold, None, 404),
        (ALICE, "POST", &release, None, 404),
        (ALICE, "GET", "/v1/jobs?user=bob", None, 403),
        (ALICE, "PATCH", &own_path, Some(heavy), 403),
        (ALICE, "POST", "/v1/jobs", Some(&heavy_job), 403),
        (ALICE, "PUT", "/v1/budget", Some(budget), 403),
        (BOB, "PUT", "/v1/budget", Some(r#"{"calendar":null}"#), 403),
        (EVE, "POST", "/v1/jobs", Some(&heavy_job), 403),
        (EVE, "DELETE", &path, None, 403),
        (EVE, "PUT", "/v1/budget", Some(budget), 403),
        (Caller::Token("guessed"), "GET", "/v1/jobs", None, 401),
    ];
    let before = running.audit().len();
    for (who, method, path, body, status) in &refused {
        let reply = running.ask(*who, method, path, *body);
        assert_eq!(reply.status, *status, "{method} {path}: {reply:?}");
        assert!(reply.head.contains("application/problem+json"), "{reply:?}");
        let problem = reply.json();
        assert_eq!(problem["status"], *status);
        assert!(!problem["help"].as_str().unwrap().is_empty());
        // What is not hers has no name and no owner.
        let words = ["bobs-secret", "belongs"];
        assert!(!words.iter().any(|word| reply.body.contains(word)), "{reply:?}");
    }
    let audit = running.audit();
    let lines = &audit[before..];
    assert_eq!(lines.len(), refused.len(), "{lines:#?}");
    for (line, (_, method, path, _, status)) in lines.iter().zip(&refused) {
        let path = path.split('?').next().unwrap();
        assert_eq!((&line["method"], &line["path"]), (&json!(method), &json!(path)));
        assert_eq!((&line["outcome"], &line["status"]), (&json!("refused"), &json!(status)));
        assert!(!line["what"].as_str().unwrap().is_empty(), "{line}");
        assert!(line["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    }
    assert_eq!(lines[0]["what"], json!(format!("job {bobs} belongs to bob")));
    // The other way round, all of it is hers, his, or an administrator's.
    let names = |who| -> Vec<String> {
        let page = running.ask(who, "GET", "/v1/jobs?limit=1000", None).json();
        let jobs = page["jobs"].as_array().unwrap();
        jobs.iter().map(|job| job["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(ALICE), ["alices"]);
    assert_eq!(names(BOB), ["bobs-secret"]);
    assert!(names(EVE).len() >= 2 && names(CAROL).len() >= 2);
    let status = running.ask(ALICE, "GET", "/v1/status", None).json();
    assert!(status["waiting"].as_u64().unwrap() + status["running"].as_u64().unwrap() >= 2);
    assert_eq!((&status["you"], &status["role"]), (&json!("alice"), &json!("user")));
    assert_eq!(status["max_weight_eur_per_h"].as_f64().unwrap().round(), 5.0);
    for (who, method, path, body) in [
        (ALICE, "PATCH", own_path.as_str(), Some(light)),
        (CAROL, "PATCH", own_path.as_str(), Some(heavy)),
        (BOB, "POST", hold.as_str(), None),
        (BOB, "POST", release.as_str(), None),
        (CAROL, "PUT", "/v1/budget", Some(r#"{"calendar":{"value":5000}}"#)),
        (BOB, "DELETE", path.as_str(), None),
    ] {
        let reply = running.ask(who, method, path, body);
        assert_eq!(reply.status, 200, "{method} {path}: {reply:?}");
        let last = running.audit().pop().unwrap();
        assert_eq!((&last["outcome"], &last["path"]), (&json!("accepted"), &json!(path)));
    }
    until("the budget is set", || {
        let budget = running.ask(ALICE, "GET", "/v1/budget", None).json();
        (budget["calendar"]["value"] == 5000.0).then_some(())
    });
    until("the weight is set", || {
        let job = running.ask(ALICE, "GET", &own_path, None).json();
        ((job["weight_eur_per_h"].as_f64().unwrap() - 6.0).abs() < 1e-9).then_some(())
    });
    until("bob's job is over", || {
        let job = running.ask(BOB, "GET", &path, None).json();
        (job["state"] == "cancelled").then_some(())
    });
}

#[test]
fn the_kernel_says_who_asks_at_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &["--speed", "1"]);
    let status = running.ask(Caller::Unix, "GET", "/v1/status", None).json();
    assert_eq!(status["role"], "admin", "whoever runs it");
    let mine = submit(&running, Caller::Unix, "mine");
    // As somebody else, where this test may become that.
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let as_other = |args: &[&str]| {
        Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .arg(env!("CARGO_BIN_EXE_wattline"))
            .args(args)
            .args(["--socket", &running.socket()])
            .output()
    };
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let probe = as_other(&["nodes"]);
    if !root || !probe.is_ok_and(|run| run.status.success()) {
        eprintln!("left out: cannot become another user here");
        return;
    }
    let cancelled = as_other(&["job", "cancel", &mine.to_string()]).unwrap();
    assert_eq!(cancelled.status.code(), Some(2));
    let said = String::from_utf8(cancelled.stderr).unwrap();
    assert!(said.contains(&format!("you have no job {mine}")), "{said}");
    let budget = as_other(&["budget", "set", "1 kW"]).unwrap();
    assert_eq!(budget.status.code(), Some(2));
    let submit = ["submit", "--workload", "gpt2", "--duration", "1 h", "--weight", "9 EUR/h"];
    assert_eq!(as_other(&submit).unwrap().status.code(), Some(2));
    assert!(as_other(&submit[..5]).unwrap().status.success());
    let audit = running.audit();
    let refused = audit.iter().filter(|line| line["outcome"] == "refused");
    let remotes: BTreeSet<&str> = refused.map(|line| line["remote"].as_str().unwrap()).collect();
    assert_eq!(remotes, BTreeSet::from(["unix uid 65534"]));
}

#[test]
fn bad_input_is_named_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &["--speed", "1"]);
    let deep = format!("{}1{}", "[".repeat(100_000 / 4), "]".repeat(100_000 / 4));
    let huge = format!(r#"{{"name":"{}"}}"#, "x".repeat(70_000));
    let long = json!({"name": "x".repeat(129), "workload": "gpt2", "work": 1}).to_string();
    let with = |extra: Value| {
        let mut body = json!({"name": "a", "workload": "gpt2", "work": 1000.0});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body.to_string()
    };
    let table: Vec<(String, u16, &str)> = vec![
        (String::new(), 400, "EOF"),
        ("nonsense".into(), 400, "expected"),
        ("{} {}".into(), 400, "name"),
        (deep, 400, "nested"),
        (huge, 413, "bytes"),
        (long, 400, "128"),
        (with(json!({"gpus": "two"})), 400, "gpus"),
        (with(json!({"gpus": 0})), 400, "gpus"),
        (with(json!({"gpus": -1})), 400, "gpus"),
        (with(json!({"gpus": 9})), 400, "all GPUs"),
        (with(json!({"gpus": 2, "min_gpus": 3})), 400, "min_gpus"),
        (with(json!({"gpus": 4_294_967_295_u32})), 400, "gpus"),
        (with(json!({"wieght": 3})), 400, "wieght"),
        (with(json!({"workload": "chess"})), 400, "gpt2"),
        (with(json!({"duration_s": 60})), 400, "not both"),
        (with(json!({"work": 0})), 400, "work"),
        (with(json!({"work": -5})), 400, "work"),
        (with(json!({"work": null})), 400, "duration_s"),
        (with(json!({"work": 1e300})), 400, "work"),
        (with(json!({"deadline_in_s": -1})), 400, "deadline_in_s"),
        (with(json!({"deadline_s": 5})), 400, "past"),
        (with(json!({"deadline_s": 1e300})), 400, "deadline_s"),
        (with(json!({"weight_eur_per_h": -1})), 400, "weight_eur_per_h"),
        (with(json!({"batch": 0})), 400, "batch"),
        (with(json!({"elasticity": "rubber"})), 400, "rubber"),
        (with(json!({"name": ""})), 400, "name"),
        (with(json!({"name": "   "})), 400, "name"),
        (with(json!({"name": "a\u{0}b"})), 400, "\\u{0}"),
        (with(json!({"name": "\u{1b}[31mred"})), 400, "\\u{1b}"),
        (with(json!({"name": "a\nb"})), 400, "\\u{a}"),
        (with(json!({"name": "\u{202e}gnp.exe"})), 400, "\\u{202e}"),
        (with(json!({"workload": "\u{1b}]0;x\u{7}"})), 400, "workload"),
    ];
    let before = running.ask(Caller::Unix, "GET", "/v1/status", None).json()["journal"].clone();
    for (body, status, word) in &table {
        let shown: String = body.chars().take(80).collect();
        let reply = running.ask(ALICE, "POST", "/v1/jobs", Some(body));
        assert_eq!(reply.status, *status, "{shown}: {}", reply.body);
        assert!(reply.json()["detail"].as_str().unwrap().contains(word), "{shown}: {}", reply.body);
    }
    for (method, path, body, status) in [
        ("GET", "/v1/jobs?limit=0", None, 400),
        ("GET", "/v1/jobs?limit=many", None, 400),
        ("GET", "/v1/jobs?colour=red", None, 400),
        ("GET", "/v1/jobs?state=sleepy", None, 400),
        ("GET", "/v1/jobs/99999999999999999999", None, 404),
        ("GET", "/v1/jobs/-1", None, 404),
        ("GET", "/v1/jobs/%00", None, 404),
        ("GET", "/v1/nothing", None, 404),
        ("GET", "/../etc/passwd", None, 404),
        ("PATCH", "/v1/budget", None, 405),
        ("PATCH", "/v1/jobs/0", Some("{}"), 404),
        ("POST", "/v1/plan", Some("{}"), 400),
        ("POST", "/v1/whatif", Some("{}"), 400),
    ] {
        let reply = running.ask(ALICE, method, path, body);
        assert_eq!(reply.status, status, "{method} {path}: {reply:?}");
        assert_eq!(reply.json()["status"], status, "{method} {path}");
    }
    for body in [
        r#"{"calendar":{"value":-1}}"#,
        r#"{"calendar":{"value":1,"rules":[{"days":"someday","value":3}]}}"#,
        r#"{"calendar":{"value":1,"utc_offset":"+99:00"}}"#,
        r#"{"calender":null}"#,
        "{}",
    ] {
        let reply = running.ask(CAROL, "PUT", "/v1/budget", Some(body));
        // A calendar that is not named is not the same as none.
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
    }
    // What is no HTTP gets no answer that could be taken for one.
    let mut stream = UnixStream::connect(folder.path().join("sock")).unwrap();
    stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").unwrap();
    let after = running.ask(Caller::Unix, "GET", "/v1/status", None).json()["journal"].clone();
    let grew = after.as_u64().unwrap() - before.as_u64().unwrap();
    assert!(grew <= 20, "only the loop itself has written: {grew}");
    let jobs = running.ask(ALICE, "GET", "/v1/jobs?state=all", None).json();
    assert_eq!(jobs["jobs"], json!([]));
    // HTML is a name like any other, and never a page.
    let html = r#"<script>alert("1")</script>"#;
    let id = submit(&running, ALICE, html);
    let reply = running.ask(ALICE, "GET", &format!("/v1/jobs/{id}"), None);
    assert_eq!(reply.json()["name"], html);
    assert!(reply.head.contains("application/json") && reply.head.contains("nosniff"));
}

#[test]
fn every_path_of_the_description_answers() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &["--speed", "1"]);
    let id = submit(&running, Caller::Unix, "one");
    let document = running.ask(Caller::Unix, "GET", "/openapi.json", None).json();
    let paths = document["paths"].as_object().unwrap();
    let stable = [
        "/v1/jobs",
        "/v1/jobs/{id}",
        "/v1/jobs/{id}/explain",
        "/v1/nodes",
        "/v1/plan",
        "/v1/budget",
        "/v1/whatif",
        "/v1/events",
        "/metrics",
        "/healthz",
        "/openapi.json",
    ];
    assert!(stable.iter().all(|path| paths.contains_key(*path)), "{:?}", paths.keys());
    let view = include_str!("../src/commands/plan/example.json");
    let one = job("two");
    let mut asked = 0;
    // Cancelled last, or nothing else could be done to it.
    let order = |method: &str| usize::from(method == "delete");
    let mut all: Vec<(String, String)> = Vec::new();
    for (path, methods) in paths {
        for method in methods.as_object().unwrap().keys() {
            all.push((path.clone(), method.clone()));
        }
    }
    all.sort_by_key(|(path, method)| (order(method), path.clone()));
    for (path, method) in all {
        if path == "/v1/events" {
            continue;
        }
        let body = match (path.as_str(), method.as_str()) {
            ("/v1/jobs" | "/v1/whatif", "post") => Some(one.as_str()),
            ("/v1/jobs/{id}", "patch") => Some(r#"{"deadline_in_s":90000}"#),
            ("/v1/plan", "post") => Some(view),
            ("/v1/budget", "put") => Some(r#"{"calendar":{"value":6000}}"#),
            _ => None,
        };
        let path = path.replace("{id}", &id.to_string());
        let reply = running.ask(Caller::Unix, &method.to_uppercase(), &path, body);
        assert!(matches!(reply.status, 200 | 201), "{method} {path}: {reply:?}");
        asked += 1;
    }
    assert!(asked >= 17, "{asked}");
    let metrics = running.ask(Caller::Unix, "GET", "/metrics", None).body;
    for name in [
        "wattline_power_budget_watts",
        "wattline_power_committed_watts",
        "wattline_power_measured_watts",
        "wattline_gpu_power_limit_watts{node=",
        "wattline_energy_joules_total{node=",
        "wattline_budget_exceeded_seconds_total",
        "wattline_plan_duration_seconds_bucket{le=\"+Inf\"}",
        "wattline_actions_total{kind=",
        "wattline_deadlines_missed_total",
        "wattline_build_info{version=",
    ] {
        assert!(metrics.contains(name), "{name}: {metrics}");
    }
    assert!(!metrics.contains("job=") && !metrics.contains("user="));
}

/// Reads a stream of events until `enough`.
fn listen(
    running: &Running,
    last: Option<&str>,
    mut enough: impl FnMut(&[(String, String, String)]) -> bool,
) -> Vec<(String, String, String)> {
    let mut stream = UnixStream::connect(running.folder.join("sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let last = last.map_or_else(String::new, |id| format!("last-event-id: {id}\r\n"));
    write!(stream, "GET /v1/events HTTP/1.1\r\nhost: x\r\n{last}\r\n").unwrap();
    let (mut events, mut id, mut kind) = (Vec::new(), String::new(), String::new());
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.to_owned();
        } else if let Some(text) = line.strip_prefix("event: ") {
            kind = text.to_owned();
        } else if let Some(text) = line.strip_prefix("data: ") {
            events.push((id.clone(), kind.clone(), text.to_owned()));
        }
        if enough(&events) {
            break;
        }
    }
    events
}

#[test]
fn events_come_as_they_happen_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &["--speed", "600"]);
    let mut submitted = None;
    let heard = listen(&running, None, |events| {
        // The first line that comes says that it listens.
        let id = *submitted.get_or_insert_with(|| {
            let body = json!({"name": "short", "workload": "gpt2", "gpus": 1, "duration_s": 60});
            let reply = running.ask(CAROL, "POST", "/v1/jobs", Some(&body.to_string()));
            reply.json()["job"].as_u64().unwrap()
        });
        let about = |text: &str| serde_json::from_str::<Value>(text).unwrap()["job"] == id;
        events.iter().any(|(_, kind, text)| kind == "finished" && about(text))
    });
    let id = submitted.unwrap();
    let kinds = |events: &[(String, String, String)]| -> Vec<String> {
        let about = |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|e| e["job"] == id);
        let own = events.iter().filter(|(_, _, text)| about(text));
        own.map(|(_, kind, _)| kind.clone()).filter(|kind| kind != "limited").collect()
    };
    assert_eq!(kinds(&heard), ["submitted", "started", "finished"]);
    // From the first on, the same once more.
    let (first, ..) = &heard[0];
    let again = listen(&running, Some(first), |events| events.len() + 1 >= heard.len());
    assert_eq!(again[..], heard[1..]);
    // Of another life: what there is, and that something may be missing.
    let other = listen(&running, Some("77777-3"), |events| events.len() > 1);
    assert_eq!(other[0].1, "gap");
    let bad = running.try_ask(Caller::Unix, "GET", "/v1/events", None, &[("last-event-id", "x")]);
    assert_eq!(bad.unwrap().status, 400);
}

#[test]
fn commands_talk_to_it_and_escape_what_they_print() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = Running::start(folder.path(), &["--speed", "1"]);
    let socket = running.socket();
    let ok = |args: &[&str]| {
        let run = wattline(&[args, &["--socket", &socket]].concat());
        let errors = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(run.status.success(), "{args:?}: {errors}");
        String::from_utf8(run.stdout).unwrap()
    };
    let json = |args: &[&str]| -> Value {
        serde_json::from_str(&ok(&[args, &["--json"]].concat())).unwrap()
    };
    let submit = ["submit", "--workload", "gpt2", "--gpus", "2", "--duration", "2 h"];
    let named = ["--name", "trän <b>", "--deadline", "5 h", "--weight", "2 EUR/h"];
    let said = json(&[&submit[..], &named[..]].concat());
    assert_eq!(said["schema"], "wattline.accepted/1");
    let id = said["job"].to_string();
    let keyed = [&submit[..], &["--key", "k"][..]].concat();
    let (one, two) = (json(&keyed), json(&keyed));
    assert_eq!(
        (&one["job"], &one["again"], &two["again"]),
        (&two["job"], &json!(false), &json!(true))
    );
    let page = json(&["queue"]);
    assert_eq!(page["schema"], "wattline.queue/1");
    let row = page["jobs"].as_array().unwrap().iter().find(|row| row["id"] == said["job"]);
    assert_eq!(row.unwrap()["name"], "trän <b>");
    assert!(ok(&["queue"]).contains("trän <b>"));
    assert_eq!(json(&["nodes"])["nodes"].as_array().unwrap().len(), 2);
    assert!(ok(&["nodes"]).contains("0 of 4") || ok(&["nodes"]).contains("2 of 4"));
    ok(&["job", "hold", &id]);
    until("it waits", || (json(&["job", "show", &id])["state"] == "on_hold").then_some(()));
    assert!(ok(&["job", "show", &id]).contains("on hold until it is let go"));
    ok(&["job", "release", &format!("j{id}")]);
    // Two changes right after each other, neither undoes the other.
    ok(&["job", "update", &id, "--deadline", "9 h"]);
    ok(&["job", "update", &id, "--weight", "3 EUR/h"]);
    until("it is changed", || {
        let job = json(&["job", "show", &id]);
        let due = job["deadline_s"].as_f64().unwrap() - job["submitted_s"].as_f64().unwrap();
        let heavy = (job["weight_eur_per_h"].as_f64().unwrap() - 3.0).abs() < 1e-9;
        (heavy && due > 8.9 * 3600.0).then_some(())
    });
    let explained = json(&["explain", &id]);
    assert_eq!(explained["schema"], "wattline.explain/1");
    assert!(!explained["options"].as_array().unwrap().is_empty());
    assert!(ok(&["explain", &id]).contains("What it could run on"));
    let what_if = json(&["whatif", "--workload", "gpt2", "--duration", "1 h", "--deadline", "3 h"]);
    assert_eq!(
        (&what_if["schema"], &what_if["foreseen"]),
        (&json!("wattline.whatif/1"), &json!(true))
    );
    ok(&["budget", "set", "5.5 kW"]);
    until("the budget is set", || {
        (json(&["budget", "show"])["calendar"]["value"] == 5500.0).then_some(())
    });
    let week = folder.path().join("week.json");
    let text =
        r#"{"value":5000,"rules":[{"days":"mon-fri","from":"09:00","to":"18:00","value":4500}]}"#;
    std::fs::write(&week, text).unwrap();
    ok(&["budget", "calendar", week.to_str().unwrap()]);
    until("the calendar is set", || ok(&["budget", "calendar"]).contains("4.50 kW").then_some(()));
    ok(&["job", "cancel", &id]);
    until("it is cancelled", || {
        (json(&["job", "show", &id])["state"] == "cancelled").then_some(())
    });
    let refused = |args: &[&str], code: i32, word: &str| {
        let run = wattline(&[args, &["--socket", &socket]].concat());
        let said = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(word), "{args:?}: {said}");
        assert!(!said.chars().any(|c| c.is_control() && c != '\n'), "{said:?}");
    };
    refused(&["job", "show", "4000000"], 2, "no job");
    refused(&["job", "show", "../status"], 2, "not a job's number");
    refused(&["job", "cancel", &id], 2, "is over");
    refused(&["submit", "--workload", "\u{1b}[31mx", "--work", "1"], 2, "\\u{1b}");
    refused(&["budget", "set", "12"], 2, "no unit");
    // It ends when it is told to, and leaves no socket behind.
    let told = Command::new("kill").args(["-TERM", &running.id().to_string()]).status().unwrap();
    assert!(told.success() && running.wait().success());
    assert!(!folder.path().join("sock").exists());
    refused(&["queue"], 1, "wattline serve");
}

/// One submission after another, each under its key until it is acknowledged.
#[test]
fn killed_fifty_times_no_submission_is_lost_or_doubled() {
    // All plans since the beginning are made again after each kill.
    const EXTRA: [&str; 4] = ["--speed", "60", "--policy", "fifo"];
    let folder = tempfile::tempdir().unwrap();
    let slot: Mutex<Running> = Mutex::new(Running::start(folder.path(), &EXTRA));
    let done = AtomicBool::new(false);
    let acknowledged = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut acknowledged: BTreeMap<u32, u64> = BTreeMap::new();
            let mut repeated = 0;
            for number in 0.. {
                let body = job(&format!("job-{number}"));
                let key = format!("key-{number}");
                let mut tries = 0;
                let id = loop {
                    if done.load(Ordering::Relaxed) {
                        return (acknowledged, repeated);
                    }
                    tries += 1;
                    // Only the socket is needed, not the lock: it may be killed while it answers.
                    let reply = raw_submit(folder.path(), &body, &key);
                    match reply {
                        Some((200 | 201, id)) => break id,
                        Some((status, _)) => panic!("{status}"),
                        None => sleep(Duration::from_millis(2)),
                    }
                };
                repeated += usize::from(tries > 1);
                acknowledged.insert(number, id);
                sleep(Duration::from_millis(3));
            }
            unreachable!("numbers do not end")
        });
        for life in 0..50_u64 {
            // From the first answer on, at some point.
            sleep(Duration::from_millis(15 + (life * 53) % 120));
            let mut running = slot.lock().unwrap();
            running.kill();
            *running = Running::start(folder.path(), &EXTRA);
        }
        done.store(true, Ordering::Relaxed);
        client.join().unwrap()
    });
    let (acknowledged, repeated) = acknowledged;
    eprintln!("{} submissions were acknowledged, {repeated} after a kill", acknowledged.len());
    assert!(acknowledged.len() > 50, "{}", acknowledged.len());
    let running = slot.lock().unwrap();
    let mut by_name: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut after = None;
    loop {
        let from = after.map_or_else(String::new, |after: u64| format!("&after={after}"));
        let path = format!("/v1/jobs?state=all&limit=1000{from}");
        let page = running.ask(Caller::Unix, "GET", &path, None).json();
        for job in page["jobs"].as_array().unwrap() {
            let name = job["name"].as_str().unwrap().to_owned();
            by_name.entry(name).or_default().push(job["id"].as_u64().unwrap());
        }
        after = page["next"].as_u64();
        if after.is_none() {
            break;
        }
    }
    for (number, id) in &acknowledged {
        assert_eq!(by_name.get(&format!("job-{number}")), Some(&vec![*id]), "job-{number}");
    }
    assert!(by_name.values().all(|ids| ids.len() == 1), "{by_name:?}");
}

/// What came back, if anything whole did.
fn raw_submit(folder: &std::path::Path, body: &str, key: &str) -> Option<(u16, u64)> {
    use std::io::Read;
    let mut stream = UnixStream::connect(folder.join("sock")).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    let head = "POST /v1/jobs HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n";
    let length = body.len();
    let text = format!("{head}idempotency-key: {key}\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let value: Value = serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
    Some((status, value["job"].as_u64().unwrap_or(0)))
}

#[test]
fn advice_is_for_those_who_see_everything() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &[]);
    for who in [Caller::Unix, Caller::Token("carol-token"), Caller::Token("eve-token")] {
        let reply = running.ask(who, "GET", "/v1/advice", None);
        assert_eq!(reply.status, 200, "{reply:?}");
        let advice = reply.json();
        assert_eq!(
            (&advice["schema"], &advice["decides"]),
            (&"wattline.advice/1".into(), &true.into())
        );
    }
    let refused = running.ask(Caller::Token("alice-token"), "GET", "/v1/advice", None);
    assert_eq!(refused.status, 403, "{refused:?}");
    let described = running.ask(Caller::Unix, "GET", "/openapi.json", None).json();
    assert!(described["paths"]["/v1/advice"]["get"].is_object(), "{}", described["paths"]);
}
