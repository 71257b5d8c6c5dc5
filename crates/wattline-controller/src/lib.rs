//! Wattline live: the engine that the simulator drives in virtual time, here over a cluster that
//! goes on by itself.
//!
//! [`RequestIntake`] takes requests, also while the engine plans. [`Controller`] is the loop without its
//! clock and threads: the caller says what time it is. [`daemon`] is the clock and the thread that
//! turn it, [`http`] what people and programs ask it over. All that the engine is told is in the [`journal`] before anything follows from it, so that a
//! controller that died is the same again after reading it. What a cluster does is behind
//! [`Backend`]: it hears each action at least once and knows them by their ids, and its reports are
//! numbered, so that none is lost and none counts twice.

pub mod advice;
mod backend;
mod controller;
pub mod daemon;
mod deadline;
mod emulated;
mod foresight;
pub mod history;
pub mod http;
pub mod job_history;
mod job_registry;
pub mod journal;
pub mod log;
pub mod plan_time;
mod planner;
pub mod planning;
mod request_intake;
pub mod slurm;
mod snapshot_schedule;
mod watch;

pub use backend::{Backend, BackendError, BackendEvent, Known, Report, Wake};
pub use controller::{Controller, ControllerError, InitialState, Opened};
pub use emulated::Emulated;
pub use foresight::{Foresight, IN_SECONDS};
pub use job_registry::{
    Checkpoint, Drawn, JobNumber, JobRegistry, JournalNote, Origin, Per, Priority, Request,
    SlurmKey, SlurmOrigin, Submission,
};
pub use planner::{Answer, InlinePlanner, Planner};
pub use request_intake::{Once, RequestIntake};
pub use snapshot_schedule::SnapshotSchedule;
pub use watch::Watch;
