//! The controller as a process: a thread that owns it and turns it by a monotonic clock.
//!
//! Requests go to the [`RequestIntake`] from any thread; a wakeup wakes the loop for them. After a turn the
//! loop publishes an immutable [`ReadModel`], so that nobody who looks waits for a plan. What needs
//! the engine itself (why, what if) is a [`Question`]; it is answered on a copy of the engine, in a
//! thread of its own, and so are forecasts made. The loop waits for neither.

mod adviser;
mod cluster_clock;
mod drive;
mod event_log;
mod forecaster;
mod fork;
mod gauges;
mod health;
mod hours;
mod loop_stats;
mod metered;
mod outlook;
mod planner;
mod question;
mod read_model;
mod shared;
mod wakeup;
mod workloads;

pub use cluster_clock::ClusterClock;
pub use drive::{Drive, DriveError, Feed, Fresh};
pub use event_log::{EventLog, Since, Told};
pub use gauges::NodeGauge;
pub use health::{say_ready, say_stopping};
pub use hours::{Hour, Hours};
pub use loop_stats::{LoopStats, PredictionErrors, Quantity};
pub use metered::Metered;
pub(crate) use outlook::{Effort, chance_of_more};
pub use outlook::{JobOutlook, Outlook};
pub use question::{Inside, Question};
pub use read_model::{JobView, NodeView, ReadModel};
pub use shared::{Daemon, Overlay, Waker};
pub use workloads::{BySbatch, Emulation, Usual, Workloads};

#[allow(unused_imports, reason = "the documentation speaks of it")]
use crate::RequestIntake;
