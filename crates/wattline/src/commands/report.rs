//! `wattline report`: what a period has come to.

use crate::client::{Server, encoded};
use crate::failure::{Failure, Result};
use crate::output::{self, duration, harmless, percent};
use anyhow::anyhow;
use wattline_api::{
    JobFigures, MOST_IN_A_PAGE, PowerFigures, Report, ReportQuery, ReportRow, Status,
};
use wattline_core::units::Seconds;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the period begins: so long ago ("30 d"), a day (2026-11-01, UTC), or a time
    /// (2026-11-01T08:00:00+01:00), on the cluster's clock [default: 7 d before its end]
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Where it ends, the same way [default: now]
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// No more than this many users, and workloads
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print JSON (schema wattline.report/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let report = fetch(args)?;
    if args.json {
        return output::json(&report);
    }
    output::text(&text(&report))
}

/// As many pages as it takes.
fn fetch(args: &Args) -> Result<Report> {
    let named = args.since.is_some() || args.until.is_some();
    // So long ago is so long before what the cluster's clock shows.
    let now = if named { args.server.get::<Status>("/v1/status")?.now_s } else { 0.0 };
    let time = |name: &str, text: &Option<String>| {
        text.as_ref().map(|text| time(name, text, now)).transpose()
    };
    let mut query = ReportQuery {
        since_s: time("--since", &args.since)?,
        until_s: time("--until", &args.until)?,
        limit: Some(args.limit.min(MOST_IN_A_PAGE)),
        ..ReportQuery::default()
    };
    let mut report: Report = args.server.get(&path(&query))?;
    // All pages are of the same period.
    (query.since_s, query.until_s) = (Some(report.since_s), Some(report.until_s));
    let wanted = args.limit as usize;
    loop {
        let more = |next: &Option<String>, rows: &[ReportRow]| {
            next.clone().filter(|_| rows.len() < wanted)
        };
        let users = more(&report.by_user.next, &report.by_user.rows);
        let workloads = more(&report.by_workload.next, &report.by_workload.rows);
        let accounts = more(&report.by_account.next, &report.by_account.rows);
        if users.is_none() && workloads.is_none() && accounts.is_none() {
            report.by_account.rows.truncate(wanted);
            report.by_user.rows.truncate(wanted);
            report.by_workload.rows.truncate(wanted);
            return Ok(report);
        }
        query.users_after = users.clone();
        query.workloads_after = workloads.clone();
        query.accounts_after = accounts.clone();
        let page: Report = args.server.get(&path(&query))?;
        if users.is_some() {
            report.by_user.rows.extend(page.by_user.rows);
            report.by_user.next = page.by_user.next;
        }
        if workloads.is_some() {
            report.by_workload.rows.extend(page.by_workload.rows);
            report.by_workload.next = page.by_workload.next;
        }
        if accounts.is_some() {
            report.by_account.rows.extend(page.by_account.rows);
            report.by_account.next = page.by_account.next;
        }
    }
}

fn path(query: &ReportQuery) -> String {
    let mut parts = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        parts.extend(value.map(|value| format!("{name}={}", encoded(&value))));
    };
    add("since_s", query.since_s.map(|time| time.to_string()));
    add("until_s", query.until_s.map(|time| time.to_string()));
    add("users_after", query.users_after.clone());
    add("workloads_after", query.workloads_after.clone());
    add("accounts_after", query.accounts_after.clone());
    add("limit", query.limit.map(|limit| limit.to_string()));
    format!("/v1/reports?{}", parts.join("&"))
}

/// A time, as people write it, in seconds since 1970.
fn time(name: &str, text: &str, now: f64) -> Result<f64> {
    if let Ok(ago) = text.parse::<Seconds>() {
        return Ok(now - ago.get());
    }
    let seconds = |time: jiff::Timestamp| time.as_millisecond() as f64 / 1e3;
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return Ok(seconds(time));
    }
    let day = jiff::civil::Date::strptime("%Y-%m-%d", text);
    let day = day.and_then(|day| day.to_zoned(jiff::tz::TimeZone::UTC));
    day.map(|day| seconds(day.timestamp())).map_err(|_| {
        Failure::input(anyhow!(
            "{name}: '{}' is neither so long ago (\"30 d\"), nor a day (2026-11-01), nor a time (2026-11-01T08:00:00+01:00)",
            harmless(text)
        ))
    })
}

fn dash() -> String {
    "–".to_owned()
}

fn text(report: &Report) -> String {
    let stamp = |seconds: f64| {
        let time = jiff::Timestamp::from_millisecond((seconds * 1e3) as i64);
        time.map_or_else(|_| format!("{seconds:.0} s"), |time| format!("{time:.0}"))
    };
    let length = duration(report.until_s - report.since_s);
    let mut text = format!("{} to {} ({length})\n", stamp(report.since_s), stamp(report.until_s));
    text += &power(&report.power);
    let header = [
        "",
        "submitted",
        "finished",
        "cancelled",
        "late",
        "deadlines met",
        "late EUR",
        "kWh",
        "EUR",
        "mean",
        "p50",
        "p99",
        "restarts",
    ];
    let all = ReportRow { name: "all jobs".to_owned(), figures: report.totals.clone() };
    text += &format!("\n{}\n", output::table(&header, vec![row(&all)]));
    let parts = [
        ("user", &report.by_user),
        ("account", &report.by_account),
        ("workload", &report.by_workload),
    ];
    for (what, rows) in parts {
        if rows.rows.is_empty() {
            continue;
        }
        let mut header = header;
        header[0] = what;
        let table = output::table(&header, rows.rows.iter().map(row).collect());
        text += &format!("\n{table}\n");
        if rows.next.is_some() {
            text += "there are more: say --limit N\n";
        }
    }
    text
}

fn power(power: &PowerFigures) -> String {
    let (Some(mean), Some(peak)) = (power.mean_w, power.peak_w) else {
        return "power        not measured\n".to_owned();
    };
    let kilowatts = |watts: f64| format!("{:.2} kW", watts / 1e3);
    let committed = power.committed_peak_w.map_or_else(dash, kilowatts);
    let budget = power.budget_mean_w.map_or_else(
        || "none".to_owned(),
        |mean| {
            let over = duration(power.budget_exceeded_s);
            format!("{} on average, exceeded for {over}", kilowatts(mean))
        },
    );
    let number = |value: Option<f64>| value.map_or_else(dash, |value| format!("{value:.2}"));
    format!(
        "power        {} on average, {} at most, measured for {}; {committed} committed at most\n\
         budget       {budget}\n\
         energy       {} kWh for {} EUR, the whole cluster\n",
        kilowatts(mean),
        kilowatts(peak),
        duration(power.measured_s),
        number(power.energy_kwh),
        number(power.energy_eur),
    )
}

fn row(row: &ReportRow) -> Vec<String> {
    let JobFigures {
        submitted,
        finished,
        cancelled,
        with_deadline,
        deadlines_met,
        late,
        tardiness_eur,
        energy_kwh,
        energy_eur,
        energy_known: _,
        completion_mean_s,
        completion_p50_s,
        completion_p99_s,
        restarts,
    } = &row.figures;
    let number = |value: &Option<f64>| value.map_or_else(dash, |value| format!("{value:.2}"));
    let time = |value: &Option<f64>| value.map_or_else(dash, duration);
    let met = (*with_deadline > 0).then(|| *deadlines_met as f64 / *with_deadline as f64);
    vec![
        harmless(&row.name),
        submitted.to_string(),
        finished.to_string(),
        cancelled.to_string(),
        late.to_string(),
        percent(met),
        format!("{tardiness_eur:.2}"),
        number(energy_kwh),
        number(energy_eur),
        time(completion_mean_s),
        time(completion_p50_s),
        time(completion_p99_s),
        restarts.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let read = |text: &str| time("--since", text, 1e6).ok();
        assert_eq!(read("1 d"), Some(1e6 - 86_400.0));
        assert_eq!(read("1970-01-02"), Some(86_400.0));
        assert_eq!(read("1970-01-02T00:00:00Z"), Some(86_400.0));
        assert_eq!(read("1970-01-02T01:00:00.5+01:00"), Some(86_400.5));
        for text in ["", "yesterday", "1970-13-01", "7 parsecs", "2026-11-01 08"] {
            assert!(read(text).is_none(), "{text}");
        }
    }
}
