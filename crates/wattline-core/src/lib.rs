//! Wattline's core: everything that decides, and nothing that touches the world.
//!
//! Units and ids as types; jobs, machines and their shapes; what a policy sees ([`policy`]), what
//! it answers ([`plan`]), who judges the answer ([`check`]), the state machine that carries it
//! out ([`engine`]), and that machine run forward to see what will come ([`forecast`]).
//!
//! **Invariants.** No clock, file, environment variable, thread or global random generator is
//! reachable from here; time is an argument. No plan is applied that [`check`] has not passed.
//! Committed power is raised only by a step that fits below the budget next to everything held.

pub mod action;
pub mod budget_forecast;
pub mod calendar;
pub mod check;
pub mod cluster;
pub mod diff;
pub mod effort;
pub mod engine;
pub mod forecast;
pub mod host;
pub mod hostlist;
pub mod ids;
pub mod image;
pub mod job;
pub mod job_table;
pub mod placement;
pub mod plan;
pub mod policy;
pub mod power;
pub mod predictor;
pub mod prices;
pub mod scheduler;
pub mod shed;
pub mod snapshot;
pub mod state;
pub mod time;
pub mod units;

pub use time::Timestamp;
