//! `wattline submit` and `wattline whatif`: a job for a controller.

use crate::client::Server;
use crate::failure::{Failure, Result};
use crate::output;
use anyhow::anyhow;
use hyper::Method;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use wattline_api::{Accepted, SubmitRequest, WhatIf};
use wattline_core::job::Elasticity;
use wattline_core::units::{EurosPerSecond, Seconds};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    job: Job,
    /// A batch script for SLURM: submit it with sbatch; these options go into --comment
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    script: Option<PathBuf>,
    /// Options for sbatch, with --script
    #[arg(last = true, value_name = "SBATCH OPTIONS", requires = "script")]
    sbatch: Vec<String>,
    /// Submit only once under this key, however often it is asked for [default: a new one]
    #[arg(long)]
    key: Option<String>,
    /// Print JSON (schema wattline.accepted/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, clap::Args)]
pub(crate) struct WhatIfArgs {
    #[command(flatten)]
    job: Job,
    /// Print JSON (schema wattline.whatif/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, clap::Args)]
struct Job {
    /// What to call it [default: the workload]
    #[arg(long)]
    name: Option<String>,
    /// What it trains; needed unless a script is submitted
    #[arg(long)]
    workload: Option<String>,
    /// GPUs it asks for
    #[arg(long, default_value_t = 1)]
    gpus: u32,
    /// The fewest GPUs it may get
    #[arg(long)]
    min_gpus: Option<u32>,
    /// The most GPUs it may get
    #[arg(long)]
    max_gpus: Option<u32>,
    /// rigid, moldable, malleable or adaptive [default: malleable if it may get other numbers of
    /// GPUs, else rigid]
    #[arg(long)]
    elasticity: Option<Elasticity>,
    /// The global batch [default: the workload's usual one]
    #[arg(long)]
    batch: Option<u32>,
    /// How much there is to do, in the workload's unit (samples)
    #[arg(long, conflicts_with = "duration")]
    work: Option<f64>,
    /// How long it takes with the GPUs it asks for, with its unit
    #[arg(long)]
    duration: Option<Seconds>,
    /// When it should be done, from now on, with its unit
    #[arg(long)]
    deadline: Option<Seconds>,
    /// What being late costs, for example "2 EUR/h"
    #[arg(long)]
    weight: Option<EurosPerSecond>,
    /// It may not be taken off its GPUs once it runs
    #[arg(long)]
    no_preempt: bool,
}

impl Job {
    fn request(&self) -> Result<SubmitRequest> {
        let missing = |what| Failure::input(anyhow!("{what}; a batch script needs --script FILE"));
        let Some(workload) = self.workload.clone() else {
            return Err(missing("--workload is needed: what it trains"));
        };
        if self.work.is_none() && self.duration.is_none() {
            return Err(missing("--work or --duration is needed: how much there is to do"));
        }
        Ok(SubmitRequest {
            name: self.name.clone().unwrap_or_else(|| workload.clone()),
            workload,
            gpus: self.gpus,
            min_gpus: self.min_gpus,
            max_gpus: self.max_gpus,
            elasticity: self.elasticity.map(|e| e.to_string()),
            batch: self.batch,
            work: self.work,
            duration_s: self.duration.map(Seconds::get),
            deadline_s: None,
            deadline_in_s: self.deadline.map(Seconds::get),
            weight_eur_per_h: self.weight.map(|weight| weight.get() * 3600.0),
            preemptible: self.no_preempt.then_some(false),
        })
    }

    /// The same in the words that a job's comment has.
    fn comment(&self) -> Result<String> {
        if self.duration.is_some() {
            let why = "--duration: SLURM has the time limit for that; say it with `-- --time=...`";
            return Err(Failure::input(anyhow!(why)));
        }
        let mut words = Vec::new();
        let mut say = |key: &str, value: Option<String>| {
            words.extend(value.map(|value| format!("{key}={value}")));
        };
        say("workload", self.workload.clone());
        say("work", self.work.map(|work| work.to_string()));
        say("deadline", self.deadline.map(|deadline| format!("{}s", deadline.get())));
        say("weight", self.weight.map(|weight| (weight.get() * 3600.0).to_string()));
        say("elasticity", self.elasticity.map(|e| e.to_string()));
        say("batch", self.batch.map(|batch| batch.to_string()));
        say("checkpoint", self.no_preempt.then(|| "none".to_owned()));
        if self.min_gpus.is_some() || self.max_gpus.is_some() {
            let (min, max) = (self.min_gpus.unwrap_or(1), self.max_gpus.unwrap_or(self.gpus));
            say("gpus", Some(format!("{min}-{max}:{}", self.gpus)));
        }
        Ok(words.join(" "))
    }
}

/// To SLURM, as the user who asks: whose job it is, SLURM knows best.
fn by_sbatch(args: &Args, script: &Path) -> Result<()> {
    let comment = args.job.comment()?;
    let mut sbatch = Command::new("sbatch");
    sbatch.arg("--parsable").arg(format!("--gres=gpu:{}", args.job.gpus));
    if !comment.is_empty() {
        sbatch.arg(format!("--comment={comment}"));
    }
    if let Some(name) = &args.job.name {
        sbatch.arg(format!("--job-name={name}"));
    }
    let done = sbatch.args(&args.sbatch).arg(script).stdin(Stdio::null()).output();
    let done = done.map_err(|error| {
        Failure::Failed(anyhow!("sbatch cannot be started: {error}; is SLURM's client installed?"))
    })?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(Failure::input(anyhow!("{}", output::harmless(said.trim()))));
    }
    let said = String::from_utf8_lossy(&done.stdout);
    let number = said.trim().split(';').next().unwrap_or_default();
    if args.json {
        let value = serde_json::json!({"schema": "wattline.submitted/1", "slurm_job": number});
        return output::json(&value);
    }
    output::text(&format!("submitted SLURM job {}", output::harmless(number)))
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(script) = &args.script {
        return by_sbatch(args, script);
    }
    let key = args.key.clone().unwrap_or_else(new_key);
    let request = args.job.request()?;
    let accepted: Accepted =
        args.server.ask(Method::POST, "/v1/jobs", Some(&request), Some(&key))?;
    if args.json {
        return output::json(&accepted);
    }
    let before = if accepted.again { " (it had been submitted before)" } else { "" };
    output::text(&format!("submitted job {}{before}", output::harmless(&accepted.number)))
}

pub(crate) fn what_if(args: &WhatIfArgs) -> Result<()> {
    let request = args.job.request()?;
    let answer: WhatIf = args.server.ask(Method::POST, "/v1/whatif", Some(&request), None)?;
    if args.json {
        return output::json(&answer);
    }
    let mut text = output::harmless(&answer.text);
    if let Some(energy) = answer.energy_kwh {
        text += &format!("\nenergy: {energy:.2} kWh");
    }
    if let Some(risk) = answer.risk {
        text += &format!("\nrisk of missing the deadline: {}", output::percent(Some(risk)));
    }
    output::text(&text)
}

/// Unlike any other. The keys of a hash map are random.
fn new_key() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}
