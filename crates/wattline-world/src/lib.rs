//! What stands in for a real cluster: a catalogue of GPUs and workloads, the physics of time and
//! power, sleep, boot and failure, and a meter.
//!
//! **Invariant.** The world never sees a predictor or a policy: what they may know of it leaves
//! as events. The two oracles in [`oracle`] look the other way, and say so in their names.

pub mod catalogue;
pub mod faults;
pub mod measured;
pub mod meter;
mod noise;
pub mod oracle;
pub mod physics;
pub mod queue;
pub mod recorded;
pub mod room;
pub mod step;
pub mod world;
