//! A budget that is cut on a real SLURM: what may be stopped stops in time, what cannot go on later
//! runs on, and where the line cannot be kept that is said.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "common/lab.rs"]
mod lab;

use lab::{Lab, Spec, now};
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use wattline_controller::slurm::read::State;

/// With limits at their lowest and idle nodes asleep, the jobs that cannot be stopped fit below
/// this, and no others do.
const NOT_EVEN_THEY: f64 = 1000.0;
/// A stop takes a save (0.3 s), SLURM's look and its epilog; a node takes 3 s to sleep.
const MOST_TO_SHED: f64 = 30.0;

/// What jobs that must not be stopped do: they wait until this file is there, for five minutes at
/// most, so that a slow machine does not see their end too early.
fn waits(lab: &Lab) -> String {
    let go = lab.folder.join("jobs/go");
    format!("for i in $(seq 600); do [ -e {} ] && break; sleep 0.5; done", go.display())
}

/// A job that saves nothing and runs until it may end.
fn sleeper(lab: &Lab, gpus: u32, says: &str) -> String {
    let folder = lab.folder.display();
    format!(
        "#!/bin/bash\n#SBATCH --gres=gpu:{gpus} --output={folder}/jobs/%j.out --time=10\n\
         #WATTLINE {says}\n{}\necho finished\n",
        waits(lab)
    )
}

/// `srun`, which waits until its command has ended.
fn srun(lab: &Lab) -> Child {
    let mut command = Command::new("runuser");
    command.args(["-u", "alice", "--", "srun", "-J", "by-srun", "--gres=gpu:1", "--time=10"]);
    command.args(["sh", "-c", &waits(lab)]);
    command.env("SLURM_CONF", lab.conf()).current_dir(lab.folder.join("jobs"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    command.spawn().unwrap()
}

/// Seconds from `from` until no sample is above the line any more.
fn time_below(samples: &[(f64, f64)], from: f64, until: f64, line: f64) -> Option<f64> {
    let mut within = samples.iter().filter(|(at, _)| *at >= from && *at <= until);
    let above = within.clone().filter(|(_, watts)| *watts > line).map(|(at, _)| *at);
    let last = above.fold(from, f64::max);
    let (end, _) = within.next_back()?;
    (*end > last + 2.0).then_some(last - from)
}

#[test]
fn a_budget_that_is_halved_stops_what_can_go_on_and_nothing_else() {
    let Some(mut lab) = Lab::up("shed", &[]) else { return };
    let site = lab.site("8 kW", "control");
    lab.control(&site);
    let elastic = Spec {
        workload: "wa",
        work: 1800,
        gpus: 4,
        range: "4-4",
        deadline: 600,
        weight: 20,
        after: 0.0,
    };
    let elastic = [0, 1].map(|n| lab.submit(&format!("elastic{n}"), &lab.train(&elastic)));
    let usr1 = "checkpoint=usr1 save=1s load=1s";
    let fixed = sleeper(&lab, 2, usr1);
    let fixed = lab.submit_with("no-requeue", &fixed, &["--no-requeue"]);
    let without = lab.submit("no-checkpoint", &sleeper(&lab, 2, "checkpoint=none"));
    let mut interactive = srun(&lab);
    let running = |lab: &Lab| {
        let jobs = lab.queue().unwrap_or_default();
        jobs.iter().filter(|job| job.state == State::Running).count()
    };
    lab.until("all run", Duration::from_secs(60), || running(&lab) == 5);
    let by_srun = lab.queue().unwrap().into_iter().find(|job| job.name == "by-srun").unwrap();
    assert!(!by_srun.batch && !by_srun.can_be_requeued());
    let stay = [fixed, without, by_srun.key.id];
    lab.until("full power", Duration::from_secs(30), || {
        lab.samples().last().is_some_and(|(_, watts)| *watts > 4500.0)
    });
    let full = lab.samples().last().unwrap().1;
    let half = (full / 2.0).round();
    let numbers = |list: &serde_json::Value| -> Vec<u64> {
        let jobs = list["jobs"].as_array().unwrap().iter();
        let mut all: Vec<u64> = jobs.map(|job| job["slurm_job"].as_u64().unwrap()).collect();
        all.sort_unstable();
        all
    };

    // What is foreseen is what happens.
    let dry = |watts: f64| {
        lab.ask(&["budget", "set", &format!("{watts} W"), "--dry-run"]).expect("a forecast")
    };
    let forecast = dry(half);
    let stop = numbers(&forecast["stopped"]);
    // Whether one of them is enough depends on which share a node with others.
    assert!(
        !stop.is_empty() && stop.iter().all(|n| elastic.map(u64::from).contains(n)),
        "{forecast}"
    );
    assert_eq!(forecast["kept"], true, "{forecast}");
    let least = forecast["committed_w"].as_f64().unwrap();

    let cut = now();
    assert!(lab.ask(&["budget", "set", &format!("{half} W")]).is_some(), "{}", lab.log());
    lab.until("it is below the line", Duration::from_secs(40), || {
        time_below(&lab.samples(), cut, now(), half).is_some()
    });
    let took = time_below(&lab.samples(), cut, now(), half).unwrap();
    println!("time to shed 50 %: {took:.1} s, from {full:.0} W to below {half:.0} W");
    assert!(took < MOST_TO_SHED, "{took}");
    let stopped = |lab: &Lab| {
        let jobs = lab.queue().unwrap_or_default();
        let waits = jobs.iter().filter(|job| elastic.contains(&job.key.id) && job.state.waits());
        let mut waits: Vec<u64> = waits.map(|job| job.key.id.into()).collect();
        waits.sort_unstable();
        waits
    };
    lab.until("those that were foreseen to be stopped", Duration::from_secs(30), || {
        stopped(&lab) == stop && running(&lab) == 5 - stop.len()
    });
    let drawn = lab.samples().last().unwrap().1;
    assert!(drawn <= half, "{drawn} W are drawn, the line is {half} W");
    println!("then at most: {least:.0} W foreseen, {drawn:.0} W drawn");

    // Not even they fit now.
    let forecast = dry(NOT_EVEN_THEY);
    assert_eq!(forecast["kept"], false, "{forecast}");
    assert_eq!(numbers(&forecast["cannot_be_stopped"]), stay.map(u64::from), "{forecast}");
    let budget = format!("{NOT_EVEN_THEY} W");
    assert!(lab.ask(&["budget", "set", &budget]).is_some(), "{}", lab.log());
    let alerts = |lab: &Lab| {
        let log = lab.log();
        let alert = |line: &&str| line.contains("alert: ") && line.contains("cannot be kept");
        log.lines().filter(alert).count()
    };
    lab.until("the alert", Duration::from_secs(30), || alerts(&lab) > 0);
    std::thread::sleep(Duration::from_secs(5));
    // An alert once, and a trouble that is shown until it is over.
    assert_eq!(alerts(&lab), 1, "{}", lab.log());
    let troubles = lab.status().unwrap()["troubles"].to_string();
    assert!(troubles.contains("3 running jobs may not be stopped"), "{troubles}");
    assert!(lab.log().contains("(no-requeue)") && lab.log().contains("(by-srun)"), "{}", lab.log());
    for number in stay {
        let job = lab.queue().unwrap().into_iter().find(|job| job.key.id == number).unwrap();
        assert!(job.state == State::Running && job.key.restarts == 0, "{job:?}");
    }

    fs::write(lab.folder.join("jobs/go"), "").unwrap();
    assert!(lab.ask(&["budget", "set", "8 kW"]).is_some(), "{}", lab.log());
    lab.until("all end", Duration::from_secs(180), || {
        let jobs = lab.queue().unwrap_or_default();
        let completed = |number: &u32| {
            jobs.iter().any(|job| job.key.id == *number && job.state == State::Completed)
        };
        elastic.iter().chain(&stay).all(completed)
    });
    assert!(interactive.wait().unwrap().success(), "srun was not disturbed");
    for number in [fixed, without] {
        let text = fs::read_to_string(lab.folder.join(format!("jobs/{number}.out"))).unwrap();
        assert_eq!(text.trim(), "finished");
    }
    for number in elastic {
        let starts = lab.runs(number).iter().filter(|(event, ..)| event == "start").count();
        assert_eq!(starts, 2, "stopped once, and went on");
    }
    assert!(lab.log().contains("is kept again"), "{}", lab.log());
    for refusal in ["presently disabled", "Only batch jobs"] {
        assert!(!lab.log().contains(refusal), "{}", lab.log());
    }
}
