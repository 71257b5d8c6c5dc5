//! What must not be lost: an append-only journal of facts and decisions, in SQLite.
//!
//! One entry is one instant: what was heard and what was decided then. It is on the disk (WAL,
//! `synchronous=FULL`) before anything follows from it. Entries are numbered without gaps and
//! chained by checksums ([`chain`]); a row of its own says how far they go and who writes
//! ([`head`]). One writer, who holds the file itself ([`files`]); a second one is refused, and if
//! one comes all the same, the first one ends. Whoever only reads ([`Store::look`]) disturbs nobody,
//! and sees what was written when he began.

mod backup;
pub(crate) mod chain;
mod ended;
mod entry;
mod error;
mod files;
mod head;
mod hours;
mod prune;
mod snapshot;
mod verify;

pub use backup::{BackupError, backup};
pub use entry::{Decision, Entry};
pub use error::StoreError;
pub use prune::{Prunable, Pruned};
pub use snapshot::{Keep, Saved};
pub use verify::{SnapshotCheck, Verification, verify};

use crate::job_history;
use chain::Link;
use files::{Hold, State, StateFile, beside};
use head::{Head, Written};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use wattline_core::Timestamp;

/// Says whose file it is: "wtln".
const APPLICATION: i64 = 0x7774_6c6e;
/// The format that is written. Format 1, without decisions and checksums, can be looked at.
const FORMAT: i64 = 2;
const WITHOUT_DECISIONS: i64 = 1;
/// How SQLite begins its files.
const MAGIC: &[u8] = b"SQLite format 3\0";
/// The length of SQLite's header.
const HEADER: usize = 100;
/// What a journal says of its last writer, among the things that it is about. Journals that were
/// closed before this was written say nothing.
const WRITER: &str = "writer";
const WRITES: &str = "open";
const HAS_CLOSED: &str = "closed";
/// Whoever clears up after a writer that died is done by then.
const PATIENCE: Duration = Duration::from_secs(5);
/// Entries that no start needs are looked through all the same if there are no more than this:
/// some 10 MB, a tenth of a second. `wattline journal verify` looks through all.
const CHECKED_AT_START: u64 = 20_000;

const SCHEMA: &str = "
CREATE TABLE about (what TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE journal (
    number INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    link INTEGER NOT NULL,
    entry TEXT NOT NULL
) STRICT;
";

/// A journal that is open.
#[derive(Debug)]
pub struct Store {
    /// As it was named.
    path: PathBuf,
    connection: Connection,
    /// The writer's; none if it is only looked at. After the connection: closing this file ends
    /// SQLite's locks on it.
    writer: Option<Writer>,
    format: i64,
    head: Head,
    about: BTreeMap<String, String>,
    /// The last entry in the newest snapshot.
    last_saved: u64,
    notices: Vec<String>,
}

#[derive(Debug)]
struct Writer {
    hold: Hold,
    state: StateFile,
    /// Nothing is written any more.
    closed: bool,
}

impl Store {
    /// Opens a journal, or begins one. `about` is what it is about, by names: which cluster, which
    /// policy. A journal that was begun with something else is refused.
    ///
    /// # Errors
    /// When it cannot be read, is somebody else's, in use, damaged, about something else, or
    /// missing though it was there before.
    pub fn open(path: &Path, about: &[(&str, &str)]) -> Result<Self, StoreError> {
        let file = files::resolve(path)?;
        let nothing_there = files::check_gone(&file)?;
        Self::open_file(path, &file, about, nothing_there)
            .map_err(|error| verify::with_last_good(error, &file))
    }

    /// Begins a journal. One that is there, or what is left of one, is moved aside first, with all
    /// that is beside it but the audit log, which goes on; nothing is deleted. `stamp` tells when,
    /// in the name of what was moved. Says where that is; nothing if there was none.
    ///
    /// # Errors
    /// When somebody writes the journal that is there, it cannot be moved, or another not begun.
    pub fn open_anew(
        path: &Path,
        about: &[(&str, &str)],
        stamp: &str,
    ) -> Result<(Self, Option<PathBuf>), StoreError> {
        let file = files::resolve(path)?;
        let held = match file.exists().then(|| Hold::take(&file)) {
            // No process writes it, and it is only moved.
            Some(Err(StoreError::Linked { .. })) | None => None,
            Some(held) => Some(held?),
        };
        let aside = files::set_aside(&file, stamp)?;
        drop(held);
        Ok((Self::open_file(path, &file, about, true)?, aside))
    }

    fn open_file(
        path: &Path,
        file: &Path,
        about: &[(&str, &str)],
        nothing_there: bool,
    ) -> Result<Self, StoreError> {
        let sql = |source| StoreError::sql(path, source);
        let state = State::read(file);
        // First of all: a second look at a file that this process writes would end SQLite's locks.
        let hold = Hold::take(file)?;
        let (length, header) = (hold.len()?, hold.begins_with(HEADER)?);
        check_header(file, &header, length)?;
        let alone = has_wal_mode(&header) && !files::was_written_here(file);
        let has_wal = beside(file, files::WAL).exists();
        let mut notices = files::close_to_others(file)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(file, flags).map_err(sql)?;
        // Readers may be clearing up after a writer that died.
        connection.busy_timeout(PATIENCE).map_err(sql)?;
        let is_new = match format(path, &connection)? {
            None => true,
            Some(FORMAT) => false,
            Some(WITHOUT_DECISIONS) => {
                return Err(StoreError::WithoutDecisions(path.to_owned()));
            }
            Some(found) => return Err(StoreError::Format { path: path.to_owned(), found }),
        };
        if let Some(state) = &state
            && is_new
            && !nothing_there
        {
            let (path, companion) = (path.to_owned(), beside(file, files::STATE));
            let entries = Some(state.last);
            return Err(StoreError::Gone { path, how: "empty", companion, entries });
        }
        // A first start that is killed half-way leaves a WAL beside such a file.
        if is_new && length > 0 && !has_wal {
            return Err(StoreError::CopiedWithoutWal(path.to_owned()));
        }
        connection.pragma_update(None, "journal_mode", "WAL").map_err(sql)?;
        connection.pragma_update(None, "synchronous", "FULL").map_err(sql)?;
        if is_new {
            begin(&connection, about).map_err(sql)?;
        } else {
            quick_check(path, &connection)?;
        }
        let mut store = Self::over(path, connection)?;
        store.check_about(about)?;
        store.compare(file, state.as_ref())?;
        store.check_alone(alone)?;
        // Also above an epoch that was lost with a WAL.
        let epoch = state.as_ref().map_or(0, |state| state.epoch).max(store.head.epoch) + 1;
        store.change_writer(WRITES, epoch)?;
        let state = StateFile::create(file, &store.state())?;
        files::sync_folder(file)?;
        store.writer = Some(Writer { hold, state, closed: false });
        notices.extend(store.check_old_entries()?);
        store.notices = notices;
        Ok(store)
    }

    /// Looks at a journal that is there, also while a controller writes it. What is written later
    /// is not seen. Journals of format 1 can be looked at, too.
    ///
    /// # Errors
    /// When it is not there, cannot be read, is somebody else's or damaged.
    pub fn look(path: &Path) -> Result<Self, StoreError> {
        let look = || {
            std::fs::metadata(path).map_err(|source| StoreError::io(path, source))?;
            let file = files::resolve(path)?;
            verify::check_length(&file)?;
            let alone = verify::is_alone(&file)?;
            // Before the journal: it may be written meanwhile.
            let state = State::read(&file);
            let connection = connect(&file, How::Strictly)?;
            // One transaction to the end: everything is of the same time.
            let begun = connection.execute_batch("BEGIN");
            begun.map_err(|source| StoreError::sql(path, source))?;
            let store = Self::over(path, connection)?;
            store.compare(&file, state.as_ref())?;
            store.check_alone(alone)?;
            Ok(store)
        };
        look().map_err(|error| verify::with_last_good(error, path))
    }

    /// What can be read of a journal, whatever else is wrong with it: for its snapshots.
    fn look_unchecked(path: &Path) -> Result<Self, StoreError> {
        let connection = connect(path, How::WhatIsLeft)?;
        connection.execute_batch("BEGIN").map_err(|source| StoreError::sql(path, source))?;
        Self::put_together(path, connection)
    }

    /// What is in a connection to a journal, checked as far as that takes no time.
    fn over(path: &Path, connection: Connection) -> Result<Self, StoreError> {
        let mut store = Self::put_together(path, connection)?;
        let Head { journal, about, .. } = &store.head;
        if store.format == FORMAT && *about != chain::about(journal, &store.about) {
            return Err(store.damaged("what it says about itself has changed"));
        }
        store.check_last()?;
        store.last_saved = store.saved()?.first().map_or(0, |saved| saved.number);
        Ok(store)
    }

    fn put_together(path: &Path, connection: Connection) -> Result<Self, StoreError> {
        let damaged = |what: String| StoreError::damaged(path, what);
        let Some(format) = format(path, &connection)? else {
            return Err(StoreError::Foreign(path.to_owned()));
        };
        let about = read_about(path, &connection)?;
        let head = match format {
            WITHOUT_DECISIONS => head_of_format_1(path, &connection, &about)?,
            FORMAT => {
                let head = Head::read(&connection).map_err(|e| StoreError::sql(path, e))?;
                head.map_err(damaged)?
            }
            found => return Err(StoreError::Format { path: path.to_owned(), found }),
        };
        let path = path.to_owned();
        let (writer, notices) = (None, Vec::new());
        Ok(Self { path, connection, writer, format, head, about, last_saved: 0, notices })
    }

    /// Whether the last entry is the one that was written last.
    fn check_last(&self) -> Result<(), StoreError> {
        let ask = "SELECT max(number) FROM journal";
        let last: Option<u64> =
            self.connection.query_row(ask, (), |row| row.get(0)).map_err(|e| self.sql(e))?;
        let (last, expected) = (last.unwrap_or(self.head.pruned), self.head.last);
        if last < expected {
            return Err(self.damaged(format!("entries {} to {expected} are missing", last + 1)));
        }
        if last > expected {
            let what =
                format!("entry {expected} should be the last one, and there is entry {last}");
            return Err(self.damaged(what));
        }
        if self.format == FORMAT && self.link(expected)? != self.head.link {
            return Err(self.damaged(format!("entry {expected} is not as it was written")));
        }
        Ok(())
    }

    /// The link of an entry that is there, or of the last one that was thrown away.
    fn link(&self, number: u64) -> Result<Link, StoreError> {
        if number == self.head.pruned {
            return Ok(self.head.pruned_link);
        }
        let ask = "SELECT link FROM journal WHERE number = ?1";
        let link = self.connection.query_row(ask, [number], |row| row.get(0)).optional();
        let link = link.map_err(|e| self.sql(e))?;
        link.ok_or_else(|| self.damaged(format!("entry {number} is missing")))
    }

    /// Compares the journal with what the file beside it says.
    fn compare(&self, file: &Path, state: Option<&State>) -> Result<(), StoreError> {
        let Some(state) = state.filter(|_| self.format == FORMAT) else { return Ok(()) };
        let (path, beside) = (self.path.clone(), beside(file, files::STATE));
        let (found, expected) = (self.head.last, state.last);
        if state.journal != self.head.journal {
            return Err(StoreError::Exchanged { path, state: beside });
        }
        if found < expected {
            return Err(StoreError::Shorter { path, state: beside, found, expected });
        }
        if expected >= self.head.pruned && self.link(expected)? != state.link {
            return Err(StoreError::Exchanged { path, state: beside });
        }
        Ok(())
    }

    /// A file that was taken from a controller that had not ended, with nothing beside it: what is
    /// only in the WAL beside the file's other name is missing, and nothing else tells.
    fn check_alone(&self, alone: bool) -> Result<(), StoreError> {
        if alone && is_open(&self.about) {
            let (path, last) = (self.path.clone(), self.head.last);
            return Err(StoreError::TakenWithoutWal { path, last });
        }
        Ok(())
    }

    /// No start needs the entries that a snapshot stands for, and damage there does not keep a
    /// controller from going on; reports and replays of that time it does.
    fn check_old_entries(&self) -> Result<Option<String>, StoreError> {
        let Head { pruned, .. } = self.head;
        if self.last_saved.saturating_sub(pruned) > CHECKED_AT_START {
            return Ok(None);
        }
        let walk =
            verify::walk(&self.connection, pruned, Some(self.head.pruned_link), self.last_saved);
        let walk = walk.map_err(|e| self.sql(e))?;
        Ok(walk.wrong.map(|wrong| {
            format!(
                "{}: damaged: {wrong}; the last good entry before that is {}. A snapshot stands for \
                 these entries, so nothing that is known now is lost; reports and replays of that \
                 time cannot be trusted. `wattline journal verify {}` says more",
                self.path.display(),
                walk.last_good,
                self.path.display()
            )
        }))
    }

    /// What an administrator should know about how it was opened.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    fn check_about(&self, about: &[(&str, &str)]) -> Result<(), StoreError> {
        for (what, value) in about {
            if self.about.get(*what).map(String::as_str) != Some(*value) {
                let what = (*what).to_owned();
                return Err(StoreError::About { path: self.path.clone(), what });
            }
        }
        Ok(())
    }

    /// What it was begun with.
    ///
    /// # Errors
    /// None at present: it was read when the journal was opened.
    pub fn about(&self, what: &str) -> Result<Option<String>, StoreError> {
        Ok(self.about.get(what).cloned())
    }

    /// What it was begun with under this name. A journal that says nothing about it was begun with
    /// what is given here, from now on.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn begun_with(&mut self, what: &str, value: &str) -> Result<String, StoreError> {
        if let Some(known) = self.about.get(what) {
            return Ok(known.clone());
        }
        let mut about = self.about.clone();
        about.insert(what.to_owned(), value.to_owned());
        let head = Head { about: chain::about(&self.head.journal, &about), ..self.head.clone() };
        self.change_head(head, |transaction| {
            transaction.execute("INSERT INTO about VALUES (?1, ?2)", (what, value)).map(drop)
        })?;
        self.about = about;
        Ok(value.to_owned())
    }

    /// Says that the writer of an epoch begins or ends.
    fn change_writer(&mut self, writer: &str, epoch: u64) -> Result<(), StoreError> {
        let mut about = self.about.clone();
        about.insert(WRITER.to_owned(), writer.to_owned());
        let sum = chain::about(&self.head.journal, &about);
        let head = Head { about: sum, epoch, ..self.head.clone() };
        self.change_head(head, |transaction| {
            let insert = "INSERT OR REPLACE INTO about VALUES (?1, ?2)";
            transaction.execute(insert, (WRITER, writer)).map(drop)
        })?;
        self.about = about;
        Ok(())
    }

    /// Writes an instant down. When this returns it is on the disk.
    ///
    /// # Errors
    /// When it could not be written; then it is not in the journal at all.
    pub fn append(&mut self, entry: &Entry) -> Result<(), StoreError> {
        let text = entry
            .to_text()
            .map_err(|source| self.damaged(format!("an entry cannot be written: {source}")))?;
        let (number, at) = (self.head.last + 1, entry.at.micros());
        let link = chain::next(self.head.link, number, at, &text);
        let head = Head { last: number, link, ..self.head.clone() };
        self.change_head(head, |transaction| {
            let insert = "INSERT INTO journal VALUES (?1, ?2, ?3, ?4)";
            transaction.prepare_cached(insert)?.execute((number, at, link, &text)).map(drop)
        })
    }

    /// Writes something together with the row that says how far the journal goes.
    fn change_head(
        &mut self,
        head: Head,
        write: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        self.write(|before, transaction| {
            write(transaction)?;
            before.replace(transaction, &head)
        })?;
        self.head = head;
        if let Some(writer) = &self.writer {
            writer.state.write(&self.state());
        }
        Ok(())
    }

    /// Writes, if this writer is still the only one.
    fn write(
        &self,
        write: impl FnOnce(&Head, &Transaction<'_>) -> rusqlite::Result<Written>,
    ) -> Result<(), StoreError> {
        if let Some(writer) = &self.writer {
            if writer.closed {
                return Err(StoreError::Closed(self.path.clone()));
            }
            writer.hold.check()?;
        }
        let write = || {
            let behaviour = rusqlite::TransactionBehavior::Immediate;
            let transaction = Transaction::new_unchecked(&self.connection, behaviour)?;
            let written = write(&self.head, &transaction)?;
            if written == Written::Yes {
                transaction.commit()?;
            }
            Ok(written)
        };
        match write().map_err(|e| self.sql(e))? {
            Written::Yes => Ok(()),
            Written::NotMine => Err(self.lost()),
        }
    }

    /// Why the row that says how far the journal goes is not as it was left.
    fn lost(&self) -> StoreError {
        match Head::read(&self.connection) {
            Ok(Err(what)) => self.damaged(what),
            Err(source) => self.sql(source),
            Ok(Ok(_)) => StoreError::Fenced(self.path.clone()),
        }
    }

    fn state(&self) -> State {
        let Head { journal, epoch, last, link, .. } = self.head.clone();
        State { journal, epoch, last, link }
    }

    /// Ends writing: everything goes into the journal's file, so that a copy of that file alone is
    /// complete. What is written after that is refused.
    ///
    /// # Errors
    /// When that could not be done. Nothing is lost then: the next start reads the WAL.
    pub fn close(&mut self) -> Result<(), StoreError> {
        if self.writer.as_ref().is_none_or(|writer| writer.closed) {
            return Ok(());
        }
        let said = self.change_writer(HAS_CLOSED, self.head.epoch);
        if let Some(writer) = &mut self.writer {
            writer.closed = true;
            writer.state.sync();
        }
        self.checkpoint()?;
        said
    }

    /// Brings all that is in the WAL into the journal's file.
    fn checkpoint(&self) -> Result<(), StoreError> {
        let ask = "PRAGMA wal_checkpoint(TRUNCATE)";
        let busy: i64 =
            self.connection.query_row(ask, (), |row| row.get(0)).map_err(|e| self.sql(e))?;
        if busy != 0 {
            // Somebody reads for longer than the patience lasts.
            tracing::warn!(
                "{}: somebody reads the journal, so a part of it stays in {}: copy both",
                self.path.display(),
                beside(&self.path, files::WAL).display()
            );
        }
        Ok(())
    }

    /// Reads all entries that were kept, in order.
    ///
    /// # Errors
    /// When the journal cannot be read to its end, or `take` fails.
    pub fn read<E: From<StoreError>>(
        &self,
        mut take: impl FnMut(Entry) -> Result<(), E>,
    ) -> Result<(), E> {
        self.read_numbered(self.head.pruned, |_, entry| take(entry))
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
        self.read_numbered(after, |_, entry| take(entry))
    }

    /// The same with their numbers.
    ///
    /// # Errors
    /// As [`Store::read_after`].
    pub fn read_numbered<E: From<StoreError>>(
        &self,
        after: u64,
        mut take: impl FnMut(u64, Entry) -> Result<(), E>,
    ) -> Result<(), E> {
        let sql = |source| self.sql(source);
        let chained = self.format == FORMAT;
        let column = if chained { "link" } else { "0" };
        let ask = format!(
            "SELECT number, at, {column}, entry FROM journal WHERE number > ?1 ORDER BY number"
        );
        let mut link = if chained { self.link(after)? } else { 0 };
        let mut statement = self.connection.prepare(&ask).map_err(sql)?;
        let mut rows = statement.query([after]).map_err(sql)?;
        let mut last = after;
        loop {
            let damaged = |what: String| StoreError::Damaged {
                path: self.path.clone(),
                what,
                last_good: Some(last),
            };
            let row = match rows.next() {
                Ok(Some(row)) => row,
                Ok(None) => break,
                Err(source) => return Err(self.at(last, source).into()),
            };
            let read = || Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get::<_, String>(3)?));
            let (number, at, linked, text): (u64, i64, Link, _) =
                read().map_err(|source| self.at(last, source))?;
            if number != last + 1 {
                return Err(damaged(format!("entry {} is missing", last + 1)).into());
            }
            if chained {
                link = chain::next(link, number, at, &text);
                if link != linked {
                    return Err(damaged(format!("entry {number} is not as it was written")).into());
                }
            }
            let entry = Entry::from_text(&text)
                .map_err(|source| damaged(format!("entry {number}: {source}")))?;
            if entry.at.micros() != at {
                return Err(damaged(format!("entry {number}: two times")).into());
            }
            take(number, entry)?;
            last = number;
        }
        if last < self.head.last {
            let what = format!("entries {} to {} are missing", last + 1, self.head.last);
            let path = self.path.clone();
            return Err(StoreError::Damaged { path, what, last_good: Some(last) }.into());
        }
        Ok(())
    }

    /// What SQLite said when it read what comes after an entry.
    fn at(&self, last: u64, source: rusqlite::Error) -> StoreError {
        match self.sql(source) {
            StoreError::Damaged { path, what, .. } => {
                StoreError::Damaged { path, what, last_good: Some(last) }
            }
            other => other,
        }
    }

    /// When the last entry was written.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn last_time(&self) -> Result<Option<Timestamp>, StoreError> {
        let ask = "SELECT at FROM journal ORDER BY number DESC LIMIT 1";
        let last = self.connection.query_row(ask, (), |row| row.get(0)).optional();
        Ok(last.map_err(|e| self.sql(e))?.map(Timestamp::from_micros))
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.head.last
    }

    /// Whether nothing has been written down yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the journal is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How often it was opened for writing.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.head.epoch
    }

    /// The file may grow to this many bytes and no more.
    ///
    /// # Errors
    /// When SQLite does not take it.
    pub fn limit_size(&self, bytes: u64) -> Result<(), StoreError> {
        let sql = |source| self.sql(source);
        let page: i64 =
            self.connection.pragma_query_value(None, "page_size", |row| row.get(0)).map_err(sql)?;
        let pages = (bytes / page.max(1) as u64).max(1) as i64;
        // It answers with what holds now.
        let ask = format!("PRAGMA max_page_count = {pages}");
        self.connection.query_row(&ask, (), |_| Ok(())).map_err(sql)
    }

    fn sql(&self, source: rusqlite::Error) -> StoreError {
        StoreError::sql(&self.path, source)
    }

    fn damaged(&self, what: impl Into<String>) -> StoreError {
        StoreError::damaged(&self.path, what)
    }
}

/// Whether the file is SQLite's and as long as it says. SQLite would take a short one for a new one.
fn check_header(path: &Path, header: &[u8], length: u64) -> Result<(), StoreError> {
    if header.is_empty() {
        return Ok(());
    }
    let magic = &header[..header.len().min(MAGIC.len())];
    if !MAGIC.starts_with(magic) || (magic.len() < MAGIC.len() && files::companion(path).is_none())
    {
        return Err(StoreError::Foreign(path.to_owned()));
    }
    let wal = std::fs::metadata(beside(path, files::WAL)).is_ok_and(|about| about.len() > 0);
    let says = match says_length(header) {
        // What is missing may be in the WAL.
        Some(says) if wal || says <= length => return Ok(()),
        Some(says) => format!("{says} bytes"),
        None => "more".to_owned(),
    };
    Err(StoreError::damaged(path, format!("it is cut off: it has {length} bytes, and had {says}")))
}

/// Whether a file says that what was written last may be in a WAL beside it. A copy by `journal
/// backup` says that it is complete by itself.
fn has_wal_mode(header: &[u8]) -> bool {
    header.get(18) == Some(&2)
}

/// Whether the last writer has not ended, or not in order.
fn is_open(about: &BTreeMap<String, String>) -> bool {
    about.get(WRITER).is_some_and(|writer| writer == WRITES)
}

/// How long a file is, by its header.
fn says_length(header: &[u8]) -> Option<u64> {
    let number = |at: std::ops::Range<usize>| {
        let bytes = header.get(at)?;
        Some(bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    header.get(HEADER - 1)?;
    // The largest page size does not fit into its field.
    let page = match number(16..18)? {
        1 => 65_536,
        size => size,
    };
    Some(page * number(28..32)?)
}

/// The format of a journal; none if nothing was written yet. Nothing is changed before that is
/// known.
fn format(path: &Path, connection: &Connection) -> Result<Option<i64>, StoreError> {
    let sql = |source| StoreError::sql(path, source);
    let pragma = |name: &str| -> Result<i64, StoreError> {
        connection.pragma_query_value(None, name, |row| row.get(0)).map_err(sql)
    };
    let tables = "SELECT count(*) FROM sqlite_schema";
    let tables: i64 = connection.query_row(tables, (), |row| row.get(0)).map_err(sql)?;
    match pragma("application_id")? {
        0 if tables == 0 => Ok(None),
        APPLICATION => pragma("user_version").map(Some),
        _ => Err(StoreError::Foreign(path.to_owned())),
    }
}

fn begin(connection: &Connection, about: &[(&str, &str)]) -> Result<(), rusqlite::Error> {
    let journal = "SELECT lower(hex(randomblob(16)))";
    let journal: String = connection.query_row(journal, (), |row| row.get(0))?;
    let begin = connection.unchecked_transaction()?;
    for schema in [SCHEMA, head::SCHEMA, snapshot::SCHEMA, hours::SCHEMA, job_history::SCHEMA] {
        begin.execute_batch(schema)?;
    }
    begin.pragma_update(None, "application_id", APPLICATION)?;
    begin.pragma_update(None, "user_version", FORMAT)?;
    for (what, value) in about {
        begin.execute("INSERT INTO about VALUES (?1, ?2)", (what, value))?;
    }
    let about = about.iter().map(|(what, value)| ((*what).to_owned(), (*value).to_owned()));
    let about = chain::about(&journal, &about.collect());
    Head::new(journal, about).insert(&begin)?;
    begin.commit()
}

/// Whether SQLite finds its file sound. Where there is a snapshot, old entries are not read, and
/// looking through them would take minutes; what is read is checked as it is read.
fn quick_check(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    let sql = |source| StoreError::sql(path, source);
    let snapshots = "SELECT count(*) FROM snapshot";
    let snapshots: i64 = connection.query_row(snapshots, (), |row| row.get(0)).map_err(sql)?;
    let checks: &[&str] = if snapshots == 0 { &["1"] } else { &["about", "head"] };
    for check in checks {
        let check = format!("PRAGMA quick_check({check})");
        let found = connection.query_row(&check, (), |row| row.get::<_, String>(0)).map_err(sql)?;
        if found != "ok" {
            return Err(StoreError::damaged(path, found));
        }
    }
    Ok(())
}

fn read_about(
    path: &Path,
    connection: &Connection,
) -> Result<BTreeMap<String, String>, StoreError> {
    let read = || -> rusqlite::Result<BTreeMap<String, String>> {
        let mut ask = connection.prepare("SELECT what, value FROM about NOT INDEXED")?;
        let rows = ask.query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect()
    };
    read().map_err(|source| StoreError::sql(path, source))
}

/// What format 1 says about how far it goes.
fn head_of_format_1(
    path: &Path,
    connection: &Connection,
    about: &BTreeMap<String, String>,
) -> Result<Head, StoreError> {
    let number = |what: &str| -> Result<u64, StoreError> {
        let Some(text) = about.get(what) else { return Ok(0) };
        text.parse().map_err(|_| StoreError::damaged(path, format!("'{what}' is no number")))
    };
    let (pruned, pruned_jobs) = (number("pruned")?, number("jobs in what was pruned")?);
    let last = connection
        .query_row("SELECT max(number) FROM journal", (), |row| row.get::<_, Option<u64>>(0));
    let last = last.map_err(|source| StoreError::sql(path, source))?;
    let last = last.unwrap_or(0).max(pruned);
    Ok(Head { last, pruned, pruned_jobs, ..Head::new(String::new(), 0) })
}

/// How a journal is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// What SQLite takes for damaged is refused.
    Strictly,
    /// What is left of it is read.
    WhatIsLeft,
}

/// A connection that changes nothing.
fn connect(path: &Path, how: How) -> Result<Connection, StoreError> {
    let sql = |source| StoreError::sql(path, source);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let prepared = |connection: Connection| -> Result<Connection, rusqlite::Error> {
        connection.busy_timeout(PATIENCE)?;
        if how == How::WhatIsLeft {
            // SQLite then reads the pages that are there of a file that has fewer than it says.
            connection.pragma_update(None, "writable_schema", true)?;
        }
        Ok(connection)
    };
    let connection = Connection::open_with_flags(path, flags).and_then(prepared).map_err(sql)?;
    let ask = "SELECT count(*) FROM sqlite_schema";
    match connection.query_row(ask, (), |_| Ok(())) {
        Ok(()) => return Ok(connection),
        // To share the file with a writer takes files beside it. Where none can be made there is
        // nothing to share, unless a writer has left some.
        Err(error) if is_in_the_way(&error) && !beside(path, files::WAL).exists() => {}
        Err(error) => return Err(sql(error)),
    }
    connect_alone(path).and_then(prepared).map_err(sql)
}

/// A connection to a file that nobody writes; makes no files beside it.
fn connect_alone(path: &Path) -> Result<Connection, rusqlite::Error> {
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
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(url, flags)
}

fn is_in_the_way(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly))
}
