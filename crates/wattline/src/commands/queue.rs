//! `wattline queue`: the jobs of a controller, with what is foreseen for them.

use crate::client::{Server, encoded};
use crate::failure::Result;
use crate::output::{self, duration, harmless};
use std::io::{self, IsTerminal};
use std::thread::sleep;
use std::time::Duration;
use wattline_api::{JobPage, JobQuery, JobRow, MOST_IN_A_PAGE};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Jobs that are over, too
    #[arg(long, conflicts_with = "state")]
    all: bool,
    /// Only jobs in this state: waiting, starting, running, stopping, on_hold, backing_off,
    /// finished or cancelled
    #[arg(long)]
    state: Option<String>,
    /// Only this user's jobs
    #[arg(long)]
    user: Option<String>,
    /// No more than this many
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Show it again every 2 seconds until it is interrupted
    #[arg(long)]
    watch: bool,
    /// Print JSON (schema wattline.queue/1); with --watch one object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

/// How often --watch looks.
const EVERY: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &Args) -> Result<()> {
    loop {
        let page = fetch(args)?;
        match (args.json, args.watch) {
            (true, true) => output::text(&serde_json::to_string(&page)?)?,
            (true, false) => output::json(&page)?,
            (false, watch) => {
                // A terminal is cleared, a file is not.
                let clear = watch && io::stdout().is_terminal();
                let before = if clear { "\x1b[2J\x1b[H" } else { "" };
                let troubles = args.server.troubles();
                output::text(&format!("{before}{}{troubles}", table(&page)))?;
            }
        }
        if !args.watch {
            return Ok(());
        }
        sleep(EVERY);
    }
}

/// As many pages as it takes.
fn fetch(args: &Args) -> Result<JobPage> {
    let state = if args.all { Some("all".to_owned()) } else { args.state.clone() };
    let mut query = JobQuery { state, user: args.user.clone(), after: None, limit: None };
    let mut all: Option<JobPage> = None;
    loop {
        let have = all.as_ref().map_or(0, |page| page.jobs.len() as u32);
        query.limit = Some((args.limit - have).min(MOST_IN_A_PAGE));
        let page: JobPage = args.server.get(&format!("/v1/jobs?{}", written(&query)))?;
        query.after = page.next;
        let all = match &mut all {
            None => all.insert(page),
            Some(all) => {
                all.jobs.extend(page.jobs);
                all.next = page.next;
                all
            }
        };
        if all.next.is_none() || all.jobs.len() as u32 >= args.limit {
            return Ok(all.clone());
        }
    }
}

fn written(query: &JobQuery) -> String {
    let mut parts = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            parts.push(format!("{name}={}", encoded(&value)));
        }
    };
    add("state", query.state.clone());
    add("user", query.user.clone());
    add("after", query.after.map(|after| after.to_string()));
    add("limit", query.limit.map(|limit| limit.to_string()));
    parts.join("&")
}

/// A time as seen from now.
pub(crate) fn when(time: Option<f64>, now: f64) -> String {
    match time {
        None => "–".to_owned(),
        Some(time) if time >= now => format!("in {}", duration(time - now)),
        Some(time) => format!("{} ago", duration(now - time)),
    }
}

fn table(page: &JobPage) -> String {
    let header = [
        "id", "name", "user", "state", "gpus", "start", "finish", "deadline", "kWh", "EUR", "risk",
        "why",
    ];
    let far = page.outlook.as_ref().map(|outlook| outlook.until_s);
    let rows = page.jobs.iter().map(|job| row(job, page.now_s, far)).collect();
    let mut text = output::table(&header, rows);
    if page.jobs.is_empty() {
        text += "\nno jobs";
    }
    // What is missing above is said here.
    if let Some(outlook) = page.outlook.as_ref().filter(|_| !page.jobs.is_empty()) {
        text += &format!(
            "\nforeseen {}: {}",
            when(Some(outlook.at_s), page.now_s),
            harmless(&outlook.text)
        );
    }
    if page.next.is_some() {
        text += "\nthere are more: say --limit N";
    }
    text
}

/// A job; what is not foreseen of it comes after `far`, if anything is.
pub(crate) fn row(job: &JobRow, now: f64, far: Option<f64>) -> Vec<String> {
    let dash = || "–".to_owned();
    let or_later = |time: Option<f64>| match (time, far) {
        (None, Some(far)) if far > now && job.state == "waiting" => {
            format!("> {}", duration(far - now))
        }
        (time, _) => when(time, now),
    };
    let gpus = match job.gpus_held {
        0 => format!("({})", job.gpus_asked),
        held => held.to_string(),
    };
    vec![
        harmless(&job.number),
        harmless(&job.name),
        harmless(&job.user),
        harmless(&job.state),
        gpus,
        or_later(job.start_s),
        or_later(job.finish_s),
        when(job.deadline_s, now),
        job.energy_kwh.map_or_else(dash, |energy| format!("{energy:.2}")),
        job.cost_eur.map_or_else(dash, |cost| format!("{cost:.2}")),
        output::percent(job.risk),
        harmless(&job.why),
    ]
}
