//! Another policy goes on where the first one was, whatever happens in between.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{begin, instance};
use std::path::Path;
use std::sync::Arc;
use wattline_controller::store::{Entry, Keep, Store, StoreError};
use wattline_controller::{Controller, ControllerError, Emulated};
use wattline_core::units::Seconds;
use wattline_sim::instance::Instance;

fn open(instance: &Instance, begun: &str, path: &Path) -> Controller<Emulated> {
    // The cluster does not depend on who decides.
    let (mut begin, cluster) = begin(instance, "fifo");
    begin.engine.restore_policy((begin.policies)(begun).unwrap());
    Controller::reenact(begin, Store::open(path, &[]).unwrap(), cluster).unwrap()
}

/// Another policy after so many turns, again and again.
const CHANGES: [(u32, &str); 4] =
    [(20, "wattline+work=2000"), (40, "tiresias"), (41, "fifo"), (60, "wattline+work=2000")];

/// Runs all jobs to their end. It dies after each so many turns, and right after each change.
fn run(instance: &Instance, path: &Path, deaths: Option<u32>, saves: bool) -> Vec<Entry> {
    let mut controller = open(instance, "edf", path);
    let (mut turns, mut last) = (0_u32, instance.start);
    loop {
        let arrived = controller.engine().state().job_count();
        if arrived == instance.jobs.len() && controller.engine().state().unfinished() == 0 {
            break;
        }
        let now = last + Seconds::new(10.0);
        last = now;
        for job in instance.jobs[arrived..].iter().filter(|job| job.submit <= now) {
            controller.desk().submit_job(now, Arc::clone(job)).unwrap();
        }
        let change = CHANGES.iter().find(|(turn, _)| *turn == turns);
        if let Some((_, policy)) = change {
            assert!(controller.decide_by(now, "edf", policy).unwrap());
            assert!(!controller.decide_by(now, "edf", policy).unwrap());
            assert_eq!(controller.decides("edf"), *policy);
            if deaths.is_some() {
                drop(controller);
                controller = open(instance, "edf", path);
                assert_eq!(controller.decides("edf"), *policy);
            }
        }
        controller.turn(now).unwrap();
        turns += 1;
        assert!(turns < 10_000);
        if saves && turns.is_multiple_of(13) {
            controller.save(&Keep::default()).unwrap();
        }
        if deaths.is_some_and(|deaths| turns.is_multiple_of(deaths)) {
            drop(controller);
            controller = open(instance, "edf", path);
        }
    }
    let (last, _) = CHANGES[CHANGES.len() - 1];
    assert!(turns > last + 1, "{turns} turns: not all policies had their turn");
    let mut entries = Vec::new();
    let read = |mut entry: Entry| -> Result<(), StoreError> {
        entry.notes.clear();
        entries.push(entry);
        Ok(())
    };
    controller.desk().journal(|store| store.read(read)).unwrap();
    entries
}

#[test]
fn policies_change_in_the_middle_of_a_run() {
    for seed in [2, 3] {
        let instance = instance(seed);
        let folder = common::folder();
        let whole = run(&instance, &folder.path().join("whole"), None, false);
        let broken = run(&instance, &folder.path().join("broken"), Some(7), false);
        assert!(whole == broken, "seed {seed}: {} entries, {}", whole.len(), broken.len());
        let saved = run(&instance, &folder.path().join("saved"), Some(7), true);
        assert!(whole == saved, "seed {seed}: {} entries, {}", whole.len(), saved.len());
    }
}

#[test]
fn what_was_only_watched_is_decided_about_and_left_alone_again() {
    let instance = instance(2);
    let folder = common::folder();
    let path = folder.path().join("journal");
    let mut controller = open(&instance, "watch", &path);
    let mut now = instance.jobs.last().unwrap().submit;
    for job in &instance.jobs {
        controller.desk().submit_job(now, Arc::clone(job)).unwrap();
    }
    let turns = |controller: &mut Controller<Emulated>, now: &mut wattline_core::Timestamp| {
        for _ in 0..30 {
            *now = *now + Seconds::new(5.0);
            controller.turn(*now).unwrap();
        }
    };
    turns(&mut controller, &mut now);
    // There is a budget, and it is nobody's who only watches.
    assert!(instance.budget.is_some() && !controller.engine().decides());
    assert_eq!(controller.engine().stats().actions, 0);

    drop(controller);
    let mut controller = open(&instance, "watch", &path);
    assert!(controller.decide_by(now, "watch", "edf").unwrap());
    turns(&mut controller, &mut now);
    let running = controller.engine().state().held_jobs();
    assert!(running > 0, "nothing was started");

    drop(controller);
    let mut controller = open(&instance, "watch", &path);
    assert_eq!(controller.decides("watch"), "edf");
    assert!(controller.decide_by(now, "watch", "watch").unwrap());
    let actions = controller.engine().stats().actions;
    for _ in 0..400 {
        turns(&mut controller, &mut now);
    }
    // What ran has ended, and nothing was started after it.
    let state = controller.engine().state();
    assert_eq!((state.held_jobs(), controller.engine().stats().actions), (0, actions));
    assert!(state.unfinished() > 0);

    assert!(matches!(
        controller.decide_by(now, "watch", "nonsense"),
        Err(ControllerError::Policy(_))
    ));
    assert_eq!(controller.decides("watch"), "watch");
}
