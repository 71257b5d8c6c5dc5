//! Learns from every run: the predictor of a cluster.
//!
//! A prediction is a function of the set of measurements that came before, of nothing else: not of
//! their order, nor of what was asked in between. What is expensive is done when it is asked for
//! and kept as long as it holds: the formula of a group while its rounded readings stay as they
//! are, its model while these and the rounded belief that it borrows do, its tables while the
//! model does.

mod image;

use crate::efficiency::NoiseScale;
use crate::group::Group;
use crate::known::{GroupKey, Known, point};
use crate::reading::{Reading, Refused, within};
use crate::store::{Drift, LastReports, Run, Stretch, slowness};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use wattline_core::cluster::Cluster;
use wattline_core::ids::{GpuTypeId, NodeId, WorkloadId};
use wattline_core::image::ImageError;
use wattline_core::job::{Job, RestartCost, WorkRate};
use wattline_core::placement::Configuration;
use wattline_core::predictor::{Finding, Measurement, Prediction, Predictor};
use wattline_core::time::Timestamp;
use wattline_core::units::{Seconds, Watts};

/// Runs of this cluster count as later than anything from a file.
const FIRST_JOB: Run = 1 << 32;
/// Refusals that are kept for an administrator to look at.
const MOST_REFUSALS: usize = 100;
/// Everything measured so far and what follows from it.
pub struct Learner {
    cluster: Arc<Cluster>,
    known: Mutex<Known>,
    reports: BTreeMap<WorkloadId, Reports>,
    usual_scale: NoiseScale,
    imported: Run,
    newest: Timestamp,
    refused: u64,
    refusals: VecDeque<(Measurement, Refused)>,
}

/// What runs of a workload reported beside their speed.
#[derive(Default)]
struct Reports {
    noise_scales: LastReports,
    noise_scale: Option<NoiseScale>,
    loads: LastReports,
}

impl Learner {
    /// Knows the machines and nothing else.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>) -> Self {
        Self {
            cluster,
            known: Mutex::default(),
            reports: BTreeMap::new(),
            usual_scale: NoiseScale::prior(),
            imported: 0,
            newest: Timestamp::ZERO,
            refused: 0,
            refusals: VecDeque::new(),
        }
    }

    /// Takes in a reading from elsewhere; it counts as older than all measurements of this cluster.
    ///
    /// # Errors
    /// Says why it cannot be believed.
    pub fn import(
        &mut self,
        workload: WorkloadId,
        gpu_type: GpuTypeId,
        reading: &Reading,
    ) -> Result<(), Refused> {
        reading.check()?;
        self.check_type(gpu_type)?;
        self.imported = (self.imported + 1).min(FIRST_JOB - 1);
        self.add((workload, gpu_type), &Stretch::of(self.imported, None, reading));
        Ok(())
    }

    /// Takes in a measurement.
    ///
    /// # Errors
    /// Says why it cannot be believed; nothing has changed then.
    pub fn learn(&mut self, m: &Measurement) -> Result<(), Refused> {
        let reading = self.check(m)?;
        let run = FIRST_JOB + Run::from(m.job.0);
        let reports = self.reports.entry(m.workload).or_default();
        if let Some(scale) = m.noise_scale {
            reports.noise_scales.add(run, scale);
            reports.noise_scale = Some(NoiseScale::from_reports(&reports.noise_scales.values()));
        }
        if let Some(load) = m.load {
            reports.loads.add(run, load.get());
        }
        self.newest = self.newest.max(m.at);
        let stretch = Stretch {
            run,
            at: Some(m.at),
            point: reading.point,
            node: m.node,
            samples: m.processed.0,
            seconds: m.seconds.get(),
            power: m.power.map(Watts::get),
        };
        self.add((m.workload, m.configuration.gpu_type), &stretch);
        Ok(())
    }

    /// What a measurement says, if it can be believed.
    fn check(&self, m: &Measurement) -> Result<Reading, Refused> {
        let c = &m.configuration;
        self.check_type(c.gpu_type)?;
        within("the time measured in seconds", m.seconds.get(), 1e-6, 1e9)?;
        within("the work done", m.processed.0, 1e-9, 1e18)?;
        let reading = Reading {
            point: point(c),
            per_sample: Seconds::new(m.seconds.get() / m.processed.0),
            power: m.power,
        };
        reading.check()?;
        m.noise_scale.map_or(Ok(()), |x| within("the gradient noise scale", x, 1e-3, 1e12))?;
        m.load.map_or(Ok(()), |x| within("the time to load in seconds", x.get(), 0.0, 1e6))?;
        Ok(reading)
    }

    /// How many measurements were refused, and why the last of them were.
    pub fn refusals(&self) -> (u64, impl Iterator<Item = &(Measurement, Refused)>) {
        (self.refused, self.refusals.iter())
    }

    /// Workloads whose speed has changed, on which GPUs, since when and by how much.
    #[must_use]
    pub fn drifts(&self) -> Vec<(WorkloadId, GpuTypeId, Drift)> {
        self.with_known(|known| {
            let found = |(key, group): (&GroupKey, &Group)| Some((key.0, key.1, group.drift?));
            known.groups().filter_map(found).collect()
        })
    }

    /// Nodes that are slower than others: by which factor, and in how many runs that was seen.
    #[must_use]
    pub fn slow_nodes(&self) -> Vec<(NodeId, f64, u32)> {
        let mut longer: BTreeMap<NodeId, Vec<f64>> = BTreeMap::new();
        self.with_known(|known| known.groups().for_each(|(_, g)| g.store.by_node(&mut longer)));
        let slow = |(node, longer): (NodeId, Vec<f64>)| {
            let runs = longer.len() as u32;
            Some((node, slowness(longer)?.exp(), runs))
        };
        longer.into_iter().filter_map(slow).collect()
    }

    fn check_type(&self, gpu_type: GpuTypeId) -> Result<(), Refused> {
        let known = gpu_type.index() < self.cluster.gpu_types().len();
        known.then_some(()).ok_or(Refused::UnknownGpu)
    }

    fn add(&mut self, key: GroupKey, stretch: &Stretch) {
        self.known.get_mut().unwrap_or_else(PoisonError::into_inner).add(key, stretch);
    }

    /// Everything known, up to date.
    fn with_known<T>(&self, ask: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.refresh(&self.cluster, self.newest);
        ask(&mut known)
    }
}

/// `None` of nothing.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    Some(f64::midpoint(values[low], values[high]))
}

impl Predictor for Learner {
    fn predict(&self, job: &Job, c: &Configuration) -> Option<Prediction> {
        if c.gpus == 0 || c.nodes == 0 || c.batch < c.gpus || self.check_type(c.gpu_type).is_err() {
            return None;
        }
        let card = self.cluster.gpu_type(c.gpu_type);
        let (expected, runs) = self.with_known(|known| known.expect(&self.cluster, job, c))?;
        let scale = self.reports.get(&job.workload).and_then(|reports| reports.noise_scale);
        let scale = scale.unwrap_or(self.usual_scale);
        let worth = scale.efficiency(job.batch.requested.into(), c.batch.into());
        let time = expected.per_sample;
        Some(Prediction {
            rate: WorkRate(worth / time.get()),
            power: expected.power.unwrap_or(card.busy.min(c.power_limit)),
            time_low: expected.per_sample_low / time,
            time_high: expected.per_sample_high / time,
            power_within: expected.power_within,
            energy_within: expected.energy_within,
            measurements: runs,
        })
    }

    fn restart(&self, job: &Job) -> RestartCost {
        let Some(reports) = self.reports.get(&job.workload) else { return job.restart };
        let mut loads = reports.loads.values();
        if loads.is_empty() {
            return job.restart;
        }
        // What the user says counts like one more run.
        loads.push(job.restart.load.get());
        let load = median(loads).map_or(job.restart.load, Seconds::new);
        RestartCost { load, ..job.restart }
    }

    fn findings(&self) -> Vec<Finding> {
        let changed = self.drifts().into_iter().map(|(workload, gpu_type, drift)| {
            Finding::SpeedChanged { workload, gpu_type, since: drift.since, factor: drift.factor }
        });
        let slow = self.slow_nodes().into_iter();
        let slow = slow.map(|(node, factor, runs)| Finding::SlowNode { node, factor, runs });
        let refused = self.refusals.back().map(|(_, last)| Finding::Refused {
            measurements: self.refused,
            last: last.to_string(),
        });
        changed.chain(slow).chain(refused).collect()
    }

    fn observe(&mut self, measurement: &Measurement) {
        if let Err(reason) = self.learn(measurement) {
            self.refused += 1;
            if self.refusals.len() == MOST_REFUSALS {
                self.refusals.pop_front();
            }
            self.refusals.push_back((*measurement, reason));
        }
    }

    fn image(&self) -> Vec<u8> {
        image::save(self)
    }

    fn shared_copy(&self) -> Option<Box<dyn Predictor>> {
        let copy = image::read(Arc::clone(&self.cluster), &image::save(self)).ok()?;
        Some(Box::new(copy))
    }

    fn restore(&mut self, image: &[u8]) -> Result<(), ImageError> {
        *self = image::read(Arc::clone(&self.cluster), image)?;
        Ok(())
    }
}
