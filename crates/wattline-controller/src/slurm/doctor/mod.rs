//! What is right and what is wrong about an installation, and what to do about it.
//!
//! Looks, and changes nothing: the one file it writes, to see whether it can, is removed at once.
//! [`settings`] and [`gate`] are functions of text; `place.rs` looks at this machine.

mod gate;
mod neighbours;
mod place;
mod rest;
mod settings;

use super::command::{Commands, printable};
use super::config::Mode;
use super::link::Link;
use super::{Config, Slurm};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;
use wattline_core::Timestamp;

/// How good something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but something is lost.
    Warn,
    /// Wattline cannot work like this.
    Wrong,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub what: &'static str,
    /// How good it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do; empty if nothing.
    pub fix: String,
}

impl Finding {
    /// As it should be.
    pub fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Ok, found: found.into(), fix: String::new() }
    }

    /// It works, but something is lost.
    pub fn warn(what: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Warn, found: found.into(), fix: fix.into() }
    }

    /// Wattline cannot work like this.
    pub fn wrong(what: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Wrong, found: found.into(), fix: fix.into() }
    }
}

/// What is fatal only for who decides: others are warned.
fn needed(
    mode: Mode,
    what: &'static str,
    found: impl Into<String>,
    fix: impl Into<String>,
) -> Finding {
    match mode {
        Mode::Control => Finding::wrong(what, found, fix),
        Mode::Observe | Mode::Advise => Finding::warn(what, found, fix),
    }
}

/// Looks at everything. Without a site, at SLURM alone. `clock` says what time it is.
#[must_use]
pub fn examine(
    slurm: Option<&Slurm>,
    journal: &Path,
    clock: &dyn Fn() -> Timestamp,
) -> Vec<Finding> {
    let usual = Config::default();
    let config = slurm.map_or(&usual, |slurm| &slurm.site.config);
    let alone = Link::by_commands(Commands::new(None, Duration::from_secs(20)));
    let link = slurm.map_or(&alone, |slurm| &slurm.link);
    let commands = &link.commands;
    let mut found = Vec::new();
    if let Some(rest) = &link.rest {
        let (all, up) = rest::examine(rest, link, config, clock);
        found.extend(all);
        if up {
            found.extend(jobs_and_nodes(link, config, slurm));
        }
        // What only the commands tell is looked at where they are.
        match link.commands_answer() {
            Ok(()) => found.extend(of_settings(commands, config, clock)),
            Err(error) => {
                let said = format!("not looked at: slurmrestd does not tell them, and {error}");
                let fix = "run `wattline doctor` once with reader = \"commands\" where SLURM's \
                           commands are: it looks at slurm.conf, the gate and rights";
                found.push(Finding::warn("SLURM's settings", said, fix));
            }
        }
    } else {
        found.push(programs(commands));
        let answers = answers(commands);
        let up = answers.verdict == Verdict::Ok;
        found.push(answers);
        if up {
            found.extend(jobs_and_nodes(link, config, slurm));
            found.extend(of_settings(commands, config, clock));
        }
    }
    if let Some(slurm) = slurm {
        found.extend(place::folders(config, journal));
        found.push(place::disk(commands, journal));
        found.extend(place::heartbeat(config, clock()));
        found.push(place::limits(slurm));
        found.push(place::zone(commands, config));
    }
    found
}

/// SLURM's commands.
fn programs(commands: &Commands) -> Finding {
    const WHAT: &str = "SLURM's commands";
    let mut version = String::new();
    for program in ["squeue", "sinfo", "scancel", "scontrol"] {
        match commands.run(program, &["--version"]) {
            Ok(said) => version = printable(&said),
            Err(error) => {
                let fix = "install SLURM's client (Debian: slurm-client), of slurmctld's version; \
                           slurm.slurm_conf names its configuration if it is not the usual one";
                return Finding::wrong(WHAT, error.to_string(), fix);
            }
        }
    }
    Finding::ok(WHAT, version)
}

/// slurmctld.
fn answers(commands: &Commands) -> Finding {
    const WHAT: &str = "slurmctld";
    let fix = "start slurmctld and munge; is slurm.slurm_conf the right file?";
    match commands.run("scontrol", &["ping"]) {
        Ok(said) if said.contains(" UP") => Finding::ok(WHAT, printable(&said)),
        Ok(said) => Finding::wrong(WHAT, printable(&said), fix),
        Err(error) => Finding::wrong(WHAT, error.to_string(), fix),
    }
}

/// Whether jobs and nodes can be read, and are those of the site's file.
fn jobs_and_nodes(link: &Link, config: &Config, slurm: Option<&Slurm>) -> Vec<Finding> {
    let mut found = Vec::new();
    match link.look() {
        Ok(seen) => {
            let (jobs, nodes) = (seen.jobs().count(), seen.nodes.len());
            found.push(Finding::ok("SLURM's JSON", format!("{jobs} jobs, {nodes} nodes")));
            let wrong = slurm.map(|slurm| slurm.site.check(&seen)).unwrap_or_default();
            for error in &wrong {
                let fix = "correct the site's file, or SLURM's";
                found.push(Finding::wrong("the site's file and SLURM", error.to_string(), fix));
            }
            if let (Some(slurm), true) = (slurm, wrong.is_empty()) {
                let nodes = slurm.site.cluster.node_ids().count();
                let said = format!("{nodes} nodes, partitions {}", config.partitions.join(", "));
                found.push(Finding::ok("the site's file and SLURM", said));
            }
            if let Some(slurm) = slurm {
                let ours = |id| seen.nodes.get(&*slurm.site.node(id).name);
                let nodes = slurm.site.cluster.node_ids().filter_map(ours);
                found.push(neighbours::shared(nodes, config));
            }
        }
        Err(error) => {
            let fix = "SLURM must be 22.05 or newer, with its JSON plugins (Debian: \
                       slurm-wlm-basic-plugins)";
            found.push(Finding::wrong("SLURM's JSON", error.to_string(), fix));
        }
    }
    found
}

/// What slurm.conf says, the gate and rights.
fn of_settings(
    commands: &Commands,
    config: &Config,
    clock: &dyn Fn() -> Timestamp,
) -> Vec<Finding> {
    let mut found = Vec::new();
    // In a zone and a format that are known here.
    let ask = ["TZ=UTC", "SLURM_TIME_FORMAT=standard", "scontrol", "show", "config"];
    let before = clock();
    match commands.run("env", &ask) {
        Ok(text) => {
            found.push(settings::clock(&text, before, clock()));
            let settings = settings::read(&text);
            found.extend(settings::judge(&settings, config));
            let me = place::me(commands);
            found.push(gate::judge(&settings, config, me.as_ref().map(|me| me.id)));
            found.push(place::rights(commands, &settings, config, me.as_ref()));
            found.extend(limits(commands, &settings));
        }
        Err(error) => {
            let fix = "see slurmctld's log";
            found.push(Finding::wrong("SLURM's settings", error.to_string(), fix));
        }
    }
    found
}

/// Limits of QOS, where there is accounting.
fn limits(commands: &Commands, settings: &settings::Settings) -> Option<Finding> {
    let enforced = settings.get("AccountingStorageEnforce").map(String::as_str).unwrap_or_default();
    let qos = commands.run("sacctmgr", &["-nP", "show", "qos", neighbours::QOS_FIELDS]).ok()?;
    Some(neighbours::limits(&qos, enforced))
}
