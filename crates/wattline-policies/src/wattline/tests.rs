//! Two kinds of GPUs with jobs for them: what the market says of these.

mod late;
mod rollout;

use super::{
    Filler, Goal, Level, Market, NodeSharing, Objective, Problem, Search, Slot, Tuning,
    reservations, search,
};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::cluster::{Cluster, GpuType, Node, NodeDraw};
use wattline_core::effort::Effort;
use wattline_core::ids::{GpuTypeId, PlanId, UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work, WorkRate};
use wattline_core::placement::Configuration;
use wattline_core::policy::{Changes, ClusterView};
use wattline_core::predictor::{Measurement, Prediction, Predictor};
use wattline_core::prices::Prices;
use wattline_core::state::State;
use wattline_core::units::{EurosPerSecond, Seconds, Watts};

/// GPUs of the first type are three times as fast, and all are slower at lower limits.
struct Formula;

impl Predictor for Formula {
    fn predict(&self, _: &Job, c: &Configuration) -> Option<Prediction> {
        let speed = if c.gpu_type == GpuTypeId(0) { 3.0 } else { 1.0 };
        Some(Prediction {
            rate: WorkRate(
                speed * f64::from(c.gpus).powf(0.8) * (c.power_limit.get() / 200.0).powf(0.4),
            ),
            power: c.power_limit,
            time_low: 1.0,
            time_high: 1.0,
            power_within: 1.0,
            energy_within: 1.0,
            measurements: 1,
        })
    }
    fn observe(&mut self, _: &Measurement) {}
}

/// Four nodes of four GPUs, every second one of them slow.
fn cluster() -> Arc<Cluster> {
    let watts = Watts::new;
    let card = |name: &str| GpuType {
        name: name.into(),
        idle: watts(20.0),
        busy: watts(200.0),
        min_limit: watts(100.0),
        default_limit: watts(200.0),
        max_limit: watts(200.0),
        limit_step: watts(50.0),
        tflops: None,
        links: None,
    };
    let node = |number: u32| Node {
        name: format!("n{number}").into(),
        gpu_type: GpuTypeId((number % 2) as u16),
        gpus: 4,
        draw: NodeDraw::Additive { base: watts(100.0) },
        sleep: watts(10.0),
        boot: watts(110.0),
        boot_time: Seconds::ZERO,
        shutdown_time: Seconds::ZERO,
        rack: 0,
    };
    Arc::new(Cluster::new(vec![card("fast"), card("slow")], (0..4).map(node).collect()).unwrap())
}

/// An hour of work on a slow GPU, due within ten minutes.
fn job(submit: f64, elasticity: Elasticity) -> Job {
    Job {
        name: "job".into(),
        user: UserId(0),
        workload: WorkloadId(0),
        work: Work(3600.0),
        submit: Timestamp::from_seconds(submit),
        deadline: Some(Timestamp::from_seconds(submit + 600.0)),
        weight: EurosPerSecond::new(0.01),
        elasticity,
        gpus: Bounds { min: 1, max: 4, requested: 1 },
        batch: Bounds { min: 64, max: 64, requested: 64 },
        restart: RestartCost { save: Seconds::new(5.0), load: Seconds::new(15.0) },
        preemptible: true,
        shapes: None,
        nodes: None,
    }
}

/// Jobs of many sizes and weights that came at once.
pub(super) fn many(count: u32) -> impl Iterator<Item = Job> {
    (0..count).map(|n| Job {
        work: Work(600.0 * f64::from(1 + (n * 7) % 13)),
        weight: EurosPerSecond::new(0.001 * f64::from(5 + (n * 5) % 11)),
        ..job(0.0, Elasticity::Malleable)
    })
}

fn look<T>(
    now: f64,
    jobs: impl IntoIterator<Item = Job>,
    budget: Option<f64>,
    look: impl FnOnce(&mut Problem<'_, '_>) -> T,
) -> T {
    look_for(Goal::Cost, now, jobs, budget, look)
}

pub(super) fn look_for<T>(
    goal: Goal,
    now: f64,
    jobs: impl IntoIterator<Item = Job>,
    budget: Option<f64>,
    look: impl FnOnce(&mut Problem<'_, '_>) -> T,
) -> T {
    look_with(&Tuning::default(), goal, now, jobs, budget, look)
}

fn look_with<T>(
    tuning: &Tuning,
    goal: Goal,
    now: f64,
    jobs: impl IntoIterator<Item = Job>,
    budget: Option<f64>,
    look: impl FnOnce(&mut Problem<'_, '_>) -> T,
) -> T {
    let mut state = State::new(cluster(), Timestamp::ZERO);
    for job in jobs {
        state.submit(Arc::new(job), |_| true);
    }
    let prices = Prices::default();
    let view = ClusterView {
        now: Timestamp::from_seconds(now),
        state: &state,
        budget: budget.map(Watts::new),
        prices: &prices,
        predictor: &Formula,
        effort: Effort::FULL,
        plan: PlanId(0),
        changes: Changes::Everything,
    };
    let objective = Objective { goal, tuning };
    look(&mut Problem::new(&view, &objective))
}

const USUAL: Level = Level { gpus: 1.0, watts: 1.0 };

/// What a GPU costs for so long, by type.
fn prices(problem: &Problem<'_, '_>, time: f64) -> [f64; 2] {
    let market = Market::new(problem, 100_000);
    [0, 1].map(|of_type| {
        let mut candidates = problem.candidates.iter();
        let candidate = candidates.find(|w| w.gpu_type() == of_type && w.shape.gpus == 1).unwrap();
        market.taken(candidate, 0.0, (0.0, time), USUAL)
    })
}

#[test]
fn gpus_that_no_other_job_wants_cost_nothing() {
    let alone = [job(0.0, Elasticity::Malleable)];
    let [fast, slow] = look(0.0, alone, None, |problem| prices(problem, 3600.0));
    let lateness = 0.01 * 3600.0;
    assert!(fast < 0.01 * lateness && slow < 0.01 * lateness, "{fast} {slow}");
}

#[test]
fn gpus_are_dear_while_many_wait_and_fast_ones_dearer() {
    let [fast, slow] = look(0.0, many(60), None, |problem| prices(problem, 600.0));
    assert!(fast > 1.5 * slow && slow > 0.0, "{fast} {slow}");
    // They get cheaper as the work is done: the second hour costs less than the first.
    let one = look(0.0, many(60), None, |problem| prices(problem, 3600.0))[0];
    let two = look(0.0, many(60), None, |problem| prices(problem, 7200.0))[0];
    assert!(two - one < one, "{one} {two}");
}

#[test]
fn under_load_jobs_take_few_gpus_and_alone_many() {
    let bounds = Search { work: 100_000, seed: 1 };
    let most = |count: u32| {
        look(0.0, many(count), None, |problem| {
            let draft = search(problem, &bounds);
            let gpus = |candidate: u32| problem.candidate(candidate).shape.gpus;
            let used: u32 = draft.iter().flatten().map(|slot| gpus(slot.candidate)).sum();
            (draft.iter().flatten().count(), used)
        })
    };
    assert_eq!(most(1), (1, 4));
    let (jobs, used) = most(60);
    assert_eq!(used, 16, "no GPU is left over");
    let each = f64::from(used) / jobs as f64;
    assert!(each < 2.0, "{each} GPUs for each on average");
}

#[test]
fn watts_have_a_price_when_they_are_short() {
    // Half of what all GPUs may draw at their highest limits, and more jobs than GPUs.
    let limits = |budget| {
        look(0.0, many(30), budget, |problem| {
            let draft = search(problem, &Search { work: 100_000, seed: 1 });
            let slots = || draft.iter().flatten();
            let sum: f64 = slots().map(|slot| problem.of(slot).limit).sum();
            assert!(problem.filled(&draft).committed <= problem.budget);
            (slots().count(), sum / slots().count() as f64)
        })
    };
    let (all, high) = limits(None);
    let (some, low) = limits(Some(2200.0));
    assert!(all >= 8 && some >= 6 && low < high, "{some} jobs at {low} W instead of {high} W");
}

#[test]
fn the_jobs_of_the_last_while_are_expected_again() {
    // One every minute, for an hour.
    let jobs = || (0..61).map(|n| job(60.0 * f64::from(n), Elasticity::Malleable));
    let coming = |now: f64| {
        look(now, jobs(), None, |problem| {
            let ahead = problem.tuning.ahead_runs * problem.mean_fastest;
            let times: Vec<f64> = problem.arrivals.iter().map(|coming| coming.at).collect();
            (ahead, times)
        })
    };
    let (ahead, times) = coming(3600.0);
    let expected = (ahead / 60.0).round();
    assert!(expected >= 2.0, "{ahead} s");
    assert!((times.len() as f64 - expected).abs() <= 1.0, "{times:?} within {ahead} s");
    assert!(times.iter().all(|at| *at >= 0.0 && *at <= ahead), "{times:?}");
    // A day later none is expected any more.
    assert!(coming(90_000.0).1.is_empty());
}

#[test]
fn any_bound_on_work_will_do() {
    for work in [0, 1, u64::MAX] {
        let bounds = Search { work, seed: 1 };
        look(0.0, many(30), Some(2200.0), |problem| {
            let draft = search(problem, &bounds);
            assert!(
                draft.iter().flatten().count() > 0,
                "no job starts with work bounded by {work}"
            );
        });
    }
}

#[test]
fn where_time_counts_no_gpu_is_left_over() {
    for count in [9, 16, 40] {
        look_for(Goal::Jct, 0.0, many(count), None, |problem| {
            let market = Market::new(problem, 100_000);
            let filler = Filler { problem, market: &market, sharing: NodeSharing::new(problem) };
            let draft = filler.split_gpus(3.0);
            let gpus = draft.iter().flatten().map(|slot| problem.of(slot).shape.gpus);
            assert_eq!(gpus.sum::<u32>(), 16, "{count} jobs: {draft:?}");
        });
    }
}

#[test]
fn where_time_counts_short_jobs_get_more_gpus_than_long_ones() {
    let jobs = [1.0, 2.0, 4.0, 8.0].map(|times| Job {
        work: Work(900.0 * times),
        gpus: Bounds { min: 1, max: 16, requested: 1 },
        ..job(0.0, Elasticity::Malleable)
    });
    let rates = look_for(Goal::Jct, 0.0, jobs, None, |problem| {
        let market = Market::new(problem, 100_000);
        let filler = Filler { problem, market: &market, sharing: NodeSharing::new(problem) };
        let rate = |slot: &Option<Slot>| {
            slot.as_ref().map_or(0.0, |s| problem.candidate(s.candidate).rate)
        };
        filler.split_gpus(1.0).iter().map(rate).collect::<Vec<f64>>()
    });
    let (short, long) = (rates[0].min(rates[1]), rates[2].max(rates[3]));
    assert!(short > long && rates[0] > rates[1], "a longer one is served better: {rates:?}");
}

/// Outside of a pool a plan's parts are spread over the cores, in a pool's worker one does all.
#[test]
fn more_cores_make_no_other_plan() {
    let worker = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let bounds = Search { work: 100_000, seed: 1 };
    for goal in [Goal::Cost, Goal::Jct] {
        for (count, budget) in [(8, None), (30, None), (30, Some(2200.0))] {
            look_for(goal, 0.0, many(count), budget, |problem| {
                let spread = search(problem, &bounds);
                let alone = worker.install(|| search(problem, &bounds));
                assert!(spread.iter().flatten().count() > 0);
                assert_eq!(spread, alone, "{goal:?}, {count} jobs, {budget:?} W");
            });
        }
    }
}

#[test]
fn a_split_stays_below_the_budget() {
    let restart = RestartCost::default();
    for budget in [800.0, 1500.0, 2200.0] {
        let jobs = many(30).map(|job| Job { restart, ..job });
        look_for(Goal::Jct, 0.0, jobs, Some(budget), |problem| {
            let draft = search(problem, &Search { work: 100_000, seed: 1 });
            assert!(draft.iter().flatten().count() > 0, "no job starts below {budget} W");
            assert!(problem.filled(&draft).committed <= problem.budget);
        });
    }
}

/// As far as `+without` and `+scale` may change them, one at a time and all together.
#[test]
fn any_part_can_be_off_and_any_constant_changed() {
    let default = Tuning::default();
    let scaled = |factor: fn(&str) -> f64, names: &[(&'static str, String)]| {
        let mut tuning = default;
        names.iter().for_each(|(name, _)| tuning.scale(name, factor(name)).unwrap());
        tuning
    };
    let names = default.constants();
    let mut all: Vec<Tuning> = Tuning::PARTS
        .iter()
        .map(|part| {
            let mut tuning = default;
            tuning.turn_off(part).unwrap();
            tuning
        })
        .collect();
    let one = names.chunks(1);
    all.extend(one.flat_map(|name| [scaled(|_| 0.25, name), scaled(|_| 4.0, name)]));
    all.extend([scaled(|_| 0.25, &names), scaled(|_| 4.0, &names)]);
    // Lower bounds above upper ones.
    let apart = |name: &str| if name.contains("_min") { 4.0 } else { 0.25 };
    all.push(scaled(apart, &names));
    assert!(all.iter().all(|tuning| *tuning != default), "each is another tuning");
    let rigid = |job| Job { elasticity: Elasticity::Rigid, preemptible: false, ..job };
    let bounds = Search { work: 2_000, seed: 1 };
    for tuning in &all {
        for budget in [None, Some(2200.0)] {
            for goal in [Goal::Cost, Goal::Jct, Goal::JctUnderEnergy { share: 0.8 }] {
                look_with(tuning, goal, 3600.0, many(8), budget, |problem| {
                    assert_eq!(search(problem, &bounds).len(), 8);
                });
            }
            look_with(tuning, Goal::Cost, 3600.0, many(8).map(rigid), budget, |problem| {
                assert_eq!(reservations::plan(problem).draft.len(), 8);
            });
        }
    }
}
