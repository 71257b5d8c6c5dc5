//! Orders that come late.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;
use wattline_core::action::{Action, ActionKind};
use wattline_core::engine::Event;
use wattline_core::ids::{ActionId, JobId, NodeId, PlanId};
use wattline_core::placement::{Allocation, Configuration, Placement, Share};
use wattline_core::units::{Seconds, Watts};
use wattline_sim::begin::begin;
use wattline_sim::scenario::Scenario;

/// Found when orders were lost, doubled and late: a limit for a run that was over raised the next
/// run's, and more was drawn than the engine had counted.
#[test]
fn a_limit_for_an_earlier_run_or_from_before_another_is_refused() {
    let text = "name = \"m\"\n[[nodes]]\ncount = 1\ngpu = \"h200\"\ngpus = 2\n\
                [jobs]\ncount = 1\nelasticity = \"malleable\"\n";
    let instance = Scenario::parse(text, "m").unwrap().instance("m", None).unwrap();
    let (_, mut world) = begin(&instance, "fifo", false).unwrap();
    let job = Arc::clone(&instance.jobs[0]);
    let id = world.submit(Arc::clone(&job));
    let mut now = instance.start;
    let mut told = |number: u64, kind: ActionKind| -> Vec<Event> {
        now = now + Seconds::new(100.0);
        let action = Action { id: ActionId(number), generation: PlanId(1), kind };
        world.apply(now, &action);
        let heard: Vec<Event> = std::iter::from_fn(|| world.poll_event(now)).collect();
        now = now + Seconds::new(100.0);
        heard.into_iter().chain(std::iter::from_fn(|| world.poll_event(now))).collect()
    };
    let start = |limit: f64| ActionKind::Start {
        job: id,
        placement: Placement {
            configuration: Configuration {
                gpu_type: instance.cluster.node(NodeId(0)).gpu_type,
                gpus: 1,
                nodes: 1,
                batch: job.batch.requested,
                power_limit: Watts::new(limit),
            },
            allocation: Allocation::over(
                [Share { node: NodeId(0), mask: 1 }].into_iter().collect(),
            ),
        },
    };
    let limit = |limit: f64| ActionKind::Limit { job: JobId(0), limit: Watts::new(limit) };
    let obeyed = |heard: &[Event]| heard.iter().any(|e| matches!(e, Event::Limited { .. }));
    let refused = |heard: &[Event], number: u64| {
        heard.contains(&Event::Failed { action: ActionId(number) }) && !obeyed(heard)
    };
    told(1, start(300.0));
    told(3, ActionKind::Stop { job: id, run: ActionId(1) });
    told(4, start(300.0));
    assert!(refused(&told(2, limit(600.0)), 2), "for the run before");
    assert!(obeyed(&told(6, limit(400.0))));
    assert!(refused(&told(5, limit(600.0)), 5), "overtaken by another");
    assert!(obeyed(&told(7, limit(500.0))));
}
