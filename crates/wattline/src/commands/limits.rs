//! `wattline limits`: what whoever asks may ask for at most.

use crate::client::Server;
use crate::failure::Result;
use crate::output::{self, harmless};
use wattline_api::{LimitRow, Limits};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON (schema wattline.limits/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let limits: Limits = args.server.get("/v1/limits")?;
    if args.json {
        return output::json(&limits);
    }
    output::text(&text(&limits))
}

fn text(limits: &Limits) -> String {
    let number = |value: Option<f64>, none: &str| {
        value.map_or_else(|| none.to_owned(), |value| format!("{:.0}", value))
    };
    let row = |name: &str, row: &LimitRow| {
        vec![harmless(name), number(row.used, "–"), number(row.limit, "none")]
    };
    let mut rows = vec![
        row("jobs waiting", &limits.jobs_waiting),
        row("jobs submitted a minute", &limits.jobs_per_minute),
        row("requests a second", &limits.requests_per_second),
        row("weight of a job, EUR/h", &limits.weight_eur_per_h),
        row("views planned at a time", &limits.views_at_a_time),
        row("reports at a time", &limits.reports_at_a_time),
        row("questions at a time", &limits.questions_at_a_time),
        row("event streams", &limits.event_streams),
    ];
    for account in &limits.accounts {
        let name = |what: &str| format!("{what}, account {}", account.name);
        rows.push(row(&name("jobs waiting"), &account.jobs_waiting));
        rows.push(row(&name("jobs submitted a minute"), &account.jobs_per_minute));
    }
    let table = output::table(&["limit", "used", "at most"], rows);
    format!("{} ({})\n{table}", harmless(&limits.user), harmless(&limits.role))
}
