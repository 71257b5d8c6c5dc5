//! `wattline serve`: the controller live, over an emulated cluster, with its API.

use crate::failure::{Failure, Result};
use crate::source::Source;
use crate::{logging, output, site, socket};
use anyhow::Context;
use serde::Serialize;
use std::fs;
use std::io::IsTerminal;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wattline_controller::daemon::{
    BySbatch, ClusterClock, Daemon, Drive, Emulation, Feed, Fresh, Metered, ReadModel, Workloads,
    say_ready, say_stopping,
};
use wattline_controller::http::{
    Access, Api, Audit, Limits, Listening, QuotaFile, Reload, Sockets, Tokens, claim,
};
use wattline_controller::journal::{Keep, Store};
use wattline_controller::plan_time::PLAN_LIMIT;
use wattline_controller::slurm::Mode;
use wattline_controller::{
    Backend, Controller, ControllerError, Emulated, InitialState, RequestIntake,
};
use wattline_core::Timestamp;
use wattline_core::job::Job;
use wattline_core::power::NodePower;
use wattline_core::units::{EurosPerSecond, Seconds, Watts};
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
    /// Begin a new journal. One that is there, or what is left of one, is moved aside to
    /// FILE.old-TIME first; nothing is deleted. A first start does not need this
    #[arg(long)]
    new: bool,
    /// Throw journal entries away that no restart needs and that are older than this, for example
    /// "30 d" [default: keep all]
    #[arg(long, value_name = "TIME")]
    keep_journal: Option<Seconds>,
    /// Throw away what became of jobs that ended longer ago than this, for example "2000 d"; reports
    /// of that time lose them [default: keep all]
    #[arg(long, value_name = "TIME")]
    keep_history: Option<Seconds>,
    /// Time limit per plan. A plan that takes longer is dropped, and the next ones search less; one
    /// that does only what it must is always taken [default: "1 s"]
    #[arg(long, value_name = "TIME", value_parser = plan_limit)]
    plan_limit: Option<Duration>,
    /// Seconds of the emulated cluster in a second
    #[arg(long, value_name = "X", default_value_t = 600.0)]
    speed: f64,
    /// Go on when all jobs of the scenario are done, and wait for others
    #[arg(long)]
    stay: bool,
    /// Print JSON, one object a line (schema wattline.serve/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "API")]
struct ApiArgs {
    /// The Unix socket to answer at [default: $XDG_RUNTIME_DIR/wattline.sock, or
    /// /run/wattline/wattline.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Answer at this address too, to those who have a token
    #[arg(long, value_name = "ADDRESS:PORT", requires = "tokens")]
    listen: Option<SocketAddr>,
    /// The tokens: lines of a user, a role (admin, user or read-only) and the SHA-256 of the token
    #[arg(long, value_name = "FILE", requires = "listen")]
    tokens: Option<PathBuf>,
    /// Users who may do everything, beside root and whoever runs this
    #[arg(long, value_name = "USER,...", value_delimiter = ',')]
    admin: Vec<String>,
    /// Members of this group may do everything too
    #[arg(long, value_name = "GROUP")]
    admin_group: Option<String>,
    /// The highest weight that users may give a job; USER=WEIGHT for one of them [default: as
    /// --limits says, or "1000 EUR/h"]
    #[arg(long, value_name = "[USER=]WEIGHT")]
    max_weight: Vec<String>,
    /// What users may ask for at most: a TOML file with the tables [default], [users.NAME] and
    /// [accounts.NAME] and their fields jobs_waiting, jobs_per_minute, requests_per_second and
    /// weight; read again at SIGHUP [default: 10000, 3000, 1000 and "1000 EUR/h"]
    #[arg(long, value_name = "FILE.toml")]
    limits: Option<PathBuf>,
    /// Where changes and refusals are written down [default: the journal's name with .audit]
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
}

/// What a journal is about.
pub(crate) const POLICY: &str = "policy";
pub(crate) const INSTANCE: &str = "cluster or its jobs";

/// How often it says how things are.
const SAY_EVERY: Duration = Duration::from_secs(1);
/// The same for a log.
const LOG_EVERY: Duration = Duration::from_secs(60);

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
    logging::begin()?;
    match args.source.site() {
        Some(path) => on_slurm(args, path),
        None => emulated(args),
    }
}

/// Over an emulated cluster, as fast as is asked for.
fn emulated(args: &Args) -> Result<()> {
    let instance = args.source.instance()?;
    for note in &instance.notes {
        output::note(note);
    }
    let controller = open(args, &instance)?;
    // Jobs that people submit have an origin, the scenario's have none.
    let arrived = controller.intake().jobs_without_origin();
    let cluster_clock = ClusterClock::new(controller.now(), args.speed);
    let (cluster, physics) = (Arc::clone(&instance.cluster), Arc::clone(&instance.physics));
    let service = Service {
        controller,
        cluster_clock,
        workloads: Box::new(Emulation { cluster, physics }),
        start: instance.start,
        jobs: Some(instance.jobs.len()),
        stay: args.stay,
        mode: None,
    };
    drive(args, service, Arrivals { jobs: &instance.jobs, next: arrived })
}

/// Over SLURM, by the clock.
fn on_slurm(args: &Args, path: &Path) -> Result<()> {
    let live = site::read(path)?;
    wattline_policies::policy(&args.policy).map_err(Failure::input)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp::from_seconds(since.as_secs_f64());
    let slurm = live.slurm();
    live.check(&slurm)?;
    let about = [(INSTANCE, live.identity())];
    let about = about.each_ref().map(|(what, value)| (*what, value.as_str()));
    let mut store = open_journal(args, &about)?;
    let wanted = live.decided_by(&args.policy);
    let begun = store.begun_with(POLICY, wanted).map_err(Failure::input)?;
    let known = live.known_in(&mut store)?;
    let is_new = store.is_empty();
    let planner = site::planner(wanted)?;
    let controller = Controller::open(live.initial(&known), store, slurm, planner);
    let controller =
        controller.with_context(|| args.journal.display().to_string()).map_err(Failure::Failed)?;
    let now = now.max(controller.now());
    say_who_decides(controller.last_policy().unwrap_or(&begun), wanted);
    // What holds at first is written down too, for whoever looks back.
    let failed = |error: ControllerError| Failure::Failed(error.into());
    if is_new {
        controller.intake().set_budget(now, live.parts.budget.clone()).map_err(failed)?;
    }
    if is_new || *controller.engine().prices() != live.parts.prices {
        controller.intake().set_prices(now, live.parts.prices.clone()).map_err(failed)?;
    }
    let service = Service {
        cluster_clock: ClusterClock::new(now, 1.0),
        controller,
        workloads: Box::new(BySbatch),
        start: now,
        jobs: None,
        stay: true,
        mode: Some(live.config.mode),
    };
    drive(args, service, ())
}

/// Another policy may be wanted than the one that decided so far.
fn say_who_decides(before: &str, wanted: &str) {
    // Load was shed last: by nobody's policy.
    if before == wanted || before == "shed" {
        return;
    }
    output::note(&match (before, wanted) {
        (site::WATCH, wanted) => format!("only observed so far: from now on {wanted} decides"),
        (before, site::WATCH) => format!(
            "{before} decided so far: from now on the cluster is only observed. What is held stays \
             held; `wattline release --all` gives it back"
        ),
        (before, wanted) => format!("{before} decided so far: from now on {wanted} does"),
    });
}

/// What is driven.
struct Service<B> {
    controller: Controller<B>,
    cluster_clock: ClusterClock,
    workloads: Box<dyn Workloads>,
    /// Times are told since then.
    start: Timestamp,
    /// How many jobs will come, if that is known.
    jobs: Option<usize>,
    stay: bool,
    /// What it may do; none: everything.
    mode: Option<Mode>,
}

fn drive<B: Backend + Metered>(args: &Args, service: Service<B>, feed: impl Feed) -> Result<()> {
    let Service { controller, cluster_clock, workloads, start, jobs, stay, mode } = service;
    let access = access(&args.api)?;
    for (number, why) in &controller.opened().refused {
        tracing::warn!("the snapshot after entry {number} was not used: {why}");
    }
    let entries = controller.intake().journal(Store::len);
    if entries > 0 {
        tracing::info!(
            "{}: goes on after {entries} entries, with {} jobs submitted so far",
            args.journal.display(),
            controller.engine().state().job_count()
        );
    }
    let policy = policy_again(&args.policy)?;
    let mut drive = Drive::new(controller, cluster_clock, (&args.policy, policy), stay);
    drive.keep(Keep { younger_than: args.keep_journal, ended_within: args.keep_history });
    let limit = args.plan_limit.unwrap_or(PLAN_LIMIT);
    drive.plan_beside(limit).map_err(|error| Failure::Failed(error.into()))?;
    if mode == Some(Mode::Advise) {
        drive.advise();
    }
    let daemon = drive.daemon();
    let serving = listen(args, workloads, access, &daemon)?;
    say_ready();
    // Nobody watches a log: there a line comes when something has changed, and not every second.
    let watched = args.json || std::io::stdout().is_terminal();
    let every = if watched { SAY_EVERY } else { LOG_EVERY };
    let mut said: Option<(Instant, [usize; 5])> = None;
    let mut broken = None;
    let waker = daemon.waker();
    let driven = drive.run(feed, |read_model| {
        if said.is_none_or(|(at, _)| at.elapsed() >= every) {
            let status = status(read_model, &daemon, start, jobs);
            let counts = status.counts();
            let news = watched || said.is_none_or(|(_, before)| before != counts);
            said = Some((Instant::now(), counts));
            if news && let Err(error) = say(&status, args.json) {
                broken.get_or_insert(error);
                waker.stop();
            }
        }
    });
    say_stopping();
    drop(serving);
    // Nobody is answered any more: now the journal's file can be made complete by itself.
    let closed = daemon.intake().close_journal();
    if let Some(error) = broken {
        return Err(error);
    }
    driven.map_err(|error| Failure::Failed(error.into()))?;
    closed.map_err(|error| Failure::Failed(error.into()))?;
    say(&status(&daemon.read_model(), &daemon, start, jobs), args.json)
}

/// A time that a plan can take.
fn plan_limit(text: &str) -> std::result::Result<Duration, String> {
    let seconds: Seconds = text.parse().map_err(|error| format!("{error}"))?;
    if seconds.get() < 1e-3 {
        return Err(format!("{text} is too short for any plan: at least 1 ms is needed"));
    }
    Duration::try_from_secs_f64(seconds.get()).map_err(|error| error.to_string())
}

/// A fresh policy of the kind that plans, as often as one is needed.
pub(crate) fn policy_again(name: &str) -> Result<Fresh> {
    wattline_policies::policy(name).map_err(Failure::input)?;
    let name = name.to_owned();
    Ok(Box::new(move || {
        wattline_policies::policy(&name).unwrap_or_else(|_| unreachable!("it was made before"))
    }))
}

/// The scenario's jobs, as time passes.
struct Arrivals<'a> {
    jobs: &'a [Arc<Job>],
    next: usize,
}

impl Feed for Arrivals<'_> {
    fn submit(
        &mut self,
        intake: &RequestIntake,
        now: Timestamp,
    ) -> std::result::Result<(), ControllerError> {
        while let Some(job) = self.jobs.get(self.next).filter(|job| job.submit <= now) {
            intake.submit_job(now, Arc::clone(job))?;
            self.next += 1;
        }
        Ok(())
    }

    fn next(&self) -> Option<Timestamp> {
        self.jobs.get(self.next).map(|job| job.submit)
    }
}

fn access(args: &ApiArgs) -> Result<Access> {
    let mut access = Access {
        admins: args.admin.clone(),
        admin_group: args.admin_group.clone(),
        ..Access::default()
    };
    for text in &args.max_weight {
        let (user, weight) = match text.split_once('=') {
            Some((user, weight)) => (Some(user), weight),
            None => (None, text.as_str()),
        };
        let weight: EurosPerSecond = weight
            .parse()
            .map_err(|error| Failure::input(anyhow::anyhow!("--max-weight: {error}")))?;
        match user {
            Some(user) => drop(access.max_weights.insert(user.to_owned(), weight)),
            None => access.max_weight = Some(weight),
        }
    }
    if let Some(file) = &args.tokens {
        access.tokens = Tokens::read(file).map_err(Failure::input)?;
    }
    if let Some(file) = &args.limits {
        access.quotas = quotas(file)?;
    }
    Ok(access)
}

fn quotas(path: &Path) -> Result<QuotaFile> {
    let file = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {file}"));
    let text = text.map_err(Failure::Input)?;
    // Its message names the line and the field.
    let quotas: QuotaFile = toml::from_str(&text).map_err(|error| {
        Failure::input(anyhow::anyhow!("{file}: {}", error.to_string().trim_end()))
    })?;
    quotas.check().map_err(|error| Failure::input(anyhow::anyhow!("{file}: {error}")))?;
    Ok(quotas)
}

/// Reads the configuration again: the tokens, the limits of users, and a site's prices.
fn reloading(args: &Args, api: &Api, daemon: &Daemon) -> Reload {
    let (options, site) = (args.api.clone(), args.source.site().map(Path::to_owned));
    let (api, daemon) = (api.clone(), daemon.clone());
    let prices = |path: &Path| site::read(path).map(|live| live.parts.prices);
    let mut before = site.as_deref().and_then(|path| prices(path).ok());
    Box::new(move || {
        let message = |failure: Failure| failure.message();
        // All is read before anything changes.
        let access = access(&options).map_err(message)?;
        let now = site.as_deref().map(prices).transpose().map_err(message)?;
        let mut said = Vec::new();
        for (what, file) in [("tokens", &options.tokens), ("limits", &options.limits)] {
            said.extend(file.as_ref().map(|file| format!("read {what} again: {}", file.display())));
        }
        if let Some(prices) = now.filter(|prices| before.as_ref() != Some(prices)) {
            let set = daemon.intake().set_prices(daemon.cluster_clock().now(), prices.clone());
            set.map_err(|error| format!("the new prices were not written down: {error}"))?;
            daemon.waker().wake();
            before = Some(prices);
            said.push("the site's new prices hold from now on".to_owned());
        }
        api.set_access(access);
        said.push(
            "options, and the rest of a site's file, need a restart; `wattline budget` sets the budget"
                .to_owned(),
        );
        Ok(said)
    })
}

/// What is served; ends, and leaves no socket behind, when it is dropped.
struct Serving {
    _listening: Listening,
    socket: Option<PathBuf>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(path) = &self.socket {
            // Whoever comes next takes a socket over that was left behind.
            let _ = fs::remove_file(path);
        }
    }
}

fn listen(
    args: &Args,
    workloads: Box<dyn Workloads>,
    access: Access,
    daemon: &Daemon,
) -> Result<Serving> {
    let audit = args.api.audit.clone().unwrap_or_else(|| {
        let mut name = args.journal.clone().into_os_string();
        name.push(".audit");
        name.into()
    });
    let audit = Audit::open(&audit).map_err(Failure::input)?;
    let api = Api::new(daemon.clone(), workloads, access, audit, Limits::default());
    let path = args.api.socket.clone().unwrap_or_else(socket::usual);
    let mut sockets = Sockets::default();
    match take(&path, args.api.socket.is_none()) {
        Ok(listener) => sockets.unix = Some(listener),
        // Whoever only wants to see the scenario run needs no socket.
        Err(error) if args.api.socket.is_none() && !args.stay => {
            tracing::warn!("no API: {error:#}");
        }
        Err(error) => return Err(Failure::Input(error)),
    }
    if let Some(address) = args.api.listen {
        let bound = TcpListener::bind(address);
        let bound = bound.with_context(|| format!("cannot listen at {address}"));
        sockets.tcp = Some(bound.map_err(Failure::Input)?);
    }
    let socket = sockets.unix.is_some().then_some(path);
    let reload = reloading(args, &api, daemon);
    let listening = Listening::start(&api, sockets, reload);
    let listening = listening.map_err(|e| Failure::Failed(e.into()))?;
    if let Some(path) = &socket {
        tracing::info!("answers at the socket {}", path.display());
    }
    if let Some(address) = listening.address {
        tracing::info!("answers at http://{address}");
        if !address.ip().is_loopback() {
            tracing::warn!("tokens cross the network in clear: put a proxy with TLS before it");
        }
    }
    Ok(Serving { _listening: listening, socket })
}

fn take(path: &Path, usual: bool) -> anyhow::Result<std::os::unix::net::UnixListener> {
    // Only the usual place is made; a path that was given is taken as it is.
    if usual && let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    Ok(claim(path)?)
}

/// Opens the journal, or begins one.
fn open_journal(args: &Args, about: &[(&str, &str)]) -> Result<Store> {
    let store = if args.new {
        let stamp = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
        let opened = Store::open_anew(&args.journal, about, &stamp).map_err(Failure::input)?;
        if let (_, Some(aside)) = &opened {
            output::note(&format!("the journal that was there is now {}", aside.display()));
        }
        opened.0
    } else {
        Store::open(&args.journal, about).map_err(Failure::input)?
    };
    for notice in store.notices() {
        tracing::warn!("{notice}");
    }
    Ok(store)
}

fn open(args: &Args, instance: &Instance) -> Result<Controller<Emulated>> {
    wattline_policies::policy(&args.policy).map_err(Failure::input)?;
    let jobs = identity(instance);
    let mut store = open_journal(args, &[(INSTANCE, &jobs)])?;
    let begun = store.begun_with(POLICY, &args.policy).map_err(Failure::input)?;
    let (engine, world) = begin(instance, &args.policy, false).map_err(Failure::input)?;
    let cluster = Emulated::new(world, instance.start);
    let workloads = instance.physics.names().map(Into::into).collect();
    let initial = InitialState { engine: engine.into_engine(), workloads, at: instance.start };
    let planner = site::planner(&args.policy)?;
    let controller = Controller::open_emulated(initial, store, cluster, planner);
    let controller =
        controller.with_context(|| args.journal.display().to_string()).map_err(Failure::Failed)?;
    say_who_decides(controller.last_policy().unwrap_or(&begun), &args.policy);
    Ok(controller)
}

/// What a journal of an instance says it is about.
pub(crate) fn identity(instance: &Instance) -> String {
    format!("{} jobs, {:016x}", instance.jobs.len(), fingerprint(instance))
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

fn status(
    read_model: &ReadModel,
    daemon: &Daemon,
    start: Timestamp,
    jobs: Option<usize>,
) -> Status {
    let nodes =
        |power: NodePower| read_model.nodes.iter().filter(|node| node.power == power).count();
    let unfinished = read_model.unfinished.len();
    Status {
        schema: "wattline.serve/1",
        // The cluster's clock: read models are built when something happens.
        time_s: daemon.cluster_clock().now().max(read_model.at).since(start).get(),
        waiting: unfinished - read_model.running,
        running: read_model.running,
        finished: read_model.job_count() - unfinished,
        jobs: jobs.unwrap_or_else(|| read_model.job_count()),
        drawn_w: read_model.drawn.map_or(0.0, Watts::get),
        committed_w: read_model.committed.get(),
        budget_w: read_model.budget_now.map(Watts::get),
        nodes_up: nodes(NodePower::Up),
        nodes_asleep: nodes(NodePower::Asleep),
        plans: read_model.stats.plans,
        journal: daemon.intake().journal(Store::len),
    }
}

impl Status {
    fn counts(&self) -> [usize; 5] {
        [self.waiting, self.running, self.finished, self.nodes_up, self.nodes_asleep]
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
