//! What a budget would do, for whoever is about to set it.

use crate::daemon::Inside;
use wattline_api::{BudgetForecast, ForecastJob, ForecastJobs, ForecastNodes};
use wattline_core::calendar::Calendar;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::units::Watts;

/// Jobs or nodes that a list names; it says how many there are in all. More than a person looks
/// through; with all lists full an answer is some 30 kB, however large the cluster is.
const MOST_NAMED: usize = 50;

/// What setting this budget would do. Nothing changes.
pub(super) fn forecast(inside: &Inside<'_>, budget: Option<&Calendar<Watts>>) -> BudgetForecast {
    let engine = inside.engine;
    let now = inside.now;
    let committed = engine.state().planned_committed().get();
    let nothing = BudgetForecast {
        schema: "wattline.budget-forecast/1".to_owned(),
        now_s: now.seconds(),
        at_s: now.seconds(),
        budget_w: None,
        committed_now_w: committed,
        committed_w: committed,
        kept: true,
        slower: ForecastJobs::default(),
        stopped: ForecastJobs::default(),
        not_started: ForecastJobs::default(),
        killed: ForecastJobs::default(),
        cannot_be_stopped: ForecastJobs::default(),
        asleep: ForecastNodes::default(),
    };
    let Some(budget) = budget else { return nothing };
    let found = engine.budget_forecast(now, budget);
    let (listed, limits): (Vec<JobId>, Vec<(f64, f64)>) =
        found.slower.iter().map(|(id, from, to)| (*id, (from.get(), to.get()))).unzip();
    let mut slower = jobs(inside, &listed);
    for (job, (from, to)) in slower.jobs.iter_mut().zip(limits) {
        (job.limit_now_w, job.limit_w) = (Some(from), Some(to));
    }
    BudgetForecast {
        at_s: found.at.seconds(),
        budget_w: Some(found.budget.get()),
        committed_w: found.committed.get(),
        kept: found.kept,
        slower,
        stopped: jobs(inside, &found.stopped),
        not_started: jobs(inside, &found.not_started),
        killed: jobs(inside, &found.killed),
        cannot_be_stopped: jobs(inside, &found.unstoppable),
        asleep: nodes(inside, &found.asleep),
        ..nothing
    }
}

fn jobs(inside: &Inside<'_>, ids: &[JobId]) -> ForecastJobs {
    let job = |id: &JobId| ForecastJob {
        job: inside.registry.number(*id).id,
        number: inside.registry.number(*id).to_string(),
        slurm_job: inside.registry.slurm(*id).map(|slurm| slurm.key.id),
        name: inside
            .engine
            .state()
            .find_job(*id)
            .map_or_else(String::new, |state| state.job.name.to_string()),
        limit_now_w: None,
        limit_w: None,
    };
    ForecastJobs { count: ids.len(), jobs: ids.iter().take(MOST_NAMED).map(job).collect() }
}

fn nodes(inside: &Inside<'_>, ids: &[NodeId]) -> ForecastNodes {
    let name = |id: &NodeId| inside.engine.state().cluster().node(*id).name.to_string();
    ForecastNodes { count: ids.len(), nodes: ids.iter().take(MOST_NAMED).map(name).collect() }
}
