//! What a cluster can say about its power and energy.

use crate::emulated::Emulated;
use crate::slurm::Slurm;
use wattline_core::ids::JobId;
use wattline_core::units::{Euros, Joules, Watts};

/// A cluster's meters, and what else it says. What is not measured is `None`, never zero.
pub trait Metered {
    /// What an administrator should hear of, since the last time.
    fn complaints(&mut self) -> Vec<String> {
        Vec::new()
    }
    /// What it draws.
    fn drawn(&self) -> Option<Watts> {
        None
    }
    /// What it has drawn so far.
    fn energy(&self) -> Option<Joules> {
        None
    }
    /// What a job's GPUs have drawn so far.
    fn job_energy(&self, _job: JobId) -> Option<Joules> {
        None
    }
    /// What that has cost.
    fn job_bill(&self, _job: JobId) -> Option<Euros> {
        None
    }
}

impl Metered for Slurm {
    fn complaints(&mut self) -> Vec<String> {
        self.take_complaints()
    }
    fn drawn(&self) -> Option<Watts> {
        Slurm::drawn(self)
    }
}

impl Metered for Emulated {
    fn drawn(&self) -> Option<Watts> {
        Some(self.world().meter().drawn())
    }
    fn energy(&self) -> Option<Joules> {
        Some(self.world().meter().energy().total)
    }
    fn job_energy(&self, job: JobId) -> Option<Joules> {
        self.knows(job).then(|| self.world().job_energy(job))
    }
    fn job_bill(&self, job: JobId) -> Option<Euros> {
        self.knows(job).then(|| self.world().job_bill(job).total())
    }
}
