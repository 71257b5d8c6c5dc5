//! A lower bound on what any schedule costs.

mod dual;
mod grid;
mod job;
mod problem;

pub use problem::Input;

use dual::{Capacity, climb};
use grid::Grid;
use job::{Multipliers, Solver};
use problem::Problem;
use serde::Serialize;
use wattline_core::units::{Seconds, Watts};

/// How much work to spend.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Pieces of work that the search for prices may look at; about 10 to 20 million a second.
    pub pieces: u64,
    /// The most slots that time is cut into.
    pub slots: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { pieces: 40_000_000, slots: 512 }
    }
}

/// A cost that no schedule stays below, with its parts.
#[derive(Clone, Debug, Serialize)]
pub struct LowerBound {
    /// EUR.
    pub total: f64,
    /// EUR: what the jobs cost at the least when they do not compete, energy and lateness that no
    /// machine could avoid.
    pub alone: f64,
    /// EUR: what competing for GPUs (and for watts below a budget) adds at the least.
    pub competing: f64,
    /// EUR: what nodes cost whatever they do, until the last job can be done.
    pub resting: f64,
    /// Slots that time was cut into.
    pub slots: usize,
    /// Steps of the search for prices.
    pub steps: u32,
    /// Jobs that no configuration can run; they count nothing.
    pub impossible: usize,
}

/// The lower bound of an instance.
#[must_use]
pub fn lower_bound(input: &Input<'_>, effort: Effort) -> LowerBound {
    let problem = Problem::new(input);
    let pools = problem.pools.len();
    let last = problem.jobs.iter().map(|j| j.submit + j.least_time()).fold(0.0, f64::max);
    let end = input.start + Seconds::new(last);
    let resting =
        input.prices.bill(Watts::new(problem.floor_billed), input.start, end).total().get();
    let mut solver = Solver::default();
    let mut grid = Grid::new(input.start, input.prices, horizon(&problem), 16);
    let with_watts = input.budget.is_some();
    let mut prices = Multipliers::zero(pools, grid.slots(), with_watts);
    let mut usage = prices.clone();
    let there = capacity(input, &problem, &grid);
    let alone = dual::evaluate(&problem, &grid, &there, &prices, &mut solver, &mut usage);
    let (mut best, mut steps) = (alone, 0);
    loop {
        let there = capacity(input, &problem, &grid);
        let last = 2 * grid.slots() > effort.slots;
        let share = if last {
            effort.pieces
        } else {
            solver.work + (effort.pieces - solver.work.min(effort.pieces)) / 4
        };
        let found = climb(&problem, &grid, &there, prices, &mut solver, share);
        steps += found.steps;
        best = best.max(found.value);
        if last || solver.work >= effort.pieces {
            break;
        }
        let fine = grid.halved(input.start, input.prices);
        prices = found.prices.refined(&grid, &fine);
        grid = fine;
    }
    // Sums of so many products are right to nine digits, and a bound must not be above the truth.
    let total = (best + resting) * (1.0 - 1e-9);
    LowerBound {
        total,
        alone,
        competing: total - alone - resting,
        resting,
        slots: grid.slots(),
        steps,
        impossible: problem.impossible,
    }
}

/// A time by which all could be done, about: prices reach no further.
fn horizon(problem: &Problem) -> f64 {
    let gpus: f64 = problem.pools.iter().map(|pool| pool.gpus).sum();
    let work: f64 = problem
        .jobs
        .iter()
        .map(|job| job.ways.iter().map(|way| way.gpus / way.rate).fold(f64::INFINITY, f64::min))
        .sum();
    let last = problem.jobs.iter().map(|j| j.submit).fold(0.0, f64::max);
    let longest = problem.jobs.iter().map(|j| j.most_time()).fold(0.0, f64::max);
    let first = problem.jobs.iter().map(|j| j.submit).fold(f64::INFINITY, f64::min);
    let busy = if first.is_finite() { first + 1.3 * work / gpus.max(1.0) } else { 0.0 };
    (last.max(busy) + longest).max(1.0)
}

/// What there is in each slot.
fn capacity(input: &Input<'_>, problem: &Problem, grid: &Grid) -> Capacity {
    let lengths: Vec<f64> = (0..grid.slots())
        .map(|slot| grid.end(slot).map_or(f64::INFINITY, |end| end - grid.begin(slot)))
        .collect();
    let gpus =
        problem.pools.iter().map(|pool| lengths.iter().map(|l| l * pool.gpus).collect()).collect();
    let watts = input.budget.map_or_else(Vec::new, |budget| {
        let most = grid.most(input.start, budget);
        let free = most.iter().map(|most| (most - problem.floor_drawn).max(0.0));
        free.zip(&lengths).map(|(free, length)| free * length).collect()
    });
    Capacity { gpus, watts }
}
