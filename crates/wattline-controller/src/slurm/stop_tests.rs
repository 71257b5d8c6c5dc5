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
use crate::journal::Store;
use crate::{Controller, Foresight, InitialState, InlinePlanner};
use std::sync::Arc;
use std::time::Duration;
use wattline_core::Timestamp;
use wattline_core::action::Action;
use wattline_core::calendar::Calendar;
use wattline_core::engine::{Alert, Engine, EngineConfig};
use wattline_core::ids::JobId;
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
    /// SLURM's word.
    state: &'static str,
}

const BATCH: Shown =
    Shown { number: 100, batch: true, requeue: true, checkpoint: "term", state: "RUNNING" };

/// SLURM as it answers to orders that stop jobs.
struct Puppet {
    slurm: Slurm,
    jobs: Vec<Shown>,
    /// What it says to a requeue.
    refuses: Option<&'static str>,
    /// Whatever it was told.
    told: Vec<String>,
    orders: Vec<Order>,
}

impl Puppet {
    fn take_orders(&mut self) {
        self.orders.extend(self.slurm.orders.take());
    }

    /// Carries an order out.
    fn concludes(&mut self, order: &Order) -> Result<(), Failure> {
        let Work::Tell(told) = &order.work else { return Ok(()) };
        for line in told.iter().map(Instruction::line) {
            self.told.push(format!("{} {}", line.program, line.args.join(" ")));
            let about = line.args.last().and_then(|id| id.parse::<u32>().ok());
            let job = self.jobs.iter_mut().find(|job| Some(job.number) == about);
            match (line.args[0].as_str(), job, self.refuses) {
                ("requeuehold", Some(_), Some(said)) => {
                    return Err(Failure { said: said.to_owned(), unanswered: false });
                }
                ("requeuehold", Some(job), None) => job.state = "PENDING",
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
        Seen::of(jobs, nodes, self.slurm.ticks.next())
    }
}

impl Shown {
    fn json(&self) -> String {
        let Self { number, batch, requeue, checkpoint, state } = self;
        let more = match *state {
            "RUNNING" => ",\"nodes\":\"n1\",\"gres_detail\":[\"gpu:h200:1\"],\"priority\":1",
            _ => ",\"priority\":0",
        };
        format!(
            "{{\"job_id\":{number},\"submit_time\":1000000,\"restart_cnt\":0,\"name\":\"j\",\
             \"user_id\":7,\"partition\":\"gpu\",\"job_state\":\"{state}\",\
             \"state_reason\":\"None\",\"tres_per_node\":\"gres:gpu:1\",\"node_count\":1,\
             \"cpus\":1,\"tasks\":1,\"time_limit\":600,\"batch_flag\":{batch},\
             \"requeue\":{requeue},\"comment\":\"checkpoint={checkpoint} save=1s\"{more}}}"
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
        let look = Some(Looked { seen: Ok(self.look()), age: Duration::ZERO });
        let news = self.slurm.follow(now, Heard { outcomes, look, readings: None }, known);
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
        let puppet = Puppet { slurm, jobs, refuses: None, told, orders };
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
    assert_eq!(bench.stops(), ["scontrol requeuehold 100"]);
    assert!(bench.job(0).held.is_none());
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
        assert_eq!(bench.stops(), ["scontrol requeuehold 100"]);
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
    let expected = ["scancel 101", "scancel 102", "scancel 103", "scontrol requeuehold 100"];
    assert_eq!(stops, expected);
    let killed = [1, 2, 3].map(JobId).to_vec();
    assert!(bench.alerts.contains(&Alert::KilledForBudget(killed)), "{:?}", bench.alerts);
    // Those that were killed are over; the other one waits.
    assert_eq!(bench.controller.engine().state().unfinished(), 1);
    assert!(bench.job(0).held.is_none());
}
