//! From a draft to a plan with GPUs, nodes and reasons.

use super::{Candidate, Draft, Nodes, Planned, Problem, downshift};
use crate::placing::{NodeTargets, lowest, pays_after};
use wattline_core::Timestamp;
use wattline_core::ids::NodeId;
use wattline_core::placement::{Allocation, Configuration, Placement, Share, mask_of};
use wattline_core::plan::{Decision, JobChange, Plan, Reason};
use wattline_core::power::Occupancy;
use wattline_core::units::{Seconds, Watts};

pub(super) fn settle(problem: &Problem<'_, '_>, planned: &Planned) -> Plan {
    let (view, draft) = (problem.view, &planned.draft);
    let starts = |at: usize| planned.starts.get(at).copied().flatten();
    let state = view.state;
    let mut plan = Plan::unchanged(view.plan);
    let mut taken: Vec<u64> = vec![0; state.cluster().nodes().len()];
    let mut held = vec![Occupancy::default(); taken.len()];
    let ours: Vec<bool> = {
        let mut ours = vec![false; state.job_slots()];
        problem.items.iter().for_each(|item| ours[state.job_slot(item.id)] = true);
        ours
    };
    for id in state.cluster().node_ids() {
        for resident in state.node(id).planned.iter().filter(|r| !ours[state.job_slot(r.job)]) {
            taken[id.index()] |= resident.mask;
            held[id.index()] = held[id.index()].with(resident.mask.count_ones(), resident.limit);
        }
    }
    let placed = |at: usize| draft[at].as_ref();
    // A job that stays keeps the very GPUs; the others get what is left.
    let mut placements: Vec<Option<Placement>> = vec![None; problem.items.len()];
    for first in [true, false] {
        for (at, item) in problem.items.iter().enumerate() {
            let Some(slot) = placed(at).filter(|slot| problem.stays(at, slot) == first) else {
                continue;
            };
            let candidate = problem.of(slot);
            let now = state.job(item.id).planned.as_ref();
            let allocation = match now.filter(|_| first) {
                Some(now) => now.allocation.clone(),
                None => {
                    let share = |(node, gpus): &(u32, u8)| {
                        let size = state.cluster().node(NodeId(*node)).gpus;
                        let free = mask_of(size) & !taken[*node as usize];
                        Share { node: NodeId(*node), mask: lowest(free, u32::from(*gpus)) }
                    };
                    Allocation::over(slot.spot.iter().map(share).collect())
                }
            };
            let limit = Watts::new(candidate.limit);
            for share in allocation.shares() {
                taken[share.node.index()] |= share.mask;
                let node = &mut held[share.node.index()];
                *node = node.with(share.count(), limit);
            }
            let configuration = Configuration {
                gpu_type: candidate.shape.gpu_type,
                gpus: candidate.shape.gpus,
                nodes: slot.spot.len() as u32,
                batch: candidate.batch,
                power_limit: limit,
            };
            placements[at] = Some(Placement { configuration, allocation });
        }
    }
    let nodes = problem.filled(draft);
    for (at, item) in problem.items.iter().enumerate() {
        let job = state.job(item.id);
        let (decision, reason) = match placements[at].take() {
            Some(new) if job.planned.as_ref() != Some(&new) => {
                let slot = placed(at);
                let candidate = slot.map(|slot| problem.of(slot));
                let end = slot.map_or(0.0, |slot| problem.end(at, slot));
                let limit_only = job.planned.as_ref().filter(|old| old.same_but_limit(&new));
                let reason = match (limit_only, candidate) {
                    (Some(old), _)
                        if new.configuration.power_limit > old.configuration.power_limit =>
                    {
                        Reason::LimitRaised
                    }
                    (Some(_), _) => Reason::LimitLowered,
                    (None, _) if item.candidates.len() == 1 => Reason::AsRequested,
                    (None, Some(candidate))
                        if problem.deadlines && end * candidate.later <= item.due =>
                    {
                        Reason::CheapestInTime
                    }
                    _ => Reason::LeastForAll,
                };
                (Decision::Run(new), reason)
            }
            None if job.planned.is_some() => (Decision::Wait, Reason::Postponed),
            None if problem.starvation.kept_for == Some(at) => {
                if job.reason == Reason::NextInLine {
                    continue;
                }
                (Decision::Wait, Reason::NextInLine)
            }
            None if starts(at).is_some() && says_no_start(&job.reason, view.now) => {
                let at = view.now + Seconds::new(starts(at).unwrap_or(0.0));
                (Decision::Wait, Reason::Reserved { at })
            }
            None if job.reason == Reason::Arrived => (
                Decision::Wait,
                if problem.has_room(at, &nodes) { Reason::BetterLater } else { Reason::NoRoom },
            ),
            _ => continue,
        };
        plan.jobs.push(JobChange { job: item.id, decision, reason });
    }
    let a_job_waits = draft.iter().any(Option::is_none);
    set_node_targets(problem, &held, a_job_waits, &mut plan);
    if problem.rigid {
        // What is reserved begins when it is due, also if nothing happens until then.
        let first = planned.starts.iter().flatten().copied().reduce(f64::min);
        let first = first.map(|start| view.now + Seconds::new(start.max(problem.short_time())));
        plan.revisit = [plan.revisit, first].into_iter().flatten().min();
    } else {
        look_again(problem, draft, &nodes, &mut plan);
    }
    plan
}

/// Whether a waiting job's reason does not say when it starts, or a time that has passed.
fn says_no_start(reason: &Reason, now: Timestamp) -> bool {
    match reason {
        Reason::Arrived | Reason::NoRoom | Reason::BetterLater => true,
        Reason::Reserved { at } => *at < now,
        _ => false,
    }
}

/// A job that waits although it could start, for a shared node or a cheaper hour, must not depend
/// on something happening. The longer it has waited, the less often it is looked at; but when it
/// begins to be late it is.
fn look_again(problem: &Problem<'_, '_>, draft: &Draft, nodes: &Nodes, plan: &mut Plan) {
    let view = problem.view;
    let could_start = |at: &usize| draft[*at].is_none() && problem.has_room(*at, nodes);
    let least = problem.short_time();
    let wait = |at: usize| {
        let item = &problem.items[at];
        let slack = |c: &Candidate| item.due - (item.work / c.rate + item.load) * c.later;
        let slack = problem.candidates_of(at).iter().map(slack).filter(|slack| *slack > 0.0);
        slack.fold(problem.tuning.look_again_share * item.age, f64::min).max(least)
    };
    let waiting = (0..problem.items.len()).filter(could_start);
    let soon = waiting.map(wait).reduce(f64::min).map(|wait| {
        let soon = view.now + Seconds::new(wait);
        view.prices.next_change(view.now).map_or(soon, |change| change.min(soon))
    });
    // The next job in line is served at the next plan, also if nothing happens until then.
    let change = downshift::first_change(problem, draft);
    let change = change.map(|wait| view.now + Seconds::new(wait.max(least)));
    let (starvation, again) = (&problem.starvation, Seconds::new(problem.tuning.look_again_s));
    let line = starvation.line_behind.then_some(view.now + again);
    let next = starvation.next.map(|left| view.now + Seconds::new(left.max(0.0) + 1.0));
    plan.revisit = [plan.revisit, soon, change, line, next].into_iter().flatten().min();
}

/// Nodes that jobs need are up; idle ones sleep when that pays for the boot.
fn set_node_targets(
    problem: &Problem<'_, '_>,
    held: &[Occupancy],
    a_job_waits: bool,
    plan: &mut Plan,
) {
    let view = problem.view;
    let long = Seconds::new(problem.tuning.idle_max_s);
    let mut targets = NodeTargets::new(view);
    for id in view.state.cluster().node_ids() {
        match held[id.index()].busy {
            0 => {
                // Nodes that boot in no time would go to and fro at an instant; where energy counts
                // for nothing no job shall wait for a boot, and a waiting job will want a node.
                let least = match (problem.time_only, a_job_waits) {
                    (true, _) => long,
                    (false, true) => Seconds::new(problem.tuning.look_again_s),
                    (false, false) => Seconds::new(problem.short_time()),
                };
                let after = pays_after(view, id).map(|t| t.max(least).min(long));
                targets.idle(id, after, plan);
            }
            _ => targets.needed(id),
        }
    }
    targets.keep_budget(held, view.state.cluster().node_ids().collect());
    targets.say(plan);
}
