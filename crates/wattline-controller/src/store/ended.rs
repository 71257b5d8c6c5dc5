//! Ended jobs, filed beside the journal.

use super::{Store, StoreError, of};
use crate::job_history::{self, EndedJob};
use std::path::Path;
use wattline_core::ids::JobId;
use wattline_core::units::{Euros, Joules};

pub(super) const SCHEMA: &str = job_history::SCHEMA;

impl Store {
    /// Files ended jobs. They are on the disk with the next entry or snapshot.
    ///
    /// # Errors
    /// When they could not be written; then nothing has changed.
    pub fn file_ended(&self, jobs: &[EndedJob]) -> Result<(), StoreError> {
        job_history::file(&self.connection, jobs).map_err(|source| of(&self.path, source))
    }

    /// Corrects what ended jobs were measured to have drawn.
    ///
    /// # Errors
    /// When it could not be written; then nothing has changed.
    pub fn correct_drawn(&self, drawn: &[(JobId, Joules, Euros)]) -> Result<(), StoreError> {
        job_history::correct(&self.connection, drawn).map_err(|source| of(&self.path, source))
    }

    /// Where the journal is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}
