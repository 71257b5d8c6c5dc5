//! What needs the engine itself.

use crate::directory::Directory;
use wattline_core::Timestamp;
use wattline_core::engine::Engine;
use wattline_core::policy::Policy;

/// What whoever answers a question sees.
pub struct Inside<'a> {
    /// What is planned and held.
    pub engine: &'a Engine<'static>,
    /// Names and origins.
    pub directory: &'a Directory,
    /// The time.
    pub now: Timestamp,
    /// A fresh policy of the kind that plans.
    pub policy: &'a dyn Fn() -> Box<dyn Policy>,
    /// Whether forecasts can be made with so many jobs.
    pub foreseeable: bool,
}

/// Is asked between turns, and must not take long.
pub type Question = Box<dyn FnOnce(&Inside<'_>) + Send>;
