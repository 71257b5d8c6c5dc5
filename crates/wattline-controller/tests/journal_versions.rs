//! Journals of each version, kept in the tree: what they say must mean the same for ever.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{begin, instance, planner};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use wattline_controller::history::History;
use wattline_controller::journal::{Store, StoreError, verify};
use wattline_controller::{Backend, BackendError, Controller, Known, Origin, Report, Submission};
use wattline_core::Timestamp;
use wattline_core::action::Action;
use wattline_core::ids::JobId;
use wattline_core::placement::Placement;
use wattline_core::units::{EurosPerSecond, Seconds};

/// A quarter of an hour of a small cluster on which nodes are lost and actions fail, with one of each request.
fn record(path: &Path) {
    let instance = instance(10);
    let (initial, cluster) = begin(&instance);
    let store = Store::open(path, &[("cluster", "fixture")]).unwrap();
    let policy = planner("wattline+work=500");
    let mut controller = Controller::open_emulated(initial, store, cluster, policy).unwrap();
    let mut next = 0;
    for turn in 0..20 {
        let now = controller.now() + Seconds::new(47.0);
        while let Some(job) = instance.jobs.get(next).filter(|job| job.submit <= now) {
            let origin = Origin { user: "alice".into(), slurm: None };
            let submission = Submission {
                job: (**job).clone(),
                workload: None,
                origin: Some(origin),
                hold: next == 3,
                host: None,
                bars: None,
                priority: None,
            };
            controller.intake().submit_once(now, submission, &format!("alice/{next}"), 7).unwrap();
            next += 1;
        }
        let intake = controller.intake().clone();
        match turn {
            4 => intake.set_prices(now, instance.prices.clone()).unwrap(),
            8 => {
                intake.set_budget(now, instance.budget.clone().map(|b| b.map(|w| w * 0.8))).unwrap()
            }
            12 => intake.set_budget(now, instance.budget.clone()).unwrap(),
            15 => intake.hold(now, JobId(3), false).unwrap(),
            16 => intake.update(now, JobId(3), None, EurosPerSecond::new(0.01)).unwrap(),
            17 => intake.cancel(now, JobId(4)).unwrap(),
            _ => {}
        }
        controller.turn(now).unwrap();
        while controller.poll_alert().is_some() {}
    }
    assert!(next > 5, "{next} jobs");
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A cluster of which nothing is heard: what is known follows from the journal alone.
struct Silent;

impl Backend for Silent {
    fn send(&mut self, _: Timestamp, _: &Action, _: Known<'_>) -> Result<(), BackendError> {
        Ok(())
    }
    fn reports(&mut self, _: Timestamp, _: u64, _: Known<'_>) -> Result<Vec<Report>, BackendError> {
        Ok(Vec::new())
    }
    fn next_event(&self) -> Option<Timestamp> {
        None
    }
}

/// What the journal has come to, in words that do not depend on how the engine keeps it.
fn comes_to(path: &Path) -> String {
    let store = Store::open(path, &[("cluster", "fixture")]).unwrap();
    let (initial, _) = begin(&instance(10));
    let controller = Controller::open(initial, store, Silent, planner("watch")).unwrap();
    let engine = controller.engine();
    let state = engine.state();
    let mut text = String::new();
    for (id, job) in state.unfinished_jobs() {
        let owner = &controller.registry().origin(id).unwrap().user;
        let gpus = |placement: &Option<Placement>| {
            placement.as_ref().map(|placement| {
                let gpus = placement.allocation.gpus().map(|gpu| gpu.to_string());
                let limit = placement.configuration.power_limit.get();
                (gpus.collect::<Vec<_>>().join(" "), limit)
            })
        };
        writeln!(
            text,
            "{id} '{}' of {owner}: holds {:?}, planned {:?}, {} restarts, {:.6e} done, due {:?}, \
             {:.6e} EUR/s, on hold: {}, cancelled: {}, since {:?}",
            job.job.name,
            gpus(&job.held),
            gpus(&job.planned),
            job.restarts,
            job.progress.done.0,
            job.job.deadline.map(Timestamp::micros),
            job.job.weight.get(),
            job.is_on_hold(),
            job.is_cancelled(),
            job.first_start.map(Timestamp::micros),
        )
        .unwrap();
    }
    for id in state.cluster().node_ids() {
        writeln!(text, "{id} {:?}", state.node(id).power).unwrap();
    }
    let budget = engine.budget().map(|budget| budget.at(controller.now()).get());
    writeln!(text, "{} jobs in all", state.job_count()).unwrap();
    writeln!(text, "now {}, budget {budget:?} W", controller.now().micros()).unwrap();
    writeln!(text, "decided last: {:?}", controller.last_policy()).unwrap();
    writeln!(text, "plan {:?}, {} actions", engine.plan_id(), engine.stats().actions).unwrap();
    text
}

/// Copies a fixture to where it may be written.
fn copy(name: &str, folder: &Path) -> PathBuf {
    let path = folder.join("journal");
    std::fs::copy(fixture(name), &path).unwrap();
    path
}

#[test]
fn a_journal_of_format_2_comes_to_what_it_came_to() {
    let folder = common::folder();
    let path = copy("journal-v2.sqlite", folder.path());
    assert!(verify(&path).unwrap().is_sound());
    let text = comes_to(&path);
    let expected = std::fs::read_to_string(fixture("journal-v2.txt")).unwrap();
    assert_eq!(text, expected);
    assert_eq!(format!("{:08x}", crc32fast::hash(text.as_bytes())), "9e37de32");
}

/// What is read is written as it was: the format has not changed unnoticed.
#[test]
fn entries_of_format_2_are_written_as_they_were() {
    let folder = common::folder();
    let path = copy("journal-v2.sqlite", folder.path());
    let mut texts = Vec::new();
    {
        let connection = rusqlite::Connection::open(&path).unwrap();
        let mut ask = connection.prepare("SELECT entry FROM journal ORDER BY number").unwrap();
        let rows = ask.query_map((), |row| row.get::<_, String>(0)).unwrap();
        texts.extend(rows.map(Result::unwrap));
    }
    let mut written = Vec::new();
    let store = Store::look(&path).unwrap();
    let read = store.read(|entry| -> Result<(), StoreError> {
        written.push(entry.to_text().unwrap());
        Ok(())
    });
    read.unwrap();
    assert!(texts.len() > 25);
    assert_eq!(written, texts);
}

/// Nothing can go on from format 1, because decisions are missing there; what happened is read.
#[test]
fn a_journal_of_format_1_is_refused_with_what_to_do_and_can_be_looked_at() {
    let folder = common::folder();
    let path = copy("journal-v1.sqlite", folder.path());
    let bytes = std::fs::read(&path).unwrap();
    let error = Store::open(&path, &[("cluster", "fixture")]).unwrap_err();
    assert!(matches!(error, StoreError::WithoutDecisions(_)), "{error}");
    let error = error.to_string();
    assert!(error.contains("--new") && error.contains("format 1"), "{error}");
    assert!(std::fs::read(&path).unwrap() == bytes, "it was changed");
    let store = Store::look(&path).unwrap();
    assert_eq!((store.len(), store.about("cluster").unwrap().as_deref()), (66, Some("fixture")));
    let history = History::read(&store, |_, _| ()).unwrap();
    assert_eq!((history.entries, history.jobs.len()), (66, 8));
    let ended = history.jobs.iter().filter(|past| past.over().is_some()).count();
    let placed = |run: &wattline_controller::history::Ran| !run.placements.is_empty();
    assert!(ended >= 7 && history.jobs.iter().flat_map(|past| &past.runs).all(placed), "{ended}");
    assert!(verify(&path).unwrap().problems[0].contains("format 1"));
}

/// Writes a fixture anew; see `fixtures/README.md`.
#[test]
#[ignore = "writes into the tree"]
fn write_fixture() {
    let path = fixture("journal-new.sqlite");
    record(&path);
    let folder = common::folder();
    let text = comes_to(&copy("journal-new.sqlite", folder.path()));
    std::fs::write(fixture("journal-new.txt"), &text).unwrap();
    eprintln!("digest {:08x}", crc32fast::hash(text.as_bytes()));
    std::fs::remove_file(fixture("journal-new.sqlite.state")).unwrap();
}
