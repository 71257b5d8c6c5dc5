//! `wattline replay`: what a journal recorded, once more.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::wattline;
use serde_json::Value;
use std::fs;

const SCENARIO: &str = "name = \"small\"\nseed = 3\n\
    [[nodes]]\ncount = 3\ngpu = \"h200\"\ngpus = 2\n\
    [jobs]\ncount = 12\nload = 0.9\n\
    duration = { median = \"6 min\", sigma = 0.7, min = \"1 min\", max = \"15 min\" }\n\
    gpus = [{ count = 1, share = 0.6 }, { count = 2, share = 0.4 }]\n\
    deadlines = { share = 0.7, tightest = 1.5, loosest = 4.0 }\n";

#[test]
fn a_recorded_journal_runs_under_any_policy() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (scenario, other, journal) = (path("small.toml"), path("other.toml"), path("journal"));
    fs::write(&scenario, SCENARIO).unwrap();
    fs::write(&other, SCENARIO.replace("seed = 3", "seed = 4")).unwrap();
    // Slow enough that turns come every few seconds of the cluster's time.
    let serve = ["serve", "--scenario", &scenario, "--journal", &journal, "--speed", "1000"];
    let served = wattline(&[&serve[..], &["--policy", "edf", "--json"]].concat());
    assert!(served.status.success());

    let replay = ["replay", &journal, "--scenario", &scenario, "--policy", "fifo", "--json"];
    let replayed = wattline(&replay);
    assert!(replayed.status.success(), "{}", String::from_utf8_lossy(&replayed.stderr));
    let replayed: Value = serde_json::from_slice(&replayed.stdout).unwrap();
    assert_eq!(replayed["schema"], "wattline.replay/1");
    assert_eq!(replayed["recorded_policy"], "edf");
    assert_eq!(replayed["realised"]["finished"], 12);
    let policies: Vec<&str> = replayed["results"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|r| r["policy"].as_str())
        .collect();
    assert_eq!(policies, ["edf", "fifo"]);
    // The same policy on the same jobs: what happened is what would have.
    let number = |value: &Value, name: &str| value[name].as_f64().unwrap();
    let (realised, again) = (&replayed["realised"], &replayed["results"][0]);
    assert_eq!(replayed["recorded_as"], "edf decided");
    let check = &replayed["check"];
    assert_eq!(check["policy"], "edf");
    assert!(number(check, "deviation") < 0.25, "{check}");
    let names = ["jct_mean_s", "makespan_s", "energy_jobs_kwh", "total_cost", "energy_kwh"];
    for name in names {
        let (was, is) = (number(realised, name), number(again, name));
        assert!((was / is - 1.0).abs() < 0.25, "{name}: {was} and {is}");
    }

    for (args, what) in [
        (["replay", &journal, "--scenario", &other], "another cluster or its jobs"),
        (["replay", &scenario, "--scenario", &scenario], "not a journal of wattline"),
        (["replay", &path("none"), "--scenario", &scenario], "there is no such journal"),
    ] {
        let refused = wattline(&args);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(what), "{said}");
    }
}
