//! `wattline predict show`: what to expect of a workload, which configurations are best, and what to
//! measure next.

use super::plan::{Plan, grid, plan};
use super::show_text::{of_plan, text};
use super::{Group, read_groups, store};
use crate::failure::{Failure, Result};
use crate::output;
use anyhow::anyhow;
use serde::Serialize;
use std::path::PathBuf;
use wattline_core::units::Watts;
use wattline_predict::choose::choose;
use wattline_predict::model::Model;
use wattline_predict::reading::{Point, Reading};
use wattline_world::catalogue::Catalogue;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The workload, as the measurements call it
    workload: String,
    /// Measurements: workload,gpu,nodes,gpus,global_batch,power_limit_w,samples,seconds,power_w;
    /// without it, those that were imported
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
    /// The GPU type, where the workload was measured on several, or on none
    #[arg(long)]
    gpu: Option<String>,
    /// How many configurations to measure next
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100))]
    plan: u32,
    /// GPU counts that may be measured [default: those that were]
    #[arg(long, value_name = "COUNTS", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    gpus: Vec<u32>,
    /// Global batches that may be measured [default: those that were]
    #[arg(long, value_name = "BATCHES", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    batches: Vec<u32>,
    /// Power limits in watts that may be measured [default: those that were, and the catalogue's of
    /// the GPU type]
    #[arg(long, value_name = "WATTS", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limits: Vec<u32>,
    /// How many GPUs of --gpus fit on a node
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus_per_node: u32,
    /// Print JSON (schema wattline.predict.show/1)
    #[arg(long)]
    json: bool,
}

/// More readings than this tell the model nothing new; the most telling are fitted.
const MOST_FITTED: usize = 48;

#[derive(Serialize)]
pub(super) struct Shown {
    schema: &'static str,
    pub(super) workload: String,
    pub(super) gpu: String,
    pub(super) measurements: usize,
    pub(super) fitted: usize,
    pub(super) configurations: Vec<Configuration>,
    pub(super) fastest: Option<Configuration>,
    pub(super) most_frugal: Option<Configuration>,
    pub(super) best_by_gpus: Vec<Best>,
    pub(super) curves: Option<Curves>,
    pub(super) plan: Plan,
}

#[derive(Clone, Serialize)]
pub(super) struct Configuration {
    pub(super) nodes: u32,
    pub(super) gpus: u32,
    pub(super) global_batch: f64,
    pub(super) power_limit_w: f64,
    pub(super) samples_per_s: f64,
    pub(super) samples_per_s_low: f64,
    pub(super) samples_per_s_high: f64,
    pub(super) power_w: Option<f64>,
    pub(super) joules_per_sample: Option<f64>,
}

/// The best configurations with so many GPUs.
#[derive(Serialize)]
pub(super) struct Best {
    pub(super) gpus: u32,
    pub(super) fastest: Configuration,
    pub(super) most_frugal: Option<Configuration>,
}

/// One thing varies, the others stay as they are in the most frugal configuration (the fastest,
/// where power was not measured).
#[derive(Serialize)]
pub(super) struct Curves {
    pub(super) around: Configuration,
    pub(super) gpus: Vec<Configuration>,
    pub(super) global_batch: Vec<Configuration>,
    pub(super) power_limit_w: Vec<Configuration>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    // Nothing measured is no error for someone who says what could be.
    let can_plan = args.gpu.is_some() && !args.gpus.is_empty() && !args.batches.is_empty();
    let file = match store::to_read(args.measurements.as_deref()) {
        Err(_) if can_plan => None,
        file => Some(file?),
    };
    let groups = file.as_deref().map(read_groups).transpose()?.unwrap_or_default();
    let matching: Vec<&Group> = groups
        .iter()
        .filter(|((workload, _), _)| **workload == *args.workload)
        .filter(|((_, gpu), _)| args.gpu.as_deref().is_none_or(|wanted| **gpu == *wanted))
        .collect();
    if let ([], true) = (&matching[..], can_plan) {
        return first_plan(args);
    }
    let [((_, gpu), readings)] = matching[..] else {
        let file = file.unwrap_or_default();
        let file = file.display();
        let known: Vec<String> = groups.iter().map(|((w, g), _)| format!("{w} on {g}")).collect();
        let known = output::harmless(&known.join(", "));
        let wanted = output::harmless(&args.workload);
        return Err(Failure::input(if matching.is_empty() {
            anyhow!(
                "{file}: no measurements of '{wanted}' on that GPU type; it has {known}. To plan the \
                 first ones, add --gpu, --gpus and --batches"
            )
        } else {
            anyhow!("{file}: '{wanted}' was measured on several GPU types; add --gpu: {known}")
        }));
    };
    let shown = show(args, gpu, readings)?;
    if args.json { output::json(&shown) } else { output::text(&text(&shown)) }
}

fn show(args: &Args, gpu: &str, readings: &[Reading]) -> Result<Shown> {
    let space: Vec<Point> = readings.iter().map(|r| r.point).collect();
    let fitted: Vec<Reading> =
        choose(&space, MOST_FITTED).into_iter().map(|k| readings[k]).collect();
    let Some(model) = Model::fit(&fitted, &space) else {
        return Err(Failure::input(anyhow!("no measurements of '{}' to fit", args.workload)));
    };
    let measured = Measured::of(&space);
    let grid = grid(&measured.shapes, &measured.limits);
    let configurations: Vec<Configuration> = grid.iter().map(|p| expected(&model, p)).collect();
    let fastest = fastest(&configurations);
    let most_frugal = most_frugal(&configurations);
    let limits = limits(args, gpu, &measured.limits);
    let curves = most_frugal.as_ref().or(fastest.as_ref());
    let curves = curves.map(|around| curves_around(around, &model, &measured, &limits));
    let known: Vec<Point> = fitted.iter().map(|r| r.point).collect();
    let candidates = candidates(args, &measured, &limits);
    let count = args.plan as usize;
    Ok(Shown {
        schema: "wattline.predict.show/1",
        workload: args.workload.clone(),
        gpu: gpu.to_owned(),
        measurements: readings.len(),
        fitted: fitted.len(),
        best_by_gpus: best_by_gpus(&configurations),
        configurations,
        fastest,
        most_frugal,
        curves,
        plan: plan(&args.workload, &candidates, (&space, &known), Some(&model), count),
    })
}

#[derive(Serialize)]
struct FirstPlan<'a> {
    schema: &'static str,
    workload: &'a str,
    gpu: &'a str,
    measurements: usize,
    plan: Plan,
}

/// Nothing was measured: what to begin with.
fn first_plan(args: &Args) -> Result<()> {
    let gpu = args.gpu.as_deref().unwrap_or_default();
    let limits = limits(args, gpu, &[]);
    if limits.is_empty() {
        let known: Vec<&str> = Catalogue::built_in().gpus().iter().map(|g| &*g.name).collect();
        return Err(Failure::input(anyhow!(
            "the power limits of '{}' are not known; add --limits, or use one of the catalogue's GPU \
             types: {}",
            output::harmless(gpu),
            known.join(", ")
        )));
    }
    let candidates = candidates(args, &Measured::default(), &limits);
    if candidates.is_empty() {
        return Err(Failure::input(anyhow!(
            "no batch of --batches has a sample for each GPU of --gpus; name larger batches"
        )));
    }
    let plan = plan(&args.workload, &candidates, (&[], &[]), None, args.plan as usize);
    if args.json {
        return output::json(&FirstPlan {
            schema: "wattline.predict.show/1",
            workload: &args.workload,
            gpu,
            measurements: 0,
            plan,
        });
    }
    output::text(&format!(
        "{} on {}: nothing measured yet\n{}",
        output::harmless(&args.workload),
        output::harmless(gpu),
        of_plan(&plan)
    ))
}

/// What was measured, in rising order.
#[derive(Default)]
struct Measured {
    limits: Vec<f64>,
    /// GPUs, nodes, batch.
    shapes: Vec<(u32, u32, f64)>,
}

impl Measured {
    fn of(space: &[Point]) -> Self {
        let limits = rising(space.iter().map(|p| p.limit.get()).collect());
        // Positive floats sort as their bits do.
        let mut shapes: Vec<(u32, u32, u64)> =
            space.iter().map(|p| (p.gpus, p.nodes, p.batch.to_bits())).collect();
        shapes.sort_unstable();
        shapes.dedup();
        let shapes = shapes.into_iter().map(|(g, n, b)| (g, n, f64::from_bits(b))).collect();
        Self { limits, shapes }
    }
}

fn rising(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

/// Limits that may be set: those that were named, else the measured ones and the catalogue's.
fn limits(args: &Args, gpu: &str, measured: &[f64]) -> Vec<f64> {
    if !args.limits.is_empty() {
        return rising(args.limits.iter().map(|w| f64::from(*w)).collect());
    }
    let mut limits = measured.to_vec();
    if let Some(gpu) = Catalogue::built_in().gpu(gpu) {
        limits.extend(gpu.gpu_type().limits_down().map(Watts::get));
    }
    rising(limits)
}

/// What may be measured next: the shapes and batches that were, unless others are named.
fn candidates(args: &Args, measured: &Measured, limits: &[f64]) -> Vec<Point> {
    if args.gpus.is_empty() && args.batches.is_empty() {
        return grid(&measured.shapes, limits);
    }
    let per_node = args.gpus_per_node;
    let mut counts: Vec<(u32, u32)> = if args.gpus.is_empty() {
        measured.shapes.iter().map(|(gpus, nodes, _)| (*gpus, *nodes)).collect()
    } else {
        args.gpus.iter().map(|gpus| (*gpus, gpus.div_ceil(per_node))).collect()
    };
    counts.sort_unstable();
    counts.dedup();
    let batches = if args.batches.is_empty() {
        measured.shapes.iter().map(|(_, _, batch)| *batch).collect()
    } else {
        args.batches.iter().map(|batch| f64::from(*batch)).collect()
    };
    let batches = rising(batches);
    let mut shapes = Vec::new();
    for (gpus, nodes) in counts {
        let enough = batches.iter().filter(|batch| **batch >= f64::from(gpus));
        shapes.extend(enough.map(|batch| (gpus, nodes, *batch)));
    }
    grid(&shapes, limits)
}

fn expected(model: &Model, point: &Point) -> Configuration {
    let e = model.expect(point);
    Configuration {
        nodes: point.nodes,
        gpus: point.gpus,
        global_batch: point.batch,
        power_limit_w: point.limit.get(),
        samples_per_s: 1.0 / e.per_sample.get(),
        samples_per_s_low: 1.0 / e.per_sample_high.get(),
        samples_per_s_high: 1.0 / e.per_sample_low.get(),
        power_w: e.power.map(Watts::get),
        joules_per_sample: e.energy().map(|j| j.get() * f64::from(point.gpus)),
    }
}

fn fastest(all: &[Configuration]) -> Option<Configuration> {
    all.iter().max_by(|a, b| a.samples_per_s.total_cmp(&b.samples_per_s)).cloned()
}

fn most_frugal(all: &[Configuration]) -> Option<Configuration> {
    let known = all.iter().filter_map(|c| Some((c.joules_per_sample?, c)));
    known.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, c)| c.clone())
}

fn best_by_gpus(all: &[Configuration]) -> Vec<Best> {
    let mut best = Vec::new();
    // They come in rising order of the GPU count.
    for same in all.chunk_by(|a, b| a.gpus == b.gpus) {
        if let Some(fastest) = fastest(same) {
            best.push(Best { gpus: fastest.gpus, fastest, most_frugal: most_frugal(same) });
        }
    }
    best
}

fn curves_around(
    around: &Configuration,
    model: &Model,
    measured: &Measured,
    limits: &[f64],
) -> Curves {
    let centre = Point {
        gpus: around.gpus,
        nodes: around.nodes,
        batch: around.global_batch,
        limit: Watts::new(around.power_limit_w),
    };
    // On as few nodes as were measured with that many GPUs.
    let mut counts: Vec<(u32, u32)> = measured.shapes.iter().map(|(g, n, _)| (*g, *n)).collect();
    counts.dedup_by_key(|(gpus, _)| *gpus);
    let gpus = counts
        .into_iter()
        .filter(|(gpus, _)| f64::from(*gpus) <= centre.batch)
        .map(|(gpus, nodes)| Point { gpus, nodes, ..centre });
    let here = |shape: &&(u32, u32, f64)| (shape.0, shape.1) == (centre.gpus, centre.nodes);
    let batches = measured.shapes.iter().filter(here);
    let batches = batches.map(|(_, _, batch)| Point { batch: *batch, ..centre });
    let limits = limits.iter().map(|limit| Point { limit: Watts::new(*limit), ..centre });
    Curves {
        around: around.clone(),
        gpus: gpus.map(|p| expected(model, &p)).collect(),
        global_batch: batches.map(|p| expected(model, &p)).collect(),
        power_limit_w: limits.map(|p| expected(model, &p)).collect(),
    }
}
