//! Who asked for what, and whether he got it. Lines are only ever added.

use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// The audit log cannot be opened.
#[derive(Debug, Error)]
#[error("{}: the audit log cannot be opened: {source}", path.display())]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

/// One line.
#[derive(Debug, Serialize)]
pub(super) struct Line<'a> {
    /// Seconds since 1970.
    pub(super) time: f64,
    pub(super) who: &'a str,
    pub(super) role: &'a str,
    pub(super) remote: &'a str,
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    /// `accepted` or `refused`.
    pub(super) outcome: &'a str,
    pub(super) status: u16,
    /// What was changed, or why it was refused.
    pub(super) what: &'a str,
}

/// The audit log.
pub struct Audit(Option<Mutex<File>>);

impl Audit {
    /// Adds to this file; begins it, for its owner alone, if it is not there.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, AuditError> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        let file = file.map_err(|source| AuditError { path: path.to_owned(), source })?;
        Ok(Self(Some(Mutex::new(file))))
    }

    /// Writes nothing down: for measurements.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    pub(super) fn write(&self, line: &Line<'_>) {
        let Some(file) = &self.0 else { return };
        let Ok(mut text) = serde_json::to_string(line) else { return };
        text.push('\n');
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        // One write, so that lines stay whole. Whoever cannot be audited is still answered: the
        // request is in the journal already.
        if let Err(error) = file.write_all(text.as_bytes()) {
            let _ = writeln!(io::stderr(), "the audit log cannot be written: {error}: {text}");
        }
    }
}

pub(super) fn wall_clock() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
