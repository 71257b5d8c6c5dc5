//! The HTTP API: a Unix socket, where the kernel says who asks, and TCP with tokens.
//!
//! Reads look at the last picture and never wait for a plan. Changes are on the disk before they
//! are acknowledged. A user sees and changes only his own jobs; every change and every refusal is
//! in the audit log. Everything that users write is data: checked when it comes in, never
//! interpreted.

mod access;
mod admit;
mod advice;
mod audit;
mod body;
mod budget;
mod ended;
mod events;
mod explain;
mod guard;
mod jobs;
mod listen;
mod metrics;
mod nodes;
mod openapi;
mod plan;
mod rate;
mod refusal;
mod reports;
mod router;
mod rows;
mod status;
mod tokens;

pub use access::{Access, Role};
pub use audit::{Audit, AuditError, Rotation};
pub use listen::{ListenError, Listening, Sockets, claim};
pub use openapi::document;
pub use rate::Rate;
pub use tokens::{TokenError, Tokens};

use crate::daemon::{Daemon, Workloads};
use rate::Buckets;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;

/// What nobody may exceed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body: usize,
    /// Bytes of a view to plan.
    pub view: usize,
    /// How deep JSON may be nested.
    pub nesting: usize,
    /// Requests of one identity.
    pub rate: Rate,
    /// Connections at a time.
    pub connections: usize,
    /// Event streams at a time.
    pub streams: usize,
    /// Event streams of one identity at a time.
    pub streams_each: usize,
    /// To send a request's headers, or its body.
    pub read: Duration,
    /// To answer what needs the engine.
    pub answer: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 64 << 10,
            view: 4 << 20,
            nesting: 16,
            rate: Rate { per_second: 1000.0, burst: 2000.0 },
            connections: 512,
            streams: 256,
            streams_each: 16,
            read: Duration::from_secs(10),
            answer: Duration::from_secs(20),
        }
    }
}

/// What the API is made of. Copies are the same.
#[derive(Clone)]
pub struct Api(Arc<Parts>);

/// The parts of an [`Api`].
pub struct Parts {
    daemon: Daemon,
    workloads: Box<dyn Workloads>,
    access: Access,
    audit: Audit,
    limits: Limits,
    buckets: Buckets,
    /// One read-modify-write of a job at a time.
    changing: Mutex<()>,
    /// Open event streams by user.
    streams: Mutex<BTreeMap<Arc<str>, usize>>,
    /// One view is planned at a time: it may take all of a core.
    planning: Semaphore,
    /// One report is made at a time: it looks at every job that ever was.
    reporting: Semaphore,
}

impl Api {
    /// An API over a controller that is being driven.
    #[must_use]
    pub fn new(
        daemon: Daemon,
        workloads: Box<dyn Workloads>,
        access: Access,
        audit: Audit,
        limits: Limits,
    ) -> Self {
        Self(Arc::new(Parts {
            daemon,
            workloads,
            access,
            audit,
            buckets: Buckets::new(limits.rate),
            limits,
            changing: Mutex::default(),
            streams: Mutex::default(),
            planning: Semaphore::new(1),
            reporting: Semaphore::new(1),
        }))
    }
}

impl std::ops::Deref for Api {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}
