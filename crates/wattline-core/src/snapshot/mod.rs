//! A cluster at an instant, as a document: what `wattline plan` reads and `POST /v1/plan` takes.
//!
//! [`Snapshot`] is the document (see [`file`](self) for its fields), [`Snapshot::restore`] makes a
//! [`State`] of it, and [`Snapshot::of`] writes one down. The two are each other's inverse as far
//! as a policy can see. What is in flight is not part of it: a job that starts is written as one
//! that runs, one that stops as one that holds GPUs which the plan wants it to leave.
//!
//! Nothing here reads files or fits models: of measurements in a snapshot only their place is
//! known. See `wattline_predict::snapshot` for a predictor that goes by them.

mod file;
mod restore;
mod size;
mod table;
mod write;

pub use file::{
    BusyEntry, Changing, GpuTypeEntry, JobEntry, MeasurementEntry, NodeChoiceEntry, NodeEntry,
    OnNode, PlacementEntry, PricesEntry, RestartEntry, SCHEMA, ShapeEntry, Snapshot, TimeEntry,
    WorkloadEntry,
};
pub use restore::{Machines, Restored, SnapshotError};
pub use size::SizeLimits;
pub use table::{KnownTime, Times};

#[cfg(doc)]
use crate::state::State;
