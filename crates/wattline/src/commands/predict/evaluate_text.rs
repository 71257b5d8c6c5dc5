//! What `wattline predict evaluate` prints for people.

use super::evaluate::{GroupReport, IntervalReport, IntervalsReport, Noise, Report, Worst};
use crate::output;
use wattline_predict::evaluate::SET_ON;

fn percent(x: f64) -> String {
    format!("{:.1} %", x * 100.0)
}

fn maybe(x: Option<f64>) -> String {
    x.map_or_else(|| "–".to_owned(), percent)
}

fn name(workload: &str, gpu: &str) -> String {
    output::harmless(&format!("{workload} on {gpu}"))
}

pub(super) fn text(report: &Report) -> String {
    let mut text = errors(report);
    text.push('\n');
    text += "\n90 % intervals: how many held-out readings they hold, and how wide they are by the narrowest \
             that would have held 90 %\n";
    text += &intervals(report);
    text += &format!("\nTheir constants were set on these files: {}\n", SET_ON.join(", "));
    for group in &report.groups {
        for (what, way) in [("time", group.fallback_time), ("power", group.fallback_power)] {
            if let Some(way) = way {
                let name = name(&group.workload, &group.gpu);
                text += &format!("{name}: {way} instead of the model for {what}\n");
            }
        }
    }
    if report.groups.iter().any(|g| g.yardstick_fit.is_some()) {
        text += "\nThree power limits of each batch fitted, the others predicted: the published power \
                 model and ours\n";
        text += &yardstick(report);
        text.push('\n');
    }
    if report.overall.noise_floor.configurations > 0 {
        text += "\nNoise, from repeated rows: the least error that any model can have on them, and what to \
                 expect of a model that knows the truth\n";
        text += &noise(report);
        text.push('\n');
    }
    if let Some(worst) = &report.worst {
        text += "\nFurthest off\n";
        text += &furthest(worst);
        text.push('\n');
    }
    text
}

fn errors(report: &Report) -> String {
    let mut rows: Vec<Vec<String>> = report
        .groups
        .iter()
        .map(|g| {
            vec![
                name(&g.workload, &g.gpu),
                g.fit.to_string(),
                g.held_out.to_string(),
                percent(g.time_mape),
                maybe(g.power_mape),
                maybe(g.energy_mape),
                percent(g.coverage_90),
                percent(g.interpolation_time_mape),
                percent(g.nearest_time_mape),
            ]
        })
        .collect();
    let o = &report.overall;
    rows.push(vec![
        "median".into(),
        String::new(),
        o.held_out.to_string(),
        percent(o.time_mape),
        maybe(o.power_mape),
        maybe(o.energy_mape),
        percent(o.coverage_90),
        String::new(),
        String::new(),
    ]);
    rows.push(vec![
        "mean".into(),
        String::new(),
        String::new(),
        percent(o.mean_time_mape),
        maybe(o.mean_power_mape),
        maybe(o.mean_energy_mape),
        String::new(),
        percent(o.interpolation_mean_time_mape),
        percent(o.nearest_mean_time_mape),
    ]);
    let header = [
        "workload",
        "fitted",
        "held out",
        "time",
        "power",
        "energy",
        "in 90 %",
        "time, lines",
        "time, nearest",
    ];
    output::table(&header, rows)
}

fn intervals(report: &Report) -> String {
    let row = |label: String, held_out: usize, all: &IntervalsReport| {
        let mut row = vec![label, held_out.to_string()];
        for one in [&all.time, &all.power, &all.energy] {
            let by_oracle = |one: &IntervalReport| one.width_by_oracle;
            row.push(maybe(one.as_ref().map(|one| one.coverage)));
            row.push(times(one.as_ref().and_then(by_oracle)));
        }
        row
    };
    let of_group = |g: &GroupReport| row(name(&g.workload, &g.gpu), g.held_out, &g.intervals);
    let mut rows: Vec<Vec<String>> = report.groups.iter().map(of_group).collect();
    let o = &report.overall;
    rows.push(row("all".into(), o.held_out, &o.intervals));
    let mut after = String::new();
    if let Some(left) = &o.leave_one_workload_out {
        let label = "all, others known".to_owned();
        rows.push(row(label, left.held_out, &left.intervals));
        after = format!(
            "\nWith all other workloads of a GPU type known, {} in turn: time off by {} on average \
             ({} in the median), power by {}, energy by {}",
            left.workloads,
            percent(left.mean_time_mape),
            percent(left.time_mape),
            maybe(left.mean_power_mape),
            maybe(left.mean_energy_mape),
        );
    }
    let header = ["workload", "held out", "time", "width", "power", "width", "energy", "width"];
    output::table(&header, rows) + &after
}

/// A ratio.
fn times(x: Option<f64>) -> String {
    x.map_or_else(|| "–".to_owned(), |x| format!("{x:.2}"))
}

fn yardstick(report: &Report) -> String {
    let count = |x: Option<usize>| x.map_or_else(|| "–".to_owned(), |x| x.to_string());
    let row = |g: &GroupReport| {
        vec![
            name(&g.workload, &g.gpu),
            count(g.yardstick_fit),
            count(g.yardstick_held_out),
            maybe(g.yardstick_time_mape),
            maybe(g.model_on_yardstick_points_time_mape),
            maybe(g.yardstick_energy_mape),
            maybe(g.model_on_yardstick_points_energy_mape),
        ]
    };
    let mut rows: Vec<Vec<String>> = report.groups.iter().map(row).collect();
    let o = &report.overall;
    let whole = |label: &str, errors: [Option<f64>; 4]| {
        let mut row = vec![label.to_owned(), String::new(), String::new()];
        row.extend(errors.map(maybe));
        row
    };
    rows.push(whole(
        "median",
        [
            o.yardstick_time_mape,
            o.model_on_yardstick_points_time_mape,
            o.yardstick_energy_mape,
            o.model_on_yardstick_points_energy_mape,
        ],
    ));
    rows.push(whole(
        "mean",
        [
            o.yardstick_mean_time_mape,
            o.model_on_yardstick_points_mean_time_mape,
            o.yardstick_mean_energy_mape,
            o.model_on_yardstick_points_mean_energy_mape,
        ],
    ));
    let header = [
        "workload",
        "fitted",
        "held out",
        "time, published",
        "time, ours",
        "energy, published",
        "energy, ours",
    ];
    output::table(&header, rows)
}

fn noise(report: &Report) -> String {
    let row = |label: String, n: &Noise| {
        let mut row = vec![label, n.configurations.to_string()];
        row.extend([n.time, n.power, n.energy].map(maybe));
        row.extend([n.expected_time, n.expected_power, n.expected_energy].map(maybe));
        row
    };
    let mut rows: Vec<Vec<String>> = report
        .groups
        .iter()
        .filter(|g| g.noise_floor.configurations > 0)
        .map(|g| row(name(&g.workload, &g.gpu), &g.noise_floor))
        .collect();
    rows.push(row("all".into(), &report.overall.noise_floor));
    let header = [
        "workload",
        "repeated",
        "time, least",
        "power, least",
        "energy, least",
        "time, expected",
        "power, expected",
        "energy, expected",
    ];
    output::table(&header, rows)
}

fn furthest(worst: &[Worst]) -> String {
    let watts = |x: Option<f64>| x.map_or_else(|| "–".to_owned(), |x| format!("{x:.0}"));
    let rows = worst
        .iter()
        .map(|w| {
            vec![
                name(&w.workload, &w.gpu),
                format!("{} on {}", w.gpus, w.nodes),
                w.global_batch.to_string(),
                format!("{} W", w.power_limit_w),
                format!("{:.3e}", w.predicted_seconds_per_sample),
                format!("{:.3e}", w.measured_seconds_per_sample),
                percent(w.time_error),
                watts(w.predicted_power_w),
                watts(w.measured_power_w),
                maybe(w.power_error),
                match w.repeats_disagree_as_much {
                    None => "read once",
                    Some(true) => "as much",
                    Some(false) => "less",
                }
                .to_owned(),
            ]
        })
        .collect();
    let header = [
        "workload",
        "GPUs on nodes",
        "batch",
        "limit",
        "s/sample, predicted",
        "measured",
        "off",
        "W, predicted",
        "measured",
        "off",
        "repeats differ",
    ];
    output::table(&header, rows)
}
