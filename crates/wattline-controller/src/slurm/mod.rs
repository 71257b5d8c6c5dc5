//! A cluster under SLURM.
//!
//! [`read`] turns what `squeue --json` and `sinfo --json` print into jobs and nodes; it is a pure
//! function of text. [`Slurm`] looks at SLURM again and again and tells what differs from what the
//! engine knows (`news.rs`), and takes the steps of each action as far as what SLURM shows allows
//! (`act.rs`). It keeps nothing that the next look, the journal and a repeated action do not give
//! back, so it may die at any time.

mod act;
pub mod actuator;
mod arrays;
pub mod command;
mod config;
pub mod doctor;
mod early;
mod heterogeneous;
mod limits;
pub mod metadata;
mod meters;
mod news;
pub mod progress;
pub mod read;
pub mod release;
mod reshape;
mod runs;
mod seats;
mod seen;
mod site;
mod stretch;
mod submission;

pub use config::{Config, Defaults, Mode};
pub use seen::SeenError;
pub use site::{Site, SiteError};
pub use submission::SECONDS;

use crate::backend::{Backend, BackendError, Known, News, Report};
use crate::directory::Note;
use command::Commands;
use meters::Meters;
use seen::Seen;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use stretch::Stretch;
use wattline_core::Timestamp;
use wattline_core::action::Action;
use wattline_core::engine::Event;
use wattline_core::ids::{ActionId, JobId, NodeId};
use wattline_core::units::Watts;

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
    /// It is done.
    Done,
}

/// An action and how far it is.
#[derive(Debug)]
struct Wanted {
    action: Action,
    step: Step,
}

/// A cluster under SLURM.
pub struct Slurm {
    site: Site,
    commands: Commands,
    /// What SLURM showed last.
    seen: Option<Arc<Seen>>,
    asked: Option<Timestamp>,
    /// Since when SLURM answers each time.
    answers: Option<Timestamp>,
    wanted: BTreeMap<ActionId, Wanted>,
    /// The limits that were last asked for, by GPU.
    limits_asked: BTreeMap<(NodeId, u32), Watts>,
    /// Jobs that SLURM does not show, since when.
    absent: BTreeMap<JobId, Timestamp>,
    /// When something was last put right about a job.
    corrected: BTreeMap<u32, Timestamp>,
    stretches: BTreeMap<JobId, Stretch>,
    meters: Meters,
    /// Jobs of SLURM that are not over, and how many jobs were looked through for them.
    open: (BTreeSet<JobId>, usize),
    /// Jobs about which something was said already.
    refused: BTreeSet<u32>,
    complaints: Vec<String>,
}

/// Complaints nobody fetches must not fill the memory.
const MOST_COMPLAINTS: usize = 1000;

impl Slurm {
    /// A cluster that nobody has looked at yet.
    #[must_use]
    pub fn new(site: Site) -> Self {
        let commands = Commands {
            slurm_conf: site.config.slurm_conf.clone(),
            limit: Duration::from_secs_f64(site.config.command_limit.get().clamp(0.1, 3600.0)),
        };
        Self {
            site,
            commands,
            seen: None,
            asked: None,
            answers: None,
            wanted: BTreeMap::new(),
            limits_asked: BTreeMap::new(),
            absent: BTreeMap::new(),
            corrected: BTreeMap::new(),
            stretches: BTreeMap::new(),
            meters: Meters::default(),
            open: (BTreeSet::new(), 0),
            refused: BTreeSet::new(),
            complaints: Vec::new(),
        }
    }

    /// Whether SLURM answers and has what the site's file says.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn check(&self) -> Result<Vec<SiteError>, SeenError> {
        Ok(self.site.check(&Seen::look(&self.commands)?))
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

    /// The gate closes as long as this file is young. Who only watches does not close it: nobody
    /// would release what it holds.
    fn beat(&mut self, now: Timestamp) {
        if !self.controls() {
            return;
        }
        let Some(path) = self.site.config.heartbeat.clone() else { return };
        if let Err(error) = std::fs::write(&path, format!("{}\n", now.seconds() as i64)) {
            self.complain(format!("{}: {error}", path.display()));
        }
    }

    /// The limits that were there before any was set.
    fn limits_before(&self, known: Known<'_>, news: &mut Vec<News>) {
        for id in self.site.cluster.node_ids() {
            let node = self.site.node(id);
            let (Some(actuator), None) =
                (self.site.actuator(id), known.directory.limits_before(&node.name))
            else {
                continue;
            };
            let read = |gpu| actuator.read(gpu).map(|watts| watts.get());
            let limits: Result<Vec<f64>, _> = (0..u32::from(node.gpus)).map(read).collect();
            if let Ok(limits) = limits {
                let note = Note::Before { node: node.name.clone(), limits };
                news.push(News::Noted(Event::Clock, note));
            }
        }
    }
}

impl Backend for Slurm {
    fn send(
        &mut self,
        now: Timestamp,
        action: &Action,
        known: Known<'_>,
    ) -> Result<(), BackendError> {
        if !self.controls() {
            // What was under way when somebody else took over is not done any more.
            self.wanted.insert(action.id, Wanted { action: action.clone(), step: Step::Failed });
            return Ok(());
        }
        self.want(action);
        self.advance(now, action.id, known);
        Ok(())
    }

    fn reports(
        &mut self,
        now: Timestamp,
        from: u64,
        known: Known<'_>,
    ) -> Result<Vec<Report>, BackendError> {
        if self.asked.is_some_and(|asked| now < asked + self.site.config.poll) {
            return Ok(Vec::new());
        }
        self.asked = Some(now);
        let answered = self.answers.take();
        let mut seen =
            Seen::look(&self.commands).map_err(|error| BackendError(error.to_string()))?;
        self.answers = answered.or(Some(now));
        seen.recognise(known.directory);
        self.seen = Some(Arc::new(seen));
        self.beat(now);
        self.meter(now, known);
        self.wanted.retain(|id, _| known.engine.is_under_way(*id));
        let mut news = Vec::new();
        self.limits_before(known, &mut news);
        self.job_news(now, known, &mut news);
        self.node_news(known, &mut news);
        self.submissions(now, known, &mut news);
        self.park_early(now, known);
        self.split_arrays(now, known);
        self.advance_all(now, known);
        self.restore_limits(known);
        self.action_news(&mut news);
        self.meter_news(now, known, &mut news);
        let number = |(at, news)| Report { number: from + at as u64, news };
        Ok(news.into_iter().enumerate().map(number).collect())
    }

    fn next_event(&self) -> Option<Timestamp> {
        let Some(asked) = self.asked else { return Some(Timestamp::from_micros(0)) };
        Some(asked + self.site.config.poll)
    }
}
