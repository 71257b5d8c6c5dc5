//! Snapshots: what all entries up to one have come to, so that these need not be read again.
//!
//! Each is written in a transaction of its own, has a checksum and says after which entry of which
//! journal it was taken; the last two are kept, so that one that cannot be read does no harm.
//! Entries before the older of the two may be thrown away, if the owner wants that.

use super::chain::{self, Link};
use super::head::Head;
use super::{Store, StoreError, prune};
use crate::job_history;
use rusqlite::{Connection, OptionalExtension};
use wattline_core::Timestamp;
use wattline_core::units::Seconds;

pub(super) const SCHEMA: &str = "
CREATE TABLE snapshot (
    number INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    format INTEGER NOT NULL,
    link INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    image BLOB NOT NULL
) STRICT;
";

/// To be raised when the same bytes would mean something else. Fields that come or go are noticed
/// without it.
const FORMAT: i64 = 1;
/// Snapshots that are kept.
pub(super) const KEPT: u64 = 2;
/// Entries, or ended jobs, that are thrown away at a time, so that nobody waits for long.
const MOST_PRUNED: u64 = 20_000;

/// Which snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The last entry in it.
    pub number: u64,
    /// What time it was.
    pub at: Timestamp,
}

/// What is kept though no restart needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Keep {
    /// Entries that are younger than this; all, if not set.
    pub younger_than: Option<Seconds>,
    /// Jobs that ended no longer ago than this; all, if not set.
    pub ended_within: Option<Seconds>,
}

/// The snapshots that there are, newest first.
pub(super) fn saved(connection: &Connection) -> rusqlite::Result<Vec<Saved>> {
    let ask = "SELECT count(*) FROM sqlite_schema WHERE name = 'snapshot'";
    let there: i64 = connection.query_row(ask, (), |row| row.get(0))?;
    if there == 0 {
        return Ok(Vec::new());
    }
    let mut ask = connection.prepare("SELECT number, at FROM snapshot ORDER BY number DESC")?;
    let saved = ask.query_map((), |row| {
        let (number, at): (i64, i64) = (row.get(0)?, row.get(1)?);
        Ok(Saved { number: number.max(0) as u64, at: Timestamp::from_micros(at) })
    })?;
    saved.collect()
}

impl Store {
    /// The snapshots that there are, newest first.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn saved(&self) -> Result<Vec<Saved>, StoreError> {
        saved(&self.connection).map_err(|e| self.sql(e))
    }

    /// The bytes of a snapshot, or why they are not to be believed.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn load_snapshot(&self, saved: Saved) -> Result<Result<Vec<u8>, String>, StoreError> {
        if saved.number > self.len() {
            return Ok(Err("it is of entries that are not there".into()));
        }
        let ask = "SELECT format, link, checksum, image FROM snapshot WHERE number = ?1";
        let row = self.connection.query_row(ask, [saved.number], |row| {
            let (format, link): (i64, Link) = (row.get(0)?, row.get(1)?);
            Ok((format, link, row.get::<_, u32>(2)?, row.get::<_, Vec<u8>>(3)?))
        });
        let (format, link, checksum, packed) = match row.map_err(|e| self.sql(e)) {
            Ok(row) => row,
            Err(StoreError::Damaged { what, .. }) => return Ok(Err(what)),
            Err(error) => return Err(error),
        };
        if format != FORMAT {
            return Ok(Err(format!("it has format {format}, this program reads {FORMAT}")));
        }
        if self.checksum(saved, link, &packed) != checksum {
            return Ok(Err("it is damaged".into()));
        }
        match self.link(saved.number) {
            Ok(there) if there == link => {}
            Ok(_) | Err(StoreError::Damaged { .. }) => {
                return Ok(Err(format!(
                    "entry {} is not the one it was taken after",
                    saved.number
                )));
            }
            Err(error) => return Err(error),
        }
        Ok(lz4_flex::decompress_size_prepended(&packed).map_err(|error| error.to_string()))
    }

    fn checksum(&self, saved: Saved, link: Link, packed: &[u8]) -> u32 {
        let number = saved.number.to_le_bytes();
        let at = saved.at.micros().to_le_bytes();
        let parts = [&number[..], &at, &FORMAT.to_le_bytes(), &link.to_le_bytes(), packed];
        chain::checksum(&self.head.journal, &parts)
    }

    /// Writes a snapshot down, and throws away what need not be kept. When this returns it is on
    /// the disk.
    ///
    /// # Errors
    /// When it could not be written; then nothing has changed.
    pub fn save(&mut self, saved: Saved, image: &[u8], keep: &Keep) -> Result<(), StoreError> {
        let packed = lz4_flex::compress_prepend_size(image);
        let link = self.link(saved.number)?;
        let checksum = self.checksum(saved, link, &packed);
        let mut head = self.head.clone();
        self.write(|before, transaction| {
            transaction.execute(
                "INSERT OR REPLACE INTO snapshot VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                (saved.number, saved.at.micros(), FORMAT, link, checksum, &packed),
            )?;
            transaction.execute(
                "DELETE FROM snapshot WHERE number NOT IN
                 (SELECT number FROM snapshot ORDER BY number DESC LIMIT ?1)",
                [KEPT],
            )?;
            if let Some(age) = keep.younger_than {
                // With a single snapshot everything is kept: it may turn out to be damaged.
                let needed = "SELECT min(number) FROM snapshot HAVING count(*) >= ?1";
                let needed = transaction.query_row(needed, [KEPT], |row| row.get::<_, u64>(0));
                let needed = needed.optional()?.unwrap_or(0).min(head.pruned + MOST_PRUNED);
                let last = prune::older_than(transaction, saved.at - age, needed)?;
                head = prune::drop_until(transaction, &head, last)?;
            }
            if let Some(age) = keep.ended_within {
                job_history::drop_before(transaction, saved.at - age, MOST_PRUNED)?;
            }
            before.replace(transaction, &head)
        })?;
        self.head = head;
        self.last_saved = saved.number;
        if let Some(writer) = &self.writer {
            writer.state.sync();
        }
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
    /// None at present: it was read when the journal was opened.
    pub fn pruned(&self) -> Result<u64, StoreError> {
        Ok(self.head.pruned)
    }

    /// How many jobs were submitted in entries that were thrown away.
    ///
    /// # Errors
    /// None at present: it was read when the journal was opened.
    pub fn pruned_jobs(&self) -> Result<u64, StoreError> {
        Ok(self.head.pruned_jobs)
    }

    /// Whether all entries are there.
    ///
    /// # Errors
    /// When some were thrown away.
    pub(crate) fn whole(&self) -> Result<(), StoreError> {
        match self.head {
            Head { pruned: 0, .. } => Ok(()),
            Head { pruned, .. } => Err(StoreError::Pruned { path: self.path.clone(), pruned }),
        }
    }
}
