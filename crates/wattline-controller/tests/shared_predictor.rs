//! A predictor beside the engine's, and what the engine counts, over whole runs with faults.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{begin, folder, instance, planner};
use std::sync::Arc;
use wattline_controller::journal::{Keep, Store};
use wattline_controller::{Controller, Emulated};
use wattline_core::engine::Engine;
use wattline_core::ids::{ActionId, JobId};
use wattline_core::predictor::Predictor;

/// Turns it so often, or until all jobs are done.
fn turn(
    controller: &mut Controller<Emulated>,
    turns: u32,
    mut each: impl FnMut(&mut Controller<Emulated>),
) {
    // What was submitted is heard at the first turn.
    let mut now = controller.now();
    for _ in 0..turns {
        controller.turn(now).unwrap();
        each(controller);
        let left = controller.engine().state().unfinished();
        match controller.next_turn().filter(|_| left > 0) {
            Some(next) => now = next,
            None => return,
        }
    }
}

/// They say the same of every job in every shape.
fn assert_same(engine: &Engine<'_>, copy: &dyn Predictor) -> usize {
    let state = engine.state();
    let mut measured = 0;
    for id in (0..state.job_count() as u32).map(JobId) {
        let job = state.job(id);
        for shape in state.cluster().menu(&job.job).iter() {
            let configuration = state.cluster().plain_configuration(&job.job, *shape);
            let one = engine.predictor().predict(&job.job, &configuration);
            assert_eq!(one, copy.predict(&job.job, &configuration), "{id}");
            measured += one.map_or(0, |p| usize::from(p.measurements > 0));
        }
        assert_eq!(engine.predictor().restart(&job.job), copy.restart(&job.job));
    }
    measured
}

#[test]
fn a_shared_predictor_that_hears_the_same_says_the_same_also_after_a_restart() {
    let mut measured = 0;
    for seed in (0..6).map(wattline_testing::seed) {
        let instance = instance(seed);
        let folder = folder();
        let path = folder.path().join("journal");
        let (begun, cluster) = begin(&instance);
        let store = Store::open(&path, &[]).unwrap();
        let mut controller =
            Controller::open_emulated(begun, store, cluster, planner("edf")).unwrap();
        for job in &instance.jobs {
            controller.intake().submit_job(job.submit, Arc::clone(job)).unwrap();
        }
        let mut copy = controller.engine().predictor().shared_copy().unwrap();
        turn(&mut controller, 60, |controller| {
            controller.take_learned().iter().for_each(|measured| copy.observe(measured));
        });
        assert_same(controller.engine(), &*copy);
        // After a restart, from a snapshot, with a copy of its own.
        controller.save(&Keep::default()).unwrap();
        drop(controller);
        let (begun, cluster) = begin(&instance);
        let store = Store::open(&path, &[]).unwrap();
        let mut controller =
            Controller::open_emulated(begun, store, cluster, planner("edf")).unwrap();
        assert!(controller.take_learned().is_empty(), "what was before is in the copy already");
        let mut copy = controller.engine().predictor().shared_copy().unwrap();
        turn(&mut controller, 100_000, |controller| {
            controller.take_learned().iter().for_each(|measured| copy.observe(measured));
        });
        measured += assert_same(controller.engine(), &*copy);
    }
    assert!(measured > 0, "something was learned");
}

#[test]
fn what_came_of_actions_adds_up_under_faults_and_survives_a_restart() {
    let mut failed = 0;
    for seed in (0..20).map(wattline_testing::seed) {
        let instance = instance(seed);
        let folder = folder();
        let path = folder.path().join("journal");
        let (begun, cluster) = begin(&instance);
        let mut controller = Controller::open_emulated(
            begun,
            Store::open(&path, &[]).unwrap(),
            cluster,
            planner("wattline"),
        )
        .unwrap();
        for job in &instance.jobs {
            controller.intake().submit_job(job.submit, Arc::clone(job)).unwrap();
        }
        turn(&mut controller, 100_000, |_| ());
        let engine = controller.engine();
        let stats = engine.stats();
        let sent: u64 = stats.outcomes.handed_out().map(|(_, count)| count).sum();
        let ended: u64 = stats.outcomes.counts().map(|(.., count)| count).sum();
        let under_way = (0..stats.actions * 2).filter(|id| engine.is_under_way(ActionId(*id)));
        assert_eq!(sent, stats.actions, "seed {seed}");
        assert_eq!(sent, ended + under_way.count() as u64, "seed {seed}: {stats:?}");
        failed += stats.failures;
        // What the nodes have drawn is what the cluster has drawn.
        let now = controller.now();
        controller.backend_mut().close(now);
        let (engine, world) = (controller.engine(), controller.backend().world());
        let nodes = engine.state().cluster().node_ids().map(|id| world.node_energy(id, now));
        let nodes: f64 = nodes.map(wattline_core::units::Joules::get).sum();
        let metered = world.meter().energy().total.get();
        assert!((nodes / metered - 1.0).abs() < 1e-9, "{nodes} {metered}");
        drop(controller);
        let (begun, cluster) = begin(&instance);
        let again = Controller::open_emulated(
            begun,
            Store::open(&path, &[]).unwrap(),
            cluster,
            planner("wattline"),
        )
        .unwrap();
        assert_eq!(again.engine().stats().outcomes, stats.outcomes, "seed {seed}");
    }
    assert!(failed > 0);
}
