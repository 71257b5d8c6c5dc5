//! The optimum of small problems: against trying everything, and against the meter.
#![allow(clippy::unwrap_used, missing_docs)]

use proptest::prelude::*;
use std::sync::Arc;
use wattline_bound::exact::generate::generate;
use wattline_bound::exact::{
    ExactError, Machines, Optimum, Placed, SmallDraw, SmallJob, SmallNode, SmallProblem, SmallWay,
    optimum,
};
use wattline_bound::lower::{Effort, Input, lower_bound};
use wattline_core::Timestamp;
use wattline_core::action::{Action, ActionKind};
use wattline_core::engine::Event;
use wattline_core::ids::{ActionId, JobId, NodeId, PlanId};
use wattline_core::placement::{Allocation, Placement};
use wattline_world::world::{World, WorldConfig};

/// The cost of a schedule by its definition, moment by moment; `None` if GPUs are used twice.
fn cost(problem: &SmallProblem, schedule: &[Placed]) -> Option<f64> {
    let way = |p: &Placed| problem.jobs[p.job].ways[p.way];
    let end = schedule.iter().map(|p| p.start + way(p).time).max().unwrap_or(0);
    let mut total: f64 = schedule.iter().map(|p| problem.late(p.job, p.start + way(p).time)).sum();
    for now in 0..end {
        for (at, node) in problem.nodes.iter().enumerate() {
            let runs = |p: &&Placed| p.node == at && p.start <= now && now < p.start + way(p).time;
            let busy: usize = schedule.iter().filter(runs).map(|p| usize::from(way(p).gpus)).sum();
            if busy > usize::from(node.gpus) {
                return None;
            }
            total += problem.euros_per_unit(node.watts(busy));
        }
    }
    Some(total)
}

/// Tries every node, way and start of every job.
fn brute_force(problem: &SmallProblem, latest: u32) -> f64 {
    fn go(problem: &SmallProblem, latest: u32, so_far: &mut Vec<Placed>, best: &mut f64) {
        // Adding a job never makes anything cheaper.
        let Some(now) = cost(problem, so_far) else { return };
        if now >= *best {
            return;
        }
        let job = so_far.len();
        let Some(small) = problem.jobs.get(job) else {
            *best = now;
            return;
        };
        for (way, how) in small.ways.iter().enumerate() {
            for (node, _) in problem.nodes.iter().enumerate().filter(|(_, n)| n.kind == how.kind) {
                for start in small.release..=latest {
                    so_far.push(Placed { job, way, node, start });
                    go(problem, latest, so_far, best);
                    so_far.pop();
                }
            }
        }
    }
    let mut best = f64::INFINITY;
    go(problem, latest, &mut Vec::new(), &mut best);
    best
}

/// The same problem in units half as long.
fn halved(problem: &SmallProblem) -> SmallProblem {
    let mut half = problem.clone();
    half.unit_seconds /= 2.0;
    for job in &mut half.jobs {
        job.release *= 2;
        job.deadline *= 2;
        job.weight /= 2.0;
        job.ways.iter_mut().for_each(|way| way.time *= 2);
    }
    half
}

fn tiny() -> impl Strategy<Value = SmallProblem> {
    let node = (1_u8..=3, prop::bool::ANY, 50.0_f64..400.0, 0.05_f64..1.6).prop_map(
        |(gpus, table, first, more)| SmallNode {
            kind: 0,
            gpus,
            // Also tables whose later GPUs draw more than the first.
            draw: if table {
                SmallDraw::Table(
                    (0..=gpus)
                        .map(|k| if k == 0 { 0.0 } else { first * (1.0 + more * f64::from(k - 1)) })
                        .collect(),
                )
            } else {
                SmallDraw::PerGpu(first)
            },
        },
    );
    let job = (0_u32..3, 0_u32..7, 0.0_f64..0.1, 1_u32..5, 0_u32..3).prop_map(
        |(release, due, weight, time, less)| SmallJob {
            release,
            deadline: release + due,
            weight,
            ways: vec![
                SmallWay { kind: 0, gpus: 1, time },
                SmallWay { kind: 0, gpus: 2, time: time.saturating_sub(less).max(1) },
            ],
        },
    );
    (prop::collection::vec(node, 1..=2), prop::collection::vec(job, 1..=3)).prop_map(
        |(nodes, jobs)| SmallProblem {
            unit_seconds: 600.0,
            euros_per_joule: 1e-7,
            kinds: 1,
            nodes,
            jobs,
        },
    )
}

/// Carries the schedule out in the simulated world and reads the meter.
fn replayed(problem: &SmallProblem, found: &Optimum) -> f64 {
    let machines = Machines::new(problem).unwrap();
    let cluster = Arc::clone(&machines.cluster);
    let mut world = World::new(
        Arc::clone(&cluster),
        Arc::new(machines.physics),
        WorldConfig::default(),
        Timestamp::ZERO,
        machines.prices,
        None,
    );
    for job in &machines.jobs {
        world.submit(Arc::new(job.clone()));
    }
    let mut taken: Vec<(NodeId, u64, Timestamp)> = Vec::new();
    let mut tardiness = 0.0;
    let mut finish = |world: &mut World, until: Timestamp| {
        while let Some(time) = world.next_event().filter(|time| *time <= until) {
            while let Some(event) = world.poll_event(time) {
                if let Event::Finished(id) = event {
                    let job = &machines.jobs[id.index()];
                    tardiness += (job.weight * job.tardiness(time)).get();
                }
            }
        }
    };
    for (at, placed) in found.schedule.iter().enumerate() {
        let way = problem.jobs[placed.job].ways[placed.way];
        let unit = |units: u32| Timestamp::from_seconds(f64::from(units) * problem.unit_seconds);
        let (now, end) = (unit(placed.start), unit(placed.start + way.time));
        finish(&mut world, now);
        let node = NodeId(placed.node as u32);
        let busy = taken
            .iter()
            .filter(|(on, _, until)| *on == node && *until > now)
            .fold(0, |mask, (_, more, _)| mask | more);
        let free = (0..64).filter(|bit| busy >> bit & 1 == 0).take(way.gpus.into());
        let mask = free.fold(0, |mask, bit| mask | 1 << bit);
        taken.push((node, mask, end));
        let job = &machines.jobs[placed.job];
        let shape = wattline_core::cluster::Shape {
            gpu_type: cluster.node(node).gpu_type,
            gpus: way.gpus.into(),
        };
        let action = Action {
            id: ActionId(at as u64),
            generation: PlanId(0),
            kind: ActionKind::Start {
                job: JobId(placed.job as u32),
                placement: Placement {
                    configuration: cluster.plain_configuration(job, shape),
                    allocation: Allocation::on(node, mask),
                },
            },
        };
        world.apply(now, &action);
    }
    finish(&mut world, Timestamp::FAR_FUTURE);
    world.meter().cost().get() + tardiness
}

fn bound(problem: &SmallProblem) -> f64 {
    let machines = Machines::new(problem).unwrap();
    let jobs: Vec<_> = machines.jobs.into_iter().map(Arc::new).collect();
    let input = Input {
        cluster: &machines.cluster,
        physics: &machines.physics,
        jobs: &jobs,
        start: Timestamp::ZERO,
        prices: &machines.prices,
        budget: None,
        nodes_fail: false,
    };
    lower_bound(&input, Effort { pieces: 400_000, slots: 128 }).total
}

proptest! {
    #![proptest_config(wattline_testing::cases(120, 1))]

    /// Nothing is cheaper, neither at whole nor at half units of time.
    #[test]
    fn nothing_that_can_be_tried_is_cheaper(problem in tiny()) {
        match optimum(&problem) {
            Ok(found) => {
                let stated = cost(&problem, &found.schedule).unwrap();
                prop_assert!((stated - found.cost).abs() < 1e-9, "{} {}", stated, found.cost);
                // The last release and two jobs of the greatest length.
                let latest = 10;
                let whole = brute_force(&problem, latest);
                prop_assert!((whole - found.cost).abs() < 1e-9, "{} {}", whole, found.cost);
                if problem.jobs.len() < 3 {
                    let half = brute_force(&halved(&problem), 2 * latest);
                    prop_assert!(half >= found.cost - 1e-9, "{} {}", half, found.cost);
                }
            }
            Err(error) => prop_assert!(matches!(error, ExactError::NeverFits(_)), "{}", error),
        }
    }

    /// The meter of the simulated world reads the same, each job is there once, and the lower
    /// bound is below.
    #[test]
    fn the_world_bills_the_same_and_the_bound_is_below(seed in any::<u64>()) {
        let problem = generate(seed);
        let found = optimum(&problem).unwrap();
        let mut jobs: Vec<usize> = found.schedule.iter().map(|placed| placed.job).collect();
        jobs.sort_unstable();
        prop_assert_eq!(jobs, (0..problem.jobs.len()).collect::<Vec<_>>());
        prop_assert!((cost(&problem, &found.schedule).unwrap() - found.cost).abs() < 1e-9);
        let read = replayed(&problem, &found);
        prop_assert!((read - found.cost).abs() < 1e-6 * found.cost, "{} {}", read, found.cost);
        let bound = bound(&problem);
        prop_assert!(bound <= found.cost, "{} {}", bound, found.cost);
        prop_assert!(bound > 0.0);
    }
}

/// A job waits for company on its node where that saves more than its lateness costs.
#[test]
fn waiting_for_company_can_pay() {
    let problem = SmallProblem {
        unit_seconds: 600.0,
        euros_per_joule: 1e-7,
        kinds: 1,
        nodes: vec![SmallNode {
            kind: 0,
            gpus: 4,
            draw: SmallDraw::Table(vec![0.0, 300.0, 550.0, 650.0, 660.0]),
        }],
        jobs: vec![
            SmallJob {
                release: 0,
                deadline: 4,
                weight: 1.0,
                ways: vec![SmallWay { kind: 0, gpus: 2, time: 4 }],
            },
            SmallJob {
                release: 0,
                deadline: 10,
                weight: 1.0,
                ways: vec![SmallWay { kind: 0, gpus: 3, time: 6 }],
            },
            SmallJob {
                release: 0,
                deadline: 10,
                weight: 1.0,
                ways: vec![SmallWay { kind: 0, gpus: 1, time: 3 }],
            },
        ],
    };
    let found = optimum(&problem).unwrap();
    let third = found.schedule.iter().find(|placed| placed.job == 2).unwrap();
    assert!(third.start >= 4, "{found:?}");
    assert!((brute_force(&problem, 10) - found.cost).abs() < 1e-9);
}

/// What two jobs share was once counted for the first of them alone, and the best left out.
#[test]
fn company_that_is_still_to_come_is_not_left_out() {
    let found = optimum(&generate(16_023_471_538_092_110_552)).unwrap();
    assert!(found.cost < 0.5672, "{found:?}");
}

#[test]
fn says_what_cannot_be_solved() {
    let mut problem = generate(1);
    let one = problem.jobs[0].clone();
    problem.jobs = vec![one; 11];
    assert_eq!(optimum(&problem), Err(ExactError::TooManyJobs(11)));
    let mut problem = generate(1);
    problem.jobs[0].ways.clear();
    assert_eq!(optimum(&problem), Err(ExactError::NeverFits(0)));
    let mut problem = generate(1);
    problem.nodes[0].draw = SmallDraw::Table(vec![1.0]);
    assert_eq!(optimum(&problem), Err(ExactError::Table(0)));
}

#[test]
fn no_jobs_cost_nothing() {
    let mut problem = generate(1);
    problem.jobs.clear();
    assert_eq!(optimum(&problem).unwrap().cost, 0.0);
}
