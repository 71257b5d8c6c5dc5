//! A journal of a cluster under SLURM as work for the simulator.

use super::truth::{Measured, Truth};
use super::{Decided, Realised, Recorded, about_policy, begins, check};
use crate::failure::{Failure, Result};
use crate::output::{duration, harmless};
use crate::site::{Known, Live};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use wattline_controller::history::{History, Past};
use wattline_controller::journal::Store;
use wattline_controller::{Foresight, IN_SECONDS};
use wattline_core::Timestamp;
use wattline_core::engine::Event;
use wattline_core::ids::{NodeId, WorkloadId};
use wattline_core::job::{Job, Work};
use wattline_core::power::NodePower;
use wattline_core::predictor::Predictor;
use wattline_core::units::Seconds;
use wattline_predict::learner::Learner;
use wattline_sim::instance::Instance;
use wattline_world::physics::{Physics, Teller};

/// A record that does not hold a day and a night.
const SHORT: Seconds = Seconds::hours(24.0);

/// What became of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Done,
    /// It ended with an error, at its time limit, or nobody knows how.
    Failed,
    /// Its user cancelled it.
    TakenBack,
    /// It ran when the record ends.
    CutOff,
    /// It waited when the record ends.
    Waits,
    /// It ended before it was seen to run.
    Unseen,
}

fn fate(past: &Past) -> Fate {
    // Who cancels a job by the API leaves no word about it in SLURM.
    let by_user = past.how.as_deref().is_none_or(|how| how == "cancelled");
    match (past.runs.is_empty(), past.end, past.cancelled) {
        (true, Some(_), _) => Fate::Unseen,
        (true, None, Some(_)) => Fate::TakenBack,
        (true, None, None) => Fate::Waits,
        (false, Some(_), _) => Fate::Done,
        (false, None, Some(_)) if by_user => Fate::TakenBack,
        (false, None, Some(_)) => Fate::Failed,
        (false, None, None) => Fate::CutOff,
    }
}

pub(super) fn recorded(
    path: &Path,
    live: &Live,
    store: &Store,
    since: Option<Seconds>,
) -> Result<Recorded> {
    let known = live.known_at(store)?;
    let since = begins(store, since)?;
    // What policies knew when the period began, and all that was ever shown.
    let (mut then, mut all) = (known.learner(live), known.learner(live));
    let mut measured = Measured::new(&known);
    let history = History::read(store, |at, measurement| {
        if measurement.workload != IN_SECONDS {
            measured.observe(measurement);
            all.observe(measurement);
            if since.is_some_and(|since| at < since) {
                then.observe(measurement);
            }
        }
    });
    let history = history.map_err(Failure::input)?;
    let (entries, earlier) = (history.entries, history.earlier_jobs);
    let (first, last) = history.span.unwrap_or_default();
    let from = since.map_or(first, |since| since.max(first));
    let decided = about_policy(store, &history, from)?;
    let (mut history, carried) = history.since(from);
    let mut notes = Vec::new();
    let span = last.since(from);
    if span < SHORT {
        let span = duration(span.get());
        notes.push(format!("{span} of record say little: let it watch for some days"));
    }
    if earlier > 0 {
        notes.push(format!(
            "{earlier} jobs were submitted in entries that were thrown away: they are left out of \
             all rows, and what they had shown is not known"
        ));
    }
    let cluster = &live.parts.cluster;
    let truth = Arc::new(Truth::new(measured, Foresight::new(all, Arc::clone(cluster))));
    history = keep(history, &truth, last, &mut notes).by_submission();
    let fates: Vec<Fate> = history.jobs.iter().map(fate).collect();
    let actual = actual(&history.jobs, &truth, last);
    tell(&history.jobs, &truth, &known, carried, live, &mut notes);
    settle(&mut history, &fates, last);
    let names = names(&known, &history);
    let (prices, budget) = history.beginning();
    let physics = physics(live, &names, &truth);
    let mut instance = Instance::new(live.name().to_owned(), physics, Arc::clone(cluster), vec![]);
    instance.jobs = history.jobs.iter().map(|past| Arc::clone(&past.job)).collect();
    check(&history.jobs, &instance, path)?;
    instance.actual = actual;
    instance.orders.clone_from(&history.orders);
    instance.outages = outages(&history, last, live, &mut notes);
    (instance.start, instance.until) = (from, Some(last));
    instance.prices = prices.unwrap_or_else(|| live.parts.prices.clone());
    instance.budget = budget.unwrap_or_else(|| live.parts.budget.clone());
    instance.engine = live.parts.engine.clone();
    instance.world.measure_every = Some(live.config.measure_every);
    let delays = &history.delays;
    (instance.world.start_delay, instance.world.stop_delay) = (delays.start(true), delays.stop());
    if delays.start(true) > Seconds::ZERO {
        notes.push(format!(
            "to start a job takes SLURM {:.1} s and to have its GPUs free {:.1} s, as it took here",
            delays.start(true).get(),
            delays.stop().get()
        ));
    }
    instance.predictors = Some(predictors(live, &then));
    if decided == Decided::Nobody && instance.budget.is_some() {
        notes
            .push("simulated policies keep the budget; what happened was not kept below it".into());
    }
    instance.notes = notes;
    let mut realised = Realised::of(&history, &instance);
    let count = |wanted: Fate| fates.iter().filter(|fate| **fate == wanted).count();
    (realised.failed, realised.cut_off) = (count(Fate::Failed), count(Fate::CutOff));
    let foreseen = Some(foreseen(&instance, live, &names, &fates, then));
    Ok(Recorded { instance, foreseen, realised, entries, decided })
}

/// The same as it was foreseen. Work is what users stated, where they did and the job did all of it;
/// of others nobody could foresee it.
fn foreseen(
    instance: &Instance,
    live: &Live,
    names: &[String],
    fates: &[Fate],
    then: Learner,
) -> Instance {
    let expected = Foresight::new(then, Arc::clone(&live.parts.cluster));
    let belief = Arc::new(Truth::new(Measured::default(), expected));
    let mut foreseen = instance.clone();
    foreseen.physics = Arc::new(physics(live, names, &belief));
    for ((actual, job), fate) in foreseen.actual.iter_mut().zip(&instance.jobs).zip(fates) {
        if *fate == Fate::Done && job.workload != IN_SECONDS {
            *actual = Arc::clone(job);
        }
    }
    foreseen
}

/// The jobs that can be run once more.
fn keep(history: History, truth: &Truth, last: Timestamp, notes: &mut Vec<String>) -> History {
    let (mut waiting, mut unseen, mut unknown) = (0, 0, 0);
    let kept = history.only(|past| match fate(past) {
        Fate::Waits => {
            waiting += 1;
            false
        }
        Fate::Unseen => {
            unseen += 1;
            false
        }
        _ => {
            let known = truth.work(past, last).is_some();
            unknown += usize::from(!known);
            known
        }
    });
    let mut left_out = |count: usize, why: &str| {
        if count > 0 {
            notes.push(format!("{count} jobs are left out of all rows: {why}"));
        }
    };
    left_out(waiting, "they waited when the record ends, and nobody knows how long they take");
    left_out(unseen, "they ended before they were seen to run");
    left_out(unknown, "the journal does not say how they ran");
    kept
}

/// What the jobs really were.
fn actual(jobs: &[Past], truth: &Truth, last: Timestamp) -> Vec<Arc<Job>> {
    let actual = |past: &Past| {
        let did = truth.work(past, last).unwrap_or(past.job.work);
        let work = match fate(past) {
            // It would have gone on.
            Fate::TakenBack => Work(did.0.max(past.job.work.0)),
            _ => did,
        };
        Arc::new(Job { work, ..Job::clone(&past.job) })
    };
    jobs.iter().map(actual).collect()
}

/// What failed or was cut off counts as done: it took what it took. Only what a user took back is
/// taken back again.
fn settle(history: &mut History, fates: &[Fate], last: Timestamp) {
    for (past, fate) in history.jobs.iter_mut().zip(fates) {
        match fate {
            Fate::Failed => (past.end, past.cancelled) = (past.over(), None),
            Fate::CutOff => past.end = Some(last),
            _ => {}
        }
    }
    history.orders.retain(|(_, order)| match order {
        Event::Cancelled(job) => fates.get(job.index()) == Some(&Fate::TakenBack),
        _ => true,
    });
}

/// Says what was assumed.
fn tell(
    jobs: &[Past],
    truth: &Truth,
    known: &Known,
    carried: usize,
    live: &Live,
    notes: &mut Vec<String>,
) {
    let count = |is: &dyn Fn(&Past) -> bool| jobs.iter().filter(|past| is(past)).count();
    let mut note = |count: usize, what: &str| {
        if count > 0 {
            notes.push(format!("{count} jobs {what}"));
        }
    };
    note(
        carried,
        "were submitted before the period: they count from its beginning, with what they did in it",
    );
    note(
        count(&|past| fate(past) == Fate::CutOff),
        "still ran when the record ends: they count with what they had done by then",
    );
    note(
        count(&|past| fate(past) == Fate::Failed),
        "failed or ran into their time limit: they take as long as they took",
    );
    note(
        count(&|past| past.job.workload == IN_SECONDS),
        "say nothing about their work: they take as long as they took with the GPUs that they had; \
         with others they are as fast as the curve for such jobs says, and their GPUs count as busy",
    );
    let mine = |past: &Past| {
        let mine = &live.config.partitions;
        past.partition.as_deref().is_none_or(|p| p.split(',').any(|p| mine.iter().any(|m| m == p)))
    };
    note(
        count(&|past| !mine(past)),
        "are of other partitions: simulated policies start them as if they were theirs",
    );
    let workloads: BTreeSet<WorkloadId> =
        jobs.iter().map(|past| past.job.workload).filter(|id| *id != IN_SECONDS).collect();
    let (mut configurations, mut never) = (0, Vec::new());
    for id in &workloads {
        match truth.configurations(*id) {
            0 => never.push(known.workloads.get(id.index()).map_or("?", |name| name)),
            some => configurations += some,
        }
    }
    if configurations > 0 {
        notes.push(format!(
            "speed and power are as measured in {configurations} configurations of {} workloads; \
             elsewhere as the predictor expects that has seen the whole record",
            workloads.len() - never.len()
        ));
    }
    if !never.is_empty() {
        let jobs = count(&|past| {
            past.job.workload != IN_SECONDS && truth.configurations(past.job.workload) == 0
        });
        notes.push(format!(
            "{jobs} jobs train what nobody has measured: they take what they took as they ran; \
             otherwise, and for their power, the predictor's guess counts"
        ));
    }
    let guessed: BTreeSet<_> = jobs.iter().flat_map(|past| truth.unmeasured(past)).collect();
    let guessed = guessed.iter().filter(|key| key.0 != IN_SECONDS.0).count();
    if guessed > 0 {
        notes.push(format!(
            "{guessed} configurations that jobs ran in were not measured: their power is a guess, \
             also in what happened"
        ));
    }
}

/// The workloads' names by id, as far as they are known.
fn names(known: &Known, history: &History) -> Vec<String> {
    let mut names: Vec<String> =
        known.workloads.iter().chain(&history.workloads).map(|name| harmless(name)).collect();
    let most = history.jobs.iter().map(|past| past.job.workload.index() + 1).max();
    for at in names.len()..most.unwrap_or(0) {
        names.push(format!("workload {at}"));
    }
    names
}

fn physics(live: &Live, names: &[String], truth: &Arc<Truth>) -> Physics {
    let mut physics = Physics::new(Arc::clone(&live.parts.cluster), None);
    for name in names {
        let truth = Arc::clone(truth);
        let teller: Arc<Teller> = Arc::new(move |job, c| truth.speed(job, c));
        physics.told(name, teller);
    }
    physics
}

/// What policies know when the period begins, and no more.
fn predictors(live: &Live, then: &Learner) -> Arc<wattline_sim::instance::Predictors> {
    let (image, cluster) = (then.image(), Arc::clone(&live.parts.cluster));
    Arc::new(move || {
        let learner = Learner::new(Arc::clone(&cluster));
        let mut foresight = Foresight::new(learner, Arc::clone(&cluster));
        let restored = foresight.restore(&image);
        restored.unwrap_or_else(|_| unreachable!("it was written a moment ago"));
        Box::new(foresight)
    })
}

/// Nodes that were down are down again, so that no policy has more machines than there were.
fn outages(
    history: &History,
    last: Timestamp,
    live: &Live,
    notes: &mut Vec<String>,
) -> Vec<(Timestamp, NodeId, bool)> {
    let mut down: BTreeMap<NodeId, Timestamp> = BTreeMap::new();
    let (mut outages, mut time) = (Vec::new(), Seconds::ZERO);
    let nodes = live.parts.cluster.nodes().len();
    for (at, id, power) in history.nodes.iter().filter(|(_, id, _)| id.index() < nodes) {
        if *power == NodePower::Down {
            if down.insert(*id, *at).is_none() {
                outages.push((*at, *id, true));
            }
        } else if let Some(since) = down.remove(id) {
            time += at.since(since);
            outages.push((*at, *id, false));
        }
    }
    for (id, since) in down {
        time += last.since(since);
        // Jobs that are late may need it after all.
        outages.push((last, id, false));
    }
    if time > Seconds::ZERO {
        let time = duration(time.get());
        notes.push(format!("nodes were down for {time} in all: they are in all rows"));
    }
    outages.sort_by_key(|(at, ..)| *at);
    outages
}
