//! No policy is ever cheaper than the lower bound, nor than the optimum where that is known.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{POLICIES, PRICES, instance, run, shared};
use proptest::prelude::*;
use wattline_bound::Effort;
use wattline_core::units::Seconds;
use wattline_sim::small::gaps;

const EFFORT: Effort = Effort { pieces: 300_000, slots: 64 };

#[derive(Clone, Debug)]
struct Draw {
    seed: u64,
    nodes: u32,
    gpus: u8,
    second_kind: bool,
    jobs: u32,
    load: f64,
    elasticity: &'static str,
    budget: Option<f64>,
    restart: u32,
    no_preempt: bool,
    foresight: &'static str,
    policy: &'static str,
}

fn draws() -> impl Strategy<Value = Draw> {
    (
        (any::<u64>(), 1_u32..5, prop::sample::select(vec![1_u8, 2, 4, 8]), any::<bool>()),
        (3_u32..40, 0.2_f64..2.5),
        prop::sample::select(vec!["rigid", "moldable", "malleable", "adaptive"]),
        prop::option::of(0.6_f64..1.0),
        (prop::sample::select(vec![0_u32, 60]), any::<bool>()),
        (prop::sample::select(vec!["oracle", "learned"]), prop::sample::select(POLICIES)),
    )
        .prop_map(|(machines, (jobs, load), elasticity, budget, rest, who)| {
            let (seed, nodes, gpus, second_kind) = machines;
            let ((restart, no_preempt), (foresight, policy)) = (rest, who);
            Draw {
                seed: seed >> 1,
                nodes,
                gpus,
                second_kind,
                jobs,
                load,
                elasticity,
                budget,
                restart,
                no_preempt,
                foresight,
                policy,
            }
        })
}

fn scenario(draw: &Draw) -> String {
    let machines = common::machines(draw.nodes, draw.gpus, draw.second_kind);
    let budget = common::budget(draw.budget);
    format!(
        "name = \"drawn\"\nseed = {}\nforesight = \"{}\"\n{machines}\
         [jobs]\ncount = {}\nload = {}\nelasticity = \"{}\"\nrestart = \"{} s\"\n\
         [[jobs.workloads]]\nname = \"resnet50\"\n{budget}{PRICES}",
        draw.seed, draw.foresight, draw.jobs, draw.load, draw.elasticity, draw.restart,
    )
}

proptest! {
    #![proptest_config(wattline_testing::cases(64, 8))]

    #[test]
    fn no_policy_costs_less_than_the_bound(draw in draws()) {
        let mut instance = instance(&scenario(&draw));
        if draw.no_preempt {
            instance.set_no_preempt();
        }
        let s = run(&instance, draw.policy).summary;
        let bound = instance.lower_bound(EFFORT);
        prop_assert!(bound.total.is_finite() && bound.total > 0.0);
        prop_assert!(bound.competing >= -1e-6 * bound.total, "{bound:?}");
        if s.finished == s.jobs {
            prop_assert!(bound.total <= s.total_cost, "{} > {}", bound.total, s.total_cost);
        }
    }

    /// The optimum is of schedules without a break, and so are the policies' here.
    #[test]
    fn no_policy_costs_less_than_the_optimum(seed in any::<u64>()) {
        let policies: Vec<String> = POLICIES.iter().map(|policy| (*policy).to_owned()).collect();
        for (gap, policy) in gaps(seed, &policies).unwrap().iter().zip(POLICIES) {
            prop_assert!(gap.cost >= gap.optimum * (1.0 - 1e-7), "{policy}: {gap:?}");
        }
    }
}

/// More work never makes the bound worse, and it is the same every time.
#[test]
fn more_effort_is_no_worse() {
    let text = "name = \"x\"\n[[nodes]]\ncount = 1\ngpu = \"h200\"\ngpus = 4\n[jobs]\ncount = 40\n\
                load = 4.0\nelasticity = \"rigid\"\n[[jobs.workloads]]\nname = \"resnet50\"\n";
    let instance = instance(text);
    let few = instance.lower_bound(Effort { pieces: 100_000, slots: 64 });
    let many = instance.lower_bound(Effort { pieces: 2_000_000, slots: 64 });
    assert!(few.total <= many.total * 1.0001, "{few:?} {many:?}");
    assert!(many.total > many.alone + many.resting, "{many:?}");
    assert_eq!(instance.lower_bound(EFFORT).total, instance.lower_bound(EFFORT).total);
}

/// The published instances: between what nobody can avoid and what the best method costs.
#[test]
fn andreas_instances() {
    let Some(folder) = shared("data/andreas/n10-l2300-s0") else { return };
    let mut instance = wattline_sim::andreas::read(&folder).unwrap();
    instance.set_restart(Seconds::ZERO);
    let bound = instance.lower_bound(Effort::default());
    let best = POLICIES
        .iter()
        .map(|policy| run(&instance, policy).summary.total_cost)
        .fold(f64::INFINITY, f64::min);
    assert!(bound.total <= best, "{} > {best}", bound.total);
    // At twice the load that fits, waiting is most of the cost, and the bound sees it.
    assert!(bound.total > 0.3 * best && bound.competing > 10.0 * bound.alone, "{bound:?}");
}
