//! `wattline predict show`: what to expect of a workload, and which configurations are best.

use super::{Group, read_groups};
use crate::failure::{Failure, Result};
use crate::output;
use anyhow::anyhow;
use serde::Serialize;
use std::path::PathBuf;
use wattline_core::units::Watts;
use wattline_predict::choose::choose;
use wattline_predict::model::Model;
use wattline_predict::reading::{Point, Reading};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
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

pub(super) fn run(args: &Args) -> Result<()> {
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
