//! Generator: what GPU time and watts will be worth, slot by slot.
//!
//! Each job, present or expected, bids for GPU time: it takes the candidate and the start that cost
//! it least, with energy, lateness, and the price of what it takes from others. Prices rise where
//! demand exceeds the supply, and fall where it does not. They are the multipliers of the capacity
//! constraints in the relaxed problem, found by a subgradient method; the bound that `compare`
//! prints rests on the same idea. What follows for each job is what a later start would cost it.

use super::constants::{SLOT_HALVINGS, TERMS_PER_GROUP};
use super::{Candidate, Item, Problem, Tuning, ordered_par_map};
use std::ops::Range;

/// Prices over time, and what follows for each job.
pub(super) struct Market {
    /// Begins of the slots, and the end of the last one.
    times: Vec<f64>,
    /// By GPU type, and last for watts: prices.
    goods: Vec<Curve>,
    /// By item: the least it costs to start later.
    pub(super) later: Vec<f64>,
    /// By item: what a unit of its work costs later.
    pub(super) unit: Vec<f64>,
    /// How much a GPU and a committed watt count of what is scarce at present.
    scarcity: (f64, f64),
}

/// Factors on prices: they are right for all jobs together, and one moment has its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    pub(super) gpus: f64,
    pub(super) watts: f64,
}

pub(super) const USUAL: Level = Level { gpus: 1.0, watts: 1.0 };

/// The price of a good over time.
#[derive(Clone, Debug)]
struct Curve {
    /// Of a second in each slot; nothing after the last.
    price: Vec<f64>,
    /// Of all time until a slot begins.
    sum: Vec<f64>,
    capacity: f64,
    /// What is asked for in each slot.
    demand: Vec<f64>,
    scale: f64,
}

impl Curve {
    fn add_up(&mut self, times: &[f64]) {
        for at in 0..self.demand.len() {
            self.sum[at + 1] = self.sum[at] + self.price[at] * (times[at + 1] - times[at]);
        }
    }
}

/// A candidate to run, as a bidder sees it.
struct Bid {
    candidate: u32,
    good: u16,
    gpus: f64,
    watts: f64,
    /// Into the terms: one for each slot it may start in.
    terms: u32,
    from: u16,
}

/// A bid with a start.
#[derive(Clone, Copy)]
struct Term {
    /// What it costs apart from what is taken from others.
    base: f64,
    /// The slot it ends in, and how many seconds into that.
    end: u32,
    into: f32,
}

#[derive(Default)]
struct Bidders {
    /// Of bidder i: bids `first[i]..first[i + 1]`.
    first: Vec<u32>,
    bids: Vec<Bid>,
    terms: Vec<Term>,
    /// By bidder: how many jobs it stands for.
    count: Vec<f64>,
}

impl Bidders {
    fn of(&self, bidder: usize) -> &[Bid] {
        &self.bids[self.first[bidder] as usize..self.first[bidder + 1] as usize]
    }

    /// Bidders in groups that have enough to look at for a core of their own.
    fn groups(&self) -> Vec<Range<usize>> {
        let bidders = self.count.len();
        let groups = (self.terms.len() / TERMS_PER_GROUP).clamp(1, bidders.max(1));
        let size = bidders.div_ceil(groups).max(1);
        (0..bidders).step_by(size).map(|from| from..(from + size).min(bidders)).collect()
    }
}

impl Market {
    pub(super) fn new(problem: &Problem<'_, '_>, work: u64) -> Self {
        let times = slot_times(problem);
        let mut market = Self {
            goods: goods(problem, &times),
            times,
            later: Vec::new(),
            unit: Vec::new(),
            scarcity: (0.0, 0.0),
        };
        let bidders = market.collect_bids(problem);
        market.bid(problem.tuning, &bidders, work);
        market.value_jobs(problem, &bidders);
        market.scarcity = market.scarcity(problem);
        market
    }

    /// What the GPU time and the watts of a candidate cost from a start on for so long.
    pub(super) fn taken(
        &self,
        candidate: &Candidate,
        watts: f64,
        (start, time): (f64, f64),
        level: Level,
    ) -> f64 {
        let gpus = &self.goods[candidate.gpu_type()];
        let last = &self.goods[self.goods.len() - 1];
        let until = |time: f64| {
            let of_watts = if last.capacity.is_finite() { self.until(last, time) } else { 0.0 };
            level.gpus * candidate.gpus() * self.until(gpus, time) + level.watts * watts * of_watts
        };
        if start == 0.0 { until(time) } else { until(start + time) - until(start) }
    }

    pub(super) fn later_starts(&self) -> impl Iterator<Item = f64> {
        self.times[1..self.slots()].iter().copied()
    }

    /// How much of what is scarce now a candidate takes.
    pub(super) fn scarce(&self, problem: &Problem<'_, '_>, candidate: &Candidate) -> f64 {
        candidate.gpus() * self.scarcity.0 + problem.committed_watts(candidate) * self.scarcity.1
    }

    /// GPUs count alone without a budget; with one, GPUs and watts by what all of them are worth.
    fn scarcity(&self, problem: &Problem<'_, '_>) -> (f64, f64) {
        let gpus: f64 = problem.gpus_of.iter().sum();
        let (types, last) = self.goods.split_at(self.goods.len() - 1);
        let Some(last) = last.first().filter(|last| last.capacity.is_finite()) else {
            return (1.0, 0.0);
        };
        let worth = |curve: &Curve| curve.sum[2] / self.times[2] * curve.capacity;
        let (of_gpus, of_watts) = (types.iter().map(worth).sum::<f64>(), worth(last));
        let all = (of_gpus + of_watts).max(1e-30);
        let of_gpus = of_gpus / all + problem.tuning.gpu_scarcity_min;
        (of_gpus / gpus.max(1.0), of_watts / all / last.capacity)
    }

    fn slots(&self) -> usize {
        self.times.len() - 1
    }

    fn slot_at(&self, time: f64) -> usize {
        self.times.partition_point(|begin| *begin <= time).max(1) - 1
    }

    fn until(&self, curve: &Curve, time: f64) -> f64 {
        let at = self.slot_at(time);
        curve.sum[at] + (time - self.times[at]) * curve.price[at]
    }

    fn collect_bids(&self, problem: &Problem<'_, '_>) -> Bidders {
        let mut all = Bidders { first: vec![0], ..Bidders::default() };
        // With many jobs, a few candidates of each tell enough.
        let few = problem.items.len() <= problem.tuning.few_jobs;
        let most = if few { usize::MAX } else { problem.tuning.few_bids };
        let present = problem.items.iter().map(|item| (item, 0.0, 1.0));
        let coming = problem.arrivals.iter().map(|job| (&job.item, job.at, job.count));
        for (item, release, count) in present.chain(coming) {
            let step = item.candidates.len().div_ceil(most);
            for candidate in problem.candidates_in(item).iter().step_by(step) {
                self.add(problem, &mut all, (item, candidate), release);
            }
            all.first.push(all.bids.len() as u32);
            all.count.push(count);
        }
        all
    }

    fn add(
        &self,
        problem: &Problem<'_, '_>,
        all: &mut Bidders,
        (item, candidate): (&Item, &Candidate),
        release: f64,
    ) {
        let from = self.times[..self.slots()].partition_point(|begin| *begin < release);
        let watts = problem.usual_watts(candidate);
        let same = problem.goes_on(item, candidate).is_some();
        all.bids.push(Bid {
            candidate: candidate.index,
            good: candidate.gpu_type() as u16,
            gpus: candidate.gpus(),
            watts: problem.committed_watts(candidate),
            terms: all.terms.len() as u32,
            from: from as u16,
        });
        for slot in from..self.slots() {
            let start = self.times[slot];
            let stays = same && slot == 0;
            let (lost, restart) = problem.starting(item, stays);
            let time = item.work / candidate.rate + lost;
            let base = problem.prices.watt(start, start + time) * watts
                + problem.late(item, candidate, start, time)
                + restart;
            let end = self.slot_at(start + time);
            let into = (start + time - self.times[end]) as f32;
            all.terms.push(Term { base, end: end as u32, into });
        }
    }

    /// The best bid of each job, and the prices that follow, round by round.
    fn bid(&mut self, tuning: &Tuning, bidders: &Bidders, work: u64) {
        let bids = work.saturating_mul(tuning.bids_per_work as u64);
        let rounds = (bids / bidders.terms.len().max(1) as u64) as usize;
        let rounds = rounds.max(tuning.rounds_min).min(tuning.rounds_max);
        let averaged = rounds - rounds / 2;
        let groups = bidders.groups();
        let mut mean: Vec<Vec<f64>> = vec![vec![0.0; self.times.len()]; self.goods.len()];
        for round in 0..rounds {
            for curve in &mut self.goods {
                curve.add_up(&self.times);
                curve.demand.fill(0.0);
            }
            let chosen = ordered_par_map(&groups, |group| {
                let best = |bidder: usize| self.best(bidders.of(bidder), &bidders.terms, 0);
                group.clone().map(best).collect::<Vec<_>>()
            });
            for (best, count) in chosen.into_iter().flatten().zip(&bidders.count) {
                if let Some((bid, start, _)) = best {
                    let term = bidders.terms[bid.terms as usize + start - usize::from(bid.from)];
                    self.add_demand(bid, start, term, *count);
                }
            }
            let step = tuning.price_step / (1.0 + round as f64).sqrt();
            for (curve, mean) in self.goods.iter_mut().zip(&mut mean) {
                let prices = curve.price.iter_mut().zip(&curve.demand).zip(mean);
                for ((price, demand), mean) in prices {
                    let over = (demand / curve.capacity - 1.0).clamp(-1.0, 1.0);
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

    /// The cheapest bid that starts in this slot or later.
    fn best<'b>(
        &self,
        bids: &'b [Bid],
        terms: &[Term],
        first: usize,
    ) -> Option<(&'b Bid, usize, f64)> {
        let last = &self.goods[self.goods.len() - 1];
        let (capped, slots) = (last.capacity.is_finite(), self.slots());
        let mut best: Option<(&Bid, usize, f64)> = None;
        let mut least = f64::INFINITY;
        for bid in bids {
            let curve = &self.goods[usize::from(bid.good)];
            let from = usize::from(bid.from);
            let begin = from.max(first);
            let terms = &terms[bid.terms as usize..bid.terms as usize + slots - from];
            for (start, term) in (from..slots).zip(terms).skip(begin - from) {
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

    fn add_demand(&mut self, bid: &Bid, start: usize, term: Term, count: f64) {
        let last = self.goods.len() - 1;
        for (good, amount) in [(usize::from(bid.good), bid.gpus * count), (last, bid.watts * count)]
        {
            let demand = &mut self.goods[good].demand;
            let end = term.end as usize;
            demand[start..end].iter_mut().for_each(|demand| *demand += amount);
            if end < demand.len() {
                let length = self.times[end + 1] - self.times[end];
                demand[end] += amount * f64::from(term.into) / length;
            }
        }
    }

    fn value_jobs(&mut self, problem: &Problem<'_, '_>, bidders: &Bidders) {
        for (at, item) in problem.items.iter().enumerate() {
            let best = self.best(bidders.of(at), &bidders.terms, 1);
            let (later, unit) =
                best.map_or((f64::INFINITY, f64::INFINITY), |(bid, start, cost)| {
                    let candidate = problem.candidate(bid.candidate);
                    let (begin, time) = (self.times[start], item.work / candidate.rate);
                    let late = problem.late(item, candidate, begin, time);
                    let pressing = if late > 0.0 { item.weight * time } else { 0.0 };
                    (cost, (cost - late + pressing) / item.work.max(1e-9))
                });
            self.later.push(later);
            self.unit.push(unit);
        }
    }
}

/// Short slots first, until all jobs could be done.
fn slot_times(problem: &Problem<'_, '_>) -> Vec<f64> {
    let (mut work, mut longest, mut sum, mut jobs) = (0.0, 0.0_f64, 0.0, 0.0);
    let present = problem.items.iter().map(|item| (item, 1.0));
    let coming = problem.arrivals.iter().map(|job| (&job.item, job.count));
    for (item, count) in present.chain(coming) {
        let (time, takes) = problem.frugal(item);
        work += takes * count;
        sum += time * count;
        jobs += count;
        longest = longest.max(time);
    }
    let mean = sum / f64::max(jobs, 1.0);
    let (tuning, slots) = (problem.tuning, problem.tuning.slots);
    let all_work = tuning.horizon_work * work / problem.capacity.max(1.0);
    let span = all_work + tuning.horizon_runs * longest;
    let first = (mean * tuning.first_slot_share).clamp(1e-3, span.max(1.0) / slots as f64);
    let reach = |factor: f64| -> f64 { (0..slots).map(|at| first * factor.powi(at as i32)).sum() };
    let (mut low, mut high) = (1.0, 8.0);
    for _ in 0..SLOT_HALVINGS {
        let middle = 0.5 * (low + high);
        if reach(middle) < span { low = middle } else { high = middle }
    }
    let mut times = vec![0.0];
    let (mut time, mut length) = (0.0, first);
    for _ in 0..slots {
        time += length;
        length *= high;
        times.push(time);
    }
    times
}

/// GPUs of each type, and watts, at prices to begin with.
fn goods(problem: &Problem<'_, '_>, times: &[f64]) -> Vec<Curve> {
    let present: f64 = problem.items.iter().map(|item| item.weight).sum();
    let coming = problem.arrivals.iter().map(|job| job.item.weight * job.count);
    let weights = present + coming.sum::<f64>();
    let slots = times.len() - 1;
    let span = times[slots];
    let curve = |capacity: f64, scale: f64| {
        let price = |at: usize| if at < slots { scale * (1.0 - times[at] / span) } else { 0.0 };
        Curve {
            price: (0..=slots).map(price).collect(),
            sum: vec![0.0; slots + 1],
            demand: vec![0.0; slots],
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
