//! Snapshots: what all entries up to one have come to, so that these need not be read again.
//!
//! Each is written in a transaction of its own and has a checksum; the last two are kept, so that
//! one that cannot be read does no harm. Entries before the older of the two may be thrown away,
//! if the owner wants that.

use super::{Store, StoreError, of};
use rusqlite::{OptionalExtension, TransactionBehavior};
use wattline_core::Timestamp;
use wattline_core::units::Seconds;

pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS snapshot (
    number INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    format INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    image BLOB NOT NULL
) STRICT;
";

/// To be raised when the same bytes would mean something else. Fields that come or go are noticed
/// without it.
const FORMAT: i64 = 1;
/// Snapshots that are kept.
const KEPT: i64 = 2;
/// Entries that are thrown away at a time, so that nobody waits for long.
const MOST_PRUNED: u64 = 20_000;
/// Where it says how many are gone, and how many jobs were submitted in them.
const PRUNED: &str = "pruned";
const PRUNED_JOBS: &str = "jobs in what was pruned";

/// Which snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The last entry in it.
    pub number: u64,
    /// What time it was.
    pub at: Timestamp,
}

/// Which entries are kept though no restart needs them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Keep {
    /// Those that are younger than this; all, if not set.
    pub younger_than: Option<Seconds>,
}

impl Store {
    /// The snapshots that there are, newest first.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn saved(&self) -> Result<Vec<Saved>, StoreError> {
        let sql = |source| of(&self.path, source);
        let ask = "SELECT count(*) FROM sqlite_schema WHERE name = 'snapshot'";
        let there: i64 = self.connection.query_row(ask, (), |row| row.get(0)).map_err(sql)?;
        if there == 0 {
            return Ok(Vec::new());
        }
        let ask = "SELECT number, at FROM snapshot ORDER BY number DESC";
        let mut ask = self.connection.prepare(ask).map_err(sql)?;
        let saved = ask.query_map((), |row| {
            let (number, at): (i64, i64) = (row.get(0)?, row.get(1)?);
            Ok(Saved { number: number.max(0) as u64, at: Timestamp::from_micros(at) })
        });
        saved.and_then(Iterator::collect).map_err(sql)
    }

    /// The bytes of a snapshot, or why they are not to be believed.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn recall(&self, saved: Saved) -> Result<Result<Vec<u8>, String>, StoreError> {
        if saved.number > self.len() {
            return Ok(Err("it is of entries that are not there".into()));
        }
        let ask = "SELECT format, checksum, image FROM snapshot WHERE number = ?1";
        let row = self.connection.query_row(ask, [saved.number as i64], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, Vec<u8>>(2)?))
        });
        let (format, checksum, packed) = match row.map_err(|source| of(&self.path, source)) {
            Ok(row) => row,
            Err(StoreError::Damaged { what, .. }) => return Ok(Err(what)),
            Err(error) => return Err(error),
        };
        if format != FORMAT {
            return Ok(Err(format!("it has format {format}, this program reads {FORMAT}")));
        }
        if i64::from(crc32fast::hash(&packed)) != checksum {
            return Ok(Err("it is damaged".into()));
        }
        Ok(lz4_flex::decompress_size_prepended(&packed).map_err(|error| error.to_string()))
    }

    /// Writes a snapshot down, and throws away what need not be kept. When this returns it is on
    /// the disk.
    ///
    /// # Errors
    /// When it could not be written; then nothing has changed.
    pub fn save(&mut self, saved: Saved, image: &[u8], keep: &Keep) -> Result<(), StoreError> {
        let packed = lz4_flex::compress_prepend_size(image);
        let checksum = i64::from(crc32fast::hash(&packed));
        let (pruned, jobs_before) = (self.pruned()?, self.pruned_jobs()?);
        let write = || -> Result<(), rusqlite::Error> {
            let transaction = rusqlite::Transaction::new_unchecked(
                &self.connection,
                TransactionBehavior::Immediate,
            )?;
            transaction.execute(
                "INSERT OR REPLACE INTO snapshot VALUES (?1, ?2, ?3, ?4, ?5)",
                (saved.number as i64, saved.at.micros(), FORMAT, checksum, &packed),
            )?;
            transaction.execute(
                "DELETE FROM snapshot WHERE number NOT IN
                 (SELECT number FROM snapshot ORDER BY number DESC LIMIT ?1)",
                [KEPT],
            )?;
            if let Some(age) = keep.younger_than {
                // With a single snapshot everything is kept: it may turn out to be damaged.
                let needed = "SELECT min(number) FROM snapshot HAVING count(*) >= ?1";
                let needed = transaction.query_row(needed, [KEPT], |row| row.get::<_, i64>(0));
                let last = needed.optional()?.unwrap_or(0).min((pruned + MOST_PRUNED) as i64);
                let old = "SELECT coalesce(max(number), 0) FROM
                           (SELECT number, at FROM journal WHERE number <= ?1) WHERE at < ?2";
                let before = (saved.at - age).micros();
                let last: i64 = transaction.query_row(old, (last, before), |row| row.get(0))?;
                if last > pruned as i64 {
                    let jobs = "SELECT count(*) FROM journal, json_each(entry, '$.events') AS event
                                WHERE number <= ?1
                                AND json_extract(event.value, '$.submitted') IS NOT NULL";
                    let jobs: i64 = transaction.query_row(jobs, [last], |row| row.get(0))?;
                    transaction.execute("DELETE FROM journal WHERE number <= ?1", [last])?;
                    let note = "INSERT OR REPLACE INTO about VALUES (?1, ?2)";
                    transaction.execute(note, (PRUNED, last.to_string()))?;
                    transaction
                        .execute(note, (PRUNED_JOBS, (jobs_before + jobs as u64).to_string()))?;
                }
            }
            transaction.commit()
        };
        write().map_err(|source| of(&self.path, source))?;
        self.last_saved = saved.number;
        Ok(())
    }

    /// The last entry in the newest snapshot; 0 if there is none.
    #[must_use]
    pub fn last_saved(&self) -> u64 {
        self.last_saved
    }

    /// How many entries were thrown away.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn pruned(&self) -> Result<u64, StoreError> {
        self.number(PRUNED)
    }

    /// How many jobs were submitted in entries that were thrown away.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn pruned_jobs(&self) -> Result<u64, StoreError> {
        self.number(PRUNED_JOBS)
    }

    fn number(&self, what: &str) -> Result<u64, StoreError> {
        let Some(value) = self.about(what)? else { return Ok(0) };
        value.parse().map_err(|_| StoreError::Damaged {
            path: self.path.clone(),
            what: format!("'{what}' is no number"),
        })
    }

    /// What it was begun with.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn about(&self, what: &str) -> Result<Option<String>, StoreError> {
        let ask = "SELECT value FROM about WHERE what = ?1";
        let value = self.connection.query_row(ask, [what], |row| row.get::<_, String>(0));
        value.optional().map_err(|source| of(&self.path, source))
    }

    /// Whether all entries are there.
    ///
    /// # Errors
    /// When some were thrown away.
    pub(crate) fn whole(&self) -> Result<(), StoreError> {
        match self.pruned()? {
            0 => Ok(()),
            pruned => Err(StoreError::Pruned { path: self.path.clone(), pruned }),
        }
    }
}
