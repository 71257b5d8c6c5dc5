//! Wattline's policies, one file each, and the registry that knows them by name.
//!
//! Pure: a plan is a function of the view. What a policy keeps between plans is an index that it
//! brings up to date from the view's changes; `tests/` shows that this equals planning from
//! scratch.

mod andreas;
mod edf;
mod fifo;
mod list;
mod node_constrained;
mod ones;
mod ordered_par_map;
mod packing;
mod placing;
mod powerflow;
mod priority;
mod ranked;
pub mod registry;
mod schedule;
mod tiresias;
mod tunable;
mod wattline;

pub use registry::{POLICIES, RegistryError, policy};
