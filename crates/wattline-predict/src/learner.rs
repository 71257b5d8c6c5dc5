//! Learns from every run: the predictor of a cluster.
//!
//! A prediction is a function of the set of measurements that came before, of nothing else: not of
//! their order, nor of what was asked in between. What is expensive is done when it is asked for
//! and kept as long as it holds: the formula of a group while its rounded readings stay as they
//! are, its model while these and the rounded belief that it borrows do, its tables while the
//! model does.

use crate::belief::{Belief, log_speed};
use crate::borrow::{Lender, Pair, borrow};
use crate::efficiency::NoiseScale;
use crate::group::Group;
use crate::model::{Curve, Expectation, Model};
use crate::reading::{Point, Reading, Refused, within};
use crate::store::{Drift, LastReports, Run, Stretch, look_at, slowness};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use wattline_core::cluster::{Cluster, GpuType};
use wattline_core::ids::{GpuTypeId, NodeId, WorkloadId};
use wattline_core::job::{Job, RestartCost, WorkRate};
use wattline_core::placement::Configuration;
use wattline_core::predictor::{Finding, Measurement, Prediction, Predictor};
use wattline_core::time::Timestamp;
use wattline_core::units::{Seconds, Watts};

/// Runs of this cluster count as later than anything from a file.
const FIRST_JOB: Run = 1 << 32;
/// Refusals that are kept for an administrator to look at.
const MOST_REFUSALS: usize = 100;
/// Tables of a group beyond this many are not kept.
const MOST_TABLES: usize = 4096;

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

type GroupKey = (WorkloadId, GpuTypeId);

/// Groups look at the age of their readings at different times, so that not all are fitted at once.
fn phase((workload, gpu_type): GroupKey) -> f64 {
    let mixed = u64::from(workload.0) * 7919 + u64::from(gpu_type.0) * 104_729;
    (mixed % 64) as f64 / 64.0
}

struct Known {
    groups: BTreeMap<GroupKey, Group>,
    /// Groups with measurements that were not looked at.
    unseen: Vec<GroupKey>,
    newest: Timestamp,
    /// Rises whenever some group's formula changes.
    version: u64,
    /// How runs of the same configuration scatter anywhere, and what follows for each group.
    scatter: (f64, f64),
    scatters: Vec<f64>,
    models: HashMap<(GroupKey, Usual), Kept>,
}

/// Octaves of samples per GPU that a workload is trained with, as its job says; `None` where it was
/// measured.
type Usual = Option<i32>;

/// A model and what it follows from.
struct Kept {
    /// Known to hold as of this version.
    version: u64,
    belief: Belief,
    /// Which of the group's formulas.
    formula: u64,
    model: Model,
    /// Standard deviation of the logarithm of a run's time around its configuration's, rounded.
    scatter: f64,
    tables: HashMap<(u32, u32, u32), Table>,
}

/// Before runs tell: their scatter, and as many degrees of freedom as that is worth. What all groups
/// say is worth no more to any of them than so many.
const SCATTER: (f64, f64) = (0.03, 4.0);
const OTHERS: f64 = 12.0;
/// The part of a model's own variance that is not the scatter of runs, at least.
const NOT_SCATTER: f64 = 0.3;

/// What to expect of a job's configurations that differ only in the limit.
struct Table {
    curve: Curve,
    /// At the limits we use, from the card's default down.
    default: f64,
    step: f64,
    at_steps: Box<[Expectation]>,
}

impl Table {
    fn new(model: &Model, card: &GpuType, point: &Point, scatter: f64) -> Self {
        let mut curve = model.curve(point);
        curve.scatter(scatter, NOT_SCATTER);
        let at_steps = card.limits_down().map(|limit| curve.at(limit)).collect();
        let (default, step) = (card.default_limit.get(), card.limit_step.get());
        Self { curve, default, step, at_steps }
    }

    fn at(&self, limit: Watts) -> Expectation {
        let place = (self.default - limit.get()) / self.step;
        let whole = place.fract() == 0.0 && place >= 0.0;
        let at_step = if whole { self.at_steps.get(place as usize) } else { None };
        // The lowest limit need not be a whole number of steps down; nor any limit a user sets.
        at_step.copied().unwrap_or_else(|| self.curve.at(limit))
    }
}

impl Learner {
    /// Knows the machines and nothing else.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>) -> Self {
        Self {
            cluster,
            known: Mutex::new(Known {
                groups: BTreeMap::new(),
                unseen: Vec::new(),
                newest: Timestamp::ZERO,
                version: 0,
                scatter: (0.0, 0.0),
                scatters: Vec::new(),
                models: HashMap::new(),
            }),
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
        let stretch = Stretch {
            run: self.imported,
            at: None,
            point: reading.point,
            node: None,
            samples: 1.0,
            seconds: reading.per_sample.get(),
            power: reading.power.map(Watts::get),
        };
        self.add((workload, gpu_type), &stretch);
        Ok(())
    }

    /// Takes in a measurement.
    ///
    /// # Errors
    /// Says why it cannot be believed; nothing has changed then.
    pub fn learn(&mut self, m: &Measurement) -> Result<(), Refused> {
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
        self.add((m.workload, c.gpu_type), &stretch);
        Ok(())
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
            known.groups.iter().filter_map(found).collect()
        })
    }

    /// Nodes that are slower than others: by which factor, and in how many runs that was seen.
    #[must_use]
    pub fn slow_nodes(&self) -> Vec<(NodeId, f64, u32)> {
        let mut longer: BTreeMap<NodeId, Vec<f64>> = BTreeMap::new();
        self.with_known(|known| known.groups.values().for_each(|g| g.store.by_node(&mut longer)));
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
        let known = self.known.get_mut().unwrap_or_else(PoisonError::into_inner);
        known.groups.entry(key).or_default().store.add(stretch);
        if known.unseen.last() != Some(&key) {
            known.unseen.push(key);
        }
    }

    /// Everything known, up to date.
    fn with_known<T>(&self, ask: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.refresh(&self.cluster, self.newest);
        ask(&mut known)
    }
}

impl Known {
    fn refresh(&mut self, cluster: &Cluster, newest: Timestamp) {
        if newest != self.newest {
            self.newest = newest;
            let due = |(key, group): (&GroupKey, &Group)| {
                (group.look != look_at(newest, phase(*key))).then_some(*key)
            };
            self.unseen.extend(self.groups.iter().filter_map(due));
        }
        if self.unseen.is_empty() {
            return;
        }
        let mut unseen = std::mem::take(&mut self.unseen);
        unseen.sort_unstable();
        unseen.dedup();
        for key in unseen {
            if let Some(group) = self.groups.get_mut(&key)
                && group.refresh(cluster.gpu_type(key.1), look_at(newest, phase(key)))
            {
                self.version += 1;
                group.formula = self.version;
            }
        }
        let both = |a: (f64, f64), b: (f64, f64)| (a.0 + b.0, a.1 + b.1);
        self.scatter = self.groups.values().map(|g| g.scatter).fold((0.0, 0.0), both);
        let unmeasured = Group::default();
        let all = self.groups.values().chain([&unmeasured]);
        let scatters: Vec<f64> = all.map(|group| self.scatter_of(group)).collect();
        if scatters != self.scatters {
            self.scatters = scatters;
            self.version += 1;
        }
    }

    /// Of a group's runs, rounded to a quarter of an octave.
    fn scatter_of(&self, group: &Group) -> f64 {
        let (mut squares, mut freedom) = (SCATTER.0 * SCATTER.0 * SCATTER.1, SCATTER.1);
        let share = (OTHERS / self.scatter.1.max(OTHERS)).min(1.0);
        squares += share * self.scatter.0 + group.scatter.0;
        freedom += share * self.scatter.1 + group.scatter.1;
        let scatter = (squares / freedom).sqrt();
        ((scatter.log2() * 4.0).round() / 4.0).exp2()
    }

    /// The logarithm of samples per GPU that a workload is usually trained with, where it was
    /// measured.
    fn local(&self, workload: WorkloadId) -> Option<f64> {
        let on_all = (workload, GpuTypeId(0))..=(workload, GpuTypeId(u16::MAX));
        self.groups.range(on_all).find_map(|(_, group)| group.local())
    }

    /// The model of a group, as of now.
    fn model(&mut self, cluster: &Cluster, key: GroupKey, job: &Job) -> &mut Kept {
        let local = self.local(key.0);
        let usual = local.is_none().then(|| {
            let per_gpu = f64::from(job.batch.requested) / f64::from(job.gpus.requested.max(1));
            per_gpu.max(1.0).log2().round() as i32
        });
        let holds = self.models.get(&(key, usual)).is_some_and(|k| k.version == self.version);
        if !holds {
            let guessed = f64::from(usual.unwrap_or_default()) * std::f64::consts::LN_2;
            let belief = self.borrowed(cluster, key, local.unwrap_or(guessed));
            let nothing = Group::default();
            let group = self.groups.get(&key).unwrap_or(&nothing);
            let scatter = self.scatter_of(group);
            let card = cluster.gpu_type(key.1);
            let same = |kept: &Kept| kept.formula == group.formula && kept.belief == belief;
            match self.models.get_mut(&(key, usual)) {
                Some(kept) if same(kept) => {
                    kept.version = self.version;
                    if kept.scatter != scatter {
                        kept.scatter = scatter;
                        kept.tables.clear();
                    }
                }
                _ => {
                    let kept = Kept {
                        version: self.version,
                        model: group.model(&belief, card),
                        belief,
                        scatter,
                        formula: group.formula,
                        tables: HashMap::new(),
                    };
                    self.models.insert((key, usual), kept);
                }
            }
        }
        self.models.entry((key, usual)).or_insert_with(|| unreachable!("it was put there"))
    }

    /// What everything else says of a group.
    fn borrowed(&self, cluster: &Cluster, (workload, gpu_type): GroupKey, local: f64) -> Belief {
        let power = |t: GpuTypeId| cluster.gpu_type(t).busy.get().max(2.0).ln();
        let of = |key: GroupKey| self.groups.get(&key).and_then(Group::evidence);
        let (mut lenders, mut types) = (Vec::new(), Vec::new());
        for (key, group) in self.groups.iter().filter(|(key, _)| **key != (workload, gpu_type)) {
            let Some(evidence) = group.evidence() else { continue };
            types.push(key.1);
            lenders.push(Lender {
                evidence,
                card: power(key.1) - power(gpu_type),
                speed: log_speed(cluster.gpu_type(key.1)) - log_speed(cluster.gpu_type(gpu_type)),
                local: group.local().unwrap_or(local) - local,
                same_workload: key.0 == workload,
                same_card: key.1 == gpu_type,
            });
        }
        let pairs = |lender: usize| {
            let other = types[lender];
            let workloads = self.groups.keys().filter(|key| key.1 == other && key.0 != workload);
            workloads
                .filter_map(|key| Some(Pair { here: of((key.0, gpu_type))?, there: of(*key)? }))
                .collect()
        };
        borrow(&Belief::of_card(cluster.gpu_type(gpu_type), local), &lenders, pairs)
    }
}

fn point(c: &Configuration) -> Point {
    Point { gpus: c.gpus, nodes: c.nodes, batch: f64::from(c.batch), limit: c.power_limit }
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
        let (expected, runs) = self.with_known(|known| {
            let kept = known.model(&self.cluster, (job.workload, c.gpu_type), job);
            if kept.tables.len() >= MOST_TABLES {
                kept.tables.clear();
            }
            let table = kept
                .tables
                .entry((c.gpus, c.nodes, c.batch))
                .or_insert_with(|| Table::new(&kept.model, card, &point(c), kept.scatter));
            let expected = table.at(c.power_limit);
            (expected, known.groups.get(&(job.workload, c.gpu_type)).map_or(0, |group| group.runs))
        });
        let scale = self.reports.get(&job.workload).and_then(|reports| reports.noise_scale);
        let scale = scale.unwrap_or(self.usual_scale);
        let worth = scale.efficiency(job.batch.requested.into(), c.batch.into());
        let time = expected.per_sample;
        Some(Prediction {
            rate: WorkRate(worth / time.get()),
            power: expected.power.unwrap_or(card.busy.min(c.power_limit)),
            time_low: expected.per_sample_low / time,
            time_high: expected.per_sample_high / time,
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
}
