//! Small problems with a known optimum, as instances: how far a policy is from the best there is.

use crate::foresight::Foresight;
use crate::instance::Instance;
use crate::simulation::{SimulationError, Watch, simulate};
use thiserror::Error;
use wattline_bound::exact::generate::generate;
use wattline_bound::exact::{ExactError, Machines, SmallProblem, optimum};
use wattline_core::Timestamp;
use wattline_core::cluster::ClusterError;

/// Why a gap could not be measured.
#[derive(Debug, Error)]
pub enum GapError {
    /// The simulation failed.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// The optimum was not found.
    #[error("problem of seed {seed}: {source}")]
    Exact {
        /// Which problem.
        seed: u64,
        /// Why.
        source: ExactError,
    },
    /// The problem has nodes that cannot be.
    #[error("problem of seed {seed}: {source}")]
    Machines {
        /// Which problem.
        seed: u64,
        /// What is wrong with them.
        source: ClusterError,
    },
    /// The policy left a job undone, so its cost means nothing.
    #[error("problem of seed {seed}: only {finished} of {jobs} jobs finished")]
    Unfinished {
        /// Which problem.
        seed: u64,
        /// Jobs that were done.
        finished: usize,
        /// All of them.
        jobs: usize,
    },
}

/// A policy on one small problem.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// The problem's seed.
    pub seed: u64,
    /// Its jobs.
    pub jobs: usize,
    /// What the policy cost, EUR.
    pub cost: f64,
    /// What the best schedule costs, EUR.
    pub optimum: f64,
}

impl Gap {
    /// What the policy costs too much, as a part of the optimum.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.optimum > 0.0 { self.cost / self.optimum - 1.0 } else { 0.0 }
    }
}

/// The instance of a small problem: policies know all times, and no job is taken off its GPUs.
///
/// # Errors
/// When a node makes no sense.
pub fn instance(problem: &SmallProblem, name: String) -> Result<Instance, ClusterError> {
    let machines = Machines::new(problem)?;
    let mut instance = Instance::new(name, machines.physics, machines.cluster, machines.jobs);
    instance.start = Timestamp::ZERO;
    instance.prices = machines.prices;
    instance.foresight = Foresight::Oracle;
    Ok(instance)
}

/// Runs policies on the problem of a seed and compares each with the optimum.
///
/// # Errors
/// When a policy does not exist or leaves a job undone.
pub fn gaps(seed: u64, policies: &[String]) -> Result<Vec<Gap>, GapError> {
    let problem = generate(seed);
    let best = optimum(&problem).map_err(|source| GapError::Exact { seed, source })?;
    let instance = instance(&problem, format!("small-{seed}"))
        .map_err(|source| GapError::Machines { seed, source })?;
    let watch = Watch { seconds: &|| 0.0, progress: &|_| {}, record: false, forecast: false };
    let run = |policy: &String| {
        let summary = simulate(&instance, policy, &watch)?.summary;
        let (finished, jobs) = (summary.finished, summary.jobs);
        if finished < jobs {
            return Err(GapError::Unfinished { seed, finished, jobs });
        }
        Ok(Gap { seed, jobs, cost: summary.total_cost, optimum: best.cost })
    };
    policies.iter().map(run).collect()
}
