//! `wattline doctor`: what is wrong about an installation, and how to put it right.

use crate::failure::{Failure, Result};
use crate::{output, site};
use anyhow::anyhow;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use wattline_controller::slurm::Slurm;
use wattline_controller::slurm::doctor::{self, Finding, Verdict};
use wattline_core::Timestamp;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The site's file; without it, and without one at its usual place, only SLURM is looked at
    #[arg(long, value_name = "FILE")]
    site: Option<PathBuf>,
    /// Where the journal is, or will be
    #[arg(long, value_name = "FILE", default_value = site::USUAL_JOURNAL)]
    journal: PathBuf,
    /// Print JSON (schema wattline.doctor/1)
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    checks: &'a [Finding],
    warnings: usize,
    wrong: usize,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (slurm, about) = site(args.site.as_deref());
    let mut checks = vec![about];
    // Which SLURM, and what it should have, is in a file that must be put right first.
    if checks.iter().all(|check| check.verdict != Verdict::Wrong) {
        checks.extend(doctor::examine(slurm.as_ref(), &args.journal, &clock));
    }
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    let (warnings, wrong) = (count(Verdict::Warn), count(Verdict::Wrong));
    if args.json {
        output::json(&Report { schema: "wattline.doctor/1", checks: &checks, warnings, wrong })?;
    } else {
        output::text(&table(&checks))?;
    }
    match wrong {
        0 => Ok(()),
        1 => Err(Failure::Failed(anyhow!("1 thing is wrong"))),
        _ => Err(Failure::Failed(anyhow!("{wrong} things are wrong"))),
    }
}

/// Reads the site's file, if there is one.
fn site(named: Option<&Path>) -> (Option<Slurm>, Finding) {
    const WHAT: &str = "site's file";
    let usual = Path::new(site::USUAL);
    let path = match named {
        Some(path) => path,
        None if usual.exists() => usual,
        None => {
            let fix = "name it with --site; /usr/share/doc/wattline/wattline.toml is an example";
            return (None, Finding::warn(WHAT, "none", fix));
        }
    };
    let read = site::read(path).map(|live| {
        let mode = format!("{:?}", live.config.mode).to_lowercase();
        let about = format!("{}: mode {mode}", live.file);
        (live.slurm(), about)
    });
    match read {
        Ok((slurm, about)) => (Some(slurm), Finding::ok(WHAT, about)),
        Err(Failure::Input(error) | Failure::Failed(error)) => {
            let fix = "correct it; `docs: The site's file` explains every field";
            (None, Finding::wrong(WHAT, format!("{error:#}"), fix))
        }
        Err(Failure::NobodyReads) => (None, Finding::wrong(WHAT, "cannot be read", "")),
    }
}

fn clock() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_seconds(since.as_secs_f64())
}

/// What is longer is told below the table.
const WIDEST: usize = 100;

fn table(checks: &[Finding]) -> String {
    let short = |found: &str| match found.char_indices().nth(WIDEST) {
        Some((end, _)) => format!("{}…", found.get(..end).unwrap_or_default()),
        None => found.to_owned(),
    };
    let row = |check: &Finding| {
        let verdict = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Wrong => "WRONG",
        };
        [verdict, check.what, &short(&check.found)].map(output::harmless).to_vec()
    };
    let rows = checks.iter().map(row).collect();
    let mut text = output::left_table(&["", "what", "found"], rows);
    for check in checks.iter().filter(|check| !check.fix.is_empty()) {
        text += &format!("\n\n{}: {}", check.what, output::harmless(&check.fix));
        if check.found.chars().nth(WIDEST).is_some() {
            text += &format!("\n  {}", output::harmless(&check.found));
        }
    }
    text
}
