//! The page around the plots: head, table, sections and legends.

use std::fmt::Write;

use super::distribution::{Quantity, SERIES};
use super::svg::escape;
use super::{
    Chart, ReportInput, RunReport, TimeDomain, cost_bars, curves, distribution, errors, gantt,
    power_plot,
};

/// The style sheet; colours are set there once for light, dark and paper.
const STYLE: &str = include_str!("style.css");
/// Shows the values under the pointer beneath a power plot. The page reads well without it.
const SCRIPT: &str = include_str!("readout.js");

/// The page may fetch nothing and send nothing, whatever a name in it may try.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      base-uri 'none'; form-action 'none'";

/// Hatching of late bars, shared by all pictures of the page.
const HATCH: &str = "<svg class=\"defs\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>\
    <pattern id=\"hatch\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
    patternTransform=\"rotate(45)\"><rect class=\"hatch-line\" width=\"1.6\" height=\"5\"/>\
    </pattern></defs></svg>\n";

/// Head and heading of a page.
fn begin(title: &str, subtitle: &str) -> String {
    let mut out = String::with_capacity(64 * 1024);
    let title = escape(title);
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{HATCH}\
         <header>\n<h1>{title}</h1>\n",
    );
    for line in subtitle.lines().filter(|l| !l.trim().is_empty()) {
        let _ = writeln!(out, "<p class=\"subtitle\">{}</p>", escape(line));
    }
    out
}

/// A page of curves.
pub(super) fn curves(title: &str, subtitle: &str, charts: &[Chart]) -> String {
    let mut out = begin(title, subtitle);
    out.push_str("</header>\n<main>\n");
    for chart in charts {
        let heading = escape(&chart.title);
        let _ = writeln!(out, "<section>\n<h2>{heading}</h2>");
        let _ = writeln!(out, "<p class=\"subtitle\">{}</p>", escape(&chart.y.name));
        series_legend(&mut out, chart.curves.iter().map(|curve| curve.name.as_str()));
        scrolling(&mut out, &chart.title, &curves::draw(chart));
        out.push_str("</section>\n");
    }
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

/// Builds the document.
pub(super) fn document(input: &ReportInput, domain: TimeDomain) -> String {
    let mut out = begin(&input.title, &input.subtitle);
    if input.runs.is_empty() {
        out.push_str("</header>\n<main>\n<p>There are no runs to show.</p>\n</main>\n");
    } else {
        navigation(&mut out, &input.runs);
        out.push_str("</header>\n<main>\n");
        summary(&mut out, &input.runs);
        costs(&mut out, &input.runs);
        job_times(&mut out, &input.runs);
        predictions(&mut out, &input.runs, domain);
        power(&mut out, &input.runs, domain);
        gpus(&mut out, &input.runs, domain);
        out.push_str("</main>\n");
        let _ = writeln!(out, "<script>\n{SCRIPT}</script>");
    }
    out.push_str("</body>\n</html>\n");
    out
}

const SECTIONS: [(&str, &str); 6] = [
    ("summary", "Summary"),
    ("cost", "Cost"),
    ("times", "Job times"),
    ("predictions", "Prediction error over time"),
    ("power", "Power against budget"),
    ("gpus", "GPUs over time"),
];

const PREDICTIONS: usize = 3;

fn navigation(out: &mut String, runs: &[RunReport]) {
    out.push_str("<nav aria-label=\"Sections\">\n");
    for (at, (id, name)) in SECTIONS.into_iter().enumerate() {
        if at == PREDICTIONS && !errors::any(runs) {
            continue;
        }
        let _ = writeln!(out, "<a href=\"#{id}\">{name}</a>");
    }
    out.push_str("</nav>\n");
}

fn open_section(out: &mut String, index: usize) {
    let (id, name) = SECTIONS[index];
    let _ = writeln!(out, "<section id=\"{id}\" aria-labelledby=\"{id}-h\">");
    let _ = writeln!(out, "<h2 id=\"{id}-h\">{name}</h2>");
}

/// A box that scrolls sideways by itself where the screen is narrower than its content; it can
/// take the focus so that the keyboard can scroll it too.
fn scrolling(out: &mut String, label: &str, content: &str) {
    let label = escape(label);
    let _ = writeln!(
        out,
        "<div class=\"scroll\" role=\"group\" aria-label=\"{label}\" tabindex=\"0\">\n\
         {content}</div>"
    );
}

/// One legend entry for each pair of swatch class and text.
fn legend(out: &mut String, entries: &[(&str, &str)]) {
    out.push_str("<ul class=\"legend\">\n");
    for (class, text) in entries {
        let _ = writeln!(out, "<li><i class=\"swatch {class}\"></i>{}</li>", escape(text));
    }
    out.push_str("</ul>\n");
}

/// One legend entry for each line of a plot.
fn series_legend<'a>(out: &mut String, names: impl Iterator<Item = &'a str>) {
    out.push_str("<ul class=\"legend\">\n");
    for (at, name) in names.enumerate() {
        let _ = writeln!(
            out,
            "<li><svg class=\"swatch\" viewBox=\"0 0 26 10\" aria-hidden=\"true\">\
             <path class=\"line s{}\" d=\"M0 5H26\"/></svg>{}</li>",
            at % SERIES,
            escape(name)
        );
    }
    out.push_str("</ul>\n");
}

/// Policies as columns, metrics as rows, in the order in which the runs first name them.
fn summary(out: &mut String, runs: &[RunReport]) {
    open_section(out, 0);
    let mut labels: Vec<&str> = Vec::new();
    for (label, _) in runs.iter().flat_map(|r| &r.summary) {
        if !labels.contains(&label.as_str()) {
            labels.push(label);
        }
    }
    let mut table = String::from("<table>\n<thead>\n<tr><th scope=\"col\">Metric</th>");
    for run in runs {
        let _ = write!(table, "<th scope=\"col\">{}</th>", escape(&run.policy));
    }
    table.push_str("</tr>\n</thead>\n<tbody>\n");
    for label in labels {
        let _ = write!(table, "<tr><th scope=\"row\">{}</th>", escape(label));
        for run in runs {
            let value = run.summary.iter().find(|(l, _)| l == label).map(|(_, v)| v.as_str());
            let _ = write!(table, "<td>{}</td>", escape(value.unwrap_or("–")));
        }
        table.push_str("</tr>\n");
    }
    table.push_str("</tbody>\n</table>\n");
    scrolling(out, "Summary of all policies", &table);
    out.push_str("</section>\n");
}

fn costs(out: &mut String, runs: &[RunReport]) {
    open_section(out, 1);
    legend(out, &cost_bars::PARTS);
    let _ = writeln!(out, "<figure>\n{}</figure>\n</section>", cost_bars::draw(runs));
}

/// The two plots of job times, side by side where there is room.
fn job_times(out: &mut String, runs: &[RunReport]) {
    const JCT: Quantity = Quantity {
        name: "job completion time",
        label: "Share of jobs completed within a time of their arrival",
        none: "no finished jobs",
        values: |run| &run.jct_s,
    };
    const TARDINESS: Quantity = Quantity {
        name: "tardiness",
        label: "Share of jobs with a deadline that were at most so late",
        none: "no jobs with a deadline",
        values: |run| &run.tardiness_s,
    };
    open_section(out, 2);
    series_legend(out, runs.iter().map(|r| r.policy.as_str()));
    out.push_str("<div class=\"pair\">\n");
    for quantity in [JCT, TARDINESS] {
        let svg = distribution::draw(runs, &quantity);
        let caption = quantity.label;
        let _ = writeln!(out, "<figure>\n{svg}<figcaption>{caption}.</figcaption>\n</figure>");
    }
    out.push_str("</div>\n</section>\n");
}

/// Only where something was predicted that was not known.
fn predictions(out: &mut String, runs: &[RunReport], domain: TimeDomain) {
    if !errors::any(runs) {
        return;
    }
    open_section(out, PREDICTIONS);
    legend(
        out,
        &[
            ("time-dot", "run time, inside its 90 % interval"),
            ("missed-dot", "run time, outside"),
            ("energy-dot", "energy"),
            ("time-median", "running median, time"),
            ("energy-median", "running median, energy"),
        ],
    );
    for run in runs {
        let plot = errors::draw(run, domain);
        figure_head(out, run, &escape(&plot.caption));
        scrolling(out, &format!("Errors of predictions under {}", run.policy), &plot.svg);
        out.push_str("</figure>\n");
    }
    out.push_str(
        "<p class=\"subtitle\">|predicted / actual − 1| of a job's last run, as predicted when it \
         started; logarithmic. Runs whose power limit was changed on the way are left out.</p>\n\
         </section>\n",
    );
}

fn power(out: &mut String, runs: &[RunReport], domain: TimeDomain) {
    open_section(out, 4);
    legend(
        out,
        &[
            ("power-line", "power drawn (peaks kept)"),
            ("committed-area", "committed by the scheduler"),
            ("budget", "the wattline: power budget"),
            ("overshoot", "power above budget"),
        ],
    );
    let axes = power_plot::Axes::of(runs, domain);
    for run in runs {
        let plot = power_plot::draw(run, axes);
        let caption = escape(&plot.caption);
        figure_head(out, run, &caption);
        scrolling(out, &format!("Power of {}", run.policy), &plot.svg);
        out.push_str("<p class=\"readout\" aria-hidden=\"true\"></p>\n</figure>\n");
    }
    out.push_str("</section>\n");
}

fn gpus(out: &mut String, runs: &[RunReport], domain: TimeDomain) {
    let plots: Vec<_> = runs.iter().map(|run| gantt::draw(run, domain)).collect();
    open_section(out, 5);
    let mut entries = vec![("late", "late job"), ("asleep", "asleep")];
    if plots.iter().any(|p| !p.is_heat_map) {
        entries.insert(0, ("job", "job (one colour each)"));
    }
    if plots.iter().any(|p| p.is_heat_map) {
        entries.insert(0, ("heat", "0 to 100 % busy"));
    }
    legend(out, &entries);
    for (run, plot) in runs.iter().zip(plots) {
        figure_head(out, run, &escape(&plot.caption));
        scrolling(out, &format!("GPUs under {}", run.policy), &plot.svg);
        out.push_str("</figure>\n");
    }
    out.push_str("</section>\n");
}

/// Opens a figure with the policy's name and an escaped caption above the plot.
fn figure_head(out: &mut String, run: &RunReport, caption: &str) {
    let _ = writeln!(
        out,
        "<figure>\n<figcaption><strong>{}</strong> {caption}</figcaption>",
        escape(&run.policy)
    );
}
