//! Power by the hour. Nothing follows from it: what was not written down before a crash is missing
//! in reports, and nowhere else.

use super::{Store, StoreError, of};
use crate::daemon::Hour;
use rusqlite::TransactionBehavior;
use wattline_core::Timestamp;

pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS power (
    hour INTEGER PRIMARY KEY,
    load TEXT NOT NULL
) STRICT;
";

impl Store {
    /// All hours that were written down, by when they begin. One that cannot be read is left out.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn hours(&self) -> Result<Vec<(Timestamp, Hour)>, StoreError> {
        let sql = |source| of(&self.path, source);
        let mut ask =
            self.connection.prepare("SELECT hour, load FROM power ORDER BY hour").map_err(sql)?;
        let rows = ask.query_map((), |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)));
        let rows = rows.and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(sql)?;
        let hour = |(at, load): (i64, String)| {
            Some((Timestamp::from_micros(at), serde_json::from_str(&load).ok()?))
        };
        Ok(rows.into_iter().filter_map(hour).collect())
    }

    /// Whether it can be written now, by writing what it says already.
    ///
    /// # Errors
    /// When it cannot.
    pub fn probe(&mut self) -> Result<(), StoreError> {
        let probed = self.connection.pragma_update(None, "user_version", super::FORMAT);
        probed.map_err(|source| of(&self.path, source))
    }

    /// Writes hours down, in place of what was written of them before.
    ///
    /// # Errors
    /// When they could not be written; then nothing has changed.
    pub fn write_hours(&mut self, hours: &[(Timestamp, Hour)]) -> Result<(), StoreError> {
        let write = || -> Result<(), rusqlite::Error> {
            let transaction = rusqlite::Transaction::new_unchecked(
                &self.connection,
                TransactionBehavior::Immediate,
            )?;
            {
                let mut insert =
                    transaction.prepare_cached("INSERT OR REPLACE INTO power VALUES (?1, ?2)")?;
                for (at, hour) in hours {
                    let load = serde_json::to_string(hour).unwrap_or_default();
                    insert.execute((at.micros(), load))?;
                }
            }
            transaction.commit()
        };
        write().map_err(|source| of(&self.path, source))
    }
}
