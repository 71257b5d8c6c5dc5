//! What may be submitted.

use std::sync::Arc;
use wattline_core::cluster::{Cluster, Shape};
use wattline_core::ids::WorkloadId;
use wattline_core::job::{Job, RestartCost, Work};
use wattline_core::units::Seconds;
use wattline_world::physics::Physics;

/// What a workload's jobs usually are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usual {
    /// Global batch for each GPU.
    pub batch: u32,
    /// What a restart costs.
    pub restart: RestartCost,
}

/// The workloads of a cluster.
pub trait Workloads: Send + Sync {
    /// Where jobs are submitted, if not here.
    fn elsewhere(&self) -> Option<&'static str> {
        None
    }
    /// Their names, if only these may be named.
    fn names(&self) -> Option<Vec<String>>;
    /// The workload of that name, where only some may be named.
    fn find(&self, name: &str) -> Option<WorkloadId>;
    /// What a job of it usually is.
    fn usual(&self, workload: &str) -> Usual;
    /// Prepares a job: what takes this long at the size asked for, and where it can run at all.
    /// `None` if it cannot run anywhere.
    fn fit(&self, job: Job, duration: Option<Seconds>) -> Option<Job>;
}

/// A cluster whose jobs come in by `sbatch`.
#[derive(Clone, Copy, Debug, Default)]
pub struct BySbatch;

impl Workloads for BySbatch {
    fn elsewhere(&self) -> Option<&'static str> {
        Some("submit a batch script with sbatch, or with `wattline submit --script FILE`")
    }
    fn names(&self) -> Option<Vec<String>> {
        None
    }
    fn find(&self, _: &str) -> Option<WorkloadId> {
        None
    }
    fn usual(&self, _: &str) -> Usual {
        Usual { batch: 1, restart: RestartCost::default() }
    }
    fn fit(&self, _: Job, _: Option<Seconds>) -> Option<Job> {
        None
    }
}

/// An emulated cluster knows what its physics know.
#[derive(Clone)]
pub struct Emulation {
    /// The machines.
    pub cluster: Arc<Cluster>,
    /// How they behave.
    pub physics: Arc<Physics>,
}

impl Workloads for Emulation {
    fn names(&self) -> Option<Vec<String>> {
        let mut names: Vec<String> = self.physics.names().map(str::to_owned).collect();
        names.sort_unstable();
        names.dedup();
        Some(names)
    }

    fn find(&self, name: &str) -> Option<WorkloadId> {
        // Of several of the same name the first is meant, as in the directory.
        let at = self.physics.names().position(|known| known == name)?;
        Some(WorkloadId(at as u32))
    }

    fn usual(&self, workload: &str) -> Usual {
        let entry = self.physics.catalogue().workload(workload);
        let restart = RestartCost { save: Seconds::new(1.0), load: Seconds::new(15.0) };
        Usual {
            batch: entry.map_or(64, |w| w.base_batch),
            restart: entry.map_or(restart, |w| w.restart()),
        }
    }

    fn fit(&self, mut job: Job, duration: Option<Seconds>) -> Option<Job> {
        let speed = |job: &Job, shape: Shape| {
            let configuration = self.cluster.plain_configuration(job, shape);
            self.physics.speed(job, &configuration).map(|speed| speed.rate.0)
        };
        let all = self.cluster.menu(&job);
        let possible: Vec<Shape> =
            all.iter().copied().filter(|shape| speed(&job, *shape).is_some()).collect();
        if possible.is_empty() {
            return None;
        }
        if let Some(duration) = duration {
            let asked = self
                .cluster
                .gpu_type_ids()
                .filter_map(|gpu_type| speed(&job, Shape { gpu_type, gpus: job.gpus.requested }));
            job.work = Work(asked.fold(0.0, f64::max) * duration.get());
        }
        if possible.len() < all.len() {
            job.shapes = Some(possible.into());
        }
        Some(job)
    }
}
