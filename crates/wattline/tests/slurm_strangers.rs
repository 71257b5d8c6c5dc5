//! Jobs that are not ours: those that run when control begins, and those of other partitions on the
//! same nodes. Nothing is ever done to them.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "common/lab.rs"]
mod lab;

use lab::{Lab, Spec};
use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};
use wattline_controller::slurm::read::{SlurmJob, State};

/// How long the stream of other people's jobs goes on; `WATTLINE_LONG=600` makes it ten minutes.
const STREAM: Duration = Duration::from_secs(50);
/// What runs when control begins runs for this much longer than the stream. On a slow machine the
/// rest of the test takes up to half of it.
const LONGER: u64 = 600;

fn plain(lab: &Lab, name: &str, seconds: u32, options: &[&str]) -> u32 {
    let folder = lab.folder.display();
    let script =
        format!("#!/bin/bash\n#SBATCH --output={folder}/jobs/%j.out\nsleep {seconds}\necho done\n");
    lab.submit_with(name, &script, options)
}

/// Adds the numbers of jobs that have ended well, which SLURM forgets some minutes later. None may end
/// otherwise.
fn see_ends(lab: &Lab, ended: &mut BTreeSet<u32>) {
    for job in lab.queue().unwrap_or_default() {
        if job.state == State::Completed {
            ended.insert(job.key.id);
        }
        let fine = !job.state.is_over() || matches!(job.state, State::Completed | State::Cancelled);
        assert!(fine, "{job:?}\n{}", lab.log());
    }
}

fn shown(lab: &Lab, number: u32) -> SlurmJob {
    let jobs = lab.queue().unwrap();
    jobs.into_iter().find(|job| job.key.id == number).unwrap_or_else(|| panic!("no job {number}"))
}

/// What slurmctld was told about a job by anybody but its user.
fn touched(lab: &Lab, number: u32) -> Vec<String> {
    let log = fs::read_to_string(lab.folder.join("log/slurmctld.log")).unwrap();
    let job = format!("JobId={number}");
    let about = |line: &&str| {
        let named = line.split([' ', '(', ',']).any(|word| word == job);
        let told = ["_update_job", "_rpc_kill", "equeu", "hold", "suspend", "release"];
        named && told.iter().any(|word| line.contains(word))
    };
    log.lines().filter(about).map(str::to_owned).collect()
}

#[test]
fn who_runs_when_control_begins_runs_on_and_other_partitions_are_left_alone() {
    let Some(mut lab) = Lab::up("strangers", &[]) else { return };
    // No controller: the gate lets everybody pass.
    let beat = lab.folder.join("run/heartbeat");
    fs::remove_file(&beat).unwrap();
    let seconds = std::env::var("WATTLINE_LONG").ok().and_then(|text| text.parse().ok());
    let stream = seconds.map_or(STREAM, Duration::from_secs);
    let lasts = (stream.as_secs() + LONGER) as u32;
    // 10 of 16 GPUs, in 10 jobs of the partition that will be controlled, and 10 without GPUs.
    let mut running: Vec<u32> =
        (0..10).map(|n| plain(&lab, &format!("gpu{n}"), lasts, &["--gres=gpu:1"])).collect();
    running.extend((0..10).map(|n| plain(&lab, &format!("cpu{n}"), lasts, &[])));
    let all_run = |lab: &Lab, jobs: &[u32]| {
        let queue = lab.queue().unwrap_or_default();
        jobs.iter().all(|number| {
            queue.iter().any(|job| job.key.id == *number && job.state == State::Running)
        })
    };
    lab.until("twenty jobs to run", Duration::from_secs(60), || all_run(&lab, &running));

    // Control begins with a new journal, under a budget that they exceed, with more work waiting.
    let site = lab.site("4.5 kW", "control");
    lab.control(&site);
    lab.until("the controller", Duration::from_secs(30), || lab.ask(&["queue"]).is_some());
    let spec = |n: u32| Spec {
        workload: "wa",
        work: 200,
        gpus: 1,
        range: "1-2",
        deadline: 30,
        weight: 100 + n,
        after: 0.0,
    };
    let ours: Vec<u32> =
        (0..3).map(|n| lab.submit(&format!("ours{n}"), &lab.train(&spec(n)))).collect();
    std::thread::sleep(Duration::from_secs(8));
    // And again after the journal was lost under load.
    lab.kill_controller();
    for name in ["journal", "journal-wal", "journal-shm", "journal.state", "journal.lock"] {
        let _ = fs::remove_file(lab.folder.join(name));
    }
    let _ = fs::remove_file(lab.folder.join("journal.audit"));
    lab.control(&site);
    lab.until("the controller", Duration::from_secs(30), || lab.ask(&["queue"]).is_some());
    std::thread::sleep(Duration::from_secs(8));
    assert!(all_run(&lab, &running), "{}", lab.log());
    for number in &running {
        assert_eq!(touched(&lab, *number), Vec::<String>::new(), "job {number}\n{}", lab.log());
        assert_eq!(shown(&lab, *number).key.restarts, 0);
    }
    let known = lab.ask(&["queue"]).unwrap()["jobs"].as_array().unwrap().len();
    assert!(known >= 10, "those that hold GPUs are known: {known}");
    println!("20 running jobs: 2 begins of control, 0 restarts, 0 orders about them");

    // Somebody else's stream on the same nodes, while the budget goes down and up and nodes sleep.
    lab.run(
        "scancel",
        &running[..6]
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
    );
    let (began, mut theirs, mut mine, mut n) = (Instant::now(), Vec::new(), ours, 0_u32);
    let mut ended = BTreeSet::new();
    // In ten minutes no more of ours come than the budget carries.
    let every = if stream > STREAM { 12 } else { 3 };
    while began.elapsed() < stream {
        let gpus = format!("--gres=gpu:{}", 1 + n % 2);
        let length = 3 + n % 9;
        theirs.push(plain(&lab, &format!("theirs{n}"), length, &["-p", "open", &gpus]));
        if n.is_multiple_of(every) {
            mine.push(lab.submit(&format!("mine{n}"), &lab.train(&spec(n))));
        }
        let budget = ["4.5 kW", "2.5 kW", "6 kW", "3 kW"][(n / 5) as usize % 4];
        if n.is_multiple_of(5) {
            let set = lab.ask(&["budget", "set", budget]);
            assert!(set.is_some(), "{}", lab.log());
        }
        // One is requeued by its own user: it is still nobody's business.
        if n == 4 {
            lab.as_user("alice", "scontrol", &["requeue", &theirs[2].to_string()]);
        }
        n += 1;
        see_ends(&lab, &mut ended);
        std::thread::sleep(Duration::from_millis(1500));
    }
    lab.ask(&["budget", "set", "6 kW"]).unwrap();
    lab.until("their jobs' end", Duration::from_secs(300), || {
        see_ends(&lab, &mut ended);
        theirs.iter().chain(&mine).all(|number| ended.contains(number))
    });
    for number in theirs.iter().chain(&running[6..]) {
        let mut told = touched(&lab, *number);
        if *number == theirs[2] {
            // Its user did that.
            told.retain(|line| !line.contains("equeu"));
        }
        assert_eq!(told, Vec::<String>::new(), "job {number}\n{}", lab.log());
    }
    assert!(all_run(&lab, &running[6..]), "{}", lab.log());
    assert!(lab.is_controlled(), "{}", lab.log());
    println!(
        "{} jobs of another partition: 0 orders about them; {} of ours ended",
        theirs.len(),
        mine.len()
    );
}
