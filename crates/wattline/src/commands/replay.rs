//! `wattline replay`: what a journal recorded, once more under any policy.

use super::compare::{self, How, InstanceSummary};
use super::serve;
use crate::failure::{Failure, Result};
use crate::output;
use crate::source::{self, Source};
use anyhow::anyhow;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wattline_controller::history::{History, Past};
use wattline_controller::store::Store;
use wattline_core::Timestamp;
use wattline_core::units::{Euros, Joules};
use wattline_sim::instance::Instance;
use wattline_sim::metrics::Summary;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The journal; nothing may be writing it
    journal: PathBuf,
    #[command(flatten)]
    source: Source,
    /// Policies to try, separated by commas, beside the one that it was recorded under
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
    /// Print JSON (schema wattline.replay/1)
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Replay<'a> {
    schema: &'static str,
    instance: InstanceSummary,
    /// Entries that were read.
    entries: u64,
    /// The policy that it was recorded under.
    recorded_policy: Option<String>,
    realised: Realised,
    results: Vec<&'a Summary>,
}

/// What became of the jobs. The journal knows nothing of what nodes drew beside GPUs that worked.
#[derive(Serialize)]
struct Realised {
    jobs: usize,
    finished: usize,
    cancelled: usize,
    tardiness_cost: f64,
    /// What GPUs drew while they were measured; none if nothing was.
    energy_jobs_kwh: Option<f64>,
    jct_mean_s: f64,
    jct_p99_s: f64,
    makespan_s: f64,
    deadlines: usize,
    deadlines_met: usize,
    restarts: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut instance = args.source.instance()?;
    let (history, recorded) = read(&args.journal, &instance)?;
    let policies = policies(args, recorded.as_deref());
    let realised = Realised::of(&history);
    let entries = history.entries;
    take_over(&mut instance, history, &args.journal)?;
    let how = How { record: false, forecast: false, with_oracle: false, threads: None };
    let outcomes = compare::run_policies(&instance, &policies, how)?;
    for note in &instance.notes {
        output::note(note);
    }
    compare::warn(&outcomes);
    let results: Vec<&Summary> = outcomes.iter().map(|outcome| &outcome.summary).collect();
    if args.json {
        return output::json(&Replay {
            schema: "wattline.replay/1",
            instance: InstanceSummary::new(&instance),
            entries,
            recorded_policy: recorded,
            realised,
            results,
        });
    }
    let what = source::describe(&instance);
    output::text(&format!("{what}\n{}", table(&realised, &results)))
}

/// What the journal says, and under which policy.
fn read(path: &Path, instance: &Instance) -> Result<(History, Option<String>)> {
    if !path.is_file() {
        return Err(Failure::input(anyhow!("{}: there is no such journal", path.display())));
    }
    let store = Store::open(path, &[]).map_err(Failure::input)?;
    let begun_with = store.about(serve::INSTANCE).map_err(Failure::input)?;
    if begun_with.is_some_and(|begun| begun != serve::identity(instance)) {
        return Err(Failure::input(anyhow!(
            "{}: the journal was begun with another {}; name the one that it was begun with",
            path.display(),
            serve::INSTANCE
        )));
    }
    let history = History::read(&store).map_err(Failure::input)?;
    Ok((history.by_submission(), store.about(serve::POLICY).map_err(Failure::input)?))
}

/// The recorded one first; each once.
fn policies(args: &Args, recorded: Option<&str>) -> Vec<String> {
    let mut policies: Vec<String> = Vec::new();
    let asked = args.policy.iter().map(String::as_str);
    for policy in recorded.into_iter().chain(asked) {
        if !policies.iter().any(|known| known == policy) {
            policies.push(policy.to_owned());
        }
    }
    if policies.is_empty() {
        policies.push("wattline".to_owned());
    }
    policies
}

/// The recorded jobs and orders instead of the source's.
fn take_over(instance: &mut Instance, history: History, path: &Path) -> Result<()> {
    let wrong = |what: String| Failure::input(anyhow!("{}: {what}", path.display()));
    if history.jobs.is_empty() {
        return Err(wrong("no job was submitted in what was kept of the journal".to_owned()));
    }
    let types = instance.cluster.gpu_types().len();
    for past in &history.jobs {
        let shapes = past.job.shapes.iter().flat_map(|shapes| shapes.iter());
        let mut types_known = shapes.map(|shape| shape.gpu_type.index() < types);
        if !instance.physics.has(past.job.workload) || !types_known.all(|known| known) {
            let job = output::harmless(&past.job.name);
            return Err(wrong(format!("job '{job}' trains what this cluster knows nothing of")));
        }
    }
    if history.earlier_jobs > 0 {
        let earlier = history.earlier_jobs;
        instance.notes.push(format!("{earlier} jobs of entries that were pruned are left out"));
        instance.start = history.span.map_or(instance.start, |(first, _)| first);
    }
    let unfinished = history.jobs.iter().filter(|j| j.end.is_none() && !j.cancelled).count();
    if unfinished > 0 {
        instance.notes.push(format!("{unfinished} jobs had not ended when the journal does"));
    }
    let first = history.jobs.iter().map(|past| past.job.submit).min();
    instance.start = instance.start.min(first.unwrap_or(instance.start));
    instance.jobs = history.jobs.into_iter().map(|past| Arc::clone(&past.job)).collect();
    instance.orders = history.orders;
    Ok(())
}

impl Realised {
    fn of(history: &History) -> Self {
        let jobs = &history.jobs;
        let last = history.span.map_or(Timestamp::ZERO, |(_, last)| last);
        let mut times: Vec<f64> =
            jobs.iter().filter_map(|past| Some((past.end? - past.job.submit).get())).collect();
        times.sort_by(f64::total_cmp);
        let late = |past: &Past| past.job.tardiness(past.end.unwrap_or(last));
        let owed = jobs.iter().filter(|past| !past.cancelled);
        let tardiness: Euros = owed.map(|past| past.job.weight * late(past)).sum();
        let met = |past: &&Past| {
            past.job.deadline.is_some_and(|deadline| past.end.is_some_and(|end| end <= deadline))
        };
        let energy: Joules = jobs.iter().map(|past| past.gpu_energy).sum();
        let first = jobs.iter().map(|past| past.job.submit).min().unwrap_or(last);
        let end = jobs.iter().filter_map(|past| past.end).max().unwrap_or(last);
        let rank = (0.99 * times.len() as f64).ceil().max(1.0) as usize;
        Self {
            jobs: jobs.len(),
            finished: times.len(),
            cancelled: jobs.iter().filter(|past| past.cancelled).count(),
            tardiness_cost: tardiness.get(),
            energy_jobs_kwh: (energy > Joules::ZERO).then(|| energy.kilowatt_hours()),
            jct_mean_s: times.iter().sum::<f64>() / (times.len().max(1)) as f64,
            jct_p99_s: times.get(rank - 1).copied().unwrap_or(0.0),
            makespan_s: (end - first).get(),
            deadlines: jobs.iter().filter(|past| past.job.deadline.is_some()).count(),
            deadlines_met: jobs.iter().filter(met).count(),
            restarts: jobs.iter().map(|past| u64::from(past.starts.saturating_sub(1))).sum(),
        }
    }
}

fn table(realised: &Realised, results: &[&Summary]) -> String {
    let header = [
        "policy",
        "finished",
        "total EUR",
        "energy EUR",
        "tardiness EUR",
        "kWh",
        "of jobs",
        "JCT mean",
        "JCT p99",
        "makespan",
        "deadlines met",
        "restarts",
    ];
    let unknown = || "–".to_owned();
    let r = realised;
    let mut rows = vec![vec![
        "(realised)".to_owned(),
        format!("{}/{}", r.finished, r.jobs),
        unknown(),
        unknown(),
        format!("{:.2}", r.tardiness_cost),
        unknown(),
        r.energy_jobs_kwh.map_or_else(unknown, |kwh| format!("{kwh:.1}")),
        output::duration(r.jct_mean_s),
        output::duration(r.jct_p99_s),
        output::duration(r.makespan_s),
        format!("{}/{}", r.deadlines_met, r.deadlines),
        r.restarts.to_string(),
    ]];
    rows.extend(results.iter().map(|s| {
        vec![
            s.policy.clone(),
            format!("{}/{}", s.finished, s.jobs),
            format!("{:.2}", s.total_cost),
            format!("{:.2}", s.energy_cost),
            format!("{:.2}", s.tardiness_cost),
            format!("{:.1}", s.energy_kwh),
            format!("{:.1}", s.energy_jobs_kwh),
            output::duration(s.jct_mean_s),
            output::duration(s.jct_p99_s),
            output::duration(s.makespan_s),
            format!("{}/{}", s.deadlines_met, s.deadlines),
            s.restarts.to_string(),
        ]
    }));
    output::table(&header, rows)
}
