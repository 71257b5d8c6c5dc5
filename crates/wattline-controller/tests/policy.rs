//! Who decides may change, from a restart to the next or in between: the state follows from the
//! journal alone, and nobody plans while it is read.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{begin, instance, planner};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use wattline_controller::journal::{Keep, Store};
use wattline_controller::{Controller, Emulated, InlinePlanner, Planner};
use wattline_core::Timestamp;
use wattline_core::plan::Plan;
use wattline_core::policy::{ClusterView, Policy};
use wattline_core::units::Seconds;
use wattline_sim::instance::Instance;

fn open(instance: &Instance, path: &Path, planner: Box<dyn Planner>) -> Controller<Emulated> {
    let (initial, cluster) = begin(instance);
    let store = Store::open(path, &[]).unwrap();
    Controller::open_emulated(initial, store, cluster, planner).unwrap()
}

/// Counts how often it is asked, and breaks ties the other way round: what the policy inside names
/// first, it names last.
struct Counted {
    inner: Box<dyn Policy>,
    asked: Arc<AtomicUsize>,
}

impl Policy for Counted {
    fn name(&self) -> &str {
        "counted"
    }
    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut plan = self.inner.plan(view);
        plan.jobs.reverse();
        plan.nodes.reverse();
        plan
    }
}

fn counted(name: &str) -> (Box<dyn Planner>, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let inner = wattline_policies::policy(name).unwrap();
    let policy = Counted { inner, asked: Arc::clone(&asked) };
    (Box::new(InlinePlanner::new(name, Box::new(policy))), asked)
}

/// Lets a controller work for so many turns; says at which time it ended.
fn work(controller: &mut Controller<Emulated>, instance: &Instance, turns: u32, pause: f64) {
    for _ in 0..turns {
        let now = controller.now() + Seconds::new(pause);
        let arrived = controller.engine().state().job_count();
        for job in instance.jobs[arrived..].iter().filter(|job| job.submit <= now) {
            controller.intake().submit_job(now, Arc::clone(job)).unwrap();
        }
        // A turn is made at its time even if nothing is written down then.
        controller.intake().set_prices(now, instance.prices.clone()).unwrap();
        controller.turn(now).unwrap();
    }
}

/// An upgrade is safe: a journal written under one policy and seed is opened under another, with
/// ties broken the other way round, at random points of random runs. Here on from a snapshot too.
#[test]
fn a_journal_read_under_another_policy_gives_the_same_state() {
    let policies = ["wattline+work=500+seed=1", "edf", "fifo", "tiresias", "andreas", "ones"];
    let others = ["wattline+work=700+seed=2", "priority", "powerflow", "fifo+backfill"];
    let mut decided = 0;
    for seed in (0..60).map(wattline_testing::seed) {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let instance = instance(seed);
        let folder = common::folder();
        let path = folder.path().join("journal");
        let first = policies[seed as usize % policies.len()];
        let mut controller = open(&instance, &path, planner(first));
        let pause = [2.0, 11.0, 60.0][seed as usize % 3];
        work(&mut controller, &instance, random.random_range(1..120), pause);
        if seed % 4 == 1 {
            controller.save(&Keep::default()).unwrap();
            work(&mut controller, &instance, random.random_range(0..40), pause);
        }
        let (knew, plan) = (controller.digest(), controller.engine().plan_id());
        decided += plan.0;
        let by = controller.last_policy().map(str::to_owned);
        drop(controller);
        let (other, asked) = counted(others[seed as usize % others.len()]);
        let mut controller = open(&instance, &path, other);
        assert_eq!(controller.digest(), knew, "seed {seed}: {first} decided, another state");
        assert_eq!(controller.engine().plan_id(), plan);
        assert_eq!(controller.last_policy().map(str::to_owned), by);
        assert_eq!(asked.load(Ordering::Relaxed), 0, "seed {seed}: planned during a replay");
        // And it goes on from there.
        work(&mut controller, &instance, 200, 20.0);
        assert!(asked.load(Ordering::Relaxed) > 0);
    }
    assert!(decided > 200, "{decided} plans in all: the runs are too short to say anything");
}

#[test]
fn what_was_only_watched_is_decided_about_and_left_alone_again() {
    let instance = instance(2);
    let folder = common::folder();
    let path = folder.path().join("journal");
    let mut controller = open(&instance, &path, planner("watch"));
    let mut now = instance.jobs.last().unwrap().submit;
    for job in &instance.jobs {
        controller.intake().submit_job(now, Arc::clone(job)).unwrap();
    }
    let turns = |controller: &mut Controller<Emulated>, now: &mut Timestamp| {
        for _ in 0..30 {
            *now = *now + Seconds::new(5.0);
            controller.turn(*now).unwrap();
        }
    };
    turns(&mut controller, &mut now);
    // There is a budget, and nobody keeps it who only watches.
    assert!(instance.budget.is_some() && !controller.engine().controls());
    assert_eq!(controller.engine().stats().actions, 0);

    drop(controller);
    let mut controller = open(&instance, &path, planner("watch"));
    controller.set_planner(planner("edf"));
    turns(&mut controller, &mut now);
    let running = controller.engine().state().held_jobs();
    assert!(running > 0, "nothing was started");

    drop(controller);
    let mut controller = open(&instance, &path, planner("watch"));
    assert_eq!(controller.last_policy(), Some("edf"));
    let actions = controller.engine().stats().actions;
    for _ in 0..400 {
        turns(&mut controller, &mut now);
    }
    // What ran has ended, and nothing was started after it.
    let state = controller.engine().state();
    assert_eq!((state.held_jobs(), controller.engine().stats().actions), (0, actions));
    assert!(state.unfinished() > 0);
    // That nothing is wanted any more is in the journal too.
    let knew = controller.digest();
    drop(controller);
    assert_eq!(open(&instance, &path, planner("edf")).digest(), knew);
}
