//! Measurements in, models out: what a configuration will take in time and power.
//!
//! [`learner::Learner`] is the predictor of a cluster: it takes measurements in as they come and
//! knows every workload on every kind of GPU, those that were never measured too.
//! [`model::Model`] is one workload on one kind of GPU; [`choose::choose`] says which configurations
//! to measure first; [`baseline`] and [`yardstick`] are what the model must beat, [`noise`] is what no
//! model can; [`efficiency`] says what a sample is worth at another batch.
//!
//! **Invariants.** Pure: no clock, file or randomness. The same readings in any order give the same
//! model. Predictions are positive and finite everywhere, and time never rises with the power
//! limit. Nothing of the world is known here but what was measured and what data sheets say.

pub mod baseline;
mod belief;
mod borrow;
pub mod choose;
pub mod efficiency;
pub mod evaluate;
mod fallback;
mod features;
mod group;
mod interval;
mod known;
pub mod learner;
pub mod model;
pub mod noise;
mod process;
pub mod reading;
pub mod snapshot;
mod step;
mod store;
mod table;
pub mod yardstick;

pub use store::Drift;
