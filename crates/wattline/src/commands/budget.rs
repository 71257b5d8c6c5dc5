//! `wattline budget`: the power budget of a controller.

mod forecast;

use crate::client::Server;
use crate::failure::{Failure, Result};
use crate::output::{self, harmless};
use anyhow::{Context, anyhow};
use hyper::Method;
use std::fs;
use std::path::PathBuf;
use wattline_api::{Budget, BudgetRequest};
use wattline_core::snapshot::Changing;
use wattline_core::units::Watts;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show the budget and what is drawn and committed of it
    Show(Args),
    /// Set a constant budget, or none
    Set(SetArgs),
    /// Show the budget over the week, or set it from a file
    Calendar(CalendarArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON (schema wattline.budget/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  wattline budget set \"6 kW\" --dry-run\n  wattline budget set \"6 kW\" --yes"
)]
pub(crate) struct SetArgs {
    /// A power with its unit, for example "20 kW"; or none
    power: String,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    then: Args,
}

/// Whether a budget is set, and what is said and asked before.
#[derive(Debug, clap::Args)]
struct How {
    /// Print what the budget would do to jobs and nodes, and change nothing (with --json: schema
    /// wattline.budget-forecast/1)
    #[arg(long)]
    dry_run: bool,
    /// Set it at once, without a forecast or a question
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CalendarArgs {
    /// A JSON file: {"value": 22000, "rules": [{"days": "mon-fri", "from": "09:00", "to": "18:00",
    /// "value": 16000}], "utc_offset": "+01:00"}, in watts
    file: Option<PathBuf>,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    then: Args,
}

pub(crate) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Show(args) => show(args),
        Command::Set(args) => {
            let calendar = match args.power.as_str() {
                "none" => None,
                text => {
                    let power: Watts = text.parse().map_err(Failure::input)?;
                    Some(Changing::constant(power.get()))
                }
            };
            set(&args.then, &args.how, calendar)
        }
        Command::Calendar(args) => match &args.file {
            None => calendar(&args.then),
            Some(file) => {
                let text = fs::read_to_string(file);
                let text = text.with_context(|| format!("cannot read {}", file.display()));
                let parsed = serde_json::from_str(&text.map_err(Failure::Input)?);
                let parsed = parsed.map_err(|error| anyhow!("{}: {error}", file.display()));
                set(&args.then, &args.how, Some(parsed.map_err(Failure::Input)?))
            }
        },
    }
}

fn set(args: &Args, how: &How, calendar: Option<Changing>) -> Result<()> {
    if how.dry_run {
        let forecast = forecast::ask(&args.server, calendar)?;
        return match args.json {
            true => output::json(&forecast),
            false => output::text(&forecast::in_words(&forecast)),
        };
    }
    // A budget that is taken away does nothing to anybody.
    if !how.yes && calendar.is_some() {
        forecast::before_setting(&args.server, calendar.clone())?;
    }
    let request = BudgetRequest { calendar, dry_run: false };
    let answer: BudgetRequest = args.server.ask(Method::PUT, "/v1/budget", Some(&request), None)?;
    if args.json {
        return output::json(&answer);
    }
    output::text(if answer.calendar.is_some() {
        "the budget was set; it holds from the next plan on"
    } else {
        "there is no budget any more"
    })
}

fn show(args: &Args) -> Result<()> {
    let budget: Budget = args.server.get("/v1/budget")?;
    if args.json {
        return output::json(&budget);
    }
    let kilowatts = |w: f64| format!("{:.2} kW", w / 1e3);
    output::text(&format!(
        "budget       {}\ncommitted    {}\ndrawn        {}\npeak         {}{}",
        budget.now_w.map_or_else(|| "none".to_owned(), kilowatts),
        kilowatts(budget.committed_w),
        budget.drawn_w.map_or_else(|| "not measured".to_owned(), kilowatts),
        kilowatts(budget.peak_w),
        args.server.troubles(),
    ))
}

fn calendar(args: &Args) -> Result<()> {
    let budget: Budget = args.server.get("/v1/budget")?;
    if args.json {
        return output::json(&budget);
    }
    let Some(calendar) = budget.calendar else {
        return output::text("there is no budget");
    };
    let row = |days: &str, from: &str, to: &str, watts: f64| {
        vec![harmless(days), harmless(from), harmless(to), format!("{:.2} kW", watts / 1e3)]
    };
    let mut rows = vec![row("otherwise", "", "", calendar.value)];
    rows.extend(calendar.rules.iter().map(|r| row(&r.days, &r.from, &r.to, r.value)));
    let offset = calendar.utc_offset;
    let table = output::table(&["days", "from", "to", "budget"], rows);
    output::text(&format!("{table}\ntimes are UTC {offset}"))
}
