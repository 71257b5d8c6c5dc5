//! The scenarios that are built in are what they say.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{refused, stdout};
use serde_json::Value;
use std::fs;

fn compare(scenario: &str, policies: &str, more: &[&str]) -> Value {
    let args = ["compare", "--scenario", scenario, "--policies", policies, "--no-oracle", "--json"];
    serde_json::from_str(&stdout(&[&args[..], more].concat())).unwrap()
}

#[test]
fn all_are_listed_and_sound() {
    let list = stdout(&["config", "list"]);
    for name in ["demo", "capped-60", "night-price", "overload", "andreas-20", "scale-1000"] {
        assert!(list.contains(name), "{name}: {list}");
        stdout(&["config", "check", name]);
    }
}

#[test]
fn andreas_20_is_the_setting_of_the_experiments() {
    for seed in ["1", "2", "3"] {
        let value = compare("andreas-20", "edf", &["--seed", seed, "--foresight", "oracle"]);
        let instance = &value["instance"];
        assert_eq!((&instance["nodes"], &instance["gpus"]), (&Value::from(20), &Value::from(30)));
        assert_eq!(instance["jobs"], 201);
        assert_eq!(instance["peak_power_w"], 10.0 * 700.0 + 10.0 * 400.0);
        let load = instance["offered_load"].as_f64().unwrap();
        assert!((0.8..1.2).contains(&load), "seed {seed}: {load}");
        let result = &value["results"][0];
        assert_eq!(result["finished"], 201);
        assert_eq!(result["energy_idle_kwh"], 0.0, "idle servers draw nothing");
    }
}

#[test]
fn in_an_overload_everybody_is_late_and_nobody_starves() {
    let value = compare("overload", "fifo,edf,priority,tiresias", &["--foresight", "oracle"]);
    let span = 86_400.0;
    for result in value["results"].as_array().unwrap() {
        assert_eq!(result["finished"], result["jobs"], "{}", result["policy"]);
        // It takes longer than the day in which they came, and ends within a week.
        let makespan = result["makespan_s"].as_f64().unwrap();
        assert!(makespan > span && makespan < 7.0 * span, "{}: {makespan}", result["policy"]);
        assert!(result["deadlines_met"].as_u64() < result["deadlines"].as_u64());
    }
    assert!(value["instance"]["offered_load"].as_f64().unwrap() > 1.3);
}

#[test]
fn powers_of_whole_nodes_must_be_complete() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.toml");
    let scenario = |more: &str| {
        let text = format!(
            "name = \"s\"\n[[nodes]]\ncount = 1\ngpu = \"v100\"\ngpus = 2\n{more}\n[jobs]\ncount = 3\n"
        );
        fs::write(&file, text).unwrap();
    };
    let name = file.to_str().unwrap();
    scenario("by_busy_gpus = [\"0 W\", \"300 W\"]");
    refused(&["config", "check", name], &["nodes.by_busy_gpus", "a list of 2"]);
    scenario("by_busy_gpus = [\"0 W\", \"300 W\", \"500 W\"]\nbase = \"10 W\"");
    refused(&["config", "check", name], &["nodes.by_busy_gpus", "nodes.base"]);
    scenario("by_busy_gpus = [\"0 W\", \"300 W\", \"500 W\"]");
    stdout(&["config", "check", name]);
}
