//! `wattline bench`, as a user runs it.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{refused, stdout};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).unwrap()
}

/// Two instances of a node with two GPUs: jobs of an hour that come at once, one at a time or two.
fn folder(reference: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("reference.csv"), reference).unwrap();
    for (name, second) in [("n1-l10-s0", "0"), ("n1-l90-s0", "7200")] {
        let instance = folder.path().join(name);
        fs::create_dir(&instance).unwrap();
        let write = |file: &str, text: &str| fs::write(instance.join(file), text).unwrap();
        write("tNodes.csv", "ID,GPUtype,nGPUs,cost\nn1,A,2,0\n");
        write(
            "GPU-costs.csv",
            "GPUtype,nGPUs,PowerConsumption[W],EnergyCost[€/kWh],PUE,cost\n\
             A,1,1000,1,1,1\nA,2,2000,1,1,2\n",
        );
        write(
            "Lof_Selectjobs.csv",
            &format!(
                "ID,SubmissionTime,Deadline,TardinessWeight,x,y\n\
                 J1,0,3600,0.001,0,0\nJ2,{second},9000,0.001,0,0\n"
            ),
        );
        write("SelectJobs_times.csv", "ID,GPUtype,nGPUs,ExecutionTime\nJ1,A,2,3600\nJ2,A,2,3600\n");
    }
    folder
}

fn path(folder: &TempDir) -> &str {
    folder.path().to_str().unwrap()
}

const REFERENCE: &str = "instance,nodes,gpus,jobs,load,method,total_eur\n\
    n1-l10-s0,1,2,2,2.0,FIFO,4\nn1-l10-s0,1,2,2,2.0,G,8\n\
    n1-l90-s0,1,2,2,0.5,FIFO,16\nn1-l90-s0,1,2,2,0.5,G,8\n";

#[test]
fn andreas_costs_are_set_against_the_best_method() {
    let folder = folder(REFERENCE);
    let value =
        json(&["bench", "andreas", "--dir", path(&folder), "--policies", "fifo,edf", "--json"]);
    assert_eq!(value["schema"], "wattline.bench.andreas/1");
    assert_eq!(value["restart_s"], 60.0);
    let groups = value["groups"].as_array().unwrap();
    let close = |value: &Value, expected: f64| {
        let value = value.as_f64().unwrap();
        assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
    };
    // Both jobs run for an hour at 2 EUR/h: 4 EUR; on the second instance J2 is 1,800 s late.
    assert_eq!(groups[0]["group"], "l10");
    close(&groups[0]["load"], 2.0);
    close(&groups[0]["policies"][0]["ratio"], 4.0 / 4.0);
    assert_eq!(groups[0]["policies"][0]["no_worse"], 1);
    close(&groups[1]["policies"][1]["ratio"], 5.8 / 8.0);
    close(&value["overall"][0]["ratio"], (1.0 + 5.8 / 8.0) / 2.0);
    close(&value["overall"][0]["worst_ratio"], 1.0);
    assert_eq!(value["overall"][0]["worst_instance"], "n1-l10-s0");
    assert_eq!(value["runs"][2]["best_method"], "G");
    assert_eq!(value["runs"].as_array().unwrap().len(), 4);
}

#[test]
fn a_part_of_a_folder_and_other_rows() {
    let folder = folder(REFERENCE);
    let args = ["bench", "andreas", "--dir", path(&folder), "--policies", "edf", "--only", "l90"];
    let table = stdout(&[&args[..], &["--by", "instance", "--no-preempt"]].concat());
    assert!(table.contains("n1-l90-s0") && !table.contains("n1-l10-s0"), "{table}");
    refused(&[&args[..7], &["l77"]].concat(), &["reference.csv", "l77"]);
}

#[test]
fn wrong_folders_are_refused() {
    let bench = |dir: &Path, parts: &[&str]| {
        refused(&["bench", "andreas", "--dir", dir.to_str().unwrap()], parts);
    };
    bench(Path::new("no/such"), &["no/such", "reference.csv"]);
    bench(folder("instance,load,method\n").path(), &["reference.csv", "total_eur"]);
    bench(folder("instance,load,method,total_eur\nn9,1,A,1\n").path(), &["n9", "GPU-costs.csv"]);
    bench(
        folder("instance,load,method,total_eur\nn1-l10-s0,1,A,0\n").path(),
        &["n1-l10-s0", "costs nothing"],
    );
    let good = folder(REFERENCE);
    let args = ["bench", "andreas", "--dir", path(&good), "--policies", "edf,nobody"];
    refused(&args, &["unknown policy 'nobody'"]);
}

#[test]
fn plans_are_timed_on_a_pinned_view() {
    let args = ["bench", "plan", "--nodes", "6", "--gpus-per-node", "4", "--jobs", "30"];
    for policy in ["edf", "andreas+greedy"] {
        for foresight in ["learned", "oracle"] {
            let more = ["--policy", policy, "--repeat", "6", "--foresight", foresight, "--json"];
            let value = json(&[&args[..], &more].concat());
            assert_eq!(value["schema"], "wattline.bench.plan/1");
            assert_eq!((&value["jobs"], &value["plans"]), (&Value::from(30), &Value::from(6)));
            assert_eq!(value["refused"], 0);
            let ms = |field: &str| value[field].as_f64().unwrap();
            let (p50, p99, max) = (ms("plan_ms_p50"), ms("plan_ms_p99"), ms("plan_ms_max"));
            assert!(p50 > 0.0 && p50 <= p99 && p99 <= max && ms("plan_ms_mean") <= max);
            assert!(ms("scratch_ms_mean") > 0.0 && ms("peak_memory_mb") >= 0.0);
            let running = value["running"].as_u64().unwrap();
            assert!(0 < running && running < 30, "{running}");
            assert_eq!(value["measured_ms_mean"].is_number(), foresight == "learned");
        }
    }
}

/// Each size has as many waiting jobs as were asked for, rigid ones and then malleable ones.
#[test]
fn the_cost_of_an_event_is_set_against_the_jobs_that_wait() {
    let args = ["bench", "plan", "--nodes", "4", "--gpus-per-node", "4", "--waiting", "20,60"];
    let more = ["--policy", "wattline", "--repeat", "4", "--most-seconds", "1"];
    let value = json(&[&args[..], &more, &["--json"]].concat());
    let sizes = value["sizes"].as_array().unwrap();
    let rows: Vec<(&str, u64)> = sizes
        .iter()
        .map(|f| (f["elasticity"].as_str().unwrap(), f["waiting"].as_u64().unwrap()))
        .collect();
    assert_eq!(rows, [("rigid", 20), ("rigid", 60), ("malleable", 20), ("malleable", 60)]);
    for size in sizes {
        assert!(size["running"].as_u64().unwrap() > 0, "{size}");
        assert!(size["plan_ms_mean"].as_f64().unwrap() > 0.0, "{size}");
        assert_eq!(size["refused"], 0);
        // Set against the size before with the same kind of jobs only.
        assert_eq!(size["growth"].is_number(), size["waiting"] == 60, "{size}");
    }
    let table = stdout(&[&args[..6], &["--waiting", "5", "--elasticity", "moldable"]].concat());
    assert!(table.contains("waiting") && table.contains("moldable"), "{table}");
    assert!(!table.contains("malleable"), "{table}");
}

#[test]
fn wrong_sizes_are_refused() {
    refused(&["bench", "plan", "--nodes", "0"], &["--nodes"]);
    refused(&["bench", "plan", "--gpus-per-node", "65"], &["--gpus-per-node"]);
    refused(&["bench", "plan", "--policy", "nobody"], &["unknown policy 'nobody'"]);
    refused(&["bench", "plan", "--budget-share", "0"], &["--budget-share"]);
    refused(&["bench", "plan", "--scaling", "--nodes", "3"], &["--scaling"]);
    refused(&["bench", "plan", "--waiting", "9", "--jobs", "3"], &["--waiting", "--jobs"]);
    refused(&["bench", "plan", "--waiting", "0"], &["--waiting"]);
}

#[test]
fn a_page_of_results_is_written_by_its_commands() {
    let folder = tempfile::tempdir().unwrap();
    let (list, page) = (folder.path().join("list.toml"), folder.path().join("page.md"));
    fs::write(
        &list,
        r#"
title = "Results"
about = "Tables."
[[section]]
id = "policies"
title = "What there is"
about = "All of them."
commands = ["policies"]
[[section]]
id = "missing"
title = "Other people's data"
about = "Not here."
needs = ["no/such/data"]
commands = ["compare --trace $WATTLINE_SHARED/no/such/data --format philly"]
"#,
    )
    .unwrap();
    let (list, page) = (list.to_str().unwrap(), page.to_str().unwrap());
    let args = ["bench", "results", "--list", list, "--page", page];
    stdout(&args);
    let first = fs::read_to_string(page).unwrap();
    assert!(first.contains("```sh\nwattline policies\n```") && first.contains("| tiresias"));
    assert!(first.contains("Skipped: `$WATTLINE_SHARED/no/such/data`"), "{first}");
    // The other sections stay as they are.
    fs::write(page, first.replace("Not here.", "Kept.")).unwrap();
    stdout(&[&args[..], &["--only", "policies"]].concat());
    let second = fs::read_to_string(page).unwrap();
    assert!(second.contains("Kept.") && second.contains("| tiresias"), "{second}");
    refused(&[&args[..], &["--only", "nothing"]].concat(), &["nothing", "policies, missing"]);
    fs::write(list, "title = 3").unwrap();
    refused(&args, &["list.toml", "title"]);
}

#[test]
fn parts_and_constants_are_set_against_the_default() {
    let value = json(&[
        "bench",
        "ablation",
        "--quick",
        "--first",
        "8",
        "--only",
        "arrival_toll,restart_margin",
        "--json",
    ]);
    assert_eq!(value["schema"], "wattline.bench.ablation/1");
    let instances = value["instances"].as_array().unwrap();
    assert!(instances.contains(&Value::from("overload/1 rigid")), "{instances:?}");
    let ratio = |effect: &Value| {
        let [mean, worst] = ["geometric_mean", "worst"].map(|key| effect[key].as_f64().unwrap());
        assert!((0.2..5.0).contains(&mean) && worst >= mean - 1e-9, "{effect}");
        let changed = effect["changed"].as_u64().unwrap();
        assert!(changed > 0 || (mean - 1.0).abs() < 1e-12, "{effect}");
        changed
    };
    let parts = value["parts"].as_array().unwrap();
    assert_eq!((parts.len(), &parts[0]["part"]), (1, &Value::from("arrival_toll")));
    let constants = value["constants"].as_array().unwrap();
    assert_eq!((constants.len(), &constants[0]["constant"]), (1, &Value::from("restart_margin")));
    assert_eq!(constants[0]["default"], "5.0");
    let effects = [&parts[0]["off"], &constants[0]["halved"], &constants[0]["doubled"]];
    assert!(effects.map(ratio).iter().sum::<u64>() > 0, "nothing of it matters: {value}");
}

#[test]
fn parts_and_constants_are_listed_and_wrong_ones_refused() {
    let text = stdout(&["bench", "ablation", "--list"]);
    for name in ["rollouts", "reservations", "arrival_toll", "waiting_on_purpose", "gpu_price"] {
        assert!(text.contains(name), "{name}: {text}");
    }
    refused(&["bench", "ablation", "--only", "luck"], &["'luck'", "--list"]);
    refused(&["bench", "ablation", "--seeds", "10000"], &["--seeds"]);
}
