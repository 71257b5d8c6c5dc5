//! What one client does to all others: nothing.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

mod common;
#[path = "common/controller.rs"]
mod controller;

use controller::{Caller, Running, until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use wattline_controller::job_history::EndedJob;
use wattline_controller::journal::Store;
use wattline_core::Timestamp;
use wattline_core::ids::JobId;
use wattline_core::units::EurosPerSecond;

const ALICE: Caller<'_> = Caller::Token("alice-token");
const BOB: Caller<'_> = Caller::Token("bob-token");
const CAROL: Caller<'_> = Caller::Token("carol-token");

fn job(name: &str) -> Value {
    json!({"name": name, "workload": "gpt2", "gpus": 8, "duration_s": 36_000})
}

fn submit(
    running: &Running,
    who: Caller<'_>,
    body: &Value,
    key: Option<&str>,
) -> controller::Reply {
    let headers: Vec<(&str, &str)> = key.map(|key| ("idempotency-key", key)).into_iter().collect();
    running.try_ask(who, "POST", "/v1/jobs", Some(&body.to_string()), &headers).unwrap()
}

/// A view whose forecast takes all the time that it may: 1,500 jobs one after the other.
fn large_view() -> String {
    let text = include_str!("../src/commands/plan/example.json");
    let mut view: Value = serde_json::from_str(text).unwrap();
    let one = view["jobs"][1].clone();
    let jobs = (0..1_500).map(|at| {
        let mut job = one.clone();
        job["name"] = json!(format!("job-{at}"));
        job["work"] = json!(1.0 + f64::from(at) / 100.0);
        job
    });
    view["jobs"] = jobs.collect();
    view.to_string()
}

/// Memory that a process has now, in megabytes.
fn memory_mb(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Hanging up freed the slot while the work went on: 40 of them took 522 MB.
#[test]
fn hanging_up_does_not_free_the_slot_of_a_view_that_is_planned() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &["--speed", "1"]);
    let view = large_view();
    let before = memory_mb(running.id());
    let text = format!(
        "POST /v1/plan?forecast=true HTTP/1.1\r\nhost: x\r\nauthorization: Bearer alice-token\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{view}",
        view.len()
    );
    let send = || {
        let mut stream = TcpStream::connect(running.tcp.unwrap()).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        stream
    };
    let mut first = send();
    // Once a second one is refused, the first one is being planned.
    let small = include_str!("../src/commands/plan/example.json");
    let refused = until("the first is being planned", || {
        // If a second one was being planned when it came, it was itself refused: once more.
        if first.peek(&mut [0]).is_ok() {
            first = send();
            return None;
        }
        let reply = running.ask(ALICE, "POST", "/v1/plan", Some(small));
        (reply.status == 429).then_some(reply)
    });
    assert!(refused.head.contains("retry-after: "), "{refused:?}");
    drop(first);
    let after = running.ask(ALICE, "POST", "/v1/plan", Some(small));
    assert_eq!(after.status, 429, "the work goes on, and so the slot is taken: {after:?}");
    for _ in 0..40 {
        let mut aborted = TcpStream::connect(running.tcp.unwrap()).unwrap();
        aborted.write_all(text.as_bytes()).unwrap();
    }
    let began = Instant::now();
    assert_eq!(running.ask(BOB, "GET", "/v1/status", None).status, 200);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let now = memory_mb(running.id());
    assert!(now < before + 250, "{before} MB before, {now} MB now");
    // An administrator has a slot of his own meanwhile.
    assert_eq!(running.ask(CAROL, "POST", "/v1/plan", Some(small)).status, 200);
    until("it has ended, as all planning does", || {
        (running.ask(ALICE, "POST", "/v1/plan", Some(small)).status == 200).then_some(())
    });
}

/// Who sent a view slowly had the only slot meanwhile, again and again.
#[test]
fn a_view_that_is_sent_slowly_keeps_nobody_from_planning() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &["--speed", "1"]);
    let head = "POST /v1/plan HTTP/1.1\r\nhost: x\r\nauthorization: Bearer alice-token\r\n\
        content-type: application/json\r\ncontent-length: 1000\r\n\r\n{";
    let send = || {
        let mut stream = TcpStream::connect(running.tcp.unwrap()).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let slow: Vec<TcpStream> = (0..4).map(|_| send()).collect();
    let view = include_str!("../src/commands/plan/example.json");
    // Hers are counted: she sends as many as she may.
    let refused = until("hers are being read", || {
        let reply = running.ask(ALICE, "POST", "/v1/plan", Some(view));
        (reply.status == 429).then_some(reply)
    });
    assert!(refused.body.contains("views are being sent"), "{refused:?}");
    for _ in 0..5 {
        assert_eq!(running.ask(BOB, "POST", "/v1/plan", Some(view)).status, 200);
    }
    drop(slow);
    until("hers are given up", || {
        (running.ask(ALICE, "POST", "/v1/plan", Some(view)).status == 200).then_some(())
    });
}

/// So many jobs that ended, filed in a journal that nobody uses.
fn file_ended_jobs(journal: &std::path::Path, jobs: u32) {
    let store = Store::open(journal, &[]).unwrap();
    let ended = |id: u32| EndedJob {
        id: JobId(1_000 + id),
        address: None,
        slurm: None,
        name: format!("job-{id}"),
        user: format!("user{:03}", id % 200),
        account: None,
        workload: "gpt2".to_owned(),
        elasticity: "rigid".to_owned(),
        gpus: [1; 3],
        submit: Timestamp::from_seconds(1e6 + f64::from(id)),
        deadline: None,
        weight: EurosPerSecond::ZERO,
        first_start: Some(Timestamp::from_seconds(1e6 + f64::from(id))),
        ended: Timestamp::from_seconds(1e6 + f64::from(id) + 60.0),
        cancelled: false,
        how: None,
        done: 1.0,
        restarts: 0,
        gpu_seconds: 60.0,
        drawn: None,
    };
    for from in (0..jobs).step_by(10_000) {
        let some: Vec<EndedJob> = (from..jobs.min(from + 10_000)).map(ended).collect();
        store.file_ended(&some).unwrap();
    }
}

/// As with views: who hung up could have a report made again and again.
#[test]
fn hanging_up_does_not_free_the_slot_of_a_report() {
    const ENDED: u32 = 150_000;
    let folder = tempfile::tempdir().unwrap();
    let mut running = Running::start(folder.path(), &["--speed", "1"]);
    running.stop();
    file_ended_jobs(&folder.path().join("journal"), ENDED);
    let running = Running::start(folder.path(), &["--speed", "1"]);
    let path = "/v1/reports?since_s=1";
    let began = Instant::now();
    let report = running.ask(BOB, "GET", path, None).json();
    let one = began.elapsed();
    assert!(report["totals"]["finished"].as_u64() >= Some(ENDED.into()), "{}", report["totals"]);
    let before = memory_mb(running.id());
    let text =
        format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer alice-token\r\n\r\n");
    for _ in 0..40 {
        let mut stream = TcpStream::connect(running.tcp.unwrap()).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        // The request is taken up, and hung up on.
        std::thread::sleep(Duration::from_millis(20));
    }
    let began = Instant::now();
    assert_eq!(running.ask(BOB, "GET", "/v1/status", None).status, 200);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let began = Instant::now();
    assert_eq!(running.ask(BOB, "GET", path, None).status, 200);
    let after = began.elapsed();
    // One of hers is still being made, perhaps; 40 are not.
    assert!(after < one * 8 + Duration::from_secs(1), "{one:?} alone, {after:?} after 40 of hers");
    let now = memory_mb(running.id());
    assert!(now < before + 150, "{before} MB before, {now} MB now");
}

/// Reports and look-ups of ended jobs shared one connection: while a report was made, look-ups took
/// up all threads, and nobody could submit.
#[test]
fn a_report_and_a_flood_of_look_ups_keep_no_submission_waiting() {
    const ENDED: u32 = 150_000;
    let folder = tempfile::tempdir().unwrap();
    let mut running = Running::start(folder.path(), &["--speed", "1"]);
    running.stop();
    file_ended_jobs(&folder.path().join("journal"), ENDED);
    let running = Running::start(folder.path(), &["--speed", "1"]);
    let began = Instant::now();
    assert_eq!(running.ask(ALICE, "GET", "/v1/reports?since_s=1", None).status, 200);
    let report = began.elapsed();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let goes_on = || !stop.load(std::sync::atomic::Ordering::Relaxed);
    let longest = std::thread::scope(|scope| {
        scope.spawn(|| {
            while goes_on() {
                let _ = running.try_ask(ALICE, "GET", "/v1/reports?since_s=1", None, &[]);
            }
        });
        // None of these was cancelled, so each looks at all of them.
        for _ in 0..40 {
            scope.spawn(|| {
                while goes_on() {
                    let _ = running.try_ask(
                        Caller::Token("eve-token"),
                        "GET",
                        "/v1/jobs?state=cancelled",
                        None,
                        &[],
                    );
                }
            });
        }
        std::thread::sleep(Duration::from_millis(500));
        let longest = (0..20).map(|number| {
            let began = Instant::now();
            let reply = submit(&running, BOB, &job(&number.to_string()), None);
            assert_eq!(reply.status, 201, "{reply:?}");
            began.elapsed()
        });
        let longest = longest.max().unwrap();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        longest
    });
    println!("a report takes {report:?}, a submission beside it at most {longest:?}");
    // What is left is that both compute.
    assert!(longest < Duration::from_millis(500), "{longest:?}, a report takes {report:?}");
}

/// A view of 1.6 kB ended the process.
#[test]
fn a_view_with_a_million_power_limits_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &[]);
    let text = include_str!("../src/commands/plan/example.json");
    for step in [1e-7, 1e-3] {
        let mut view: Value = serde_json::from_str(text).unwrap();
        view["gpu_types"][0]["limit_step_w"] = json!(step);
        let reply = running.ask(ALICE, "POST", "/v1/plan", Some(&view.to_string()));
        assert_eq!(reply.status, 400, "{reply:?}");
        assert!(reply.body.contains("gpu_types[0].limit_step_w"), "{reply:?}");
    }
    let mut view: Value = serde_json::from_str(text).unwrap();
    view["gpu_types"][0]["limit_step_w"] = json!(1e-7);
    let file = folder.path().join("view.json");
    std::fs::write(&file, view.to_string()).unwrap();
    let parts = ["gpu_types[0].limit_step_w", "view.json"];
    common::refused(&["plan", "--view", file.to_str().unwrap()], &parts);
}

/// 511 of these locked everybody out, the Unix socket included.
#[test]
fn clients_that_never_read_lock_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &[]);
    let text = "GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(200);
    let mut held = Vec::new();
    for _ in 0..600 {
        let mut stream = TcpStream::connect(running.tcp.unwrap()).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        // It may be closed already.
        let _ = stream.write_all(text.as_bytes());
        held.push(stream);
    }
    let began = Instant::now();
    for who in [Caller::Unix, ALICE, CAROL] {
        let reply =
            until("it answers", || running.try_ask(who, "GET", "/v1/status", None, &[]).ok());
        assert_eq!(reply.status, 200);
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    drop(held);
}

/// Those who are connected and never read are closed, although they have sent a token.
#[test]
fn a_connection_that_makes_no_progress_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &[]);
    let one = "GET /openapi.json HTTP/1.1\r\nhost: x\r\nauthorization: Bearer alice-token\r\n\r\n";
    let known = "GET /v1/status HTTP/1.1\r\nhost: x\r\nauthorization: Bearer alice-token\r\n\r\n";
    let mut stream = TcpStream::connect(running.tcp.unwrap()).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let _ = stream.write_all((known.to_owned() + &one.repeat(2_000)).as_bytes());
    // Longer than the controller waits.
    std::thread::sleep(Duration::from_secs(12));
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = Vec::new();
    // Closed, or reset: what is left in the buffers is all that comes.
    let _ = stream.read_to_end(&mut answer);
    let whole = String::from_utf8_lossy(&answer).matches("HTTP/1.1 200").count();
    assert!((1..2_001).contains(&whole), "{whole}");
}

/// 13.8 MB in 20 s, and what others had done was rotated away.
#[test]
fn refusals_of_unknown_clients_are_sampled_in_the_audit_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = Running::start(folder.path(), &[]);
    for _ in 0..300 {
        let reply = running.ask(Caller::Token("guessed"), "GET", "/v1/jobs", None);
        assert!(matches!(reply.status, 401 | 429), "{reply:?}");
    }
    assert_eq!(submit(&running, ALICE, &job("mine"), None).status, 201);
    let unknown = |audit: &[Value]| audit.iter().filter(|line| line["who"] == "").count();
    let audit = running.audit();
    assert!((1..=40).contains(&unknown(&audit)), "{}", unknown(&audit));
    assert!(audit.iter().any(|line| line["who"] == "alice"));
    running.stop();
    let said = running.audit().iter().map(|line| line["what"].to_string()).collect::<String>();
    assert!(said.contains("more refusals of unknown clients were counted"), "{said}");
}

/// It was refused: its deadline had passed by then.
#[test]
fn a_retry_is_answered_as_before_after_its_deadline() {
    let folder = tempfile::tempdir().unwrap();
    // An hour of the cluster in half a second.
    let running = Running::start(folder.path(), &["--speed", "7200"]);
    let now = running.ask(ALICE, "GET", "/v1/status", None).json()["now_s"].as_f64().unwrap();
    let mut body = job("due");
    body["deadline_s"] = json!(now + 36_000.0);
    let first = submit(&running, ALICE, &body, Some("k"));
    assert_eq!(first.status, 201, "{first:?}");
    until("the deadline has passed", || {
        let status = running.ask(ALICE, "GET", "/v1/status", None).json();
        (status["now_s"].as_f64().unwrap() > now + 36_000.0).then_some(())
    });
    assert_eq!(submit(&running, ALICE, &body, Some("other")).status, 400);
    let again = submit(&running, ALICE, &body, Some("k"));
    assert_eq!(again.status, 200, "{again:?}");
    assert_eq!(
        (&again.json()["job"], &again.json()["again"]),
        (&first.json()["job"], &json!(true))
    );
    body["name"] = json!("another");
    assert_eq!(submit(&running, ALICE, &body, Some("k")).status, 422);
}

/// One user queued 40,000 jobs at 1e9 EUR/h.
#[test]
fn users_and_accounts_have_limits_that_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let limits = "[default]\njobs_waiting = 4\njobs_per_minute = 6\n\
        [users.bob]\njobs_per_minute = 100\njobs_waiting = 100\n\
        [accounts.vision]\nusers = [\"bob\"]\njobs_waiting = 3\nweight = \"2 EUR/h\"\n";
    std::fs::write(folder.path().join("limits.toml"), limits).unwrap();
    let running = Running::start(folder.path(), &["--speed", "1", "--limits", "limits.toml"]);
    // Without power all jobs wait.
    let none = r#"{"calendar":{"value":100}}"#;
    assert_eq!(running.ask(CAROL, "PUT", "/v1/budget", Some(none)).status, 200);
    until("the budget is in force", || {
        let budget = running.ask(CAROL, "GET", "/v1/budget", None).json();
        (budget["now_w"] == 100.0).then_some(())
    });
    let first = submit(&running, ALICE, &job("0"), Some("0"));
    for number in 1..4 {
        assert_eq!(submit(&running, ALICE, &job(&number.to_string()), None).status, 201);
    }
    let refused = submit(&running, ALICE, &job("4"), None);
    assert_eq!(refused.status, 422, "{refused:?}");
    for part in ["4 of your jobs wait; 4 may", "jobs_waiting", "wattline limits"] {
        assert!(refused.body.contains(part), "{part}: {refused:?}");
    }
    // A retry is no submission.
    assert_eq!(submit(&running, ALICE, &job("0"), Some("0")).status, 200);
    let shown = running.ask(ALICE, "GET", "/v1/limits", None).json();
    assert_eq!(shown["schema"], "wattline.limits/1");
    assert_eq!(shown["jobs_waiting"], json!({"limit": 4.0, "used": 4.0}));
    assert_eq!(shown["weight_eur_per_h"]["limit"].as_f64().unwrap().round(), 5.0);
    // Of six a minute four are used; what is cancelled waits no more, and has been submitted.
    let id = first.json()["job"].clone();
    assert_eq!(running.ask(ALICE, "DELETE", &format!("/v1/jobs/{id}"), None).status, 200);
    let mut said = Vec::new();
    until("she is too fast", || {
        let reply = submit(&running, ALICE, &job("again"), None);
        said.push(reply.status);
        if reply.status == 201 {
            let path = format!("/v1/jobs/{}", reply.json()["job"]);
            running.ask(ALICE, "DELETE", &path, None);
        }
        (reply.status == 429).then(|| {
            assert!(reply.head.contains("retry-after: "), "{reply:?}");
            assert!(reply.body.contains("6 jobs a minute"), "{reply:?}");
        })
    });
    assert!(said.iter().filter(|status| **status == 201).count() <= 3, "{said:?}");
    // An account's users share its limit.
    for number in 0..3 {
        assert_eq!(submit(&running, BOB, &job(&number.to_string()), None).status, 201);
    }
    let refused = submit(&running, BOB, &job("3"), None);
    assert!(refused.status == 422 && refused.body.contains("account vision"), "{refused:?}");
    let accounts = running.ask(BOB, "GET", "/v1/limits", None).json()["accounts"].clone();
    assert_eq!(accounts[0]["jobs_waiting"], json!({"limit": 3.0, "used": 3.0}));
    // Weights of an account's users are limited, too, and others' are not by that.
    let weight = |who| {
        running.ask(who, "GET", "/v1/limits", None).json()["weight_eur_per_h"]["limit"]
            .as_f64()
            .map(f64::round)
    };
    assert_eq!((weight(BOB), weight(ALICE)), (Some(2.0), Some(5.0)));
    let mut dear = job("dear");
    dear["weight_eur_per_h"] = json!(3);
    let refused = submit(&running, BOB, &dear, None);
    assert!(refused.status == 403 && refused.body.contains("your limit of 2 "), "{refused:?}");
    // Administrators are not limited, and the command shows the same.
    for number in 0..8 {
        assert_eq!(submit(&running, CAROL, &job(&number.to_string()), None).status, 201);
    }
    let shown = common::stdout(&["limits", "--json", "--socket", &running.socket()]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["role"], &shown["jobs_waiting"]["limit"]), (&json!("admin"), &Value::Null));
    let table = common::stdout(&["limits", "--socket", &running.socket()]);
    assert!(table.contains("jobs waiting") && table.contains("none"), "{table}");
}

#[test]
fn without_a_file_users_have_the_usual_limits() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &[]);
    let shown = running.ask(ALICE, "GET", "/v1/limits", None).json();
    assert_eq!(shown["jobs_waiting"]["limit"], 10_000.0);
    assert_eq!(shown["jobs_per_minute"]["limit"], 3_000.0);
}

/// One user's questions gave an administrator 503.
#[test]
fn a_flood_of_questions_leaves_others_their_share() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &["--speed", "1"]);
    let body = job("x").to_string();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = running.try_ask(ALICE, "POST", "/v1/whatif", Some(&body), &[]);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(300));
        let statuses: Vec<u16> = (0..10)
            .flat_map(|_| {
                [BOB, CAROL].map(|who| running.ask(who, "POST", "/v1/whatif", Some(&body)).status)
            })
            .collect();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    });
}

/// U+061C, U+3164 and tag characters passed.
#[test]
fn names_that_hide_something_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &[]);
    for c in ['\u{61c}', '\u{3164}', '\u{e0041}', '\u{ad}', '\u{115f}', '\u{202e}', '\u{7f}'] {
        let reply = submit(&running, ALICE, &job(&format!("a{c}b")), None);
        assert_eq!(reply.status, 400, "{}", c.escape_unicode());
        assert!(reply.body.contains("\"field\":\"name\""), "{reply:?}");
    }
}
