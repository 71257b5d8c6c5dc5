//! What the loop and those who ask it have in common.

use super::bell::Bell;
use super::chronicle::Chronicle;
use super::pace::Pace;
use super::picture::{JobView, Picture};
use super::question::Question;
use crate::desk::Desk;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use wattline_core::Timestamp;
use wattline_core::ids::JobId;
use wattline_core::units::EurosPerSecond;

/// Questions that may wait.
const QUESTIONS: usize = 16;

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
    questions: SyncSender<Question>,
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
    ) -> (Self, Receiver<Question>) {
        let (questions, asked) = sync_channel(QUESTIONS);
        let parts = Parts {
            desk,
            pace,
            bell: Bell::default(),
            stop: AtomicBool::new(false),
            picture: RwLock::new(Arc::new(picture)),
            chronicle: Chronicle::new(life),
            questions,
            overlay: Mutex::default(),
            policy: policy.into(),
        };
        (Self(Arc::new(parts)), asked)
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

    /// Asks something that needs the engine. False: too many ask already, or nobody answers.
    #[must_use]
    pub fn ask(&self, question: Question) -> bool {
        let asked = self.0.questions.try_send(question).is_ok();
        self.0.bell.ring();
        asked
    }

    /// What is in no picture yet.
    pub fn overlay(&self) -> MutexGuard<'_, Overlay> {
        self.0.overlay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait(&self, most: std::time::Duration) -> bool {
        self.0.bell.wait(most)
    }

    pub(super) fn publish(&self, picture: Picture) {
        let heard = picture.heard;
        *self.0.picture.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(picture);
        let mut overlay = self.overlay();
        overlay.jobs.retain(|_, (entries, _)| *entries > heard);
        overlay.updates.retain(|_, (entries, ..)| *entries > heard);
    }
}
