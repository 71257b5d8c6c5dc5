//! A backend that lies: reports out of order, for things that never were, about other jobs.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{CALM_AND_FEASIBLE, Formula, SPECS, cases, scenario};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::check;
use wattline_core::engine::{Alert, Event, EventError};
use wattline_core::host::{HostAmount, HostRequest, NodeHost};
use wattline_core::ids::{ActionId, JobId, NodeId};
use wattline_core::job::Work;
use wattline_core::plan::Refusal;
use wattline_core::prices::Prices;
use wattline_core::scheduler::Scheduler;
use wattline_core::state::State;
use wattline_core::units::{EurosPerSecond, Seconds, Watts};
use wattline_policies::policy;

/// Which event, about which job, node or action, and how long after the one before.
type Lie = (u8, u32, u64, f64, u32);

fn lies() -> impl Strategy<Value = Vec<Lie>> {
    let after = prop_oneof![Just(0_u32), 0_u32..400];
    vec((0_u8..26, 0_u32..14, 0_u64..40, -10.0..2000.0, after), 0..200)
}

fn event((kind, id, action, value, _): Lie, last_action: u64) -> Event {
    let (job, node) = (JobId(id), NodeId(id));
    // Half of the time about something recent.
    let action = ActionId(if action < 20 { last_action.saturating_sub(action) } else { action });
    let done = Work(if value > 1990.0 { f64::NAN } else { value });
    match kind {
        0 => Event::Cancelled(job),
        1 | 2 => Event::Started { job, action },
        3 => Event::Stopped { job, run: action, done },
        4 => Event::Finished(job),
        5 => Event::Progress { job, done },
        6 => Event::Limited { job, action },
        7 => Event::NodeUp(node),
        8 => Event::NodeAsleep(node),
        9 => Event::NodeLost(node),
        10 | 11 => Event::Failed { action },
        12 => Event::BudgetSet((value > 0.0).then(|| Calendar::constant(Watts::new(value * 4.0)))),
        13 => Event::OnHold { job, hold: value > 500.0 },
        14 => Event::Updated {
            job,
            deadline: (value > 0.0).then(|| Timestamp::ZERO + Seconds::new(value * 60.0)),
            weight: EurosPerSecond::new(value / 1e3),
        },
        15 => Event::NodeClosed(node),
        16 if value < 250.0 => Event::StaysPut { job, stays: value < 125.0 },
        16 => Event::Foreign { job, foreign: value > 500.0 },
        17 | 18 => {
            let all = [
                Refusal::Resources,
                Refusal::Nodes,
                Refusal::Limit,
                Refusal::Licences,
                Refusal::Never,
                Refusal::Other,
            ];
            Event::Refused { action, why: all[id as usize % all.len()] }
        }
        19 | 20 => {
            let amount =
                |share: u64| HostAmount { cpus: 4 * share as u32, memory_mib: 100 * share };
            let all = amount(4 + action.0 % 8);
            Event::NodeHost { node, host: NodeHost { all, taken: amount(u64::from(id) % 4) } }
        }
        21 | 22 => {
            let amount = |share: u64| HostAmount { cpus: share as u32, memory_mib: 30 * share };
            let request = HostRequest {
                per_node: amount(action.0 % 12),
                per_gpu: amount(action.0 % 5),
                all_cpus: action.0.is_multiple_of(11),
                all_memory: action.0.is_multiple_of(13),
            };
            Event::HostAsked { job, request }
        }
        23 => {
            let nodes = (0..8).filter(|n| action.0 >> n & 1 == 1).map(NodeId).collect();
            Event::Barred { job, nodes, over: 1 + id % 2, why: Refusal::Nodes }
        }
        _ => Event::Clock,
    }
}

fn everything(engine: &Scheduler) -> String {
    let (stats, plan, next) = (engine.stats(), engine.plan_id(), engine.poll_timeout());
    format!("{:?} {stats:?} {plan:?} {next:?}", engine.state())
}

fn names_something_unknown(event: &Event, state: &State) -> bool {
    match event {
        Event::Cancelled(job)
        | Event::OnHold { job, .. }
        | Event::Foreign { job, .. }
        | Event::HostAsked { job, .. }
        | Event::Barred { job, .. }
        | Event::StaysPut { job, .. }
        | Event::Updated { job, .. }
        | Event::Finished(job)
        | Event::Started { job, .. }
        | Event::Stopped { job, .. }
        | Event::Progress { job, .. }
        | Event::Limited { job, .. } => state.find_job(*job).is_none(),
        Event::NodeUp(node)
        | Event::NodeAsleep(node)
        | Event::NodeLost(node)
        | Event::NodeHost { node, .. }
        | Event::NodeClosed(node) => node.index() >= state.cluster().nodes().len(),
        _ => false,
    }
}

proptest! {
    #![proptest_config(cases(96, 21))]

    #[test]
    fn no_report_makes_the_engine_panic_lose_count_or_make_a_plan_that_is_refused(
        scenario in scenario(CALM_AND_FEASIBLE),
        lies in lies(),
    ) {
        for spec in SPECS {
            let mut engine = Scheduler::new(
                scenario.config.clone(),
                State::new(Arc::clone(&scenario.cluster), Timestamp::ZERO),
                policy(spec).unwrap(),
                Box::new(Formula),
                Prices::default(),
                scenario.budget.clone(),
            );
            let mut now = Timestamp::ZERO;
            for job in &scenario.jobs {
                engine.handle(now, Event::Submitted(Arc::clone(job))).unwrap();
            }
            let mut last_action = 0;
            for lie in &lies {
                now = now + Seconds::new(lie.4.into());
                let event = event(*lie, last_action);
                let unknown = names_something_unknown(&event, engine.state());
                let before = everything(&engine);
                let text = format!("{spec}: {event:?}");
                match engine.handle(now, event) {
                    Ok(()) => prop_assert!(!unknown, "{text}"),
                    Err(error) => {
                        prop_assert_eq!(before, everything(&engine), "{}", text);
                        let named = matches!(
                            error,
                            EventError::UnknownJob(_) | EventError::UnknownNode(_)
                        );
                        prop_assert!(named == unknown, "{text}: {error}");
                    }
                }
                while let Some(action) = engine.poll_action() {
                    last_action = action.id.0;
                }
                while let Some(alert) = engine.poll_alert() {
                    let refused = matches!(alert, Alert::PlanRefused { .. });
                    prop_assert!(!refused, "{text}: {alert:?}");
                }
                prop_assert_eq!(check::audit(engine.state(), None), [], "{}", text);
            }
        }
    }
}
