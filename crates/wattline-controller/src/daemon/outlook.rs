//! What is foreseen, with bounded work.
//!
//! The engine is [run forward](wattline_core::forecast) as far as about a tenth of a second of
//! computing goes. What lies beyond is not foreseen, and the outlook says so; of jobs that run, the
//! end is known from their speed in any case.

use super::metered::Metered;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use wattline_core::Timestamp;
use wattline_core::cluster::Shape;
use wattline_core::engine::Engine;
use wattline_core::forecast::{Horizon, JobForecast, roll_forward};
use wattline_core::ids::{GpuTypeId, JobId};
use wattline_core::policy::Policy;
use wattline_core::predictor::Prediction;
use wattline_core::state::JobState;
use wattline_core::units::{Euros, Joules, Seconds};

/// How long a forecast may take.
const AT_MOST: Duration = Duration::from_millis(120);
/// No forecast is made more often than this.
const EVERY: Duration = Duration::from_secs(2);
/// With more jobs than this a single step may take too long.
const MOST_JOBS: usize = 1_000;

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
    /// By job.
    pub jobs: BTreeMap<JobId, JobOutlook>,
    /// How far it reaches, in words.
    pub reach: String,
}

/// Whether a single step does not take too long.
pub(crate) fn is_foreseeable(engine: &Engine<'_>) -> bool {
    engine.state().unfinished() <= MOST_JOBS
}

/// Makes outlooks when there is time and something changed.
pub(super) struct Prophet {
    made: Option<Instant>,
    took: Duration,
    /// What was known at the last one: plans, journal entries.
    about: (u64, u64),
}

impl Prophet {
    pub(super) fn new() -> Self {
        Self { made: None, took: Duration::ZERO, about: (0, 0) }
    }

    /// How long until another may be made.
    pub(super) fn wait(&self) -> Duration {
        let every = EVERY.max(self.took * 15);
        self.made.map_or(Duration::ZERO, |made| every.saturating_sub(made.elapsed()))
    }

    /// Whether there is anything new to say.
    pub(super) fn is_stale(&self, about: (u64, u64)) -> bool {
        self.made.is_none() || self.about != about
    }

    /// Looks as far as there is time.
    pub(super) fn look(
        &mut self,
        engine: &Engine<'static>,
        (name, policy): (&str, &dyn Fn() -> Box<dyn Policy>),
        meters: &impl Metered,
        now: Timestamp,
        about: (u64, u64),
    ) -> Outlook {
        let began = Instant::now();
        let unfinished = engine.state().unfinished();
        let mut outlook = Outlook { at: now, jobs: BTreeMap::new(), reach: String::new() };
        if !is_foreseeable(engine) {
            outlook.reach = format!(
                "{unfinished} jobs are too many to run the plan forward: only the ends of jobs that run are foreseen"
            );
        } else {
            let in_time = || began.elapsed() < AT_MOST;
            let horizon = Horizon { go_on: &in_time, ..Horizon::default() };
            let mut fork = engine.fork(policy());
            // Who watches plans nothing: what is foreseen is what the policy would do.
            let as_if = if engine.decides() {
                String::new()
            } else {
                fork.plan_now(now);
                format!("as if {name} decided from now on, for it is only watched: ")
            };
            let seen = roll_forward(fork, now, &horizon);
            let ended = seen.jobs.iter().filter(|job| job.end.is_some()).count();
            outlook.reach = format!(
                "{as_if}run forward to {:.1} from now: {ended} of {unfinished} jobs end within that",
                seen.until.since(now)
            );
            for job in &seen.jobs {
                let state = engine.state().job(job.job);
                let one = foreseen(engine, state, job, meters, now);
                outlook.jobs.insert(job.job, one);
            }
        }
        for (id, state) in engine.state().unfinished_jobs() {
            if state.held.is_some()
                && outlook.jobs.get(&id).is_none_or(|one| one.end.is_none())
                && let Some(one) = by_speed(engine, id, state, meters, now)
            {
                outlook.jobs.insert(id, one);
            }
        }
        self.made = Some(Instant::now());
        self.took = began.elapsed();
        self.about = about;
        outlook
    }
}

fn foreseen(
    engine: &Engine<'static>,
    state: &JobState,
    job: &JobForecast,
    meters: &impl Metered,
    now: Timestamp,
) -> JobOutlook {
    let so_far = meters.job_energy(job.job);
    let billed = meters.job_bill(job.job).unwrap_or(Euros::ZERO);
    let ends = job.end.is_some();
    let energy = so_far.unwrap_or(Joules::ZERO) + job.energy;
    JobOutlook {
        start: job.start,
        end: job.end,
        energy: ends.then_some(energy),
        cost: ends.then(|| billed + job.cost()),
        risk: job.end.and_then(|end| risk(engine, state, job.start, end, now)),
    }
}

/// Of a job that runs, the end if it goes on as it does.
fn by_speed(
    engine: &Engine<'static>,
    id: JobId,
    state: &JobState,
    meters: &impl Metered,
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
    let so_far = meters.job_bill(id).unwrap_or(Euros::ZERO);
    Some(JobOutlook {
        start: state.first_start,
        end: Some(end),
        energy: Some(meters.job_energy(id).unwrap_or(Joules::ZERO) + power * end.since(now)),
        cost: Some(so_far + bill + state.job.weight * state.job.tardiness(end)),
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
    let placement = state.held.as_ref().or(state.planned.as_ref());
    let configuration = placement.map(|p| p.configuration).or_else(|| {
        let shape = Shape { gpu_type: GpuTypeId(0), gpus: state.job.gpus.requested };
        let menu = engine.state().menu(state.menu);
        let shape = menu.iter().find(|s| s.gpus == shape.gpus).or(menu.first()).copied();
        Some(engine.state().cluster().plain_configuration(&state.job, shape?))
    })?;
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
}
