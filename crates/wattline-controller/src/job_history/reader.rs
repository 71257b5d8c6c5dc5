//! Looking ended jobs up, beside the loop and without disturbing it.

use super::EndedJob;
use super::table::{COLUMNS, address, checksum, has_addresses, read};
use rusqlite::{Connection, OpenFlags, Params};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use thiserror::Error;
use wattline_core::Timestamp;
use wattline_core::ids::JobId;

/// How long a read waits for a writer. In WAL mode it waits only while the file is being recovered
/// or checkpointed, which takes milliseconds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Why ended jobs cannot be looked up.
#[derive(Debug, Error)]
pub enum HistoryError {
    /// SQLite says no.
    #[error("{}: the history of ended jobs cannot be read: {source}", path.display())]
    Sql {
        /// Which file.
        path: PathBuf,
        /// What it says.
        source: rusqlite::Error,
    },
    /// A row is not as it was written.
    #[error(
        "{}: what became of job {job} is damaged; `wattline journal verify` says what can be saved",
        path.display()
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Which job.
        job: u32,
    },
}

/// Which of them.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// From this number on.
    pub from: JobId,
    /// Of this user only.
    pub user: Option<&'a str>,
    /// Cancelled ones, or those that finished; both, if not said.
    pub cancelled: Option<bool>,
    /// So many at most.
    pub limit: usize,
}

/// The history of ended jobs in a journal's file. Reads wait for each other, and nothing else for
/// them.
#[derive(Debug)]
pub struct JobHistory {
    path: PathBuf,
    /// Opened when it is first asked, and again after an error.
    connection: Mutex<Option<Connection>>,
}

impl JobHistory {
    /// The history in this file; nothing is opened yet.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), connection: Mutex::default() }
    }

    /// The same with a connection of its own: what takes long keeps no look-up waiting.
    #[must_use]
    pub fn another(&self) -> Self {
        Self::at(&self.path)
    }

    /// One job.
    ///
    /// # Errors
    /// When the history cannot be read.
    pub fn job(&self, id: JobId) -> Result<Option<EndedJob>, HistoryError> {
        let ask = format!("SELECT {COLUMNS} FROM ended_job WHERE job = ?1");
        Ok(self.rows(&ask, [id.0])?.pop())
    }

    /// The job that people call so, the last one if there were several; one that is not SLURM's by
    /// its number in the journal.
    ///
    /// # Errors
    /// When the history cannot be read.
    pub fn called(&self, called: &str) -> Result<Option<EndedJob>, HistoryError> {
        if let Ok(number) = called.parse::<u32>() {
            let ask = format!(
                "SELECT {COLUMNS} FROM ended_job WHERE slurm = ?1 ORDER BY job DESC LIMIT 1"
            );
            if let Some(job) = self.rows(&ask, [number])?.pop() {
                return Ok(Some(job));
            }
            return Ok(self.job(JobId(number))?.filter(|job| job.slurm.is_none()));
        }
        let named: Option<u32> = self.ask(|connection| {
            if !has_addresses(connection)? {
                return Ok(None);
            }
            let ask = "SELECT max(job) FROM ended_job_address WHERE address = ?1";
            connection.prepare_cached(ask)?.query_row([called], |row| row.get(0))
        })?;
        named.map_or(Ok(None), |id| self.job(JobId(id)))
    }

    /// Jobs by number.
    ///
    /// # Errors
    /// When the history cannot be read.
    pub fn page(&self, page: &Page<'_>) -> Result<Vec<EndedJob>, HistoryError> {
        let of_user = if page.user.is_some() { "user = ?2" } else { "?2 IS NULL" };
        let ask = format!(
            "SELECT {COLUMNS} FROM ended_job WHERE job >= ?1 AND {of_user} \
             AND (?3 IS NULL OR cancelled = ?3) ORDER BY job LIMIT ?4"
        );
        self.rows(&ask, (page.from.0, page.user, page.cancelled, page.limit as i64))
    }

    /// Takes jobs that ended in a period, and those that were submitted in it, by number, until
    /// `take` says no. Says whether it took all.
    ///
    /// # Errors
    /// When the history cannot be read to its end.
    pub fn between(
        &self,
        since: Timestamp,
        until: Timestamp,
        take: impl FnMut(EndedJob) -> bool,
    ) -> Result<bool, HistoryError> {
        // Each half has an index.
        let ask = format!(
            "SELECT {COLUMNS} FROM ended_job WHERE job IN ( \
             SELECT job FROM ended_job WHERE ended >= ?1 AND ended < ?2 UNION \
             SELECT job FROM ended_job WHERE submit >= ?1 AND submit < ?2) ORDER BY job"
        );
        self.each(&ask, (since.micros(), until.micros()), take)
    }

    /// How many jobs there are.
    ///
    /// # Errors
    /// When the history cannot be read.
    pub fn count(&self) -> Result<u64, HistoryError> {
        let ask = "SELECT count(*) FROM ended_job";
        let count: i64 = self.ask(|connection| connection.query_row(ask, (), |row| row.get(0)))?;
        Ok(count.unsigned_abs())
    }

    fn rows(&self, ask: &str, params: impl Params) -> Result<Vec<EndedJob>, HistoryError> {
        let mut rows = Vec::new();
        self.each(ask, params, |job| {
            rows.push(job);
            true
        })?;
        self.ask(|connection| {
            if has_addresses(connection)? {
                for job in rows.iter_mut().filter(|job: &&mut EndedJob| job.slurm.is_some()) {
                    job.address = address(connection, job.id)?;
                }
            }
            Ok(())
        })?;
        Ok(rows)
    }

    fn each(
        &self,
        ask: &str,
        params: impl Params,
        mut take: impl FnMut(EndedJob) -> bool,
    ) -> Result<bool, HistoryError> {
        let mut all = true;
        let damaged = self.ask(|connection| {
            let journal = "SELECT journal FROM head WHERE id = 1";
            let journal: String =
                connection.prepare_cached(journal)?.query_row((), |row| row.get(0))?;
            let mut statement = connection.prepare_cached(ask)?;
            let mut rows = statement.query(params)?;
            while let Some(row) = rows.next()? {
                let (job, sum) = read(row)?;
                if checksum(&journal, &job) != sum {
                    return Ok(Some(job.id));
                }
                if !take(job) {
                    all = false;
                    break;
                }
            }
            Ok(None)
        })?;
        match damaged {
            None => Ok(all),
            Some(job) => Err(HistoryError::Damaged { path: self.path.clone(), job: job.0 }),
        }
    }

    fn ask<T>(
        &self,
        ask: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, HistoryError> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = match &*connection {
            Some(open) => ask(open),
            None => self.open().and_then(|open| ask(connection.insert(open))),
        };
        answer.map_err(|source| {
            // The file may have been exchanged; the next one who asks opens it anew.
            *connection = None;
            HistoryError::Sql { path: self.path.clone(), source }
        })
    }

    fn open(&self) -> Result<Connection, rusqlite::Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        Ok(connection)
    }
}
