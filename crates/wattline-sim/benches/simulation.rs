//! Pinned benchmarks: the bare event queue and whole simulations of the built-in demo.
#![allow(missing_docs)]

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use wattline_core::Timestamp;
use wattline_sim::foresight::Foresight;
use wattline_sim::scenario::Scenario;
use wattline_sim::simulation::{Watch, simulate};
use wattline_world::queue::EventQueue;

fn queue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("event_queue");
    for waiting in [100_i64, 10_000, 1_000_000] {
        group.throughput(Throughput::Elements(1000));
        group.bench_function(BenchmarkId::from_parameter(waiting), |bencher| {
            let mut time: i64 = 1;
            let mut next = move || {
                time = (time * 1_103_515_245 + 12_345) % (1 << 31);
                time
            };
            let mut queue = EventQueue::default();
            for _ in 0..waiting {
                queue.push(Timestamp::from_micros(next()), ());
            }
            bencher.iter(|| {
                for _ in 0..1000 {
                    if let Some((now, ())) = queue.pop_by(Timestamp::FAR_FUTURE) {
                        queue.push(Timestamp::from_micros(now.micros() + next()), ());
                    }
                }
            });
        });
    }
    group.finish();
}

fn demo(criterion: &mut Criterion) {
    let text = include_str!("../../../scenarios/demo.toml");
    let mut instance = Scenario::parse(text, "demo")
        .and_then(|scenario| scenario.instance("demo", None))
        .unwrap_or_else(|error| panic!("{error}"));
    // The simulator is measured here, not the predictor.
    instance.foresight = Foresight::Oracle;
    let watch = Watch { seconds: &|| 0.0, progress: &|_| {}, record: false, forecast: false };
    let mut group = criterion.benchmark_group("simulate_demo");
    group.throughput(Throughput::Elements(instance.jobs.len() as u64));
    for policy in ["fifo", "edf", "priority", "tiresias", "edf+backfill", "edf+sleep=10min"] {
        group.bench_function(policy, |bencher| {
            bencher.iter_batched(
                || instance.clone(),
                |instance| black_box(simulate(&instance, policy, &watch)),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, queue, demo);
criterion_main!(benches);
