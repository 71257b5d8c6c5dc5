//! Where the work to simulate comes from: the arguments that `simulate`, `compare` and `bench`
//! have in common.

use crate::commands::predict::read_groups;
use crate::failure::{Failure, Result};
use anyhow::anyhow;
use clap::Args;
use std::path::PathBuf;
use wattline_core::calendar::Calendar;
use wattline_core::job::Elasticity;
use wattline_core::units::{EurosPerSecond, Seconds, Watts};
use wattline_sim::foresight::Foresight;
use wattline_sim::instance::Instance;
use wattline_sim::replay::{ReplayOptions, replay};
use wattline_sim::scenario::Scenario;
use wattline_sim::trace::Format;

/// Scenarios that are part of the program.
pub(crate) const SCENARIOS: &[(&str, &str)] = &[
    ("demo", include_str!("../../../scenarios/demo.toml")),
    ("capped-60", include_str!("../../../scenarios/capped-60.toml")),
    ("bursts", include_str!("../../../scenarios/bursts.toml")),
    ("night-price", include_str!("../../../scenarios/night-price.toml")),
    ("learning", include_str!("../../../scenarios/learning.toml")),
    ("overload", include_str!("../../../scenarios/overload.toml")),
    ("andreas-20", include_str!("../../../scenarios/andreas-20.toml")),
    ("scale-1000", include_str!("../../../scenarios/scale-1000.toml")),
    ("powerflow-128", include_str!("../../../scenarios/powerflow-128.toml")),
    ("ones-64", include_str!("../../../scenarios/ones-64.toml")),
    ("scale", include_str!("../../../scenarios/scale.toml")),
];

/// The work to simulate.
#[derive(Debug, Args)]
pub(crate) struct Source {
    #[command(flatten)]
    from: From,

    /// Format of the trace: philly, elasticflow, helios, alibaba or sacct
    #[arg(long, requires = "trace", help_heading = "Trace")]
    format: Option<Format>,
    /// GPUs of the cluster a trace runs on [default: as many as --load takes]
    #[arg(long, requires = "trace", value_parser = clap::value_parser!(u32).range(1..=10_000_000), help_heading = "Trace")]
    gpus: Option<u32>,
    /// Offered load a trace's cluster is sized for [default: 0.9]
    #[arg(long, requires = "trace", conflicts_with = "gpus", help_heading = "Trace")]
    load: Option<f64>,
    /// GPUs in a node of a trace's cluster
    #[arg(long, requires = "trace", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64), help_heading = "Trace")]
    gpus_per_node: u8,
    /// GPU type of a trace's cluster, from the catalogue
    #[arg(long, requires = "trace", default_value = "v100", help_heading = "Trace")]
    gpu_type: String,
    /// Use only the first N jobs of a trace, by submission
    #[arg(long, requires = "trace", value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Trace")]
    first: Option<u32>,
    /// Give jobs without a deadline one: this many times their run time after submission
    #[arg(long, requires = "trace", value_name = "X", help_heading = "Trace")]
    deadline_slack: Option<f64>,
    /// What lateness costs in a trace without weights
    #[arg(long, requires = "trace", default_value = "1 EUR/h", help_heading = "Trace")]
    weight: EurosPerSecond,

    /// Jobs are rigid, moldable, malleable or adaptive [default: as the source says]
    #[arg(long)]
    elasticity: Option<Elasticity>,
    /// Seed of everything random
    #[arg(long)]
    seed: Option<u64>,
    /// What every restart costs, in seconds [default: as the source says]
    #[arg(long, value_name = "S")]
    restart_seconds: Option<f64>,
    /// Running jobs of a trace may be stopped and started again [default: those of elasticflow may,
    /// those of philly, helios, alibaba and sacct may not]
    #[arg(long, conflicts_with = "no_preempt")]
    preempt: bool,
    /// No job is taken off its GPUs once it runs: no migration, no resizing
    #[arg(long)]
    no_preempt: bool,
    /// Power budget, for example "12 kW" [default: as the source says]
    #[arg(long)]
    budget: Option<Watts>,
    /// What policies know of run times and power: learned (from the runs so far, starting with
    /// nothing), oracle (the truth) or noisy=SIGMA (the truth with an error of that standard
    /// deviation) [default: as the source says; learned]
    #[arg(long, value_name = "KNOWN")]
    foresight: Option<Foresight>,
    /// Measurements that the predictor starts with, in the columns of `wattline predict import`
    #[arg(long, value_name = "FILE")]
    know: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct From {
    /// A scenario file, or the name of one that is built in (`wattline config list`)
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// A folder with an ANDREAS instance: tNodes.csv, GPU-costs.csv, Lof_Selectjobs.csv,
    /// SelectJobs_times.csv
    #[arg(long, value_name = "DIR")]
    andreas: Option<PathBuf>,
    /// A trace of a real cluster
    #[arg(long, value_name = "FILE", requires = "format")]
    trace: Option<PathBuf>,
    /// A site's file: a cluster under SLURM, for `serve` and `replay`
    #[arg(long, value_name = "FILE")]
    site: Option<PathBuf>,
}

/// What a study varies about a source before anything is read or generated.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Variation {
    /// Another seed.
    pub(crate) seed: Option<u64>,
    /// Another offered load.
    pub(crate) load: Option<f64>,
}

impl Source {
    /// Whether it is a trace of somebody's cluster.
    pub(crate) fn is_trace(&self) -> bool {
        self.from.trace.is_some()
    }

    /// Reads it all and applies what the other arguments say.
    pub(crate) fn instance(&self) -> Result<Instance> {
        self.varied(Variation::default())
    }

    /// Why the source cannot have another load, if it cannot.
    pub(crate) fn fixed_load(&self) -> Option<&'static str> {
        if self.from.andreas.is_some() {
            return Some("an ANDREAS instance says when its jobs arrive and on which nodes");
        }
        self.gpus.is_some().then_some("--gpus sets the size of the cluster")
    }

    /// The site's file, if it is a site.
    pub(crate) fn site(&self) -> Option<&std::path::Path> {
        self.from.site.as_deref()
    }

    /// Whether jobs come from a generator, so that another seed gives other jobs.
    pub(crate) fn is_generated(&self) -> bool {
        self.from.scenario.is_some()
    }

    /// The same, with something varied.
    pub(crate) fn varied(&self, variation: Variation) -> Result<Instance> {
        let seed = variation.seed.or(self.seed);
        let mut instance = self.read(seed, variation.load)?;
        if let Some(elasticity) = self.elasticity
            && self.from.trace.is_none()
        {
            instance.set_elasticity(elasticity);
        }
        if let Some(seconds) = self.restart_seconds {
            let seconds = number("--restart-seconds", seconds, 0.0, 1e9)?;
            instance.set_restart(Seconds::new(seconds));
        }
        if self.no_preempt {
            instance.set_no_preempt();
        }
        if let Some(budget) = self.budget {
            instance.budget = Some(Calendar::constant(budget));
        }
        if let Some(path) = &self.know {
            let groups = read_groups(path)?;
            let count: usize = groups
                .iter()
                .filter(|((workload, gpu), readings)| instance.know(workload, gpu, readings))
                .map(|(_, readings)| readings.len())
                .sum();
            if count == 0 {
                let file = path.display();
                return Err(Failure::input(anyhow!(
                    "--know {file}: none of its measurements is of a workload and a GPU type here"
                )));
            }
            instance.notes.push(format!("{count} measurements known beforehand"));
        }
        if let Some(seed) = seed {
            instance.world.seed = seed;
        }
        if let Some(foresight) = self.foresight {
            instance.foresight = foresight;
        }
        Ok(instance)
    }

    fn read(&self, seed: Option<u64>, load: Option<f64>) -> Result<Instance> {
        if let Some(path) = &self.from.site {
            return Err(Failure::input(anyhow!(
                "--site {}: a site has no jobs to simulate; `wattline serve` runs it",
                path.display()
            )));
        }
        if let Some(folder) = &self.from.andreas {
            return wattline_sim::andreas::read(folder).map_err(Failure::input);
        }
        if let Some(path) = &self.from.trace {
            let Some(format) = self.format else {
                return Err(Failure::input(anyhow!("--trace needs --format")));
            };
            let (mut instance, stats) =
                replay(path, format, &self.replay_options(load)?).map_err(Failure::input)?;
            for (reason, count) in stats.skipped {
                instance.notes.push(format!("{count} rows of the trace left out: {reason}"));
            }
            return Ok(instance);
        }
        let path = self.from.scenario.clone().unwrap_or_default();
        let (mut scenario, file) = read_scenario(&path)?;
        scenario.jobs.load = load.unwrap_or(scenario.jobs.load);
        scenario.instance(&file, seed).map_err(Failure::input)
    }

    fn replay_options(&self, load: Option<f64>) -> Result<ReplayOptions> {
        let load = number("--load", load.or(self.load).unwrap_or(0.9), 1e-6, 1e6)?;
        let slack = self.deadline_slack.map(|s| number("--deadline-slack", s, 0.0, 1e6));
        Ok(ReplayOptions {
            gpus: self.gpus,
            load,
            gpus_per_node: self.gpus_per_node,
            gpu_type: self.gpu_type.clone(),
            elasticity: self.elasticity,
            preemptible: (self.preempt || self.no_preempt).then_some(self.preempt),
            weight: self.weight,
            deadline_slack: slack.transpose()?,
            first: self.first.map(|first| first as usize),
            ..ReplayOptions::default()
        })
    }
}

/// A scenario from a file or, if there is no such file, from the program itself.
pub(crate) fn read_scenario(path: &std::path::Path) -> Result<(Scenario, String)> {
    let file = path.display().to_string();
    let built_in = SCENARIOS.iter().find(|(name, _)| *name == file);
    if let Some((name, text)) = built_in
        && !path.exists()
    {
        let scenario = Scenario::parse(text, name).map_err(Failure::input)?;
        return Ok((scenario, (*name).to_owned()));
    }
    Ok((Scenario::read(path).map_err(Failure::input)?, file))
}

/// A number from the command line that is a number.
pub(crate) fn number(name: &str, value: f64, low: f64, high: f64) -> Result<f64> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(Failure::input(anyhow!("{name} is {value}: expected a number from {low} to {high}")))
}

/// How the instance can be named in a report.
pub(crate) fn describe(instance: &Instance) -> String {
    let cluster = &instance.cluster;
    let mut kinds: Vec<String> = cluster
        .gpu_type_ids()
        .map(|id| format!("{} {}", cluster.gpus_of(id), cluster.gpu_type(id).name))
        .collect();
    kinds.dedup();
    let budget = instance.budget.as_ref().map(|budget| {
        let mut values: Vec<Watts> = budget.values().collect();
        values.sort_by(Watts::total_cmp);
        let (low, high) = (values[0], values[values.len() - 1]);
        if low == high { format!("{low:.1}") } else { format!("{low:.1} to {high:.1}") }
    });
    format!(
        "{}: {} jobs, {} nodes, {} GPUs; budget {} of {:.1} peak",
        instance.name,
        instance.jobs.len(),
        cluster.nodes().len(),
        kinds.join(" + "),
        budget.unwrap_or_else(|| "none".to_owned()),
        cluster.peak_power(),
    )
}
