//! How large a snapshot may be, so that planning it takes a known amount of memory and time.
//!
//! A few bytes can ask for much: a small step of the power limits, wide bounds of a job, long
//! lists of days. So what a planner would enumerate is counted here before any of it is made.

use super::file::{Changing, Snapshot, WorkloadEntry};
use super::restore::{Machines, SnapshotError};
use crate::job::{Bounds, Elasticity};

/// The most of everything that a snapshot may hold or imply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeLimits {
    /// Servers.
    pub nodes: u64,
    /// Jobs.
    pub jobs: u64,
    /// Configurations of all jobs together: shapes × batches × power limits.
    pub configurations: u64,
    /// Known times and measurements of all workloads together.
    pub measurements: u64,
}

impl SizeLimits {
    /// For a view that somebody sends to a controller: it is planned beside a running cluster, in
    /// about 1 GB at most.
    pub const SHARED: Self =
        Self { nodes: 2_000, jobs: 5_000, configurations: 4_000_000, measurements: 20_000 };
    /// For a view that somebody plans on his own machine: 20 times as much.
    pub const OWN: Self =
        Self { nodes: 40_000, jobs: 100_000, configurations: 80_000_000, measurements: 400_000 };
}

/// A cluster has a handful of GPU types. More than 65,536 would not fit their ids.
const MOST_GPU_TYPES: u64 = 64;
/// Names of workloads; each has its own model.
const MOST_WORKLOADS: u64 = 10_000;
/// Rules of a calendar: a week has 168 hours.
const MOST_RULES: u64 = 200;
/// Characters of a rule's days: all seven, written out twice.
const MOST_DAYS: u64 = 56;

fn most(field: impl FnOnce() -> String, what: &'static str, count: u64, most: u64) -> Outcome {
    if count <= most {
        return Ok(());
    }
    Err(SnapshotError::TooMany { field: field(), what, count, most })
}

type Outcome = Result<(), SnapshotError>;

impl Snapshot {
    /// Whether its lists are short enough. Ask before anything is made of it.
    ///
    /// # Errors
    /// Names the field that holds too much.
    pub fn check_lists(&self, limits: &SizeLimits) -> Outcome {
        let field = |name: &str| name.to_owned();
        let count = |length: usize| length as u64;
        most(|| field("jobs"), "jobs", count(self.jobs.len()), limits.jobs)?;
        most(|| field("nodes"), "nodes", count(self.nodes.len()), limits.nodes)?;
        most(|| field("gpu_types"), "GPU types", count(self.gpu_types.len()), MOST_GPU_TYPES)?;
        most(|| field("workloads"), "workloads", count(self.workloads.len()), MOST_WORKLOADS)?;
        let rows = |w: &WorkloadEntry| w.times.len() + w.measurements.len();
        let rows: usize = self.workloads.iter().map(rows).sum();
        let what = "times and measurements";
        most(|| field("workloads"), what, count(rows), limits.measurements)?;
        for (at, job) in self.jobs.iter().enumerate() {
            let shapes = job.shapes.as_ref().map_or(0, Vec::len);
            // Each GPU type on each number of GPUs of a full cluster.
            most(|| format!("jobs[{at}].shapes"), "shapes", count(shapes), 10_000)?;
        }
        let prices = &self.prices;
        let calendars = [
            ("budget_w", self.budget_w.as_ref()),
            ("prices.energy_eur_per_kwh", Some(&prices.energy_eur_per_kwh)),
            ("prices.carbon_g_per_kwh", Some(&prices.carbon_g_per_kwh)),
        ];
        calendars.into_iter().filter_map(|(f, c)| Some((f, c?))).try_for_each(calendar)
    }

    /// Whether planners can try all configurations of all jobs.
    ///
    /// # Errors
    /// Names the job with which it becomes too much.
    pub fn check_configurations(&self, machines: &Machines, limits: &SizeLimits) -> Outcome {
        let cluster = &machines.cluster;
        let levels = cluster.gpu_types().iter().map(|t| u64::from(t.limit_count())).max();
        let levels = levels.unwrap_or(1);
        let mut all = 0_u64;
        for (at, job) in self.jobs.iter().enumerate() {
            let bounds = |asked: u32, min: Option<u32>, max: Option<u32>| Bounds {
                min: min.unwrap_or(asked),
                max: max.unwrap_or(asked),
                requested: asked,
            };
            let shapes = match &job.shapes {
                Some(listed) => listed.len() as u64,
                None => {
                    cluster.menu_bound(job.elasticity, bounds(job.gpus, job.min_gpus, job.max_gpus))
                }
            };
            // Policies halve and double the batch that was asked for.
            let batches = if job.elasticity == Elasticity::Adaptive { u32::BITS.into() } else { 1 };
            all = all.saturating_add(shapes.saturating_mul(batches).saturating_mul(levels));
            let what =
                "configurations of this job and those before it (shapes × batches × power limits)";
            most(|| format!("jobs[{at}]"), what, all, limits.configurations)?;
        }
        Ok(())
    }
}

fn calendar((field, calendar): (&str, &Changing)) -> Outcome {
    let rules = calendar.rules.len() as u64;
    most(|| format!("{field}.rules"), "rules", rules, MOST_RULES)?;
    for (at, rule) in calendar.rules.iter().enumerate() {
        let days = rule.days.len() as u64;
        most(|| format!("{field}.rules[{at}].days"), "characters", days, MOST_DAYS)?;
    }
    Ok(())
}
