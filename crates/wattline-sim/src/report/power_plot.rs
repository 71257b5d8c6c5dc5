//! Power against its budget over time: one plot per policy, all on the same axes.

use std::borrow::Cow;

use super::steps::{self, Piece, Steps};
use super::svg::{self, Anchor, Area, Scale, Svg, WIDE, drawable, duration, power};
use super::{PowerPoint, RunReport, TimeDomain};

/// Most columns of a thinned-out line: a little more than a plot has pixels on a usual screen.
pub(super) const COLUMNS: usize = 1_200;

/// Slices of the plot that each carry a tooltip with the values in them.
const SLICES: usize = 160;

const HEIGHT: f64 = 250.0;
const PLOT: Area = Area { x: 96.0, y: 16.0, w: WIDE - 96.0 - 16.0, h: HEIGHT - 16.0 - 30.0 };

/// What all power plots of a page share, so that they can be compared at a glance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axes {
    domain: TimeDomain,
    top_w: f64,
}

impl Axes {
    pub(super) fn of(runs: &[RunReport], domain: TimeDomain) -> Axes {
        let values = runs.iter().flat_map(|r| &r.power).flat_map(|p| {
            [p.power_w, p.committed_w, p.budget_w.unwrap_or(0.0)]
                .into_iter()
                .filter(|v| drawable(*v))
        });
        // A little room above, lest a line run along the frame.
        let top_w = svg::nice_top(values.fold(0.0, f64::max) * 1.04, 5);
        Axes { domain, top_w }
    }
}

/// A plot and the sentence that goes with it.
pub(super) struct PowerPlot {
    pub(super) svg: String,
    pub(super) caption: String,
}

/// Draws one run.
pub(super) fn draw(run: &RunReport, axes: Axes) -> PowerPlot {
    let points = in_order(&run.power);
    let end = super::run_end(run).unwrap_or(axes.domain.end);
    let facts = Facts::of(&points, end);
    let caption = facts.sentence();

    let label = format!("Power of {} against its budget over time. {caption}", run.policy);
    let mut svg = Svg::new("power wide", WIDE, HEIGHT, &label);
    let time = Scale::new((axes.domain.start, axes.domain.end), (PLOT.x, PLOT.right()));
    let watts = Scale::new((0.0, axes.top_w), (PLOT.bottom(), PLOT.y));
    let (x, y) = (|t: f64| time.at(t), |w: f64| watts.at(w));

    svg::y_axis(&mut svg, PLOT, watts, &svg::power_ticks(0.0, axes.top_w, 5));
    let ticks = svg::time_ticks(axes.domain.start, axes.domain.end, 10);
    let marks: Vec<_> = ticks.into_iter().map(|t| (time.at(t.value), t.label)).collect();
    svg::x_axis(&mut svg, PLOT, WIDE, &marks);
    if points.is_empty() {
        let middle = (PLOT.x + PLOT.w / 2.0, PLOT.y + PLOT.h / 2.0);
        svg.text("empty", middle, Anchor::Middle, "no power samples".into());
        return PowerPlot { svg: svg.finish(), caption };
    }

    let drawn = Steps::new(points.iter().map(|p| (p.t_s, Some(p.power_w))), end);
    let committed = Steps::new(points.iter().map(|p| (p.t_s, Some(p.committed_w))), end);
    let budget = Steps::new(points.iter().map(|p| (p.t_s, p.budget_w)), end);

    let high = |p: &Piece| p.high;
    let low = |p: &Piece| p.low;

    let pieces = committed.pieces(axes.domain, COLUMNS);
    svg.path("committed-area", &steps::area(&pieces, x, y, |_| 0.0, high), "");
    draw_slices(&mut svg, axes.domain, time, [&drawn, &committed, &budget]);
    svg.path("committed", &steps::line(&pieces, x, y, high), "Committed power");

    let pieces = drawn.pieces(axes.domain, COLUMNS);
    if pieces.iter().any(|p| p.low != p.high) {
        svg.path("power-band", &steps::area(&pieces, x, y, low, high), "");
    }
    svg.path("power-line", &steps::line(&pieces, x, y, high), &format!("Power drawn. {caption}"));

    // Of a budget that changes faster than the plot can show, the strictest value is drawn.
    let pieces = budget.pieces(axes.domain, COLUMNS);
    svg.path("budget", &steps::line(&pieces, x, y, low), "The wattline: the power budget");

    draw_overshoot(&mut svg, &points, end, axes.domain, time);
    PowerPlot { svg: svg.finish(), caption }
}

/// The points that can be placed in time, earliest first.
fn in_order(points: &[PowerPoint]) -> Cow<'_, [PowerPoint]> {
    if points.iter().all(|p| drawable(p.t_s)) && points.is_sorted_by(|a, b| a.t_s <= b.t_s) {
        return Cow::Borrowed(points);
    }
    let mut points: Vec<_> = points.iter().copied().filter(|p| drawable(p.t_s)).collect();
    points.sort_by(|a, b| a.t_s.total_cmp(&b.t_s));
    Cow::Owned(points)
}

/// Invisible slices that show their values when pointed at; the page's script reads them too.
fn draw_slices(svg: &mut Svg, domain: TimeDomain, time: Scale, series: [&Steps; 3]) {
    let [drawn, committed, budget] = series.map(|s| s.columns(domain, SLICES));
    let width = (domain.end - domain.start) / SLICES as f64;
    svg.open("slices");
    for i in 0..SLICES {
        let from = domain.start + i as f64 * width;
        let (x0, x1) = (time.at(from), time.at(from + width));
        let mut title = format!("{} – {}", duration(from), duration(from + width));
        match (drawn[i], committed[i]) {
            (None, None) => title.push_str(" · no sample"),
            (a, b) => {
                let parts = [("power", a), ("committed", b), ("budget", budget[i])];
                for (name, piece) in parts.into_iter().filter_map(|(n, p)| p.map(|p| (n, p))) {
                    title.push_str(&format!(" · {name} {}", range(piece)));
                }
            }
        }
        svg.rect("slice", Area { x: x0, w: x1 - x0, ..PLOT }, &title);
    }
    svg.close();
}

fn range(piece: Piece) -> String {
    let (low, high) = (power(piece.low), power(piece.high));
    if low == high { high } else { format!("{low} to {high}") }
}

/// Whether a point lies above its budget by more than the rounding of a sum of watts.
fn over_budget(p: &PowerPoint) -> bool {
    p.budget_w.is_some_and(|b| p.power_w > b * (1.0 + 1e-9) + 1e-6)
}

/// Marks along the upper edge the times at which power exceeded the budget: in a dense plot, the
/// two lines alone could touch without one being above the other at any instant.
fn draw_overshoot(svg: &mut Svg, points: &[PowerPoint], end: f64, domain: TimeDomain, time: Scale) {
    let over = points.iter().map(|p| (p.t_s, over_budget(p).then_some(1.0)));
    let mut d = String::new();
    for piece in Steps::new(over, end).pieces(domain, COLUMNS) {
        let x0 = time.at(piece.from);
        svg::push_point(&mut d, 'M', x0, PLOT.y - 6.0);
        svg::push_coord(&mut d, 'H', time.at(piece.to).max(x0 + 1.5));
    }
    svg.path("overshoot", &d, "Power above the budget");
}

/// What the caption says; taken from all points, not from the thinned-out ones.
#[derive(Debug, Default)]
struct Facts {
    peak: Option<(f64, f64)>,
    mean_w: Option<f64>,
    has_budget: bool,
    over_s: f64,
    over_at_all: bool,
}

impl Facts {
    fn of(points: &[PowerPoint], end: f64) -> Facts {
        let mut facts = Facts::default();
        let (mut joules, mut seconds) = (0.0, 0.0);
        let ends = points.iter().skip(1).map(|p| p.t_s).chain([end]);
        for (p, to) in points.iter().zip(ends) {
            if !drawable(p.power_w) {
                continue;
            }
            let held = (to - p.t_s).max(0.0);
            joules += p.power_w * held;
            seconds += held;
            if facts.peak.is_none_or(|(w, _)| p.power_w > w) {
                facts.peak = Some((p.power_w, p.t_s));
            }
            facts.has_budget |= p.budget_w.is_some_and(drawable);
            if over_budget(p) {
                facts.over_at_all = true;
                facts.over_s += held;
            }
        }
        if seconds > 0.0 {
            facts.mean_w = Some(joules / seconds);
        }
        facts
    }

    fn sentence(&self) -> String {
        let Some((peak, at)) = self.peak else {
            return "No power samples.".to_owned();
        };
        let mean = self.mean_w.map(|w| format!(", mean {}", power(w))).unwrap_or_default();
        let budget = match (self.has_budget, self.over_at_all) {
            (false, _) => "no budget".to_owned(),
            (true, false) => "never above the budget".to_owned(),
            (true, true) => format!("above the budget for {}", duration(self.over_s)),
        };
        format!("Peak {} at {}{mean}; {budget}.", power(peak), duration(at))
    }
}
