//! A predictor that knows a table of times and nothing else.

use crate::ids::{GpuTypeId, WorkloadId};
use crate::job::{Job, WorkRate};
use crate::placement::Configuration;
use crate::predictor::{Measurement, Prediction, Predictor};
use crate::units::{Seconds, Watts};
use std::collections::BTreeMap;

/// One known time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnownTime {
    /// Over how many nodes.
    pub nodes: u32,
    /// With which batch; with any, if not set.
    pub batch: Option<u32>,
    /// Under which limit; under any, if not set.
    pub limit: Option<Watts>,
    /// Only for jobs that asked for so many GPUs.
    pub requested_gpus: Option<u32>,
    /// Only for jobs that asked for this batch.
    pub requested_batch: Option<u32>,
    /// For one unit of work.
    pub time: Seconds,
    /// Drawn by each GPU.
    pub power: Option<Watts>,
    /// See [`Prediction::time_low`].
    pub low: f64,
    /// See [`Prediction::time_high`].
    pub high: f64,
    /// See [`Prediction::measurements`].
    pub measurements: u32,
    /// The type's busy power, where none is known.
    pub busy: Watts,
}

/// All known times. The nearest number of nodes and the nearest batch answer; between two limits
/// the answer lies between theirs. A GPU type and count without a row cannot run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    rows: BTreeMap<(WorkloadId, GpuTypeId, u32), Vec<KnownTime>>,
}

impl Times {
    /// One more.
    pub fn add(&mut self, workload: WorkloadId, gpu_type: GpuTypeId, gpus: u32, row: KnownTime) {
        self.rows.entry((workload, gpu_type, gpus)).or_default().push(row);
    }

    /// Whether anything is known of a workload.
    #[must_use]
    pub fn knows(&self, workload: WorkloadId) -> bool {
        let first = (workload, GpuTypeId(0), 0);
        let last = (workload, GpuTypeId(u16::MAX), u32::MAX);
        self.rows.range(first..=last).next().is_some()
    }
}

impl KnownTime {
    fn power(&self, limit: Watts) -> Watts {
        self.power.unwrap_or(self.busy).min(limit)
    }
}

impl Predictor for Times {
    fn predict(&self, job: &Job, c: &Configuration) -> Option<Prediction> {
        let rows = self.rows.get(&(job.workload, c.gpu_type, c.gpus))?;
        let meant = |asked: Option<u32>, is: u32| asked.is_none_or(|asked| asked == is);
        let rows = rows.iter().filter(|row| {
            meant(row.requested_gpus, job.gpus.requested)
                && meant(row.requested_batch, job.batch.requested)
        });
        // How far a row is from the question, limits apart.
        let far = |row: &KnownTime| {
            let batch = row.batch.unwrap_or(c.batch);
            let batch = (f64::from(batch.max(1)) / f64::from(c.batch.max(1))).ln().abs();
            (row.nodes.abs_diff(c.nodes), batch)
        };
        let order = |a: (u32, f64), b: (u32, f64)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1));
        let nearest = rows.clone().map(far).min_by(|a, b| order(*a, *b))?;
        let near = rows.filter(|row| order(far(row), nearest).is_eq());
        let limit = |row: &KnownTime| row.limit.unwrap_or(c.power_limit);
        let below = near
            .clone()
            .filter(|row| limit(row) <= c.power_limit)
            .max_by(|a, b| limit(a).total_cmp(&limit(b)));
        let above = near
            .filter(|row| limit(row) >= c.power_limit)
            .min_by(|a, b| limit(a).total_cmp(&limit(b)));
        let (a, b) = (below.or(above)?, above.or(below)?);
        let span = (limit(b) - limit(a)).get();
        let share = if span > 0.0 { (c.power_limit - limit(a)).get() / span } else { 0.0 };
        let between = |x: f64, y: f64| if share > 0.0 { x + share * (y - x) } else { x };
        let rate = |row: &KnownTime| 1.0 / row.time.get();
        Some(Prediction {
            rate: WorkRate(between(rate(a), rate(b))),
            power: Watts::new(between(a.power(c.power_limit).get(), b.power(c.power_limit).get())),
            time_low: between(a.low, b.low),
            time_high: between(a.high, b.high),
            power_within: 1.0,
            energy_within: 1.0,
            measurements: a.measurements.min(b.measurements),
        })
    }

    /// A table does not learn.
    fn observe(&mut self, _: &Measurement) {}
}
