//! Ended jobs, filed beside the journal.

use super::{Store, StoreError};
use crate::job_history::{self, EndedJob};
use rusqlite::Transaction;
use wattline_core::ids::JobId;
use wattline_core::units::{Euros, Joules};

impl Store {
    /// Files ended jobs. They are on the disk with the next entry or snapshot.
    ///
    /// # Errors
    /// When they could not be written; then nothing has changed.
    pub fn file_ended(&self, jobs: &[EndedJob]) -> Result<(), StoreError> {
        let journal = &self.head.journal;
        self.write_without_sync(|transaction| job_history::file(transaction, journal, jobs))
    }

    /// Corrects what ended jobs were measured to have drawn.
    ///
    /// # Errors
    /// When it could not be written; then nothing has changed.
    pub fn correct_drawn(&self, drawn: &[(JobId, Joules, Euros)]) -> Result<(), StoreError> {
        let journal = &self.head.journal;
        self.write_without_sync(|transaction| job_history::correct(transaction, journal, drawn))
    }

    /// How many jobs ended after their deadline, of all that ended.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn ended_late(&self) -> Result<u64, StoreError> {
        job_history::late(&self.connection).map_err(|source| self.sql(source))
    }

    /// The write-ahead log is one: the next entry that is written waits for the disk, and so for
    /// this.
    fn write_without_sync(
        &self,
        write: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let synchronous = |how: &str| {
            let set = self.connection.pragma_update(None, "synchronous", how);
            set.map_err(|source| self.sql(source))
        };
        synchronous("NORMAL")?;
        let written = self.write(|before, transaction| {
            write(transaction)?;
            before.stands(transaction)
        });
        synchronous("FULL")?;
        written
    }
}
