//! `wattline sweep`: one knob turned, what follows for every policy.

mod equal_energy;

use super::compare;
use crate::failure::{Failure, Result};
use crate::output;
use crate::source::{self, Source, Variation};
use anyhow::{Context, anyhow};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use wattline_sim::instance::Instance;
use wattline_sim::metrics::Summary;
use wattline_sim::report::{Axis, Chart, Curve, Unit, render_curves};
use wattline_sim::sweep::{Estimate, Knob, Metric, PLACEHOLDER, Setting};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// What to vary: load, budget, energy-price, restart, or option (of the policies: the values go
    /// in place of {} in their texts)
    #[arg(long, value_name = "KNOB")]
    vary: Knob,
    /// Values, separated by commas: loads; budgets as a share of the peak (0.6, 60%) or in watts
    /// ("12 kW"); EUR/kWh or a factor (x2); seconds; or what an option takes [default: some that
    /// make sense]
    #[arg(long, value_delimiter = ',')]
    values: Vec<String>,
    /// Policies, separated by commas, for example edf or 'tiresias+queues={}'
    #[arg(long, value_delimiter = ',', default_value = "fifo,edf,priority,tiresias,wattline")]
    policies: Vec<String>,
    /// What the table and the plot show; the JSON has everything
    #[arg(long, value_enum, default_value_t = Shown::Cost)]
    metric: Shown,
    /// Repeat with so many seeds and show means with their standard errors
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    seeds: u16,
    /// With --vary option: each curve's mean JCT at the total energy of these policies, and how
    /// many times shorter it is
    #[arg(long, value_delimiter = ',', value_name = "POLICIES")]
    at_energy_of: Vec<String>,
    /// Write sweep.html and sweep.json to this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Threads to run on [default: all]
    #[arg(long)]
    threads: Option<usize>,
    /// Print JSON (schema wattline.sweep/1)
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Shown {
    Cost,
    Jct,
    Energy,
    Deadlines,
    Tardiness,
}

impl Shown {
    fn metric(self) -> Metric {
        match self {
            Self::Cost => Metric::Cost,
            Self::Jct => Metric::Jct,
            Self::Energy => Metric::Energy,
            Self::Deadlines => Metric::Deadlines,
            Self::Tardiness => Metric::Tardiness,
        }
    }
}

#[derive(Serialize)]
struct Sweep {
    schema: &'static str,
    name: String,
    vary: Knob,
    metric: Metric,
    seeds: Vec<u64>,
    values: Vec<Row>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    at_energy_of: Vec<equal_energy::Comparison>,
}

#[derive(Serialize)]
struct Row {
    value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<f64>,
    policies: Vec<Cell>,
}

/// One policy at one value: estimates over the seeds, and the runs themselves.
#[derive(Serialize)]
struct Cell {
    /// As asked for, with `{}` where the value goes.
    policy: String,
    total_cost: Estimate,
    jct_mean_s: Estimate,
    energy_kwh: Estimate,
    deadlines_met_share: Estimate,
    tardiness_mean_s: Estimate,
    restarts: Estimate,
    /// Over all seeds.
    unfinished: usize,
    runs: Vec<Summary>,
}

impl Cell {
    fn new(policy: &str, runs: Vec<Summary>) -> Self {
        let of = |value: &dyn Fn(&Summary) -> f64| {
            Estimate::of(&runs.iter().map(value).collect::<Vec<f64>>())
        };
        Self {
            policy: policy.to_owned(),
            total_cost: of(&|s| Metric::Cost.of(s)),
            jct_mean_s: of(&|s| Metric::Jct.of(s)),
            energy_kwh: of(&|s| Metric::Energy.of(s)),
            deadlines_met_share: of(&|s| Metric::Deadlines.of(s)),
            tardiness_mean_s: of(&|s| Metric::Tardiness.of(s)),
            restarts: of(&|s| s.restarts as f64),
            unfinished: runs.iter().map(|s| s.jobs - s.finished).sum(),
            runs,
        }
    }

    fn estimate(&self, metric: Metric) -> Estimate {
        match metric {
            Metric::Cost => self.total_cost,
            Metric::Jct => self.jct_mean_s,
            Metric::Energy => self.energy_kwh,
            Metric::Deadlines => self.deadlines_met_share,
            Metric::Tardiness => self.tardiness_mean_s,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let settings = settings(args)?;
    check_policies(args, &settings)?;
    if let Some(out) = &args.out {
        super::simulate::prepare_folder(out)?;
    }
    let first = args.source.varied(Variation { seed: None, load: settings[0].load() })?;
    let base = first.world.seed;
    let seeds: Vec<u64> = (0..u64::from(args.seeds)).map(|k| base.wrapping_add(k)).collect();
    if seeds.len() > 1 && !args.source.is_generated() {
        output::note("the jobs of this source do not depend on the seed, only what is random else");
    }
    let instances = instances(args, &settings, &seeds)?;
    for (setting, instances) in settings.iter().zip(&instances) {
        for note in instances.iter().take(1).flat_map(|instance| &instance.notes) {
            output::note(&format!("{} {setting}: {note}", args.vary));
        }
    }
    // As it is before the knob is turned.
    let described = source::describe(&first);
    let sweep = simulate(args, &first, &settings, seeds, &instances)?;
    let chart_file = args.out.as_deref().map(|out| write(out, &sweep, &settings, &described));
    if let Some(written) = chart_file {
        output::note(&format!("plot: {}", written?.display()));
    }
    if args.json {
        return output::json(&sweep);
    }
    output::text(&format!("{described}\n{}", text(&sweep)))
}

fn settings(args: &Args) -> Result<Vec<Setting>> {
    let knob = args.vary;
    if knob == Knob::Load
        && let Some(why) = args.source.fixed_load()
    {
        return Err(Failure::input(anyhow!("--vary load: {why}; vary something else")));
    }
    let texts: Vec<&str> = if args.values.is_empty() {
        knob.defaults().to_vec()
    } else {
        args.values.iter().map(String::as_str).collect()
    };
    if texts.is_empty() {
        return Err(Failure::input(anyhow!("--vary {knob} needs --values")));
    }
    texts
        .into_iter()
        .map(|text| Setting::parse(knob, text))
        .collect::<std::result::Result<_, _>>()
        .map_err(Failure::input)
}

/// Every policy that will be run exists, and the placeholder stands where it should.
fn check_policies(args: &Args, settings: &[Setting]) -> Result<()> {
    let has_place = |policy: &&String| policy.contains(PLACEHOLDER);
    if args.policies.is_empty() {
        return Err(Failure::input(anyhow!("--policies names no policy")));
    }
    let places = args.policies.iter().chain(&args.at_energy_of).find(has_place);
    match (args.vary, places) {
        (Knob::Option, _) if !args.policies.iter().any(|policy| has_place(&policy)) => {
            return Err(Failure::input(anyhow!(
                "--vary option: no policy has {PLACEHOLDER}, where the values go; write for \
                 example --policies 'edf+backfill={PLACEHOLDER}'"
            )));
        }
        (Knob::Option, _) => {}
        (knob, Some(policy)) => {
            return Err(Failure::input(anyhow!(
                "'{policy}' has {PLACEHOLDER}, but --vary is {knob}: with --vary option the values \
                 go there"
            )));
        }
        (_, None) => {}
    }
    if !args.at_energy_of.is_empty() {
        if args.vary != Knob::Option {
            return Err(Failure::input(anyhow!(
                "--at-energy-of reads curves over an option of a policy: it needs --vary option"
            )));
        }
        if let Some(policy) = args.at_energy_of.iter().find(has_place) {
            return Err(Failure::input(anyhow!(
                "--at-energy-of: '{policy}' has {PLACEHOLDER}; name policies that are no curves"
            )));
        }
    }
    for policy in args.policies.iter().chain(&args.at_energy_of) {
        for setting in settings {
            wattline_policies::policy(&setting.policy(policy)).map_err(Failure::input)?;
        }
    }
    Ok(())
}

/// By setting and seed. Options of policies change no instance: there is one per seed then.
fn instances(args: &Args, settings: &[Setting], seeds: &[u64]) -> Result<Vec<Vec<Instance>>> {
    let settings = if args.vary == Knob::Option { &settings[..1] } else { settings };
    let one = |setting: &Setting, seed: u64| -> Result<Instance> {
        let mut instance =
            args.source.varied(Variation { seed: Some(seed), load: setting.load() })?;
        setting.apply(&mut instance);
        Ok(instance)
    };
    settings.iter().map(|s| seeds.iter().map(|seed| one(s, *seed)).collect()).collect()
}

/// Runs everything once: a policy without a placeholder is the same at all values of an option.
fn simulate(
    args: &Args,
    first: &Instance,
    settings: &[Setting],
    seeds: Vec<u64>,
    instances: &[Vec<Instance>],
) -> Result<Sweep> {
    let mut wanted: Vec<(usize, String)> = Vec::new();
    let mut place = |at: usize, policy: String| {
        let entry = (at.min(instances.len() - 1), policy);
        let known = wanted.iter().position(|w| *w == entry);
        known.unwrap_or_else(|| {
            wanted.push(entry);
            wanted.len() - 1
        })
    };
    let mut cells: Vec<Vec<usize>> = Vec::new();
    for (at, setting) in settings.iter().enumerate() {
        cells.push(args.policies.iter().map(|p| place(at, setting.policy(p))).collect());
    }
    let baselines: Vec<usize> = args.at_energy_of.iter().map(|p| place(0, p.clone())).collect();
    let runs: Vec<(&Instance, &str)> = wanted
        .iter()
        .flat_map(|(at, policy)| instances[*at].iter().map(move |i| (i, policy.as_str())))
        .collect();
    output::note(&format!("{} simulations", runs.len()));
    let summaries = compare::run_figures(&runs, args.threads)?;
    for (at, summary) in summaries.iter().enumerate() {
        let what = format!("seed {}", seeds[at % seeds.len()]);
        compare::warn_figures(summary, &what);
    }
    let of = |run: usize| summaries[run * seeds.len()..(run + 1) * seeds.len()].to_vec();
    let values: Vec<Row> = settings
        .iter()
        .zip(&cells)
        .map(|(setting, runs)| Row {
            value: setting.to_string(),
            number: setting.number(),
            policies: args
                .policies
                .iter()
                .zip(runs)
                .map(|(policy, run)| Cell::new(policy, of(*run)))
                .collect(),
        })
        .collect();
    let baselines: Vec<(&str, Vec<Summary>)> =
        args.at_energy_of.iter().zip(baselines).map(|(p, run)| (p.as_str(), of(run))).collect();
    let at_energy_of = equal_energy::compare(&values, &args.policies, &baselines);
    Ok(Sweep {
        schema: "wattline.sweep/1",
        name: first.name.clone(),
        vary: args.vary,
        metric: args.metric.metric(),
        seeds,
        values,
        at_energy_of,
    })
}

fn shown(estimate: Estimate, metric: Metric, several: bool) -> String {
    let value = |x: f64| match metric {
        Metric::Cost => format!("{x:.2}"),
        Metric::Energy => format!("{x:.1}"),
        Metric::Jct | Metric::Tardiness => output::duration(x),
        Metric::Deadlines => format!("{:.1} %", x * 100.0),
    };
    match several {
        true => format!("{} ± {}", value(estimate.mean), value(estimate.error)),
        false => value(estimate.mean),
    }
}

fn text(sweep: &Sweep) -> String {
    let several = sweep.seeds.len() > 1;
    let knob = sweep.vary.to_string();
    let mut header = vec![knob.as_str()];
    if let Some(row) = sweep.values.first() {
        header.extend(row.policies.iter().map(|cell| cell.policy.as_str()));
    }
    let rows = sweep
        .values
        .iter()
        .map(|row| {
            let cells = row.policies.iter();
            let cells = cells.map(|cell| shown(cell.estimate(sweep.metric), sweep.metric, several));
            std::iter::once(row.value.clone()).chain(cells).collect()
        })
        .collect();
    let seeds = match &sweep.seeds[..] {
        [seed] => format!("seed {seed}"),
        [first, .., last] => format!("mean ± standard error over seeds {first} to {last}"),
        [] => String::new(),
    };
    let mut text = format!("{}\n{}; {seeds}\n", output::table(&header, rows), sweep.metric.label());
    text += &equal_energy::text(&sweep.at_energy_of, several);
    text
}

fn write(out: &Path, sweep: &Sweep, settings: &[Setting], described: &str) -> Result<PathBuf> {
    let put = |name: &str, bytes: &[u8]| {
        let path = out.join(name);
        fs::write(&path, bytes)
            .with_context(|| format!("cannot write {}", path.display()))
            .map_err(Failure::Failed)?;
        Ok(path)
    };
    put("sweep.json", &serde_json::to_vec_pretty(sweep)?)?;
    let seeds: Vec<String> = sweep.seeds.iter().map(u64::to_string).collect();
    let subtitle = format!("{described}\nSeeds: {}", seeds.join(", "));
    let title = format!("{}: what {} changes", sweep.name, sweep.vary.label());
    put("sweep.html", render_curves(&title, &subtitle, &charts(sweep, settings)).as_bytes())
}

fn charts(sweep: &Sweep, settings: &[Setting]) -> Vec<Chart> {
    let policies = sweep.values.first().map_or(&[][..], |row| &row.policies[..]);
    let curves = |point: &dyn Fn(usize, &Cell) -> (f64, f64)| {
        let curve = |(column, first): (usize, &Cell)| Curve {
            name: first.policy.clone(),
            points: sweep
                .values
                .iter()
                .enumerate()
                .filter_map(|(at, row)| row.policies.get(column).map(|cell| point(at, cell)))
                .collect(),
        };
        policies.iter().enumerate().map(curve).collect::<Vec<Curve>>()
    };
    // Words have no place on an axis but their order.
    let all_numbers = sweep.values.iter().all(|row| row.number.is_some());
    let x = |at: usize| match sweep.values[at].number {
        Some(number) if all_numbers => number,
        _ => at as f64 + 1.0,
    };
    let x_unit = match settings.first() {
        Some(Setting::BudgetShare(_)) => Unit::Share,
        Some(Setting::Budget(_)) => Unit::Watts,
        Some(Setting::Restart(_)) => Unit::Seconds,
        _ => Unit::Number,
    };
    let y_unit = match sweep.metric {
        Metric::Cost => Unit::Euros,
        Metric::Jct | Metric::Tardiness => Unit::Seconds,
        Metric::Deadlines => Unit::Share,
        Metric::Energy => Unit::Number,
    };
    let axis = |name: &str, unit| Axis { name: name.to_owned(), unit };
    let mut charts = vec![Chart {
        title: format!("{} over {}", sweep.metric.label(), sweep.vary.label()),
        x: axis(sweep.vary.label(), x_unit),
        y: axis(sweep.metric.label(), y_unit),
        curves: curves(&|at, cell| (x(at), cell.estimate(sweep.metric).mean)),
    }];
    if sweep.vary == Knob::Option {
        charts.push(Chart {
            title: "Mean JCT over energy".to_owned(),
            x: axis(Metric::Energy.label(), Unit::Number),
            y: axis(Metric::Jct.label(), Unit::Seconds),
            curves: curves(&|_, cell| (cell.energy_kwh.mean, cell.jct_mean_s.mean)),
        });
    }
    charts
}
