//! `wattline release`: every job, node and limit back to SLURM as it was.

use crate::failure::{Failure, Result};
use crate::{output, site};
use anyhow::anyhow;
use serde::Serialize;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wattline_controller::journal::{Store, StoreError};
use wattline_controller::slurm::release::{Kind, Line, Outcome, Release, Scope};
use wattline_controller::slurm::{SeenError, Slurm};
use wattline_controller::{Controller, Known};
use wattline_core::Timestamp;

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub(crate) struct Args {
    /// Everything: all jobs, nodes and limits, and the gate lets new jobs pass
    #[arg(long, group = "what")]
    all: bool,
    /// One job, by its number in SLURM
    #[arg(long, value_name = "N", group = "what")]
    job: Option<u32>,
    /// One node and its power limits
    #[arg(long, value_name = "NAME", group = "what")]
    node: Option<String>,
    /// The site's file
    #[arg(long, value_name = "FILE", default_value = site::USUAL)]
    site: PathBuf,
    /// The journal of the controller, which must not run
    #[arg(long, value_name = "FILE", default_value = site::USUAL_JOURNAL)]
    journal: PathBuf,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Print JSON (schema wattline.release/1)
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    dry_run: bool,
    lines: Vec<&'a Line>,
    failed: usize,
    /// What is left to the administrator.
    next: Option<&'static str>,
}

/// How often SLURM is looked at.
const NAP: Duration = Duration::from_millis(500);
/// SLURM may be restarting; after this long without an answer it is given up.
const PATIENCE: Duration = Duration::from_secs(60);
const NEXT: &str = "take the gate out of slurm.conf (JobSubmitPlugins) and run `scontrol reconfigure`; \
                    as long as no controller runs it lets new jobs pass";

pub(crate) fn run(args: &Args) -> Result<()> {
    let live = site::read(&args.site)?;
    let (store, _folder) = open(&args.journal)?;
    let initial = live.initial(&live.known_at(&store)?);
    let told = Controller::open(initial, store, live.slurm(), site::planner(site::WATCH)?);
    let mut told = told.map_err(|error| Failure::Failed(error.into()))?;
    // A second look at the same cluster: the first belongs to what is known.
    let mut slurm = live.slurm();
    let scope = match (&args.node, args.job) {
        (Some(node), _) => Scope::Node(node.clone()),
        (None, Some(job)) => Scope::Job(job),
        (None, None) => Scope::All,
    };
    // Alerts are for a controller that runs.
    while told.poll_alert().is_some() {}
    let known = Known { engine: told.engine(), registry: told.registry() };
    let mut release = Release::new(scope, args.dry_run);
    give_back(&mut release, &mut slurm, known, args.json)?;
    report(args, &release)
}

/// A folder that is removed with all that is in it.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Opens a journal that is there and that nobody writes. Without one, what is held is found by its
/// marks in SLURM.
fn open(path: &Path) -> Result<(Store, Option<Temporary>)> {
    match std::fs::metadata(path) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            output::note(&format!(
                "{}: there is no journal; jobs that are held are found by their marks in SLURM. Power \
                 limits, and nodes that sleep, are left as they are",
                path.display()
            ));
            let folder =
                std::env::temp_dir().join(format!("wattline-release-{}", std::process::id()));
            // Nobody else may have made it, or may look into it.
            let made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
            made.map_err(|error| {
                Failure::Failed(anyhow!("{}: cannot be made: {error}", folder.display()))
            })?;
            let folder = Temporary(folder);
            let store = Store::open(&folder.0.join("journal"), &[]).map_err(Failure::input)?;
            return Ok((store, Some(folder)));
        }
        Err(error) => {
            return Err(Failure::input(anyhow!(
                "{}: {error}; name the controller's journal with --journal",
                path.display()
            )));
        }
    }
    let opened = Store::open(path, &[]).map_err(|error| match error {
        StoreError::InUse(path) => Failure::Failed(anyhow!(
            "{}: the controller runs; stop the controller first: systemctl stop wattline",
            path.display()
        )),
        error => Failure::input(error),
    });
    Ok((opened?, None))
}

fn give_back(release: &mut Release, slurm: &mut Slurm, known: Known<'_>, json: bool) -> Result<()> {
    let mut answered = Instant::now();
    loop {
        match release.turn(clock(), slurm, known) {
            Ok(changed) => {
                answered = Instant::now();
                for line in changed {
                    if line.outcome == Outcome::Waits {
                        output::note(&text(&line));
                    } else if !json {
                        output::text(&text(&line))?;
                    }
                }
            }
            Err(error) => unanswered(&error, answered)?,
        }
        if release.is_over() {
            return Ok(());
        }
        thread::sleep(NAP);
    }
}

fn unanswered(error: &SeenError, answered: Instant) -> Result<()> {
    if answered.elapsed() > PATIENCE {
        let error = anyhow!("SLURM does not answer, not everything is given back: {error}");
        return Err(Failure::Failed(error));
    }
    output::note(&format!("SLURM does not answer, it is asked again: {error}"));
    Ok(())
}

fn clock() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_seconds(since.as_secs_f64())
}

fn text(line: &Line) -> String {
    let kind = match line.kind {
        Kind::Gate => "heartbeat",
        Kind::Limits => "limits of",
        Kind::Node => "node",
        Kind::Job => "job",
    };
    let outcome = match line.outcome {
        Outcome::Done => "done",
        Outcome::Kept => "kept",
        Outcome::Planned => "would",
        Outcome::Waits => "...",
        Outcome::Failed => "FAILED",
    };
    output::harmless(&format!("{outcome:6} {kind} {}: {}", line.name, line.said))
}

fn report(args: &Args, release: &Release) -> Result<()> {
    let lines: Vec<&Line> = release.lines().collect();
    let failed = lines.iter().filter(|line| line.outcome == Outcome::Failed).count();
    let next = args.all.then_some(NEXT);
    if args.json {
        let schema = "wattline.release/1";
        output::json(&Report { schema, dry_run: args.dry_run, lines, failed, next })?;
    } else {
        if !lines.iter().any(|line| line.kind != Kind::Gate) {
            output::text("no job, node or limit was changed by Wattline")?;
        }
        if let Some(next) = next {
            output::note(&format!("next: {next}"));
        }
    }
    match failed {
        0 => Ok(()),
        _ => Err(Failure::Failed(anyhow!("{failed} of these could not be given back"))),
    }
}
