//! How far predictions were off, run by run, over simulated time.

use super::svg::{
    self, Anchor, Area, Scale, Svg, Tick, WIDE, count, drawable, duration, eur, percent,
};
use super::{PredictedRun, Predictions, RunReport, TimeDomain};

const HEIGHT: f64 = 230.0;
const PLOT: Area = Area { x: 58.0, y: 12.0, w: WIDE - 58.0 - 16.0, h: HEIGHT - 12.0 - 46.0 };

/// The axis is logarithmic between these; what lies outside is drawn at the edge.
const LEAST: f64 = 0.001;
const MOST: f64 = 10.0;

/// Runs over which the running median is taken.
const WINDOW: usize = 21;

/// Most points of a plot; beyond, every n-th is drawn.
const POINTS: usize = 1500;

/// A plot and what to say above it.
pub(super) struct Plot {
    pub(super) svg: String,
    pub(super) caption: String,
}

/// Whether there is anything to show.
pub(super) fn any(runs: &[RunReport]) -> bool {
    runs.iter().any(|run| !run.predictions.runs.is_empty())
}

/// Draws the errors of one run.
pub(super) fn draw(run: &RunReport, domain: TimeDomain) -> Plot {
    let mut runs: Vec<PredictedRun> =
        run.predictions.runs.iter().copied().filter(|r| drawable(r.end_s)).collect();
    runs.sort_by(|a, b| a.end_s.total_cmp(&b.end_s));
    let caption = caption(&run.predictions, &runs);
    let label = format!("Errors of predictions under {}. {caption}", svg::clip(&run.policy, 80));
    let mut svg = Svg::new("wide", WIDE, HEIGHT, &label);
    let time = Scale::new((domain.start, domain.end), (PLOT.x, PLOT.right()));
    let error = Scale::new((LEAST.ln(), MOST.ln()), (PLOT.bottom(), PLOT.y));
    let at = |v: f64| error.at(v.clamp(LEAST, MOST).ln());
    let ticks: Vec<Tick> = [0.001, 0.01, 0.1, 1.0, 10.0]
        .into_iter()
        .map(|v: f64| Tick { value: v.ln(), label: label_of(v) })
        .collect();
    svg::y_axis(&mut svg, PLOT, error, &ticks);
    let marks: Vec<(f64, String)> = svg::time_ticks(domain.start, domain.end, 9)
        .into_iter()
        .map(|tick| (time.at(tick.value), tick.label))
        .collect();
    svg::x_axis(&mut svg, PLOT, WIDE, &marks);
    let middle = PLOT.x + PLOT.w / 2.0;
    svg.text("axis-name", (middle, HEIGHT - 6.0), Anchor::Middle, "end of the run".into());
    if runs.is_empty() {
        let at = (middle, PLOT.y + PLOT.h / 2.0);
        svg.text("empty", at, Anchor::Middle, "no run that was predicted has ended".into());
    }
    let energies: Vec<(f64, f64)> =
        runs.iter().filter_map(|r| Some((r.end_s, r.energy_error?.abs()))).collect();
    let inside = |covered| {
        let of = runs.iter().filter(move |r| r.covered == covered);
        of.map(|r| (r.end_s, r.time_error.abs())).collect::<Vec<_>>()
    };
    let every = runs.len().div_ceil(POINTS).max(1);
    svg.path("dot energy-dot", &dots(&energies, every, time, &at), "");
    svg.path("dot time-dot", &dots(&inside(true), every, time, &at), "");
    svg.path("dot missed-dot", &dots(&inside(false), every, time, &at), "");
    let times: Vec<(f64, f64)> = runs.iter().map(|r| (r.end_s, r.time_error.abs())).collect();
    svg.path("median energy-median", &line(&energies, time, &at), "");
    svg.path("median time-median", &line(&times, time, &at), "");
    Plot { svg: svg.finish(), caption }
}

fn label_of(share: f64) -> String {
    if share < LEAST * 1.5 { format!("≤{}", percent(share)) } else { percent(share) }
}

/// Small squares, so that a point stays a point however the picture is scaled.
fn dots(points: &[(f64, f64)], every: usize, time: Scale, at: &impl Fn(f64) -> f64) -> String {
    let mut d = String::new();
    for (x, y) in points.iter().step_by(every).filter(|(_, y)| drawable(*y)) {
        svg::push_point(&mut d, 'M', time.at(*x), at(*y));
        d.push_str("h0");
    }
    d
}

/// The running median.
fn line(points: &[(f64, f64)], time: Scale, at: &impl Fn(f64) -> f64) -> String {
    let points: Vec<(f64, f64)> = points.iter().copied().filter(|(_, y)| drawable(*y)).collect();
    let mut d = String::new();
    let every = points.len().div_ceil(POINTS).max(1);
    for middle in (0..points.len()).step_by(every) {
        let from = middle.saturating_sub(WINDOW / 2);
        let to = (middle + WINDOW / 2 + 1).min(points.len());
        let errors = points[from..to].iter().map(|(_, y)| *y).collect();
        let command = if d.is_empty() { 'M' } else { 'L' };
        svg::push_point(&mut d, command, time.at(points[middle].0), at(median(errors)));
    }
    d
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn caption(predictions: &Predictions, runs: &[PredictedRun]) -> String {
    let mut parts = Vec::new();
    if let Some(last) = runs.last() {
        let half = |part: &[PredictedRun]| {
            median(part.iter().map(|r| r.time_error.abs()).filter(|e| drawable(*e)).collect())
        };
        let (first, second) = runs.split_at(runs.len() / 2);
        let covered = runs.iter().filter(|r| r.covered).count() as f64 / runs.len() as f64;
        parts.push(format!(
            "{} runs until {}; median error of the run time {} in the first half and {} in the \
             second; {} inside the 90 % interval.",
            count(runs.len()),
            duration(last.end_s),
            percent(half(first)),
            percent(half(second)),
            percent(covered),
        ));
    }
    if let Some((told, real)) = predictions.cost_eur.filter(|(a, b)| drawable(*a) && drawable(*b)) {
        parts.push(format!(
            "Forecast at submission: {} for jobs that cost {}.",
            eur(told),
            eur(real)
        ));
    }
    if let Some((ours, oracle)) =
        predictions.oracle_eur.filter(|(a, b)| drawable(*a) && drawable(*b) && *b > 0.0)
    {
        let more = ours / oracle - 1.0;
        let word = if more < 0.0 { "less" } else { "more" };
        parts.push(format!(
            "The price of not knowing: {} in all, {} {word} than {} with the truth.",
            eur(ours),
            percent(more.abs()),
            eur(oracle),
        ));
    }
    parts.join(" ")
}
