//! Commands by argument vector, with a time limit. No shell sees anything.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// What a command may print at most.
const MOST_BYTES: u64 = 512 << 20;
/// How much of what went wrong is told.
const MOST_TOLD: usize = 300;

/// Why a command did not do what it should.
#[derive(Debug, Error)]
pub enum CommandError {
    /// It could not be started.
    #[error("{program} cannot be started: {source}; is SLURM's client installed?")]
    Spawn {
        /// Which.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// It did not end in time and was killed.
    #[error("{program} did not end within {limit:?}")]
    TimedOut {
        /// Which.
        program: String,
        /// After this long.
        limit: Duration,
    },
    /// It said no.
    #[error("{program}: {said}")]
    Failed {
        /// Which.
        program: String,
        /// What it said.
        said: String,
    },
}

/// Runs SLURM's commands.
#[derive(Clone, Debug)]
pub struct Commands {
    /// Which cluster, if not the one that the environment names.
    pub slurm_conf: Option<std::path::PathBuf>,
    /// How long a command may take.
    pub limit: Duration,
}

impl Commands {
    /// Runs a command to its end. Says what it printed.
    ///
    /// # Errors
    /// When it cannot be started, takes too long or fails.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String, CommandError> {
        let name = || program.to_owned();
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("LC_ALL", "C");
        // What a user has set for himself must not change what is read here.
        for (key, _) in std::env::vars_os() {
            let text = key.to_string_lossy();
            if text.starts_with("SQUEUE_") || text.starts_with("SINFO_") {
                command.env_remove(&key);
            }
        }
        if let Some(path) = &self.slurm_conf {
            command.env("SLURM_CONF", path);
        }
        let mut child =
            command.spawn().map_err(|source| CommandError::Spawn { program: name(), source })?;
        let out = child.stdout.take().map(read_all);
        let err = child.stderr.take().map(read_all);
        let began = Instant::now();
        let mut nap = Duration::from_millis(1);
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if began.elapsed() > self.limit => {
                    // Gone already, if this fails.
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(CommandError::TimedOut { program: name(), limit: self.limit });
                }
                Ok(None) => {
                    thread::sleep(nap);
                    nap = (nap * 2).min(Duration::from_millis(20));
                }
                Err(source) => return Err(CommandError::Spawn { program: name(), source }),
            }
        };
        let text = |reader: Option<thread::JoinHandle<Vec<u8>>>| {
            let bytes = reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (out, err) = (text(out), text(err));
        if status.success() {
            return Ok(out);
        }
        let said = if err.trim().is_empty() { out } else { err };
        Err(CommandError::Failed { program: name(), said: printable(&said) })
    }
}

fn read_all(input: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before it broke is told.
        let _ = input.take(MOST_BYTES).read_to_end(&mut bytes);
        bytes
    })
}

/// Something that others wrote, short and without control characters.
#[must_use]
pub fn printable(text: &str) -> String {
    let plain = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(MOST_TOLD).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(limit: u64) -> Commands {
        Commands { slurm_conf: None, limit: Duration::from_millis(limit) }
    }

    #[test]
    fn nothing_is_taken_for_a_shell() -> Result<(), CommandError> {
        let text = "$(touch /tmp/never) `id` '\"; rm -rf / \u{1b}[31m";
        assert_eq!(commands(5000).run("printf", &["%s", text])?, text);
        Ok(())
    }

    #[test]
    fn what_hangs_is_ended() {
        let began = Instant::now();
        let error = commands(100).run("sleep", &["30"]);
        assert!(matches!(error, Err(CommandError::TimedOut { .. })));
        assert!(began.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_failure_says_why_without_control_characters() {
        let error = commands(5000).run("ls", &["/nowhere/\u{1b}[31m"]);
        let text = error.map_or_else(|error| error.to_string(), |_| String::new());
        assert!(text.contains("nowhere") && !text.contains('\u{1b}'), "{text}");
        assert!(commands(5000).run("no-such-program", &[]).is_err());
    }
}
