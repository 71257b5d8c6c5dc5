//! A real SLURM that is only watched: what Wattline would do, and what it would have saved; then it
//! takes over.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "common/lab.rs"]
mod lab;

use lab::{BASE, BUSY, IDLE, Lab, NODES, Spec};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use wattline_controller::slurm::read::State;

fn wattline(lab: &Lab, site: &Path, args: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wattline"));
    let run = command.args(args).arg("--site").arg(site).output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{args:?}: {said}\n{}", lab.log());
    serde_json::from_slice(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

/// What is told while somebody listens.
fn listen(lab: &Lab) -> UnixStream {
    use std::io::Write;
    let mut stream = UnixStream::connect(lab.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    stream
}

fn heard(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut part) {
        bytes.extend(&part[..count]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn watched_then_advised_then_controlled() {
    let Some(mut lab) = Lab::up("advise", &[]) else { return };
    let site = lab.site("6 kW", "advise");
    // Nobody holds jobs where nobody decides.
    fs::remove_file(lab.folder.join("run/heartbeat")).unwrap();
    lab.control(&site);
    lab.until("the controller", Duration::from_secs(20), || lab.ask(&["nodes"]).is_some());
    let mut stream = listen(&lab);
    let began = Instant::now();
    let spec = |n: u32| Spec {
        workload: ["wa", "wb"][(n % 2) as usize],
        work: 60 + 10 * n,
        gpus: 1 + n % 2,
        range: "1-4",
        deadline: 10,
        weight: 20,
        after: 0.0,
    };
    let trained: Vec<u32> =
        (0..6).map(|n| lab.submit(&format!("job{n}"), &lab.train(&spec(n)))).collect();
    // Two that say nothing at all.
    let silent = |n: u32| {
        let script = "#!/bin/bash\n#SBATCH --gres=gpu:2 --time=10 --output=/dev/null\nsleep 6\n";
        lab.submit(&format!("silent{n}"), script)
    };
    let numbers: Vec<u32> = trained.into_iter().chain((0..2).map(silent)).collect();
    lab.until("jobs to run", Duration::from_secs(20), || {
        let queue = lab.ask(&["queue"]).unwrap();
        queue["jobs"].as_array().unwrap().iter().any(|job| job["state"] == "running")
    });
    // What it would do now, and the queue says whose doing the forecast is.
    let advice = lab.ask(&["advise", "--now"]).unwrap();
    let now = &advice["now"];
    assert_eq!((&now["decides"], &now["policy"]), (&false.into(), &"wattline".into()), "{now}");
    assert!(now["text"].as_str().unwrap().starts_with("wattline would"), "{now}");
    assert!(now["outlook"].as_str().unwrap().contains("as if wattline decided"), "{now}");
    lab.until("a forecast that says what it is", Duration::from_secs(10), || {
        let queue = lab.ask(&["queue"]).unwrap();
        queue["outlook"]["text"].as_str().is_some_and(|text| text.starts_with("as if wattline"))
    });
    let done = || {
        let jobs = lab.queue().unwrap();
        let over = |job: &wattline_controller::slurm::read::SlurmJob| job.state == State::Completed;
        numbers.iter().all(|n| jobs.iter().any(|job| job.key.id == *n && over(job)))
    };
    lab.until("the jobs", Duration::from_secs(60), done);
    lab.until("the controller to see it", Duration::from_secs(10), || {
        lab.ask(&["queue"]).unwrap()["jobs"].as_array().unwrap().is_empty()
    });
    let span = began.elapsed().as_secs_f64();
    let told = heard(&mut stream);
    assert!(told.contains("event: advice"), "{told}");
    drop(stream);

    // The controller still runs, and writes.
    let journal = lab.path("journal");
    let replayed =
        wattline(&lab, &site, &["replay", &journal, "--policy", "fifo,wattline", "--json"]);
    let realised = &replayed["realised"];
    println!("{}\n{}", replayed["saved"], replayed["instance"]["notes"]);
    assert_eq!((&realised["jobs"], &realised["finished"]), (&8.into(), &8.into()), "{realised}");
    // Between all idle and all busy, for as long as it took.
    let hours = (number(&realised["until_s"]) - number(&realised["from_s"])) / 3600.0;
    let node = |gpu: f64| (BASE + 4.0 * gpu) * f64::from(NODES) / 1e3;
    let kwh = number(&realised["energy_kwh"]);
    assert!(hours * 3600.0 <= span + 5.0, "{hours} h of {span} s");
    assert!(node(IDLE) * hours < kwh && kwh < node(BUSY) * hours, "{kwh} kWh in {hours} h");
    // The lab's own meter has seen the same.
    let (from, until) = (number(&realised["from_s"]), number(&realised["until_s"]));
    let samples = lab.samples();
    let within = samples.windows(2).filter(|pair| (from..until).contains(&pair[0].0));
    let joules: f64 = within.map(|pair| pair[0].1 * (pair[1].0 - pair[0].0)).sum();
    let off = (joules / 3.6e6 / kwh - 1.0).abs();
    println!(
        "{kwh:.4} kWh realised, {:.4} kWh on the meter: {:.1} % off",
        joules / 3.6e6,
        off * 1e2
    );
    assert!(off < 0.1, "{kwh} kWh, {} on the meter", joules / 3.6e6);
    assert!(replayed["recorded_as"].as_str().unwrap().contains("only watched"));
    for (result, saved) in
        replayed["results"].as_array().unwrap().iter().zip(replayed["saved"].as_array().unwrap())
    {
        assert_eq!(result["finished"], 8, "{result}");
        let eur = number(&realised["total_cost"]) - number(&result["total_cost"]);
        assert!((number(&saved["eur"]) - eur).abs() < 1e-9, "{saved}");
    }

    // All of it in one command.
    let socket = lab.socket().display().to_string();
    let advised = wattline(
        &lab,
        &site,
        &["advise", "--journal", &journal, "--socket", &socket, "--since", "1 d", "--json"],
    );
    assert_eq!(advised["past"]["saved"][0]["policy"], "wattline", "{advised}");
    assert_eq!(advised["now"]["schema"], "wattline.advice/1");

    // Then it takes over, with the same journal.
    lab.kill_controller();
    let site = lab.site("6 kW", "control");
    lab.beat();
    lab.control_by(&site, "edf");
    lab.until("the controller", Duration::from_secs(20), || lab.ask(&["nodes"]).is_some());
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(1));
    let more: Vec<u32> =
        (0..4).map(|n| lab.submit(&format!("more{n}"), &lab.train(&spec(n)))).collect();
    lab.until("the jobs under control", Duration::from_secs(40), || {
        let jobs = lab.queue().unwrap();
        let over = |job: &wattline_controller::slurm::read::SlurmJob| job.state == State::Completed;
        more.iter().all(|n| jobs.iter().any(|job| job.key.id == *n && over(job)))
    });
    lab.until("the controller to see it", Duration::from_secs(10), || {
        lab.ask(&["queue"]).unwrap()["jobs"].as_array().unwrap().is_empty()
    });
    assert!(lab.log().contains("from now on edf decides"), "{}", lab.log());
    let queue = lab.ask(&["queue", "--all"]).unwrap();
    assert_eq!(queue["jobs"].as_array().unwrap().len(), 12, "{queue}");
    // Of what it decided itself it says how well it would have been foreseen.
    let since = format!("{:.0} s", began.elapsed().as_secs_f64().floor() - 1.0);
    let replayed = wattline(&lab, &site, &["replay", &journal, "--since", &since, "--json"]);
    println!("{}\n{}", replayed["realised"], replayed["check"]);
    assert_eq!(replayed["realised"]["jobs"], 4, "{replayed}");
    assert_eq!(replayed["check"]["policy"], "edf", "{replayed}");
    assert!(number(&replayed["check"]["deviation"]) < 0.6, "{replayed}");
}
