//! Throwing away what no restart needs: entries that a sound snapshot stands for, and what became
//! of jobs that ended long ago.

use super::head::Head;
use super::snapshot::KEPT;
use super::{Store, StoreError};
use crate::job_history;
use rusqlite::{Connection, OptionalExtension, Transaction};
use wattline_core::Timestamp;
use wattline_core::units::Seconds;

/// What is to be thrown away. With several, what any of them asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prunable {
    /// Entries that are older than this, before the last entry.
    pub older_than: Option<Seconds>,
    /// Jobs that ended longer ago than this, before the last entry.
    pub ended_before: Option<Seconds>,
    /// The oldest entries, and after those the jobs that ended longest ago, until the file has no
    /// more than so many bytes.
    pub to_bytes: Option<u64>,
}

/// What was thrown away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Entries that are gone now.
    pub entries: u64,
    /// Ended jobs that are gone now.
    pub ended_jobs: u64,
    /// The first one that is left.
    pub first: u64,
    /// No entry up to this one is needed by a restart.
    pub covered: u64,
    /// How large the file was, and how large it is.
    pub bytes_before: u64,
    /// See `bytes_before`.
    pub bytes_after: u64,
}

/// The last entry up to `most` that is older than a time, with all before it.
pub(super) fn older_than(
    connection: &Connection,
    time: Timestamp,
    most: u64,
) -> rusqlite::Result<u64> {
    // Times never fall from one entry to the next.
    let old = "SELECT coalesce(max(number), 0) FROM
               (SELECT number, at FROM journal WHERE number <= ?1) WHERE at < ?2";
    connection.query_row(old, (most, time.micros()), |row| row.get(0))
}

/// Ended jobs that are thrown away between two looks at the size: some 100 kB.
const ENDED_AT_A_TIME: u64 = 500;

/// Deletes the entries up to one; says how the journal's head is after that.
pub(super) fn drop_until(
    transaction: &Transaction<'_>,
    head: &Head,
    last: u64,
) -> rusqlite::Result<Head> {
    let link = "SELECT link FROM journal WHERE number = ?1";
    let link = transaction.query_row(link, [last], |row| row.get(0)).optional()?;
    let Some(pruned_link) = link.filter(|_| last > head.pruned) else { return Ok(head.clone()) };
    let jobs = "SELECT count(*) FROM journal, json_each(entry, '$.events') AS event
                WHERE number <= ?1 AND json_extract(event.value, '$.submitted') IS NOT NULL";
    let jobs: u64 = transaction.query_row(jobs, [last], |row| row.get(0))?;
    transaction.execute("DELETE FROM journal WHERE number <= ?1", [last])?;
    let pruned_jobs = head.pruned_jobs + jobs;
    Ok(Head { pruned: last, pruned_link, pruned_jobs, ..head.clone() })
}

impl Store {
    /// Throws away what was asked for and gives the space back. Of entries only those that both
    /// snapshots stand for, so that one of them may turn out to be unreadable. With `try_only` it
    /// says what would go.
    ///
    /// # Errors
    /// When it cannot be written; then nothing has changed.
    pub fn prune(&mut self, what: &Prunable, try_only: bool) -> Result<Pruned, StoreError> {
        let covered = self.covered()?;
        let last = self.last_prunable(what, covered)?;
        let now = self.last_time()?;
        let bytes_before = self.bytes()?;
        let before = self.head.pruned;
        let mut pruned = Pruned {
            entries: last.saturating_sub(before),
            ended_jobs: 0,
            first: last.max(before) + 1,
            covered,
            bytes_before,
            bytes_after: bytes_before,
        };
        let drop_all = |head: &Head, transaction: &Transaction<'_>| -> rusqlite::Result<_> {
            let head = drop_until(transaction, head, last)?;
            let old = what.ended_before.zip(now).map(|(age, now)| now - age);
            let mut jobs = match old {
                Some(old) => job_history::drop_before(transaction, old, i64::MAX as u64)?,
                None => 0,
            };
            while what.to_bytes.is_some_and(|most| used(transaction).is_ok_and(|now| now > most)) {
                let any = Timestamp::from_micros(i64::MAX);
                let dropped = job_history::drop_before(transaction, any, ENDED_AT_A_TIME)?;
                jobs += dropped;
                if dropped == 0 {
                    break;
                }
            }
            Ok((head, jobs))
        };
        if try_only {
            let tried = || -> rusqlite::Result<u64> {
                let transaction = self.connection.unchecked_transaction()?;
                // It is rolled back when it is dropped.
                drop_all(&self.head, &transaction).map(|(_, jobs)| jobs)
            };
            pruned.ended_jobs = tried().map_err(|e| self.sql(e))?;
            return Ok(pruned);
        }
        let mut head = self.head.clone();
        self.write(|before, transaction| {
            (head, pruned.ended_jobs) = drop_all(&head, transaction)?;
            before.replace(transaction, &head)
        })?;
        self.head = head;
        if pruned.entries == 0 && pruned.ended_jobs == 0 {
            return Ok(pruned);
        }
        // The file is as large as before until it is written anew.
        self.connection.execute_batch("VACUUM").map_err(|e| self.sql(e))?;
        self.checkpoint()?;
        pruned.bytes_after = self.bytes()?;
        Ok(pruned)
    }

    /// The last entry that all snapshots stand for; 0 if there are too few sound ones.
    fn covered(&self) -> Result<u64, StoreError> {
        let saved = self.saved()?;
        for one in &saved {
            if self.load_snapshot(*one)?.is_err() {
                return Ok(0);
            }
        }
        let oldest = saved.iter().map(|saved| saved.number).min();
        Ok(oldest.filter(|_| saved.len() as u64 >= KEPT).unwrap_or(0))
    }

    fn last_prunable(&self, what: &Prunable, covered: u64) -> Result<u64, StoreError> {
        let mut last = 0;
        if let (Some(age), Some(now)) = (what.older_than, self.last_time()?) {
            let old = older_than(&self.connection, now - age, covered);
            last = old.map_err(|e| self.sql(e))?;
        }
        if let Some(target) = what.to_bytes {
            let excess = self.bytes()?.saturating_sub(target);
            last = last.max(self.oldest(excess, covered).map_err(|e| self.sql(e))?);
        }
        Ok(last)
    }

    /// The last of the oldest entries that take so many bytes, and no entry after `most`.
    fn oldest(&self, bytes: u64, most: u64) -> rusqlite::Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        let ask = "SELECT number, length(CAST(entry AS BLOB)) FROM journal WHERE number <= ?1
                   ORDER BY number";
        let mut ask = self.connection.prepare(ask)?;
        let mut rows = ask.query([most])?;
        let (mut last, mut sum) = (0, 0);
        while let Some(row) = rows.next()? {
            last = row.get(0)?;
            sum += row.get::<_, u64>(1)?;
            if sum >= bytes {
                break;
            }
        }
        Ok(last)
    }

    fn bytes(&self) -> Result<u64, StoreError> {
        size(&self.connection, "page_count").map_err(|e| self.sql(e))
    }
}

/// Pages of some kind, in bytes.
fn size(connection: &Connection, pages: &str) -> rusqlite::Result<u64> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, u64>(0));
    Ok(pragma(pages)? * pragma("page_size")?)
}

/// What the file will take when it is written anew.
fn used(connection: &Connection) -> rusqlite::Result<u64> {
    Ok(size(connection, "page_count")?.saturating_sub(size(connection, "freelist_count")?))
}
