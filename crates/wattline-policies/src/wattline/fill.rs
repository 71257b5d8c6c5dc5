//! Generator: nodes are filled at the market's prices, jobs first that lose most by waiting.

use super::constants::{OVERDUE, PROMISE};
use super::waiting::Behind;
use super::{Candidate, Draft, Item, Level, Market, NodeSharing, Nodes, Problem, Slot};

#[derive(Clone, Debug)]
pub(super) struct Filled {
    pub(super) draft: Draft,
    /// What the jobs that run gain each second against a later start.
    pub(super) gain: f64,
}

struct Costs {
    /// With what it takes from others, and without.
    price: f64,
    own: f64,
    time: f64,
}

struct Offer {
    slot: Slot,
    costs: Costs,
    watts: f64,
}

pub(super) struct Filler<'p, 'v, 'a> {
    pub(super) problem: &'p Problem<'v, 'a>,
    pub(super) market: &'p Market,
    pub(super) sharing: NodeSharing,
}

impl Filler<'_, '_, '_> {
    /// Jobs, those first that lose most each second by waiting, for what they take.
    pub(super) fn order(&self, level: Level) -> Vec<u32> {
        let (problem, market) = (self.problem, self.market);
        let key = |(at, item): (usize, &Item)| {
            if item.overdue {
                return (OVERDUE + item.over, at as u32);
            }
            let (mut least, mut takes) = (f64::INFINITY, 1.0);
            for candidate in problem.candidates_in(item) {
                let stays = problem.goes_on(item, candidate).is_some();
                let watts = (problem.usual_watts(candidate), 0.0);
                let costs = self.costs(item, candidate, watts, stays, level);
                if costs.price < least {
                    let takes_now = item.work / candidate.rate * market.scarce(problem, candidate);
                    (least, takes) = (costs.price, takes_now);
                }
            }
            ((market.later[at] - least) / takes.max(1e-9), at as u32)
        };
        let mut keys: Vec<(f64, u32)> = problem.items.iter().enumerate().map(key).collect();
        keys.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        keys.into_iter().map(|(_, at)| at).collect()
    }

    /// Fills the nodes. With `keep`, running jobs stay where they are.
    pub(super) fn fill(&self, level: Level, keep: bool) -> Filled {
        let problem = self.problem;
        let pinned = |item: &Item| item.at_first().filter(|_| item.pinned);
        let mut draft: Draft = problem.items.iter().map(pinned).collect();
        let mut nodes = problem.filled(&draft);
        let mut gain = 0.0;
        let kept = problem.items.iter().enumerate().filter(|(_, item)| keep && !item.pinned);
        for (at, item) in kept {
            let Some(slot) = item.at_first() else { continue };
            let candidate = problem.of(&slot);
            let watts = problem.added_watts(&nodes, candidate, &slot.spot);
            gain += self.gain(at, &self.costs(item, candidate, (watts, 0.0), true, level));
            nodes.take(&slot.spot, candidate.limit);
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
                self.start_unless_waiting_saves(at, &nodes, level, &behind)
            });
            let Some((slot, gains)) = found else {
                tried += 1;
                continue;
            };
            problem.take(&mut nodes, &slot);
            gain += gains;
            chosen.push((at, slot));
        }
        self.place(&mut draft, chosen);
        gain -= PROMISE * problem.broken_promises(&draft) as f64;
        Filled { draft, gain }
    }

    /// What a candidate costs that begins now and adds those watts, on nodes that wake that long.
    fn costs(
        &self,
        item: &Item,
        candidate: &Candidate,
        (watts, wake): (f64, f64),
        stays: bool,
        level: Level,
    ) -> Costs {
        let problem = self.problem;
        let (lost, restart) = problem.starting(item, stays);
        let time = item.work / candidate.rate + lost + wake;
        let energy = problem.prices.watt(0.0, time) * watts;
        let own = energy + problem.late(item, candidate, 0.0, time) + restart;
        let has = problem.committed_watts(candidate);
        let taken = self.market.taken(candidate, has, (0.0, time), level);
        let stays = Costs { price: own + taken, own, time };
        let Some(change) = problem.change_ahead(item, candidate, lost + wake) else { return stays };
        let (to, then) = (change.to, change.end - change.at);
        let own = problem.prices.watt(0.0, change.at) * watts
            + problem.prices.watt(change.at, change.end) * problem.usual_watts(to)
            + problem.worth_a_restart(item, to)
            + restart;
        let taken = self.market.taken(candidate, has, (0.0, change.at), level)
            + self.market.taken(to, problem.committed_watts(to), (change.at, then), level);
        let changes = Costs { price: own + taken, own, time: change.end };
        if changes.price < stays.price { changes } else { stays }
    }

    /// What a job gains each second by running now, not later; a brief run counts as a short time.
    fn gain(&self, at: usize, costs: &Costs) -> f64 {
        (self.market.later[at] - costs.own) / costs.time.max(self.problem.short_time())
    }

    /// The cheapest candidate to start, or go on, on what is free.
    fn best(&self, at: usize, nodes: &Nodes, level: Level) -> Option<Offer> {
        let problem = self.problem;
        let item = &problem.items[at];
        // What is settled for good is settled at what it is worth in the long run.
        let level = if item.commits { Level { gpus: 1.0, ..level } } else { level };
        let mut best: Option<Offer> = None;
        for candidate in problem.candidates_of(at) {
            let same = problem.goes_on(item, candidate);
            let here = same.filter(|now| problem.fits(nodes, &now.spot, candidate.limit));
            let found = match here {
                Some(now) => {
                    Some((now.spot.clone(), problem.added_watts(nodes, candidate, &now.spot), 0.0))
                }
                None => problem.place(nodes, candidate),
            };
            let Some((spot, watts, wake)) = found else { continue };
            // A job that was given its GPUs will find others: jobs that stay are placed first.
            let wake = if same.is_some() { 0.0 } else { wake };
            let costs = self.costs(item, candidate, (watts, wake), same.is_some(), level);
            if best.as_ref().is_none_or(|best| costs.price < best.costs.price) {
                best =
                    Some(Offer { slot: Slot { candidate: candidate.index, spot }, costs, watts });
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
            let work = problem.of(&offer.slot).rate * self.market.unit[at];
            problem.prices.watt(0.0, 1.0) * offer.watts <= work
        }
    }

    /// Where a job starts that does not seem worth its watts, but would save nothing by waiting
    /// either, and what it gains each second against a later start.
    fn start_unless_waiting_saves(
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
        for candidate in problem.candidates_of(at) {
            let usual = problem.usual_watts(candidate);
            let (watts, wake) = match problem.place(nodes, candidate) {
                Some((spot, watts, wake)) => {
                    let watts = problem.shared_watts(nodes, candidate, (&spot, watts), behind);
                    let costs = self.costs(item, candidate, (watts, wake), false, level);
                    if best.as_ref().is_none_or(|(_, best)| costs.price < best.price) {
                        best = Some((Slot { candidate: candidate.index, spot }, costs));
                    }
                    (watts, wake)
                }
                // There may be room later.
                None if item.commits => (usual, 0.0),
                None => continue,
            };
            let then =
                problem.costs_later(self.market, &self.sharing, (item, candidate), (watts, wake));
            later = later.min(then);
        }
        let (slot, costs) = best?;
        let margin = 1.0 + problem.tuning.commit_margin;
        let now = if item.commits { costs.price / margin } else { costs.own };
        let gain =
            (self.market.later[at].max(later) - costs.own) / costs.time.max(problem.short_time());
        (now <= later * (1.0 + 1e-9)).then_some((slot, gain))
    }

    /// Jobs get their GPUs: a job that keeps its candidate keeps its GPUs, the others come after.
    pub(super) fn place(&self, draft: &mut Draft, chosen: Vec<(usize, Slot)>) {
        let problem = self.problem;
        let mut nodes = problem.filled(draft);
        let mut others = Vec::new();
        for (at, slot) in chosen {
            let candidate = problem.of(&slot);
            let now = problem.goes_on(&problem.items[at], candidate);
            match now.filter(|now| problem.fits(&nodes, &now.spot, candidate.limit)) {
                Some(now) => {
                    nodes.take(&now.spot, candidate.limit);
                    draft[at] = Some(Slot { spot: now.spot.clone(), ..slot });
                }
                None => others.push((at, slot)),
            }
        }
        for (at, slot) in others {
            let found = problem.slot(&nodes, problem.of(&slot));
            if let Some(slot) = &found {
                problem.take(&mut nodes, slot);
                draft[at] = found;
            }
        }
    }
}
