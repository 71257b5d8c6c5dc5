//! `wattline journal verify`.

use super::{Which, clock};
use crate::failure::{Failure, Result};
use crate::output::{self, harmless};
use anyhow::anyhow;
use serde::Serialize;
use wattline_controller::journal::{Verification, verify};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  wattline journal verify /var/lib/wattline/journal")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// Print JSON (schema wattline.journal-verify/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    sound: bool,
    format: Option<i64>,
    journal: Option<&'a str>,
    epoch: Option<u64>,
    /// The last entry that was written, if that is known.
    last_entry: Option<u64>,
    /// Entries up to this one were pruned.
    pruned: u64,
    last_good_entry: u64,
    last_good_time: Option<String>,
    problems: &'a [String],
    snapshots: Vec<Snapshot<'a>>,
    can_be_saved: String,
}

#[derive(Serialize)]
struct Snapshot<'a> {
    entry: u64,
    sound: bool,
    problem: Option<&'a str>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let path = args.which.path();
    let found = verify(path).map_err(Failure::input)?;
    if args.json {
        output::json(&report(&found))?;
    } else {
        output::text(&text(&found))?;
    }
    if found.is_sound() {
        return Ok(());
    }
    let last = match found.readable() {
        0 => "no entry can be read".to_owned(),
        _ => format!("the last good entry is {}", found.last_good),
    };
    let error = anyhow!(
        "{}: damaged: {}; {last}. Restore it from a backup, or begin a new journal with \
         `wattline serve --new`",
        path.display(),
        found.problems.first().map_or("", String::as_str)
    );
    Err(Failure::Failed(error))
}

fn report(found: &Verification) -> Report<'_> {
    let snapshot = |snapshot: &'_ wattline_controller::journal::SnapshotCheck| snapshot.number;
    let snapshots = found.snapshots.iter().map(|one| Snapshot {
        entry: snapshot(one),
        sound: one.wrong.is_none(),
        problem: one.wrong.as_deref(),
    });
    Report {
        schema: "wattline.journal-verify/1",
        sound: found.is_sound(),
        format: found.format,
        journal: found.journal.as_deref(),
        epoch: found.epoch,
        last_entry: found.last,
        pruned: found.pruned,
        last_good_entry: found.last_good,
        last_good_time: found.last_good_at.map(clock),
        problems: &found.problems,
        snapshots: snapshots.collect(),
        can_be_saved: found.can_be_saved(),
    }
}

fn text(found: &Verification) -> String {
    let number = |number: Option<u64>| number.map_or("unknown".to_owned(), |n| n.to_string());
    let mut lines = vec![
        format!("journal      {}", found.journal.as_deref().unwrap_or("unknown")),
        format!("format       {}", number(found.format.map(|format| format as u64))),
        format!("epoch        {}", number(found.epoch)),
        format!("last entry   {}", number(found.last)),
        format!(
            "pruned       {}",
            match found.pruned {
                0 => "nothing".to_owned(),
                pruned => format!("entries 1 to {pruned}"),
            }
        ),
        format!(
            "last good    {}{}",
            found.last_good,
            match found.last_good_at {
                Some(at) => format!(" ({})", clock(at)),
                None => String::new(),
            }
        ),
    ];
    for snapshot in &found.snapshots {
        let state = snapshot.wrong.as_deref().unwrap_or("sound");
        lines.push(format!("snapshot     after entry {}: {}", snapshot.number, harmless(state)));
    }
    for problem in &found.problems {
        lines.push(format!("problem      {}", harmless(problem)));
    }
    lines.push(match found.is_sound() {
        true => "result       sound".to_owned(),
        false => format!("result       damaged; {}", found.can_be_saved()),
    });
    lines.join("\n")
}
