//! Controllers that die at any point, messages that are lost, doubled, late and out of order, a
//! clock that jumps, a disk that is full, torn writes: no job is lost or run twice, the budget
//! holds, and what a new controller knows is what the dead one knew.
//!
//! A seed that fails is printed; `WATTLINE_SEED=N cargo test -p wattline-controller --test faults`
//! runs that one alone.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{begin, instance, planner};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use wattline_controller::journal::{Entry, Keep, Store, StoreError};
use wattline_controller::{
    Backend, BackendError, Controller, ControllerError, Emulated, InlinePlanner, Known, Report,
};
use wattline_core::Timestamp;
use wattline_core::action::Action;
use wattline_core::effort::Effort;
use wattline_core::engine::Event;
use wattline_core::ids::JobId;
use wattline_core::power::TOLERANCE;
use wattline_core::units::Seconds;
use wattline_sim::instance::Instance;

const SEEDS: u64 = 2000;
/// After so many turns everything works again, so that the jobs can end.
const CALM_AFTER: u32 = 250;
const MOST_TURNS: u32 = 4000;
const DAY: f64 = 86_400.0;

/// A controller died here.
struct Died;

type Cluster = Rc<RefCell<Emulated>>;

/// The way to the cluster, which is not to be trusted.
struct Flaky {
    cluster: Cluster,
    random: Rc<RefCell<Pcg64Mcg>>,
    /// Messages under way.
    late: Rc<RefCell<Vec<Action>>>,
    /// The time where the cluster is.
    true_time: Rc<RefCell<Timestamp>>,
    calm: Rc<RefCell<bool>>,
}

impl Flaky {
    fn happens(&self, chance: f64) -> bool {
        !*self.calm.borrow() && self.random.borrow_mut().random_bool(chance)
    }
    fn die(&self, chance: f64) {
        if self.happens(chance) {
            panic_any(Died);
        }
    }
    fn fail<T>(&self) -> Result<T, BackendError> {
        Err(BackendError("broken".into()))
    }
    fn deliver(&self, action: &Action, known: Known<'_>) {
        let now = *self.true_time.borrow();
        self.cluster.borrow_mut().send(now, action, known).unwrap();
    }
}

impl Backend for Flaky {
    fn send(
        &mut self,
        _: Timestamp,
        action: &Action,
        known: Known<'_>,
    ) -> Result<(), BackendError> {
        self.die(0.02);
        if self.happens(0.1) {
            // Lost, and nobody notices.
            return Ok(());
        }
        if self.happens(0.1) {
            self.late.borrow_mut().push(action.clone());
            return Ok(());
        }
        self.deliver(action, known);
        if self.happens(0.1) {
            self.late.borrow_mut().push(action.clone());
        }
        self.die(0.02);
        // Heard, but the answer is lost.
        if self.happens(0.1) { self.fail() } else { Ok(()) }
    }

    fn reports(
        &mut self,
        _: Timestamp,
        from: u64,
        known: Known<'_>,
    ) -> Result<Vec<Report>, BackendError> {
        self.die(0.01);
        if self.happens(0.1) {
            return self.fail();
        }
        let late = std::mem::take(&mut *self.late.borrow_mut());
        for action in late {
            if self.happens(0.5) {
                self.late.borrow_mut().push(action);
            } else {
                self.deliver(&action, known);
            }
        }
        let now = *self.true_time.borrow();
        let mut reports = self.cluster.borrow_mut().reports(now, from, known)?;
        if self.happens(0.3) {
            let kept = |_: &Report| !self.random.borrow_mut().random_bool(0.2);
            reports.retain(kept);
            reports.extend(reports.clone().into_iter().take(3));
            reports.shuffle(&mut *self.random.borrow_mut());
        }
        Ok(reports)
    }

    fn next_event(&self) -> Option<Timestamp> {
        self.cluster.borrow().next_event()
    }
}

/// All that outlives a controller.
struct TestBed {
    instance: Instance,
    policy: &'static str,
    cluster: Cluster,
    random: Rc<RefCell<Pcg64Mcg>>,
    late: Rc<RefCell<Vec<Action>>>,
    true_time: Rc<RefCell<Timestamp>>,
    calm: Rc<RefCell<bool>>,
    folder: PathBuf,
    lives: u32,
    /// How much of what was being written came to the disk.
    torn: Cell<Option<u64>>,
}

impl TestBed {
    fn happens(&self, chance: f64) -> bool {
        !*self.calm.borrow() && self.random.borrow_mut().random_bool(chance)
    }

    fn die(&self, chance: f64) {
        if self.happens(chance) {
            panic_any(Died);
        }
    }

    fn journal(&self) -> PathBuf {
        self.folder.join(format!("journal-{}", self.lives))
    }

    fn controller(&self) -> Controller<Flaky> {
        let flaky = Flaky {
            cluster: Rc::clone(&self.cluster),
            random: Rc::clone(&self.random),
            late: Rc::clone(&self.late),
            true_time: Rc::clone(&self.true_time),
            calm: Rc::clone(&self.calm),
        };
        let store = Store::open(&self.journal(), &[("cluster", &self.instance.name)]).unwrap();
        let (begin, _) = begin(&self.instance);
        Controller::open(begin, store, flaky, planner(self.policy)).unwrap()
    }

    /// The files as a process leaves them that is gone at once, with what it was about to write.
    fn leave_behind(&mut self) {
        let (old, _) = (self.journal(), self.lives += 1);
        copy(&old, &self.journal());
        let (old, new) = (wal(&old), wal(&self.journal()));
        if old.exists() {
            copy(&old, &new);
            if let Some(half) = self.torn.take() {
                std::fs::File::options().write(true).open(&new).unwrap().set_len(half).unwrap();
            }
            let mut random = self.random.borrow_mut();
            if random.random_bool(0.5) {
                let torn: Vec<u8> =
                    (0..random.random_range(1..5000)).map(|_| random.random()).collect();
                let mut bytes = std::fs::read(&new).unwrap();
                bytes.extend(torn);
                std::fs::write(&new, bytes).unwrap();
            }
        }
    }
}

fn wal(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |file| file.len())
}

fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap();
}

fn run(seed: u64, folder: &Path) {
    let policies = ["fifo", "edf", "wattline+work=2000", "tiresias"];
    let instance = instance(seed);
    let policy = policies[(seed % 4) as usize];
    let mut bed = TestBed {
        policy,
        cluster: Rc::new(RefCell::new(begin(&instance).1)),
        random: Rc::new(RefCell::new(Pcg64Mcg::seed_from_u64(seed))),
        late: Rc::default(),
        true_time: Rc::new(RefCell::new(instance.start)),
        calm: Rc::default(),
        folder: folder.to_owned(),
        lives: 0,
        torn: Cell::new(None),
        instance,
    };
    let mut controller = bed.controller();
    let mut acknowledged: Vec<JobId> = Vec::new();
    let jobs = bed.instance.jobs.clone();
    let mut turns = 0;
    while acknowledged.len() < jobs.len() || controller.engine().state().unfinished() > 0 {
        turns += 1;
        let late = *bed.true_time.borrow() > bed.instance.start + Seconds::new(DAY);
        assert!(!late, "jobs of some minutes take more than a day");
        assert!(turns < MOST_TURNS, "{} jobs never end", controller.engine().state().unfinished());
        *bed.calm.borrow_mut() = turns > CALM_AFTER;
        let calm = turns > CALM_AFTER;
        let arrival = jobs.get(acknowledged.len()).map(|job| job.submit);
        let happens = |chance: f64| !calm && bed.random.borrow_mut().random_bool(chance);
        // Sometimes nobody turns the handle for a while.
        let idle = if happens(0.2) { 30.0 } else { 0.5 };
        let soonest = *bed.true_time.borrow() + Seconds::new(idle);
        let next = controller.next_turn().into_iter().chain(arrival).min();
        let now = next.map_or(soonest, |next| next.max(soonest));
        *bed.true_time.borrow_mut() = now;
        let told = if happens(0.1) {
            let off: f64 = bed.random.borrow_mut().random_range(-3600.0..30.0);
            now + Seconds::new(off)
        } else {
            now
        };
        if happens(0.05) {
            let size = std::fs::metadata(bed.journal()).unwrap().len();
            controller.intake().journal(|store| store.limit_size(size)).unwrap();
        } else {
            controller.intake().journal(|store| store.limit_size(1 << 40)).unwrap();
        }
        let other = happens(0.01).then(|| policies[bed.random.borrow_mut().random_range(0..4)]);
        let hurries = happens(0.5).then(|| Effort::new(bed.random.borrow_mut().random()));
        let cancels = !acknowledged.is_empty() && happens(0.01);
        let (saves, prunes) = (happens(0.1), seed.is_multiple_of(7));
        let life = catch_unwind(AssertUnwindSafe(|| {
            while let Some(job) = jobs.get(acknowledged.len()).filter(|job| job.submit <= now) {
                match controller.intake().submit_job(told, Arc::clone(job)) {
                    Ok(id) => acknowledged.push(id),
                    Err(error) => return Err(error),
                }
            }
            if cancels {
                controller.intake().cancel(told, JobId(acknowledged.len() as u32 / 2))?;
            }
            if let Some(other) = other {
                let policy = wattline_policies::policy(other).unwrap();
                let planner = InlinePlanner::new(other, policy);
                controller.set_planner(Box::new(planner.with_effort(hurries.unwrap_or_default())));
                bed.die(0.2);
            }
            controller.turn(told)?;
            if saves {
                // Dies before, and after; the disk may be full in between.
                bed.die(0.1);
                let younger_than = prunes.then_some(Seconds::new(120.0));
                let keep = Keep { younger_than, ..Keep::default() };
                let before = length(&wal(&bed.journal()));
                controller.save(&keep)?;
                let half = before + (length(&wal(&bed.journal())) - before) / 2;
                // Or in the midst of it, with a part of it on the disk.
                if half > before && bed.happens(0.1) {
                    bed.torn.set(Some(half));
                    panic_any(Died);
                }
                bed.die(0.1);
            }
            Ok(())
        }));
        match life {
            Ok(Ok(())) => {}
            Ok(Err(ControllerError::Backend(_) | ControllerError::Store(StoreError::Full(_)))) => {}
            Ok(Err(error)) => panic!("{error}"),
            Err(death) if death.is::<Died>() => {
                let knew = controller.digest();
                bed.leave_behind();
                drop(controller);
                controller = bed.controller();
                assert_eq!(controller.digest(), knew, "another state");
            }
            Err(other) => std::panic::resume_unwind(other),
        }
        // A node that is lost counts at its worst at once, and others make room after that.
        if bed.instance.world.faults.is_none() {
            let committed = controller.engine().state().held_committed();
            let budget = bed.instance.budget.as_ref().map(|budget| budget.at(controller.now()));
            assert!(budget.is_none_or(|b| committed <= b + TOLERANCE), "above the budget");
        }
    }
    assert_eq!(acknowledged, (0..jobs.len() as u32).map(JobId).collect::<Vec<_>>());
    let mut cluster = bed.cluster.borrow_mut();
    cluster.close(*bed.true_time.borrow());
    assert_eq!(cluster.world().meter().over_budget(), Seconds::ZERO, "drawn above the budget");
    each_ran_once(&controller);
}

/// By the journal: nobody was started while it ran, and everybody finished once.
fn each_ran_once(controller: &Controller<Flaky>) {
    let mut runs: BTreeMap<JobId, bool> = BTreeMap::new();
    let mut finished: BTreeMap<JobId, u32> = BTreeMap::new();
    let mut cancelled: BTreeSet<JobId> = BTreeSet::new();
    let mut last = Timestamp::ZERO;
    let read = |entry: Entry| -> Result<(), StoreError> {
        assert!(entry.at >= last, "time goes back");
        last = entry.at;
        for event in entry.events {
            match event {
                Event::Cancelled(job) => drop(cancelled.insert(job)),
                Event::Started { job, .. } => {
                    assert_eq!(runs.insert(job, true).filter(|runs| *runs), None, "{job} twice");
                }
                Event::Stopped { job, .. } => assert_eq!(runs.insert(job, false), Some(true)),
                Event::Finished(job) => {
                    assert_eq!(runs.insert(job, false), Some(true));
                    *finished.entry(job).or_default() += 1;
                }
                _ => {}
            }
        }
        Ok(())
    };
    if controller.intake().journal(Store::pruned).unwrap() > 0 {
        // The beginning is gone; the engine has counted.
        assert_eq!(controller.engine().state().unfinished(), 0);
        return;
    }
    controller.intake().journal(|store| store.read(read)).unwrap();
    let jobs = controller.engine().state().job_count();
    assert!(finished.values().all(|times| *times == 1));
    assert!(runs.values().all(|runs| !runs), "somebody runs after the end");
    for id in (0..jobs as u32).map(JobId) {
        assert!(finished.contains_key(&id) || cancelled.contains(&id), "{id} never finished");
    }
}

#[test]
fn nothing_is_lost_and_nothing_happens_twice() {
    let seeds: Vec<u64> = match std::env::var("WATTLINE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..SEEDS).map(wattline_testing::seed).collect(),
    };
    // Deaths are part of the play.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Died>() {
            usual(info);
        }
    }));
    let half = seeds.len().div_ceil(2);
    let failed: Vec<u64> = std::thread::scope(|scope| {
        let halves: Vec<_> = seeds.chunks(half).map(|seeds| scope.spawn(|| play(seeds))).collect();
        halves.into_iter().flat_map(|half| half.join().unwrap()).collect()
    });
    assert!(failed.is_empty(), "seeds that fail: {failed:?}");
}

fn play(seeds: &[u64]) -> Vec<u64> {
    let mut failed = Vec::new();
    for seed in seeds {
        let folder = common::folder();
        if catch_unwind(|| run(*seed, folder.path())).is_err() {
            eprintln!("WATTLINE_SEED={seed} fails");
            failed.push(*seed);
        }
    }
    failed
}
