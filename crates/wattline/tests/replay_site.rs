//! `wattline replay --site`: journals of SLURM clusters, written by hand, with totals that can be
//! worked out on paper.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::wattline;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wattline_controller::JournalNote;
use wattline_controller::journal::{Entry, Store};
use wattline_core::Timestamp;
use wattline_core::engine::Event;
use wattline_core::ids::{ActionId, GpuTypeId, JobId, NodeId, UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work};
use wattline_core::placement::{Allocation, Configuration, Placement};
use wattline_core::predictor::Measurement;
use wattline_core::units::{EurosPerSecond, Seconds, Watts};

/// Two nodes of two GPUs. A node draws 100 W beside its GPUs, an idle GPU 50 W, a busy one 300 W.
const SITE: &str = "name = \"tiny\"\nmeasurements = \"measured.csv\"\n\
    [[gpu]]\nname = \"card\"\nidle = \"50 W\"\nbusy = \"300 W\"\n\
    min_limit = \"200 W\"\ndefault_limit = \"400 W\"\nmax_limit = \"400 W\"\nlimit_step = \"50 W\"\n\
    [[nodes]]\nnames = \"n[1-2]\"\ngpu = \"card\"\ngpus = 2\nbase = \"100 W\"\n\
    sleep = \"10 W\"\nboot = \"200 W\"\nboot_time = \"60 s\"\nshutdown_time = \"60 s\"\n\
    [prices]\nenergy = \"0.2 EUR/kWh\"\npue = 1.0\n\
    [slurm]\nmode = \"observe\"\npartitions = [\"gpu\"]\n";
const MEASURED: &str = "workload,gpu,nodes,gpus,global_batch,power_limit_w,samples,seconds,power_w\n\
    net,card,1,2,256,400,1000,100,250\n";
const START: f64 = 1.7e9;
/// The workloads of the journal, by id: what nobody says anything about, and the measured one.
const SECONDS: WorkloadId = WorkloadId(0);
const NET: WorkloadId = WorkloadId(1);

struct Journal {
    folder: tempfile::TempDir,
    store: Option<Store>,
    jobs: u32,
}

impl Journal {
    fn new(policy: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("site.toml"), SITE).unwrap();
        fs::write(folder.path().join("measured.csv"), MEASURED).unwrap();
        let about = [("cluster or its jobs", "tiny: n1:2x0,n2:2x0"), ("policy", policy)];
        let store = Store::open(&folder.path().join("journal"), &about).unwrap();
        Self { folder, store: Some(store), jobs: 0 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&mut self, at: f64, events: Vec<Event>, notes: Vec<JournalNote>) {
        let at = Timestamp::from_seconds(START + at);
        let entry = Entry { at, events, next_report: 1, acts: true, notes, decisions: Vec::new() };
        self.store.as_mut().unwrap().append(&entry).unwrap();
    }

    /// A job of two GPUs that is late from the first second, at 1 EUR/h.
    fn submit(&mut self, at: f64, workload: WorkloadId, work: f64) -> JobId {
        let submit = Timestamp::from_seconds(START + at);
        let job = Job {
            name: format!("job{}", self.jobs).into(),
            user: UserId(1),
            workload,
            work: Work(work),
            submit,
            deadline: Some(submit),
            weight: EurosPerSecond::new(1.0 / 3600.0),
            elasticity: Elasticity::Rigid,
            gpus: Bounds::exactly(2),
            batch: Bounds::exactly(256),
            restart: RestartCost { save: Seconds::ZERO, load: Seconds::new(60.0) },
            preemptible: false,
            shapes: None,
            nodes: None,
        };
        self.write(at, vec![Event::Submitted(Arc::new(job))], Vec::new());
        self.jobs += 1;
        JobId(self.jobs - 1)
    }

    fn found(&mut self, at: f64, job: JobId, node: u32) {
        let placement = placement(node);
        self.write(at, vec![Event::Found { job, placement }], Vec::new());
    }

    fn finished(&mut self, at: f64, job: JobId) {
        self.write(at, vec![Event::Finished(job)], Vec::new());
    }

    /// SLURM says that it is over, and how.
    fn over(&mut self, at: f64, job: JobId, run: u64, how: &str) {
        let stopped = Event::Stopped { job, run: ActionId(run), done: Work(0.0) };
        let how = JournalNote::Ended { job, how: how.into() };
        self.write(at, vec![Event::Cancelled(job), stopped], vec![how]);
    }

    fn replay(&mut self, args: &[&str]) -> Value {
        self.store = None;
        replay(self.folder.path(), args)
    }
}

fn placement(node: u32) -> Placement {
    let configuration = Configuration {
        gpu_type: GpuTypeId(0),
        gpus: 2,
        nodes: 1,
        batch: 256,
        power_limit: Watts::new(400.0),
    };
    Placement { configuration, allocation: Allocation::on(NodeId(node), 0b11) }
}

fn replay(folder: &Path, args: &[&str]) -> Value {
    let path = |name: &str| folder.join(name).display().to_string();
    let (journal, site) = (path("journal"), path("site.toml"));
    let base = ["replay", &journal, "--site", &site, "--json"];
    let run = wattline(&[&base[..], args].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_slice(&run.stdout).unwrap()
}

fn near(value: &Value, expected: f64) {
    let value = value.as_f64().unwrap_or_else(|| panic!("{value}"));
    let near = (value - expected).abs() <= 1e-6 * expected.abs().max(1e-3);
    assert!(near, "{value}, expected {expected}");
}

fn notes(replayed: &Value) -> String {
    replayed["instance"]["notes"].to_string()
}

/// Two jobs at once, a third after the shorter of them, and an idle end.
fn three(journal: &mut Journal) {
    let limit = 7200.0;
    let (a, b) = (journal.submit(0.0, SECONDS, limit), journal.submit(0.0, SECONDS, limit));
    journal.found(0.0, a, 0);
    journal.found(0.0, b, 1);
    let c = journal.submit(600.0, SECONDS, limit);
    journal.finished(1800.0, b);
    journal.found(1800.0, c, 1);
    journal.finished(3600.0, a);
    journal.finished(5400.0, c);
}

#[test]
fn what_happened_costs_what_it_does_on_paper() {
    let mut journal = Journal::new("watch");
    three(&mut journal);
    journal.write(7200.0, vec![Event::Clock], Vec::new());
    let replayed = journal.replay(&["--policy", "fifo,wattline"]);
    let realised = &replayed["realised"];
    // Nodes 2 · 100 W · 2 h; runs 600 W · (1 h + 0.5 h + 1 h); idle pairs of GPUs 100 W · (1 h + 0.5 h).
    let (base, runs, idle) = (0.4, 1.5, 0.15);
    near(&realised["energy_base_kwh"], base);
    near(&realised["energy_runs_kwh"], runs);
    near(&realised["energy_idle_kwh"], idle);
    near(&realised["energy_kwh"], base + runs + idle);
    near(&realised["energy_cost"], (base + runs + idle) * 0.2);
    // Late by 1 h, 0.5 h and 4800 s.
    let late = 1.0 + 0.5 + 4800.0 / 3600.0;
    near(&realised["tardiness_cost"], late);
    near(&realised["total_cost"], late + (base + runs + idle) * 0.2);
    near(&realised["peak_power_w"], 1400.0);
    assert_eq!((&realised["finished"], &realised["jobs"]), (&3.into(), &3.into()));
    assert_eq!(replayed["recorded_policy"], Value::Null);

    // SLURM did what fifo does, so fifo comes to the same, though it cannot know the run times.
    let fifo = &replayed["results"][0];
    for name in ["total_cost", "energy_cost", "tardiness_cost", "energy_kwh", "jct_mean_s"] {
        near(&fifo[name], realised[name].as_f64().unwrap());
    }
    near(&replayed["saved"][0]["eur"], 0.0);
    near(&replayed["saved"][0]["percent"], 0.0);
    // Only the idle nodes can be put to sleep here.
    let ours = &replayed["saved"][1];
    assert!(ours["kwh"].as_f64().unwrap() > 0.0 && ours["eur"].as_f64().unwrap() > 0.0, "{ours}");
    assert!(notes(&replayed).contains("3 jobs say nothing about their work"));
    assert_eq!(replayed["check"], Value::Null);
}

#[test]
fn jobs_that_end_otherwise_count_as_they_were() {
    let mut journal = Journal::new("watch");
    three(&mut journal);
    // Failed after half an hour on the first node.
    let failed = journal.submit(3600.0, SECONDS, 7200.0);
    journal.found(3600.0, failed, 0);
    // Taken back while it waited, and while it ran.
    let waited = journal.submit(3700.0, SECONDS, 7200.0);
    journal.write(5300.0, vec![Event::Cancelled(waited)], Vec::new());
    journal.over(5400.0, failed, 3, "failed");
    let taken = journal.submit(5400.0, SECONDS, 7200.0);
    journal.found(5400.0, taken, 0);
    journal.over(6300.0, taken, 4, "cancelled");
    // Still running, and still waiting, when the record ends.
    let cut = journal.submit(6300.0, SECONDS, 7200.0);
    journal.found(6300.0, cut, 1);
    journal.submit(6400.0, SECONDS, 7200.0);
    // The other node sleeps and wakes.
    journal.write(6500.0, vec![Event::NodeAsleep(NodeId(0))], Vec::new());
    journal.write(7100.0, vec![Event::NodeUp(NodeId(0))], Vec::new());
    journal.write(7200.0, vec![Event::Clock], Vec::new());
    let replayed = journal.replay(&["--policy", "fifo"]);
    let realised = &replayed["realised"];
    assert_eq!(realised["jobs"], 7);
    assert_eq!((&realised["failed"], &realised["cut_off"]), (&1.into(), &1.into()));
    assert_eq!(realised["cancelled"], 2);
    // 600 W: 2.5 h as before, the failed one 0.5 h, the cancelled 0.25 h, the one cut off 0.25 h.
    near(&realised["energy_runs_kwh"], 0.6 * 3.5);
    // 540 s asleep, then a minute to boot.
    near(&realised["energy_sleep_kwh"], 0.010 * 540.0 / 3600.0);
    near(&realised["energy_boot_kwh"], 0.200 * 60.0 / 3600.0);
    near(&realised["energy_base_kwh"], 0.1 * (2.0 + 6600.0 / 3600.0));
    let fifo = &replayed["results"][0];
    assert_eq!((&fifo["finished"], &fifo["cancelled"]), (&5.into(), &2.into()));
    // The same runs: only the sleep is missing, which fifo knows nothing of.
    near(&fifo["energy_jobs_kwh"], 0.6 * 3.5);
    near(&fifo["tardiness_cost"], realised["tardiness_cost"].as_f64().unwrap());
    let notes = notes(&replayed);
    for said in ["1 jobs still ran", "1 jobs failed", "1 jobs are left out"] {
        assert!(notes.contains(said), "{said}: {notes}");
    }
}

#[test]
fn measured_workloads_are_as_fast_as_measured() {
    let mut journal = Journal::new("fifo");
    // In the file: 10 samples a second at 250 W. It says 36,000 samples and is done after 3000 s.
    let job = journal.submit(0.0, NET, 36_000.0);
    let placed = JournalNote::Placed { job, placement: placement(0), after: None };
    journal.write(0.0, vec![Event::Started { job, action: ActionId(0) }], vec![placed]);
    journal.finished(3000.0, job);
    // Measured here: 20 samples a second at 280 W counts from now on.
    let other = journal.submit(3000.0, NET, 60_000.0);
    let placed = JournalNote::Placed { job: other, placement: placement(0), after: None };
    journal.write(3000.0, vec![Event::Started { job: other, action: ActionId(1) }], vec![placed]);
    let measured = Measurement {
        at: Timestamp::from_seconds(START + 4000.0),
        job: other,
        workload: NET,
        configuration: placement(0).configuration,
        node: Some(NodeId(0)),
        processed: Work(20_000.0),
        seconds: Seconds::new(1000.0),
        power: Some(Watts::new(280.0)),
        noise_scale: None,
        load: None,
    };
    journal.write(4000.0, vec![Event::Measured(measured)], Vec::new());
    journal.finished(6600.0, other);
    let replayed = journal.replay(&[]);
    // 6600 s of two GPUs at 280 W.
    near(&replayed["realised"]["energy_runs_kwh"], 0.56 * 6600.0 / 3600.0);
    assert_eq!(replayed["recorded_policy"], "fifo");
    let fifo = &replayed["results"][0];
    near(&fifo["energy_jobs_kwh"], 0.56 * 6600.0 / 3600.0);
    near(&fifo["makespan_s"], 6600.0);
    // The product's own check is of what was known at first: 10 samples a second at 250 W. The first
    // job ends after 3600 s then; the second does not wait for it, there is another node, and ends
    // 6000 s after it came, at 9000 s. The predictor fits its one reading to a percent.
    let check = &replayed["check"];
    assert_eq!(check["policy"], "fifo");
    let (hours, busy) = (9000.0 / 3600.0, 9600.0 / 3600.0);
    let energy = 0.2 * hours + 0.5 * busy + 0.1 * (2.0 * hours - busy);
    let expected = 9600.0 / 3600.0 + 0.2 * energy;
    let foreseen = check["predicted_eur"].as_f64().unwrap();
    assert!((foreseen / expected - 1.0).abs() < 0.01, "{foreseen} EUR, expected {expected}");
    let realised = replayed["realised"]["total_cost"].as_f64().unwrap();
    near(&check["deviation"], (foreseen - realised) / realised);
}

#[test]
fn slurm_takes_as_long_as_it_took() {
    let mut journal = Journal::new("fifo");
    let job = journal.submit(0.0, NET, 30_000.0);
    let placed =
        JournalNote::Placed { job, placement: placement(0), after: Some(Seconds::new(20.0)) };
    journal.write(20.0, vec![Event::Started { job, action: ActionId(0) }], vec![placed]);
    journal.finished(3020.0, job);
    let replayed = journal.replay(&[]);
    near(&replayed["results"][0]["makespan_s"], 3020.0);
    assert!(notes(&replayed).contains("to start a job takes SLURM 20.0 s"), "{replayed}");
}

#[test]
fn the_last_hour_begins_with_what_was_there() {
    let mut journal = Journal::new("watch");
    three(&mut journal);
    journal.write(7200.0, vec![Event::Clock], Vec::new());
    let replayed = journal.replay(&["--policy", "fifo", "--since", "1 h"]);
    let realised = &replayed["realised"];
    // Two of them were over by then; the third goes on for half an hour.
    assert_eq!(realised["jobs"], 1);
    near(&realised["energy_runs_kwh"], 0.6 * 0.5);
    near(&realised["tardiness_cost"], 0.5);
    near(&replayed["results"][0]["total_cost"], realised["total_cost"].as_f64().unwrap());
    assert!(notes(&replayed).contains("1 jobs were submitted before the period"));
}

#[test]
fn a_journal_in_use_can_be_replayed_and_others_are_refused() {
    let mut journal = Journal::new("watch");
    three(&mut journal);
    // The writer is this test, and goes on.
    let replayed = replay(journal.folder.path(), &["--policy", "fifo"]);
    assert_eq!(replayed["realised"]["jobs"], 3);
    journal.write(7200.0, vec![Event::Clock], Vec::new());

    let path = |name: &str| journal.path(name).display().to_string();
    let other = SITE.replace("n[1-2]", "n[1-3]");
    fs::write(journal.path("other.toml"), other).unwrap();
    for (args, what) in [
        (vec!["replay", &path("journal"), "--site", &path("other.toml")], "another cluster"),
        (vec!["replay", &path("none"), "--site", &path("site.toml")], "no such journal"),
        (vec!["replay", &path("site.toml"), "--site", &path("site.toml")], "not a journal"),
    ] {
        let run = wattline(&args);
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(2), "{said}");
        assert!(said.contains(what), "{said}");
    }
}

#[test]
fn advise_looks_back_without_a_controller() {
    let mut journal = Journal::new("watch");
    three(&mut journal);
    journal.store = None;
    let path = |name: &str| journal.path(name).display().to_string();
    let (site, file, socket) = (path("site.toml"), path("journal"), path("socket"));
    let args = ["advise", "--site", &site, "--journal", &file, "--socket", &socket];
    let run = wattline(&[&args[..], &["--json"]].concat());
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{said}");
    assert!(said.contains("what it would do now is not known"), "{said}");
    let advised: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!((&advised["schema"], &advised["now"]), (&"wattline.advise/1".into(), &Value::Null));
    assert_eq!(advised["past"]["results"][0]["policy"], "wattline");
    assert!(advised["past"]["saved"][0]["eur"].is_number(), "{advised}");
    let run = wattline(&args);
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(text.contains("wattline would have"), "{text}");

    // Neither of the two is an error.
    let nowhere = path("none");
    let args = ["advise", "--site", &site, "--journal", &nowhere, "--socket", &socket];
    assert_eq!(wattline(&args).status.code(), Some(1));
}
