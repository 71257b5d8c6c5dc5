//! What is in a trace, without holding it.

use crate::metrics::{mean, percentile};
use crate::trace::{self, Format, TraceError};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A trace in figures.
#[derive(Clone, Debug, Serialize)]
pub struct Description {
    /// `wattline.trace/1`.
    pub schema: &'static str,
    /// Rows read.
    pub rows: u64,
    /// Jobs among them.
    pub jobs: u64,
    /// Why the others are none.
    pub skipped: Vec<Skipped>,
    /// Different users, or virtual clusters.
    pub users: usize,
    /// From the first submission to the last.
    pub span_s: f64,
    /// GPU-hours asked for.
    pub gpu_hours: f64,
    /// How many GPUs make the offered load 0.9.
    pub gpus_for_load_0_9: u64,
    /// Mean run time.
    pub duration_mean_s: f64,
    /// Median run time.
    pub duration_p50_s: f64,
    /// 99th percentile.
    pub duration_p99_s: f64,
    /// Jobs with a deadline.
    pub deadlines: u64,
    /// Jobs by GPU count.
    pub gpus: Vec<GpuBin>,
    /// Jobs by model, where the trace tells.
    pub models: Vec<ModelBin>,
}

/// Rows left out.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// Why.
    pub reason: String,
    /// How many.
    pub rows: u64,
}

/// Jobs of a size.
#[derive(Clone, Debug, Serialize)]
pub struct GpuBin {
    /// GPUs.
    pub gpus: u32,
    /// How many jobs.
    pub jobs: u64,
}

/// Jobs of a model.
#[derive(Clone, Debug, Serialize)]
pub struct ModelBin {
    /// Which.
    pub model: String,
    /// How many jobs.
    pub jobs: u64,
}

/// Reads a trace and sums it up.
///
/// # Errors
/// As [`trace::read`].
pub fn describe(path: &Path, format: Format) -> Result<Description, TraceError> {
    let mut gpus: BTreeMap<u32, u64> = BTreeMap::new();
    let mut models: BTreeMap<Box<str>, u64> = BTreeMap::new();
    let mut users: BTreeSet<Box<str>> = BTreeSet::new();
    let mut durations: Vec<f64> = Vec::new();
    let (mut first, mut last) = (f64::INFINITY, f64::NEG_INFINITY);
    let (mut gpu_seconds, mut deadlines) = (0.0, 0);
    let stats = trace::read(path, format, &mut |job| {
        *gpus.entry(job.gpus).or_default() += 1;
        if let Some(model) = job.model {
            *models.entry(model).or_default() += 1;
        }
        users.extend(job.user);
        durations.push(job.duration.get());
        gpu_seconds += job.duration.get() * f64::from(job.gpus);
        first = job.submit.seconds().min(first);
        last = job.submit.seconds().max(last);
        deadlines += u64::from(job.deadline.is_some());
    })?;
    durations.sort_by(f64::total_cmp);
    let span = (last - first).max(0.0);
    Ok(Description {
        schema: "wattline.trace/1",
        rows: stats.rows,
        jobs: stats.jobs,
        skipped: stats
            .skipped
            .iter()
            .map(|(reason, rows)| Skipped { reason: reason.to_string(), rows: *rows })
            .collect(),
        users: users.len(),
        span_s: span,
        gpu_hours: gpu_seconds / 3600.0,
        gpus_for_load_0_9: if span > 0.0 { (gpu_seconds / (0.9 * span)).ceil() as u64 } else { 0 },
        duration_mean_s: mean(&durations),
        duration_p50_s: percentile(&durations, 0.50),
        duration_p99_s: percentile(&durations, 0.99),
        deadlines,
        gpus: gpus.into_iter().map(|(gpus, jobs)| GpuBin { gpus, jobs }).collect(),
        models: models
            .into_iter()
            .map(|(model, jobs)| ModelBin { model: model.into(), jobs })
            .collect(),
    })
}
