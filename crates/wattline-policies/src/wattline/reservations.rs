//! Generator: one complete schedule for jobs that must keep what they get.
//!
//! Such a job leaves only its turn, its start and its power limit open, and a wrong start cannot be
//! made good. Jobs are taken by apparent tardiness cost, and each takes the candidate and the place
//! that cost it least in a time profile of every node. So large jobs are not starved by small ones,
//! and a job that fits before a reservation starts early (backfill). One order, not the best of
//! several at each event: that breaks reservations for gains that never arrive (decision 38).

use super::{Candidate, Draft, Item, Nodes, Problem, Slot};
use crate::schedule::{Bare, MIN_HOLD, Place, Profile};
use wattline_core::job::Elasticity;

/// What is planned, and when waiting jobs start at the latest, in seconds from now.
pub(super) struct Planned {
    pub(super) draft: Draft,
    pub(super) starts: Vec<Option<f64>>,
}

pub(super) fn plan(problem: &Problem<'_, '_>) -> Planned {
    let mut schedule = Schedule::new(problem);
    if schedule.any_room() {
        schedule.reserve();
    }
    if problem.budget.is_finite() {
        schedule.start_at_any_limit();
        schedule.raise_limits();
    }
    Planned { draft: schedule.draft, starts: schedule.starts }
}

impl Problem<'_, '_> {
    /// Whether jobs that must keep what they get, GPUs and shape, hold most of the GPU time that is
    /// asked for. The others are then left where they run.
    pub(super) fn is_mostly_rigid(&self) -> bool {
        if !self.deadlines || !self.tuning.reservations {
            return false;
        }
        let (mut rigid, mut all) = (0.0, 0.0);
        for item in &self.items {
            let asked = self.frugal(item).1;
            all += asked;
            let job = &self.view.state.job(item.id).job;
            if item.stays && job.elasticity == Elasticity::Rigid {
                rigid += asked;
            }
        }
        rigid > self.tuning.rigid_share * all
    }

    /// GPUs of a candidate, or what its watts are of all there are, whichever is the larger part.
    fn scarcest(&self, candidate: &Candidate) -> f64 {
        let gpus = self.takes(candidate);
        if self.budget.is_finite() {
            gpus.max(self.committed_watts(candidate) / self.budget.max(1.0) * self.capacity)
        } else {
            gpus
        }
    }

    /// What a job costs that runs in a candidate from `start` on for that long.
    fn run_cost(&self, item: &Item, candidate: &Candidate, start: f64, time: f64) -> f64 {
        self.late(item, candidate, start, time)
            + self.prices.watt(start, start + time) * self.usual_watts(candidate)
    }

    fn time(&self, item: &Item, candidate: &Candidate) -> f64 {
        (item.work / candidate.rate + item.load).max(MIN_HOLD)
    }
}

struct Schedule<'p, 'v, 'a> {
    problem: &'p Problem<'v, 'a>,
    order: Vec<usize>,
    price: f64,
    /// All jobs that run or have a reservation, over time.
    profile: Profile,
    /// With the jobs that run or start now.
    nodes: Nodes,
    draft: Draft,
    starts: Vec<Option<f64>>,
}

impl<'p, 'v, 'a> Schedule<'p, 'v, 'a> {
    /// With the jobs that run, at the limits that pay for them.
    fn new(problem: &'p Problem<'v, 'a>) -> Self {
        let (order, weights) = order(problem);
        let price = problem.tuning.gpu_price * weights / problem.capacity.max(1.0);
        let mut draft: Draft = vec![None; problem.items.len()];
        let mut ends = Vec::new();
        for (at, item) in problem.items.iter().enumerate() {
            let Some(Slot { candidate, spot }) = item.at_first() else { continue };
            let candidate =
                if item.runs { limit(problem, item, candidate, price) } else { candidate };
            let slot = Slot { candidate, spot };
            ends.push((at, problem.end(at, &slot).max(MIN_HOLD)));
            draft[at] = Some(slot);
        }
        let nodes = problem.filled(&draft);
        let hosts = problem.empty.usable().map(|(node, class)| {
            let free = problem.empty.free(node);
            let (gpu_type, size, wake) = (class.gpu_type, class.size, class.wake);
            Bare { node, gpu_type, size, free, wake }
        });
        let watts = (problem.empty.committed, problem.budget);
        let mut profile = Profile::new(hosts, problem.gpus_of.len(), watts);
        for (at, time) in ends {
            let Some(slot) = &draft[at] else { continue };
            profile.take(&slot.spot, (0.0, time), problem.committed_watts(problem.of(slot)));
        }
        let starts = vec![None; problem.items.len()];
        Self { problem, order, price, profile, nodes, draft, starts }
    }

    /// Whether some waiting job finds as many GPUs free as it needs.
    fn any_room(&self) -> bool {
        let mut candidates = self.order.iter().flat_map(|at| self.problem.candidates_of(*at));
        candidates.any(|c| self.nodes.free_of[c.gpu_type()] >= c.shape.gpus)
    }

    /// Reservations for the first jobs; those behind them start now or wait.
    fn reserve(&mut self) {
        let mut first = self.order.clone();
        let behind = first.split_off(first.len().min(self.problem.tuning.reservation_depth));
        for at in first {
            if let Some((candidate, found)) = self.choose(at) {
                self.take(at, candidate, found);
            }
        }
        // A shape that does not fit now for some time does not fit for longer.
        let mut refused: Vec<(usize, u32, f64)> = Vec::new();
        for at in behind {
            if self.nodes.free_of.iter().all(|free| *free == 0) {
                break;
            }
            let problem = self.problem;
            for candidate in problem.candidates_of(at) {
                let (kind, gpus) = (candidate.gpu_type(), candidate.shape.gpus);
                let time = problem.time(&problem.items[at], candidate);
                let known = |(k, g, t): &(usize, u32, f64)| *k == kind && *g <= gpus && *t <= time;
                if self.nodes.free_of[kind] < gpus || refused.iter().any(known) {
                    continue;
                }
                match self.earliest(candidate, time).filter(|(place, _)| place.start <= 0.0) {
                    Some(found) => {
                        self.take(at, candidate.index, found);
                        break;
                    }
                    None => refused.push((kind, gpus, time)),
                }
            }
        }
    }

    /// The job starts there now, or has its reservation there.
    fn take(&mut self, at: usize, index: u32, (place, watts): (Place, f64)) {
        let problem = self.problem;
        let candidate = problem.candidate(index);
        let end = place.start + place.wake + problem.time(&problem.items[at], candidate);
        self.profile.take(&place.spot, (place.start, end), watts);
        if place.start <= 0.0 {
            self.nodes.take(&place.spot, candidate.limit);
            self.draft[at] = Some(Slot { candidate: index, spot: place.spot });
        } else {
            self.starts[at] = Some(place.start);
        }
    }

    /// The cheapest candidate of a job, where it can start first, and the watts it needs there.
    fn choose(&self, at: usize) -> Option<(u32, (Place, f64))> {
        let problem = self.problem;
        let item = &problem.items[at];
        let mut best: Option<(f64, u32, (Place, f64))> = None;
        let mut last: Option<(&Candidate, Place)> = None;
        for candidate in problem.candidates_of(at) {
            let time = problem.time(item, candidate);
            // Limits of a shape differ in time alone, so that most can share a place.
            let shared = last.take().filter(|(other, place)| {
                other.same_but_limit(candidate) && self.fits(candidate, place, time)
            });
            let own = |(_, place)| (place, problem.committed_watts(candidate));
            let found = shared.map(own).or_else(|| self.earliest(candidate, time));
            let Some((place, watts)) = found else { continue };
            let takes = time + place.wake;
            let cost = problem.run_cost(item, candidate, place.start, takes)
                + self.price * problem.scarcest(candidate) * takes
                + problem.tuning.wait_price * item.weight * place.start;
            last = Some((candidate, place.clone()));
            if best.as_ref().is_none_or(|(least, _, _)| cost < *least) {
                best = Some((cost, candidate.index, (place, watts)));
            }
        }
        best.map(|(_, candidate, place)| (candidate, place))
    }

    fn fits(&self, candidate: &Candidate, place: &Place, time: f64) -> bool {
        let span = (place.start, place.start + place.wake + time);
        self.profile.is_free(&place.spot, span, self.problem.committed_watts(candidate))
            && (place.start > 0.0 || self.can_start(candidate, place, time))
    }

    /// Where a candidate is free first for that long, and the watts that it needs there.
    fn earliest(&self, candidate: &Candidate, time: f64) -> Option<(Place, f64)> {
        let (gpu_type, gpus) = (candidate.gpu_type(), candidate.shape.gpus);
        let watts = self.problem.committed_watts(candidate);
        let place = self.profile.earliest(gpu_type, gpus, (time, watts), 0.0)?;
        if place.start > 0.0 || self.can_start(candidate, &place, time) {
            return Some((place, watts));
        }
        let from = (self.turnover(candidate).unwrap_or(0.0) - self.problem.tuning.turnover_s)
            .max(MIN_HOLD);
        // Nodes that are partly used take more than their share: those watts are kept too, or they
        // go to others again and again.
        let more = watts + self.shortage(candidate, &place);
        let later = |watts| {
            let place = self.profile.earliest(gpu_type, gpus, (time, watts), from)?;
            Some((place, watts))
        };
        later(more).or_else(|| later(watts))
    }

    fn shortage(&self, candidate: &Candidate, place: &Place) -> f64 {
        let rise = |(node, gpus): &(u32, u8)| self.nodes.rise(*node, *gpus, candidate.limit);
        let needs = self.nodes.committed + place.spot.iter().map(rise).sum::<f64>();
        (needs - self.problem.budget).max(0.0)
    }

    /// Whether the budget carries a start at once, and headroom is left for short jobs.
    fn can_start(&self, candidate: &Candidate, place: &Place, time: f64) -> bool {
        let turnover = self.problem.tuning.turnover_s;
        self.shortage(candidate, place) <= 0.0
            && (time <= turnover || self.turnover(candidate).is_none_or(|from| from <= turnover))
    }

    /// From when on headroom is left beside a candidate, if ever. A job for which the whole type is
    /// just enough needs the whole type.
    fn turnover(&self, candidate: &Candidate) -> Option<f64> {
        let gpu_type = candidate.gpu_type();
        let all = self.problem.gpus_of[gpu_type];
        // Whole GPUs: a type with fewer than 17 keeps none.
        let kept = (self.problem.tuning.headroom * all).floor();
        self.profile.free_from(gpu_type, (candidate.gpus() + kept).min(all) as u32)
    }

    /// Watts that are left go to jobs that run at a lower limit than pays.
    fn raise_limits(&mut self) {
        let problem = self.problem;
        for (item, place) in problem.items.iter().zip(&mut self.draft) {
            let Some(slot) = place.as_mut().filter(|_| item.runs) else { continue };
            let has = problem.of(slot);
            let cost = |c: &Candidate| problem.run_cost(item, c, 0.0, item.work / c.rate);
            let enough = cost(has) * (1.0 - problem.tuning.limit_gain);
            let candidates = problem.candidates_in(item).iter();
            let higher = candidates.filter(|c| c.limit > has.limit && c.same_but_limit(has));
            let mut better: Vec<(f64, &Candidate)> =
                higher.map(|c| (cost(c), c)).filter(|(cost, _)| *cost < enough).collect();
            better.sort_by(|a, b| a.0.total_cmp(&b.0));
            self.nodes.give_back(&slot.spot, has.limit);
            let fits = |(_, c): &&(f64, &Candidate)| problem.fits(&self.nodes, &slot.spot, c.limit);
            slot.candidate = better.iter().find(fits).map_or(has.index, |(_, c)| c.index);
            problem.take(&mut self.nodes, slot);
        }
    }

    /// Where nothing at all runs for want of watts, the first job starts that can.
    fn start_at_any_limit(&mut self) {
        let problem = self.problem;
        if self.draft.iter().any(Option::is_some) {
            return;
        }
        for at in &self.order {
            let mut candidates: Vec<&Candidate> = problem.candidates_of(*at).iter().collect();
            candidates.sort_by(|a, b| b.limit.total_cmp(&a.limit));
            if let Some(slot) = candidates.iter().find_map(|c| problem.slot(&self.nodes, c)) {
                self.draft[*at] = Some(slot);
                return;
            }
        }
    }
}

/// Waiting jobs by apparent tardiness cost, overdue ones first; and the sum of their weights.
fn order(problem: &Problem<'_, '_>) -> (Vec<usize>, f64) {
    let waiting = || problem.items.iter().enumerate().filter(|(_, item)| item.now.is_none());
    // The time of a job in its fastest candidate, and the GPU time that takes.
    let briefly = |item: &Item| {
        let candidates = problem.candidates_in(item).iter().map(|candidate| {
            let time = problem.time(item, candidate);
            (time * candidate.later, time * problem.takes(candidate))
        });
        candidates.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, 0.0))
    };
    let mut jobs: Vec<(usize, f64, f64)> = Vec::new();
    let (mut weights, mut backlog) = (0.0, 0.0);
    for (at, item) in waiting() {
        let (time, area) = briefly(item);
        weights += item.weight;
        backlog += area / problem.capacity.max(1.0);
        jobs.push((at, time, area));
    }
    let mean = problem.tuning.slack_scale * problem.mean_time.max(1.0);
    let key = |(at, time, area): (usize, f64, f64)| {
        let item = &problem.items[at];
        // No job can be served sooner than the waiting work takes: where all have waited for long,
        // that alone puts no job before others.
        if item.over >= backlog {
            return (0_u8, -item.over, at);
        }
        // A job that may be late for nothing is due when it would be overdue.
        let job = &problem.view.state.job(item.id).job;
        let free = job.deadline.is_none() || job.weight.get() <= 0.0;
        let due = if free { -item.over } else { item.due };
        // A deadline that can still be met is worth as much as it costs to miss it.
        let at_stake = if due >= time { item.missed / problem.mean_time.max(1.0) } else { 0.0 };
        let density = ((item.weight + at_stake) / area.max(1e-9)).max(1e-30);
        (1, (due - time).max(0.0) / mean - density.ln(), at)
    };
    let mut keys: Vec<(u8, f64, usize)> = jobs.into_iter().map(key).collect();
    keys.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
    (keys.into_iter().map(|(_, _, at)| at).collect(), weights)
}

/// The power limit at which a running job goes on.
fn limit(problem: &Problem<'_, '_>, item: &Item, has: u32, price: f64) -> u32 {
    let cost = |candidate: &Candidate| {
        let time = item.work / candidate.rate;
        problem.run_cost(item, candidate, 0.0, time) + price * problem.scarcest(candidate) * time
    };
    let now = problem.candidate(has);
    let affordable = |c: &&Candidate| c.limit <= now.limit || !problem.budget.is_finite();
    let alike = problem.candidates_in(item).iter().filter(|c| c.same_but_limit(now));
    let costs = alike.filter(affordable).map(|c| (cost(c), c.index));
    let best = costs.min_by(|a, b| a.0.total_cmp(&b.0));
    let enough = cost(now) * (1.0 - problem.tuning.limit_gain);
    best.filter(|(least, _)| *least < enough).map_or(has, |(_, candidate)| candidate)
}
