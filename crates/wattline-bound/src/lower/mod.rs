//! A lower bound on what any schedule costs.
//!
//! # The relaxation
//!
//! A schedule here may stop and move jobs for nothing, change their GPUs and limits at any moment,
//! knows what is to come, and nodes sleep and wake at once and for nothing. Only this is kept:
//!
//! 1. a job runs in one of its ways at a time, and no way is faster than the physics say;
//! 2. no more GPUs of a type are held than there are, and no more watts drawn than the budget;
//! 3. a job's lateness is that of its end, `weight · max(0, C − deadline)`;
//! 4. a busy GPU costs at least its share of its node: for a node that bills `P(k)` with `k` GPUs
//!    busy and `F` whatever it does, the least `(P(k) − F)/k` over the `k` that are possible beside
//!    the job; a node costs `F` from the start until the last job can be done.
//!
//! Every schedule of the real cluster is one of these and costs no more here, so the least cost of
//! these is a lower bound. About 4: split what a node bills above `F` among its jobs by their GPUs.
//! The parts add up to the whole, and each is at least the least share.
//!
//! # Prices
//!
//! The least cost itself is hard to find, but not needed. Give every GPU type a price `λ ≥ 0` for
//! each slot of time, and watts below a budget a price `β ≥ 0`. For every schedule
//!
//! ```text
//! cost ≥ cost + Σ λ·(GPU-seconds used − there) + Σ β·(joules drawn − allowed)
//!      = Σ over jobs (own cost + what it uses at these prices) − Σ λ·there − Σ β·allowed
//!      ≥ Σ over jobs (the least of that)                        − Σ λ·there − Σ β·allowed
//! ```
//!
//! because what is used is never more than what is there. So *any* prices give a valid bound, and
//! the jobs come apart: `job.rs` finds the least of each exactly, its end included (not a sum over
//! parts of its work, which could not see when the last part is done). `dual.rs` looks for prices
//! that make the bound large. Slots are a matter of how fine prices are, not of rounding: a job
//! that comes or ends within a slot is charged for the part it uses, and energy in a slot costs
//! the least price in it.
//!
//! # What is left out
//!
//! Packing: that a job's GPUs must be on one node, and that a half-filled node costs more than its
//! share. Restarts, boots, idle nodes that stay up. That no schedule knows what is to come. Where
//! runs take longer or shorter by chance, the bound is of the runs without luck.

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
    /// Whether the search ended because it found nothing better, and not because the instance is
    /// so large that its work was used up before.
    pub complete: bool,
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
    let mut grid =
        Grid::new(input.start, input.prices, horizon(&problem), 16, problem.watts_per_gpu);
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
        competing: (best - alone).max(0.0),
        resting,
        complete: solver.work < effort.pieces,
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
        .map(|job| {
            let each = job.ways.iter().map(|way| way.gpus / way.rate);
            job.work * each.fold(f64::INFINITY, f64::min)
        })
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
        free.zip(&lengths).map(|(free, length)| free * length / grid.watts_per_gpu).collect()
    });
    Capacity { gpus, watts }
}
