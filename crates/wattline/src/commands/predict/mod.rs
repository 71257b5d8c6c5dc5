//! `wattline predict`: time and power from measurements.

mod epochs;
mod evaluate;
mod evaluate_text;
mod import;
mod learn;
mod plan;
mod show;
mod show_text;
mod store;

use crate::failure::{Failure, Result};
use anyhow::Context;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use wattline_core::cluster::GpuType;
use wattline_core::units::{Seconds, Watts};
use wattline_predict::evaluate::card_of_readings;
use wattline_predict::reading::{Point, Reading};
use wattline_world::catalogue::Catalogue;
use wattline_world::measured::{Row, read_rows};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Fit a few measurements of each workload and GPU type, predict the others, report the errors
    Evaluate(evaluate::Args),
    /// Say how well epochs to a target can be predicted for other batches
    EvaluateEpochs(epochs::Args),
    /// Check measurements and add them to those that are kept
    Import(import::Args),
    /// Show what is expected of a workload in every measured shape, batch and power limit, and which
    /// are the fastest and the most frugal; say what to measure next
    Show(show::Args),
    /// Simulate a cluster that learns from nothing and report how its predictions and forecasts
    /// come out
    Learn(learn::Args),
}

pub(crate) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Evaluate(args) => evaluate::run(args),
        Command::EvaluateEpochs(args) => epochs::run(args),
        Command::Import(args) => import::run(args),
        Command::Show(args) => show::run(args),
        Command::Learn(args) => learn::run(args),
    }
}

/// A workload's name, a GPU type's name, and what was measured of the one on the other.
pub(crate) type Group = ((Box<str>, Box<str>), Vec<Reading>);

/// Readings by workload and GPU type, in the order of the names.
pub(crate) fn read_groups(path: &Path) -> Result<Vec<Group>> {
    let file = path.display().to_string();
    let input = File::open(path)
        .with_context(|| format!("cannot open {file}; check the path and its permissions"))
        .map_err(Failure::Input)?;
    let rows = read_rows(input, &file).map_err(Failure::input)?;
    let mut by_name: BTreeMap<(Box<str>, Box<str>), Vec<Row>> = BTreeMap::new();
    for row in rows {
        by_name.entry((row.workload.clone(), row.gpu.clone())).or_default().push(row);
    }
    let mut groups = Vec::with_capacity(by_name.len());
    for (name, rows) in by_name {
        // An empty limit is the card's default: the catalogue's, else the highest in the file.
        let highest = rows.iter().filter_map(|row| row.power_limit_w).fold(0.0, f64::max);
        let other = if highest > 0.0 { highest } else { UNKNOWN_LIMIT };
        let default = default_limit(&name.1).unwrap_or(other);
        let mut readings = Vec::with_capacity(rows.len());
        for row in rows {
            let reading = reading(&row, default);
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

/// Watts of a card that nobody knows.
const UNKNOWN_LIMIT: f64 = 300.0;

/// The catalogue's default limit of a GPU type, in watts.
fn default_limit(gpu: &str) -> Option<f64> {
    Catalogue::built_in().gpu(gpu).map(|gpu| gpu.gpu_type().default_limit.get())
}

/// The catalogue's card of that name; else what readings tell of it.
fn card_of(gpu: &str, readings: &[&[Reading]]) -> Option<GpuType> {
    let known = Catalogue::built_in().gpu(gpu).map(|gpu| gpu.gpu_type());
    known.or_else(|| card_of_readings(readings))
}

/// A row as the predictor sees it.
fn reading(row: &Row, default_limit: f64) -> Reading {
    Reading {
        point: Point {
            gpus: row.gpus,
            nodes: row.nodes,
            batch: row.global_batch,
            limit: Watts::new(row.power_limit_w.unwrap_or(default_limit)),
        },
        per_sample: Seconds::new(row.seconds / row.samples),
        power: row.power_w.map(Watts::new),
    }
}
