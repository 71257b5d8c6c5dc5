//! What a controller shows of itself: forecasts of long queues, metrics, reports, its log.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;
#[path = "common/controller.rs"]
mod controller;
#[path = "common/openmetrics.rs"]
mod openmetrics;

use common::wattline;
use controller::{Caller, Running, until};
use openmetrics::{Metrics, parse};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ALICE: Caller<'_> = Caller::Token("alice-token");
const BOB: Caller<'_> = Caller::Token("bob-token");
const EVE: Caller<'_> = Caller::Token("eve-token");
const CAROL: Caller<'_> = Caller::Token("carol-token");

/// Two nodes with four GPUs each, and so many jobs of hours that come within a minute.
fn long_queue(jobs: u32) -> String {
    format!(
        "name = \"long\"\nseed = 3\n\
         [[nodes]]\ncount = 2\ngpu = \"h200\"\ngpus = 4\n\
         [jobs]\ncount = {jobs}\nload = 100000.0\n\
         duration = {{ median = \"2 h\", sigma = 0.5, min = \"1 h\", max = \"6 h\" }}\n\
         gpus = [{{ count = 1, share = 1.0 }}]\n\
         deadlines = {{ share = 1.0, tightest = 1.5, loosest = 40.0 }}\n\
         [[jobs.workloads]]\nname = \"resnet50\"\n[[jobs.workloads]]\nname = \"gpt2\"\n\
         [budget]\npower = \"6 kW\"\n"
    )
}

#[test]
fn a_queue_of_thousands_is_foreseen_beside_the_loop() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = 2_500;
    fs::write(folder.path().join("scenario.toml"), long_queue(jobs)).unwrap();
    let running = Running::start(folder.path(), &["--speed", "20", "--policy", "edf"]);
    let get = |path: &str| running.ask(Caller::Unix, "GET", path, None).json();
    until("all jobs are there", || {
        let status = get("/v1/status");
        let known = ["waiting", "running", "finished"].map(|name| status[name].as_u64().unwrap());
        (known.iter().sum::<u64>() == u64::from(jobs)).then_some(())
    });
    // Forecasts reach all of them, and say how far they reach.
    let page = until("the last job is foreseen", || {
        let page = get(&format!("/v1/jobs?limit=1000&after={}", jobs - 900));
        let rows = page["jobs"].as_array().unwrap();
        let foreseen = |row: &Value| {
            ["start_s", "finish_s", "energy_kwh", "cost_eur", "risk"]
                .iter()
                .all(|name| row[name].is_f64())
        };
        (rows.len() > 800 && rows.iter().all(foreseen)).then_some(page)
    });
    let outlook = &page["outlook"];
    assert!(outlook["until_s"].as_f64().unwrap() > outlook["at_s"].as_f64().unwrap() + 86_400.0);
    assert!(outlook["exact_until_s"].as_f64() <= outlook["until_s"].as_f64());
    assert!(outlook["ended"].as_u64().unwrap() > u64::from(jobs) * 9 / 10, "{outlook}");
    // What if, with such a queue.
    let asked = json!({"name": "x", "workload": "gpt2", "gpus": 1, "duration_s": 3600}).to_string();
    let what_if = running.ask(ALICE, "POST", "/v1/whatif", Some(&asked)).json();
    assert_eq!(what_if["foreseen"], true, "{what_if}");
    assert!(what_if["finish_s"].as_f64() > what_if["start_s"].as_f64());
    let explained = get(&format!("/v1/jobs/{}/explain", jobs - 1));
    assert!(!explained["options"].as_array().unwrap().is_empty(), "{explained}");
    assert!(explained["outlook"].as_str().unwrap().contains("run forward"), "{explained}");
    // The loop does not wait for any of it: what somebody wants is heard at once, again and again.
    let last = jobs - 1;
    for turn in 0..10 {
        let (order, state) =
            if turn % 2 == 0 { ("hold", "on_hold") } else { ("release", "waiting") };
        let begin = Instant::now();
        let reply = running.ask(Caller::Unix, "POST", &format!("/v1/jobs/{last}/{order}"), None);
        assert_eq!(reply.status, 200, "{reply:?}");
        until("it was heard", || {
            (get(&format!("/v1/jobs/{last}"))["state"] == state).then_some(())
        });
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(2), "{order}: {took:?}");
    }
    let table = wattline(&["queue", "--limit", "3", "--socket", &running.socket()]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("run forward"), "{table}");
}

fn metrics(running: &Running) -> Metrics {
    let reply = running.ask(Caller::Unix, "GET", "/metrics", None);
    assert_eq!(reply.status, 200);
    assert!(reply.head.contains("application/openmetrics-text"), "{}", reply.head);
    parse(&reply.body).unwrap_or_else(|error| panic!("{error}\n{}", reply.body))
}

#[test]
fn metrics_have_the_names_and_labels_that_are_promised_and_move() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = Running::start(folder.path(), &["--speed", "600"]);
    let submit = |seconds: f64| {
        let body = json!({"name": "m", "workload": "gpt2", "gpus": 2, "duration_s": seconds,
            "deadline_in_s": 1.0});
        let reply = running.ask(CAROL, "POST", "/v1/jobs", Some(&body.to_string()));
        assert_eq!(reply.status, 201, "{reply:?}");
    };
    let first = metrics(&running);
    (0..4).for_each(|_| submit(300.0));
    let done =
        |m: &Metrics| m.one("wattline_actions_total", &[("kind", "start"), ("outcome", "done")]);
    let all_there = |m: &Metrics| {
        let errors: BTreeSet<String> = m
            .all("wattline_prediction_error_ratio")
            .iter()
            .map(|s| s.labels["quantity"].clone())
            .collect();
        let all: BTreeSet<String> = ["energy", "power", "time"].map(str::to_owned).into();
        errors == all
    };
    let energy = |m: &Metrics| -> f64 {
        m.all("wattline_energy_joules_total").iter().map(|sample| sample.value).sum()
    };
    let later = until("jobs have run", || {
        let later = metrics(&running);
        let missed = later.one("wattline_deadlines_missed_total", &[]);
        let moved = energy(&later) > energy(&first) && missed >= Some(4.0);
        (moved && done(&later) >= Some(4.0) && all_there(&later)).then_some(later)
    });
    // Kinds as promised, and no others.
    for (name, kind) in [
        ("wattline_power_budget_watts", "gauge"),
        ("wattline_power_committed_watts", "gauge"),
        ("wattline_power_measured_watts", "gauge"),
        ("wattline_gpu_power_limit_watts", "gauge"),
        ("wattline_energy_joules", "counter"),
        ("wattline_budget_exceeded_seconds", "counter"),
        ("wattline_plan_duration_seconds", "histogram"),
        ("wattline_actions", "counter"),
        ("wattline_prediction_error_ratio", "gauge"),
        ("wattline_deadlines_missed", "counter"),
        ("wattline_build", "info"),
    ] {
        assert_eq!(
            later.kinds.get(name).map(String::as_str),
            Some(kind),
            "{name}: {:?}",
            later.kinds
        );
    }
    let labels = |m: &Metrics, name: &str, label: &str| -> BTreeSet<String> {
        m.all(name).iter().map(|sample| sample.labels[label].clone()).collect()
    };
    let words =
        |words: &[&str]| -> BTreeSet<String> { words.iter().map(|w| (*w).to_owned()).collect() };
    assert_eq!(
        labels(&later, "wattline_actions_total", "kind"),
        words(&["start", "stop", "limit", "wake", "sleep"])
    );
    assert_eq!(
        labels(&later, "wattline_actions_total", "outcome"),
        words(&["sent", "done", "failed", "given_up", "overtaken"])
    );
    let nodes = labels(&later, "wattline_energy_joules_total", "node");
    assert_eq!(nodes.len(), 2, "each node by its name: {nodes:?}");
    assert_eq!(nodes, labels(&later, "wattline_gpu_power_limit_watts", "node"));
    let limits = later.all("wattline_gpu_power_limit_watts");
    let kinds = labels(&later, "wattline_gpu_power_limit_watts", "kind");
    assert!(kinds.is_subset(&words(&["planned", "enforced", "default"])), "{kinds:?}");
    for gpu in 0..4 {
        let in_force = limits
            .iter()
            .filter(|s| s.labels["gpu"] == gpu.to_string() && s.labels["kind"] != "planned");
        assert_eq!(in_force.count(), 2, "one limit in force for GPU {gpu} of each node");
    }
    assert!(
        later
            .samples
            .iter()
            .all(|s| !s.labels.contains_key("job") && !s.labels.contains_key("user"))
    );
    // They move, and counters only up.
    for node in &nodes {
        let energy =
            |m: &Metrics| m.one("wattline_energy_joules_total", &[("node", node)]).unwrap();
        assert!(energy(&later) >= energy(&first), "{node}");
    }
    let sent = later.one("wattline_actions_total", &[("kind", "start"), ("outcome", "sent")]);
    assert!(sent >= done(&later));
    assert!(
        later.one("wattline_plan_duration_seconds_count", &[])
            > first.one("wattline_plan_duration_seconds_count", &[])
    );
    for sample in later.all("wattline_prediction_error_ratio") {
        assert!((0.0..10.0).contains(&sample.value), "{sample:?}");
    }
    // While a job runs, its GPUs' limits are planned and in force.
    submit(36_000.0);
    until("limits are planned and enforced", || {
        let now = metrics(&running);
        let kinds = labels(&now, "wattline_gpu_power_limit_watts", "kind");
        (kinds.contains("planned") && kinds.contains("enforced")).then_some(())
    });
    // A budget below what is drawn: how long it was exceeded is counted.
    let over = |m: &Metrics| m.one("wattline_budget_exceeded_seconds_total", &[]).unwrap();
    let before = over(&metrics(&running));
    assert_eq!(before, 0.0);
    let reply = running.ask(CAROL, "PUT", "/v1/budget", Some(r#"{"calendar":{"value":1}}"#));
    assert_eq!(reply.status, 200);
    until("the budget is exceeded", || (over(&metrics(&running)) > 0.0).then_some(()));
    // What survives a restart: what the engine counts, and energy in the emulated cluster.
    let before = metrics(&running);
    running.kill();
    let running = Running::start(folder.path(), &["--speed", "600"]);
    let after = metrics(&running);
    for (kind, outcome) in [("start", "done"), ("start", "sent"), ("limit", "done")] {
        let count =
            |m: &Metrics| m.one("wattline_actions_total", &[("kind", kind), ("outcome", outcome)]);
        assert!(count(&after) >= count(&before), "{kind} {outcome}");
    }
    let missed = |m: &Metrics| m.one("wattline_deadlines_missed_total", &[]);
    assert!(missed(&after) >= missed(&before) && missed(&after) >= Some(4.0));
    for node in &nodes {
        let energy =
            |m: &Metrics| m.one("wattline_energy_joules_total", &[("node", node)]).unwrap();
        assert!(energy(&after) > 0.99 * energy(&later), "{node}");
    }
}

#[test]
fn a_report_adds_up_and_shows_a_user_only_his_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = Running::start(folder.path(), &["--speed", "600"]);
    let ask = |running: &Running, who, path: &str| running.ask(who, "GET", path, None);
    for (who, workload, deadline) in [
        (ALICE, "gpt2", 86_400.0),
        (ALICE, "resnet50", 1.0),
        (BOB, "gpt2", 1.0),
        (BOB, "gpt2", 86_400.0),
    ] {
        let body = json!({"name": "r", "workload": workload, "gpus": 1, "duration_s": 120.0,
            "deadline_in_s": deadline, "weight_eur_per_h": 2.0});
        assert_eq!(running.ask(who, "POST", "/v1/jobs", Some(&body.to_string())).status, 201);
    }
    let held =
        json!({"name": "h", "workload": "gpt2", "gpus": 8, "duration_s": 7200.0}).to_string();
    let held = running.ask(BOB, "POST", "/v1/jobs", Some(&held)).json()["job"].as_u64().unwrap();
    assert_eq!(running.ask(BOB, "DELETE", &format!("/v1/jobs/{held}"), None).status, 200);
    let report = until("all have ended", || {
        let report = ask(&running, CAROL, "/v1/reports").json();
        let of = |name: &str| {
            report["by_user"]["rows"]
                .as_array()
                .unwrap()
                .iter()
                .find(|row| row["name"] == name)
                .cloned()
        };
        let done = of("alice")?["finished"] == 2
            && of("bob")?["finished"] == 2
            && of("bob")?["cancelled"] == 1;
        done.then_some(report)
    });
    assert_eq!(report["schema"], "wattline.report/1");
    let span = report["until_s"].as_f64().unwrap() - report["since_s"].as_f64().unwrap();
    assert!((span - 7.0 * 86_400.0).abs() < 1e-3, "{span}");
    let rows = |report: &Value, by: &str| report[by]["rows"].as_array().unwrap().clone();
    let sum = |rows: &[Value], name: &str| -> f64 {
        rows.iter().map(|row| row[name].as_f64().unwrap_or(0.0)).sum()
    };
    for name in [
        "submitted",
        "finished",
        "cancelled",
        "late",
        "with_deadline",
        "deadlines_met",
        "tardiness_eur",
        "energy_kwh",
        "energy_eur",
        "restarts",
    ] {
        let total = report["totals"][name].as_f64().unwrap_or(0.0);
        for by in ["by_user", "by_workload"] {
            let added = sum(&rows(&report, by), name);
            assert!((added - total).abs() <= 1e-9 * total.abs(), "{by} {name}: {added} {total}");
        }
    }
    let totals = &report["totals"];
    // Another one may have ended by now, in time.
    assert_eq!(totals["late"], 2, "{totals}");
    assert!(matches!(totals["deadlines_met"].as_u64(), Some(2 | 3)), "{totals}");
    assert!(totals["tardiness_eur"].as_f64().unwrap() > 0.0);
    assert!(totals["completion_p50_s"].as_f64() <= totals["completion_p99_s"].as_f64());
    assert!(totals["energy_known"].as_u64().unwrap() >= 4, "{totals}");
    let power = &report["power"];
    let watts = |name: &str| power[name].as_f64().unwrap();
    assert!(watts("measured_s") > 0.0 && watts("mean_w") <= watts("peak_w"));
    assert!(watts("peak_w") <= watts("committed_peak_w") + 1e-6, "{power}");
    assert!((watts("budget_mean_w") - 6000.0).abs() < 1e-6);
    // A user sees the totals, and his own rows.
    let own = ask(&running, ALICE, "/v1/reports").json();
    let names = |report: &Value, by: &str| -> Vec<String> {
        rows(report, by).iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&own, "by_user"), ["alice"]);
    assert_eq!(names(&own, "by_workload"), ["gpt2", "resnet50"]);
    assert_eq!(sum(&rows(&own, "by_workload"), "finished"), 2.0);
    assert_eq!(own["totals"]["finished"], totals["finished"]);
    let seen_by_eve = ask(&running, EVE, "/v1/reports").json();
    assert!(names(&seen_by_eve, "by_user").contains(&"bob".to_owned()));
    // Pages.
    let first = ask(&running, CAROL, "/v1/reports?limit=1").json();
    let next = first["by_user"]["next"].as_str().unwrap();
    assert_eq!(names(&first, "by_user").len(), 1);
    let second = ask(&running, CAROL, &format!("/v1/reports?limit=1&users_after={next}")).json();
    assert!(names(&second, "by_user")[0] > names(&first, "by_user")[0]);
    // A period in which nothing was.
    let empty = ask(&running, CAROL, "/v1/reports?since_s=1&until_s=2").json();
    assert_eq!(
        (&empty["totals"]["submitted"], &empty["totals"]["energy_kwh"]),
        (&json!(0), &json!(null))
    );
    assert_eq!(
        (&empty["power"]["measured_s"], &empty["power"]["mean_w"]),
        (&json!(0.0), &json!(null))
    );
    for bad in
        ["since_s=NaN", "since_s=5&until_s=5", "until_s=1e300", "limit=0", "by=user", "since_s=x"]
    {
        let reply = ask(&running, CAROL, &format!("/v1/reports?{bad}"));
        assert_eq!(reply.status, 400, "{bad}: {reply:?}");
    }
    // The command, and the same after a restart.
    let command = |running: &Running, args: &[&str]| {
        let socket = running.socket();
        let run = wattline(&[&["report"], args, &["--socket", &socket]].concat());
        assert!(run.status.success(), "{args:?}: {}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap()
    };
    let text = command(&running, &["--since", "30 d"]);
    for word in ["alice", "bob", "gpt2", "all jobs", "on average", "exceeded for"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert_eq!(
        wattline(&["report", "--since", "soon", "--socket", &running.socket()]).status.code(),
        Some(2)
    );
    // Power is written down every ten seconds.
    std::thread::sleep(Duration::from_secs(11));
    running.kill();
    let running = Running::start(folder.path(), &["--speed", "600"]);
    let again: Value =
        serde_json::from_str(&command(&running, &["--json", "--since", "30 d"])).unwrap();
    // The scenario has a job of its own that may have ended meanwhile.
    let of = |report: &Value, name: &str| {
        rows(report, "by_user").into_iter().find(|row| row["name"] == name).unwrap()
    };
    for name in ["alice", "bob"] {
        assert_eq!(of(&again, name), of(&report, name));
    }
    assert!(again["power"]["measured_s"].as_f64() >= report["power"]["measured_s"].as_f64());
}

/// Cancelled jobs had the energy `null` before a restart and 0 after it.
#[test]
fn a_job_that_has_ended_is_shown_the_same_before_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = Running::start(folder.path(), &["--speed", "600"]);
    let submit = |running: &Running, gpus: u32, duration_s: f64| {
        let body = json!({"name": "r", "workload": "gpt2", "gpus": gpus, "duration_s": duration_s,
            "deadline_in_s": 600.0, "weight_eur_per_h": 2.0})
        .to_string();
        let reply = running.ask(ALICE, "POST", "/v1/jobs", Some(&body));
        assert_eq!(reply.status, 201, "{reply:?}");
        reply.json()["job"].as_u64().unwrap()
    };
    let row = |running: &Running, job: u64| {
        running.ask(ALICE, "GET", &format!("/v1/jobs/{job}"), None).json()
    };
    let is = |running: &Running, job: u64, state: &str| {
        until(state, || Some(row(running, job)).filter(|row| row["state"] == state))
    };
    let cancel = |running: &Running, job: u64| {
        let reply = running.ask(ALICE, "DELETE", &format!("/v1/jobs/{job}"), None);
        assert_eq!(reply.status, 200, "{reply:?}");
    };
    // One that runs to its end; one that is cancelled while it runs; one that never started, because
    // that one has some of the GPUs that it asks for.
    let finished = submit(&running, 1, 120.0);
    let stopped = submit(&running, 4, 1e6);
    is(&running, stopped, "running");
    let never_ran = submit(&running, 8, 1e6);
    cancel(&running, never_ran);
    let first_seen = is(&running, never_ran, "cancelled");
    cancel(&running, stopped);
    let all = [finished, stopped, never_ran];
    let states = ["finished", "cancelled", "cancelled"];
    all.iter().zip(states).for_each(|(job, state)| drop(is(&running, *job, state)));
    // What was drawn until the end is known a moment later.
    std::thread::sleep(Duration::from_secs(1));
    let shown = |running: &Running| all.map(|job| row(running, job));
    let before = shown(&running);
    assert_eq!(first_seen, before[2]);
    for row in &before[..2] {
        assert!(row["energy_kwh"].as_f64() > Some(0.0), "{row}");
    }
    assert_eq!((&before[2]["energy_kwh"], &before[2]["start_s"]), (&Value::Null, &Value::Null));
    let listed = |running: &Running| {
        running.ask(ALICE, "GET", "/v1/jobs?state=all", None).json()["jobs"].clone()
    };
    let queue = listed(&running);
    for row in &before {
        assert!(queue.as_array().unwrap().contains(row), "{row} is not in {queue}");
    }
    running.kill();
    let mut running = Running::start(folder.path(), &["--speed", "600"]);
    assert_eq!(shown(&running), before, "after a kill");
    running.stop();
    let running = Running::start(folder.path(), &["--speed", "600"]);
    assert_eq!(shown(&running), before, "after a clean end");
    assert_eq!(listed(&running), queue);
}

#[test]
fn the_log_says_what_happens_and_nothing_in_it_moves_a_cursor() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("scenario.toml");
    fs::write(&scenario, controller::QUIET).unwrap();
    let run = |level: &str| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_wattline"))
            .args(["serve", "--scenario", "scenario.toml", "--speed", "100000", "--json"])
            .args(["--journal", &format!("journal-{level}"), "--socket", "sock"])
            .env("WATTLINE_LOG", level)
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let status = until("it ends", || child.try_wait().unwrap());
        let output = child.wait_with_output().unwrap();
        (
            status,
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (status, stdout, log) = run("info");
    assert!(status.success(), "{log}");
    assert!(log.contains("answers at the socket sock") && !log.contains("sent"), "{log}");
    for line in stdout.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["schema"], "wattline.serve/1");
    }
    let (_, _, log) = run("debug");
    assert!(log.contains("sent") && log.contains("finished: "), "{log}");
    assert!(!log.contains('\u{1b}'), "{log}");
    let (_, _, log) = run("error");
    assert_eq!(log, "");
    let (status, _, log) = run("louder=than=ever");
    assert_eq!(status.code(), Some(2), "{log}");
    assert!(log.contains("WATTLINE_LOG"), "{log}");
    // Only its owner reads the audit log.
    let mode = fs::metadata(folder.path().join("journal-info.audit")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
