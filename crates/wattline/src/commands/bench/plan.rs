//! `wattline bench plan`: how long a policy takes to plan, and how that grows.
//!
//! The view is made up and the same in every run (see `wattline_sim::synthetic`). A plan's time has
//! the checker and the steps towards the plan in it, as in live use.

use super::peak_memory_mb;
use crate::failure::{Failure, Result};
use crate::output;
use crate::source::number;
use anyhow::anyhow;
use serde::Serialize;
use std::time::{Duration, Instant};
use wattline_core::engine::Event;
use wattline_core::job::Elasticity;
use wattline_sim::foresight::Foresight;
use wattline_sim::simulation::SimulationError;
use wattline_sim::synthetic::{self, Size, SyntheticCluster};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Nodes, half of them with H200 and half with V100
    #[arg(long, default_value_t = 100, conflicts_with = "scaling")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: u32,
    /// GPUs in each node
    #[arg(long, value_name = "G", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=64))]
    gpus_per_node: u8,
    /// Jobs that run or wait
    #[arg(long, default_value_t = 500, conflicts_with = "scaling")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    jobs: u32,
    /// The policy; `wattline policies` lists them and their options
    #[arg(long, default_value = "edf")]
    policy: String,
    /// Plans after an event, in turn the end of a job and the arrival of one
    #[arg(long, value_name = "R", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    repeat: u32,
    /// Go on to the next size when plans have taken so many seconds
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    most_seconds: f64,
    /// From 10 nodes with 50 jobs to 2,000 nodes with 20,000 jobs
    #[arg(long)]
    scaling: bool,
    /// Instead of --jobs: this many jobs wait beside those that run, in turn; each with all of
    /// --elasticity [example: 1000,10000,100000]
    #[arg(long, value_name = "N,…", value_delimiter = ',', conflicts_with_all = ["scaling", "jobs"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    waiting: Vec<u32>,
    /// All jobs are rigid (and may not be moved once they run), moldable, malleable or adaptive
    /// [default: a mixture; with --waiting rigid,malleable]
    #[arg(long, value_delimiter = ',')]
    elasticity: Vec<Elasticity>,
    /// What the policy knows: learned (the real predictor, with readings of every workload) or
    /// oracle (the truth, which is asked for less)
    #[arg(long, value_name = "KNOWN", default_value = "learned")]
    foresight: Foresight,
    /// The power budget over what the machines can draw at most
    #[arg(long, value_name = "SHARE", default_value_t = 0.8)]
    budget_share: f64,
    /// Seed of the jobs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON (schema wattline.bench.plan/1)
    #[arg(long)]
    json: bool,
}

/// Nodes and jobs of `--scaling`.
const SCALING: [(u32, u32); 5] =
    [(10, 50), (100, 500), (500, 5_000), (1_000, 10_000), (2_000, 20_000)];
/// Plans from scratch, each with a policy that has seen nothing.
const FROM_SCRATCH: usize = 5;
/// Plans after a measurement.
const MEASURED: usize = 20;

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    policy: String,
    foresight: String,
    seed: u64,
    /// The largest size.
    #[serde(flatten)]
    last: Option<Figures>,
    sizes: Vec<Figures>,
}

#[derive(Clone, Serialize)]
struct Figures {
    nodes: u32,
    gpus_per_node: u8,
    jobs: u32,
    /// The same for all jobs, or `mixed`.
    elasticity: String,
    running: usize,
    waiting: usize,
    /// Plans after an event.
    plans: usize,
    plan_ms_mean: f64,
    plan_ms_p50: f64,
    plan_ms_p99: f64,
    plan_ms_max: f64,
    plans_per_s: f64,
    /// Plans after the end of a job that was measured: work that the predictor puts off until it is
    /// asked is in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_ms_mean: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_ms_max: Option<f64>,
    /// Plans of a policy that has seen nothing before.
    scratch_plans: usize,
    scratch_ms_mean: f64,
    scratch_ms_max: f64,
    /// The very first plan, which also asks the predictor for all it has not been asked before.
    first_ms: f64,
    refused: u64,
    build_s: f64,
    /// Of the process, up to the end of this size.
    peak_memory_mb: f64,
    /// Mean time against that of the size before with such jobs, and jobs against jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    growth: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs_growth: Option<f64>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    wattline_policies::policy(&args.policy).map_err(Failure::input)?;
    number("--budget-share", args.budget_share, 0.05, 10.0)?;
    number("--most-seconds", args.most_seconds, 0.0, 1e6)?;
    let sizes = sizes(args)?;
    let mut figures: Vec<Figures> = Vec::new();
    for size in &sizes {
        if sizes.len() > 1 {
            let kind = kind(size.elasticity);
            output::note(&format!("{} nodes, {} jobs, {kind}", size.nodes, size.jobs));
        }
        let mut measured = measure(size, args)?;
        if let Some(before) = figures.last().filter(|f| f.elasticity == measured.elasticity) {
            measured.growth = Some(measured.plan_ms_mean / before.plan_ms_mean.max(1e-9));
            measured.jobs_growth = Some(f64::from(measured.jobs) / f64::from(before.jobs));
        }
        figures.push(measured);
    }
    let report = Report {
        schema: "wattline.bench.plan/1",
        policy: args.policy.clone(),
        foresight: args.foresight.to_string(),
        seed: args.seed,
        last: figures.last().cloned(),
        sizes: figures,
    };
    if args.json { output::json(&report) } else { output::text(&text(&report)) }
}

/// The sizes to measure, one kind of jobs after the other.
fn sizes(args: &Args) -> Result<Vec<Size>> {
    let mut kinds: Vec<Option<Elasticity>> = args.elasticity.iter().copied().map(Some).collect();
    if kinds.is_empty() && !args.waiting.is_empty() {
        kinds = vec![Some(Elasticity::Rigid), Some(Elasticity::Malleable)];
    } else if kinds.is_empty() {
        kinds = vec![None];
    }
    let mut sizes = Vec::new();
    for elasticity in kinds {
        let size = |nodes, jobs| {
            let (gpus_per_node, budget_share) = (args.gpus_per_node, args.budget_share);
            Size { nodes, gpus_per_node, jobs, budget_share, elasticity }
        };
        if args.scaling {
            sizes.extend(SCALING.map(|(nodes, jobs)| size(nodes, jobs)));
        } else if args.waiting.is_empty() {
            sizes.push(size(args.nodes, args.jobs));
        } else {
            for waiting in &args.waiting {
                sizes.push(with_waiting(*waiting, |jobs| size(args.nodes, jobs), args)?);
            }
        }
    }
    Ok(sizes)
}

/// The size at which this many jobs wait beside those that run. How many run depends a little on
/// how many there are: elastic jobs start on more GPUs when their deadlines have come near.
fn with_waiting(waiting: u32, size: impl Fn(u32) -> Size, args: &Args) -> Result<Size> {
    /// Two or three are enough unless one size more or less changes what runs; then the nearest
    /// will do, and the table shows what it is.
    const TRIES: usize = 6;
    let gpus = args.nodes.saturating_mul(args.gpus_per_node.into());
    let mut tried = size(waiting.saturating_add(gpus / 2));
    for _ in 0..TRIES {
        let jobs = waiting.saturating_add(running(&tried, args)?);
        if jobs == tried.jobs {
            break;
        }
        tried = size(jobs);
    }
    Ok(tried)
}

/// How many jobs run on the nodes at first.
fn running(size: &Size, args: &Args) -> Result<u32> {
    let failed = |error: SimulationError| Failure::Failed(error.into());
    let instance = synthetic::instance(size, to_come(args), args.foresight, args.seed)
        .map_err(|error| Failure::Failed(error.into()))?;
    let cluster = SyntheticCluster::new(instance, size.jobs as usize, "fifo").map_err(failed)?;
    Ok(cluster.running() as u32)
}

/// Jobs that arrive while plans are measured: every other event is an arrival.
fn to_come(args: &Args) -> u32 {
    args.repeat / 2 + MEASURED as u32 + 2
}

fn kind(elasticity: Option<Elasticity>) -> String {
    elasticity.map_or_else(|| "mixed".to_owned(), |elasticity| elasticity.to_string())
}

fn measure(size: &Size, args: &Args) -> Result<Figures> {
    let began = Instant::now();
    let failed = |error: SimulationError| Failure::Failed(error.into());
    let instance = synthetic::instance(size, to_come(args), args.foresight, args.seed)
        .map_err(|error| Failure::Failed(error.into()))?;
    let mut cluster =
        SyntheticCluster::new(instance, size.jobs as usize, &args.policy).map_err(failed)?;
    let build_s = began.elapsed().as_secs_f64();
    let running = cluster.running();
    let waiting = cluster.engine().state().unfinished() - running;

    let most = Duration::from_secs_f64(args.most_seconds);
    let mut scratch: Vec<f64> = Vec::new();
    let mut spent = Duration::ZERO;
    while scratch.len() <= FROM_SCRATCH && (scratch.len() < 2 || spent < most) {
        let policy = wattline_policies::policy(&args.policy).map_err(Failure::input)?;
        let mut fork = cluster.fork(policy).map_err(failed)?;
        let now = cluster.now();
        let began = Instant::now();
        let taken = fork.handle(now, Event::Clock);
        let took = began.elapsed();
        taken.map_err(|error| Failure::Failed(error.into()))?;
        spent += took;
        scratch.push(millis(took));
    }
    // The first of them filled the predictor's tables.
    let first_ms = scratch.remove(0);

    cluster.plan().map_err(failed)?;
    cluster.settle().map_err(failed)?;
    let mut plans = after_events(&mut cluster, args.repeat as usize, most, false)?;
    let learns = args.foresight == Foresight::Learned;
    let measured = if learns { MEASURED.min(args.repeat as usize) } else { 0 };
    let mut measured = after_events(&mut cluster, 2 * measured, most, true)?;
    let mean = sorted_mean(&mut plans);
    let scratch_mean = sorted_mean(&mut scratch);
    let measured_mean = sorted_mean(&mut measured);
    Ok(Figures {
        nodes: size.nodes,
        gpus_per_node: size.gpus_per_node,
        jobs: size.jobs,
        elasticity: kind(size.elasticity),
        running,
        waiting,
        plans: plans.len(),
        plan_ms_mean: mean,
        plan_ms_p50: at(&plans, 0.5),
        plan_ms_p99: at(&plans, 0.99),
        plan_ms_max: at(&plans, 1.0),
        plans_per_s: 1e3 / mean.max(1e-9),
        measured_ms_mean: learns.then_some(measured_mean),
        measured_ms_max: learns.then(|| at(&measured, 1.0)),
        scratch_plans: scratch.len(),
        scratch_ms_mean: scratch_mean,
        scratch_ms_max: at(&scratch, 1.0),
        first_ms,
        refused: cluster.engine().stats().refused,
        build_s,
        peak_memory_mb: peak_memory_mb(),
        growth: None,
        jobs_growth: None,
    })
}

/// Times of plans, each after an event; where jobs are measured, only of those after an end.
fn after_events(
    cluster: &mut SyntheticCluster,
    events: usize,
    most: Duration,
    measured: bool,
) -> Result<Vec<f64>> {
    let failed = |error: SimulationError| Failure::Failed(error.into());
    let mut plans: Vec<f64> = Vec::new();
    let mut spent = Duration::ZERO;
    for event in 0..events {
        if event > 0 && spent >= most {
            break;
        }
        let unfinished = cluster.engine().state().unfinished();
        cluster.step(measured).map_err(failed)?;
        let ended = cluster.engine().state().unfinished() < unfinished;
        let made = cluster.engine().stats().plans;
        let began = Instant::now();
        cluster.plan().map_err(failed)?;
        let took = began.elapsed();
        if cluster.engine().stats().plans == made {
            return Err(Failure::Failed(anyhow!("an event was not followed by a plan")));
        }
        cluster.settle().map_err(failed)?;
        spent += took;
        if ended || !measured {
            plans.push(millis(took));
        }
    }
    Ok(plans)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Sorts the values; the mean.
fn sorted_mean(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The least value that this share of all does not exceed.
fn at(sorted: &[f64], share: f64) -> f64 {
    let place = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(place.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

fn text(report: &Report) -> String {
    let mut header = vec![
        "nodes",
        "GPUs",
        "jobs",
        "elasticity",
        "running",
        "waiting",
        "plans",
        "mean ms",
        "p50 ms",
        "p99 ms",
        "max ms",
        "plans/s",
        "measured ms",
        "from scratch ms",
        "first ms",
        "peak MB",
        "refused",
    ];
    let several = report.sizes.len() > 1;
    if several {
        header.extend(["time ×", "jobs ×"]);
    }
    let rows = report
        .sizes
        .iter()
        .map(|f| {
            let ms = |x: f64| format!("{x:.3}");
            let mut row = vec![
                f.nodes.to_string(),
                (f.nodes * u32::from(f.gpus_per_node)).to_string(),
                f.jobs.to_string(),
                f.elasticity.clone(),
                f.running.to_string(),
                f.waiting.to_string(),
                f.plans.to_string(),
                ms(f.plan_ms_mean),
                ms(f.plan_ms_p50),
                ms(f.plan_ms_p99),
                ms(f.plan_ms_max),
                format!("{:.0}", f.plans_per_s),
                f.measured_ms_mean.map_or_else(|| "–".to_owned(), ms),
                ms(f.scratch_ms_mean),
                ms(f.first_ms),
                format!("{:.0}", f.peak_memory_mb),
                f.refused.to_string(),
            ];
            if several {
                let times =
                    |x: Option<f64>| x.map_or_else(|| "–".to_owned(), |x| format!("{x:.1}"));
                row.extend([times(f.growth), times(f.jobs_growth)]);
            }
            row
        })
        .collect();
    format!(
        "{}\n{}: a plan after each event (a job ends, a job arrives), checker included; \
         measured: the job that ended was measured, so the predictor fits anew; from scratch: by a \
         policy that has seen nothing; first: asks the predictor for the first time; foresight {}, \
         seed {}\n",
        output::table(&header, rows),
        report.policy,
        report.foresight,
        report.seed,
    )
}
