//! What a cluster can say about its power and energy.

use crate::emulated::Emulated;
use crate::job_registry::Drawn;
use crate::slurm::Slurm;
use wattline_core::Timestamp;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::units::{Joules, Watts};

/// A cluster's meters, and what else it says. What is not measured is `None`, never zero.
pub trait Metered {
    /// What an administrator should hear of, since the last time.
    fn complaints(&mut self) -> Vec<String> {
        Vec::new()
    }
    /// The same, of what needs somebody at once.
    fn alerts(&mut self) -> Vec<String> {
        Vec::new()
    }
    /// What it draws.
    fn drawn(&self) -> Option<Watts> {
        None
    }
    /// What a node has drawn so far. Never falls, but may begin anew with the controller.
    fn node_energy(&self, _node: NodeId, _now: Timestamp) -> Option<Joules> {
        None
    }
    /// The limits that are in force on a node, by GPU, as far as they were read back.
    fn node_limits(&self, _node: NodeId) -> Vec<(u8, Watts)> {
        Vec::new()
    }
    /// What a job's GPUs have drawn so far, and what that has cost.
    fn job_drawn(&self, _job: JobId, _now: Timestamp) -> Option<Drawn> {
        None
    }
}

impl Metered for Slurm {
    fn complaints(&mut self) -> Vec<String> {
        self.take_complaints()
    }
    fn alerts(&mut self) -> Vec<String> {
        self.take_alerts()
    }
    fn drawn(&self) -> Option<Watts> {
        self.meters().drawn()
    }
    fn node_energy(&self, node: NodeId, _: Timestamp) -> Option<Joules> {
        self.meters().energy(node)
    }
    fn node_limits(&self, node: NodeId) -> Vec<(u8, Watts)> {
        self.limits_read(node)
    }
    fn job_drawn(&self, job: JobId, _: Timestamp) -> Option<Drawn> {
        self.meters().job(job)
    }
}

impl Metered for Emulated {
    fn drawn(&self) -> Option<Watts> {
        Some(self.world().meter().drawn())
    }
    fn node_energy(&self, node: NodeId, now: Timestamp) -> Option<Joules> {
        Some(self.world().node_energy(node, now))
    }
    fn node_limits(&self, node: NodeId) -> Vec<(u8, Watts)> {
        self.world().node_limits(node).collect()
    }
    fn job_drawn(&self, job: JobId, now: Timestamp) -> Option<Drawn> {
        Emulated::job_drawn(self, job, now)
    }
}
