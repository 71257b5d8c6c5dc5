//! Who must know whether the loop does its work: SLURM's gate, by a heartbeat in a file, and
//! systemd.
//!
//! The loop says after each turn what it can do; a thread beside it passes that on, so that neither
//! a file system nor systemd is waited for. The heartbeat is written only by a loop that turns, can
//! write its journal, plans, and knows its cluster: otherwise the gate opens and SLURM goes on
//! without us. systemd is told of a loop that turns and plans: a restart helps against nothing else.

use sd_notify::NotifyState;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often the heartbeat is written. The gate lets jobs pass after minutes without one.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// A loop that has not turned for so long is stuck: it naps for a second at most, and its longest
/// work, a snapshot of a large state, takes a few.
const STUCK_TURN: Duration = Duration::from_secs(10);
/// How often systemd is told how things are, if that has changed.
const STATUS_EVERY: Duration = Duration::from_secs(5);
/// How often the thread looks whether all is over.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What the loop could do in its last turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Condition {
    /// Its journal can be written.
    pub(super) journal: bool,
    /// Its planner answers.
    pub(super) planner: bool,
    /// With plans, too: its policy does not panic each time.
    pub(super) plans: bool,
    /// Its cluster was heard of lately.
    pub(super) cluster: bool,
}

impl Condition {
    /// Whether the gate may send jobs to it.
    fn decides(self, since_turn: Duration) -> bool {
        self.journal && self.plans && self.cluster && self.runs(since_turn)
    }

    /// Whether a restart could not help.
    fn runs(self, since_turn: Duration) -> bool {
        self.planner && since_turn < STUCK_TURN
    }
}

/// The loop's side.
pub(super) struct Health {
    told: Arc<Mutex<Told>>,
    over: Arc<AtomicBool>,
}

struct Told {
    at: Instant,
    condition: Condition,
    status: String,
    /// Why the heartbeat could not be written.
    trouble: Option<String>,
}

impl Health {
    /// Nothing was said yet. `heartbeat` is the file, if the cluster has a gate.
    pub(super) fn start(heartbeat: Option<PathBuf>) -> std::io::Result<Self> {
        let (condition, status) = (Condition::default(), String::new());
        let told = Told { at: Instant::now(), condition, status, trouble: None };
        let health = Self { told: Arc::new(Mutex::new(told)), over: Arc::default() };
        let (told, over) = (Arc::clone(&health.told), Arc::clone(&health.over));
        let pass_on = move || pass_on(heartbeat.as_deref(), &told, &over);
        thread::Builder::new().name("wattline-health".to_owned()).spawn(pass_on)?;
        Ok(health)
    }

    /// A turn has ended.
    pub(super) fn turned(&self, condition: Condition) {
        let mut told = lock(&self.told);
        (told.at, told.condition) = (Instant::now(), condition);
    }

    /// How things are, in a line.
    pub(super) fn say(&self, status: String) {
        lock(&self.told).status = status;
    }

    /// Why the heartbeat cannot be written.
    pub(super) fn trouble(&self) -> Option<String> {
        lock(&self.told).trouble.clone()
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pass_on(heartbeat: Option<&Path>, told: &Mutex<Told>, over: &AtomicBool) {
    // systemd wants to hear of it twice in the time after which it takes it for dead.
    let watchdog = sd_notify::watchdog_enabled().map(|limit| limit / 2);
    let long_ago = |every: Duration| Instant::now().checked_sub(every).unwrap_or_else(Instant::now);
    let (mut beaten, mut fed) = (long_ago(BEAT_EVERY), long_ago(BEAT_EVERY));
    let (mut said, mut said_at) = (String::new(), long_ago(STATUS_EVERY));
    while !over.load(Ordering::Relaxed) {
        let (since_turn, condition, status) = {
            let told = lock(told);
            (told.at.elapsed(), told.condition, told.status.clone())
        };
        if let Some(path) = heartbeat
            && beaten.elapsed() >= BEAT_EVERY
            && condition.decides(since_turn)
        {
            beaten = Instant::now();
            let trouble = beat(path).err();
            lock(told).trouble = trouble.map(|error| {
                format!(
                    "the heartbeat {} cannot be written: {error}; the gate lets jobs pass",
                    path.display()
                )
            });
        }
        // Never less than a healthy turn in between: the loop may be slower than we are.
        if watchdog.is_some_and(|every| fed.elapsed() >= every.min(BEAT_EVERY))
            && condition.runs(since_turn)
        {
            fed = Instant::now();
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
        if status != said && said_at.elapsed() >= STATUS_EVERY {
            let _ = sd_notify::notify(&[NotifyState::Status(&status)]);
            (said, said_at) = (status, Instant::now());
        }
        let nap = watchdog.map_or(LOOK_EVERY, |every| LOOK_EVERY.min(every / 2));
        thread::sleep(nap.max(Duration::from_millis(1)));
    }
}

/// Writes the time of the real clock, which is what the gate has. Whoever reads it meanwhile finds
/// the one before.
fn beat(path: &Path) -> std::io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let next = path.with_extension("next");
    fs::write(&next, format!("{}\n", now.as_secs()))?;
    fs::rename(&next, path)
}

/// Tells systemd, if it has started us, that the API answers.
pub fn say_ready() {
    // Whoever was started by somebody else has nobody to tell.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
}

/// Tells systemd that it ends.
pub fn say_stopping() {
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const WELL: Condition = Condition { journal: true, planner: true, plans: true, cluster: true };

    #[test]
    fn only_a_loop_that_can_decide_keeps_the_gate_closed() {
        let soon = Duration::from_secs(1);
        assert!(WELL.decides(soon) && WELL.runs(soon));
        assert!(!WELL.decides(STUCK_TURN) && !WELL.runs(STUCK_TURN), "it does not turn");
        let full = Condition { journal: false, ..WELL };
        let blind = Condition { cluster: false, ..WELL };
        let broken = Condition { plans: false, ..WELL };
        for other in [full, blind, broken] {
            assert!(!other.decides(soon) && other.runs(soon), "a restart does not help");
        }
        let stuck = Condition { planner: false, ..WELL };
        assert!(!stuck.decides(soon) && !stuck.runs(soon));
    }

    #[test]
    fn the_heartbeat_stops_with_the_loops_health_and_is_never_in_the_future() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("heartbeat");
        let health = Health::start(Some(path.clone())).unwrap();
        let until = |what: &str, is: &dyn Fn() -> bool| {
            let began = Instant::now();
            while !is() {
                assert!(began.elapsed() < Duration::from_secs(20), "{what}");
                thread::sleep(Duration::from_millis(20));
            }
        };
        health.turned(Condition { journal: false, ..WELL });
        thread::sleep(BEAT_EVERY + LOOK_EVERY * 2);
        assert!(!path.exists(), "its journal cannot be written");
        health.turned(WELL);
        until("a first beat", &|| path.exists());
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs();
        // The clock has jumped back since the last beat: the next one says what time it is now.
        fs::write(&path, "99999999999\n").unwrap();
        until("another beat", &|| {
            health.turned(WELL);
            let beat: u64 = fs::read_to_string(&path).unwrap().trim().parse().unwrap();
            beat <= seconds(SystemTime::now())
        });
        assert_eq!(health.trouble(), None);
        drop(folder);
        until("trouble", &|| {
            health.turned(WELL);
            health.trouble().is_some_and(|trouble| trouble.contains("heartbeat"))
        });
    }
}
