//! `wattline job`: one job of a controller.

use crate::client::{Server, job_number};
use crate::commands::queue::when;
use crate::failure::Result;
use crate::output::{self, harmless};
use hyper::Method;
use wattline_api::{Accepted, JobRow, UpdateRequest};
use wattline_core::units::{EurosPerSecond, Seconds};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show all that is known about a job
    Show(Args),
    /// Cancel a job. A running job checkpoints first, then frees its GPUs
    Cancel(Args),
    /// Let a job wait until it is released
    Hold(Args),
    /// Let a job go on
    Release(Args),
    /// Give a job another deadline or weight
    Update(UpdateArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Its number
    job: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UpdateArgs {
    #[command(flatten)]
    which: Args,
    /// When it should be done, from now on, with its unit
    #[arg(long, conflicts_with = "no_deadline")]
    deadline: Option<Seconds>,
    /// It has no deadline any more
    #[arg(long)]
    no_deadline: bool,
    /// What being late costs, for example "2 EUR/h"
    #[arg(long)]
    weight: Option<EurosPerSecond>,
}

pub(crate) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Show(args) => show(args),
        Command::Cancel(args) => change(args, Method::DELETE, ""),
        Command::Hold(args) => change(args, Method::POST, "/hold"),
        Command::Release(args) => change(args, Method::POST, "/release"),
        Command::Update(args) => update(args),
    }
}

fn change(args: &Args, method: Method, then: &str) -> Result<()> {
    let path = format!("/v1/jobs/{}{then}", job_number(&args.job)?);
    let accepted: Accepted = args.server.ask(method, &path, None::<&()>, None)?;
    say(args, &accepted)
}

fn update(args: &UpdateArgs) -> Result<()> {
    let request = UpdateRequest {
        deadline_s: None,
        deadline_in_s: args.deadline.map(Seconds::get),
        no_deadline: args.no_deadline,
        weight_eur_per_h: args.weight.map(|weight| weight.get() * 3600.0),
    };
    let path = format!("/v1/jobs/{}", job_number(&args.which.job)?);
    let accepted: Accepted = args.which.server.ask(Method::PATCH, &path, Some(&request), None)?;
    say(&args.which, &accepted)
}

fn say(args: &Args, accepted: &Accepted) -> Result<()> {
    if args.json {
        return output::json(accepted);
    }
    let (number, what) = (harmless(&accepted.number), harmless(&accepted.what));
    output::text(&format!("job {number}: {what}"))
}

fn show(args: &Args) -> Result<()> {
    let path = format!("/v1/jobs/{}", job_number(&args.job)?);
    let job: JobRow = args.server.get(&path)?;
    if args.json {
        return output::json(&job);
    }
    let status: wattline_api::Status = args.server.get("/v1/status")?;
    output::text(&text(&job, status.now_s))
}

/// All that is known about a job.
pub(crate) fn text(job: &JobRow, now: f64) -> String {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
    let nodes: Vec<String> = job.nodes.iter().map(|node| harmless(node)).collect();
    let [least, most] = job.gpus_bounds;
    let lines = [
        ("job", format!("{} ({})", harmless(&job.number), harmless(&job.name))),
        ("user", harmless(&job.user)),
        ("workload", harmless(&job.workload)),
        ("state", harmless(&job.state)),
        ("why", harmless(&job.why)),
        (
            "GPUs",
            format!(
                "{} held, {} asked for, {least} to {most} allowed ({})",
                job.gpus_held,
                job.gpus_asked,
                harmless(&job.elasticity)
            ),
        ),
        ("nodes", if nodes.is_empty() { "–".to_owned() } else { nodes.join(" ") }),
        ("power limit", or_dash(job.power_limit_w.map(|w| format!("{w:.0} W per GPU")))),
        ("done", format!("{:.1} %", job.progress * 100.0)),
        ("submitted", when(Some(job.submitted_s), now)),
        ("start", when(job.start_s, now)),
        ("finish", when(job.finish_s, now)),
        ("deadline", when(job.deadline_s, now)),
        ("weight", format!("{:.2} EUR/h", job.weight_eur_per_h)),
        ("energy", or_dash(job.energy_kwh.map(|energy| format!("{energy:.2} kWh")))),
        ("cost", or_dash(job.cost_eur.map(|cost| format!("{cost:.2} EUR")))),
        ("risk", output::percent(job.risk)),
        ("restarts", job.restarts.to_string()),
    ];
    let lines = lines.map(|(name, value)| format!("{name:<12} {value}"));
    lines.join("\n")
}
