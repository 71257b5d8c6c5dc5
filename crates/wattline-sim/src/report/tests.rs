//! Tests of the whole page and of the parts that must not lie.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "one test measures time")]

use std::time::Instant;

use super::steps::Steps;
use super::svg::{self, Tick};
use super::*;

const NASTY: &str =
    "</title><script>alert(\"x\")</script>'&\u{1b}[31mred\u{0}\u{7f}\u{85}\u{202e}\u{ffff}\n<!--";

fn point(t_s: f64, power_w: f64) -> PowerPoint {
    PowerPoint { t_s, power_w, committed_w: power_w + 50.0, budget_w: Some(900.0) }
}

fn bar(row: u32, start_s: f64, end_s: f64, job: u32) -> Bar {
    Bar { row, start_s, end_s, job, label: format!("job {job}"), late: job.is_multiple_of(3) }
}

fn sample(policy: &str) -> RunReport {
    RunReport {
        policy: policy.to_owned(),
        summary: vec![("Energy".to_owned(), "12.0 kWh".to_owned())],
        cost: CostSplit { energy_eur: 3.5, tardiness_eur: 1.25, carbon_eur: 0.5 },
        power: vec![point(0.0, 400.0), point(3600.0, 800.0), point(7200.0, 300.0)],
        gantt: Gantt {
            rows: vec!["n1/0".to_owned(), "n1/1".to_owned(), "n2/0".to_owned()],
            bars: vec![bar(0, 0.0, 3600.0, 1), bar(1, 600.0, 7200.0, 3)],
            sleep: vec![Span { row: 2, start_s: 0.0, end_s: 7200.0 }],
        },
        jct_s: vec![60.0, 3600.0, 6600.0],
        tardiness_s: vec![0.0, 0.0, 30.0],
        predictions: Predictions {
            runs: (0..60)
                .map(|k| PredictedRun {
                    end_s: 120.0 * f64::from(k),
                    time_error: 4.0 / f64::from(k + 1),
                    energy_error: (k % 5 > 0).then(|| -0.9 / f64::from(k + 1)),
                    covered: k % 10 > 0,
                })
                .collect(),
            cost_eur: Some((110.0, 100.0)),
            oracle_eur: Some((105.0, 100.0)),
        },
    }
}

#[test]
fn predictions_are_shown_where_there_are_some() {
    let html = page(vec![sample("fifo")]);
    check(&html);
    for word in [
        "href=\"#predictions\"",
        "class=\"median time-median\"",
        "class=\"dot missed-dot\"",
        "90\u{a0}% inside the 90 % interval",
        "Forecast at submission: €110.00 for jobs that cost €100.00.",
        "The price of not knowing: €105.00 in all, 5\u{a0}% more than €100.00 with the truth.",
    ] {
        assert!(html.contains(word), "{word}");
    }
    let mut told = sample("told");
    told.predictions = Predictions::default();
    let html = page(vec![told.clone()]);
    check(&html);
    assert!(!html.contains("id=\"predictions\"") && !html.contains("#predictions\""));
    // Beside one that learned, it says so.
    let html = page(vec![told, sample("fifo")]);
    check(&html);
    assert!(html.contains("no run that was predicted has ended"));
}

/// However many runs there are, so many points are drawn.
#[test]
fn many_predictions_make_a_small_page() {
    let mut run = sample("many");
    let one = run.predictions.runs[7];
    run.predictions.runs =
        (0..100_000).map(|k| PredictedRun { end_s: f64::from(k), ..one }).collect();
    let html = page(vec![run]);
    assert!(html.len() < 200_000, "{}", html.len());
}

fn page(runs: Vec<RunReport>) -> String {
    render(&ReportInput { title: "Title".to_owned(), subtitle: "sub\nline".to_owned(), runs })
}

/// Checks that all tags are balanced, all attributes quoted and no bare `<` or control character
/// is left; gives the names of the elements in order.
fn check(html: &str) -> Vec<String> {
    const VOID: [&str; 1] = ["meta"];
    let bad = html.chars().find(|c| c.is_control() && *c != '\n');
    assert_eq!(bad, None, "control character in the page");
    let mut rest = html.strip_prefix("<!DOCTYPE html>\n").expect("a doctype");
    let (mut open, mut seen) = (Vec::<String>::new(), Vec::new());
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>'), "bare > near {:?}", svg::clip(rest, 80));
        let tag_end = rest[at..].find('>').expect("a tag ends") + at;
        let tag = &rest[at + 1..tag_end];
        rest = &rest[tag_end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name));
            continue;
        }
        assert!(tag.starts_with(|c: char| c.is_ascii_lowercase()), "odd tag {tag:?}");
        assert_eq!(tag.matches('"').count() % 2, 0, "open quote in {tag:?}");
        let name = tag.split([' ', '/']).next().unwrap_or_default().to_owned();
        seen.push(name.clone());
        if tag.ends_with('/') || VOID.contains(&name.as_str()) {
            continue;
        }
        if name == "script" || name == "style" {
            let end = format!("</{name}>");
            let length = rest.find(&end).expect("raw text ends");
            rest = &rest[length + end.len()..];
        } else {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
    seen
}

#[test]
fn whole_page_is_well_formed_and_asks_nothing_of_the_network() {
    let html = page(vec![sample("fifo"), sample("wattline")]);
    let seen = check(&html);
    assert_eq!(seen.iter().filter(|n| *n == "table").count(), 1);
    for word in ["http://", "https://", " src=", "@import", "<link", "url(h"] {
        assert!(!html.contains(word), "{word}");
    }
    for word in ["role=\"img\"", "12.0 kWh", "n1/1", "The wattline", "never above the budget"] {
        assert!(html.contains(word), "{word}");
    }
}

#[test]
fn hostile_text_stays_text() {
    let mut run = sample(NASTY);
    run.summary.push((NASTY.to_owned(), NASTY.to_owned()));
    run.gantt.rows[0] = NASTY.to_owned();
    run.gantt.bars.iter_mut().for_each(|b| b.label = NASTY.to_owned());
    let input =
        ReportInput { title: NASTY.to_owned(), subtitle: NASTY.to_owned(), runs: vec![run] };
    let html = render(&input);
    let seen = check(&html);
    assert_eq!(seen.iter().filter(|n| *n == "script").count(), 1, "only the page's own script");
    assert!(!html.contains("alert(\"") && !html.contains("<!--"));
    assert!(!html.contains(['\u{1b}', '\u{0}', '\u{85}', '\u{202e}', '\u{ffff}']));
    assert!(html.contains("&lt;script&gt;") && html.contains("\u{241b}[31m"));
}

#[test]
fn a_name_too_long_is_cut_at_a_character() {
    assert_eq!(svg::clip("äöü", 3), "äöü");
    assert_eq!(svg::clip("äöüß", 3), "äö…");
    let mut run = sample("p");
    run.gantt.bars.iter_mut().for_each(|b| b.label = "ü".repeat(1_000_000));
    let html = page(vec![run]);
    check(&html);
    assert!(html.len() < 100_000, "{}", html.len());
}

#[test]
fn same_input_gives_same_bytes() {
    let input = ReportInput { runs: vec![sample("a"), sample("b")], ..Default::default() };
    assert_eq!(render(&input), render(&input.clone()));
}

#[test]
fn nothing_to_draw_is_no_reason_to_fail() {
    check(&render(&ReportInput::default()));
    check(&page(vec![RunReport::default()]));
    check(&page(vec![RunReport::default(), sample("full")]));
    for t in [0.0, -5.0, 1.7e9] {
        let one = RunReport { power: vec![point(t, 5.0)], ..Default::default() };
        check(&page(vec![one]));
    }
    let moment = Gantt {
        rows: vec!["only".to_owned()],
        bars: vec![bar(0, 5.0, 5.0, 1)],
        sleep: vec![Span { row: 0, start_s: 5.0, end_s: 5.0 }],
    };
    check(&page(vec![RunReport { gantt: moment, ..Default::default() }]));
    let mut no_budget = sample("free");
    no_budget.power.iter_mut().for_each(|p| p.budget_w = None);
    let html = page(vec![no_budget]);
    check(&html);
    assert!(html.contains("no budget.") && !html.contains("<path class=\"budget\""));
}

#[test]
fn values_that_cannot_be_drawn_are_left_out() {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, -1.0, -0.0, 1e-300];
    let mut run = sample("odd");
    for a in odd {
        for b in odd {
            run.power.push(PowerPoint { t_s: a, power_w: b, committed_w: a, budget_w: Some(b) });
            run.power.push(PowerPoint { t_s: 1.0, power_w: b, committed_w: a, budget_w: None });
            run.gantt.bars.push(bar(0, a, b, 1));
            run.gantt.bars.push(bar(u32::MAX, 0.0, 1.0, 1));
            run.gantt.sleep.push(Span { row: 1, start_s: a, end_s: b });
        }
        run.predictions.runs.push(PredictedRun {
            end_s: a,
            time_error: a,
            energy_error: Some(a),
            covered: true,
        });
        run.predictions.runs.push(PredictedRun { time_error: a, ..PredictedRun::default() });
        run.predictions.cost_eur = Some((a, 1.0));
        run.predictions.oracle_eur = Some((1.0, a));
        run.jct_s.push(a);
        run.tardiness_s.push(a);
        run.cost.tardiness_eur = a;
        let html = page(vec![run.clone(), sample("sane")]);
        check(&html);
        for word in ["NaN", ">inf", " inf", "inf ", "92233720368547"] {
            assert!(!html.contains(word), "{word}");
        }
    }
    assert!(page(vec![run]).contains("are left out."));
}

#[test]
fn points_out_of_order_are_drawn_as_if_in_order() {
    let mut shuffled = sample("p");
    shuffled.power.swap(0, 2);
    assert_eq!(page(vec![shuffled]), page(vec![sample("p")]));
}

#[test]
fn thinning_keeps_every_extreme() {
    let n = 1_000_000;
    let value = |i: usize| match i {
        123_457 => 9_999.0,
        777_777 => 1.0,
        i => 500.0 + (i % 7) as f64,
    };
    let domain = TimeDomain { start: 0.0, end: n as f64 };
    let steps = Steps::new((0..n).map(|i| (i as f64, Some(value(i)))), n as f64);
    let pieces = steps.pieces(domain, power_plot::COLUMNS);
    assert!(pieces.len() <= 1_500);
    let holding = |t: f64| pieces.iter().find(|p| p.from <= t && t < p.to).expect("a column");
    assert_eq!(holding(123_457.0).high, 9_999.0);
    assert_eq!(holding(777_777.0).low, 1.0);
    assert_eq!(pieces.iter().filter(|p| p.high > 600.0).count(), 1);
    for piece in &pieces {
        assert!(piece.low <= 500.0 && piece.high >= 506.0);
    }
}

#[test]
fn a_value_holds_until_the_next_point() {
    let domain = TimeDomain { start: 0.0, end: 100.0 };
    let points = [(0.0, Some(5.0)), (55.0, None), (75.0, Some(2.0)), (95.0, Some(f64::NAN))];
    let columns = Steps::new(points.into_iter(), 100.0).columns(domain, 10);
    let highs: Vec<_> = columns.iter().map(|c| c.map(|c| c.high)).collect();
    let (five, two) = (Some(5.0), Some(2.0));
    assert_eq!(highs, [five, five, five, five, five, five, None, two, two, two]);
}

#[test]
fn a_short_series_is_drawn_exactly() {
    let domain = TimeDomain { start: 0.0, end: 10.0 };
    let points = [(0.0, Some(1.0)), (4.0, Some(1.0)), (5.0, Some(3.0)), (5.0, Some(2.0))];
    let pieces = Steps::new(points.into_iter(), 10.0).pieces(domain, 100);
    let spans: Vec<_> = pieces.iter().map(|p| (p.from, p.to, p.high)).collect();
    assert_eq!(spans, [(0.0, 5.0, 1.0), (5.0, 5.0, 3.0), (5.0, 10.0, 2.0)]);
    assert_eq!(steps::line(&pieces, |t| t, |v| v, |p| p.high), "M0 1H5V3H5V2H10");
}

#[test]
fn time_above_the_budget_is_told_from_all_points() {
    let mut run = sample("hot");
    run.power = (0..100_000).map(|i| point(f64::from(i), f64::from(i % 7) * 100.0)).collect();
    assert!(page(vec![run.clone()]).contains("never above the budget"));
    run.power[54_321].power_w = 901.0;
    let html = page(vec![run]);
    assert!(
        html.contains("above the budget for 1 s") && html.contains("<path class=\"overshoot\"")
    );
}

#[test]
fn dense_schedules_become_a_heat_map_that_says_so() {
    let mut run = sample("dense");
    run.gantt.rows = (0..65).map(|i| format!("n{i}/0")).collect();
    let html = page(vec![run.clone()]);
    check(&html);
    assert!(html.contains("Too dense to draw bar by bar (65 GPUs, 2 bars"));
    run.gantt.rows.truncate(64);
    assert!(!page(vec![run]).contains("Too dense"));
}

#[test]
fn a_month_of_a_large_cluster_stays_small() {
    let mut run = sample("large");
    let mut state = 1u32;
    let mut noise = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1u32 << 24)
    };
    run.power = (0..1_000_000).map(|i| point(f64::from(i), 1e3 * noise())).collect();
    run.gantt.rows = (0..1024).map(|i| format!("node-{}/{}", i / 8, i % 8)).collect();
    run.gantt.bars = (0..100_000)
        .map(|i| {
            let start = 990_000.0 * noise();
            bar(i % 1024, start, start + 10_000.0 * noise(), i)
        })
        .collect();
    run.jct_s = (0..100_000).map(|_| 1e6 * noise().powi(4)).collect();
    run.tardiness_s = (0..100_000).map(|_| (1e5 * (noise() - 0.8)).max(0.0)).collect();
    let begin = Instant::now();
    let html = page(vec![run]);
    let took = begin.elapsed();
    check(&html);
    assert!(html.len() < 2_000_000, "{} bytes", html.len());
    // Unoptimised builds are allowed more, lest a slow machine fail a test of something else.
    let most = if cfg!(debug_assertions) { 30 } else { 2 };
    assert!(took.as_secs() < most, "{took:?}");
}

fn labels(ticks: Vec<Tick>) -> Vec<String> {
    ticks.into_iter().map(|t| t.label).collect()
}

#[test]
fn ticks_fall_on_round_values_in_one_unit() {
    assert_eq!(
        labels(svg::power_ticks(0.0, 2_000.0, 4)),
        ["0.0 kW", "0.5 kW", "1.0 kW", "1.5 kW", "2.0 kW"]
    );
    assert_eq!(labels(svg::time_ticks(0.0, 86_400.0, 4)), ["0", "6 h", "12 h", "18 h", "24 h"]);
    assert_eq!(labels(svg::time_ticks(0.0, 0.2, 2)), ["0.0 s", "0.1 s", "0.2 s"]);
    assert_eq!(labels(svg::eur_ticks(-1_000.0, 1_000.0, 2)), ["−€1,000", "€0", "€1,000"]);
    assert_eq!(labels(svg::log_time_ticks(1.0, 80.0)), ["1 s", "3 s", "10 s", "30 s", "1 min"]);
    assert!(svg::time_ticks(0.0, 1e14, 10).len() <= 12);
}

#[test]
fn units_suit_the_size() {
    assert_eq!(svg::power(850.0), "850 W");
    assert_eq!(svg::power(12_345.0), "12.3 kW");
    assert_eq!(svg::power(2.5e6), "2.5 MW");
    assert_eq!(svg::duration(0.25), "0.25 s");
    assert_eq!(svg::duration(90.0), "1.5 min");
    assert_eq!(svg::duration(90_000.0), "25 h");
    assert_eq!(svg::duration(864_000.0), "10 d");
    assert_eq!(svg::eur(0.0), "€0");
    assert_eq!(svg::eur(-12.5), "−€12.50");
    assert_eq!(svg::eur(1_234_567.0), "€1.23 M");
    assert_eq!(svg::eur(45_678.9), "€45,679");
}

#[test]
fn a_job_keeps_its_colour_and_every_colour_is_styled() {
    assert_eq!(gantt::hue_of(7), gantt::hue_of(7));
    let used: std::collections::BTreeSet<_> = (0..1_000).map(gantt::hue_of).collect();
    assert_eq!(used.len(), gantt::HUES as usize);
    let html = page(vec![sample("p")]);
    for hue in used {
        assert!(html.contains(&format!(".j{hue} {{")), "{hue}");
    }
    for level in 0..=gantt::HEAT_LEVELS {
        assert!(html.contains(&format!(".q{level} {{")), "{level}");
    }
    for series in 0..distribution::SERIES {
        assert!(html.contains(&format!(".s{series} {{")), "{series}");
    }
}
