//! `wattline predict import`: measurements are checked and kept.

use super::store::{self, Counts};
use super::{UNKNOWN_LIMIT, default_limit, reading};
use crate::failure::{Failure, Result};
use crate::output;
use anyhow::{Context, anyhow};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use wattline_predict::reading::Refused;
use wattline_world::measured::{COLUMNS, Line, MeasuredError, Row, read_lines};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Measurements: workload,gpu,nodes,gpus,global_batch,power_limit_w,samples,seconds,power_w
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The file that keeps them [default: $XDG_DATA_HOME/wattline/measurements.csv, or
    /// ~/.local/share/wattline/measurements.csv]
    #[arg(long, value_name = "STORE")]
    into: Option<PathBuf>,
    /// Leave out bad rows and keep the good ones; without it one bad row stops everything
    #[arg(long)]
    skip_bad: bool,
    /// Say what would be done, change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON (schema wattline.predict.import/1)
    #[arg(long)]
    json: bool,
}

/// Bad rows that are listed; the others are counted.
const MOST_LISTED: usize = 20;
/// The longest name of a workload or a GPU type.
const LONGEST_NAME: usize = 200;

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    store: String,
    dry_run: bool,
    added: usize,
    known: usize,
    refused: usize,
    groups: Vec<GroupReport>,
    /// The first of them.
    bad_rows: Vec<BadRow>,
}

#[derive(Serialize)]
struct GroupReport {
    workload: String,
    gpu: String,
    #[serde(flatten)]
    prediction_errors: PredictionErrors,
}

#[derive(Clone, Copy, Default, Serialize)]
struct PredictionErrors {
    added: usize,
    known: usize,
    refused: usize,
}

#[derive(Serialize)]
struct BadRow {
    file: String,
    line: u64,
    field: Option<String>,
    reason: String,
    #[serde(skip)]
    names: Names,
}

/// Workload and GPU type; a question mark where a bad row does not tell.
type Names = (Box<str>, Box<str>);

pub(super) fn run(args: &Args) -> Result<()> {
    let mut bad: Vec<BadRow> = Vec::new();
    // Per file, because a row that two files have is one measurement, as it is in two imports.
    let mut files: Vec<BTreeMap<String, (Names, usize)>> = Vec::with_capacity(args.files.len());
    for path in &args.files {
        let mut rows: BTreeMap<String, (Names, usize)> = BTreeMap::new();
        for row in good_rows(path, &mut bad)? {
            let names = (row.workload.clone(), row.gpu.clone());
            rows.entry(store::line(&row)?).or_insert((names, 0)).1 += 1;
        }
        files.push(rows);
    }
    if !bad.is_empty() && !args.skip_bad {
        return Err(refusal(&bad));
    }
    if files.iter().all(BTreeMap::is_empty) {
        return Err(Failure::input(anyhow!("no row can be used:\n{}", listed(&bad))));
    }
    let path = args.into.clone().map_or_else(store::default_path, Ok)?;
    let (added, tallies) = if args.dry_run {
        merge(store::read(&path)?.counts, &files)
    } else {
        let lock = store::lock(&path)?;
        let old = store::read(&path)?;
        let (added, tallies) = merge(old.counts.clone(), &files);
        if !added.is_empty() {
            store::append(&path, &old, &added, &lock)?;
        }
        (added, tallies)
    };
    let report = report(&path, args.dry_run, added.len(), tallies, bad);
    if args.json {
        return output::json(&report);
    }
    if report.refused > 0 {
        output::note(&format!("left out:\n{}", listed(&report.bad_rows)));
        if report.refused > report.bad_rows.len() {
            output::note(&format!("… and {} more", report.refused - report.bad_rows.len()));
        }
    }
    output::text(&text(&report))
}

/// The rows of a file that can be believed; the others go to the list.
fn good_rows(path: &Path, bad: &mut Vec<BadRow>) -> Result<Vec<Row>> {
    let file = path.display().to_string();
    let input = File::open(path)
        .with_context(|| format!("cannot open {file}; check the path and its permissions"))
        .map_err(Failure::Input)?;
    let (headers, lines) = read_lines(input, &file).map_err(Failure::input)?;
    // A column that is not there is not the same as one without values: it may be misspelt.
    let missing: Vec<&str> =
        COLUMNS.into_iter().filter(|column| !headers.iter().any(|h| h == *column)).collect();
    if !missing.is_empty() {
        return Err(Failure::input(anyhow!(
            "{file}, line 1: no column {}; the columns are {}",
            missing.join(", "),
            COLUMNS.join(",")
        )));
    }
    if lines.is_empty() {
        return Err(Failure::input(anyhow!("{file}: no measurements in it")));
    }
    let mut good = Vec::with_capacity(lines.len());
    for line in lines {
        match check(line, &file) {
            Ok(row) => good.push(row),
            Err(row) => bad.push(row),
        }
    }
    Ok(good)
}

fn check(line: Line, file: &str) -> std::result::Result<Row, BadRow> {
    let number = line.number;
    let unknown = || ("?".into(), "?".into());
    let names = line.names.filter(|(w, g)| good_name(w).is_ok() && good_name(g).is_ok());
    let names = names.unwrap_or_else(unknown);
    let bad = |field: Option<&str>, reason: String| BadRow {
        file: file.to_owned(),
        line: number,
        field: field.map(str::to_owned),
        reason,
        names: names.clone(),
    };
    let row = line.row.map_err(|error| match error {
        MeasuredError::Field { field, message, .. } => bad(Some(&field), message),
        MeasuredError::Value { field, value, .. } => {
            bad(Some(field), format!("is {value}, it must be finite and positive"))
        }
        MeasuredError::Row { message, .. } => bad(None, message),
        other => bad(None, format!("{:#}", anyhow::Error::new(other))),
    })?;
    for (field, name) in [("workload", &row.workload), ("gpu", &row.gpu)] {
        good_name(name).map_err(|reason| bad(Some(field), reason.to_owned()))?;
    }
    // The limit of a card that is not in the catalogue is checked where it is given.
    let limit = default_limit(&row.gpu).unwrap_or(UNKNOWN_LIMIT);
    match reading(&row, limit).check() {
        Ok(()) => Ok(row),
        Err(refused) => Err(bad(Some(column(&refused)), refused.to_string())),
    }
}

fn good_name(name: &str) -> std::result::Result<(), &'static str> {
    match name {
        "" => Err("is empty, a name is needed"),
        name if name.len() > LONGEST_NAME => Err("is longer than 200 bytes"),
        name if name.chars().any(char::is_control) => Err("has control characters in it"),
        _ => Ok(()),
    }
}

/// The column that a refusal is about.
fn column(refused: &Refused) -> &'static str {
    match refused {
        Refused::Shape { .. } => "gpus, nodes",
        Refused::UnknownGpu => "gpu",
        Refused::Value { what: "the batch", .. } => "global_batch",
        Refused::Value { what: "the power limit in watts", .. } => "power_limit_w",
        Refused::Value { what: "the power in watts", .. } => "power_w",
        Refused::Value { .. } => "seconds, samples",
    }
}

fn listed(bad: &[BadRow]) -> String {
    let lines: Vec<String> = bad
        .iter()
        .take(MOST_LISTED)
        .map(|b| {
            let field = b.field.as_ref().map_or_else(String::new, |f| format!(" {f}:"));
            output::harmless(&format!("{}, line {}:{field} {}", b.file, b.line, b.reason))
        })
        .map(|line| format!("  {line}"))
        .collect();
    lines.join("\n")
}

fn refusal(bad: &[BadRow]) -> Failure {
    let more = bad.len().saturating_sub(MOST_LISTED);
    let more = if more > 0 { format!("\n  … and {more} more") } else { String::new() };
    let rows = if bad.len() == 1 { "1 bad row" } else { &format!("{} bad rows", bad.len()) };
    Failure::input(anyhow!(
        "{rows}, nothing was imported:\n{}{more}\ncorrect them, or keep the good rows with --skip-bad",
        listed(bad)
    ))
}

/// Lines to add so that the store has each row as often as the file that has it most often.
fn merge(
    mut have: Counts,
    files: &[BTreeMap<String, (Names, usize)>],
) -> (Vec<String>, BTreeMap<Names, PredictionErrors>) {
    let mut added = Vec::new();
    let mut tallies: BTreeMap<Names, PredictionErrors> = BTreeMap::new();
    for file in files {
        for (line, (names, count)) in file {
            let there = have.entry(line.clone()).or_default();
            let new = count.saturating_sub(*there);
            added.extend(std::iter::repeat_n(line.clone(), new));
            *there += new;
            let prediction_errors = tallies.entry(names.clone()).or_default();
            prediction_errors.added += new;
            prediction_errors.known += count - new;
        }
    }
    (added, tallies)
}

fn report(
    path: &Path,
    dry_run: bool,
    added: usize,
    mut tallies: BTreeMap<Names, PredictionErrors>,
    mut bad: Vec<BadRow>,
) -> Report {
    for row in &bad {
        tallies.entry(row.names.clone()).or_default().refused += 1;
    }
    let refused = bad.len();
    bad.truncate(MOST_LISTED);
    Report {
        schema: "wattline.predict.import/1",
        store: path.display().to_string(),
        dry_run,
        added,
        known: tallies.values().map(|t| t.known).sum(),
        refused,
        groups: tallies
            .into_iter()
            .map(|((workload, gpu), prediction_errors)| GroupReport {
                workload: workload.into(),
                gpu: gpu.into(),
                prediction_errors,
            })
            .collect(),
        bad_rows: bad,
    }
}

fn text(report: &Report) -> String {
    let mut rows: Vec<Vec<String>> = report
        .groups
        .iter()
        .map(|g| {
            let PredictionErrors { added, known, refused } = g.prediction_errors;
            let name = output::harmless(&format!("{} on {}", g.workload, g.gpu));
            vec![name, added.to_string(), known.to_string(), refused.to_string()]
        })
        .collect();
    let counts = [report.added, report.known, report.refused].map(|n| n.to_string());
    rows.push([vec!["all".to_owned()], counts.to_vec()].concat());
    let done = match (report.dry_run, report.added) {
        (true, _) => "nothing was changed (--dry-run)",
        (false, 0) => "nothing to add",
        (false, _) => "added",
    };
    format!(
        "{}\n{}: {done}\n",
        output::table(&["workload", "added", "known", "refused"], rows),
        report.store
    )
}
