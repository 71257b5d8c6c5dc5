//! The whole check of a journal: what is damaged, and what can be saved.

use super::chain::{self, Link};
use super::files::{self, State, beside};
use super::head::Head;
use super::{FORMAT, How, Store, StoreError, WITHOUT_DECISIONS};
use super::{check_header, connect, format, has_wal_mode, hours, is_open, read_about, snapshot};
use crate::job_history;
use rusqlite::Connection;
use std::io::Read;
use std::path::Path;

/// Faults of SQLite's own structures that are told one by one.
const MOST_FAULTS: u32 = 20;

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// The format; none if even that cannot be read.
    pub format: Option<i64>,
    /// The journal's own identifier.
    pub journal: Option<String>,
    /// How often it was opened for writing.
    pub epoch: Option<u64>,
    /// The last entry that was written, as far as that can be told.
    pub last: Option<u64>,
    /// Entries up to this one were thrown away.
    pub pruned: u64,
    /// All entries after those that were thrown away up to this one are as they were written.
    pub last_good: u64,
    /// When that was, in microseconds since 1970, or since the beginning of an emulated cluster.
    pub last_good_at: Option<i64>,
    /// What is wrong. Nothing: the journal is sound.
    pub problems: Vec<String>,
    /// The snapshots, newest first.
    pub snapshots: Vec<SnapshotCheck>,
}

/// Whether a snapshot can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotCheck {
    /// The last entry in it.
    pub number: u64,
    /// Why it cannot be used.
    pub wrong: Option<String>,
}

impl Verification {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    /// How many entries can be read one after the other from the first one that was kept.
    #[must_use]
    pub fn readable(&self) -> u64 {
        self.last_good - self.pruned
    }

    /// What can be saved, in a sentence.
    #[must_use]
    pub fn can_be_saved(&self) -> String {
        let snapshot = self.snapshots.iter().find(|snapshot| snapshot.wrong.is_none());
        let entries = match self.readable() {
            0 => "no entry can be read".to_owned(),
            _ => format!("entries {} to {} can be read", self.pruned + 1, self.last_good),
        };
        match snapshot {
            Some(snapshot) => {
                format!("{entries}; the snapshot after entry {} is sound", snapshot.number)
            }
            None if self.pruned > 0 => format!("{entries}; no snapshot is sound"),
            None => entries,
        }
    }
}

/// Checks a journal from its first byte to its last. A controller may be writing it.
///
/// # Errors
/// When there is no such file, or it is no journal at all. What else is wrong is in the result.
pub fn verify(path: &Path) -> Result<Verification, StoreError> {
    let file = files::resolve(path)?;
    let mut found = Verification::default();
    if let Err(error) = files::check_gone(&file) {
        found.problems.push(error.to_string());
        return Ok(found);
    }
    std::fs::metadata(&file).map_err(|source| StoreError::io(path, source))?;
    let alone = is_alone(&file)?;
    // Before the journal: it may be written meanwhile.
    let state = State::read(&file);
    match check_length(&file) {
        Err(StoreError::Damaged { what, .. }) => found.problems.push(what),
        checked => checked?,
    }
    let checked = connect(&file, How::WhatIsLeft)
        .and_then(|connection| check(&file, alone, &connection, state.as_ref(), &mut found));
    match checked {
        Ok(()) => {}
        // What is left of a journal is one all the same.
        Err(StoreError::Foreign(_)) if found.problems.is_empty() => {
            return Err(StoreError::Foreign(path.to_owned()));
        }
        Err(StoreError::Damaged { what, .. }) => found.problems.push(what),
        Err(error) => found.problems.push(error.to_string()),
    }
    Ok(found)
}

/// Why a file of SQLite's has no table in it: its entries were in a WAL that is not there.
fn nothing_in_it(path: &Path, state: Option<&State>) -> StoreError {
    let path = path.to_owned();
    match files::companion(&path) {
        Some(companion) => {
            let entries = state.map(|state| state.last);
            StoreError::Gone { path, how: "empty", companion, entries }
        }
        None if std::fs::metadata(&path).is_ok_and(|about| about.len() > 0) => {
            StoreError::CopiedWithoutWal(path)
        }
        None => StoreError::Foreign(path),
    }
}

/// Whether a file is as long as it says. The length is asked for last: a writer may add to the file
/// meanwhile.
pub(super) fn check_length(path: &Path) -> Result<(), StoreError> {
    let header = header(path)?;
    let about = std::fs::metadata(path).map_err(|source| StoreError::io(path, source))?;
    check_header(path, &header, about.len())
}

/// Whether a file that may need a WAL has nothing beside it that says it was written there.
pub(super) fn is_alone(path: &Path) -> Result<bool, StoreError> {
    Ok(has_wal_mode(&header(path)?) && !files::was_written_here(path))
}

/// The beginning of a file; nothing of one that this process writes, where closing a second
/// handle would end SQLite's locks.
fn header(path: &Path) -> Result<Vec<u8>, StoreError> {
    let mut header = Vec::new();
    if files::is_held(path) {
        return Ok(header);
    }
    let file = std::fs::File::open(path).map_err(|source| StoreError::io(path, source))?;
    file.take(super::HEADER as u64)
        .read_to_end(&mut header)
        .map_err(|source| StoreError::io(path, source))?;
    Ok(header)
}

fn check(
    path: &Path,
    alone: bool,
    connection: &Connection,
    state: Option<&State>,
    found: &mut Verification,
) -> Result<(), StoreError> {
    let sql = |source| StoreError::sql(path, source);
    // One transaction to the end: everything is of the same time.
    connection.execute_batch("BEGIN").map_err(sql)?;
    found.format = format(path, connection)?;
    match found.format {
        Some(FORMAT) => {}
        Some(WITHOUT_DECISIONS) => {
            found.problems.push("it has format 1, which has no checksums".to_owned());
            return Ok(());
        }
        Some(other) => {
            found.problems.push(format!("it has format {other}, this program reads {FORMAT}"));
            return Ok(());
        }
        None => return Err(nothing_in_it(path, state)),
    }
    let structure = structure(connection);
    let head = match Head::read(connection) {
        Ok(Ok(head)) => Some(head),
        Ok(Err(what)) => {
            found.problems.push(what);
            None
        }
        Err(error) => {
            found.problems.push(format!("the row that says how far it goes: {error}"));
            None
        }
    };
    check_entries(path, connection, head.as_ref(), found)?;
    if let Some(head) = &head {
        found.journal = Some(head.journal.clone());
        found.epoch = Some(head.epoch);
        match read_about(path, connection) {
            Ok(about) if chain::about(&head.journal, &about) == head.about => {
                if alone && is_open(&about) {
                    let (path, last) = (path.to_owned(), head.last);
                    let taken = StoreError::TakenWithoutWal { path, last };
                    found.problems.push(taken.to_string());
                }
            }
            Ok(_) => found.problems.push("what it says about itself has changed".to_owned()),
            Err(error) => found.problems.push(format!("what it says about itself: {error}")),
        }
        match hours::rows(connection, &head.journal) {
            Ok(rows) => {
                let wrong = rows.iter().filter(|(_, _, sound)| !sound).count();
                if wrong > 0 {
                    found.problems.push(format!("the power of {wrong} hours is damaged"));
                }
            }
            Err(error) => found.problems.push(format!("the power by the hour: {error}")),
        }
        match job_history::damaged(connection, &head.journal) {
            Ok(0) => {}
            Ok(wrong) => found.problems.push(format!("what became of {wrong} jobs is damaged")),
            Err(error) => found.problems.push(format!("the ended jobs: {error}")),
        }
        compare(path, head, state, found);
    }
    check_snapshots(path, connection, found);
    // Last: what it means is said above.
    found.problems.extend(structure.into_iter().map(|fault| format!("SQLite says: {fault}")));
    Ok(())
}

/// What SQLite finds wrong about its own structures.
fn structure(connection: &Connection) -> Vec<String> {
    let check = || -> rusqlite::Result<Vec<String>> {
        let mut check = connection.prepare(&format!("PRAGMA integrity_check({MOST_FAULTS})"))?;
        let faults = check.query_map((), |row| row.get::<_, String>(0))?;
        faults.collect()
    };
    match check() {
        Ok(faults) => faults.into_iter().filter(|fault| fault != "ok").collect(),
        Err(error) => vec![error.to_string()],
    }
}

fn check_entries(
    path: &Path,
    connection: &Connection,
    head: Option<&Head>,
    found: &mut Verification,
) -> Result<(), StoreError> {
    let (pruned, link) =
        head.map_or((None, None), |head| (Some(head.pruned), Some(head.pruned_link)));
    let first = "SELECT min(number) FROM journal";
    let first = connection.query_row(first, (), |row| row.get::<_, Option<u64>>(0));
    let first = first.unwrap_or_default().unwrap_or(1).max(1);
    let after = pruned.unwrap_or(first - 1);
    found.pruned = after;
    let walk = walk(connection, after, link, i64::MAX as u64)
        .map_err(|source| StoreError::sql(path, source))?;
    (found.last_good, found.last_good_at) = (walk.last_good, walk.last_good_at);
    found.last = head.map(|head| head.last);
    if let Some(wrong) = walk.wrong {
        found.problems.push(wrong);
    } else if let Some(head) = head
        && walk.last_good != head.last
    {
        let (last_good, last) = (walk.last_good, head.last);
        found.problems.push(if last_good < last {
            format!("entries {} to {last} are missing", last_good + 1)
        } else {
            format!("entry {last} should be the last one, and there is entry {last_good}")
        });
    } else if let Some(head) = head
        && walk.link.is_some_and(|link| link != head.link)
    {
        found.problems.push(format!("entry {} is not the one that was written", head.last));
        found.last_good = found.last_good.saturating_sub(1).max(after);
    }
    Ok(())
}

fn compare(path: &Path, head: &Head, state: Option<&State>, found: &mut Verification) {
    let Some(state) = state else { return };
    let beside = beside(path, files::STATE);
    if state.journal != head.journal {
        found.problems.push(format!("{} is of another journal", beside.display()));
    } else if state.last > head.last {
        found.last = Some(state.last);
        found.problems.push(format!(
            "entries {} to {} are missing: {} says that they were written",
            head.last + 1,
            state.last,
            beside.display()
        ));
    }
}

fn check_snapshots(path: &Path, connection: &Connection, found: &mut Verification) {
    // A store of its own, because a snapshot is judged by what the journal says at the same time.
    let store = Store::look_unchecked(path);
    let saved = match &store {
        Ok(store) => snapshot::saved(&store.connection),
        Err(_) => snapshot::saved(connection),
    };
    let saved = match saved {
        Ok(saved) => saved,
        Err(error) => {
            found.problems.push(format!("the snapshots: {error}"));
            return;
        }
    };
    for one in saved {
        let wrong = match &store {
            Ok(store) => match store.load_snapshot(one) {
                Ok(recalled) => recalled.err(),
                Err(error) => Some(error.to_string()),
            },
            Err(error) => Some(error.to_string()),
        };
        if let Some(wrong) = &wrong {
            found.problems.push(format!("the snapshot after entry {}: {wrong}", one.number));
        }
        found.snapshots.push(SnapshotCheck { number: one.number, wrong });
    }
}

/// How far entries can be read one after the other.
pub(super) struct Walk {
    pub(super) last_good: u64,
    last_good_at: Option<i64>,
    /// Its link, if there is one.
    link: Option<Link>,
    /// What is wrong about the next.
    pub(super) wrong: Option<String>,
}

/// Follows the chain from an entry on, to another. Without a link to begin with, the first entry is
/// taken as it is.
pub(super) fn walk(
    connection: &Connection,
    after: u64,
    link: Option<Link>,
    until: u64,
) -> rusqlite::Result<Walk> {
    let mut walk = Walk { last_good: after, last_good_at: None, link, wrong: None };
    let ask = "SELECT number, at, link, entry FROM journal WHERE number > ?1 ORDER BY number";
    let mut ask = match connection.prepare(ask) {
        Ok(ask) => ask,
        Err(error) => {
            walk.wrong = Some(error.to_string());
            return Ok(walk);
        }
    };
    let mut rows = ask.query([after])?;
    while walk.last_good < until {
        let expected = walk.last_good + 1;
        let row = rows.next().and_then(|row| {
            let Some(row) = row else { return Ok(None) };
            let (number, at): (u64, i64) = (row.get(0)?, row.get(1)?);
            Ok(Some((number, at, row.get::<_, Link>(2)?, row.get::<_, String>(3)?)))
        });
        let (number, at, linked, text) = match row {
            Ok(Some(row)) => row,
            Ok(None) => break,
            Err(error) => {
                walk.wrong = Some(format!("entry {expected} cannot be read: {error}"));
                break;
            }
        };
        if number != expected {
            walk.wrong = Some(format!("entry {expected} is missing"));
            break;
        }
        if walk.link.is_some_and(|before| chain::next(before, number, at, &text) != linked) {
            walk.wrong = Some(format!("entry {number} is not as it was written"));
            break;
        }
        (walk.last_good, walk.last_good_at, walk.link) = (number, Some(at), Some(linked));
    }
    Ok(walk)
}

/// Says up to which entry a damaged journal can be read, if that is not known yet.
pub(super) fn with_last_good(error: StoreError, path: &Path) -> StoreError {
    let StoreError::Damaged { path: named, what, last_good: None } = error else { return error };
    let mut found = Verification::default();
    // Whatever fails here: then no entry can be read.
    let _ = connect(path, How::WhatIsLeft).and_then(|connection| {
        let head = Head::read(&connection).ok().and_then(Result::ok);
        check_entries(path, &connection, head.as_ref(), &mut found)
    });
    StoreError::Damaged { path: named, what, last_good: Some(found.last_good) }
}
