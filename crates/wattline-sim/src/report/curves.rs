//! Curves over a knob: one page with a plot or two, for sweeps.

use super::distribution::SERIES;
use super::page;
use super::svg::{self, Anchor, Area, Scale, Svg, Tick, drawable};

const WIDTH: f64 = svg::WIDE;
const HEIGHT: f64 = 380.0;
const PLOT: Area = Area { x: 76.0, y: 14.0, w: WIDTH - 76.0 - 24.0, h: HEIGHT - 14.0 - 52.0 };

/// In what an axis counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Plain numbers.
    #[default]
    Number,
    /// Euros.
    Euros,
    /// Seconds.
    Seconds,
    /// Shares of one.
    Share,
    /// Watts.
    Watts,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// What it says.
    pub name: String,
    /// In what it counts.
    pub unit: Unit,
}

/// One line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// Whose.
    pub name: String,
    /// Its points, in the order in which they are joined. Those that cannot be drawn are left out.
    pub points: Vec<(f64, f64)>,
}

/// One plot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// Its heading.
    pub title: String,
    /// To the right.
    pub x: Axis,
    /// Up; the axis begins at zero.
    pub y: Axis,
    /// The lines.
    pub curves: Vec<Curve>,
}

/// A page with these plots, self-contained as all reports are. Every line of `subtitle` becomes one
/// of the page.
#[must_use]
pub fn render_curves(title: &str, subtitle: &str, charts: &[Chart]) -> String {
    page::curves(title, subtitle, charts)
}

/// Draws a plot.
pub(super) fn draw(chart: &Chart) -> String {
    let points: Vec<(f64, f64)> = chart.curves.iter().flat_map(drawn).collect();
    let mut svg = Svg::new("wide", WIDTH, HEIGHT, &describe(chart));
    let middle = PLOT.x + PLOT.w / 2.0;
    svg.text("axis-name", (middle, HEIGHT - 10.0), Anchor::Middle, (&chart.x.name).into());
    if points.is_empty() {
        let at = (middle, PLOT.y + PLOT.h / 2.0);
        svg.text("empty", at, Anchor::Middle, "nothing to draw".into());
        return svg.finish();
    }
    let (lo, hi) = points
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), (x, _)| (lo.min(*x), hi.max(*x)));
    let room = if hi > lo { (hi - lo) * 0.02 } else { lo.abs().max(1.0) * 0.1 };
    let x = Scale::new((lo - room, hi + room), (PLOT.x, PLOT.right()));
    let top = svg::nice_top(points.iter().map(|(_, y)| *y).fold(0.0, f64::max), 6);
    let bottom = points.iter().map(|(_, y)| *y).fold(0.0, f64::min);
    let y = Scale::new((bottom, top), (PLOT.bottom(), PLOT.y));
    svg::y_axis(&mut svg, PLOT, y, &ticks(chart.y.unit, bottom, top, 6));
    let marks: Vec<_> =
        ticks(chart.x.unit, lo, hi, 8).into_iter().map(|t| (x.at(t.value), t.label)).collect();
    svg::x_axis(&mut svg, PLOT, WIDTH, &marks);
    for (at, curve) in chart.curves.iter().enumerate() {
        let mut line = String::new();
        let mut dots = String::new();
        for (px, py) in drawn(curve) {
            let (px, py) = (x.at(px), y.at(py));
            let command = if line.is_empty() { 'M' } else { 'L' };
            svg::push_point(&mut line, command, px, py);
            // A line of no length with round ends is a dot.
            svg::push_point(&mut dots, 'M', px, py);
            svg::push_coord(&mut dots, 'H', px);
        }
        let title = svg::clip(&curve.name, 80);
        svg.path(&format!("series s{}", at % SERIES), &line, &title);
        svg.path(&format!("dot s{}", at % SERIES), &dots, &title);
    }
    svg.finish()
}

fn drawn(curve: &Curve) -> impl Iterator<Item = (f64, f64)> + '_ {
    curve.points.iter().copied().filter(|(x, y)| drawable(*x) && drawable(*y))
}

fn ticks(unit: Unit, lo: f64, hi: f64, most: usize) -> Vec<Tick> {
    match unit {
        Unit::Number => svg::number_ticks(lo, hi, most),
        Unit::Euros => svg::eur_ticks(lo, hi, most),
        Unit::Seconds => svg::time_ticks(lo, hi, most),
        Unit::Watts => svg::power_ticks(lo, hi, most),
        Unit::Share => svg::number_ticks(lo * 100.0, hi * 100.0, most)
            .into_iter()
            .map(|t| Tick { value: t.value / 100.0, label: format!("{}\u{a0}%", t.label) })
            .collect(),
    }
}

fn describe(chart: &Chart) -> String {
    let names: Vec<String> = chart.curves.iter().map(|c| svg::clip(&c.name, 80)).collect();
    format!("{}: {} over {} for {}.", chart.title, chart.y.name, chart.x.name, names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_is_drawn_and_named_and_nothing_escapes() {
        let curve = |name: &str, y: f64| Curve {
            name: name.into(),
            points: vec![(0.4, y), (f64::NAN, 1.0), (1.0, 2.0 * y)],
        };
        let chart = Chart {
            title: "Cost <b>".into(),
            x: Axis { name: "budget".into(), unit: Unit::Share },
            y: Axis { name: "cost".into(), unit: Unit::Euros },
            curves: vec![curve("edf", 10.0), curve("<script>", 20.0)],
        };
        let page = render_curves("A sweep", "one\ntwo", std::slice::from_ref(&chart));
        assert_eq!(page.matches("class=\"series s").count(), 2);
        assert!(!page.contains("<script>") && !page.contains("<b>") && !page.contains("NaN"));
        assert!(page.contains("40\u{a0}%") && page.contains("€40"), "{page}");
        let empty = render_curves("", "", &[Chart::default()]);
        assert!(empty.contains("nothing to draw"));
    }
}
