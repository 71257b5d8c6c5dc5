//! `wattline advise`: what the policy would do now, and what it would have saved.
//!
//! What it would do now a controller says. What it would have saved is found out here, from the
//! controller's journal, so that nobody who runs a cluster waits for it.

use super::replay::{self, Replay};
use crate::client::Server;
use crate::failure::{Failure, Result};
use crate::output::{self, duration, harmless};
use crate::{recorded, site};
use anyhow::anyhow;
use serde::Serialize;
use std::path::PathBuf;
use wattline_api::{Advice, AdvisedJob, Placement};
use wattline_core::units::Seconds;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How far to look back
    #[arg(long, value_name = "TIME", default_value = "7 d")]
    since: Seconds,
    /// Policies to look back with, separated by commas [default: the controller's]
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
    /// The site's file
    #[arg(long, value_name = "FILE", default_value = site::USUAL)]
    site: PathBuf,
    /// The controller's journal
    #[arg(long, value_name = "FILE", default_value = site::USUAL_JOURNAL)]
    journal: PathBuf,
    /// Only what it would do now
    #[arg(long)]
    now: bool,
    /// Print JSON (schema wattline.advise/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Advised {
    schema: &'static str,
    /// What the policy would do now; none if no controller says so.
    now: Option<Advice>,
    /// What it would have done; none if that was not asked for or cannot be found out.
    past: Option<Replay>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let now: Result<Advice> = args.server.get("/v1/advice");
    let now = match now {
        Ok(advice) => Some(advice),
        Err(failure) if args.now => return Err(failure),
        Err(failure) => {
            say("what it would do now is not known", failure)?;
            None
        }
    };
    let past = if args.now { None } else { look_back(args, now.as_ref())? };
    if now.is_none() && past.is_none() {
        return Err(Failure::Failed(anyhow!("neither a controller nor a journal says anything")));
    }
    if args.json {
        return output::json(&Advised { schema: "wattline.advise/1", now, past });
    }
    let now = now.as_ref().map(text);
    let past = past.as_ref().map(Replay::text);
    let all: Vec<String> = now.into_iter().chain(past).collect();
    output::text(&all.join("\n\n"))
}

/// What it would have saved. That there is nothing to look at yet is no failure.
fn look_back(args: &Args, now: Option<&Advice>) -> Result<Option<Replay>> {
    let mut policies = args.policy.clone();
    if policies.is_empty() {
        policies.extend(now.map(|advice| advice.policy.clone()));
    }
    let recorded = site::read(&args.site)
        .and_then(|live| recorded::of_site(&args.journal, &live, Some(args.since)));
    match recorded.and_then(|recorded| replay::replay(recorded, &policies)) {
        Ok(replay) => Ok(Some(replay)),
        Err(failure) => {
            say("what it would have saved is not known", failure)?;
            Ok(None)
        }
    }
}

/// One half missing is no reason to say nothing of the other.
fn say(what: &str, failure: Failure) -> Result<()> {
    match failure {
        Failure::Input(error) | Failure::Failed(error) => {
            output::note(&format!("{what}: {error:#}"))
        }
        Failure::NobodyReads => return Err(Failure::NobodyReads),
    }
    Ok(())
}

fn text(advice: &Advice) -> String {
    let kw = |watts: f64| format!("{:.1} kW", watts / 1e3);
    let mut text = format!(
        "{}: {}\n{} stay as they run, {} go on waiting; {} could be drawn at worst instead of {}{}\n",
        if advice.decides { "now" } else { "now, if it decided" },
        harmless(&advice.text),
        advice.staying,
        advice.waiting,
        kw(advice.committed_w),
        kw(advice.committed_now_w),
        advice.budget_w.map_or_else(String::new, |budget| format!(", {} are allowed", kw(budget))),
    );
    if !advice.jobs.is_empty() {
        let header = ["job", "name", "user", "would", "holds", "gets", "done in", "kWh", "why"];
        let rows = advice.jobs.iter().map(|job| row(job, advice.now_s)).collect();
        text += &format!("{}\n", output::left_table(&header, rows));
    }
    if !advice.nodes.is_empty() {
        let header = ["node", "would", "why"];
        let row = |node: &wattline_api::PlannedNode| {
            [&node.node, &node.action, &node.why].map(|word| harmless(word)).to_vec()
        };
        text +=
            &format!("{}\n", output::left_table(&header, advice.nodes.iter().map(row).collect()));
    }
    text + &harmless(&advice.outlook)
}

fn row(job: &AdvisedJob, now: f64) -> Vec<String> {
    let dash = || "–".to_owned();
    let place = |placement: &Option<Placement>| {
        placement.as_ref().map_or_else(dash, |p| {
            let on: Vec<String> = p.on.iter().map(|on| harmless(&on.node)).collect();
            format!("{} on {}, {:.0} W", p.gpus, on.join(" "), p.power_limit_w)
        })
    };
    let end = job.forecast.as_ref().and_then(|seen| seen.end_s);
    let energy = end.and(job.forecast.as_ref()).map(|seen| seen.energy_kwh);
    vec![
        harmless(&job.number),
        harmless(&job.name),
        harmless(&job.user),
        harmless(&job.action),
        place(&job.holds),
        place(&job.runs),
        end.map_or_else(dash, |end| duration(end - now)),
        energy.map_or_else(dash, |kwh| format!("{kwh:.2}")),
        harmless(&job.why),
    ]
}
