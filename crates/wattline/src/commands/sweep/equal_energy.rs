//! JCT at equal energy: a curve of a policy read where it draws as much as another policy.

use super::Row;
use crate::output;
use serde::Serialize;
use wattline_sim::metrics::Summary;
use wattline_sim::sweep::{AtEnergy, Estimate, Metric, PLACEHOLDER, at_energy};

/// One curve against one baseline, seed by seed.
#[derive(Serialize)]
pub(super) struct Comparison {
    policy: String,
    baseline: String,
    baseline_energy_kwh: Estimate,
    baseline_jct_s: Estimate,
    /// Over the seeds where the curve reaches down to the baseline's energy.
    #[serde(skip_serializing_if = "Option::is_none")]
    jct_s: Option<Estimate>,
    /// The baseline's JCT over the curve's, the mean of the seeds' ratios.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<Estimate>,
    seeds: usize,
    /// Seeds in which the whole curve needs less energy than the baseline: its point of most energy
    /// is taken.
    below: usize,
    /// Seeds in which every point of the curve needs more.
    never: usize,
}

pub(super) fn compare(
    values: &[Row],
    policies: &[String],
    baselines: &[(&str, Vec<Summary>)],
) -> Vec<Comparison> {
    let mut found = Vec::new();
    for (column, policy) in policies.iter().enumerate() {
        if !policy.contains(PLACEHOLDER) {
            continue;
        }
        for (baseline, runs) in baselines {
            found.push(one(values, column, policy, baseline, runs));
        }
    }
    found
}

fn one(
    values: &[Row],
    column: usize,
    policy: &str,
    baseline: &str,
    runs: &[Summary],
) -> Comparison {
    let (mut jcts, mut ratios) = (Vec::new(), Vec::new());
    let (mut below, mut never) = (0, 0);
    for (seed, run) in runs.iter().enumerate() {
        let points: Vec<(f64, f64)> = values
            .iter()
            .filter_map(|row| row.policies.get(column)?.runs.get(seed))
            .map(|s| (Metric::Energy.of(s), Metric::Jct.of(s)))
            .collect();
        let at = at_energy(&points, Metric::Energy.of(run));
        match at {
            AtEnergy::Between(_) => {}
            AtEnergy::Below(_) => below += 1,
            AtEnergy::Never => never += 1,
        }
        if let Some(jct) = at.jct() {
            jcts.push(jct);
            ratios.push(Metric::Jct.of(run) / jct);
        }
    }
    let of = |metric: Metric| Estimate::of(&runs.iter().map(|s| metric.of(s)).collect::<Vec<_>>());
    let some = |values: &[f64]| (!values.is_empty()).then(|| Estimate::of(values));
    Comparison {
        policy: policy.to_owned(),
        baseline: baseline.to_owned(),
        baseline_energy_kwh: of(Metric::Energy),
        baseline_jct_s: of(Metric::Jct),
        jct_s: some(&jcts),
        ratio: some(&ratios),
        seeds: runs.len(),
        below,
        never,
    }
}

pub(super) fn text(comparisons: &[Comparison], several: bool) -> String {
    if comparisons.is_empty() {
        return String::new();
    }
    let header =
        ["policy", "at the energy of", "kWh", "its mean JCT", "mean JCT", "times shorter", "note"];
    let number = |e: Estimate| match several {
        true => format!("{:.2} ± {:.2}", e.mean, e.error),
        false => format!("{:.2}", e.mean),
    };
    let rows = comparisons
        .iter()
        .map(|c| {
            let note = match (c.never, c.below) {
                (0, 0) => "–".to_owned(),
                (0, below) => format!("with less energy in {below} of {} seeds", c.seeds),
                (never, _) => format!("needs more energy in {never} of {} seeds", c.seeds),
            };
            vec![
                c.policy.clone(),
                c.baseline.clone(),
                format!("{:.1}", c.baseline_energy_kwh.mean),
                output::duration(c.baseline_jct_s.mean),
                c.jct_s.map_or_else(|| "–".to_owned(), |e| output::duration(e.mean)),
                c.ratio.map_or_else(|| "–".to_owned(), number),
                note,
            ]
        })
        .collect();
    format!("\n{}\n", output::table(&header, rows))
}
