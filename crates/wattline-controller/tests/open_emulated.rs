//! An emulated cluster that dies with its controller goes on as if nothing had been.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{begin, instance, planner};
use std::path::Path;
use std::sync::Arc;
use wattline_controller::journal::{Keep, Store};
use wattline_controller::{Controller, ControllerError, Emulated};
use wattline_core::units::Seconds;
use wattline_sim::instance::Instance;

const POLICY: &str = "wattline+work=2000";

fn open(instance: &Instance, path: &Path) -> Controller<Emulated> {
    let (begin, cluster) = begin(instance);
    let store = Store::open(path, &[]).unwrap();
    Controller::open_emulated(begin, store, cluster, planner(POLICY)).unwrap()
}

/// All that has become of the cluster.
fn cluster(controller: &Controller<Emulated>) -> String {
    format!("{:?}", controller.backend().world().image())
}

/// Runs all jobs to their end with a turn every `pause` seconds; the process dies after each so
/// many turns.
fn run(
    instance: &Instance,
    path: &Path,
    pause: f64,
    deaths: Option<u32>,
    saves: Option<u32>,
) -> Controller<Emulated> {
    let mut controller = open(instance, path);
    let (mut turns, mut last) = (0_u32, instance.start);
    loop {
        let arrived = controller.engine().state().job_count();
        if arrived == instance.jobs.len() && controller.engine().state().unfinished() == 0 {
            break;
        }
        let now = last + Seconds::new(pause);
        last = now;
        for job in &instance.jobs[arrived..] {
            if job.submit <= now {
                controller.intake().submit_job(now, Arc::clone(job)).unwrap();
            }
        }
        // A turn is made at its time even if nothing is written down then.
        controller.intake().set_prices(now, instance.prices.clone()).unwrap();
        controller.turn(now).unwrap();
        turns += 1;
        assert!(turns < 10_000);
        if saves.is_some_and(|saves| turns.is_multiple_of(saves)) {
            controller.save(&Keep::default()).unwrap();
        }
        if deaths.is_some_and(|deaths| turns.is_multiple_of(deaths)) {
            let (knew, did) = (controller.digest(), cluster(&controller));
            drop(controller);
            controller = open(instance, path);
            assert_eq!(controller.digest(), knew, "after {turns} turns");
            assert!(cluster(&controller) == did, "after {turns} turns");
        }
    }
    controller
}

#[test]
fn after_a_death_the_controller_and_its_cluster_are_as_they_were() {
    for (seed, pause, deaths) in
        [(1, 3.0, 97), (2, 7.0, 31), (5, 25.0, 7), (6, 60.0, 3), (7, 200.0, 2)]
    {
        let instance = instance(seed);
        let folder = common::folder();
        run(&instance, &folder.path().join("broken"), pause, Some(deaths), None);
        let path = folder.path().join("saved");
        let saved = run(&instance, &path, pause, Some(deaths), Some(deaths / 2 + 1));
        drop(saved);
        assert!(open(&instance, &path).opened().after > 0);
    }
}

#[test]
fn a_cluster_that_does_otherwise_is_noticed() {
    let mut instance = instance(1);
    let folder = common::folder();
    let path = folder.path().join("journal");
    drop(run(&instance, &path, 10.0, None, None));
    instance.world.noise = 0.3;
    instance.world.measure_every = Some(Seconds::new(59.0));
    let (begin, cluster) = begin(&instance);
    let store = Store::open(&path, &[]).unwrap();
    let error = Controller::open_emulated(begin, store, cluster, planner(POLICY)).err().unwrap();
    assert!(matches!(error, ControllerError::EmulationDiffers(_)), "{error}");
}
