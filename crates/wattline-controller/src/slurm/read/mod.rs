//! SLURM's JSON in, jobs and nodes out, for data parsers 0.0.38 to 0.0.45.
//!
//! The rule is *errors first*: `squeue --json` exits with 0 and an empty list when it cannot reach
//! slurmctld, and says so only in `errors`. So anything that is not fully understood is an error
//! and means that nothing is known; it is never a shorter list. Fields that nobody needs are not
//! looked at, so that they cannot be wrong.
//!
//! Nothing here runs a command or knows what happens next.

pub mod compact;
mod gres;
mod job;
mod node;
mod record;
pub mod rules;
mod state;

pub use wattline_core::hostlist;

pub use gres::{GpuCount, NodeGpus};
pub use job::{Exit, JobKey, Memory, SlurmJob};
pub use node::{NodeBase, NodeFlag, SlurmNode};
pub use state::State;

use record::Document;
use std::borrow::Cow;
use std::collections::BTreeSet;
use thiserror::Error;

/// The longest text that is read. A job takes some 6 kB, so this is about 80,000 jobs.
pub const MOST_BYTES: usize = 512 << 20;

/// Why the state of the cluster is unknown.
#[derive(Debug, Error)]
pub enum ReadError {
    /// More than anyone prints.
    #[error("the answer has {bytes} bytes, more than {most} are not read")]
    TooLong {
        /// How many.
        bytes: usize,
        /// How many are allowed.
        most: usize,
    },
    /// Cut off, or not JSON at all.
    #[error("the answer is not the JSON that SLURM prints")]
    Json(#[from] serde_json::Error),
    /// SLURM says itself that something went wrong.
    #[error("slurm reports an error: {0}")]
    Reported(String),
    /// No list where one must be.
    #[error("the answer has no '{key}' list{hint}")]
    Missing {
        /// Which list.
        key: &'static str,
        /// What may help.
        hint: &'static str,
    },
    /// A field that cannot be understood.
    #[error("{owner}: field '{field}' {why}")]
    Field {
        /// Which job or node.
        owner: String,
        /// Which field.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Two entries for one thing.
    #[error("{owner} is listed twice")]
    Twice {
        /// Which job or node.
        owner: String,
    },
}

/// What a command printed, as text. Users may put any bytes into names and comments, and SLURM
/// prints them as they are: one such job must not make the whole queue unreadable.
#[must_use]
pub fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// The jobs that `squeue --json` (or `scontrol show jobs --json`) printed.
///
/// # Errors
/// Whatever is not fully understood: then nothing is known about the queue.
pub fn jobs(text: &str) -> Result<Vec<SlurmJob>, ReadError> {
    let document: Document<job::Wanted> = document(text)?;
    let records = document.jobs.ok_or(ReadError::Missing { key: "jobs", hint: "" })?;
    let mut seen = BTreeSet::new();
    let mut jobs = Vec::with_capacity(records.len());
    for (index, record) in records.iter().enumerate() {
        let job = job::read(index, record)?;
        if !seen.insert(job.key.id) {
            return Err(ReadError::Twice { owner: format!("job {}", job.key.id) });
        }
        jobs.push(job);
    }
    Ok(jobs)
}

/// The nodes that `scontrol show nodes --json` printed, or `sinfo --json` in SLURM 22.05, which has
/// no other.
///
/// # Errors
/// Whatever is not fully understood: then nothing is known about the nodes.
pub fn nodes(text: &str) -> Result<Vec<SlurmNode>, ReadError> {
    let document: Document<node::Wanted> = document(text)?;
    // Newer versions of sinfo print groups of nodes, which say too little about each.
    let hint = if document.sinfo.is_some() {
        ": sinfo prints groups of nodes in this version, use scontrol show nodes --json"
    } else {
        ""
    };
    let records = document.nodes.ok_or(ReadError::Missing { key: "nodes", hint })?;
    let mut seen = BTreeSet::new();
    let mut nodes = Vec::with_capacity(records.len());
    for (index, record) in records.iter().enumerate() {
        let node = node::read(index, record)?;
        if !seen.insert(node.name.clone()) {
            return Err(ReadError::Twice { owner: format!("node {}", node.name) });
        }
        nodes.push(node);
    }
    Ok(nodes)
}

fn document<W: record::Wanted>(text: &str) -> Result<Document<W>, ReadError> {
    if text.len() > MOST_BYTES {
        return Err(ReadError::TooLong { bytes: text.len(), most: MOST_BYTES });
    }
    // serde_json refuses nesting deeper than 128 by itself.
    let document: Document<W> = serde_json::from_str(text)?;
    match record::reported(document.errors.as_ref()) {
        Some(said) => Err(ReadError::Reported(said)),
        None => Ok(document),
    }
}

/// Shown in messages: escaped, and never a megabyte of it.
pub(in crate::slurm) fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let head: String = text.chars().take(MOST).collect();
    let more = if text.chars().nth(MOST).is_some() { "…" } else { "" };
    format!("{}{more}", head.escape_debug())
}
