//! The drive loop in virtual time: the very engine that runs a real cluster, over the world.

use crate::accuracy::AtStart;
use crate::begin::begin_with;
use crate::findings;
use crate::instance::Instance;
use crate::metrics::{JobOutcome, Summary};
use crate::stability::{Counted, Reservations};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;
use wattline_core::Timestamp;
use wattline_core::action::ActionKind;
use wattline_core::engine::{Alert, Event, EventError};
use wattline_core::forecast::{Horizon, JobForecast, forecast};
use wattline_core::ids::JobId;
use wattline_core::job::Job;
use wattline_core::placement::Placement;
use wattline_core::plan::Reason;
use wattline_core::power::TOLERANCE;
use wattline_core::scheduler::Scheduler;
use wattline_core::snapshot::Snapshot;
use wattline_core::state::JobState;
use wattline_core::units::{Seconds, Watts};
use wattline_policies::RegistryError;
use wattline_world::world::{LogEntry, World};

/// With nothing running and nothing to come, so many plans without an action mean that no job
/// will ever start.
const PATIENCE: u32 = 2000;
/// The caller hears of progress once in so many rounds of the loop, or, where plans are slow,
/// after this time: five times a second is as often as somebody looks.
const ROUNDS_PER_REPORT: u64 = 4096;
const SECONDS_PER_REPORT: f64 = 0.2;

/// Why a simulation could not be run.
#[derive(Debug, Error)]
pub enum SimulationError {
    /// The policy does not exist.
    #[error(transparent)]
    Policy(#[from] RegistryError),
    /// The engine would not take an event: a bad job, or a bug.
    #[error("at {time}: {source}")]
    Event {
        /// When.
        time: Timestamp,
        /// What was wrong.
        source: EventError,
    },
}

/// What the caller lends to a simulation, which has no clock and no terminal of its own.
pub struct Watch<'a> {
    /// Seconds on some clock that only goes forward; timings are differences of it.
    pub seconds: &'a (dyn Fn() -> f64 + Sync),
    /// Hears how far the simulation has come, when it begins, several times a second, and when it is
    /// over; from several threads where policies run side by side.
    pub progress: &'a (dyn Fn(Progress<'_>) + Sync),
    /// Keep the power curve and what ran where, for a report.
    pub record: bool,
    /// At each submission, run the engine forward to foresee the job's end and cost. Takes about
    /// the time of simulating everything that waits, once for each submission.
    pub forecast: bool,
}

/// How far a simulation has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Which of several simulations, in the order in which they were asked for.
    pub run: usize,
    /// Jobs there are.
    pub jobs: usize,
    /// Of these, submitted so far.
    pub submitted: usize,
    /// Of these, finished so far.
    pub finished: usize,
    /// The figures, once it is over.
    pub summary: Option<&'a Summary>,
}

/// Power at a time; holds until the next point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerSample {
    /// When.
    pub time: Timestamp,
    /// Drawn.
    pub drawn: Watts,
    /// Committed.
    pub committed: Watts,
    /// Allowed.
    pub budget: Option<Watts>,
}

/// How a simulation went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The figures.
    pub summary: Summary,
    /// Job by job.
    pub jobs: Vec<JobOutcome>,
    /// Power over time, if recorded.
    pub power: Vec<PowerSample>,
    /// What ran where, if recorded.
    pub log: Vec<LogEntry>,
    /// What an administrator would have heard of.
    pub alerts: Vec<Alert>,
}

/// Runs an instance under a policy.
///
/// # Errors
/// When the policy does not exist or a job makes no sense.
pub fn simulate(
    instance: &Instance,
    policy: &str,
    watch: &Watch<'_>,
) -> Result<Outcome, SimulationError> {
    let mut run = Run::new(instance, policy, watch)?;
    let began = (watch.seconds)();
    run.reported_s = began;
    run.report();
    run.run_out(Timestamp::FAR_FUTURE)?;
    run.close();
    let wall = (watch.seconds)() - began;
    let mut last = run.progress();
    let outcome = run.outcome(wall);
    last.summary = Some(&outcome.summary);
    (watch.progress)(last);
    Ok(outcome)
}

/// Runs an instance up to a time and writes down what the engine knows then, after everything that
/// happens at that time.
///
/// # Errors
/// As [`simulate`].
pub fn snapshot_at(
    instance: &Instance,
    policy: &str,
    time: Timestamp,
    watch: &Watch<'_>,
) -> Result<Snapshot, SimulationError> {
    let mut run = Run::new(instance, policy, watch)?;
    run.run_out(time)?;
    let name = |workload| instance.physics.name(workload).to_owned();
    Ok(Snapshot::of(&run.engine, time.max(run.now), &name))
}

impl<'a> Run<'a> {
    fn new(
        instance: &'a Instance,
        policy: &'a str,
        watch: &'a Watch<'a>,
    ) -> Result<Self, SimulationError> {
        let (counted, reservations) = Counted::new(wattline_policies::policy(policy)?);
        let (engine, world) = begin_with(instance, Box::new(counted), watch.record);
        Ok(Self {
            instance,
            policy,
            watch,
            engine,
            world,
            now: instance.start,
            arrived: 0,
            ordered: 0,
            lost: 0,
            ends: vec![None; instance.jobs.len()],
            ended: (0..instance.jobs.len()).map(|_| None).collect(),
            forecasts: Vec::new(),
            starts: (0..instance.jobs.len()).map(|_| None).collect(),
            finished: 0,
            reservations,
            reported_s: 0.0,
            power: Vec::new(),
            plan_seconds: Vec::new(),
            peak_committed: Watts::ZERO,
            over_committed: Seconds::ZERO,
            events: 0,
            alerts: Vec::new(),
        })
    }
}

struct Run<'a> {
    instance: &'a Instance,
    policy: &'a str,
    watch: &'a Watch<'a>,
    engine: Scheduler<'static>,
    world: World,
    now: Timestamp,
    arrived: usize,
    /// Orders so far.
    ordered: usize,
    /// Outages so far.
    lost: usize,
    ends: Vec<Option<Timestamp>>,
    /// What became of jobs that are over: they leave the engine.
    ended: Vec<Option<Box<Ended>>>,
    /// As long as jobs have arrived, if forecasts are made.
    forecasts: Vec<Option<Box<JobForecast>>>,
    /// Boxed, for a trace with declared run times has none.
    starts: Vec<Option<Box<AtStart>>>,
    finished: usize,
    reservations: Arc<Mutex<Reservations>>,
    /// When the caller was last told of progress, on his clock.
    reported_s: f64,
    power: Vec<PowerSample>,
    plan_seconds: Vec<f32>,
    peak_committed: Watts,
    over_committed: Seconds,
    events: u64,
    alerts: Vec<Alert>,
}

/// What the engine knew of a job at its end.
struct Ended {
    /// With what its user has changed since it was submitted.
    job: Arc<Job>,
    cancelled: bool,
    first_start: Option<Timestamp>,
    restarts: u32,
    gpu_seconds: f64,
    reason: Reason,
}

impl Ended {
    fn of(state: &JobState, now: Timestamp) -> Self {
        Self {
            job: Arc::clone(&state.job),
            cancelled: state.is_cancelled(),
            first_start: state.first_start,
            restarts: state.restarts,
            gpu_seconds: state.attained(now),
            reason: state.reason,
        }
    }
}

/// Alerts beyond this many are counted by nobody.
const MOST_ALERTS: usize = 100;

impl Run<'_> {
    /// Until all jobs are finished, or the next thing to happen is later than `until`.
    fn run_out(&mut self, mut until: Timestamp) -> Result<(), SimulationError> {
        let jobs = self.instance.jobs.len();
        let mut rounds: u64 = 0;
        let mut fruitless = 0;
        loop {
            let arrival = self.instance.jobs.get(self.arrived).map(|job| job.submit);
            let order = self.instance.orders.get(self.ordered).map(|(time, _)| *time);
            let outage = self.instance.outages.get(self.lost).map(|(time, ..)| *time);
            let nothing_comes = arrival.is_none() && order.is_none();
            if self.finished >= jobs || (nothing_comes && self.engine.state().unfinished() == 0) {
                let Some(least) = self.instance.until else { break };
                until = until.min(least);
            }
            let world = self.world.next_event();
            let happening = [arrival, order, outage, world].into_iter().flatten().min();
            let clock = self.engine.poll_timeout();
            let actions = self.engine.stats().actions;
            if happening.into_iter().chain(clock).min().is_some_and(|next| next > until) {
                break;
            }
            match (happening, clock) {
                // Everything that happens at an instant comes before the plan for it.
                (Some(time), Some(due)) if time <= due => self.take_events(time)?,
                (Some(time), None) => self.take_events(time)?,
                (_, Some(due)) => self.plan(due)?,
                (None, None) => break,
            }
            self.act()?;
            let idle = arrival.is_none()
                && self.engine.stats().actions == actions
                && self.engine.state().held_jobs() == 0;
            fruitless = if idle { fruitless + 1 } else { 0 };
            if fruitless > PATIENCE {
                break;
            }
            rounds += 1;
            if rounds.is_multiple_of(ROUNDS_PER_REPORT) {
                self.report();
            }
        }
        Ok(())
    }

    fn close(&mut self) {
        self.advance(self.instance.until.unwrap_or(self.now));
        self.world.close(self.now);
    }

    fn report(&self) {
        (self.watch.progress)(self.progress());
    }

    fn progress(&self) -> Progress<'static> {
        let (jobs, submitted, finished) = (self.instance.jobs.len(), self.arrived, self.finished);
        Progress { run: 0, jobs, submitted, finished, summary: None }
    }

    /// Time goes on; what was committed until now is booked.
    fn advance(&mut self, to: Timestamp) {
        let to = to.max(self.now);
        let committed = self.engine.state().held_committed();
        if to > self.now {
            self.peak_committed = self.peak_committed.max(committed);
            let budget = self.world.meter().budget_at(self.now);
            if budget.is_some_and(|budget| committed > budget + TOLERANCE) {
                self.over_committed += to - self.now;
            }
            if self.watch.record {
                let drawn = self.world.meter().drawn();
                self.power.push(PowerSample { time: self.now, drawn, committed, budget });
            }
        }
        self.now = to;
    }

    fn tell(&mut self, event: Event) -> Result<(), SimulationError> {
        self.events += 1;
        if let Event::Finished(job) = event {
            self.ends[job.index()] = Some(self.now);
            self.finished += 1;
        }
        let about = event.job();
        self.engine
            .handle(self.now, event)
            .map_err(|source| SimulationError::Event { time: self.now, source })?;
        if let Some(job) = about
            && let Some(state) = self.engine.state().find_job(job).filter(|job| job.has_ended())
        {
            self.ended[job.index()] = Some(Box::new(Ended::of(state, self.now)));
        }
        Ok(())
    }

    fn take_events(&mut self, time: Timestamp) -> Result<(), SimulationError> {
        self.advance(time);
        self.take_outages();
        while let Some(event) = self.world.poll_event(self.now) {
            self.tell(event)?;
        }
        let before = self.arrived;
        while let Some(job) = self.instance.jobs.get(self.arrived)
            && job.submit <= self.now
        {
            self.world.submit(Arc::clone(self.instance.actual(self.arrived)));
            self.arrived += 1;
            self.tell(Event::Submitted(Arc::clone(job)))?;
        }
        self.take_orders()?;
        if self.watch.forecast && self.arrived > before {
            self.forecast(before)?;
        }
        Ok(())
    }

    fn take_outages(&mut self) {
        while let Some((time, node, lost)) = self.instance.outages.get(self.lost)
            && *time <= self.now
        {
            self.lost += 1;
            if *lost {
                self.world.lose(self.now, *node);
            } else {
                self.world.regain(self.now, *node);
            }
        }
    }

    fn take_orders(&mut self) -> Result<(), SimulationError> {
        while let Some((time, order)) = self.instance.orders.get(self.ordered)
            && *time <= self.now
        {
            self.ordered += 1;
            match order {
                Event::BudgetSet(budget) => self.world.set_budget(self.now, budget.clone()),
                Event::PricesSet(prices) => self.world.set_prices(self.now, prices.clone()),
                _ => {}
            }
            self.tell(order.clone())?;
        }
        Ok(())
    }

    /// Foresees what becomes of the jobs that have just come; those of one instant together.
    fn forecast(&mut self, from: usize) -> Result<(), SimulationError> {
        let new: Vec<JobId> = (from..self.arrived).map(|at| JobId(at as u32)).collect();
        let policy = wattline_policies::policy(self.policy)?;
        let foreseen = forecast(&self.engine, policy, self.now, &Horizon::ended(&new));
        self.forecasts.extend(new.iter().map(|id| foreseen.job(*id).copied().map(Box::new)));
        Ok(())
    }

    /// Keeps what is expected of a run that is about to begin, unless it is declared.
    fn note_start(&mut self, id: JobId, placement: &Placement) {
        let state = self.engine.state();
        let (job, c) = (state.job(id), &placement.configuration);
        let predictor = self.engine.predictor();
        let additive =
            placement.allocation.shares().all(|s| state.cluster().node(s.node).is_additive());
        if self.instance.physics.is_declared(job.job.workload) {
            return;
        }
        self.starts[id.index()] = predictor.predict(&job.job, c).map(|prediction| {
            let load = job.load_time(predictor);
            let time = job.remaining(self.now) / prediction.rate;
            let power = prediction.power * f64::from(c.gpus);
            Box::new(AtStart {
                at: self.now,
                load,
                time,
                low: prediction.time_low,
                high: prediction.time_high,
                energy: additive.then(|| power * (load + time)),
                measurements: prediction.measurements,
                energy_before: self.world.job_energy(id),
                limit_changed: false,
            })
        });
    }

    fn note(&mut self, action: &ActionKind) {
        match action {
            ActionKind::Start { job, placement } => self.note_start(*job, placement),
            ActionKind::Limit { job, .. } => {
                if let Some(start) = &mut self.starts[job.index()] {
                    start.limit_changed = true;
                }
            }
            ActionKind::Stop { .. } | ActionKind::Wake { .. } | ActionKind::Sleep { .. } => {}
        }
    }

    fn plan(&mut self, due: Timestamp) -> Result<(), SimulationError> {
        self.advance(due);
        let plans = self.engine.stats().plans;
        let began = (self.watch.seconds)();
        self.tell(Event::Clock)?;
        if self.engine.stats().plans > plans {
            let now = (self.watch.seconds)();
            self.plan_seconds.push((now - began) as f32);
            if now - self.reported_s >= SECONDS_PER_REPORT {
                self.reported_s = now;
                self.report();
            }
        }
        while let Some(alert) = self.engine.poll_alert() {
            if self.alerts.len() < MOST_ALERTS {
                self.alerts.push(alert);
            }
        }
        Ok(())
    }

    fn act(&mut self) -> Result<(), SimulationError> {
        while let Some(action) = self.engine.poll_action() {
            self.note(&action.kind);
            self.world.apply(self.now, &action);
            while let Some(event) = self.world.poll_event(self.now) {
                self.tell(event)?;
            }
        }
        Ok(())
    }

    fn outcome(mut self, wall: f64) -> Outcome {
        if self.watch.record {
            let drawn = self.world.meter().drawn();
            let committed = self.engine.state().held_committed();
            let budget = self.world.meter().budget_at(self.now);
            self.power.push(PowerSample { time: self.now, drawn, committed, budget });
        }
        let jobs: Vec<JobOutcome> = self
            .ends
            .iter()
            .enumerate()
            .take(self.arrived)
            .map(|(at, end)| {
                let id = JobId(at as u32);
                let ended = self.ended[at].take().map(|ended| *ended);
                let ended =
                    ended.unwrap_or_else(|| Ended::of(self.engine.state().job(id), self.now));
                JobOutcome {
                    job: ended.job,
                    cancelled: ended.cancelled,
                    first_start: ended.first_start,
                    end: *end,
                    restarts: ended.restarts,
                    gpu_seconds: ended.gpu_seconds,
                    energy: self.world.job_energy(id),
                    bill: self.world.job_bill(id),
                    forecast: self.forecasts.get_mut(at).and_then(Option::take),
                    at_start: self.starts[at].take(),
                    reason: ended.reason,
                }
            })
            .collect();
        let mut summary = Summary::new(self.policy, self.instance, &jobs, self.now, &self.world);
        let findings = self.engine.predictor().findings();
        summary.findings = findings.iter().map(|f| findings::tell(self.instance, f)).collect();
        summary.set_engine(self.engine.stats(), self.peak_committed, self.over_committed);
        let reservations = self.reservations.lock().unwrap_or_else(PoisonError::into_inner);
        summary.set_reservations(&reservations);
        drop(reservations);
        summary.set_timing(&mut self.plan_seconds, wall, self.events);
        Outcome {
            summary,
            jobs,
            power: self.power,
            log: self.world.log().to_vec(),
            alerts: self.alerts,
        }
    }
}
