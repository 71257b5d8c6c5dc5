//! `wattline bench`: Wattline's own speed, on pinned workloads.

mod ablation;
mod andreas;
mod gap;
mod history;
mod plan;
mod predict;
mod results;
mod serve;

use super::compare::{self, How};
use crate::failure::Result;
use crate::output;
use crate::source::Source;
use serde::Serialize;
use std::time::Instant;
use wattline_core::Timestamp;
use wattline_world::queue::EventQueue;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Events per second of the simulator, and how cost per event grows with the number of jobs
    Sim(Box<SimArgs>),
    /// What each part and each constant of the policy wattline is worth on a tuning set
    #[command(
        after_help = "Examples:\n  wattline bench ablation --quick\n  wattline bench ablation --only rollouts,shortness"
    )]
    Ablation(ablation::Args),
    /// What policies cost on a folder of ANDREAS instances, against the best of other methods
    Andreas(andreas::Args),
    /// How long a policy takes to plan, on a made-up view of any size
    Plan(plan::Args),
    /// A controller with 10,000 jobs waiting for 1,000 nodes: control cycle, API latency, memory
    Serve(serve::Args),
    /// What a million ended jobs cost: restart, memory, turns of the loop, reports
    History(history::Args),
    /// Run the commands of a list and write a page with what they print
    Results(results::Args),
    /// Fits, predictions and online updates per second of the predictor, with 10,000 measurements
    Predict(predict::Args),
    /// How far policies are from the optimum, on small random problems where that is known
    Gap(gap::Args),
}

#[derive(Debug, clap::Args)]
pub(crate) struct SimArgs {
    #[command(flatten)]
    source: Source,
    /// Policies, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "fifo,edf,tiresias")]
    policies: Vec<String>,
    /// Run on the first 1/8, 1/4, 1/2 and all of the jobs
    #[arg(long)]
    scaling: bool,
    /// Print JSON (schema wattline.bench.sim/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    /// Push and pop of the bare event queue, with 100,000 events in it.
    queue_events_per_s: f64,
    runs: Vec<Run>,
    peak_memory_mb: f64,
}

#[derive(Serialize)]
struct Run {
    policy: String,
    jobs: usize,
    finished: usize,
    events: u64,
    plans: u64,
    actions: u64,
    wall_s: f64,
    events_per_s: f64,
    us_per_event: f64,
    us_per_job: f64,
}

pub(crate) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Sim(args) => sim(args),
        Command::Ablation(args) => ablation::run(args),
        Command::Andreas(args) => andreas::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Results(args) => results::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Predict(args) => predict::run(args),
        Command::Gap(args) => gap::run(args),
        Command::History(args) => history::run(args),
    }
}

fn sim(args: &SimArgs) -> Result<()> {
    let instance = args.source.instance()?;
    let all = instance.jobs.len();
    let sizes = if args.scaling { vec![all / 8, all / 4, all / 2, all] } else { vec![all] };
    let mut runs = Vec::new();
    for policy in &args.policies {
        for size in &sizes {
            let mut part = instance.clone();
            part.jobs.truncate(*size);
            // One at a time, on one thread: policies must not slow each other down.
            let policies = std::slice::from_ref(policy);
            let how = How { threads: Some(1), ..How::default() };
            let outcomes = compare::run_policies(&part, policies, how)?;
            for outcome in outcomes {
                let s = outcome.summary;
                runs.push(Run {
                    policy: s.policy,
                    jobs: s.jobs,
                    finished: s.finished,
                    events: s.events,
                    plans: s.plans,
                    actions: s.actions,
                    wall_s: s.wall_s,
                    events_per_s: s.events_per_s,
                    us_per_event: s.wall_s * 1e6 / s.events.max(1) as f64,
                    us_per_job: s.wall_s * 1e6 / s.jobs.max(1) as f64,
                });
            }
        }
    }
    let report = Report {
        schema: "wattline.bench.sim/1",
        queue_events_per_s: queue_speed(),
        runs,
        peak_memory_mb: peak_memory_mb(),
    };
    if args.json {
        return output::json(&report);
    }
    let header = [
        "policy", "jobs", "finished", "events", "plans", "wall s", "events/s", "us/event", "us/job",
    ];
    let rows = report
        .runs
        .iter()
        .map(|r| {
            vec![
                r.policy.clone(),
                r.jobs.to_string(),
                r.finished.to_string(),
                r.events.to_string(),
                r.plans.to_string(),
                format!("{:.3}", r.wall_s),
                format!("{:.0}", r.events_per_s),
                format!("{:.2}", r.us_per_event),
                format!("{:.2}", r.us_per_job),
            ]
        })
        .collect();
    output::text(&format!(
        "{}\nbare event queue: {:.1} million events/s; peak memory of the process: {:.0} MB\n",
        output::table(&header, rows),
        report.queue_events_per_s / 1e6,
        report.peak_memory_mb
    ))
}

/// Pushes and pops, with many events waiting, as in a large simulation.
fn queue_speed() -> f64 {
    const WAITING: i64 = 100_000;
    const EVENTS: i64 = 3_000_000;
    let mut queue = EventQueue::default();
    // A full-period linear congruence: times in no particular order, the same in every run.
    let mut time: i64 = 1;
    let mut next = || {
        time = (time * 1_103_515_245 + 12_345) % (1 << 31);
        time
    };
    for _ in 0..WAITING {
        queue.push(Timestamp::from_micros(next()), ());
    }
    let began = Instant::now();
    for _ in 0..EVENTS {
        if let Some((now, ())) = queue.pop_by(Timestamp::FAR_FUTURE) {
            queue.push(Timestamp::from_micros(now.micros() + next()), ());
        }
    }
    EVENTS as f64 / began.elapsed().as_secs_f64()
}

/// The most memory this process has had, from the kernel; zero where it does not tell.
fn peak_memory_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<f64>().ok())
        .map_or(0.0, |kilobytes| kilobytes / 1024.0)
}
