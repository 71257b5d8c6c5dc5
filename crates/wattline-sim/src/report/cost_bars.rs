//! Where the cost of each policy came from, as stacked bars.

use super::svg::{self, Anchor, Area, Clipped, Scale, Svg, drawable, eur};
use super::{CostSplit, RunReport};

/// Narrower than the other plots, with the names above the bars rather than beside them, so that
/// the whole of it fits a phone.
const WIDTH: f64 = 640.0;
const MARGIN: f64 = 2.0;
const ROW: f64 = 48.0;
const TOP: f64 = 2.0;
/// Height of the line of text above a bar.
const TEXT: f64 = 22.0;
const BAR: f64 = 18.0;

/// Style class and name of each part, in the order in which they are stacked.
pub(super) const PARTS: [(&str, &str); 3] =
    [("energy", "energy"), ("tardiness", "tardiness"), ("carbon", "carbon")];

/// The parts in the order of [`PARTS`]; what cannot be drawn counts as nothing.
fn parts(cost: &CostSplit) -> [f64; 3] {
    [cost.energy_eur, cost.tardiness_eur, cost.carbon_eur]
        .map(|v| if drawable(v) { v } else { 0.0 })
}

/// Draws all runs.
pub(super) fn draw(runs: &[RunReport]) -> String {
    let sum_if = |run: &RunReport, keep: fn(&f64) -> bool| {
        parts(&run.cost).into_iter().filter(keep).sum::<f64>()
    };
    let highest = runs.iter().map(|r| sum_if(r, |v| *v > 0.0)).fold(0.0, f64::max);
    // Earnings, as with negative prices, stand to the left of zero.
    let lowest = runs.iter().map(|r| sum_if(r, |v| *v < 0.0)).fold(0.0, f64::min);
    let highest = if highest == lowest { 1.0 } else { highest };

    let rows = runs.len().max(1) as f64;
    let plot = Area { x: MARGIN, y: TOP, w: WIDTH - 2.0 * MARGIN, h: rows * ROW };
    let mut svg = Svg::new("cost", WIDTH, plot.bottom() + 26.0, &describe(runs));
    let money = Scale::new((lowest, highest), (plot.x, plot.right()));
    let ticks = svg::eur_ticks(lowest, highest, 6);
    let marks: Vec<_> = ticks.into_iter().map(|t| (money.at(t.value), t.label)).collect();
    svg::x_axis(&mut svg, plot, WIDTH, &marks);

    for (i, run) in runs.iter().enumerate() {
        let y = plot.y + i as f64 * ROW;
        let total = eur(parts(&run.cost).iter().sum());
        let name = Clipped { text: &run.policy, limit: 36 };
        svg.text("policy", (plot.x, y + TEXT - 6.0), Anchor::Start, name);
        svg.text("total", (plot.right(), y + TEXT - 6.0), Anchor::End, (&total).into());
        let (mut up, mut down) = (0.0, 0.0);
        for ((class, part), value) in PARTS.iter().zip(parts(&run.cost)) {
            let edge = if value < 0.0 { &mut down } else { &mut up };
            let (a, b) = (money.at(*edge), money.at(*edge + value));
            *edge += value;
            if value != 0.0 {
                let area = Area { x: a.min(b), y: y + TEXT, w: (b - a).abs(), h: BAR };
                let policy = svg::clip(&run.policy, 80);
                let title = format!("{policy} · {part} {} of {total}", eur(value));
                svg.rect(&format!("part {class}"), area, &title);
            }
        }
    }
    if lowest < 0.0 {
        let zero = money.at(0.0);
        svg.line("base", (zero, plot.y), (zero, plot.bottom()));
    }
    svg.finish()
}

fn describe(runs: &[RunReport]) -> String {
    let each: Vec<_> = runs
        .iter()
        .map(|run| {
            let [energy, tardiness, carbon] = parts(&run.cost).map(eur);
            let policy = svg::clip(&run.policy, 80);
            format!("{policy}: energy {energy}, tardiness {tardiness}, carbon {carbon}")
        })
        .collect();
    format!("Cost by cause. {}.", each.join("; "))
}
