//! What a budget would do: shown before it is set, with a question where somebody can answer it.

use crate::client::Server;
use crate::failure::{Failure, Result};
use crate::output::{self, harmless};
use anyhow::anyhow;
use hyper::Method;
use std::io::{self, BufRead, IsTerminal, Write};
use wattline_api::{BudgetForecast, BudgetRequest, ForecastJob, ForecastJobs};
use wattline_core::snapshot::Changing;

/// Jobs that a line names; it says how many more there are. More do not fit on a line or two.
const MOST_NAMED: usize = 8;

/// What this budget would do. Nothing changes.
pub(super) fn ask(server: &Server, calendar: Option<Changing>) -> Result<BudgetForecast> {
    // In the body: a controller that does not know it refuses it, and does not set the budget.
    let request = BudgetRequest { calendar, dry_run: true };
    server.ask(Method::PUT, "/v1/budget", Some(&request), None)
}

/// Says on standard error what the budget will do. On a terminal it asks whether to go on, if jobs
/// stop or the budget cannot be kept.
pub(super) fn before_setting(server: &Server, calendar: Option<Changing>) -> Result<()> {
    let forecast = match ask(server, calendar) {
        Ok(forecast) => forecast,
        // A budget is set all the same: it may be urgent.
        Err(Failure::Failed(error)) => {
            output::note(&format!("no forecast: {error:#}"));
            return Ok(());
        }
        Err(refused) => return Err(refused),
    };
    output::note(&in_words(&forecast));
    if !is_grave(&forecast) || !io::stdin().is_terminal() {
        return Ok(());
    }
    if is_accepted(&mut io::stdin().lock(), &mut io::stderr()) {
        return Ok(());
    }
    Err(Failure::Failed(anyhow!("the budget was not set; --yes sets it without a question")))
}

/// Whether somebody should think twice.
fn is_grave(forecast: &BudgetForecast) -> bool {
    !forecast.kept || forecast.stopped.count + forecast.killed.count > 0
}

fn is_accepted(answers: &mut impl BufRead, questions: &mut impl Write) -> bool {
    let asked = write!(questions, "Set this budget? [y/N] ").and_then(|()| questions.flush());
    let mut answer = String::new();
    // No answer is no.
    let answered = asked.and_then(|()| answers.read_line(&mut answer));
    answered.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// The forecast for people.
pub(super) fn in_words(forecast: &BudgetForecast) -> String {
    let kilowatts = |watts: f64| format!("{:.2} kW", watts / 1e3);
    let Some(budget) = forecast.budget_w else {
        return "Without a budget nothing is given up.".to_owned();
    };
    let when = if forecast.at_s > forecast.now_s {
        format!(" at its lowest, {} from now", output::duration(forecast.at_s - forecast.now_s))
    } else {
        String::new()
    };
    let mut lines = vec![format!(
        "Budget {}{when}. Committed now: {}; then at most: {}.",
        kilowatts(budget),
        kilowatts(forecast.committed_now_w),
        kilowatts(forecast.committed_w)
    )];
    let mut list = |what: &str, jobs: &ForecastJobs| {
        if jobs.count > 0 {
            lines.push(format!("{what}: {}", listed(jobs)));
        }
    };
    list("Slow down", &forecast.slower);
    list("Stop, and go on later", &forecast.stopped);
    list("Wait instead of starting", &forecast.not_started);
    list("Are ended for good (shed = \"kill\")", &forecast.killed);
    list("Cannot be stopped", &forecast.cannot_be_stopped);
    let asleep = &forecast.asleep;
    if asleep.count > 0 {
        let names = asleep.nodes.iter().map(|name| harmless(name));
        lines.push(format!("Nodes put to sleep: {}", in_a_line(names, asleep.count)));
    }
    let short = forecast.committed_w - budget;
    lines.push(match forecast.kept {
        true if lines.len() == 1 => "The budget is kept, and nothing changes.".to_owned(),
        true => "The budget is kept.".to_owned(),
        false => format!(
            "The budget CANNOT be kept: it is exceeded by up to {} until jobs that cannot be \
             stopped have ended.",
            kilowatts(short)
        ),
    });
    lines.join("\n")
}

fn listed(jobs: &ForecastJobs) -> String {
    in_a_line(jobs.jobs.iter().map(one), jobs.count)
}

fn one(job: &ForecastJob) -> String {
    let number = harmless(&job.number);
    let limits = match (job.limit_now_w, job.limit_w) {
        (Some(from), Some(to)) => format!(", {from:.0} W to {to:.0} W per GPU"),
        _ => String::new(),
    };
    format!("{number} ({}{limits})", harmless(&job.name))
}

fn in_a_line(names: impl Iterator<Item = String>, count: usize) -> String {
    let named: Vec<String> = names.take(MOST_NAMED).collect();
    let more = count.saturating_sub(named.len());
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{count}: {}{rest}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forecast(kept: bool, stopped: usize) -> BudgetForecast {
        let job = |id| ForecastJob {
            job: id,
            number: if id > 1 { (1000 + id).to_string() } else { id.to_string() },
            slurm_job: (id > 1).then_some(1000 + id),
            name: "\u{1b}[31mred".to_owned(),
            limit_now_w: Some(400.0),
            limit_w: Some(200.0),
        };
        let jobs = |count: usize| ForecastJobs {
            count,
            jobs: (0..count.min(50) as u32).map(job).collect(),
        };
        BudgetForecast {
            schema: String::new(),
            now_s: 0.0,
            at_s: 7200.0,
            budget_w: Some(3000.0),
            committed_now_w: 6000.0,
            committed_w: if kept { 2900.0 } else { 3500.0 },
            kept,
            slower: jobs(20_000),
            stopped: jobs(stopped),
            not_started: jobs(0),
            killed: jobs(0),
            cannot_be_stopped: jobs(usize::from(!kept)),
            asleep: Default::default(),
        }
    }

    #[test]
    fn a_forecast_is_a_few_lines_however_many_jobs_there_are() {
        let text = in_words(&forecast(false, 3));
        assert!(text.contains("Budget 3.00 kW at its lowest, 2.0 h from now"), "{text}");
        assert!(text.contains("Slow down: 20000: 0 ("), "{text}");
        assert!(text.contains("1002 (") && text.contains("and 19992 more"), "{text}");
        assert!(text.contains("400 W to 200 W per GPU"), "{text}");
        assert!(text.contains("CANNOT be kept: it is exceeded by up to 0.50 kW"), "{text}");
        assert!(text.len() < 2000 && !text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn only_what_stops_jobs_or_cannot_be_kept_is_asked_about_and_no_answer_is_no() {
        assert!(!is_grave(&forecast(true, 0)));
        assert!(is_grave(&forecast(true, 1)) && is_grave(&forecast(false, 0)));
        for (answer, accepted) in
            [("y\n", true), ("YES\n", true), ("\n", false), ("", false), ("n", false)]
        {
            let mut asked = Vec::new();
            assert_eq!(is_accepted(&mut answer.as_bytes(), &mut asked), accepted, "{answer:?}");
            assert!(String::from_utf8_lossy(&asked).starts_with("Set this budget?"));
        }
    }
}
