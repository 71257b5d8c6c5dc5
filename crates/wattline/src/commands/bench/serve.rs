//! `wattline bench serve`: a controller with a long queue, and many who ask it.

use crate::commands::serve::policy_again;
use crate::failure::{Failure, Result};
use crate::output;
use crate::source::read_scenario;
use anyhow::{Context, anyhow};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use wattline_controller::daemon::{ClusterClock, Drive, Emulation, ReadModel};
use wattline_controller::http::{Access, Api, Audit, Limits, Listening, Sockets, claim};
use wattline_controller::journal::Store;
use wattline_controller::plan_time::PLAN_LIMIT;
use wattline_controller::{Controller, Emulated, InitialState};
use wattline_core::Timestamp;
use wattline_sim::begin::begin;
use wattline_sim::instance::Instance;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Jobs that wait
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    queued: usize,
    /// Requests a second: a third each of a page of the list, one job, and a submission
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// For how many seconds
    #[arg(long, value_name = "S", default_value_t = 20)]
    seconds: u32,
    /// After that, how many seconds clients submit, and then read jobs, each as fast as it is
    /// answered; 0: not at all
    #[arg(long, value_name = "S", default_value_t = 5)]
    flat_out: u32,
    /// How many clients do that
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Seconds of the emulated cluster in a second
    #[arg(long, value_name = "X", default_value_t = 60.0)]
    speed: f64,
    /// The policy
    #[arg(long, default_value = "wattline")]
    policy: String,
    /// The folder for the journal, on the disk that is to be measured
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Print JSON (schema wattline.bench.serve/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    nodes: usize,
    gpus: u32,
    policy: String,
    /// When requests began.
    queued: usize,
    running: usize,
    /// Turns, with hearing, planning and acting; the first one plans the whole queue.
    turns: u64,
    first_turn_ms: f64,
    cycle_p50_ms: f64,
    cycle_p99_ms: f64,
    cycle_max_ms: f64,
    requests: usize,
    failed: usize,
    per_second: f64,
    /// Each client sends its next request when the last one was answered; a submission is answered
    /// when it is on the disk. `null` if that was not measured.
    flat_out_clients: u32,
    submitted_per_second: Option<f64>,
    read_per_second: Option<f64>,
    flat_out_failed: usize,
    /// From when it should have been sent to its last byte.
    api_p50_ms: f64,
    api_p99_ms: f64,
    api_max_ms: f64,
    submit_p99_ms: f64,
    list_p99_ms: f64,
    show_p99_ms: f64,
    peak_memory_mb: f64,
    /// Copies of the engine for forecasts: what the loop spends on them.
    copies: u64,
    copy_max_ms: f64,
    /// The last forecast: how long it took beside the loop, of how many jobs it tells the end, and
    /// how far it reaches.
    outlook_ms: f64,
    outlook_jobs: usize,
    outlook_foreseen: usize,
    outlook_far_s: f64,
    outlook_exact_s: f64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let instance = instance(args)?;
    let name = format!("bench-serve-{}", std::process::id());
    let files = Files { journal: args.folder.join(name) };
    let (engine, world) = begin(&instance, &args.policy, false).map_err(Failure::input)?;
    let store = Store::open(&files.journal, &[]).map_err(Failure::input)?;
    let cluster = Emulated::new(world, instance.start);
    let workloads = instance.physics.names().map(Into::into).collect();
    let initial = InitialState { engine: engine.into_engine(), workloads, at: instance.start };
    let planner = crate::site::planner(&args.policy)?;
    let mut controller = Controller::open_emulated(initial, store, cluster, planner)
        .map_err(|error| Failure::Failed(error.into()))?;
    let (filled, first) = fill(&mut controller, &instance, args.queued)?;
    let policy = policy_again(&args.policy)?;
    let cluster_clock = ClusterClock::new(controller.now(), args.speed);
    let mut drive = Drive::new(controller, cluster_clock, (&args.policy, policy), true);
    drive.plan_beside(PLAN_LIMIT).map_err(|error| Failure::Failed(error.into()))?;
    let daemon = drive.daemon();
    let (cluster, physics) = (Arc::clone(&instance.cluster), Arc::clone(&instance.physics));
    let workloads = Box::new(Emulation { cluster, physics });
    let audit = Audit::open(&files.with("audit")).map_err(Failure::input)?;
    let limits = Limits::default();
    let api = Api::new(daemon.clone(), workloads, Access::default(), audit, limits);
    let unix = claim(&files.with("sock")).map_err(Failure::input)?;
    let listening = Listening::start(
        &api,
        Sockets { unix: Some(unix), tcp: None },
        Box::new(|| Ok(Vec::new())),
    )
    .map_err(|error| Failure::Failed(error.into()))?;
    let before = daemon.read_model();
    let (queued, running) = (before.unfinished.len() - before.running, before.running);
    let (socket, rate, seconds) = (files.with("sock"), args.rate, args.seconds);
    let (clients, time) = (args.clients, Duration::from_secs(args.flat_out.into()));
    let (waker, beside) = (daemon.waker(), daemon.clone());
    let asking = std::thread::spawn(move || {
        let measured = ask(&socket, rate, seconds, filled as u32).and_then(|asked| {
            // As things were before the queue grew by thousands.
            let (read_model, peak_memory_mb) = (beside.read_model(), super::peak_memory_mb());
            let flat_out = ask_flat_out(&socket, clients, time, filled as u32)?;
            Ok(Measured { asked, read_model, peak_memory_mb, flat_out })
        });
        waker.stop();
        measured
    });
    let driven = drive.run((), |_| {});
    drop(listening);
    let measured = asking.join().map_err(|_| Failure::Failed(anyhow!("the clients broke")))?;
    driven.map_err(|error| Failure::Failed(error.into()))?;
    let measured = measured.map_err(Failure::Failed)?;
    let report = report(args, &measured, (queued, running), first);
    if args.json {
        return output::json(&report);
    }
    output::text(&text(&report))
}

/// What is left behind if nobody takes it away.
struct Files {
    journal: PathBuf,
}

impl Files {
    fn with(&self, end: &str) -> PathBuf {
        let mut name = self.journal.clone().into_os_string();
        name.push(format!(".{end}"));
        name.into()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.journal);
        for end in ["audit", "sock"] {
            let _ = std::fs::remove_file(self.with(end));
        }
        for end in ["-wal", "-shm", ".state"] {
            let mut name = self.journal.clone().into_os_string();
            name.push(end);
            let _ = std::fs::remove_file(name);
        }
    }
}

/// Jobs on 1,000 nodes with 8 GPUs each, all submitted at once.
fn instance(args: &Args) -> Result<Instance> {
    let (mut scenario, file) = read_scenario(Path::new("scale-1000"))?;
    // Those that fill the cluster, and those that wait.
    scenario.jobs.count = (args.queued + 8000) as u32;
    let mut instance = scenario.instance(&file, None).map_err(Failure::input)?;
    let start = instance.start;
    for job in &mut instance.jobs {
        let job = Arc::make_mut(job);
        let due = job.deadline.map(|due| due - job.submit);
        job.submit = start;
        job.deadline = due.map(|due| start + due);
    }
    Ok(instance)
}

/// Fills the cluster, then the queue. Says how many jobs that took, and how long the turn did that
/// planned most of them.
fn fill(
    controller: &mut Controller<Emulated>,
    instance: &Instance,
    queued: usize,
) -> Result<(usize, Duration)> {
    let failed = |error: wattline_controller::ControllerError| Failure::Failed(error.into());
    let mut now = instance.start;
    let mut jobs = instance.jobs.iter();
    let mut submitted = 0;
    let mut longest = Duration::ZERO;
    loop {
        let state = controller.engine().state();
        let missing = queued.saturating_sub(state.unfinished() - state.held_jobs());
        if missing == 0 {
            return Ok((submitted, longest));
        }
        for _ in 0..missing {
            let Some(job) = jobs.next() else { return Ok((submitted, longest)) };
            controller.intake().submit_job(now, Arc::clone(job)).map_err(failed)?;
            submitted += 1;
        }
        // A few turns, so that what is planned also runs.
        for _ in 0..4 {
            let began = Instant::now();
            controller.turn(now).map_err(failed)?;
            longest = longest.max(began.elapsed());
            now = controller.next_turn().map_or(now, |next| next.max(now).min(later(now)));
        }
    }
}

fn later(now: Timestamp) -> Timestamp {
    now + wattline_core::units::Seconds::new(1.0)
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    List,
    Show,
    Submit,
}

struct Measured {
    asked: Asked,
    /// When these had been asked.
    read_model: Arc<ReadModel>,
    peak_memory_mb: f64,
    flat_out: FlatOut,
}

/// How many were answered in a second, and how many were not answered well.
struct FlatOut {
    submitted: Option<f64>,
    read: Option<f64>,
    failed: usize,
}

/// Clients that do nothing else: all submit for some time, then all read.
fn ask_flat_out(socket: &Path, clients: u32, time: Duration, jobs: u32) -> anyhow::Result<FlatOut> {
    let mut flat_out = FlatOut { submitted: None, read: None, failed: 0 };
    if time.is_zero() {
        return Ok(flat_out);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for kind in [Kind::Submit, Kind::Show] {
        let (answered, failed, took) =
            runtime.block_on(all_flat_out(socket, clients, kind, time, jobs))?;
        let a_second = Some(answered as f64 / took.as_secs_f64());
        match kind {
            Kind::Submit => flat_out.submitted = a_second,
            _ => flat_out.read = a_second,
        }
        flat_out.failed += failed;
    }
    Ok(flat_out)
}

async fn all_flat_out(
    socket: &Path,
    clients: u32,
    kind: Kind,
    time: Duration,
    jobs: u32,
) -> anyhow::Result<(usize, usize, Duration)> {
    let began = Instant::now();
    let mut all = Vec::new();
    for client in 0..clients {
        let stream = UnixStream::connect(socket).await.context("cannot connect")?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        all.push(tokio::spawn(async move {
            let (mut answered, mut failed) = (0, 0);
            while began.elapsed() < time {
                // Numbers that no other request of this run has.
                let number = FLAT_OUT_FROM + (answered + failed) as u32 * clients + client;
                let job = number.wrapping_mul(2_654_435_761) % jobs.max(1);
                let answer = match request(kind, number, job) {
                    Ok(request) => answer(&mut sender, request).await,
                    Err(_) => None,
                };
                match answer {
                    Some(status) if status.is_success() => answered += 1,
                    Some(_) => failed += 1,
                    // The connection is gone.
                    None => return (answered, failed + 1),
                }
            }
            (answered, failed)
        }));
    }
    let (mut answered, mut failed) = (0, 0);
    for client in all {
        let (well, badly) = client.await?;
        (answered, failed) = (answered + well, failed + badly);
    }
    Ok((answered, failed, began.elapsed()))
}

struct Asked {
    times: Vec<(Kind, Duration)>,
    failed: usize,
    took: Duration,
}

/// Connections that are kept open.
const CLIENTS: u32 = 16;
/// Requests at an even rate are numbered from 0, and there are fewer than this.
const FLAT_OUT_FROM: u32 = 1 << 30;

/// Asks at an even rate, whether the answers come or not.
fn ask(socket: &Path, rate: u32, seconds: u32, jobs: u32) -> anyhow::Result<Asked> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let begin = tokio::time::Instant::now() + Duration::from_millis(100);
        let mut clients = Vec::new();
        for client in 0..CLIENTS {
            let stream = UnixStream::connect(socket).await.context("cannot connect")?;
            let (sender, connection) = handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            let turns = (client..rate * seconds).step_by(CLIENTS as usize);
            let due =
                move |turn: u32| begin + Duration::from_secs_f64(f64::from(turn) / f64::from(rate));
            clients.push(tokio::spawn(one_client(
                sender,
                turns.map(move |turn| (turn, due(turn))).collect(),
                jobs,
            )));
        }
        let mut asked = Asked { times: Vec::new(), failed: 0, took: Duration::ZERO };
        for client in clients {
            let (times, failed) = client.await?;
            asked.times.extend(times);
            asked.failed += failed;
        }
        asked.took = begin.elapsed();
        Ok(asked)
    })
}

async fn one_client(
    mut sender: SendRequest<Full<Bytes>>,
    turns: Vec<(u32, tokio::time::Instant)>,
    jobs: u32,
) -> (Vec<(Kind, Duration)>, usize) {
    let (mut times, mut failed) = (Vec::with_capacity(turns.len()), 0);
    for (turn, due) in turns {
        tokio::time::sleep_until(due).await;
        let kind = [Kind::List, Kind::Show, Kind::Submit][turn as usize % 3];
        // Spread over all jobs, the same ones each time.
        let job = turn.wrapping_mul(2_654_435_761) % jobs.max(1);
        let answer = match request(kind, turn, job) {
            Ok(request) => answer(&mut sender, request).await,
            Err(_) => None,
        };
        failed += usize::from(!answer.is_some_and(|status| status.is_success()));
        times.push((kind, due.elapsed()));
    }
    (times, failed)
}

async fn answer(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Option<StatusCode> {
    sender.ready().await.ok()?;
    let answer = sender.send_request(request).await.ok()?;
    let status = answer.status();
    answer.into_body().collect().await.ok()?;
    Some(status)
}

fn request(kind: Kind, turn: u32, job: u32) -> Result<Request<Full<Bytes>>> {
    let request = Request::builder().header(header::HOST, "wattline");
    let request = match kind {
        Kind::List => request.uri(format!("/v1/jobs?limit=100&after={job}")).body(Full::default()),
        Kind::Show => request.uri(format!("/v1/jobs/{job}")).body(Full::default()),
        Kind::Submit => {
            let body = format!(
                r#"{{"name":"bench-{turn}","workload":"resnet50","gpus":{},"duration_s":3600,"deadline_in_s":86400}}"#,
                1 + turn % 8
            );
            request
                .method(Method::POST)
                .uri("/v1/jobs")
                .header(header::CONTENT_TYPE, "application/json")
                .header("idempotency-key", format!("bench-{turn}"))
                .body(Full::new(Bytes::from(body)))
        }
    };
    request.context("a request").map_err(Failure::Failed)
}

fn quantile(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    let at = (share * times.len() as f64).ceil() as usize;
    let time = times.get(at.clamp(1, times.len().max(1)) - 1);
    time.map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

fn report(
    args: &Args,
    measured: &Measured,
    (queued, running): (usize, usize),
    first: Duration,
) -> Report {
    let Measured { asked, read_model, peak_memory_mb, flat_out } = measured;
    let of = |kind: Option<Kind>, share: f64| {
        let wanted = asked.times.iter().filter(|(k, _)| kind.is_none_or(|kind| *k == kind));
        quantile(&mut wanted.map(|(_, time)| *time).collect::<Vec<_>>(), share)
    };
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    Report {
        schema: "wattline.bench.serve/1",
        nodes: read_model.nodes.len(),
        gpus: read_model.cluster.total_gpus(),
        policy: args.policy.clone(),
        queued,
        running,
        turns: read_model.turns.count,
        first_turn_ms: milliseconds(first),
        cycle_p50_ms: milliseconds(read_model.turns.quantile(0.5)),
        cycle_p99_ms: milliseconds(read_model.turns.quantile(0.99)),
        cycle_max_ms: milliseconds(read_model.turns.longest),
        requests: asked.times.len(),
        failed: asked.failed,
        per_second: asked.times.len() as f64 / asked.took.as_secs_f64(),
        flat_out_clients: args.clients,
        submitted_per_second: flat_out.submitted,
        read_per_second: flat_out.read,
        flat_out_failed: flat_out.failed,
        api_p50_ms: of(None, 0.5),
        api_p99_ms: of(None, 0.99),
        api_max_ms: of(None, 1.0),
        submit_p99_ms: of(Some(Kind::Submit), 0.99),
        list_p99_ms: of(Some(Kind::List), 0.99),
        show_p99_ms: of(Some(Kind::Show), 0.99),
        peak_memory_mb: *peak_memory_mb,
        copies: read_model.turns.copies,
        copy_max_ms: milliseconds(read_model.turns.longest_copy),
        outlook_ms: milliseconds(read_model.outlook.took),
        outlook_jobs: read_model.outlook.unfinished,
        outlook_foreseen: read_model.outlook.ended,
        outlook_far_s: read_model.outlook.until.since(read_model.outlook.at).get(),
        outlook_exact_s: read_model.outlook.exact_until.since(read_model.outlook.at).get(),
    }
}

fn text(r: &Report) -> String {
    let flat_out = match (r.submitted_per_second, r.read_per_second) {
        (Some(submitted), Some(read)) => format!(
            "flat out       {} clients: {submitted:.0} submissions acknowledged a second, {read:.0} jobs read a second, {} failed\n",
            r.flat_out_clients, r.flat_out_failed
        ),
        _ => String::new(),
    };
    format!(
        "{} jobs wait and {} run on {} nodes with {} GPUs, policy {}\n\
         control cycle  p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms of {} turns; {:.0} ms for the longest while the queue was filled\n\
         API            p50 {:.2} ms, p99 {:.2} ms, longest {:.2} ms of {} requests at {:.0} a second, {} failed (p99: list {:.2}, job {:.2}, submit {:.2})\n\
         {flat_out}\
         outlook        {} of {} jobs foreseen to their end, {} ahead (every plan {} ahead), in {:.1} s beside the loop; {} copies for that, the longest {:.1} ms of the loop\n\
         memory         {:.0} MB at its peak, clients included\n",
        r.queued,
        r.running,
        r.nodes,
        r.gpus,
        r.policy,
        r.cycle_p50_ms,
        r.cycle_p99_ms,
        r.cycle_max_ms,
        r.turns,
        r.first_turn_ms,
        r.api_p50_ms,
        r.api_p99_ms,
        r.api_max_ms,
        r.requests,
        r.per_second,
        r.failed,
        r.list_p99_ms,
        r.show_p99_ms,
        r.submit_p99_ms,
        r.outlook_foreseen,
        r.outlook_jobs,
        output::duration(r.outlook_far_s),
        output::duration(r.outlook_exact_s),
        r.outlook_ms / 1e3,
        r.copies,
        r.copy_max_ms,
        r.peak_memory_mb,
    )
}
