//! Power limits of GPUs, set and read back.

use super::bounded;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use thiserror::Error;
use wattline_core::units::Watts;

/// How much of a file is looked at: a number and a newline.
const MOST_BYTES: u64 = 64;

/// Why a limit is not known, or could not be set.
#[derive(Debug, Error)]
#[error("{what}: {source}")]
pub struct ActuatorError {
    what: String,
    source: std::io::Error,
}

/// Sets limits on a node and reads them back. What was set counts when it is read back.
///
/// Nobody waits for it in the loop: it is asked in threads of its own.
pub trait Actuator: Send + Sync {
    /// Asks for a limit; it may take a moment.
    ///
    /// # Errors
    /// When the node does not take it.
    fn set(&self, gpu: u32, limit: Watts) -> Result<(), ActuatorError>;

    /// The limit that is enforced.
    ///
    /// # Errors
    /// When that is not known.
    fn read(&self, gpu: u32) -> Result<Watts, ActuatorError>;

    /// What the node draws, if it says so.
    ///
    /// # Errors
    /// When it should and does not.
    fn power(&self) -> Result<Option<Watts>, ActuatorError>;
}

/// A node whose limits are files: `limit0` is asked for, `enforced0` holds, `watts` is drawn. The
/// lab's emulated nodes have these.
#[derive(Clone, Debug)]
pub struct Files(pub PathBuf);

impl Files {
    fn number(&self, name: &str) -> Result<Option<Watts>, ActuatorError> {
        let path = self.0.join(name);
        let wrong = |source| ActuatorError { what: path.display().to_string(), source };
        match bounded::read_start(&path, MOST_BYTES) {
            Ok(bytes) => match String::from_utf8_lossy(&bytes)
                .split_whitespace()
                .next()
                .map(str::parse::<f64>)
            {
                Some(Ok(watts)) if watts.is_finite() && watts >= 0.0 => Ok(Some(Watts::new(watts))),
                _ => Err(wrong(ErrorKind::InvalidData.into())),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(wrong(error)),
        }
    }
}

impl Actuator for Files {
    fn set(&self, gpu: u32, limit: Watts) -> Result<(), ActuatorError> {
        let path = self.0.join(format!("limit{gpu}"));
        let wrong = |source| ActuatorError { what: path.display().to_string(), source };
        let next = self.0.join(format!(".limit{gpu}"));
        fs::write(&next, format!("{}\n", limit.get())).map_err(wrong)?;
        fs::rename(&next, &path).map_err(wrong)
    }

    fn read(&self, gpu: u32) -> Result<Watts, ActuatorError> {
        let name = format!("enforced{gpu}");
        let missing = || ActuatorError {
            what: self.0.join(&name).display().to_string(),
            source: ErrorKind::NotFound.into(),
        };
        self.number(&name)?.ok_or_else(missing)
    }

    fn power(&self) -> Result<Option<Watts>, ActuatorError> {
        self.number("watts")
    }
}
