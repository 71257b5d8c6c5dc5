//! Figures: what a run cost, how long jobs took, whether the line held.

use crate::accuracy::{Accuracy, AtStart};
use crate::instance::Instance;
use crate::stability::Reservations;
use serde::Serialize;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::engine::EngineStats;
use wattline_core::forecast::JobForecast;
use wattline_core::job::Job;
use wattline_core::plan::Reason;
use wattline_core::prices::Bill;
use wattline_core::units::{Euros, Joules, Seconds, Watts};
use wattline_world::world::World;

/// How a job fared.
#[derive(Clone, Debug)]
pub struct JobOutcome {
    /// Which.
    pub job: Arc<Job>,
    /// When it first ran.
    pub first_start: Option<Timestamp>,
    /// When it was done.
    pub end: Option<Timestamp>,
    /// Its user cancelled it.
    pub cancelled: bool,
    /// How often it was restarted.
    pub restarts: u32,
    /// GPU-seconds it held.
    pub gpu_seconds: f64,
    /// Energy attributed to it.
    pub energy: Joules,
    /// What that energy cost, as it was used.
    pub bill: Bill,
    /// What was foreseen when it was submitted, if anybody asked.
    pub forecast: Option<Box<JobForecast>>,
    /// What was predicted when it was last started; `None` where run times are declared.
    pub at_start: Option<Box<AtStart>>,
    /// The last reason given for it.
    pub reason: Reason,
}

impl JobOutcome {
    /// From submission to completion.
    #[must_use]
    pub fn completion_time(&self) -> Option<Seconds> {
        self.end.map(|end| end - self.job.submit)
    }

    /// Past the deadline; of an unfinished job, up to `now`. Nobody waits for one that was taken
    /// back.
    #[must_use]
    pub fn tardiness(&self, now: Timestamp) -> Seconds {
        if self.cancelled && self.end.is_none() {
            return Seconds::ZERO;
        }
        self.job.tardiness(self.end.unwrap_or(now))
    }

    /// Its tardiness, and the energy and carbon of its GPUs; of an unfinished job, up to `now`.
    #[must_use]
    pub fn cost(&self, now: Timestamp) -> Euros {
        self.job.weight * self.tardiness(now) + self.bill.total()
    }
}

/// A run's figures, as `compare` prints them.
///
/// The first fields are the stable schema `wattline.compare/1`; further ones may be added.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The policy.
    pub policy: String,
    /// Jobs submitted.
    pub jobs: usize,
    /// Of these, finished.
    pub finished: usize,
    /// Energy, tardiness and carbon, EUR.
    pub total_cost: f64,
    /// EUR, cooling included.
    pub energy_cost: f64,
    /// EUR.
    pub tardiness_cost: f64,
    /// Drawn by the machines.
    pub energy_kwh: f64,
    /// Mean time from submission to completion.
    pub jct_mean_s: f64,
    /// Median of it.
    pub jct_p50_s: f64,
    /// 99th percentile of it.
    pub jct_p99_s: f64,
    /// From the first submission to the last completion.
    pub makespan_s: f64,
    /// Jobs finished by their deadline.
    pub deadlines_met: usize,
    /// Starts beyond each job's first.
    pub restarts: u64,
    /// Most power drawn.
    pub peak_power_w: f64,
    /// Time with more power drawn than the budget.
    pub budget_exceeded_s: f64,
    /// Plans made.
    pub plans: u64,
    /// Time per plan, checker and diff included.
    pub plan_ms_mean: f64,
    /// 99th percentile of it.
    pub plan_ms_p99: f64,
    /// Time the simulation took.
    pub wall_s: f64,

    /// Jobs that were cancelled before they were done.
    #[serde(skip_serializing_if = "is_none")]
    pub cancelled: usize,
    /// Jobs with a deadline.
    pub deadlines: usize,
    /// Mean time from submission to the first start.
    pub wait_mean_s: f64,
    /// Mean time past the deadline, over jobs with one.
    pub tardiness_mean_s: f64,
    /// EUR for carbon.
    pub carbon_cost: f64,
    /// CO2 equivalent emitted.
    pub carbon_kg: f64,
    /// Energy by cause, kWh.
    pub energy_jobs_kwh: f64,
    /// Energy by cause, kWh.
    pub energy_idle_kwh: f64,
    /// Energy by cause, kWh.
    pub energy_base_kwh: f64,
    /// Energy by cause, kWh.
    pub energy_boot_kwh: f64,
    /// Energy by cause, kWh.
    pub energy_sleep_kwh: f64,
    /// GPU-seconds held over GPU-seconds there.
    pub gpu_utilisation: f64,
    /// Of the GPU-seconds free on nodes that were up, the share that would have been whole free
    /// nodes had jobs sat closer together.
    pub fragmentation: f64,
    /// Most power committed.
    pub peak_committed_w: f64,
    /// Time with more power committed than the budget.
    pub committed_exceeded_s: f64,
    /// Waiting jobs that were told a start (`Reason::Reserved`) and had none before; none where the
    /// policy told nobody.
    pub reservations: Option<u64>,
    /// Reserved starts that a later plan moved by more than [`stability::TOLERANCE`] or withdrew,
    /// and those that passed by more than that before the job started.
    ///
    /// [`stability::TOLERANCE`]: crate::stability::TOLERANCE
    pub reservations_moved: Option<u64>,
    /// These over the waiting jobs, mean over the plans made while jobs waited.
    pub reservations_moved_share: Option<f64>,
    /// Plans the checker refused.
    pub plans_refused: u64,
    /// Actions the engine handed out.
    pub actions: u64,
    /// Events the engine took in.
    pub events: u64,
    /// Of these, per second of wall time.
    pub events_per_s: f64,
    /// What measurements showed about the machines, a sentence each.
    pub findings: Vec<String>,

    /// How good the predictions were.
    #[serde(flatten)]
    pub accuracy: Accuracy,
}

impl Summary {
    /// Fields that measure the simulator and not the simulated: they differ from run to run.
    pub const TIMING_FIELDS: [&'static str; 4] =
        ["plan_ms_mean", "plan_ms_p99", "wall_s", "events_per_s"];

    pub(crate) fn new(
        policy: &str,
        instance: &Instance,
        jobs: &[JobOutcome],
        now: Timestamp,
        world: &World,
    ) -> Self {
        let meter = world.meter();
        let mut times: Vec<f64> =
            jobs.iter().filter_map(|j| j.completion_time().map(Seconds::get)).collect();
        times.sort_by(f64::total_cmp);
        let waits: Vec<f64> = jobs
            .iter()
            .filter_map(|j| j.first_start.map(|start| (start - j.job.submit).get()))
            .collect();
        let with_deadline = || jobs.iter().filter(|j| j.job.deadline.is_some());
        let late: Vec<f64> = with_deadline().map(|j| j.tardiness(now).get()).collect();
        let tardiness_cost: Euros = jobs.iter().map(|j| j.job.weight * j.tardiness(now)).sum();
        let met = with_deadline()
            .filter(|j| j.end.is_some() && j.tardiness(now) == Seconds::ZERO)
            .count();
        let energy = meter.energy();
        let gpu_seconds: f64 = jobs.iter().map(|j| j.gpu_seconds).sum();
        let there = f64::from(instance.cluster.total_gpus()) * (now - instance.start).get();
        let first = jobs.iter().map(|j| j.job.submit).min().unwrap_or(now);
        let last = jobs.iter().filter_map(|j| j.end).max().unwrap_or(now);
        Self {
            policy: policy.to_owned(),
            jobs: instance.jobs.len(),
            finished: times.len(),
            total_cost: (meter.cost() + tardiness_cost + meter.carbon_cost()).get(),
            energy_cost: meter.cost().get(),
            tardiness_cost: tardiness_cost.get(),
            energy_kwh: energy.total.kilowatt_hours(),
            jct_mean_s: mean(&times),
            jct_p50_s: percentile(&times, 0.50),
            jct_p99_s: percentile(&times, 0.99),
            makespan_s: (last - first).get(),
            deadlines_met: met,
            restarts: jobs.iter().map(|j| u64::from(j.restarts)).sum(),
            peak_power_w: meter.peak().get(),
            budget_exceeded_s: meter.over_budget().get(),
            plans: 0,
            plan_ms_mean: 0.0,
            plan_ms_p99: 0.0,
            wall_s: 0.0,
            cancelled: jobs.iter().filter(|j| j.cancelled && j.end.is_none()).count(),
            deadlines: late.len(),
            wait_mean_s: mean(&waits),
            tardiness_mean_s: mean(&late),
            carbon_cost: meter.carbon_cost().get(),
            carbon_kg: meter.carbon().get() / 1e3,
            energy_jobs_kwh: energy.jobs.kilowatt_hours(),
            energy_idle_kwh: energy.idle.kilowatt_hours(),
            energy_base_kwh: energy.base.kilowatt_hours(),
            energy_boot_kwh: energy.boot.kilowatt_hours(),
            energy_sleep_kwh: energy.sleep.kilowatt_hours(),
            gpu_utilisation: if there > 0.0 { gpu_seconds / there } else { 0.0 },
            fragmentation: world.room().fragmentation(),
            peak_committed_w: 0.0,
            committed_exceeded_s: 0.0,
            reservations: None,
            reservations_moved: None,
            reservations_moved_share: None,
            plans_refused: 0,
            actions: 0,
            events: 0,
            events_per_s: 0.0,
            findings: Vec::new(),
            accuracy: Accuracy::of(jobs),
        }
    }

    pub(crate) fn set_engine(&mut self, stats: EngineStats, peak: Watts, over: Seconds) {
        self.plans = stats.plans;
        self.plans_refused = stats.refused;
        self.actions = stats.actions;
        self.peak_committed_w = peak.get();
        self.committed_exceeded_s = over.get();
    }

    pub(crate) fn set_reservations(&mut self, reservations: &Reservations) {
        if reservations.given > 0 {
            self.reservations = Some(reservations.given);
            self.reservations_moved = Some(reservations.moved);
            self.reservations_moved_share = Some(reservations.moved_share());
        }
    }

    pub(crate) fn set_timing(&mut self, plan_seconds: &mut [f32], wall: f64, events: u64) {
        plan_seconds.sort_by(f32::total_cmp);
        let millis: Vec<f64> = plan_seconds.iter().map(|s| f64::from(*s) * 1e3).collect();
        self.plan_ms_mean = mean(&millis);
        self.plan_ms_p99 = percentile(&millis, 0.99);
        self.wall_s = wall;
        self.events = events;
        self.events_per_s = if wall > 0.0 { events as f64 / wall } else { 0.0 };
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_none(count: &usize) -> bool {
    *count == 0
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// Nearest rank of sorted values.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    if sorted.is_empty() {
        return 0.0;
    }
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted[rank.min(sorted.len()) - 1]
}
