//! What a policy would do now, where it may not or has not yet.
//!
//! A fork of the engine plans with a fresh policy, whoever decides in the engine itself. What would
//! come of it is the fork run forward. Nothing of this reaches the cluster.

use crate::job_registry::JobRegistry;
use crate::planning::{action, foreseen, node_action, on, reason_value, why, word};
use wattline_api::{Advice, AdvisedJob, PlannedNode};
use wattline_core::Timestamp;
use wattline_core::effort::Effort;
use wattline_core::engine::{Alert, Engine};
use wattline_core::forecast::{Horizon, roll_forward};
use wattline_core::placement::Placement;
use wattline_core::policy::Policy;
use wattline_core::state::State;
use wattline_core::units::Watts;

/// What is told of in a sentence.
const MOST_TOLD: usize = 5;

/// Asks a policy, by its name, fresh, and with as much of its work as its plans do now. `go_on` says how long it may be looked ahead; not at all,
/// if there is none.
pub fn advise(
    engine: &Engine<'static>,
    registry: &JobRegistry,
    (name, policy, effort): (&str, Box<dyn Policy>, Effort),
    now: Timestamp,
    go_on: Option<&dyn Fn() -> bool>,
) -> Advice {
    let mut fork = engine.fork(policy);
    fork.set_effort(effort);
    fork.plan_now(now);
    let mut violations = Vec::new();
    while let Some(alert) = fork.poll_alert() {
        if let Alert::PlanRefused { violations: found, .. } = alert {
            violations.extend(found.iter().map(ToString::to_string));
        }
    }
    let (before, after) = (engine.state(), fork.state());
    let (mut jobs, mut ids, mut staying, mut waiting) = (Vec::new(), Vec::new(), 0, 0);
    for (id, job) in after.unfinished_jobs() {
        let held = before.job(id).held.as_ref();
        match verb(held, job.planned.as_ref()) {
            "wait" => waiting += 1,
            "stay" => staying += 1,
            verb => {
                ids.push(id);
                jobs.push(AdvisedJob {
                    job: registry.number(id).id,
                    number: registry.number(id).to_string(),
                    name: job.job.name.to_string(),
                    user: registry.origin(id).map_or_else(String::new, |o| o.user.to_string()),
                    action: verb.to_owned(),
                    holds: held.map(|held| placement(after, held)),
                    runs: job.planned.as_ref().map(|planned| placement(after, planned)),
                    why: why(after, job.reason),
                    forecast: None,
                });
            }
        }
    }
    let nodes = after.cluster().node_ids().filter_map(|id| {
        let (power, node) = (before.node(id).power, after.node(id));
        let action = node_action(power, node.target);
        (action != "stay").then(|| PlannedNode {
            node: after.cluster().node(id).name.to_string(),
            state: word(power),
            target: word(node.target),
            action: action.to_owned(),
            reason: reason_value(node.reason),
            why: node.reason.to_string(),
        })
    });
    let mut advice = Advice {
        schema: "wattline.advice/1".to_owned(),
        now_s: now.seconds(),
        policy: name.to_owned(),
        decides: engine.controls(),
        text: String::new(),
        accepted: violations.is_empty(),
        violations,
        committed_now_w: before.held_committed().get(),
        committed_w: after.planned_committed().get(),
        budget_w: engine.budget_at(now).map(Watts::get),
        nodes: nodes.collect(),
        jobs,
        staying,
        waiting,
        outlook: "it was not looked ahead: there are too many jobs".to_owned(),
    };
    advice.text = sentence(&advice);
    if let Some(go_on) = go_on {
        let unfinished = before.unfinished();
        let seen = roll_forward(fork, now, &Horizon { go_on, ..Horizon::default() });
        let ended = seen.jobs.iter().filter(|job| job.end.is_some()).count();
        advice.outlook = format!(
            "as if {name} decided from now on, run forward to {:.1} from now: {ended} of \
             {unfinished} jobs end within that",
            seen.until.since(now)
        );
        for (job, id) in advice.jobs.iter_mut().zip(ids) {
            job.forecast = seen.job(id).map(|seen| foreseen(&before.job(id).job, seen));
        }
    }
    advice
}

/// What would be done about a job, in a word.
fn verb(held: Option<&Placement>, planned: Option<&Placement>) -> &'static str {
    match (held, planned) {
        (Some(held), Some(planned)) if held.configuration.gpus != planned.configuration.gpus => {
            "resize"
        }
        (held, planned) => action(held, planned),
    }
}

fn placement(state: &State, placement: &Placement) -> wattline_api::Placement {
    let c = &placement.configuration;
    wattline_api::Placement {
        gpu: state.cluster().gpu_type(c.gpu_type).name.to_string(),
        gpus: c.gpus,
        batch: c.batch,
        power_limit_w: c.power_limit.get(),
        on: on(placement, state.cluster()),
    }
}

/// What would be done about a job.
fn told(job: &AdvisedJob) -> String {
    let who = format!("job {} ({})", job.number, job.name);
    let Some(runs) = &job.runs else { return format!("{} {who}", job.action) };
    let on: Vec<&str> = runs.on.iter().map(|on| on.node.as_str()).collect();
    let (gpus, watts) = (runs.gpus, runs.power_limit_w);
    match job.action.as_str() {
        "limit" => format!("set {who} to {watts:.0} W"),
        action => format!("{action} {who} on {} with {gpus} GPUs at {watts:.0} W", on.join(" ")),
    }
}

fn sentence(advice: &Advice) -> String {
    let name = &advice.policy;
    if let Some(first) = advice.violations.first() {
        return format!("{name} has no plan that the checker lets pass: {first}");
    }
    let nodes = advice.nodes.iter().map(|node| match node.action.as_str() {
        "sleep" => format!("put {} to sleep", node.node),
        _ => format!("wake {}", node.node),
    });
    let mut all: Vec<String> = advice.jobs.iter().map(told).chain(nodes).collect();
    if all.is_empty() {
        return format!("{name} would change nothing");
    }
    let more = all.len().saturating_sub(MOST_TOLD);
    all.truncate(MOST_TOLD);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("{name} would {}{more}", all.join("; "))
}
