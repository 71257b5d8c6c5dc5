//! Nodes are filled, most pressing jobs first, at the market's prices.

use super::candidates::Way;
use super::constants::{OVERDUE, PROMISE};
use super::market::{Level, Market};
use super::model::{Draft, Item, Problem, Slot};
use super::nodes::Nodes;
use super::waiting::{Behind, Company};

/// A draft and what it is worth.
#[derive(Clone, Debug)]
pub(super) struct Filled {
    pub(super) draft: Draft,
    /// What the jobs that run gain each second against a later start.
    pub(super) gain: f64,
}

/// What it costs to start in some way now.
struct Costs {
    /// With what it takes from others, and without.
    price: f64,
    own: f64,
    time: f64,
}

/// A way to start now.
struct Offer {
    slot: Slot,
    costs: Costs,
    watts: f64,
}

/// Fills nodes at market prices.
pub(super) struct Filler<'p, 'v, 'a> {
    pub(super) problem: &'p Problem<'v, 'a>,
    pub(super) market: &'p Market,
    pub(super) company: Company,
}

impl Filler<'_, '_, '_> {
    /// Jobs by what they lose each second by waiting, for what they take; those that lose most come
    /// first.
    pub(super) fn order(&self, level: Level) -> Vec<u32> {
        let (problem, market) = (self.problem, self.market);
        let key = |(at, item): (usize, &Item)| {
            if item.overdue {
                return (OVERDUE + item.over, at as u32);
            }
            let now = item.now.as_ref().filter(|_| item.runs);
            let (mut least, mut takes) = (f64::INFINITY, 1.0);
            for (index, way) in problem.ways_in(item) {
                let stays = now.is_some_and(|now| problem.same_but_limit(now.way, index));
                let costs = self.costs(item, way, (problem.usual_watts(way), 0.0), stays, level);
                if costs.price < least {
                    let takes_now = item.work / way.rate * market.scarce(problem, way);
                    (least, takes) = (costs.price, takes_now);
                }
            }
            ((market.later[at] - least) / takes.max(1e-9), at as u32)
        };
        let mut keys: Vec<(f64, u32)> = problem.items.iter().enumerate().map(key).collect();
        keys.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        keys.into_iter().map(|(_, at)| at).collect()
    }

    /// Fills the nodes. With `keep`, whoever runs stays where it is.
    pub(super) fn fill(&self, level: Level, keep: bool) -> Filled {
        let problem = self.problem;
        let pinned = |item: &Item| item.at_first().filter(|_| item.pinned);
        let mut draft: Draft = problem.items.iter().map(pinned).collect();
        let mut nodes = problem.filled(&draft);
        let mut gain = 0.0;
        let kept = problem.items.iter().enumerate().filter(|(_, item)| keep && !item.pinned);
        for (at, item) in kept {
            let Some(slot) = item.at_first() else { continue };
            let way = problem.way(slot.way);
            let watts = problem.added_watts(&nodes, way, &slot.spot);
            gain += self.gain(at, &self.costs(item, way, (watts, 0.0), true, level));
            nodes.take(&problem.classes, &slot.spot, way.limit);
            draft[at] = Some(slot);
        }
        let mut behind = Behind::new(problem, &draft);
        let mut chosen = Vec::new();
        let mut tried = 0;
        for at in self.order(level) {
            if nodes.free_of.iter().all(|free| *free == 0) || tried > problem.tuning.misfits_max {
                break;
            }
            let at = at as usize;
            if draft[at].is_some() {
                continue;
            }
            behind.pass(problem, &problem.items[at]);
            let found = self.best(at, &nodes, level).and_then(|offer| {
                if self.pays(at, &offer) {
                    let gain = self.gain(at, &offer.costs);
                    return Some((offer.slot, gain));
                }
                self.in_vain(at, &nodes, level, &behind)
            });
            let Some((slot, gains)) = found else {
                tried += 1;
                continue;
            };
            nodes.take(&problem.classes, &slot.spot, problem.way(slot.way).limit);
            gain += gains;
            chosen.push((at, slot));
        }
        self.place(&mut draft, chosen);
        gain -= PROMISE * problem.broken_promises(&draft) as f64;
        Filled { draft, gain }
    }

    /// What a way costs that begins now and adds those watts, on nodes that wake that long.
    fn costs(
        &self,
        item: &Item,
        way: &Way,
        (watts, wake): (f64, f64),
        stays: bool,
        level: Level,
    ) -> Costs {
        let problem = self.problem;
        let (lost, restart) = problem.starting(item, stays);
        let time = item.work / way.rate + lost + wake;
        let energy = problem.prices.watt(0.0, time) * watts;
        let own = energy + problem.late(item, way, 0.0, time) + restart;
        let taken = self.market.taken(way, problem.committed_watts(way), time, level);
        let stays = Costs { price: own + taken, own, time };
        let Some(change) = problem.change_ahead(item, way, lost + wake) else { return stays };
        let (to, then) = (change.to, change.end - change.at);
        let own = problem.prices.watt(0.0, change.at) * watts
            + problem.prices.watt(change.at, change.end) * problem.usual_watts(to)
            + problem.worth_a_restart(item, to)
            + restart;
        let (has, takes) = (problem.committed_watts(way), problem.committed_watts(to));
        let taken = self.market.taken(way, has, change.at, level)
            + self.market.taken_then(to, takes, (change.at, then), level);
        let changes = Costs { price: own + taken, own, time: change.end };
        if changes.price < stays.price { changes } else { stays }
    }

    /// What a job gains each second by running now, not later; a run that is brief counts as a
    /// moment.
    fn gain(&self, at: usize, costs: &Costs) -> f64 {
        (self.market.later[at] - costs.own) / costs.time.max(self.problem.moment())
    }

    /// The cheapest way to start, or go on, on what is free.
    fn best(&self, at: usize, nodes: &Nodes, level: Level) -> Option<Offer> {
        let problem = self.problem;
        let item = &problem.items[at];
        let now = item.now.as_ref().filter(|_| item.runs);
        // What is settled for good is settled at what it is worth in the long run.
        let level = if item.commits { Level { gpus: 1.0, ..level } } else { level };
        let mut best: Option<Offer> = None;
        for (index, way) in problem.ways_of(at) {
            let same = now.filter(|now| problem.same_but_limit(now.way, index));
            let here = same.filter(|now| problem.fits(nodes, &now.spot, way.limit));
            let found = match here {
                Some(now) => {
                    Some((now.spot.clone(), problem.added_watts(nodes, way, &now.spot), 0.0))
                }
                None => problem.place(nodes, way),
            };
            let Some((spot, watts, wake)) = found else { continue };
            // Whoever took its GPUs will find others: those who stay are placed first.
            let wake = if same.is_some() { 0.0 } else { wake };
            let costs = self.costs(item, way, (watts, wake), same.is_some(), level);
            if best.as_ref().is_none_or(|best| costs.price < best.costs.price) {
                best = Some(Offer { slot: Slot { way: index, spot }, costs, watts });
            }
        }
        best
    }

    /// Whether it is better to start now than to leave GPUs idle and wait. A job that can be moved
    /// later on starts wherever there is room, as long as the work done is worth the energy.
    fn pays(&self, at: usize, offer: &Offer) -> bool {
        let problem = self.problem;
        let item = &problem.items[at];
        if item.overdue || item.runs || !problem.tuning.waiting_on_purpose {
            true
        } else if item.commits {
            offer.costs.price <= self.market.later[at] * (1.0 + problem.tuning.commit_margin)
        } else {
            let work = problem.way(offer.slot.way).rate * self.market.unit[at];
            problem.prices.watt(0.0, 1.0) * offer.watts <= work
        }
    }

    /// Where a job starts that does not seem worth its watts, but would save nothing by waiting
    /// either, and what it gains each second against a later start.
    fn in_vain(
        &self,
        at: usize,
        nodes: &Nodes,
        level: Level,
        behind: &Behind,
    ) -> Option<(Slot, f64)> {
        let problem = self.problem;
        let item = &problem.items[at];
        let level = if item.commits { Level { gpus: 1.0, ..level } } else { level };
        let mut best: Option<(Slot, Costs)> = None;
        let mut later = f64::INFINITY;
        for (index, way) in problem.ways_of(at) {
            let usual = problem.usual_watts(way);
            let (watts, wake) = match problem.place(nodes, way) {
                Some((spot, watts, wake)) => {
                    let watts = problem.shared_watts(nodes, way, (&spot, watts), behind);
                    let costs = self.costs(item, way, (watts, wake), false, level);
                    if best.as_ref().is_none_or(|(_, best)| costs.price < best.price) {
                        best = Some((Slot { way: index, spot }, costs));
                    }
                    (watts, wake)
                }
                // There may be room later.
                None if item.commits => (usual, 0.0),
                None => continue,
            };
            let then = problem.costs_later(self.market, &self.company, (item, way), (watts, wake));
            later = later.min(then);
        }
        let (slot, costs) = best?;
        let now = if item.commits {
            costs.price / (1.0 + problem.tuning.commit_margin)
        } else {
            costs.own
        };
        let gain =
            (self.market.later[at].max(later) - costs.own) / costs.time.max(self.problem.moment());
        (now <= later * (1.0 + 1e-9)).then_some((slot, gain))
    }

    /// Jobs get their GPUs: who keeps its way keeps its GPUs, the others come after them.
    pub(super) fn place(&self, draft: &mut Draft, chosen: Vec<(usize, Slot)>) {
        let problem = self.problem;
        let mut nodes = problem.filled(draft);
        let mut others = Vec::new();
        for (at, slot) in chosen {
            let item = &problem.items[at];
            let limit = problem.way(slot.way).limit;
            let now = item.now.as_ref().filter(|now| {
                item.runs
                    && problem.same_but_limit(now.way, slot.way)
                    && problem.fits(&nodes, &now.spot, limit)
            });
            match now {
                Some(now) => {
                    nodes.take(&problem.classes, &now.spot, limit);
                    draft[at] = Some(Slot { way: slot.way, spot: now.spot.clone() });
                }
                None => others.push((at, slot)),
            }
        }
        for (at, slot) in others {
            let way = problem.way(slot.way);
            if let Some((spot, _, _)) = problem.place(&nodes, way) {
                nodes.take(&problem.classes, &spot, way.limit);
                draft[at] = Some(Slot { way: slot.way, spot });
            }
        }
    }
}
