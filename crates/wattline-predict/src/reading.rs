//! What is learned from: one configuration, how long a sample took there and what a GPU drew.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use wattline_core::units::{Seconds, Watts};

/// A configuration as the model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// GPUs.
    pub gpus: u32,
    /// Nodes they are spread over.
    pub nodes: u32,
    /// Global batch.
    pub batch: f64,
    /// Power limit of each GPU.
    pub limit: Watts,
}

/// A measured configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Where.
    pub point: Point,
    /// Time per sample of the global batch.
    pub per_sample: Seconds,
    /// Mean power of each GPU, if measured.
    pub power: Option<Watts>,
}

/// A reading and how much it counts: 1 for a single fresh run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighed {
    /// What was measured.
    pub reading: Reading,
    /// More than 1: several runs agree on it; less: it is old.
    pub weight: f64,
}

/// Why a reading is not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum Refused {
    /// No GPUs, or fewer than nodes.
    #[error("{gpus} GPUs on {nodes} nodes cannot be")]
    Shape {
        /// GPUs.
        gpus: u32,
        /// Nodes.
        nodes: u32,
    },
    /// A kind of GPU that the cluster does not have.
    #[error("the cluster has no such GPU type")]
    UnknownGpu,
    /// NaN, zero, negative or absurd.
    #[error("{what} is {value}, expected a number from {low} to {high}")]
    Value {
        /// Which quantity.
        what: &'static str,
        /// What was given.
        value: f64,
        /// The least that is believed.
        low: f64,
        /// The most.
        high: f64,
    },
}

/// Whether a quantity can be believed.
pub(crate) fn within(what: &'static str, value: f64, low: f64, high: f64) -> Result<(), Refused> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Refused::Value { what, value, low, high })
}

impl Reading {
    /// Whether the reading can be believed at all.
    ///
    /// # Errors
    /// Says what cannot.
    pub fn check(&self) -> Result<(), Refused> {
        let Point { gpus, nodes, batch, limit } = self.point;
        if gpus == 0 || nodes == 0 || nodes > gpus {
            return Err(Refused::Shape { gpus, nodes });
        }
        within("the batch", batch, 1.0, 1e12)?;
        within("the power limit in watts", limit.get(), 1.0, 1e5)?;
        within("the time per sample in seconds", self.per_sample.get(), 1e-12, 1e7)?;
        self.power.map_or(Ok(()), |power| within("the power in watts", power.get(), 0.1, 1e5))
    }
}
