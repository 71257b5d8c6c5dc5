//! Why a journal cannot be read or written, in words that say what to do.

use super::FORMAT;
use rusqlite::ErrorCode;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a journal cannot be read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Somebody else writes it.
    #[error("{}: another controller uses this journal; stop it first", .0.display())]
    InUse(PathBuf),
    /// Another controller has opened it since.
    #[error(
        "{}: another controller has opened this journal since; this one ends, nothing was written after that",
        .0.display()
    )]
    Fenced(PathBuf),
    /// The file is no longer where it was opened.
    #[error(
        "{}: the journal was moved, deleted or replaced while it was written; this controller ends. \
         Put it back, and start again",
        .0.display()
    )]
    Moved(PathBuf),
    /// The controller is ending.
    #[error("{}: the controller is ending; nothing was changed", .0.display())]
    Closed(PathBuf),
    /// The disk is full.
    #[error("{}: no room left on the disk; nothing was changed, free some and go on", .0.display())]
    Full(PathBuf),
    /// A folder, a pipe, a device.
    #[error("{}: this is not a regular file; name another one", .0.display())]
    NotAFile(PathBuf),
    /// It is no journal.
    #[error("{}: this is not a journal of wattline", .0.display())]
    Foreign(PathBuf),
    /// Written by another version.
    #[error(
        "{}: the journal has format {found}, this program reads {FORMAT}; use the version that wrote it",
        path.display()
    )]
    Format {
        /// Which file.
        path: PathBuf,
        /// Its format.
        found: i64,
    },
    /// Written by a version that did not write its decisions down.
    #[error(
        "{}: the journal has format 1, in which decisions are missing: only the version that wrote \
         it can go on from it. Begin a new journal with --new, which moves this one aside (under \
         SLURM, running jobs are adopted where they run); `wattline replay` and `wattline journal \
         show` go on reading the old one",
        .0.display()
    )]
    WithoutDecisions(PathBuf),
    /// It was begun for something else.
    #[error("{}: the journal was begun with another {what}; name another file to begin anew", path.display())]
    About {
        /// Which file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// Missing or empty, though there was one.
    #[error(
        "{}: the journal is {how}, but {} is there, so there was one{}. Put it back from a backup, \
         or begin a new one with --new, which moves what is left aside",
        path.display(), companion.display(), entries_in_words(*entries)
    )]
    Gone {
        /// Which file.
        path: PathBuf,
        /// "missing" or "empty".
        how: &'static str,
        /// The file beside it.
        companion: PathBuf,
        /// How many entries it had.
        entries: Option<u64>,
    },
    /// A file of SQLite without a table in it.
    #[error(
        "{}: there is nothing in this file: it is a copy taken while a controller wrote the journal, \
         without {}-wal beside it. Copy both, or copy with `wattline journal backup`; to begin a new \
         journal use --new, which moves this file aside",
        .0.display(), .0.display()
    )]
    CopiedWithoutWal(PathBuf),
    /// The file has other names, and SQLite's files are beside only one of them.
    #[error(
        "{}: this file has {names} names (hard links), and the last entries may be in a file -wal \
         beside another one than this. Remove the names that the journal was not written under \
         (`find -samefile {}` lists them), or copy it with `wattline journal backup`",
        path.display(), path.display()
    )]
    Linked {
        /// As it was named.
        path: PathBuf,
        /// How many names it has.
        names: u64,
    },
    /// A file taken from a controller that had not ended, without what was beside it.
    #[error(
        "{}: the controller that wrote this journal had not ended when this file was copied or \
         linked, or lost what was beside it: it ends with entry {last}, and what was written after \
         that is in a file -wal that is not here. The last good entry is {last}. Use the journal \
         under its own name, or copy it with `wattline journal backup`; to go on without those \
         entries on purpose, use a copy that `wattline journal backup {} --to FILE` makes",
        path.display(), path.display()
    )]
    TakenWithoutWal {
        /// Which file.
        path: PathBuf,
        /// The last entry that is there.
        last: u64,
    },
    /// It has fewer entries than were written.
    #[error(
        "{}: the journal ends with entry {found}, but {} says that entry {expected} was written: \
         the last entries, or the file {}-wal, were lost. The last good entry is {found}. Put the \
         newer file back; to go on without those entries on purpose, remove {} first",
        path.display(), state.display(), path.display(), state.display()
    )]
    Shorter {
        /// Which file.
        path: PathBuf,
        /// The file that says so.
        state: PathBuf,
        /// The last entry that is there.
        found: u64,
        /// The last one that was written.
        expected: u64,
    },
    /// Another journal is in its place.
    #[error(
        "{}: this is not the journal that was written here last: {} names another one, or it has \
         another past. Put the right file back; to go on with this one on purpose, remove {} first",
        path.display(), state.display(), state.display()
    )]
    Exchanged {
        /// Which file.
        path: PathBuf,
        /// The file that says so.
        state: PathBuf,
    },
    /// It is damaged.
    #[error(
        "{}: damaged: {what}; {}. `wattline journal verify {}` says what can be saved; restore it \
         from a backup",
        path.display(), last_good_in_words(*last_good), path.display()
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// How.
        what: String,
        /// The last entry up to which everything can be read, if that is known.
        last_good: Option<u64>,
    },
    /// What came before was thrown away, and what it had come to cannot be read.
    #[error(
        "{}: entries up to {pruned} are gone and no snapshot can be read; use the version that wrote it, or a copy",
        path.display()
    )]
    Pruned {
        /// Which file.
        path: PathBuf,
        /// The last that is gone.
        pruned: u64,
    },
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The disk failed.
    #[error(
        "{}: the disk failed while the journal was read or written ({source}); the kernel's log \
         (dmesg) says more, and `wattline journal verify {}` whether the journal has suffered",
        path.display(), path.display()
    )]
    Disk {
        /// Which file.
        path: PathBuf,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// Anything else that SQLite says.
    #[error("{}: {source}", path.display())]
    Sql {
        /// Which file.
        path: PathBuf,
        /// What it says.
        source: rusqlite::Error,
    },
}

fn last_good_in_words(last: Option<u64>) -> String {
    match last {
        Some(0) | None => "no entry before that can be read".to_owned(),
        Some(last) => format!("the last good entry is {last}"),
    }
}

fn entries_in_words(entries: Option<u64>) -> String {
    entries.map_or_else(String::new, |entries| format!(" with {entries} entries"))
}

impl StoreError {
    pub(super) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    pub(super) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into(), last_good: None }
    }

    /// What SQLite said, in words that help.
    pub(super) fn sql(path: &Path, source: rusqlite::Error) -> Self {
        let shown = path.to_owned();
        /// `SQLITE_IOERR_SHORT_READ`: there are fewer bytes than the file says.
        const SHORT_READ: i32 = 522;
        match &source {
            // A value of another type than was written.
            rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::Utf8Error(..) => return Self::damaged(path, source.to_string()),
            rusqlite::Error::SqliteFailure(error, _) if error.extended_code == SHORT_READ => {
                return Self::damaged(path, "it is shorter than it says");
            }
            _ => {}
        }
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::InUse(shown),
            Some(ErrorCode::DiskFull) => Self::Full(shown),
            Some(ErrorCode::NotADatabase) => Self::Foreign(shown),
            Some(ErrorCode::DatabaseCorrupt) => Self::damaged(path, source.to_string()),
            Some(ErrorCode::SystemIoFailure) => Self::Disk { path: shown, source },
            _ => Self::Sql { path: shown, source },
        }
    }
}
