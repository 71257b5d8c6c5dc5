//! The table of ended jobs, as SQL.

use super::EndedJob;
use rusqlite::{Connection, Row, TransactionBehavior};
use wattline_core::Timestamp;
use wattline_core::ids::JobId;
use wattline_core::units::{Euros, EurosPerSecond, Joules};

/// Times are microseconds since 1970.
pub(crate) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS ended_job (
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
    bill REAL
) STRICT;
CREATE INDEX IF NOT EXISTS ended_job_by_end ON ended_job (ended);
CREATE INDEX IF NOT EXISTS ended_job_by_submit ON ended_job (submit);
CREATE INDEX IF NOT EXISTS ended_job_by_user ON ended_job (user, job);
CREATE INDEX IF NOT EXISTS ended_job_by_account ON ended_job (account, ended);
CREATE INDEX IF NOT EXISTS ended_job_by_workload ON ended_job (workload, ended);
CREATE INDEX IF NOT EXISTS ended_job_by_slurm ON ended_job (slurm);
";

/// Columns in the order in which [`read`] takes them.
pub(super) const COLUMNS: &str = "job, slurm, name, user, account, workload, elasticity, gpus, \
    gpus_min, gpus_max, submit, deadline, weight, first_start, ended, cancelled, how, done, \
    restarts, gpu_seconds, energy, bill";

/// Files ended jobs, in place of what was filed of them before, in one transaction that does not
/// wait for the disk.
pub(crate) fn file(connection: &Connection, jobs: &[EndedJob]) -> Result<(), rusqlite::Error> {
    without_sync(connection, |transaction| {
        let insert = format!(
            "INSERT OR REPLACE INTO ended_job ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, \
             ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)"
        );
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
            ])?;
        }
        Ok(())
    })
}

/// What jobs were measured to have drawn is known after their end.
pub(crate) fn correct(
    connection: &Connection,
    drawn: &[(JobId, Joules, Euros)],
) -> Result<(), rusqlite::Error> {
    without_sync(connection, |transaction| {
        let update = "UPDATE ended_job SET energy = ?2, bill = ?3 WHERE job = ?1";
        let mut update = transaction.prepare_cached(update)?;
        for (job, energy, bill) in drawn {
            update.execute((job.0, energy.get(), bill.get()))?;
        }
        Ok(())
    })
}

/// The write-ahead log is one: the next entry that is written waits for the disk, and so for this.
fn without_sync(
    connection: &Connection,
    write: impl FnOnce(&rusqlite::Transaction<'_>) -> Result<(), rusqlite::Error>,
) -> Result<(), rusqlite::Error> {
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    let written = (|| {
        let behaviour = TransactionBehavior::Immediate;
        let transaction = rusqlite::Transaction::new_unchecked(connection, behaviour)?;
        write(&transaction)?;
        transaction.commit()
    })();
    connection.pragma_update(None, "synchronous", "FULL")?;
    written
}

/// A row of [`COLUMNS`].
pub(super) fn read(row: &Row<'_>) -> Result<EndedJob, rusqlite::Error> {
    let time = |at: usize| row.get::<_, i64>(at).map(Timestamp::from_micros);
    let some = |at: usize| -> Result<Option<Timestamp>, rusqlite::Error> {
        Ok(row.get::<_, Option<i64>>(at)?.map(Timestamp::from_micros))
    };
    let (energy, bill): (Option<f64>, Option<f64>) = (row.get(20)?, row.get(21)?);
    Ok(EndedJob {
        id: JobId(row.get(0)?),
        slurm: row.get(1)?,
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
    })
}
