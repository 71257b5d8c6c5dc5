//! What the loop and those who ask it have in common.

use super::bell::Bell;
use super::chronicle::Chronicle;
use super::fork::Fork;
use super::hours::Hours;
use super::outlook::Outlook;
use super::pace::Pace;
use super::picture::{JobView, Picture};
use super::question::{Question, Questions};
use crate::desk::Desk;
use crate::job_history::JobHistory;
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
    desk: Desk,
    pace: Pace,
    bell: Bell,
    stop: AtomicBool,
    picture: RwLock<Arc<Picture>>,
    chronicle: Chronicle,
    questions: Questions,
    forks: SyncSender<Sender<Fork>>,
    outlook: RwLock<Arc<Outlook>>,
    hours: Mutex<Hours>,
    history: JobHistory,
    overlay: Mutex<Overlay>,
    policy: Box<str>,
}

/// What was written down and is in no picture yet.
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
        self.0.0.bell.ring();
    }
    /// It shall end after the turn it is in.
    pub fn stop(&self) {
        self.0.0.stop.store(true, Ordering::Relaxed);
        self.0.0.bell.ring();
    }
}

impl Daemon {
    pub(super) fn new(
        desk: Desk,
        pace: Pace,
        picture: Picture,
        life: u64,
        policy: &str,
        hours: Hours,
    ) -> (Self, Asked) {
        let history = JobHistory::at(&desk.journal(|store| store.path().to_owned()));
        let questions = Questions::default();
        let (forks, wanted) = sync_channel(FORKS);
        let parts = Parts {
            desk,
            pace,
            bell: Bell::default(),
            stop: AtomicBool::new(false),
            picture: RwLock::new(Arc::new(picture)),
            chronicle: Chronicle::new(life),
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
    pub fn desk(&self) -> &Desk {
        &self.0.desk
    }

    /// The cluster's clock.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.0.pace
    }

    /// The policy that plans, as its user named it.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.0.policy
    }

    /// How things are. Never waits for a plan.
    #[must_use]
    pub fn picture(&self) -> Arc<Picture> {
        Arc::clone(&self.0.picture.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What happened lately.
    #[must_use]
    pub fn chronicle(&self) -> &Chronicle {
        &self.0.chronicle
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
        self.0.bell.ring();
        asked
    }

    /// What is foreseen; pictures have it too, from the next on.
    pub(super) fn outlook(&self) -> Arc<Outlook> {
        Arc::clone(&self.0.outlook.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// This is foreseen now.
    pub(super) fn foresee(&self, outlook: Outlook) {
        *self.0.outlook.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(outlook);
        self.0.bell.ring();
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

    /// What is in no picture yet.
    pub fn overlay(&self) -> MutexGuard<'_, Overlay> {
        self.0.overlay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait(&self, most: std::time::Duration) -> bool {
        self.0.bell.wait(most)
    }

    pub(super) fn publish(&self, picture: Arc<Picture>) {
        let heard = picture.heard;
        *self.0.picture.write().unwrap_or_else(PoisonError::into_inner) = picture;
        let mut overlay = self.overlay();
        overlay.jobs.retain(|_, (entries, _)| *entries > heard);
        overlay.updates.retain(|_, (entries, ..)| *entries > heard);
    }
}
