//! Power by the hour. Nothing follows from it: what was not written down before a crash is missing
//! in reports, and nowhere else.

use super::head::Head;
use super::{Store, StoreError, chain};
use crate::daemon::Hour;
use rusqlite::Connection;
use wattline_core::Timestamp;

pub(super) const SCHEMA: &str = "
CREATE TABLE power (
    hour INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    load TEXT NOT NULL
) STRICT;
";

fn checksum(journal: &str, hour: i64, load: &str) -> u32 {
    chain::checksum(journal, &[&hour.to_le_bytes(), load.as_bytes()])
}

/// A row, and whether it is as it was written.
type Row = (i64, String, bool);

/// All rows.
pub(super) fn rows(connection: &Connection, journal: &str) -> rusqlite::Result<Vec<Row>> {
    let mut ask = connection.prepare("SELECT hour, checksum, load FROM power ORDER BY hour")?;
    let rows = ask.query_map((), |row| {
        let (hour, sum, load): (i64, u32, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let sound = checksum(journal, hour, &load) == sum;
        Ok((hour, load, sound))
    })?;
    rows.collect()
}

impl Store {
    /// All hours that were written down, by when they begin. One that is damaged is left out.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn hours(&self) -> Result<Vec<(Timestamp, Hour)>, StoreError> {
        let rows = rows(&self.connection, &self.head.journal).map_err(|e| self.sql(e))?;
        let hour = |(at, load, _): Row| {
            Some((Timestamp::from_micros(at), serde_json::from_str(&load).ok()?))
        };
        Ok(rows.into_iter().filter(|(_, _, sound)| *sound).filter_map(hour).collect())
    }

    /// Writes hours down, in place of what was written of them before. With none it only looks
    /// whether this is still the only writer.
    ///
    /// # Errors
    /// When they could not be written; then nothing has changed.
    pub fn write_hours(&mut self, hours: &[(Timestamp, Hour)]) -> Result<(), StoreError> {
        let journal = self.head.journal.clone();
        self.write(|head: &Head, transaction| {
            let mut insert =
                transaction.prepare_cached("INSERT OR REPLACE INTO power VALUES (?1, ?2, ?3)")?;
            for (at, hour) in hours {
                let load = serde_json::to_string(hour).unwrap_or_default();
                insert.execute((at.micros(), checksum(&journal, at.micros(), &load), load))?;
            }
            head.stands(transaction)
        })
    }

    /// Whether anything could be written: a row comes and goes in one transaction, which writes as
    /// much as any other.
    ///
    /// # Errors
    /// When it could not.
    pub(crate) fn try_to_write(&self) -> Result<(), StoreError> {
        self.write(|head: &Head, transaction| {
            transaction.execute("INSERT INTO power VALUES (?1, 0, '')", [i64::MAX])?;
            transaction.execute("DELETE FROM power WHERE hour = ?1", [i64::MAX])?;
            head.stands(transaction)
        })
    }

    /// As on a disk that is full: nothing can be written.
    #[cfg(test)]
    pub(crate) fn refuse_writes(&self, refuse: bool) -> Result<(), StoreError> {
        self.connection.pragma_update(None, "query_only", refuse).map_err(|e| self.sql(e))
    }
}
