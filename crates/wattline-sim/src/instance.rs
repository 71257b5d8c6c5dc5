//! Everything a simulation needs: machines, physics, jobs, prices, budget.

use crate::foresight::Foresight;
use std::sync::Arc;
use wattline_bound::lower::{Effort, Input, LowerBound, lower_bound};
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::cluster::{Cluster, Shape};
use wattline_core::engine::{EngineConfig, Event};
use wattline_core::ids::{GpuTypeId, NodeId, WorkloadId};
use wattline_core::job::{Elasticity, Job, RestartCost};
use wattline_core::predictor::Predictor;
use wattline_core::prices::Prices;
use wattline_core::units::{Seconds, Watts};
use wattline_predict::reading::Reading;
use wattline_world::physics::Physics;
use wattline_world::world::WorldConfig;

/// Makes predictors that know what policies know when a simulation begins.
pub type Predictors = dyn Fn() -> Box<dyn Predictor> + Send + Sync;

/// A cluster and its work.
#[derive(Clone)]
pub struct Instance {
    /// What it is called in reports.
    pub name: String,
    /// The machines.
    pub cluster: Arc<Cluster>,
    /// How they behave.
    pub physics: Arc<Physics>,
    /// The jobs, by submission.
    pub jobs: Vec<Arc<Job>>,
    /// What the jobs really are, where users do not know: how much work. Empty: as they say.
    pub actual: Vec<Arc<Job>>,
    /// What users and administrators want in between, by time; jobs by their place in `jobs`.
    pub orders: Vec<(Timestamp, Event)>,
    /// Nodes that are lost (true) and come back (false), by time.
    pub outages: Vec<(Timestamp, NodeId, bool)>,
    /// When the simulation begins.
    pub start: Timestamp,
    /// It goes on until then at least, though nothing is left to do; if not set, until all is done.
    pub until: Option<Timestamp>,
    /// What energy costs.
    pub prices: Prices,
    /// The power budget, if there is one.
    pub budget: Option<Calendar<Watts>>,
    /// How the world departs from the physics.
    pub world: WorldConfig,
    /// How the engine goes about it.
    pub engine: EngineConfig,
    /// What policies may know.
    pub foresight: Foresight,
    /// Makes the predictor of each policy instead, where policies must learn.
    pub predictors: Option<Arc<Predictors>>,
    /// Measurements from elsewhere that a predictor starts with.
    pub known: Vec<(WorkloadId, GpuTypeId, Reading)>,
    /// What a reader of the results should know about how this came about.
    pub notes: Vec<String>,
}

impl Instance {
    /// Puts an instance together from its necessary parts; sorts the jobs by submission.
    #[must_use]
    pub fn new(name: String, physics: Physics, cluster: Arc<Cluster>, mut jobs: Vec<Job>) -> Self {
        jobs.sort_by_key(|job| job.submit);
        let start = jobs.first().map_or(Timestamp::ZERO, |job| job.submit);
        Self {
            name,
            cluster,
            physics: Arc::new(physics),
            jobs: jobs.into_iter().map(Arc::new).collect(),
            actual: Vec::new(),
            orders: Vec::new(),
            outages: Vec::new(),
            start,
            until: None,
            prices: Prices::default(),
            budget: None,
            world: WorldConfig::default(),
            engine: EngineConfig::default(),
            foresight: Foresight::default(),
            predictors: None,
            known: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// What a job really is.
    pub(crate) fn actual(&self, at: usize) -> &Arc<Job> {
        self.actual.get(at).unwrap_or_else(|| &self.jobs[at])
    }

    /// Every restart costs this much, whatever the jobs say.
    pub fn set_restart(&mut self, load: Seconds) {
        for job in &mut self.jobs {
            Arc::make_mut(job).restart = RestartCost { save: Seconds::ZERO, load };
        }
    }

    /// No job may be taken off its GPUs once it runs.
    pub fn set_no_preempt(&mut self) {
        for job in &mut self.jobs {
            Arc::make_mut(job).preemptible = false;
        }
    }

    /// All jobs are this elastic. Bounds are widened for jobs that become elastic: from one GPU to
    /// four times what was asked for.
    pub fn set_elasticity(&mut self, elasticity: Elasticity) {
        let most = self.cluster.largest_job();
        for job in &mut self.jobs {
            let job = Arc::make_mut(job);
            job.elasticity = elasticity;
            widen(job, most);
            if !self.physics.is_declared(job.workload) {
                keep_possible_shapes(job, &self.cluster, &self.physics);
            }
        }
    }

    /// A cost that no schedule of this instance stays below, preemptive and knowing all that is to
    /// come: see [`wattline_bound::lower`].
    #[must_use]
    pub fn lower_bound(&self, effort: Effort) -> LowerBound {
        let input = Input {
            cluster: &self.cluster,
            physics: &self.physics,
            jobs: &self.jobs,
            start: self.start,
            prices: &self.prices,
            budget: self.budget.as_ref(),
            nodes_fail: self.world.faults.is_some(),
        };
        lower_bound(&input, effort)
    }

    /// GPU-seconds asked for over GPU-seconds there from the first to the last arrival.
    #[must_use]
    pub fn offered_load(&self) -> f64 {
        let jobs = (0..self.jobs.len()).map(|at| self.actual(at));
        let asked: f64 = jobs.map(|job| self.gpu_seconds(job)).sum();
        let span = match (self.jobs.first(), self.jobs.last()) {
            (Some(first), Some(last)) => (last.submit - first.submit).get(),
            _ => 0.0,
        };
        asked / (f64::from(self.cluster.total_gpus()) * span)
    }

    /// GPU-seconds a job takes at the size it asked for, on the GPU type where that is least.
    fn gpu_seconds(&self, job: &Job) -> f64 {
        ideal_times(self, job)
            .filter(|(gpus, _)| *gpus == job.gpus.requested || job.shapes.is_some())
            .map(|(gpus, time)| f64::from(gpus) * time.get())
            .fold(f64::INFINITY, f64::min)
    }
}

/// GPU counts and run times of all a job's shapes at full power, alone in the cluster.
pub(crate) fn ideal_times<'a>(
    instance: &'a Instance,
    job: &'a Job,
) -> impl Iterator<Item = (u32, Seconds)> + 'a {
    let cluster = &instance.cluster;
    let menu: Vec<_> = cluster.menu(job).to_vec();
    menu.into_iter().filter_map(move |shape| {
        let configuration = cluster.plain_configuration(job, shape);
        let speed = instance.physics.speed(job, &configuration)?;
        Some((shape.gpus, job.work / speed.rate))
    })
}

/// Narrows a job to the shapes that can run it, if some cannot: its user knows that a model does
/// not fit a kind of GPU, or that its batch has too few samples for so many. Nobody else does
/// before it has been tried.
pub(crate) fn keep_possible_shapes(job: &mut Job, cluster: &Cluster, physics: &Physics) {
    job.shapes = None;
    let all = cluster.menu(job);
    let runs =
        |shape: &&Shape| physics.speed(job, &cluster.plain_configuration(job, **shape)).is_some();
    let possible: Vec<Shape> = all.iter().filter(runs).copied().collect();
    if possible.len() < all.len() {
        job.shapes = Some(possible.into());
    }
}

/// Gives an elastic job room to stretch; a rigid one none.
pub(crate) fn widen(job: &mut Job, cluster_gpus: u32) {
    let asked = job.gpus.requested;
    let batch = job.batch.requested;
    job.gpus.min = asked;
    job.gpus.max = asked;
    job.batch.min = batch;
    job.batch.max = batch;
    if job.elasticity != Elasticity::Rigid {
        job.gpus.min = 1;
        job.gpus.max = asked.saturating_mul(4).min(cluster_gpus).max(asked);
    }
    if job.elasticity == Elasticity::Adaptive {
        job.batch.min = (batch / 4).max(1);
        job.batch.max = batch.saturating_mul(8);
    }
}
