//! Views that are sent to a controller: whatever they say, planning them ends soon and in little
//! memory, with a plan or with an error that names the field.
#![allow(clippy::unwrap_used, missing_docs)]

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use wattline_api::Planned;
use wattline_controller::planning::{PlanningError, PlanningLimits, SHARED_OPTIONS, plan};
use wattline_core::snapshot::{SizeLimits, Snapshot};

const EXAMPLE: &str = include_str!("../../wattline/src/commands/plan/example.json");

fn example() -> Value {
    serde_json::from_str(EXAMPLE).unwrap()
}

/// As `POST /v1/plan` does it, in less time.
fn planned(view: &Value, policy: &str, time: Duration) -> Result<Planned, String> {
    let limits = PlanningLimits {
        size: SizeLimits::SHARED,
        time,
        steps: Some(200),
        options: SHARED_OPTIONS,
    };
    let snapshot: Snapshot = serde_json::from_value(view.clone()).map_err(|e| e.to_string())?;
    plan(&snapshot, policy, &limits).map_err(|error| error.to_string())
}

const PLAN_LIMIT: Duration = Duration::from_secs(10);

#[test]
fn a_tiny_step_of_the_power_limits_is_refused_with_its_field() {
    // 1e-7 asked for 34 GB, 1e-3 took over 30 s.
    for step in [1e-300, 1e-7, 1e-3, 0.1] {
        let mut view = example();
        view["gpu_types"][0]["limit_step_w"] = json!(step);
        let began = Instant::now();
        let said = planned(&view, "wattline", PLAN_LIMIT).unwrap_err();
        assert!(said.contains("field `gpu_types[0].limit_step_w`"), "{step}: {said}");
        assert!(said.contains("power limits, at most 1000"), "{step}: {said}");
        assert!(began.elapsed() < PLAN_LIMIT, "{step}");
    }
    let mut view = example();
    view["gpu_types"][0]["limit_step_w"] = json!(1);
    assert!(planned(&view, "wattline", PLAN_LIMIT).unwrap().accepted);
}

#[test]
fn what_a_view_asks_a_planner_to_enumerate_is_bounded() {
    let with = |change: &dyn Fn(&mut Value)| {
        let mut view = example();
        change(&mut view);
        planned(&view, "wattline", PLAN_LIMIT).unwrap_err()
    };
    let times = |entry: &Value, count: usize| -> Value {
        (0..count)
            .map(|at| {
                let mut entry = entry.clone();
                entry["name"] = json!(format!("n{at}-{}", entry["name"].as_str().unwrap()));
                entry
            })
            .collect()
    };
    let rules = json!({"value": 1, "rules": vec![json!({"days": "all", "value": 2}); 500]});
    let days = json!({"value": 1, "rules": [{"days": "all,".repeat(100_000), "value": 2}]});
    let cases: Vec<(&str, String)> = vec![
        ("jobs", with(&|v| v["jobs"] = times(&v["jobs"][2], 5_001))),
        ("nodes", with(&|v| v["nodes"] = times(&v["nodes"][1], 2_001))),
        ("gpu_types", with(&|v| v["gpu_types"] = times(&v["gpu_types"][0], 65))),
        ("workloads", with(&|v| v["workloads"] = times(&v["workloads"][0], 10_001))),
        (
            "workloads",
            with(&|v| {
                let measurement = v["workloads"][1]["measurements"][0].clone();
                v["workloads"][1]["measurements"] = vec![measurement; 20_001].into();
            }),
        ),
        (
            "jobs[2].shapes",
            with(&|v| {
                v["jobs"][2]["shapes"] = vec![json!({"gpu": "h200", "gpus": 1}); 10_001].into();
            }),
        ),
        ("budget_w.rules", with(&|v| v["budget_w"] = rules.clone())),
        ("budget_w.rules[0].days", with(&|v| v["budget_w"] = days.clone())),
        (
            "prices.energy_eur_per_kwh.rules",
            with(&|v| {
                v["prices"]["energy_eur_per_kwh"] = rules.clone();
            }),
        ),
        // 700 limits on 64 GPUs, halved and doubled batches: 4,500 jobs of that are too much.
        (
            "jobs[",
            with(&|v| {
                v["gpu_types"][0]["limit_step_w"] = json!(1);
                v["nodes"][1]["gpus"] = json!(64);
                v["jobs"][1]["elasticity"] = json!("adaptive");
                v["jobs"][1]["max_gpus"] = json!(64);
                v["jobs"] = times(&v["jobs"][1], 4_500);
            }),
        ),
        ("nodes[0].base_w", with(&|v| v["nodes"][0]["base_w"] = json!(1e308))),
        ("gpu_types[0].max_limit_w", with(&|v| v["gpu_types"][0]["max_limit_w"] = json!(1e308))),
        ("jobs[0].weight_eur_per_h", with(&|v| v["jobs"][0]["weight_eur_per_h"] = json!(1e300))),
        ("jobs[0].restart.load_s", with(&|v| v["jobs"][0]["restart"]["load_s"] = json!(1e300))),
    ];
    for (field, said) in cases {
        assert!(said.contains(&format!("field `{field}")), "{field}: {said}");
        assert!(said.len() < 300, "{said}");
    }
}

/// `ones` with these took 45 s, whatever the deadline.
#[test]
fn options_that_let_a_policy_search_for_long_are_refused() {
    for (policy, option) in [
        ("wattline+work=18446744073709551615", "work"),
        ("ones+generations=100000+population=10000", "generations"),
        ("andreas+seed=3+rounds=1000000", "rounds"),
        ("edf+backfill=1000000", "backfill"),
    ] {
        let said = planned(&example(), policy, PLAN_LIMIT).unwrap_err();
        assert!(said.contains(&format!("option `{option}`")), "{policy}: {said}");
    }
    assert!(planned(&example(), "wattline+work=200000", PLAN_LIMIT).is_ok());
}

/// Found by `extreme_numbers_in_any_field_end_in_a_plan_or_an_error`: they were added up.
#[test]
fn more_restarts_than_can_be_counted_are_refused() {
    let mut view = example();
    view["jobs"][0]["restarts"] = json!(u32::MAX);
    let said = planned(&view, "tiresias", PLAN_LIMIT).unwrap_err();
    assert!(said.contains("field `jobs[0].restarts`"), "{said}");
}

#[test]
fn a_plan_that_takes_too_long_is_given_up() {
    let mut view = example();
    let job = view["jobs"][2].clone();
    let many = (0..2_000).map(|at| {
        let mut job = job.clone();
        job["name"] = json!(format!("job-{at}"));
        job["work"] = json!(1e6 + f64::from(at));
        job
    });
    view["jobs"] = many.collect();
    let snapshot: Snapshot = serde_json::from_value(view).unwrap();
    let time = Duration::from_millis(1);
    let limits = PlanningLimits { size: SizeLimits::SHARED, time, steps: None, options: &[] };
    let late = plan(&snapshot, "wattline", &limits);
    assert!(matches!(late, Err(PlanningError::TooLong(limit)) if limit == time), "{late:?}");
}

#[test]
fn a_forecast_that_takes_too_long_costs_only_the_forecast() {
    // Half of the time is for the forecast: what is left is enough for the plan.
    let limits =
        PlanningLimits { size: SizeLimits::SHARED, time: PLAN_LIMIT, steps: Some(0), options: &[] };
    let snapshot: Snapshot = serde_json::from_value(example()).unwrap();
    let planned = plan(&snapshot, "edf", &limits).unwrap();
    assert_eq!((planned.accepted, planned.forecast_complete), (true, Some(false)));
}

/// Numbers that are at an end of something.
const EXTREMES: [f64; 26] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.0,
    63.0,
    64.0,
    65.0,
    255.0,
    256.0,
    1e3,
    65_535.0,
    65_536.0,
    4_294_967_295.0,
    4_294_967_296.0,
    9_007_199_254_740_993.0,
    1e-7,
    1e-12,
    5e-324,
    1e9,
    1e12,
    1e15,
    1e18,
    1e300,
    f64::MAX,
];

/// All numbers of a document.
fn numbers(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(path.to_owned()),
        Value::Array(values) => values
            .iter()
            .enumerate()
            .for_each(|(at, value)| numbers(value, &format!("{path}/{at}"), found)),
        Value::Object(fields) => {
            fields
                .iter()
                .for_each(|(name, value)| numbers(value, &format!("{path}/{name}"), found));
        }
        _ => {}
    }
}

/// The example, with all fields that may be left out and hold numbers.
fn full() -> Value {
    let mut view = example();
    view["plan"] = json!(7);
    view["budget_margin_w"] = json!(10);
    view["budget_lead_s"] = json!(60);
    view["budget_w"] = json!({"value": 4000, "rules": [
        {"days": "mon-fri", "from": "08:00", "to": "20:00", "value": 3500}
    ]});
    view["prices"] = json!({
        "energy_eur_per_kwh": {"value": 0.2}, "pue": 1.3,
        "carbon_g_per_kwh": {"value": 300}, "carbon_eur_per_t": 80
    });
    view["gpu_types"][0]["tflops"] = json!(900);
    view["gpu_types"][0]["links_gb_per_s"] = json!({"node": 400, "net": 40});
    let node = &mut view["nodes"][1];
    node["rack"] = json!(1);
    node["boot_s"] = json!(180);
    node["shutdown_s"] = json!(30);
    node["idle_since_s"] = json!(900);
    view["nodes"][1]["by_busy_gpus"] =
        (0..5).map(|n| json!({"power_w": 500 + 600 * n, "pue": 1.2})).collect();
    let time = &mut view["workloads"][0]["times"][1];
    for (name, value) in [
        ("nodes", 1.0_f64),
        ("batch", 2.0),
        ("power_limit_w", 500.0),
        ("requested_gpus", 2.0),
        ("requested_batch", 2.0),
        ("power_w", 400.0),
        ("low", 0.9),
        ("high", 1.1),
        ("measurements", 3.0),
    ] {
        time[name] = if value.fract() == 0.0 { json!(value as i64) } else { json!(value) };
    }
    view["workloads"][1]["measurements"][0]["nodes"] = json!(1);
    view["jobs"][0]["user"] = json!(1);
    view["jobs"][0]["as_of_s"] = json!(1000);
    view["jobs"][0]["rate"] = json!(0.0002);
    view["jobs"][0]["first_start_s"] = json!(10);
    view["jobs"][0]["restarts"] = json!(1);
    view["jobs"][0]["attained_gpu_s"] = json!(100);
    view["jobs"][0]["holds"]["power_limit_w"] = json!(600);
    view["jobs"][0]["holds"]["batch"] = json!(2);
    view["jobs"][1]["held_back_until_s"] = json!(1100);
    view["jobs"][2]["min_batch"] = json!(256);
    view["jobs"][2]["max_batch"] = json!(1024);
    view["jobs"][2]["shapes"] = json!([{"gpu": "h200", "gpus": 2}]);
    view["jobs"][2]["nodes"] = json!({"count": 1, "allowed": ["n1", "n2"]});
    view
}

/// One to three numbers of the view are extreme ones.
fn distorted(seed: u64) -> (Value, Vec<String>) {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut view = full();
    let mut fields = Vec::new();
    numbers(&view, "", &mut fields);
    let mut changed = Vec::new();
    for _ in 0..random.random_range(1..=3) {
        let field = fields[random.random_range(0..fields.len())].clone();
        let was = view.pointer(&field).and_then(Value::as_f64).unwrap_or(1.0);
        let extreme = EXTREMES[random.random_range(0..EXTREMES.len())];
        let value = if random.random_bool(0.3) { was * extreme } else { extreme };
        let whole = value.fract() == 0.0 && value.abs() < 1e18;
        let value = if whole { json!(value as i64) } else { json!(value) };
        changed.push(format!("{field} = {value}"));
        *view.pointer_mut(&field).unwrap() = value;
    }
    (view, changed)
}

const POLICIES: [&str; 8] =
    ["fifo", "edf+backfill", "priority", "tiresias", "andreas", "powerflow", "ones", "wattline"];

/// Extreme numbers in any field: a plan or an error, never a panic, and never for long. `CASES`
/// sets how many, `SEED` where to begin; a nightly run begins elsewhere.
#[test]
fn extreme_numbers_in_any_field_end_in_a_plan_or_an_error() {
    let number = |name: &str, usual: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
    };
    let (first, cases) = (number("SEED", wattline_testing::seed(0)), number("CASES", 1_500));
    let (mut accepted, mut refused, mut longest) = (0, 0, Duration::ZERO);
    for seed in first..first + cases {
        let (view, changed) = distorted(seed);
        let policy = POLICIES[seed as usize % POLICIES.len()];
        let began = Instant::now();
        let outcome = std::panic::catch_unwind(|| planned(&view, policy, PLAN_LIMIT));
        let took = began.elapsed();
        assert!(
            took < PLAN_LIMIT + PLAN_LIMIT,
            "seed {seed}, {policy}, {changed:?}: took {took:?}"
        );
        longest = longest.max(took);
        match outcome {
            Err(_) => panic!("seed {seed}, {policy}: {changed:?}"),
            Ok(Ok(_)) => accepted += 1,
            Ok(Err(said)) => {
                assert!(said.len() < 1_500 && !said.is_empty(), "seed {seed}: {said}");
                refused += 1;
            }
        }
    }
    eprintln!("{accepted} planned, {refused} refused, the longest took {longest:?}");
    assert!(accepted > cases / 10 && refused > cases / 10, "{accepted} {refused}");
}
