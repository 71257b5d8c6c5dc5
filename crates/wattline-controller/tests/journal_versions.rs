//! Journals of each version, kept in the tree: what they say must mean the same for ever.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{begin, instance, planner};
use std::path::Path;
use std::sync::Arc;
use wattline_controller::journal::Store;
use wattline_controller::{Controller, Origin, Submission};
use wattline_core::ids::JobId;
use wattline_core::units::{EurosPerSecond, Seconds};

/// Two hours of a small cluster on which nodes are lost and actions fail, with one of each request.
fn record(path: &Path) {
    let instance = instance(10);
    let (initial, cluster) = begin(&instance);
    let store = Store::open(path, &[("cluster", "fixture")]).unwrap();
    let policy = planner("wattline+work=500");
    let mut controller = Controller::open_emulated(initial, store, cluster, policy).unwrap();
    let mut next = 0;
    for turn in 0..100 {
        let now = controller.now() + Seconds::new(47.0);
        while let Some(job) = instance.jobs.get(next).filter(|job| job.submit <= now) {
            let origin = Origin { user: "alice".into(), slurm: None };
            let submission = Submission {
                job: (**job).clone(),
                workload: None,
                origin: Some(origin),
                hold: next == 3,
            };
            controller.desk().submit_once(now, submission, &format!("alice/{next}"), 7).unwrap();
            next += 1;
        }
        let desk = controller.desk().clone();
        match turn {
            20 => desk.set_prices(now, instance.prices.clone()).unwrap(),
            30 => {
                desk.set_budget(now, instance.budget.clone().map(|b| b.map(|w| w * 0.8))).unwrap()
            }
            40 => desk.set_budget(now, instance.budget.clone()).unwrap(),
            50 => desk.hold(now, JobId(3), false).unwrap(),
            51 => desk.update(now, JobId(3), None, EurosPerSecond::new(0.01)).unwrap(),
            60 => desk.cancel(now, JobId(4)).unwrap(),
            _ => {}
        }
        controller.turn(now).unwrap();
        while controller.poll_alert().is_some() {}
    }
    assert_eq!(next, instance.jobs.len());
}

/// Writes the fixture anew; see `fixtures/README.md`.
#[test]
#[ignore = "writes into the tree"]
fn write_fixture() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/journal-new.sqlite");
    record(&path);
}
