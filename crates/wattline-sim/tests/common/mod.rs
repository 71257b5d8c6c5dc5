//! What the simulator's tests have in common.

use std::path::PathBuf;
use wattline_sim::instance::Instance;
use wattline_sim::scenario::Scenario;
use wattline_sim::simulation::{Outcome, Watch, simulate};

/// Runs a policy with nobody watching.
#[allow(dead_code, reason = "not every test is content with that")]
pub(crate) fn run(instance: &Instance, policy: &str) -> Outcome {
    let watch = Watch { seconds: &|| 0.0, progress: &|_| {}, record: true, forecast: false };
    simulate(instance, policy, &watch).unwrap_or_else(|error| panic!("{policy}: {error}"))
}

/// An instance from a scenario's text.
#[allow(dead_code, reason = "not every test has scenarios")]
pub(crate) fn instance(toml: &str) -> Instance {
    let scenario = Scenario::parse(toml, "test").unwrap_or_else(|error| panic!("{error}"));
    scenario.instance("test", None).unwrap_or_else(|error| panic!("{error}"))
}

/// The machines of a scenario: nodes of one kind, and two more of another.
#[allow(dead_code, reason = "not every test draws machines")]
pub(crate) fn machines(nodes: u32, gpus: u8, second_kind: bool) -> String {
    let second = if second_kind { "[[nodes]]\ncount = 2\ngpu = \"v100\"\ngpus = 4\n" } else { "" };
    format!("[[nodes]]\ncount = {nodes}\ngpu = \"h200\"\ngpus = {gpus}\n{second}")
}

/// The budget of a scenario, if it has one.
#[allow(dead_code, reason = "not every test draws budgets")]
pub(crate) fn budget(share_of_peak: Option<f64>) -> String {
    let share = share_of_peak.map(|share| format!("[budget]\nshare_of_peak = {share}\n"));
    share.unwrap_or_default()
}

/// Prices of a scenario: cheap nights, and carbon.
#[allow(dead_code, reason = "not every test has such prices")]
pub(crate) const PRICES: &str = "[prices]\ncarbon = \"300 g/kWh\"\ncarbon_price = \"50 EUR/t\"\n\
    [[prices.energy_rules]]\nfrom = \"20:00\"\nto = \"06:00\"\nvalue = \"0.05 EUR/kWh\"\n";

/// A file of the data that is not ours to commit; `None` (and a message) where it is not there.
#[allow(dead_code, reason = "not every test needs data")]
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    let found = std::env::var_os("WATTLINE_SHARED")
        .map(|shared| PathBuf::from(shared).join(path))
        .filter(|path| path.exists());
    if found.is_none() {
        wattline_testing::skipped(&format!("WATTLINE_SHARED does not lead to {path}"));
    }
    found
}

/// Every kind of policy, with options that make it do all it can.
#[allow(dead_code, reason = "not every test tries them all")]
pub(crate) const POLICIES: &[&str] = &[
    "fifo",
    "edf",
    "priority",
    "tiresias",
    "fifo+backfill=10",
    "edf+backfill",
    "edf+sleep=5min",
    "priority+backfill+sleep=1min",
    "tiresias+queues=600/6000/60000",
    "andreas+greedy",
    "andreas+rounds=30",
    "andreas+rounds=10+improve+sleep=2min",
    "powerflow+energy=0.8",
    "powerflow+energy=inf+sleep=2min",
    "ones+generations=5",
    "ones+generations=5+waiting",
    "wattline+work=400",
    "wattline+energy=0.9+work=400",
];
