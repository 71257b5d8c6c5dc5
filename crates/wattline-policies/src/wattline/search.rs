//! The search: from the plan in force and from scratch, by several rules, then move by move.
//!
//! Every candidate is rolled forward and judged by what it costs in the end, restarts included. So
//! a job is moved only where that pays for itself.

use super::complete;
use super::model::{Item, Problem, Slot};
use super::nodes::Nodes;
use super::rollout::{Draft, Line, Roller};
use super::rule::{Moment, Rule};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use wattline_core::ids::GpuTypeId;

/// How much to search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Jobs looked at, over all rollouts.
    pub(super) work: u64,
    pub(super) seed: u64,
    /// What a restart must gain beyond what it costs, as a part of the job's own energy cost.
    pub(super) hysteresis: f64,
}

/// The rules that are tried. Where only deadlines count, GPU time is dear as soon as anybody waits,
/// because whoever is late loses for good; where every second counts, it is worth what it is.
const FOR_DEADLINES: [Rule; 4] = [
    Rule { foresight: 1.0, gpu: 4.0, watt: 4.0 },
    Rule { foresight: 0.3, gpu: 4.0, watt: 1.0 },
    Rule { foresight: 3.0, gpu: 4.0, watt: 0.0 },
    Rule { foresight: 1.0, gpu: 10.0, watt: 10.0 },
];
const FOR_COMPLETION: [Rule; 3] = [
    Rule { foresight: 1.0, gpu: 1.0, watt: 1.0 },
    Rule { foresight: 1.0, gpu: 0.5, watt: 0.5 },
    Rule { foresight: 1.0, gpu: 2.0, watt: 2.0 },
];

fn rules(problem: &Problem<'_, '_>) -> &'static [Rule] {
    if problem.deadlines { &FOR_DEADLINES } else { &FOR_COMPLETION }
}

/// What a job loses by a restart counts so many times more: predictions are not that good.
const RESTARTS: f64 = 2.5;

/// No draft is as dear as a broken promise.
const PROMISE: f64 = 1e15;

/// A draft and what it comes to.
#[derive(Clone, Debug)]
pub(super) struct Solution {
    pub(super) draft: Draft,
    pub(super) rule: Rule,
    patient: bool,
    /// With what restarts count beyond their cost.
    value: f64,
}

/// The best plan found.
pub(super) fn search(problem: &Problem<'_, '_>, effort: &Effort) -> Solution {
    let mut search = Search::new(problem, effort);
    let mut best: Option<Solution> = None;
    for rule in rules(problem) {
        if best.is_some() && search.roller.work > effort.work / 2 {
            break;
        }
        search.look(rule);
        for (anew, patient) in [(false, false), (true, false), (false, true), (true, true)] {
            search.moment.patient = patient;
            let draft = if anew { search.anew() } else { search.keep() };
            let solution = search.judge(draft, rule);
            if best.as_ref().is_none_or(|b| solution.value < b.value - 1e-12) {
                best = Some(Solution { patient, ..solution });
            }
        }
    }
    let Some(mut best) = best else { unreachable!("there are rules") };
    search.look(&best.rule);
    search.moment.patient = best.patient;
    search.improve(&mut best, effort);
    let restarts = |draft: &Draft| search.restarts(draft);
    if let Some(draft) = complete::complete(problem, &best, &search.line.order, restarts, effort) {
        best.draft = draft;
    }
    best
}

struct Search<'p, 'v, 'a> {
    problem: &'p Problem<'v, 'a>,
    roller: Roller<'p, 'v, 'a>,
    /// All jobs, most pressing first, and the moment's prices, by the rule looked at.
    order: Vec<u32>,
    moment: Moment,
    line: Line,
    hysteresis: f64,
}

impl<'p, 'v, 'a> Search<'p, 'v, 'a> {
    fn new(problem: &'p Problem<'v, 'a>, effort: &Effort) -> Self {
        let roller = Roller::new(problem);
        let types = problem.gpus_of.len();
        Self {
            problem,
            order: (0..problem.items.len() as u32).collect(),
            moment: Moment {
                gpu_price: vec![0.0; types],
                value: vec![0.0; problem.items.len()],
                freed: vec![0.0; types],
                ahead: vec![0.0; types],
                ..Moment::default()
            },
            roller,
            line: Line::default(),
            hysteresis: effort.hysteresis,
        }
    }

    /// Takes on a rule.
    fn look(&mut self, rule: &Rule) {
        let problem = self.problem;
        let types = problem.gpus_of.len();
        let mut busy = vec![(0.0, 0.0); types];
        for (at, item) in problem.items.iter().enumerate() {
            if let Some(slot) = &item.now {
                let way = problem.way(slot.way);
                let sum = &mut busy[way.shape.gpu_type.index()];
                let left = self.roller.ends_at(at, slot);
                *sum = (sum.0 + way.gpus(), sum.1 + way.gpus() * left);
            }
        }
        self.moment.time = 0.0;
        self.moment.gpu_price.iter_mut().for_each(|price| *price = 0.0);
        for (gpu_type, (gpus, left)) in busy.into_iter().enumerate() {
            let mean: f64 = left / gpus.max(1.0);
            self.moment.freed[gpu_type] = if gpus > 0.0 { gpus / mean.max(1.0) } else { 1e-9 };
        }
        let now: Draft = problem.items.iter().map(|item| item.now.clone()).collect();
        self.line = self.roller.line(&now, rule, &mut self.moment);
        self.order.clone_from(&self.line.order);
    }

    fn judge(&mut self, draft: Draft, rule: &Rule) -> Solution {
        let value = self.roller.evaluate(&draft, &self.line) + self.restarts(&draft);
        Solution { draft, rule: *rule, value, patient: self.moment.patient }
    }

    /// What the draft's restarts must gain beyond what they cost.
    fn restarts(&self, draft: &Draft) -> f64 {
        let problem = self.problem;
        let mut sum = PROMISE * problem.broken_promises(draft) as f64;
        for (at, (item, slot)) in problem.items.iter().zip(draft).enumerate() {
            let Some(now) = item.now.as_ref().filter(|_| item.runs) else { continue };
            if !slot.as_ref().is_some_and(|slot| problem.stays(at, slot)) {
                let way = problem.way(now.way);
                let time = item.work / way.rate + item.restart;
                let own = way.gpus() * way.power.max(100.0);
                sum += self.hysteresis * problem.prices.watt(0.0, time) * own;
                sum += item.weight * item.restart * RESTARTS;
            }
        }
        sum
    }

    /// Everybody stays, and whoever waits fills what is free.
    fn keep(&mut self) -> Draft {
        let mut draft: Draft = self.problem.items.iter().map(Item::at_first).collect();
        let mut nodes = self.problem.filled(&draft);
        self.fill(&mut draft, &mut nodes, None);
        draft
    }

    /// All that may move is planned anew, most pressing first.
    fn anew(&mut self) -> Draft {
        let problem = self.problem;
        let mut draft: Draft =
            problem.items.iter().map(|item| item.at_first().filter(|_| item.pinned)).collect();
        let mut nodes = self.problem.filled(&draft);
        self.moment.ahead.iter_mut().for_each(|a| *a = 0.0);
        let mut chosen: Vec<(u32, u32)> = Vec::new();
        for at in 0..self.order.len() {
            let at = self.order[at];
            if draft[at as usize].is_some() {
                continue;
            }
            self.roller.work += 1;
            if let Some(slot) = self.best_slot(at as usize, &nodes) {
                nodes.take(&problem.classes, &slot.spot, problem.way(slot.way).limit);
                chosen.push((at, slot.way));
            } else {
                problem.stand_in_line(at as usize, &mut self.moment);
            }
        }
        // Who keeps its way keeps its GPUs; the others come after them.
        let mut nodes = self.problem.filled(&draft);
        let mut others = Vec::new();
        for (at, way) in chosen {
            let now = problem.items[at as usize].now.as_ref();
            let stays =
                |now: &&Slot| problem.same_but_limit(now.way, way) && nodes.has_room(&now.spot);
            match now.filter(stays) {
                Some(now) => {
                    let limit = problem.way(way).limit;
                    nodes.take(&problem.classes, &now.spot, limit);
                    if nodes.committed > problem.budget {
                        nodes.give_back(&problem.classes, &now.spot, limit);
                        others.push((at, way));
                    } else {
                        draft[at as usize] = Some(Slot { way, spot: now.spot.clone() });
                    }
                }
                None => others.push((at, way)),
            }
        }
        for (at, way) in others {
            if let Some((spot, _, _)) = problem.place(&nodes, problem.way(way)) {
                nodes.take(&problem.classes, &spot, problem.way(way).limit);
                draft[at as usize] = Some(Slot { way, spot });
            }
        }
        self.fill(&mut draft, &mut nodes, None);
        draft
    }

    /// Where a job is best: where it is now, as far as that is free, or elsewhere.
    fn best_slot(&self, at: usize, nodes: &Nodes) -> Option<Slot> {
        let problem = self.problem;
        let item = &problem.items[at];
        let offer = problem.offer(at, nodes, &self.moment);
        let stay = item.now.as_ref().filter(|now| item.runs && nodes.has_room(&now.spot));
        if let Some(now) = stay {
            let way = problem.way(now.way);
            let cost = problem.ideal(item, way, &self.moment, 0.0);
            let lost = way.gpus() * item.restart;
            let moving = lost * self.moment.gpu_price[way.shape.gpu_type.index()];
            if offer.as_ref().is_none_or(|offer| {
                cost <= offer.score + moving || problem.same_but_limit(offer.way, now.way)
            }) {
                return Some(now.clone());
            }
        }
        offer.map(|offer| Slot { way: offer.way, spot: offer.spot })
    }

    /// The best way of a job on one kind of GPUs.
    fn best_of_type(&self, at: usize, nodes: &Nodes, gpu_type: GpuTypeId) -> Option<Slot> {
        let problem = self.problem;
        let item = &problem.items[at];
        let ways = problem.ways_of(at).filter(|(_, way)| way.shape.gpu_type == gpu_type);
        let offers = ways.filter_map(|(index, way)| {
            let (spot, _, _) = problem.place(nodes, way)?;
            Some((problem.ideal(item, way, &self.moment, 0.0), Slot { way: index, spot }))
        });
        offers.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, slot)| slot)
    }

    /// Whoever waits fills what is free, but for one.
    fn fill(&mut self, draft: &mut Draft, nodes: &mut Nodes, but: Option<usize>) {
        let problem = self.problem;
        self.moment.ahead.iter_mut().for_each(|a| *a = 0.0);
        let mut tried = 0;
        for at in 0..self.order.len() {
            if nodes.free_of.iter().all(|free| *free == 0) || tried > FILL_TRIES {
                break;
            }
            let at = self.order[at] as usize;
            if draft[at].is_some() || but == Some(at) {
                continue;
            }
            self.roller.work += 1;
            if let Some(offer) = problem.offer(at, nodes, &self.moment) {
                nodes.take(&problem.classes, &offer.spot, problem.way(offer.way).limit);
                draft[at] = Some(Slot { way: offer.way, spot: offer.spot });
            } else {
                tried += 1;
                problem.stand_in_line(at, &mut self.moment);
            }
        }
    }

    /// Single moves, as long as they pay.
    fn improve(&mut self, best: &mut Solution, effort: &Effort) {
        let mut random = Pcg64Mcg::seed_from_u64(effort.seed);
        let mut moves = self.moves(&best.draft);
        while self.roller.work < effort.work && !moves.is_empty() {
            let change = moves.swap_remove(random.random_range(0..moves.len()));
            let Some(draft) = self.changed(&best.draft, change) else { continue };
            let solution = self.judge(draft, &best.rule);
            if solution.value < best.value - 1e-9 * best.value.abs() {
                *best = solution;
                moves = self.moves(&best.draft);
            }
        }
    }

    fn moves(&self, draft: &Draft) -> Vec<Move> {
        let problem = self.problem;
        let mut moves = Vec::new();
        let mut placed = Vec::new();
        let mut waiting = 0;
        for at in &self.order {
            let item = &problem.items[*at as usize];
            if item.pinned {
                continue;
            }
            let Some(slot) = &draft[*at as usize] else {
                waiting += 1;
                if waiting <= WAITING {
                    moves.extend(item.ways.clone().map(|way| Move::Into { at: *at, way }));
                }
                continue;
            };
            if !item.overdue && (!item.runs || waiting == 0) {
                moves.push(Move::Pause { at: *at });
            }
            moves.push(Move::Elsewhere { at: *at });
            let others = item.ways.clone().filter(|way| *way != slot.way);
            moves.extend(others.map(|way| Move::Way { at: *at, way }));
            let gpu_type = problem.way(slot.way).shape.gpu_type;
            for other in placed.iter().rev().take(SWAPS) {
                let (other, of_type): (u32, GpuTypeId) = *other;
                if of_type != gpu_type {
                    moves.push(Move::Swap { one: *at, other });
                }
            }
            placed.push((*at, gpu_type));
        }
        moves
    }

    fn changed(&mut self, draft: &Draft, change: Move) -> Option<Draft> {
        let problem = self.problem;
        let mut draft = draft.clone();
        match change {
            Move::Pause { at } => {
                draft[at as usize] = None;
                let mut nodes = self.problem.filled(&draft);
                self.fill(&mut draft, &mut nodes, Some(at as usize));
            }
            Move::Elsewhere { at } => {
                let slot = draft[at as usize].take()?;
                let mut nodes = self.problem.filled(&draft);
                let way = problem.way(slot.way);
                let (spot, _, _) = problem.place(&nodes, way)?;
                if spot == slot.spot {
                    return None;
                }
                nodes.take(&problem.classes, &spot, way.limit);
                draft[at as usize] = Some(Slot { way: slot.way, spot });
                self.fill(&mut draft, &mut nodes, None);
            }
            Move::Way { at, way } => {
                let slot = draft[at as usize].take()?;
                let mut nodes = self.problem.filled(&draft);
                let new = problem.way(way);
                let (spot, _, _) = if problem.same_but_limit(slot.way, way) {
                    (slot.spot, 0.0, 0.0)
                } else {
                    if problem.place(&nodes, new).is_none() {
                        self.make_room(&mut draft, &mut nodes, at, way)?;
                    }
                    problem.place(&nodes, new)?
                };
                nodes.take(&problem.classes, &spot, new.limit);
                if nodes.committed > problem.budget {
                    return None;
                }
                draft[at as usize] = Some(Slot { way, spot });
                self.fill(&mut draft, &mut nodes, None);
            }
            Move::Swap { one, other } => {
                let (a, b) = (draft[one as usize].take()?, draft[other as usize].take()?);
                let mut nodes = self.problem.filled(&draft);
                for (at, to) in [(one, &b), (other, &a)] {
                    let gpu_type = problem.way(to.way).shape.gpu_type;
                    let slot = self.best_of_type(at as usize, &nodes, gpu_type)?;
                    nodes.take(&problem.classes, &slot.spot, problem.way(slot.way).limit);
                    draft[at as usize] = Some(slot);
                }
                self.fill(&mut draft, &mut nodes, None);
            }
            Move::Into { at, way } => {
                let mut nodes = self.problem.filled(&draft);
                let new = problem.way(way);
                if problem.place(&nodes, new).is_none() {
                    self.make_room(&mut draft, &mut nodes, at, way)?;
                }
                let (spot, _, _) = problem.place(&nodes, new)?;
                nodes.take(&problem.classes, &spot, new.limit);
                draft[at as usize] = Some(Slot { way, spot });
                self.fill(&mut draft, &mut nodes, None);
            }
        }
        Some(draft)
    }

    /// The least pressing jobs of that GPU type leave until the way fits.
    fn make_room(&mut self, draft: &mut Draft, nodes: &mut Nodes, at: u32, way: u32) -> Option<()> {
        let problem = self.problem;
        let new = problem.way(way);
        for victim in self.order.iter().rev() {
            if *victim == at {
                return None;
            }
            let item = &problem.items[*victim as usize];
            let stays = item.pinned || item.overdue;
            let Some(slot) = draft[*victim as usize].as_ref().filter(|_| !stays) else {
                continue;
            };
            let of_type = problem.way(slot.way).shape.gpu_type == new.shape.gpu_type;
            if !of_type {
                continue;
            }
            nodes.give_back(&problem.classes, &slot.spot, problem.way(slot.way).limit);
            draft[*victim as usize] = None;
            if problem.place(nodes, new).is_some() {
                return Some(());
            }
        }
        None
    }
}

/// Of those that wait, so many are tried in place of others.
const WAITING: usize = 16;
/// Each job changes places with so many others at most.
const SWAPS: usize = 24;
/// After so many jobs that do not fit, nobody else is tried.
const FILL_TRIES: usize = 200;

#[derive(Clone, Copy, Debug)]
enum Move {
    /// The job stops, or does not start.
    Pause { at: u32 },
    /// The job goes to other GPUs.
    Elsewhere { at: u32 },
    /// The job runs in another way.
    Way { at: u32, way: u32 },
    /// Two jobs on different kinds of GPUs change places.
    Swap { one: u32, other: u32 },
    /// The job starts, if need be in place of others.
    Into { at: u32, way: u32 },
}
