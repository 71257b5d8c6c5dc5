//! `wattline serve`: the engine live, over an emulated cluster.

use crate::failure::{Failure, Result};
use crate::output;
use crate::source::Source;
use anyhow::Context;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use wattline_controller::store::Store;
use wattline_controller::{Controller, ControllerError, Emulated};
use wattline_core::Timestamp;
use wattline_core::power::NodePower;
use wattline_core::units::Seconds;
use wattline_sim::begin::begin;
use wattline_sim::instance::Instance;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// The policy; `wattline policies` lists them and their options
    #[arg(long, default_value = "wattline")]
    policy: String,
    /// Where all that happens is written down. If the file is there, it goes on where it ended
    #[arg(long, value_name = "FILE", default_value = "wattline.journal")]
    journal: PathBuf,
    /// Seconds of the emulated cluster in a second
    #[arg(long, value_name = "X", default_value_t = 600.0)]
    speed: f64,
    /// Print JSON, one object a line (schema wattline.serve/1)
    #[arg(long)]
    json: bool,
}

/// How often it says how things are.
const SAY_EVERY: Duration = Duration::from_secs(1);
/// Nobody waits longer than this for a turn.
const LONGEST_NAP: Duration = Duration::from_millis(100);

/// How things are.
#[derive(Serialize)]
struct Status {
    schema: &'static str,
    /// Since the beginning, on the cluster's clock.
    time_s: f64,
    waiting: usize,
    running: usize,
    finished: usize,
    /// Of those that will come.
    jobs: usize,
    drawn_w: f64,
    committed_w: f64,
    budget_w: Option<f64>,
    nodes_up: usize,
    nodes_asleep: usize,
    plans: u64,
    journal: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if !(args.speed.is_finite() && args.speed > 0.0 && args.speed <= 1e6) {
        let error = anyhow::anyhow!("--speed: {} is not between 0 and 1,000,000", args.speed);
        return Err(Failure::input(error));
    }
    let instance = args.source.instance()?;
    for note in &instance.notes {
        output::note(note);
    }
    let mut controller = open(args, &instance)?;
    if !controller.store().is_empty() {
        let (entries, jobs) = (controller.store().len(), controller.engine().state().job_count());
        output::note(&format!(
            "{}: goes on after {entries} entries, with {jobs} jobs submitted so far",
            args.journal.display()
        ));
    }
    let (first, began) = (controller.now(), Instant::now());
    let mut said: Option<Instant> = None;
    loop {
        let now = first + Seconds::new(began.elapsed().as_secs_f64() * args.speed);
        let arrived = controller.engine().state().job_count();
        for job in instance.jobs[arrived..].iter().take_while(|job| job.submit <= now) {
            controller.submit(now, Arc::clone(job)).map_err(failed)?;
        }
        controller.turn(now).map_err(failed)?;
        let state = controller.engine().state();
        let done = state.job_count() == instance.jobs.len() && state.unfinished() == 0;
        if done || said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
            say(&status(&controller, &instance), args.json)?;
            said = Some(Instant::now());
        }
        if done {
            return Ok(());
        }
        thread::sleep(nap(&controller, &instance, now, args.speed));
    }
}

fn open(args: &Args, instance: &Instance) -> Result<Controller<Emulated>> {
    let (engine, world) = begin(instance, &args.policy, false).map_err(Failure::input)?;
    let jobs = format!("{} jobs, {:016x}", instance.jobs.len(), fingerprint(instance));
    let about = [("policy", args.policy.as_str()), ("cluster or its jobs", &jobs)];
    let store = Store::open(&args.journal, &about).map_err(Failure::input)?;
    let cluster = Emulated::new(world, instance.start);
    let controller = Controller::reenact(engine, store, cluster, instance.start);
    controller.with_context(|| args.journal.display().to_string()).map_err(Failure::Failed)
}

fn failed(error: ControllerError) -> Failure {
    Failure::Failed(error.into())
}

/// Tells one instance from another (FNV-1a).
fn fingerprint(instance: &Instance) -> u64 {
    let parts =
        (&instance.cluster, &instance.jobs, &instance.prices, &instance.budget, &instance.world);
    let text = format!("{parts:?}");
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Until the next thing to do, in the caller's time.
fn nap(
    controller: &Controller<Emulated>,
    instance: &Instance,
    now: Timestamp,
    speed: f64,
) -> Duration {
    let arrival = instance.jobs.get(controller.engine().state().job_count()).map(|job| job.submit);
    let next = arrival.into_iter().chain(controller.next_turn()).min();
    let wait = next.map_or(f64::INFINITY, |next| next.since(now).get() / speed);
    Duration::from_secs_f64(wait.clamp(0.001, LONGEST_NAP.as_secs_f64()))
}

fn status(controller: &Controller<Emulated>, instance: &Instance) -> Status {
    let engine = controller.engine();
    let state = engine.state();
    let nodes = |power: NodePower| {
        state.cluster().node_ids().filter(|id| state.node(*id).power == power).count()
    };
    let running = state.held_jobs();
    Status {
        schema: "wattline.serve/1",
        time_s: controller.now().since(instance.start).get(),
        waiting: state.unfinished() - running,
        running,
        finished: state.job_count() - state.unfinished(),
        jobs: instance.jobs.len(),
        drawn_w: controller.backend().world().meter().drawn().get(),
        committed_w: state.held_committed().get(),
        budget_w: engine.budget_at(controller.now()).map(|budget| budget.get()),
        nodes_up: nodes(NodePower::Up),
        nodes_asleep: nodes(NodePower::Asleep),
        plans: engine.stats().plans,
        journal: controller.store().len(),
    }
}

fn say(status: &Status, json: bool) -> Result<()> {
    if json {
        return output::text(&serde_json::to_string(status)?);
    }
    let Status { waiting, running, finished, jobs, nodes_up, nodes_asleep, journal, .. } = status;
    let budget = status.budget_w.map_or_else(String::new, |w| format!(" of {:.1} kW", w / 1e3));
    output::text(&format!(
        "{}: {waiting} waiting, {running} running, {finished} of {jobs} finished; \
         {:.1} kW drawn, {:.1} kW committed{budget}; {nodes_up} nodes up, {nodes_asleep} asleep; \
         {journal} journal entries",
        output::duration(status.time_s),
        status.drawn_w / 1e3,
        status.committed_w / 1e3,
    ))
}
