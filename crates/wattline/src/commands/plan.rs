//! `wattline plan`: one plan for a cluster as a file describes it, with the reasons.

use crate::failure::{Failure, Result};
use crate::output;
use anyhow::{Context, anyhow};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use wattline_api::Planned;
use wattline_controller::planning::{PlanningError, PlanningLimits, plan};
use wattline_core::forecast::Horizon;
use wattline_core::snapshot::{SizeLimits, Snapshot};
use wattline_core::units::Seconds;

/// A complete view to start from.
const EXAMPLE: &str = include_str!("plan/example.json");

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The view, a JSON file (schema wattline.view/1); - reads standard input
    #[arg(long, value_name = "FILE.json", required_unless_present = "example")]
    view: Option<PathBuf>,
    /// The policy; `wattline policies` lists them and their options
    #[arg(long, default_value = "wattline")]
    policy: String,
    /// Do not run the engine forward to foresee ends and costs
    #[arg(long)]
    no_forecast: bool,
    /// Stop planning after this time
    #[arg(long, value_name = "TIME", default_value = "60 s", value_parser = time_limit)]
    time_limit: Duration,
    /// Print a small complete view to start from
    #[arg(long, conflicts_with_all = ["view", "json"])]
    example: bool,
    /// Print JSON (schema wattline.plan/1)
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.example {
        return output::text(EXAMPLE);
    }
    let Some(path) = &args.view else {
        return Err(Failure::input(anyhow!("--view names no file")));
    };
    // A policy that does not exist is said before a long file is read.
    wattline_policies::policy(&args.policy).map_err(Failure::input)?;
    let file = path.display().to_string();
    let snapshot = read(path, &file)?;
    let steps = (!args.no_forecast).then_some(Horizon::default().steps);
    let limits =
        PlanningLimits { size: SizeLimits::OWN, time: args.time_limit, steps, options: &[] };
    let planned = plan(&snapshot, &args.policy, &limits).map_err(|error| match error {
        PlanningError::Event(error) => Failure::Failed(error.into()),
        error @ PlanningError::TooLong(_) => {
            Failure::Failed(anyhow!("{file}: {error}; --time-limit sets another limit"))
        }
        error => Failure::Input(anyhow::Error::from(error).context(file)),
    })?;
    if args.json {
        return output::json(&planned);
    }
    output::text(&text(&planned))
}

/// From a tenth of a second to a day.
fn time_limit(text: &str) -> std::result::Result<Duration, String> {
    let time: Seconds = text.parse().map_err(|error| format!("{error}"))?;
    if !(0.1..=86_400.0).contains(&time.get()) {
        return Err(format!("{text} is not between 0.1 s and a day"));
    }
    Ok(Duration::from_secs_f64(time.get()))
}

/// A view is a few megabytes; reading one takes some ten times its size.
const MOST_BYTES: u64 = 256 << 20;

fn read(path: &Path, file: &str) -> Result<Snapshot> {
    let mut text = String::new();
    let source: Box<dyn Read> = if file == "-" {
        Box::new(io::stdin())
    } else {
        let opened = fs::File::open(path);
        Box::new(opened.with_context(|| format!("cannot read {file}")).map_err(Failure::Input)?)
    };
    source
        .take(MOST_BYTES)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read {file}"))
        .map_err(Failure::Input)?;
    let mut document = serde_json::Deserializer::from_str(&text);
    let snapshot = serde_path_to_error::deserialize(&mut document).map_err(|error| {
        let field = error.path().to_string();
        let inner = error.into_inner();
        // Its message names the line; the path names the field.
        if field == "." {
            Failure::input(anyhow!("{file}: {inner}"))
        } else {
            Failure::input(anyhow!("{file}: field `{field}`: {inner}"))
        }
    })?;
    document.end().map_err(|error| Failure::input(anyhow!("{file}: {error}")))?;
    Ok(snapshot)
}

fn text(planned: &Planned) -> String {
    let dash = || "–".to_owned();
    let header = ["job", "plan", "where", "batch", "limit", "ends in", "late", "EUR", "why"];
    let rows = planned
        .jobs
        .iter()
        .map(|row| {
            let place = row.runs.as_ref().map(|runs| {
                let on = runs.on.iter().map(|on| {
                    let gpus: Vec<String> = on.gpus.iter().map(u8::to_string).collect();
                    format!("{}:{}", output::harmless(&on.node), gpus.join("+"))
                });
                format!("{} {} on {}", runs.gpus, runs.gpu, on.collect::<Vec<_>>().join(" "))
            });
            let runs = row.runs.as_ref();
            let foreseen = row.forecast.as_ref();
            let ends = foreseen.and_then(|f| f.end_s).map(|end| end - planned.now_s);
            vec![
                output::harmless(&row.job),
                row.action.to_owned(),
                place.unwrap_or_else(dash),
                runs.map_or_else(dash, |r| r.batch.to_string()),
                runs.map_or_else(dash, |r| format!("{:.0} W", r.power_limit_w)),
                ends.map_or_else(dash, output::duration),
                foreseen.and_then(|f| f.tardiness_s).map_or_else(dash, output::duration),
                foreseen.map_or_else(dash, |f| format!("{:.2}", f.cost_eur)),
                output::harmless(&row.why),
            ]
        })
        .collect();
    let mut text = output::table(&header, rows) + "\n";
    let changed: Vec<Vec<String>> = planned
        .nodes
        .iter()
        .filter(|row| row.action != "stay")
        .map(|row| {
            vec![output::harmless(&row.node), row.action.to_owned(), output::harmless(&row.why)]
        })
        .collect();
    if !changed.is_empty() {
        text += &format!("\n{}\n", output::table(&["node", "plan", "why"], changed));
    }
    let kilowatts = |w: f64| format!("{:.2} kW", w / 1e3);
    text += &format!(
        "\ncommitted power: {} now, {} by the plan; budget {}\n",
        kilowatts(planned.committed_now_w),
        kilowatts(planned.committed_w),
        planned.budget_w.map_or_else(|| "none".to_owned(), kilowatts),
    );
    for alert in &planned.alerts {
        text += &format!("alert: {}\n", output::harmless(alert));
    }
    text +=
        if planned.accepted { "the checker lets it pass\n" } else { "the checker refuses it:\n" };
    for violation in &planned.violations {
        text += &format!("  {}\n", output::harmless(violation));
    }
    if planned.forecast_complete == Some(false) {
        text += "not all jobs end within what was foreseen\n";
    }
    text
}
