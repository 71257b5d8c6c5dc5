//! How a command ends when it does not succeed.

use std::io::{self, Write};
use std::process::ExitCode;

/// Why, and whose fault it is.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A wrong call or bad input: exit code 2.
    Input(anyhow::Error),
    /// Something that should have worked: exit code 1.
    Failed(anyhow::Error),
    /// Nobody reads what is printed any more: no failure at all.
    NobodyReads,
}

impl Failure {
    /// Bad input.
    pub(crate) fn input(error: impl Into<anyhow::Error>) -> Self {
        Self::Input(error.into())
    }

    /// What happened.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Input(error) | Self::Failed(error) => in_words(error),
            Self::NobodyReads => "nobody reads what is printed".to_owned(),
        }
    }

    /// Says what happened and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        let (error, code) = match self {
            Self::Input(error) => (error, 2),
            Self::Failed(error) => (error, 1),
            Self::NobodyReads => return ExitCode::SUCCESS,
        };
        // Nothing more can be done if standard error is closed.
        let _ = writeln!(io::stderr(), "error: {}", in_words(error));
        ExitCode::from(code)
    }
}

/// An error and its causes, without those that it tells itself.
fn in_words(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::NobodyReads;
        }
        Self::Failed(error.into())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        if error.io_error_kind() == Some(io::ErrorKind::BrokenPipe) {
            return Self::NobodyReads;
        }
        Self::Failed(error.into())
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_is_told_already_is_not_told_again() {
        let inner = || io::Error::new(io::ErrorKind::NotFound, "no such file");
        let twice = anyhow::Error::from(inner()).context("journal: no such file");
        assert_eq!(Failure::input(twice).message(), "journal: no such file");
        let once = anyhow::Error::from(inner()).context("journal");
        assert_eq!(Failure::input(once).message(), "journal: no such file");
    }
}
