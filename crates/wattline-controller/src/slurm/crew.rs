//! The threads beside the loop: some carry orders out, one looks at SLURM, one reads what nodes
//! say. The loop hands orders over and takes results; it never waits for any of them.
//!
//! Each lane has its own few threads, so that what hangs in one costs nobody else anything. Nobody
//! waits for the threads at the end: an order that was begun is finished by its command, and the
//! next controller looks what became of it.

use super::accounting::{self, Accounting};
use super::config::{Mode, PriorityConfig};
use super::link::Link;
use super::look::Looker;
use super::node_limits;
use super::orders::{Failure, Lane, Order, Outcome, Ticks, Work};
use super::readings::Readings;
use super::seen::{Seen, SeenError};
use super::site::Site;
use crate::backend::Wake;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wattline_core::Timestamp;

/// Threads of each lane: so many nodes may hang, or commands wait for slurmctld, at a time.
const WORKERS: usize = 4;
/// Between looks there is this many times as long as one takes: SLURM has others to answer too, and
/// at ten thousand jobs, where one takes 0.3 s, a minute has 50 looks.
const REST: u32 = 3;
/// But no more than this: a GPU that is free is to be given away within three seconds, of which a
/// look, a plan and SLURM's own start take up to two.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// SLURM that does not answer is asked again after pauses that double up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What came of a look, how long ago it began, and what this machine's clock shows now, if it is known.
pub(super) struct Looked {
    pub(super) seen: Result<Seen, SeenError>,
    pub(super) age: Duration,
    pub(super) clock: Option<Timestamp>,
}

/// What the loop has not heard of yet: orders that have ended, and the newest look and readings.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) look: Option<Looked>,
    pub(super) readings: Option<Readings>,
    pub(super) accounting: Option<Accounting>,
}

/// The loop's side.
pub(super) struct Crew(Arc<Shared>);

struct Shared {
    site: Arc<Site>,
    link: Link,
    ticks: Ticks,
    board: Mutex<Board>,
    changed: Condvar,
    wake: Wake,
}

/// What is handed over, both ways. Results are bounded: one for each order under way, and the
/// newest look and readings.
#[derive(Default)]
struct Board {
    orders: BTreeMap<Lane, VecDeque<Order>>,
    outcomes: Vec<Outcome>,
    look: Option<(Result<Seen, SeenError>, Instant)>,
    readings: Option<Readings>,
    accounting: Option<Accounting>,
    over: bool,
}

impl Crew {
    /// Starts the threads.
    ///
    /// # Errors
    /// When there are none to be had.
    pub(super) fn start(
        site: Arc<Site>,
        link: Link,
        ticks: Ticks,
        wake: Wake,
    ) -> std::io::Result<Self> {
        let (board, changed) = (Mutex::default(), Condvar::new());
        let crew = Self(Arc::new(Shared { site, link, ticks, board, changed, wake }));
        crew.spawn("wattline-looks", Shared::look)?;
        crew.spawn("wattline-meters", Shared::read)?;
        let PriorityConfig { qos, fairshare, .. } = crew.0.site.config.priority;
        if crew.0.site.config.mode == Mode::Control && (qos || fairshare) {
            crew.spawn("wattline-shares", Shared::account)?;
        }
        for lane in Lane::ALL {
            for _ in 0..WORKERS {
                crew.spawn("wattline-orders", move |shared| shared.work(lane))?;
            }
        }
        Ok(crew)
    }

    fn spawn(&self, name: &str, run: impl FnOnce(&Shared) + Send + 'static) -> std::io::Result<()> {
        let shared = Arc::clone(&self.0);
        thread::Builder::new().name(name.to_owned()).spawn(move || run(&shared)).map(drop)
    }

    /// Hands orders over.
    pub(super) fn hand_over(&self, orders: Vec<Order>) {
        if orders.is_empty() {
            return;
        }
        let mut board = self.0.board();
        for order in orders {
            board.orders.entry(order.lane()).or_default().push_back(order);
        }
        self.0.changed.notify_all();
    }

    /// What there is to be heard.
    pub(super) fn take(&self) -> Heard {
        let mut board = self.0.board();
        let look = board.look.take();
        Heard {
            outcomes: std::mem::take(&mut board.outcomes),
            look: look.map(|(seen, began)| Looked { seen, age: began.elapsed(), clock: clock() }),
            readings: board.readings.take(),
            accounting: board.accounting.take(),
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.0.board().over = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn board(&self) -> MutexGuard<'_, Board> {
        // Nobody panics with it.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&self) -> Duration {
        Duration::from_secs_f64(self.site.config.poll.get().clamp(0.01, 3600.0))
    }

    /// Waits, unless it is over. Says whether to go on.
    fn rest(&self, pause: Duration) -> bool {
        let board = self.board();
        let waited = self.changed.wait_timeout_while(board, pause, |board| !board.over);
        !waited.unwrap_or_else(PoisonError::into_inner).0.over
    }

    fn look(&self) {
        let mut failures: u32 = 0;
        let mut looker = Looker::default();
        let mut told = String::new();
        loop {
            let began = Instant::now();
            let progress = self.site.config.progress.as_deref();
            let seen = looker.look_all(&self.link, &self.ticks, progress);
            let took = began.elapsed();
            failures = if seen.is_ok() { 0 } else { failures.saturating_add(1) };
            if let Ok(seen) = &seen {
                self.tell_gate(seen, &mut told);
            }
            self.board().look = Some((seen, began));
            (self.wake)();
            let pause = match failures {
                0 => rest(self.poll(), took),
                count => (self.poll() * 2_u32.saturating_pow(count.min(16))).min(LONGEST_PAUSE),
            };
            if !self.rest(pause) {
                return;
            }
        }
    }

    /// The gate hears what nodes have, when that changes. Where it cannot, it lets jobs through.
    fn tell_gate(&self, seen: &Seen, told: &mut String) {
        let config = &self.site.config;
        let Some(heartbeat) = config.heartbeat.as_deref() else { return };
        if config.mode != Mode::Control {
            return;
        }
        let text = node_limits::text(&self.site, seen);
        if text != *told && node_limits::write(heartbeat, &text).is_ok() {
            *told = text;
        }
    }

    fn read(&self) {
        loop {
            let began = Instant::now();
            let readings = Readings::take(&self.site, &self.ticks);
            self.board().readings = Some(readings);
            (self.wake)();
            let took = began.elapsed();
            if !self.rest(rest(self.poll(), took)) {
                return;
            }
        }
    }

    /// Without slurmdbd it asks in vain, as rarely.
    fn account(&self) {
        let every = Duration::from_secs_f64(self.site.config.priority.every.get().max(1.0));
        loop {
            let read = accounting::read(&self.link.commands);
            if read.is_some() {
                self.board().accounting = read;
                (self.wake)();
            }
            if !self.rest(every) {
                return;
            }
        }
    }

    fn work(&self, lane: Lane) {
        loop {
            let mut board = self.board();
            let order = loop {
                if board.over {
                    return;
                }
                if let Some(order) = board.orders.entry(lane).or_default().pop_front() {
                    break order;
                }
                board = self.changed.wait(board).unwrap_or_else(PoisonError::into_inner);
            };
            drop(board);
            let outcome = carry_out(&order, &self.site, &self.link, &self.ticks);
            self.board().outcomes.push(outcome);
            (self.wake)();
        }
    }
}

/// What this machine's clock shows.
fn clock() -> Option<Timestamp> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp::from_seconds(since.as_secs_f64()))
}

/// The pause after a look that took so long.
fn rest(poll: Duration, took: Duration) -> Duration {
    poll.saturating_sub(took).max((took * REST).min(LONGEST_REST))
}

/// Carries an order out, however long that takes.
pub(super) fn carry_out(order: &Order, site: &Site, link: &Link, ticks: &Ticks) -> Outcome {
    let began = ticks.next();
    let result = match &order.work {
        Work::Tell(told) => told.iter().try_for_each(|instruction| link.tell(instruction)),
        Work::Limits(node, limits) => limits.iter().try_for_each(|(gpu, limit)| {
            let Some(actuator) = site.actuator(*node) else { return Ok(()) };
            let failed = |error: super::actuator::ActuatorError| Failure {
                said: error.to_string(),
                unanswered: false,
            };
            actuator.set(*gpu, *limit).map_err(failed)
        }),
    };
    Outcome { id: order.id, began, ended: ticks.next(), result }
}
