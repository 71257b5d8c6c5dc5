//! `wattline compare`: several policies on the same work.

use crate::failure::{Failure, Result};
use crate::output;
use crate::progress::Simulations;
use crate::source::{self, Source};
use anyhow::anyhow;
use serde::Serialize;
use std::path::PathBuf;
use wattline_bound::{Effort, LowerBound};
use wattline_sim::accuracy::Accuracy;
use wattline_sim::experiment;
use wattline_sim::instance::Instance;
use wattline_sim::metrics::Summary;
use wattline_sim::simulation::{Outcome, Progress, SimulationError, Watch};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Policies, separated by commas; `wattline policies` lists them and their options [default:
    /// fifo,edf,priority,tiresias,wattline; for a trace what SLURM can do by itself, and wattline]
    #[arg(long, value_delimiter = ',')]
    policies: Option<Vec<String>>,
    /// Forecast each job's end and cost when it is submitted, to compare with what happens: runs
    /// the engine forward once per submission, so the time grows with the length of the queue
    #[arg(long)]
    forecast: bool,
    /// Do not run every policy a second time with the truth about each configuration, which is how
    /// the price of not knowing is found
    #[arg(long)]
    no_oracle: bool,
    /// Skip the lower bound on cost
    #[arg(long)]
    no_bound: bool,
    /// Write report.html, results.json and one jobs-POLICY.csv per policy to this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Threads to run policies on [default: all]
    #[arg(long)]
    threads: Option<usize>,
    /// Print JSON (schema wattline.compare/1)
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
pub(crate) struct Comparison<'a> {
    pub(crate) schema: &'static str,
    pub(crate) instance: InstanceSummary,
    pub(crate) results: Vec<&'a Summary>,
    /// A cost that no schedule stays below, if it was looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lower_bound: Option<BoundSummary>,
}

/// The lower bound with its parts, and how far above it each policy is.
#[derive(Serialize)]
pub(crate) struct BoundSummary {
    #[serde(flatten)]
    bound: LowerBound,
    /// Whether it holds for every run: not where runs are faster or slower by chance.
    valid: bool,
    /// What each policy costs over the bound, in the order of the results; none where jobs were
    /// left undone or nothing is known.
    over_bound: Vec<Option<f64>>,
}

impl BoundSummary {
    fn new(instance: &Instance, outcomes: &[Outcome]) -> Self {
        let bound = instance.lower_bound(Effort::default());
        let over = |outcome: &Outcome| {
            let s = &outcome.summary;
            (s.finished == s.jobs && bound.total > 0.0).then(|| s.total_cost / bound.total)
        };
        let over_bound = outcomes.iter().map(over).collect();
        Self { valid: instance.world.noise == 0.0, bound, over_bound }
    }

    /// For people, below the table.
    fn text(&self, outcomes: &[Outcome]) -> String {
        let mut text = format!("\nno schedule can cost less than {:.2} EUR", self.bound.total);
        if !self.bound.complete {
            text.push_str(" (the search for a better bound stopped when its work was used up)");
        }
        if !self.valid {
            text.push_str(" (if runs took their mean times: here luck makes some faster)");
        }
        let ratios: Vec<String> = outcomes
            .iter()
            .zip(&self.over_bound)
            .filter_map(|(o, over)| over.map(|over| format!("{} {over:.2}", o.summary.policy)))
            .collect();
        if !ratios.is_empty() {
            text.push_str(&format!("; times that: {}", ratios.join(", ")));
        }
        text
    }
}

/// What was simulated.
#[derive(Serialize)]
pub(crate) struct InstanceSummary {
    name: String,
    jobs: usize,
    nodes: usize,
    gpus: u32,
    peak_power_w: f64,
    offered_load: f64,
    seed: u64,
    notes: Vec<String>,
}

impl InstanceSummary {
    pub(crate) fn new(instance: &Instance) -> Self {
        let load = instance.offered_load();
        Self {
            name: instance.name.clone(),
            jobs: instance.jobs.len(),
            nodes: instance.cluster.nodes().len(),
            gpus: instance.cluster.total_gpus(),
            peak_power_w: instance.cluster.peak_power().get(),
            // All jobs at one instant are more load than any number says.
            offered_load: if load.is_finite() { load } else { f64::MAX },
            seed: instance.world.seed,
            notes: instance.notes.clone(),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let instance = args.source.instance()?;
    let policies = match &args.policies {
        Some(policies) => policies.clone(),
        None => default_policies(&args.source, instance.budget.is_some()),
    };
    if policies.is_empty() {
        return Err(Failure::input(anyhow!("--policies names no policy")));
    }
    if let Some(out) = &args.out {
        super::simulate::prepare_folder(out)?;
    }
    let how = How {
        record: args.out.is_some(),
        forecast: args.forecast,
        with_oracle: !args.no_oracle,
        threads: args.threads,
        announce: true,
    };
    // Before the simulations: how large the cluster is should be seen before hours have passed.
    for note in &instance.notes {
        output::note(note);
    }
    let outcomes = run_policies(&instance, &policies, how)?;
    warn(&outcomes);
    let comparison = Comparison {
        schema: "wattline.compare/1",
        instance: InstanceSummary::new(&instance),
        results: outcomes.iter().map(|o| &o.summary).collect(),
        lower_bound: (!args.no_bound).then(|| BoundSummary::new(&instance, &outcomes)),
    };
    if let Some(out) = &args.out {
        super::simulate::write_results(out, &instance, &outcomes, &comparison)?;
    }
    if args.json {
        output::json(&comparison)
    } else {
        let bound = comparison.lower_bound.as_ref().map(|bound| bound.text(&outcomes));
        let (what, bound) = (source::describe(&instance), bound.unwrap_or_default());
        output::text(&format!("{what}\n{}{bound}", table(&outcomes)))
    }
}

/// What a trace is compared with is what its site could have instead: SLURM's own order, with
/// backfill, sleeping nodes, and one power limit for all GPUs if there is a budget.
fn default_policies(source: &Source, budget: bool) -> Vec<String> {
    let mut policies: Vec<&str> = if source.is_trace() {
        vec!["fifo+backfill", "fifo+backfill+sleep=10min", "edf+backfill+sleep=10min"]
    } else {
        vec!["fifo", "edf", "priority", "tiresias"]
    };
    if budget {
        policies.push("edf+backfill+sleep=10min+cap=uniform");
    }
    policies.push("wattline");
    policies.into_iter().map(str::to_owned).collect()
}

/// What to do beside simulating.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    /// Keep what a report needs.
    pub(crate) record: bool,
    /// Forecast every job at its submission.
    pub(crate) forecast: bool,
    /// Find the price of not knowing.
    pub(crate) with_oracle: bool,
    /// On how many threads; all, if not set.
    pub(crate) threads: Option<usize>,
    /// Print a line on standard error for each policy as it finishes.
    pub(crate) announce: bool,
}

/// Runs all policies, with a progress bar.
pub(crate) fn run_policies(
    instance: &Instance,
    policies: &[String],
    how: How,
) -> Result<Vec<Outcome>> {
    let How { record, forecast, with_oracle, threads, announce } = how;
    let count = experiment::simulations(instance, policies, with_oracle);
    let twins = policies.iter().map(|policy| format!("{policy} with the truth"));
    let names = policies.iter().cloned().chain(twins).take(count).collect();
    let announced = if announce { policies.len() } else { 0 };
    let simulations = Simulations::new(names, announced);
    let seconds = || simulations.seconds();
    let report = |progress: Progress<'_>| simulations.advance(progress);
    let watch = Watch { seconds: &seconds, progress: &report, record, forecast };
    let run = || experiment::compare(instance, policies, &watch, with_oracle);
    on_threads(threads, run)?.map_err(bad_simulation)
}

/// Runs policies on the instances beside them, with a progress bar, and keeps the figures.
pub(crate) fn run_figures(
    runs: &[(&Instance, &str)],
    threads: Option<usize>,
) -> Result<Vec<Summary>> {
    let names = runs.iter().map(|(_, policy)| (*policy).to_owned()).collect();
    let simulations = Simulations::new(names, 0);
    let seconds = || simulations.seconds();
    let report = |progress: Progress<'_>| simulations.advance(progress);
    let watch = Watch { seconds: &seconds, progress: &report, record: false, forecast: false };
    on_threads(threads, || experiment::figures(runs, &watch))?.map_err(bad_simulation)
}

/// Does something on so many threads; on all, if not set.
fn on_threads<T: Send>(threads: Option<usize>, run: impl FnOnce() -> T + Send) -> Result<T> {
    let Some(threads) = threads else { return Ok(run()) };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.clamp(1, 64)).build();
    Ok(pool.map_err(|error| Failure::Failed(error.into()))?.install(run))
}

pub(crate) fn bad_simulation(error: SimulationError) -> Failure {
    match error {
        SimulationError::Policy(error) => Failure::input(error),
        error @ SimulationError::Event { .. } => Failure::input(error),
    }
}

/// What went wrong in a run of which only the figures are left.
pub(crate) fn warn_figures(s: &Summary, what: &str) {
    let warn = |text: String| output::note(&format!("warning: {what}: {}: {text}", s.policy));
    if s.finished < s.jobs {
        warn(format!("{} of {} jobs never finish", s.jobs - s.finished, s.jobs));
    }
    if s.plans_refused > 0 {
        warn(format!("the checker refused {} plans", s.plans_refused));
    }
    if s.budget_exceeded_s > 0.0 {
        warn(format!("drew more than the budget for {:.1} s", s.budget_exceeded_s));
    }
}

/// What went wrong in a run is said even when only the table is looked at.
pub(crate) fn warn(outcomes: &[Outcome]) {
    for outcome in outcomes {
        let s = &outcome.summary;
        let unfinished = s.jobs - s.finished - s.cancelled;
        if unfinished > 0 {
            let mut left = outcome.jobs.iter().filter(|job| job.end.is_none() && !job.cancelled);
            let reason = left.next().map_or_else(String::new, |job| {
                format!("; for example {}: {}", output::harmless(&job.job.name), job.reason)
            });
            output::note(&format!(
                "warning: {}: {unfinished} of {} jobs never finish{reason}",
                s.policy, s.jobs
            ));
        }
        if s.plans_refused > 0 {
            output::note(&format!(
                "warning: {}: the checker refused {} plans: {:?}",
                s.policy,
                s.plans_refused,
                outcome.alerts.first()
            ));
        }
        if s.budget_exceeded_s > 0.0 {
            output::note(&format!(
                "warning: {}: drew more than the budget for {:.1} s",
                s.policy, s.budget_exceeded_s
            ));
        }
        for finding in &s.findings {
            output::note(&format!("{}: {}", s.policy, output::harmless(finding)));
        }
    }
}

/// The table for people: one row per policy.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut header = vec![
        "policy",
        "finished",
        "total EUR",
        "energy EUR",
        "tardiness EUR",
        "carbon EUR",
        "kWh",
        "JCT mean",
        "JCT p99",
        "makespan",
        "deadlines met",
        "restarts",
        "peak kW",
        "over budget",
        "plan ms p99",
        "wall",
    ];
    // Columns about predictions only where there are some to speak of.
    let any = |value: fn(&Accuracy) -> Option<f64>| {
        outcomes.iter().any(|o| value(&o.summary.accuracy).is_some())
    };
    let with_oracle = any(|a| a.price_of_not_knowing);
    let with_forecast = any(|a| a.cost_error);
    if with_oracle {
        header.extend(["time error", "vs oracle"]);
    }
    if with_forecast {
        header.push("forecast error");
    }
    let rows = outcomes
        .iter()
        .map(|outcome| {
            let s = &outcome.summary;
            let mut row = vec![
                s.policy.clone(),
                format!("{}/{}", s.finished, s.jobs),
                format!("{:.2}", s.total_cost),
                format!("{:.2}", s.energy_cost),
                format!("{:.2}", s.tardiness_cost),
                format!("{:.2}", s.carbon_cost),
                format!("{:.1}", s.energy_kwh),
                output::duration(s.jct_mean_s),
                output::duration(s.jct_p99_s),
                output::duration(s.makespan_s),
                format!("{}/{}", s.deadlines_met, s.deadlines),
                s.restarts.to_string(),
                format!("{:.1}", s.peak_power_w / 1e3),
                output::duration(s.budget_exceeded_s),
                format!("{:.3}", s.plan_ms_p99),
                output::duration(s.wall_s),
            ];
            let a = &s.accuracy;
            if with_oracle {
                row.push(output::percent(a.time_error_mean));
                row.push(
                    a.price_of_not_knowing
                        .map_or_else(|| "–".to_owned(), |price| format!("{:+.1} %", price * 100.0)),
                );
            }
            if with_forecast {
                row.push(output::percent(a.cost_error));
            }
            row
        })
        .collect();
    output::table(&header, rows)
}
