//! Pinned benchmarks: fitting, asking and choosing what to measure.
#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wattline_core::Timestamp;
use wattline_core::cluster::{Cluster, GpuType, Node, NodeDraw, Shape};
use wattline_core::ids::{GpuTypeId, JobId, UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work};
use wattline_core::placement::Configuration;
use wattline_core::predictor::{Measurement, Predictor};
use wattline_core::units::{EurosPerSecond, Seconds, Watts};
use wattline_predict::choose::choose;
use wattline_predict::learner::Learner;
use wattline_predict::model::Model;
use wattline_predict::reading::{Point, Reading};

/// A hundred configurations: batches, limits, GPUs on one node and on several.
fn space() -> Vec<Point> {
    let mut space = Vec::new();
    for (gpus, nodes) in [(1, 1), (2, 1), (4, 1), (4, 2)] {
        for limit in [100.0, 150.0, 200.0, 250.0, 300.0] {
            for batch in [8.0, 16.0, 32.0, 64.0, 128.0] {
                let batch = batch * f64::from(gpus);
                space.push(Point { gpus, nodes, batch, limit: Watts::new(limit) });
            }
        }
    }
    space
}

/// Launch-bound, then linear, slower under a limit and with every GPU.
fn reading(point: Point) -> Reading {
    let gpus = f64::from(point.gpus);
    let work = 1e-3 * point.batch / gpus;
    let compute = 0.03_f64.hypot(work);
    let power = (60.0 + 220.0 * work / compute).min(point.limit.get());
    let slowed = compute * (0.6 + 0.4 * (280.0 / power).sqrt());
    let step = slowed + 2e-3 * (gpus - 1.0) * f64::from(point.nodes);
    Reading { point, per_sample: Seconds::new(step / point.batch), power: Some(Watts::new(power)) }
}

fn predict(criterion: &mut Criterion) {
    let space = space();
    let readings = |count: usize| -> Vec<Reading> {
        choose(&space, count).into_iter().map(|k| reading(space[k])).collect()
    };
    let mut group = criterion.benchmark_group("fit");
    group.sample_size(20);
    for count in [12, 24] {
        let readings = readings(count);
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| Model::fit(black_box(&readings), &space));
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("expect");
    for count in [12, 24] {
        let Some(model) = Model::fit(&readings(count), &space) else { continue };
        let mut next = 0;
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| {
                next = (next + 1) % space.len();
                model.expect(black_box(&space[next]))
            });
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("choose_of_100");
    for count in [12, 24] {
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| choose(black_box(&space), count));
        });
    }
    group.finish();
}

/// Ten workloads on two kinds of GPU.
const WORKLOADS: u32 = 10;

fn cluster() -> Arc<Cluster> {
    let card = |name: &str, idle: f64, busy: f64, low: f64, high: f64, step: f64| GpuType {
        name: name.into(),
        idle: Watts::new(idle),
        busy: Watts::new(busy),
        min_limit: Watts::new(low),
        default_limit: Watts::new(high),
        max_limit: Watts::new(high),
        limit_step: Watts::new(step),
        tflops: None,
        links: None,
    };
    let node = |gpu_type: u16| Node {
        name: format!("n{gpu_type}").into(),
        gpu_type: GpuTypeId(gpu_type),
        gpus: 8,
        draw: NodeDraw::Additive { base: Watts::new(500.0) },
        sleep: Watts::new(10.0),
        boot: Watts::new(600.0),
        boot_time: Seconds::new(60.0),
        shutdown_time: Seconds::new(10.0),
        rack: 0,
    };
    let cards = vec![
        card("a", 80.0, 640.0, 200.0, 700.0, 50.0),
        card("b", 26.0, 220.0, 100.0, 250.0, 25.0),
    ];
    let cluster = Cluster::new(cards, vec![node(0), node(0), node(1), node(1)]);
    Arc::new(cluster.unwrap_or_else(|error| unreachable!("{error}")))
}

/// The same numbers in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.0 >> 33) % u64::from(n)) as u32
    }
}

/// What a run reports: one of 2 x 10 x 200 or so configurations, five per cent off.
fn measurement(dice: &mut Dice, run: u32) -> Measurement {
    let gpu_type = dice.below(2) as u16;
    let workload = dice.below(WORKLOADS);
    let gpus = [1, 2, 4, 8, 16][dice.below(5) as usize];
    let limits = if gpu_type == 0 { (700.0, 50.0) } else { (250.0, 25.0) };
    let limit = limits.0 - limits.1 * f64::from(dice.below(6));
    let batch = gpus * (16 << dice.below(5));
    let nodes = if gpus > 8 { 2 } else { 1 };
    let point = Point { gpus, nodes, batch: batch.into(), limit: Watts::new(limit) };
    let reading = reading(point);
    let slower = (1.0 + f64::from(workload)) * if gpu_type == 0 { 0.2 } else { 1.0 };
    let off = 1.0 + 0.05 * (f64::from(dice.below(2001)) / 1000.0 - 1.0) * 1.7;
    let per_sample = reading.per_sample.get() * slower * off;
    Measurement {
        at: Timestamp::ZERO + Seconds::new(500.0 * f64::from(run)),
        job: JobId(run),
        workload: WorkloadId(workload),
        configuration: Configuration {
            gpu_type: GpuTypeId(gpu_type),
            gpus,
            nodes,
            batch,
            power_limit: point.limit,
        },
        node: None,
        processed: Work(600.0 / per_sample),
        seconds: Seconds::new(600.0),
        power: reading.power.map(|power| power * if gpu_type == 0 { 1.0 } else { 0.35 }),
        noise_scale: Some(5000.0),
        load: None,
    }
}

fn job(workload: WorkloadId) -> Job {
    Job {
        name: "job".into(),
        user: UserId(0),
        workload,
        work: Work(1e6),
        submit: Timestamp::ZERO,
        deadline: None,
        weight: EurosPerSecond::ZERO,
        elasticity: Elasticity::Malleable,
        gpus: Bounds { min: 1, max: 16, requested: 8 },
        batch: Bounds::exactly(512),
        restart: RestartCost::default(),
        preemptible: true,
        shapes: None,
        nodes: None,
    }
}

/// Everything a job could be run as: shapes and limits.
fn table(cluster: &Cluster, job: &Job) -> Vec<Configuration> {
    let mut all = Vec::new();
    for shape in cluster.menu(job).iter() {
        let plain = cluster.plain_configuration(job, *shape);
        let limits = cluster.gpu_type(shape.gpu_type).limits_down();
        all.extend(limits.map(|power_limit| Configuration { power_limit, ..plain }));
    }
    all
}

fn learn(criterion: &mut Criterion) {
    let cluster = cluster();
    let mut learner = Learner::new(Arc::clone(&cluster));
    let mut dice = Dice(7);
    let mut run = 0;
    let mut learn = |learner: &mut Learner| {
        let next = measurement(&mut dice, run);
        run += 1;
        learner.observe(&next);
        next
    };
    for _ in 0..10_000 {
        learn(&mut learner);
    }
    let asked = job(WorkloadId(3));
    let all = table(&cluster, &asked);
    let ask = |learner: &Learner, all: &[Configuration]| {
        let sum: f64 =
            all.iter().filter_map(|c| learner.predict(&asked, c)).map(|p| p.rate.0).sum();
        black_box(sum)
    };
    ask(&learner, &all);

    let mut group = criterion.benchmark_group("learner_of_10000");
    group.throughput(Throughput::Elements(all.len() as u64));
    group.bench_function("cached", |bencher| bencher.iter(|| ask(&learner, &all)));
    group.throughput(Throughput::Elements(1));
    // An update and all that it entails for the group it is about.
    group.bench_function("update", |bencher| {
        bencher.iter(|| {
            let m = learn(&mut learner);
            learner.predict(&job(m.workload), &m.configuration)
        });
    });
    // A whole table after an update that changes the model it comes from, the update not counted.
    group.throughput(Throughput::Elements(all.len() as u64));
    group.bench_function("uncached", |bencher| {
        bencher.iter_custom(|rounds| {
            let mut total = Duration::ZERO;
            for _ in 0..rounds {
                while learn(&mut learner).workload != asked.workload {}
                for gpu_type in cluster.gpu_type_ids() {
                    let one = Shape { gpu_type, gpus: 1 };
                    learner.predict(&asked, &cluster.plain_configuration(&asked, one));
                }
                let began = Instant::now();
                ask(&learner, &all);
                total += began.elapsed();
            }
            total
        });
    });
    group.finish();
}

criterion_group!(benches, predict, learn);
criterion_main!(benches);
