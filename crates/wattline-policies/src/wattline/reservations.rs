//! Schedules for jobs that must keep what they get.
//!
//! A job that may not be moved once it runs, or run in another shape, leaves only its turn, its start
//! and its power limit open, and a wrong start cannot be made good. Here every job gets a
//! reservation: jobs are taken by apparent tardiness cost, and each takes the configuration and the
//! place that cost it least in a time profile of every node. So large jobs are not starved by small
//! ones, and whoever fits before a reservation starts early (backfill).
//!
//! One order, not the best of several at every event: the cost of known jobs says too little about
//! the jobs to come, and changing the order from event to event breaks reservations for gains that
//! never arrive (decision 38 has the figures).

use super::candidates::Way;
use super::model::{Draft, Item, Problem, Slot};
use super::nodes::{NO_CLASS, Nodes};
use crate::schedule::{Bare, MIN_HOLD, Place, Profile};
use wattline_core::job::Elasticity;

/// What is planned, and when waiting jobs start at the latest, in seconds from now.
pub(super) struct Planned {
    pub(super) draft: Draft,
    pub(super) starts: Vec<Option<f64>>,
}

/// The plan.
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

    /// GPUs of a way, or what its watts are of all there are, whichever is the larger part.
    fn scarcest(&self, way: &Way) -> f64 {
        let gpus = self.takes(way);
        if self.budget.is_finite() {
            gpus.max(self.committed_watts(way) / self.budget.max(1.0) * self.capacity)
        } else {
            gpus
        }
    }

    /// What a job costs that runs in a way from `start` on for that long.
    fn run_cost(&self, item: &Item, way: &Way, start: f64, time: f64) -> f64 {
        self.late(item, way, start, time)
            + self.prices.watt(start, start + time) * self.usual_watts(way)
    }

    /// Its time to the end, with its start.
    fn time(&self, item: &Item, way: &Way) -> f64 {
        (item.work / way.rate + item.load).max(MIN_HOLD)
    }
}

/// A schedule in the making.
struct Schedule<'p, 'v, 'a> {
    problem: &'p Problem<'v, 'a>,
    /// Jobs in the order in which they choose.
    order: Vec<usize>,
    /// What a GPU-second costs.
    price: f64,
    /// All jobs that run or have a reservation, over time.
    profile: Profile,
    /// Who runs or starts now.
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
            let Some(Slot { way, spot }) = item.at_first() else { continue };
            let way = if item.runs { limit(problem, item, way, price) } else { way };
            let slot = Slot { way, spot };
            let time = item.work / problem.way(way).rate + problem.lost(at, &slot);
            ends.push((at, time.max(MIN_HOLD)));
            draft[at] = Some(slot);
        }
        let nodes = problem.filled(&draft);
        let all = 0..problem.view.state.cluster().nodes().len() as u32;
        let hosts = all.filter(|node| nodes.class_of(*node) != NO_CLASS).map(|node| {
            let class = &problem.classes[usize::from(nodes.class_of(node))];
            let free = problem.empty.free(node);
            let (gpu_type, size, wake) = (class.gpu_type, class.size, class.wake);
            Bare { node, gpu_type, size, free, wake }
        });
        let watts = (problem.empty.committed, problem.budget);
        let mut profile = Profile::new(hosts, problem.gpus_of.len(), watts);
        for (at, time) in ends {
            let Some(slot) = &draft[at] else { continue };
            let way = problem.way(slot.way);
            profile.take(&slot.spot, (0.0, time), problem.committed_watts(way));
        }
        let starts = vec![None; problem.items.len()];
        Self { problem, order, price, profile, nodes, draft, starts }
    }

    /// Whether some waiting job finds as many GPUs free as it needs.
    fn any_room(&self) -> bool {
        let mut ways = self.order.iter().flat_map(|at| self.problem.ways_of(*at));
        ways.any(|(_, way)| self.nodes.free_of[way.shape.gpu_type.index()] >= way.shape.gpus)
    }

    /// Reservations for the first jobs; those behind them start now or wait.
    fn reserve(&mut self) {
        let (first, behind) =
            self.order.split_at(self.order.len().min(self.problem.tuning.reservation_depth));
        let (first, behind) = (first.to_vec(), behind.to_vec());
        for at in first {
            if let Some((way, found)) = self.choose(at) {
                self.take(at, way, found);
            }
        }
        // A shape that does not fit now for some time does not fit for longer.
        let mut refused: Vec<(usize, u32, f64)> = Vec::new();
        for at in behind {
            if self.nodes.free_of.iter().all(|free| *free == 0) {
                break;
            }
            let problem = self.problem;
            for (index, way) in problem.ways_of(at) {
                let (kind, gpus) = (way.shape.gpu_type.index(), way.shape.gpus);
                let time = problem.time(&problem.items[at], way);
                let known = |(k, g, t): &(usize, u32, f64)| *k == kind && *g <= gpus && *t <= time;
                if self.nodes.free_of[kind] < gpus || refused.iter().any(known) {
                    continue;
                }
                match self.earliest(way, time).filter(|(place, _)| place.start <= 0.0) {
                    Some(found) => {
                        self.take(at, index, found);
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
        let way = problem.way(index);
        let end = place.start + place.wake + problem.time(&problem.items[at], way);
        self.profile.take(&place.spot, (place.start, end), watts);
        if place.start <= 0.0 {
            self.nodes.take(&problem.classes, &place.spot, way.limit);
            self.draft[at] = Some(Slot { way: index, spot: place.spot });
        } else {
            self.starts[at] = Some(place.start);
        }
    }

    /// The cheapest way of a job, where it can start first, and the watts that it needs there.
    fn choose(&self, at: usize) -> Option<(u32, (Place, f64))> {
        let problem = self.problem;
        let item = &problem.items[at];
        let mut best: Option<(f64, u32, (Place, f64))> = None;
        let mut last: Option<(u32, Place)> = None;
        for (index, way) in problem.ways_of(at) {
            let time = problem.time(item, way);
            // Limits of a shape differ in time alone, so that most can share a place.
            let shared = last.take().filter(|(other, place)| {
                problem.same_but_limit(*other, index) && self.fits(way, place, time)
            });
            let own = |(_, place)| (place, problem.committed_watts(way));
            let found = shared.map(own).or_else(|| self.earliest(way, time));
            let Some((place, watts)) = found else { continue };
            let takes = time + place.wake;
            let cost = problem.run_cost(item, way, place.start, takes)
                + self.price * problem.scarcest(way) * takes
                + problem.tuning.wait_price * item.weight * place.start;
            last = Some((index, place.clone()));
            if best.as_ref().is_none_or(|(least, _, _)| cost < *least) {
                best = Some((cost, index, (place, watts)));
            }
        }
        best.map(|(_, way, place)| (way, place))
    }

    fn fits(&self, way: &Way, place: &Place, time: f64) -> bool {
        let span = (place.start, place.start + place.wake + time);
        self.profile.is_free(&place.spot, span, self.problem.committed_watts(way))
            && (place.start > 0.0 || self.can_start(way, place, time))
    }

    /// Where a way is free first for that long, and the watts that it needs there.
    fn earliest(&self, way: &Way, time: f64) -> Option<(Place, f64)> {
        let (gpu_type, gpus) = (way.shape.gpu_type.index(), way.shape.gpus);
        let watts = self.problem.committed_watts(way);
        let place = self.profile.earliest(gpu_type, gpus, (time, watts), 0.0)?;
        if place.start > 0.0 || self.can_start(way, &place, time) {
            return Some((place, watts));
        }
        let from =
            (self.turnover(way).unwrap_or(0.0) - self.problem.tuning.turnover_s).max(MIN_HOLD);
        // Nodes that are partly used take more than their share: those watts are kept too, or they
        // go to others again and again.
        let more = watts + self.shortage(way, &place);
        let later = |watts| {
            let place = self.profile.earliest(gpu_type, gpus, (time, watts), from)?;
            Some((place, watts))
        };
        later(more).or_else(|| later(watts))
    }

    /// Watts that the budget lacks for a start at once.
    fn shortage(&self, way: &Way, place: &Place) -> f64 {
        let classes = &self.problem.classes;
        let rise = |(node, gpus): &(u32, u8)| self.nodes.rise(classes, *node, *gpus, way.limit);
        let needs = self.nodes.committed + place.spot.iter().map(rise).sum::<f64>();
        (needs - self.problem.budget).max(0.0)
    }

    /// Whether the budget carries a start at once, and headroom is left for short jobs.
    fn can_start(&self, way: &Way, place: &Place, time: f64) -> bool {
        let turnover = self.problem.tuning.turnover_s;
        self.shortage(way, place) <= 0.0
            && (time <= turnover || self.turnover(way).is_none_or(|from| from <= turnover))
    }

    /// From when on headroom is left beside a way, if that is ever so. A job for which the whole type
    /// is just enough needs the whole type.
    fn turnover(&self, way: &Way) -> Option<f64> {
        let gpu_type = way.shape.gpu_type.index();
        let all = self.problem.gpus_of[gpu_type];
        // Whole GPUs: a type with fewer than 17 keeps none.
        let kept = (self.problem.tuning.headroom * all).floor();
        self.profile.free_from(gpu_type, (way.gpus() + kept).min(all) as u32)
    }

    /// Watts that are left go to those who run at a lower limit than pays.
    fn raise_limits(&mut self) {
        let problem = self.problem;
        for (item, place) in problem.items.iter().zip(&mut self.draft) {
            let Some(slot) = place.as_mut().filter(|_| item.runs) else { continue };
            let has = problem.way(slot.way).limit;
            let cost = |way: &Way| problem.run_cost(item, way, 0.0, item.work / way.rate);
            let enough = cost(problem.way(slot.way)) * (1.0 - problem.tuning.limit_gain);
            let mut better: Vec<(f64, u32)> = problem
                .ways_in(item)
                .filter(|(index, way)| way.limit > has && problem.same_but_limit(*index, slot.way))
                .map(|(index, way)| (cost(way), index))
                .filter(|(cost, _)| *cost < enough)
                .collect();
            better.sort_by(|a, b| a.0.total_cmp(&b.0));
            self.nodes.give_back(&problem.classes, &slot.spot, has);
            let fits = |(_, way): &&(f64, u32)| {
                problem.fits(&self.nodes, &slot.spot, problem.way(*way).limit)
            };
            if let Some((_, way)) = better.iter().find(fits) {
                slot.way = *way;
            }
            self.nodes.take(&problem.classes, &slot.spot, problem.way(slot.way).limit);
        }
    }

    /// Where nothing at all runs for want of watts, the first job starts that can.
    fn start_at_any_limit(&mut self) {
        let problem = self.problem;
        if self.draft.iter().any(Option::is_some) {
            return;
        }
        for at in &self.order {
            let mut ways: Vec<(u32, &Way)> = problem.ways_of(*at).collect();
            ways.sort_by(|a, b| b.1.limit.total_cmp(&a.1.limit));
            let mut places = ways.into_iter();
            let found = places.find_map(|(way, it)| {
                problem.place(&self.nodes, it).map(|(spot, _, _)| (way, spot))
            });
            if let Some((way, spot)) = found {
                self.draft[*at] = Some(Slot { way, spot });
                return;
            }
        }
    }
}

/// Waiting jobs by apparent tardiness cost, overdue ones first; and the sum of their weights.
fn order(problem: &Problem<'_, '_>) -> (Vec<usize>, f64) {
    let waiting = || problem.items.iter().enumerate().filter(|(_, item)| item.now.is_none());
    // The time of a job in its fastest way, and the GPU time that takes.
    let briefly = |item: &Item| {
        let ways = problem.ways_in(item).map(|(_, way)| {
            let time = problem.time(item, way);
            (time * way.later, time * problem.takes(way))
        });
        ways.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, 0.0))
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
        // Nobody can be served within less than the work takes that waits: where everybody has
        // waited for long, that alone puts no job before others.
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
    let cost = |way: &Way| {
        let time = item.work / way.rate;
        problem.run_cost(item, way, 0.0, time) + price * problem.scarcest(way) * time
    };
    let now = problem.way(has);
    let alike = problem.ways_in(item).filter(|(index, way)| {
        let affordable = way.limit <= now.limit || !problem.budget.is_finite();
        affordable && problem.same_but_limit(*index, has)
    });
    let best = alike.map(|(index, way)| (cost(way), index)).min_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(least, _)| *least < cost(now) * (1.0 - problem.tuning.limit_gain))
        .map_or(has, |(_, way)| way)
}
