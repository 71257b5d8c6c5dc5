//! What will become of the jobs: the engine run forward.
//!
//! A [fork](Engine::fork) of the engine is driven by a backend that does what it is told and in
//! which every job runs as fast as predicted, until the jobs asked about have ended. So a forecast
//! holds all that the engine and its policy will do (queues, budgets, prices, sleeping nodes,
//! restarts) without a second model of any of it.
//!
//! **What is left out.** Jobs that are yet to come, things that fail, nodes that are lost (one that
//! is down stays down), and measurements: what would be learned on the way. Limits take no
//! time; boots, shutdowns and saves take as long as the machines and the predictor say, starts and
//! what follows a save as long as they [usually](crate::state::Delays) do, counted from when they
//! were handed out.
//!
//! **What a job is billed.** The energy of its GPUs while it holds them, loading and saving
//! included, with cooling, at the price of the moment; where a site knows only the power of whole
//! nodes, its share of the busy node ([`power::part`]). Not the nodes' base, not idle GPUs, not
//! boots: nobody's job is the cause of these alone.
//!
//! To ask "what if", tell the fork what would have happened (a job submitted, another budget) and
//! [roll it forward](roll_forward).

use crate::action::{Action, ActionKind};
use crate::engine::{Engine, Event, InFlight};
use crate::ids::{ActionId, JobId, NodeId};
use crate::job::{Job, Work};
use crate::policy::Policy;
use crate::power::{self, Part};
use crate::prices::Bill;
use crate::scheduler::Scheduler;
use crate::state::Phase;
use crate::time::Timestamp;
use crate::units::{Euros, Joules, Seconds, Watts};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How far to look.
#[derive(Clone, Copy)]
pub struct Horizon<'a> {
    /// Stop when these jobs have ended; when all have, if not set.
    pub until_ended: Option<&'a [JobId]>,
    /// Stop after so many events and plans, whatever has ended by then.
    pub steps: u32,
    /// Asked before each of them: for callers who have a clock.
    pub go_on: &'a dyn Fn() -> bool,
    /// Asked after each plan, with how far was looked ahead and how many jobs are left: no other
    /// plan is made before so long. Zero: whenever the engine wants one. So the far future can be
    /// seen as coarsely as it is known, and a long queue needs no plan for each of its jobs.
    pub apart: &'a dyn Fn(Seconds, usize) -> Seconds,
}

impl Default for Horizon<'_> {
    fn default() -> Self {
        Self { until_ended: None, steps: 200_000, go_on: &|| true, apart: &|_, _| Seconds::ZERO }
    }
}

impl<'a> Horizon<'a> {
    /// Until these jobs have ended.
    #[must_use]
    pub fn ended(jobs: &'a [JobId]) -> Self {
        Self { until_ended: Some(jobs), ..Self::default() }
    }
}

/// What is foreseen for one job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JobForecast {
    /// Which.
    pub job: JobId,
    /// When it starts for the first time, or did; `None`: not within the horizon.
    pub start: Option<Timestamp>,
    /// When it is done; `None`: not within the horizon.
    pub end: Option<Timestamp>,
    /// Energy from the forecast's time on.
    pub energy: Joules,
    /// What that energy costs.
    pub bill: Bill,
    /// What being late costs, if it ends.
    pub tardiness_cost: Euros,
}

impl JobForecast {
    /// Tardiness, energy and carbon from the forecast's time on. For a job that was just submitted
    /// that is all it will ever cost.
    #[must_use]
    pub fn cost(&self) -> Euros {
        self.tardiness_cost + self.bill.total()
    }
}

/// What is foreseen for all jobs that are not finished.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// When it was made.
    pub at: Timestamp,
    /// How far it looked.
    pub until: Timestamp,
    /// Until then every plan was made that the engine would make; see [`Horizon::apart`].
    pub exact_until: Timestamp,
    /// Whether everything asked about has ended by then.
    pub complete: bool,
    /// By id. Jobs that were not asked about may end beyond the horizon.
    pub jobs: Vec<JobForecast>,
}

impl Forecast {
    /// One job; `None` if it was finished when the forecast was made, or is unknown.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&JobForecast> {
        self.jobs.binary_search_by_key(&id, |job| job.job).ok().map(|at| &self.jobs[at])
    }
}

/// What will become of the engine's jobs if nothing unforeseen happens. The policy is a fresh one
/// of the kind the engine has.
#[must_use]
pub fn forecast(
    engine: &Engine<'_>,
    policy: Box<dyn Policy>,
    now: Timestamp,
    horizon: &Horizon<'_>,
) -> Forecast {
    roll_forward(engine.fork(policy), now, horizon)
}

/// Runs a fork forward from `now`.
#[must_use]
pub fn roll_forward(fork: Scheduler<'_>, now: Timestamp, horizon: &Horizon<'_>) -> Forecast {
    let mut roll = Roll::new(fork, now);
    let complete = roll.run_out(horizon);
    roll.into_forecast(now, complete)
}

/// With nothing running and nothing to come, so many plans without an action mean that nothing
/// will ever start.
const PATIENCE: u32 = 2000;

#[derive(Clone, Copy, Debug)]
enum Happening {
    Starts { job: JobId, action: ActionId },
    Ends(JobId),
    Saved { job: JobId, run: ActionId, done: Work },
    Up(NodeId),
    Asleep(NodeId),
}

/// What a job draws now and has drawn since the forecast began.
#[derive(Clone, Copy, Debug)]
struct Account {
    part: Part,
    since: Timestamp,
    energy: Joules,
    bill: Bill,
}

struct Roll<'p> {
    engine: Scheduler<'p>,
    now: Timestamp,
    /// By time, then in the order in which they were foreseen.
    to_come: BTreeMap<(Timestamp, u64), Happening>,
    foreseen: u64,
    /// When the jobs that run will be done, as believed now.
    ends: BTreeMap<JobId, Timestamp>,
    ended: BTreeMap<JobId, Timestamp>,
    /// As they were at their end: they leave the engine after it.
    last_seen: BTreeMap<JobId, (Arc<Job>, Option<Timestamp>)>,
    accounts: BTreeMap<JobId, Account>,
    /// The engine refused an event: a bug, or a state that makes no sense.
    stuck: bool,
    /// The last plan, and when the next one may be made.
    planned: (Timestamp, Timestamp),
    /// When a plan first came later than the engine wanted it.
    coarse_since: Option<Timestamp>,
}

impl<'p> Roll<'p> {
    fn new(engine: Scheduler<'p>, now: Timestamp) -> Self {
        let jobs: Vec<(JobId, bool)> = engine
            .state()
            .unfinished_jobs()
            .map(|(id, job)| (id, job.phase == Phase::Running))
            .collect();
        let account = Account {
            part: Part::default(),
            since: now,
            energy: Joules::ZERO,
            bill: Bill::default(),
        };
        let mut roll = Self {
            engine,
            now,
            to_come: BTreeMap::new(),
            foreseen: 0,
            ends: BTreeMap::new(),
            ended: BTreeMap::new(),
            last_seen: BTreeMap::new(),
            accounts: jobs.iter().map(|(id, _)| (*id, account)).collect(),
            stuck: false,
            planned: (now, now),
            coarse_since: None,
        };
        for (id, runs) in jobs {
            roll.attribute(id);
            if runs {
                roll.foresee_end(id);
            }
        }
        roll.resolve_what_is_under_way();
        roll.act();
        roll
    }

    /// The backend has been told already: it will do these things by and by.
    fn resolve_what_is_under_way(&mut self) {
        let under_way: Vec<_> = self.engine.under_way().collect();
        for (action, out) in under_way {
            match out.about {
                InFlight::Start(job) => self.start(job, action, out.at),
                InFlight::Limit(job) => self.limited(job, action),
                InFlight::Stop(job) => {
                    if let Some(run) = self.engine.state().job(job).run {
                        self.save(job, run, out.at);
                    }
                }
                InFlight::Wake(node) => {
                    let boot = self.engine.state().cluster().node(node).boot_time;
                    self.foresee(out.at + boot, Happening::Up(node));
                }
                InFlight::Sleep(node) => {
                    let time = self.engine.state().cluster().node(node).shutdown_time;
                    self.foresee(out.at + time, Happening::Asleep(node));
                }
            }
        }
    }

    /// Whether everything asked about has ended.
    fn run_out(&mut self, horizon: &Horizon<'_>) -> bool {
        let begin = self.now;
        let mut fruitless = 0;
        for _ in 0..horizon.steps {
            if self.stuck || self.is_over(horizon) || !(horizon.go_on)() {
                break;
            }
            let happening = self.to_come.first_key_value().map(|((time, _), _)| *time);
            let (actions, plans) = (self.engine.stats().actions, self.engine.stats().plans);
            let wanted = self.engine.poll_timeout();
            let due = wanted.map(|due| due.max(self.planned.1));
            match (happening, due) {
                // Everything that happens at an instant comes before the plan for it.
                (Some(time), due) if due.is_none_or(|due| time <= due) => self.take_events(time),
                (_, Some(due)) => {
                    self.now = self.now.max(due);
                    let (last, next) = self.planned;
                    if wanted.is_some_and(|wanted| wanted.max(last) < next) {
                        self.coarse_since.get_or_insert(last);
                    }
                    self.tell(Event::Clock);
                }
                (_, None) => break,
            }
            self.act();
            if self.engine.stats().plans > plans {
                let left = self.engine.state().unfinished();
                let apart = (horizon.apart)(self.now.since(begin), left);
                self.planned = (self.now, self.now + apart.max(Seconds::ZERO));
            }
            let idle = self.engine.stats().actions == actions
                && self.engine.state().held_jobs() == 0
                && self.to_come.is_empty();
            fruitless = if idle { fruitless + 1 } else { 0 };
            if fruitless > PATIENCE {
                break;
            }
        }
        self.is_over(horizon)
    }

    fn is_over(&self, horizon: &Horizon<'_>) -> bool {
        let state = self.engine.state();
        match horizon.until_ended {
            None => state.unfinished() == 0,
            Some(jobs) => jobs
                .iter()
                .all(|id| state.find_job(*id).is_none_or(|job| job.phase == Phase::Finished)),
        }
    }

    fn tell(&mut self, event: Event) {
        self.stuck |= self.engine.handle(self.now, event).is_err();
        // Nobody reads them here.
        while self.engine.poll_alert().is_some() {}
    }

    fn foresee(&mut self, time: Timestamp, happening: Happening) {
        self.to_come.insert((time.max(self.now), self.foreseen), happening);
        self.foreseen += 1;
    }

    /// Everything that happens at that time.
    fn take_events(&mut self, time: Timestamp) {
        self.now = self.now.max(time);
        while let Some(entry) = self.to_come.first_entry() {
            let at = entry.key().0;
            if at > self.now {
                break;
            }
            match entry.remove() {
                // Its speed may have changed since this end was foreseen.
                Happening::Ends(job) if self.ends.get(&job) == Some(&at) => {
                    self.ends.remove(&job);
                    self.ended.insert(job, self.now);
                    self.leave(job, Event::Finished(job));
                }
                Happening::Ends(_) => {}
                Happening::Starts { job, action } => self.started(job, action),
                Happening::Saved { job, run, done } => {
                    self.leave(job, Event::Stopped { job, run, done });
                }
                Happening::Up(node) => self.tell(Event::NodeUp(node)),
                Happening::Asleep(node) => self.tell(Event::NodeAsleep(node)),
            }
        }
    }

    fn act(&mut self) {
        while let Some(Action { id, kind, .. }) = self.engine.poll_action() {
            match kind {
                ActionKind::Start { job, .. } => self.start(job, id, self.now),
                ActionKind::Stop { job, run } => {
                    if self.engine.state().find_job(job).is_some_and(|job| job.run == Some(run)) {
                        self.save(job, run, self.now);
                    }
                }
                ActionKind::Limit { job, .. } => self.limited(job, id),
                ActionKind::Wake { node } => {
                    let boot = self.engine.state().cluster().node(node).boot_time;
                    self.foresee(self.now + boot, Happening::Up(node));
                }
                ActionKind::Sleep { node } => {
                    let time = self.engine.state().cluster().node(node).shutdown_time;
                    self.foresee(self.now + time, Happening::Asleep(node));
                }
            }
        }
    }

    /// Told to start at `told`, the job runs after the usual while.
    fn start(&mut self, job: JobId, action: ActionId, told: Timestamp) {
        let state = self.engine.state();
        let delay = state.delays().start(state.job(job).first_start.is_some());
        if delay > Seconds::ZERO {
            self.foresee(told + delay, Happening::Starts { job, action });
        } else {
            self.started(job, action);
        }
    }

    fn started(&mut self, job: JobId, action: ActionId) {
        let state = self.engine.state().job(job);
        let held = state.held.as_ref().map(|held| held.configuration);
        let runs = held.is_some_and(|c| self.engine.predictor().predict(&state.job, &c).is_some());
        if !runs {
            self.tell(Event::Failed { action });
            return;
        }
        self.tell(Event::Started { job, action });
        self.attribute(job);
        self.foresee_end(job);
    }

    fn limited(&mut self, job: JobId, action: ActionId) {
        self.tell(Event::Limited { job, action });
        self.attribute(job);
        // A job that saves makes no progress, at whatever limit.
        if self.engine.state().job(job).phase == Phase::Running {
            self.foresee_end(job);
        }
    }

    /// A job that runs ends when the engine believes it to.
    fn foresee_end(&mut self, id: JobId) {
        let job = self.engine.state().job(id);
        let left = (job.job.work - job.progress.done) / job.progress.rate;
        if left.is_finite() {
            let end = (job.progress.as_of + left).max(self.now);
            self.ends.insert(id, end);
            self.foresee(end, Happening::Ends(id));
        }
    }

    /// Told to stop at `told`, the job keeps its GPUs until it has saved.
    fn save(&mut self, id: JobId, run: ActionId, told: Timestamp) {
        self.ends.remove(&id);
        let job = self.engine.state().job(id);
        let done = job.done(told);
        let save = self.engine.predictor().restart(&job.job).save;
        let save = save + self.engine.state().delays().stop();
        if save > Seconds::ZERO {
            self.foresee(told + save, Happening::Saved { job: id, run, done });
        } else {
            self.leave(id, Event::Stopped { job: id, run, done });
        }
    }

    /// The job gives its GPUs back.
    fn leave(&mut self, id: JobId, event: Event) {
        let nodes: Vec<NodeId> = self.nodes_of(id);
        self.tell(event);
        self.attribute(id);
        if let Some(job) = self.engine.state().find_job(id).filter(|job| job.has_ended()) {
            self.last_seen.insert(id, (Arc::clone(&job.job), job.first_start));
        }
        for node in nodes {
            self.attribute_neighbours(node);
        }
    }

    fn nodes_of(&self, id: JobId) -> Vec<NodeId> {
        let held = self.engine.state().find_job(id).and_then(|job| job.held.as_ref());
        held.iter().flat_map(|held| held.allocation.shares().map(|share| share.node)).collect()
    }

    /// Settles what a job has drawn and sees what it draws from now on.
    fn attribute(&mut self, id: JobId) {
        self.settle(id);
        for node in self.nodes_of(id) {
            self.attribute_neighbours(node);
        }
    }

    /// Where a node's power is not a sum over its GPUs, a neighbour changes everyone's part.
    fn attribute_neighbours(&mut self, node: NodeId) {
        let state = self.engine.state();
        if state.cluster().node(node).is_additive() {
            return;
        }
        let residents: Vec<JobId> = state.node(node).held.iter().map(|r| r.job).collect();
        for job in residents {
            self.settle(job);
        }
    }

    fn settle(&mut self, id: JobId) {
        let (state, prices) = (self.engine.state(), self.engine.prices());
        let part = match state.find_job(id).and_then(|job| Some((job, job.held.as_ref()?))) {
            None => Part::default(),
            Some((job, held)) => {
                let prediction = self.engine.predictor().predict(&job.job, &held.configuration);
                let per_gpu = prediction.map_or(Watts::ZERO, |p| p.power);
                held.allocation.shares().fold(Part::default(), |sum, share| {
                    let busy = state.node(share.node).held.occupancy().busy;
                    let node = state.cluster().node(share.node);
                    sum + power::part(node, busy, share.count(), per_gpu, prices.pue)
                })
            }
        };
        let Some(account) = self.accounts.get_mut(&id) else { return };
        account.energy += account.part.drawn * self.now.since(account.since);
        account.bill += prices.bill(account.part.billed, account.since, self.now);
        account.since = self.now;
        account.part = part;
    }

    fn into_forecast(mut self, at: Timestamp, complete: bool) -> Forecast {
        let ids: Vec<JobId> = self.accounts.keys().copied().collect();
        for id in &ids {
            self.settle(*id);
        }
        let jobs = ids
            .into_iter()
            .map(|id| {
                let (job, start) = self.last_seen.remove(&id).unwrap_or_else(|| {
                    let state = self.engine.state().job(id);
                    (Arc::clone(&state.job), state.first_start)
                });
                let account = &self.accounts[&id];
                let end = self.ended.get(&id).copied();
                let late = |end| job.weight * job.tardiness(end);
                JobForecast {
                    job: id,
                    start,
                    end,
                    energy: account.energy,
                    bill: account.bill,
                    tardiness_cost: end.map_or(Euros::ZERO, late),
                }
            })
            .collect();
        let exact_until = self.coarse_since.unwrap_or(self.now);
        Forecast { at, until: self.now, exact_until, complete: complete && !self.stuck, jobs }
    }
}
