//! `wattline predict evaluate`: how well time and power can be predicted from a few measurements.

use super::evaluate_text::text;
use super::{Group, card_of, read_groups, store};
use crate::failure::{Failure, Result};
use crate::output;
use anyhow::anyhow;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use wattline_core::units::Watts;
use wattline_predict::baseline::BaselineMethod;
use wattline_predict::evaluate::{
    Errors, Evaluation, HeldOut, Intervals, SET_ON, Trial, hold_out, intervals,
    leave_one_workload_out, summary,
};
use wattline_predict::noise::{self, NoiseFloor, Spread};
use wattline_predict::reading::Reading;
use wattline_predict::yardstick::{self, Comparison};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Measurements: workload,gpu,nodes,gpus,global_batch,power_limit_w,samples,seconds,power_w;
    /// without it, those that were imported
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
    /// How many measurements to fit; the predictor chooses which
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1000))]
    fit_points: u32,
    /// The same configurations measured again: they tell the noise, and are neither fitted nor
    /// predicted
    #[arg(long, value_name = "FILE")]
    repeat: Option<PathBuf>,
    /// List the N predictions that are furthest off
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=10_000))]
    worst: u32,
    /// Accepted for symmetry: nothing here is random
    #[arg(long)]
    seed: Option<u64>,
    /// Print JSON (schema wattline.predict/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
pub(super) struct Report {
    schema: &'static str,
    /// Whether the intervals' constants were set on this file (by its name).
    intervals_set_on_this_file: bool,
    pub(super) groups: Vec<GroupReport>,
    pub(super) overall: Overall,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) worst: Option<Vec<Worst>>,
}

#[derive(Serialize)]
pub(super) struct GroupReport {
    pub(super) workload: String,
    pub(super) gpu: String,
    pub(super) fit: usize,
    pub(super) held_out: usize,
    pub(super) time_mape: f64,
    pub(super) power_mape: Option<f64>,
    pub(super) energy_mape: Option<f64>,
    pub(super) coverage_90: f64,
    pub(super) intervals: IntervalsReport,
    pub(super) interpolation_time_mape: f64,
    interpolation_energy_mape: Option<f64>,
    pub(super) nearest_time_mape: f64,
    nearest_energy_mape: Option<f64>,
    /// The baseline used instead of the model, where leaving out readings says it is better.
    pub(super) fallback_time: Option<&'static str>,
    pub(super) fallback_power: Option<&'static str>,
    pub(super) yardstick_fit: Option<usize>,
    pub(super) yardstick_held_out: Option<usize>,
    pub(super) yardstick_time_mape: Option<f64>,
    pub(super) yardstick_energy_mape: Option<f64>,
    yardstick_as_stated_time_mape: Option<f64>,
    yardstick_as_stated_energy_mape: Option<f64>,
    pub(super) model_on_yardstick_points_time_mape: Option<f64>,
    pub(super) model_on_yardstick_points_energy_mape: Option<f64>,
    #[serde(flatten)]
    pub(super) noise_floor: Noise,
}

#[derive(Serialize)]
pub(super) struct Noise {
    #[serde(rename = "noise_floor_configurations")]
    pub(super) configurations: usize,
    #[serde(rename = "noise_floor_time")]
    pub(super) time: Option<f64>,
    #[serde(rename = "noise_floor_power")]
    pub(super) power: Option<f64>,
    #[serde(rename = "noise_floor_energy")]
    pub(super) energy: Option<f64>,
    #[serde(rename = "noise_expected_time")]
    pub(super) expected_time: Option<f64>,
    #[serde(rename = "noise_expected_power")]
    pub(super) expected_power: Option<f64>,
    #[serde(rename = "noise_expected_energy")]
    pub(super) expected_energy: Option<f64>,
}

impl Noise {
    fn new(known: Option<NoiseFloor>) -> Self {
        let NoiseFloor { floor, expected, configurations } = known.unwrap_or_default();
        Self {
            configurations,
            time: known.map(|_| floor.time),
            power: floor.power,
            energy: floor.energy,
            expected_time: known.map(|_| expected.time),
            expected_power: expected.power,
            expected_energy: expected.energy,
        }
    }
}

/// How 90 % intervals fared, for each quantity that was measured.
#[derive(Serialize)]
pub(super) struct IntervalsReport {
    pub(super) time: Option<IntervalReport>,
    pub(super) power: Option<IntervalReport>,
    pub(super) energy: Option<IntervalReport>,
}

#[derive(Serialize)]
pub(super) struct IntervalReport {
    pub(super) coverage: f64,
    /// Means of upper by lower end, as logarithms.
    pub(super) width: f64,
    pub(super) oracle_width: f64,
    /// `width` by `oracle_width`; null where the oracle needs none.
    pub(super) width_by_oracle: Option<f64>,
}

impl IntervalsReport {
    fn new(found: [Option<Intervals>; 3]) -> Self {
        let one = |Intervals { coverage, width, oracle_width }| IntervalReport {
            coverage,
            width,
            oracle_width,
            width_by_oracle: (oracle_width > 0.0).then(|| width / oracle_width),
        };
        let [time, power, energy] = found.map(|found| found.map(one));
        Self { time, power, energy }
    }
}

/// Every workload in turn with a few measurements, all others of the same GPU type with all of
/// theirs: pooled.
#[derive(Serialize)]
pub(super) struct LeftOut {
    pub(super) workloads: usize,
    pub(super) held_out: usize,
    pub(super) time_mape: f64,
    pub(super) mean_time_mape: f64,
    pub(super) mean_power_mape: Option<f64>,
    pub(super) mean_energy_mape: Option<f64>,
    pub(super) intervals: IntervalsReport,
}

/// Medians over groups, and means beside the baselines'.
#[derive(Serialize)]
pub(super) struct Overall {
    groups: usize,
    pub(super) held_out: usize,
    pub(super) time_mape: f64,
    pub(super) power_mape: Option<f64>,
    pub(super) energy_mape: Option<f64>,
    pub(super) coverage_90: f64,
    pub(super) intervals: IntervalsReport,
    /// Null where no GPU type has two workloads.
    pub(super) leave_one_workload_out: Option<LeftOut>,
    pub(super) mean_time_mape: f64,
    pub(super) mean_power_mape: Option<f64>,
    pub(super) mean_energy_mape: Option<f64>,
    pub(super) interpolation_mean_time_mape: f64,
    interpolation_mean_power_mape: Option<f64>,
    interpolation_mean_energy_mape: Option<f64>,
    pub(super) nearest_mean_time_mape: f64,
    nearest_mean_power_mape: Option<f64>,
    nearest_mean_energy_mape: Option<f64>,
    yardstick_fit: Option<usize>,
    yardstick_held_out: Option<usize>,
    pub(super) yardstick_time_mape: Option<f64>,
    pub(super) yardstick_energy_mape: Option<f64>,
    pub(super) yardstick_mean_time_mape: Option<f64>,
    pub(super) yardstick_mean_energy_mape: Option<f64>,
    yardstick_as_stated_time_mape: Option<f64>,
    yardstick_as_stated_energy_mape: Option<f64>,
    yardstick_as_stated_mean_time_mape: Option<f64>,
    yardstick_as_stated_mean_energy_mape: Option<f64>,
    pub(super) model_on_yardstick_points_time_mape: Option<f64>,
    pub(super) model_on_yardstick_points_energy_mape: Option<f64>,
    pub(super) model_on_yardstick_points_mean_time_mape: Option<f64>,
    pub(super) model_on_yardstick_points_mean_energy_mape: Option<f64>,
    /// Over all repeated configurations.
    #[serde(flatten)]
    pub(super) noise_floor: Noise,
}

/// A prediction that is far off.
#[derive(Serialize)]
pub(super) struct Worst {
    pub(super) workload: String,
    pub(super) gpu: String,
    pub(super) nodes: u32,
    pub(super) gpus: u32,
    pub(super) global_batch: f64,
    pub(super) power_limit_w: f64,
    pub(super) predicted_seconds_per_sample: f64,
    pub(super) measured_seconds_per_sample: f64,
    pub(super) time_error: f64,
    pub(super) predicted_power_w: Option<f64>,
    pub(super) measured_power_w: Option<f64>,
    pub(super) power_error: Option<f64>,
    /// How far apart readings of this configuration are; null where there is one.
    repeats_time_spread: Option<f64>,
    repeats_power_spread: Option<f64>,
    /// Whether they are as far apart as the prediction is off.
    pub(super) repeats_disagree_as_much: Option<bool>,
}

/// What was found about a workload on a GPU type.
struct Found<'a> {
    group: &'a Group,
    /// Its readings and those of the second pass.
    all: Vec<Reading>,
    held_out: Vec<HeldOut>,
    fallbacks: [Option<BaselineMethod>; 2],
    evaluation: Evaluation,
    compared: Option<Comparison>,
    floor: Option<NoiseFloor>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let file = store::to_read(args.measurements.as_deref())?;
    let groups = read_groups(&file)?;
    let again = args.repeat.as_deref().map(read_groups).transpose()?.unwrap_or_default();
    if let Some(repeat) = &args.repeat {
        check_repeats(&groups, &again, &file, repeat)?;
    }
    let count = args.fit_points as usize;
    let found: Vec<Found> =
        groups.par_iter().filter_map(|group| find(group, &again, count)).collect();
    if found.is_empty() {
        return Err(Failure::input(anyhow!(
            "{}: no workload has two measurements on one GPU type, nothing can be held out",
            file.display()
        )));
    }
    let report = Report {
        schema: "wattline.predict/1",
        intervals_set_on_this_file: set_on(&file),
        groups: found.iter().map(of_group).collect(),
        overall: overall(&found, left_out(&groups, count)),
        worst: (args.worst > 0).then(|| worst(&found, args.worst as usize)),
    };
    if args.json { output::json(&report) } else { output::text(&text(&report)) }
}

/// Whether a file is one of those that the intervals' constants were set on.
fn set_on(file: &Path) -> bool {
    file.file_stem().and_then(|stem| stem.to_str()).is_some_and(|stem| SET_ON.contains(&stem))
}

/// What a site that knows all other workloads makes of each; `None` where none knows another.
fn left_out(groups: &[Group], count: usize) -> Option<LeftOut> {
    let mut by_gpu: BTreeMap<&str, Vec<&[Reading]>> = BTreeMap::new();
    for ((_, gpu), readings) in groups.iter().filter(|(_, readings)| readings.len() > 1) {
        by_gpu.entry(gpu).or_default().push(readings);
    }
    by_gpu.retain(|_, groups| groups.len() > 1);
    let trials: Vec<Vec<HeldOut>> = by_gpu
        .into_iter()
        .flat_map(|(gpu, groups)| match card_of(gpu, &groups) {
            Some(card) => leave_one_workload_out(&groups, &card, count),
            None => Vec::new(),
        })
        .filter(|held_out| !held_out.is_empty())
        .collect();
    let errors: Vec<Errors> = trials.iter().map(|trial| summary(trial, count).model).collect();
    let times: Vec<f64> = errors.iter().map(|e| e.time).collect();
    Some(LeftOut {
        workloads: trials.len(),
        held_out: trials.iter().map(Vec::len).sum(),
        time_mape: median(times.clone())?,
        mean_time_mape: mean(times)?,
        mean_power_mape: mean(errors.iter().filter_map(|e| e.power).collect()),
        mean_energy_mape: mean(errors.iter().filter_map(|e| e.energy).collect()),
        intervals: IntervalsReport::new(intervals(trials.iter().flatten())),
    })
}

/// A second pass of something else says nothing about noise.
fn check_repeats(groups: &[Group], again: &[Group], file: &Path, repeat: &Path) -> Result<()> {
    let known = |name: &(Box<str>, Box<str>), reading: &Reading| {
        let first = groups.iter().find(|(group, _)| group == name);
        first.is_some_and(|(_, all)| all.iter().any(|r| r.point == reading.point))
    };
    if again.iter().any(|(name, all)| all.iter().any(|r| known(name, r))) {
        return Ok(());
    }
    Err(Failure::input(anyhow!(
        "{}: no row repeats a configuration of {}; --repeat wants the same workloads, GPU types, \
         shapes, batches and limits measured again",
        repeat.display(),
        file.display()
    )))
}

fn find<'a>(group: &'a Group, again: &[Group], count: usize) -> Option<Found<'a>> {
    let (name, readings) = group;
    let Trial { held_out, fallbacks } = hold_out(readings, count)?;
    let evaluation = summary(&held_out, readings.len() - held_out.len());
    let mut all = readings.clone();
    all.extend(again.iter().filter(|(other, _)| other == name).flat_map(|(_, again)| again));
    let floor = noise::floor(&all);
    let compared = yardstick::compare(readings);
    Some(Found { group, held_out, fallbacks, evaluation, compared, floor, all })
}

fn way(way: BaselineMethod) -> &'static str {
    match way {
        BaselineMethod::Lines => "lines",
        BaselineMethod::Nearest => "nearest",
    }
}

fn of_group(found: &Found) -> GroupReport {
    let ((workload, gpu), _) = found.group;
    let (e, c) = (&found.evaluation, found.compared.as_ref());
    GroupReport {
        workload: workload.to_string(),
        gpu: gpu.to_string(),
        fit: e.fitted,
        held_out: e.held_out,
        time_mape: e.model.time,
        power_mape: e.model.power,
        energy_mape: e.model.energy,
        coverage_90: e.covered as f64 / e.held_out as f64,
        intervals: IntervalsReport::new(e.intervals),
        interpolation_time_mape: e.interpolation.time,
        interpolation_energy_mape: e.interpolation.energy,
        nearest_time_mape: e.nearest.time,
        nearest_energy_mape: e.nearest.energy,
        fallback_time: found.fallbacks[0].map(way),
        fallback_power: found.fallbacks[1].map(way),
        yardstick_fit: c.map(|c| c.fitted),
        yardstick_held_out: c.map(|c| c.held_out),
        yardstick_time_mape: c.map(|c| c.yardstick.time),
        yardstick_energy_mape: c.and_then(|c| c.yardstick.energy),
        yardstick_as_stated_time_mape: c.map(|c| c.stated.time),
        yardstick_as_stated_energy_mape: c.and_then(|c| c.stated.energy),
        model_on_yardstick_points_time_mape: c.map(|c| c.model.time),
        model_on_yardstick_points_energy_mape: c.and_then(|c| c.model.energy),
        noise_floor: Noise::new(found.floor),
    }
}

fn mean(values: Vec<f64>) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    Some(f64::midpoint(values[low], values[high]))
}

fn overall(found: &[Found], left_out: Option<LeftOut>) -> Overall {
    // Errors of time, power and energy in all groups that have them.
    let parts = |errors: &dyn Fn(&Found) -> Option<Errors>| -> [Vec<f64>; 3] {
        let all: Vec<Errors> = found.iter().filter_map(errors).collect();
        [
            all.iter().map(|e| e.time).collect(),
            all.iter().filter_map(|e| e.power).collect(),
            all.iter().filter_map(|e| e.energy).collect(),
        ]
    };
    let model = parts(&|f| Some(f.evaluation.model));
    let [time, power, energy] = model.clone().map(median);
    let [mean_time, mean_power, mean_energy] = model.map(mean);
    let [line_time, line_power, line_energy] =
        parts(&|f| Some(f.evaluation.interpolation)).map(mean);
    let [near_time, near_power, near_energy] = parts(&|f| Some(f.evaluation.nearest)).map(mean);
    let yardstick = parts(&|f| Some(f.compared?.yardstick));
    let stated = parts(&|f| Some(f.compared?.stated));
    let ours = parts(&|f| Some(f.compared?.model));
    let [yardstick_time, _, yardstick_energy] = yardstick.clone().map(median);
    let [yardstick_mean_time, _, yardstick_mean_energy] = yardstick.map(mean);
    let [stated_time, _, stated_energy] = stated.clone().map(median);
    let [stated_mean_time, _, stated_mean_energy] = stated.map(mean);
    let [ours_time, _, ours_energy] = ours.clone().map(median);
    let [ours_mean_time, _, ours_mean_energy] = ours.map(mean);
    let compared: Vec<Comparison> = found.iter().filter_map(|f| f.compared).collect();
    let sum = |pick: fn(&Comparison) -> usize| {
        (!compared.is_empty()).then(|| compared.iter().map(pick).sum::<usize>())
    };
    let held_out: usize = found.iter().map(|f| f.evaluation.held_out).sum();
    let covered: usize = found.iter().map(|f| f.evaluation.covered).sum();
    Overall {
        groups: found.len(),
        held_out,
        time_mape: time.unwrap_or_default(),
        power_mape: power,
        energy_mape: energy,
        coverage_90: covered as f64 / held_out.max(1) as f64,
        intervals: IntervalsReport::new(intervals(found.iter().flat_map(|f| &f.held_out))),
        leave_one_workload_out: left_out,
        mean_time_mape: mean_time.unwrap_or_default(),
        mean_power_mape: mean_power,
        mean_energy_mape: mean_energy,
        interpolation_mean_time_mape: line_time.unwrap_or_default(),
        interpolation_mean_power_mape: line_power,
        interpolation_mean_energy_mape: line_energy,
        nearest_mean_time_mape: near_time.unwrap_or_default(),
        nearest_mean_power_mape: near_power,
        nearest_mean_energy_mape: near_energy,
        yardstick_fit: sum(|c| c.fitted),
        yardstick_held_out: sum(|c| c.held_out),
        yardstick_time_mape: yardstick_time,
        yardstick_energy_mape: yardstick_energy,
        yardstick_mean_time_mape: yardstick_mean_time,
        yardstick_mean_energy_mape: yardstick_mean_energy,
        yardstick_as_stated_time_mape: stated_time,
        yardstick_as_stated_energy_mape: stated_energy,
        yardstick_as_stated_mean_time_mape: stated_mean_time,
        yardstick_as_stated_mean_energy_mape: stated_mean_energy,
        model_on_yardstick_points_time_mape: ours_time,
        model_on_yardstick_points_energy_mape: ours_energy,
        model_on_yardstick_points_mean_time_mape: ours_mean_time,
        model_on_yardstick_points_mean_energy_mape: ours_mean_energy,
        noise_floor: Noise::new(together(found)),
    }
}

/// The floor over the repeated configurations of all groups: each configuration counts once.
fn together(found: &[Found]) -> Option<NoiseFloor> {
    let floors: Vec<NoiseFloor> = found.iter().filter_map(|f| f.floor).collect();
    let over = |pick: &dyn Fn(&NoiseFloor) -> Option<f64>| {
        let known = floors.iter().filter_map(|f| Some((pick(f)?, f.configurations as f64)));
        let (sum, weight) = known.fold((0.0, 0.0), |(s, w), (x, n)| (s + x * n, w + n));
        (weight > 0.0).then(|| sum / weight)
    };
    let spread = |of: fn(&NoiseFloor) -> Spread| {
        Some(Spread {
            time: over(&|f| Some(of(f).time))?,
            power: over(&|f| of(f).power),
            energy: over(&|f| of(f).energy),
        })
    };
    Some(NoiseFloor {
        floor: spread(|f| f.floor)?,
        expected: spread(|f| f.expected)?,
        configurations: floors.iter().map(|f| f.configurations).sum(),
    })
}

/// The predictions furthest off in time or power, whichever is worse.
fn worst(found: &[Found], count: usize) -> Vec<Worst> {
    let mut all: Vec<(f64, &Found, &HeldOut)> = Vec::new();
    for f in found {
        for h in &f.held_out {
            let (time, power) = h.off();
            all.push((time.max(power.unwrap_or(0.0)), f, h));
        }
    }
    // Stable: equal errors stay in the order of names and rows.
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.truncate(count);
    all.into_iter()
        .map(|(off, f, h)| {
            let ((workload, gpu), _) = f.group;
            let p = h.reading.point;
            let (time, power) = h.off();
            let same: Vec<Reading> = f.all.iter().filter(|r| r.point == p).copied().collect();
            let (time_spread, power_spread) = noise::disagreement(&same);
            let spread = if time >= power.unwrap_or(0.0) { time_spread } else { power_spread };
            Worst {
                workload: workload.to_string(),
                gpu: gpu.to_string(),
                nodes: p.nodes,
                gpus: p.gpus,
                global_batch: p.batch,
                power_limit_w: p.limit.get(),
                predicted_seconds_per_sample: h.expected.per_sample.get(),
                measured_seconds_per_sample: h.reading.per_sample.get(),
                time_error: time,
                predicted_power_w: h.expected.power.map(Watts::get),
                measured_power_w: h.reading.power.map(Watts::get),
                power_error: power,
                repeats_time_spread: time_spread,
                repeats_power_spread: power_spread,
                repeats_disagree_as_much: spread.map(|spread| spread >= off),
            }
        })
        .collect()
}
