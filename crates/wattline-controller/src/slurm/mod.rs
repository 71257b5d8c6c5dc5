//! A cluster under SLURM.
//!
//! [`read`] turns what `squeue --json` and `sinfo --json` print into jobs and nodes; it is a pure
//! function of text. [`Slurm`] tells what differs between the last look at SLURM and what the engine
//! knows (`reconcile.rs`), and takes the steps of each action as far as what SLURM shows allows
//! (`act.rs`, `stop.rs`). It keeps nothing that the next look, the journal and a repeated action do not give
//! back, so it may die at any time.
//!
//! What it decides follows from looks, readings and the outcomes of orders, which it is given, and
//! what it wants done are orders that it gives (`orders.rs`): no command is run and no file is read
//! here. Threads beside the loop do that (`crew.rs`).

mod accounting;
mod act;
pub mod actuator;
mod arrays;
mod bounded;
mod breaker;
pub mod command;
mod config;
mod crew;
mod deferred;
pub mod doctor;
mod eligibility;
mod heterogeneous;
mod host;
mod instruction;
mod limits;
mod link;
mod look;
mod marks;
mod measurement_window;
pub mod metadata;
mod meters;
#[cfg(test)]
mod model;
mod node_limits;
mod orders;
mod overrun;
mod owner;
mod priority;
pub mod progress;
pub mod read;
mod readings;
mod reconcile;
mod refusal;
pub mod release;
mod release_lists;
mod reshape;
mod rest;
mod restarts;
mod rules;
mod runs;
mod seen;
mod site;
mod stop;
#[cfg(test)]
mod stop_tests;
mod submission;
mod time_extension;
mod time_limit;

pub use config::{Config, ConfigError, Defaults, Mode, PriorityConfig, Reader, WeightLimit};
pub use rest::{Kind, RestConfig, RestError, Version};
pub use seen::SeenError;
pub use site::{Site, SiteError};
pub use submission::SECONDS;

use crate::backend::{Backend, BackendError, BackendEvent, Known, Report, Wake};
use crate::job_registry::JournalNote;
use accounting::Accounting;
use crew::{Crew, Heard, Looked};
use link::Link;
use measurement_window::MeasurementWindow;
use meters::Meters;
use orders::{Order, Orders, Outcome, Purpose, Stamp, Switched, Target, Ticks};
use read::SlurmJob;
use readings::Readings;
use seen::Seen;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::action::Action;
use wattline_core::engine::Event;
use wattline_core::host::NodeHost;
use wattline_core::ids::{ActionId, JobId, NodeId};
use wattline_core::plan::Refusal;
use wattline_core::units::{Seconds, Watts};

/// The gate: the `job_submit.lua` that holds jobs until the controller releases them.
pub const GATE: &str = include_str!("gate.lua");

/// How far an action is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// Nothing was done yet.
    New,
    /// Limits of the GPUs that a job may get are being set since then.
    Setting(Timestamp),
    /// The job was released then.
    Released(Timestamp),
    /// SLURM was told then.
    Asked(Timestamp),
    /// Under way since then; SLURM was last told then.
    Since(Timestamp, Timestamp),
    /// It cannot be; the job is being held again.
    GivingUp(Timestamp),
    /// It cannot be.
    Failed,
    /// SLURM can never do it: what it is asked for is not possible for such a job.
    Refused,
    /// It is done.
    Done,
}

/// An action and how far it is.
#[derive(Debug)]
struct Wanted {
    action: Action,
    step: Step,
    /// Why SLURM would not start it, and in its own words.
    refused: Option<(Refusal, String)>,
    /// Its job was put before those of others that SLURM kept nodes for.
    goes_first: bool,
}

impl Wanted {
    fn new(action: &Action) -> Self {
        Self { action: action.clone(), step: Step::New, refused: None, goes_first: false }
    }
}

/// A cluster under SLURM.
pub struct Slurm {
    site: Arc<Site>,
    link: Link,
    ticks: Ticks,
    crew: Option<Crew>,
    orders: Orders,
    /// What SLURM showed last.
    seen: Option<Arc<Seen>>,
    /// When that look began.
    looked: Option<Timestamp>,
    /// How far this machine's clock, and with it SLURM's times, is ahead of the controller's, which goes
    /// on evenly whatever is done to the machine's.
    clock_ahead: Seconds,
    /// Since when looks fail, and why the last one did.
    blind: Option<(Timestamp, String)>,
    /// What nodes said last.
    readings: Readings,
    /// Jobs that run were new at the last look: where they are is told as soon as they are known.
    adopts: bool,
    /// Since when SLURM answers each time.
    answers: Option<Timestamp>,
    wanted: BTreeMap<ActionId, Wanted>,
    /// The limits that were last asked for, by GPU.
    limits_asked: BTreeMap<(NodeId, u32), Watts>,
    /// Nodes that did not take the last limits.
    limits_failed: BTreeSet<NodeId>,
    /// Jobs that SLURM does not show, since when.
    absent: BTreeMap<JobId, Timestamp>,
    /// When something was last put right about a job.
    corrected: BTreeMap<u32, Timestamp>,
    /// When a job that SLURM had given up was requeued by us.
    requeued: BTreeMap<u32, Timestamp>,
    windows: BTreeMap<JobId, MeasurementWindow>,
    meters: Meters,
    /// Jobs of SLURM that are not over, and how many jobs were looked through for them.
    open: (BTreeSet<JobId>, usize),
    /// Jobs of partitions that are not looked after, at the last look.
    foreign: BTreeSet<u32>,
    /// GPUs that those hold.
    foreign_gpus: BTreeSet<(NodeId, u32)>,
    /// What accounting said last, and when weights were last looked at.
    accounting: Option<Accounting>,
    weighed: Option<Timestamp>,
    /// Held jobs that were marked at this look.
    marks: u32,
    /// Jobs about which something was said already.
    refused: BTreeSet<u32>,
    /// What jobs asked for at the look at which they came in, by their numbers, until the next one.
    submitted: BTreeMap<u32, owner::Asks>,
    /// Jobs that wait, as they were shown at the last look.
    asks: BTreeMap<JobId, Arc<SlurmJob>>,
    /// What was written into the comments of jobs that rules keep from all nodes.
    remarked: BTreeMap<u32, Box<str>>,
    /// Nodes of which one look has shown that others take more.
    host_seen: BTreeMap<NodeId, NodeHost>,
    /// The look at nodes from which CPUs and memory are known.
    host_looked: Option<Stamp>,
    complaints: Vec<String>,
    alerts: Vec<String>,
}

/// Complaints nobody fetches must not fill the memory.
const MOST_COMPLAINTS: usize = 1000;
/// A look that is older than so many time limits of a command says nothing about now: a look takes
/// up to three commands, and so much when slurmctld is slow. Until a newer one is there the cluster
/// is unknown: nothing is planned, started, woken or raised; what lowers power still goes out.
/// Twice as much, and jobs wait longer for nodes that have gone; half, and a busy slurmctld counts
/// as gone.
const MOST_AGE: f64 = 3.0;
/// Clocks that differ by less are the same: SLURM's times are whole seconds, and clocks are corrected by
/// parts of one all the time.
const SAME_CLOCK: Seconds = Seconds::new(5.0);

impl Slurm {
    /// A cluster that nobody has looked at yet.
    #[must_use]
    pub fn new(site: Site) -> Self {
        Self {
            link: Link::new(&site.config),
            site: Arc::new(site),
            ticks: Ticks::default(),
            crew: None,
            orders: Orders::default(),
            seen: None,
            looked: None,
            clock_ahead: Seconds::ZERO,
            adopts: false,
            blind: None,
            readings: Readings::default(),
            answers: None,
            wanted: BTreeMap::new(),
            limits_asked: BTreeMap::new(),
            limits_failed: BTreeSet::new(),
            absent: BTreeMap::new(),
            corrected: BTreeMap::new(),
            requeued: BTreeMap::new(),
            windows: BTreeMap::new(),
            meters: Meters::default(),
            open: (BTreeSet::new(), 0),
            foreign: BTreeSet::new(),
            foreign_gpus: BTreeSet::new(),
            accounting: None,
            weighed: None,
            marks: 0,
            refused: BTreeSet::new(),
            submitted: BTreeMap::new(),
            asks: BTreeMap::new(),
            remarked: BTreeMap::new(),
            host_seen: BTreeMap::new(),
            host_looked: None,
            complaints: Vec::new(),
            alerts: Vec::new(),
        }
    }

    /// Whether SLURM answers and has what the site's file says.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn check(&self) -> Result<Vec<SiteError>, SeenError> {
        let mut wrong = self.site.check(&self.link.look()?);
        wrong.extend(self.lacking());
        Ok(wrong)
    }

    /// What would be decided and cannot be done.
    fn lacking(&self) -> Option<SiteError> {
        let (version, lacking) = self.link.lacking().filter(|_| self.controls())?;
        let partial = self.link.rest.as_ref().is_some_and(|rest| rest.config().partial);
        let commands = if partial { return None } else { self.link.commands_answer().err()? };
        let lacking = lacking.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        Some(SiteError::Orders { version, lacking, commands: commands.to_string() })
    }

    /// What an administrator should hear of, since the last time.
    pub fn take_complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }

    fn complain(&mut self, what: String) {
        if self.complaints.len() < MOST_COMPLAINTS {
            self.complaints.push(what);
        }
    }

    fn controls(&self) -> bool {
        self.site.config.mode == Mode::Control
    }

    /// Gives an order. False: it was not given, and is to be decided anew.
    ///
    /// Whatever was concluded before: no order is given about a job of a partition that is not looked
    /// after.
    fn order(&mut self, now: Timestamp, order: Order) -> bool {
        let foreign = order.targets.iter().find_map(|target| match target {
            Target::Job(number) if self.foreign.contains(number) => Some(*number),
            _ => None,
        });
        if let Some(number) = foreign {
            self.complain(format!(
                "job {number} is not ours: an order about it was not sent: a bug"
            ));
            return false;
        }
        self.orders.give(now, order)
    }

    /// Whether what was last seen of a target can be believed.
    fn is_settled(&self, target: Target) -> bool {
        let look = match target {
            Target::Limits(_) => self.readings.began,
            Target::Node(_) => {
                self.seen.as_ref().map_or_else(Default::default, |seen| seen.nodes_began)
            }
            Target::Job(_) | Target::Slurmd(_) => {
                self.seen.as_ref().map_or_else(Default::default, |seen| seen.began)
            }
        };
        self.orders.is_settled(target, look)
    }

    /// What SLURM's clock shows. Its times are compared with this.
    fn slurms_clock(&self, now: Timestamp) -> Timestamp {
        now + self.clock_ahead
    }

    /// How old a look may be.
    fn most_age(&self) -> Seconds {
        self.site.config.command_limit.max(self.site.config.poll) * MOST_AGE
    }

    /// Whether what was last seen is recent enough to start or raise anything.
    fn sees(&self, now: Timestamp) -> bool {
        self.looked.is_some_and(|looked| now <= looked + self.most_age())
    }

    /// SLURM was looked at.
    fn take_look(&mut self, now: Timestamp, looked: Looked, known: Known<'_>) -> bool {
        let began = now - Seconds::new(looked.age.as_secs_f64());
        if let Some(clock) = looked.clock {
            let ahead = Seconds::new((clock - now).get().round());
            let same = ahead.get().abs() < SAME_CLOCK.get();
            self.clock_ahead = if same { Seconds::ZERO } else { ahead };
        }
        match looked.seen {
            Ok(mut seen) => {
                seen.recognise(known.registry);
                self.take_foreign(&seen);
                self.orders.forget(seen.began.min(seen.nodes_began).min(self.readings.began));
                self.seen = Some(Arc::new(seen));
                self.looked = Some(began);
                self.blind = None;
                self.answers = self.answers.or(Some(now));
                true
            }
            Err(error) => {
                let since = self.blind.take().map_or(began, |(since, _)| since);
                self.blind = Some((since, error.to_string()));
                self.answers = None;
                false
            }
        }
    }

    /// Jobs of partitions that are not looked after, and their GPUs.
    fn take_foreign(&mut self, seen: &Seen) {
        let foreign = || seen.jobs().filter(|job| !self.site.looks_after(&job.partition));
        let holds = foreign().filter(|job| job.state.holds_gpus());
        let gpus = holds.flat_map(|job| self.gpus_of(job)).collect();
        (self.foreign, self.foreign_gpus) = (foreign().map(|job| job.key.id).collect(), gpus);
    }

    /// An order has ended.
    fn take_outcome(&mut self, now: Timestamp, outcome: &Outcome) {
        let answered = self.seen.as_ref().filter(|_| self.blind.is_none()).map(|seen| seen.began);
        let Some((order, switched)) = self.orders.concluded(now, outcome, answered) else { return };
        self.say_switched(&switched);
        let failed = outcome.result.as_ref().err();
        if let Some(failure) = failed {
            self.complain(format!("{}: {}", order.complaint, failure.said));
        }
        match &order.purpose {
            Purpose::Start(action, number) => {
                self.let_go(now, *action, failed.is_none());
                // Whoever answers that it cannot be, says so at each try.
                if let Some(failure) = failed.filter(|failure| !failure.unanswered)
                    && let Some(wanted) = self.wanted.get_mut(action)
                {
                    wanted.refused = Some((Refusal::Nodes, failure.said.clone()));
                }
                if let (Some(_), Some(Target::Job(job))) = (failed, order.targets.first()) {
                    self.hold(now, *job, number);
                }
            }
            Purpose::Stop(action, before) if failed.is_some() => {
                let never = failed.is_some_and(|failure| stop::is_refused(&failure.said));
                if let Some(wanted) = self.wanted.get_mut(action) {
                    wanted.step = if never { Step::Refused } else { *before };
                }
            }
            Purpose::Limits if failed.is_some() => {
                for target in &order.targets {
                    if let Target::Limits(node) = target {
                        self.limits_failed.insert(*node);
                    }
                }
            }
            Purpose::Stop(..) | Purpose::Limits | Purpose::Other => {}
        }
    }

    fn say_switched(&mut self, switched: &[Switched]) {
        for switched in switched {
            let said = match switched {
                Switched::SlurmctldOpened => {
                    "slurmctld takes no orders: only what lowers power is still sent".to_owned()
                }
                Switched::SlurmctldClosed => "slurmctld takes orders again".to_owned(),
                Switched::SlurmdOpened(node) => {
                    format!("slurmd on {} does not answer", self.site.node(*node).name)
                }
                Switched::SlurmdClosed(node) => {
                    format!("slurmd on {} answers again", self.site.node(*node).name)
                }
            };
            if self.alerts.len() < MOST_COMPLAINTS {
                self.alerts.push(said);
            }
        }
    }

    /// What an administrator should hear of at once, since the last time.
    pub fn take_alerts(&mut self) -> Vec<String> {
        std::mem::take(&mut self.alerts)
    }

    /// All that follows from what was heard, and nothing else: what is new for the engine, and orders.
    fn follow(&mut self, now: Timestamp, heard: Heard, known: Known<'_>) -> Vec<BackendEvent> {
        let mut new = New { outcomes: !heard.outcomes.is_empty(), ..New::default() };
        for outcome in &heard.outcomes {
            self.take_outcome(now, outcome);
        }
        if let Some(look) = heard.look {
            new.look = self.take_look(now, look, known);
        }
        if let Some(readings) = heard.readings {
            self.readings = readings;
            new.readings = true;
        }
        if let Some(accounting) = heard.accounting {
            self.accounting = Some(accounting);
            self.weighed = None;
        }
        let mut news = Vec::new();
        if std::mem::take(&mut self.adopts) && !new.look {
            self.adopt(known, &mut news);
        }
        news.extend(self.news(now, new, known));
        news
    }

    fn hand_over(&mut self) {
        if let Some(crew) = &self.crew {
            crew.hand_over(self.orders.take());
        }
    }

    /// All that follows from what is new.
    fn news(&mut self, now: Timestamp, new: New, known: Known<'_>) -> Vec<BackendEvent> {
        let mut news = Vec::new();
        if new.readings {
            self.meter(now, known);
            self.limits_before(known, &mut news);
        }
        if new.look {
            self.wanted.retain(|id, _| known.engine.is_under_way(*id));
            self.job_news(now, known, &mut news);
            self.node_news(known, &mut news);
            self.host_news(known, &mut news);
            self.rule_news(now, known, &mut news);
            self.weigh(now, known, &mut news);
            self.submissions(now, known, &mut news);
            self.park_early(now, known);
            self.split_arrays(now, known);
            self.extend_limits(now, known);
        }
        if new.look || new.readings || new.outcomes {
            self.advance_all(now, known);
        }
        if new.look || new.readings {
            self.restore_limits(now, known);
            self.action_news(&mut news);
            self.meter_news(now, known, &mut news);
        }
        news
    }

    /// The limits that were there before any was set.
    fn limits_before(&self, known: Known<'_>, news: &mut Vec<BackendEvent>) {
        for id in self.site.cluster.node_ids() {
            let node = self.site.node(id);
            let (Some(_), None) =
                (self.site.actuator(id), known.registry.limits_before(&node.name))
            else {
                continue;
            };
            let read = |gpu| self.readings.limit(id, gpu).map(|watts| watts.get());
            let limits: Option<Vec<f64>> = (0..u32::from(node.gpus)).map(read).collect();
            if let Some(limits) = limits {
                let note = JournalNote::Before { node: node.name.clone(), limits };
                news.push(BackendEvent::Noted(Event::Clock, note));
            }
        }
    }
}

/// What of it is new.
#[derive(Clone, Copy, Debug, Default)]
struct New {
    look: bool,
    readings: bool,
    outcomes: bool,
}

impl Backend for Slurm {
    fn begin(&mut self, wake: Wake) -> std::io::Result<()> {
        let (site, link) = (Arc::clone(&self.site), self.link.clone());
        self.crew = Some(Crew::start(site, link, self.ticks.clone(), wake)?);
        Ok(())
    }

    fn send(
        &mut self,
        now: Timestamp,
        action: &Action,
        known: Known<'_>,
    ) -> Result<(), BackendError> {
        if !self.controls() {
            // What was under way when somebody else took over is not done any more.
            let failed = Wanted { step: Step::Failed, ..Wanted::new(action) };
            self.wanted.insert(action.id, failed);
            return Ok(());
        }
        self.want(action);
        self.advance(now, action.id, known);
        self.hand_over();
        Ok(())
    }

    fn reports(
        &mut self,
        now: Timestamp,
        from: u64,
        known: Known<'_>,
    ) -> Result<Vec<Report>, BackendError> {
        let heard = self.crew.as_ref().map(Crew::take).unwrap_or_default();
        let news = self.follow(now, heard, known);
        self.hand_over();
        let number = |(at, news)| Report { number: from + at as u64, news };
        Ok(news.into_iter().enumerate().map(number).collect())
    }

    /// The threads beside the loop wake it.
    fn next_event(&self) -> Option<Timestamp> {
        self.adopts.then_some(Timestamp::ZERO)
    }

    fn is_current(&self, now: Timestamp) -> bool {
        // What runs is to be known before anything is planned around it.
        self.sees(now) && !self.adopts
    }

    /// Who only watches does not close the gate: nobody would release what it holds.
    fn heartbeat(&self) -> Option<PathBuf> {
        self.site.config.heartbeat.clone().filter(|_| self.controls())
    }

    fn troubles(&self, now: Timestamp) -> Vec<String> {
        let mut troubles = Vec::new();
        if let Some((since, why)) = &self.blind {
            let unknown = if self.sees(now) {
                ""
            } else {
                "; the cluster is unknown: nothing is started or raised until it answers"
            };
            troubles
                .push(format!("SLURM has not answered since {}: {why}{unknown}", shown(*since)));
        } else if let Some(looked) = self.looked.filter(|_| !self.sees(now)) {
            troubles.push(format!(
                "the last look at SLURM is from {}, the next one has not ended; the cluster is \
                 unknown: nothing is started or raised until it has",
                shown(looked)
            ));
        }
        if self.clock_ahead != Seconds::ZERO {
            let by = self.clock_ahead.get();
            let (how, until) = if by > 0.0 {
                ("gone forward", "late until the controller is restarted")
            } else {
                ("gone back", "early until the controller is stopped for that long")
            };
            troubles.push(format!(
                "this machine's clock has {how} by {:.0} s; calendars of the budget and of prices \
                 are as {until}",
                by.abs()
            ));
        }
        let breaker = |(since, failures, until): (Timestamp, u32, Timestamp)| {
            format!(
                "{failures} orders in a row had no answer, since {}; the next one is tried at {}",
                shown(since),
                shown(until)
            )
        };
        if let Some(open) = self.orders.slurmctld_is_open() {
            troubles.push(format!("slurmctld takes no orders: {}", breaker(open)));
        }
        for (node, open) in self.orders.slurmds_that_are_open() {
            let name = &self.site.node(node).name;
            troubles.push(format!("slurmd on {name} does not answer: {}", breaker(open)));
        }
        troubles
    }
}

/// A time, for people.
fn shown(at: Timestamp) -> String {
    let at = jiff::Timestamp::from_second(at.seconds() as i64);
    at.map_or_else(|_| "?".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}
