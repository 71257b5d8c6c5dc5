//! Commands by argument vector, with a time limit. No shell sees anything.

use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
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

/// What SLURM's clients say when slurmctld, or the slurmd that it asks, does not answer.
const UNANSWERED: [&str; 5] = [
    "Unable to contact slurm controller",
    "Socket timed out",
    "Connection refused",
    "Communication connection failure",
    "Zero Bytes were transmitted or received",
];

impl CommandError {
    /// Whether nobody answered, so that it is not known whether it had an effect.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        match self {
            Self::Spawn { .. } | Self::TimedOut { .. } => true,
            Self::Failed { said, .. } => UNANSWERED.iter().any(|text| said.contains(text)),
        }
    }
}

/// Runs SLURM's commands.
#[derive(Clone, Debug)]
pub struct Commands {
    /// Which cluster, if not the one that the environment names.
    pub slurm_conf: Option<PathBuf>,
    /// The folder that they are in; none: those of the path.
    pub folder: Option<PathBuf>,
    /// How long a command may take.
    pub limit: Duration,
}

impl Commands {
    /// Those of the path.
    #[must_use]
    pub fn new(slurm_conf: Option<PathBuf>, limit: Duration) -> Self {
        Self { slurm_conf, folder: None, limit }
    }

    /// Whether such a program is installed.
    #[must_use]
    pub fn has(&self, program: &str) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = match &self.folder {
            Some(folder) => vec![folder.clone()],
            None => std::env::split_paths(&path).collect(),
        };
        folders.iter().any(|folder| {
            let about = folder.join(program).metadata();
            about.is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
        })
    }

    /// Runs a command to its end. Says what it printed.
    ///
    /// # Errors
    /// When it cannot be started, takes too long or fails.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String, CommandError> {
        self.run_in(&[], program, args)
    }

    /// The same with variables of the environment.
    ///
    /// # Errors
    /// As of [`Commands::run`].
    pub fn run_in(
        &self,
        environment: &[(&str, &str)],
        program: &str,
        args: &[&str],
    ) -> Result<String, CommandError> {
        let name = || program.to_owned();
        let mut command = match &self.folder {
            Some(folder) => Command::new(folder.join(program)),
            None => Command::new(program),
        };
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: what hangs is ended with all that it has started.
        command.env("LC_ALL", "C").process_group(0);
        // What a user has set for himself must not change what is read here, and what systemd has
        // told us is not for others.
        for (key, _) in std::env::vars_os() {
            let text = key.to_string_lossy();
            let ours = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"].contains(&&*text);
            if ours || text.starts_with("SQUEUE_") || text.starts_with("SINFO_") {
                command.env_remove(&key);
            }
        }
        if let Some(path) = &self.slurm_conf {
            command.env("SLURM_CONF", path);
        }
        command.envs(environment.iter().copied());
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
                    end(&mut child);
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

/// Ends a command and all that it has started.
fn end(child: &mut Child) {
    // Gone already, if this fails.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
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
        Commands::new(None, Duration::from_millis(limit))
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

    /// A script that hung left its own commands running when it was ended.
    #[test]
    fn what_hangs_is_ended_with_all_that_it_has_started() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let pid = folder.path().join("pid");
        let script = format!("sleep 300 & echo $! > {}; wait", pid.display());
        assert!(commands(500).run("sh", &["-c", &script]).is_err());
        let pid = std::fs::read_to_string(pid).unwrap_or_else(|error| panic!("{error}"));
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            stat.ok()
                .and_then(|stat| stat.rsplit_once(')').and_then(|(_, rest)| rest.chars().nth(1)))
        };
        let began = Instant::now();
        // Nobody may be there to bury it.
        while state().is_some_and(|state| state != 'Z') {
            assert!(began.elapsed() < Duration::from_secs(10), "it still runs");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn no_answer_is_told_from_a_refusal() {
        let failed =
            |said: &str| CommandError::Failed { program: "scontrol".into(), said: said.into() };
        let silent = "slurm_update error: Unable to contact slurm controller (connect failure)";
        assert!(failed(silent).is_unanswered());
        assert!(!failed("slurm_update error: Invalid job id specified").is_unanswered());
        let late = CommandError::TimedOut { program: "scancel".into(), limit: Duration::ZERO };
        assert!(late.is_unanswered());
    }

    #[test]
    fn a_failure_says_why_without_control_characters() {
        let error = commands(5000).run("ls", &["/nowhere/\u{1b}[31m"]);
        let text = error.map_or_else(|error| error.to_string(), |_| String::new());
        assert!(text.contains("nowhere") && !text.contains('\u{1b}'), "{text}");
        assert!(commands(5000).run("no-such-program", &[]).is_err());
    }
}
