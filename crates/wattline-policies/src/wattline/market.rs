//! What GPU time and watts will be worth, hour by hour.
//!
//! Every job that is there, and every job that is expected, bids for GPU time: it takes the way and
//! the start that cost it least, with energy, lateness, and the price of what it takes from others.
//! Prices rise where more is asked for than there is, and fall where less is. After some rounds they
//! tell what a GPU of each type is worth at each time, and so for each job what it would cost to
//! start later. Whoever loses most by that, for the GPU time it takes, goes first.
//!
//! These prices are the multipliers of the capacity constraints in the relaxed problem, found by a
//! subgradient method; the bound that `compare` prints rests on the same idea.

use super::model::{Item, Problem};
use super::ways::Way;
use crate::ordered_par_map::ordered_par_map;
use std::ops::Range;

/// The future is cut into so many stretches, short ones first.
const STRETCHES: usize = 16;
/// The first stretch, as a part of a mean run time.
const FIRST: f64 = 1.0 / 30.0;
/// Rounds of bidding, at the least and at the most.
const ROUNDS: (usize, usize) = (8, 60);
/// Bids looked at in a round count as so much work.
const BIDS_PER_WORK: u64 = 60;
/// With more jobs than this, each bids in so many ways at the most.
const FEW_JOBS: usize = 200;
const FEW_WAYS: usize = 8;
/// Bids looked at by one core before it takes on more.
const TERMS_PER_GROUP: usize = 10_000;
/// Also where only watts are short, GPUs count for this part of what is scarce.
const NEVER_FREE: f64 = 0.05;
/// How far prices move in the first round, as a part of what all jobs together lose in a second.
const STEP: f64 = 0.3;

/// Prices over time, and what follows for each job.
pub(super) struct Market {
    /// Begins of the stretches, and the end of the last one.
    times: Vec<f64>,
    /// By GPU type, and last for watts: prices.
    goods: Vec<Curve>,
    /// By item: the least it costs to start later.
    pub(super) later: Vec<f64>,
    /// By item: what a unit of its work costs later.
    pub(super) unit: Vec<f64>,
    scarce: Scarcity,
}

/// Factors on prices: they are right for all jobs together, and one moment has its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    pub(super) gpus: f64,
    pub(super) watts: f64,
}

/// Prices as they are.
pub(super) const USUAL: Level = Level { gpus: 1.0, watts: 1.0 };

/// How much a GPU and a committed watt count of what is scarce at present.
#[derive(Clone, Copy, Debug, Default)]
struct Scarcity {
    gpu: f64,
    watt: f64,
}

/// The price of a good over time.
#[derive(Clone, Debug)]
struct Curve {
    /// Of a second in each stretch; nothing after the last.
    price: Vec<f64>,
    /// Of all time until a stretch begins.
    sum: Vec<f64>,
    capacity: f64,
    /// What is asked for in each stretch.
    asked: Vec<f64>,
    scale: f64,
}

impl Curve {
    fn add_up(&mut self, times: &[f64]) {
        for at in 0..STRETCHES {
            self.sum[at + 1] = self.sum[at] + self.price[at] * (times[at + 1] - times[at]);
        }
    }
}

/// A way to run, as a bidder sees it.
struct Bid {
    way: u32,
    good: u16,
    gpus: f64,
    watts: f64,
    /// Into the terms: one for each stretch it may start in.
    terms: u32,
    from: u16,
}

/// A bid with a start.
#[derive(Clone, Copy)]
struct Term {
    /// What it costs apart from what is taken from others.
    base: f64,
    /// The stretch it ends in, and how many seconds into that.
    end: u32,
    into: f32,
}

/// Everybody's bids.
#[derive(Default)]
struct Bidders {
    /// Of bidder i: bids `first[i]..first[i + 1]`.
    first: Vec<u32>,
    bids: Vec<Bid>,
    terms: Vec<Term>,
    /// By bidder: how many jobs it stands for.
    many: Vec<f64>,
}

impl Bidders {
    fn of(&self, bidder: usize) -> &[Bid] {
        &self.bids[self.first[bidder] as usize..self.first[bidder + 1] as usize]
    }

    /// Bidders in groups that have enough to look at for a core of their own.
    fn groups(&self) -> Vec<Range<usize>> {
        let bidders = self.many.len();
        let groups = (self.terms.len() / TERMS_PER_GROUP).clamp(1, bidders.max(1));
        let size = bidders.div_ceil(groups).max(1);
        (0..bidders).step_by(size).map(|from| from..(from + size).min(bidders)).collect()
    }
}

impl Market {
    pub(super) fn new(problem: &Problem<'_, '_>, work: u64) -> Self {
        let times = stretches(problem);
        let mut market = Self {
            goods: goods(problem, &times),
            times,
            later: Vec::new(),
            unit: Vec::new(),
            scarce: Scarcity::default(),
        };
        let bidders = market.invite(problem);
        market.bid(&bidders, work);
        market.conclude(problem, &bidders);
        market.scarce = market.scarcity(problem.gpus_of.iter().sum());
        market
    }

    /// What GPU time and watts cost from now on for so long.
    pub(super) fn taken(&self, way: &Way, watts: f64, time: f64, level: Level) -> f64 {
        let gpus = &self.goods[way.shape.gpu_type.index()];
        let last = &self.goods[self.goods.len() - 1];
        let of = |curve: &Curve| self.until(curve, time);
        level.gpus * way.gpus() * of(gpus)
            + if last.capacity.is_finite() { level.watts * watts * of(last) } else { 0.0 }
    }

    /// What they cost for so long from a later start on.
    pub(super) fn taken_then(
        &self,
        way: &Way,
        watts: f64,
        (start, time): (f64, f64),
        level: Level,
    ) -> f64 {
        let until = |time| self.taken(way, watts, time, level);
        until(start + time) - until(start)
    }

    /// When a later start may be.
    pub(super) fn later_starts(&self) -> impl Iterator<Item = f64> {
        self.times[1..STRETCHES].iter().copied()
    }

    /// How much of what is scarce now a way takes.
    pub(super) fn scarce(&self, problem: &Problem<'_, '_>, way: &Way) -> f64 {
        way.gpus() * self.scarce.gpu + problem.committed_watts(way) * self.scarce.watt
    }

    /// GPUs count alone without a budget; with one, GPUs and watts by what all of them are worth.
    fn scarcity(&self, gpus: f64) -> Scarcity {
        let (types, last) = self.goods.split_at(self.goods.len() - 1);
        let Some(last) = last.first().filter(|last| last.capacity.is_finite()) else {
            return Scarcity { gpu: 1.0, watt: 0.0 };
        };
        let worth = |curve: &Curve| curve.sum[2] / self.times[2] * curve.capacity;
        let (of_gpus, of_watts) = (types.iter().map(worth).sum::<f64>(), worth(last));
        let all = (of_gpus + of_watts).max(1e-30);
        Scarcity {
            gpu: (of_gpus / all + NEVER_FREE) / gpus.max(1.0),
            watt: of_watts / all / last.capacity,
        }
    }

    fn stretch(&self, time: f64) -> usize {
        self.times.partition_point(|begin| *begin <= time).max(1) - 1
    }

    fn until(&self, curve: &Curve, time: f64) -> f64 {
        let at = self.stretch(time);
        curve.sum[at] + (time - self.times[at]) * curve.price[at]
    }

    fn invite(&self, problem: &Problem<'_, '_>) -> Bidders {
        let mut all = Bidders { first: vec![0], ..Bidders::default() };
        // With many jobs, a few ways of each tell enough.
        let most = if problem.items.len() <= FEW_JOBS { usize::MAX } else { FEW_WAYS };
        let present = problem.items.iter().map(|item| (item, 0.0, 1.0));
        let coming = problem.coming.iter().map(|job| (&job.item, job.at, job.many));
        for (item, release, many) in present.chain(coming) {
            for (index, way) in problem.ways_in(item).step_by(item.ways.len().div_ceil(most)) {
                self.add(problem, &mut all, item, (index, way), release);
            }
            all.first.push(all.bids.len() as u32);
            all.many.push(many);
        }
        all
    }

    fn add(
        &self,
        problem: &Problem<'_, '_>,
        all: &mut Bidders,
        item: &Item,
        (index, way): (u32, &Way),
        release: f64,
    ) {
        let from = self.times[..STRETCHES].partition_point(|begin| *begin < release);
        let watts = problem.usual_watts(way);
        let now = item.now.as_ref().filter(|_| item.runs);
        let same = now.is_some_and(|now| problem.same_but_limit(now.way, index));
        all.bids.push(Bid {
            way: index,
            good: way.shape.gpu_type.index() as u16,
            gpus: way.gpus(),
            watts: problem.committed_watts(way),
            terms: all.terms.len() as u32,
            from: from as u16,
        });
        for stretch in from..STRETCHES {
            let start = self.times[stretch];
            let stays = same && stretch == 0;
            let (lost, restart) = problem.starting(item, stays);
            let time = item.work / way.rate + lost;
            let base = problem.prices.watt(start, start + time) * watts
                + problem.late(item, way, start, time)
                + restart;
            let end = self.stretch(start + time);
            let into = (start + time - self.times[end]) as f32;
            all.terms.push(Term { base, end: end as u32, into });
        }
    }

    /// The best bid of each in turn, and prices that follow.
    fn bid(&mut self, bidders: &Bidders, work: u64) {
        let bids = work.saturating_mul(BIDS_PER_WORK);
        let rounds = (bids / bidders.terms.len().max(1) as u64) as usize;
        let rounds = rounds.clamp(ROUNDS.0, ROUNDS.1);
        let averaged = rounds - rounds / 2;
        let groups = bidders.groups();
        let mut mean: Vec<Vec<f64>> = vec![vec![0.0; STRETCHES + 1]; self.goods.len()];
        for round in 0..rounds {
            for curve in &mut self.goods {
                curve.add_up(&self.times);
                curve.asked.fill(0.0);
            }
            let chosen = ordered_par_map(&groups, |group| {
                let best = |bidder: usize| self.best(bidders.of(bidder), &bidders.terms, 0);
                group.clone().map(best).collect::<Vec<_>>()
            });
            for (best, many) in chosen.into_iter().flatten().zip(&bidders.many) {
                if let Some((bid, start, _)) = best {
                    let term = bidders.terms[bid.terms as usize + start - usize::from(bid.from)];
                    self.ask(bid, start, term, *many);
                }
            }
            let step = STEP / (1.0 + round as f64).sqrt();
            for (curve, mean) in self.goods.iter_mut().zip(&mut mean) {
                let prices = curve.price.iter_mut().zip(&curve.asked).zip(mean);
                for ((price, asked), mean) in prices {
                    let over = (asked / curve.capacity - 1.0).clamp(-1.0, 1.0);
                    *price = (*price + step * curve.scale * over).max(0.0);
                    if round >= rounds / 2 {
                        *mean += *price / averaged as f64;
                    }
                }
            }
        }
        for (curve, mean) in self.goods.iter_mut().zip(mean) {
            curve.price = mean;
            curve.add_up(&self.times);
        }
    }

    /// The cheapest bid that starts in this stretch or later.
    fn best<'b>(
        &self,
        bids: &'b [Bid],
        terms: &[Term],
        first: usize,
    ) -> Option<(&'b Bid, usize, f64)> {
        let last = &self.goods[self.goods.len() - 1];
        let capped = last.capacity.is_finite();
        let mut best: Option<(&Bid, usize, f64)> = None;
        let mut least = f64::INFINITY;
        for bid in bids {
            let curve = &self.goods[usize::from(bid.good)];
            let from = usize::from(bid.from);
            let begin = from.max(first);
            let terms = &terms[bid.terms as usize..bid.terms as usize + STRETCHES - from];
            for (start, term) in (from..STRETCHES).zip(terms).skip(begin - from) {
                let until = |c: &Curve| {
                    c.sum[term.end as usize] + f64::from(term.into) * c.price[term.end as usize]
                };
                let mut cost = term.base + bid.gpus * (until(curve) - curve.sum[start]);
                if capped {
                    cost += bid.watts * (until(last) - last.sum[start]);
                }
                if cost < least {
                    least = cost;
                    best = Some((bid, start, cost));
                }
            }
        }
        best
    }

    fn ask(&mut self, bid: &Bid, start: usize, term: Term, many: f64) {
        let last = self.goods.len() - 1;
        for (good, amount) in [(usize::from(bid.good), bid.gpus * many), (last, bid.watts * many)] {
            let asked = &mut self.goods[good].asked;
            let end = term.end as usize;
            asked[start..end].iter_mut().for_each(|asked| *asked += amount);
            if end < STRETCHES {
                let length = self.times[end + 1] - self.times[end];
                asked[end] += amount * f64::from(term.into) / length;
            }
        }
    }

    /// What the prices mean for each job.
    fn conclude(&mut self, problem: &Problem<'_, '_>, bidders: &Bidders) {
        for (at, item) in problem.items.iter().enumerate() {
            let best = self.best(bidders.of(at), &bidders.terms, 1);
            let (later, unit) =
                best.map_or((f64::INFINITY, f64::INFINITY), |(bid, start, cost)| {
                    let way = problem.way(bid.way);
                    let (begin, time) = (self.times[start], item.work / way.rate);
                    let late = problem.late(item, way, begin, time);
                    let pressing = if late > 0.0 { item.weight * time } else { 0.0 };
                    (cost, (cost - late + pressing) / item.work.max(1e-9))
                });
            self.later.push(later);
            self.unit.push(unit);
        }
    }
}

/// Short stretches first, until all jobs could be done.
fn stretches(problem: &Problem<'_, '_>) -> Vec<f64> {
    let (mut work, mut longest, mut sum, mut count) = (0.0, 0.0_f64, 0.0, 0.0);
    let present = problem.items.iter().map(|item| (item, 1.0));
    let coming = problem.coming.iter().map(|job| (&job.item, job.many));
    for (item, many) in present.chain(coming) {
        let (time, takes) = problem.frugal(item);
        work += takes * many;
        sum += time * many;
        count += many;
        longest = longest.max(time);
    }
    let mean = sum / f64::max(count, 1.0);
    let span = 1.3 * work / problem.capacity.max(1.0) + 2.5 * longest;
    let first = (mean * FIRST).clamp(1e-3, span.max(1.0) / STRETCHES as f64);
    let reach =
        |factor: f64| -> f64 { (0..STRETCHES).map(|at| first * factor.powi(at as i32)).sum() };
    let (mut low, mut high) = (1.0, 8.0);
    for _ in 0..40 {
        let middle = 0.5 * (low + high);
        if reach(middle) < span { low = middle } else { high = middle }
    }
    let mut times = vec![0.0];
    let (mut time, mut length) = (0.0, first);
    for _ in 0..STRETCHES {
        time += length;
        length *= high;
        times.push(time);
    }
    times
}

/// GPUs of each type, and watts, at prices to begin with.
fn goods(problem: &Problem<'_, '_>, times: &[f64]) -> Vec<Curve> {
    let present: f64 = problem.items.iter().map(|item| item.weight).sum();
    let coming = problem.coming.iter().map(|job| job.item.weight * job.many);
    let weights = present + coming.sum::<f64>();
    let span = times[STRETCHES];
    let curve = |capacity: f64, scale: f64| {
        let price = |at: usize| if at < STRETCHES { scale * (1.0 - times[at] / span) } else { 0.0 };
        Curve {
            price: (0..=STRETCHES).map(price).collect(),
            sum: vec![0.0; STRETCHES + 1],
            asked: vec![0.0; STRETCHES],
            capacity,
            scale,
        }
    };
    let per_gpu = weights / problem.capacity.max(1.0);
    let types = problem.gpus_of.iter().zip(&problem.worth);
    let mut goods: Vec<Curve> =
        types.map(|(gpus, worth)| curve(gpus.max(1e-9), per_gpu * worth)).collect();
    let watts = if problem.budget.is_finite() { weights / problem.budget.max(1.0) } else { 0.0 };
    let mut last = curve(problem.budget, watts);
    // Watts are short only where GPUs are not.
    last.price.iter_mut().for_each(|price| *price = 0.0);
    goods.push(last);
    goods
}
