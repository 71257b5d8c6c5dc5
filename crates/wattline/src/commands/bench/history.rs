//! `wattline bench history`: whether what has ended costs anything.
//!
//! Two journals are made by the very controller that runs live, over a cluster that confirms at
//! once what it is told: one with so many ended jobs, one with none, both with the same jobs that
//! wait or run. Then each is opened in a process of its own, as after a restart, and turns.

use super::peak_memory_mb;
use crate::failure::{Failure, Result};
use crate::{output, site};
use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wattline_controller::job_history::JobHistory;
use wattline_controller::journal::{Keep, Store};
use wattline_controller::{
    Answer, Backend, BackendError, BackendEvent, Controller, ControllerError, InitialState, Known,
    Origin, Planner, Report, Submission,
};
use wattline_core::Timestamp;
use wattline_core::action::{Action, ActionKind};
use wattline_core::engine::{Event, PlanInput};
use wattline_core::ids::{GpuTypeId, JobId, NodeId};
use wattline_core::job::Job;
use wattline_core::placement::{Allocation, Configuration, Placement, Share};
use wattline_core::predictor::Predictor;
use wattline_core::state::Phase;
use wattline_core::units::Seconds;
use wattline_sim::begin::begin;
use wattline_sim::foresight::Foresight;
use wattline_sim::instance::Instance;
use wattline_sim::synthetic::{self, Size};

/// The cluster: as many GPUs as keep a quarter of a thousand jobs running.
const SIZE: Size =
    Size { nodes: 32, gpus_per_node: 8, jobs: 1, budget_share: 0.8, elasticity: None };
/// Ended jobs in one entry of the journal.
const TOGETHER: u32 = 500;
/// A job ends this often: a million in a year.
const APART: Seconds = Seconds::new(31.5);
/// Users, so that none has all.
const USERS: u32 = 200;
/// Entries between snapshots while the history is made; what no restart needs is thrown away.
const ENTRIES_PER_SNAPSHOT: u64 = 200;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Jobs that have ended
    #[arg(long, default_value_t = 1_000_000)]
    ended: u32,
    /// Jobs that wait or run
    #[arg(long, default_value_t = 1_000)]
    live: u32,
    /// The policy
    #[arg(long, default_value = "wattline")]
    policy: String,
    /// Turns to measure; each hears of a job that ends or comes
    #[arg(long, default_value_t = 1500)]
    turns: u32,
    /// Where the journals are made (and removed again)
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// Only measure this journal: what the command starts for each of its two
    #[arg(long, hide = true)]
    measure: Option<PathBuf>,
    /// Print JSON (schema wattline.bench.history/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Figures {
    schema: &'static str,
    ended: u32,
    live: u32,
    policy: String,
    /// Making the history, through the controller.
    made_s: f64,
    journal_mb: f64,
    with_history: Measured,
    without: Measured,
    /// The ratio of the 99th percentiles of turns, plans left out.
    turn_p99_ratio: f64,
}

#[derive(Serialize, Deserialize)]
struct Measured {
    ended: u64,
    live: usize,
    restart_s: f64,
    /// Right after the restart, and at most.
    rss_mb: f64,
    peak_mb: f64,
    turns: usize,
    turn_p50_ms: f64,
    turn_p99_ms: f64,
    plans: usize,
    plan_p50_ms: f64,
    /// All jobs that ended in one day, or were submitted in it.
    report_s: f64,
    report_jobs: usize,
    one_job_ms: f64,
}

fn failed(error: ControllerError) -> Failure {
    Failure::Failed(error.into())
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(path) = &args.measure {
        return output::json(&measure(args, path)?);
    }
    let folder = tempfile_in(&args.folder)?;
    let (full, empty) = (folder.0.join("with"), folder.0.join("without"));
    let began = Instant::now();
    make(args, &full, args.ended)?;
    let made_s = began.elapsed().as_secs_f64();
    make(args, &empty, 0)?;
    let bytes = std::fs::metadata(&full).with_context(|| full.display().to_string());
    let journal_mb = bytes.map_err(Failure::Failed)?.len() as f64 / 1e6;
    let (with_history, without) = (in_a_process(args, &full)?, in_a_process(args, &empty)?);
    let figures = Figures {
        schema: "wattline.bench.history/1",
        ended: args.ended,
        live: args.live,
        policy: args.policy.clone(),
        made_s,
        journal_mb,
        turn_p99_ratio: with_history.turn_p99_ms / without.turn_p99_ms,
        with_history,
        without,
    };
    if args.json {
        return output::json(&figures);
    }
    output::text(&text(&figures))
}

fn text(figures: &Figures) -> String {
    let header = [
        "ended jobs",
        "live",
        "restart s",
        "RSS MB",
        "peak MB",
        "turn p50 ms",
        "turn p99 ms",
        "plan p50 ms",
        "day's report s",
        "one job ms",
    ];
    let row = |m: &Measured| {
        vec![
            m.ended.to_string(),
            m.live.to_string(),
            format!("{:.2}", m.restart_s),
            format!("{:.0}", m.rss_mb),
            format!("{:.0}", m.peak_mb),
            format!("{:.3}", m.turn_p50_ms),
            format!("{:.3}", m.turn_p99_ms),
            format!("{:.1}", m.plan_p50_ms),
            format!("{:.3}", m.report_s),
            format!("{:.2}", m.one_job_ms),
        ]
    };
    let table = output::table(&header, vec![row(&figures.with_history), row(&figures.without)]);
    format!(
        "{table}\nturn p99 with the history to without: {:.2}. Turns leave plans out. The history \
         was made in {:.0} s; its journal has {:.0} MB.\n",
        figures.turn_p99_ratio, figures.made_s, figures.journal_mb
    )
}

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tempfile_in(folder: &Path) -> Result<Folder> {
    let path = folder.join(format!("bench-history-{}", std::process::id()));
    std::fs::create_dir_all(&path)
        .with_context(|| path.display().to_string())
        .map_err(Failure::Failed)?;
    Ok(Folder(path))
}

fn in_a_process(args: &Args, journal: &Path) -> Result<Measured> {
    let run = || -> anyhow::Result<Measured> {
        let output = std::process::Command::new(std::env::current_exe()?)
            .args(["bench", "history", "--measure"])
            .arg(journal)
            .args(["--live", &args.live.to_string(), "--turns", &args.turns.to_string()])
            .args(["--policy", &args.policy])
            .stderr(std::process::Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(anyhow!("measuring {} failed: {}", journal.display(), output.status));
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    run().map_err(Failure::Failed)
}

/// A cluster that does at once what it is told, and on which jobs end when the benchmark says so.
#[derive(Default)]
struct AtOnce {
    told: Vec<BackendEvent>,
}

impl Backend for AtOnce {
    fn send(
        &mut self,
        _: Timestamp,
        action: &Action,
        known: Known<'_>,
    ) -> std::result::Result<(), BackendError> {
        let id = action.id;
        let event = match action.kind {
            ActionKind::Start { job, .. } => Event::Started { job, action: id },
            ActionKind::Limit { job, .. } => Event::Limited { job, action: id },
            ActionKind::Stop { job, run } => {
                let state = known.engine.state().find_job(job);
                let done = state.map(|state| state.progress.done).unwrap_or_default();
                Event::Stopped { job, run, done }
            }
            ActionKind::Wake { node } => Event::NodeUp(node),
            ActionKind::Sleep { node } => Event::NodeAsleep(node),
        };
        self.told.push(BackendEvent::Event(event));
        Ok(())
    }

    fn reports(
        &mut self,
        _: Timestamp,
        from: u64,
        _: Known<'_>,
    ) -> std::result::Result<Vec<Report>, BackendError> {
        let numbered = std::mem::take(&mut self.told).into_iter().zip(from..);
        Ok(numbered.map(|(news, number)| Report { number, news }).collect())
    }

    fn next_event(&self) -> Option<Timestamp> {
        None
    }
}

/// A planner in line that says how long plans took.
struct Timed(Box<dyn Planner>, Instant);

impl Planner for Timed {
    fn policy(&self) -> &str {
        self.0.policy()
    }
    fn decides(&self) -> bool {
        self.0.decides()
    }
    fn is_free(&self) -> bool {
        self.0.is_free()
    }
    fn begin(&mut self, input: PlanInput, predictor: &dyn Predictor) {
        self.1 = Instant::now();
        self.0.begin(input, predictor);
    }
    fn poll(&mut self) -> Option<Answer> {
        let answer = self.0.poll()?;
        Some(Answer { took: self.1.elapsed(), ..answer })
    }
}

fn instance(args: &Args) -> Result<Instance> {
    let size = Size { jobs: args.live.max(1), ..SIZE };
    synthetic::instance(&size, args.turns, Foresight::Learned, 1).map_err(Failure::input)
}

fn open(args: &Args, instance: &Instance, path: &Path, policy: &str) -> Result<Controller<AtOnce>> {
    let (engine, _) = begin(instance, &args.policy, false).map_err(Failure::input)?;
    let workloads = instance.physics.names().map(Into::into).collect();
    let initial = InitialState { engine: engine.into_engine(), workloads, at: instance.start };
    let store = Store::open(path, &[]).map_err(Failure::input)?;
    let planner = Box::new(Timed(site::planner(policy)?, Instant::now()));
    Controller::open(initial, store, AtOnce::default(), planner).map_err(failed)
}

/// A journal with so many jobs that have ended, and then those that are live.
fn make(args: &Args, path: &Path, ended: u32) -> Result<()> {
    let instance = instance(args)?;
    // Ended jobs are only watched: nobody plans while the history is made.
    let mut controller = open(args, &instance, path, site::WATCH)?;
    let keep = Keep { younger_than: Some(Seconds::ZERO), ..Keep::default() };
    let mut now = instance.start;
    let (mut made, progress) = (0, crate::progress::Progress::new(ended as usize, "ended jobs"));
    while made < ended {
        let some = TOGETHER.min(ended - made);
        for number in made..made + some {
            now = now + APART;
            let told = &mut controller.backend_mut().told;
            lives_and_ends(told, &instance, JobId(number), now);
        }
        controller.turn(now).map_err(failed)?;
        while controller.poll_alert().is_some() {}
        drop((controller.take_ended(), controller.take_learned()));
        made += some;
        progress.advance(some as usize);
        if controller.entries_to_read() >= ENTRIES_PER_SNAPSHOT {
            controller.save(&keep).map_err(failed)?;
        }
    }
    for job in instance.jobs.iter().take(args.live as usize) {
        let mut job = Job::clone(job);
        job.deadline = job.deadline.map(|due| now + (due - job.submit));
        job.submit = now;
        controller.intake().submit_job(now, Arc::new(job)).map_err(failed)?;
    }
    controller.turn(now).map_err(failed)?;
    controller.set_planner(Box::new(Timed(site::planner(&args.policy)?, Instant::now())));
    for _ in 0..3 {
        now = now + APART;
        controller.turn(now).map_err(failed)?;
    }
    // Two snapshots, as a controller has that runs for a while; then it ends.
    controller.save(&keep).map_err(failed)?;
    controller.save(&keep).map_err(failed)
}

/// A job comes, runs alone on the first GPU for a while, and is done.
fn lives_and_ends(told: &mut Vec<BackendEvent>, instance: &Instance, id: JobId, now: Timestamp) {
    let like = &instance.jobs[id.index() % instance.jobs.len()];
    let mut job = Job::clone(like);
    job.submit = now;
    job.deadline = like.deadline.map(|due| now + (due - like.submit));
    let gpu_type = GpuTypeId(0);
    let power_limit = instance.cluster.gpu_type(gpu_type).default_limit;
    let batch = job.batch.requested;
    let user = format!("user{:03}", id.0 % USERS).into();
    let origin = Some(Origin { user, slurm: None });
    let (workload, hold) = (None, false);
    let submission =
        Submission { job, workload, origin, hold, host: None, bars: None, priority: None };
    told.push(BackendEvent::Submission(Box::new(submission)));
    let configuration = Configuration { gpu_type, gpus: 1, nodes: 1, batch, power_limit };
    let share = Share { node: NodeId(0), mask: 1 };
    let allocation = Allocation::over(std::iter::once(share).collect());
    let placement = Placement { configuration, allocation };
    told.push(BackendEvent::Event(Event::Found { job: id, placement }));
    told.push(BackendEvent::Event(Event::Finished(id)));
}

/// Opens a journal as after a restart, and turns.
fn measure(args: &Args, path: &Path) -> Result<Measured> {
    let instance = instance(args)?;
    let began = Instant::now();
    let mut controller = open(args, &instance, path, &args.policy)?;
    let restart = began.elapsed();
    let rss_mb = resident_mb();
    let mut now = controller.now();
    let live = controller.engine().state().unfinished();
    let (mut turns, mut plans) = (Vec::new(), Vec::new());
    let mut to_come = instance.jobs.iter().skip(args.live as usize);
    for turn in 0..args.turns {
        now = now + APART;
        // In turn one ends and one comes.
        if turn % 2 == 0 {
            let mut jobs = controller.engine().state().unfinished_jobs();
            let running = jobs.find(|(_, job)| job.phase == Phase::Running).map(|(id, _)| id);
            drop(jobs);
            if let Some(id) = running {
                controller.backend_mut().told.push(BackendEvent::Event(Event::Finished(id)));
            }
        } else if let Some(job) = to_come.next() {
            let mut job = Job::clone(job);
            job.deadline = job.deadline.map(|due| now + (due - job.submit));
            job.submit = now;
            controller.intake().submit_job(now, Arc::new(job)).map_err(failed)?;
        }
        let began = Instant::now();
        controller.turn(now).map_err(failed)?;
        let all = began.elapsed();
        let planned: Vec<Duration> = controller.take_plan_times();
        turns.push(all.saturating_sub(planned.iter().sum()));
        plans.extend(planned);
        drop((controller.take_ended(), controller.take_learned()));
        while controller.poll_alert().is_some() {}
    }
    let history = JobHistory::at(path);
    let ended = history.count().map_err(Failure::input)?;
    let day = Seconds::new(86_400.0);
    let middle = instance.start + APART * (ended as f64 / 2.0);
    let (began, mut report_jobs) = (Instant::now(), 0);
    history
        .between(middle, middle + day, |_| {
            report_jobs += 1;
            true
        })
        .map_err(|error| Failure::Failed(error.into()))?;
    let report_s = began.elapsed().as_secs_f64();
    let began = Instant::now();
    history.job(JobId(ended as u32 / 3)).map_err(|error| Failure::Failed(error.into()))?;
    let one_job_ms = began.elapsed().as_secs_f64() * 1e3;
    Ok(Measured {
        ended,
        live,
        restart_s: restart.as_secs_f64(),
        rss_mb,
        peak_mb: peak_memory_mb(),
        turns: turns.len(),
        turn_p50_ms: quantile(&mut turns, 0.5),
        turn_p99_ms: quantile(&mut turns, 0.99),
        plans: plans.len(),
        plan_p50_ms: quantile(&mut plans, 0.5),
        report_s,
        report_jobs,
        one_job_ms,
    })
}

fn quantile(times: &mut [Duration], share: f64) -> f64 {
    times.sort();
    let at = ((times.len() as f64 * share).ceil() as usize).clamp(1, times.len().max(1)) - 1;
    times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

fn resident_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    kilobytes.unwrap_or(0.0_f64) / 1e3
}
