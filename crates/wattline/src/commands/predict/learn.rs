//! `wattline predict learn`: what is learned from nothing while a cluster works, and what not
//! knowing costs.

use crate::commands::compare::{self, How};
use crate::failure::{Failure, Result};
use crate::output;
use crate::source;
use anyhow::anyhow;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use wattline_sim::accuracy::{Check, CostCheck};
use wattline_sim::scenario::Foreseen;
use wattline_sim::simulation::Outcome;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A scenario file, or the name of one that is built in (`wattline config list`)
    #[arg(long, value_name = "FILE", default_value = "learning")]
    scenario: PathBuf,
    /// Policies, separated by commas; `wattline policies` lists them and their options
    #[arg(long, value_delimiter = ',', default_value = "fifo,edf")]
    policies: Vec<String>,
    /// How many seeds, from the scenario's own on
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
    /// How many jobs [default: as the scenario says]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(10..=100_000))]
    jobs: Option<u32>,
    /// Standard deviation of the logarithm of each run's speed [default: as the scenario says]
    #[arg(long, value_name = "SIGMA")]
    noise: Option<f64>,
    /// Print JSON (schema wattline.predict.learn/1)
    #[arg(long)]
    json: bool,
}

/// One of the figures of some jobs.
type Figure = fn(&Check) -> Option<f64>;

/// Over how many parts of the jobs the errors are shown.
const PARTS: usize = 10;

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    schema: &'static str,
    scenario: String,
    jobs: u32,
    noise: f64,
    seeds: Vec<u64>,
    policies: Vec<PolicyReport>,
}

#[derive(Serialize)]
struct PolicyReport {
    policy: String,
    mean: Learned,
    runs: Vec<SeedReport>,
}

#[derive(Serialize)]
struct SeedReport {
    seed: u64,
    #[serde(flatten)]
    learned: Learned,
}

/// How predictions came out in a run, or on average over runs. `null` where there was nothing to
/// compare.
#[derive(Clone, Default, Serialize)]
struct Learned {
    finished: f64,
    total_cost: f64,
    oracle_total_cost: Option<f64>,
    price_of_not_knowing: Option<f64>,
    /// Standard error of that over seeds.
    price_standard_error: Option<f64>,
    /// What forecasts for the second half are off by where every configuration is known: nobody
    /// knows which jobs are still to come.
    oracle_cost_error_second_half: Option<f64>,
    /// Over all jobs.
    overall: Check,
    first_half: Check,
    second_half: Check,
    /// By submission.
    tenths: Vec<Check>,
}

impl Learned {
    fn of(outcome: &Outcome) -> Self {
        let (summary, jobs) = (&outcome.summary, &outcome.jobs);
        let halves = Check::of_parts(jobs, 2);
        Self {
            finished: summary.finished as f64,
            total_cost: summary.total_cost,
            oracle_total_cost: summary.accuracy.oracle_total_cost,
            price_of_not_knowing: summary.accuracy.price_of_not_knowing,
            price_standard_error: None,
            oracle_cost_error_second_half: summary.accuracy.oracle_cost_error_second_half,
            overall: Check::of(jobs),
            first_half: halves[0],
            second_half: halves[1],
            tenths: Check::of_parts(jobs, PARTS),
        }
    }

    /// The mean of every figure over the runs that have it. Costs are means of a run's sums, their
    /// error the mean of the runs' errors: over- and underestimates of different runs do not make
    /// up for each other. The price is that of all runs together: a mean of ratios would be that of
    /// the cheapest.
    fn mean(runs: &[SeedReport]) -> Self {
        let price = price(runs);
        let runs = || runs.iter().map(|run| &run.learned);
        let figure = |value: fn(&Learned) -> f64| mean(runs().map(value)).unwrap_or_default();
        let check = |value: &dyn Fn(&Learned) -> Check| mean_check(runs().map(value).collect());
        Self {
            finished: figure(|r| r.finished),
            total_cost: figure(|r| r.total_cost),
            oracle_total_cost: mean(runs().filter_map(|r| r.oracle_total_cost)),
            price_of_not_knowing: price.map(|(price, _)| price),
            price_standard_error: price.and_then(|(_, error)| error),
            oracle_cost_error_second_half: mean(
                runs().filter_map(|r| r.oracle_cost_error_second_half),
            ),
            overall: check(&|r| r.overall),
            first_half: check(&|r| r.first_half),
            second_half: check(&|r| r.second_half),
            tenths: (0..PARTS).map(|part| check(&|r| r.tenths[part])).collect(),
        }
    }
}

/// What not knowing costs over all runs, as a share, and the standard error of that where there are
/// several.
fn price(runs: &[SeedReport]) -> Option<(f64, Option<f64>)> {
    let costs: Vec<(f64, f64)> = runs
        .iter()
        .filter_map(|run| Some((run.learned.total_cost, run.learned.oracle_total_cost?)))
        .collect();
    let oracle = mean(costs.iter().map(|(_, oracle)| *oracle)).filter(|mean| *mean > 0.0)?;
    let more = mean(costs.iter().map(|(ours, oracle)| ours - oracle))?;
    let squares: f64 = costs.iter().map(|(a, b)| (a - b - more) * (a - b - more)).sum();
    let count = costs.len() as f64;
    let error = (count > 1.0).then(|| (squares / (count - 1.0) / count).sqrt() / oracle);
    Some((more / oracle, error))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0_u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}

fn mean_check(checks: Vec<Check>) -> Check {
    let of = |value: fn(&Check) -> Option<f64>| mean(checks.iter().filter_map(value));
    let sum = |value: fn(&CostCheck) -> f64| mean(checks.iter().map(|c| value(&c.cost)));
    Check {
        time_error: of(|c| c.time_error),
        energy_error: of(|c| c.energy_error),
        coverage: of(|c| c.coverage),
        cost: CostCheck {
            jobs: sum(|c| c.jobs as f64).unwrap_or_default().round() as usize,
            predicted_eur: sum(|c| c.predicted_eur).unwrap_or_default(),
            actual_eur: sum(|c| c.actual_eur).unwrap_or_default(),
            error: of(|c| c.cost.error),
        },
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let (mut scenario, file) = source::read_scenario(&args.scenario)?;
    scenario.foresight = Foreseen::Learned;
    if let Some(jobs) = args.jobs {
        scenario.jobs.count = jobs;
    }
    if let Some(noise) = args.noise {
        scenario.world.noise = source::number("--noise", noise, 0.0, 2.0)?;
    }
    if args.policies.is_empty() {
        return Err(Failure::input(anyhow!("--policies names no policy")));
    }
    let seeds: Vec<u64> =
        (0..u64::from(args.seeds)).map(|k| scenario.seed.wrapping_add(k)).collect();
    let mut policies: Vec<PolicyReport> = args
        .policies
        .iter()
        .map(|policy| PolicyReport {
            policy: policy.clone(),
            mean: Learned::default(),
            runs: Vec::new(),
        })
        .collect();
    let how = How { forecast: true, with_oracle: true, ..How::default() };
    for seed in &seeds {
        let instance = scenario.instance(&file, Some(*seed)).map_err(Failure::input)?;
        let outcomes = compare::run_policies(&instance, &args.policies, how)?;
        compare::warn(&outcomes);
        for (report, outcome) in policies.iter_mut().zip(&outcomes) {
            report.runs.push(SeedReport { seed: *seed, learned: Learned::of(outcome) });
        }
    }
    for report in &mut policies {
        report.mean = Learned::mean(&report.runs);
    }
    let report = Report {
        schema: "wattline.predict.learn/1",
        scenario: scenario.name,
        jobs: scenario.jobs.count,
        noise: scenario.world.noise,
        seeds,
        policies,
    };
    if args.json { output::json(&report) } else { output::text(&text(&report)) }
}

fn text(report: &Report) -> String {
    let mut text = format!(
        "{}: {} jobs, noise {}, {} seeds, from nothing\n",
        output::harmless(&report.scenario),
        report.jobs,
        report.noise,
        report.seeds.len()
    );
    let header =
        ["policy", "seed", "total EUR", "vs oracle", "time error", "in 90 %", "energy error"];
    let header = [
        &header[..],
        &["forecast EUR, 1st half", "actual", "error", "forecast EUR, 2nd half", "actual", "error"],
        &["oracle's error"],
    ]
    .concat();
    let rows = report
        .policies
        .iter()
        .flat_map(|policy| {
            let seeds = policy.runs.iter().map(|run| (run.seed.to_string(), &run.learned));
            std::iter::once(("mean".to_owned(), &policy.mean))
                .chain(seeds)
                .map(|(seed, learned)| row(&policy.policy, seed, learned))
        })
        .collect();
    text += &output::table(&header, rows);
    text += "\n\nErrors by tenth of the jobs, mean over seeds:\n";
    let names: Vec<String> = (1..=PARTS).map(|part| part.to_string()).collect();
    let header: Vec<&str> =
        ["policy", "error"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let figures: [(&str, Figure); 4] = [
        ("time", |c| c.time_error),
        ("in 90 %", |c| c.coverage),
        ("energy", |c| c.energy_error),
        ("forecast cost", |c| c.cost.error),
    ];
    let rows = report
        .policies
        .iter()
        .flat_map(|policy| {
            figures.map(|(name, value)| {
                let parts = policy.mean.tenths.iter().map(|c| output::percent(value(c)));
                [policy.policy.clone(), name.to_owned()].into_iter().chain(parts).collect()
            })
        })
        .collect();
    let _ = writeln!(text, "{}", output::table(&header, rows));
    text
}

fn row(policy: &str, seed: String, learned: &Learned) -> Vec<String> {
    let mut row = vec![
        policy.to_owned(),
        seed,
        format!("{:.2}", learned.total_cost),
        learned.price_of_not_knowing.map_or_else(
            || "–".to_owned(),
            |price| match learned.price_standard_error {
                Some(error) => format!("{:+.1} ± {:.1} %", price * 100.0, error * 100.0),
                None => format!("{:+.1} %", price * 100.0),
            },
        ),
        output::percent(learned.overall.time_error),
        output::percent(learned.overall.coverage),
        output::percent(learned.overall.energy_error),
    ];
    for half in [&learned.first_half, &learned.second_half] {
        row.push(format!("{:.2}", half.cost.predicted_eur));
        row.push(format!("{:.2}", half.cost.actual_eur));
        row.push(output::percent(half.cost.error));
    }
    row.push(output::percent(learned.oracle_cost_error_second_half));
    row
}
