//! A copy of a journal, also while a controller writes it.

use super::{How, StoreError, connect, files, verify};
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why there is no copy.
#[derive(Debug, Error)]
pub enum BackupError {
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] StoreError),
    /// There is something already.
    #[error("{}: there is a file already; name another one", .0.display())]
    Exists(PathBuf),
    /// It cannot be written.
    #[error("{}: the copy cannot be written: {why}", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// What was copied is damaged.
    #[error("{}: the copy would be as damaged as the journal: {what}; nothing was kept", path.display())]
    Damaged {
        /// Of which journal.
        path: PathBuf,
        /// How.
        what: String,
    },
}

/// Copies a journal into a file of its own, which is complete by itself, and checks the copy. Says
/// how many entries it has.
///
/// # Errors
/// When there is a file of that name, the journal cannot be read or is damaged, or the copy cannot
/// be written; then no file is left.
pub fn backup(journal: &Path, to: &Path) -> Result<u64, BackupError> {
    if fs::symlink_metadata(to).is_ok() {
        return Err(BackupError::Exists(to.to_owned()));
    }
    // It has its name when it is complete.
    let part = files::beside(to, ".part");
    let copied = copy(journal, &part).and_then(|entries| {
        files::sync_folder(to)?;
        let failed = |error: std::io::Error| write(to, &error);
        // A link, because it does not replace what has come there meanwhile.
        fs::hard_link(&part, to).map_err(failed)?;
        files::sync_folder(to)?;
        Ok(entries)
    });
    let _ = fs::remove_file(&part);
    copied
}

fn write(path: &Path, why: &dyn std::fmt::Display) -> BackupError {
    BackupError::Write { path: path.to_owned(), why: why.to_string() }
}

fn copy(journal: &Path, part: &Path) -> Result<u64, BackupError> {
    let file = files::resolve(journal)?;
    fs::metadata(&file).map_err(|source| StoreError::io(journal, source))?;
    files::check_gone(&file)?;
    let from = connect(&file, How::Strictly)?;
    if super::format(journal, &from)?.is_none() {
        return Err(StoreError::Foreign(journal.to_owned()).into());
    }
    let mut options = OpenOptions::new();
    let made = options.write(true).create(true).truncate(true).mode(0o600).open(part);
    drop(made.map_err(|error| write(part, &error))?);
    let mut into = Connection::open(part).map_err(|error| write(part, &error))?;
    {
        let copy = Backup::new(&from, &mut into).map_err(|error| write(part, &error))?;
        // All at once, in one read transaction: a writer goes on meanwhile, and nothing is copied
        // twice.
        match copy.step(-1).map_err(|error| write(part, &error))? {
            StepResult::Done => {}
            other => return Err(write(part, &format!("{other:?}"))),
        }
    }
    // Otherwise the copy asks for a WAL beside it.
    into.pragma_update(None, "journal_mode", "DELETE").map_err(|error| write(part, &error))?;
    into.close().map_err(|(_, error)| write(part, &error))?;
    File::open(part).and_then(|file| file.sync_all()).map_err(|error| write(part, &error))?;
    let found = verify(part)?;
    match found.problems.first() {
        // Format 1 has no checksums.
        Some(what) if found.format != Some(super::WITHOUT_DECISIONS) => {
            Err(BackupError::Damaged { path: journal.to_owned(), what: what.clone() })
        }
        _ => Ok(found.last.unwrap_or(found.last_good)),
    }
}
