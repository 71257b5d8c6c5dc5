//! What a recorded period came to, by the same reckoning as a simulated one.

use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use wattline_controller::history::{History, Past};
use wattline_core::Timestamp;
use wattline_core::engine::Event;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::power::NodePower;
use wattline_core::units::{Euros, Joules};
use wattline_sim::instance::Instance;
use wattline_world::recorded::{Change, Recorded};

/// What became of the jobs, and what that cost.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Realised {
    pub(crate) jobs: usize,
    pub(crate) finished: usize,
    pub(crate) cancelled: usize,
    /// Of those that finished: with an error, or at their time limit.
    pub(crate) failed: usize,
    /// Of those that finished: still running when the record ends. They count until then.
    pub(crate) cut_off: usize,
    pub(crate) tardiness_cost: f64,
    /// What GPUs drew while they were measured; none if nothing was.
    pub(crate) energy_jobs_kwh: Option<f64>,
    pub(crate) jct_mean_s: f64,
    pub(crate) jct_p99_s: f64,
    pub(crate) makespan_s: f64,
    pub(crate) deadlines: usize,
    pub(crate) deadlines_met: usize,
    pub(crate) restarts: u64,
    /// When the record begins and ends.
    pub(crate) from_s: f64,
    pub(crate) until_s: f64,
    /// What all of it drew and cost; none if the journal does not say where jobs ran.
    #[serde(flatten)]
    pub(crate) drawn: Option<Drawn>,
}

/// What a cluster drew: the runs, limits and sleep that were recorded, and the power that the
/// simulated rows have for them.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Drawn {
    pub(crate) total_cost: f64,
    pub(crate) energy_cost: f64,
    pub(crate) carbon_cost: f64,
    pub(crate) energy_kwh: f64,
    /// By cause, as in the results.
    pub(crate) energy_runs_kwh: f64,
    pub(crate) energy_idle_kwh: f64,
    pub(crate) energy_base_kwh: f64,
    pub(crate) energy_boot_kwh: f64,
    pub(crate) energy_sleep_kwh: f64,
    pub(crate) peak_power_w: f64,
    pub(crate) budget_exceeded_s: f64,
    /// Where these come from.
    pub(crate) energy_from: &'static str,
}

/// No meter's readings are in a journal, but for those that measurements of runs hold.
const BY_MODEL: &str = "recorded runs and node states, by the power model of the simulated rows";

impl Realised {
    /// What a history came to. The instance says what energy costs and how much GPUs draw.
    pub(crate) fn of(history: &History, instance: &Instance) -> Self {
        let jobs = &history.jobs;
        let last = history.span.map_or(Timestamp::ZERO, |(_, last)| last);
        let mut times: Vec<f64> =
            jobs.iter().filter_map(|past| Some((past.end? - past.job.submit).get())).collect();
        times.sort_by(f64::total_cmp);
        let late = |past: &Past| past.latest().tardiness(past.end.unwrap_or(last));
        let owed = jobs.iter().filter(|past| past.cancelled.is_none());
        let tardiness: Euros = owed.map(|past| past.latest().weight * late(past)).sum();
        let due = |past: &&Past| past.latest().deadline.is_some();
        let met = |past: &&Past| {
            let (deadline, end) = (past.latest().deadline, past.end);
            deadline.zip(end).is_some_and(|(deadline, end)| end <= deadline)
        };
        let measured: Joules = jobs.iter().map(|past| past.gpu_energy).sum();
        let first = jobs.iter().map(|past| past.job.submit).min().unwrap_or(last);
        let end = jobs.iter().filter_map(|past| past.end).max().unwrap_or(last);
        let rank = (0.99 * times.len() as f64).ceil().max(1.0) as usize;
        let until = instance.until.unwrap_or(end.max(instance.start));
        Self {
            jobs: jobs.len(),
            finished: times.len(),
            cancelled: jobs.iter().filter(|past| past.cancelled.is_some()).count(),
            failed: 0,
            cut_off: 0,
            tardiness_cost: tardiness.get(),
            energy_jobs_kwh: (measured > Joules::ZERO).then(|| measured.kilowatt_hours()),
            jct_mean_s: times.iter().sum::<f64>() / (times.len().max(1)) as f64,
            jct_p99_s: times.get(rank - 1).copied().unwrap_or(0.0),
            makespan_s: (end - first).get(),
            deadlines: jobs.iter().filter(due).count(),
            deadlines_met: jobs.iter().filter(met).count(),
            restarts: jobs.iter().map(|past| u64::from(past.starts.saturating_sub(1))).sum(),
            from_s: instance.start.seconds(),
            until_s: until.seconds(),
            drawn: drawn(history, instance, until, tardiness),
        }
    }
}

fn drawn(
    history: &History,
    instance: &Instance,
    until: Timestamp,
    tardiness: Euros,
) -> Option<Drawn> {
    let mut changes = jobs(history, instance, until)?;
    changes.extend(nodes(history, instance));
    changes.extend(history.orders.iter().filter_map(|(at, order)| match order {
        Event::PricesSet(prices) => Some((*at, Change::Prices(prices.clone()))),
        Event::BudgetSet(budget) => Some((*at, Change::Budget(budget.clone()))),
        _ => None,
    }));
    // Whoever leaves makes room for whoever comes at the same instant.
    changes.sort_by_key(|(at, change)| (*at, matches!(change, Change::Holds(..))));
    let (prices, budget) = (instance.prices.clone(), instance.budget.clone());
    let cluster = Arc::clone(&instance.cluster);
    let mut recorded = Recorded::new(cluster, instance.start, prices, budget);
    for (at, change) in changes.into_iter().take_while(|(at, _)| *at <= until) {
        recorded.apply(at.max(instance.start), change);
    }
    let meter = recorded.close(until);
    let energy = meter.energy();
    Some(Drawn {
        total_cost: (meter.cost() + meter.carbon_cost() + tardiness).get(),
        energy_cost: meter.cost().get(),
        carbon_cost: meter.carbon_cost().get(),
        energy_kwh: energy.total.kilowatt_hours(),
        energy_runs_kwh: energy.jobs.kilowatt_hours(),
        energy_idle_kwh: energy.idle.kilowatt_hours(),
        energy_base_kwh: energy.base.kilowatt_hours(),
        energy_boot_kwh: energy.boot.kilowatt_hours(),
        energy_sleep_kwh: energy.sleep.kilowatt_hours(),
        peak_power_w: meter.peak().get(),
        budget_exceeded_s: meter.over_budget().get(),
        energy_from: BY_MODEL,
    })
}

/// Who held which GPUs; none if the journal does not say so of every run.
fn jobs(
    history: &History,
    instance: &Instance,
    until: Timestamp,
) -> Option<Vec<(Timestamp, Change)>> {
    let mut changes = Vec::new();
    for (id, past) in (0..).map(JobId).zip(&history.jobs) {
        for run in &past.runs {
            let to = run.to.unwrap_or(until);
            if run.placements.is_empty() {
                return None;
            }
            if to <= run.from {
                continue;
            }
            for (at, placement) in run.placements.iter().filter(|(at, _)| *at < to) {
                let speed = instance.physics.speed(&past.job, &placement.configuration)?;
                let allocation = placement.allocation.clone();
                changes.push((*at, Change::Holds(id, allocation, speed.power)));
            }
            changes.push((to, Change::Left(id)));
        }
    }
    Some(changes)
}

/// What nodes were. That one boots is not written down, only that it is up again: it booted for as
/// long as such nodes take.
fn nodes(history: &History, instance: &Instance) -> Vec<(Timestamp, Change)> {
    let mut asleep: BTreeMap<NodeId, Timestamp> = BTreeMap::new();
    let mut changes = Vec::new();
    for (at, id, power) in &history.nodes {
        let Some(node) = instance.cluster.nodes().get(id.index()) else { continue };
        match power {
            NodePower::Asleep => drop(asleep.insert(*id, *at)),
            NodePower::Up => {
                if let Some(since) = asleep.remove(id) {
                    let boots = (*at - node.boot_time).max(since);
                    changes.push((boots, Change::Node(*id, NodePower::Booting)));
                }
            }
            _ => drop(asleep.remove(id)),
        }
        changes.push((*at, Change::Node(*id, *power)));
    }
    changes
}
