//! Views written out of a simulation: reading one back gives the same state and the same plans.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{POLICIES, instance};
use proptest::prelude::*;
use serde_json::Value;
use wattline_core::check::audit;
use wattline_core::engine::Event;
use wattline_core::ids::PlanId;
use wattline_core::scheduler::Scheduler;
use wattline_core::snapshot::Snapshot;
use wattline_core::units::Seconds;
use wattline_predict::snapshot::predictor;
use wattline_sim::instance::Instance;
use wattline_sim::simulation::{Watch, snapshot_at};

fn view(instance: &Instance, policy: &str, hours: f64) -> Snapshot {
    let watch = Watch { seconds: &|| 0.0, progress: &|_| {}, record: false, forecast: false };
    let time = instance.start + Seconds::hours(hours);
    snapshot_at(instance, policy, time, &watch).unwrap_or_else(|error| panic!("{policy}: {error}"))
}

/// Through text, as `wattline plan` reads it.
fn reread(view: &Snapshot) -> Snapshot {
    serde_json::from_str(&serde_json::to_string(view).unwrap()).unwrap()
}

fn engine(view: &Snapshot, policy: &str) -> Scheduler<'static> {
    let machines = view.machines().unwrap();
    let predictor = predictor(view, &machines).unwrap();
    let restored = view.restore(&machines, &*predictor).unwrap();
    let policy = wattline_policies::policy(policy).unwrap();
    Scheduler::new(
        restored.config,
        restored.state,
        policy,
        predictor,
        restored.prices,
        restored.budget,
    )
    .resume(PlanId(view.plan), restored.now)
}

/// Equal but for the last digits.
fn assert_same(a: &Value, b: &Value, path: &str) {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            assert_eq!(x.keys().collect::<Vec<_>>(), y.keys().collect::<Vec<_>>(), "{path}");
            x.iter().for_each(|(key, value)| assert_same(value, &y[key], &format!("{path}.{key}")));
        }
        (Value::Array(x), Value::Array(y)) => {
            assert_eq!(x.len(), y.len(), "{path}");
            for (at, (x, y)) in x.iter().zip(y).enumerate() {
                assert_same(x, y, &format!("{path}[{at}]"));
            }
        }
        (Value::Number(x), Value::Number(y)) => {
            let (x, y) = (x.as_f64().unwrap(), y.as_f64().unwrap());
            assert!((x - y).abs() <= 1e-9 * x.abs().max(1e-6), "{path}: {x} is not {y}");
        }
        _ => assert_eq!(a, b, "{path}"),
    }
}

fn scenario(elasticity: &str, seed: u64, faults: bool) -> Instance {
    let faults = if faults { "node_mtbf = \"1 d\"\naction_failures = 0.2\n" } else { "" };
    instance(&format!(
        r#"
name = "view"
seed = {seed}
[[nodes]]
count = 3
gpu = "h200"
gpus = 4
[[nodes]]
count = 2
gpu = "v100"
gpus = 4
[jobs]
count = 40
load = 1.1
elasticity = "{elasticity}"
[budget]
power = "9 kW"
margin = "50 W"
[[budget.rules]]
days = "mon-fri"
from = "04:00"
to = "09:30"
value = "7 kW"
[prices]
carbon = "300 g/kWh"
carbon_price = "70 EUR/t"
utc_offset = "+02:00"
[[prices.energy_rules]]
from = "22:00"
to = "06:00"
value = "0.08 EUR/kWh"
[world]
noise = 0.05
{faults}"#
    ))
}

proptest! {
    #![proptest_config(wattline_testing::cases(24, 6))]

    /// View, state, view: nothing is lost and nothing added.
    #[test]
    fn a_view_survives_being_read(
        seed in 0_u64..1000,
        hours in 0.0_f64..14.0,
        policy in 0..POLICIES.len(),
        elasticity in prop::sample::select(vec!["rigid", "moldable", "malleable", "adaptive"]),
        faults: bool,
    ) {
        let instance = scenario(elasticity, seed, faults);
        let first = view(&instance, POLICIES[policy], hours);
        let engine = engine(&reread(&first), POLICIES[policy]);
        let now = instance.start + Seconds::hours(hours);
        let second = Snapshot::of(&engine, now, &|id| {
            first.workloads[id.index()].name.to_string()
        });
        prop_assert!(audit(engine.state(), None).is_empty());
        assert_same(
            &serde_json::to_value(&first).unwrap(),
            &serde_json::to_value(&second).unwrap(),
            "view",
        );
    }

    /// Whatever policy is asked about whatever view: its plan passes.
    #[test]
    fn every_policy_plans_for_every_view(
        seed in 0_u64..1000,
        hours in 0.0_f64..14.0,
        by in 0..POLICIES.len(),
        asked in 0..POLICIES.len(),
    ) {
        let instance = scenario("malleable", seed, true);
        let view = view(&instance, POLICIES[by], hours);
        let mut engine = engine(&view, POLICIES[asked]);
        let now = instance.start + Seconds::hours(hours);
        engine.handle(now, Event::Clock).unwrap();
        prop_assert_eq!(engine.stats().plans, 1);
        prop_assert_eq!(engine.stats().refused, 0);
        let violations = audit(engine.state(), None);
        prop_assert!(violations.is_empty(), "{:?}", violations);
    }
}

/// A policy that is asked again about its own plan has nothing to add.
#[test]
fn the_same_policy_leaves_its_plan_as_it_is() {
    let instance = scenario("moldable", 3, false);
    for policy in ["fifo", "edf", "priority"] {
        let view = view(&instance, policy, 5.0);
        assert!(view.jobs.iter().any(|job| job.holds.is_some()), "{policy}: somebody runs");
        let mut engine = engine(&view, policy);
        let plan = engine.plan_id();
        engine.handle(instance.start + Seconds::hours(5.0), Event::Clock).unwrap();
        assert_eq!(engine.plan_id(), plan, "{policy}");
    }
}
