//! From read models to what goes over the wire.

use super::access::{Identity, Role};
use crate::daemon::{JobView, ReadModel};
use crate::job_registry::JobNumber;
use crate::planning::on;
use wattline_api::{JobRow, NodeRow, Reach};
use wattline_core::Timestamp;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::placement::Placement;
use wattline_core::plan::Reason;
use wattline_core::units::{EurosPerSecond, Joules};

/// Seconds of an hour.
pub(super) const HOUR: f64 = 3600.0;

pub(super) fn per_hour(weight: EurosPerSecond) -> f64 {
    weight.get() * HOUR
}

pub(super) fn job_row(
    read_model: &ReadModel,
    view: &JobView,
    who: &Identity,
    now: Timestamp,
) -> JobRow {
    let job = &view.job;
    let outlook = read_model.outlook.jobs.get(&view.id).filter(|_| !view.is_over());
    let finish = view.ended.or_else(|| outlook.and_then(|o| o.end));
    let start = view.first_start.or_else(|| outlook.and_then(|o| o.start));
    let late = view.ended.map(|end| job.weight * job.tardiness(end));
    let so_far = view.bill.map(|bill| bill + late.unwrap_or_default());
    let risk = match view.ended {
        Some(end) => job.deadline.map(|due| if end > due { 1.0 } else { 0.0 }),
        None => outlook.and_then(|o| o.risk),
    };
    // A deadline that is over when the job comes is none that could be met.
    let risk = risk.filter(|_| job.deadline.is_some_and(|due| due > job.submit));
    let energy = if view.is_over() { view.energy } else { outlook.and_then(|o| o.energy) };
    let cost = if view.is_over() { so_far } else { outlook.and_then(|o| o.cost) };
    let name = |share: wattline_core::placement::Share| {
        read_model.cluster.node(share.node).name.to_string()
    };
    let held = view.held.as_ref();
    JobRow {
        id: view.number.id,
        number: view.number.to_string(),
        name: job.name.to_string(),
        user: view.user.to_string(),
        workload: view.workload.to_string(),
        state: view.state().to_owned(),
        gpus_asked: job.gpus.requested,
        gpus_bounds: [job.gpus.min, job.gpus.max],
        gpus_held: held.map_or(0, |held| held.allocation.count()),
        elasticity: job.elasticity.to_string(),
        nodes: held.map_or_else(Vec::new, |held| held.allocation.shares().map(name).collect()),
        power_limit_w: held.map(|held| held.configuration.power_limit.get()),
        submitted_s: job.submit.seconds(),
        deadline_s: job.deadline.map(Timestamp::seconds),
        weight_eur_per_h: per_hour(job.weight),
        progress: view.done(now),
        start_s: start.map(Timestamp::seconds),
        finish_s: finish.map(Timestamp::seconds),
        start_is_past: view.first_start.is_some(),
        finish_is_past: view.ended.is_some(),
        energy_kwh: energy.map(Joules::kilowatt_hours),
        cost_eur: cost.map(wattline_core::units::Euros::get),
        risk,
        why: why(view, who, now),
        restarts: view.restarts,
    }
}

/// How far is foreseen.
pub(super) fn reach(read_model: &ReadModel) -> Option<Reach> {
    let outlook = &read_model.outlook;
    (!outlook.reach.is_empty()).then(|| Reach {
        at_s: outlook.at.seconds(),
        until_s: outlook.until.seconds(),
        exact_until_s: outlook.exact_until.seconds(),
        jobs: outlook.unfinished,
        ended: outlook.ended,
        text: outlook.reach.clone(),
    })
}

/// The sentence. Another's job is not named to a user who does not see it; times are told from now.
pub(super) fn why(view: &JobView, who: &Identity, now: Timestamp) -> String {
    if view.is_over() {
        return if view.cancelled { "was cancelled" } else { "is done" }.to_owned();
    }
    match view.reason {
        Reason::GaveWay { to } => {
            let reason = view.reason.to_string();
            match &view.gave_way_to {
                Some(other) if who.role != Role::User => {
                    reason.replace(&to.to_string(), &format!("job {other}"))
                }
                _ => reason.replace(&to.to_string(), "a job"),
            }
        }
        Reason::OnHold if view.restart_hold.is_some() => {
            format!("waits: {}", view.restart_hold.as_deref().unwrap_or_default())
        }
        reason => {
            let reason = match reason {
                Reason::Reserved { at } => {
                    format!("waits: starts within {:.0} at the latest", at.since(now))
                }
                reason => reason.to_string(),
            };
            match &view.refused {
                Some(said) => format!("{reason}; the cluster says {said}"),
                None => reason,
            }
        }
    }
}

pub(super) fn placement(read_model: &ReadModel, placement: &Placement) -> wattline_api::Placement {
    let c = &placement.configuration;
    wattline_api::Placement {
        gpu: read_model.cluster.gpu_type(c.gpu_type).name.to_string(),
        gpus: c.gpus,
        batch: c.batch,
        power_limit_w: c.power_limit.get(),
        on: on(placement, &read_model.cluster),
    }
}

pub(super) fn node_row(read_model: &ReadModel, id: NodeId, who: &Identity) -> Option<NodeRow> {
    let view = read_model.nodes.get(id.index())?;
    let node = read_model.cluster.node(id);
    let known = |job: &JobId| read_model.job(*job).filter(|view| who.sees(&view.user));
    let seen: Vec<&JobNumber> =
        (view.jobs.iter()).filter_map(|job| known(job).map(|view| &view.number)).collect();
    Some(NodeRow {
        name: node.name.to_string(),
        gpu: read_model.cluster.gpu_type(node.gpu_type).name.to_string(),
        gpus: u32::from(node.gpus),
        gpus_held: view.gpus_held,
        state: crate::planning::word(view.power),
        target: crate::planning::word(view.target),
        jobs: seen.iter().map(|number| number.id).collect(),
        job_numbers: seen.iter().map(ToString::to_string).collect(),
        committed_w: view.committed.get(),
        why: view.reason.to_string(),
    })
}
