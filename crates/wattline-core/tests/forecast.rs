//! Forecasts from states in which things are under way.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Bench, FULL, job, kinds, on, runs, waits, wants};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::engine::Event;
use wattline_core::forecast::{Forecast, Horizon, JobForecast, forecast, roll_forward};
use wattline_core::ids::JobId;
use wattline_core::job::{Job, RestartCost, Work};
use wattline_core::plan::Plan;
use wattline_core::policy::{ClusterView, Policy};
use wattline_core::prices::Prices;
use wattline_core::state::Target;
use wattline_core::units::{Joules, Seconds, Watts};

/// Leaves everything as it is.
struct Nothing;

impl Policy for Nothing {
    fn name(&self) -> &str {
        "nothing"
    }
    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        Plan::unchanged(view.plan)
    }
}

/// Job n runs on GPU n of the first node, at once and for ever.
struct EachOnItsOwn;

impl Policy for EachOnItsOwn {
    fn name(&self) -> &str {
        "each on its own"
    }
    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        let waiting = view.state.unfinished_jobs().filter(|(_, job)| job.is_waiting());
        let jobs = waiting.map(|(id, _)| runs(id.0, on(&[(0, 1 << id.0)], FULL))).collect();
        Plan { jobs, ..Plan::unchanged(view.plan) }
    }
}

fn at(seconds: f64) -> Timestamp {
    Timestamp::from_seconds(seconds)
}

fn look(bench: &Bench, policy: Box<dyn Policy>) -> Forecast {
    let before = bench.everything();
    let foreseen = forecast(&bench.engine, policy, bench.now, &Horizon::default());
    assert_eq!(bench.everything(), before, "looking ahead changes nothing");
    foreseen
}

fn first(foreseen: &Forecast) -> JobForecast {
    *foreseen.job(JobId(0)).unwrap()
}

#[test]
fn a_start_under_way_is_done_and_billed_as_predicted() {
    let late = Job { deadline: Some(at(400.0)), ..job() };
    let mut bench = Bench::with(&[(0, 4)], vec![late], None);
    assert_eq!(kinds(&bench.plan(vec![runs(0, on(&[(0, 3)], FULL))], vec![])), ["start j0"]);
    bench.pass(7.0);
    let foreseen = look(&bench, Box::new(Nothing));
    assert!(foreseen.complete);
    let job = first(&foreseen);
    assert_eq!((job.start, job.end), (Some(at(7.0)), Some(at(507.0))));
    assert_eq!(job.energy, Joules::new(2.0 * FULL * 500.0));
    let prices = Prices::default();
    let billed = Watts::new(2.0 * FULL) * prices.pue;
    assert_eq!(job.bill, prices.bill(billed, at(7.0), at(507.0)));
    assert_eq!(job.tardiness_cost.get(), 107.0);
    assert!((job.cost() - job.tardiness_cost - job.bill.energy).get().abs() < 1e-12);
}

#[test]
fn a_job_told_to_stop_saves_from_when_it_was_told() {
    let slow = RestartCost { save: Seconds::new(30.0), load: Seconds::new(20.0) };
    let mut bench = Bench::with(&[(0, 4)], vec![Job { restart: slow, ..job() }], None);
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    bench.pass(100.0);
    assert_eq!(kinds(&bench.plan(vec![waits(0)], vec![])), ["stop j0"]);
    bench.pass(10.0);

    let foreseen = look(&bench, Box::new(Nothing));
    assert!(!foreseen.complete, "nobody starts it again");
    let job = first(&foreseen);
    assert_eq!((job.start, job.end), (Some(at(0.0)), None));
    assert_eq!(job.energy, Joules::new(FULL * 20.0), "until it has saved");

    // Another policy is asked only when something happens that the first would be asked about.
    let mut fork = bench.engine.fork(Box::new(EachOnItsOwn));
    fork.handle(bench.now, Event::BudgetSet(None)).unwrap();
    let job = first(&roll_forward(fork, bench.now, &Horizon::default()));
    assert_eq!(job.end, Some(at(130.0 + 20.0 + 900.0)), "saved, loaded, and the rest");
    assert_eq!(job.energy, Joules::new(FULL * (20.0 + 920.0)));
}

#[test]
fn a_limit_under_way_is_set() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    bench.pass(400.0);
    assert_eq!(kinds(&bench.plan(vec![runs(0, on(&[(0, 1)], 150.0))], vec![])), ["limit j0 150"]);
    let job = first(&look(&bench, Box::new(Nothing)));
    assert_eq!(job.end, Some(at(400.0 + 1200.0)));
    assert_eq!(job.energy, Joules::new(150.0 * 1200.0));
}

#[test]
fn a_booting_node_comes_up_when_it_should() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    bench.settle(vec![], vec![wants(0, Target::Asleep)]);
    bench.pass(5.0);
    let change = vec![runs(0, on(&[(0, 1)], FULL))];
    assert_eq!(kinds(&bench.plan(change, vec![wants(0, Target::Up)])), ["wake n0"]);
    bench.pass(25.0);
    let job = first(&look(&bench, Box::new(Nothing)));
    assert_eq!((job.start, job.end), (Some(at(65.0)), Some(at(1065.0))));
    assert_eq!(job.energy, Joules::new(FULL * 1000.0), "booting is nobody's");
}

/// A found bug: a run that went at half the predicted speed was believed to catch up.
#[test]
fn a_runs_own_speed_counts_for_the_rest_of_it() {
    let mut bench = Bench::new(&[(0, 4)], 1, None);
    bench.settle(vec![runs(0, on(&[(0, 1)], FULL))], vec![]);
    bench.pass(100.0);
    bench.hear(Event::Progress { job: JobId(0), done: Work(50.0) });
    assert_eq!(first(&look(&bench, Box::new(Nothing))).end, Some(at(100.0 + 950.0 / 0.5)));
    // Half a second later, or backwards, says nothing about speed.
    bench.pass(0.5);
    bench.hear(Event::Progress { job: JobId(0), done: Work(60.0) });
    assert_eq!(first(&look(&bench, Box::new(Nothing))).end, Some(at(100.5 + 940.0 / 0.5)));
    bench.pass(60.0);
    bench.hear(Event::Progress { job: JobId(0), done: Work(10.0) });
    assert_eq!(first(&look(&bench, Box::new(Nothing))).end, Some(at(160.5 + 990.0 / 0.5)));
}

#[test]
fn what_if_another_job_came() {
    let bench = Bench::new(&[(0, 4)], 1, None);
    let before = bench.everything();
    let mut fork = bench.engine.fork(Box::new(EachOnItsOwn));
    fork.handle(bench.now, Event::Submitted(Arc::new(job()))).unwrap();
    let foreseen = roll_forward(fork, bench.now, &Horizon::default());
    assert_eq!(foreseen.jobs.len(), 2);
    assert!(foreseen.complete && foreseen.jobs.iter().all(|job| job.end == Some(at(1000.0))));
    assert_eq!(bench.everything(), before);
}

#[test]
fn a_forecast_ends_with_what_was_asked_for_and_never_runs_away() {
    let long = Job { work: Work(1e9), ..job() };
    let bench = Bench::with(&[(0, 4)], vec![job(), long], None);
    let look =
        |horizon: Horizon<'_>| forecast(&bench.engine, Box::new(EachOnItsOwn), bench.now, &horizon);
    let foreseen = look(Horizon::ended(&[JobId(0)]));
    assert!(foreseen.complete && foreseen.until == at(1000.0));
    assert_eq!(foreseen.job(JobId(1)).unwrap().end, None);
    assert_eq!(foreseen.job(JobId(7)), None);
    let foreseen = look(Horizon { steps: 1, ..Horizon::default() });
    assert!(!foreseen.complete);
    assert!(look(Horizon::ended(&[])).complete);
}

/// One job after the other on the one GPU, and no plan but when something happens.
struct OneByOne(Arc<std::sync::atomic::AtomicU32>);

impl Policy for OneByOne {
    fn name(&self) -> &str {
        "one by one"
    }
    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut jobs = view.state.unfinished_jobs();
        let next = jobs.next().filter(|(_, job)| job.is_waiting());
        let jobs = next.map(|(id, _)| runs(id.0, on(&[(0, 1)], FULL))).into_iter().collect();
        Plan { jobs, ..Plan::unchanged(view.plan) }
    }
}

#[test]
fn the_far_future_is_seen_with_fewer_plans_and_says_from_when() {
    let bench = Bench::new(&[(0, 1)], 40, None);
    let look = |apart: &dyn Fn(Seconds, usize) -> Seconds| {
        let plans = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let policy = Box::new(OneByOne(Arc::clone(&plans)));
        let seen =
            forecast(&bench.engine, policy, bench.now, &Horizon { apart, ..Horizon::default() });
        (seen, plans.load(std::sync::atomic::Ordering::Relaxed))
    };
    let (exact, all) = look(&|_, _| Seconds::ZERO);
    assert!(exact.complete && exact.exact_until == exact.until && exact.until == at(40_000.0));
    let (same, as_many) = look(&|_, _| Seconds::new(1e-6));
    assert_eq!((same.jobs, as_many), (exact.jobs.clone(), all), "nothing is that close");
    // Every plan at first; then a job that ends waits for the next one.
    let late = |looked: Seconds, left: usize| {
        assert!(left <= 40);
        if looked < Seconds::new(4000.0) { Seconds::ZERO } else { looked * 0.1 }
    };
    let (coarse, fewer) = look(&late);
    assert!(coarse.complete);
    assert!((at(10_000.0)..=at(12_000.0)).contains(&coarse.exact_until), "{}", coarse.exact_until);
    for (a, b) in exact.jobs.iter().zip(&coarse.jobs) {
        let (a, b) = (a.end.unwrap(), b.end.unwrap());
        if a <= coarse.exact_until {
            assert_eq!(a, b);
        }
        assert!(b >= a, "{a} {b}");
    }
    // Each job is a plan at its start, so there are no fewer; with more GPUs there are.
    assert!(fewer <= all);
}
