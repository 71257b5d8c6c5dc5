//! `wattline replay`: what a journal recorded, once more under any policy.

use super::compare::{self, How, InstanceSummary};
use crate::failure::Result;
use crate::recorded::{self, Decided, Realised, Recorded};
use crate::source::{self, Source};
use crate::{output, site};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use wattline_core::units::Seconds;
use wattline_sim::instance::Instance;
use wattline_sim::metrics::Summary;
use wattline_sim::simulation::Outcome;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The journal; a controller may be writing it
    journal: PathBuf,
    #[command(flatten)]
    source: Source,
    /// Policies to try, separated by commas, beside the one that it was recorded under
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
    /// Only what was recorded in the last so long, for example "7 d" [default: all that was kept]
    #[arg(long, value_name = "TIME")]
    since: Option<Seconds>,
    /// Print JSON (schema wattline.replay/1)
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
pub(crate) struct Replay {
    schema: &'static str,
    instance: InstanceSummary,
    /// Entries that were read.
    entries: u64,
    /// The policy that it was recorded under; none if it was only watched or there were several.
    recorded_policy: Option<String>,
    /// Who decided, in words.
    recorded_as: String,
    realised: Realised,
    results: Vec<Summary>,
    /// What each of them saves, in their order; none where jobs were left undone or it is not known
    /// what the realised total is.
    saved: Vec<Option<Saved>>,
    /// The recorded policy as it was foreseen, beside what it came to.
    check: Option<Check>,
}

/// What a policy would have saved against what happened. Negative: it would have cost more.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Saved {
    policy: String,
    eur: f64,
    kwh: f64,
    percent: f64,
}

/// Predicted against realised cost.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    policy: String,
    predicted_eur: f64,
    realised_eur: f64,
    /// Of the realised cost.
    deviation: f64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let recorded = match args.source.site() {
        Some(path) => recorded::of_site(&args.journal, &site::read(path)?, args.since)?,
        None => recorded::of_scenario(&args.journal, args.source.instance()?, args.since)?,
    };
    let what = source::describe(&recorded.instance);
    let replay = replay(recorded, &args.policy)?;
    if args.json {
        return output::json(&replay);
    }
    output::text(&format!("{what}\n{}", replay.text()))
}

/// Runs it all, and says beside the result what must be known about it.
pub(crate) fn replay(recorded: Recorded, asked: &[String]) -> Result<Replay> {
    let Recorded { instance, foreseen, realised, entries, decided } = recorded;
    let policies = policies(asked, decided.policy());
    let how = How::default();
    let outcomes = compare::run_policies(&instance, &policies, how)?;
    for note in &instance.notes {
        output::note(note);
    }
    compare::warn(&outcomes);
    let results: Vec<Summary> =
        outcomes.into_iter().map(|Outcome { summary, .. }| summary).collect();
    let saved = results.iter().map(|summary| saved(&realised, summary)).collect();
    let check = match decided.policy() {
        Some(policy) => check(policy, foreseen.as_ref(), &results, &realised)?,
        None => None,
    };
    Ok(Replay {
        schema: "wattline.replay/1",
        instance: InstanceSummary::new(&instance),
        entries,
        recorded_policy: decided.policy().map(str::to_owned),
        recorded_as: in_words(&decided),
        realised,
        results,
        saved,
        check,
    })
}

/// The recorded policy as it was foreseen. The row of the results will not do where it is made from
/// what happened: then its run times and watts are those of the record.
fn check(
    policy: &str,
    foreseen: Option<&Instance>,
    results: &[Summary],
    realised: &Realised,
) -> Result<Option<Check>> {
    let Some(drawn) = &realised.drawn else { return Ok(None) };
    let how = How::default();
    let predicted = match foreseen {
        Some(foreseen) => {
            let outcomes = compare::run_policies(foreseen, &[policy.to_owned()], how)?;
            outcomes.first().map(|outcome| outcome.summary.total_cost)
        }
        None => results.iter().find(|s| s.policy == policy).map(|s| s.total_cost),
    };
    let (policy, realised_eur) = (policy.to_owned(), drawn.total_cost);
    Ok(predicted.and_then(|predicted_eur| {
        let deviation = (predicted_eur - realised_eur).abs() / realised_eur;
        deviation.is_finite().then_some(Check { policy, predicted_eur, realised_eur, deviation })
    }))
}

fn in_words(decided: &Decided) -> String {
    match decided {
        Decided::By(policy) => format!("{policy} decided"),
        Decided::Nobody => "it was only watched: SLURM decided".to_owned(),
        Decided::Several(names) => format!("one after the other: {}", names.join(", ")),
    }
}

/// The recorded one first; each once.
fn policies(asked: &[String], recorded: Option<&str>) -> Vec<String> {
    let mut policies: Vec<String> = Vec::new();
    let asked = asked.iter().map(String::as_str);
    for policy in recorded.into_iter().chain(asked) {
        if !policies.iter().any(|known| known == policy) {
            policies.push(policy.to_owned());
        }
    }
    if policies.is_empty() {
        policies.push("wattline".to_owned());
    }
    policies
}

fn saved(realised: &Realised, summary: &Summary) -> Option<Saved> {
    let drawn = realised.drawn.as_ref()?;
    if summary.finished + summary.cancelled < summary.jobs {
        return None;
    }
    let eur = drawn.total_cost - summary.total_cost;
    let percent = if drawn.total_cost > 0.0 { eur / drawn.total_cost * 100.0 } else { 0.0 };
    let kwh = drawn.energy_kwh - summary.energy_kwh;
    Some(Saved { policy: summary.policy.clone(), eur, kwh, percent })
}

impl fmt::Display for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, eur, kwh, percent } = self;
        let (eur, share) = (format!("{:.2} EUR", eur.abs()), format!("{:.1} %", percent.abs()));
        if self.eur >= 0.0 {
            write!(f, "{policy} would have saved {eur} ({share})")?;
        } else {
            write!(f, "{policy} would have cost {eur} more ({share})")?;
        }
        let than = if *kwh >= 0.0 { "less" } else { "more" };
        write!(f, ", with {:.2} kWh {than}", kwh.abs())
    }
}

impl Replay {
    /// For people.
    pub(crate) fn text(&self) -> String {
        let r = &self.realised;
        let mut text = format!(
            "{} of record; {}\n{}",
            output::duration(r.until_s - r.from_s),
            self.recorded_as,
            self.table()
        );
        let Some(drawn) = &r.drawn else {
            text += "\nthe journal does not say where all jobs ran: what happened has no total";
            return text;
        };
        text += &format!("\nenergy of (realised): {}", drawn.energy_from);
        for saved in self.saved.iter().flatten() {
            text += &format!("\n{saved}");
        }
        if let Some(check) = &self.check {
            let Check { policy, predicted_eur, realised_eur, deviation } = check;
            text += &format!(
                "\npredicted against realised: {policy} {predicted_eur:.2} EUR foreseen, \
                 {realised_eur:.2} EUR realised, {:.1} % off",
                deviation * 100.0
            );
        }
        text
    }

    fn table(&self) -> String {
        let header = [
            "policy",
            "finished",
            "total EUR",
            "energy EUR",
            "tardiness EUR",
            "kWh",
            "of jobs",
            "JCT mean",
            "JCT p99",
            "makespan",
            "deadlines met",
            "restarts",
            "saved",
        ];
        let unknown = || "–".to_owned();
        let r = &self.realised;
        let drawn = |figure: fn(&recorded::Drawn) -> f64| {
            r.drawn.as_ref().map_or_else(unknown, |drawn| format!("{:.2}", figure(drawn)))
        };
        let of_jobs = r.drawn.as_ref().map(|drawn| drawn.energy_runs_kwh).or(r.energy_jobs_kwh);
        let mut rows = vec![vec![
            "(realised)".to_owned(),
            format!("{}/{}", r.finished, r.jobs),
            drawn(|drawn| drawn.total_cost),
            drawn(|drawn| drawn.energy_cost),
            format!("{:.2}", r.tardiness_cost),
            drawn(|drawn| drawn.energy_kwh),
            of_jobs.map_or_else(unknown, |kwh| format!("{kwh:.2}")),
            output::duration(r.jct_mean_s),
            output::duration(r.jct_p99_s),
            output::duration(r.makespan_s),
            format!("{}/{}", r.deadlines_met, r.deadlines),
            r.restarts.to_string(),
            String::new(),
        ]];
        rows.extend(self.results.iter().zip(&self.saved).map(|(s, saved)| {
            vec![
                s.policy.clone(),
                format!("{}/{}", s.finished, s.jobs),
                format!("{:.2}", s.total_cost),
                format!("{:.2}", s.energy_cost),
                format!("{:.2}", s.tardiness_cost),
                format!("{:.2}", s.energy_kwh),
                format!("{:.2}", s.energy_jobs_kwh),
                output::duration(s.jct_mean_s),
                output::duration(s.jct_p99_s),
                output::duration(s.makespan_s),
                format!("{}/{}", s.deadlines_met, s.deadlines),
                s.restarts.to_string(),
                saved.as_ref().map_or_else(unknown, |saved| format!("{:.1} %", saved.percent)),
            ]
        }));
        output::table(&header, rows)
    }
}
