//! The table of ended jobs, as SQL.

use super::EndedJob;
use crate::journal::chain;
use rusqlite::{Connection, OptionalExtension, Row, Transaction};
use wattline_core::Timestamp;
use wattline_core::ids::JobId;
use wattline_core::units::{Euros, EurosPerSecond, Joules};

/// Times are microseconds since 1970.
pub(crate) const SCHEMA: &str = "
CREATE TABLE ended_job (
    job INTEGER PRIMARY KEY,
    slurm INTEGER,
    name TEXT NOT NULL,
    user TEXT NOT NULL,
    account TEXT,
    workload TEXT NOT NULL,
    elasticity TEXT NOT NULL,
    gpus INTEGER NOT NULL,
    gpus_min INTEGER NOT NULL,
    gpus_max INTEGER NOT NULL,
    submit INTEGER NOT NULL,
    deadline INTEGER,
    weight REAL NOT NULL,
    first_start INTEGER,
    ended INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    how TEXT,
    done REAL NOT NULL,
    restarts INTEGER NOT NULL,
    gpu_seconds REAL NOT NULL,
    energy REAL,
    bill REAL,
    checksum INTEGER NOT NULL
) STRICT;
CREATE INDEX ended_job_by_end ON ended_job (ended);
CREATE INDEX ended_job_by_submit ON ended_job (submit);
CREATE INDEX ended_job_by_user ON ended_job (user, job);
CREATE INDEX ended_job_by_account ON ended_job (account, ended);
CREATE INDEX ended_job_by_workload ON ended_job (workload, ended);
CREATE INDEX ended_job_by_slurm ON ended_job (slurm);
CREATE INDEX ended_job_late ON ended_job (job) WHERE cancelled = 0 AND ended > deadline;
";

/// What SLURM's commands called jobs, where that was not their number. Made when the first one is
/// filed: journals that were begun before have none.
const ADDRESSES: &str = "
CREATE TABLE IF NOT EXISTS ended_job_address (job INTEGER PRIMARY KEY, address TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS ended_job_by_address ON ended_job_address (address);
";

/// Whether any job has an address of its own.
pub(super) fn has_addresses(connection: &Connection) -> rusqlite::Result<bool> {
    let ask = "SELECT count(*) FROM sqlite_master WHERE name = 'ended_job_address'";
    connection.query_row(ask, (), |row| row.get::<_, i64>(0)).map(|count| count > 0)
}

/// What SLURM's commands called a job.
pub(super) fn address(connection: &Connection, job: JobId) -> rusqlite::Result<Option<String>> {
    let ask = "SELECT address FROM ended_job_address WHERE job = ?1";
    connection.prepare_cached(ask)?.query_row([job.0], |row| row.get(0)).optional()
}

/// Columns in the order in which [`read`] takes them.
pub(super) const COLUMNS: &str = "job, slurm, name, user, account, workload, elasticity, gpus, \
    gpus_min, gpus_max, submit, deadline, weight, first_start, ended, cancelled, how, done, \
    restarts, gpu_seconds, energy, bill, checksum";

/// Files ended jobs of a journal, in place of what was filed of them before.
pub(crate) fn file(
    transaction: &Transaction<'_>,
    journal: &str,
    jobs: &[EndedJob],
) -> rusqlite::Result<()> {
    let insert = format!(
        "INSERT OR REPLACE INTO ended_job ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, \
         ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23)"
    );
    if jobs.iter().any(|job| job.address.is_some()) {
        transaction.execute_batch(ADDRESSES)?;
        let insert = "INSERT OR REPLACE INTO ended_job_address (job, address) VALUES (?1, ?2)";
        let mut insert = transaction.prepare_cached(insert)?;
        for job in jobs {
            if let Some(address) = &job.address {
                insert.execute(rusqlite::params![job.id.0, address])?;
            }
        }
    }
    let mut insert = transaction.prepare_cached(&insert)?;
    for job in jobs {
        insert.execute(rusqlite::params![
            job.id.0,
            job.slurm,
            job.name,
            job.user,
            job.account,
            job.workload,
            job.elasticity,
            job.gpus[0],
            job.gpus[1],
            job.gpus[2],
            job.submit.micros(),
            job.deadline.map(Timestamp::micros),
            job.weight.get(),
            job.first_start.map(Timestamp::micros),
            job.ended.micros(),
            job.cancelled,
            job.how,
            job.done,
            job.restarts,
            job.gpu_seconds,
            job.drawn.map(|(energy, _)| energy.get()),
            job.drawn.map(|(_, bill)| bill.get()),
            checksum(journal, job),
        ])?;
    }
    Ok(())
}

/// What jobs were measured to have drawn is known after their end.
pub(crate) fn correct(
    transaction: &Transaction<'_>,
    journal: &str,
    drawn: &[(JobId, Joules, Euros)],
) -> rusqlite::Result<()> {
    let ask = format!("SELECT {COLUMNS} FROM ended_job WHERE job = ?1");
    for (job, energy, bill) in drawn {
        let known = transaction.prepare_cached(&ask)?.query_row([job.0], read).optional()?;
        if let Some((known, _)) = known {
            let drawn = Some((*energy, *bill));
            file(transaction, journal, &[EndedJob { drawn, ..known }])?;
        }
    }
    Ok(())
}

/// Deletes the jobs that ended before a time, at most so many of them; says how many.
pub(crate) fn drop_before(
    transaction: &Transaction<'_>,
    time: Timestamp,
    most: u64,
) -> rusqlite::Result<u64> {
    let oldest = "SELECT job FROM ended_job WHERE ended < ?1 ORDER BY ended, job LIMIT ?2";
    let values = (time.micros(), most);
    if has_addresses(transaction)? {
        let delete = format!("DELETE FROM ended_job_address WHERE job IN ({oldest})");
        transaction.execute(&delete, values)?;
    }
    let delete = format!("DELETE FROM ended_job WHERE job IN ({oldest})");
    Ok(transaction.execute(&delete, values)? as u64)
}

/// How many jobs ended after their deadline.
pub(crate) fn late(connection: &Connection) -> rusqlite::Result<u64> {
    let ask = "SELECT count(*) FROM ended_job INDEXED BY ended_job_late \
               WHERE cancelled = 0 AND ended > deadline";
    connection.query_row(ask, (), |row| row.get(0))
}

/// How many rows are not as they were written.
pub(crate) fn damaged(connection: &Connection, journal: &str) -> rusqlite::Result<u64> {
    let mut statement = connection.prepare(&format!("SELECT {COLUMNS} FROM ended_job"))?;
    let mut rows = statement.query(())?;
    let mut damaged = 0;
    while let Some(row) = rows.next()? {
        let sound = read(row).is_ok_and(|(job, sum)| checksum(journal, &job) == sum);
        damaged += u64::from(!sound);
    }
    Ok(damaged)
}

/// Over all columns, in a form that no later version may change; floating-point numbers by bits.
pub(super) fn checksum(journal: &str, job: &EndedJob) -> u32 {
    let mut text = String::new();
    let mut add = |field: Option<&dyn std::fmt::Display>| {
        // Nothing differs from an empty text.
        match field {
            None => text.push('-'),
            Some(field) => text.push_str(&format!("+{field}")),
        }
        text.push('\u{1f}');
    };
    let some = |field: &Option<String>| field.clone().unwrap_or_default();
    let (account, how) = (some(&job.account), some(&job.how));
    let micros = |time: Option<Timestamp>| time.map(Timestamp::micros);
    let (deadline, start) = (micros(job.deadline), micros(job.first_start));
    let bits = |value: f64| value.to_bits();
    let drawn = job.drawn.map(|(energy, bill)| (bits(energy.get()), bits(bill.get())));
    add(Some(&job.id.0));
    add(job.slurm.as_ref().map(|number| number as _));
    add(Some(&job.name));
    add(Some(&job.user));
    add(job.account.as_ref().map(|_| &account as _));
    add(Some(&job.workload));
    add(Some(&job.elasticity));
    job.gpus.iter().for_each(|gpus| add(Some(gpus)));
    add(Some(&job.submit.micros()));
    add(deadline.as_ref().map(|time| time as _));
    add(Some(&bits(job.weight.get())));
    add(start.as_ref().map(|time| time as _));
    add(Some(&job.ended.micros()));
    add(Some(&job.cancelled));
    add(job.how.as_ref().map(|_| &how as _));
    add(Some(&bits(job.done)));
    add(Some(&job.restarts));
    add(Some(&bits(job.gpu_seconds)));
    add(drawn.as_ref().map(|(energy, _)| energy as _));
    add(drawn.as_ref().map(|(_, bill)| bill as _));
    chain::checksum(journal, &[text.as_bytes()])
}

/// A row of [`COLUMNS`], and the checksum that it was written with.
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<(EndedJob, u32)> {
    let time = |at: usize| row.get::<_, i64>(at).map(Timestamp::from_micros);
    let some = |at: usize| -> rusqlite::Result<Option<Timestamp>> {
        Ok(row.get::<_, Option<i64>>(at)?.map(Timestamp::from_micros))
    };
    let (energy, bill): (Option<f64>, Option<f64>) = (row.get(20)?, row.get(21)?);
    let job = EndedJob {
        id: JobId(row.get(0)?),
        slurm: row.get(1)?,
        address: None,
        name: row.get(2)?,
        user: row.get(3)?,
        account: row.get(4)?,
        workload: row.get(5)?,
        elasticity: row.get(6)?,
        gpus: [row.get(7)?, row.get(8)?, row.get(9)?],
        submit: time(10)?,
        deadline: some(11)?,
        weight: EurosPerSecond::new(row.get(12)?),
        first_start: some(13)?,
        ended: time(14)?,
        cancelled: row.get(15)?,
        how: row.get(16)?,
        done: row.get(17)?,
        restarts: row.get(18)?,
        gpu_seconds: row.get(19)?,
        drawn: energy.map(|energy| (Joules::new(energy), Euros::new(bill.unwrap_or(0.0)))),
    };
    Ok((job, row.get(22)?))
}
