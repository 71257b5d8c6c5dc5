//! How fast each workload really is, and what it really draws.

use crate::catalogue::Catalogue;
use crate::measured::Measured;
use crate::step::{Draw, StepModel, efficiency};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use wattline_core::cluster::{Cluster, Shape};
use wattline_core::ids::{GpuTypeId, WorkloadId};
use wattline_core::job::{Job, WorkRate};
use wattline_core::placement::Configuration;
use wattline_core::units::{Seconds, Watts};

/// Speed and draw of a job in a configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Work done per second.
    pub rate: WorkRate,
    /// Drawn by each GPU.
    pub power: Watts,
    /// What a sample of this batch is worth against one of the batch that was asked for.
    pub worth: f64,
}

/// How a job that is known only by its duration scales: `n` GPUs are `n^0.85` times as fast as
/// one. Stated, not measured: between the T4 fits of bert (0.7) and imagenet (0.95) up to 16 GPUs.
pub const DEFAULT_SCALING: f64 = 0.85;

/// The power behaviour assumed for such a job, relative to the card's busy power.
const DEFAULT_STATIC_SHARE: f64 = 0.4;
const DEFAULT_UNCLOCKED: f64 = 0.62;

/// What is known about a workload.
#[derive(Clone, Debug)]
enum Model {
    /// Run times of the whole job by shape, as a site lists them. Work is 1.
    Listed(BTreeMap<Shape, Seconds>),
    /// A step model per GPU type. Work is in samples.
    Steps { by_type: Vec<Option<StepModel>>, noise_scale: f64 },
    /// Measurements of a site. Work is in samples.
    Measured { name: Box<str>, noise_scale: f64 },
    /// Known by its duration at the requested size. Work is in seconds at that size. Scales as the
    /// step model does on each GPU type where one is known, else by the default curve.
    Duration { by_type: Vec<Option<StepModel>> },
    /// Somebody else knows.
    Told(Told),
}

/// Speeds that somebody else tells: those of a real cluster, by what was measured there.
#[derive(Clone)]
struct Told(Arc<Teller>);

/// Says how fast a job is in a configuration, and what it draws there.
pub type Teller = dyn Fn(&Job, &Configuration) -> Option<Speed> + Send + Sync;

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Told")
    }
}

/// The true behaviour of all workloads on a cluster's GPU types.
#[derive(Clone, Debug)]
pub struct Physics {
    cluster: Arc<Cluster>,
    catalogue: &'static Catalogue,
    measured: Option<Measured>,
    names: Vec<Box<str>>,
    models: Vec<Model>,
    /// Named models that were asked for before, so that each is there once.
    known: BTreeMap<(bool, Box<str>), WorkloadId>,
}

impl Physics {
    /// Nothing known yet but the catalogue and, if a site has them, measurements, which win over
    /// the catalogue.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, measured: Option<Measured>) -> Self {
        Self {
            cluster,
            catalogue: Catalogue::built_in(),
            measured,
            names: Vec::new(),
            models: Vec::new(),
            known: BTreeMap::new(),
        }
    }

    /// The catalogue behind it.
    #[must_use]
    pub fn catalogue(&self) -> &'static Catalogue {
        self.catalogue
    }

    /// Whether there is such a workload.
    #[must_use]
    pub fn has(&self, id: WorkloadId) -> bool {
        id.index() < self.names.len()
    }

    /// A workload's name.
    #[must_use]
    pub fn name(&self, id: WorkloadId) -> &str {
        &self.names[id.index()]
    }

    /// All workloads' names, by id.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// Workloads in samples that go by this name, or by one that the catalogue takes for the same.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = WorkloadId> + 'a {
        let meant = self.catalogue.workload(name).map(|w| &*w.name);
        let is_it = move |own: &str| {
            own == name
                || (meant.is_some() && self.catalogue.workload(own).map(|w| &*w.name) == meant)
        };
        let sampled = self.known.iter().filter(|((sampled, _), _)| *sampled);
        sampled.filter(move |((_, own), _)| is_it(own)).map(|(_, id)| *id)
    }

    fn add(&mut self, name: &str, model: Model) -> WorkloadId {
        let id = WorkloadId(self.models.len() as u32);
        self.names.push(name.into());
        self.models.push(model);
        id
    }

    /// A workload whose run times are listed.
    pub fn listed(&mut self, name: &str, times: BTreeMap<Shape, Seconds>) -> WorkloadId {
        self.add(name, Model::Listed(times))
    }

    /// A workload of the measurement file or the catalogue, in samples; `None` if neither has it
    /// on any of the cluster's GPU types.
    pub fn sampled(&mut self, name: &str) -> Option<WorkloadId> {
        if let Some(id) = self.known.get(&(true, name.into())) {
            return Some(*id);
        }
        let workload = self.catalogue.workload(name);
        // A measurement file may use the name asked for or the catalogue's own.
        let names = [Some(name), workload.map(|w| &*w.name)];
        let measured_here = names.into_iter().flatten().find(|name| {
            let here = |gpu: &str| self.cluster.gpu_types().iter().any(|t| &*t.name == gpu);
            self.measured.as_ref().is_some_and(|measured| {
                measured.groups().any(|(workload, gpu)| workload == *name && here(gpu))
            })
        });
        let noise_scale = workload.map_or(f64::INFINITY, |w| w.noise_scale);
        let model = if let Some(measured) = measured_here {
            Model::Measured { name: measured.into(), noise_scale }
        } else {
            let by_type = self.steps_of(name)?;
            if by_type.iter().all(Option::is_none) {
                return None;
            }
            Model::Steps { by_type, noise_scale }
        };
        let id = self.add(name, model);
        self.known.insert((true, name.into()), id);
        Some(id)
    }

    /// A workload known by its duration, with the scaling of a model if the catalogue has it.
    pub fn by_duration(&mut self, model: Option<&str>) -> WorkloadId {
        let name = model.unwrap_or("unknown");
        if let Some(id) = self.known.get(&(false, name.into())) {
            return *id;
        }
        let types = self.cluster.gpu_types().len();
        let by_type = model.and_then(|m| self.scaling_of(m)).unwrap_or_else(|| vec![None; types]);
        let id = self.add(name, Model::Duration { by_type });
        self.known.insert((false, name.into()), id);
        id
    }

    /// A workload whose speeds somebody else tells.
    pub fn told(&mut self, name: &str, teller: Arc<Teller>) -> WorkloadId {
        self.add(name, Model::Told(Told(teller)))
    }

    fn steps_of(&self, name: &str) -> Option<Vec<Option<StepModel>>> {
        let workload = self.catalogue.workload(name)?;
        let types = self.cluster.gpu_types();
        Some(types.iter().map(|t| self.catalogue.step(workload, &t.name)).collect())
    }

    /// For scaling alone, another GPU type's steps are better than none.
    fn scaling_of(&self, name: &str) -> Option<Vec<Option<StepModel>>> {
        let workload = self.catalogue.workload(name)?;
        let any = workload.gpus().find_map(|gpu| self.catalogue.step(workload, gpu));
        Some(self.steps_of(name)?.into_iter().map(|step| step.or(any)).collect())
    }

    /// Speed and draw of a job in a configuration; `None` where it cannot run so.
    #[must_use]
    pub fn speed(&self, job: &Job, configuration: &Configuration) -> Option<Speed> {
        let card = self.cluster.gpu_type(configuration.gpu_type);
        let c = configuration;
        match &self.models[job.workload.index()] {
            Model::Listed(times) => {
                let time = times.get(&c.shape())?;
                Some(Speed { rate: WorkRate(1.0 / time.get()), power: card.busy, worth: 1.0 })
            }
            Model::Steps { by_type, noise_scale } => {
                let model = by_type[c.gpu_type.index()].as_ref()?;
                let step = model.step(c.gpus, c.nodes, c.batch, c.power_limit)?;
                Some(sampled_speed(job, c.batch, *noise_scale, step.time, step.power))
            }
            Model::Measured { name, noise_scale } => {
                let measured = self.measured.as_ref()?;
                let at = (c.gpus, c.nodes);
                let step = measured.step(name, &card.name, at, c.batch, c.power_limit)?;
                // Power that was not measured is taken from the card.
                let power = if step.power > Watts::ZERO { step.power } else { card.busy };
                let power = power.min(c.power_limit);
                Some(sampled_speed(job, c.batch, *noise_scale, step.time, power))
            }
            Model::Duration { by_type } => {
                let asked = job.gpus.requested;
                let speed_up = match &by_type[c.gpu_type.index()] {
                    Some(model) => self.scaled(model, job, c, asked)?,
                    None => (f64::from(c.gpus) / f64::from(asked)).powf(DEFAULT_SCALING),
                };
                let power = card.busy.min(c.power_limit);
                let draw = Draw {
                    low: card.busy,
                    full: card.busy,
                    static_share: DEFAULT_STATIC_SHARE,
                    unclocked: DEFAULT_UNCLOCKED,
                };
                let rate = speed_up / draw.slowdown(card.busy, power);
                Some(Speed { rate: WorkRate(rate), power, worth: 1.0 })
            }
            Model::Told(Told(teller)) => teller(job, c),
        }
    }

    /// A workload's gradient noise scale, where it is known.
    #[must_use]
    pub fn noise_scale(&self, workload: WorkloadId) -> Option<f64> {
        match &self.models[workload.index()] {
            Model::Steps { noise_scale, .. } | Model::Measured { noise_scale, .. } => {
                Some(*noise_scale).filter(|scale| scale.is_finite())
            }
            Model::Listed(_) | Model::Duration { .. } | Model::Told(_) => None,
        }
    }

    /// Whether a job's run times are declared rather than found out: listed by its site, or known
    /// from a trace. There is nothing to learn about them.
    #[must_use]
    pub fn is_declared(&self, workload: WorkloadId) -> bool {
        matches!(self.models[workload.index()], Model::Listed(_) | Model::Duration { .. })
    }

    /// Speed against the requested size, by the step model at the same batch; a job's own size is
    /// always 1, also where it asks for more GPUs than its batch has samples.
    fn scaled(&self, model: &StepModel, job: &Job, c: &Configuration, asked: u32) -> Option<f64> {
        if c.gpus == asked {
            return Some(1.0);
        }
        let limit = Watts::new(f64::MAX);
        let nodes = |gpus| self.cluster.nodes_for(Shape { gpu_type: c.gpu_type, gpus });
        let batch = c.batch.max(asked);
        let reference = model.step(asked, nodes(asked), batch.max(job.batch.requested), limit)?;
        let step = model.step(c.gpus, c.nodes, batch, limit)?;
        Some(reference.time / step.time)
    }

    /// The GPU type of a name.
    #[must_use]
    pub fn gpu_type(&self, name: &str) -> Option<GpuTypeId> {
        let at = self.cluster.gpu_types().iter().position(|t| &*t.name == name)?;
        Some(GpuTypeId(at as u16))
    }
}

fn sampled_speed(job: &Job, batch: u32, noise: f64, step: Seconds, power: Watts) -> Speed {
    let worth = if noise.is_finite() { efficiency(noise, job.batch.requested, batch) } else { 1.0 };
    Speed { rate: WorkRate(f64::from(batch) * worth / step.get()), power, worth }
}
