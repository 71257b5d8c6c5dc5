//! Pinned benchmarks: fitting, asking and choosing what to measure.
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use wattline_core::units::{Seconds, Watts};
use wattline_predict::choose::choose;
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

criterion_group!(benches, predict);
criterion_main!(benches);
