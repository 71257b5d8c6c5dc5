//! Going back: every job, node and limit as SLURM would have it without Wattline.
//!
//! [`Release`] takes turns, as the controller does, and the caller says what time it is: nodes on
//! their way to sleep, and jobs that still save, cannot be given back at once. It looks at SLURM
//! before each step and after it, so it may be broken off and begun again. It never stops a job:
//! what runs goes on.

use super::deferred::{self, is_held_by_admin, is_parked};
use super::instruction::{Begin, Instruction, JobName, JobUpdate, Power};
use super::limits::SAME;
use super::look::Looker;
use super::orders::{Failure, Ticks};
use super::read::{NodeFlag, SlurmJob, SlurmNode, State};
use super::release_lists;
use super::seen::{NodeIs, Seen, SeenError, node_is};
use super::{Slurm, command::printable};
use crate::backend::Known;
use crate::job_registry::{Request, SlurmOrigin};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use wattline_core::Timestamp;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::power::NodePower;
use wattline_core::state::{Phase, Target};
use wattline_core::units::{Seconds, Watts};

/// What had no effect is said again after this long.
const AGAIN: Seconds = Seconds::new(2.0);
/// And this often, then it has failed.
const MOST_TRIES: u32 = 4;
/// A limit that is not read back after this long has failed.
const LIMIT_PATIENCE: Seconds = Seconds::new(30.0);
/// What a node may take, in its boot and shutdown times, and this long on top.
const TIMES: f64 = 3.0;
const SLACK: Seconds = Seconds::new(60.0);

/// What is given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything, and the gate is opened.
    All,
    /// One job, by its number in SLURM.
    Job(u32),
    /// One node and its limits.
    Node(String),
}

/// What kind of thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The heartbeat that keeps the gate closed.
    Gate,
    /// The power limits of a node's GPUs.
    Limits,
    /// A node that was asleep.
    Node,
    /// A job.
    Job,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It is as it was.
    Done,
    /// It was not touched, and why is said.
    Kept,
    /// It would be given back; nothing was done.
    Planned,
    /// It is not given back yet.
    Waits,
    /// It could not be given back.
    Failed,
}

/// One thing and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// What kind of thing.
    pub kind: Kind,
    /// Which one.
    pub name: String,
    /// What became of it.
    pub outcome: Outcome,
    /// In words.
    pub said: String,
}

impl Line {
    fn new(kind: Kind, name: &str, outcome: Outcome, said: impl Into<String>) -> Self {
        Self { kind, name: name.to_owned(), outcome, said: said.into() }
    }
}

/// How far one thing is.
#[derive(Debug)]
struct Item {
    began: Timestamp,
    told: Option<Timestamp>,
    tries: u32,
    line: Line,
}

/// Everything that is being given back.
#[derive(Debug)]
pub struct Release {
    scope: Scope,
    dry_run: bool,
    items: BTreeMap<(Kind, String), Item>,
    looker: Looker,
    looked: bool,
    /// Jobs that need no more than to be released, at this turn.
    plain: Vec<SlurmJob>,
}

impl Release {
    /// Nothing was done yet. With `dry_run` nothing will be, and one turn says what would.
    #[must_use]
    pub fn new(scope: Scope, dry_run: bool) -> Self {
        let (items, plain) = (BTreeMap::new(), Vec::new());
        Self { scope, dry_run, items, looker: Looker::without_gpus(), looked: false, plain }
    }

    /// Whether nothing more will change.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.looked && self.lines().all(|line| line.outcome != Outcome::Waits)
    }

    /// All things and what became of them so far.
    pub fn lines(&self) -> impl Iterator<Item = &Line> {
        self.items.values().map(|item| &item.line)
    }

    /// Looks at SLURM and does what can be done. Says what has changed. The heartbeat must not be
    /// written meanwhile.
    ///
    /// # Errors
    /// When SLURM does not answer: then nothing was done.
    pub fn turn(
        &mut self,
        now: Timestamp,
        slurm: &mut Slurm,
        known: Known<'_>,
    ) -> Result<Vec<Line>, SeenError> {
        let mut seen = self.looker.look(&slurm.link, &Ticks::default())?;
        seen.recognise(known.registry);
        let mut changed = Vec::new();
        if self.scope == Scope::All {
            let line = self.gate(slurm);
            self.note(now, line, &mut changed);
        }
        for id in slurm.site.cluster.node_ids() {
            let name = slurm.site.node(id).name.to_string();
            let wanted = match &self.scope {
                Scope::All => true,
                Scope::Node(only) => *only == name,
                Scope::Job(_) => false,
            };
            if !wanted {
                continue;
            }
            let found = seen.nodes.get(&name);
            if let Some(line) = self.node(now, id, &name, found, slurm, known) {
                self.note(now, line, &mut changed);
            }
            if let Some(line) = self.limits(now, id, &name, found, slurm, known) {
                self.note(now, line, &mut changed);
            }
        }
        for job in seen.jobs() {
            let wanted = match self.scope {
                Scope::All => true,
                Scope::Job(only) => only == job.key.id,
                Scope::Node(_) => false,
            };
            if wanted && let Some(line) = self.job(now, job, slurm, known) {
                self.note(now, line, &mut changed);
            }
        }
        // Who is still held at the next turn is told again, by itself.
        release_lists::release(&slurm.link, &std::mem::take(&mut self.plain));
        self.missing(now, &seen, slurm, &mut changed);
        self.looked = true;
        Ok(changed)
    }

    /// Things that were named and are not there, or are gone by now.
    fn missing(&mut self, now: Timestamp, seen: &Seen, slurm: &Slurm, changed: &mut Vec<Line>) {
        let line = match &self.scope {
            Scope::Job(number) if !seen.jobs().any(|job| job.key.id == *number) => {
                let name = number.to_string();
                Some(Line::new(Kind::Job, &name, Outcome::Failed, "SLURM shows no such job"))
            }
            Scope::Node(name) if slurm.site.find(name).is_none() => {
                let said = "the site's file has no such node";
                Some(Line::new(Kind::Node, name, Outcome::Failed, said))
            }
            _ => None,
        };
        if let Some(line) = line {
            self.note(now, line, changed);
        }
        let here: BTreeSet<String> = seen.jobs().map(SlurmJob::address).collect();
        let gone: Vec<String> = (self.items.values().map(|item| &item.line))
            .filter(|line| line.kind == Kind::Job && line.outcome == Outcome::Waits)
            .filter(|line| !here.contains(&line.name))
            .map(|line| line.name.clone())
            .collect();
        for name in gone {
            let line = Line::new(Kind::Job, &name, Outcome::Done, "has ended meanwhile");
            self.note(now, line, changed);
        }
    }

    fn note(&mut self, now: Timestamp, line: Line, changed: &mut Vec<Line>) {
        let key = (line.kind, line.name.clone());
        let item = self.items.entry(key).or_insert_with(|| {
            let line = Line { outcome: Outcome::Waits, said: String::new(), ..line.clone() };
            Item { began: now, told: None, tries: 0, line }
        });
        if item.line != line {
            item.line = line.clone();
            changed.push(line);
        }
    }

    /// What is done already stays done: others may act by now.
    fn is_settled(&self, kind: Kind, name: &str) -> bool {
        let item = self.items.get(&(kind, name.to_owned()));
        item.is_some_and(|item| item.line.outcome != Outcome::Waits)
    }

    fn began(&self, now: Timestamp, kind: Kind, name: &str) -> Timestamp {
        self.items.get(&(kind, name.to_owned())).map_or(now, |item| item.began)
    }

    /// Whether it may be told (again) now; notes that it is.
    fn may_tell(&mut self, now: Timestamp, kind: Kind, name: &str) -> bool {
        let item = self.items.entry((kind, name.to_owned())).or_insert_with(|| Item {
            began: now,
            told: None,
            tries: 0,
            line: Line::new(kind, name, Outcome::Waits, ""),
        });
        let may = item.told.is_none_or(|told| now >= told + AGAIN);
        if may {
            item.told = Some(now);
            item.tries += 1;
        }
        may
    }

    fn tries(&self, kind: Kind, name: &str) -> u32 {
        self.items.get(&(kind, name.to_owned())).map_or(0, |item| item.tries)
    }

    /// A heartbeat that is not there opens the gate for new jobs.
    fn gate(&self, slurm: &Slurm) -> Line {
        let Some(path) = &slurm.site.config.heartbeat else {
            return Line::new(Kind::Gate, "gate", Outcome::Kept, "no heartbeat is configured");
        };
        let name = path.display().to_string();
        if self.is_settled(Kind::Gate, &name) {
            let item = self.items.get(&(Kind::Gate, name.clone()));
            if let Some(item) = item {
                return item.line.clone();
            }
        }
        if self.dry_run {
            let said = "would be removed: the gate lets new jobs pass";
            return Line::new(Kind::Gate, &name, Outcome::Planned, said);
        }
        match std::fs::remove_file(path) {
            Ok(()) => {
                Line::new(Kind::Gate, &name, Outcome::Done, "removed: the gate lets new jobs pass")
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Line::new(Kind::Gate, &name, Outcome::Kept, "not there: the gate lets jobs pass")
            }
            Err(error) => {
                let said = format!("cannot be removed: {error}; the gate opens when it is old");
                Line::new(Kind::Gate, &name, Outcome::Failed, said)
            }
        }
    }

    fn node(
        &mut self,
        now: Timestamp,
        id: NodeId,
        name: &str,
        found: Option<&SlurmNode>,
        slurm: &mut Slurm,
        known: Known<'_>,
    ) -> Option<Line> {
        if self.is_settled(Kind::Node, name) {
            return None;
        }
        let line = |outcome, said: &str| Some(Line::new(Kind::Node, name, outcome, said));
        let Some(found) = found else {
            return line(Outcome::Failed, "SLURM has no such node");
        };
        let named = matches!(self.scope, Scope::Node(_));
        let begun = self.items.contains_key(&(Kind::Node, name.to_owned()));
        let is = node_is(found);
        if matches!(is, NodeIs::Up | NodeIs::Unsure) {
            return (begun || named).then(|| Line::new(Kind::Node, name, Outcome::Done, "is up"));
        }
        let state = known.engine.state().node(id);
        let awake = state.power == NodePower::Up && state.target == Target::Up;
        // While it is only watched, nobody of us puts anything to sleep.
        let ours = !awake && (slurm.controls() || state.target == Target::Asleep);
        let may = named || begun || (ours && is != NodeIs::Lost);
        if !may {
            return match is {
                NodeIs::Asleep => line(
                    Outcome::Kept,
                    "asleep, but not by us as far as the journal knows; --node wakes it",
                ),
                _ => None,
            };
        }
        if is == NodeIs::Lost {
            let reason = found.reason.as_deref().map(printable).unwrap_or_default();
            let said = format!("SLURM says it is down: {reason}");
            return line(Outcome::Failed, &said);
        }
        if self.dry_run {
            return line(Outcome::Planned, "would be woken");
        }
        let node = slurm.site.node(id);
        let patience = (node.boot_time + node.shutdown_time) * TIMES + SLACK;
        if now > self.began(now, Kind::Node, name) + patience {
            let said = format!("is not up after {:.0} s; is ResumeProgram fine?", patience.get());
            return line(Outcome::Failed, &said);
        }
        let rising = found.is(&NodeFlag::PoweringUp) || found.is(&NodeFlag::PowerUp);
        // One that is going to sleep would not hear it.
        let falling = found.is(&NodeFlag::PoweringDown);
        if rising {
            return line(Outcome::Waits, "boots");
        }
        if falling {
            return line(Outcome::Waits, "is going to sleep; it is woken when it is asleep");
        }
        if self.may_tell(now, Kind::Node, name) {
            let told = Instruction::Power(name.to_owned(), Power::Up);
            if let Err(failure) = slurm.link.tell(&told) {
                return line(Outcome::Failed, &failure.said);
            }
        }
        line(Outcome::Waits, "was told to wake")
    }

    fn limits(
        &mut self,
        now: Timestamp,
        id: NodeId,
        name: &str,
        found: Option<&SlurmNode>,
        slurm: &Slurm,
        known: Known<'_>,
    ) -> Option<Line> {
        let actuator = slurm.site.actuator(id)?;
        if self.is_settled(Kind::Limits, name) {
            return None;
        }
        let line = |outcome, said: String| Some(Line::new(Kind::Limits, name, outcome, said));
        let Some(before) = known.registry.limits_before(name) else {
            return line(Outcome::Kept, "what they were is not recorded; they stay".into());
        };
        let watts = before.iter().map(|watts| format!("{watts:.0}"));
        let watts = format!("{} W", watts.collect::<Vec<_>>().join(", "));
        let mut wrong = Vec::new();
        for (gpu, before) in (0..).zip(before) {
            match actuator.read(gpu) {
                Ok(is) if (is.get() - before).abs() < SAME => {}
                Ok(_) => wrong.push((gpu, Watts::new(*before), None)),
                Err(error) => wrong.push((gpu, Watts::new(*before), Some(error.to_string()))),
            }
        }
        let begun = self.items.contains_key(&(Kind::Limits, name.to_owned()));
        if wrong.is_empty() {
            return (begun || matches!(self.scope, Scope::Node(_)))
                .then(|| Line::new(Kind::Limits, name, Outcome::Done, format!("are {watts}")));
        }
        if self.dry_run {
            return line(Outcome::Planned, format!("would be {watts}"));
        }
        // A node that sleeps cannot set them; its turn comes when it is up.
        let up = found.is_some_and(|node| node_is(node) == NodeIs::Up);
        let woken = self.items.get(&(Kind::Node, name.to_owned()));
        if !up && woken.is_some_and(|item| item.line.outcome == Outcome::Waits) {
            if let Some(item) = self.items.get_mut(&(Kind::Limits, name.to_owned())) {
                item.began = now;
            }
            return line(Outcome::Waits, format!("will be {watts} when it is up"));
        }
        if now > self.began(now, Kind::Limits, name) + LIMIT_PATIENCE {
            let why = wrong.into_iter().find_map(|(_, _, error)| error);
            let why = why.unwrap_or_else(|| "other limits are read back".into());
            return line(Outcome::Failed, format!("should be {watts}: {why}"));
        }
        if self.may_tell(now, Kind::Limits, name) {
            for (gpu, limit, _) in &wrong {
                if let Err(error) = actuator.set(*gpu, *limit)
                    && up
                {
                    return line(Outcome::Failed, format!("should be {watts}: {error}"));
                }
            }
        }
        line(Outcome::Waits, format!("were told to be {watts}"))
    }

    fn job(
        &mut self,
        now: Timestamp,
        job: &SlurmJob,
        slurm: &mut Slurm,
        known: Known<'_>,
    ) -> Option<Line> {
        let name = job.address();
        let begun = self.items.contains_key(&(Kind::Job, name.clone()));
        let named = matches!(self.scope, Scope::Job(_));
        if self.is_settled(Kind::Job, &name) {
            return None;
        }
        let line = |outcome, said: &str| Some(Line::new(Kind::Job, &name, outcome, said));
        let of_ours =
            |said: &str| (begun || named).then(|| Line::new(Kind::Job, &name, Outcome::Done, said));
        if job.state.is_over() {
            return of_ours("has ended");
        }
        let id = known.registry.find(&super::seen::key(job));
        let origin = id.and_then(|id| known.registry.slurm(id));
        let id = id.filter(|id| known.engine.state().find_job(*id).is_some());
        let marked = slurm.is_marked(job);
        let controlled = origin.is_some_and(|origin| origin.controlled);
        // Marks in SLURM tell what we hold, whatever the site's file and the journal say now. Of jobs
        // that neither knows of and that run nothing is done.
        let mine = slurm.site.looks_after(&job.partition);
        let stranded = marked && job.state.waits() && (job.held || is_parked(job));
        if !(controlled || (mine && marked) || stranded) {
            if begun {
                return of_ours("is released");
            }
            return named.then(|| Line::new(Kind::Job, &name, Outcome::Kept, "is not ours"));
        }
        if !job.state.waits() {
            let saves = id
                .is_some_and(|id| matches!(known.engine.state().job(id).phase, Phase::Stopping(_)));
            if !saves && job.state != State::Completing {
                return of_ours("runs, and goes on");
            }
            if job.state == State::Completing && !saves && !begun && !job.requeue {
                return None;
            }
            return Some(self.ending(now, job, &name, id, slurm, known));
        }
        if is_held_by_admin(job) {
            return line(Outcome::Kept, "is held by an administrator");
        }
        let on_hold = match id {
            // One that we hold for its restarts is held by nobody else.
            Some(id) => {
                known.engine.state().job(id).is_on_hold()
                    && known.registry.restart_hold(id).is_none()
            }
            None => slurm.told_by_gate(job).is_some_and(|told| told.asked.hold == Some(true)),
        };
        let before = origin.filter(|origin| reshaped(job, origin));
        let asked = before.map(|origin| origin.asked.clone());
        if !job.held && asked.is_none() && !is_parked(job) {
            return of_ours("waits in SLURM's queue as it was submitted");
        }
        if on_hold && asked.is_none() {
            return line(Outcome::Kept, "is held by its user");
        }
        if self.dry_run {
            let said = match (&asked, on_hold) {
                (Some(asked), true) => {
                    format!("would get {} back; its user holds it", shape(asked))
                }
                (Some(asked), false) => format!("would get {} back and be released", shape(asked)),
                (None, _) => "would be released".into(),
            };
            return line(Outcome::Planned, &said);
        }
        if self.tries(Kind::Job, &name) >= MOST_TRIES {
            let said = format!("SLURM holds it: {}", printable(&job.state_reason));
            return line(Outcome::Failed, &said);
        }
        if !self.may_tell(now, Kind::Job, &name) {
            return None;
        }
        let plain = before.is_none() && !on_hold && job.key.restarts == 0 && !is_parked(job);
        let plain = plain && (origin.is_some() || !is_pinned(job));
        let plain = plain && !super::marks::bears_ours(job);
        if plain && self.scope == Scope::All && self.tries(Kind::Job, &name) == 1 {
            self.plain.push(job.clone());
        } else if let Err(error) = give_back(now, slurm, job, (origin.is_some(), before), on_hold)
            && self.tries(Kind::Job, &name) >= MOST_TRIES
        {
            return line(Outcome::Failed, &error.said);
        }
        let said = match (&asked, on_hold) {
            (Some(asked), true) => format!("gets {} back; its user holds it", shape(asked)),
            (Some(asked), false) => format!("gets {} back and is released", shape(asked)),
            (None, _) => "is released".into(),
        };
        line(Outcome::Waits, &said)
    }

    /// A job that saves and ends because it was told to: SLURM will hold it.
    fn ending(
        &self,
        now: Timestamp,
        job: &SlurmJob,
        name: &str,
        id: Option<JobId>,
        slurm: &Slurm,
        known: Known<'_>,
    ) -> Line {
        if self.dry_run {
            let said = "saves and ends; would be released then";
            return Line::new(Kind::Job, name, Outcome::Planned, said);
        }
        let save = id.map_or(Seconds::ZERO, |id| {
            known.engine.predictor().restart(&known.engine.state().job(id).job).save
        });
        let patience = save * 2.0 + slurm.site.config.stop_grace + SLACK;
        if now > self.began(now, Kind::Job, name) + patience {
            let said = if job.state == State::Completing {
                "has been ending for long; release it when it is over"
            } else {
                "was told to save and end and has not; when it does, release it again"
            };
            return Line::new(Kind::Job, name, Outcome::Failed, said);
        }
        let said = "was told to save and end; it is released when it has";
        Line::new(Kind::Job, name, Outcome::Waits, said)
    }
}

/// Tells SLURM, and waits: there is no loop here that must go on meanwhile.
fn give_back(
    now: Timestamp,
    slurm: &Slurm,
    job: &SlurmJob,
    (is_known, before): (bool, Option<&SlurmOrigin>),
    on_hold: bool,
) -> Result<(), Failure> {
    let tell = |update: JobUpdate| slurm.link.tell(&Instruction::Update(JobName::of(job), update));
    if let Some(before) = before {
        tell(slurm.told_as_before(job, before))?;
    }
    if !is_known && is_pinned(job) {
        // The journal that says where it was to start is gone.
        tell(JobUpdate { required: Some(String::new()), ..JobUpdate::default() })?;
    }
    if before.is_some() {
        // That sets when it begins, too.
    } else if job.key.restarts > 0 || is_parked(job) {
        // SLURM lets jobs that were requeued wait for two minutes.
        let begin = deferred::begin(job).filter(|at| is_parked(job) && *at > now);
        let begin = Some(begin.map_or(Begin::Now, Begin::At));
        tell(JobUpdate { begin, ..JobUpdate::default() })?;
    }
    if !on_hold {
        slurm.link.tell(&Instruction::release(job))?;
    }
    // It is no longer ours to give back, whoever holds it next.
    if let Some(unmarked) = super::marks::unmark(job) {
        tell(JobUpdate { admin_comment: Some(unmarked), ..JobUpdate::default() })?;
    }
    Ok(())
}

/// Whether a waiting job must run on nodes that its user has not named.
fn is_pinned(job: &SlurmJob) -> bool {
    !job.required_nodes.is_empty() && !super::marks::names_nodes(job)
}

/// Whether a waiting job asks for something else than it did when it came. A job that does not is
/// left as it is: it may ask for more than is known here.
fn reshaped(job: &SlurmJob, before: &SlurmOrigin) -> bool {
    let asked = &before.asked;
    let same = |now: &[String], then: &[Box<str>]| {
        now.len() == then.len() && now.iter().all(|name| then.iter().any(|t| **t == **name))
    };
    let moved = !same(&job.required_nodes, &asked.required)
        || (job.leads() && !same(&job.excluded_nodes, &asked.excluded));
    let nodes = job.node_count.is_some_and(|nodes| nodes != asked.nodes);
    let resized = nodes || job.gpus_asked() != asked.gpus_per_node * asked.nodes;
    moved || (!before.as_asked && resized)
}

fn shape(asked: &Request) -> String {
    let Request { nodes, gpus_per_node, .. } = asked;
    format!("{nodes} x {gpus_per_node} GPUs")
}
