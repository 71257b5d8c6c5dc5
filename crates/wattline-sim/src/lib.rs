//! Wattline's simulator: traces and scenarios in, figures and reports out.
//!
//! It drives the very engine that runs a real cluster, in virtual time, over the world.
//!
//! **Invariants.** A simulation is a function of its instance and its policy: no clock is read
//! ([`simulation::Watch`] is lent by the caller and only fills timing fields) and all randomness
//! comes from seeds. Nothing here is seen by the controller, and nothing of the controller here.

pub mod accuracy;
pub mod andreas;
pub mod begin;
pub mod describe;
pub mod experiment;
mod findings;
pub mod foresight;
pub mod instance;
pub mod metrics;
pub mod replay;
pub mod report;
pub mod scenario;
pub mod simulation;
pub mod small;
pub mod stability;
pub mod sweep;
pub mod synthetic;
pub mod trace;
pub mod write_trace;
