//! `wattline trace`: look at traces, convert and generate them.

use crate::failure::{Failure, Result};
use crate::output;
use crate::source::read_scenario;
use anyhow::Context;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use wattline_sim::trace::{self, Format};
use wattline_sim::{describe, write_trace};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Say what is in a trace: jobs, GPUs, run times, load
    Describe {
        /// The trace
        #[arg(long, value_name = "FILE")]
        trace: PathBuf,
        /// philly, elasticflow, helios, alibaba or sacct
        #[arg(long)]
        format: Format,
        /// Print JSON (schema wattline.trace/1)
        #[arg(long)]
        json: bool,
    },
    /// Rewrite a trace as CSV in another format
    Convert {
        /// The trace
        #[arg(long, value_name = "FILE")]
        trace: PathBuf,
        /// philly, elasticflow, helios, alibaba or sacct
        #[arg(long)]
        format: Format,
        /// The format to write: philly or elasticflow
        #[arg(long, default_value = "elasticflow")]
        to: write_trace::Target,
        /// Where to write it [default: standard output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Write the jobs that a scenario generates as a trace in the elasticflow format
    Generate {
        /// A scenario file, or the name of a built-in one
        #[arg(long, value_name = "FILE")]
        scenario: PathBuf,
        /// Seed [default: the scenario's]
        #[arg(long)]
        seed: Option<u64>,
        /// Where to write it [default: standard output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

pub(crate) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Describe { trace, format, json } => {
            let description = describe::describe(trace, *format).map_err(Failure::input)?;
            if *json {
                return output::json(&description);
            }
            let d = &description;
            let mut rows = vec![
                ["rows".to_owned(), d.rows.to_string()].to_vec(),
                ["jobs".to_owned(), d.jobs.to_string()].to_vec(),
            ];
            for skipped in &d.skipped {
                rows.push(vec![format!("left out: {}", skipped.reason), skipped.rows.to_string()]);
            }
            let pairs = [
                ("users", d.users.to_string()),
                ("from first to last submission", output::duration(d.span_s)),
                ("GPU-hours", format!("{:.1}", d.gpu_hours)),
                ("GPUs that make load 0.9", d.gpus_for_load_0_9.to_string()),
                ("run time, median", output::duration(d.duration_p50_s)),
                ("run time, mean", output::duration(d.duration_mean_s)),
                ("run time, 99 %", output::duration(d.duration_p99_s)),
                ("jobs with a deadline", d.deadlines.to_string()),
            ];
            rows.extend(pairs.map(|(k, v)| vec![k.to_owned(), v]));
            for bin in &d.gpus {
                rows.push(vec![format!("jobs with {} GPUs", bin.gpus), bin.jobs.to_string()]);
            }
            for model in &d.models {
                let name = output::harmless(&model.model);
                rows.push(vec![format!("jobs of {name}"), model.jobs.to_string()]);
            }
            output::text(&output::table(&["what", "figure"], rows))
        }
        Command::Convert { trace, format, to, out } => {
            let mut jobs = Vec::new();
            trace::read(trace, *format, &mut |job| jobs.push(job)).map_err(Failure::input)?;
            with_output(out.as_deref(), |to_file| write_trace::write(&jobs, *to, to_file))
        }
        Command::Generate { scenario, seed, out } => {
            let (scenario, file) = read_scenario(scenario)?;
            let instance = scenario.instance(&file, *seed).map_err(Failure::input)?;
            let jobs = write_trace::from_instance(&instance);
            with_output(out.as_deref(), |to_file| {
                write_trace::write(&jobs, write_trace::Target::Elasticflow, to_file)
            })
        }
    }
}

fn with_output(
    out: Option<&Path>,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<()> {
    match out {
        None => {
            let mut out = BufWriter::new(std::io::stdout().lock());
            write(&mut out)?;
            Ok(out.flush()?)
        }
        Some(path) => {
            let written = File::create(path).and_then(|file| {
                let mut file = BufWriter::new(file);
                write(&mut file)?;
                file.flush()
            });
            written
                .with_context(|| format!("cannot write {}", path.display()))
                .map_err(Failure::Failed)
        }
    }
}
