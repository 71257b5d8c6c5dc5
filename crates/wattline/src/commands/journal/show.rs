//! `wattline journal show`.

use super::{Which, clock, text};
use crate::failure::{Failure, Result};
use crate::output;
use serde::Serialize;
use serde_json::Value;
use std::collections::VecDeque;
use wattline_controller::journal::{Entry, Store};
use wattline_core::Timestamp;
use wattline_core::units::Seconds;

/// Entries that are shown if nobody says which.
const SHOWN: usize = 100;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  wattline journal show /var/lib/wattline/journal --job 4711 --since \"2 d\""
)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// The first entry to show
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// The last entry to show
    #[arg(long, value_name = "N")]
    to: Option<u64>,
    /// Only entries about this job, by its number in the queue; under SLURM, SLURM's number
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Only what was recorded in this time before the last entry, for example "2 h"
    #[arg(long, value_name = "TIME")]
    since: Option<Seconds>,
    /// At most so many entries, the last ones [default: 100, if nothing else says which]
    #[arg(long, value_name = "N")]
    last: Option<usize>,
    /// Print JSON (schema wattline.journal-show/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    entries: &'a VecDeque<Shown>,
}

/// One entry.
#[derive(Serialize)]
struct Shown {
    number: u64,
    time: String,
    time_s: f64,
    /// What it says, in words.
    says: Vec<String>,
    /// The entry as the journal's format has it.
    entry: Value,
}

impl Args {
    fn most(&self) -> usize {
        let all = self.from.is_some() || self.to.is_some();
        let all = all || self.job.is_some() || self.since.is_some();
        self.last.unwrap_or(if all { usize::MAX } else { SHOWN })
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let store = Store::look(args.which.path()).map_err(Failure::input)?;
    let last = store.last_time().map_err(Failure::input)?;
    let since = args.since.and_then(|since| Some(last? - since));
    let mut shown: VecDeque<Shown> = VecDeque::new();
    let failed = read(args, &store, since, &mut shown).err();
    // What can be read of a damaged journal is shown.
    if args.json {
        output::json(&Report { schema: "wattline.journal-show/1", entries: &shown })?;
    } else {
        for Shown { number, time, says, .. } in &shown {
            output::text(&format!(
                "{number:>8}  {time}  {}",
                says.join("\n                               ")
            ))?;
        }
    }
    failed.map_or(Ok(()), Err)
}

fn read(
    args: &Args,
    store: &Store,
    since: Option<Timestamp>,
    shown: &mut VecDeque<Shown>,
) -> Result<()> {
    let pruned = store.pruned().map_err(Failure::input)?;
    let jobs = store.pruned_jobs().map_err(Failure::input)?;
    let mut words = text::Words::new(jobs as u32);
    let most = args.most();
    let mut take = |number: u64, entry: Entry| -> std::result::Result<(), Failed> {
        let lines = words.of(&entry);
        let wanted = args.from.is_none_or(|from| number >= from)
            && args.to.is_none_or(|to| number <= to)
            && since.is_none_or(|since| entry.at >= since);
        let about = |line: &text::Line, job: &str| {
            let number = line.job.as_ref();
            number.is_some_and(|number| *number.called == *job || number.id.to_string() == job)
        };
        let lines: Vec<text::Line> = match &args.job {
            Some(job) => lines.into_iter().filter(|line| about(line, job)).collect(),
            None => lines,
        };
        if wanted && (args.job.is_none() || !lines.is_empty()) {
            let entry_json = entry.to_text().and_then(|text| serde_json::from_str(&text));
            shown.push_back(Shown {
                number,
                time: clock(entry.at.micros()),
                time_s: entry.at.seconds(),
                says: lines.into_iter().map(|line| output::harmless(&line.text)).collect(),
                entry: entry_json.map_err(|error| Failed(error.into()))?,
            });
            if shown.len() > most {
                shown.pop_front();
            }
        }
        Ok(())
    };
    // From the beginning: jobs are numbered as they come.
    store.read_numbered(pruned, &mut take).map_err(|Failed(failure)| failure)
}

/// A failure while the journal is read.
struct Failed(Failure);

impl From<wattline_controller::journal::StoreError> for Failed {
    fn from(error: wattline_controller::journal::StoreError) -> Self {
        Self(Failure::Failed(error.into()))
    }
}
