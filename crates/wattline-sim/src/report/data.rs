//! From simulations to what a report shows.

use super::{
    Bar, CostSplit, Gantt, PowerPoint, PredictedRun, Predictions, ReportInput, RunReport, Span,
};
use crate::accuracy::AtStart;
use crate::instance::Instance;
use crate::metrics::Summary;
use crate::simulation::Outcome;
use serde::Serialize;
use std::collections::HashMap;
use std::io::Write;
use wattline_core::Timestamp;
use wattline_core::ids::GpuId;
use wattline_world::world::LogEntry;

/// A job's line in the job table.
#[derive(Clone, Debug, Serialize)]
pub struct JobRow {
    /// Its name.
    pub job: String,
    /// What it trained.
    pub workload: String,
    /// GPUs asked for.
    pub gpus_requested: u32,
    /// Seconds from the beginning of the simulation.
    pub submit_s: f64,
    /// Seconds from the beginning.
    pub deadline_s: Option<f64>,
    /// EUR per hour of lateness.
    pub weight_eur_per_h: f64,
    /// Time to the first start.
    pub wait_s: Option<f64>,
    /// From the first start to the end.
    pub run_s: Option<f64>,
    /// From submission to the end.
    pub jct_s: Option<f64>,
    /// Past the deadline.
    pub tardiness_s: f64,
    /// EUR.
    pub tardiness_cost: f64,
    /// Starts beyond the first.
    pub restarts: u32,
    /// GPU-seconds held.
    pub gpu_seconds: f64,
    /// Energy attributed to it.
    pub energy_kwh: f64,
    /// Its tardiness, and the energy and carbon of its GPUs.
    pub cost_eur: f64,
    /// What it was forecast to cost when it was submitted.
    pub forecast_cost_eur: Option<f64>,
    /// When it was forecast to end, seconds from the beginning.
    pub forecast_end_s: Option<f64>,
    /// The energy it was forecast to use.
    pub forecast_energy_kwh: Option<f64>,
    /// How long its last run took.
    pub last_run_s: Option<f64>,
    /// How long that run was predicted to take when it started.
    pub last_run_predicted_s: Option<f64>,
    /// 90 % of such runs should take at least this.
    pub last_run_low_s: Option<f64>,
    /// And at most this.
    pub last_run_high_s: Option<f64>,
    /// Energy of that run, as predicted when it started.
    pub last_run_predicted_kwh: Option<f64>,
    /// Energy of that run.
    pub last_run_kwh: Option<f64>,
    /// The last reason given for it.
    pub reason: String,
}

/// The job table of a run.
#[must_use]
pub fn job_rows(instance: &Instance, outcome: &Outcome) -> Vec<JobRow> {
    let start = instance.start;
    // Of a job that never ended, lateness counts to the last end there was.
    let end = outcome.jobs.iter().filter_map(|job| job.end).max().unwrap_or(start);
    outcome
        .jobs
        .iter()
        .map(|o| {
            let job = &o.job;
            let tardiness = o.tardiness(end);
            let (foreseen, begun) = (o.forecast.as_deref(), o.at_start.as_deref());
            let of_run = |factor: fn(&AtStart) -> f64| {
                begun.map(|run| (run.load + run.time * factor(run)).get())
            };
            JobRow {
                job: job.name.to_string(),
                workload: instance.physics.name(job.workload).to_owned(),
                gpus_requested: job.gpus.requested,
                submit_s: (job.submit - start).get(),
                deadline_s: job.deadline.map(|due| (due - start).get()),
                weight_eur_per_h: job.weight.get() * 3600.0,
                wait_s: o.first_start.map(|first| (first - job.submit).get()),
                run_s: o.first_start.zip(o.end).map(|(first, end)| (end - first).get()),
                jct_s: o.completion_time().map(|time| time.get()),
                tardiness_s: tardiness.get(),
                tardiness_cost: (job.weight * tardiness).get(),
                restarts: o.restarts,
                gpu_seconds: o.gpu_seconds,
                energy_kwh: o.energy.kilowatt_hours(),
                cost_eur: o.cost(end).get(),
                forecast_cost_eur: foreseen.filter(|f| f.end.is_some()).map(|f| f.cost().get()),
                forecast_end_s: foreseen.and_then(|f| f.end).map(|end| (end - start).get()),
                forecast_energy_kwh: foreseen
                    .filter(|f| f.end.is_some())
                    .map(|f| f.energy.kilowatt_hours()),
                last_run_s: begun.zip(o.end).map(|(run, end)| (end - run.at).get()),
                last_run_predicted_s: of_run(|_| 1.0),
                last_run_low_s: of_run(|run| run.low),
                last_run_high_s: of_run(|run| run.high),
                last_run_predicted_kwh: begun
                    .and_then(|run| run.energy)
                    .map(|energy| energy.kilowatt_hours()),
                last_run_kwh: begun
                    .filter(|_| o.end.is_some())
                    .map(|run| run.energy_used(o).kilowatt_hours()),
                reason: o.reason.to_string(),
            }
        })
        .collect()
}

/// Writes the job table as CSV.
///
/// # Errors
/// What the output says.
pub fn write_jobs(rows: &[JobRow], out: impl Write) -> Result<(), csv::Error> {
    let mut csv = csv::Writer::from_writer(out);
    for row in rows {
        let (job, workload) = (plain_cell(&row.job), plain_cell(&row.workload));
        csv.serialize(JobRow { job, workload, ..row.clone() })?;
    }
    csv.flush()?;
    Ok(())
}

/// A name as a cell that a spreadsheet shows and does not run, and that moves no cursor: control
/// characters are escaped, and an apostrophe goes before what would begin a formula.
#[must_use]
pub fn plain_cell(name: &str) -> String {
    let mut cell = String::with_capacity(name.len());
    if name.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        cell.push('\'');
    }
    for c in name.chars() {
        if c.is_control() { cell.extend(c.escape_default()) } else { cell.push(c) }
    }
    cell
}

/// What the report of these runs shows. Power and Gantt need runs that were recorded.
#[must_use]
pub fn input(instance: &Instance, outcomes: &[Outcome], about: &str) -> ReportInput {
    let mut subtitle = about.to_owned();
    for note in &instance.notes {
        subtitle.push('\n');
        subtitle.push_str(note);
    }
    ReportInput {
        title: format!("Wattline: {}", instance.name),
        subtitle,
        runs: outcomes.iter().map(|outcome| run(instance, outcome)).collect(),
    }
}

fn run(instance: &Instance, outcome: &Outcome) -> RunReport {
    let s = &outcome.summary;
    let seconds = |time: Timestamp| (time - instance.start).get();
    RunReport {
        policy: s.policy.clone(),
        summary: figures(s),
        cost: CostSplit {
            energy_eur: s.energy_cost,
            tardiness_eur: s.tardiness_cost,
            carbon_eur: s.carbon_cost,
        },
        power: outcome
            .power
            .iter()
            .map(|p| PowerPoint {
                t_s: seconds(p.time),
                power_w: p.drawn.get(),
                committed_w: p.committed.get(),
                budget_w: p.budget.map(|b| b.get()),
            })
            .collect(),
        gantt: gantt(instance, outcome),
        jct_s: outcome.jobs.iter().filter_map(|j| j.completion_time()).map(|t| t.get()).collect(),
        tardiness_s: outcome
            .jobs
            .iter()
            .filter(|j| j.job.deadline.is_some())
            .filter_map(|j| j.end.map(|end| j.job.tardiness(end).get()))
            .collect(),
        predictions: predictions(instance, outcome),
    }
}

fn predictions(instance: &Instance, outcome: &Outcome) -> Predictions {
    let a = &outcome.summary.accuracy;
    // That the truth was true needs no picture.
    let checks = outcome.jobs.iter().filter(|_| !instance.is_foreseen());
    Predictions {
        runs: checks
            .filter_map(|job| job.run_check())
            .map(|check| PredictedRun {
                end_s: (check.end - instance.start).get(),
                time_error: check.time_error,
                energy_error: check.energy_error,
                covered: check.covered,
            })
            .collect(),
        cost_eur: a.cost_predicted_eur.zip(a.cost_actual_eur),
        oracle_eur: a.oracle_total_cost.map(|oracle| (outcome.summary.total_cost, oracle)),
    }
}

fn figures(s: &Summary) -> Vec<(String, String)> {
    let hours = |seconds: f64| format!("{:.2} h", seconds / 3600.0);
    let share = |share: f64| format!("{:.1} %", share * 100.0);
    let a = &s.accuracy;
    let predictions = [
        ("price of not knowing", a.price_of_not_knowing),
        ("mean error of run times", a.time_error_mean),
        ("run times in their 90 % interval", a.time_coverage_90),
        ("mean error of run energies", a.energy_error_mean),
        ("error of forecast costs", a.cost_error),
        ("of the second half of the jobs", a.cost_error_second_half),
    ];
    let mut figures: Vec<(String, String)> = [
        ("total cost", format!("{:.2} EUR", s.total_cost)),
        ("energy cost", format!("{:.2} EUR", s.energy_cost)),
        ("tardiness cost", format!("{:.2} EUR", s.tardiness_cost)),
        ("carbon cost", format!("{:.2} EUR", s.carbon_cost)),
        ("energy", format!("{:.1} kWh", s.energy_kwh)),
        ("of it idle and base", format!("{:.1} kWh", s.energy_idle_kwh + s.energy_base_kwh)),
        ("jobs finished", format!("{} of {}", s.finished, s.jobs)),
        ("deadlines met", format!("{} of {}", s.deadlines_met, s.deadlines)),
        ("mean completion time", hours(s.jct_mean_s)),
        ("median completion time", hours(s.jct_p50_s)),
        ("99 % completion time", hours(s.jct_p99_s)),
        ("makespan", hours(s.makespan_s)),
        ("restarts", s.restarts.to_string()),
        ("GPU utilisation", format!("{:.1} %", s.gpu_utilisation * 100.0)),
        ("fragmentation", format!("{:.1} %", s.fragmentation * 100.0)),
        ("peak power", format!("{:.2} kW", s.peak_power_w / 1e3)),
        ("time over budget", format!("{:.1} s", s.budget_exceeded_s)),
        ("plans", s.plans.to_string()),
    ]
    .map(|(label, value)| (label.to_owned(), value))
    .into();
    let known = predictions.into_iter().filter_map(|(label, value)| Some((label, value?)));
    figures.extend(known.map(|(label, value)| (label.to_owned(), share(value))));
    figures
}

/// One row per GPU, in the order of nodes.
fn gantt(instance: &Instance, outcome: &Outcome) -> Gantt {
    let seconds = |time: Timestamp| (time - instance.start).get();
    let mut rows = Vec::new();
    let mut row_of: HashMap<GpuId, u32> = HashMap::new();
    for (id, node) in instance.cluster.node_ids().zip(instance.cluster.nodes()) {
        for index in 0..node.gpus {
            row_of.insert(GpuId { node: id, index }, rows.len() as u32);
            rows.push(format!("{}/{index}", node.name));
        }
    }
    let mut gantt = Gantt { rows, ..Gantt::default() };
    for entry in &outcome.log {
        match entry {
            LogEntry::Ran { job, placement, from, to } => {
                let o = &outcome.jobs[job.index()];
                let late = o.end.is_some_and(|end| o.job.tardiness(end).get() > 0.0);
                for gpu in placement.allocation.gpus() {
                    gantt.bars.push(Bar {
                        row: row_of[&gpu],
                        start_s: seconds(*from),
                        end_s: seconds(*to),
                        job: job.0,
                        label: o.job.name.to_string(),
                        late,
                    });
                }
            }
            LogEntry::Slept { node, from, to } => {
                for index in 0..instance.cluster.node(*node).gpus {
                    gantt.sleep.push(Span {
                        row: row_of[&GpuId { node: *node, index }],
                        start_s: seconds(*from),
                        end_s: seconds(*to),
                    });
                }
            }
        }
    }
    gantt
}

#[cfg(test)]
mod tests {
    use super::plain_cell;

    #[test]
    fn names_are_neither_formulas_nor_commands_of_a_terminal() {
        for (name, cell) in [
            ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
            ("+1", "'+1"),
            ("-2+3", "'-2+3"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\u{1b}[31mred", "\\u{1b}[31mred"),
            ("\t=1", "'\\t=1"),
            ("llama-3 = good", "llama-3 = good"),
        ] {
            assert_eq!(plain_cell(name), cell);
        }
    }
}
