//! Wattline live: the engine that the simulator drives in virtual time, here over a cluster that
//! goes on by itself.
//!
//! [`Controller`] is the loop without its clock and threads: the caller says what time it is. All
//! that the engine is told is in the [`store`]'s journal before anything follows from it, so that a
//! controller that died is the same again after reading it. What a cluster does is behind
//! [`Backend`]: it hears each action at least once and knows them by their ids, and its reports are
//! numbered, so that none is lost and none counts twice.

mod backend;
mod controller;
mod emulated;
pub mod store;

pub use backend::{Backend, BackendError, Report};
pub use controller::{Controller, ControllerError};
pub use emulated::Emulated;
