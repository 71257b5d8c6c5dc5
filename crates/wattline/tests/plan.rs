//! `wattline plan`, as a user runs it.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{refused, stdout};
use serde_json::{Value, json};
use std::fs;

fn example() -> Value {
    serde_json::from_str(&stdout(&["plan", "--example"])).unwrap()
}

/// Plans for a view; the file is gone afterwards.
fn plan(view: &Value, policy: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("view.json");
    fs::write(&file, view.to_string()).unwrap();
    let args = ["plan", "--view", file.to_str().unwrap(), "--policy", policy, "--json"];
    serde_json::from_str(&stdout(&args)).unwrap()
}

/// A view that is refused, with these parts in the message.
fn bad(text: &str, parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("view.json");
    fs::write(&file, text).unwrap();
    let parts: Vec<&str> = parts.iter().copied().chain(["view.json"]).collect();
    refused(&["plan", "--view", file.to_str().unwrap()], &parts);
}

#[test]
fn the_example_is_planned_with_reasons() {
    let value = plan(&example(), "edf");
    assert_eq!(value["schema"], "wattline.plan/1");
    assert_eq!(value["accepted"], true);
    assert!(value["committed_w"].as_f64() <= value["budget_w"].as_f64());
    let jobs = value["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 3);
    assert_eq!((&jobs[0]["job"], &jobs[0]["action"]), (&json!("nightly-ranking"), &json!("stay")));
    assert_eq!(jobs[0]["runs"]["on"], json!([{ "node": "n1", "gpus": [0, 1] }]));
    // Six tenths of 3,900 s are left.
    let left = jobs[0]["runs"]["predicted_left_s"].as_f64().unwrap();
    assert!((left - 0.6 * 3900.0).abs() < 1e-6, "{left}");
    let end = jobs[0]["forecast"]["end_s"].as_f64().unwrap();
    assert!((end - 1000.0 - left).abs() < 1.0, "{end}");
    assert_eq!(jobs[1]["action"], "start");
    for job in jobs {
        assert!(!job["why"].as_str().unwrap().is_empty());
        assert!(job["forecast"]["cost_eur"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(value["nodes"][1]["state"], "asleep");
}

#[test]
fn a_sleeping_node_wakes_where_the_budget_carries_it() {
    let mut view = example();
    view["budget_w"]["value"] = json!(9000);
    let value = plan(&view, "edf");
    assert_eq!(value["nodes"][1]["action"], "wake", "{value:#}");
    assert_eq!(value["jobs"][2]["action"], "start");
    // Without a budget for anybody the load is shed, and that is said.
    view["budget_w"]["value"] = json!(800);
    let value = plan(&view, "edf");
    assert_eq!(value["jobs"][0]["action"], "stop");
    assert_eq!(value["alerts"].as_array().unwrap().len(), 1, "{}", value["alerts"]);
    assert_eq!(value["accepted"], true);
}

#[test]
fn people_get_tables() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("view.json");
    fs::write(&file, example().to_string()).unwrap();
    let text = stdout(&["plan", "--view", file.to_str().unwrap(), "--policy", "fifo"]);
    for part in ["nightly-ranking", "n1:0+1", "committed power", "budget 4.00 kW", "lets it pass"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

#[test]
fn a_simulation_writes_a_view_that_can_be_asked_about() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("view.json");
    let file = file.to_str().unwrap();
    stdout(&[
        "simulate",
        "--scenario",
        "demo",
        "--policy",
        "edf",
        "--no-oracle",
        "--no-forecast",
        "--view-at",
        "8 h",
        "--view-out",
        file,
    ]);
    let value: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(value["schema"], "wattline.view/1");
    let own = plan(&value, "edf");
    let all = own["jobs"].as_array().unwrap();
    assert!(
        all.len() > 3 && all.iter().all(|job| job["action"] == "stay" || job["action"] == "wait")
    );
    let other = plan(&value, "andreas");
    assert_eq!(other["accepted"], true);
    refused(&["simulate", "--scenario", "demo", "--view-at", "8 h"], &["--view-out"]);
}

#[test]
fn bad_views_are_refused_with_file_field_and_line() {
    bad("", &["line 1"]);
    bad("{\n\"schema\": 3}", &["schema", "line 2"]);
    bad("{\n\n\"sceham\": 3}", &["sceham", "line 3"]);
    refused(&["plan", "--view", "no/such.json"], &["no/such.json"]);
    refused(&["plan"], &["--view"]);
    let change = |pointer: &str, value: Value, parts: &[&str]| {
        let mut view = example();
        *view.pointer_mut(pointer).unwrap() = value;
        bad(&view.to_string(), parts);
    };
    change("/schema", json!("wattline.view/9"), &["schema", "wattline.view/1"]);
    change("/nodes/0/gpu", json!("h100"), &["nodes[0].gpu", "h100", "gpu_types"]);
    change("/nodes/1/name", json!("n1"), &["nodes[1].name", "n1"]);
    change("/nodes/0/gpus", json!(65), &["n1", "65"]);
    change("/nodes/0/gpus", json!(-1), &["nodes[0].gpus", "line"]);
    change("/jobs/0/workload", json!("sorting"), &["jobs[0].workload", "sorting"]);
    change("/jobs/0/gpus", json!(9), &["jobs[0]", "gpus"]);
    change("/jobs/0/deadline_s", json!(-5), &["jobs[0]", "deadline"]);
    change("/jobs/0/holds/on/0/node", json!("n9"), &["jobs[0].holds.on[0].node", "n9"]);
    change("/jobs/0/holds/on/0/gpus", json!([0, 7]), &["jobs[0].holds.on", "does not have"]);
    change("/jobs/0/holds/on/0/gpus", json!([0, 0]), &["jobs[0].holds.on", "twice"]);
    change("/jobs/0/holds/on/0/gpus", json!([]), &["jobs[0].holds.on", "without a GPU"]);
    change("/jobs/0/holds/on/0/gpus", json!([0, 1, 2]), &["cannot be", "3 GPUs"]);
    change("/jobs/0/done", json!(-1), &["jobs[0].done"]);
    change("/jobs/0/elasticity", json!("soft"), &["jobs[0].elasticity", "soft", "line"]);
    change("/budget_w/value", json!(-4), &["budget_w.value"]);
    change("/now_s", json!(1e300), &["now_s"]);
    change("/workloads/0/times/0/seconds", json!(0), &["workloads[0].times[0].seconds"]);
    change("/workloads/1/measurements/2/seconds", json!(-1), &["workloads[1].measurements[2]"]);
    let mut view = example();
    view["jobs"][1]["holds"] = json!({ "on": [{ "node": "n1", "gpus": [1, 2] }] });
    bad(&view.to_string(), &["cannot be", "given to"]);
    let mut view = example();
    view["jobs"][1]["leaves"] = json!(true);
    bad(&view.to_string(), &["jobs[1].leaves"]);
}
