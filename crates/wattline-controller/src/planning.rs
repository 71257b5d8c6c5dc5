//! One plan for a view, without a cluster: `wattline plan` and `POST /v1/plan`.

use crate::deadline::{Deadline, UntilDeadline, in_time};
use std::time::{Duration, Instant};
use thiserror::Error;
use wattline_api::{Foreseen, On, Planned, PlannedJob, PlannedNode, Runs};
use wattline_core::Timestamp;
use wattline_core::engine::{Alert, Engine, Event, EventError};
use wattline_core::forecast::{Forecast, Horizon, JobForecast, forecast};
use wattline_core::ids::{JobId, NodeId, PlanId};
use wattline_core::job::Job;
use wattline_core::placement::Placement;
use wattline_core::plan::Reason;
use wattline_core::power::NodePower;
use wattline_core::scheduler::Scheduler;
use wattline_core::snapshot::{SizeLimits, Snapshot, SnapshotError};
use wattline_core::state::{JobState, State, Target};
use wattline_policies::RegistryError;
use wattline_predict::snapshot::{BadMeasurement, predictor};

/// Why there is no plan.
#[derive(Debug, Error)]
pub enum PlanningError {
    /// No such policy.
    #[error(transparent)]
    Policy(#[from] RegistryError),
    /// The view makes no sense.
    #[error(transparent)]
    View(#[from] SnapshotError),
    /// It holds a measurement that cannot be believed.
    #[error(transparent)]
    Measurement(#[from] BadMeasurement),
    /// The engine does not take it.
    #[error(transparent)]
    Event(#[from] EventError),
    /// An option that lets a policy search for longer than it may here.
    #[error("option `{option}` of the policy is above {most}, the most that is searched here")]
    Option {
        /// Which.
        option: &'static str,
        /// The highest value.
        most: u64,
    },
    /// It takes too long.
    #[error(
        "the plan was not ready after {:.0} s; send fewer jobs, nodes or power limits (gpu_types[].limit_step_w), or ask for a quicker policy",
        .0.as_secs_f64()
    )]
    TooLong(Duration),
}

/// What planning a view may cost.
#[derive(Clone, Copy, Debug)]
pub struct PlanningLimits {
    /// How large the view may be.
    pub size: SizeLimits,
    /// How long the plan may take.
    pub time: Duration,
    /// How far the engine is run forward to foresee ends and costs; not at all, if not set. At the
    /// latest it ends when half of the time is over.
    pub steps: Option<u32>,
    /// Options of policies with their highest values. A search asks the predictor nothing, so no
    /// deadline ends it: its work is counted.
    pub options: &'static [(&'static str, u64)],
}

/// For views that somebody sends: some ten times what policies do unless told otherwise.
pub const SHARED_OPTIONS: &[(&str, u64)] = &[
    ("work", 1_000_000),
    ("rounds", 10_000),
    ("generations", 200),
    ("population", 200),
    ("backfill", 10_000),
];

fn check_options(policy: &str, limits: &PlanningLimits) -> Result<(), PlanningError> {
    for (name, value) in policy.split('+').filter_map(|option| option.split_once('=')) {
        for (option, most) in limits.options.iter().filter(|(option, _)| *option == name) {
            // What is no number is refused by the policy itself.
            if value.parse::<u64>().is_ok_and(|value| value > *most) {
                return Err(PlanningError::Option { option, most: *most });
            }
        }
    }
    Ok(())
}

/// Plans once.
///
/// # Errors
/// When the policy does not exist, the view makes no sense or is too large, or the time is over.
pub fn plan(
    snapshot: &Snapshot,
    policy: &str,
    limits: &PlanningLimits,
) -> Result<Planned, PlanningError> {
    let planned = in_time(|| plan_in_time(snapshot, policy, limits));
    planned.unwrap_or(Err(PlanningError::TooLong(limits.time)))
}

fn plan_in_time(
    snapshot: &Snapshot,
    policy: &str,
    limits: &PlanningLimits,
) -> Result<Planned, PlanningError> {
    let began = Instant::now();
    let policies = (wattline_policies::policy(policy)?, wattline_policies::policy(policy)?);
    check_options(policy, limits)?;
    snapshot.check_lists(&limits.size)?;
    let machines = snapshot.machines()?;
    snapshot.check_configurations(&machines, &limits.size)?;
    let predictor = predictor(snapshot, &machines)?;
    let deadline = Deadline::at(began + limits.time);
    let predictor = Box::new(UntilDeadline::new(predictor, &deadline));
    let restored = snapshot.restore(&machines, &*predictor)?;
    let now = restored.now;
    let before = restored.state.clone();
    let based_on = PlanId(snapshot.plan);
    let mut engine = Scheduler::new(
        restored.config,
        restored.state,
        policies.0,
        predictor,
        restored.prices,
        restored.budget,
    )
    .resume(based_on, now);
    engine.handle(now, Event::Clock)?;
    let (mut violations, mut alerts) = (Vec::new(), Vec::new());
    while let Some(alert) = engine.poll_alert() {
        match alert {
            Alert::PlanRefused { violations: found, .. } => {
                violations.extend(found.iter().map(ToString::to_string));
            }
            Alert::BudgetFell { committed, budget } => alerts.push(format!(
                "the budget is {budget:.1}, {committed:.1} were committed: load is shed first"
            )),
            other => alerts.push(format!("{other:?}")),
        }
    }
    let go_on = || began.elapsed() < limits.time / 2;
    let foreseen = limits.steps.and_then(|steps| {
        let horizon = Horizon { steps, go_on: &go_on, ..Horizon::default() };
        // A plan without a forecast is better than none.
        in_time(|| forecast(&engine, policies.1, now, &horizon)).ok()
    });
    let foresee = limits.steps.is_some();
    deadline.lift();
    let state = engine.state();
    let jobs = (0..snapshot.jobs.len() as u32).map(JobId);
    Ok(Planned {
        schema: "wattline.plan/1".to_owned(),
        policy: policy.to_owned(),
        now_s: now.seconds(),
        based_on: based_on.0,
        accepted: violations.is_empty(),
        violations,
        alerts,
        committed_now_w: before.held_committed().get(),
        committed_w: state.planned_committed().get(),
        budget_w: engine.budget_at(now).map(wattline_core::units::Watts::get),
        jobs: jobs.map(|id| job_row(&engine, &before, id, now, foreseen.as_ref())).collect(),
        nodes: state.cluster().node_ids().map(|id| node_row(state, &before, id)).collect(),
        forecast_complete: foresee.then(|| foreseen.as_ref().is_some_and(|f| f.complete)),
    })
}

/// What a plan does about a job.
pub(crate) fn action(held: Option<&Placement>, planned: Option<&Placement>) -> &'static str {
    match (held, planned) {
        (None, None) => "wait",
        (None, Some(_)) => "start",
        (Some(_), None) => "stop",
        (Some(held), Some(planned)) if held == planned => "stay",
        (Some(held), Some(planned)) if held.same_but_limit(planned) => "limit",
        (Some(_), Some(_)) => "move",
    }
}

/// What a plan does about a node.
pub(crate) fn node_action(power: NodePower, target: Target) -> &'static str {
    match (power, target) {
        (NodePower::Asleep | NodePower::FallingAsleep, Target::Up) => "wake",
        (NodePower::Up | NodePower::Booting, Target::Asleep) => "sleep",
        _ => "stay",
    }
}

/// A reason for programs.
pub(crate) fn reason_value(reason: Reason) -> serde_json::Value {
    serde_json::to_value(reason).unwrap_or(serde_json::Value::Null)
}

/// A word for programs.
pub(crate) fn word(value: impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

fn job_row(
    engine: &Engine<'_>,
    before: &State,
    id: JobId,
    now: Timestamp,
    seen: Option<&Forecast>,
) -> PlannedJob {
    let state = engine.state();
    let (job, was) = (state.job(id), before.job(id));
    let forecast = seen.and_then(|seen| seen.job(id)).map(|one| foreseen(&job.job, one));
    PlannedJob {
        job: job.job.name.to_string(),
        action: action(was.held.as_ref(), job.planned.as_ref()).to_owned(),
        runs: job.planned.as_ref().map(|p| runs(engine, job, p, now)),
        reason: reason_value(job.reason),
        why: why(state, job.reason),
        forecast,
    }
}

/// What becomes of a job.
pub(crate) fn foreseen(job: &Job, one: &JobForecast) -> Foreseen {
    Foreseen {
        start_s: one.start.map(Timestamp::seconds),
        end_s: one.end.map(Timestamp::seconds),
        tardiness_s: one.end.map(|end| job.tardiness(end).get()),
        energy_kwh: one.energy.kilowatt_hours(),
        cost_eur: one.cost().get(),
    }
}

/// The sentence, with the job's name where it speaks of another job.
pub(crate) fn why(state: &State, reason: Reason) -> String {
    match reason {
        Reason::GaveWay { to } => {
            let name =
                state.find_job(to).map_or_else(|| to.to_string(), |j| j.job.name.to_string());
            reason.to_string().replace(&to.to_string(), &name)
        }
        reason => reason.to_string(),
    }
}

fn runs(engine: &Engine<'_>, job: &JobState, placement: &Placement, now: Timestamp) -> Runs {
    let cluster = engine.state().cluster();
    let c = &placement.configuration;
    let predicted = engine.predictor().predict(&job.job, c);
    Runs {
        gpu: cluster.gpu_type(c.gpu_type).name.to_string(),
        gpus: c.gpus,
        batch: c.batch,
        power_limit_w: c.power_limit.get(),
        on: on(placement, cluster),
        predicted_power_w: predicted.map(|p| p.power.get() * f64::from(c.gpus)),
        predicted_left_s: predicted.map(|p| (job.remaining(now) / p.rate).get()),
    }
}

/// Nodes and GPUs, by name.
pub(crate) fn on(placement: &Placement, cluster: &wattline_core::cluster::Cluster) -> Vec<On> {
    let shares = placement.allocation.shares().map(|share| On {
        node: cluster.node(share.node).name.to_string(),
        gpus: (0..64_u8).filter(|bit| share.mask >> bit & 1 == 1).collect(),
    });
    shares.collect()
}

fn node_row(state: &State, before: &State, id: NodeId) -> PlannedNode {
    let (node, was) = (state.node(id), before.node(id));
    PlannedNode {
        node: state.cluster().node(id).name.to_string(),
        state: word(was.power),
        target: word(node.target),
        action: node_action(was.power, node.target).to_owned(),
        reason: reason_value(node.reason),
        why: node.reason.to_string(),
    }
}
