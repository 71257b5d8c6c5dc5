//! What is foreseen, with bounded work.
//!
//! A copy of the engine is [run forward](wattline_core::forecast) until all jobs are done, or as far
//! as the time goes. What lies beyond is not foreseen, and the outlook says so; of jobs that run,
//! the end is known from their speed in any case.

use super::fork::Fork;
use super::read_model::{JobView, ReadModel};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wattline_core::Timestamp;
use wattline_core::engine::Engine;
use wattline_core::forecast::{Horizon, JobForecast, roll_forward};
use wattline_core::ids::JobId;
use wattline_core::placement::Configuration;
use wattline_core::policy::Policy;
use wattline_core::predictor::Prediction;
use wattline_core::state::JobState;
use wattline_core::units::{Euros, Joules, Seconds};

/// What is foreseen for one job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JobOutlook {
    /// When it starts for the first time, or did.
    pub start: Option<Timestamp>,
    /// When it is done.
    pub end: Option<Timestamp>,
    /// Energy in all, with what it took so far.
    pub energy: Option<Joules>,
    /// What that and being late cost.
    pub cost: Option<Euros>,
    /// How probable it is that its deadline is missed.
    pub risk: Option<f64>,
}

/// What is foreseen.
#[derive(Clone, Debug, Default)]
pub struct Outlook {
    /// When it was made.
    pub at: Timestamp,
    /// How far it reaches: what is not foreseen comes later.
    pub until: Timestamp,
    /// Until then each plan was made that will be; after that, fewer.
    pub exact_until: Timestamp,
    /// Jobs that were not over then.
    pub unfinished: usize,
    /// Of these, those that end within its reach.
    pub ended: usize,
    /// How long it took to make.
    pub took: Duration,
    /// By job.
    pub jobs: BTreeMap<JobId, JobOutlook>,
    /// How far it reaches, in words; empty if nothing was foreseen yet.
    pub reach: String,
}

/// So much work and no more: all plans are made as long as there is time for all of them; with many
/// jobs, the farther ahead the fewer, so that the time there is reaches to the end of the queue.
pub(crate) struct Effort<'a> {
    began: Instant,
    most: Duration,
    go_on: &'a dyn Fn() -> bool,
    /// About when all jobs will be done.
    far: Seconds,
    /// When the last plan was made, and what plans take, in seconds.
    plan: Cell<(Instant, Option<f64>)>,
}

/// What a plan takes goes by the last few.
const LAST: f64 = 0.3;
/// A job that ends, or starts, is a plan.
const PLANS_PER_JOB: f64 = 2.0;
/// The near future is never looked at more coarsely than this part of the whole.
const NEAR: f64 = 1e-3;

impl<'a> Effort<'a> {
    pub(crate) fn new(
        engine: &Engine<'_>,
        now: Timestamp,
        most: Duration,
        go_on: &'a dyn Fn() -> bool,
    ) -> Self {
        let began = Instant::now();
        let far = all_done_in(engine, now);
        Self { began, most, go_on, far, plan: Cell::new((began, None)) }
    }

    /// Whether there is time left.
    pub(crate) fn goes_on(&self) -> bool {
        self.began.elapsed() < self.most && (self.go_on)()
    }

    /// After a plan: how long until the next.
    pub(crate) fn apart(&self, looked: Seconds, left: usize) -> Seconds {
        let (last, cost) = self.plan.get();
        let took = last.elapsed().as_secs_f64();
        // The first one looks at everything, and is not like the others.
        let cost = cost.map_or(took, |cost| cost + LAST * (took - cost));
        self.plan.set((Instant::now(), Some(cost)));
        let time = self.most.saturating_sub(self.began.elapsed()).as_secs_f64();
        spacing(looked, self.far, time / cost.max(1e-9), left)
    }
}

/// The time between plans with which so many of them reach from here to the end.
fn spacing(looked: Seconds, far: Seconds, plans: f64, left: usize) -> Seconds {
    if plans >= PLANS_PER_JOB * left as f64 {
        return Seconds::ZERO;
    }
    // Each is farther from the last by the same factor.
    let here = looked.max(far * NEAR);
    // It may turn out to be farther than it seemed.
    let far = far.max(here * 1.2);
    let growth = (far / here).powf(1.0 / plans.max(1.0)) - 1.0;
    here * growth
}

/// About how long it takes until all jobs are done: as if all GPUs were busy until then.
fn all_done_in(engine: &Engine<'_>, now: Timestamp) -> Seconds {
    let state = engine.state();
    let (mut work, mut longest) = (0.0, 0.0_f64);
    for (_, job) in state.unfinished_jobs() {
        let Some(configuration) = usual_configuration(engine, job) else { continue };
        let Some(prediction) = engine.predictor().predict(&job.job, &configuration) else {
            continue;
        };
        let time = (job.remaining(now) / prediction.rate).get();
        if time.is_finite() {
            work += time * f64::from(configuration.gpus);
            longest = longest.max(time);
        }
    }
    let gpus = f64::from(state.cluster().total_gpus().max(1));
    Seconds::new((work / gpus + longest).clamp(3600.0, 3.2e8))
}

/// What it holds, is planned for, or asks for.
fn usual_configuration(engine: &Engine<'_>, job: &JobState) -> Option<Configuration> {
    let placement = job.held.as_ref().or(job.planned.as_ref());
    placement.map(|placement| placement.configuration).or_else(|| {
        let menu = engine.state().menu(job.menu);
        let asked = menu.iter().find(|shape| shape.gpus == job.job.gpus.requested);
        let shape = asked.or(menu.first()).copied()?;
        Some(engine.state().cluster().plain_configuration(&job.job, shape))
    })
}

/// Looks as far as there is time.
pub(super) fn look_ahead(
    fork: &Fork,
    (name, policy): (&str, Box<dyn Policy>),
    most: Duration,
    go_on: &dyn Fn() -> bool,
) -> Outlook {
    let began = Instant::now();
    let Fork { engine, read_model, now, .. } = fork;
    let effort = Effort::new(engine, *now, most, go_on);
    let (goes_on, apart) = (|| effort.goes_on(), |looked, left| effort.apart(looked, left));
    let horizon = Horizon { go_on: &goes_on, apart: &apart, ..Horizon::default() };
    let mut future = engine.fork(policy);
    // With all of the work, a plan that is too slow for the loop would take up all the time here.
    future.set_effort(read_model.effort);
    if !engine.controls() {
        future.plan_now(*now);
    }
    let seen = roll_forward(future, *now, &horizon);
    let mut outlook = Outlook {
        at: *now,
        until: seen.until,
        exact_until: seen.exact_until,
        unfinished: seen.jobs.len(),
        ended: seen.jobs.iter().filter(|job| job.end.is_some()).count(),
        ..Outlook::default()
    };
    for job in &seen.jobs {
        let state = engine.state().job(job.job);
        let one = if job.end.is_none() && state.held.is_some() {
            by_speed(engine, state, read_model.job(job.job), *now)
        } else {
            None
        };
        let one = one.unwrap_or_else(|| foreseen(engine, state, job, read_model, *now));
        outlook.jobs.insert(job.job, one);
    }
    outlook.took = began.elapsed();
    outlook.reach = reach(&outlook, seen.complete);
    if !engine.controls() {
        // Who watches plans nothing: what is foreseen is what the policy would do.
        let as_if = format!("as if {name} decided from now on, for it is only watched: ");
        outlook.reach.insert_str(0, &as_if);
    }
    outlook
}

/// How far it reaches, in words.
fn reach(outlook: &Outlook, complete: bool) -> String {
    let Outlook { at, until, exact_until, unfinished, ended, .. } = outlook;
    let far = until.since(*at);
    let coarse = if exact_until < until {
        format!(", every plan up to {:.1} from now and fewer after that", exact_until.since(*at))
    } else {
        String::new()
    };
    if complete {
        return format!("run forward until all {unfinished} jobs are done, in {far:.1}{coarse}");
    }
    format!(
        "run forward to {far:.1} from now{coarse}: {ended} of {unfinished} jobs end within that, the others later"
    )
}

fn foreseen(
    engine: &Engine<'static>,
    state: &JobState,
    job: &JobForecast,
    read_model: &ReadModel,
    now: Timestamp,
) -> JobOutlook {
    let view = read_model.job(job.job);
    let so_far = view.and_then(|view| view.energy).unwrap_or(Joules::ZERO);
    let billed = view.and_then(|view| view.bill).unwrap_or(Euros::ZERO);
    let ends = job.end.is_some();
    JobOutlook {
        start: job.start,
        end: job.end,
        energy: ends.then_some(so_far + job.energy),
        cost: ends.then(|| billed + job.cost()),
        risk: job.end.and_then(|end| risk(engine, state, job.start, end, now)),
    }
}

/// Of a job that runs, the end if it goes on as it does.
fn by_speed(
    engine: &Engine<'static>,
    state: &JobState,
    view: Option<&Arc<JobView>>,
    now: Timestamp,
) -> Option<JobOutlook> {
    let held = state.held.as_ref()?;
    let left = (state.job.work - state.progress.done) / state.progress.rate;
    if !left.is_finite() {
        return None;
    }
    let end = (state.progress.as_of + left).max(now);
    let prediction = engine.predictor().predict(&state.job, &held.configuration)?;
    let power = prediction.power * f64::from(held.configuration.gpus);
    let bill = engine.prices().bill(power * engine.prices().pue, now, end).total();
    let billed = view.and_then(|view| view.bill).unwrap_or(Euros::ZERO);
    let so_far = view.and_then(|view| view.energy).unwrap_or(Joules::ZERO);
    Some(JobOutlook {
        start: state.first_start,
        end: Some(end),
        energy: Some(so_far + power * end.since(now)),
        cost: Some(billed + bill + state.job.weight * state.job.tardiness(end)),
        risk: risk(engine, state, state.first_start, end, now),
    })
}

/// How probable it is that a job misses its deadline, if what is left of its run takes as much
/// longer or shorter than foreseen as runs of its kind do.
fn risk(
    engine: &Engine<'static>,
    state: &JobState,
    start: Option<Timestamp>,
    end: Timestamp,
    now: Timestamp,
) -> Option<f64> {
    let deadline = state.job.deadline?;
    if deadline <= now {
        return Some(1.0);
    }
    let configuration = usual_configuration(engine, state)?;
    let prediction = engine.predictor().predict(&state.job, &configuration)?;
    let from = start.unwrap_or(now).max(now);
    Some(chance_of_more(&prediction, end.since(from), deadline.since(from)))
}

/// The share of runs predicted to take `predicted` that take longer than `allowed`.
pub(crate) fn chance_of_more(prediction: &Prediction, predicted: Seconds, allowed: Seconds) -> f64 {
    if predicted <= Seconds::ZERO {
        return if allowed < predicted { 1.0 } else { 0.0 };
    }
    let factor = allowed / predicted;
    // Below which share of all runs the factor lies: quantiles rise.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if prediction.time_quantile(middle) <= factor { low = middle } else { high = middle }
    }
    // Quantiles are cut off at one in a million.
    let chance = 1.0 - (low + high) / 2.0;
    if chance < 2e-6 {
        0.0
    } else if chance > 1.0 - 2e-6 {
        1.0
    } else {
        chance
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattline_core::job::WorkRate;
    use wattline_core::units::Watts;

    fn prediction(low: f64, high: f64) -> Prediction {
        Prediction {
            rate: WorkRate(1.0),
            power: Watts::new(1.0),
            time_low: low,
            time_high: high,
            power_within: 1.0,
            energy_within: 1.0,
            measurements: 3,
        }
    }

    #[test]
    fn the_risk_follows_the_interval() {
        let p = prediction(0.8, 1.5);
        let chance = |allowed: f64| chance_of_more(&p, Seconds::new(100.0), Seconds::new(allowed));
        assert!((chance(150.0) - 0.05).abs() < 1e-6);
        assert!((chance(80.0) - 0.95).abs() < 1e-6);
        assert!((chance(100.0) - 0.5).abs() < 1e-6);
        assert_eq!((chance(0.0), chance(1e9)), (1.0, 0.0));
    }

    #[test]
    fn certainty_has_no_risk() {
        let p = prediction(1.0, 1.0);
        let chance = |allowed: f64| chance_of_more(&p, Seconds::new(100.0), Seconds::new(allowed));
        assert_eq!((chance(99.0), chance(101.0)), (1.0, 0.0));
    }

    #[test]
    fn few_jobs_are_seen_exactly_and_many_as_far_as_the_time_goes() {
        let (far, looked) = (Seconds::new(1e6), Seconds::new(1e3));
        assert_eq!(spacing(looked, far, 200.0, 100), Seconds::ZERO);
        for plans in [1.0, 7.0, 150.0] {
            let mut at = looked;
            for left in (1..=plans as u32).rev() {
                at += spacing(at, far, f64::from(left), 10_000);
            }
            assert!((far * 0.999..far * 2.1).contains(&at), "{plans} plans reach {at}");
        }
        // From the very beginning on, and beyond what was thought to be the end.
        assert!(spacing(Seconds::ZERO, far, 50.0, 10_000) > Seconds::ZERO);
        assert!(spacing(far * 2.0, far, 0.0, 10) > Seconds::ZERO);
    }
}
