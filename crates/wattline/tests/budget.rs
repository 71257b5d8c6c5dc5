//! What a budget would do is known before it is set, and nothing else happens then.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;
#[path = "common/controller.rs"]
mod controller;

use common::wattline;
use controller::{Caller, Running, until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

const ALICE: Caller<'_> = Caller::Token("alice-token");
const CAROL: Caller<'_> = Caller::Token("carol-token");

/// A controller with two jobs that run, the second of which is not preemptible.
fn with_two_jobs(folder: &std::path::Path) -> Running {
    let running = Running::start(folder, &["--speed", "1"]);
    for (name, preemptible) in [("goes", true), ("stays", false)] {
        let job = json!({"name": name, "workload": "gpt2", "gpus": 2, "duration_s": 36000,
                         "elasticity": "rigid", "preemptible": preemptible});
        let reply = running.ask(Caller::Unix, "POST", "/v1/jobs", Some(&job.to_string()));
        assert_eq!(reply.status, 201, "{reply:?}");
    }
    until("both run", || {
        let queue = running.ask(Caller::Unix, "GET", "/v1/jobs?state=running", None).json();
        let names: Vec<&Value> = queue["jobs"].as_array()?.iter().map(|job| &job["name"]).collect();
        (names.contains(&&json!("goes")) && names.contains(&&json!("stays"))).then_some(())
    });
    running
}

fn names(list: &Value) -> Vec<&str> {
    list["jobs"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap()).collect()
}

#[test]
fn a_dry_run_says_what_a_budget_does_to_whom_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let running = with_two_jobs(folder.path());
    let before = running.ask(CAROL, "GET", "/v1/budget", None).json();
    let jobs = || running.ask(CAROL, "GET", "/v1/jobs?state=running", None).json()["jobs"].clone();
    let (placed, entries) = (placements(&jobs()), written(folder.path()).len());
    let low = r#"{"calendar":{"value":100}}"#;
    let low_dry = r#"{"calendar":{"value":100},"dry_run":true}"#;
    for (path, body) in [("/v1/budget?dry_run=true", low), ("/v1/budget", low_dry)] {
        let reply = running.ask(CAROL, "PUT", path, Some(body));
        assert_eq!(reply.status, 200, "{reply:?}");
        let forecast = reply.json();
        assert_eq!(forecast["schema"], "wattline.budget-forecast/1");
        assert_eq!((&forecast["kept"], &forecast["budget_w"]), (&json!(false), &json!(100.0)));
        assert!(names(&forecast["stopped"]).contains(&"goes"), "{forecast}");
        assert!(!names(&forecast["stopped"]).contains(&"stays"), "{forecast}");
        assert!(names(&forecast["cannot_be_stopped"]).contains(&"stays"), "{forecast}");
        let stays = forecast["slower"]["jobs"].as_array().unwrap();
        let stays = stays.iter().find(|job| job["name"] == "stays").unwrap();
        assert!(stays["limit_w"].as_f64().unwrap() < stays["limit_now_w"].as_f64().unwrap());
        let (now, then) = (&forecast["committed_now_w"], &forecast["committed_w"]);
        assert!(then.as_f64().unwrap() > 100.0 && then.as_f64() < now.as_f64(), "{forecast}");
    }
    // The worst moment of a week counts.
    let week = r#"{"calendar":{"value":6000,"rules":[{"from":"02:00","to":"03:00","value":100}]}}"#;
    let forecast = running.ask(CAROL, "PUT", "/v1/budget?dry_run=true", Some(week)).json();
    assert_eq!((&forecast["kept"], &forecast["budget_w"]), (&json!(false), &json!(100.0)));
    assert!(forecast["at_s"].as_f64().unwrap() >= forecast["now_s"].as_f64().unwrap());
    let none = running.ask(CAROL, "PUT", "/v1/budget?dry_run=true", Some(r#"{"calendar":null}"#));
    assert_eq!(none.json()["kept"], true);
    // Only those who may set a budget may ask, and what is misspelt sets none.
    assert_eq!(running.ask(ALICE, "PUT", "/v1/budget?dry_run=true", Some(low)).status, 403);
    assert_eq!(running.ask(CAROL, "PUT", "/v1/budget?dryrun=true", Some(low)).status, 400);
    let after = running.ask(CAROL, "GET", "/v1/budget", None).json();
    assert_eq!(before["calendar"], after["calendar"]);
    // A plan made for 100 W would be written down, then done.
    let written = written(folder.path());
    let calm = |entry: &Value| {
        let events = entry["events"].as_array().unwrap();
        let decisions = entry["decisions"].as_array().into_iter().flatten();
        let budget = |decision: &Value| decision["trigger"].as_str().unwrap().contains("budget");
        let changes = |decision: &Value| !decision["plan"]["jobs"].as_array().unwrap().is_empty();
        events.iter().all(|event| event.get("budget_set").is_none())
            && !decisions.into_iter().any(|decision| budget(decision) || changes(decision))
    };
    let since: Vec<&Value> = written[entries..].iter().collect();
    assert!(since.iter().all(|entry| calm(entry)), "{since:#?}");
    assert_eq!(placements(&jobs()), placed, "both run as before");
}

/// Where the jobs run, by their names, and with which limits.
fn placements(jobs: &Value) -> BTreeMap<String, Value> {
    let of = |job: &Value| {
        let what = json!([job["state"], job["nodes"], job["gpus_held"], job["power_limit_w"]]);
        (job["name"].as_str().unwrap().to_owned(), what)
    };
    jobs.as_array().unwrap().iter().map(of).collect()
}

/// All that is in the journal by now.
fn written(folder: &std::path::Path) -> Vec<Value> {
    let journal = folder.join("journal");
    let shown = wattline(&["journal", "show", journal.to_str().unwrap(), "--from", "1", "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    shown["entries"].as_array().unwrap().iter().map(|entry| entry["entry"].clone()).collect()
}

#[test]
fn the_command_forecasts_before_it_sets_and_scripts_are_not_asked() {
    let folder = tempfile::tempdir().unwrap();
    let running = with_two_jobs(folder.path());
    let socket = running.socket();
    let run = |args: &[&str]| {
        let run = wattline(&[args, &["--socket", &socket]].concat());
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(run.status.success(), "{args:?}: {said}");
        (String::from_utf8(run.stdout).unwrap(), said)
    };
    let budget =
        || running.ask(CAROL, "GET", "/v1/budget", None).json()["calendar"]["value"].clone();
    let (text, _) = run(&["budget", "set", "100 W", "--dry-run"]);
    assert!(text.contains("Cannot be stopped: ") && text.contains("(stays)"), "{text}");
    assert!(text.contains("CANNOT be kept"), "{text}");
    let (text, _) = run(&["budget", "set", "100 W", "--dry-run", "--json"]);
    let forecast: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(forecast["schema"], "wattline.budget-forecast/1");
    let week = folder.path().join("week.json");
    std::fs::write(&week, r#"{"value":5000,"rules":[{"from":"02:00","to":"03:00","value":100}]}"#)
        .unwrap();
    let (text, _) = run(&["budget", "calendar", week.to_str().unwrap(), "--dry-run"]);
    assert!(text.contains("Budget 0.10 kW"), "{text}");
    assert_eq!(budget(), 6000.0);
    // On a terminal somebody is asked, and may say no.
    if let Some(said) = on_a_terminal(&socket, "n\n") {
        assert!(said.contains("Set this budget? [y/N]") && said.contains("was not set"), "{said}");
        assert_eq!(budget(), 6000.0);
    }
    let (_, said) = run(&["budget", "set", "100 W"]);
    assert!(said.contains("CANNOT be kept"), "a script goes on, and is told: {said}");
    until("it is set", || (budget() == 100.0).then_some(()));
    // What cannot be kept is shown until it is kept again, and nobody's work is thrown away.
    until("it is said", || {
        let status = running.ask(CAROL, "GET", "/v1/status", None).json();
        let troubles = status["troubles"].as_array()?.clone();
        troubles.iter().any(|text| text.as_str().unwrap().contains("cannot be kept")).then_some(())
    });
    for command in ["queue", "budget show"] {
        let (text, _) = run(&command.split(' ').collect::<Vec<_>>());
        assert!(text.contains("trouble: the budget of 100.0 W cannot be kept"), "{text}");
    }
    let users = running.ask(ALICE, "GET", "/v1/status", None).body;
    assert!(users.contains("1 running job may not be stopped") && !users.contains("stays)"));
    let queue = running.ask(CAROL, "GET", "/v1/jobs?state=running", None).json();
    let left = names(&queue).into_iter().map(str::to_owned).collect::<Vec<_>>();
    assert!(left.contains(&"stays".to_owned()), "{queue}");
    let (_, said) = run(&["budget", "set", "6 kW", "--yes"]);
    assert_eq!(said, "", "--yes says nothing");
    until("it is kept again", || {
        let status = running.ask(CAROL, "GET", "/v1/status", None).json();
        status["troubles"].as_array()?.is_empty().then_some(())
    });
}

/// What `wattline budget set "100 W"` says on a terminal of its own to whom it answers so.
fn on_a_terminal(socket: &str, answer: &str) -> Option<String> {
    let command =
        format!("{} budget set '100 W' --socket {socket}", env!("CARGO_BIN_EXE_wattline"));
    let terminal = Command::new("script")
        .args(["--quiet", "--command", &command, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut terminal) = terminal else {
        wattline_testing::skipped("there is no `script`, which makes a terminal");
        return None;
    };
    terminal.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
    Some(String::from_utf8_lossy(&terminal.wait_with_output().unwrap().stdout).into_owned())
}
