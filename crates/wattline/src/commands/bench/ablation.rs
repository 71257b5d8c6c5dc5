//! `wattline bench ablation`: what each part and each constant of the policy `wattline` is worth.

use crate::commands::compare;
use crate::failure::{Failure, Result};
use crate::output;
use crate::source::read_scenario;
use anyhow::anyhow;
use serde::Serialize;
use std::path::{Path, PathBuf};
use wattline_core::calendar::Calendar;
use wattline_core::job::Elasticity;
use wattline_core::units::Seconds;
use wattline_policies::registry::{WATTLINE_PARTS, wattline_constants};
use wattline_sim::instance::Instance;
use wattline_sim::metrics::Summary;
use wattline_sim::replay::{ReplayOptions, replay};
use wattline_sim::trace::Format;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A small tuning set: one seed, the first 30 jobs of each instance, no shared files
    #[arg(long)]
    quick: bool,
    /// Only these parts and constants, separated by commas; --list prints their names
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// Use only the first N jobs of each instance [default: 30 with --quick, otherwise 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    first: Option<u32>,
    /// Seeds of each scenario, from 1 on [default: 1 with --quick, otherwise 2]; results are
    /// reported on seeds from 10,000 on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..10_000))]
    seeds: Option<u32>,
    /// Folder with data/andreas, data/peers and data/traces; what is there of the tuning set is
    /// used too [default: $WATTLINE_SHARED]
    #[arg(long, value_name = "DIR")]
    shared: Option<PathBuf>,
    /// Threads to run on [default: all]
    #[arg(long)]
    threads: Option<usize>,
    /// Print the names of all parts and constants with their defaults, and run nothing
    #[arg(long)]
    list: bool,
    /// Print JSON (schema wattline.bench.ablation/1)
    #[arg(long)]
    json: bool,
}

/// Scenarios of the tuning set, with what is done to them and the policy's options.
const SCENARIOS: &[(&str, Change, &str)] = &[
    ("demo", Change::None, ""),
    ("bursts", Change::None, ""),
    ("overload", Change::None, ""),
    ("capped-60", Change::None, ""),
    ("night-price", Change::None, ""),
    ("andreas-20", Change::None, ""),
    ("demo", Change::Rigid, ""),
    ("bursts", Change::Rigid, ""),
    ("overload", Change::Rigid, ""),
    ("overload", Change::RigidCapped, ""),
    ("overload", Change::None, TARDINESS),
    ("ones-64", Change::None, JCT),
    ("powerflow-128", Change::None, "+energy=0.9"),
];
/// One of each kind.
const QUICK: &[(&str, Change, &str)] = &[
    ("demo", Change::None, ""),
    ("capped-60", Change::None, ""),
    ("overload", Change::Rigid, ""),
    ("overload", Change::None, TARDINESS),
    ("ones-64", Change::None, JCT),
];
const JCT: &str = "+objective=jct";
const TARDINESS: &str = "+objective=tardiness";
/// What energy counts beside tardiness: as in the objective; so no value is nothing.
const TIE_BREAK: f64 = 0.02;
/// Shared instances in ANDREAS' form: folder, seconds of a restart, the policy's options.
const FOLDERS: &[(&str, f64, &str)] = &[
    ("data/andreas/n10-l2300-s0", 60.0, ""),
    ("data/andreas/n10-l7000-s0", 60.0, ""),
    ("data/andreas/n10-l28000-s0", 60.0, ""),
    ("data/andreas/n20-l4600-s0", 60.0, ""),
    ("data/andreas/n20-l14000-s0", 60.0, ""),
    ("data/peers/elasticflow-75", 30.0, ""),
    ("data/peers/pollux-w2", 30.0, JCT),
];
/// Shared traces, rigid.
const TRACES: &[(&str, Format)] = &[
    ("data/traces/elasticflow/cluster02.csv", Format::Elasticflow),
    ("data/traces/elasticflow/cluster03.csv", Format::Elasticflow),
    ("data/traces/philly.csv", Format::Philly),
];
/// The budget of a capped instance, as a share of the cluster's peak.
const CAP: f64 = 0.6;

#[derive(Clone, Copy, PartialEq)]
enum Change {
    None,
    /// Jobs keep their shape and are never moved.
    Rigid,
    /// The same under a budget.
    RigidCapped,
}

impl Change {
    fn apply(self, instance: &mut Instance) -> &'static str {
        if self == Self::None {
            return "";
        }
        instance.set_elasticity(Elasticity::Rigid);
        instance.set_no_preempt();
        if self == Self::Rigid {
            return " rigid";
        }
        instance.budget = Some(Calendar::constant(instance.cluster.peak_power() * CAP));
        " rigid, capped"
    }
}

/// An instance of the tuning set.
struct Case {
    name: String,
    instance: Instance,
    /// The policy without what is varied.
    policy: String,
}

impl Case {
    fn new(name: String, mut instance: Instance, options: &str, first: usize) -> Self {
        instance.jobs.truncate(first);
        Self { name: name + options, instance, policy: format!("wattline{options}") }
    }

    /// What the policy is to make small here.
    fn value(&self, summary: &Summary) -> f64 {
        let unless_unfinished = if summary.finished < summary.jobs { f64::INFINITY } else { 1.0 };
        unless_unfinished
            * match self.policy.strip_prefix("wattline").unwrap_or_default() {
                "" => summary.total_cost,
                TARDINESS => summary.tardiness_cost + TIE_BREAK * summary.energy_cost,
                _ => summary.jct_mean_s,
            }
    }
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    /// The tuning set.
    instances: Vec<String>,
    parts: Vec<Part>,
    constants: Vec<Constant>,
}

#[derive(Serialize)]
struct Part {
    part: &'static str,
    off: Effect,
}

#[derive(Serialize)]
struct Constant {
    constant: &'static str,
    default: String,
    halved: Effect,
    doubled: Effect,
}

/// Values over those of the default: above 1 the default is better. Not a number of JSON (null)
/// where jobs never finish.
#[derive(Serialize)]
struct Effect {
    geometric_mean: f64,
    worst: f64,
    worst_instance: String,
    /// Instances on which anything changed.
    changed: usize,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let wanted = |name: &&str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let parts: Vec<&'static str> = WATTLINE_PARTS.iter().copied().filter(|p| wanted(p)).collect();
    let constants: Vec<(&'static str, String)> =
        wattline_constants().into_iter().filter(|(name, _)| wanted(name)).collect();
    let known = |name: &String| {
        parts.contains(&name.as_str()) || constants.iter().any(|(constant, _)| constant == name)
    };
    if let Some(name) = args.only.iter().find(|name| !known(name)) {
        return Err(Failure::input(anyhow!(
            "--only: no part or constant '{name}': `wattline bench ablation --list` prints all"
        )));
    }
    if args.list {
        return list(&parts, &constants);
    }
    let cases = cases(args)?;
    // The default first, then everything that is varied, in the order of the report.
    let halved_and_doubled =
        |(name, _): &(&str, String)| [0.5, 2.0].map(|factor| format!("+scale={name}:{factor}"));
    let variations: Vec<String> = std::iter::once(String::new())
        .chain(parts.iter().map(|part| format!("+without={part}")))
        .chain(constants.iter().flat_map(halved_and_doubled))
        .collect();
    let runs: Vec<(&Instance, String)> = variations
        .iter()
        .flat_map(|variation| {
            cases.iter().map(move |c| (&c.instance, c.policy.clone() + variation))
        })
        .collect();
    let runs: Vec<(&Instance, &str)> = runs.iter().map(|(i, policy)| (*i, &policy[..])).collect();
    let figures = compare::run_figures(&runs, args.threads)?;
    let mut by_variation = figures.chunks(cases.len());
    let default = by_variation.next().unwrap_or_default();
    let mut next = || effect(&cases, default, by_variation.next().unwrap_or_default());
    let report = Report {
        schema: "wattline.bench.ablation/1",
        parts: parts.iter().map(|part| Part { part, off: next() }).collect(),
        constants: constants
            .into_iter()
            .map(|(constant, default)| Constant {
                constant,
                default,
                halved: next(),
                doubled: next(),
            })
            .collect(),
        instances: cases.iter().map(|case| case.name.clone()).collect(),
    };
    if args.json { output::json(&report) } else { output::text(&text(&report)) }
}

fn list(parts: &[&str], constants: &[(&str, String)]) -> Result<()> {
    let part = |part: &&str| vec![(*part).to_owned(), "part: +without=".to_owned() + part];
    let constant = |(name, default): &(&str, String)| vec![(*name).to_owned(), default.clone()];
    let rows = parts.iter().map(part).chain(constants.iter().map(constant)).collect();
    output::text(&output::left_table(&["name", "default"], rows))
}

/// The tuning set.
fn cases(args: &Args) -> Result<Vec<Case>> {
    let first = args.first.unwrap_or(if args.quick { 30 } else { 1000 }) as usize;
    let seeds = args.seeds.unwrap_or(if args.quick { 1 } else { 2 });
    let mut cases = Vec::new();
    for (name, change, options) in if args.quick { QUICK } else { SCENARIOS } {
        for seed in 1..=u64::from(seeds) {
            let (scenario, file) = read_scenario(Path::new(name))?;
            let mut instance = scenario.instance(&file, Some(seed)).map_err(Failure::input)?;
            let changed = change.apply(&mut instance);
            cases.push(Case::new(format!("{name}/{seed}{changed}"), instance, options, first));
        }
    }
    let shared =
        args.shared.clone().or_else(|| std::env::var_os("WATTLINE_SHARED").map(Into::into));
    let Some(shared) = shared.filter(|_| !args.quick) else { return Ok(cases) };
    let there = |path: &str| Some(shared.join(path)).filter(|path| path.exists());
    for (name, restart, options) in FOLDERS {
        let Some(folder) = there(name) else { continue };
        let mut instance = wattline_sim::andreas::read(&folder).map_err(Failure::input)?;
        instance.set_restart(Seconds::new(*restart));
        cases.push(Case::new((*name).to_owned(), instance, options, first));
    }
    for (name, format) in TRACES {
        let Some(file) = there(name) else { continue };
        let options = ReplayOptions {
            elasticity: Some(Elasticity::Rigid),
            deadline_slack: (*format == Format::Philly).then_some(3.0),
            first: Some(first),
            ..ReplayOptions::default()
        };
        let (mut instance, _) = replay(&file, *format, &options).map_err(Failure::input)?;
        let changed = Change::Rigid.apply(&mut instance);
        cases.push(Case::new(format!("{name}{changed}"), instance, "", first));
    }
    Ok(cases)
}

fn effect(cases: &[Case], default: &[Summary], varied: &[Summary]) -> Effect {
    let ratios = cases.iter().zip(default.iter().zip(varied));
    let ratios: Vec<(f64, &Case)> =
        ratios.map(|(case, (d, v))| (case.value(v) / case.value(d), case)).collect();
    let (worst, case) = ratios
        .iter()
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or((1.0, String::new()), |(worst, case)| (*worst, case.name.clone()));
    let logs: f64 = ratios.iter().map(|(ratio, _)| ratio.ln()).sum();
    Effect {
        geometric_mean: (logs / ratios.len().max(1) as f64).exp(),
        worst,
        worst_instance: case,
        changed: ratios.iter().filter(|(ratio, _)| *ratio != 1.0).count(),
    }
}

fn text(report: &Report) -> String {
    let all = report.instances.len();
    let cells = |effect: &Effect| {
        let worst = match effect.changed {
            0 => "–".to_owned(),
            _ => format!("{:.3} {}", effect.worst, effect.worst_instance),
        };
        [format!("{:.3}", effect.geometric_mean), worst, format!("{}/{all}", effect.changed)]
    };
    let mut text = format!(
        "Tuning set: {}\nRatios to the default: above 1 the default is better.\n",
        report.instances.join(", ")
    );
    if !report.parts.is_empty() {
        let row = |p: &Part| [vec![p.part.to_owned()], cells(&p.off).to_vec()].concat();
        let header = ["part", "without it", "worst", "changed"];
        text += &format!("\n{}\n", output::table(&header, report.parts.iter().map(row).collect()));
    }
    if !report.constants.is_empty() {
        let row = |c: &Constant| {
            let name = vec![c.constant.to_owned(), c.default.clone()];
            [name, cells(&c.halved).to_vec(), cells(&c.doubled).to_vec()].concat()
        };
        let header =
            ["constant", "default", "halved", "worst", "changed", "doubled", "worst", "changed"];
        let rows = report.constants.iter().map(row).collect();
        text += &format!("\n{}\n", output::table(&header, rows));
    }
    text
}
