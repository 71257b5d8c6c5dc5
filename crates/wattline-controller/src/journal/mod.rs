//! What must not be lost: an append-only journal of all that the engine was told, in SQLite.
//!
//! One entry is one instant: the time, and what was heard then. It is on the disk (WAL,
//! `synchronous=FULL`) before anything follows from it. One writer, who holds the lock of a file
//! beside the journal; a second one is refused. Whoever only reads ([`Store::look`]) disturbs
//! nobody, and sees what was written when he began.

use crate::directory::Note;
mod hours;
mod snapshot;

pub use snapshot::{Keep, Saved};

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use wattline_core::Timestamp;
use wattline_core::engine::Event;
use wattline_core::plan::Plan;
use wattline_core::units::Seconds;

/// Says whose file it is, and in which format: "wtln".
const APPLICATION: i64 = 0x7774_6c6e;
const FORMAT: i64 = 1;
/// How SQLite begins its files.
const MAGIC: &[u8] = b"SQLite format 3\0";

const SCHEMA: &str = "
CREATE TABLE about (what TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE journal (
    number INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    entry TEXT NOT NULL
) STRICT;
";

/// One instant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When.
    pub at: Timestamp,
    /// What was heard.
    pub events: Vec<Event>,
    /// The cluster's reports before this number have been heard.
    pub next_report: u64,
    /// Whether the cluster was told what to do right after it.
    pub acts: bool,
    /// What else is to be remembered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// What was decided, after the events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
}

/// A plan that was decided on, as it was applied. Replay applies it and never plans.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The revision of the state that the planner saw.
    pub based_on: u64,
    /// What made it: the policy as its user named it, or "shed" for load shed by the engine itself.
    pub policy: Box<str>,
    /// Version of the program whose policy it was.
    pub version: Box<str>,
    /// Why a plan was asked for, in a word.
    pub trigger: Box<str>,
    /// How long planning took, on the wall clock.
    pub took: Seconds,
    /// The changes, with their reasons.
    pub plan: Plan,
}

/// Why a journal cannot be read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Somebody else writes it.
    #[error("{}: another controller uses this journal; stop it first", .0.display())]
    InUse(PathBuf),
    /// The disk is full.
    #[error("{}: no room left on the disk; nothing was changed, free some and go on", .0.display())]
    Full(PathBuf),
    /// Something else.
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
    /// It was begun for something else.
    #[error("{}: the journal was begun with another {what}; name another file to begin anew", path.display())]
    About {
        /// Which file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// It is damaged.
    #[error("{}: damaged: {what}; restore it from a copy", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// How.
        what: String,
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
    /// Anything else that SQLite says.
    #[error("{}: {source}", path.display())]
    Sql {
        /// Which file.
        path: PathBuf,
        /// What it says.
        source: rusqlite::Error,
    },
}

/// A journal that is open.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    connection: Connection,
    /// The writer's; none if it is only looked at.
    _lock: Option<File>,
    /// Number of the next entry.
    next: i64,
    /// The last entry in the newest snapshot.
    last_saved: u64,
}

impl Store {
    /// Opens a journal, or begins one. `about` is what it is about, by names: which cluster, which
    /// policy. A journal that was begun with something else is refused.
    ///
    /// # Errors
    /// When it cannot be read, is somebody else's, in use, damaged, or about something else.
    pub fn open(path: &Path, about: &[(&str, &str)]) -> Result<Self, StoreError> {
        let sql = |source| of(path, source);
        // First of all: a second look at a file that this process writes would end SQLite's locks.
        let lock = lock(path)?;
        if is_foreign(path)? {
            return Err(StoreError::Foreign(path.to_owned()));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(sql)?;
        // Readers may be clearing up after a writer that died.
        connection.busy_timeout(PATIENCE).map_err(sql)?;
        let mut store = Self::over(path, connection, Some(lock));
        let is_new = store.check_whose()?;
        store.claim().map_err(sql)?;
        if is_new {
            store.begin(about).map_err(sql)?;
        } else {
            store.check(about)?;
        }
        store.connection.execute_batch(snapshot::SCHEMA).map_err(sql)?;
        store.connection.execute_batch(hours::SCHEMA).map_err(sql)?;
        store.count()?;
        Ok(store)
    }

    /// Looks at a journal that is there, also while a controller writes it. What is written later
    /// is not seen.
    ///
    /// # Errors
    /// When it is not there, cannot be read, is somebody else's or damaged.
    pub fn look(path: &Path) -> Result<Self, StoreError> {
        std::fs::metadata(path)
            .map_err(|source| StoreError::Io { path: path.to_owned(), source })?;
        let mut store = Self::over(path, connect(path)?, None);
        // One transaction to the end: everything is of the same time.
        let begun = store.connection.execute_batch("BEGIN");
        begun.map_err(|source| of(path, source))?;
        if store.check_whose()? {
            return Err(StoreError::Foreign(path.to_owned()));
        }
        store.count()?;
        Ok(store)
    }

    fn over(path: &Path, connection: Connection, lock: Option<File>) -> Self {
        Self { path: path.to_owned(), connection, _lock: lock, next: 1, last_saved: 0 }
    }

    /// How many entries there are.
    fn count(&mut self) -> Result<(), StoreError> {
        let last = "SELECT coalesce(max(number), 0) FROM journal";
        let last = self.connection.query_row(last, (), |row| row.get::<_, i64>(0));
        let last = last.map_err(|source| of(&self.path, source))?;
        // All of them may be gone.
        self.next = 1 + last.max(self.pruned()? as i64);
        self.last_saved = self.saved()?.first().map_or(0, |saved| saved.number);
        Ok(())
    }

    fn claim(&self) -> Result<(), rusqlite::Error> {
        let c = &self.connection;
        c.pragma_update(None, "journal_mode", "WAL")?;
        c.pragma_update(None, "synchronous", "FULL")
    }

    /// What it was begun with under this name. A journal that says nothing about it was begun with
    /// what is given here, from now on.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn begun_with(&mut self, what: &str, value: &str) -> Result<String, StoreError> {
        let note = "INSERT OR IGNORE INTO about VALUES (?1, ?2)";
        let noted = self.connection.execute(note, (what, value));
        noted.map_err(|source| of(&self.path, source))?;
        Ok(self.about(what)?.unwrap_or_else(|| value.to_owned()))
    }

    /// Whether the file is new. Nothing is changed before that is known.
    fn check_whose(&self) -> Result<bool, StoreError> {
        let sql = |source| of(&self.path, source);
        let tables = "SELECT count(*) FROM sqlite_schema";
        let tables: i64 = self.connection.query_row(tables, (), |row| row.get(0)).map_err(sql)?;
        let application = self.pragma("application_id")?;
        if tables == 0 && application == 0 {
            return Ok(true);
        }
        if application != APPLICATION {
            return Err(StoreError::Foreign(self.path.clone()));
        }
        match self.pragma("user_version")? {
            FORMAT => Ok(false),
            found => Err(StoreError::Format { path: self.path.clone(), found }),
        }
    }

    fn pragma(&self, name: &str) -> Result<i64, StoreError> {
        let value = self.connection.pragma_query_value(None, name, |row| row.get(0));
        value.map_err(|source| of(&self.path, source))
    }

    fn begin(&mut self, about: &[(&str, &str)]) -> Result<(), rusqlite::Error> {
        let begin = self.connection.transaction()?;
        begin.execute_batch(SCHEMA)?;
        begin.pragma_update(None, "application_id", APPLICATION)?;
        begin.pragma_update(None, "user_version", FORMAT)?;
        for (what, value) in about {
            begin.execute("INSERT INTO about VALUES (?1, ?2)", (what, value))?;
        }
        begin.commit()
    }

    /// Whether it is sound, and about the same.
    fn check(&self, about: &[(&str, &str)]) -> Result<(), StoreError> {
        let sql = |source| of(&self.path, source);
        let path = || self.path.clone();
        // Where there is a snapshot, old entries are not read, and looking through them would take
        // minutes; what is read is checked as it is read.
        let check = if self.saved()?.is_empty() { "1" } else { "about" };
        let check = format!("PRAGMA quick_check({check})");
        let check = self.connection.query_row(&check, (), |row| row.get(0));
        let check: String = check.map_err(sql)?;
        if check != "ok" {
            return Err(StoreError::Damaged { path: path(), what: check });
        }
        for (what, value) in about {
            let ask = "SELECT value FROM about WHERE what = ?1";
            let known = self.connection.query_row(ask, [what], |row| row.get::<_, String>(0));
            if known.optional().map_err(sql)?.as_deref() != Some(*value) {
                return Err(StoreError::About { path: path(), what: (*what).to_owned() });
            }
        }
        Ok(())
    }

    /// Writes an instant down. When this returns it is on the disk.
    ///
    /// # Errors
    /// When it could not be written; then it is not in the journal at all.
    pub fn append(&mut self, entry: &Entry) -> Result<(), StoreError> {
        let text = serde_json::to_string(entry).map_err(|source| StoreError::Damaged {
            path: self.path.clone(),
            what: format!("an entry cannot be written: {source}"),
        })?;
        let write =
            || -> Result<(), rusqlite::Error> {
                let transaction = rusqlite::Transaction::new_unchecked(
                    &self.connection,
                    TransactionBehavior::Immediate,
                )?;
                transaction
                    .prepare_cached("INSERT INTO journal VALUES (?1, ?2, ?3)")?
                    .execute((self.next, entry.at.micros(), &text))?;
                transaction.commit()
            };
        write().map_err(|source| of(&self.path, source))?;
        self.next += 1;
        Ok(())
    }

    /// Reads all entries that were kept, in order.
    ///
    /// # Errors
    /// When the journal cannot be read to its end, or `take` fails.
    pub fn read<E: From<StoreError>>(
        &self,
        take: impl FnMut(Entry) -> Result<(), E>,
    ) -> Result<(), E> {
        self.read_after(self.pruned()?, take)
    }

    /// Reads all entries after the one with this number, in order.
    ///
    /// # Errors
    /// As [`Store::read`], and when some of them were not kept.
    pub fn read_after<E: From<StoreError>>(
        &self,
        after: u64,
        mut take: impl FnMut(Entry) -> Result<(), E>,
    ) -> Result<(), E> {
        let sql = |source| of(&self.path, source);
        let mut statement = self
            .connection
            .prepare("SELECT number, at, entry FROM journal WHERE number > ?1 ORDER BY number")
            .map_err(sql)?;
        let mut rows = statement.query([after as i64]).map_err(sql)?;
        let mut expected = after as i64 + 1;
        while let Some(row) = rows.next().map_err(sql)? {
            let number: i64 = row.get(0).map_err(sql)?;
            let at: i64 = row.get(1).map_err(sql)?;
            let text: String = row.get(2).map_err(sql)?;
            let damaged = |what: String| StoreError::Damaged { path: self.path.clone(), what };
            if number != expected {
                return Err(damaged(format!("entry {expected} is missing")).into());
            }
            let entry: Entry = serde_json::from_str(&text)
                .map_err(|source| damaged(format!("entry {number}: {source}")))?;
            if entry.at.micros() != at {
                return Err(damaged(format!("entry {number}: two times")).into());
            }
            take(entry)?;
            expected += 1;
        }
        Ok(())
    }

    /// When the last entry was written.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn last_time(&self) -> Result<Option<Timestamp>, StoreError> {
        let ask = "SELECT at FROM journal ORDER BY number DESC LIMIT 1";
        let last = self.connection.query_row(ask, (), |row| row.get(0)).optional();
        Ok(last.map_err(|source| of(&self.path, source))?.map(Timestamp::from_micros))
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        (self.next - 1) as u64
    }

    /// Whether nothing has been written down yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file may grow to this many bytes and no more.
    ///
    /// # Errors
    /// When SQLite does not take it.
    pub fn limit_size(&self, bytes: u64) -> Result<(), StoreError> {
        let sql = |source| of(&self.path, source);
        let page: i64 =
            self.connection.pragma_query_value(None, "page_size", |row| row.get(0)).map_err(sql)?;
        let pages = (bytes / page.max(1) as u64).max(1) as i64;
        // It answers with what holds now.
        let ask = format!("PRAGMA max_page_count = {pages}");
        self.connection.query_row(&ask, (), |_| Ok(())).map_err(sql)
    }
}

/// Whoever clears up is done by then.
const PATIENCE: Duration = Duration::from_secs(5);

/// The lock that the writer of a journal holds, as long as its process lives.
fn lock(journal: &Path) -> Result<File, StoreError> {
    let path = beside(journal, ".lock");
    let io = |source| StoreError::Io { path: path.clone(), source };
    let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = opened.map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse(journal.to_owned())),
        Err(TryLockError::Error(source)) => Err(io(source)),
    }
}

/// A connection that changes nothing.
fn connect(path: &Path) -> Result<Connection, StoreError> {
    let sql = |source| of(path, source);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(sql)?;
    connection.busy_timeout(PATIENCE).map_err(sql)?;
    let ask = "SELECT count(*) FROM sqlite_schema";
    match connection.query_row(ask, (), |_| Ok(())) {
        Ok(()) => return Ok(connection),
        // To share the file with a writer takes files beside it. Where none can be made there is
        // nothing to share, unless a writer has left some.
        Err(error) if is_in_the_way(&error) && !beside(path, "-wal").exists() => {}
        Err(error) => return Err(sql(error)),
    }
    let mut url = String::from("file:");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => {
                url.push(char::from(*byte));
            }
            _ => url += &format!("%{byte:02x}"),
        }
    }
    url += "?immutable=1";
    Connection::open_with_flags(url, flags | OpenFlags::SQLITE_OPEN_URI).map_err(sql)
}

fn is_in_the_way(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly))
}

/// A file beside another.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(ending);
    name.into()
}

/// Whether there is a file that SQLite did not write; it would take a short one for a new one.
fn is_foreign(path: &Path) -> Result<bool, StoreError> {
    let io = |source| StoreError::Io { path: path.to_owned(), source };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(io(error)),
    };
    let mut begin = Vec::new();
    Read::by_ref(&mut file).take(MAGIC.len() as u64).read_to_end(&mut begin).map_err(io)?;
    Ok(!begin.is_empty() && begin != MAGIC)
}

/// What SQLite said, in words that help.
fn of(path: &Path, source: rusqlite::Error) -> StoreError {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::InUse(path),
        Some(ErrorCode::DiskFull) => StoreError::Full(path),
        Some(ErrorCode::NotADatabase) => StoreError::Foreign(path),
        Some(ErrorCode::DatabaseCorrupt) => StoreError::Damaged { path, what: source.to_string() },
        _ => StoreError::Sql { path, source },
    }
}
