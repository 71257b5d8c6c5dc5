//! SLURM that does not answer: the controller goes on answering, sheds load when the budget falls,
//! and starts nothing on what it saw long ago. With a SLURM of scripts, so it needs none.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "common/fake_slurm.rs"]
mod fake_slurm;
#[path = "common/lab.rs"]
mod lab;

use fake_slurm::FakeSlurm;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
/// What must hold.
const P99: Duration = Duration::from_millis(50);
const SHED: Duration = Duration::from_secs(1);
/// One at a time: what is measured is the controller, not the other test.
static ONE: Mutex<()> = Mutex::new(());

/// A site's file over it, with commands that may take so long.
fn site(fake: &FakeSlurm, limit: &str) -> PathBuf {
    let path = lab::site(fake.folder.path(), "8 kW", "control");
    let text = fs::read_to_string(&path).unwrap();
    let text =
        text.replace("slurm_conf = ", &format!("command_limit = \"{limit}\"\nslurm_conf = "));
    fs::write(&path, text).unwrap();
    path
}

/// How long the status takes, asked again and again for so long: all times, sorted.
fn ask_for(fake: &FakeSlurm, time: Duration) -> Vec<Duration> {
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < time {
        let asked = Instant::now();
        assert!(fake.ask("GET", "/v1/status", "").is_some(), "nobody answers");
        times.push(asked.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    times.sort();
    times
}

fn p99(times: &[Duration]) -> Duration {
    times[(times.len() * 99 / 100).min(times.len() - 1)]
}

/// Must hold while a plan for 20,000 waiting jobs is made: the API answers within 50 ms, a budget
/// cut lowers limits within a second, the heartbeat is fresh.
#[test]
fn a_frozen_slurm_and_a_long_plan_keep_nobody_waiting() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    const WAITING: u32 = 20_000;
    let mut fake = FakeSlurm::new(WAITING);
    let site = site(&fake, "20 s");
    fake.control(&site, "wattline", &["--plan-limit", "5 s"]);
    let all = u64::from(WAITING);
    fake.until("all jobs", MINUTE * 3, || fake.status()["waiting"].as_u64() == Some(all));
    fake.until("the heartbeat", MINUTE, || fake.heartbeat().is_some_and(|age| age <= 2));
    let limits = fake.limits();
    fake.freeze();
    std::thread::sleep(Duration::from_secs(2));
    let plans = fake.status()["plan"].as_u64();
    let (mut shed, mut oldest) = (None, 0);
    let times = std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask_for(&fake, Duration::from_secs(8)));
        std::thread::sleep(Duration::from_secs(1));
        fake.set_budget(5000);
        let cut = Instant::now();
        while cut.elapsed() < Duration::from_secs(6) {
            if shed.is_none() && fake.limits() < limits {
                shed = Some(cut.elapsed());
            }
            oldest = oldest.max(fake.heartbeat().unwrap());
            std::thread::sleep(Duration::from_millis(10));
        }
        asking.join().unwrap()
    });
    let status = fake.status();
    println!(
        "{WAITING} waiting, SLURM frozen: {} answers, p50 {:?}, p99 {:?}, longest {:?}; limits \
         lowered after {shed:?}; heartbeat at most {oldest} s old; longest turn {} ms",
        times.len(),
        times[times.len() / 2],
        p99(&times),
        times[times.len() - 1],
        status["turn_max_ms"]
    );
    assert!(status["plan"].as_u64() > plans, "the decision is in force: {status}");
    // Written down before it was acted on: the journal has it.
    assert!(shed.is_some_and(|after| after <= SHED), "limits lowered after {shed:?}");
    assert!(oldest <= 3, "the heartbeat was {oldest} s old");
    assert!(p99(&times) <= P99, "{:?}", p99(&times));
}

/// Of a cluster that has not answered for long nothing is believed.
#[test]
fn what_slurm_has_not_said_for_long_is_unknown_and_only_load_is_shed() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut fake = FakeSlurm::new(3);
    // Looks may be three of these old.
    let site = site(&fake, "1 s");
    fake.control(&site, "fifo", &[]);
    fake.until("all jobs", MINUTE, || fake.status()["waiting"].as_u64() == Some(3));
    fake.until("the heartbeat", MINUTE, || fake.heartbeat().is_some_and(|age| age <= 1));
    fake.freeze();
    let after = fake.until("trouble", MINUTE, || fake.troubles().contains("is unknown"));
    println!("unknown after {after:?}: {}", fake.troubles());
    fake.until("no heartbeat", MINUTE, || fake.heartbeat().is_some_and(|age| age >= 3));
    // Room for others would be there, but nobody knows.
    let orders = fake.orders();
    let limits = fake.limits();
    fake.set_budget(5000);
    let shed = fake.until("lower limits", MINUTE, || fake.limits() < limits);
    println!("limits lowered after {shed:?}");
    let lowered = fake.limits();
    fake.set_budget(8000);
    std::thread::sleep(Duration::from_secs(4));
    // GPUs may still have been on their way down.
    assert!(fake.limits() <= lowered, "nothing is raised: {} from {lowered}", fake.limits());
    assert_eq!(fake.orders(), orders, "nothing is started");
    fake.thaw();
    fake.until("no trouble", MINUTE, || fake.troubles() == "[]");
    fake.until("the heartbeat", MINUTE, || fake.heartbeat().is_some_and(|age| age <= 1));
    fake.until("higher limits", MINUTE, || fake.limits() > lowered);
}
