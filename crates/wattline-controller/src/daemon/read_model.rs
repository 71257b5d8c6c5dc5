//! How things are, for whoever looks; and what changed since the last look.

use super::gauges::{Gauges, NodeGauge};
use super::loop_stats::{LoopStats, PredictionErrors, Quantity};
use super::metered::Metered;
use super::outlook::Outlook;
use crate::job_history::EndedJob;
use crate::job_registry::{JobNumber, JobRegistry, Priority};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wattline_api::Event;
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::cluster::Cluster;
use wattline_core::effort::Effort;
use wattline_core::engine::{Engine, EngineStats};
use wattline_core::ids::{JobId, NodeId, PlanId, UserId};
use wattline_core::job::{Job, Work, WorkRate};
use wattline_core::placement::Placement;
use wattline_core::plan::Reason;
use wattline_core::power::{NodePower, TOLERANCE};
use wattline_core::state::{JobState, Phase, Progress, Residents, Target};
use wattline_core::units::{Euros, Joules, Seconds, Watts};

/// One job as it was.
#[derive(Clone, Debug)]
pub struct JobView {
    /// Which.
    pub id: JobId,
    /// What people call it.
    pub number: JobNumber,
    /// What was asked for.
    pub job: Arc<Job>,
    /// Whose it is, by name.
    pub user: Arc<str>,
    /// What it trains, by name.
    pub workload: Arc<str>,
    /// Where it stands.
    pub phase: Phase,
    /// Its user wants it to wait.
    pub on_hold: bool,
    /// Its user has cancelled it.
    pub cancelled: bool,
    /// What the plan wants for it.
    pub planned: Option<Placement>,
    /// What it holds.
    pub held: Option<Placement>,
    /// How far it is.
    pub progress: Progress,
    /// When it first ran.
    pub first_start: Option<Timestamp>,
    /// When it was over.
    pub ended: Option<Timestamp>,
    /// How often it was started again.
    pub restarts: u32,
    /// Why it is planned so.
    pub reason: Reason,
    /// Why the cluster would not start it, in the cluster's words, while that is why it waits.
    pub refused: Option<Arc<str>>,
    /// What its owner is told while it is held because it was restarted too often.
    pub restart_hold: Option<Arc<str>>,
    /// What people call the job that it gave way to.
    pub gave_way_to: Option<Arc<str>>,
    /// What its weight is made of, where more than its user's word counts.
    pub priority: Option<Arc<Priority>>,
    /// Who pays for it.
    pub account: Option<Arc<str>>,
    /// What it has drawn so far, if that is measured.
    pub energy: Option<Joules>,
    /// What that has cost.
    pub bill: Option<Euros>,
}

impl JobView {
    /// Where it stands, in a word.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self.phase {
            Phase::Finished if self.cancelled => "cancelled",
            Phase::Finished => "finished",
            Phase::Starting(_) => "starting",
            Phase::Running => "running",
            Phase::Stopping(_) => "stopping",
            Phase::Waiting | Phase::BackingOff(_) if self.on_hold => "on_hold",
            Phase::Waiting => "waiting",
            Phase::BackingOff(_) => "backing_off",
        }
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Finished
    }

    /// Whether it ended after its deadline.
    #[must_use]
    pub fn is_late(&self) -> bool {
        let late = |end| self.job.tardiness(end) > Seconds::ZERO;
        !self.cancelled && self.ended.is_some_and(late)
    }

    /// The share of its work that is believed to be done.
    #[must_use]
    pub fn done(&self, now: Timestamp) -> f64 {
        let done = self.progress.done + self.progress.rate * now.since(self.progress.as_of);
        if self.job.work.0 > 0.0 { (done.0 / self.job.work.0).clamp(0.0, 1.0) } else { 1.0 }
    }

    fn differs(&self, state: &JobState) -> bool {
        self.phase != state.phase
            || self.reason != state.reason
            || self.on_hold != state.is_on_hold()
            || self.cancelled != state.is_cancelled()
            || self.planned != state.planned
            || self.held != state.held
            || self.progress != state.progress
            || !Arc::ptr_eq(&self.job, &state.job)
    }
}

/// One node as it was.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    /// What it is.
    pub power: NodePower,
    /// What it should be.
    pub target: Target,
    /// GPUs of it that are held.
    pub gpus_held: u32,
    /// Who holds them.
    pub jobs: Vec<JobId>,
    /// The limit that counts for each GPU that is held.
    pub limits: Vec<(u8, Watts)>,
    /// The limit that is planned for each GPU that a job is planned on.
    pub planned_limits: Vec<(u8, Watts)>,
    /// What it could draw at worst.
    pub committed: Watts,
    /// Why it is planned so.
    pub reason: Reason,
}

/// So many jobs are copied when one of them changes.
const CHUNK: u32 = 256;

/// Jobs by id, shared between read models but for what changed.
#[derive(Clone, Debug, Default)]
struct Jobs {
    chunks: BTreeMap<u32, Arc<BTreeMap<JobId, Arc<JobView>>>>,
    /// Jobs before this one have been looked at once.
    next: u32,
}

impl Jobs {
    fn get(&self, id: JobId) -> Option<&Arc<JobView>> {
        self.chunks.get(&(id.0 / CHUNK))?.get(&id)
    }

    fn set(&mut self, view: JobView) {
        let id = view.id;
        self.next = self.next.max(id.0 + 1);
        let chunk = self.chunks.entry(id.0 / CHUNK).or_default();
        Arc::make_mut(chunk).insert(id, Arc::new(view));
    }

    fn remove(&mut self, id: JobId) {
        let at = id.0 / CHUNK;
        if let Some(chunk) = self.chunks.get_mut(&at) {
            Arc::make_mut(chunk).remove(&id);
            if chunk.is_empty() {
                self.chunks.remove(&at);
            }
        }
    }

    fn from(&self, first: JobId) -> impl Iterator<Item = &Arc<JobView>> {
        let chunks = self.chunks.range(first.0 / CHUNK..);
        chunks.flat_map(move |(_, chunk)| chunk.range(first..).map(|(_, view)| view))
    }
}

/// How things were at some time.
#[derive(Clone)]
pub struct ReadModel {
    /// When, on the cluster's clock.
    pub at: Timestamp,
    /// When, on the machine's.
    pub built: Instant,
    /// The entries of the journal that the engine had heard by then.
    pub heard: u64,
    /// The plan in force.
    pub plan: PlanId,
    jobs: Jobs,
    /// Jobs that are not over, by id.
    pub unfinished: Arc<[JobId]>,
    /// Nodes by id.
    pub nodes: Arc<[NodeView]>,
    /// The machines.
    pub cluster: Arc<Cluster>,
    /// The budget over time.
    pub budget: Option<Calendar<Watts>>,
    /// What committed power must stay below.
    pub budget_now: Option<Watts>,
    /// What the cluster could draw at worst.
    pub committed: Watts,
    /// And once the plan is carried out.
    pub planned_committed: Watts,
    /// What it draws.
    pub drawn: Option<Watts>,
    /// What the nodes' meters show, by node.
    pub gauges: Arc<[NodeGauge]>,
    /// How long it drew more than the budget, since this controller came up.
    pub over_budget: Seconds,
    /// Jobs that hold GPUs.
    pub running: usize,
    /// What the engine has done.
    pub stats: EngineStats,
    /// How long the cluster takes to start a job, to start one again, and to stop one.
    pub delays: [Seconds; 3],
    /// How much of its usual work the policy may do.
    pub effort: Effort,
    /// How long turns took.
    pub turns: Arc<LoopStats>,
    /// What was done.
    pub prediction_errors: Arc<PredictionErrors>,
    /// What is foreseen.
    pub outlook: Arc<Outlook>,
    /// What is wrong right now.
    pub troubles: Arc<[String]>,
}

impl ReadModel {
    /// One job, if it is not over, or ended just now.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&Arc<JobView>> {
        self.jobs.get(id)
    }

    /// How many jobs were ever taken in.
    #[must_use]
    pub fn job_count(&self) -> usize {
        self.jobs.next as usize
    }

    /// Jobs from this one on, by id: those that are not over, and those that ended just now and
    /// cannot be looked up in the history yet.
    pub fn jobs_from(&self, first: JobId) -> impl Iterator<Item = &Arc<JobView>> {
        self.jobs.from(first)
    }
}

/// What a run was believed to take when it began.
struct Believed {
    start: Timestamp,
    left: Seconds,
    /// What its GPUs would draw, and what the job had drawn by then.
    power: Option<Watts>,
    before: Option<Joules>,
}

/// Makes read models, and tells what changed from one to the next.
pub(super) struct ReadModelBuilder {
    jobs: Jobs,
    unfinished: Vec<JobId>,
    /// Jobs that the last read model showed as over.
    over: Vec<JobId>,
    nodes: Arc<[NodeView]>,
    users: BTreeMap<Box<str>, Arc<str>>,
    workloads: BTreeMap<u32, Arc<str>>,
    believed: BTreeMap<JobId, Believed>,
    budget: Option<Option<Calendar<Watts>>>,
    over_budget: Seconds,
    built: Option<Timestamp>,
    gauges: Gauges,
    /// When the jobs' meters were last read.
    read: Option<Instant>,
    prediction_errors: PredictionErrors,
}

/// How often the meters of jobs that do nothing new are read.
const READ_EVERY: Duration = Duration::from_secs(1);

/// What a read model is made of beside the engine.
pub(super) struct BuildInputs {
    /// Whether the meters of all jobs that run are to be read.
    pub(super) reads: bool,
    pub(super) heard: u64,
    pub(super) effort: Effort,
    pub(super) turns: Arc<LoopStats>,
    pub(super) outlook: Arc<Outlook>,
    pub(super) troubles: Arc<[String]>,
}

impl ReadModelBuilder {
    /// `missed`: how many deadlines were missed before.
    pub(super) fn new(missed: u64) -> Self {
        Self {
            jobs: Jobs::default(),
            unfinished: Vec::new(),
            over: Vec::new(),
            nodes: Arc::from([]),
            users: BTreeMap::new(),
            workloads: BTreeMap::new(),
            believed: BTreeMap::new(),
            budget: None,
            over_budget: Seconds::ZERO,
            built: None,
            gauges: Gauges::default(),
            read: None,
            prediction_errors: PredictionErrors::after(missed),
        }
    }

    /// How things are now, and what happened since the last read model. The first one tells nothing:
    /// all that was before.
    pub(super) fn build(
        &mut self,
        engine: &Engine<'static>,
        registry: &JobRegistry,
        meters: &impl Metered,
        now: Timestamp,
        inputs: BuildInputs,
        ended: &[EndedJob],
    ) -> (ReadModel, Vec<Event>) {
        let first = self.built.is_none();
        let reads = inputs.reads || self.read.is_none_or(|read| read.elapsed() >= READ_EVERY);
        if reads {
            self.read = Some(Instant::now());
        }
        let mut events = Vec::new();
        let state = engine.state();
        // They can be looked up in the history.
        for id in std::mem::take(&mut self.over) {
            self.jobs.remove(id);
        }
        let ended: BTreeMap<JobId, &EndedJob> = ended.iter().map(|job| (job.id, job)).collect();
        let mut unfinished = std::mem::take(&mut self.unfinished);
        unfinished.retain(|id| {
            let Some(old) = self.jobs.get(*id).cloned() else { return false };
            if let Some(ended) = ended.get(id) {
                self.tell_end(ended, now, &mut events);
                self.jobs.set(ended_view(&old, ended));
                self.over.push(*id);
                return false;
            }
            let Some(job) = state.find_job(*id) else { return false };
            if job.has_ended() {
                // It is not filed yet, and is told of when it is.
                return true;
            }
            // What a job that holds GPUs draws is never the same.
            if old.differs(job) || (reads && job.held.is_some()) {
                let view = self.look(*id, job, registry, meters, now);
                self.compare(&old, &view, engine, now, &mut events);
                self.jobs.set(view);
            }
            true
        });
        // Some came and went since the last read model.
        for job in ended.range(JobId(self.jobs.next)..).map(|(_, job)| *job) {
            events.push(about_ended(job, now, "submitted", "was submitted".to_owned()));
            self.tell_end(job, now, &mut events);
        }
        let new = state.jobs_from(JobId(self.jobs.next)).filter(|(_, job)| !job.has_ended());
        for (id, job) in new {
            let view = self.look(id, job, registry, meters, now);
            if !first {
                events.push(about(&view, now, "submitted", "was submitted"));
                let new = JobView { phase: Phase::Waiting, held: None, ..view.clone() };
                self.compare(&new, &view, engine, now, &mut events);
            }
            unfinished.push(id);
            self.jobs.set(view);
        }
        self.jobs.next = state.job_count() as u32;
        self.unfinished = unfinished;
        self.look_at_nodes(engine, first, now, &mut events);
        self.look_at_budget(engine, meters.drawn(), now, &mut events);
        self.built = Some(now);
        let read_model = ReadModel {
            at: now,
            built: Instant::now(),
            heard: inputs.heard,
            plan: engine.plan_id(),
            jobs: self.jobs.clone(),
            unfinished: self.unfinished.clone().into(),
            nodes: Arc::clone(&self.nodes),
            cluster: Arc::clone(state.cluster()),
            budget: engine.budget().cloned(),
            budget_now: engine.budget_at(now),
            committed: state.held_committed(),
            planned_committed: state.planned_committed(),
            drawn: meters.drawn(),
            gauges: self.gauges.look(state.cluster(), meters, now),
            over_budget: self.over_budget,
            delays: {
                let delays = engine.state().delays();
                [delays.start(false), delays.start(true), delays.stop()]
            },
            running: state.held_jobs(),
            stats: engine.stats(),
            effort: inputs.effort,
            turns: inputs.turns,
            prediction_errors: Arc::new(self.prediction_errors.clone()),
            outlook: inputs.outlook,
            troubles: inputs.troubles,
        };
        (read_model, events)
    }

    fn look(
        &mut self,
        id: JobId,
        state: &JobState,
        registry: &JobRegistry,
        meters: &impl Metered,
        now: Timestamp,
    ) -> JobView {
        let known = self.jobs.get(id);
        let user = known.map(|view| Arc::clone(&view.user));
        let workload = known.map(|view| Arc::clone(&view.workload));
        let drawn = meters.job_drawn(id, now).or_else(|| registry.drawn(id));
        JobView {
            id,
            number: registry.number(id),
            job: Arc::clone(&state.job),
            user: user.unwrap_or_else(|| self.user(id, state.job.user, registry)),
            workload: workload.unwrap_or_else(|| self.workload(state, registry)),
            phase: state.phase,
            on_hold: state.is_on_hold(),
            cancelled: state.is_cancelled(),
            planned: state.planned.clone(),
            held: state.held.clone(),
            progress: state.progress,
            first_start: state.first_start,
            ended: None,
            restarts: state.restarts,
            reason: state.reason,
            refused: match state.reason {
                Reason::Refused(_) => registry.refused(id).cloned(),
                // Other nodes are busy, and on some it may not run: its owner wants to know both.
                _ if state.held.is_none() && state.barred().is_some() => {
                    registry.refused(id).cloned()
                }
                _ => None,
            },
            restart_hold: registry.restart_hold(id).filter(|_| state.is_on_hold()).cloned(),
            gave_way_to: match state.reason {
                Reason::GaveWay { to } => Some(registry.number(to).called),
                _ => None,
            },
            priority: registry.priority(id).cloned(),
            account: registry.slurm(id).and_then(|slurm| slurm.account.as_deref()).map(Arc::from),
            energy: drawn.map(|drawn| drawn.energy),
            bill: drawn.map(|drawn| drawn.bill),
        }
    }

    fn user(&mut self, id: JobId, user: UserId, registry: &JobRegistry) -> Arc<str> {
        let name = registry.user_of(id, user);
        let known = self.users.entry(name.clone().into_boxed_str());
        Arc::clone(known.or_insert_with(|| name.into()))
    }

    fn workload(&mut self, state: &JobState, registry: &JobRegistry) -> Arc<str> {
        let id = state.job.workload;
        let known = self.workloads.entry(id.0);
        let name = || registry.workload(id).map_or_else(|| id.to_string(), str::to_owned);
        Arc::clone(known.or_insert_with(|| name().into()))
    }

    /// What happened to a job.
    fn compare(
        &mut self,
        old: &JobView,
        new: &JobView,
        engine: &Engine<'static>,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) {
        let runs = |view: &JobView| matches!(view.phase, Phase::Running | Phase::Stopping(_));
        let mut tell = |kind: &str, text: &str| events.push(about(new, now, kind, text));
        if !Arc::ptr_eq(&old.job, &new.job) {
            tell("updated", "has another deadline or weight, or asks for something else");
        }
        match (old.on_hold, new.on_hold) {
            (false, true) => tell("on_hold", "shall wait until it is let go"),
            (true, false) => tell("released", "may go on"),
            _ => {}
        }
        let again = new.restarts > old.restarts;
        if (runs(new) && !runs(old)) || (runs(new) && again) {
            let gpus = new.held.as_ref().map_or(0, |held| held.allocation.count());
            let start = new.first_start.unwrap_or(now);
            tell("started", &format!("runs on {gpus} GPUs: {}", new.reason));
            let left = (new.job.work - new.progress.done) / new.progress.rate;
            let power = new.held.as_ref().and_then(|held| {
                let predicted = engine.predictor().predict(&new.job, &held.configuration)?;
                Some(predicted.power * f64::from(held.configuration.gpus))
            });
            let (start, before) = (new.progress.as_of.max(start), new.energy);
            self.believed.insert(new.id, Believed { start, left, power, before });
        } else if let (true, Some(was), Some(is)) = (runs(new), &old.held, &new.held)
            && was.configuration.power_limit != is.configuration.power_limit
        {
            let limit = is.configuration.power_limit;
            tell("limited", &format!("its GPUs may draw {limit:.0} each: {}", new.reason));
            self.believed.remove(&new.id);
        }
        if runs(old) && !runs(new) && !new.is_over() {
            tell("stopped", &format!("has left its GPUs: {}", new.reason));
            self.believed.remove(&new.id);
        }
    }

    fn tell_end(&mut self, job: &EndedJob, now: Timestamp, events: &mut Vec<Event>) {
        let believed = self.believed.remove(&job.id);
        if job.cancelled {
            events.push(about_ended(job, now, "cancelled", "was cancelled".to_owned()));
            return;
        }
        let late = job.tardiness();
        let text = if job.is_late() {
            self.prediction_errors.deadlines_missed += 1;
            format!("is done, {late:.0} after its deadline")
        } else {
            "is done".to_owned()
        };
        events.push(about_ended(job, now, "finished", text));
        if let Some(believed) = believed {
            let energy = job.drawn.map(|(energy, _)| energy);
            self.learn_how_far_off(&believed, job.ended.since(believed.start), energy);
        }
    }

    /// What was believed when a run began, against what became of it.
    fn learn_how_far_off(&mut self, believed: &Believed, time: Seconds, energy: Option<Joules>) {
        let Believed { left, power, before, .. } = *believed;
        if !(left > Seconds::ZERO && left.is_finite() && time > Seconds::ZERO) {
            return;
        }
        self.prediction_errors.erred(Quantity::Time, time / left - 1.0);
        let drawn = energy.map(|energy| energy - before.unwrap_or(Joules::ZERO));
        if let (Some(drawn), Some(power)) = (drawn, power)
            && drawn > Joules::ZERO
            && power > Watts::ZERO
        {
            self.prediction_errors.erred(Quantity::Power, drawn / (power * time) - 1.0);
            self.prediction_errors.erred(Quantity::Energy, drawn / (power * left) - 1.0);
        }
    }

    fn look_at_nodes(
        &mut self,
        engine: &Engine<'static>,
        first: bool,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) {
        let state = engine.state();
        let views: Vec<NodeView> =
            state.cluster().node_ids().map(|id| look_at_node(engine, id, now)).collect();
        if views[..] == self.nodes[..] {
            return;
        }
        for (index, (old, new)) in self.nodes.iter().zip(&views).enumerate() {
            if old.power == new.power || first {
                continue;
            }
            let name = &state.cluster().node(NodeId(index as u32)).name;
            events.push(Event {
                number: 0,
                at_s: now.seconds(),
                kind: "node".to_owned(),
                job: None,
                job_number: None,
                node: Some(name.to_string()),
                user: None,
                text: format!("{name} is {}", power_word(new.power)),
            });
        }
        self.nodes = views.into();
    }

    fn look_at_budget(
        &mut self,
        engine: &Engine<'static>,
        drawn: Option<Watts>,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) {
        let line = engine.budget().map(|calendar| calendar.at(now));
        if let (Some(drawn), Some(line), Some(before)) = (drawn, line, self.built)
            && drawn > line + TOLERANCE
        {
            self.over_budget += now.since(before);
        }
        let budget = engine.budget().cloned();
        if self.budget.as_ref().is_some_and(|known| *known != budget) {
            let text = line.map_or_else(
                || "there is no budget any more".to_owned(),
                |line| format!("the budget was set: {line:.1} now"),
            );
            events.push(plain(now, "budget", text));
        }
        self.budget = Some(budget);
    }
}

/// A node's state, in a word.
pub(crate) fn power_word(power: NodePower) -> &'static str {
    match power {
        NodePower::Up => "up",
        NodePower::Closed => "closed",
        NodePower::Asleep => "asleep",
        NodePower::Booting => "booting",
        NodePower::FallingAsleep => "falling_asleep",
        NodePower::Down => "down",
    }
}

fn look_at_node(engine: &Engine<'static>, id: NodeId, now: Timestamp) -> NodeView {
    let node = engine.state().node(id);
    let limits = |residents: &Residents| {
        let mut limits = Vec::new();
        for resident in residents.iter() {
            let gpus = (0..64_u8).filter(|bit| resident.mask >> bit & 1 == 1);
            limits.extend(gpus.map(|gpu| (gpu, resident.limit)));
        }
        limits
    };
    NodeView {
        power: node.power,
        target: node.target,
        gpus_held: node.held.mask().count_ones(),
        jobs: node.held.iter().map(|resident| resident.job).collect(),
        limits: limits(&node.held),
        planned_limits: limits(&node.planned),
        committed: node.held_committed(),
        reason: engine.node_reason(id, now),
    }
}

/// Something about nobody in particular.
pub(super) fn plain(now: Timestamp, kind: &str, text: String) -> Event {
    let kind = kind.to_owned();
    Event {
        number: 0,
        at_s: now.seconds(),
        kind,
        job: None,
        job_number: None,
        node: None,
        user: None,
        text,
    }
}

/// As a job was, and what became of it.
fn ended_view(old: &JobView, ended: &EndedJob) -> JobView {
    JobView {
        phase: Phase::Finished,
        on_hold: false,
        cancelled: ended.cancelled,
        planned: None,
        held: None,
        progress: Progress {
            done: Work(old.job.work.0 * ended.done),
            as_of: ended.ended,
            rate: WorkRate(0.0),
        },
        first_start: ended.first_start,
        ended: Some(ended.ended),
        restarts: ended.restarts,
        energy: ended.drawn.map(|(energy, _)| energy),
        bill: ended.drawn.map(|(_, bill)| bill),
        ..old.clone()
    }
}

fn about_ended(job: &EndedJob, now: Timestamp, kind: &str, text: String) -> Event {
    let user = Some(job.user.clone());
    let number = job.number();
    let text = format!("job {number} ({}) {text}", job.name);
    let called = Some(number.to_string());
    Event { job: Some(number.id), job_number: called, user, ..plain(now, kind, text) }
}

fn about(view: &JobView, now: Timestamp, kind: &str, text: &str) -> Event {
    let number = &view.number;
    Event {
        job: Some(number.id),
        job_number: Some(number.to_string()),
        user: Some(view.user.to_string()),
        ..plain(now, kind, format!("job {number} ({}) {text}", view.job.name))
    }
}
