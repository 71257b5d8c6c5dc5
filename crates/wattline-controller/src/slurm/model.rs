//! The core of the backend against a model of SLURM, in virtual time: orders take effect at any
//! time before they end, or hang with and without effect, and looks are old when they arrive. SLURM
//! refuses to start jobs for a while, users cancel and requeue theirs, administrators hold jobs and let
//! them go, some of ours run when control begins, and another partition has jobs of its own on the same
//! nodes. For half of the seeds the budget falls and rises, and every other job of ours may be stopped.
//! The real controller drives it.
//!
//! What must hold: no order is ever given about a job of the other partition; nothing that cannot go
//! on is ever stopped; what has ended is never started again; what an administrator holds stays held;
//! whatever we hold bears our mark, so that it is found without the journal; each job that is not
//! cancelled runs to its end, and as often as it was stopped and once.
//!
//! A seed that fails is printed; `WATTLINE_SEED=N cargo test -p wattline-controller --lib model`
//! runs that one alone.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::command::CommandError;
use super::config::{Config, Mode};
use super::crew::{Heard, Looked};
use super::instruction::Instruction;
use super::orders::{Failure, Order, Outcome, Target, Ticks, Work};
use super::read::{self, SlurmJob, SlurmNode};
use super::seen::{Seen, SeenError};
use super::site::Site;
use super::{SECONDS, Slurm};
use crate::backend::{Backend, BackendError, Known, Report};
use crate::job_registry::SlurmKey;
use crate::journal::Store;
use crate::{Controller, Foresight, InitialState, InlinePlanner};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;
use wattline_core::Timestamp;
use wattline_core::action::Action;
use wattline_core::calendar::Calendar;
use wattline_core::engine::{Engine, EngineConfig};
use wattline_core::prices::Prices;
use wattline_core::state::{Phase, State};
use wattline_core::units::{Seconds, Watts};
use wattline_predict::learner::Learner;
use wattline_sim::scenario::Scenario;

/// Seeds in each run of the tests; a nightly run draws twenty times as many.
const SEEDS: u64 = 100;
/// An administrator held a job that was being started, and released it before that was seen: it was
/// starting for ever.
const FOUND: [u64; 1] = [885];
const NIGHTLY: u64 = 2000;
const JOBS: u32 = 10;
/// Jobs of the other partition.
const THEIRS: u32 = 3;
const GPUS: u32 = 4;
/// About what two nodes draw with all GPUs busy.
const FULL: Watts = Watts::new(8000.0);
const STEP: Seconds = Seconds::new(0.25);
/// After this everything answers, so that the jobs can end.
const CALM_AFTER: u32 = 1200;
const MOST_STEPS: u32 = 8000;
/// An order that was given before an administrator's hold was seen may take effect so much later: a
/// look is up to 16 s old, and an order takes up to 20 s.
const UNSEEN: Seconds = Seconds::new(60.0);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Is {
    Held,
    Free,
    Runs { node: usize, gpus: u32, until: Timestamp },
    Over,
}

#[derive(Clone, Debug)]
struct ModelJob {
    is: Is,
    ours: bool,
    /// Its user has cancelled it.
    cancelled: bool,
    /// An administrator holds it since then.
    by_admin: Option<Timestamp>,
    /// Its admin comment bears our mark.
    marked: bool,
    /// SLURM will not start it before then, and why.
    refused: Option<(&'static str, Timestamp)>,
    gpus: u32,
    takes: Seconds,
    required: Option<usize>,
    restarts: u32,
    /// It saves when it is stopped, and goes on later.
    resumes: bool,
    starts: u32,
}

/// An order under way.
struct UnderWay {
    order: Order,
    began: super::orders::Stamp,
    /// When it takes effect, if it does, and when it ends.
    effect: Option<Timestamp>,
    ends: Timestamp,
    result: Result<(), Failure>,
}

/// A look under way: what it shows, and when it is there.
struct Coming {
    began: (super::orders::Stamp, Timestamp),
    shows_at: Timestamp,
    shows: Option<(Vec<SlurmJob>, Vec<SlurmNode>)>,
    there_at: Timestamp,
    fails: bool,
}

struct Model {
    slurm: Slurm,
    ticks: Ticks,
    random: Pcg64Mcg,
    names: Vec<String>,
    jobs: BTreeMap<u32, ModelJob>,
    orders: Vec<UnderWay>,
    look: Option<Coming>,
    calm: bool,
    now: Timestamp,
    /// Orders that failed, or may have.
    failed: u64,
    /// Orders may fail. Where none does, and looks are only old, no start is given up.
    loses: bool,
    /// Nodes that sleep.
    asleep: Vec<bool>,
    /// The budget falls and rises.
    presses: bool,
    /// Jobs that were stopped for it.
    stops: u32,
}

impl Model {
    fn happens(&mut self, chance: f64) -> bool {
        !self.calm && self.random.random_bool(chance)
    }

    fn soon(&mut self, most: f64) -> Seconds {
        Seconds::new(self.random.random_range(0.0..most))
    }

    /// Time goes on in the model.
    fn pass(&mut self, now: Timestamp) {
        self.now = now;
        let due: Vec<Work> = (self.orders.iter_mut())
            .filter(|order| order.effect.is_some_and(|at| at <= now))
            .map(|order| {
                order.effect = None;
                order.order.work.clone()
            })
            .collect();
        for work in due {
            let Work::Tell(told) = work else { panic!("no limits here") };
            for line in told.iter().map(Instruction::line) {
                let args: Vec<&str> = line.args.iter().map(String::as_str).collect();
                self.command(line.program, &args);
            }
        }
        self.schedule();
        let look = self.look.take();
        self.look = Some(look.unwrap_or_else(|| {
            let began = (self.ticks.next(), now);
            // A look takes up to three commands of 20 s where slurmctld is busy.
            let most = if self.calm { 1.0 } else { 8.0 };
            let shows_at = now + self.soon(most);
            let there_at = shows_at + self.soon(most);
            Coming { began, shows_at, shows: None, there_at, fails: self.happens(0.1) }
        }));
        let shown = (self.shown_jobs(), self.shown_nodes());
        if let Some(look) = self.look.as_mut().filter(|look| look.shows_at <= now) {
            look.shows.get_or_insert(shown);
        }
    }

    fn command(&mut self, program: &str, args: &[&str]) {
        let number = |text: &str| text.trim_start_matches("JobId=").parse::<u32>().unwrap();
        match (program, args) {
            ("scontrol", ["update", id, words @ ..]) if id.starts_with("JobId=") => {
                let job = self.jobs.get_mut(&number(id)).unwrap();
                let node = words.iter().find_map(|word| word.strip_prefix("ReqNodeList="));
                if let (Some(node), Is::Held | Is::Free) = (node, job.is) {
                    job.required = self.names.iter().position(|name| name == node);
                }
                let comment = words.iter().find_map(|word| word.strip_prefix("AdminComment="));
                job.marked |= comment.is_some_and(|text| text.contains("wattline/held"));
            }
            ("scontrol", [what @ ("release" | "uhold"), id]) => {
                let now = self.now;
                let job = self.jobs.get_mut(&number(id)).unwrap();
                if matches!(job.is, Is::Held | Is::Free) {
                    let long_ago = job.by_admin.is_some_and(|since| now > since + UNSEEN);
                    assert!(!long_ago, "{what} {id}, which an administrator holds: {job:?}");
                    assert!(*what == "release" || job.marked, "{id} is held without a mark");
                    job.by_admin = None;
                    job.is = if *what == "release" { Is::Free } else { Is::Held };
                }
            }
            ("scontrol", ["requeuehold", "Incomplete", id]) => {
                let job = self.jobs.get_mut(&number(id)).unwrap();
                assert!(job.ours && job.resumes, "job {id} may not be stopped: {job:?}");
                if matches!(job.is, Is::Runs { .. }) {
                    assert!(job.marked, "{id} is held without a mark");
                    (job.is, job.restarts) = (Is::Held, job.restarts + 1);
                    self.stops += 1;
                }
            }
            ("scontrol", ["requeuehold", id]) => panic!("job {id} would run again after its end"),
            ("scontrol", ["update", node, state]) if node.starts_with("NodeName=") => {
                assert!(self.presses, "{node} {state}: fifo lets nodes be");
                let name = node.trim_start_matches("NodeName=");
                let node = self.names.iter().position(|own| own == name).unwrap();
                // SLURM lets a node sleep when its jobs are done.
                let down = *state == "State=POWER_DOWN" && self.taken(node) == 0;
                self.asleep[node] = down;
            }
            other => panic!("{other:?}"),
        }
    }

    fn schedule(&mut self) {
        let now = self.now;
        for job in self.jobs.values_mut() {
            if matches!(job.is, Is::Runs { until, .. } if until <= now) {
                job.is = Is::Over;
            }
        }
        self.interfere();
        let free: Vec<u32> =
            self.jobs.iter().filter(|(_, job)| job.is == Is::Free).map(|(id, _)| *id).collect();
        for id in free {
            let job = &self.jobs[&id];
            if job.refused.is_some_and(|(_, until)| now < until) {
                continue;
            }
            let fits = |node: &usize| !self.asleep[*node] && self.taken(*node) + job.gpus <= GPUS;
            let node = if job.ours { job.required } else { (0..self.names.len()).find(fits) };
            let (ours, gpus) = (job.ours, job.gpus);
            // SLURM wakes nodes for what it schedules itself.
            let wakes = |node: &usize| self.asleep[*node] && self.taken(*node) + gpus <= GPUS;
            if let (None, false) = (node, ours)
                && let Some(node) = (0..self.names.len()).find(wakes)
            {
                self.asleep[node] = false;
                continue;
            }
            if let Some(node) = node.filter(fits) {
                let (gpus, until) = (job.gpus, now + job.takes);
                let job = self.jobs.get_mut(&id).unwrap();
                (job.is, job.starts) = (Is::Runs { node, gpus, until }, job.starts + 1);
            }
        }
    }

    /// GPUs of a node that somebody has.
    fn taken(&self, node: usize) -> u32 {
        let has = |job: &ModelJob| match job.is {
            Is::Runs { node: at, gpus, .. } if at == node => gpus,
            _ => 0,
        };
        self.jobs.values().map(has).sum()
    }

    /// What users and the site do.
    fn interfere(&mut self) {
        let now = self.now;
        let ids: Vec<u32> = self.jobs.keys().copied().collect();
        for id in ids {
            let (cancels, requeues) = (self.happens(0.0002), self.happens(0.004));
            let (holds, lets_go) = (self.happens(0.0005), self.calm || self.happens(0.002));
            let gives_up = self.happens(0.0005);
            let refuses = self.happens(0.002).then(|| {
                let why = ["QOSMaxGRESPerUser", "Licenses", "BadConstraints", "AssocGrpGRES"];
                let lasts = self.soon(60.0);
                (why[self.random.random_range(0..why.len())], now + lasts)
            });
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            if job.ours && cancels && matches!(job.is, Is::Held | Is::Free) {
                (job.is, job.cancelled, job.by_admin) = (Is::Over, true, None);
            }
            if job.ours && refuses.is_some() {
                job.refused = refuses;
            }
            if job.ours && holds && matches!(job.is, Is::Held | Is::Free) {
                (job.is, job.by_admin) = (Is::Held, Some(now));
            } else if lets_go && job.by_admin.take().is_some() {
                job.is = Is::Free;
            }
            if job.ours && gives_up && matches!(job.is, Is::Runs { .. }) {
                (job.is, job.restarts) = (Is::Free, job.restarts + 1);
            }
            // One that is over is submitted again, and one that runs is stopped by its own user.
            if !job.ours && requeues {
                (job.is, job.restarts) = (Is::Free, job.restarts + 1);
            }
        }
    }

    fn shown_jobs(&self) -> Vec<SlurmJob> {
        let mut text = String::from("{\"meta\":{},\"errors\":[],\"jobs\":[");
        for (id, job) in &self.jobs {
            let (state, more) = match job.is {
                Is::Held => {
                    let who = if job.by_admin.is_some() { "Admin" } else { "User" };
                    ("PENDING", format!("\"state_reason\":\"JobHeld{who}\",\"priority\":0"))
                }
                Is::Free => {
                    let refused = job.refused.filter(|(_, until)| self.now < *until);
                    let full = job.required.is_some_and(|n| self.taken(n) + job.gpus > GPUS);
                    let why = refused.map_or(if full { "Resources" } else { "None" }, |(w, _)| w);
                    ("PENDING", format!("\"state_reason\":\"{why}\",\"priority\":1"))
                }
                Is::Over => {
                    let state = if job.cancelled { "CANCELLED" } else { "COMPLETED" };
                    (state, "\"state_reason\":\"None\",\"priority\":1".into())
                }
                Is::Runs { node, gpus, .. } => {
                    let name = &self.names[node];
                    let more = format!(
                        "\"state_reason\":\"None\",\"priority\":1,\"nodes\":\"{name}\",\
                         \"gres_detail\":[\"gpu:h200:{gpus}\"]"
                    );
                    ("RUNNING", more)
                }
            };
            let required = job.required.map_or("", |node| &self.names[node]);
            let comment = if job.resumes { "checkpoint=term save=1s" } else { "" };
            let partition = if job.ours { "gpu" } else { "open" };
            let mark = if job.marked { "wattline/held" } else { "" };
            write!(
                text,
                "{{\"job_id\":{id},\"submit_time\":1000000,\"restart_cnt\":{},\"name\":\"j\",\
                 \"user_id\":7,\"partition\":\"{partition}\",\"job_state\":\"{state}\",{more},\
                 \"required_nodes\":\"{required}\",\"tres_per_node\":\"gres:gpu:{}\",\
                 \"node_count\":1,\"cpus\":1,\"tasks\":1,\"time_limit\":1,\"batch_flag\":true,\
                 \"requeue\":true,\"comment\":\"{comment}\",\"admin_comment\":\"{mark}\"}},",
                job.restarts, job.gpus
            )
            .unwrap();
        }
        text.pop();
        read::jobs(&(text + "]}")).unwrap()
    }

    fn shown_nodes(&self) -> Vec<SlurmNode> {
        let node = |(at, name): (usize, &String)| {
            let taken = self.taken(at);
            let flags = if self.asleep[at] { "\"POWERED_DOWN\"" } else { "" };
            format!(
                "{{\"name\":\"{name}\",\"state\":\"idle\",\"state_flags\":[{flags}],\"gres\":\"gpu:h200:{GPUS}\",\
                 \"gres_used\":\"gpu:h200:{taken}\",\"cpus\":64,\
                 \"partitions\":[\"gpu\",\"open\"]}}"
            )
        };
        let nodes: Vec<String> = self.names.iter().enumerate().map(node).collect();
        let nodes = nodes.join(",");
        read::nodes(&format!("{{\"meta\":{{}},\"errors\":[],\"nodes\":[{nodes}]}}")).unwrap()
    }

    /// What the threads would have for the loop.
    fn heard(&mut self) -> Heard {
        let now = self.now;
        let (ended, orders) =
            std::mem::take(&mut self.orders).into_iter().partition(|order| order.ends <= now);
        self.orders = orders;
        let ended: Vec<UnderWay> = ended;
        let outcome = |UnderWay { order, began, result, .. }: UnderWay| Outcome {
            id: order.id,
            began,
            ended: self.ticks.next(),
            result,
        };
        let outcomes = ended.into_iter().map(outcome).collect();
        let ready = self.look.take_if(|look| look.there_at <= now);
        let look = ready.and_then(|look| {
            let (stamp, at) = look.began;
            let age = Duration::from_secs_f64(now.since(at).get());
            let limit = Duration::from_secs(20);
            let silent = CommandError::TimedOut { program: "squeue".into(), limit };
            let seen = match look.shows {
                _ if look.fails => Err(SeenError::Command(silent)),
                shown => shown.map(|(jobs, nodes)| Seen::of(jobs, nodes, stamp)).map(Ok)?,
            };
            Some(Looked { seen, age, clock: None })
        });
        Heard { outcomes, look, ..Heard::default() }
    }

    fn take_orders(&mut self) {
        for order in self.slurm.orders.take() {
            let mut busy: BTreeSet<Target> = BTreeSet::new();
            for target in self.orders.iter().flat_map(|under_way| &under_way.order.targets) {
                busy.insert(*target);
            }
            let twice = order.targets.iter().any(|target| busy.contains(target));
            assert!(!twice, "two orders at a time about {:?}", order.targets);
            for target in &order.targets {
                let Target::Job(number) = target else { continue };
                assert!(self.jobs[number].ours, "an order about a stranger: {:?}", order.work);
            }
            let began = self.ticks.next();
            let failure = |unanswered| Err(Failure { said: "model".into(), unanswered });
            let (lasts, effect, result) = if self.loses && self.happens(0.1) {
                // It hangs, and nobody knows whether it had an effect.
                let effect = self.happens(0.5).then(|| self.soon(20.0));
                (Seconds::new(20.0), effect, failure(true))
            } else if self.loses && self.happens(0.1) {
                (self.soon(1.0), None, failure(false))
            } else {
                let lasts = self.soon(1.0);
                (lasts, Some(lasts * self.random.random_range(0.0..1.0)), Ok(()))
            };
            self.failed += u64::from(result.is_err());
            let (effect, ends) = (effect.map(|after| self.now + after), self.now + lasts);
            self.orders.push(UnderWay { order, began, effect, ends, result });
        }
    }
}

impl Backend for Model {
    fn send(
        &mut self,
        now: Timestamp,
        action: &Action,
        known: Known<'_>,
    ) -> Result<(), BackendError> {
        self.slurm.send(now, action, known)?;
        self.take_orders();
        Ok(())
    }

    fn reports(
        &mut self,
        now: Timestamp,
        from: u64,
        known: Known<'_>,
    ) -> Result<Vec<Report>, BackendError> {
        let heard = self.heard();
        let news = self.slurm.follow(now, heard, known);
        self.take_orders();
        let number = |(at, news)| Report { number: from + at as u64, news };
        Ok(news.into_iter().enumerate().map(number).collect())
    }

    fn next_event(&self) -> Option<Timestamp> {
        None
    }

    fn is_current(&self, now: Timestamp) -> bool {
        self.slurm.is_current(now)
    }
}

fn controller(seed: u64, store: Store) -> Controller<Model> {
    let text = format!(
        "name = \"m\"\n[[nodes]]\ncount = 2\ngpu = \"h200\"\ngpus = {GPUS}\n[jobs]\ncount = 1\n"
    );
    let cluster = Scenario::parse(&text, "m").unwrap().instance("m", None).unwrap().cluster;
    let partitions = vec!["gpu".to_owned()];
    let config = Config { mode: Mode::Control, partitions, ..Config::default() };
    let slurm = Slurm::new(Site::new(config, Arc::clone(&cluster), &[], Vec::new()));
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let presses = seed % 4 >= 2;
    let job = |number: u32| {
        let gpus = 1 + number % 3;
        let takes = Seconds::new(random.random_range(2.0..40.0));
        let (ours, cancelled, refused) = (true, false, None);
        // Two of ours run already, and all of theirs want to.
        let is = match number {
            0 | 1 => {
                let until = Timestamp::from_seconds(1_000_000.0) + takes;
                Is::Runs { node: number as usize, gpus, until }
            }
            JOBS.. => Is::Free,
            _ => Is::Held,
        };
        let ours = ours && number < JOBS;
        let resumes = presses && ours && number.is_multiple_of(2);
        let starts = u32::from(matches!(is, Is::Runs { .. }));
        let (required, restarts) = (None, 0);
        let job = ModelJob {
            is,
            ours,
            cancelled,
            by_admin: None,
            marked: false,
            refused,
            gpus,
            takes,
            required,
            restarts,
            resumes,
            starts,
        };
        (100 + number, job)
    };
    let model = Model {
        ticks: slurm.ticks.clone(),
        slurm,
        names: cluster.nodes().iter().map(|node| node.name.to_string()).collect(),
        jobs: (0..JOBS + THEIRS).map(job).collect(),
        random: Pcg64Mcg::seed_from_u64(seed + 1000),
        orders: Vec::new(),
        look: None,
        calm: false,
        now: Timestamp::ZERO,
        failed: 0,
        loses: seed % 2 == 1,
        asleep: vec![false; cluster.nodes().len()],
        presses,
        stops: 0,
    };
    let engine = Engine::new(
        EngineConfig::default(),
        State::new(Arc::clone(&cluster), Timestamp::ZERO),
        Box::new(Foresight::new(Learner::new(Arc::clone(&cluster)), cluster)),
        Prices::default(),
        None,
    );
    let workloads = vec![SECONDS.into()];
    let initial = InitialState { engine, workloads, at: Timestamp::ZERO };
    let policy = wattline_policies::policy("fifo").unwrap();
    let planner = Box::new(InlinePlanner::new("fifo", policy));
    Controller::open(initial, store, model, planner).unwrap()
}

/// Jobs that have not ended, as SLURM and the engine have them.
fn unfinished(controller: &Controller<Model>) -> String {
    let state = controller.engine().state();
    let mut text = String::new();
    for (number, job) in &controller.backend().jobs {
        let key = SlurmKey { id: *number, submitted: 1_000_000, restarts: job.restarts };
        let known = controller.registry().find(&key).and_then(|id| state.find_job(id));
        if job.is != Is::Over || known.is_some_and(|state| !state.has_ended()) {
            let wanted = &controller.backend().slurm.wanted;
            write!(text, "\njob {number} {job:?}: {known:?}, wanted: {wanted:?}").unwrap();
        }
    }
    text
}

/// Says how many jobs were stopped.
fn run(seed: u64, folder: &std::path::Path) -> u32 {
    let store = Store::open(&folder.join(format!("{seed}")), &[]).unwrap();
    let mut controller = controller(seed, store);
    let mut now = Timestamp::from_seconds(1_000_000.0);
    let mut step = 0;
    loop {
        step += 1;
        assert!(step < MOST_STEPS, "these never end: {}", unfinished(&controller));
        now = now + STEP;
        let model = controller.backend_mut();
        model.calm = step > CALM_AFTER;
        // From nothing at all to all that the nodes could draw.
        let watts = model.random.random_range(1.0..FULL.get());
        let falls = model.presses && model.happens(0.02);
        let budget = falls.then(|| Some(Calendar::constant(Watts::new(watts))));
        let over = model.presses && step == CALM_AFTER + 1;
        if let Some(budget) = budget.or(over.then_some(None)) {
            controller.intake().set_budget(now, budget).unwrap();
        }
        controller.backend_mut().pass(now);
        controller.turn(now).unwrap();
        let state = controller.engine().state();
        for (number, job) in &controller.backend().jobs {
            let key = SlurmKey { id: *number, submitted: 1_000_000, restarts: job.restarts };
            let known = controller.registry().find(&key);
            let Some(id) = known.and_then(|id| state.find_job(id)) else { continue };
            if !job.ours {
                let told = matches!(id.phase, Phase::Starting(_) | Phase::Stopping(_));
                assert!(!told, "job {number} is not ours: {:?}", id.phase);
                continue;
            }
            let runs = matches!(job.is, Is::Runs { .. } | Is::Over);
            // What is believed has happened.
            match id.phase {
                // One that was told to stop may have obeyed after that was given up.
                Phase::Running | Phase::Finished => {
                    assert!(runs || job.restarts > 0, "job {number}: {job:?}");
                }
                _ => assert!(job.cancelled || !id.is_cancelled(), "job {number} was given up"),
            }
        }
        let mut all = controller.backend().jobs.values();
        let ended = all.all(|job| job.is == Is::Over);
        if ended && state.unfinished() == 0 {
            for (number, job) in controller.backend().jobs.iter().filter(|(_, job)| job.ours) {
                let once = job.starts == job.restarts + u32::from(!job.cancelled);
                assert!(once || job.cancelled, "job {number}: {job:?}");
            }
            return controller.backend().stops;
        }
    }
}

#[test]
fn whatever_is_late_or_lost_each_job_runs_once_and_nothing_is_done_on_old_looks() {
    let seeds = match std::env::var("WATTLINE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => match std::env::var("WATTLINE_NIGHTLY") {
            Ok(first) => {
                let first = first.parse::<u64>().unwrap();
                (first..first + NIGHTLY).collect()
            }
            // And those that found something.
            Err(_) => (0..SEEDS).chain(FOUND).collect::<Vec<u64>>(),
        },
    };
    let folder = tempfile::tempdir().unwrap();
    let (mut stops, many) = (0, seeds.len() > 1);
    for seed in seeds {
        let stopped = std::panic::catch_unwind(|| run(seed, folder.path()));
        stops += stopped.unwrap_or_else(|_| panic!("WATTLINE_SEED={seed} fails"));
    }
    assert!(stops > 0 || !many, "the budget stopped nobody");
}
