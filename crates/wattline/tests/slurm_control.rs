//! Thirty elastic jobs with deadlines on a real SLURM, under control.
//!
//! `WATTLINE_LAB_SEED=1 cargo test …` draws other jobs; odd seeds have tight deadlines.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "common/lab.rs"]
mod lab;

use lab::{BUSY, GPUS, LIMIT, LOAD, Lab, SAVE, Spec, WORKLOADS, rate};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wattline_controller::slurm::read::{NodeGpus, State};
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::engine::Event;
use wattline_core::ids::UserId;
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work};
use wattline_core::units::{EurosPerSecond, Seconds, Watts};
use wattline_predict::reading::{Point, Reading};
use wattline_sim::foresight::Foresight;
use wattline_sim::instance::Instance;
use wattline_sim::metrics::Summary;
use wattline_sim::scenario::Scenario;
use wattline_sim::simulation::{Watch, simulate};
use wattline_world::measured::Measured;
use wattline_world::physics::Physics;

const BUDGET: f64 = 4500.0;
/// For a while the administrator allows no more than this: nodes must sleep, and jobs give way.
const LOW: f64 = 2200.0;
const LOW_FROM: f64 = 40.0;
const LOW_UNTIL: f64 = 75.0;
/// SnapshotSchedule and going to sleep take time after a budget that falls without a warning.
const GRACE: f64 = 25.0;
const PRICE: f64 = 150.0;

/// What was predicted may be off by this part of what it came to.
const MOST_OFF: f64 = 0.13;

/// SLURM does not take as long each time: it is simulated with these parts of what it usually takes.
const AROUND: [f64; 5] = [0.6, 0.8, 1.0, 1.2, 1.4];

/// Six long jobs with time, and when these have spread, twenty-four short ones in a hurry; a
/// generator without state, so that they are the same each time.
fn specs(seed: u32) -> Vec<Spec> {
    let draw = |n: u32, k: u32| {
        let n = n.wrapping_add(seed.wrapping_mul(101));
        (n.wrapping_mul(2_654_435_761).wrapping_add(k * 40_503) >> 7) % 97
    };
    let (long_slack, short_slack) = if seed % 2 == 1 { (75, 22) } else { (120, 40) };
    let long = |n: u32| Spec {
        workload: ["wa", "wb"][(n % 2) as usize],
        work: 1000 + 6 * draw(n, 1),
        gpus: 2,
        range: "1-4",
        deadline: long_slack + draw(n, 3) / 2,
        weight: 20,
        after: 0.5 * f64::from(n),
    };
    let short = |n: u32| Spec {
        workload: ["wa", "wb"][(draw(n, 1) % 2) as usize],
        work: 100 + 2 * draw(n, 2),
        gpus: 1,
        range: "1-4",
        deadline: short_slack + draw(n, 3) / 4,
        weight: 60,
        after: 20.0 + 1.5 * f64::from(n),
    };
    (0..6).map(long).chain((0..24).map(short)).collect()
}

#[test]
fn thirty_elastic_jobs_finish_under_control() {
    let Some(mut lab) = Lab::up("control", &[]) else { return };
    let site = lab.site(&format!("{BUDGET} W"), "control");
    // Jobs of a minute must be worth some thought.
    let text = std::fs::read_to_string(&site).unwrap();
    let dear = text.replace("0.2 EUR/kWh", &format!("{PRICE} EUR/kWh"));
    assert_ne!(text, dear);
    std::fs::write(&site, dear).unwrap();
    lab.control(&site);
    let seed = std::env::var("WATTLINE_LAB_SEED").map_or(0, |seed| seed.parse().unwrap());
    let specs = specs(seed);
    let (began, start) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap());
    let start = start.as_secs_f64();
    let mut numbers: Vec<u32> = Vec::new();
    let mut submitted: Vec<f64> = Vec::new();
    let mut ended: BTreeMap<u32, f64> = BTreeMap::new();
    let (mut slept, mut woke) = (BTreeSet::new(), BTreeSet::new());
    let (mut overlaps, mut compared) = (0, 0);
    let mut orders: Vec<(f64, f64)> = Vec::new();
    while ended.len() < specs.len() {
        assert!(lab.is_controlled(), "the controller ended: {}", lab.log());
        let late = began.elapsed() > Duration::from_secs(400);
        assert!(!late, "{} of {} ended\n{}", ended.len(), specs.len(), lab.log());
        while let Some(spec) = specs.get(numbers.len())
            && began.elapsed().as_secs_f64() >= spec.after
        {
            let number = lab.submit(&format!("job{}", numbers.len()), &lab.train(spec));
            numbers.push(number);
            submitted.push(began.elapsed().as_secs_f64());
        }
        let now = began.elapsed().as_secs_f64();
        let wanted = [(LOW_FROM, LOW), (LOW_UNTIL, BUDGET)];
        if let Some((_, watts)) = wanted.get(orders.len()).filter(|(at, _)| *at <= now) {
            assert!(lab.ask(&["budget", "set", &format!("{watts} W")]).is_some(), "{}", lab.log());
            orders.push((began.elapsed().as_secs_f64(), *watts));
        }
        let before = planned(&lab);
        let jobs = lab.queue().unwrap();
        let after = planned(&lab);
        // What is planned and said to run, and stays so, is what SLURM runs.
        for (name, plan) in before.iter().filter(|(name, plan)| after.get(*name) == Some(*plan)) {
            let job = jobs.iter().find(|job| job.name == *name).unwrap();
            if job.state == State::Running {
                let on = |on: &NodeGpus| (on.node.clone(), on.count);
                let mut runs: Vec<(String, u32)> = job.gpus.iter().map(on).collect();
                runs.sort();
                let gpus = runs.iter().map(|(_, gpus)| gpus).sum();
                let nodes = runs.into_iter().map(|(node, _)| node).collect();
                assert_eq!(Plan { nodes, gpus }, *plan, "job {name}");
                compared += 1;
            }
        }
        let mut used: BTreeMap<(String, u32), u32> = BTreeMap::new();
        for job in &jobs {
            assert!(
                !job.state.is_over() || job.state == State::Completed,
                "job {} ended otherwise: {:?}\n{}",
                job.key.id,
                job.state,
                lab.log()
            );
            if let (State::Completed, Some(end)) = (&job.state, job.end) {
                // SLURM counts whole seconds.
                ended.entry(job.key.id).or_insert(end.seconds() + 0.5);
            }
            for on in job.gpus.iter().filter(|_| job.state == State::Running) {
                for gpu in &on.indices {
                    overlaps += u32::from(used.insert((on.node.clone(), *gpu), 1).is_some());
                }
            }
        }
        for node in lab.nodes().unwrap() {
            if node.is_asleep() {
                slept.insert(node.name);
            } else if node.is_usable() && slept.contains(&node.name) {
                woke.insert(node.name);
            }
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    let span = began.elapsed().as_secs_f64();
    let slurm = lab.delays();
    println!("SLURM takes {:.2} s to start a job and {:.2} s to stop one", slurm.0, slurm.1);
    assert_eq!(overlaps, 0, "a GPU was used twice");
    println!("{compared} times what runs was compared with what is planned");
    assert!(compared > 100);
    assert!(!slept.is_empty() && !woke.is_empty(), "asleep {slept:?}, awake again {woke:?}");
    resumed_where_they_were(&lab, &numbers);
    let samples = lab.samples();
    let most = samples.iter().map(|(_, watts)| *watts).fold(0.0, f64::max);
    assert!(most <= BUDGET, "{most} W drawn, {BUDGET} W allowed");

    let last = ended.values().copied().fold(0.0, f64::max);
    let low = samples
        .iter()
        .filter(|(at, _)| (start + orders[0].0 + GRACE..start + orders[1].0 - 1.0).contains(at));
    let most_low = low.map(|(_, watts)| *watts).fold(0.0, f64::max);
    assert!((1.0..=LOW).contains(&most_low), "{most_low} W drawn, {LOW} W allowed for a while");
    let joules: f64 = samples
        .windows(2)
        .filter(|pair| pair[0].0 >= start && pair[1].0 <= last)
        .map(|pair| pair[0].1 * (pair[1].0 - pair[0].0))
        .sum();
    let energy = joules / 3.6e6 * PRICE;
    let late: f64 = specs
        .iter()
        .zip(&numbers)
        .zip(&submitted)
        .map(|((spec, number), at)| {
            let due = start + at + f64::from(spec.deadline);
            (ended[number] - due).max(0.0) * f64::from(spec.weight) / 3600.0
        })
        .sum();
    let realised = energy + late;
    // What is to be expected is a mean: one second more or less, and the policy decides otherwise
    // from there on.
    let about = |seconds: f64| AROUND.map(|factor| seconds * factor);
    let delays = about(slurm.0).into_iter().flat_map(|start| about(slurm.1).map(|s| (start, s)));
    let all: Vec<Summary> =
        delays.map(|delays| simulated(&specs, &submitted, &orders, delays, &site)).collect();
    let mean = |of: fn(&Summary) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    let (predicted, foreseen) = (mean(|s| s.total_cost), mean(|s| s.energy_cost));
    let costs = || all.iter().map(|s| s.total_cost);
    let (least, dearest) = (costs().fold(f64::MAX, f64::min), costs().fold(0.0, f64::max));
    println!("{} simulations cost {least:.2} to {dearest:.2} EUR", all.len());
    let off = (realised - predicted).abs() / realised;
    println!(
        "seed {seed}: 30 jobs in {span:.0} s: realised {realised:.2} EUR ({energy:.2} energy, {late:.2} late), \
         predicted {predicted:.2} EUR ({foreseen:.2} energy): {:.1} % off; at most {most:.0} W of {BUDGET:.0} W",
        off * 100.0
    );
    let log = lab.log();
    let said = || log.lines().filter(|line| !line.contains("wattline.serve/1"));
    assert!(off < MOST_OFF, "{:.1} % off\n{}", off * 100.0, said().collect::<Vec<_>>().join("\n"));
}

/// Where a job runs.
#[derive(Clone, Debug, PartialEq)]
struct Plan {
    nodes: Vec<String>,
    gpus: u32,
}

/// What the controller says runs, by name.
fn planned(lab: &Lab) -> BTreeMap<String, Plan> {
    let Some(queue) = lab.ask(&["queue"]) else { return BTreeMap::new() };
    let rows = queue["jobs"].as_array().unwrap();
    let running = rows.iter().filter(|row| row["state"] == "running");
    let plan = |row: &serde_json::Value| {
        let nodes = row["nodes"].as_array().unwrap().iter();
        let mut nodes: Vec<String> = nodes.map(|node| node.as_str().unwrap().into()).collect();
        nodes.sort();
        let gpus = row["gpus_held"].as_u64().unwrap() as u32;
        (row["name"].as_str().unwrap().to_owned(), Plan { nodes, gpus })
    };
    running.map(plan).collect()
}

/// Nobody lost work beyond his checkpoint, and some changed their size.
fn resumed_where_they_were(lab: &Lab, numbers: &[u32]) {
    let mut resized = 0;
    for number in numbers {
        let runs = lab.runs(*number);
        for pair in runs.windows(2) {
            let ((event, gpus, done), (next, more, from)) = (&pair[0], &pair[1]);
            assert_ne!(event, next, "job {number}: {runs:?}");
            if event == "stop" {
                assert!((done - from).abs() < 1e-3, "job {number} lost work: {runs:?}");
                resized += u32::from(gpus != more);
            }
        }
        assert!(runs.len() >= 2 && runs.iter().all(|run| run.1 <= GPUS), "job {number}: {runs:?}");
    }
    println!("{resized} times a job went on with another number of GPUs");
    assert!(resized > 0, "no job changed its size");
}

/// The same jobs in the simulator.
fn simulated(
    specs: &[Spec],
    submitted: &[f64],
    orders: &[(f64, f64)],
    (start_delay, stop_delay): (f64, f64),
    site: &std::path::Path,
) -> Summary {
    let scenario = Scenario::read(site).unwrap();
    let parts = scenario.site("site").unwrap();
    let file = std::fs::File::open(site.with_file_name("measured.csv")).unwrap();
    let measured = Measured::read(file, "measured.csv").unwrap();
    let mut physics = Physics::new(Arc::clone(&parts.cluster), Some(measured));
    let start = Timestamp::from_seconds(1e9);
    let job = |(spec, at): (&Spec, &f64)| {
        let submit = start + Seconds::new(*at);
        Job {
            name: "job".into(),
            user: UserId(1),
            workload: physics.sampled(spec.workload).unwrap(),
            work: Work(f64::from(spec.work)),
            submit,
            deadline: Some(submit + Seconds::new(f64::from(spec.deadline))),
            weight: EurosPerSecond::new(f64::from(spec.weight) / 3600.0),
            elasticity: Elasticity::Malleable,
            gpus: Bounds { min: 1, max: 4, requested: spec.gpus },
            batch: Bounds::exactly(256),
            restart: RestartCost { save: Seconds::new(SAVE), load: Seconds::new(LOAD) },
            preemptible: true,
            shapes: None,
            nodes: None,
        }
    };
    let jobs: Vec<Job> = specs.iter().zip(submitted).map(job).collect();
    let mut instance = Instance::new("lab".into(), physics, Arc::clone(&parts.cluster), jobs);
    instance.start = start;
    let order = |(at, watts): &(f64, f64)| {
        let budget = Calendar::constant(Watts::new(*watts));
        (start + Seconds::new(*at), Event::BudgetSet(Some(budget)))
    };
    instance.orders = orders.iter().map(order).collect();
    instance.prices = parts.prices;
    instance.budget = parts.budget;
    instance.engine = parts.engine;
    // It knows what the controller knows, no more.
    instance.foresight = Foresight::Learned;
    instance.world.measure_every = Some(Seconds::new(5.0));
    instance.world.start_delay = Seconds::new(start_delay);
    instance.world.stop_delay = Seconds::new(stop_delay);
    for (name, alone) in WORKLOADS {
        let readings = (1..=GPUS).flat_map(|gpus| {
            [200.0, 300.0, LIMIT].map(|limit| Reading {
                point: Point { gpus, nodes: 1, batch: 256.0, limit: Watts::new(limit) },
                per_sample: Seconds::new(1.0 / rate(alone, gpus, limit)),
                power: Some(Watts::new(BUSY.min(limit))),
            })
        });
        assert!(instance.know(name, "lab", &readings.collect::<Vec<_>>()));
    }
    let outcome = simulate(
        &instance,
        "wattline",
        &Watch { seconds: &|| 0.0, progress: &|_| (), record: false, forecast: false },
    );
    outcome.unwrap().summary
}
