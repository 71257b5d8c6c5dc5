//! Many submissions at once are one plan.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{begin, instance, planner};
use std::sync::Arc;
use wattline_controller::Controller;
use wattline_controller::journal::Store;

#[test]
fn submissions_between_two_turns_are_one_plan() {
    let instance = instance(1);
    let folder = common::folder();
    let (begin, cluster) = begin(&instance);
    let store = Store::open(&folder.path().join("journal"), &[]).unwrap();
    let mut controller = Controller::open(begin, store, cluster, planner("fifo")).unwrap();
    for job in &instance.jobs {
        controller.intake().submit_job(job.submit, Arc::clone(job)).unwrap();
    }
    assert_eq!(controller.engine().stats().plans, 0, "nobody waits for a plan to submit");
    let now = controller.now();
    controller.turn(now).unwrap();
    assert_eq!(controller.engine().stats().plans, 1);
    assert!(controller.engine().state().held_jobs() > 0);
}
