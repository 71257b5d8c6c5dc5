//! The controller as a process: a thread that owns it and turns it by a monotonic clock.
//!
//! Requests go to the [`Desk`] from any thread; a bell wakes the loop for them. After a turn the
//! loop publishes an immutable [`Picture`], so that nobody who looks waits for a plan. What needs
//! the engine itself (why, what if) is a [`Question`]; it is answered on a copy of the engine, in a
//! thread of its own, and so are forecasts made. The loop waits for neither.

mod adviser;
mod bell;
mod chronicle;
mod drive;
mod fork;
mod gauges;
mod health;
mod hours;
mod metered;
mod outlook;
mod pace;
mod picture;
mod planner;
mod prophet;
mod question;
mod shared;
mod tally;
mod workloads;

pub use chronicle::{Chronicle, Since, Told};
pub use drive::{Drive, DriveError, Feed, Fresh};
pub use gauges::NodeGauge;
pub use health::{say_ready, say_stopping};
pub use hours::{Hour, Hours};
pub use metered::Metered;
pub(crate) use outlook::{Effort, chance_of_more};
pub use outlook::{JobOutlook, Outlook};
pub use pace::Pace;
pub use picture::{JobView, NodeView, Picture};
pub use question::{Inside, Question};
pub use shared::{Daemon, Overlay, Waker};
pub use tally::{Quantity, Tally, Turns};
pub use workloads::{BySbatch, Emulation, Usual, Workloads};

#[allow(unused_imports, reason = "the documentation speaks of it")]
use crate::Desk;
