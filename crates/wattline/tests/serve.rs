//! `wattline serve` as a user runs it, and as it dies.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::wattline;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

const SCENARIO: &str = "name = \"small\"\nseed = 3\n\
    [[nodes]]\ncount = 3\ngpu = \"h200\"\ngpus = 2\n\
    [jobs]\ncount = 12\nload = 0.9\nelasticity = \"malleable\"\n\
    duration = { median = \"6 min\", sigma = 0.7, min = \"1 min\", max = \"15 min\" }\n\
    gpus = [{ count = 1, share = 0.6 }, { count = 2, share = 0.4 }]\n\
    deadlines = { share = 0.7, tightest = 1.5, loosest = 4.0 }\n\
    [budget]\nshare_of_peak = 0.7\n";

fn arguments<'a>(scenario: &'a str, journal: &'a str, speed: &'a str) -> Vec<&'a str> {
    vec!["serve", "--scenario", scenario, "--journal", journal, "--speed", speed, "--json"]
}

/// The last status that was printed whole.
fn last(output: &Path) -> Option<Value> {
    let text = fs::read_to_string(output).unwrap();
    text.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

#[test]
fn killed_fifty_times_it_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (scenario, journal, output) = (path("small.toml"), path("journal"), path("out"));
    fs::write(&scenario, SCENARIO).unwrap();
    let args = arguments(&scenario, &journal, "300");
    let number = |status: &Value, name: &str| status[name].as_u64().unwrap();
    let (mut finished, mut entries) = (0, 0);
    for life in 0..50_u64 {
        let file = fs::File::create(&output).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_wattline"))
            .args(&args)
            .stdout(file)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        sleep(Duration::from_millis(20 + (life * 37) % 90));
        child.kill().unwrap();
        child.wait().unwrap();
        if let Some(status) = last(Path::new(&output)) {
            assert!(number(&status, "finished") >= finished, "life {life}: {status}");
            assert!(number(&status, "journal") >= entries, "life {life}: {status}");
            (finished, entries) = (number(&status, "finished"), number(&status, "journal"));
            let budget = status["budget_w"].as_f64().unwrap();
            assert!(status["committed_w"].as_f64().unwrap() <= budget + 1e-3, "{status}");
        }
    }
    assert!(entries > 0, "no life was long enough to write anything down");
    let args = arguments(&scenario, &journal, "20000");
    let run = wattline(&args);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let text = String::from_utf8(run.stdout).unwrap();
    let status: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((number(&status, "finished"), number(&status, "jobs")), (12, 12));
    assert_eq!((number(&status, "waiting"), number(&status, "running")), (0, 0));
}

#[test]
fn a_journal_of_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (scenario, journal) = (path("small.toml"), path("journal"));
    fs::write(&scenario, SCENARIO).unwrap();
    let args = arguments(&scenario, &journal, "1e6");
    assert!(wattline(&args).status.success());
    let refused = |extra: &[&str], word: &str| {
        let run = wattline(&[&args, extra].concat());
        let said = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(2), "{said}");
        assert!(said.contains(word), "{said}");
    };
    refused(&["--policy", "nonsense"], "nonsense");
    refused(&["--seed", "4"], "another cluster or its jobs");
    fs::write(&journal, "something of mine").unwrap();
    refused(&[], "not a journal of wattline");
    assert_eq!(fs::read_to_string(&journal).unwrap(), "something of mine");
}

#[test]
fn another_policy_goes_on_with_the_same_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (scenario, journal, output) = (path("small.toml"), path("journal"), path("out"));
    fs::write(&scenario, SCENARIO).unwrap();
    let args = arguments(&scenario, &journal, "300");
    for policy in ["edf", "wattline", "fifo"] {
        let file = fs::File::create(&output).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_wattline"))
            .args([&args[..], &["--policy", policy]].concat())
            .stdout(file)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Killed when it has done something.
        let before = last(Path::new(&output)).map_or(0, |status| status["plans"].as_u64().unwrap());
        for _ in 0..200 {
            sleep(Duration::from_millis(20));
            let plans = last(Path::new(&output)).and_then(|status| status["plans"].as_u64());
            if plans.is_some_and(|plans| plans > before + 2) {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let args = arguments(&scenario, &journal, "20000");
    let run = wattline(&[&args[..], &["--policy", "wattline"]].concat());
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{said}");
    assert!(said.contains("fifo decided so far: from now on wattline does"), "{said}");
    let text = String::from_utf8(run.stdout).unwrap();
    let status: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((status["finished"].as_u64(), status["waiting"].as_u64()), (Some(12), Some(0)));

    // Whoever looks back sees who decided, and what it came to.
    let replay = ["replay", &journal, "--scenario", &scenario, "--policy", "edf", "--json"];
    let replayed = wattline(&replay);
    assert!(replayed.status.success(), "{}", String::from_utf8_lossy(&replayed.stderr));
    let replayed: Value = serde_json::from_slice(&replayed.stdout).unwrap();
    assert_eq!(replayed["recorded_policy"], Value::Null);
    let names = "one after the other: edf, wattline, fifo, wattline";
    assert_eq!(replayed["recorded_as"], names);
    assert!(replayed["realised"]["total_cost"].as_f64().unwrap() > 0.0, "{replayed}");
}

#[test]
fn a_speed_that_is_none_is_refused() {
    for speed in ["0", "-1", "nan", "inf", "1e9"] {
        let speed = format!("--speed={speed}");
        let run = wattline(&["serve", "--scenario", "demo", &speed]);
        assert_eq!(run.status.code(), Some(2), "{speed}");
        assert!(String::from_utf8(run.stderr).unwrap().contains("--speed"), "{speed}");
    }
}

#[test]
fn plans_that_take_too_long_are_dropped_and_the_next_ones_search_less() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (scenario, journal) = (path("small.toml"), path("journal"));
    fs::write(&scenario, SCENARIO).unwrap();
    let mut args = arguments(&scenario, &journal, "3000");
    args.extend(["--plan-limit", "1 ms"]);
    let said = wattline(&args);
    assert!(said.status.success(), "{said:?}");
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(text.contains("the limit is 1ms: it is dropped"), "{text}");
    // An emulated cluster does everything once more, and nobody plans for it.
    let again = wattline(&args);
    assert!(again.status.success(), "{again:?}");
    for limit in ["0 s", "soon", "-1 s"] {
        let limit = format!("--plan-limit={limit}");
        let refused = wattline(&["serve", "--scenario", &scenario, &limit]);
        assert_eq!(refused.status.code(), Some(2), "{limit}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("--plan-limit"), "{refused:?}");
    }
}
