//! Snapshots are only used when they are sound, and nothing is lost when they are not.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{begin, instance, planner};
use rusqlite::Connection;
use std::path::Path;
use std::sync::Arc;
use wattline_controller::journal::{Keep, Store, StoreError};
use wattline_controller::{Controller, ControllerError, Emulated};
use wattline_core::units::Seconds;
use wattline_sim::instance::Instance;

const POLICY: &str = "fifo";

fn open(instance: &Instance, path: &Path) -> Result<Controller<Emulated>, ControllerError> {
    let (begin, cluster) = begin(instance);
    Controller::open_emulated(begin, Store::open(path, &[]).unwrap(), cluster, planner(POLICY))
}

/// Runs for so many turns with a snapshot after each hundred; says what is known then.
fn run(instance: &Instance, path: &Path, turns: u32, keep: &Keep) -> u64 {
    let mut controller = open(instance, path).unwrap();
    for turn in 1..=turns {
        let now = controller.now() + Seconds::new(2.0);
        let arrived = controller.engine().state().job_count();
        for job in instance.jobs[arrived..].iter().filter(|job| job.submit <= now) {
            controller.intake().submit_job(now, Arc::clone(job)).unwrap();
        }
        // Something is written down each time.
        controller.intake().set_budget(now, instance.budget.clone()).unwrap();
        controller.turn(now).unwrap();
        if turn.is_multiple_of(100) {
            controller.save(keep).unwrap();
        }
    }
    knows(&controller)
}

fn knows(controller: &Controller<Emulated>) -> u64 {
    controller.digest()
}

fn sql(path: &Path, statement: &str) -> usize {
    Connection::open(path).unwrap().execute(statement, ()).unwrap()
}

#[test]
fn the_newest_sound_snapshot_is_used() {
    let instance = instance(3);
    let folder = common::folder();
    let path = folder.path().join("journal");
    let knew = run(&instance, &path, 350, &Keep::default());
    let newest = |path: &Path| {
        let controller = open(&instance, path).unwrap();
        assert!(knows(&controller) == knew);
        let opened = controller.opened().clone();
        (opened.after, opened.refused.len(), controller.entries_to_read())
    };
    let (first, refused, left) = newest(&path);
    assert!(first > 300 && refused == 0 && left >= 50, "{first} {left}");

    // The newest is damaged: the one before is used.
    let damage = "UPDATE snapshot SET image =
                  CAST(substr(image, 1, 1000) || x'00ff00ff' || substr(image, 1005) AS BLOB)
                  WHERE number = (SELECT max(number) FROM snapshot)";
    assert_eq!(sql(&path, damage), 1);
    let (second, refused, _) = newest(&path);
    assert!(second < first && second > 0 && refused == 1, "{second} {first} {refused}");

    // The other is from another version: everything is read.
    assert_eq!(sql(&path, "UPDATE snapshot SET format = 99"), 2);
    assert_eq!(newest(&path).0, 0);
    let controller = open(&instance, &path).unwrap();
    let why = &controller.opened().refused;
    assert!(why.len() == 2 && why[1].1.contains("format 99"), "{why:?}");
    drop(controller);

    // Bytes that are sound and mean nothing.
    let mut store = Store::open(&path, &[]).unwrap();
    for saved in store.saved().unwrap() {
        store.save(saved, b"nonsense", &Keep::default()).unwrap();
    }
    drop(store);
    let opened = open(&instance, &path).unwrap().opened().clone();
    assert!(opened.after == 0 && opened.refused.len() == 2, "{opened:?}");

    // Of entries that are not there.
    sql(&path, "UPDATE snapshot SET number = number + 100000");
    assert_eq!(newest(&path).0, 0);
}

#[test]
fn old_entries_go_only_when_asked_to_and_when_nobody_needs_them() {
    let instance = instance(3);
    let folder = common::folder();
    let whole = folder.path().join("whole");
    let knew = run(&instance, &whole, 450, &Keep::default());
    let pruned = folder.path().join("pruned");
    let keep = Keep { younger_than: Some(Seconds::new(60.0)), ..Keep::default() };
    assert!(run(&instance, &pruned, 450, &keep) == knew);
    let store = Store::open(&whole, &[]).unwrap();
    assert_eq!(store.pruned().unwrap(), 0);
    drop(store);
    let store = Store::open(&pruned, &[]).unwrap();
    let saved = store.saved().unwrap();
    assert_eq!(saved.len(), 2);
    assert_eq!(store.pruned().unwrap(), saved[1].number);
    let mut entries = 0;
    let count = |_| -> Result<(), StoreError> {
        entries += 1;
        Ok(())
    };
    store.read(count).unwrap();
    assert_eq!(entries, store.len() - saved[1].number);
    drop(store);
    assert!(knows(&open(&instance, &pruned).unwrap()) == knew);

    // Either of the two will do; without both there is nothing to go on from.
    let newest = "DELETE FROM snapshot WHERE number = (SELECT max(number) FROM snapshot)";
    assert_eq!(sql(&pruned, newest), 1);
    assert!(knows(&open(&instance, &pruned).unwrap()) == knew);
    assert_eq!(sql(&pruned, newest), 1);
    let error = open(&instance, &pruned).err().unwrap();
    assert!(matches!(error, ControllerError::Store(StoreError::Pruned { .. })), "{error}");
}
