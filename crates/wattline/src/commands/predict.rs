//! `wattline predict`: how well time and power can be predicted from a few measurements.

use crate::failure::{Failure, Result};
use crate::output;
use anyhow::{Context, anyhow};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use wattline_core::units::{Seconds, Watts};
use wattline_predict::choose::choose;
use wattline_predict::evaluate::{Errors, Evaluation, evaluate};
use wattline_predict::model::Model;
use wattline_predict::reading::{Point, Reading};
use wattline_world::catalogue::Catalogue;
use wattline_world::measured::{Row, read_rows};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Fit a few measurements of each workload and GPU type, predict the others, report the errors
    Evaluate(EvaluateArgs),
    /// Show what is expected of a workload in every measured shape, batch and power limit, and which
    /// are the fastest and the most frugal
    Show(ShowArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct EvaluateArgs {
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

#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The workload, as the measurements call it
    workload: String,
    /// Measurements: workload,gpu,nodes,gpus,global_batch,power_limit_w,samples,seconds,power_w
    #[arg(long, value_name = "FILE")]
    measurements: PathBuf,
    /// The GPU type, where the workload was measured on several
    #[arg(long)]
    gpu: Option<String>,
    /// Print JSON (schema wattline.predict.show/1)
    #[arg(long)]
    json: bool,
}

/// More readings than this tell the model nothing new; the most telling are fitted.
const MOST_FITTED: usize = 48;

#[derive(Serialize)]
struct Shown {
    schema: &'static str,
    workload: String,
    gpu: String,
    measurements: usize,
    fitted: usize,
    configurations: Vec<Configuration>,
    fastest: Option<Configuration>,
    most_frugal: Option<Configuration>,
}

#[derive(Clone, Serialize)]
struct Configuration {
    nodes: u32,
    gpus: u32,
    global_batch: f64,
    power_limit_w: f64,
    samples_per_s: f64,
    samples_per_s_low: f64,
    samples_per_s_high: f64,
    power_w: Option<f64>,
    joules_per_sample: Option<f64>,
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

type Group = ((Box<str>, Box<str>), Vec<Reading>);

pub(crate) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Evaluate(args) => evaluate_file(args),
        Command::Show(args) => show(args),
    }
}

fn show(args: &ShowArgs) -> Result<()> {
    let groups = read_groups(&args.measurements)?;
    let file = args.measurements.display();
    let matching: Vec<&Group> = groups
        .iter()
        .filter(|((workload, _), _)| **workload == *args.workload)
        .filter(|((_, gpu), _)| args.gpu.as_deref().is_none_or(|wanted| **gpu == *wanted))
        .collect();
    let [((workload, gpu), readings)] = matching[..] else {
        let known: Vec<String> = groups.iter().map(|((w, g), _)| format!("{w} on {g}")).collect();
        let known = known.join(", ");
        let wanted = output::harmless(&args.workload);
        return Err(Failure::input(if matching.is_empty() {
            anyhow!("{file}: no measurements of '{wanted}' on that GPU type; it has {known}")
        } else {
            anyhow!("{file}: '{wanted}' was measured on several GPU types; add --gpu: {known}")
        }));
    };
    let space: Vec<Point> = readings.iter().map(|r| r.point).collect();
    let fitted: Vec<Reading> =
        choose(&space, MOST_FITTED).into_iter().map(|k| readings[k]).collect();
    let Some(model) = Model::fit(&fitted, &space) else {
        return Err(Failure::input(anyhow!("{file}: no measurements to fit")));
    };
    let mut configurations: Vec<Configuration> = Vec::new();
    for point in grid(&space) {
        let e = model.expect(&point);
        configurations.push(Configuration {
            nodes: point.nodes,
            gpus: point.gpus,
            global_batch: point.batch,
            power_limit_w: point.limit.get(),
            samples_per_s: 1.0 / e.per_sample.get(),
            samples_per_s_low: 1.0 / e.per_sample_high.get(),
            samples_per_s_high: 1.0 / e.per_sample_low.get(),
            power_w: e.power.map(Watts::get),
            joules_per_sample: e.energy().map(|j| j.get() * f64::from(point.gpus)),
        });
    }
    let fastest =
        configurations.iter().max_by(|a, b| a.samples_per_s.total_cmp(&b.samples_per_s)).cloned();
    let most_frugal = configurations
        .iter()
        .filter(|c| c.joules_per_sample.is_some())
        .min_by(|a, b| {
            let joules = |c: &Configuration| c.joules_per_sample.unwrap_or(f64::INFINITY);
            joules(a).total_cmp(&joules(b))
        })
        .cloned();
    let shown = Shown {
        schema: "wattline.predict.show/1",
        workload: workload.to_string(),
        gpu: gpu.to_string(),
        measurements: readings.len(),
        fitted: fitted.len(),
        configurations,
        fastest,
        most_frugal,
    };
    if args.json { output::json(&shown) } else { output::text(&shown_table(&shown)) }
}

/// Every shape with every batch that it was measured with and every limit in the file.
fn grid(space: &[Point]) -> Vec<Point> {
    let mut limits: Vec<f64> = space.iter().map(|p| p.limit.get()).collect();
    limits.sort_by(f64::total_cmp);
    limits.dedup();
    let mut shapes: Vec<(u32, u32, u64)> =
        space.iter().map(|p| (p.gpus, p.nodes, p.batch.to_bits())).collect();
    shapes.sort_unstable();
    shapes.dedup();
    shapes
        .into_iter()
        .flat_map(|(gpus, nodes, batch)| {
            let batch = f64::from_bits(batch);
            limits.iter().map(move |limit| Point { gpus, nodes, batch, limit: Watts::new(*limit) })
        })
        .collect()
}

fn shown_table(shown: &Shown) -> String {
    let line = |c: &Configuration, mark: &str| {
        let number = |x: Option<f64>, digits: usize| {
            x.map_or_else(|| "–".to_owned(), |x| format!("{x:.digits$}"))
        };
        vec![
            format!("{} on {}", c.gpus, c.nodes),
            format!("{}", c.global_batch),
            format!("{} W", c.power_limit_w),
            format!("{:.1}", c.samples_per_s),
            format!("{:.1} to {:.1}", c.samples_per_s_low, c.samples_per_s_high),
            number(c.power_w, 0),
            number(c.joules_per_sample, 4),
            mark.to_owned(),
        ]
    };
    let is = |c: &Configuration, best: &Option<Configuration>| {
        best.as_ref().is_some_and(|b| {
            (b.gpus, b.nodes) == (c.gpus, c.nodes)
                && b.global_batch == c.global_batch
                && b.power_limit_w == c.power_limit_w
        })
    };
    let rows = shown
        .configurations
        .iter()
        .map(|c| {
            let mark = match (is(c, &shown.fastest), is(c, &shown.most_frugal)) {
                (true, true) => "fastest, most frugal",
                (true, false) => "fastest",
                (false, true) => "most frugal",
                (false, false) => "",
            };
            line(c, mark)
        })
        .collect();
    let header = [
        "GPUs on nodes",
        "batch",
        "limit",
        "samples/s",
        "90 % between",
        "W per GPU",
        "J/sample",
        "",
    ];
    format!(
        "{} on {}: {} of {} measurements fitted\n{}\n",
        output::harmless(&shown.workload),
        output::harmless(&shown.gpu),
        shown.fitted,
        shown.measurements,
        output::table(&header, rows)
    )
}

fn evaluate_file(args: &EvaluateArgs) -> Result<()> {
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

/// Readings by workload and GPU type, in the order of the names.
fn read_groups(path: &Path) -> Result<Vec<Group>> {
    let file = path.display().to_string();
    let input = File::open(path)
        .with_context(|| format!("cannot open {file}; check the path and its permissions"))
        .map_err(Failure::Input)?;
    let rows = read_rows(input, &file).map_err(Failure::input)?;
    let mut by_name: BTreeMap<(Box<str>, Box<str>), Vec<Row>> = BTreeMap::new();
    for row in rows {
        by_name.entry((row.workload.clone(), row.gpu.clone())).or_default().push(row);
    }
    let catalogue = Catalogue::built_in();
    let mut groups = Vec::with_capacity(by_name.len());
    for (name, rows) in by_name {
        // An empty limit is the card's default: the catalogue's, else the highest in the file.
        let highest = rows.iter().filter_map(|row| row.power_limit_w).fold(0.0, f64::max);
        let default = match catalogue.gpu(&name.1) {
            Some(gpu) => gpu.gpu_type().default_limit.get(),
            None if highest > 0.0 => highest,
            None => 300.0,
        };
        let mut readings = Vec::with_capacity(rows.len());
        for row in rows {
            let reading = Reading {
                point: Point {
                    gpus: row.gpus,
                    nodes: row.nodes,
                    batch: row.global_batch,
                    limit: Watts::new(row.power_limit_w.unwrap_or(default)),
                },
                per_sample: Seconds::new(row.seconds / row.samples),
                power: row.power_w.map(Watts::new),
            };
            reading
                .check()
                .with_context(|| format!("{file}: {} on {}", name.0, name.1))
                .map_err(Failure::Input)?;
            readings.push(reading);
        }
        groups.push((name, readings));
    }
    Ok(groups)
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
