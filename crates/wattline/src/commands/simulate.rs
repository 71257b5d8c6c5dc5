//! `wattline simulate`: one policy, job by job.

use super::compare::{self, Comparison, How, InstanceSummary};
use crate::failure::{Failure, Result};
use crate::output;
use crate::source::{self, Source};
use anyhow::Context;
use serde::Serialize;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use wattline_core::units::Seconds;
use wattline_sim::instance::Instance;
use wattline_sim::metrics::Summary;
use wattline_sim::report;
use wattline_sim::simulation::{Outcome, Watch, snapshot_at};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// The policy; `wattline policies` lists them and their options
    #[arg(long, default_value = "wattline")]
    policy: String,
    /// Do not forecast each job's end and cost when it is submitted; forecasts run the engine
    /// forward once per submission, so their time grows with the length of the queue (with more
    /// than 2,000 jobs there are none; `compare --forecast` makes them all the same)
    #[arg(long)]
    no_forecast: bool,
    /// Do not run the policy a second time with the truth about each configuration, which is how
    /// the price of not knowing is found
    #[arg(long)]
    no_oracle: bool,
    /// Write what the scheduler knows so long after the beginning, for example "6 h", to the file
    /// of --view-out: `wattline plan` reads it
    #[arg(long, value_name = "TIME", requires = "view_out")]
    view_at: Option<Seconds>,
    /// Where to write the view
    #[arg(long, value_name = "FILE", requires = "view_at")]
    view_out: Option<PathBuf>,
    /// List every job and not only the first 40
    #[arg(long)]
    all: bool,
    /// Write report.html, results.json and jobs-POLICY.csv to this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON (schema wattline.simulate/1)
    #[arg(long)]
    json: bool,
}

/// Beyond this many jobs, forecasting each would be a surprise: `compare --forecast` does it.
const MOST_FORECASTS: usize = 2000;

/// What `--json` prints.
#[derive(Serialize)]
struct Simulation<'a> {
    schema: &'static str,
    instance: InstanceSummary,
    result: &'a Summary,
    jobs: Vec<report::JobRow>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let instance = args.source.instance()?;
    if let Some(out) = &args.out {
        prepare_folder(out)?;
    }
    if let (Some(at), Some(file)) = (args.view_at, &args.view_out) {
        write_view(&instance, &args.policy, at, file)?;
    }
    let policies = std::slice::from_ref(&args.policy);
    let how = How {
        record: args.out.is_some(),
        forecast: !args.no_forecast && instance.jobs.len() <= MOST_FORECASTS,
        with_oracle: !args.no_oracle,
        threads: None,
        announce: false,
    };
    let outcomes = compare::run_policies(&instance, policies, how)?;
    for note in &instance.notes {
        output::note(note);
    }
    compare::warn(&outcomes);
    let Some(outcome) = outcomes.first() else {
        return Ok(());
    };
    let rows = report::job_rows(&instance, outcome);
    if let Some(out) = &args.out {
        let comparison = Comparison {
            schema: "wattline.compare/1",
            instance: InstanceSummary::new(&instance),
            results: vec![&outcome.summary],
            lower_bound: None,
        };
        write_results(out, &instance, &outcomes, &comparison)?;
    }
    if args.json {
        return output::json(&Simulation {
            schema: "wattline.simulate/1",
            instance: InstanceSummary::new(&instance),
            result: &outcome.summary,
            jobs: rows,
        });
    }
    let shown = if args.all { rows.len() } else { rows.len().min(40) };
    let header = [
        "job",
        "workload",
        "GPUs",
        "waited",
        "ran",
        "JCT",
        "late",
        "restarts",
        "kWh",
        "EUR",
        "EUR forecast",
        "why",
    ];
    let table = rows[..shown]
        .iter()
        .map(|row| {
            let or_dash = |x: Option<f64>| x.map_or_else(|| "–".to_owned(), output::duration);
            vec![
                output::harmless(&row.job),
                output::harmless(&row.workload),
                row.gpus_requested.to_string(),
                or_dash(row.wait_s),
                or_dash(row.run_s),
                or_dash(row.jct_s),
                output::duration(row.tardiness_s),
                row.restarts.to_string(),
                format!("{:.2}", row.energy_kwh),
                format!("{:.2}", row.cost_eur),
                row.forecast_cost_eur.map_or_else(|| "–".to_owned(), |eur| format!("{eur:.2}")),
                row.reason.clone(),
            ]
        })
        .collect();
    let mut text = format!(
        "{}\n{}\n{}\n",
        source::describe(&instance),
        output::table(&header, table),
        compare::table(&outcomes)
    );
    if shown < rows.len() {
        text += &format!("{shown} of {} jobs shown; --all shows the others\n", rows.len());
    }
    output::text(&text)
}

/// Simulates up to a time and writes the view of that time.
fn write_view(instance: &Instance, policy: &str, at: Seconds, file: &Path) -> Result<()> {
    let watch = Watch { seconds: &|| 0.0, progress: &|_| {}, record: false, forecast: false };
    let view = snapshot_at(instance, policy, instance.start + at, &watch)
        .map_err(compare::bad_simulation)?;
    fs::write(file, serde_json::to_vec_pretty(&view)?)
        .with_context(|| format!("cannot write {}", file.display()))
        .map_err(Failure::Input)?;
    output::note(&format!("view: {}: {} jobs", file.display(), view.jobs.len()));
    Ok(())
}

/// Makes the folder before hours of simulation are spent.
pub(crate) fn prepare_folder(out: &Path) -> Result<()> {
    fs::create_dir_all(out)
        .with_context(|| format!("cannot create the folder {}", out.display()))
        .map_err(Failure::Input)
}

/// Writes the report, the figures and the job tables.
pub(crate) fn write_results(
    out: &Path,
    instance: &Instance,
    outcomes: &[Outcome],
    comparison: &Comparison<'_>,
) -> Result<()> {
    let write = |name: &str, bytes: &[u8]| {
        let path = out.join(name);
        fs::write(&path, bytes)
            .with_context(|| format!("cannot write {}", path.display()))
            .map_err(Failure::Failed)
    };
    let input = report::input(instance, outcomes, &source::describe(instance));
    write("report.html", report::render(&input).as_bytes())?;
    write("results.json", &serde_json::to_vec_pretty(comparison)?)?;
    for outcome in outcomes {
        let name = format!("jobs-{}.csv", outcome.summary.policy.replace(['/', '+', '='], "-"));
        let mut bytes = BufWriter::new(Vec::new());
        report::write_jobs(&report::job_rows(instance, outcome), &mut bytes)
            .map_err(|error| Failure::Failed(error.into()))?;
        bytes.flush()?;
        write(&name, bytes.get_ref())?;
    }
    output::note(&format!("report: {}", out.join("report.html").display()));
    Ok(())
}
