//! What a journal recorded, ready to be run once more under any policy, and what it cost.
//!
//! The simulator and the controller do not know each other; here they are brought together.

mod realised;
mod site;
mod truth;

pub(crate) use realised::{Drawn, Realised};

use crate::commands::serve::{INSTANCE, POLICY, identity};
use crate::failure::{Failure, Result};
use crate::output;
use crate::site::{Live, WATCH};
use anyhow::anyhow;
use std::path::Path;
use std::sync::Arc;
use wattline_controller::history::{History, Past};
use wattline_controller::journal::Store;
use wattline_core::Timestamp;
use wattline_core::power::NodePower;
use wattline_core::units::Seconds;
use wattline_sim::begin::begin;
use wattline_sim::instance::Instance;

/// A recorded period.
pub(crate) struct Recorded {
    /// The same work, for the simulator.
    pub(crate) instance: Instance,
    /// The same as it was foreseen: with the work that users stated, and as fast as was known when
    /// the period began. None where the instance itself is not made from what happened.
    pub(crate) foreseen: Option<Instance>,
    /// What became of it.
    pub(crate) realised: Realised,
    /// Entries that were read.
    pub(crate) entries: u64,
    /// Who decided.
    pub(crate) decided: Decided,
}

/// Who decided while something was recorded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decided {
    /// This policy, all the time.
    By(String),
    /// Nobody: it was only watched.
    Nobody,
    /// One after the other.
    Several(Vec<String>),
}

impl Decided {
    /// The policy, if it was one.
    pub(crate) fn policy(&self) -> Option<&str> {
        match self {
            Self::By(policy) => Some(policy),
            Self::Nobody | Self::Several(_) => None,
        }
    }

    /// Who decided from some time on.
    fn since(begun: Option<String>, history: &History, from: Timestamp) -> Self {
        let mut names: Vec<String> = begun.into_iter().collect();
        for (at, name) in &history.policies {
            if *at <= from {
                names.clear();
            }
            names.push(name.to_string());
        }
        names.dedup();
        match &names[..] {
            [] => Self::Nobody,
            [one] if one == WATCH => Self::Nobody,
            [one] => Self::By(one.clone()),
            _ => Self::Several(names),
        }
    }
}

/// A journal of a cluster under SLURM, over the last so long.
pub(crate) fn of_site(path: &Path, live: &Live, since: Option<Seconds>) -> Result<Recorded> {
    let store = look(path, &live.identity())?;
    site::recorded(path, live, &store, since)
}

/// A journal of an emulated cluster, over the last so long.
pub(crate) fn of_scenario(
    path: &Path,
    mut instance: Instance,
    since: Option<Seconds>,
) -> Result<Recorded> {
    let store = look(path, &identity(&instance))?;
    let history = History::read(&store, |_, _| ()).map_err(Failure::input)?.by_submission();
    let entries = history.entries;
    let from = begins(&store, since)?;
    let decided = about_policy(&store, &history, from.unwrap_or(instance.start))?;
    let (mut history, _) = match from {
        Some(from) => history.since(from),
        None => (history, 0),
    };
    check(&history.jobs, &instance, path)?;
    leave_out_earlier(&mut instance, &history);
    let first = history.jobs.iter().map(|past| past.job.submit).min();
    let first = from.or(first).unwrap_or(instance.start);
    instance.start = if from.is_some() { first } else { instance.start.min(first) };
    let unfinished = history.jobs.iter().filter(|past| past.over().is_none()).count();
    if unfinished > 0 {
        instance.notes.push(format!("{unfinished} jobs had not ended when the journal does"));
    }
    asleep_at_first(&instance, &mut history);
    instance.jobs = history.jobs.iter().map(|past| Arc::clone(&past.job)).collect();
    instance.orders.clone_from(&history.orders);
    let realised = Realised::of(&history, &instance);
    Ok(Recorded { instance, foreseen: None, realised, entries, decided })
}

fn look(path: &Path, identity: &str) -> Result<Store> {
    if !path.is_file() {
        return Err(Failure::input(anyhow!("{}: there is no such journal", path.display())));
    }
    let store = Store::look(path).map_err(Failure::input)?;
    let begun_with = store.about(INSTANCE).map_err(Failure::input)?;
    if begun_with.is_some_and(|begun| begun != identity) {
        return Err(Failure::input(anyhow!(
            "{}: the journal was begun with another {INSTANCE}; name the one that it was begun with",
            path.display(),
        )));
    }
    if store.len() > LONG {
        output::note(&format!("reads {} entries", store.len()));
    }
    Ok(store)
}

/// A journal with more entries takes a while to read.
const LONG: u64 = 200_000;

fn about_policy(store: &Store, history: &History, from: Timestamp) -> Result<Decided> {
    let begun = store.about(POLICY).map_err(Failure::input)?;
    Ok(Decided::since(begun, history, from))
}

/// When the last so long began.
fn begins(store: &Store, since: Option<Seconds>) -> Result<Option<Timestamp>> {
    let Some(since) = since else { return Ok(None) };
    let last = store.last_time().map_err(Failure::input)?;
    Ok(last.map(|last| last - since))
}

fn leave_out_earlier(instance: &mut Instance, history: &History) {
    if history.earlier_jobs > 0 {
        let earlier = history.earlier_jobs;
        instance.notes.push(format!("{earlier} jobs of entries that were pruned are left out"));
        instance.start = history.span.map_or(instance.start, |(first, _)| first);
    }
}

/// Whether the cluster knows what the jobs train, and where.
fn check(jobs: &[Past], instance: &Instance, path: &Path) -> Result<()> {
    let wrong = |what: String| Failure::input(anyhow!("{}: {what}", path.display()));
    if jobs.is_empty() {
        return Err(wrong("no job ran in what was kept of the journal".to_owned()));
    }
    let types = instance.cluster.gpu_types().len();
    for past in jobs {
        let shapes = past.job.shapes.iter().flat_map(|shapes| shapes.iter());
        let mut types_known = shapes.map(|shape| shape.gpu_type.index() < types);
        if !instance.physics.has(past.job.workload) || !types_known.all(|known| known) {
            let job = output::harmless(&past.job.name);
            return Err(wrong(format!("job '{job}' trains what this cluster knows nothing of")));
        }
    }
    Ok(())
}

/// Nodes that slept before anything was written down.
fn asleep_at_first(instance: &Instance, history: &mut History) {
    let Ok((engine, _)) = begin(instance, "fifo", false) else { return };
    let state = engine.state();
    let asleep = |id: &wattline_core::ids::NodeId| state.node(*id).power == NodePower::Asleep;
    let first = state.cluster().node_ids().filter(asleep);
    let first: Vec<_> = first.map(|id| (instance.start, id, NodePower::Asleep)).collect();
    history.nodes.splice(0..0, first);
}
