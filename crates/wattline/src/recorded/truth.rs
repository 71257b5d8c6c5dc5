//! How fast jobs of a real cluster are, and what they draw, as far as a record shows it.
//!
//! Where a configuration was measured, it is as it was measured, on this cluster before anywhere
//! else. Elsewhere it is as the predictor expects that has seen the whole record, and for jobs
//! that say nothing about their work by the curve that goes for these. How much work each job was
//! follows from how long its runs took: a job that runs as it did takes as long as it did.

use crate::site::Known;
use std::collections::{BTreeMap, BTreeSet};
use wattline_controller::Foresight;
use wattline_controller::history::Past;
use wattline_core::Timestamp;
use wattline_core::ids::WorkloadId;
use wattline_core::job::{Job, Work, WorkRate};
use wattline_core::placement::Configuration;
use wattline_core::predictor::{Measurement, Predictor};
use wattline_core::units::{Joules, Seconds, Watts};
use wattline_world::physics::Speed;

/// A workload, GPU type, GPUs, nodes, batch and limit.
type Key = (u32, u16, u32, u32, u32, u64);

fn key(workload: WorkloadId, c: &Configuration) -> Key {
    (workload.0, c.gpu_type.0, c.gpus, c.nodes, c.batch, c.power_limit.get().to_bits())
}

/// What was measured in a configuration, added up.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    work: f64,
    time: f64,
    energy: Joules,
    energy_time: f64,
}

impl Sum {
    fn add(&mut self, work: f64, time: Seconds, power: Option<Watts>) {
        self.work += work;
        self.time += time.get();
        if let Some(power) = power {
            self.energy += power * time;
            self.energy_time += time.get();
        }
    }

    fn power(&self) -> Option<Watts> {
        (self.energy_time > 0.0).then(|| self.energy / Seconds::new(self.energy_time))
    }
}

/// All that was measured.
#[derive(Default)]
pub(super) struct Measured {
    here: BTreeMap<Key, Sum>,
    before: BTreeMap<Key, Sum>,
}

impl Measured {
    /// What was measured before.
    pub(super) fn new(known: &Known) -> Self {
        let mut before: BTreeMap<Key, Sum> = BTreeMap::new();
        for (workload, gpu_type, reading) in &known.readings {
            let configuration = Configuration {
                gpu_type: *gpu_type,
                gpus: reading.point.gpus,
                nodes: reading.point.nodes,
                batch: reading.point.batch.round() as u32,
                power_limit: reading.point.limit,
            };
            let sum = before.entry(key(*workload, &configuration)).or_default();
            sum.add(1.0, reading.per_sample, reading.power);
        }
        Self { here: BTreeMap::new(), before }
    }

    /// What a run has shown.
    pub(super) fn observe(&mut self, m: &Measurement) {
        let sound = |value: f64| value.is_finite() && value > 0.0;
        if sound(m.processed.0) && sound(m.seconds.get()) {
            let sum = self.here.entry(key(m.workload, &m.configuration)).or_default();
            sum.add(m.processed.0, m.seconds, m.power);
        }
    }
}

/// How fast jobs are.
pub(super) struct Truth {
    measured: BTreeMap<Key, Sum>,
    expected: Foresight,
}

impl Truth {
    /// What was measured, and a predictor that has seen all of it.
    pub(super) fn new(measured: Measured, expected: Foresight) -> Self {
        let Measured { here, before: mut all } = measured;
        all.extend(here);
        Self { measured: all, expected }
    }

    /// Speed and power of a job; none where it cannot run.
    pub(super) fn speed(&self, job: &Job, c: &Configuration) -> Option<Speed> {
        let expected = self.expected.predict(job, c)?;
        let sum = self.measured.get(&key(job.workload, c));
        let rate = sum.map_or(expected.rate, |sum| WorkRate(sum.work / sum.time));
        let power = sum.and_then(Sum::power).unwrap_or(expected.power).min(c.power_limit);
        Some(Speed { rate, power, worth: 1.0 })
    }

    /// In how many configurations a workload was measured.
    pub(super) fn configurations(&self, workload: WorkloadId) -> usize {
        let of = |key: &&Key| key.0 == workload.0;
        self.measured.keys().filter(of).count()
    }

    /// What of the configurations that a job ran in was measured.
    pub(super) fn unmeasured(&self, past: &Past) -> BTreeSet<Key> {
        let placements = past.runs.iter().flat_map(|run| &run.placements);
        let keys = placements.map(|(_, p)| key(past.job.workload, &p.configuration));
        keys.filter(|key| !self.measured.contains_key(key)).collect()
    }

    /// How much work a job did in its runs up to `last`, what was lost left out; none if it is not
    /// known how it ran.
    pub(super) fn work(&self, past: &Past, last: Timestamp) -> Option<Work> {
        let job = &past.job;
        let (mut total, mut reported) = (0.0_f64, 0.0);
        for (at, run) in past.runs.iter().enumerate() {
            let load = if at > 0 { job.restart.load } else { Seconds::ZERO };
            // What was saved matters only if it was gone on from.
            let saved = run.saved.filter(|_| at + 1 < past.runs.len() || past.over().is_none());
            let save = if saved.is_some() { job.restart.save } else { Seconds::ZERO };
            let (from, to) = (run.from + load, run.to.unwrap_or(last) - save);
            if run.placements.is_empty() {
                return None;
            }
            let mut did = 0.0;
            for (at, (since, placement)) in run.placements.iter().enumerate() {
                let next = run.placements.get(at + 1).map_or(to, |(next, _)| *next).min(to);
                let rate = self.speed(job, &placement.configuration)?.rate;
                did += (rate * next.since((*since).max(from))).0;
            }
            if let Some(saved) = saved {
                did = did.min((saved.0 - reported).max(0.0));
                reported = saved.0;
            }
            total += did;
        }
        Some(Work(total))
    }
}
