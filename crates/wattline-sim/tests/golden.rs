//! The built-in scenarios under every baseline, and their first jobs under the policies that search:
//! a change in any figure is a change in behaviour and must be meant. Policies are told the truth here: what a predictor learns is judged by bounds,
//! not by digits. `UPDATE_GOLDEN=1 cargo test -p wattline-sim --test golden` writes the files
//! anew; the diff is then part of the review.
#![allow(clippy::unwrap_used, missing_docs)]
#![allow(clippy::disallowed_methods, reason = "the environment says whether to write")]

mod common;

use common::{instance, run};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use wattline_sim::foresight::Foresight;
use wattline_sim::instance::Instance;
use wattline_sim::metrics::Summary;

const POLICIES: &[&str] =
    &["fifo", "edf", "priority", "tiresias", "fifo+backfill=20", "edf+sleep=10min"];

/// Policies that search take seconds to minutes for a whole scenario in a test build.
const SEARCHING: &[&str] = &["andreas", "powerflow", "ones", "wattline"];
/// So they get its first jobs: enough for queues, restarts and budgets that bind, in some seconds.
const FIRST: usize = 50;

/// Six significant digits: the same on machines whose `powf` differs in the last bit.
fn lines(summary: &Summary) -> String {
    let value = serde_json::to_value(summary).unwrap();
    let mut text = format!("[{}]\n", summary.policy);
    for (field, value) in value.as_object().unwrap() {
        let timing = Summary::TIMING_FIELDS.contains(&field.as_str());
        if let (false, Some(number)) = (timing, value.as_f64()) {
            // Errors of exact predictions are what microseconds leave.
            let number = if number.abs() < 1e-6 { 0.0 } else { number };
            writeln!(text, "{field} = {number:.5e}").unwrap();
        }
    }
    text
}

fn golden(name: &str, toml: &str) {
    compare(name, &instance(toml), POLICIES);
}

fn golden_of_first_jobs(name: &str, toml: &str) {
    let mut instance = instance(toml);
    instance.jobs.truncate(FIRST);
    compare(&format!("{name}-first-{FIRST}"), &instance, SEARCHING);
}

fn compare(name: &str, instance: &Instance, policies: &[&str]) {
    let mut instance = instance.clone();
    instance.foresight = Foresight::Oracle;
    let text: String =
        policies.iter().map(|policy| lines(&run(&instance, policy).summary) + "\n").collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    for (ours, theirs) in text.lines().zip(expected.lines()) {
        assert_eq!(ours, theirs, "{name}: not as in {}", path.display());
    }
    assert_eq!(text.lines().count(), expected.lines().count(), "{name}");
}

#[test]
fn demo() {
    golden("demo", include_str!("../../../scenarios/demo.toml"));
}

#[test]
fn capped_60() {
    golden("capped-60", include_str!("../../../scenarios/capped-60.toml"));
}

#[test]
fn bursts() {
    golden("bursts", include_str!("../../../scenarios/bursts.toml"));
}

#[test]
fn night_price() {
    golden("night-price", include_str!("../../../scenarios/night-price.toml"));
}

#[test]
fn andreas_20_first_jobs() {
    golden_of_first_jobs("andreas-20", include_str!("../../../scenarios/andreas-20.toml"));
}

#[test]
fn bursts_first_jobs() {
    golden_of_first_jobs("bursts", include_str!("../../../scenarios/bursts.toml"));
}

#[test]
fn capped_60_first_jobs() {
    golden_of_first_jobs("capped-60", include_str!("../../../scenarios/capped-60.toml"));
}

#[test]
fn demo_first_jobs() {
    golden_of_first_jobs("demo", include_str!("../../../scenarios/demo.toml"));
}

#[test]
fn learning_first_jobs() {
    golden_of_first_jobs("learning", include_str!("../../../scenarios/learning.toml"));
}

#[test]
fn night_price_first_jobs() {
    golden_of_first_jobs("night-price", include_str!("../../../scenarios/night-price.toml"));
}

#[test]
fn ones_64_first_jobs() {
    golden_of_first_jobs("ones-64", include_str!("../../../scenarios/ones-64.toml"));
}

#[test]
fn overload_first_jobs() {
    golden_of_first_jobs("overload", include_str!("../../../scenarios/overload.toml"));
}

#[test]
fn powerflow_128_first_jobs() {
    golden_of_first_jobs("powerflow-128", include_str!("../../../scenarios/powerflow-128.toml"));
}
