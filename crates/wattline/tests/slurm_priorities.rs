//! SLURM's own priorities, numbers and preemption, and what is found again by marks, on a real SLURM
//! with accounting.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "common/lab.rs"]
mod lab;

use lab::Lab;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use wattline_controller::slurm::read::{SlurmJob, State};

const LONG: Duration = Duration::from_secs(60);

/// QOS and shares, and preemption by QOS.
const CONF: &str = "AccountingStorageEnforce=associations,qos
PriorityType=priority/multifactor
PriorityWeightFairshare=1000
PriorityWeightQOS=1000
PreemptType=preempt/qos";

fn job(lab: &Lab, number: u32) -> Option<SlurmJob> {
    lab.queue()?.into_iter().find(|job| job.key.id == number)
}

fn runs(lab: &Lab, number: u32) -> bool {
    job(lab, number).is_some_and(|job| job.state == State::Running)
}

/// A job of alice's that saves when it is asked to.
fn submit(lab: &Lab, name: &str, options: &[&str]) -> u32 {
    let script = "#!/bin/bash\n#SBATCH -o /dev/null\n#WATTLINE weight=1e9 deadline=now \
                  checkpoint=usr1 save=1s load=1s\n\
                  trap 'kill $!; exit 86' USR1\nsleep 600 & wait\n";
    lab.submit_with(name, script, options)
}

/// What a command of Wattline's prints, and whether it worked.
fn wattline(lab: &Lab, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wattline"))
        .args(args)
        .arg("--socket")
        .arg(lab.socket())
        .output()
        .unwrap()
}

fn row(lab: &Lab, number: &str) -> Option<Value> {
    let queue = lab.ask(&["queue", "--all"])?;
    let jobs = queue["jobs"].as_array()?;
    jobs.iter().find(|job| job["number"] == number).cloned()
}

fn release(site: &Path, journal: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wattline"))
        .args(["release", "--all", "--site"])
        .arg(site)
        .args(["--journal", journal])
        .output()
        .unwrap()
}

#[test]
fn qos_and_limits_become_weights_numbers_are_slurms_and_nothing_stays_held() {
    let Some(mut lab) = Lab::up("priorities", &[("DB", "1"), ("EXTRA_CONF", CONF)]) else { return };
    for line in [
        "-i add account research",
        "-i add user alice,bob account=research",
        "-i add qos high",
        "-i modify qos high set priority=1000 preempt=normal",
        "-i modify user alice,bob set qos=normal,high",
    ] {
        lab.ran("sacctmgr", &line.split(' ').collect::<Vec<_>>());
    }
    let site = lab.site("12 kW", "control");
    let limits = "[slurm.priority]\nevery = \"5 s\"\nfairshare = false\n\
                  [[slurm.limits]]\naccount = \"research\"\nmax_weight = \"2 EUR/h\"\n";
    fs::OpenOptions::new().append(true).open(&site).unwrap().write_all(limits.as_bytes()).unwrap();
    lab.control(&site);
    lab.until("the controller", LONG, || lab.ask(&["queue"]).is_some());

    // Numbers: an array's tasks are called as SLURM calls them, in all that is printed and taken.
    let array = submit(&lab, "tasks", &["--array=0-1", "--gres=gpu:1"]);
    let (first, second) = (format!("{array}_0"), format!("{array}_1"));
    lab.until("both tasks", LONG, || {
        [&first, &second]
            .iter()
            .all(|number| row(&lab, number).is_some_and(|row| row["state"] == "running"))
    });
    let shown = lab.ask(&["job", "show", &second]).unwrap();
    assert_eq!(shown["number"], second.as_str(), "{shown}");
    let whole = wattline(&lab, &["job", "cancel", &array.to_string()]);
    let said = String::from_utf8_lossy(&whole.stderr).into_owned();
    assert!(!whole.status.success() && said.contains("is an array"), "{said}");
    let cancelled = wattline(&lab, &["job", "cancel", &second]);
    let said = String::from_utf8_lossy(&cancelled.stdout).into_owned();
    assert!(cancelled.status.success() && said.contains(&second), "{cancelled:?}");
    lab.until("the end of one task", LONG, || {
        row(&lab, &second).is_some_and(|row| row["state"] == "cancelled")
    });
    assert_eq!(row(&lab, &first).unwrap()["state"], "running");
    let nodes = lab.ask(&["nodes"]).unwrap().to_string();
    assert!(nodes.contains(&first), "{nodes}");
    lab.ran("scancel", &[&array.to_string()]);

    // A weight is cut at what the account may say, and nothing is at risk whose deadline is over.
    let normal: Vec<u32> = (1..=lab::NODES)
        .map(|at| submit(&lab, &format!("normal{at}"), &["--gres=gpu:4"]))
        .collect();
    lab.until("a full cluster", LONG, || normal.iter().all(|number| runs(&lab, *number)));
    let explained = lab.ask(&["explain", &normal[0].to_string()]).unwrap();
    assert_eq!(explained["job"]["weight_eur_per_h"].as_f64().unwrap().round(), 2.0, "{explained}");
    assert!(explained["job"]["risk"].is_null(), "{explained}");

    // A job of a QOS that may preempt outweighs them, and gets the GPUs of one that can go on later.
    let high = submit(&lab, "high", &["--gres=gpu:4", "--qos=high"]);
    lab.until("the job of the higher QOS", LONG, || runs(&lab, high));
    let explained = lab.ask(&["explain", &high.to_string()]).unwrap();
    let parts = &explained["weight"];
    assert_eq!(parts["said_eur_per_h"].as_f64().unwrap().round(), 2.0, "{explained}");
    assert_eq!((parts["qos"].as_str(), parts["qos_factor"].as_f64()), (Some("high"), Some(4.0)));
    let gave_way = normal.iter().filter(|number| !runs(&lab, **number)).count();
    assert_eq!(gave_way, 1, "one job gave way");
    lab.until("no trouble", LONG, || {
        lab.status().is_some_and(|status| status["troubles"].as_array().is_none_or(Vec::is_empty))
    });

    // SLURM preempts one of ours itself: a fact, after which it waits and goes on.
    let before: Vec<u32> = normal.iter().copied().filter(|number| runs(&lab, *number)).collect();
    let theirs = ["-p", "open", "--qos=high", "--gres=gpu:4"];
    let theirs = lab.submit_with("theirs", "#!/bin/bash\nsleep 600\n", &theirs);
    lab.until("a job of another partition that preempts", LONG, || runs(&lab, theirs));
    let preempted = |number: &&u32| {
        job(&lab, **number).is_some_and(|job| job.key.restarts == 1 && job.state.waits())
    };
    lab.until("the job that SLURM preempted to wait", LONG, || {
        before.iter().filter(preempted).count() == 1
    });
    let preempted = *before.iter().find(preempted).unwrap();
    lab.until("it to wait here", LONG, || {
        row(&lab, &preempted.to_string()).is_some_and(|row| row["state"] == "waiting")
    });
    lab.ran("scancel", &[&theirs.to_string()]);
    lab.until("it to go on", LONG, || {
        normal.iter().filter(|number| runs(&lab, **number)).count() == 3
    });

    // One that exits with 86 by itself has ended.
    for number in normal.iter().chain([&high]) {
        lab.ran("scancel", &[&number.to_string()]);
    }
    let quits = "#!/bin/bash\n#SBATCH -o /dev/null\n#WATTLINE checkpoint=usr1\nsleep 2; exit 86\n";
    let quits = lab.submit_with("quits", quits, &["--gres=gpu:1"]);
    lab.until("the end of one that exits with 86", LONG, || {
        job(&lab, quits).is_some_and(|job| job.state == State::Cancelled)
    });
    let ended = row(&lab, &quits.to_string()).unwrap();
    assert!(ended["why"].as_str().unwrap().contains("exited with 86"), "{ended}");
    assert_eq!(job(&lab, quits).unwrap().key.restarts, 1, "it was not started again");
    let report = lab.ask(&["report"]).unwrap();
    assert!(report["by_account"]["rows"].to_string().contains("research"), "{report}");

    // The journal is gone and the controller dead: marks in SLURM say what is held, also of a job
    // that the gate has never seen, and whose partition is no longer controlled.
    let full: Vec<u32> =
        (1..=lab::NODES).map(|at| submit(&lab, &format!("full{at}"), &["--gres=gpu:4"])).collect();
    lab.until("a full cluster again", LONG, || full.iter().all(|number| runs(&lab, *number)));
    let ungated = ["-p", "open", "--parsable", "--gres=gpu:4", "--wrap", "sleep 600"];
    let ungated = lab.as_user("bob", "sbatch", &ungated);
    let ungated: u32 = String::from_utf8_lossy(&ungated.stdout).trim().parse().unwrap();
    lab.ran("scontrol", &["uhold", &ungated.to_string()]);
    let other = "AdminComment=billing: 7";
    lab.ran("scontrol", &["update", &format!("JobId={ungated}"), other]);
    lab.ran("scontrol", &["update", &format!("JobId={ungated}"), "Partition=gpu"]);
    let marked = |lab: &Lab, number| {
        let text = job(lab, number).and_then(|job| job.admin_comment).unwrap_or_default();
        text.contains("wattline/")
    };
    let gated = submit(&lab, "gated", &["--gres=gpu:4"]);
    lab.until("what is held to be marked", LONG, || marked(&lab, ungated) && marked(&lab, gated));
    lab.kill_controller();
    fs::rename(&lab.journal, lab.folder.join("lost")).unwrap();
    let held = |lab: &Lab| -> Vec<u32> {
        let jobs = lab.queue().unwrap().into_iter().filter(|job| job.held && job.state.waits());
        jobs.map(|job| job.key.id).collect()
    };
    assert!(!held(&lab).is_empty(), "{:?}", lab.queue());
    let text = fs::read_to_string(&site).unwrap();
    fs::write(&site, text.replace("partitions = [\"gpu\"]", "partitions = [\"open\"]")).unwrap();
    let done = release(&site, &lab.path("none"));
    assert!(done.status.success(), "{done:?}");
    assert_eq!(held(&lab), Vec::<u32>::new(), "{done:?}");
    let left = job(&lab, ungated).and_then(|job| job.admin_comment);
    assert!(left.is_none_or(|text| text == "billing: 7"), "another tool's text is as it was");

    // The fallback finds the same.
    lab.ran("scontrol", &["uhold", &gated.to_string()]);
    let hold = |number: u32| lab.run("scontrol", &["uhold", &number.to_string()]);
    let mark = format!("JobId={ungated}");
    if job(&lab, ungated).is_some_and(|job| job.state.waits()) {
        hold(ungated);
        lab.ran("scontrol", &["update", &mark, "AdminComment=billing: 7 wattline/held"]);
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/wattline-gate-fallback");
    let fell_back = lab.run("sh", &[script, &lab.path("run/none"), "1"]);
    assert!(fell_back.status.success(), "{fell_back:?}");
    assert_eq!(held(&lab), Vec::<u32>::new(), "{fell_back:?}");
}

/// The package is removed only when all was given back; until then the fallback keeps running.
#[test]
fn the_package_is_removed_only_when_everything_was_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for dir in ["bin", "run/systemd/system", "run/wattline", "var/lib/wattline"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for file in ["run/wattline/heartbeat", "var/lib/wattline/journal"] {
        fs::write(root.join(file), "1").unwrap();
    }
    let program = |name: &str, does: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = root.join("bin").join(name);
        let log = root.join("log").display().to_string();
        fs::write(&path, format!("#!/bin/sh\necho {name} \"$@\" >>{log}\n{does}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("systemctl", "exit 0");
    program("scontrol", "exit 0");
    let prerm = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prerm");
    let remove = || {
        let _ = fs::remove_file(root.join("log"));
        let path = format!("{}:/usr/bin:/bin", root.join("bin").display());
        let output = Command::new("sh")
            .args([prerm, "remove"])
            .env("DPKG_ROOT", root)
            .env("PATH", path)
            .output()
            .unwrap();
        let log = fs::read_to_string(root.join("log")).unwrap_or_default();
        (output, log.lines().map(str::to_owned).collect::<Vec<String>>())
    };
    let stops_fallback = |line: &String| line.contains("disable") && line.contains("fallback");
    program("wattline", "exit 1");
    let (failed, log) = remove();
    assert!(!failed.status.success());
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(said.contains("fallback.timer keeps running"), "{said}");
    assert!(!log.iter().any(stops_fallback), "{log:?}");
    assert!(!root.join("run/wattline/heartbeat").exists(), "the gate is open");
    program("wattline", "exit 0");
    let (removed, log) = remove();
    assert!(removed.status.success(), "{removed:?}");
    let at = |what: &str| log.iter().position(|line| line.contains(what)).unwrap();
    assert!(at("wattline.service") < at("wattline release --all"), "{log:?}");
    assert!(at("wattline release --all") < log.iter().position(stops_fallback).unwrap(), "{log:?}");
}

/// The fallback left a job held for ever that the controller had moved more than twenty times, however
/// long that took. What it must not do is to start one again each minute that exits with 86 by itself.
#[test]
fn the_fallback_lets_go_what_was_moved_often_and_not_what_ends_again_and_again() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let program = |name: &str, text: String| {
        let path = root.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let mark = "wattline/1 checkpoint=usr1";
    let lines = [
        // Held and asked to stop by the controller, the last one just before that was gone.
        format!("1|0|2026-01-01T00:00:00|40|JobHeldUser|PENDING|2026-01-01T00:00:00|{mark}"),
        format!("2|0|2026-01-01T00:00:00|40|JobHeldUser|SPECIAL_EXIT|2026-01-01T00:00:00|{mark}"),
        format!("3|0|2026-01-01T00:00:00|2|JobHeldUser|SPECIAL_EXIT|2027-01-01T00:00:00|{mark}"),
        // Nobody has asked this one since.
        format!("4|0|2026-01-01T00:00:00|21|JobHeldUser|SPECIAL_EXIT|2027-01-01T00:00:00|{mark}"),
        // An administrator's, and a stranger's.
        format!("5|0|2026-01-01T00:00:00|0|JobHeldAdmin|PENDING|2026-01-01T00:00:00|{mark}"),
        "6|0|2026-01-01T00:00:00|0|JobHeldUser|PENDING|2026-01-01T00:00:00|".to_owned(),
    ];
    program("squeue", format!("cat <<'LINES'\n{}\nLINES\n", lines.join("\n")));
    program("scontrol", format!("echo \"$@\" >>{}\n", root.join("told").display()));
    // 1 July 2026, in UTC.
    fs::write(root.join("heartbeat"), "1782864000\n").unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/wattline-gate-fallback");
    let output = Command::new("sh")
        .args([script, &root.join("heartbeat").display().to_string(), "1"])
        .env("PATH", format!("{}:/usr/bin:/bin", root.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let told = fs::read_to_string(root.join("told")).unwrap();
    let released: Vec<&str> =
        told.lines().filter_map(|line| line.strip_prefix("release ")).collect();
    assert_eq!(released, ["1", "2", "3"], "{told}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("4 stays held"), "{said}");
}
