//! The optimum of small problems, for policies to be measured by.
//!
//! Each job runs once, without a break, in one of its ways, on one node. The cost is what nodes
//! draw, by how many of their GPUs are busy, and lateness; resting costs nothing. That is what the
//! simulator bills on such machines ([`Machines`]); a test carries the schedules out there.
//!
//! # Why the answer is exact
//!
//! **Nodes come apart.** Given which jobs run on which node, nodes do not touch each other. So the
//! cheapest schedule of every set of jobs on every kind of node is found, and the sets are shared
//! out over the nodes by looking at all subsets.
//!
//! **Whole units of time are enough.** Where a node's power is not a sum over its GPUs, a job may
//! wait for company, so starting as early as possible is not always best. But fix the order of all
//! starts, ends and deadlines on a node: then busy GPUs between two of them are constant and the
//! cost is linear in the starts, under constraints that compare two of them, shifted by run times,
//! or one of them with a deadline or release. Such a system is a network matrix, totally
//! unimodular, with whole numbers on the right; so the least is at whole starts. Tests compare
//! with starts at half units.
//!
//! **Order of starts.** Building a schedule in this order, the energy that a job adds beside those
//! that started before is known when it is added: it depends on the free times of the GPUs alone.
//! States that agree in jobs and free times have the same future, and the cheapest is kept.
//!
//! **How late a start can be.** Not after all that runs has ended, unless a job that is still
//! missing is not there before: otherwise all that follows could move to the left, and cost no
//! more. On nodes whose power is a sum over GPUs (where only lateness depends on starts) each
//! job starts as soon as its GPUs are free: done in the order of the starts of an optimal schedule,
//! no job starts later than there. There a state that is no earlier in any free time and no cheaper
//! than another is dropped too.
//!
//! **Guesses.** A set of jobs on a node is of no interest if it, less what company to come could
//! save, and the least that all other jobs cost on their own are together above a guess at the optimum. If the best that is left is not above the
//! guess, it is the optimum, since every part of the optimum is of interest then; else the guess
//! is raised.

pub mod generate;
mod machines;
mod node;
mod problem;

pub use problem::{
    ExactError, MOST_GPUS, MOST_JOBS, SmallDraw, SmallJob, SmallNode, SmallProblem, SmallWay,
};

pub use machines::Machines;

use node::{NodeSearch, Row};
use serde::Serialize;

/// A job of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Placed {
    /// Which job.
    pub job: usize,
    /// Which of its ways.
    pub way: usize,
    /// On which node.
    pub node: usize,
    /// From when on, in units.
    pub start: u32,
}

/// The best there is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Optimum {
    /// EUR.
    pub cost: f64,
    /// Who runs where and when, by start.
    pub schedule: Vec<Placed>,
    /// States that were looked at.
    pub states: usize,
}

/// States beyond which a problem is given up.
const MOST_STATES: usize = 3_000_000;
/// The first guess at the optimum, above the bound.
const FIRST_GUESS: f64 = 1.1;
/// Each further guess is higher by this factor.
const NEXT_GUESS: f64 = 1.15;

/// The least cost of any schedule in which each job runs once, without a break, on one node.
///
/// # Errors
/// When the problem makes no sense or is too large.
pub fn optimum(problem: &SmallProblem) -> Result<Optimum, ExactError> {
    problem.validate()?;
    let jobs = problem.jobs.len();
    let all = (1_usize << jobs) - 1;
    let alone: Vec<f64> = (0..jobs).map(|job| alone(problem, job)).collect();
    // What the jobs outside a set cost at the least.
    let rest: Vec<f64> = (0..=all)
        .map(|set| (0..jobs).filter(|job| set >> job & 1 == 0).map(|job| alone[job]).sum())
        .collect();
    // Nodes that are alike have the same best schedules.
    let mut alike: Vec<usize> = Vec::new();
    let mut kinds: Vec<&SmallNode> = Vec::new();
    for node in &problem.nodes {
        let at = kinds.iter().position(|kind| *kind == node).unwrap_or_else(|| {
            kinds.push(node);
            kinds.len() - 1
        });
        alike.push(at);
    }
    let mut guess = rest[0] * FIRST_GUESS + 1e-9;
    let mut states = 0;
    loop {
        let mut rows = Vec::new();
        for node in &kinds {
            let search = NodeSearch { problem, node, rest: &rest, cutoff: guess };
            let row = search.run(MOST_STATES.saturating_sub(states))?;
            states += row.states();
            rows.push(row);
        }
        let found = combine(&alike, &rows, all);
        if let Some((cost, parts)) = &found
            && *cost <= guess
        {
            let mut schedule: Vec<Placed> = parts
                .iter()
                .enumerate()
                .flat_map(|(node, set)| rows[alike[node]].schedule(*set, node))
                .collect();
            schedule.sort_by_key(|placed| (placed.start, placed.job));
            return Ok(Optimum { cost: *cost, schedule, states });
        }
        // What was found is a schedule, so the optimum is not above it.
        let above = found.map_or(f64::INFINITY, |(cost, _)| cost * (1.0 + 1e-12));
        guess = (guess * NEXT_GUESS).min(above);
    }
}

/// The least a job costs wherever and beside whomever it runs.
fn alone(problem: &SmallProblem, job: usize) -> f64 {
    let mut least = f64::INFINITY;
    for way in &problem.jobs[job].ways {
        for node in problem.nodes.iter().filter(|n| n.kind == way.kind && n.gpus >= way.gpus) {
            let late = problem.late(job, problem.jobs[job].release + way.time);
            least = least.min(own_share(problem, node, *way) + late);
        }
    }
    least
}

/// The least part of a node's energy that a run on it stands for. Parts go by GPUs, so the parts of
/// all runs add up to no more than the energy.
fn own_share(problem: &SmallProblem, node: &SmallNode, way: SmallWay) -> f64 {
    let own = usize::from(way.gpus);
    let per_gpu = (own..=usize::from(node.gpus))
        .map(|busy| node.watts(busy) / busy as f64)
        .fold(f64::INFINITY, f64::min);
    problem.euros_per_unit(per_gpu) * f64::from(way.gpus) * f64::from(way.time)
}

/// The cheapest way to share the jobs out over the nodes: for each node its set, and the cost.
fn combine(alike: &[usize], rows: &[Row], all: usize) -> Option<(f64, Vec<usize>)> {
    let mut best = vec![f64::INFINITY; all + 1];
    best[0] = 0.0;
    let mut taken: Vec<Vec<usize>> = Vec::new();
    for kind in alike {
        let mut next = vec![f64::INFINITY; all + 1];
        let mut part = vec![0; all + 1];
        for set in 0..=all {
            // All subsets of the set, the empty one last.
            let mut sub = set;
            loop {
                let cost = best[set & !sub] + rows[*kind].cost(sub);
                if cost < next[set] {
                    next[set] = cost;
                    part[set] = sub;
                }
                if sub == 0 {
                    break;
                }
                sub = (sub - 1) & set;
            }
        }
        best = next;
        taken.push(part);
    }
    if !best[all].is_finite() {
        return None;
    }
    let mut parts = vec![0; alike.len()];
    let mut set = all;
    for node in (0..alike.len()).rev() {
        parts[node] = taken[node][set];
        set &= !parts[node];
    }
    Some((best[all], parts))
}
