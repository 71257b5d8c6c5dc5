//! The randomised greedy of the ANDREAS authors: at every event all jobs are planned anew.
//!
//! Jobs are taken by falling pressure, each in the cheapest configuration that meets its deadline,
//! else in the fastest, and what does not fit is postponed. Many such plans with a disturbed order
//! are compared by a proxy of their cost; the best of them can be improved. The method's weaknesses
//! are kept as they were published: it looks no further than to the first completion, late jobs
//! take the fastest configuration, however inefficient, and restarts count nothing.
//!
//! Its optimizer knows no power budget. Here a plan holds only what fits below one; idle nodes
//! sleep where that makes room.
//!
//! After F. Filippini et al., "ANDREAS: Artificial intelligence traiNing scheDuler foR
//! accElerAted resource clusterS", arXiv 2105.05080.

mod cost;
mod problem;
mod search;
mod settle;
mod space;

use crate::placing::say_nodes;
use problem::Problem;
use settle::Placements;
use space::Space;
use wattline_core::placement::Placement;
use wattline_core::plan::{Decision, JobChange, Plan, Reason};
use wattline_core::policy::{ClusterView, Policy};
use wattline_core::state::JobState;
use wattline_core::units::{Seconds, Watts};

/// More rounds than anybody has time for.
pub(crate) const MOST_ROUNDS: usize = 1_000_000;

/// What the policy can be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AndreasOptions {
    /// Random plans tried; 0: the greedy plan alone.
    pub(crate) rounds: usize,
    /// Local search and path relinking over the best plans: lower by the proxy, dearer in truth.
    pub(crate) improve: bool,
    /// Of everything random.
    pub(crate) seed: u64,
    /// Nodes that were idle for so long go to sleep. `None`: nodes stay up.
    pub(crate) sleep_after: Option<Seconds>,
}

impl Default for AndreasOptions {
    /// As many rounds as the authors' optimizer has.
    fn default() -> Self {
        Self { rounds: 1000, improve: false, seed: 1010, sleep_after: None }
    }
}

struct Andreas {
    options: AndreasOptions,
}

/// The randomised greedy, or the greedy alone.
pub(crate) fn andreas(options: AndreasOptions) -> Box<dyn Policy> {
    Box::new(Andreas { options })
}

impl Policy for Andreas {
    fn name(&self) -> &str {
        "andreas"
    }

    /// From scratch each time, and the same for the same seed: there is nothing to remember.
    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        let problem = Problem::new(view);
        let order = problem.order();
        let rounds = view.effort.of(self.options.rounds as u64) as usize;
        let solution = match rounds {
            0 => search::greedy(&problem, &order),
            _ => search::search(&problem, &order, &AndreasOptions { rounds, ..self.options }),
        };
        let mut placements = settle::settle(&problem, &solution);
        if solution.placed.is_empty()
            && view.budget.is_some()
            && let Some((item, placement)) = settle::at_any_limit(&problem, &order)
        {
            placements[item] = Some(placement);
        }
        let mut plan = Plan::unchanged(view.plan);
        say_jobs(&problem, &placements, &mut plan);
        let held = problem.decides.held_with(view.state, placements.iter().flatten());
        say_nodes(view, &held, self.options.sleep_after, &mut plan);
        plan
    }
}

/// What is new about jobs.
fn say_jobs(problem: &Problem<'_, '_>, placements: &Placements, plan: &mut Plan) {
    let state = problem.view.state;
    let space = filled(problem, placements);
    for (item, placement) in problem.items.iter().zip(placements) {
        let job = state.job(item.id);
        let (decision, reason) = match placement {
            Some(new) if job.planned.as_ref() != Some(new) => {
                let shape = new.configuration.shape();
                let way = item.ways.iter().find(|way| way.shape == shape);
                let chosen = way.map_or(Reason::AsRequested, |way| way.reason);
                (Decision::Run(new.clone()), limit_changed(job, new).unwrap_or(chosen))
            }
            None if job.planned.is_some() || job.reason == Reason::Arrived => {
                let room =
                    item.ways.iter().any(|way| space.fit_anyhow(problem, way.shape).is_some());
                let reason = match (room, job.planned.is_some()) {
                    (true, _) => Reason::NoPower,
                    (false, true) => Reason::Postponed,
                    (false, false) => Reason::NoRoom,
                };
                (Decision::Wait, reason)
            }
            _ => continue,
        };
        plan.jobs.push(JobChange { job: item.id, decision, reason });
    }
}

/// Whether nothing changes but the limit.
fn limit_changed(job: &JobState, new: &Placement) -> Option<Reason> {
    let old = job.planned.as_ref().filter(|old| old.same_but_limit(new))?;
    let rises = new.configuration.power_limit > old.configuration.power_limit;
    Some(if rises { Reason::LimitRaised } else { Reason::LimitLowered })
}

/// The cluster with all of that placed.
fn filled(problem: &Problem<'_, '_>, placements: &Placements) -> Space {
    let mut space = Space::empty(problem);
    let nodes = problem.view.state.cluster().nodes().len();
    let mut taken = vec![0_u32; nodes];
    for share in placements.iter().flatten().flat_map(|p| p.allocation.shares()) {
        taken[share.node.index()] += share.count();
    }
    for (class, gpus) in problem.class_of.iter().zip(taken) {
        if let Some(class) = *class
            && gpus > 0
        {
            let free = problem.classes[class].free;
            space.take_part(problem, space::Part { class, free, gpus }, Watts::ZERO);
        }
    }
    space
}
