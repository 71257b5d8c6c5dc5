//! `wattline journal backup`.

use super::Which;
use crate::failure::{Failure, Result};
use crate::output;
use serde::Serialize;
use std::path::PathBuf;
use wattline_controller::journal::{BackupError, backup};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  wattline journal backup /var/lib/wattline/journal --to /backup/journal-monday"
)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// The file to write; it must not be there yet
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Print JSON (schema wattline.journal-backup/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    file: &'a str,
    entries: u64,
    bytes: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let entries = backup(args.which.path(), &args.to).map_err(|error| match error {
        BackupError::Write { .. } | BackupError::Damaged { .. } => Failure::Failed(error.into()),
        error => Failure::input(error),
    })?;
    let bytes = std::fs::metadata(&args.to).map_or(0, |file| file.len());
    let file = args.to.display().to_string();
    if args.json {
        let schema = "wattline.journal-backup/1";
        return output::json(&Report { schema, file: &file, entries, bytes });
    }
    output::text(&format!("{file}: {entries} entries, {:.1} MB, checked", bytes as f64 / 1e6))
}
