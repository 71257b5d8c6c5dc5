//! What a period has come to.

use super::Api;
use super::access::Identity;
use super::body::{Asked, page_size};
use super::ended::unreadable;
use super::refusal::{Answer, Refusal};
use crate::daemon::Hour;
use crate::job_history::{EndedJob, HistoryError};
use axum::extract::State;
use axum::{Extension, Json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wattline_api::{JobFigures, PowerFigures, Problem, Report, ReportQuery, ReportRow, ReportRows};
use wattline_core::Timestamp;
use wattline_core::units::{Euros, Joules, Seconds, Watts};

/// The period, if none is named.
const USUAL: Seconds = Seconds::new(7.0 * 86_400.0);

/// Whoever waits for others' reports waits no longer than this.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a period has come to: jobs, lateness, energy, power against the budget.
#[utoipa::path(get, path = "/v1/reports", params(ReportQuery), responses(
    (status = 200, body = Report), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn show(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
    Asked(query): Asked<ReportQuery>,
) -> Answer<Json<Report>> {
    let now = api.daemon.cluster_clock().now();
    let (since, until) = period(&query, now)?;
    let limit = page_size(query.limit)?;
    let slot = api.reporting.wait(&who, PATIENCE).await?;
    let read_model = api.daemon.read_model();
    let hours = api.daemon.hours().between(since, until);
    let (daemon, most) = (api.daemon.clone(), api.limits.report);
    let made = tokio::task::spawn_blocking(move || -> Result<Option<Report>, HistoryError> {
        // Until it is done, whether somebody waits for it or not.
        let _slot = slot;
        let mut sums = Sums::default();
        let began = Instant::now();
        let within = |time: Timestamp| since <= time && time < until;
        let all = daemon.history().another().between(since, until, |job| {
            let end = Some(job.ended).filter(|end| within(*end));
            let by = (&*job.user, &*job.workload, job.account.as_deref());
            sums.add(by, &who, |sum| sum.take(&job, within(job.submit), end));
            began.elapsed() < most
        })?;
        if !all {
            return Ok(None);
        }
        let open = read_model.unfinished.iter().filter_map(|id| read_model.job(*id));
        for view in open.filter(|view| within(view.job.submit)) {
            let by = (&*view.user, &*view.workload, view.account.as_deref());
            sums.add(by, &who, |sum| sum.submitted += 1);
        }
        let Sums { all, users, workloads, accounts } = sums;
        Ok(Some(Report {
            schema: "wattline.report/1".to_owned(),
            now_s: now.seconds(),
            since_s: since.seconds(),
            until_s: until.seconds(),
            totals: all.figures(),
            power: power(&hours),
            by_user: page(users, query.users_after.as_deref(), limit),
            by_workload: page(workloads, query.workloads_after.as_deref(), limit),
            by_account: page(accounts, query.accounts_after.as_deref(), limit),
        }))
    });
    let made = made.await.map_err(|_| Refusal::internal("the report broke"))?;
    let report = made.map_err(|error| unreadable(&error))?;
    report.map(Json).ok_or_else(|| {
        let detail = format!("the report was not ready after {:.0} s", most.as_secs_f64());
        Refusal::took_too_long(detail, "ask for a shorter period: since_s, until_s")
    })
}

fn period(query: &ReportQuery, now: Timestamp) -> Answer<(Timestamp, Timestamp)> {
    let time = |field: &str, asked: Option<f64>| match asked {
        Some(at) if at.is_finite() && at.abs() < 1e11 => Ok(Some(Timestamp::from_seconds(at))),
        Some(at) => Err(Refusal::field(field, format!("{at} is not a time"))),
        None => Ok(None),
    };
    let until = time("until_s", query.until_s)?.unwrap_or(now);
    let since = time("since_s", query.since_s)?.unwrap_or(until - USUAL);
    if since >= until {
        let detail = format!("the period begins at {since} and ends at {until}");
        return Err(Refusal::field("since_s", detail));
    }
    Ok((since, until))
}

#[derive(Default)]
struct Sums {
    all: Sum,
    users: BTreeMap<Arc<str>, Sum>,
    workloads: BTreeMap<Arc<str>, Sum>,
    accounts: BTreeMap<Arc<str>, Sum>,
}

impl Sums {
    fn add(
        &mut self,
        (user, workload, account): (&str, &str, Option<&str>),
        who: &Identity,
        add: impl Fn(&mut Sum),
    ) {
        add(&mut self.all);
        // Whose jobs there are, and of what, is for those to know who see them.
        if who.sees(user) {
            add(self.users.entry(user.into()).or_default());
            add(self.workloads.entry(workload.into()).or_default());
            if let Some(account) = account {
                add(self.accounts.entry(account.into()).or_default());
            }
        }
    }
}

/// Added up.
#[derive(Default)]
struct Sum {
    submitted: u64,
    cancelled: u64,
    with_deadline: u64,
    late: u64,
    tardiness: Euros,
    energy: Joules,
    bill: Euros,
    energy_known: u64,
    restarts: u64,
    completions: Vec<f64>,
}

impl Sum {
    fn take(&mut self, job: &EndedJob, submitted: bool, ended: Option<Timestamp>) {
        self.submitted += u64::from(submitted);
        let Some(end) = ended else { return };
        self.restarts += u64::from(job.restarts);
        if let Some((energy, bill)) = job.drawn {
            self.energy += energy;
            self.bill += bill;
            self.energy_known += 1;
        }
        if job.cancelled {
            self.cancelled += 1;
            return;
        }
        self.completions.push(end.since(job.submit).get());
        self.with_deadline += u64::from(job.deadline.is_some());
        self.late += u64::from(job.is_late());
        self.tardiness += job.weight * job.tardiness();
    }

    fn figures(mut self) -> JobFigures {
        self.completions.sort_by(f64::total_cmp);
        let times = &self.completions;
        let known = self.energy_known > 0;
        let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
        JobFigures {
            submitted: self.submitted,
            finished: times.len() as u64,
            cancelled: self.cancelled,
            with_deadline: self.with_deadline,
            deadlines_met: self.with_deadline - self.late,
            late: self.late,
            tardiness_eur: self.tardiness.get(),
            energy_kwh: known.then(|| self.energy.kilowatt_hours()),
            energy_eur: known.then(|| self.bill.get()),
            energy_known: self.energy_known,
            completion_mean_s: (!times.is_empty()).then_some(mean),
            completion_p50_s: quantile(times, 0.5),
            completion_p99_s: quantile(times, 0.99),
            restarts: self.restarts,
        }
    }
}

/// The smallest that this share of all does not exceed.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(at.max(1) - 1).copied()
}

fn page(sums: BTreeMap<Arc<str>, Sum>, after: Option<&str>, limit: usize) -> ReportRows {
    let mut left = sums.into_iter().filter(|(name, _)| after.is_none_or(|after| **name > *after));
    let row =
        |(name, sum): (Arc<str>, Sum)| ReportRow { name: name.to_string(), figures: sum.figures() };
    let rows: Vec<ReportRow> = left.by_ref().take(limit).map(row).collect();
    let next = left.next().and(rows.last()).map(|row| row.name.clone());
    ReportRows { rows, next }
}

fn power(hours: &[Hour]) -> PowerFigures {
    let mut sum = Hour::default();
    for hour in hours {
        sum.measured += hour.measured;
        sum.energy += hour.energy;
        sum.cost += hour.cost;
        sum.peak = sum.peak.max(hour.peak);
        sum.committed = sum.committed.max(hour.committed);
        sum.budgeted += hour.budgeted;
        sum.allowed += hour.allowed;
        sum.over += hour.over;
    }
    let known = |value: f64| (sum.measured > Seconds::ZERO).then_some(value);
    PowerFigures {
        measured_s: sum.measured.get(),
        mean_w: known((sum.energy / sum.measured).get()),
        peak_w: known(sum.peak.get()),
        committed_peak_w: known(sum.committed.get()),
        energy_kwh: known(sum.energy.kilowatt_hours()),
        energy_eur: known(sum.cost.get()),
        budget_mean_w: (sum.budgeted > Seconds::ZERO)
            .then(|| Watts::get(sum.allowed / sum.budgeted)),
        budget_exceeded_s: sum.over.get(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_there() {
        let times: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((quantile(&times, 0.5), quantile(&times, 0.99)), (Some(50.0), Some(99.0)));
        assert_eq!((quantile(&times[..1], 0.5), quantile(&[], 0.5)), (Some(1.0), None));
    }

    #[test]
    fn pages_hold_every_row_once() {
        let names: Vec<String> = (0..25).map(|n| format!("user-{n:02}")).collect();
        let sums = || names.iter().map(|name| (Arc::from(name.as_str()), Sum::default())).collect();
        let (mut seen, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = page(sums(), after.as_deref(), 10);
            seen.extend(page.rows.into_iter().map(|row| row.name));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, names);
    }
}
