//! Every command as a user runs it.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{stdout, wattline};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).unwrap()
}

/// The stable schema, with the timing fields cut out.
fn without_timing(mut value: Value) -> Value {
    for result in value["results"].as_array_mut().unwrap() {
        for field in ["plan_ms_mean", "plan_ms_p99", "wall_s", "events_per_s"] {
            result.as_object_mut().unwrap().remove(field).unwrap();
        }
    }
    value
}

#[test]
fn compare_has_the_stable_schema() {
    let value = json(&["compare", "--scenario", "demo", "--policies", "fifo,edf", "--json"]);
    assert_eq!(value["schema"], "wattline.compare/1");
    let results = value["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    let fields = [
        "jobs",
        "finished",
        "total_cost",
        "energy_cost",
        "tardiness_cost",
        "energy_kwh",
        "jct_mean_s",
        "jct_p50_s",
        "jct_p99_s",
        "makespan_s",
        "deadlines_met",
        "restarts",
        "peak_power_w",
        "budget_exceeded_s",
        "plans",
        "plan_ms_mean",
        "plan_ms_p99",
        "wall_s",
    ];
    for result in results {
        for field in fields {
            assert!(result[field].is_number(), "{field}: {}", result[field]);
        }
        assert_eq!(result["finished"], result["jobs"]);
        assert_eq!(result["budget_exceeded_s"], 0.0);
    }
    assert_eq!(results[0]["policy"], "fifo");
}

/// A line on standard error for each policy as it finishes, though that is no terminal; nothing on
/// standard output before all are done.
#[test]
fn compare_says_what_a_policy_came_to_while_others_run() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_wattline"))
        .args(["compare", "--scenario", "demo", "--foresight", "oracle", "--no-bound", "--json"])
        .args(["--policies", "ones,fifo", "--threads", "2"])
        .current_dir(common::root())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    let first =
        errors.find(|line| line.as_ref().unwrap().contains(" finished, ")).unwrap().unwrap();
    assert!(child.try_wait().unwrap().is_none(), "said while the other runs");
    assert!(first.starts_with("fifo: 160/160 finished, "), "{first}");
    for part in [" EUR (energy ", "deadlines met, JCT mean ", "; 1 of 2 done, ones ", " left"] {
        assert!(first.contains(part), "'{first}' does not say '{part}'");
    }
    let rest: Vec<String> = errors.map(Result::unwrap).collect();
    let last = rest.iter().find(|line| line.starts_with("ones: 160/160 finished, ")).unwrap();
    assert!(last.ends_with("; 2 of 2 done"), "{last}");
    let output = child.wait_with_output().unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    // The figures are those of the results, which stay in the order asked for.
    assert_eq!(value["results"][1]["policy"], "fifo");
    let cost = value["results"][1]["total_cost"].as_f64().unwrap();
    assert!(first.contains(&format!(" {cost:.2} EUR")), "{first}: {cost}");
    // Other commands that simulate say nothing of the kind.
    let output = wattline(&["simulate", "--scenario", "demo", "--policy", "fifo"]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains(" finished, "));
}

/// The same seed gives the same bytes, however many threads work on it.
#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let with = |scenario: &str, policies: &str, more: &str, threads: &str, seed: &str| {
        let value = json(&[
            "compare",
            "--scenario",
            scenario,
            "--policies",
            policies,
            more,
            "--seed",
            seed,
            "--threads",
            threads,
            "--json",
        ]);
        without_timing(value).to_string()
    };
    let told = |threads, seed| {
        let policies = "fifo,edf,priority,tiresias,edf+backfill,andreas+rounds=50";
        with("bursts", policies, "--foresight=oracle", threads, seed)
    };
    let learned =
        |threads, seed| with("learning", "fifo,edf,tiresias", "--forecast", threads, seed);
    let runs: [&dyn Fn(&'static str, &'static str) -> String; 2] = [&told, &learned];
    for run in runs {
        let one = run("1", "11");
        assert_eq!(one, run("1", "11"));
        assert_eq!(one, run("4", "11"));
        assert_ne!(one, run("4", "12"));
    }
}

/// A budget of 60 % of the peak: every policy keeps it and finishes every job.
#[test]
fn every_policy_keeps_a_budget_of_sixty_per_cent() {
    let policies = "fifo,edf,priority,tiresias,fifo+backfill,edf+backfill,edf+sleep=10min,\
                    andreas+greedy,andreas+rounds=50";
    for seed in ["1", "2", "3"] {
        let value = json(&[
            "compare",
            "--scenario",
            "capped-60",
            "--policies",
            policies,
            "--no-oracle",
            "--seed",
            seed,
            "--json",
        ]);
        for result in value["results"].as_array().unwrap() {
            assert_eq!(result["budget_exceeded_s"], 0.0, "{result}");
            assert_eq!(result["committed_exceeded_s"], 0.0, "{result}");
            assert_eq!(result["finished"], result["jobs"], "{result}");
            assert_eq!(result["plans_refused"], 0, "{result}");
        }
    }
}

#[test]
fn out_writes_a_report_figures_and_job_tables() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new").join("folder");
    let args = ["compare", "--scenario", "demo", "--policies", "edf,fifo+backfill=7", "--out"];
    let args: Vec<&str> = args.into_iter().chain([out.to_str().unwrap()]).collect();
    let table = stdout(&args);
    assert!(table.contains("| edf "), "{table}");
    let report = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(report.starts_with("<!DOCTYPE html>") && report.contains("Power against budget"));
    for wanted in ["http://", "https://", "src="] {
        let foreign = report.replace("http://www.w3.org/2000/svg", "");
        assert!(!foreign.contains(wanted), "the report refers to something outside: {wanted}");
    }
    let figures: Value =
        serde_json::from_str(&fs::read_to_string(out.join("results.json")).unwrap()).unwrap();
    assert_eq!(figures["schema"], "wattline.compare/1");
    let jobs = fs::read_to_string(out.join("jobs-fifo-backfill-7.csv")).unwrap();
    assert_eq!(jobs.lines().count(), 161);
    assert!(jobs.starts_with("job,workload,gpus_requested,submit_s,"));
}

#[test]
fn simulate_lists_jobs() {
    let text = stdout(&["simulate", "--scenario", "demo", "--policy", "tiresias"]);
    assert!(text.contains("40 of 160 jobs shown") && text.contains("resnet50"), "{text}");
    let value = json(&["simulate", "--scenario", "demo", "--policy", "edf", "--json"]);
    assert_eq!(value["schema"], "wattline.simulate/1");
    assert_eq!(value["jobs"].as_array().unwrap().len(), 160);
    let energy: f64 =
        value["jobs"].as_array().unwrap().iter().map(|j| j["energy_kwh"].as_f64().unwrap()).sum();
    let jobs = value["result"]["energy_jobs_kwh"].as_f64().unwrap();
    assert!((energy - jobs).abs() < 1e-6, "{energy} is not {jobs}");
}

/// Every figure about predictions is there, and `null` where nothing was asked.
#[test]
fn compare_says_what_no_schedule_can_cost_less_than() {
    let args = ["compare", "--scenario", "demo", "--policies", "fifo,edf", "--json"];
    let value = json(&args);
    let bound = value["lower_bound"]["total"].as_f64().unwrap();
    let part = |name: &str| value["lower_bound"][name].as_f64().unwrap();
    assert!(bound > 0.0 && value["lower_bound"]["valid"] == true);
    assert!((part("alone") + part("competing") + part("resting") - bound).abs() < 1e-6 * bound);
    for (result, over) in value["results"]
        .as_array()
        .unwrap()
        .iter()
        .zip(value["lower_bound"]["over_bound"].as_array().unwrap())
    {
        let cost = result["total_cost"].as_f64().unwrap();
        assert!(cost >= bound);
        assert!((over.as_f64().unwrap() - cost / bound).abs() < 1e-9);
    }
    let without = json(&[&args[..], &["--no-bound"]].concat());
    assert!(without.get("lower_bound").is_none());
}

#[test]
fn gaps_are_to_the_optimum() {
    let args = ["bench", "gap", "--instances", "20", "--seed", "7", "--policy", "fifo,edf"];
    let value = json(&[&args[..], &["--json"]].concat());
    assert_eq!(value["schema"], "wattline.bench.gap/1");
    for row in value["results"].as_array().unwrap() {
        let figure = |name: &str| row[name].as_f64().unwrap();
        assert!(figure("gap_mean") >= -1e-7 && figure("gap_max") >= figure("gap_mean"));
        assert!(figure("cost") >= figure("optimum") * (1.0 - 1e-7));
    }
    assert_eq!(value, json(&[&args[..], &["--json"]].concat()));
}

#[test]
fn compare_says_how_good_predictions_were() {
    let compare = |more: &[&str]| {
        let args = ["compare", "--scenario", "learning", "--policies", "edf", "--json"];
        json(&[&args[..], more].concat())["results"][0].clone()
    };
    let fields = [
        "time_error_mean",
        "time_coverage_90",
        "energy_error_mean",
        "cost_predicted_eur",
        "cost_actual_eur",
        "cost_error",
        "cost_error_second_half",
        "oracle_total_cost",
        "price_of_not_knowing",
    ];
    let all = compare(&["--forecast"]);
    for field in fields {
        assert!(all[field].is_number(), "{field}: {}", all[field]);
    }
    assert_eq!(all["forecasts"], 200);
    let plain = compare(&["--no-oracle"]);
    for field in &fields[3..] {
        assert!(plain[field].is_null(), "{field}: {}", plain[field]);
    }
    assert_eq!(plain["total_cost"], all["total_cost"], "looking changes nothing");
    let told = compare(&["--foresight", "oracle"]);
    assert_eq!(told["total_cost"], all["oracle_total_cost"]);
    assert!(told["oracle_total_cost"].is_null(), "it is the oracle");
    let noisy = compare(&["--foresight", "noisy=0.3"]);
    assert_eq!(noisy["oracle_total_cost"], all["oracle_total_cost"]);

    let table = stdout(&["compare", "--scenario", "learning", "--policies", "edf", "--forecast"]);
    for column in ["time error", "vs oracle", "forecast error"] {
        assert!(table.contains(column), "{table}");
    }
    let table = stdout(&["compare", "--scenario", "learning", "--foresight", "oracle"]);
    assert!(!table.contains("vs oracle"), "{table}");
}

/// Forecasts are on in `simulate`, beside what jobs came to cost.
#[test]
fn simulate_forecasts_every_job() {
    let value = json(&["simulate", "--scenario", "learning", "--policy", "edf", "--json"]);
    let jobs = value["jobs"].as_array().unwrap();
    let sum = |field: &str| -> f64 { jobs.iter().map(|j| j[field].as_f64().unwrap()).sum() };
    let near = |a: f64, field: &str| {
        let b = value["result"][field].as_f64().unwrap();
        assert!((a / b - 1.0).abs() < 1e-9, "{a} is not {field} {b}");
    };
    near(sum("forecast_cost_eur"), "cost_predicted_eur");
    near(sum("cost_eur"), "cost_actual_eur");
    for job in jobs {
        let (low, high) = (&job["last_run_low_s"], &job["last_run_high_s"]);
        let told = job["last_run_predicted_s"].as_f64().unwrap();
        assert!(low.as_f64().unwrap() <= told && told <= high.as_f64().unwrap(), "{job}");
        assert!(job["last_run_kwh"].as_f64().unwrap() > 0.0, "{job}");
    }
    // The policy unless another is named.
    let value = json(&["simulate", "--scenario", "learning", "--no-forecast", "--json"]);
    assert_eq!(value["result"]["policy"], "wattline");
    assert!(value["jobs"][0]["forecast_end_s"].is_null());
}

/// What `predict learn` prints can be held against what `compare` does.
#[test]
fn predict_learn_sums_up_several_seeds() {
    let args = ["predict", "learn", "--policies", "edf,fifo", "--seeds", "2", "--jobs", "60"];
    let value = json(&[&args[..], &["--noise", "0.02", "--json"]].concat());
    assert_eq!(value["schema"], "wattline.predict.learn/1");
    assert_eq!(value["seeds"], serde_json::json!([11, 12]));
    assert_eq!((&value["jobs"], &value["noise"]), (&60.into(), &0.02.into()));
    let edf = &value["policies"][0];
    let runs = edf["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert_eq!(run["tenths"].as_array().unwrap().len(), 10);
        for part in ["first_half", "second_half"] {
            assert!(run[part]["cost"]["error"].is_number(), "{run}");
            assert!(run[part]["time_error"].is_number(), "{run}");
        }
        assert_eq!(run["overall"]["cost"]["jobs"], 60);
    }
    let of = |value: &Value| value["total_cost"].as_f64().unwrap();
    assert!((of(&edf["mean"]) - (of(&runs[0]) + of(&runs[1])) / 2.0).abs() < 1e-9);
    let text = stdout(&args);
    assert!(text.contains("by tenth of the jobs") && text.contains("| mean |"), "{text}");
}

/// generate → describe → convert → compare: what one command writes, the next one reads.
#[test]
fn traces_go_round() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (made, philly) = (path("made.csv"), path("philly.csv"));
    stdout(&["trace", "generate", "--scenario", "demo", "--seed", "5", "--out", &made]);
    let described =
        json(&["trace", "describe", "--trace", &made, "--format", "elasticflow", "--json"]);
    assert_eq!(described["jobs"], 160);
    assert!(described["models"].as_array().unwrap().len() >= 4);
    let args = ["trace", "convert", "--trace", &made, "--format", "elasticflow", "--to", "philly"];
    stdout(&[&args[..], &["--out", &philly]].concat());
    let again = json(&["trace", "describe", "--trace", &philly, "--format", "philly", "--json"]);
    assert_eq!(again["jobs"], 160);
    let (a, b) = (described["gpu_hours"].as_f64().unwrap(), again["gpu_hours"].as_f64().unwrap());
    assert!((a - b).abs() < 1e-6 * a, "{a} is not {b}");
    let compared =
        json(&["compare", "--trace", &made, "--format", "elasticflow", "--gpus", "32", "--json"]);
    for result in compared["results"].as_array().unwrap() {
        assert_eq!(result["finished"], 160);
    }
    assert_eq!(compared["instance"]["gpus"], 32);
}

/// Sizes follow the load where nothing else is said, and jobs too large for the cluster still run.
#[test]
fn a_traces_cluster_follows_the_load() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.csv");
    let mut text = "timestamp,duration,num_gpus,gpu_time,cluster\n".to_owned();
    for hour in 0..24 {
        text += &format!("2026-01-05 {hour:02}:00:00,14400,4,57600,a\n");
    }
    text += "2026-01-05 23:59:59,600,64,38400,b\n";
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let size = |more: &[&str]| {
        let args = [
            &["compare", "--trace", file, "--format", "philly", "--policies", "fifo", "--json"],
            more,
        ]
        .concat();
        let value = json(&args);
        assert_eq!(value["results"][0]["finished"], 25);
        (value["instance"]["gpus"].as_u64().unwrap(), value["instance"]["notes"].to_string())
    };
    // 1,420,800 GPU-seconds over 86,399 s: 18.3 GPUs at load 0.9, but the largest job wants 64.
    assert_eq!(size(&[]).0, 64);
    let (gpus, notes) = size(&["--gpus", "16"]);
    assert_eq!(gpus, 16);
    assert!(notes.contains("1 jobs ask for more GPUs than the cluster has"), "{notes}");
    // 2490 is not a multiple of 8: the last node is smaller.
    assert_eq!(size(&["--gpus", "2490"]).0, 2490);
}

/// `tiresias` stops a job with much attained service for one with none; where jobs are not
/// preemptible it may not, and the note says which it was.
#[test]
fn jobs_of_a_trace_are_preemptible_only_if_the_format_or_the_user_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let philly = write(
        "philly.csv",
        "timestamp,duration,num_gpus,gpu_time,cluster\n\
         2026-01-05 00:00:00,86400,8,691200,a\n2026-01-05 06:00:00,600,8,4800,a\n",
    );
    let elasticflow = write(
        "elasticflow.csv",
        "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n\
         1,0,1,bert,900000,8,8,86400\n2,21600,1,bert,900000,8,8,600\n",
    );
    let sacct = write(
        "sacct.txt",
        "JobID|User|Submit|Start|End|State|ElapsedRaw|AllocTRES\n\
         1|a|2026-01-05T00:00:00|2026-01-05T00:00:00|2026-01-06T00:00:00|COMPLETED|86400|gres/gpu=8\n\
         2|a|2026-01-05T06:00:00|2026-01-05T06:00:00|2026-01-05T06:10:00|COMPLETED|600|gres/gpu=8\n",
    );
    let helios = write(
        "helios.csv",
        "job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n\
         1,a,8,8,1,COMPLETED,2026-01-05 00:00:00,2026-01-05 00:00:00,2026-01-06 00:00:00,86400,0\n\
         2,a,8,8,1,COMPLETED,2026-01-05 06:00:00,2026-01-05 06:00:00,2026-01-05 06:10:00,600,0\n",
    );
    let alibaba = write(
        "alibaba.csv",
        "name,num_gpu,creation_time,deletion_time,scheduled_time\n\
         p1,8,0,86400,0\np2,8,21600,22200,21600\n",
    );
    let moved = |trace: &str, format: &str, more: &[&str]| {
        let args = ["compare", "--trace", trace, "--format", format, "--gpus", "8", "--json"];
        let policy = ["--policies", "tiresias", "--elasticity", "rigid", "--no-bound"];
        let value = json(&[&args[..], &policy, more].concat());
        let notes = value["instance"]["notes"].to_string();
        assert_eq!(value["results"][0]["finished"], 2);
        let preemptible = !notes.contains("not preemptible");
        assert!(notes.contains("preemptible"), "{notes}");
        assert_eq!(value["results"][0]["restarts"].as_u64().unwrap() > 0, preemptible, "{notes}");
        preemptible
    };
    for (trace, format, usual) in [
        (&philly, "philly", false),
        (&helios, "helios", false),
        (&alibaba, "alibaba", false),
        (&sacct, "sacct", false),
        (&elasticflow, "elasticflow", true),
    ] {
        assert_eq!(moved(trace, format, &[]), usual, "{format}");
        assert!(moved(trace, format, &["--preempt"]), "{format}");
        assert!(!moved(trace, format, &["--no-preempt"]), "{format}");
    }
    let args = ["compare", "--trace", &philly, "--format", "philly", "--preempt", "--no-preempt"];
    common::refused(&args, &["--preempt", "--no-preempt"]);
}

#[test]
fn a_site_simulates_its_own_machines() {
    let folder = tempfile::tempdir().unwrap();
    let rows = "workload,gpu,nodes,gpus,global_batch,power_limit_w,samples,seconds,power_w\n\
                mine,box,1,1,32,,32,0.1,200\nmine,box,1,2,64,,64,0.11,190\n\
                mine,box,1,1,64,,64,0.18,220\nmine,box,1,2,32,,32,0.07,150\n";
    fs::write(folder.path().join("m.csv"), rows).unwrap();
    let text = "name = \"site\"\nmeasurements = \"m.csv\"\n\
        [[gpu]]\nname = \"box\"\nidle = \"20 W\"\nbusy = \"230 W\"\nmin_limit = \"100 W\"\n\
        default_limit = \"250 W\"\nmax_limit = \"250 W\"\nlimit_step = \"50 W\"\n\
        [[nodes]]\ncount = 3\ngpu = \"box\"\ngpus = 2\n\
        [jobs]\ncount = 30\ngpus = [{ count = 1 }, { count = 2 }]\n\
        [[jobs.workloads]]\nname = \"mine\"\nbatch = 32\n";
    let file = folder.path().join("site.toml");
    fs::write(&file, text).unwrap();
    let value = json(&["compare", "--scenario", file.to_str().unwrap(), "--json"]);
    for result in value["results"].as_array().unwrap() {
        assert_eq!(result["finished"], 30);
    }
}

#[test]
fn a_calendar_of_budgets_is_kept_at_every_instant() {
    let value = json(&[
        "compare",
        "--scenario",
        "demo",
        "--policies",
        "fifo,edf,tiresias,edf+sleep=10min",
        "--json",
    ]);
    for result in value["results"].as_array().unwrap() {
        assert_eq!(result["committed_exceeded_s"], 0.0, "{result}");
    }
    // A budget from the command line replaces the calendar.
    let value =
        json(&["compare", "--scenario", "demo", "--budget", "9 kW", "--policies", "edf", "--json"]);
    assert!(value["results"][0]["peak_power_w"].as_f64().unwrap() <= 9000.0);
}

#[test]
fn the_small_commands() {
    assert!(stdout(&["policies"]).contains("tiresias"));
    assert_eq!(json(&["policies", "--json"])["policies"].as_array().unwrap().len(), 8);
    assert!(stdout(&["config", "list"]).contains("capped-60"));
    assert!(stdout(&["config", "check", "demo"]).contains("good"));
    let shown = stdout(&["config", "show", "demo"]);
    assert!(shown.contains("budget_lead = \"5 min\""), "{shown}");
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout(&["completions", shell]).contains("wattline"));
    }
    assert!(stdout(&["man"]).contains(".TH wattline"));
    let folder = tempfile::tempdir().unwrap();
    stdout(&["man", "--out", folder.path().to_str().unwrap()]);
    assert!(folder.path().join("wattline-compare.1").exists());
    let bench =
        json(&["bench", "sim", "--scenario", "demo", "--policies", "fifo", "--scaling", "--json"]);
    assert_eq!(bench["schema"], "wattline.bench.sim/1");
    assert_eq!(bench["runs"].as_array().unwrap().len(), 4);
}

/// What `config show` prints is a scenario again, and the same one.
#[test]
fn a_shown_scenario_can_be_read_again() {
    let folder = tempfile::tempdir().unwrap();
    for name in
        ["demo", "capped-60", "bursts", "night-price", "learning", "powerflow-128", "ones-64"]
    {
        let file = folder.path().join(format!("{name}.toml"));
        fs::write(&file, stdout(&["config", "show", name])).unwrap();
        let run = |scenario: &str| {
            let args = ["compare", "--scenario", scenario, "--policies", "edf", "--json"];
            without_timing(json(&args)).to_string()
        };
        assert_eq!(run(name), run(file.to_str().unwrap()));
    }
}

/// A reader that goes away is no error.
#[test]
fn nobody_reads() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_wattline"))
        .args(["simulate", "--scenario", "demo", "--all", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
    assert_eq!(output.status.code(), Some(0));
}

/// Names from a trace reach the terminal without their control characters.
#[test]
fn names_are_made_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.csv");
    let text = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n\
                \x1b[31m<script>alert(1)</script>,0,1,bert,500,8,1,60\n";
    fs::write(&file, text).unwrap();
    let out = folder.path().join("out");
    let output = wattline(&[
        "simulate",
        "--trace",
        file.to_str().unwrap(),
        "--format",
        "elasticflow",
        "--gpus",
        "8",
        "--out",
        out.to_str().unwrap(),
    ]);
    assert!(output.status.success());
    assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b));
    let report = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(!report.contains("<script>alert") && !report.contains('\x1b'));
}

/// Our own H200 readings are part of the repository.
#[test]
fn predictions_from_measurements() {
    let file = "data/measurements/h200.csv";
    let args = ["predict", "evaluate", "--measurements", file, "--fit-points", "3", "--json"];
    let value = json(&args);
    assert_eq!(value["schema"], "wattline.predict/1");
    let groups = value["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 9);
    for field in ["fit", "held_out", "time_mape", "power_mape", "energy_mape", "coverage_90"] {
        assert!(groups[0][field].is_number(), "{field}");
        assert!(field == "fit" || value["overall"][field].is_number(), "overall {field}");
    }
    let left_out = &value["overall"]["leave_one_workload_out"];
    assert_eq!(left_out["workloads"], 9);
    assert_eq!(value["intervals_set_on_this_file"], true);
    for quantity in ["time", "power", "energy"] {
        for intervals in
            [&groups[0]["intervals"], &value["overall"]["intervals"], &left_out["intervals"]]
        {
            let found = &intervals[quantity];
            assert!(found["coverage"].as_f64().unwrap() <= 1.0, "{quantity}: {found}");
            let (width, oracle) = (&found["width"], &found["oracle_width"]);
            let ratio = width.as_f64().unwrap() / oracle.as_f64().unwrap();
            assert!((found["width_by_oracle"].as_f64().unwrap() - ratio).abs() < 1e-12, "{found}");
        }
    }
    assert_eq!(stdout(&args), stdout(&args), "nothing here is random");
    let text = stdout(&args[..6]);
    assert!(text.contains("median") && text.contains("others known"), "{text}");
    assert!(text.contains("were set on these files: h200, "), "{text}");

    let show = ["predict", "show", "resnet50-imagenet", "--measurements", file];
    assert!(stdout(&show).contains("most frugal"));
    let value = json(&[&show[..], &["--json"]].concat());
    let all = value["configurations"].as_array().unwrap();
    assert_eq!(all.len(), 8);
    let fastest = value["fastest"]["samples_per_s"].as_f64().unwrap();
    for c in all {
        let (low, mean, high) =
            (&c["samples_per_s_low"], &c["samples_per_s"], &c["samples_per_s_high"]);
        assert!(low.as_f64() <= mean.as_f64() && mean.as_f64() <= high.as_f64(), "{c}");
        assert!(mean.as_f64().unwrap() <= fastest);
    }
    // The readings say 4,900 samples a second at 627 W with a batch of 512.
    assert!((fastest / 4986.0 - 1.0).abs() < 0.05, "{fastest}");
}
