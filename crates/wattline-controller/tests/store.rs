//! The journal's file: what is refused, and in which words.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;
use wattline_controller::journal::{Decision, Entry, Store, StoreError};
use wattline_controller::{
    Checkpoint, Drawn, JournalNote, Origin, Per, Priority, Request, SlurmKey, SlurmOrigin,
};
use wattline_core::Timestamp;
use wattline_core::calendar::{Calendar, Rule, UtcOffset};
use wattline_core::engine::Event;
use wattline_core::host::{HostAmount, HostRequest, NodeHost, Shortage};
use wattline_core::ids::{ActionId, GpuTypeId, JobId, NodeId, PlanId, UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work};
use wattline_core::placement::{Allocation, Configuration, Placement, Share};
use wattline_core::plan::{JobChange, NodeChange, Plan, Reason, Refusal};
use wattline_core::predictor::Measurement;
use wattline_core::prices::Prices;
use wattline_core::state::Target;
use wattline_core::units::{Euros, EurosPerSecond, Joules, Seconds, Watts};

const ABOUT: [(&str, &str); 2] = [("cluster", "demo"), ("policy", "wattline")];

fn entry(seconds: f64, events: Vec<Event>) -> Entry {
    Entry {
        at: Timestamp::from_seconds(seconds),
        events,
        next_report: 7,
        acts: true,
        notes: Vec::new(),
        decisions: Vec::new(),
    }
}

fn read(store: &Store) -> Result<Vec<Entry>, StoreError> {
    let mut entries = Vec::new();
    store.read(|entry| -> Result<(), StoreError> {
        entries.push(entry);
        Ok(())
    })?;
    Ok(entries)
}

/// One of each, with numbers that do not end, and a name that would be trouble elsewhere.
fn all_events() -> Vec<Event> {
    let third = 1.0 / 3.0;
    let job = Job {
        name: "a'); DROP TABLE journal; --\n\u{1b}[31m<b>\"".into(),
        user: UserId(3),
        workload: WorkloadId(2),
        work: Work(1e9 * third),
        submit: Timestamp::from_seconds(0.1 + 0.2),
        deadline: Some(Timestamp::from_seconds(1e9)),
        weight: EurosPerSecond::new(third * 1e-5),
        elasticity: Elasticity::Adaptive,
        gpus: Bounds { min: 1, max: 8, requested: 2 },
        batch: Bounds { min: 64, max: 512, requested: 128 },
        restart: RestartCost { save: Seconds::new(third), load: Seconds::new(2.0 * third) },
        preemptible: true,
        shapes: None,
        nodes: None,
    };
    let measured = Measurement {
        at: Timestamp::from_seconds(5.0),
        job: JobId(1),
        workload: WorkloadId(2),
        configuration: Configuration {
            gpu_type: GpuTypeId(0),
            gpus: 2,
            nodes: 1,
            batch: 128,
            power_limit: Watts::new(700.0 * third),
        },
        node: Some(NodeId(4)),
        processed: Work(12_345.678_9 * third),
        seconds: Seconds::new(249.345_56),
        power: Some(Watts::new(431.7 * third)),
        noise_scale: Some(1e-7 * third),
        load: None,
    };
    let rule = Rule {
        days: "mon-fri".into(),
        from: "08:00".into(),
        to: "20:00".into(),
        value: Watts::new(1e4 * third),
    };
    let offset: UtcOffset = "+01:00".parse().unwrap();
    let budget = Calendar::from_rules(Watts::new(2e4 * third), &[rule], offset).unwrap();
    let (id, action, node) = (JobId(1), ActionId(9), NodeId(4));
    let asked = Arc::new(job.clone());
    let amount = |cpus, memory_mib| HostAmount { cpus, memory_mib };
    let request = HostRequest {
        per_node: amount(1, 100),
        per_gpu: amount(4, 1000),
        all_cpus: true,
        all_memory: false,
    };
    vec![
        Event::Clock,
        Event::Submitted(Arc::new(job)),
        Event::Cancelled(id),
        Event::Started { job: id, action },
        Event::Stopped { job: id, run: action, done: Work(1e8 * third) },
        Event::Finished(id),
        Event::Progress { job: id, done: Work(third) },
        Event::Measured(measured),
        Event::Limited { job: id, action },
        Event::NodeUp(node),
        Event::NodeAsleep(node),
        Event::NodeLost(node),
        Event::NodeClosed(node),
        Event::Failed { action },
        Event::StopRefused { job: id, action },
        Event::StaysPut { job: id, stays: true },
        Event::Weighed { job: id, from: EurosPerSecond::new(0.1), to: EurosPerSecond::new(0.4) },
        Event::Foreign { job: id, foreign: true },
        Event::Refused { action, why: Refusal::Limit },
        Event::BudgetSet(Some(budget)),
        Event::BudgetSet(None),
        Event::PricesSet(Prices::default()),
        Event::Asked { job: id, asked },
        Event::HostAsked { job: id, request },
        Event::Barred { job: id, nodes: vec![node], over: 2, why: Refusal::Never },
        Event::NodeHost { node, host: NodeHost { all: amount(64, 500_000), taken: amount(8, 1) } },
    ]
}

/// One of each note.
fn all_notes() -> Vec<JournalNote> {
    let job = JobId(1);
    let key = SlurmKey { id: 4711, submitted: 1_767_571_200, restarts: 2 };
    let asked = Request {
        nodes: 2,
        tasks: 4,
        cpus: 32,
        gpus_per_node: 4,
        gpu_type: Some("h200".into()),
        way: Per::Task(2),
        tasks_per_node: Some(2),
        required: vec!["n1".into()],
        excluded: vec!["n2".into(), "n3".into()],
    };
    let slurm = SlurmOrigin {
        key,
        partition: "gpu".into(),
        asked,
        checkpoint: Checkpoint::Usr1,
        controlled: true,
        as_asked: true,
        address: Some("4700_11".into()),
        account: Some("research".into()),
        qos: Some("high".into()),
    };
    let priority = Priority {
        weight: EurosPerSecond::new(1.0 / 3600.0),
        qos: Some("high".into()),
        qos_factor: 4.0,
        fairshare: Some(1.0 / 3.0),
        fairshare_factor: 2.0_f64.powf(-1.0 / 3.0),
    };
    let placement = Placement {
        configuration: Configuration {
            gpu_type: GpuTypeId(1),
            gpus: 8,
            nodes: 2,
            batch: 256,
            power_limit: Watts::new(550.0),
        },
        allocation: Allocation::over(
            [3, 5].map(|n| Share { node: NodeId(n), mask: 15 }).into_iter().collect(),
        ),
    };
    let after = Seconds::new(1.0 / 3.0);
    let drawn = Drawn { energy: Joules::new(1e9 / 3.0), bill: Euros::new(0.1) };
    vec![
        JournalNote::Workload("gpt2".into()),
        JournalNote::Origin {
            job,
            origin: Arc::new(Origin { user: "alice".into(), slurm: Some(slurm) }),
        },
        JournalNote::Key { job, key },
        JournalNote::Before { node: "n1".into(), limits: vec![700.0, 650.0 / 3.0] },
        JournalNote::Ended { job, how: "COMPLETED".into() },
        JournalNote::Drawn { job, drawn },
        JournalNote::Placed { job, placement, after: Some(after) },
        JournalNote::Left { job, after },
        JournalNote::Limited { job, limit: Watts::new(400.0) },
        JournalNote::Request { job, key: "alice/1".into(), fingerprint: u64::MAX },
        JournalNote::Refused { job, said: "QOSMaxGRESPerUser".into() },
        JournalNote::Asked { job },
        JournalNote::RestartHold { job, said: Some("too often".into()), since: 1_767_571_200 },
        JournalNote::RestartHold { job, said: None, since: 0 },
        JournalNote::Priority { job, priority },
        JournalNote::Overrun { user: UserId(7), workload: "gpt2".into(), factor: 100.0 / 3.0 },
    ]
}

/// A decision with one of each reason.
fn decision() -> Decision {
    use wattline_core::plan::Decision as JobDecision;
    let at = Timestamp::from_seconds(7.0);
    let reasons = [
        Reason::Arrived,
        Reason::AsRequested,
        Reason::CheapestInTime,
        Reason::FastestWhenLate,
        Reason::NoRoom,
        Reason::NoPower,
        Reason::Reserved { at },
        Reason::Backfilled,
        Reason::NeverFits,
        Reason::GaveWay { to: JobId(3) },
        Reason::Postponed,
        Reason::MostForItsEnergy,
        Reason::LeastForAll,
        Reason::BetterLater,
        Reason::NextInLine,
        Reason::MadeRoom,
        Reason::LeastGpuTime,
        Reason::BatchScaled { from: 64, to: 256, learning_rate: 4.0 / 3.0 },
        Reason::LimitLowered,
        Reason::LimitRaised,
        Reason::ShedForBudget,
        Reason::KilledForBudget,
        Reason::StartFailed,
        Reason::Refused(Refusal::Resources),
        Reason::Refused(Refusal::Nodes),
        Reason::Refused(Refusal::Limit),
        Reason::Refused(Refusal::Licences),
        Reason::Refused(Refusal::Other),
        Reason::NodeLost,
        Reason::NodeClosed,
        Reason::NodeNeeded,
        Reason::NodeIdle,
        Reason::NodeOverBudget,
        Reason::ActionFailed,
        Reason::OnHold,
        Reason::Found,
        Reason::NoHost(Shortage::Cpus { needed: 8, free: 4 }),
        Reason::NoHost(Shortage::Memory { needed_mib: 2000, free_mib: 100 }),
        Reason::Refused(Refusal::Never),
    ];
    let jobs = reasons.into_iter().zip(0..).map(|(reason, id)| JobChange {
        job: JobId(id),
        decision: JobDecision::Wait,
        reason,
    });
    let node = |node, target| NodeChange { node: NodeId(node), target, reason: Reason::NodeIdle };
    Decision {
        based_on: 12,
        policy: "wattline+work=500".into(),
        version: "0.1.0".into(),
        trigger: "arrival".into(),
        took: Seconds::new(0.25),
        plan: Plan {
            based_on: PlanId(4),
            jobs: jobs.collect(),
            nodes: vec![node(0, Target::Up), node(1, Target::Asleep)],
            revisit: Some(at),
        },
    }
}

/// The text of each kind of thing in an entry is the format. A journal on somebody's disk has it.
#[test]
fn each_kind_is_written_and_read_as_format_2_has_it() {
    let entry =
        Entry { notes: all_notes(), decisions: vec![decision()], ..entry(1.5, all_events()) };
    let expected = include_str!("fixtures/entry-v2.json");
    assert_eq!(entry.to_text().unwrap(), expected.trim_end());
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("journal"), &ABOUT).unwrap();
    store.append(&entry).unwrap();
    assert_eq!(read(&store).unwrap(), [entry]);
}

#[test]
fn what_is_read_is_what_was_written_to_the_last_digit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut store = Store::open(&path, &ABOUT).unwrap();
    let written = vec![entry(0.0, all_events()), entry(1e-6, Vec::new()), entry(2.0, all_events())];
    for entry in &written {
        store.append(entry).unwrap();
    }
    assert_eq!(read(&store).unwrap(), written);
    drop(store);
    let store = Store::open(&path, &ABOUT).unwrap();
    assert_eq!((store.len(), read(&store).unwrap()), (3, written));
}

#[test]
fn a_second_writer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut first = Store::open(&path, &ABOUT).unwrap();
    let second = Store::open(&path, &ABOUT).unwrap_err();
    assert!(matches!(second, StoreError::InUse(_)), "{second}");
    first.append(&entry(0.0, all_events())).unwrap();
    drop(first);
    assert_eq!(Store::open(&path, &ABOUT).unwrap().len(), 1);
}

#[test]
fn a_journal_of_something_else_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    drop(Store::open(&path, &ABOUT).unwrap());
    let other = Store::open(&path, &[("cluster", "demo"), ("policy", "fifo")]).unwrap_err();
    assert!(other.to_string().contains("another policy"), "{other}");

    for text in ["no database at all, but long enough to be taken for one".repeat(100), "x".into()]
    {
        let path = folder.path().join("text");
        std::fs::write(&path, &text).unwrap();
        let error = Store::open(&path, &ABOUT).unwrap_err();
        assert!(matches!(error, StoreError::Foreign(_)), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }

    let path = folder.path().join("tables");
    let foreign = rusqlite::Connection::open(&path).unwrap();
    foreign.execute_batch("CREATE TABLE journal (a TEXT)").unwrap();
    drop(foreign);
    let error = Store::open(&path, &ABOUT).unwrap_err();
    assert!(matches!(error, StoreError::Foreign(_)), "{error}");
}

#[test]
fn another_format_and_damage_are_told_from_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let change = |name: &str, sql: &str| {
        let path = folder.path().join(name);
        let mut store = Store::open(&path, &ABOUT).unwrap();
        for second in 0..3 {
            store.append(&entry(f64::from(second), all_events())).unwrap();
        }
        drop(store);
        rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        match Store::open(&path, &ABOUT) {
            Ok(store) => read(&store).map(drop).unwrap_err(),
            Err(error) => error,
        }
    };
    let error = change("format", "PRAGMA user_version = 99");
    assert!(matches!(error, StoreError::Format { found: 99, .. }), "{error}");
    let error = change("gap", "DELETE FROM journal WHERE number = 2");
    assert!(error.to_string().contains("entry 2 is missing"), "{error}");
    let error = change("text", "UPDATE journal SET entry = '{}' WHERE number = 3");
    assert!(error.to_string().contains("entry 3 is not as it was written"), "{error}");
    let error = change("time", "UPDATE journal SET at = at + 1 WHERE number = 1");
    assert!(error.to_string().contains("entry 1 is not as it was written"), "{error}");
}

#[test]
fn a_full_disk_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut store = Store::open(&path, &ABOUT).unwrap();
    store.append(&entry(0.0, all_events())).unwrap();
    store.limit_size(1).unwrap();
    let mut written = 1;
    let error = loop {
        match store.append(&entry(f64::from(written), all_events())) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1000);
    };
    assert!(matches!(error, StoreError::Full(_)), "{error}");
    assert_eq!(read(&store).unwrap().len(), written as usize);
    store.limit_size(1 << 30).unwrap();
    store.append(&entry(f64::from(written), all_events())).unwrap();
    assert_eq!(read(&store).unwrap().len(), written as usize + 1);
}

#[test]
fn who_only_looks_disturbs_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    assert!(matches!(Store::look(&path), Err(StoreError::Io { .. })));
    let mut writer = Store::open(&path, &ABOUT).unwrap();
    writer.append(&entry(1.0, all_events())).unwrap();
    let look = Store::look(&path).unwrap();
    assert_eq!((look.len(), read(&look).unwrap().len()), (1, 1));
    assert_eq!(look.about("policy").unwrap(), writer.about("policy").unwrap());
    // What comes later is not seen, and the writer does not wait.
    for second in 2..200 {
        writer.append(&entry(f64::from(second), all_events())).unwrap();
    }
    assert_eq!((look.len(), read(&look).unwrap().len()), (1, 1));
    let later = Store::look(&path).unwrap();
    assert_eq!(later.last_time().unwrap(), Some(Timestamp::from_seconds(199.0)));
    assert!(matches!(Store::open(&path, &ABOUT), Err(StoreError::InUse(_))));

    // A writer that died leaves something to clear up.
    let copy = folder.path().join("copy");
    for ending in ["", "-wal"] {
        let name = |path: &std::path::Path| format!("{}{ending}", path.display());
        std::fs::copy(name(&path), name(&copy)).unwrap();
    }
    assert_eq!(read(&Store::look(&copy).unwrap()).unwrap().len(), 199);
    drop((look, later, writer));
    assert_eq!(read(&Store::look(&path).unwrap()).unwrap().len(), 199);

    for text in ["no journal at all".repeat(100), "x".into(), String::new()] {
        let path = folder.path().join("text");
        std::fs::write(&path, &text).unwrap();
        let error = Store::look(&path).unwrap_err();
        assert!(matches!(error, StoreError::Foreign(_)), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn what_a_journal_was_begun_with_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut store = Store::open(&path, &[]).unwrap();
    assert_eq!(store.begun_with("who", "first").unwrap(), "first");
    assert_eq!(store.begun_with("who", "second").unwrap(), "first");
    drop(store);
    assert_eq!(Store::open(&path, &[]).unwrap().begun_with("who", "third").unwrap(), "first");
}
