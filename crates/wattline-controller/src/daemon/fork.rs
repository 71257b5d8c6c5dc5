//! Copies of the engine, for whoever looks ahead beside the loop.
//!
//! Whoever wants one asks; the loop makes it between two turns, which takes as long as copying its
//! state does, and goes on. What is done with the copy is no business of the loop. A copy predicts
//! with a [`SharedPredictor`] of the engine's predictor: it hears every measurement that the engine hears, so
//! that both say the same, and neither waits for the other.

use super::read_model::ReadModel;
use super::shared::Daemon;
use crate::job_registry::JobRegistry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use wattline_core::Timestamp;
use wattline_core::engine::Engine;
use wattline_core::job::{Job, RestartCost};
use wattline_core::placement::Configuration;
use wattline_core::predictor::{Measurement, Prediction, Predictor};

/// The loop spends at most one part in so many on copies.
const SHARE: u32 = 50;
/// How often whoever waits for a copy looks whether all is over.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A predictor that knows what the engine's does.
#[derive(Clone)]
pub(super) struct SharedPredictor(Arc<Parts>);

struct Parts {
    predictor: RwLock<Box<dyn Predictor>>,
    /// What the engine has heard and the shared predictor has not.
    unheard: Mutex<Vec<Measurement>>,
}

impl SharedPredictor {
    pub(super) fn of(predictor: &dyn Predictor) -> Option<Self> {
        let (predictor, unheard) = (RwLock::new(predictor.shared_copy()?), Mutex::default());
        Some(Self(Arc::new(Parts { predictor, unheard })))
    }

    /// What the engine has heard.
    fn tell(&self, measured: Vec<Measurement>) {
        if !measured.is_empty() {
            self.0.unheard.lock().unwrap_or_else(PoisonError::into_inner).extend(measured);
        }
    }

    /// Takes in what it was told. Not for the loop.
    pub(super) fn learn(&self) {
        let unheard =
            std::mem::take(&mut *self.0.unheard.lock().unwrap_or_else(PoisonError::into_inner));
        if unheard.is_empty() {
            return;
        }
        let mut predictor = self.0.predictor.write().unwrap_or_else(PoisonError::into_inner);
        unheard.iter().for_each(|measured| predictor.observe(measured));
    }

    fn ask<T>(&self, ask: impl FnOnce(&dyn Predictor) -> T) -> T {
        ask(&**self.0.predictor.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Predictor for SharedPredictor {
    fn predict(&self, job: &Job, configuration: &Configuration) -> Option<Prediction> {
        self.ask(|predictor| predictor.predict(job, configuration))
    }
    fn restart(&self, job: &Job) -> RestartCost {
        self.ask(|predictor| predictor.restart(job))
    }
    /// It learns what happens, not what is foreseen.
    fn observe(&mut self, _: &Measurement) {}
}

/// A copy of all that the loop knows.
pub(super) struct Fork {
    pub(super) engine: Engine<'static>,
    pub(super) registry: JobRegistry,
    /// Built when the copy was made.
    pub(super) read_model: Arc<ReadModel>,
    pub(super) now: Timestamp,
    pub(super) made: Instant,
}

/// The loop's side.
pub(super) struct ForkServer {
    requests: Receiver<Sender<Fork>>,
    waiting: Vec<Sender<Fork>>,
    shared_predictor: Option<SharedPredictor>,
    last: Option<(Instant, Duration)>,
}

impl ForkServer {
    pub(super) fn new(
        requests: Receiver<Sender<Fork>>,
        shared_predictor: Option<SharedPredictor>,
    ) -> Self {
        Self { requests, waiting: Vec::new(), shared_predictor, last: None }
    }

    /// What the engine has heard.
    pub(super) fn tell(&self, measured: Vec<Measurement>) {
        if let Some(shared_predictor) = &self.shared_predictor {
            shared_predictor.tell(measured);
        }
    }

    /// Whether somebody wants a copy and the last one was long enough ago.
    pub(super) fn is_due(&mut self) -> bool {
        self.waiting.extend(self.requests.try_iter());
        let rested = |(at, took): (Instant, Duration)| at.elapsed() >= took * SHARE;
        !self.waiting.is_empty() && self.last.is_none_or(rested)
    }

    /// Gives everybody who waits a copy. Says how long that took.
    pub(super) fn send_forks(
        &mut self,
        engine: &Engine<'static>,
        registry: &JobRegistry,
        read_model: &Arc<ReadModel>,
        now: Timestamp,
    ) -> Duration {
        let began = Instant::now();
        let Some(shared_predictor) = &self.shared_predictor else {
            // They are told by being left alone.
            self.waiting.clear();
            return Duration::ZERO;
        };
        for who in self.waiting.drain(..) {
            let fork = Fork {
                engine: engine.fork_onto(Box::new(shared_predictor.clone())),
                registry: registry.clone(),
                read_model: Arc::clone(read_model),
                now,
                made: Instant::now(),
            };
            // He may be gone.
            let _ = who.send(fork);
        }
        let took = began.elapsed();
        self.last = Some((Instant::now(), took));
        took
    }
}

/// The side of those who look ahead.
pub(super) struct ForkClient {
    pub(super) daemon: Daemon,
    pub(super) shared_predictor: Option<SharedPredictor>,
    /// Whoever listens is told what the policy would do.
    pub(super) advises: Arc<AtomicBool>,
    /// The loop is over.
    pub(super) over: Arc<AtomicBool>,
}

impl ForkClient {
    pub(super) fn advises(&self) -> bool {
        self.advises.load(Ordering::Relaxed)
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Asks the loop for a copy and waits for it. None: it did not come in time, or there is none.
    pub(super) fn fork(&self, patience: Duration) -> Option<Fork> {
        let shared_predictor = self.shared_predictor.as_ref()?;
        let (tell, told) = channel();
        if !self.daemon.ask_for_fork(tell) {
            return None;
        }
        let began = Instant::now();
        while began.elapsed() < patience && !self.is_over() {
            match told.recv_timeout(LOOK_EVERY) {
                Ok(fork) => {
                    shared_predictor.learn();
                    return Some(fork);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        None
    }

    /// Sleeps, unless the loop ends before.
    pub(super) fn rest(&self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time && !self.is_over() {
            std::thread::sleep(LOOK_EVERY.min(time.saturating_sub(began.elapsed())));
        }
    }
}

/// The loop, and whoever answers requests, comes first. On Linux this is about the thread that
/// calls it.
pub(super) fn step_back() {
    // Where it is not allowed, the work is bounded all the same.
    let _ = rustix::process::setpriority_process(None, 10);
}
