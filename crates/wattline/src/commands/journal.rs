//! `wattline journal`: a controller's journal as a file to be looked at and looked after.

mod backup;
mod prune;
mod show;
mod text;
mod verify;

use crate::failure::Result;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show what the journal recorded: facts and decisions, entry by entry
    Show(show::Args),
    /// Check the whole journal; exit code 1 if it is damaged, and what can be saved
    Verify(verify::Args),
    /// Copy the journal to a file that is complete by itself, also while a controller writes it
    Backup(backup::Args),
    /// Throw old entries away that no restart needs, and give their space back
    Prune(prune::Args),
}

/// Which journal.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// The journal
    #[arg(value_name = "JOURNAL")]
    file: Option<PathBuf>,
    /// The journal, named as for `serve`
    #[arg(long = "journal", value_name = "FILE")]
    journal: Option<PathBuf>,
}

impl Which {
    fn path(&self) -> &Path {
        self.file.as_deref().or(self.journal.as_deref()).unwrap_or_else(|| Path::new(""))
    }
}

pub(crate) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Show(args) => show::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Backup(args) => backup::run(args),
        Command::Prune(args) => prune::run(args),
    }
}

/// A time of the cluster's clock, as people read it.
fn clock(micros: i64) -> String {
    match jiff::Timestamp::from_microsecond(micros) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => format!("{:.0} s", micros as f64 / 1e6),
    }
}
