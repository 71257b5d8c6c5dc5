//! `wattline plan`: one plan for a cluster as a file describes it, with the reasons.

use crate::failure::{Failure, Result};
use crate::output;
use anyhow::{Context, anyhow};
use serde::Serialize;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use wattline_core::Timestamp;
use wattline_core::engine::{Alert, Engine, Event};
use wattline_core::forecast::{Forecast, Horizon, forecast};
use wattline_core::ids::{JobId, NodeId, PlanId};
use wattline_core::placement::Placement;
use wattline_core::plan::Reason;
use wattline_core::power::NodePower;
use wattline_core::snapshot::Snapshot;
use wattline_core::state::{JobState, State, Target};
use wattline_predict::snapshot::predictor;

/// A complete view to start from.
const EXAMPLE: &str = include_str!("plan/example.json");

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The view, a JSON file (schema wattline.view/1); - reads standard input
    #[arg(long, value_name = "FILE.json", required_unless_present = "example")]
    view: Option<PathBuf>,
    /// The policy; `wattline policies` lists them and their options
    #[arg(long, default_value = "wattline")]
    policy: String,
    /// Do not run the engine forward to foresee ends and costs
    #[arg(long)]
    no_forecast: bool,
    /// Print a small complete view to start from
    #[arg(long, conflicts_with_all = ["view", "json"])]
    example: bool,
    /// Print JSON (schema wattline.plan/1)
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Planned {
    schema: &'static str,
    policy: String,
    now_s: f64,
    /// The plan that was in force.
    based_on: u64,
    /// Whether the checker let the plan pass.
    accepted: bool,
    /// What the checker said, if not.
    violations: Vec<String>,
    /// What else an administrator would hear of.
    alerts: Vec<String>,
    /// What the cluster could draw at worst right now.
    committed_now_w: f64,
    /// And once the plan is carried out.
    committed_w: f64,
    budget_w: Option<f64>,
    jobs: Vec<JobRow>,
    nodes: Vec<NodeRow>,
    /// Whether all jobs end within what was looked at.
    forecast_complete: Option<bool>,
}

#[derive(Serialize)]
struct JobRow {
    job: String,
    /// start, stop, move, limit, stay or wait.
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<Runs>,
    reason: Reason,
    why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    forecast: Option<Foreseen>,
}

#[derive(Serialize)]
struct Runs {
    gpu: String,
    gpus: u32,
    batch: u32,
    power_limit_w: f64,
    /// Node and GPUs there.
    on: Vec<On>,
    /// Of the whole job, by the predictor; `None` where it cannot run so.
    predicted_power_w: Option<f64>,
    predicted_left_s: Option<f64>,
}

#[derive(Serialize)]
struct On {
    node: String,
    gpus: Vec<u8>,
}

/// If nothing unforeseen happens and the policy goes on planning.
#[derive(Serialize)]
struct Foreseen {
    start_s: Option<f64>,
    end_s: Option<f64>,
    tardiness_s: Option<f64>,
    energy_kwh: f64,
    cost_eur: f64,
}

#[derive(Serialize)]
struct NodeRow {
    node: String,
    state: NodePower,
    target: Target,
    /// wake, sleep or stay.
    action: &'static str,
    reason: Reason,
    why: String,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.example {
        return output::text(EXAMPLE);
    }
    let Some(path) = &args.view else {
        return Err(Failure::input(anyhow!("--view names no file")));
    };
    let policy = || wattline_policies::policy(&args.policy).map_err(Failure::input);
    let policies = (policy()?, policy()?);
    let file = path.display().to_string();
    let snapshot = read(path, &file)?;
    let planned = plan(&snapshot, policies, args, &file)?;
    if args.json {
        return output::json(&planned);
    }
    output::text(&text(&planned))
}

/// A view is a few megabytes; a gigabyte is another thing.
const MOST_BYTES: u64 = 1 << 30;

fn read(path: &Path, file: &str) -> Result<Snapshot> {
    let mut text = String::new();
    let source: Box<dyn Read> = if file == "-" {
        Box::new(io::stdin())
    } else {
        let opened = fs::File::open(path);
        Box::new(opened.with_context(|| format!("cannot read {file}")).map_err(Failure::Input)?)
    };
    source
        .take(MOST_BYTES)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read {file}"))
        .map_err(Failure::Input)?;
    let mut document = serde_json::Deserializer::from_str(&text);
    let snapshot = serde_path_to_error::deserialize(&mut document).map_err(|error| {
        let field = error.path().to_string();
        let inner = error.into_inner();
        // Its message names the line; the path names the field.
        if field == "." {
            Failure::input(anyhow!("{file}: {inner}"))
        } else {
            Failure::input(anyhow!("{file}: field `{field}`: {inner}"))
        }
    })?;
    document.end().map_err(|error| Failure::input(anyhow!("{file}: {error}")))?;
    Ok(snapshot)
}

type Policies = (Box<dyn wattline_core::policy::Policy>, Box<dyn wattline_core::policy::Policy>);

fn plan(snapshot: &Snapshot, policies: Policies, args: &Args, file: &str) -> Result<Planned> {
    let wrong = |error: anyhow::Error| Failure::Input(error.context(file.to_owned()));
    let machines = snapshot.machines().map_err(|error| wrong(error.into()))?;
    let predictor = predictor(snapshot, &machines).map_err(|error| wrong(error.into()))?;
    let restored = snapshot.restore(&machines, &*predictor).map_err(|error| wrong(error.into()))?;
    let now = restored.now;
    let before = restored.state.clone();
    let based_on = PlanId(snapshot.plan);
    let mut engine = Engine::new(
        restored.config,
        restored.state,
        policies.0,
        predictor,
        restored.prices,
        restored.budget,
    )
    .resume(based_on, now);
    engine.handle(now, Event::Clock).map_err(|error| Failure::Failed(error.into()))?;
    let (mut violations, mut alerts) = (Vec::new(), Vec::new());
    while let Some(alert) = engine.poll_alert() {
        match alert {
            Alert::PlanRefused { violations: found, .. } => {
                violations.extend(found.iter().map(ToString::to_string));
            }
            Alert::BudgetFell { committed, budget } => alerts.push(format!(
                "the budget is {budget:.1}, {committed:.1} were committed: load is shed first"
            )),
            other => alerts.push(format!("{other:?}")),
        }
    }
    let foreseen =
        (!args.no_forecast).then(|| forecast(&engine, policies.1, now, &Horizon::default()));
    let state = engine.state();
    let jobs = (0..snapshot.jobs.len() as u32).map(JobId);
    Ok(Planned {
        schema: "wattline.plan/1",
        policy: args.policy.clone(),
        now_s: now.seconds(),
        based_on: based_on.0,
        accepted: violations.is_empty(),
        violations,
        alerts,
        committed_now_w: before.held_committed().get(),
        committed_w: state.planned_committed().get(),
        budget_w: engine.budget_at(now).map(wattline_core::units::Watts::get),
        jobs: jobs.map(|id| job_row(&engine, &before, id, now, foreseen.as_ref())).collect(),
        nodes: state.cluster().node_ids().map(|id| node_row(state, &before, id)).collect(),
        forecast_complete: foreseen.as_ref().map(|f| f.complete),
    })
}

fn job_row(
    engine: &Engine<'_>,
    before: &State,
    id: JobId,
    now: Timestamp,
    foreseen: Option<&Forecast>,
) -> JobRow {
    let state = engine.state();
    let (job, was) = (state.job(id), before.job(id));
    let action = match (&was.held, &job.planned) {
        (None, None) => "wait",
        (None, Some(_)) => "start",
        (Some(_), None) => "stop",
        (Some(held), Some(planned)) if held == planned => "stay",
        (Some(held), Some(planned)) if held.same_but_limit(planned) => "limit",
        (Some(_), Some(_)) => "move",
    };
    let forecast = foreseen.and_then(|f| f.job(id)).map(|f| Foreseen {
        start_s: f.start.map(Timestamp::seconds),
        end_s: f.end.map(Timestamp::seconds),
        tardiness_s: f.end.map(|end| job.job.tardiness(end).get()),
        energy_kwh: f.energy.kilowatt_hours(),
        cost_eur: f.cost().get(),
    });
    JobRow {
        job: job.job.name.to_string(),
        action,
        runs: job.planned.as_ref().map(|p| runs(engine, job, p, now)),
        reason: job.reason,
        why: why(state, job.reason),
        forecast,
    }
}

/// The sentence, with the job's name where it speaks of another job.
fn why(state: &State, reason: Reason) -> String {
    match reason {
        Reason::GaveWay { to } => {
            let name =
                state.find_job(to).map_or_else(|| to.to_string(), |j| j.job.name.to_string());
            reason.to_string().replace(&to.to_string(), &name)
        }
        reason => reason.to_string(),
    }
}

fn runs(engine: &Engine<'_>, job: &JobState, placement: &Placement, now: Timestamp) -> Runs {
    let cluster = engine.state().cluster();
    let c = &placement.configuration;
    let predicted = engine.predictor().predict(&job.job, c);
    Runs {
        gpu: cluster.gpu_type(c.gpu_type).name.to_string(),
        gpus: c.gpus,
        batch: c.batch,
        power_limit_w: c.power_limit.get(),
        on: placement
            .allocation
            .shares()
            .map(|share| On {
                node: cluster.node(share.node).name.to_string(),
                gpus: (0..64_u8).filter(|bit| share.mask >> bit & 1 == 1).collect(),
            })
            .collect(),
        predicted_power_w: predicted.map(|p| p.power.get() * f64::from(c.gpus)),
        predicted_left_s: predicted.map(|p| (job.remaining(now) / p.rate).get()),
    }
}

fn node_row(state: &State, before: &State, id: NodeId) -> NodeRow {
    let (node, was) = (state.node(id), before.node(id));
    let action = match (was.power, node.target) {
        (NodePower::Asleep | NodePower::FallingAsleep, Target::Up) => "wake",
        (NodePower::Up | NodePower::Booting, Target::Asleep) => "sleep",
        _ => "stay",
    };
    NodeRow {
        node: state.cluster().node(id).name.to_string(),
        state: was.power,
        target: node.target,
        action,
        reason: node.reason,
        why: node.reason.to_string(),
    }
}

fn text(planned: &Planned) -> String {
    let dash = || "–".to_owned();
    let header = ["job", "plan", "where", "batch", "limit", "ends in", "late", "EUR", "why"];
    let rows = planned
        .jobs
        .iter()
        .map(|row| {
            let place = row.runs.as_ref().map(|runs| {
                let on = runs.on.iter().map(|on| {
                    let gpus: Vec<String> = on.gpus.iter().map(u8::to_string).collect();
                    format!("{}:{}", output::harmless(&on.node), gpus.join("+"))
                });
                format!("{} {} on {}", runs.gpus, runs.gpu, on.collect::<Vec<_>>().join(" "))
            });
            let runs = row.runs.as_ref();
            let foreseen = row.forecast.as_ref();
            let ends = foreseen.and_then(|f| f.end_s).map(|end| end - planned.now_s);
            vec![
                output::harmless(&row.job),
                row.action.to_owned(),
                place.unwrap_or_else(dash),
                runs.map_or_else(dash, |r| r.batch.to_string()),
                runs.map_or_else(dash, |r| format!("{:.0} W", r.power_limit_w)),
                ends.map_or_else(dash, output::duration),
                foreseen.and_then(|f| f.tardiness_s).map_or_else(dash, output::duration),
                foreseen.map_or_else(dash, |f| format!("{:.2}", f.cost_eur)),
                output::harmless(&row.why),
            ]
        })
        .collect();
    let mut text = output::table(&header, rows) + "\n";
    let changed: Vec<Vec<String>> = planned
        .nodes
        .iter()
        .filter(|row| row.action != "stay")
        .map(|row| {
            vec![output::harmless(&row.node), row.action.to_owned(), output::harmless(&row.why)]
        })
        .collect();
    if !changed.is_empty() {
        text += &format!("\n{}\n", output::table(&["node", "plan", "why"], changed));
    }
    let kilowatts = |w: f64| format!("{:.2} kW", w / 1e3);
    text += &format!(
        "\ncommitted power: {} now, {} by the plan; budget {}\n",
        kilowatts(planned.committed_now_w),
        kilowatts(planned.committed_w),
        planned.budget_w.map_or_else(|| "none".to_owned(), kilowatts),
    );
    for alert in &planned.alerts {
        text += &format!("alert: {}\n", output::harmless(alert));
    }
    text +=
        if planned.accepted { "the checker lets it pass\n" } else { "the checker refuses it:\n" };
    for violation in &planned.violations {
        text += &format!("  {}\n", output::harmless(violation));
    }
    if planned.forecast_complete == Some(false) {
        text += "not all jobs end within what was foreseen\n";
    }
    text
}
