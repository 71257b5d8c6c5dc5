//! `wattline config`: scenarios with all their defaults.

use crate::failure::{Failure, Result};
use crate::output;
use crate::site;
use crate::source::{SCENARIOS, read_scenario};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Print a scenario with every default filled in
    Show {
        /// A file, or the name of a built-in scenario
        #[arg(default_value = "demo")]
        scenario: PathBuf,
        /// Print JSON (schema wattline.scenario/1)
        #[arg(long)]
        json: bool,
    },
    /// Check a scenario: its text, its machines, its calendars and its workloads
    Check {
        /// A file, or the name of a built-in scenario
        scenario: PathBuf,
        /// Print JSON (schema wattline.check/1)
        #[arg(long)]
        json: bool,
    },
    /// List the built-in scenarios
    List {
        /// Print JSON (schema wattline.scenarios/1)
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Show { scenario, json } => {
            let (scenario, _) = read_scenario(scenario)?;
            if *json {
                let mut value = serde_json::to_value(&scenario)?;
                value["schema"] = "wattline.scenario/1".into();
                return output::json(&value);
            }
            let text =
                toml::to_string_pretty(&scenario).map_err(|error| Failure::Failed(error.into()))?;
            output::text(&text)
        }
        Command::Check { scenario, json } => {
            let path = scenario;
            let (scenario, file) = read_scenario(scenario)?;
            if scenario.slurm.is_some() && scenario.jobs.count == 0 {
                return check_site(path, *json);
            }
            let instance = scenario.instance(&file, None).map_err(Failure::input)?;
            if *json {
                return output::json(&serde_json::json!({
                    "schema": "wattline.check/1",
                    "file": file,
                    "name": instance.name,
                    "jobs": instance.jobs.len(),
                    "nodes": instance.cluster.nodes().len(),
                    "gpus": instance.cluster.total_gpus(),
                    "offered_load": instance.offered_load(),
                }));
            }
            let load = instance.offered_load();
            output::text(&format!(
                "{file}: good. {}; offered load {load:.2}",
                crate::source::describe(&instance)
            ))
        }
        Command::List { json } => {
            let mut rows = Vec::new();
            for (name, text) in SCENARIOS {
                let scenario =
                    wattline_sim::scenario::Scenario::parse(text, name).map_err(Failure::input)?;
                rows.push((*name, scenario.about));
            }
            if *json {
                let list: Vec<_> = rows
                    .iter()
                    .map(|(name, about)| serde_json::json!({"name": name, "about": about}))
                    .collect();
                let value =
                    serde_json::json!({"schema": "wattline.scenarios/1", "scenarios": list});
                return output::json(&value);
            }
            let rows = rows.into_iter().map(|(name, about)| vec![name.to_owned(), about]).collect();
            output::text(&output::table(&["scenario", "what it shows"], rows))
        }
    }
}

/// A site has machines and no work.
fn check_site(path: &Path, json: bool) -> Result<()> {
    let live = site::read(path)?;
    let cluster = &live.parts.cluster;
    let (nodes, gpus) = (cluster.nodes().len(), cluster.total_gpus());
    if json {
        return output::json(&serde_json::json!({
            "schema": "wattline.check/1",
            "file": live.file,
            "nodes": nodes,
            "gpus": gpus,
            "partitions": live.config.partitions,
            "mode": live.config.mode,
        }));
    }
    output::text(&format!(
        "{}: good, as far as it goes: {nodes} nodes, {gpus} GPUs. `wattline doctor --site {}` asks SLURM",
        live.file, live.file
    ))
}
