//! `wattline predict evaluate-epochs`: how well the cost of another batch is predicted.

use crate::failure::{Failure, Result};
use crate::output;
use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use wattline_predict::efficiency::evaluate;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Epochs that training took to a target:
    /// dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch; an empty
    /// epoch means that the target was not reached
    #[arg(long, value_name = "FILE")]
    epochs: PathBuf,
    /// Print JSON (schema wattline.predict.epochs/1)
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
struct Row {
    dataset: String,
    network: String,
    batch_size: u32,
    optimizer: String,
    learning_rate: String,
    target_metric: f64,
    target_epoch: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    workloads: Vec<Workload>,
    mean_mape: f64,
    mean_constant_mape: f64,
    median_mape: f64,
    median_constant_mape: f64,
}

#[derive(Serialize)]
struct Workload {
    workload: String,
    target_metric: f64,
    noise_scale: f64,
    noise_scale_low: f64,
    noise_scale_high: f64,
    fitted_batches: [f64; 3],
    mape: f64,
    constant_mape: f64,
    held_out: Vec<HeldOut>,
}

#[derive(Serialize)]
struct HeldOut {
    batch: f64,
    predicted_epochs: f64,
    measured_epochs: f64,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut workloads = Vec::new();
    for (name, targets) in read(&args.epochs)? {
        let Some((target_metric, pairs)) = hardest(&targets) else { continue };
        let Some(e) = evaluate(&pairs) else { continue };
        workloads.push(Workload {
            workload: name,
            target_metric,
            noise_scale: e.noise_scale.scale,
            noise_scale_low: e.noise_scale.low,
            noise_scale_high: e.noise_scale.high,
            fitted_batches: e.fitted,
            mape: e.mape,
            constant_mape: e.constant_mape,
            held_out: e
                .held_out
                .into_iter()
                .map(|(batch, predicted_epochs, measured_epochs)| HeldOut {
                    batch,
                    predicted_epochs,
                    measured_epochs,
                })
                .collect(),
        });
    }
    if workloads.is_empty() {
        return Err(Failure::input(anyhow!(
            "{}: no workload reached a target at four batches, nothing can be held out",
            args.epochs.display()
        )));
    }
    let mean = |pick: fn(&Workload) -> f64| {
        workloads.iter().map(pick).sum::<f64>() / workloads.len() as f64
    };
    let median = |pick: fn(&Workload) -> f64| {
        let mut sorted: Vec<f64> = workloads.iter().map(pick).collect();
        sorted.sort_by(f64::total_cmp);
        f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
    };
    let report = Report {
        schema: "wattline.predict.epochs/1",
        median_mape: median(|w| w.mape),
        median_constant_mape: median(|w| w.constant_mape),
        mean_mape: mean(|w| w.mape),
        mean_constant_mape: mean(|w| w.constant_mape),
        workloads,
    };
    if args.json { output::json(&report) } else { output::text(&text(&report)) }
}

/// Epochs of runs by learning rate; infinite where the target was not reached.
type Runs = BTreeMap<(String, String), Vec<f64>>;
/// By workload, by target (as bits: only equality matters), by batch.
type Targets = BTreeMap<u64, BTreeMap<u32, Runs>>;

fn read(path: &Path) -> Result<BTreeMap<String, Targets>> {
    let file = path.display();
    let input = File::open(path)
        .with_context(|| format!("cannot open {file}; check the path and its permissions"))
        .map_err(Failure::Input)?;
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(input);
    let headers = reader.headers().cloned().map_err(|e| bad_row(path, &e, None))?;
    let mut all: BTreeMap<String, Targets> = BTreeMap::new();
    for row in reader.deserialize::<Row>() {
        let row = row.map_err(|error| bad_row(path, &error, Some(&headers)))?;
        // Tables written by programs say `nan` where the target was not reached.
        let reached = row.target_epoch.filter(|epoch| !epoch.is_nan());
        let bad = reached.is_some_and(|epoch| epoch.is_infinite() || epoch <= 0.0);
        if bad || row.batch_size == 0 || !row.target_metric.is_finite() {
            return Err(Failure::input(anyhow!(
                "{file}: batch {} with target {} at epoch {}: all must be finite, batch and epoch \
                 positive",
                row.batch_size,
                row.target_metric,
                reached.unwrap_or(f64::NAN)
            )));
        }
        all.entry(format!("{}-{}", row.network, row.dataset))
            .or_default()
            .entry(row.target_metric.to_bits())
            .or_default()
            .entry(row.batch_size)
            .or_default()
            .entry((row.optimizer, row.learning_rate))
            .or_default()
            .push(reached.unwrap_or(f64::INFINITY));
    }
    Ok(all)
}

/// Says which field of which line is wrong.
fn bad_row(path: &Path, error: &csv::Error, headers: Option<&csv::StringRecord>) -> Failure {
    let file = path.display();
    let line = error.position().map_or(1, csv::Position::line);
    let (field, reason) = match error.kind() {
        csv::ErrorKind::Deserialize { err, .. } => {
            let name = headers.zip(err.field()).and_then(|(h, at)| h.get(at as usize));
            (name.map_or_else(String::new, |name| format!(" {name}:")), err.kind().to_string())
        }
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            (String::new(), format!("has {len} fields, expected {expected_len}"))
        }
        _ => (String::new(), "is no text that can be read".to_owned()),
    };
    Failure::input(anyhow!(
        "{file}, line {line}:{field} {}; the columns are dataset,network,batch_size,optimizer,\
         learning_rate,run,target_metric,target_epoch",
        output::harmless(&reason)
    ))
}

/// The target that takes longest among those that most runs reach at the most batches, and the
/// epochs to it at each: the median over runs, at the best learning rate.
fn hardest(targets: &Targets) -> Option<(f64, Vec<(f64, f64)>)> {
    targets
        .iter()
        .map(|(target, batches)| {
            let pairs: Vec<(f64, f64)> = batches
                .iter()
                .filter_map(|(batch, runs)| Some((f64::from(*batch), best(runs)?)))
                .collect();
            (f64::from_bits(*target), pairs)
        })
        .max_by(|(_, a), (_, b)| {
            let epochs = |pairs: &[(f64, f64)]| pairs.iter().map(|(_, e)| e).sum::<f64>();
            a.len().cmp(&b.len()).then(epochs(a).total_cmp(&epochs(b)))
        })
}

/// `None` where fewer than half of the runs reach the target at any learning rate.
fn best(runs: &Runs) -> Option<f64> {
    let median = |epochs: &Vec<f64>| {
        let mut sorted = epochs.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() - 1) / 2]
    };
    let least = runs.values().map(median).fold(f64::INFINITY, f64::min);
    least.is_finite().then_some(least)
}

fn text(report: &Report) -> String {
    let percent = |x: f64| format!("{:.1} %", x * 100.0);
    let mut rows: Vec<Vec<String>> = report
        .workloads
        .iter()
        .map(|w| {
            vec![
                output::harmless(&w.workload),
                w.target_metric.to_string(),
                w.fitted_batches.map(|b| b.to_string()).join(", "),
                w.held_out.len().to_string(),
                format!("{:.0}", w.noise_scale),
                format!("{:.0} to {:.0}", w.noise_scale_low, w.noise_scale_high),
                percent(w.mape),
                percent(w.constant_mape),
            ]
        })
        .collect();
    let whole = |label: &str, ours: f64, constant: f64| {
        let mut row = vec![label.to_owned()];
        row.extend(vec![String::new(); 5]);
        row.extend([percent(ours), percent(constant)]);
        row
    };
    rows.push(whole("median", report.median_mape, report.median_constant_mape));
    rows.push(whole("mean", report.mean_mape, report.mean_constant_mape));
    let header = [
        "workload",
        "target",
        "fitted batches",
        "held out",
        "noise scale",
        "90 % between",
        "epochs",
        "epochs, constant",
    ];
    output::table(&header, rows)
}
