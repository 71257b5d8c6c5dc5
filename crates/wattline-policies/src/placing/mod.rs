//! What several policies need to turn "this job, this shape" into a placement that fits.

mod alike;
mod choose;
mod draft;
mod free;
mod last_resort;
mod node_set;
mod node_targets;
mod undecided;
mod uniform_cap;

pub(crate) use alike::alike;
pub(crate) use choose::{Choice, choices, choices_after};
pub(crate) use draft::Draft;
pub(crate) use free::{FreeGpus, lowest};
pub(crate) use last_resort::{raise_limits, start_at_any_limit};
pub(crate) use node_targets::{NodeTargets, pays_after, say_nodes};
pub(crate) use undecided::Decided;
pub(crate) use uniform_cap::UniformCap;
