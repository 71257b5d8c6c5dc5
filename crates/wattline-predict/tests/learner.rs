//! What holds for the predictor of a cluster, whatever it is told and in whatever order.

#![allow(clippy::unwrap_used, missing_docs, clippy::disallowed_methods)]

mod common;

use common::{Truth, cases, log_uniform, point, shuffled};
use proptest::prelude::*;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::cluster::{Cluster, GpuType, Links, Node, NodeDraw};
use wattline_core::ids::{GpuTypeId, JobId, NodeId, UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work};
use wattline_core::placement::Configuration;
use wattline_core::predictor::{Finding, Measurement, Prediction, Predictor};
use wattline_core::units::{EurosPerSecond, Seconds, Watts};
use wattline_predict::learner::Learner;
use wattline_predict::reading::{Reading, Refused};

const FAST: GpuTypeId = GpuTypeId(0);
const SLOW: GpuTypeId = GpuTypeId(1);

/// Two kinds of GPU, two nodes of eight each.
fn cluster() -> Arc<Cluster> {
    linked(None)
}

/// The same, with what data sheets say of links.
fn linked(links: Option<Links>) -> Arc<Cluster> {
    let card = |name: &str, idle: f64, busy: f64, min: f64, max: f64, step: f64| GpuType {
        name: name.into(),
        idle: Watts::new(idle),
        busy: Watts::new(busy),
        min_limit: Watts::new(min),
        default_limit: Watts::new(max),
        max_limit: Watts::new(max),
        limit_step: Watts::new(step),
        tflops: None,
        links,
    };
    let node = |name: &str, gpu_type: GpuTypeId| Node {
        name: name.into(),
        gpu_type,
        gpus: 8,
        draw: NodeDraw::Additive { base: Watts::new(500.0) },
        sleep: Watts::new(10.0),
        boot: Watts::new(600.0),
        boot_time: Seconds::new(60.0),
        shutdown_time: Seconds::new(10.0),
        rack: 0,
    };
    let cards = vec![
        card("fast", 80.0, 640.0, 200.0, 700.0, 50.0),
        card("slow", 26.0, 220.0, 100.0, 250.0, 25.0),
    ];
    let nodes = vec![node("a", FAST), node("b", FAST), node("c", SLOW), node("d", SLOW)];
    Arc::new(Cluster::new(cards, nodes).unwrap())
}

fn job(workload: u32, batch: u32) -> Job {
    Job {
        name: "job".into(),
        user: UserId(0),
        workload: WorkloadId(workload),
        work: Work(1e6),
        submit: Timestamp::ZERO,
        deadline: None,
        weight: EurosPerSecond::ZERO,
        elasticity: Elasticity::Adaptive,
        gpus: Bounds { min: 1, max: 16, requested: 1 },
        batch: Bounds { min: 1, max: 1 << 20, requested: batch },
        restart: RestartCost { save: Seconds::new(1.0), load: Seconds::new(20.0) },
        preemptible: true,
        shapes: None,
        nodes: None,
    }
}

fn configuration(
    gpu_type: GpuTypeId,
    gpus: u32,
    nodes: u32,
    batch: u32,
    limit: f64,
) -> Configuration {
    Configuration { gpu_type, gpus, nodes, batch, power_limit: Watts::new(limit) }
}

/// A run of ten minutes.
fn measured(
    id: u32,
    workload: u32,
    c: Configuration,
    per_sample: f64,
    power: f64,
    day: f64,
) -> Measurement {
    Measurement {
        at: Timestamp::ZERO + Seconds::new(day * 86_400.0),
        job: JobId(id),
        workload: WorkloadId(workload),
        configuration: c,
        node: None,
        processed: Work(600.0 / per_sample),
        seconds: Seconds::new(600.0),
        power: Some(Watts::new(power)),
        noise_scale: None,
        load: None,
    }
}

fn of_truth(
    truth: &Truth,
    id: u32,
    workload: u32,
    c: Configuration,
    off: f64,
    day: f64,
) -> Measurement {
    let (time, power) = truth.at(&point(c.gpus, c.nodes, c.batch.into(), c.power_limit.get()));
    measured(id, workload, c, time * off, power, day)
}

fn any_configuration() -> impl Strategy<Value = Configuration> {
    let usual = (0..2_u16, 0..5_u32, 0..2_u32, 0..11_u32, 0..16_u32).prop_map(
        |(gpu_type, gpus, nodes, batch, limit)| {
            let gpus = 1 << gpus;
            let limit = if gpu_type == 0 { 200 + limit % 11 * 50 } else { 100 + limit % 7 * 25 };
            let nodes = (1 + nodes).min(gpus);
            configuration(GpuTypeId(gpu_type), gpus, nodes, gpus << batch, limit.into())
        },
    );
    let wild = (0..2_u16, 1..200_u32, any::<u32>(), 1..1_000_000_u32, log_uniform(1.0, 1e5))
        .prop_map(|(gpu_type, gpus, nodes, batch, limit)| {
            configuration(GpuTypeId(gpu_type), gpus, 1 + nodes % gpus, batch.max(gpus), limit)
        });
    prop_oneof![4 => usual, 1 => wild]
}

fn any_measurement() -> impl Strategy<Value = Measurement> {
    let who = (0..40_u32, 0..4_u32, 0.0..200.0_f64);
    let what = (any_configuration(), log_uniform(1e-6, 1e1), log_uniform(20.0, 800.0));
    let extra = (prop::option::of(log_uniform(1.0, 1e6)), prop::option::of(0.0..500.0_f64));
    (who, what, any::<bool>(), extra).prop_map(
        |((id, workload, day), (c, time, power), metered, extra)| {
            let m = measured(id, workload, c, time, power, day);
            Measurement {
                power: m.power.filter(|_| metered),
                noise_scale: extra.0,
                load: extra.1.map(Seconds::new),
                ..m
            }
        },
    )
}

proptest! {
    #![proptest_config(cases(48, 11))]

    #[test]
    fn measurements_may_come_in_any_order(
        measurements in prop::collection::vec(any_measurement(), 1..60),
        asked in prop::collection::vec((0..5_u32, any_configuration()), 6),
        key in any::<u64>(),
        peek in 0..60_usize,
    ) {
        let mut one = Learner::new(cluster());
        for m in &measurements {
            one.learn(m).unwrap();
        }
        let mut other = Learner::new(cluster());
        for (k, m) in shuffled(&measurements, key).iter().enumerate() {
            other.learn(m).unwrap();
            // What is asked in between changes nothing.
            if k == peek {
                other.predict(&job(m.workload.0, 64), &m.configuration);
            }
        }
        for (workload, c) in &asked {
            let job = job(*workload, 64);
            prop_assert_eq!(one.predict(&job, c), other.predict(&job, c));
            prop_assert_eq!(one.restart(&job), other.restart(&job));
        }
        prop_assert_eq!(one.findings(), other.findings());
    }
}

fn is_sound(p: &Prediction, limit: Watts) -> bool {
    let within = [p.power_within, p.energy_within];
    let numbers = [p.rate.0, p.power.get(), p.time_low, p.time_high, within[0], within[1]];
    numbers.iter().all(|x| x.is_finite() && *x > 0.0)
        && p.time_low <= 1.0
        && p.time_high >= 1.0
        && within.iter().all(|within| *within >= 1.0)
        && p.energy_within <= p.time_high * p.power_within * (1.0 + 1e-9)
        && p.power <= limit
}

proptest! {
    #![proptest_config(cases(48, 12))]

    #[test]
    fn predictions_are_sound_and_fall_with_the_limit(
        measurements in prop::collection::vec(any_measurement(), 0..40),
        asked in prop::collection::vec((0..5_u32, any_configuration()), 8),
    ) {
        let mut learner = Learner::new(cluster());
        for m in &measurements {
            learner.learn(m).unwrap();
        }
        for (workload, c) in &asked {
            let job = job(*workload, 64);
            let mut before = 0.0;
            for k in 0..40 {
                let limit = Watts::new(20.0 * 1.13_f64.powi(k));
                let c = Configuration { power_limit: limit, ..*c };
                let p = learner.predict(&job, &c).unwrap();
                prop_assert!(is_sound(&p, limit), "{p:?} of {c:?}");
                prop_assert!(p.rate.0 >= before * (1.0 - 1e-12), "{before}, then {p:?} at {limit}");
                before = p.rate.0;
            }
        }
    }
}

const BERT: Truth =
    Truth { launch: 0.02, per_sample: 1e-3, knee: 2.0, idle: 130.0, full: 600.0, sync: 2e-3 };

/// The same, on the other GPU: three times slower, with its power.
fn on_slow(truth: &Truth) -> Truth {
    let share = 220.0 / 640.0;
    Truth {
        launch: truth.launch * 1.3,
        per_sample: truth.per_sample * 3.0,
        idle: truth.idle * share,
        full: truth.full * share,
        ..*truth
    }
}

/// By which factor the predicted time is off, as a logarithm, on average over shapes and limits.
fn off(learner: &Learner, truth: &Truth, workload: u32, gpu_type: GpuTypeId) -> f64 {
    let mut all = Vec::new();
    let limits = if gpu_type == FAST { [700.0, 500.0, 300.0] } else { [250.0, 200.0, 150.0] };
    for gpus in [1, 2, 4, 8] {
        for per_gpu in [16, 64, 256] {
            for limit in limits {
                let c = configuration(gpu_type, gpus, 1, per_gpu * gpus, limit);
                let p = learner.predict(&job(workload, c.batch), &c).unwrap();
                let (time, _) = truth.at(&point(gpus, 1, c.batch.into(), limit));
                all.push((p.rate.0 * time).ln().abs());
            }
        }
    }
    all.iter().sum::<f64>() / all.len() as f64
}

fn width(learner: &Learner, workload: u32, c: &Configuration) -> f64 {
    let p = learner.predict(&job(workload, 64), c).unwrap();
    (p.time_high / p.time_low).ln()
}

#[test]
fn knows_little_at_first_and_says_so_and_one_measurement_moves_everything() {
    let mut learner = Learner::new(cluster());
    let asked = configuration(FAST, 4, 1, 256, 500.0);
    let before = learner.predict(&job(0, 256), &asked).unwrap();
    assert_eq!(before.measurements, 0);
    assert!(width(&learner, 0, &asked) > 3.0, "{before:?}");
    let elsewhere = configuration(SLOW, 1, 1, 32, 250.0);
    let before_elsewhere = learner.predict(&job(0, 32), &elsewhere).unwrap();
    let far_off = off(&learner, &BERT, 0, FAST);

    let one = configuration(FAST, 1, 1, 64, 700.0);
    learner.learn(&of_truth(&BERT, 0, 0, one, 1.0, 0.0)).unwrap();
    let after = learner.predict(&job(0, 256), &asked).unwrap();
    assert_eq!(after.measurements, 1);
    assert!(width(&learner, 0, &asked) < 2.0, "{after:?}");
    assert!(off(&learner, &BERT, 0, FAST) < 0.5 * far_off.max(0.8));
    // The other GPU type was told something too.
    let after_elsewhere = learner.predict(&job(0, 32), &elsewhere).unwrap();
    assert_ne!(before_elsewhere.rate, after_elsewhere.rate);
}

/// Readings of every batch on one GPU, and of a few sizes.
fn teach(learner: &mut Learner, truth: &Truth, workload: u32, gpu_type: GpuTypeId) {
    let limits = if gpu_type == FAST { [700.0, 400.0] } else { [250.0, 150.0] };
    let mut id = 100 * workload;
    for (gpus, per_gpu) in [(1, 16), (1, 128), (2, 64), (4, 32), (8, 128)] {
        for limit in limits {
            let c = configuration(gpu_type, gpus, 1, per_gpu * gpus, limit);
            learner.learn(&of_truth(truth, id, workload, c, 1.0, 0.0)).unwrap();
            id += 1;
        }
    }
}

#[test]
fn a_workload_borrows_from_itself_on_other_gpus_and_from_other_workloads() {
    let workload = |k: u32| {
        let k = f64::from(k);
        Truth { launch: 0.01 + 0.01 * k, per_sample: 2e-4 * (1.0 + k), ..BERT }
    };
    let mut learner = Learner::new(cluster());
    let unknown = off(&learner, &on_slow(&workload(9)), 9, SLOW);
    teach(&mut learner, &workload(9), 9, FAST);
    let itself = off(&learner, &on_slow(&workload(9)), 9, SLOW);
    for other in 0..4 {
        teach(&mut learner, &workload(other), other, FAST);
        teach(&mut learner, &on_slow(&workload(other)), other, SLOW);
    }
    let both = off(&learner, &on_slow(&workload(9)), 9, SLOW);
    eprintln!("{unknown} {itself} {both}");
    assert!(itself < unknown && both < itself, "{unknown}, {itself}, {both}");
    assert!(both < 0.35, "off by {both} without ever having run there");
    let asked = configuration(SLOW, 2, 1, 128, 250.0);
    let p = learner.predict(&job(9, 128), &asked).unwrap();
    assert_eq!(p.measurements, 0);
    assert!(p.time_high > 1.1, "borrowed is not known: {p:?}");
}

#[test]
fn learns_a_workload_from_a_few_noisy_runs() {
    let mut learner = Learner::new(cluster());
    let mut state = 1_u64;
    for id in 0..40_u32 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let gpus = 1 << (state >> 33 & 3);
        let noise = ((state >> 40 & 1023) as f64 / 1023.0 - 0.5) * 0.17;
        let c = configuration(FAST, gpus, 1, 64 * gpus, 700.0);
        learner.learn(&of_truth(&BERT, id, 0, c, noise.exp(), f64::from(id))).unwrap();
    }
    for gpus in [1, 2, 4, 8] {
        let c = configuration(FAST, gpus, 1, 64 * gpus, 700.0);
        let p = learner.predict(&job(0, c.batch), &c).unwrap();
        let (time, power) = BERT.at(&point(gpus, 1, c.batch.into(), 700.0));
        assert!((p.rate.0 * time).ln().abs() < 0.04, "{gpus} GPUs: {p:?}");
        assert!((p.power.get() / power).ln().abs() < 0.02, "{gpus} GPUs: {p:?}");
        assert!(p.time_high < 1.2, "{p:?}");
    }
}

/// Twelve runs of each of three configurations, each a little off.
fn steady(learner: &mut Learner, factor: f64, from_id: u32, from_day: f64) {
    for k in 0..36_u32 {
        let c = configuration(FAST, 1 << (k % 3), 1, 64 << (k % 3), 700.0);
        let off = factor * (1.0 + 0.02 * (f64::from(k % 5) - 2.0));
        let day = from_day + f64::from(k) / 4.0;
        learner.learn(&of_truth(&BERT, from_id + k, 0, c, off, day)).unwrap();
    }
}

fn speed(learner: &Learner, gpus: u32) -> f64 {
    let c = configuration(FAST, gpus, 1, 64 * gpus, 700.0);
    learner.predict(&job(0, c.batch), &c).unwrap().rate.0
}

#[test]
fn a_change_of_speed_is_noticed_and_what_came_before_fades() {
    let mut learner = Learner::new(cluster());
    steady(&mut learner, 1.0, 0, 0.0);
    assert_eq!(learner.drifts(), []);
    let before = [1, 2, 4, 8].map(|gpus| speed(&learner, gpus));
    // A new driver: everything takes a fifth longer. Six runs are enough to see it.
    for k in 0..6_u32 {
        let c = configuration(FAST, 1 << (k % 3), 1, 64 << (k % 3), 700.0);
        learner.learn(&of_truth(&BERT, 100 + k, 0, c, 1.2, 10.0 + f64::from(k))).unwrap();
    }
    let [(workload, gpu_type, drift)] = learner.drifts()[..] else {
        panic!("{:?}", learner.drifts())
    };
    assert_eq!((workload, gpu_type), (WorkloadId(0), FAST));
    assert!((drift.factor - 1.2).abs() < 0.04, "{drift:?}");
    assert!(drift.since < Timestamp::ZERO + Seconds::new(10.0 * 86_400.0));
    // Shapes that have not run since are slower too.
    for (gpus, before) in [1, 2, 4, 8].into_iter().zip(before) {
        let after = speed(&learner, gpus);
        assert!((before / after - 1.2).abs() < 0.06, "{gpus} GPUs: {}", before / after);
    }
    // Once the old runs are gone there is nothing left to notice.
    steady(&mut learner, 1.2, 200, 20.0);
    steady(&mut learner, 1.2, 300, 30.0);
    assert_eq!(learner.drifts(), []);
}

#[test]
fn a_slow_node_is_noticed_and_does_not_make_others_look_slow() {
    let mut learner = Learner::new(cluster());
    let c = configuration(FAST, 2, 1, 128, 700.0);
    for id in 0..24_u32 {
        let node = NodeId(id % 3);
        let c = Configuration { gpus: 1 + id / 12, ..c };
        let scatter = 1.0 + 0.02 * (f64::from(id * 7 % 5) - 2.0);
        let off = if node == NodeId(1) { 1.25 } else { 1.0 } * scatter;
        let m = of_truth(&BERT, id, 0, c, off, f64::from(id) / 10.0);
        learner.learn(&Measurement { node: Some(node), ..m }).unwrap();
    }
    let slow = learner.slow_nodes();
    let [(node, factor, runs)] = slow[..] else { panic!("{slow:?}") };
    assert_eq!(node, NodeId(1));
    assert!((factor - 1.25).abs() < 0.05, "{factor}");
    assert!(runs >= 4);
    assert_eq!(learner.findings(), [Finding::SlowNode { node, factor, runs }]);
    // A node alone with a configuration is compared with nobody.
    let mut alone = Learner::new(cluster());
    for id in 0..12 {
        let m = of_truth(&BERT, id, 0, c, 1.25, 0.0);
        alone.learn(&Measurement { node: Some(NodeId(1)), ..m }).unwrap();
    }
    assert_eq!(alone.findings(), []);
}

#[test]
fn old_measurements_count_less() {
    let c = configuration(FAST, 1, 1, 64, 700.0);
    let after = |days: f64| {
        let mut learner = Learner::new(cluster());
        learner.learn(&of_truth(&BERT, 0, 0, c, 1.0, 0.0)).unwrap();
        learner.learn(&of_truth(&BERT, 1, 0, c, 1.08, days)).unwrap();
        let (time, _) = BERT.at(&point(1, 1, 64.0, 700.0));
        1.0 / (learner.predict(&job(0, 64), &c).unwrap().rate.0 * time)
    };
    let (soon, late) = (after(1.0), after(400.0));
    assert!((soon - 1.04).abs() < 0.015, "{soon}");
    assert!(late > soon + 0.02 && late < 1.09, "{soon}, {late}");
}

#[test]
fn one_liar_does_not_move_a_model() {
    for lie in [0.05, 20.0] {
        let mut learner = Learner::new(cluster());
        steady(&mut learner, 1.0, 0, 0.0);
        let before = [1, 2, 4, 8].map(|gpus| speed(&learner, gpus));
        let c = configuration(FAST, 2, 1, 128, 700.0);
        learner.learn(&of_truth(&BERT, 50, 0, c, lie, 10.0)).unwrap();
        for (gpus, before) in [1, 2, 4, 8].into_iter().zip(before) {
            let moved = (speed(&learner, gpus) / before).ln().abs();
            assert!(moved < 0.03, "a lie of {lie}: {gpus} GPUs moved by {moved}");
        }
        assert_eq!(learner.drifts(), []);
    }
}

#[test]
fn a_long_run_counts_once_and_a_report_that_comes_twice_does_no_harm() {
    let c = configuration(FAST, 1, 1, 64, 700.0);
    let mut learner = Learner::new(cluster());
    // A run with bad luck reports a hundred times, three others once each.
    for k in 0..100 {
        learner.learn(&of_truth(&BERT, 0, 0, c, 1.1, f64::from(k) / 100.0)).unwrap();
    }
    for id in 1..4 {
        let m = of_truth(&BERT, id, 0, c, 1.0, 1.0);
        learner.learn(&m).unwrap();
        learner.learn(&m).unwrap();
    }
    let (time, _) = BERT.at(&point(1, 1, 64.0, 700.0));
    let p = learner.predict(&job(0, 64), &c).unwrap();
    assert_eq!(p.measurements, 4);
    let found = 1.0 / (p.rate.0 * time);
    assert!((found - 1.024).abs() < 0.015, "{found}");
}

#[test]
fn the_worth_of_a_batch_and_the_cost_of_a_restart_are_learned() {
    let mut learner = Learner::new(cluster());
    let c = configuration(FAST, 1, 1, 256, 700.0);
    let rate = |learner: &Learner, asked: u32| learner.predict(&job(0, asked), &c).unwrap().rate.0;
    let m = of_truth(&BERT, 0, 0, c, 1.0, 0.0);
    learner.learn(&m).unwrap();
    let unknown = rate(&learner, 64) / rate(&learner, 256);
    assert!(unknown > 0.8 && unknown < 1.0);
    assert_eq!(learner.restart(&job(0, 64)).load, Seconds::new(20.0));
    for id in 1..6 {
        let load = Some(Seconds::new(45.0 + f64::from(id)));
        let m = Measurement { job: JobId(id), noise_scale: Some(500.0), load, ..m };
        learner.learn(&m).unwrap();
    }
    // At a noise scale of 500 a sample of a batch of 256 is worth 564/756 of one of a batch of 64.
    let known = rate(&learner, 64) / rate(&learner, 256);
    assert!((known - 564.0 / 756.0).abs() < 0.03 && known < unknown, "{known}");
    let restart = learner.restart(&job(0, 64));
    assert!((restart.load.get() - 47.0).abs() < 1.1, "{restart:?}");
    assert_eq!(restart.save, Seconds::new(1.0));
}

#[test]
fn what_cannot_be_is_refused_with_a_reason_and_changes_nothing() {
    let mut learner = Learner::new(cluster());
    let c = configuration(FAST, 2, 1, 128, 700.0);
    let good = of_truth(&BERT, 0, 0, c, 1.0, 0.0);
    learner.observe(&good);
    let before = learner.predict(&job(0, 128), &c);
    let bad = |change: &dyn Fn(&mut Measurement)| {
        let mut m = good;
        m.job = JobId(7);
        change(&mut m);
        m
    };
    let nan = f64::NAN;
    let all = [
        (bad(&|m| m.seconds = Seconds::new(nan)), "time measured"),
        (bad(&|m| m.seconds = Seconds::new(0.0)), "time measured"),
        (bad(&|m| m.seconds = Seconds::new(-5.0)), "time measured"),
        (bad(&|m| m.processed = Work(0.0)), "work done"),
        (bad(&|m| m.processed = Work(-1.0)), "work done"),
        (bad(&|m| m.processed = Work(f64::INFINITY)), "work done"),
        (bad(&|m| m.processed = Work(1e-9)), "time per sample"),
        (bad(&|m| m.power = Some(Watts::new(nan))), "the power in watts"),
        (bad(&|m| m.power = Some(Watts::new(1e9))), "the power in watts"),
        (bad(&|m| m.configuration.gpus = 0), "0 GPUs"),
        (bad(&|m| m.configuration.nodes = 9), "9 nodes"),
        (bad(&|m| m.configuration.power_limit = Watts::new(-1.0)), "power limit"),
        (bad(&|m| m.configuration.gpu_type = GpuTypeId(9)), "no such GPU type"),
        (bad(&|m| m.noise_scale = Some(-3.0)), "noise scale"),
        (bad(&|m| m.load = Some(Seconds::new(f64::INFINITY))), "time to load"),
    ];
    for (m, reason) in &all {
        let refused = learner.learn(m).unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
        learner.observe(m);
    }
    assert_eq!(learner.predict(&job(0, 128), &c), before);
    let (count, last) = learner.refusals();
    assert_eq!((count, last.count()), (15, 15));
    let reading =
        Reading { point: point(1, 1, 8.0, 300.0), per_sample: Seconds::new(1e-3), power: None };
    let refused = learner.import(WorkloadId(0), GpuTypeId(9), &reading);
    assert_eq!(refused, Err(Refused::UnknownGpu));
    assert_eq!(learner.predict(&job(0, 1), &configuration(FAST, 2, 1, 1, 700.0)), None);
    assert_eq!(learner.predict(&job(0, 8), &configuration(GpuTypeId(9), 2, 1, 8, 700.0)), None);
}

#[test]
fn a_clock_that_is_far_off_spoils_nothing() {
    let mut learner = Learner::new(cluster());
    steady(&mut learner, 1.0, 0, 0.0);
    let before = [1, 2, 4, 8].map(|gpus| speed(&learner, gpus));
    // A node whose clock runs three hundred years ahead, on something else.
    let c = configuration(SLOW, 1, 1, 64, 250.0);
    learner.learn(&of_truth(&on_slow(&BERT), 90, 1, c, 1.0, 110_000.0)).unwrap();
    for (gpus, before) in [1, 2, 4, 8].into_iter().zip(before) {
        let c = configuration(FAST, gpus, 1, 64 * gpus, 700.0);
        let p = learner.predict(&job(0, c.batch), &c).unwrap();
        assert!(is_sound(&p, c.power_limit), "{p:?}");
        assert!((p.rate.0 / before).ln().abs() < 0.05, "{gpus} GPUs: {before}, then {p:?}");
    }
}

#[test]
fn the_smallest_readings_keep_their_digits() {
    for per_sample in [1e-12, 3.7e-10, 1e-6] {
        let mut learner = Learner::new(cluster());
        let at = point(1, 1, 1e6, 700.0);
        let reading = Reading {
            point: at,
            per_sample: Seconds::new(per_sample),
            power: Some(Watts::new(0.2)),
        };
        learner.import(WorkloadId(0), FAST, &reading).unwrap();
        let c = configuration(FAST, 1, 1, 1_000_000, 700.0);
        let p = learner.predict(&job(0, 1_000_000), &c).unwrap();
        assert!(is_sound(&p, c.power_limit), "{p:?}");
        let off = (p.rate.0 * per_sample).ln().abs();
        assert!(off < 0.05, "{per_sample}: off by {off}");
    }
}

#[test]
fn links_of_the_data_sheet_tell_how_a_workload_scales_until_that_is_measured() {
    // How much faster two nodes are than one, after runs inside one node.
    let gain = |net: Option<f64>, over_nodes: Option<f64>| {
        let links = net.map(|net| Links { node: 300.0, net });
        let mut learner = Learner::new(linked(links));
        for (id, gpus) in [(0, 4), (1, 8)] {
            let c = configuration(FAST, gpus, 1, 32 * gpus, 700.0);
            learner.observe(&measured(id, 0, c, 0.1 / f64::from(32 * gpus), 500.0, 0.0));
        }
        let (one, two) =
            (configuration(FAST, 8, 1, 256, 700.0), configuration(FAST, 16, 2, 512, 700.0));
        if let Some(step) = over_nodes {
            learner.observe(&measured(2, 0, two, step / 512.0, 500.0, 0.1));
        }
        let rate = |c: &Configuration| learner.predict(&job(0, 256), c).unwrap().rate.0;
        rate(&two) / rate(&one)
    };
    let (fast, slow, unknown) = (gain(Some(50.0), None), gain(Some(0.5), None), gain(None, None));
    assert!(fast > 1.6, "50 GB/s hardly slow a step of 0.1 s: {fast}");
    assert!(slow < 0.5, "half a GB/s takes longer than the step: {slow}");
    assert!(slow < unknown && unknown < fast, "{unknown}");
    // What was measured counts, whatever the data sheet says.
    for net in [50.0, 0.5] {
        let told = gain(Some(net), Some(0.2));
        assert!((told - 1.0).abs() < 0.1, "a step takes twice as long over nodes: {told}");
    }
}
