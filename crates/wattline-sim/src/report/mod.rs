//! The report of one or several simulated runs: one self-contained HTML page.
//!
//! [`render`] is pure: the caller gathers the figures, this module draws them. The page asks
//! nothing of the network, carries its own plots as inline SVG, and is the same bytes for the same
//! input, so that two reports can be compared with `diff`.
//!
//! Values that cannot be drawn (NaN, infinities, spans that end before they start) are left out
//! of the plots rather than refused: a report that shows most of a broken run is more useful than
//! none.

mod cost_bars;
mod curves;
mod data;
mod distribution;
mod errors;
mod gantt;
mod page;
mod power_plot;
mod steps;
mod svg;

pub use curves::{Axis, Chart, Curve, Unit, render_curves};
pub use data::{JobRow, input, job_rows, plain_cell, write_jobs};

#[cfg(test)]
mod tests;

/// All that a report shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportInput {
    /// The heading, and the title of the browser's tab.
    pub title: String,
    /// What was run: cluster, jobs, seed, command line. Every line becomes a line of the page.
    pub subtitle: String,
    /// One entry per policy, in the order in which they are to be shown.
    pub runs: Vec<RunReport>,
}

/// What one policy did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunReport {
    /// The policy's name.
    pub policy: String,
    /// Label and formatted value of each row of the summary table. Runs need not agree on their
    /// labels: a run without a label shows a dash in that row.
    pub summary: Vec<(String, String)>,
    /// Where the cost came from.
    pub cost: CostSplit,
    /// Power over time, a step function: a point's values hold until the next point.
    ///
    /// Points that share an instant all count, so that a momentary overshoot is drawn; a caller
    /// that does not want its intermediate states shown keeps only the last one of each instant.
    pub power: Vec<PowerPoint>,
    /// Which job held which GPU, and which GPUs slept.
    pub gantt: Gantt,
    /// Completion time (from arrival to completion) of every finished job, in seconds.
    pub jct_s: Vec<f64>,
    /// Time past the deadline of every job that has one, in seconds; zero for a job on time.
    pub tardiness_s: Vec<f64>,
    /// What was predicted, and what became of it.
    pub predictions: Predictions,
}

/// Predictions against what happened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Predictions {
    /// The last run of every job that ended and was predicted; empty where policies were told the
    /// truth.
    pub runs: Vec<PredictedRun>,
    /// What jobs were forecast to cost at their submission and what these came to cost, in euros;
    /// `None` where nothing was forecast.
    pub cost_eur: Option<(f64, f64)>,
    /// The run's total cost and that of the same policy told the truth, in euros; `None` where that
    /// was not run.
    pub oracle_eur: Option<(f64, f64)>,
}

/// A run that was predicted when it started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PredictedRun {
    /// When it ended, in seconds since the start of the simulation.
    pub end_s: f64,
    /// Predicted over actual time, less one.
    pub time_error: f64,
    /// Predicted over actual energy, less one.
    pub energy_error: Option<f64>,
    /// Whether the time was inside the predicted 90 % interval.
    pub covered: bool,
}

/// The cost of a run by cause, in euros. A part may be negative: power prices are at times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CostSplit {
    /// Paid for electricity.
    pub energy_eur: f64,
    /// Charged for late jobs.
    pub tardiness_eur: f64,
    /// Charged for the carbon emitted.
    pub carbon_eur: f64,
}

/// The state of the cluster's power from one instant until the next point.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PowerPoint {
    /// The instant, in seconds since the start of the run.
    pub t_s: f64,
    /// Power drawn, in watts.
    pub power_w: f64,
    /// Power that the scheduler has set aside, in watts; at least the power drawn.
    pub committed_w: f64,
    /// The budget in force, in watts; `None` while there is none.
    pub budget_w: Option<f64>,
}

/// Who used which GPU when.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gantt {
    /// One name per GPU, such as `n1/0`. What stands before the slash is taken as the node.
    pub rows: Vec<String>,
    /// The times at which jobs held GPUs.
    pub bars: Vec<Bar>,
    /// The times at which GPUs slept with their node.
    pub sleep: Vec<Span>,
}

/// One job on one GPU for one stretch of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// Index into [`Gantt::rows`].
    pub row: u32,
    /// When the job got the GPU, in seconds since the start of the run.
    pub start_s: f64,
    /// When it let go of it.
    pub end_s: f64,
    /// The job's number; bars of equal numbers share a colour.
    pub job: u32,
    /// The job's name, for labels and tooltips.
    pub label: String,
    /// Whether the job missed its deadline.
    pub late: bool,
}

/// A stretch of time on one row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    /// Index into [`Gantt::rows`].
    pub row: u32,
    /// Start, in seconds since the start of the run.
    pub start_s: f64,
    /// End.
    pub end_s: f64,
}

/// Draws the report as a complete HTML5 document.
///
/// Every text of the input is escaped; the plots are thinned out so that the page stays small
/// however long the run was.
pub fn render(input: &ReportInput) -> String {
    page::document(input, TimeDomain::of(&input.runs))
}

/// The stretch of time that all time axes of the page share, so that policies line up.
#[derive(Clone, Copy, Debug)]
struct TimeDomain {
    start: f64,
    end: f64,
}

impl TimeDomain {
    fn of(runs: &[RunReport]) -> TimeDomain {
        let (mut start, mut end) = (f64::INFINITY, f64::NEG_INFINITY);
        let mut take = |t: f64| {
            if svg::drawable(t) {
                start = start.min(t);
                end = end.max(t);
            }
        };
        for run in runs {
            run.power.iter().for_each(|p| take(p.t_s));
            run.gantt
                .bars
                .iter()
                .for_each(|b| [b.start_s, b.end_s].into_iter().for_each(&mut take));
            run.gantt
                .sleep
                .iter()
                .for_each(|s| [s.start_s, s.end_s].into_iter().for_each(&mut take));
        }
        if start > end {
            (start, end) = (0.0, 1.0);
        }
        // A single instant still needs an axis of some length.
        let least = (start.abs() * 1e-9).max(1e-3);
        if end - start < least {
            end = start + least.max(1.0);
        }
        TimeDomain { start, end }
    }
}

/// When a run ended: its last power point or its last bar, whichever is later.
fn run_end(run: &RunReport) -> Option<f64> {
    let points = run.power.iter().map(|p| p.t_s);
    let bars = run.gantt.bars.iter().map(|b| b.end_s);
    points.chain(bars).filter(|t| svg::drawable(*t)).reduce(f64::max)
}
