//! Empirical distribution functions of job times, all policies in one plot.

use super::RunReport;
use super::svg::{self, Anchor, Area, Scale, Svg, Tick, count, drawable, duration, percent};

const WIDTH: f64 = 470.0;
const HEIGHT: f64 = 290.0;
const PLOT: Area = Area { x: 52.0, y: 12.0, w: WIDTH - 52.0 - 18.0, h: HEIGHT - 12.0 - 48.0 };

/// Room left of a logarithmic axis for what it cannot hold: zero.
const ZERO_SLOT: f64 = 30.0;

/// Most steps of a line; beyond, one step for each of as many columns.
const COLUMNS: usize = 400;

/// Room right of the largest value, so that the last step does not merge with the edge.
const ROOM: f64 = 1.03;

/// Number of line styles; the style sheet gives each its colour and dashes.
pub(super) const SERIES: usize = 8;

/// What a plot is about.
pub(super) struct Quantity {
    /// Name on the axis.
    pub(super) name: &'static str,
    /// What the plot shows, read out in its place.
    pub(super) label: &'static str,
    /// What is written where there are no values at all.
    pub(super) none: &'static str,
    /// The values of a run.
    pub(super) values: fn(&RunReport) -> &[f64],
}

/// Draws one quantity.
pub(super) fn draw(runs: &[RunReport], quantity: &Quantity) -> String {
    let sorted: Vec<Vec<f64>> = runs.iter().map(|r| sorted((quantity.values)(r))).collect();
    let mut svg = Svg::new("cdf", WIDTH, HEIGHT, &describe(runs, &sorted, quantity.label));
    let share = Scale::new((0.0, 1.0), (PLOT.bottom(), PLOT.y));
    let ticks: Vec<Tick> = [0.0, 0.25, 0.5, 0.75, 1.0]
        .into_iter()
        .map(|value| Tick { value, label: percent(value) })
        .collect();
    svg::y_axis(&mut svg, PLOT, share, &ticks);

    let axis = Axis::of(&sorted);
    svg::x_axis(&mut svg, PLOT, WIDTH, &axis.marks());
    let middle = PLOT.x + PLOT.w / 2.0;
    let scale_note = if matches!(axis, Axis::Log { .. }) { " (logarithmic)" } else { "" };
    let name = format!("{}{scale_note}", quantity.name);
    svg.text("axis-name", (middle, HEIGHT - 8.0), Anchor::Middle, (&name).into());
    if sorted.iter().all(Vec::is_empty) {
        let at = (middle, PLOT.y + PLOT.h / 2.0);
        svg.text("empty", at, Anchor::Middle, quantity.none.into());
    }
    for (i, (run, values)) in runs.iter().zip(&sorted).enumerate() {
        let class = format!("series s{}", i % SERIES);
        let title = format!("{} · {}", svg::clip(&run.policy, 80), statistics(values));
        svg.path(&class, &line(values, &axis, share), &title);
    }
    svg.finish()
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values: Vec<f64> = values.iter().copied().filter(|v| drawable(*v)).collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// The share of values up to `x`.
fn share_up_to(sorted: &[f64], x: f64) -> f64 {
    sorted.partition_point(|v| *v <= x) as f64 / sorted.len().max(1) as f64
}

fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

fn statistics(sorted: &[f64]) -> String {
    let [Some(median), Some(p95), Some(max)] = [0.5, 0.95, 1.0].map(|q| quantile(sorted, q)) else {
        return "no jobs".to_owned();
    };
    format!(
        "{} jobs · median {} · 95 % within {} · max {}",
        count(sorted.len()),
        duration(median),
        duration(p95),
        duration(max)
    )
}

fn describe(runs: &[RunReport], sorted: &[Vec<f64>], label: &str) -> String {
    let parts = runs.iter().zip(sorted);
    let parts: Vec<_> = parts
        .map(|(run, values)| format!("{}: {}", svg::clip(&run.policy, 80), statistics(values)))
        .collect();
    format!("{label}. {}.", parts.join("; "))
}

/// The horizontal axis.
#[derive(Clone, Copy, Debug)]
enum Axis {
    Linear { lo: f64, hi: f64 },
    Log { lo: f64, hi: f64, below: bool },
}

impl Axis {
    /// Logarithmic where the bulk of the positive values spans two powers of ten or more.
    fn of(sorted: &[Vec<f64>]) -> Axis {
        let mut positive: Vec<f64> =
            sorted.iter().flatten().copied().filter(|v| *v > 0.0).collect();
        positive.sort_unstable_by(f64::total_cmp);
        let least = sorted.iter().filter_map(|v| v.first()).copied().fold(0.0, f64::min);
        let (Some(&hi), Some(&min)) = (positive.last(), positive.first()) else {
            return Axis::Linear { lo: least, hi: 1.0 };
        };
        let low_end = quantile(&positive, 0.05).unwrap_or(min);
        if hi / low_end < 100.0 {
            return Axis::Linear { lo: least, hi: hi * ROOM };
        }
        // A stray tiny value must not squeeze all others into a corner.
        let lo = min.max(hi / 1e7);
        let hi = hi * ROOM;
        Axis::Log { lo, hi, below: least < 0.0 || sorted.iter().flatten().any(|v| *v < lo) }
    }

    /// Left end of the part of the axis that is to scale.
    fn left(&self) -> f64 {
        match self {
            Axis::Log { below: true, .. } => PLOT.x + ZERO_SLOT,
            _ => PLOT.x,
        }
    }

    fn at(&self, v: f64) -> f64 {
        match *self {
            Axis::Linear { lo, hi } => Scale::new((lo, hi), (PLOT.x, PLOT.right())).at(v),
            Axis::Log { lo, .. } if v < lo => PLOT.x + ZERO_SLOT / 3.0,
            Axis::Log { lo, hi, .. } => {
                Scale::new((lo.ln(), hi.ln()), (self.left(), PLOT.right())).at(v.ln())
            }
        }
    }

    /// The value at a share of the way along the axis.
    fn value(&self, share: f64) -> f64 {
        match *self {
            Axis::Linear { lo, hi } => lo + share * (hi - lo),
            Axis::Log { lo, hi, .. } => (lo.ln() + share * (hi.ln() - lo.ln())).exp(),
        }
    }

    fn marks(&self) -> Vec<(f64, String)> {
        let ticks = match *self {
            Axis::Linear { lo, hi } => svg::time_ticks(lo, hi, 6),
            Axis::Log { lo, hi, .. } => svg::log_time_ticks(lo, hi),
        };
        let zero = match *self {
            Axis::Log { lo, below: true, .. } => Some((self.at(f64::MIN), below_label(lo))),
            _ => None,
        };
        zero.into_iter().chain(ticks.into_iter().map(|t| (self.at(t.value), t.label))).collect()
    }
}

/// Zero is by far the usual reason for a value below the scale.
fn below_label(lo: f64) -> String {
    if lo > 60.0 { format!("<{}", duration(lo)) } else { "0".to_owned() }
}

fn line(sorted: &[f64], axis: &Axis, share: Scale) -> String {
    let mut d = String::new();
    let Some(&first) = sorted.first() else {
        return d;
    };
    svg::push_point(&mut d, 'M', axis.at(first), share.at(0.0));
    let mut level = 0.0;
    let mut rise = |x: f64, to: f64| {
        if to > level {
            svg::push_coord(&mut d, 'H', x);
            svg::push_coord(&mut d, 'V', share.at(to));
            level = to;
        }
    };
    if sorted.len() <= COLUMNS {
        for (i, v) in sorted.iter().enumerate() {
            // Of equal values, the last one rises over all of them.
            if sorted.get(i + 1) != Some(v) {
                rise(axis.at(*v), (i + 1) as f64 / sorted.len() as f64);
            }
        }
    } else {
        rise(axis.at(first), share_up_to(sorted, first));
        for column in 0..=COLUMNS {
            let v = axis.value(column as f64 / COLUMNS as f64);
            // Rounding must not keep the line from the top at the largest value.
            let v = if column == COLUMNS { f64::INFINITY } else { v };
            let x = axis.at(v.min(axis.value(1.0)));
            rise(x, share_up_to(sorted, v));
        }
    }
    svg::push_coord(&mut d, 'H', PLOT.right());
    d
}
