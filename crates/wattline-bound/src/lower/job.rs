//! The cheapest that one job can be at given prices of GPUs: what a lower bound is made of.
//!
//! Time is cut into slots with constant prices. In a slot the job may take any of its ways for any
//! part of the time, one at a time, so work done in the slot against its cost is the lower convex
//! hull of the ways and of standing still. The cheapest whole job that ends by `C` takes the
//! cheapest pieces of all hulls up to `C`; sweeping `C` upwards, pieces are put into a heap and the
//! dearest are dropped. Inside a slot the cost is convex in `C`, and lines below it (tangents: any
//! price of work gives one) bound it without rounding `C` to the slots.

use super::grid::Grid;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// One way to run a job: a corner of what is possible, never worse than the real thing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// On which GPU type.
    pub(crate) pool: usize,
    /// On how many GPUs.
    pub(crate) gpus: f64,
    /// Work per second.
    pub(crate) rate: f64,
    /// The least it adds to what is billed, watts.
    pub(crate) billed: f64,
    /// The least it adds to what is drawn, watts.
    pub(crate) drawn: f64,
}

/// What a bound needs to know about a job. Times are seconds from the instance's start.
#[derive(Clone, Debug)]
pub(crate) struct BoundJob {
    pub(crate) submit: f64,
    /// Infinite if there is none.
    pub(crate) deadline: f64,
    /// EUR per second past the deadline.
    pub(crate) weight: f64,
    /// How much there is to do.
    pub(crate) work: f64,
    /// By rising rate.
    pub(crate) ways: Arc<[Candidate]>,
}

impl BoundJob {
    /// The least time it can take.
    pub(crate) fn least_time(&self) -> f64 {
        self.work / self.ways.iter().map(|way| way.rate).fold(0.0, f64::max)
    }

    /// The most time it can take without standing still.
    pub(crate) fn most_time(&self) -> f64 {
        self.work / self.ways.iter().map(|way| way.rate).fold(f64::INFINITY, f64::min)
    }
}

/// Prices of what jobs compete for, slot by slot. Anything not negative gives a valid bound.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Multipliers {
    /// EUR per GPU-second, `[pool][slot]`.
    pub(crate) gpus: Vec<Vec<f64>>,
    /// EUR for drawing what a busy GPU does for a second, about (see `Problem::watts_per_gpu`);
    /// empty where there is no budget.
    pub(crate) watts: Vec<f64>,
}

/// A piece of a slot's hull: so much work at so much each.
#[derive(Clone, Copy, Debug)]
struct Piece {
    unit: f64,
    work: f64,
    slot: u32,
    /// Way before and after, counted from one; zero stands still.
    from: u16,
    to: u16,
}

impl PartialEq for Piece {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Piece {}
impl PartialOrd for Piece {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Piece {
    fn cmp(&self, other: &Self) -> Ordering {
        self.unit.total_cmp(&other.unit)
    }
}

/// A line below the cost of the work, over the part of a slot that is used (0 to 1).
#[derive(Clone, Copy, Debug)]
struct Line {
    at_zero: f64,
    slope: f64,
}

impl Line {
    fn at(&self, part: f64) -> f64 {
        self.at_zero + self.slope * part
    }
}

/// Memory that is used again from job to job.
#[derive(Default)]
pub(crate) struct Solver {
    heap: BinaryHeap<Piece>,
    pieces: Vec<Piece>,
    hull: Vec<(f64, f64, u16)>,
    lines: Vec<Line>,
    points: Vec<f64>,
    /// Pieces looked at so far: the measure of work done.
    pub(crate) work: u64,
}

/// The cheapest a job can be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cheapest {
    /// EUR, prices of GPUs included.
    pub(crate) cost: f64,
    /// When it ends then, about.
    pub(crate) end: f64,
}

/// Work is done up to this part; far below what rounding in a bound may matter.
const WHOLE: f64 = 1.0 - 1e-12;

impl Solver {
    /// The cheapest way through for one job. `None` if it has no way at all.
    pub(crate) fn cheapest(
        &mut self,
        job: &BoundJob,
        grid: &Grid,
        prices: &Multipliers,
    ) -> Option<Cheapest> {
        if job.ways.is_empty() {
            return None;
        }
        self.heap.clear();
        self.pieces.clear();
        let floor = least_energy(job, grid);
        let (mut done, mut cost) = (0.0, 0.0);
        let mut best: Option<Cheapest> = None;
        for slot in grid.slot_at(job.submit)..grid.slots() {
            let begin = grid.begin(slot).max(job.submit);
            let length = grid.length(slot, begin, job);
            if length <= 0.0 {
                continue;
            }
            if let Some(best) = best
                && job.weight * (begin - job.deadline).max(0.0) + floor >= best.cost
            {
                break;
            }
            let first = self.pieces.len();
            self.hull_of(job, grid, prices, slot, length);
            self.lines.clear();
            let mut least_part = 0.0;
            if done >= WHOLE {
                // Tangent in what was possible before the slot.
                if let Some(top) = self.heap.peek() {
                    let gain = gain(&self.pieces[first..], top.unit);
                    self.lines.push(Line { at_zero: cost, slope: -gain });
                }
            } else {
                let room: f64 = self.pieces[first..].iter().map(|piece| piece.work).sum();
                least_part = if room > 0.0 { (1.0 - done) / room } else { f64::INFINITY };
                if least_part <= 1.0 {
                    self.first_lines(first);
                }
            }
            self.take_pieces(first, &mut done, &mut cost);
            if done < WHOLE {
                continue;
            }
            // Tangent in what is possible after the slot.
            if let Some(top) = self.heap.peek() {
                let gain = gain(&self.pieces[first..], top.unit);
                self.lines.push(Line { at_zero: cost + gain, slope: -gain });
            }
            let (part, least) = self.least(job, begin, length, least_part.min(1.0));
            if best.is_none_or(|best| least < best.cost) {
                best = Some(Cheapest { cost: least, end: begin + part * length });
            }
            if cost <= floor * (1.0 + 1e-12) {
                // Nothing gets cheaper by ending later.
                break;
            }
        }
        best
    }

    /// Adds the pieces of a slot, the cheapest first.
    fn hull_of(
        &mut self,
        job: &BoundJob,
        grid: &Grid,
        prices: &Multipliers,
        slot: usize,
        length: f64,
    ) {
        let price = grid.price(slot);
        let watts = prices.watts.get(slot).copied().unwrap_or(0.0) / grid.watts_per_gpu;
        let hull = &mut self.hull;
        hull.clear();
        hull.push((0.0, 0.0, 0));
        for (at, way) in job.ways.iter().enumerate() {
            let gpus = prices.gpus[way.pool][slot];
            let cost = (way.billed * price + way.gpus * gpus + way.drawn * watts).max(0.0);
            if let Some(last) = hull.last()
                && hull.len() > 1
                && way.rate <= last.0
                && cost >= last.1
            {
                continue;
            }
            while hull.len() > 1 {
                let (a, b) = (hull[hull.len() - 2], hull[hull.len() - 1]);
                // The last point is above the line from the one before it to the new one.
                let above = (b.1 - a.1) * (way.rate - a.0) >= (cost - a.1) * (b.0 - a.0);
                if !above {
                    break;
                }
                hull.pop();
            }
            hull.push((way.rate, cost, at as u16 + 1));
        }
        self.work += 1 + job.ways.len() as u64;
        for pair in hull.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            let rate = b.0 - a.0;
            if rate > 0.0 {
                // Work is counted in whole jobs from here on.
                self.pieces.push(Piece {
                    unit: (b.1 - a.1) / rate * job.work,
                    work: rate * length / job.work,
                    slot: slot as u32,
                    from: a.2,
                    to: b.2,
                });
            }
        }
    }

    /// Takes the slot's pieces in and drops the dearest of all beyond a whole job.
    fn take_pieces(&mut self, first: usize, done: &mut f64, cost: &mut f64) {
        for at in first..self.pieces.len() {
            let piece = self.pieces[at];
            if *done >= WHOLE && self.heap.peek().is_some_and(|top| piece.unit >= top.unit) {
                break;
            }
            *done += piece.work;
            *cost += piece.work * piece.unit;
            self.heap.push(piece);
            self.work += 4;
            while *done > 1.0 {
                let Some(mut top) = self.heap.pop() else { break };
                let over = (*done - 1.0).min(top.work);
                *done -= over;
                *cost -= over * top.unit;
                top.work -= over;
                if top.work > 0.0 {
                    self.heap.push(top);
                    break;
                }
            }
        }
    }

    /// In the slot in which a whole job first becomes possible: a tangent for each price of work
    /// at which the slot's hull has a corner.
    fn first_lines(&mut self, first: usize) {
        for at in first..self.pieces.len() {
            let unit = self.pieces[at].unit;
            let before: f64 = self.heap.iter().map(|p| (unit - p.unit).max(0.0) * p.work).sum();
            let gain = gain(&self.pieces[first..], unit);
            self.lines.push(Line { at_zero: unit - before, slope: -gain });
        }
    }

    /// The least of work and lateness over the part of the slot that is used: the work's cost is
    /// at least every one of the lines, so this is never too much.
    fn least(&mut self, job: &BoundJob, begin: f64, length: f64, from: f64) -> (f64, f64) {
        let Self { lines, points, .. } = self;
        points.clear();
        points.extend([from, 1.0]);
        if job.deadline.is_finite() {
            points.push(((job.deadline - begin) / length).clamp(from, 1.0));
        }
        for (at, one) in lines.iter().enumerate() {
            for other in &lines[at + 1..] {
                let slope = one.slope - other.slope;
                if slope != 0.0 {
                    points.push(((other.at_zero - one.at_zero) / slope).clamp(from, 1.0));
                }
            }
        }
        // The function is convex and straight between these points.
        let value = |part: f64| {
            let work = lines.iter().map(|line| line.at(part)).fold(0.0, f64::max);
            let late = if job.deadline.is_finite() {
                (begin + part * length - job.deadline).max(0.0)
            } else {
                0.0
            };
            work + job.weight * late
        };
        points
            .iter()
            .map(|part| (*part, value(*part)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap_or((1.0, f64::INFINITY))
    }

    /// Adds what the cheapest way that ends at `end` takes of each pool and of watts, slot by slot.
    /// Must follow [`Solver::cheapest`] of the same job.
    pub(crate) fn use_up(
        &mut self,
        job: &BoundJob,
        grid: &Grid,
        end: f64,
        usage: &mut Multipliers,
    ) {
        let pieces = &mut self.pieces;
        pieces.retain(|piece| grid.begin(piece.slot as usize) < end);
        for piece in pieces.iter_mut() {
            let slot = piece.slot as usize;
            let begin = grid.begin(slot).max(job.submit);
            let length = grid.length(slot, begin, job);
            if begin + length > end {
                piece.work *= ((end - begin) / length).max(0.0);
            }
        }
        pieces.sort_unstable();
        let mut left = 1.0;
        for piece in pieces.iter() {
            let work = piece.work.min(left);
            left -= work;
            let way = |at: u16| at.checked_sub(1).map(|at| job.ways[usize::from(at)]);
            let rate = |way: Option<Candidate>| way.map_or(0.0, |way| way.rate);
            let (from, to) = (way(piece.from), way(piece.to));
            let seconds = work * job.work / (rate(to) - rate(from));
            let slot = piece.slot as usize;
            for (way, sign) in [(from, -1.0), (to, 1.0)] {
                let Some(way) = way else { continue };
                usage.gpus[way.pool][slot] += sign * seconds * way.gpus;
                if let Some(watts) = usage.watts.get_mut(slot) {
                    *watts += sign * seconds * way.drawn / grid.watts_per_gpu;
                }
            }
            if left <= 0.0 {
                break;
            }
        }
    }
}

/// What a slot's pieces save at a price of work.
fn gain(pieces: &[Piece], unit: f64) -> f64 {
    pieces.iter().map(|piece| (unit - piece.unit).max(0.0) * piece.work).sum()
}

/// What the job's energy costs at the least, whenever it runs.
pub(crate) fn least_energy(job: &BoundJob, grid: &Grid) -> f64 {
    let per_work = job.ways.iter().map(|way| way.billed.max(0.0) / way.rate);
    per_work.fold(f64::INFINITY, f64::min) * job.work * grid.least_price()
}
