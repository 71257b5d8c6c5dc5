//! What the loop and those who ask it have in common.

use super::cluster_clock::ClusterClock;
use super::event_log::EventLog;
use super::fork::Fork;
use super::hours::Hours;
use super::outlook::Outlook;
use super::question::{Question, Questions};
use super::read_model::{JobView, ReadModel};
use super::wakeup::Wakeup;
use crate::job_history::JobHistory;
use crate::request_intake::RequestIntake;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use wattline_core::Timestamp;
use wattline_core::ids::JobId;
use wattline_core::units::EurosPerSecond;

/// Copies that may be asked for at a time: a few threads do.
const FORKS: usize = 4;

/// A controller that is being driven, for whoever asks it. Copies are the same.
#[derive(Clone)]
pub struct Daemon(Arc<Parts>);

struct Parts {
    intake: RequestIntake,
    cluster_clock: ClusterClock,
    wakeup: Wakeup,
    stop: AtomicBool,
    read_model: RwLock<Arc<ReadModel>>,
    event_log: EventLog,
    questions: Questions,
    forks: SyncSender<Sender<Fork>>,
    outlook: RwLock<Arc<Outlook>>,
    hours: Mutex<Hours>,
    history: JobHistory,
    overlay: Mutex<Overlay>,
    policy: Box<str>,
}

/// What was written down and is in no read model yet.
#[derive(Default)]
pub struct Overlay {
    /// New jobs, with the number of entries the journal then had.
    pub jobs: BTreeMap<JobId, (u64, Arc<JobView>)>,
    /// Other deadlines and weights, the same way.
    pub updates: BTreeMap<JobId, (u64, Option<Timestamp>, EurosPerSecond)>,
}

/// What others want of those who drive it.
pub(super) struct Asked {
    pub(super) questions: Questions,
    pub(super) forks: Receiver<Sender<Fork>>,
}

/// Wakes the loop, or ends it.
#[derive(Clone)]
pub struct Waker(Daemon);

impl Waker {
    /// Something was written down.
    pub fn wake(&self) {
        self.0.0.wakeup.ring();
    }
    /// It shall end after the turn it is in.
    pub fn stop(&self) {
        self.0.0.stop.store(true, Ordering::Relaxed);
        self.0.0.wakeup.ring();
    }
}

impl Daemon {
    pub(super) fn new(
        intake: RequestIntake,
        cluster_clock: ClusterClock,
        read_model: ReadModel,
        epoch: u64,
        policy: &str,
        hours: Hours,
    ) -> (Self, Asked) {
        let history = JobHistory::at(&intake.journal(|store| store.path().to_owned()));
        let questions = Questions::default();
        let (forks, wanted) = sync_channel(FORKS);
        let parts = Parts {
            intake,
            cluster_clock,
            wakeup: Wakeup::default(),
            stop: AtomicBool::new(false),
            read_model: RwLock::new(Arc::new(read_model)),
            event_log: EventLog::new(epoch),
            questions: questions.clone(),
            forks,
            outlook: RwLock::default(),
            hours: Mutex::new(hours),
            history,
            overlay: Mutex::default(),
            policy: policy.into(),
        };
        (Self(Arc::new(parts)), Asked { questions, forks: wanted })
    }

    /// Where requests are taken. Wake the loop after one.
    #[must_use]
    pub fn intake(&self) -> &RequestIntake {
        &self.0.intake
    }

    /// The cluster's clock.
    #[must_use]
    pub fn cluster_clock(&self) -> &ClusterClock {
        &self.0.cluster_clock
    }

    /// The policy that plans, as its user named it.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.0.policy
    }

    /// How things are. Never waits for a plan.
    #[must_use]
    pub fn read_model(&self) -> Arc<ReadModel> {
        Arc::clone(&self.0.read_model.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What happened lately.
    #[must_use]
    pub fn event_log(&self) -> &EventLog {
        &self.0.event_log
    }

    /// Wakes the loop, or ends it.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(self.clone())
    }

    /// Whether it was told to end.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.0.stop.load(Ordering::Relaxed)
    }

    /// Asks something that needs the engine, for this user, or for an administrator if there is
    /// none. False: too many ask already.
    #[must_use]
    pub fn ask(&self, user: Option<&Arc<str>>, question: Question) -> bool {
        self.0.questions.add(user, question)
    }

    /// Asks the loop for a copy of the engine. False: too many ask already, or there is no loop.
    #[must_use]
    pub(super) fn ask_for_fork(&self, who: Sender<Fork>) -> bool {
        let asked = self.0.forks.try_send(who).is_ok();
        self.0.wakeup.ring();
        asked
    }

    /// What is foreseen; read models have it too, from the next on.
    pub(super) fn outlook(&self) -> Arc<Outlook> {
        Arc::clone(&self.0.outlook.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// This is foreseen now.
    pub(super) fn foresee(&self, outlook: Outlook) {
        *self.0.outlook.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(outlook);
        self.0.wakeup.ring();
    }

    /// Power by the hour. The loop waits for whoever looks at it.
    pub fn hours(&self) -> MutexGuard<'_, Hours> {
        self.0.hours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Jobs that have ended. Reading may wait for the disk.
    #[must_use]
    pub fn history(&self) -> &JobHistory {
        &self.0.history
    }

    /// What is in no read model yet.
    pub fn overlay(&self) -> MutexGuard<'_, Overlay> {
        self.0.overlay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait(&self, most: std::time::Duration) -> bool {
        self.0.wakeup.wait(most)
    }

    pub(super) fn publish(&self, read_model: Arc<ReadModel>) {
        let heard = read_model.heard;
        *self.0.read_model.write().unwrap_or_else(PoisonError::into_inner) = read_model;
        let mut overlay = self.overlay();
        overlay.jobs.retain(|_, (entries, _)| *entries > heard);
        overlay.updates.retain(|_, (entries, ..)| *entries > heard);
    }
}
