//! PowerFlow: average completion time as short as an energy budget allows.
//!
//! Every job starts small. Then step by step the job that gains most time for its energy gets more:
//! the next GPU count or the next power limit, until the GPUs run out, no step helps, or the energy
//! budget is used up. A job that runs keeps its shape unless another is worth the restart; power
//! limits change freely. Jobs sit in buddy blocks and in as few racks as possible, a few are moved
//! where that makes room, and idle nodes sleep.
//!
//! After D. Gu et al., "Energy-Efficient GPU Clusters Scheduling for Deep Learning", arXiv
//! 2304.06381.

mod allocate;
mod budget;
mod kinds;
mod nodes;
mod problem;
mod settle;

use problem::{Placements, Problem};
use std::cmp::Reverse;
use wattline_core::ids::JobId;
use wattline_core::placement::Placement;
use wattline_core::plan::{Decision, JobChange, Plan, Reason};
use wattline_core::policy::{ClusterView, Policy};
use wattline_core::state::JobState;
use wattline_core::units::Seconds;

/// A plan is made from the one before, and then from itself until it stays as it is; so often at
/// most.
const MOST_PASSES: usize = 10;

/// When idle nodes go to sleep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sleep {
    /// After the time in which being idle costs what booting costs.
    WhenItPays,
    /// After this time.
    After(Seconds),
    /// Never, unless the power budget demands it.
    Never,
}

/// What the policy can be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PowerflowOptions {
    /// The energy of a plan's jobs over what they would take as requested, at most; infinite: no
    /// bound.
    pub(crate) energy: f64,
    /// When idle nodes go to sleep.
    pub(crate) sleep: Sleep,
    /// GPUs go to whom each of them helps most and who gives them back soon: not in the paper.
    pub(crate) lend: bool,
}

impl Default for PowerflowOptions {
    /// No more energy than users asked for.
    fn default() -> Self {
        Self { energy: 1.0, sleep: Sleep::WhenItPays, lend: false }
    }
}

struct Powerflow {
    options: PowerflowOptions,
}

/// Average completion time under an energy budget.
pub(crate) fn powerflow(options: PowerflowOptions) -> Box<dyn Policy> {
    Box::new(Powerflow { options })
}

impl Policy for Powerflow {
    fn name(&self) -> &str {
        "powerflow"
    }

    /// From scratch each time: there is nothing to remember.
    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        let problem = Problem::new(view, self.options);
        let (placements, wanted) = settled(&problem);
        let mut plan = Plan::unchanged(view.plan);
        say_jobs(&problem, &placements, &mut plan);
        nodes::say_nodes(&problem, &placements, &wanted, &mut plan);
        plan
    }
}

/// Passes until one changes nothing. Where they come back to what they had before, the one of the
/// circle in which most jobs run is taken, the first of these: planning again stays there.
fn settled(problem: &Problem<'_, '_>) -> (Placements, Vec<u32>) {
    let mut seen: Vec<(Placements, Vec<u32>)> = vec![(problem.present(), Vec::new())];
    loop {
        let last = seen.len() - 1;
        let (next, wanted) = pass(problem, &seen[last].0);
        seen[last].1 = wanted;
        let before = seen.iter().position(|(placements, _)| *placements == next);
        if before.is_none() && seen.len() < MOST_PASSES {
            seen.push((next, Vec::new()));
            continue;
        }
        let circle = seen.split_off(before.unwrap_or(last));
        let running = |one: &(Placements, Vec<u32>)| one.0.iter().flatten().count();
        return circle.into_iter().min_by_key(|one| Reverse(running(one))).unwrap_or_default();
    }
}

/// Who runs where, if this is how it was; and how many GPUs of each type running jobs would take
/// on nodes that are not up yet.
fn pass(problem: &Problem<'_, '_>, present: &Placements) -> (Placements, Vec<u32>) {
    let order = problem.order(present);
    let chosen = allocate::allocate(problem, present, &order);
    let (mut placements, wanted) = settle::settle(problem, present, &order, &chosen);
    budget::keep(problem, present, &order, &mut placements);
    (placements, wanted)
}

/// What is new about jobs.
fn say_jobs(problem: &Problem<'_, '_>, placements: &Placements, plan: &mut Plan) {
    for (item, placement) in problem.items.iter().zip(placements) {
        let job = problem.view.state.job(item.id);
        let (decision, reason) = match placement {
            Some(new) if job.planned.as_ref() != Some(new) => {
                (Decision::Run(new.clone()), why(problem, item.id, job, new))
            }
            None if job.planned.is_some() || job.reason == Reason::Arrived => {
                let waits = if job.planned.is_some() { Reason::Postponed } else { Reason::NoRoom };
                (Decision::Wait, waits)
            }
            _ => continue,
        };
        plan.jobs.push(JobChange { job: item.id, decision, reason });
    }
}

/// Why a job runs so.
fn why(problem: &Problem<'_, '_>, id: JobId, job: &JobState, new: &Placement) -> Reason {
    let shape = new.configuration.shape();
    match &job.planned {
        Some(old) if old.same_but_limit(new) => {
            let rises = new.configuration.power_limit > old.configuration.power_limit;
            if rises { Reason::LimitRaised } else { Reason::LimitLowered }
        }
        Some(old) if old.configuration.shape() == shape => Reason::MadeRoom,
        _ if problem.view.state.menu(problem.view.state.job(id).menu).len() == 1 => {
            Reason::AsRequested
        }
        _ => Reason::MostForItsEnergy,
    }
}
