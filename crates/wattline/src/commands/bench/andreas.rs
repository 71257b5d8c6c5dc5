//! `wattline bench andreas`: a whole folder of ANDREAS instances, beside what other methods reach
//! on them.

use crate::commands::compare;
use crate::failure::{Failure, Result};
use crate::output;
use crate::source::number;
use anyhow::anyhow;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use wattline_core::units::Seconds;
use wattline_sim::andreas::RESTART;
use wattline_sim::andreas::reference::{self, Reference};
use wattline_sim::instance::Instance;
use wattline_sim::metrics::Summary;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A folder with reference.csv (instance, load, method, total_eur) and a folder for each
    /// instance that it names
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Policies, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "fifo,edf,priority,andreas")]
    policies: Vec<String>,
    /// Only instances whose names hold one of these texts, for example n10-,n20-
    #[arg(long, value_delimiter = ',', value_name = "TEXT")]
    only: Vec<String>,
    /// One row per load, per name without the seed, or per instance
    #[arg(long, value_enum, default_value_t = By::Load)]
    by: By,
    /// What every restart costs, in seconds [default: 60]
    #[arg(long, value_name = "S")]
    restart_seconds: Option<f64>,
    /// No job is taken off its GPUs once it runs: no migration, no resizing
    #[arg(long)]
    no_preempt: bool,
    /// Threads to run on [default: all]
    #[arg(long)]
    threads: Option<usize>,
    /// Print JSON (schema wattline.bench.andreas/1)
    #[arg(long)]
    json: bool,
}

/// Costs in a reference have some six digits.
const ROUNDING: f64 = 1e-5;

/// What a row of the table is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    Load,
    Size,
    Instance,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    instances: usize,
    /// What a restart costs; the methods of the reference restart for nothing.
    restart_s: f64,
    preempt: bool,
    groups: Vec<Group>,
    overall: Vec<Ratios>,
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Group {
    group: String,
    instances: usize,
    load: f64,
    /// Mean cost of the best method of each instance.
    best_eur: f64,
    policies: Vec<Ratios>,
}

/// A policy on several instances, each against the best method there.
#[derive(Serialize)]
struct Ratios {
    policy: String,
    total_eur: f64,
    /// Mean of the instances' ratios.
    ratio: f64,
    worst_ratio: f64,
    worst_instance: String,
    /// Instances on which it costs no more than the best method, rounding apart.
    no_worse: usize,
    restarts_per_job: f64,
}

#[derive(Serialize)]
struct Run {
    instance: String,
    load: f64,
    best_method: String,
    best_eur: f64,
    ratio: f64,
    #[serde(flatten)]
    figures: Summary,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let found = read(args)?;
    let policies: Vec<&str> = args.policies.iter().map(String::as_str).collect();
    let pairs: Vec<(&Instance, &str)> = found
        .iter()
        .flat_map(|(_, instance)| policies.iter().map(move |policy| (instance, *policy)))
        .collect();
    let summaries = compare::run_figures(&pairs, args.threads)?;
    let mut runs = Vec::new();
    for (at, figures) in summaries.into_iter().enumerate() {
        let (reference, _) = &found[at / policies.len()];
        compare::warn_figures(&figures, &reference.instance);
        let (method, best) = reference.best().unwrap_or(("", 0.0));
        runs.push(Run {
            instance: reference.instance.clone(),
            load: reference.load,
            best_method: method.to_owned(),
            best_eur: best,
            ratio: figures.total_cost / best,
            figures,
        });
    }
    let report = report(args, &found, &policies, runs);
    if args.json {
        return output::json(&report);
    }
    output::text(&text(&report, args))
}

/// All instances that are asked for.
fn read(args: &Args) -> Result<Vec<(Reference, Instance)>> {
    if args.policies.is_empty() {
        return Err(Failure::input(anyhow!("--policies names no policy")));
    }
    for policy in &args.policies {
        wattline_policies::policy(policy).map_err(Failure::input)?;
    }
    let restart = args.restart_seconds.map(|s| number("--restart-seconds", s, 0.0, 1e9));
    let restart = restart.transpose()?.map(Seconds::new);
    let mut found = Vec::new();
    for reference in reference::read(&args.dir).map_err(Failure::input)? {
        let asked =
            args.only.is_empty() || args.only.iter().any(|t| reference.instance.contains(t));
        if !asked {
            continue;
        }
        if !reference.best().is_some_and(|(_, cost)| cost > 0.0) {
            let name = &reference.instance;
            return Err(Failure::input(anyhow!(
                "reference.csv: the best method on {name} costs nothing: there is no ratio to it"
            )));
        }
        let folder = args.dir.join(&reference.instance);
        let mut instance = wattline_sim::andreas::read(&folder).map_err(Failure::input)?;
        if let Some(restart) = restart {
            instance.set_restart(restart);
        }
        if args.no_preempt {
            instance.set_no_preempt();
        }
        found.push((reference, instance));
    }
    if found.is_empty() {
        let dir = args.dir.display();
        let only = args.only.join(",");
        return Err(Failure::input(anyhow!("{dir}/reference.csv: no instance holds '{only}'")));
    }
    Ok(found)
}

fn report(
    args: &Args,
    found: &[(Reference, Instance)],
    policies: &[&str],
    runs: Vec<Run>,
) -> Report {
    let key = |reference: &Reference| match args.by {
        By::Load => reference.family().to_owned(),
        By::Instance => reference.instance.clone(),
        By::Size => {
            let name = &reference.instance;
            name.rsplit_once("-s").map_or(name.as_str(), |(rest, _)| rest).to_owned()
        }
    };
    let mut members: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, (reference, _)) in found.iter().enumerate() {
        members.entry(key(reference)).or_default().push(at);
    }
    let ratios = |members: &[usize]| -> Vec<Ratios> {
        let of = |policy: usize| {
            let runs: Vec<&Run> =
                members.iter().filter_map(|at| runs.get(at * policies.len() + policy)).collect();
            Ratios::new(policies[policy], &runs)
        };
        (0..policies.len()).map(of).collect()
    };
    let mean = |members: &[usize], value: &dyn Fn(&Reference) -> f64| {
        members.iter().map(|at| value(&found[*at].0)).sum::<f64>() / members.len() as f64
    };
    let mut groups: Vec<Group> = members
        .into_iter()
        .map(|(group, members)| Group {
            group,
            instances: members.len(),
            load: mean(&members, &|r| r.load),
            best_eur: mean(&members, &|r| r.best().map_or(0.0, |(_, cost)| cost)),
            policies: ratios(&members),
        })
        .collect();
    groups.sort_by(|a, b| b.load.total_cmp(&a.load));
    let everything: Vec<usize> = (0..found.len()).collect();
    let overall = ratios(&everything);
    Report {
        schema: "wattline.bench.andreas/1",
        instances: found.len(),
        restart_s: args.restart_seconds.unwrap_or(RESTART.get()),
        preempt: !args.no_preempt,
        groups,
        overall,
        runs,
    }
}

impl Ratios {
    fn new(policy: &str, runs: &[&Run]) -> Self {
        let count = runs.len().max(1) as f64;
        let worst = runs.iter().max_by(|a, b| a.ratio.total_cmp(&b.ratio));
        let restarts: u64 = runs.iter().map(|run| run.figures.restarts).sum();
        let jobs: usize = runs.iter().map(|run| run.figures.jobs).sum();
        Self {
            policy: policy.to_owned(),
            total_eur: runs.iter().map(|run| run.figures.total_cost).sum::<f64>() / count,
            ratio: runs.iter().map(|run| run.ratio).sum::<f64>() / count,
            worst_ratio: worst.map_or(0.0, |run| run.ratio),
            worst_instance: worst.map_or_else(String::new, |run| run.instance.clone()),
            no_worse: runs.iter().filter(|run| run.ratio <= 1.0 + ROUNDING).count(),
            restarts_per_job: restarts as f64 / jobs.max(1) as f64,
        }
    }
}

fn text(report: &Report, args: &Args) -> String {
    let header = [
        "load",
        "instances",
        "best EUR",
        "policy",
        "EUR",
        "ratio",
        "worst",
        "on",
        "no worse",
        "restarts/job",
    ];
    let mut rows = Vec::new();
    let mut add = |load: String, count: usize, best: String, policies: &[Ratios]| {
        for r in policies {
            rows.push(vec![
                load.clone(),
                count.to_string(),
                best.clone(),
                r.policy.clone(),
                format!("{:.2}", r.total_eur),
                format!("{:.3}", r.ratio),
                format!("{:.3}", r.worst_ratio),
                r.worst_instance.clone(),
                format!("{}/{count}", r.no_worse),
                format!("{:.2}", r.restarts_per_job),
            ]);
        }
    };
    for group in &report.groups {
        let load = match args.by {
            By::Load => format!("{:.2}", group.load),
            By::Size | By::Instance => format!("{:.2} {}", group.load, group.group),
        };
        add(load, group.instances, format!("{:.2}", group.best_eur), &group.policies);
    }
    add("all".to_owned(), report.instances, "–".to_owned(), &report.overall);
    format!(
        "{}\nratio: cost over that of the best method of reference.csv on the same instance, mean; \
         a restart costs {} s{}\n",
        output::table(&header, rows),
        report.restart_s,
        if args.no_preempt { "; no job is taken off its GPUs" } else { "" },
    )
}
