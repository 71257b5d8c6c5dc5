//! What was predicted against what happened.

use crate::metrics::{JobOutcome, Summary, mean};
use serde::Serialize;
use wattline_core::Timestamp;
use wattline_core::units::{Joules, Seconds};

/// What was predicted when a job was last started, in the configuration it was started in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtStart {
    /// When that was.
    pub at: Timestamp,
    /// Loading, before work goes on.
    pub load: Seconds,
    /// From then to the job's end.
    pub time: Seconds,
    /// 90 % of all runs should take between `low` and `high` times `time`.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// Of its GPUs, loading included; `None` where only the power of whole nodes is known.
    pub energy: Option<Joules>,
    /// How many measurements stood behind it.
    pub measurements: u32,
    /// Used in earlier runs.
    pub(crate) energy_before: Joules,
    /// The power limit was changed while the job ran: nobody predicted that.
    pub limit_changed: bool,
}

impl AtStart {
    /// What the job has used since.
    #[must_use]
    pub fn energy_used(&self, job: &JobOutcome) -> Joules {
        job.energy - self.energy_before
    }
}

/// A last run, predicted and real.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunCheck {
    /// When it ended.
    pub end: Timestamp,
    /// Predicted time over real time, less one.
    pub time_error: f64,
    /// The same for energy.
    pub energy_error: Option<f64>,
    /// Whether the time lies in the 90 % interval.
    pub covered: bool,
}

/// An interval without width must still hold what is only rounded.
const ROUNDING: f64 = 1e-6;

impl JobOutcome {
    /// How the job's last run came out against its prediction; `None` if it did not end, or if its
    /// power limit was changed on the way.
    #[must_use]
    pub fn run_check(&self) -> Option<RunCheck> {
        let start = self.at_start.as_ref().filter(|start| !start.limit_changed)?;
        let end = self.end?;
        let took = end - start.at;
        if took <= Seconds::ZERO {
            return None;
        }
        let worked = (took - start.load).max(Seconds::ZERO);
        let slack = start.time * ROUNDING + Seconds::new(2e-6);
        let covered =
            worked >= start.time * start.low - slack && worked <= start.time * start.high + slack;
        let used = start.energy_used(self);
        Some(RunCheck {
            end,
            time_error: (start.load + start.time) / took - 1.0,
            energy_error: start
                .energy
                .filter(|_| used > Joules::ZERO)
                .map(|predicted| predicted / used - 1.0),
            covered,
        })
    }

    /// The job's cost as forecast at its submission and as it came to be, in EUR; `None` if it was
    /// not forecast or did not end.
    #[must_use]
    pub fn cost_check(&self) -> Option<(f64, f64)> {
        let forecast = self.forecast.as_ref().filter(|forecast| forecast.end.is_some())?;
        let end = self.end?;
        Some((forecast.cost().get(), self.cost(end).get()))
    }
}

/// How good the predictions of a run were. `null` where nothing was predicted: run times that a
/// site or a trace declares are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Accuracy {
    /// Mean of |predicted / actual − 1| of run times predicted at the last start, over jobs that
    /// ended without a change of their power limit.
    pub time_error_mean: Option<f64>,
    /// Share of these run times inside their 90 % interval.
    pub time_coverage_90: Option<f64>,
    /// The same mean for the energy of these runs.
    pub energy_error_mean: Option<f64>,
    /// Jobs whose cost was forecast at submission and that ended.
    pub forecasts: usize,
    /// What these jobs were forecast to cost at their submission, EUR.
    pub cost_predicted_eur: Option<f64>,
    /// What they came to cost: tardiness, and the energy and carbon of their GPUs.
    pub cost_actual_eur: Option<f64>,
    /// |predicted / actual − 1| of these sums.
    pub cost_error: Option<f64>,
    /// The same over the second half of the jobs, by submission.
    pub cost_error_second_half: Option<f64>,
    /// Total cost of the same policy told the truth about every configuration.
    pub oracle_total_cost: Option<f64>,
    /// Total cost over that, less one.
    pub price_of_not_knowing: Option<f64>,
    /// `cost_error_second_half` of the same policy told the truth: what forecasts are off by
    /// because nobody knows which jobs are still to come, or each run's luck.
    pub oracle_cost_error_second_half: Option<f64>,
}

impl Accuracy {
    /// Of jobs in the order of their submission.
    pub(crate) fn of(jobs: &[JobOutcome]) -> Self {
        let Check { time_error, energy_error, coverage, cost } = Check::of(jobs);
        Self {
            time_error_mean: time_error,
            time_coverage_90: coverage,
            energy_error_mean: energy_error,
            forecasts: cost.jobs,
            cost_predicted_eur: (cost.jobs > 0).then_some(cost.predicted_eur),
            cost_actual_eur: (cost.jobs > 0).then_some(cost.actual_eur),
            cost_error: cost.error,
            cost_error_second_half: Check::of(&jobs[jobs.len() / 2..]).cost.error,
            oracle_total_cost: None,
            price_of_not_knowing: None,
            oracle_cost_error_second_half: None,
        }
    }

    /// How the same policy fared that knew everything.
    pub(crate) fn set_oracle(&mut self, ours: f64, oracle: &Summary) {
        let theirs = oracle.total_cost;
        self.oracle_total_cost = Some(theirs);
        self.price_of_not_knowing = (theirs > 0.0).then(|| ours / theirs - 1.0);
        self.oracle_cost_error_second_half = oracle.accuracy.cost_error_second_half;
    }
}

/// How predictions for some jobs came out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Check {
    /// Mean of |predicted / actual − 1| of run times; see [`JobOutcome::run_check`].
    pub time_error: Option<f64>,
    /// The same for energy.
    pub energy_error: Option<f64>,
    /// Share of run times inside their 90 % interval.
    pub coverage: Option<f64>,
    /// Costs, as forecast at submission and as they came to be.
    pub cost: CostCheck,
}

/// The cost of some jobs, forecast and real.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CostCheck {
    /// How many were forecast and ended.
    pub jobs: usize,
    /// What these were forecast to cost.
    pub predicted_eur: f64,
    /// What they cost.
    pub actual_eur: f64,
    /// |predicted / actual − 1|; `null` where nothing was forecast or nothing cost anything.
    pub error: Option<f64>,
}

impl Check {
    /// Of these jobs.
    #[must_use]
    pub fn of(jobs: &[JobOutcome]) -> Self {
        let runs: Vec<RunCheck> = jobs.iter().filter_map(JobOutcome::run_check).collect();
        let times: Vec<f64> = runs.iter().map(|run| run.time_error.abs()).collect();
        let energies: Vec<f64> =
            runs.iter().filter_map(|run| run.energy_error.map(f64::abs)).collect();
        let covered: Vec<f64> = runs.iter().map(|run| f64::from(u8::from(run.covered))).collect();
        let mut cost = CostCheck::default();
        for (predicted, actual) in jobs.iter().filter_map(JobOutcome::cost_check) {
            cost.jobs += 1;
            cost.predicted_eur += predicted;
            cost.actual_eur += actual;
        }
        let known = cost.jobs > 0 && cost.actual_eur > 0.0;
        cost.error = known.then(|| (cost.predicted_eur / cost.actual_eur - 1.0).abs());
        Self {
            time_error: some_mean(&times),
            energy_error: some_mean(&energies),
            coverage: some_mean(&covered),
            cost,
        }
    }

    /// Of so many parts of the jobs, of equal size but for one, in their order: how predictions
    /// get better as more is known.
    #[must_use]
    pub fn of_parts(jobs: &[JobOutcome], parts: usize) -> Vec<Self> {
        let cut = |part: usize| jobs.len() * part / parts.max(1);
        (0..parts).map(|part| Self::of(&jobs[cut(part)..cut(part + 1)])).collect()
    }
}

fn some_mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| mean(values))
}
