//! The HTTP API: a Unix socket, where the kernel says who asks, and TCP with tokens.
//!
//! Reads look at the last read model and never wait for a plan. Changes are on the disk before they
//! are acknowledged. A user sees and changes only his own jobs; every change and every refusal is
//! in the audit log. Everything that users write is data: checked when it comes in, never
//! interpreted.

mod access;
mod admit;
mod advice;
mod audit;
mod body;
mod budget;
mod budget_forecast;
mod connections;
mod ended;
mod events;
mod explain;
mod guard;
mod jobs;
mod limits;
mod listen;
mod metrics;
mod nodes;
mod openapi;
mod plan;
mod progress;
mod quotas;
mod rate;
mod refusal;
mod refusals;
mod reports;
mod router;
mod rows;
mod shares;
mod status;
mod tokens;

pub use access::{Access, Role};
pub use audit::{Audit, AuditError, Rotation};
pub use connections::ConnectionLimits;
pub use listen::{ListenError, Listening, Reload, Sockets, claim};
pub use openapi::document;
pub use quotas::{AccountQuota, Quota, QuotaEntry, QuotaError, QuotaFile};
pub use rate::Rate;
pub use tokens::{TokenError, Tokens};

use crate::daemon::{Daemon, Workloads};
use access::Identity;
use connections::Connections;
use quotas::Quotas;
use rate::Buckets;
use refusals::Refusals;
use shares::Shares;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The highest weight of any job, in euros an hour: a milliard.
const MOST_WEIGHT: f64 = 1e9;

/// What nobody may exceed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body: usize,
    /// Bytes of a view to plan.
    pub view: usize,
    /// How deep JSON may be nested.
    pub nesting: usize,
    /// Requests of one address that has not said who it is.
    pub rate: Rate,
    /// Connections at a time.
    pub connections: ConnectionLimits,
    /// Event streams at a time.
    pub streams: usize,
    /// Event streams of one identity at a time.
    pub streams_each: usize,
    /// To send a request's headers, or its body.
    pub read: Duration,
    /// To read some of an answer.
    pub write: Duration,
    /// To answer what needs the engine.
    pub answer: Duration,
    /// To plan a view.
    pub plan: Duration,
    /// To make a report.
    pub report: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 64 << 10,
            view: 4 << 20,
            nesting: 16,
            rate: Rate { per_second: 1000.0, burst: 2000.0 },
            connections: ConnectionLimits::default(),
            streams: 256,
            streams_each: 16,
            read: Duration::from_secs(10),
            write: Duration::from_secs(10),
            answer: Duration::from_secs(20),
            plan: Duration::from_secs(10),
            // A year with a million jobs takes some seconds; each job takes 32 bytes until then.
            report: Duration::from_secs(30),
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
    access: RwLock<Arc<Access>>,
    connections: Connections,
    quotas: Quotas,
    audit: Audit,
    limits: Limits,
    /// Of addresses that have not said who they are.
    buckets: Buckets,
    refusals: Refusals,
    /// Users of the socket, as the user database said a moment ago.
    identities: Mutex<BTreeMap<u32, (Identity, Instant)>>,
    /// One read-modify-write of a job at a time.
    changing: Mutex<()>,
    /// Open event streams by user.
    streams: Mutex<BTreeMap<Arc<str>, usize>>,
    /// Views that are being sent, with up to [`Limits::view`] bytes each.
    reading: Shares,
    /// Each view that is planned may take all of a core.
    planning: Shares,
    /// Each report looks at every job of its period.
    reporting: Shares,
    /// Look-ups of ended jobs take a thread each.
    looking_up: Shares,
    /// Questions that need the engine are answered one after the other.
    questions: Shares,
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
            access: RwLock::new(Arc::new(access)),
            connections: Connections::new(limits.connections),
            quotas: Quotas::default(),
            audit,
            buckets: Buckets::default(),
            refusals: Refusals::default(),
            identities: Mutex::default(),
            limits,
            changing: Mutex::default(),
            streams: Mutex::default(),
            // 4 MB each.
            reading: Shares::new("views are being sent", 16, 4, 4),
            // One in all, as cores are for the loop; and one for an administrator.
            planning: Shares::new("views are being planned", 1, 1, 1),
            reporting: Shares::new("reports are being made", 2, 1, 1),
            // With views and reports fewer than there are threads: submissions need some, too.
            looking_up: Shares::new("look-ups of ended jobs are under way", 12, 4, 4),
            questions: Shares::new("questions are being answered", 12, 2, 4),
        }))
    }
}

impl Parts {
    /// Who may do what.
    fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// From the next request on, this is who may do what.
    pub fn set_access(&self, access: Access) {
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(access);
        self.identities.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Event streams that this user has open.
    fn streams_of(&self, user: &str) -> usize {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.get(user).copied().unwrap_or(0)
    }
}

impl std::ops::Deref for Api {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}
