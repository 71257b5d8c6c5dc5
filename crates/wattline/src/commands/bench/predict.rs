//! `wattline bench predict`: how fast the predictor fits, answers and learns.
//!
//! The measurements are made up, the same in every run: ten workloads on two GPU types, 1 to 16
//! GPUs, several batches and limits, over 60 days, with noise as real readings have it.

use super::peak_memory_mb;
use crate::failure::{Failure, Result};
use crate::output;
use anyhow::anyhow;
use serde::Serialize;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wattline_core::Timestamp;
use wattline_core::cluster::{Cluster, Node, NodeDraw};
use wattline_core::ids::{GpuTypeId, JobId, UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work};
use wattline_core::placement::Configuration;
use wattline_core::predictor::{Measurement, Predictor};
use wattline_core::units::{EurosPerSecond, Seconds, Watts};
use wattline_predict::learner::Learner;
use wattline_predict::model::Model;
use wattline_predict::reading::{Point, Reading};
use wattline_world::catalogue::Catalogue;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Updates to measure, after the first 10,000 measurements
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    updates: u32,
    /// Print JSON (schema wattline.bench.predict/1)
    #[arg(long)]
    json: bool,
}

/// Measurements before anything is measured about the predictor.
const STORED: usize = 10_000;
const WORKLOADS: u32 = 10;
const GPU_TYPES: [&str; 2] = ["h200", "v100"];
const GPU_COUNTS: [u32; 7] = [1, 2, 4, 6, 8, 12, 16];
const BATCHES_PER_GPU: [u32; 5] = [8, 16, 32, 64, 128];
/// Shares of the range between the lowest and the default limit.
const LIMITS: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];
const DAYS: f64 = 60.0;
/// Readings of one fit; fits are timed for at least so long, and at least twice.
const FIT_SIZES: [usize; 3] = [12, 24, 48];
const FIT_TIME: Duration = Duration::from_millis(1000);
/// Whole tables that are asked for, each after an update.
const TABLES: usize = 200;

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    stored: usize,
    updates: u32,
    fits: Vec<Fits>,
    /// The whole table of a job, right after an update of its model.
    uncached_predictions_per_s: f64,
    /// The same table again.
    cached_predictions_per_s: f64,
    /// Configurations in a table, on average.
    table_size: f64,
    /// Taking in a measurement.
    learn: Spread,
    /// Taking it in and answering for the first time after it: work put off is counted here.
    learn_and_predict: Spread,
    /// Taking in the first 10,000 and fitting every group for the first time.
    fill_s: f64,
    peak_memory_mb: f64,
}

#[derive(Serialize)]
struct Fits {
    readings: usize,
    per_s: f64,
}

/// In microseconds.
#[derive(Serialize)]
struct Spread {
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl Spread {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        // The least time that this share of all does not exceed.
        let at = |share: f64| {
            let place = (share * times.len() as f64).ceil() as usize;
            times.get(place.clamp(1, times.len().max(1)) - 1).map_or(0.0, |time| us(*time))
        };
        let sum: Duration = times.iter().sum();
        let mean_us = us(sum) / times.len().max(1) as f64;
        Self { mean_us, p50_us: at(0.5), p99_us: at(0.99), max_us: at(1.0) }
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let cluster = Arc::new(cluster()?);
    let needed = STORED + args.updates as usize + TABLES;
    let all = measurements(&cluster, needed);
    let (first, rest) = all.split_at(STORED);
    let (updates, more) = rest.split_at(args.updates as usize);

    let fits = FIT_SIZES.map(|readings| fits(&all, readings)).into();
    let mut learner = Learner::new(cluster.clone());
    let began = Instant::now();
    for m in first {
        learner.learn(m).map_err(Failure::input)?;
    }
    // The first answer fits every group; after that each update is about one.
    black_box(learner.predict(&job(&first[0]), &first[0].configuration));
    let fill = began.elapsed();
    let (mut learned, mut answered) = (Vec::new(), Vec::new());
    for m in updates {
        let job = job(m);
        let began = Instant::now();
        learner.learn(m).map_err(Failure::input)?;
        learned.push(began.elapsed());
        black_box(learner.predict(&job, &m.configuration));
        answered.push(began.elapsed());
    }
    let (mut uncached, mut cached, mut asked) = (0.0, 0.0, 0);
    for m in more {
        let job = job(m);
        let table = table(&cluster, &job, m.configuration.gpu_type);
        learner.learn(m).map_err(Failure::input)?;
        for seconds in [&mut uncached, &mut cached] {
            let began = Instant::now();
            for configuration in &table {
                black_box(learner.predict(&job, configuration));
            }
            *seconds += began.elapsed().as_secs_f64();
        }
        asked += table.len();
    }
    let report = Report {
        schema: "wattline.bench.predict/1",
        stored: STORED,
        updates: args.updates,
        fits,
        uncached_predictions_per_s: asked as f64 / uncached,
        cached_predictions_per_s: asked as f64 / cached,
        table_size: asked as f64 / TABLES as f64,
        learn: Spread::of(learned),
        learn_and_predict: Spread::of(answered),
        fill_s: fill.as_secs_f64(),
        peak_memory_mb: peak_memory_mb(),
    };
    if args.json { output::json(&report) } else { output::text(&text(&report)) }
}

/// Fits of the first measurements of a group, on one thread.
fn fits(all: &[Measurement], readings: usize) -> Fits {
    let fitted: Vec<Reading> = all
        .iter()
        .filter(|m| m.workload == WorkloadId(0) && m.configuration.gpu_type == GpuTypeId(0))
        .take(readings)
        .map(reading)
        .collect();
    let space: Vec<Point> = fitted.iter().map(|r| r.point).collect();
    let began = Instant::now();
    let mut count = 0;
    while count < 2 || began.elapsed() < FIT_TIME {
        black_box(Model::fit(black_box(&fitted), &space));
        count += 1;
    }
    Fits { readings: fitted.len(), per_s: f64::from(count) / began.elapsed().as_secs_f64() }
}

fn reading(m: &Measurement) -> Reading {
    let c = &m.configuration;
    Reading {
        point: Point {
            gpus: c.gpus,
            nodes: c.nodes,
            batch: f64::from(c.batch),
            limit: c.power_limit,
        },
        per_sample: Seconds::new(m.seconds.get() / m.processed.0),
        power: m.power,
    }
}

/// Two kinds of nodes, enough for 16 GPUs of each.
fn cluster() -> Result<Cluster> {
    let catalogue = Catalogue::built_in();
    let types: Vec<_> =
        GPU_TYPES.iter().filter_map(|n| catalogue.gpu(n)).map(|gpu| gpu.gpu_type()).collect();
    if types.len() < GPU_TYPES.len() {
        return Err(Failure::Failed(anyhow!("the catalogue lacks one of {GPU_TYPES:?}")));
    }
    let node = |k: u16, gpu_type: u16, gpus: u8| Node {
        name: format!("n{k}").into(),
        gpu_type: GpuTypeId(gpu_type),
        gpus,
        draw: NodeDraw::Additive { base: Watts::new(300.0) },
        sleep: Watts::new(20.0),
        boot: Watts::new(400.0),
        boot_time: Seconds::new(120.0),
        shutdown_time: Seconds::new(30.0),
        rack: 0,
    };
    let nodes = vec![
        node(0, 0, 8),
        node(1, 0, 8),
        node(2, 1, 4),
        node(3, 1, 4),
        node(4, 1, 4),
        node(5, 1, 4),
    ];
    Cluster::new(types, nodes).map_err(|error| Failure::Failed(error.into()))
}

/// A job of the measured workload, as elastic as can be.
fn job(m: &Measurement) -> Job {
    Job {
        name: "bench".into(),
        user: UserId(0),
        workload: m.workload,
        work: Work(1e6),
        submit: Timestamp::ZERO,
        deadline: None,
        weight: EurosPerSecond::new(0.0),
        elasticity: Elasticity::Adaptive,
        gpus: Bounds { min: 1, max: 16, requested: 4 },
        batch: Bounds { min: 64, max: 2048, requested: 256 },
        restart: RestartCost::default(),
        preemptible: true,
        shapes: None,
        nodes: None,
    }
}

/// Every shape on a GPU type under every limit: what one model is asked for.
fn table(cluster: &Cluster, job: &Job, gpu_type: GpuTypeId) -> Vec<Configuration> {
    let menu = cluster.menu(job);
    let mut table = Vec::new();
    for shape in menu.iter().filter(|shape| shape.gpu_type == gpu_type) {
        let plain = cluster.plain_configuration(job, *shape);
        let limits = cluster.gpu_type(shape.gpu_type).limits_down();
        table.extend(limits.map(|power_limit| Configuration { power_limit, ..plain }));
    }
    table
}

/// A full-period linear congruence: the same numbers in every run.
struct Dice(u64);

impl Dice {
    /// From zero to one.
    fn share(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[(self.share() * from.len() as f64) as usize % from.len()]
    }

    /// Normal enough: the sum of twelve.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }
}

/// Measurements in the order of time.
fn measurements(cluster: &Cluster, count: usize) -> Vec<Measurement> {
    let mut dice = Dice(1);
    (0..count)
        .map(|k| {
            let workload = (dice.share() * f64::from(WORKLOADS)) as u32 % WORKLOADS;
            let gpu_type = GpuTypeId(dice.pick(&[0, 1]));
            let gpus = dice.pick(&GPU_COUNTS);
            let t = cluster.gpu_type(gpu_type);
            let span = t.default_limit - t.min_limit;
            let shape = wattline_core::cluster::Shape { gpu_type, gpus };
            let configuration = Configuration {
                gpu_type,
                gpus,
                nodes: cluster.nodes_for(shape),
                batch: gpus * dice.pick(&BATCHES_PER_GPU),
                power_limit: t.min_limit + span * dice.pick(&LIMITS),
            };
            let at = DAYS * 86_400.0 * k as f64 / count as f64;
            measurement(cluster, workload, configuration, at, &mut dice)
        })
        .collect()
}

/// A step that launches, computes and synchronises; noisy where the host sets the clock.
fn measurement(
    cluster: &Cluster,
    workload: u32,
    configuration: Configuration,
    at: f64,
    dice: &mut Dice,
) -> Measurement {
    let c = &configuration;
    let t = cluster.gpu_type(c.gpu_type);
    let kind = f64::from(workload);
    let slower = if c.gpu_type == GpuTypeId(0) { 1.0 } else { 4.0 };
    let launch = 0.008 * (1.0 + kind);
    let work = 2e-4 * (1.0 + 0.7 * kind) * slower * f64::from(c.batch / c.gpus);
    let wanted = t.idle + (t.busy - t.idle) * (work / (work + launch));
    let power = wanted.min(c.power_limit);
    let clock = ((power.get() / wanted.get() - 0.4) / 0.6).max(0.05).sqrt();
    let compute = work.hypot(launch) * (0.6 + 0.4 / clock);
    let sync = 0.002 * f64::from(c.gpus - 1) * f64::from(c.nodes);
    // 2 % where the GPU is busy, up to 12 % where it waits; one in a hundred is a straggler.
    let spread = 0.02 + 0.10 * launch / (work + launch);
    let straggles = if dice.share() < 0.01 { 1.3 } else { 1.0 };
    let step = compute.hypot(sync) * (spread * dice.normal()).exp() * straggles;
    let steps = 200.0 + 2000.0 * dice.share();
    Measurement {
        at: Timestamp::from_seconds(at),
        job: JobId((at / 600.0) as u32),
        workload: WorkloadId(workload),
        configuration,
        node: None,
        processed: Work(steps * f64::from(c.batch)),
        seconds: Seconds::new(steps * step),
        // One in twenty comes from a node without a meter.
        power: (dice.share() > 0.05).then(|| power * (0.03 * dice.normal()).exp()),
        noise_scale: (dice.share() < 0.3).then(|| 3000.0 * (0.5 * dice.normal()).exp()),
        load: (dice.share() < 0.2).then(|| Seconds::new(10.0 + 5.0 * dice.share())),
    }
}

fn text(report: &Report) -> String {
    let line = |name: &str, s: &Spread| {
        let us = |x: f64| format!("{x:.1}");
        vec![name.to_owned(), us(s.mean_us), us(s.p50_us), us(s.p99_us), us(s.max_us)]
    };
    let rows = vec![
        line("learn", &report.learn),
        line("learn, then the first prediction", &report.learn_and_predict),
    ];
    let header = ["online update, us", "mean", "p50", "p99", "max"];
    let fits: Vec<String> =
        report.fits.iter().map(|f| format!("{:.0} of {} readings", f.per_s, f.readings)).collect();
    format!(
        "{}\nfits/s: {}\npredictions/s: {:.0} after an update (tables of {:.0}), {:.0} asked again\n\
         {} measurements taken in and fitted in {:.2} s; peak memory of the process: {:.0} MB\n",
        output::table(&header, rows),
        fits.join(", "),
        report.uncached_predictions_per_s,
        report.table_size,
        report.cached_predictions_per_s,
        report.stored,
        report.fill_s,
        report.peak_memory_mb
    )
}
