//! One instance, several policies; and many instances, for studies.

use crate::foresight::Foresight;
use crate::instance::Instance;
use crate::metrics::Summary;
use crate::simulation::{Outcome, Progress, SimulationError, Watch, simulate};
use rayon::prelude::*;

/// How many simulations [`compare`] runs.
#[must_use]
pub fn simulations(instance: &Instance, policies: &[String], with_oracle: bool) -> usize {
    policies.len() * if with_oracle && !instance.is_foreseen() { 2 } else { 1 }
}

/// Runs each policy on the instance, in parallel where there are threads; results come in the
/// order asked for and do not depend on the number of threads. Where policies do not know
/// everything, `with_oracle` runs each a second time that does, to see what not knowing costs. The
/// watch hears of the first runs by the places of their policies, then of the second ones.
///
/// # Errors
/// The first policy's error, if one fails.
pub fn compare(
    instance: &Instance,
    policies: &[String],
    watch: &Watch<'_>,
    with_oracle: bool,
) -> Result<Vec<Outcome>, SimulationError> {
    // All names are checked before hours are spent on the first.
    for policy in policies {
        wattline_policies::policy(policy)?;
    }
    let twin = (with_oracle && !instance.is_foreseen())
        .then(|| Instance { foresight: Foresight::Oracle, ..instance.clone() });
    let unwatched = &Watch { record: false, ..*watch };
    let runs: Vec<(&Instance, &Watch<'_>, &String)> = policies
        .iter()
        .map(|policy| (instance, watch, policy))
        .chain(twin.iter().flat_map(|twin| policies.iter().map(move |p| (twin, unwatched, p))))
        .collect();
    let mut outcomes = runs
        .into_par_iter()
        .enumerate()
        // One at a time, so that a thread that is done takes over what another has not begun.
        .with_max_len(1)
        .map(|(run, (instance, watch, policy))| simulate_as(run, instance, policy, watch))
        .collect::<Result<Vec<Outcome>, SimulationError>>()?;
    let twins = outcomes.split_off(policies.len());
    for (outcome, twin) in outcomes.iter_mut().zip(twins) {
        let ours = outcome.summary.total_cost;
        outcome.summary.accuracy.set_oracle(ours, &twin.summary);
    }
    Ok(outcomes)
}

/// Runs each policy on the instance beside it, in parallel where there are threads, and keeps the
/// figures only; they come in the order asked for.
///
/// # Errors
/// The first policy's error, if one fails.
pub fn figures(
    runs: &[(&Instance, &str)],
    watch: &Watch<'_>,
) -> Result<Vec<Summary>, SimulationError> {
    for (_, policy) in runs {
        wattline_policies::policy(policy)?;
    }
    runs.par_iter()
        .enumerate()
        // One at a time, so that a thread that is done takes over what another has not begun.
        .with_max_len(1)
        .map(|(run, (instance, policy))| {
            simulate_as(run, instance, policy, watch).map(|outcome| outcome.summary)
        })
        .collect()
}

/// A simulation that reports its progress under this number.
fn simulate_as(
    run: usize,
    instance: &Instance,
    policy: &str,
    watch: &Watch<'_>,
) -> Result<Outcome, SimulationError> {
    let progress = |progress: Progress<'_>| (watch.progress)(Progress { run, ..progress });
    simulate(instance, policy, &Watch { progress: &progress, ..*watch })
}
