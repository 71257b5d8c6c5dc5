//! `wattline sweep`, as a user runs it.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{refused, stdout};
use serde_json::Value;
use std::fs;

const SCENARIO: &str = r#"
name = "small"
foresight = "oracle"
[[nodes]]
count = 2
gpu = "h200"
gpus = 4
[jobs]
count = 30
elasticity = "moldable"
[[jobs.workloads]]
name = "resnet50"
"#;

/// A scenario file that is gone with the folder.
fn scenario() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("small.toml");
    fs::write(&file, SCENARIO).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (folder, file)
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).unwrap()
}

fn mean(value: &Value, row: usize, column: usize, field: &str) -> f64 {
    value["values"][row]["policies"][column][field]["mean"].as_f64().unwrap()
}

#[test]
fn every_value_of_a_knob_is_what_compare_says() {
    let (_folder, file) = scenario();
    let source = ["--scenario", file.as_str(), "--policies", "fifo,edf"];
    let sweep = ["sweep", "--vary", "budget", "--values", "50%,4 kW,1", "--json"];
    let swept = json(&[&sweep[..], &source].concat());
    assert_eq!(swept["schema"], "wattline.sweep/1");
    let compared =
        json(&[&["compare", "--json", "--no-oracle", "--budget", "4 kW"][..], &source].concat());
    for column in 0..2 {
        let expected = &compared["results"][column];
        assert_eq!(mean(&swept, 1, column, "total_cost"), expected["total_cost"]);
        assert_eq!(mean(&swept, 1, column, "energy_kwh"), expected["energy_kwh"]);
    }
    assert_eq!(swept["values"][0]["value"], "50 %");
    assert!(mean(&swept, 0, 0, "total_cost") > mean(&swept, 2, 0, "total_cost"));
}

#[test]
fn knobs_turn_the_right_way() {
    let (_folder, file) = scenario();
    let sweep = |knob: &str, values: &str| {
        let source = ["--scenario", file.as_str(), "--policies", "tiresias+queues=60/600"];
        json(&[&["sweep", "--json", "--vary", knob, "--values", values][..], &source].concat())
    };
    let load = sweep("load", "0.3,2");
    assert!(mean(&load, 0, 0, "jct_mean_s") < mean(&load, 1, 0, "jct_mean_s"));
    let restart = sweep("restart", "0,30 min");
    assert!(mean(&restart, 0, 0, "jct_mean_s") < mean(&restart, 1, 0, "jct_mean_s"));
    let price = sweep("energy-price", "0.1,x1,0.2 EUR/kWh");
    let cost = |row: usize| {
        price["values"][row]["policies"][0]["runs"][0]["energy_cost"].as_f64().unwrap()
    };
    assert!((cost(2) / cost(0) - 2.0).abs() < 1e-9);
    assert!((cost(1) / cost(0) - 1.717).abs() < 1e-3, "the usual price is 0.1717");
}

#[test]
fn seeds_give_a_mean_with_its_error() {
    let (folder, file) = scenario();
    let out = folder.path().join("out");
    let args =
        ["sweep", "--scenario", &file, "--vary", "load", "--values", "0.5,1", "--seeds", "3"];
    let more = ["--policies", "edf", "--metric", "jct", "--out", out.to_str().unwrap()];
    let table = stdout(&[&args[..], &more].concat());
    assert!(table.contains(" ± ") && table.contains("seeds 1 to 3"), "{table}");
    let written: Value =
        serde_json::from_slice(&fs::read(out.join("sweep.json")).unwrap()).unwrap();
    let cell = &written["values"][0]["policies"][0];
    let runs: Vec<f64> = cell["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["jct_mean_s"].as_f64().unwrap())
        .collect();
    assert_eq!(runs.len(), 3);
    assert!(runs[0] != runs[1], "other seeds give other jobs");
    assert!(
        (cell["jct_mean_s"]["mean"].as_f64().unwrap() - runs.iter().sum::<f64>() / 3.0).abs()
            < 1e-6
    );
    assert!(cell["jct_mean_s"]["error"].as_f64().unwrap() > 0.0);
    let page = fs::read_to_string(out.join("sweep.html")).unwrap();
    assert!(page.contains("offered load") && page.contains("class=\"series s0\""));
}

#[test]
fn options_make_curves_that_are_read_at_equal_energy() {
    let (_folder, file) = scenario();
    let value = json(&[
        "sweep",
        "--scenario",
        &file,
        "--vary",
        "option",
        "--policies",
        "edf+sleep={},edf",
        "--values",
        "1min,2h",
        "--at-energy-of",
        "edf,fifo",
        "--json",
    ]);
    assert_eq!(value["values"][0]["policies"][0]["runs"][0]["policy"], "edf+sleep=1min");
    assert_eq!(value["values"][1]["policies"][0]["policy"], "edf+sleep={}");
    // Without a place for the value there is nothing to vary.
    assert_eq!(mean(&value, 0, 1, "energy_kwh"), mean(&value, 1, 1, "energy_kwh"));
    let against_edf = &value["at_energy_of"][0];
    assert_eq!(against_edf["baseline"], "edf");
    assert_eq!(against_edf["below"], 1, "a cluster that sleeps draws less");
    assert!(against_edf["ratio"]["mean"].as_f64().unwrap() > 0.5);
}

#[test]
fn what_cannot_be_varied_is_refused() {
    let (_folder, file) = scenario();
    let sweep = |more: &[&str], parts: &[&str]| {
        refused(&[&["sweep", "--scenario", file.as_str()][..], more].concat(), parts);
    };
    sweep(&["--vary", "speed"], &["unknown knob 'speed'", "energy-price"]);
    sweep(&["--vary", "load", "--values", "0.5,fast"], &["'fast'", "load", "0.8"]);
    sweep(&["--vary", "budget", "--values", "12 kWh"], &["'12 kWh'", "60%"]);
    sweep(&["--vary", "option", "--policies", "edf+backfill={}"], &["--values"]);
    sweep(&["--vary", "option", "--values", "1,2"], &["{}", "--policies"]);
    sweep(
        &["--vary", "option", "--policies", "edf+backfill={}", "--values", "0"],
        &["edf", "backfill=0"],
    );
    sweep(&["--vary", "load", "--policies", "edf+backfill={}"], &["{}", "--vary option"]);
    sweep(&["--vary", "load", "--at-energy-of", "fifo"], &["--vary option"]);
    sweep(&["--vary", "load", "--policies", "nobody"], &["unknown policy"]);
    sweep(&["--vary", "load", "--seeds", "0"], &["--seeds"]);
    sweep(&[], &["--vary"]);
    let trace = ["sweep", "--trace", "x.csv", "--format", "philly", "--gpus", "8"];
    refused(&[&trace[..], &["--vary", "load"]].concat(), &["--vary load", "--gpus"]);
    refused(&["sweep", "--andreas", "x", "--vary", "load"], &["--vary load", "ANDREAS"]);
}
