//! `wattline journal prune`.

use super::Which;
use crate::failure::{Failure, Result};
use crate::output;
use anyhow::anyhow;
use serde::Serialize;
use wattline_controller::journal::{Prunable, Pruned, Store, StoreError};
use wattline_core::units::Seconds;

#[derive(Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("what").required(true).multiple(true),
    after_help = "Example:\n  wattline journal prune /var/lib/wattline/journal --older-than \"90 d\" --to-size \"2 GB\"\n\n\
                  The controller must not run; one that runs prunes by itself with --keep-journal\n                  \
                  and --keep-history."
)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// Throw entries away that are older than this, before the last entry, for example "30 d"
    #[arg(long, value_name = "TIME", group = "what")]
    older_than: Option<Seconds>,
    /// Throw away what became of jobs that ended longer ago than this, for example "2000 d"; reports
    /// of that time lose them
    #[arg(long, value_name = "TIME", group = "what")]
    history_older_than: Option<Seconds>,
    /// Throw the oldest entries away until the file has at most this size, for example "500 MB"; if
    /// they are too few, then also jobs that ended longest ago
    #[arg(long, value_name = "SIZE", group = "what", value_parser = size)]
    to_size: Option<u64>,
    /// Only say what would be thrown away
    #[arg(long)]
    dry_run: bool,
    /// Print JSON (schema wattline.journal-prune/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    dry_run: bool,
    pruned_entries: u64,
    pruned_jobs: u64,
    first_entry: u64,
    /// No restart needs entries up to this one.
    covered: u64,
    bytes_before: u64,
    bytes_after: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let path = args.which.path();
    std::fs::metadata(path)
        .map_err(|error| Failure::input(anyhow!("{}: {error}", path.display())))?;
    let mut store = Store::open(path, &[]).map_err(|error| match error {
        StoreError::InUse(path) => Failure::Failed(anyhow!(
            "{}: a controller uses this journal; stop it first, or let it prune by itself with \
             --keep-journal",
            path.display()
        )),
        error => Failure::input(error),
    })?;
    let what = Prunable {
        older_than: args.older_than,
        ended_before: args.history_older_than,
        to_bytes: args.to_size,
    };
    let pruned = store.prune(&what, args.dry_run);
    let pruned = pruned.map_err(|error| Failure::Failed(error.into()))?;
    // Otherwise a copy of the file alone would be taken for one of a journal that is being written.
    store.close().map_err(|error| Failure::Failed(error.into()))?;
    if args.json {
        let Pruned { entries, ended_jobs, first, covered, bytes_before, bytes_after } = pruned;
        return output::json(&Report {
            schema: "wattline.journal-prune/1",
            dry_run: args.dry_run,
            pruned_entries: entries,
            pruned_jobs: ended_jobs,
            first_entry: first,
            covered,
            bytes_before,
            bytes_after,
        });
    }
    output::text(&text(&pruned, args.dry_run))
}

fn text(pruned: &Pruned, dry_run: bool) -> String {
    let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let Pruned { entries, ended_jobs, first, covered, bytes_before, bytes_after } = *pruned;
    let jobs = match ended_jobs {
        0 => String::new(),
        jobs => format!(" and {jobs} ended jobs"),
    };
    match (entries + ended_jobs, covered) {
        (0, 0) => "nothing can be pruned: a restart needs all entries until there are two sound \
                   snapshots; a controller takes them as it runs"
            .to_owned(),
        (0, covered) => format!(
            "nothing to prune: restarts need entries after {covered}, and what came before is as \
             young and as little as asked for"
        ),
        _ if dry_run => format!(
            "{entries} entries{jobs} would be pruned; the first entry left would be {first}"
        ),
        _ => format!(
            "{entries} entries{jobs} pruned, {} freed: from {} to {}; the first entry left is {first}",
            mb(bytes_before.saturating_sub(bytes_after)),
            mb(bytes_before),
            mb(bytes_after)
        ),
    }
}

/// A size with its unit.
fn size(text: &str) -> std::result::Result<u64, String> {
    const UNITS: [(&str, f64); 7] = [
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("B", 1.0),
    ];
    let wrong = || format!("'{text}' is not a size: write it as \"500 MB\" or \"2 GiB\"");
    let (unit, factor) = UNITS.iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(wrong)?;
    let number: f64 = text[..text.len() - unit.len()].trim().parse().map_err(|_| wrong())?;
    if !number.is_finite() || number < 0.0 {
        return Err(wrong());
    }
    Ok((number * factor) as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("500 MB").unwrap(), 500_000_000);
        assert_eq!(size("1.5KiB").unwrap(), 1536);
        assert_eq!(size("7 B").unwrap(), 7);
        for wrong in ["500", "MB", "-1 MB", "inf GB", "five MB"] {
            assert!(size(wrong).unwrap_err().contains(wrong));
        }
    }
}
