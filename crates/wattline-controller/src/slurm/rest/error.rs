//! Why something was not learnt from slurmrestd, or not done by it.

use crate::slurm::read::ReadError;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Why slurmrestd did not do what it should.
#[derive(Debug, Error)]
pub enum RestError {
    /// There is no token.
    #[error("slurm.rest.token_file {}: {why}", path.display())]
    Token {
        /// Where it should be.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Nobody listens there, or the connection broke.
    #[error("slurmrestd at {url}: {why}")]
    Unreachable {
        /// Where.
        url: String,
        /// Why.
        why: String,
    },
    /// It took too long.
    #[error("slurmrestd at {url} did not answer within {limit:?}")]
    TimedOut {
        /// Where.
        url: String,
        /// After this long.
        limit: Duration,
    },
    /// More than anyone needs.
    #[error("slurmrestd's answer has more than {0} bytes; it is not read")]
    TooLong(usize),
    /// The user or the token.
    #[error("slurmrestd refuses the user or the token: {0}")]
    Refused(String),
    /// No such path: another version, or no such thing.
    #[error("slurmrestd knows no such path (404)")]
    NotFound,
    /// It is no answer.
    #[error("slurmrestd answers with status {0}: {1}")]
    Status(u16, String),
    /// Cut off, or not JSON at all.
    #[error("slurmrestd's answer is not JSON: {0}")]
    Json(serde_json::Error),
    /// SLURM says itself that something went wrong.
    #[error("slurmrestd reports: {0}")]
    Reported(String),
    /// Something went wrong, and the token may be why.
    #[error("{said}; {hint}")]
    Suspect {
        /// What it reported.
        said: String,
        /// What may be wrong.
        hint: String,
    },
    /// Something that must be there is not.
    #[error("slurmrestd's answer has no {0}")]
    Missing(&'static str),
    /// A list that is not understood.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// None of the versions that are understood.
    #[error("slurmrestd has none of the versions {0}; which it has is set by its option -s or -d")]
    Versions(String),
}

/// What slurmrestd reports when slurmctld does not answer it, or refuses it: it does not tell these
/// apart. Seen on 22.05; later releases name the first one.
const UNANSWERED: [&str; 6] = [
    "Unable to contact slurm controller",
    "Unspecified error",
    "Unexpected message received",
    "Socket timed out",
    "Connection refused",
    "Zero Bytes were transmitted or received",
];

impl RestError {
    /// Whether nobody answered, so that it is not known whether it had an effect.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TimedOut { .. } | Self::TooLong(_) => true,
            Self::Json(_) => true,
            Self::Reported(said) | Self::Suspect { said, .. } => {
                UNANSWERED.iter().any(|text| said.contains(text))
            }
            _ => false,
        }
    }

    /// Whether the token may be why.
    pub(super) fn may_be_token(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            Self::Reported(said) => ["Unspecified error", "authentication", "Authentication"]
                .iter()
                .any(|text| said.contains(text)),
            _ => false,
        }
    }
}
