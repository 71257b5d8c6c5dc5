//! A controller that reaches SLURM through slurmrestd alone, on a real one (22.05: v0.0.38): no
//! client command of SLURM is on its path.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "common/lab.rs"]
mod lab;

use lab::{Lab, Spec};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use wattline_controller::slurm::read::{SlurmJob, State};

/// Generous: two cores, and other tests beside.
const LIMIT: Duration = Duration::from_secs(60);

/// The site's file with slurmrestd in it.
fn site(lab: &Lab, partial: bool) -> PathBuf {
    let path = lab.site("12 kW", "control");
    let text = fs::read_to_string(&path).unwrap();
    let folder = lab.folder.display();
    let conf = format!("slurm_conf = \"{folder}/etc/slurm.conf\"\n");
    assert!(text.contains(&conf));
    // Its commands' configuration is not there either, and it is unknown soon.
    let text = text.replace(&conf, "reader = \"rest\"\ncommand_limit = \"2 s\"\n");
    let rest = format!(
        "[slurm.rest]\nurl = \"unix:{folder}/run/rest/socket\"\ntoken_file = \"{folder}/run/token\"\n\
         partial = {partial}\n"
    );
    fs::write(&path, text + &rest).unwrap();
    path
}

/// A command of Wattline, without SLURM's.
fn wattline(lab: &Lab, site: &Path, args: &[&str]) -> Output {
    let (command, rest) = args.split_first().unwrap();
    Command::new(env!("CARGO_BIN_EXE_wattline"))
        .arg(command)
        .arg("--site")
        .arg(site)
        .arg("--journal")
        .arg(&lab.journal)
        .args(rest)
        .env("PATH", lab.path("no-commands"))
        .output()
        .unwrap()
}

/// What `serve` says when it does not begin.
fn refused(lab: &Lab, site: &Path) -> String {
    let socket = lab.path("refused-socket");
    let output = wattline(lab, site, &["serve", "--socket", &socket]);
    assert!(!output.status.success(), "it began");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn job(lab: &Lab, number: u32) -> SlurmJob {
    let jobs = lab.queue().unwrap();
    jobs.into_iter().find(|job| job.key.id == number).unwrap()
}

fn is(lab: &Lab, number: u32, state: &State) -> bool {
    let jobs = lab.queue().unwrap_or_default();
    jobs.iter().any(|job| job.key.id == number && job.state == *state)
}

/// What is wrong, as the controller says.
fn troubles(lab: &Lab) -> String {
    lab.status().map(|status| status["troubles"].to_string()).unwrap_or_default()
}

/// A job with a time limit: one that may run for a day can as well wait.
fn sleeps(seconds: u32) -> String {
    let minutes = seconds / 60 + 1;
    format!("#!/bin/bash\n#SBATCH -o /dev/null -t {minutes}\nsleep {seconds}\n")
}

#[test]
fn a_site_without_slurms_commands_is_observed_and_controlled() {
    let settings = [("REST", "1"), ("EXTRA_CONF", "Licenses=matlab:1")];
    let Some(mut lab) = Lab::up("rest", &settings) else { return };
    let (token, path) = (fs::read_to_string(lab.path("run/token")).unwrap(), lab.path("run/token"));
    // What slurmrestd 22.05 cannot do is told before anything is done.
    let whole = site(&lab, false);
    let said = refused(&lab, &whole);
    assert!(said.contains("v0.0.38 cannot requeue jobs") && said.contains("partial"), "{said}");
    let site = site(&lab, true);
    // A token of another key.
    let mut parts: Vec<&str> = token.trim().split('.').collect();
    parts[2] = "AAAA";
    fs::write(&path, parts.join(".")).unwrap();
    let said = refused(&lab, &site);
    assert!(said.contains("refuses the token in"), "{said}");
    fs::write(&path, &token).unwrap();

    lab.env = vec![("PATH".to_owned(), lab.path("no-commands"))];
    lab.control(&site);
    lab.until("the controller", LIMIT, || lab.ask(&["queue"]).is_some());
    // Jobs come by sbatch and are held; each is placed, let go, and ends.
    let plain: Vec<u32> = (0..4)
        .map(|n| lab.submit_with(&format!("plain{n}"), &sleeps(2), &["--gres=gpu:2"]))
        .collect();
    let array = lab.submit_with("array", &sleeps(1), &["--gres=gpu:1", "--array=0-2"]);
    let (workload, range) = ("wa", "1-4");
    let wide = Spec { workload, work: 300, gpus: 1, range, deadline: 20, weight: 500, after: 0.0 };
    let wide = lab.submit("wide", &lab.train(&wide));
    let mut widest = 0;
    lab.until("all jobs' ends", LIMIT, || {
        let jobs = lab.queue().unwrap_or_default();
        let gpus = |job: &SlurmJob| job.gpus_held.unwrap_or(0);
        let of_wide = jobs.iter().filter(|job| job.key.id == wide);
        widest = of_wide.map(gpus).fold(widest, u32::max);
        let ours = |job: &&SlurmJob| {
            plain.contains(&job.key.id) || job.array_job_id == Some(array) || job.key.id == wide
        };
        let ended = jobs.iter().filter(ours).filter(|job| job.state == State::Completed);
        ended.count() == plain.len() + 3 + 1
    });
    println!("a job of one GPU with a deadline ran on {widest}");
    assert!(widest > 1, "its shape was not changed");
    for number in &plain {
        let job = job(&lab, *number);
        assert!(job.required_nodes.len() == 1 && job.key.restarts == 0, "{job:?}");
    }

    // What SLURM will not start is held over slurmrestd too, and its owner reads why.
    let holder = ["-p", "open", "-L", "matlab:1", "--gres=gpu:1"];
    let holder = lab.submit_with("holder", &sleeps(600), &holder);
    lab.until("the licence to be taken", LIMIT, || is(&lab, holder, &State::Running));
    let options = ["-L", "matlab:1", "--gres=gpu:1"];
    let refused_job = lab.submit_with("refused", &sleeps(1), &options);
    lab.until("its owner to be told", LIMIT, || {
        let job = job(&lab, refused_job);
        job.held && job.comment.is_some_and(|comment| comment.contains("Licenses"))
    });
    assert_eq!(job(&lab, refused_job).state_reason, "JobHeldAdmin");

    // slurmrestd goes: the cluster is unknown, not empty. What runs goes on, what comes waits.
    let runs = lab.submit_with("runs", &sleeps(600), &["--gres=gpu:2"]);
    lab.until("a job to run", LIMIT, || {
        is(&lab, runs, &State::Running) && state(&lab, "runs") == "running"
    });
    let rest = lab.path("bin/rest");
    lab.ran(&rest, &["stop"]);
    lab.until("the cluster to be unknown", LIMIT, || {
        let said = troubles(&lab);
        said.contains("slurmrestd at unix:") && said.contains("the cluster is unknown")
    });
    let late = lab.submit_with("late", &sleeps(1), &["--gres=gpu:1"]);
    assert_eq!((state(&lab, "runs"), is(&lab, runs, &State::Running)), ("running".into(), true));
    assert!(job(&lab, late).held, "nobody lets it go");
    // It is back, with a token that slurmctld refuses, and then with a good one.
    fs::write(&path, parts.join(".")).unwrap();
    lab.ran(&rest, &["start"]);
    lab.until("the token to be blamed", LIMIT, || troubles(&lab).contains("refuses the token in"));
    assert!(is(&lab, late, &State::Pending) && is(&lab, runs, &State::Running));
    fs::write(&path, &token).unwrap();
    lab.until("the job that came meanwhile", LIMIT, || is(&lab, late, &State::Completed));
    assert_eq!(troubles(&lab), "[]");
    let doctor = wattline(&lab, &site, &["doctor", "--json"]);
    let doctor: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let checks = doctor["checks"].as_array().unwrap();
    let check = |what: &str| checks.iter().find(|check| check["what"] == what).unwrap();
    for (what, verdict) in [
        ("slurmrestd", "ok"),
        ("clock", "ok"),
        ("slurmrestd's token", "ok"),
        ("SLURM's JSON", "ok"),
        ("the site's file and SLURM", "ok"),
        ("orders over slurmrestd", "warn"),
    ] {
        assert_eq!(check(what)["verdict"], verdict, "{doctor}");
    }

    // Going back: what was held over slurmrestd is found by its begin, and let go.
    lab.kill_controller();
    lab.ran("scancel", &[&holder.to_string()]);
    let waits = lab.submit_with("waits", &sleeps(1), &["--gres=gpu:1"]);
    assert!(job(&lab, refused_job).held && job(&lab, waits).held);
    let given_back = wattline(&lab, &site, &["release", "--all", "--json"]);
    let said = String::from_utf8_lossy(&given_back.stdout).into_owned();
    assert!(given_back.status.success(), "{said}{}", String::from_utf8_lossy(&given_back.stderr));
    lab.until("what was given back", LIMIT, || {
        is(&lab, refused_job, &State::Completed) && is(&lab, waits, &State::Completed)
    });
    assert_eq!(job(&lab, runs).key.restarts, 0);
    assert!(is(&lab, runs, &State::Running), "{said}");
}

/// What the controller says about a job, by name.
fn state(lab: &Lab, name: &str) -> String {
    let queue = lab.ask(&["queue"]).unwrap_or_default();
    let jobs = queue["jobs"].as_array().cloned().unwrap_or_default();
    let found = jobs.iter().find(|job| job["name"] == name);
    found.and_then(|job| job["state"].as_str()).unwrap_or_default().to_owned()
}
