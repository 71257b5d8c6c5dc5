//! What SLURM is told when a budget falls: a controller over jobs that run, as SLURM shows them.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::config::{Config, Mode};
use super::crew::{Heard, Looked};
use super::instruction::Instruction;
use super::orders::{Failure, Order, Outcome, Work};
use super::read;
use super::seen::Seen;
use super::site::Site;
use super::{SECONDS, Slurm};
use crate::backend::{Backend, BackendError, Known, Report};
use crate::job_registry::SlurmKey;
use crate::journal::Store;
use crate::{Controller, Foresight, InitialState, InlinePlanner};
use std::sync::Arc;
use std::time::Duration;
use wattline_core::Timestamp;
use wattline_core::action::Action;
use wattline_core::calendar::Calendar;
use wattline_core::engine::{Alert, Engine, EngineConfig};
use wattline_core::ids::{JobId, NodeId};
use wattline_core::power::NodePower;
use wattline_core::prices::Prices;
use wattline_core::shed::Shed;
use wattline_core::state::{JobState, Phase, State};
use wattline_core::units::{Seconds, Watts};
use wattline_predict::learner::Learner;
use wattline_sim::scenario::Scenario;

/// A job that runs on one GPU, as SLURM shows it.
#[derive(Clone, Debug)]
struct Shown {
    number: u32,
    batch: bool,
    requeue: bool,
    checkpoint: &'static str,
    /// SLURM's word, or `FREE` for one that waits and is not held.
    state: &'static str,
    /// When it was submitted or requeued last, and how often it was.
    submitted: i64,
    restarts: u32,
    /// What else its user says.
    says: &'static str,
    /// Why it waits.
    reason: &'static str,
    partition: &'static str,
    /// Where it runs: on one GPU of each.
    nodes: &'static [&'static str],
    gpus: Gpus,
    /// How many GPUs it asks for.
    asks: u32,
    /// So many seconds after it was submitted it may begin, if its user wants that.
    begins_after: i64,
    /// Which part of the heterogeneous job 100 it is.
    part: Option<u32>,
}

/// What SLURM says about the GPUs of a job that runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gpus {
    Told,
    /// They were not asked for yet.
    NotTold,
    /// It has none.
    None,
}

const BATCH: Shown = Shown {
    number: 100,
    batch: true,
    requeue: true,
    checkpoint: "term",
    state: "RUNNING",
    submitted: 1_000_000,
    restarts: 0,
    says: "",
    reason: "None",
    partition: "gpu",
    nodes: &["n1"],
    gpus: Gpus::Told,
    asks: 1,
    begins_after: 0,
    part: None,
};

/// SLURM as it answers to orders that stop jobs.
struct Puppet {
    slurm: Slurm,
    jobs: Vec<Shown>,
    /// What it says to a requeue.
    refuses: Option<&'static str>,
    /// How far the machine's clock, which is SLURM's too, is ahead of the controller's.
    clock_ahead: Seconds,
    /// Nothing that is released starts.
    fails: bool,
    /// Whatever it was told.
    told: Vec<String>,
    orders: Vec<Order>,
}

impl Puppet {
    fn take_orders(&mut self) {
        self.orders.extend(self.slurm.orders.take());
    }

    /// When a job may begin, as far as that is told.
    fn sets_begin(&mut self, args: &[String]) {
        let said = |key: &str| args.iter().find_map(|arg| arg.strip_prefix(key));
        let (Some(number), Some(begin)) = (said("JobId="), said("StartTime=")) else { return };
        let about = self.jobs.iter_mut().find(|job| job.number.to_string() == number);
        let job = about.unwrap();
        job.begins_after = if begin == "now" { 0 } else { 100 * 365 * 86_400 };
    }

    /// Carries an order out.
    fn concludes(&mut self, order: &Order) -> Result<(), Failure> {
        let Work::Tell(told) = &order.work else { return Ok(()) };
        for line in told.iter().map(Instruction::line) {
            self.told.push(format!("{} {}", line.program, line.args.join(" ")));
            self.sets_begin(&line.args);
            let about = line.args.last().and_then(|id| id.parse::<u32>().ok());
            let job = self.jobs.iter_mut().find(|job| Some(job.number) == about);
            match (line.args[0].as_str(), job, self.refuses) {
                ("requeuehold", Some(_), Some(said)) => {
                    return Err(Failure { said: said.to_owned(), unanswered: false });
                }
                ("requeuehold", Some(job), None) => job.state = "PENDING",
                ("release", Some(_), _) if self.fails => {
                    return Err(Failure { said: "not so".into(), unanswered: false });
                }
                ("release", Some(job), _) if job.reason == "Resources" => job.state = "FREE",
                ("release", Some(job), _) => job.state = "RUNNING",
                ("uhold", Some(job), _) => job.state = "PENDING",
                (number, Some(job), _) if number == job.number.to_string() => {
                    job.state = "CANCELLED";
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn look(&self) -> Seen {
        let jobs: Vec<String> = self.jobs.iter().map(Shown::json).collect();
        let jobs = format!("{{\"meta\":{{}},\"errors\":[],\"jobs\":[{}]}}", jobs.join(","));
        let node = "{\"name\":\"n1\",\"state\":\"mixed\",\"gres\":\"gpu:h200:4\",\
                    \"gres_used\":\"gpu:h200:4\",\"cpus\":64,\"partitions\":[\"gpu\"]}";
        let nodes = format!("{{\"meta\":{{}},\"errors\":[],\"nodes\":[{node}]}}");
        let (jobs, nodes) = (read::jobs(&jobs).unwrap(), read::nodes(&nodes).unwrap());
        let mut seen = Seen::of(jobs, nodes, self.slurm.ticks.next());
        let lacking = self.jobs.iter().filter(|job| job.gpus == Gpus::NotTold);
        seen.lacks_gpus = lacking.map(|job| job.number).collect();
        seen
    }
}

impl Shown {
    fn json(&self) -> String {
        let Self { number, batch, requeue, checkpoint, state, submitted, restarts, .. } = self;
        let Self { says, reason, partition, nodes, gpus, asks, begins_after, part, .. } = self;
        let eligible = submitted + begins_after;
        let part = part.map(|part| format!(",\"het_job_id\":100,\"het_job_offset\":{part}"));
        let part = part.unwrap_or_default();
        let held =
            if *gpus == Gpus::Told { vec!["\"gpu:h200:1\""; nodes.len()] } else { Vec::new() };
        let more = match *state {
            "RUNNING" => &format!(
                ",\"nodes\":\"{}\",\"gres_detail\":[{}],\"priority\":1",
                nodes.join(","),
                held.join(",")
            ),
            "COMPLETED" => &format!(
                ",\"priority\":1,\"start_time\":{submitted},\"end_time\":{}",
                submitted + 3600
            ),
            "FREE" => ",\"priority\":1",
            _ => ",\"priority\":0",
        };
        let state = if *state == "FREE" { "PENDING" } else { *state };
        format!(
            "{{\"job_id\":{number},\"submit_time\":{submitted},\"eligible_time\":{eligible},\"restart_cnt\":{restarts},\"name\":\"j\",\
             \"user_id\":7,\"partition\":\"{partition}\",\"job_state\":\"{state}\",\
             \"state_reason\":\"{reason}\",\"tres_per_node\":\"gres:gpu:{asks}\",\"node_count\":1,\
             \"cpus\":1,\"tasks\":1,\"time_limit\":600,\"batch_flag\":{batch},\
             \"requeue\":{requeue},\"comment\":\"checkpoint={checkpoint} save=1s{says}\"{part}{more}}}"
        )
    }
}

impl Backend for Puppet {
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
        let mut outcomes = Vec::new();
        for order in std::mem::take(&mut self.orders) {
            let began = self.slurm.ticks.next();
            let result = self.concludes(&order);
            outcomes.push(Outcome { id: order.id, began, ended: self.slurm.ticks.next(), result });
        }
        let clock = Some(now + self.clock_ahead);
        let look = Some(Looked { seen: Ok(self.look()), age: Duration::ZERO, clock });
        let news = self.slurm.follow(now, Heard { outcomes, look, ..Heard::default() }, known);
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

/// A controller over these jobs, all of which run on one node.
struct Bench {
    controller: Controller<Puppet>,
    now: Timestamp,
    alerts: Vec<Alert>,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn over(jobs: &[Shown], shed: Shed) -> Self {
        // Nobody sets limits here, so a job draws all or nothing.
        let text = "name = \"m\"\n[[nodes]]\nnames = \"n1\"\ngpu = \"h200\"\ngpus = 4\n[slurm]\n";
        let cluster = Scenario::parse(text, "m").unwrap().site("m").unwrap().cluster;
        let partitions = vec!["gpu".to_owned()];
        let config = Config { mode: Mode::Control, partitions, ..Config::default() };
        let slurm = Slurm::new(Site::new(config, Arc::clone(&cluster), &[], Vec::new()));
        let (jobs, told, orders) = (jobs.to_vec(), Vec::new(), Vec::new());
        let puppet = Puppet {
            slurm,
            jobs,
            refuses: None,
            clock_ahead: Seconds::ZERO,
            fails: false,
            told,
            orders,
        };
        let engine = Engine::new(
            EngineConfig { budget_lead: Seconds::ZERO, shed, ..EngineConfig::default() },
            State::new(Arc::clone(&cluster), Timestamp::ZERO),
            Box::new(Foresight::new(Learner::new(Arc::clone(&cluster)), cluster)),
            Prices::default(),
            None,
        );
        let workloads = vec![SECONDS.into()];
        let initial = InitialState { engine, workloads, at: Timestamp::ZERO };
        let policy = wattline_policies::policy("fifo").unwrap();
        let planner = Box::new(InlinePlanner::new("fifo", policy));
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("journal"), &[]).unwrap();
        let controller = Controller::open(initial, store, puppet, planner).unwrap();
        let now = Timestamp::from_seconds(1_000_100.0);
        let mut bench = Self { controller, now, alerts: Vec::new(), _folder: folder };
        bench.pass(5);
        let running = |bench: &Self, id| bench.job(id).phase == Phase::Running;
        let count = bench.controller.backend().jobs.len() as u32;
        assert!(
            (0..count).all(|id| running(&bench, id)),
            "{:?}",
            bench.controller.engine().state()
        );
        bench
    }

    fn job(&self, id: u32) -> &JobState {
        self.controller.engine().state().job(JobId(id))
    }

    /// Looks at SLURM once a second for so many seconds.
    fn pass(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.now = self.now + Seconds::new(1.0);
            self.controller.turn(self.now).unwrap();
            self.alerts.extend(std::iter::from_fn(|| self.controller.poll_alert()));
        }
    }

    /// Nothing may run any more.
    fn cut(&mut self) {
        let nothing = Some(Calendar::constant(Watts::new(1.0)));
        self.controller.intake().set_budget(self.now, nothing).unwrap();
    }

    /// What SLURM was told about stopping jobs.
    fn stops(&self) -> Vec<&str> {
        let told = self.controller.backend().told.iter().map(String::as_str);
        told.filter(|line| line.contains("requeue") || line.contains("scancel")).collect()
    }

    fn cannot_be_kept(&self) -> usize {
        let is = |alert: &&Alert| matches!(alert, Alert::BudgetCannotBeKept(_));
        self.alerts.iter().filter(is).count()
    }
}

#[test]
fn a_preemptible_job_is_requeued_once() {
    let mut bench = Bench::over(&[BATCH], Shed::Stop);
    assert!(bench.job(0).job.preemptible);
    bench.cut();
    bench.pass(60);
    assert_eq!(bench.stops(), ["scontrol requeuehold Incomplete 100"]);
    assert!(bench.job(0).held.is_none());
}

/// SLURM lets owners requeue jobs that are over: such a job takes GPUs again, and counts.
#[test]
fn a_job_that_its_owner_requeues_after_its_end_comes_in_again() {
    let mut bench = Bench::over(&[BATCH], Shed::Stop);
    bench.controller.backend_mut().jobs[0].state = "COMPLETED";
    bench.pass(5);
    assert_eq!(bench.job(0).phase, Phase::Finished);
    let again = Shown { state: "RUNNING", submitted: 1_000_150, restarts: 1, ..BATCH };
    bench.controller.backend_mut().jobs[0] = again;
    bench.pass(5);
    let key = SlurmKey { id: 100, submitted: 1_000_150, restarts: 1 };
    let id = bench.controller.registry().find(&key).unwrap();
    assert_eq!(bench.job(id.0).phase, Phase::Running);
    assert!(id != JobId(0) && bench.job(id.0).held.is_some());
    assert_eq!(bench.stops(), Vec::<&str>::new());
}

/// A job that is cancelled while it starts, and that SLURM will not start, is cancelled there too.
#[test]
fn a_job_that_is_cancelled_while_it_starts_does_not_stay_held() {
    let mut bench = Bench::over(&[BATCH], Shed::Stop);
    let puppet = bench.controller.backend_mut();
    (puppet.fails, puppet.jobs[0].state) = (true, "PENDING");
    (puppet.jobs[0].submitted, puppet.jobs[0].restarts) = (1_000_050, 1);
    let starts = |bench: &Bench| matches!(bench.job(0).phase, Phase::Starting(_));
    for _ in 0..60 {
        if starts(&bench) {
            break;
        }
        bench.pass(1);
    }
    assert!(starts(&bench), "{:?}", bench.job(0));
    bench.controller.intake().cancel(bench.now, JobId(0)).unwrap();
    bench.pass(60);
    assert_eq!(bench.stops(), ["scancel 100"]);
}

/// slurmctld came up without its state, or jobs were hidden from us: those that it shows again later
/// were cancelled by nobody, and go on.
#[test]
fn jobs_that_slurm_does_not_show_for_a_while_are_not_cancelled_when_it_shows_them_again() {
    let waiting = Shown { number: 101, ..BATCH };
    let mut bench = Bench::over(&[BATCH, waiting.clone()], Shed::Stop);
    bench.controller.backend_mut().jobs[1] =
        Shown { state: "PENDING", submitted: 1_000_200, restarts: 1, ..waiting };
    bench.pass(5);
    let all = std::mem::take(&mut bench.controller.backend_mut().jobs);
    bench.pass(60);
    assert!(bench.job(0).has_ended() && bench.job(1).has_ended());
    bench.controller.backend_mut().jobs = all;
    bench.pass(60);
    assert_eq!(bench.stops(), Vec::<&str>::new());
    let known = |number, submitted, restarts| {
        let key = SlurmKey { id: number, submitted, restarts };
        let id = bench.controller.registry().find(&key).unwrap();
        bench.job(id.0).phase
    };
    assert_eq!(known(100, 1_000_000, 0), Phase::Running);
    assert_eq!(known(101, 1_000_200, 1), Phase::Running, "it was started again");
}

/// `scontrol hold` of an administrator on a job that waits was undone by its next start.
#[test]
fn what_an_administrator_holds_stays_held_until_he_lets_it_go() {
    let mut bench = Bench::over(&[BATCH], Shed::Stop);
    bench.requeued("PENDING");
    bench.controller.backend_mut().jobs[0].reason = "JobHeldAdmin";
    bench.pass(60);
    assert_eq!(bench.told("release"), 0, "{:?}", bench.controller.backend().told);
    let said = bench.controller.registry().refused(JobId(0)).unwrap();
    assert!(said.contains("an administrator holds it"), "{said}");
    // Its owner holds it as well: that is told when the administrator has let it go.
    bench.controller.backend_mut().jobs[0].begins_after = 100 * 365 * 86_400;
    bench.controller.backend_mut().jobs[0].reason = "JobHeldUser";
    bench.pass(10);
    let said = bench.controller.registry().refused(JobId(0)).unwrap();
    assert!(said.contains("its owner holds it") && bench.told("release") == 0, "{said}");
    bench.controller.backend_mut().jobs[0].begins_after = 0;
    bench.pass(10);
    assert_eq!((bench.told("release 100"), bench.job(0).phase), (1, Phase::Running));
}

/// `scontrol requeuehold` of an administrator, or of its owner, was undone by the job's next start.
#[test]
fn a_job_that_somebody_requeues_and_holds_waits_until_it_is_released() {
    let mut bench = Bench::over(&[BATCH], Shed::Stop);
    let lines = "job requeued in held state due to user request";
    for (time, reason, releases) in [(1, "JobHeldUser", "FREE"), (2, lines, "PENDING")] {
        bench.requeued("PENDING");
        bench.controller.backend_mut().jobs[0].reason = reason;
        bench.pass(120);
        assert_eq!(bench.told("release 100"), time - 1, "{:?}", bench.controller.backend().told);
        let said = bench.controller.registry().refused(JobId(0)).unwrap();
        assert!(said.contains("'scontrol release 100' lets it go"), "{said}");
        // An administrator's release frees it; of its owner's the gate makes a begin.
        let job = &mut bench.controller.backend_mut().jobs[0];
        job.state = releases;
        if releases == "PENDING" {
            job.begins_after = 0;
        }
        bench.pass(20);
        assert_eq!((bench.told("release 100"), bench.job(0).phase), (time, Phase::Running));
        // Its hold was just put right by us.
        bench.pass(5);
    }
}

/// What an owner changed between the first and the second look at his job was taken for what he had
/// asked for in the beginning.
#[test]
fn what_an_owner_changes_right_after_the_submission_counts() {
    let mut bench = Bench::over(&[BATCH], Shed::Stop);
    // So that it waits.
    let job = Shown { number: 101, state: "PENDING", reason: "JobHeldAdmin", ..BATCH };
    bench.controller.backend_mut().jobs.push(job);
    while bench.controller.engine().state().find_job(JobId(1)).is_none() {
        bench.pass(1);
    }
    bench.controller.backend_mut().jobs[1].asks = 2;
    bench.pass(3);
    assert_eq!(bench.job(1).job.gpus.requested, 2);
}

/// After slurmctld was killed it showed GPUs as taken that no job had. A job was started there again and
/// again, and nowhere else.
#[test]
fn a_node_that_slurm_shows_taken_for_long_refuses_the_job() {
    let mut bench = Bench::over(&[BATCH], Shed::Stop);
    bench.requeued("PENDING");
    bench.controller.backend_mut().jobs[0].reason = "Resources";
    bench.pass(60);
    let said = bench.controller.registry().refused(JobId(0)).map(|said| said.to_string());
    assert!(said.is_some_and(|said| said.contains("Resources")));
}

/// That it is in use was forgotten before it was told, and the node was told to sleep all the same: SLURM
/// then starts nothing there until the others' jobs have ended.
#[test]
fn a_node_that_others_use_is_not_told_to_sleep() {
    let mut bench = Bench::over(&[BATCH], Shed::Stop);
    bench.controller.backend_mut().jobs[0].state = "COMPLETED";
    bench.pass(3);
    bench.cut();
    bench.pass(120);
    assert_eq!(bench.told("POWER_DOWN"), 0, "{:?}", bench.controller.backend().told);
    let power = bench.controller.engine().state().node(NodeId(0)).power;
    assert_eq!(power, NodePower::Up);
}

/// Its GPUs counted as free, and others were planned there.
#[test]
fn a_job_that_also_runs_on_nodes_of_others_counts_on_ours() {
    let wide = Shown { nodes: &["elsewhere", "n1"], ..BATCH };
    let theirs = Shown { number: 101, partition: "open", ..wide.clone() };
    let bench = Bench::over(&[wide, theirs], Shed::Stop);
    let held = |id: u32| bench.job(id).held.as_ref().map(|held| held.configuration.gpus);
    assert_eq!((held(0), held(1)), (Some(1), Some(1)));
}

/// With many jobs it takes a while until it is asked which GPUs a job has got. A job of which that
/// could not be read (its name looked like scontrol's words) was taken for one without any.
#[test]
fn a_job_whose_gpus_are_not_told_yet_is_left_alone() {
    for (gpus, requeues) in [(Gpus::NotTold, 0), (Gpus::None, 1)] {
        let mut bench = Bench::over(&[BATCH], Shed::Stop);
        bench.requeued("PENDING");
        bench.controller.backend_mut().jobs[0].gpus = gpus;
        for _ in 0..20 {
            bench.pass(1);
            if bench.told("requeuehold") > 0 {
                break;
            }
        }
        assert_eq!((bench.told("release 100"), bench.told("requeuehold")), (1, requeues));
        bench.controller.backend_mut().jobs[0].gpus = Gpus::Told;
        bench.pass(10);
        assert_eq!(bench.job(0).phase, Phase::Running);
    }
}

/// A job of which one part is not ours could never be let go, and kept the GPUs of the other parts
/// for ten minutes each time.
#[test]
fn a_heterogeneous_job_with_a_part_of_others_keeps_no_gpus_and_is_told_why() {
    let mut bench = Bench::over(&[Shown { number: 99, ..BATCH }], Shed::Stop);
    let first = Shown { state: "PENDING", part: Some(0), ..BATCH };
    let second = Shown { number: 101, part: Some(1), partition: "open", ..first.clone() };
    bench.controller.backend_mut().jobs.extend([first, second]);
    for _ in 0..60 {
        bench.pass(1);
        assert!(bench.job(1).held.is_none());
    }
    let said = bench.controller.registry().refused(JobId(1)).unwrap();
    assert!(said.contains("100+1 is in partition open"), "{said}");
    assert_eq!(bench.told("101") + bench.told("release"), 0);
}

/// The controller's clock goes on evenly whatever is done to the machine's, which SLURM's times are
/// of. When that had gone forward by an hour, all new jobs waited for an hour, because they seemed to
/// begin later; when it had gone back, jobs with `--begin` were started an hour too early.
#[test]
fn jobs_that_come_after_the_machines_clock_has_jumped_begin_when_they_may() {
    for jump in [3600, -3600] {
        let mut bench = Bench::over(&[BATCH], Shed::Stop);
        let now = bench.now.seconds() as i64 + jump;
        let puppet = bench.controller.backend_mut();
        puppet.clock_ahead = Seconds::new(jump as f64);
        let at_once = Shown { number: 101, state: "PENDING", submitted: now, ..BATCH };
        let later = Shown { number: 102, begins_after: 1800, ..at_once.clone() };
        puppet.jobs.extend([at_once, later]);
        bench.pass(10);
        let phase = |bench: &Bench, number| {
            let key = SlurmKey { id: number, submitted: now, restarts: 0 };
            bench.controller.registry().find(&key).map(|id| bench.job(id.0).phase)
        };
        assert_eq!(phase(&bench, 101), Some(Phase::Running), "{jump} s");
        assert_eq!((phase(&bench, 102), bench.told("release 102")), (None, 0), "{jump} s");
        let troubles = bench.controller.backend().slurm.troubles(bench.now);
        assert!(troubles[0].contains("by 3600 s; calendars"), "{troubles:?}");
        // One that was requeued, by SLURM's clock just now, goes on too.
        bench.controller.backend_mut().jobs.truncate(1);
        let job = &mut bench.controller.backend_mut().jobs[0];
        (job.state, job.submitted, job.restarts) = ("PENDING", now, 1);
        bench.pass(10);
        assert_eq!(bench.job(0).phase, Phase::Running, "{jump} s");
        bench.pass(1800);
        assert_eq!(bench.told("release 100"), 1);
    }
}

#[test]
fn what_slurm_cannot_requeue_is_not_tried_for_ever() {
    let fixed = Shown { number: 100, requeue: false, ..BATCH };
    let interactive = Shown { number: 101, batch: false, ..BATCH };
    let mut bench = Bench::over(&[fixed, interactive], Shed::Stop);
    assert!(!bench.job(0).job.preemptible && !bench.job(1).job.preemptible);
    bench.cut();
    bench.pass(600);
    assert_eq!(bench.stops(), Vec::<&str>::new());
    assert_eq!(bench.cannot_be_kept(), 1, "{:?}", bench.alerts);
    let shortfall = bench.controller.engine().shortfall().unwrap();
    assert_eq!(shortfall.jobs, [JobId(0), JobId(1)]);
    // What looked as if it could be requeued, and cannot, is tried once.
    for refusal in [
        "Requested operation is presently disabled for job 100",
        "Only batch jobs are accepted or processed for job 100",
    ] {
        let mut bench = Bench::over(&[BATCH], Shed::Stop);
        bench.controller.backend_mut().refuses = Some(refusal);
        bench.cut();
        bench.pass(600);
        assert_eq!(bench.stops(), ["scontrol requeuehold Incomplete 100"]);
        assert!(!bench.job(0).job.preemptible && bench.job(0).phase == Phase::Running);
        assert!(bench.alerts.contains(&Alert::CannotBeStopped(JobId(0))));
        assert_eq!(bench.cannot_be_kept(), 1);
    }
}

#[test]
fn a_job_whose_user_forbids_a_requeue_later_is_left_alone() {
    let mut bench = Bench::over(&[BATCH], Shed::Stop);
    bench.controller.backend_mut().jobs[0].requeue = false;
    bench.pass(2);
    bench.cut();
    bench.pass(60);
    assert_eq!(bench.stops(), Vec::<&str>::new());
    assert!(bench.alerts.contains(&Alert::CannotBeStopped(JobId(0))));
}

#[test]
fn a_job_without_checkpoints_is_never_killed_for_the_budget() {
    let without = Shown { checkpoint: "none", ..BATCH };
    let mut bench = Bench::over(&[without], Shed::Stop);
    assert!(!bench.job(0).job.preemptible);
    bench.cut();
    bench.pass(600);
    assert_eq!(bench.stops(), Vec::<&str>::new());
    assert_eq!(bench.cannot_be_kept(), 1);
    assert_eq!(bench.job(0).phase, Phase::Running);
}

#[test]
fn where_the_site_lets_jobs_be_killed_they_are_cancelled_and_never_requeued() {
    let jobs = [
        BATCH,
        Shown { number: 101, requeue: false, ..BATCH },
        Shown { number: 102, batch: false, ..BATCH },
        Shown { number: 103, checkpoint: "none", ..BATCH },
    ];
    let mut bench = Bench::over(&jobs, Shed::Kill);
    bench.cut();
    bench.pass(60);
    let mut stops = bench.stops();
    stops.sort_unstable();
    let expected =
        ["scancel 101", "scancel 102", "scancel 103", "scontrol requeuehold Incomplete 100"];
    assert_eq!(stops, expected);
    let killed = [1, 2, 3].map(JobId).to_vec();
    assert!(bench.alerts.contains(&Alert::KilledForBudget(killed)), "{:?}", bench.alerts);
    // Those that were killed are over; the other one waits.
    assert_eq!(bench.controller.engine().state().unfinished(), 1);
    assert!(bench.job(0).held.is_none());
}

/// A job that saves when it is asked, and SLURM after it exited with the agreed code.
const SAVES: Shown = Shown { checkpoint: "usr1", ..BATCH };

impl Bench {
    /// SLURM requeues the job, for whatever reason.
    fn requeued(&mut self, state: &'static str) {
        let now = self.now.seconds() as i64;
        let job = &mut self.controller.backend_mut().jobs[0];
        (job.state, job.submitted, job.restarts) = (state, now, job.restarts + 1);
    }

    fn told(&self, what: &str) -> usize {
        self.controller.backend().told.iter().filter(|line| line.contains(what)).count()
    }
}

#[test]
fn a_job_that_exits_with_86_by_itself_has_ended_and_is_not_started_again() {
    let mut bench = Bench::over(&[SAVES], Shed::Stop);
    bench.requeued("SPECIAL_EXIT");
    bench.pass(60);
    assert!(bench.controller.engine().state().find_job(JobId(0)).is_none_or(JobState::has_ended));
    assert_eq!(bench.told("release"), 0, "{:?}", bench.controller.backend().told);
    assert_eq!(bench.stops(), ["scancel 100"]);
    // What its user says in the comment stays.
    assert_eq!(bench.told(" Comment="), 0);
    let ended = bench.controller.take_ended();
    assert!(ended[0].how.as_deref().unwrap().contains("without having been asked"), "{ended:?}");
}

#[test]
fn a_job_that_exits_with_86_because_it_was_asked_to_goes_on() {
    let mut bench = Bench::over(&[SAVES], Shed::Stop);
    bench.controller.intake().hold(bench.now, JobId(0), true).unwrap();
    bench.pass(5);
    assert_eq!(bench.stops(), ["scancel --signal=USR1 --batch 100"]);
    bench.requeued("SPECIAL_EXIT");
    bench.pass(5);
    assert_eq!(bench.job(0).phase, Phase::Waiting);
    bench.controller.intake().hold(bench.now, JobId(0), false).unwrap();
    bench.pass(10);
    assert_eq!((bench.told("release 100"), bench.job(0).phase), (1, Phase::Running));
    // What it was asked once does not count for its next run.
    bench.requeued("SPECIAL_EXIT");
    bench.pass(10);
    assert_eq!((bench.told("release 100"), bench.told("scancel 100")), (1, 1));
}

#[test]
fn restarts_are_capped_and_its_owner_or_time_lets_the_job_go_on() {
    let mut bench = Bench::over(&[BATCH], Shed::Stop);
    let most = Config::default().max_restarts_per_day;
    for restarts in 1..=most {
        bench.requeued("PENDING");
        bench.pass(10);
        let runs = bench.job(0).phase == Phase::Running;
        assert_eq!(runs, restarts < most, "restart {restarts}: {:?}", bench.job(0).phase);
        let stays = restarts >= most / 2 && runs;
        assert_eq!(bench.job(0).stays_put() && runs, stays, "restart {restarts}");
    }
    assert!(bench.job(0).is_on_hold());
    let said = bench.controller.registry().restart_hold(JobId(0)).unwrap();
    assert!(said.contains("20 times") && said.contains("wattline job release 100"), "{said}");
    // Its owner lets it go: what was before does not count.
    bench.controller.intake().hold(bench.now, JobId(0), false).unwrap();
    bench.pass(10);
    assert_eq!(bench.job(0).phase, Phase::Running);
    for _ in 0..most {
        bench.requeued("PENDING");
        bench.pass(10);
    }
    assert!(bench.job(0).is_on_hold());
    // A day later they do not count either.
    bench.now = bench.now + Seconds::hours(24.0);
    bench.pass(20);
    assert_eq!((bench.job(0).phase, bench.job(0).is_on_hold()), (Phase::Running, false));
}

/// `work=1 deadline=now` goes before honest jobs of equal weight; once.
#[test]
fn declared_work_that_does_not_hold_is_not_believed_again() {
    let liar = Shown { says: " workload=w work=1 deadline=now weight=1e9", ..BATCH };
    let mut bench = Bench::over(std::slice::from_ref(&liar), Shed::Stop);
    let work = |bench: &Bench, id| bench.job(id).job.work.0;
    assert_eq!(work(&bench, 0), 1.0);
    // What a user may say at most holds for him, too.
    let most = Config::default().defaults.max_weight;
    assert_eq!(bench.job(0).job.weight, most);
    bench.pass(600);
    bench.controller.backend_mut().jobs[0].state = "COMPLETED";
    bench.pass(2);
    let next = |number, says| Shown { number, says, ..liar.clone() };
    let jobs = &mut bench.controller.backend_mut().jobs;
    jobs.push(next(101, " workload=w work=1 deadline=now weight=1e9"));
    jobs.push(next(102, " workload=another work=1 deadline=now weight=1e9"));
    bench.pass(5);
    assert!(work(&bench, 1) > 100.0, "{}", work(&bench, 1));
    assert!(work(&bench, 2) > 100.0, "a new name buys nothing: {}", work(&bench, 2));
}
