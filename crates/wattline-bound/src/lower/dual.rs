//! Finding good prices: any prices give a valid bound, good ones a tight one.
//!
//! Prices of GPUs (and of watts below a budget) rise where the cheapest ways of all jobs together
//! ask for more than there is, and fall where they ask for less: subgradient ascent, each step as
//! long as it would take to reach a level a little above the best bound so far. Coarse slots come
//! first; prices found for them are where finer ones begin.

use super::grid::Grid;
use super::job::{Multipliers, Solver};
use super::problem::Problem;

/// What there is of everything in each slot: GPU-seconds, joules.
pub(crate) type Capacity = Multipliers;

/// The best prices found.
pub(crate) struct Ascent {
    /// The bound they give, EUR; without what nodes cost whatever they do.
    pub(crate) value: f64,
    pub(crate) prices: Multipliers,
    /// Steps taken.
    pub(crate) steps: u32,
}

/// How far above the best bound a step aims, at first, as a part of it.
const FIRST_AIM: f64 = 0.10;
/// Steps without progress after which it aims lower.
const PATIENCE: u32 = 8;
/// Where it gives up.
const LAST_AIM: f64 = 2e-4;
/// How much of the direction is that of the step before.
const MEMORY: f64 = 0.6;

/// The bound at some prices, and what the jobs' cheapest ways use up.
pub(crate) fn evaluate(
    problem: &Problem,
    grid: &Grid,
    capacity: &Capacity,
    prices: &Multipliers,
    solver: &mut Solver,
    usage: &mut Multipliers,
) -> f64 {
    usage.clear();
    let mut value = 0.0;
    for job in &problem.jobs {
        if let Some(cheapest) = solver.cheapest(job, grid, prices) {
            value += cheapest.cost;
            solver.use_up(job, grid, cheapest.end, usage);
        }
    }
    value - prices.worth(capacity)
}

/// Climbs from `prices` until nothing is gained or `work` is used up.
pub(crate) fn climb(
    problem: &Problem,
    grid: &Grid,
    capacity: &Capacity,
    mut prices: Multipliers,
    solver: &mut Solver,
    work: u64,
) -> Ascent {
    let mut usage = prices.clone();
    let mut value = evaluate(problem, grid, capacity, &prices, solver, &mut usage);
    let mut best = Ascent { value, prices: prices.clone(), steps: 1 };
    let mut direction = prices.clone();
    direction.clear();
    let (mut aim, mut idle) = (FIRST_AIM, 0);
    while solver.work < work && aim > LAST_AIM {
        let mut square = direction.update(&prices, &usage, capacity, MEMORY);
        if square <= 0.0 {
            // The memory leads downwards: forget it.
            square = direction.update(&prices, &usage, capacity, 0.0);
        }
        if square <= 0.0 {
            break;
        }
        let step = (best.value * (1.0 + aim) - value).max(0.0) / square;
        prices.step(&direction, step);
        value = evaluate(problem, grid, capacity, &prices, solver, &mut usage);
        best.steps += 1;
        if value > best.value * (1.0 + aim * 0.05) {
            idle = 0;
        } else {
            idle += 1;
        }
        if value > best.value {
            best.value = value;
            best.prices.clone_from(&prices);
        }
        if idle > PATIENCE {
            idle = 0;
            aim /= 2.0;
            prices.clone_from(&best.prices);
            value = evaluate(problem, grid, capacity, &prices, solver, &mut usage);
            direction.clear();
        }
    }
    best
}

impl Multipliers {
    /// Nothing for every pool and slot.
    pub(crate) fn zero(pools: usize, slots: usize, with_watts: bool) -> Self {
        Self {
            gpus: vec![vec![0.0; slots]; pools],
            watts: if with_watts { vec![0.0; slots] } else { Vec::new() },
        }
    }

    fn clear(&mut self) {
        self.gpus.iter_mut().for_each(|slots| slots.fill(0.0));
        self.watts.fill(0.0);
    }

    fn rows(&self) -> impl Iterator<Item = &Vec<f64>> {
        self.gpus.iter().chain(std::iter::once(&self.watts))
    }

    fn rows_mut(&mut self) -> impl Iterator<Item = &mut Vec<f64>> {
        self.gpus.iter_mut().chain(std::iter::once(&mut self.watts))
    }

    /// What all there is costs at these prices.
    fn worth(&self, capacity: &Self) -> f64 {
        let rows = self.rows().zip(capacity.rows());
        let cells = rows.flat_map(|(prices, there)| prices.iter().zip(there));
        cells.filter(|(price, _)| **price > 0.0).map(|(price, there)| price * there).sum()
    }

    /// Makes this the direction of the next step: the lack of everything as a part of what there
    /// is, and some of the step before. Prices of nothing do not fall; what there is without end
    /// (in the last slot) has no price. Gives the rise of the bound along it.
    fn update(&mut self, prices: &Self, usage: &Self, there: &Self, memory: f64) -> f64 {
        let mut rise = 0.0;
        let rows = self.rows_mut().zip(prices.rows()).zip(usage.rows().zip(there.rows()));
        for ((mine, prices), (used, there)) in rows {
            let cells = mine.iter_mut().zip(prices).zip(used.iter().zip(there));
            for ((mine, price), (used, there)) in cells {
                let lack = used - there;
                if !there.is_finite() || *there <= 0.0 {
                    *mine = 0.0;
                    continue;
                }
                *mine = lack / there + memory * *mine;
                if *price <= 0.0 && *mine < 0.0 {
                    *mine = 0.0;
                }
                rise += lack * *mine;
            }
        }
        rise
    }

    /// Goes along a direction; prices are never negative.
    fn step(&mut self, direction: &Self, by: f64) {
        for (prices, direction) in self.rows_mut().zip(direction.rows()) {
            for (price, along) in prices.iter_mut().zip(direction) {
                *price = (*price + by * along).max(0.0);
            }
        }
    }

    /// The same prices on a finer grid.
    pub(crate) fn refined(&self, coarse: &Grid, fine: &Grid) -> Self {
        let row = |slots: &Vec<f64>| {
            if slots.is_empty() {
                return Vec::new();
            }
            fine.parents(coarse).map(|parent| slots[parent]).collect()
        };
        Self { gpus: self.gpus.iter().map(row).collect(), watts: row(&self.watts) }
    }
}
