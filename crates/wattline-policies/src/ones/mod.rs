//! Evolution of whole-cluster schedules with elastic batches, after ONES.
//!
//! At every event a small population of schedules is evolved. A schedule says in which of its ways
//! each job runs, or that it waits. In each generation random pairs are crossed, jobs are removed
//! by mutation, idle GPUs are filled, jobs are put in order on GPUs so that few GPUs change hands,
//! and the best schedules live on. The best of all is the plan.
//!
//! What differs from the publication, and why:
//!
//! - *Pure.* The population is built anew from the view each time, beginning with what runs. So
//!   a plan is a function of the view and of the seed.
//! - *Known work.* The score is shortest remaining utilisation first, `Σ Y·n·(1/ρ − 1)/X(n)` over
//!   the jobs that run. With a known amount of work `Y·(1/ρ − 1)` is the work left, so a term is the
//!   GPU-time that the job still takes.
//! - *No sampling.* The published score draws one sample of each job's progress. Here times are
//!   means over the predictor's interval, so a configuration that nobody knows counts as slower.
//! - *New jobs.* Published, a job with no progress scores 0 and always wins. Here all its work is
//!   left.
//! - *Restarts cost.* A job that would change its shape or batch, or come back, is charged what the
//!   predictor says a restart takes. ONES rescales without one.
//! - *Batch limits* are a function of the view as well; see `batch`.
//!
//! `+waiting` is not in the publication: a job that waits counts its own time and the GPU-time of all
//! before it, spread over the cluster, and a job that runs counts its own time. With many jobs waiting
//! this is the published score; with none, it is the sum of the times left. As published, a schedule
//! that runs less scores better.
//!
//! Deadlines, weights and energy count nothing. Power limits stay at the cards' default; what does
//! not fit below the budget waits. Under a lasting overload long jobs can wait for long.
//!
//! After Z. Bian et al., "Online Evolutionary Batch Size Orchestration for Scheduling Deep Learning
//! Workloads in GPU Clusters", SC 2021, arXiv 2108.03645.

mod batch;
mod evolve;
mod genome;
mod problem;
mod room;
mod score;
#[cfg(test)]
mod tests;

use problem::Problem;
use room::Placements;
use wattline_core::ids::JobId;
use wattline_core::plan::{Decision, JobChange, Plan, Reason};
use wattline_core::policy::{ClusterView, Policy};
use wattline_core::state::JobState;

/// More than anybody has time for.
pub(crate) const MOST_GENERATIONS: usize = 100_000;
/// The same.
pub(crate) const MOST_POPULATION: usize = 10_000;

/// Which jobs a schedule is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Those that run, as published.
    Running,
    /// Those that wait as well.
    Waiting,
}

/// What the policy can be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OnesOptions {
    /// How many generations are evolved; fewer where the cluster is large.
    pub(crate) generations: usize,
    /// How many schedules live on.
    pub(crate) population: usize,
    /// Of everything random.
    pub(crate) seed: u64,
    /// By whom schedules are judged.
    pub(crate) counted: Counted,
}

impl Default for OnesOptions {
    /// The authors' population.
    fn default() -> Self {
        Self { generations: 40, population: 16, seed: 2108, counted: Counted::Running }
    }
}

struct Ones {
    options: OnesOptions,
}

/// The evolutionary search.
pub(crate) fn ones(options: OnesOptions) -> Box<dyn Policy> {
    Box::new(Ones { options })
}

impl Policy for Ones {
    fn name(&self) -> &str {
        "ones"
    }

    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        let problem = Problem::new(view);
        let generations = view.effort.of(self.options.generations as u64) as usize;
        let best = evolve::evolve(&problem, &OnesOptions { generations, ..self.options });
        let mut placements = room::settle(&problem, &best);
        if placements.iter().all(Option::is_none)
            && view.budget.is_some()
            && let Some((item, placement)) = room::at_any_limit(&problem)
        {
            placements[item] = Some(placement);
        }
        let mut plan = Plan::unchanged(view.plan);
        say_jobs(&problem, &placements, &mut plan);
        let held = problem.held_with(placements.iter().flatten());
        crate::placing::say_nodes(view, &held, None, &mut plan);
        plan
    }
}

/// What is new about jobs.
fn say_jobs(problem: &Problem<'_, '_>, placements: &Placements, plan: &mut Plan) {
    let state = problem.view.state;
    let room = room::filled(problem, placements);
    let mut say = |id: JobId, decision, reason| {
        plan.jobs.push(JobChange { job: id, decision, reason });
    };
    for (item, placement) in problem.items.iter().zip(placements) {
        let job = state.job(item.id);
        match placement {
            Some(new) if job.planned.as_ref() != Some(new) => {
                let old = job.planned.as_ref().filter(|old| old.same_but_limit(new));
                let reason = match old.map(|old| old.configuration.power_limit) {
                    Some(limit) if new.configuration.power_limit > limit => Reason::LimitRaised,
                    Some(_) => Reason::LimitLowered,
                    None => batch::reason(&job.job, &new.configuration),
                };
                say(item.id, Decision::Run(new.clone()), reason);
            }
            None if is_news(job) => {
                let fits = item.ways.iter().any(|way| room.place(way.shape).is_some());
                let reason = match (fits, job.planned.is_some()) {
                    (true, _) => Reason::NoPower,
                    (false, true) => Reason::Postponed,
                    (false, false) => Reason::NoRoom,
                };
                say(item.id, Decision::Wait, reason);
            }
            _ => {}
        }
    }
    for id in &problem.left_out {
        let job = state.job(*id);
        if is_news(job) {
            let never = state.menu(job.menu).is_empty();
            let reason = match job.planned {
                Some(_) => Reason::Postponed,
                None if never => Reason::NeverFits,
                None => Reason::NoRoom,
            };
            say(*id, Decision::Wait, reason);
        }
    }
}

/// Whether waiting is something new for the job.
fn is_news(job: &JobState) -> bool {
    job.planned.is_some() || job.reason == Reason::Arrived
}
