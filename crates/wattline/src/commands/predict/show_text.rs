//! What `wattline predict show` prints for people.

use super::plan::Plan;
use super::show::{Best, Configuration, Curves, Shown};
use crate::output;

pub(super) fn text(shown: &Shown) -> String {
    let mut text = format!(
        "{} on {}: {} of {} measurements fitted\n{}\n",
        output::harmless(&shown.workload),
        output::harmless(&shown.gpu),
        shown.fitted,
        shown.measurements,
        table(shown)
    );
    text += "\nBest with so many GPUs\n";
    text += &best(&shown.best_by_gpus);
    if let Some(curves) = &shown.curves {
        text += &of_curves(curves);
    }
    text += &of_plan(&shown.plan);
    text
}

fn number(x: Option<f64>, digits: usize) -> String {
    x.map_or_else(|| "–".to_owned(), |x| format!("{x:.digits$}"))
}

fn table(shown: &Shown) -> String {
    let line = |c: &Configuration, mark: &str| {
        vec![
            format!("{} on {}", c.gpus, c.nodes),
            format!("{}", c.global_batch),
            format!("{} W", c.power_limit_w),
            format!("{:.1}", c.samples_per_s),
            format!("{:.1} to {:.1}", c.samples_per_s_low, c.samples_per_s_high),
            number(c.power_w, 0),
            number(c.joules_per_sample, 4),
            mark.to_owned(),
        ]
    };
    let is = |c: &Configuration, best: &Option<Configuration>| {
        best.as_ref().is_some_and(|b| {
            (b.gpus, b.nodes) == (c.gpus, c.nodes)
                && b.global_batch == c.global_batch
                && b.power_limit_w == c.power_limit_w
        })
    };
    let rows = shown
        .configurations
        .iter()
        .map(|c| {
            let mark = match (is(c, &shown.fastest), is(c, &shown.most_frugal)) {
                (true, true) => "fastest, most frugal",
                (true, false) => "fastest",
                (false, true) => "most frugal",
                (false, false) => "",
            };
            line(c, mark)
        })
        .collect();
    let header = [
        "GPUs on nodes",
        "batch",
        "limit",
        "samples/s",
        "90 % between",
        "W per GPU",
        "J/sample",
        "",
    ];
    output::table(&header, rows)
}

fn best(all: &[Best]) -> String {
    let mut rows = Vec::new();
    for b in all {
        let named = [("fastest", Some(&b.fastest)), ("most frugal", b.most_frugal.as_ref())];
        for (name, c) in named {
            let Some(c) = c else { continue };
            rows.push(vec![
                format!("{}, {name}", b.gpus),
                format!("{}", c.nodes),
                format!("{}", c.global_batch),
                format!("{} W", c.power_limit_w),
                format!("{:.1}", c.samples_per_s),
                number(c.joules_per_sample, 4),
            ]);
        }
    }
    output::table(&["GPUs", "nodes", "batch", "limit", "samples/s", "J/sample"], rows) + "\n"
}

/// A curve as a row of bars, from its least value to its most.
fn bars(values: &[f64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let bar = |x: &f64| {
        let share = if high > low { (x - low) / (high - low) } else { 0.0 };
        BARS[((share * 7.0).round() as usize).min(7)]
    };
    values.iter().map(bar).collect()
}

fn of_curves(curves: &Curves) -> String {
    let c = &curves.around;
    let mut rows = Vec::new();
    type Along = fn(&Configuration) -> f64;
    let axes: [(&str, &[Configuration], Along); 3] = [
        ("GPUs", &curves.gpus, |c| f64::from(c.gpus)),
        ("batch", &curves.global_batch, |c| c.global_batch),
        ("limit in W", &curves.power_limit_w, |c| c.power_limit_w),
    ];
    for (name, points, along) in axes {
        // A single point is no curve.
        let (Some(first), Some(last), true) = (points.first(), points.last(), points.len() > 1)
        else {
            continue;
        };
        let time: Vec<f64> = points.iter().map(|c| 1e3 / c.samples_per_s).collect();
        let energy: Option<Vec<f64>> = points.iter().map(|c| c.joules_per_sample).collect();
        for (what, values) in [("ms/sample", Some(time)), ("J/sample", energy)] {
            let Some(values) = values else { continue };
            rows.push(vec![
                format!("{name} {} to {}", along(first), along(last)),
                what.to_owned(),
                bars(&values),
                format!("{:.4}", values[0]),
                format!("{:.4}", values[values.len() - 1]),
            ]);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "\nCurves around {} on {} (GPUs on nodes), batch {}, {} W\n{}\n",
        c.gpus,
        c.nodes,
        c.global_batch,
        c.power_limit_w,
        output::table(&["along", "", "curve", "first", "last"], rows)
    )
}

/// Nothing where nothing is planned.
pub(super) fn of_plan(plan: &Plan) -> String {
    if plan.measure.is_empty() {
        return String::new();
    }
    let rows = plan
        .measure
        .iter()
        .enumerate()
        .map(|(k, m)| {
            vec![
                format!("{}.", k + 1),
                format!("{} on {}", m.gpus, m.nodes),
                format!("{}", m.global_batch),
                format!("{} W", m.power_limit_w),
                format!("{:.0}", m.seconds),
                format!("{:.0}", m.gpu_seconds),
            ]
        })
        .collect();
    format!(
        "\nMeasure next, {:.0} GPU-seconds in all\n{}\n",
        plan.gpu_seconds,
        output::table(&["", "GPUs on nodes", "batch", "limit", "seconds", "GPU-seconds"], rows)
    )
}
