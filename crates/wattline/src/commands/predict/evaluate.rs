//! `wattline predict evaluate`: how well time and power can be predicted from a few measurements.

use super::{Group, read_groups};
use crate::failure::{Failure, Result};
use crate::output;
use anyhow::anyhow;
use rayon::prelude::*;
use serde::Serialize;
use std::path::PathBuf;
use wattline_predict::evaluate::{Errors, Evaluation, evaluate};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Measurements: workload,gpu,nodes,gpus,global_batch,power_limit_w,samples,seconds,power_w
    #[arg(long, value_name = "FILE")]
    measurements: PathBuf,
    /// How many measurements to fit; the predictor chooses which
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1000))]
    fit_points: u32,
    /// Accepted for symmetry: nothing here is random
    #[arg(long)]
    seed: Option<u64>,
    /// Print JSON (schema wattline.predict/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    groups: Vec<GroupReport>,
    overall: Overall,
}

#[derive(Serialize)]
struct GroupReport {
    workload: String,
    gpu: String,
    fit: usize,
    held_out: usize,
    time_mape: f64,
    power_mape: Option<f64>,
    energy_mape: Option<f64>,
    coverage_90: f64,
    interpolation_time_mape: f64,
    interpolation_energy_mape: Option<f64>,
    nearest_time_mape: f64,
    nearest_energy_mape: Option<f64>,
}

/// Medians over groups, and means beside the baselines'.
#[derive(Serialize)]
struct Overall {
    groups: usize,
    held_out: usize,
    time_mape: f64,
    power_mape: Option<f64>,
    energy_mape: Option<f64>,
    coverage_90: f64,
    mean_time_mape: f64,
    mean_power_mape: Option<f64>,
    mean_energy_mape: Option<f64>,
    interpolation_mean_time_mape: f64,
    interpolation_mean_power_mape: Option<f64>,
    interpolation_mean_energy_mape: Option<f64>,
    nearest_mean_time_mape: f64,
    nearest_mean_power_mape: Option<f64>,
    nearest_mean_energy_mape: Option<f64>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let groups = read_groups(&args.measurements)?;
    let count = args.fit_points as usize;
    let evaluated: Vec<(&Group, Evaluation)> =
        groups.par_iter().filter_map(|group| Some((group, evaluate(&group.1, count)?))).collect();
    if evaluated.is_empty() {
        return Err(Failure::input(anyhow!(
            "{}: no workload has two measurements on one GPU type, nothing can be held out",
            args.measurements.display()
        )));
    }
    let report = report(&evaluated);
    if args.json { output::json(&report) } else { output::text(&table(&report)) }
}

fn report(evaluated: &[(&Group, Evaluation)]) -> Report {
    let groups = evaluated
        .iter()
        .map(|(((workload, gpu), _), e)| GroupReport {
            workload: workload.to_string(),
            gpu: gpu.to_string(),
            fit: e.fitted,
            held_out: e.held_out,
            time_mape: e.model.time,
            power_mape: e.model.power,
            energy_mape: e.model.energy,
            coverage_90: e.covered as f64 / e.held_out as f64,
            interpolation_time_mape: e.interpolation.time,
            interpolation_energy_mape: e.interpolation.energy,
            nearest_time_mape: e.nearest.time,
            nearest_energy_mape: e.nearest.energy,
        })
        .collect();
    let all = |pick: &dyn Fn(&Evaluation) -> Option<f64>| -> Vec<f64> {
        let mut values: Vec<f64> = evaluated.iter().filter_map(|(_, e)| pick(e)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let mean = |values: Vec<f64>| {
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let middle = |values: Vec<f64>| {
        let (low, high) = (values.len().checked_sub(1)? / 2, values.len() / 2);
        Some(f64::midpoint(values[low], values[high]))
    };
    let parts = |errors: &dyn Fn(&Evaluation) -> Errors| {
        [all(&|e| Some(errors(e).time)), all(&|e| errors(e).power), all(&|e| errors(e).energy)]
    };
    let [time, power, energy] = parts(&|e| e.model).map(middle);
    let [mean_time, mean_power, mean_energy] = parts(&|e| e.model).map(mean);
    let [line_time, line_power, line_energy] = parts(&|e| e.interpolation).map(mean);
    let [near_time, near_power, near_energy] = parts(&|e| e.nearest).map(mean);
    let held_out: usize = evaluated.iter().map(|(_, e)| e.held_out).sum();
    let covered: usize = evaluated.iter().map(|(_, e)| e.covered).sum();
    Report {
        schema: "wattline.predict/1",
        groups,
        overall: Overall {
            groups: evaluated.len(),
            held_out,
            time_mape: time.unwrap_or_default(),
            power_mape: power,
            energy_mape: energy,
            coverage_90: covered as f64 / held_out.max(1) as f64,
            mean_time_mape: mean_time.unwrap_or_default(),
            mean_power_mape: mean_power,
            mean_energy_mape: mean_energy,
            interpolation_mean_time_mape: line_time.unwrap_or_default(),
            interpolation_mean_power_mape: line_power,
            interpolation_mean_energy_mape: line_energy,
            nearest_mean_time_mape: near_time.unwrap_or_default(),
            nearest_mean_power_mape: near_power,
            nearest_mean_energy_mape: near_energy,
        },
    }
}

fn table(report: &Report) -> String {
    let percent = |x: f64| format!("{:.1} %", x * 100.0);
    let maybe = |x: Option<f64>| x.map_or_else(|| "–".to_owned(), percent);
    let mut rows: Vec<Vec<String>> = report
        .groups
        .iter()
        .map(|g| {
            vec![
                output::harmless(&format!("{} on {}", g.workload, g.gpu)),
                g.fit.to_string(),
                g.held_out.to_string(),
                percent(g.time_mape),
                maybe(g.power_mape),
                maybe(g.energy_mape),
                percent(g.coverage_90),
                percent(g.interpolation_time_mape),
                percent(g.nearest_time_mape),
            ]
        })
        .collect();
    let o = &report.overall;
    rows.push(vec![
        "median".into(),
        String::new(),
        o.held_out.to_string(),
        percent(o.time_mape),
        maybe(o.power_mape),
        maybe(o.energy_mape),
        percent(o.coverage_90),
        String::new(),
        String::new(),
    ]);
    rows.push(vec![
        "mean".into(),
        String::new(),
        String::new(),
        percent(o.mean_time_mape),
        maybe(o.mean_power_mape),
        maybe(o.mean_energy_mape),
        String::new(),
        percent(o.interpolation_mean_time_mape),
        percent(o.nearest_mean_time_mape),
    ]);
    let header = [
        "workload",
        "fitted",
        "held out",
        "time",
        "power",
        "energy",
        "in 90 %",
        "time, lines",
        "time, nearest",
    ];
    output::table(&header, rows)
}
