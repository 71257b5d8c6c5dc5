//! `wattline bench gap`: how far a policy is from the optimum, on small problems where that is
//! known.

use crate::failure::{Failure, Result};
use crate::output;
use crate::progress::Progress;
use rayon::prelude::*;
use serde::Serialize;
use wattline_sim::simulation::SimulationError;
use wattline_sim::small::{Gap, GapError, gaps};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many random problems: 3 to 8 jobs, all there from the beginning, on 2 to 4 nodes
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    instances: u32,
    /// The first problem's seed; the others follow
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Policies, separated by commas; `wattline policies` lists them and their options
    #[arg(long = "policy", value_delimiter = ',', default_value = "fifo,edf,andreas")]
    policies: Vec<String>,
    /// Print JSON (schema wattline.bench.gap/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    instances: u32,
    seed: u64,
    results: Vec<Row>,
}

/// Gaps are parts of the optimum: 0.03 is 3 % above it.
#[derive(Serialize)]
struct Row {
    policy: String,
    gap_mean: f64,
    gap_p50: f64,
    gap_p90: f64,
    gap_max: f64,
    /// The seed of the problem with the largest gap.
    worst_seed: u64,
    /// Problems on which the optimum is reached.
    optimal: usize,
    /// EUR over all problems.
    cost: f64,
    /// EUR over all problems.
    optimum: f64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let progress = Progress::new(args.instances as usize, "problems");
    let seeds: Vec<u64> =
        (0..u64::from(args.instances)).map(|at| args.seed.wrapping_add(at)).collect();
    let measured = seeds.into_par_iter().map(|seed| {
        let found = gaps(seed, &args.policies);
        progress.advance(1);
        found
    });
    let by_seed: Vec<Vec<Gap>> =
        measured.collect::<std::result::Result<_, GapError>>().map_err(|error| match error {
            GapError::Simulation(SimulationError::Policy(error)) => Failure::input(error),
            error => Failure::Failed(error.into()),
        })?;
    let results = args
        .policies
        .iter()
        .enumerate()
        .map(|(at, policy)| {
            let gaps: Vec<Gap> = by_seed.iter().map(|gaps| gaps[at]).collect();
            Row::new(policy, &gaps)
        })
        .collect();
    drop(progress);
    let report = Report {
        schema: "wattline.bench.gap/1",
        instances: args.instances,
        seed: args.seed,
        results,
    };
    if args.json {
        return output::json(&report);
    }
    let header = [
        "policy",
        "mean gap",
        "median",
        "p90",
        "max",
        "worst seed",
        "optimal",
        "total EUR",
        "optimum EUR",
    ];
    let rows = report.results.iter().map(|row| {
        let share = |gap: f64| format!("{:.2} %", gap * 100.0);
        vec![
            row.policy.clone(),
            share(row.gap_mean),
            share(row.gap_p50),
            share(row.gap_p90),
            share(row.gap_max),
            row.worst_seed.to_string(),
            format!("{}/{}", row.optimal, report.instances),
            format!("{:.2}", row.cost),
            format!("{:.2}", row.optimum),
        ]
    });
    output::text(&output::table(&header, rows.collect()))
}

/// Costs that agree to so many digits are the same.
const EQUAL: f64 = 1e-6;

impl Row {
    fn new(policy: &str, gaps: &[Gap]) -> Self {
        let mut ratios: Vec<f64> = gaps.iter().map(Gap::ratio).collect();
        ratios.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (share * ratios.len() as f64).ceil().max(1.0) as usize;
            ratios.get(rank.min(ratios.len()) - 1).copied().unwrap_or(0.0)
        };
        let worst = gaps.iter().max_by(|a, b| a.ratio().total_cmp(&b.ratio()));
        Self {
            policy: policy.to_owned(),
            gap_mean: ratios.iter().sum::<f64>() / ratios.len().max(1) as f64,
            gap_p50: at(0.5),
            gap_p90: at(0.9),
            gap_max: at(1.0),
            worst_seed: worst.map_or(0, |gap| gap.seed),
            optimal: ratios.iter().filter(|ratio| **ratio < EQUAL).count(),
            cost: gaps.iter().map(|gap| gap.cost).sum(),
            optimum: gaps.iter().map(|gap| gap.optimum).sum(),
        }
    }
}
