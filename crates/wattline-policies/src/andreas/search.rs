//! The randomised greedy: one plan by falling pressure, many more with the order and the choices
//! disturbed, the best of them kept as an elite and improved.

use super::AndreasOptions;
use super::cost::proxy;
use super::problem::{Item, Problem};
use super::space::Space;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A job that runs, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) item: usize,
    pub(super) way: usize,
}

/// A plan: who runs, in the order in which they were placed. All others are postponed.
#[derive(Clone, Debug)]
pub(super) struct Solution {
    pub(super) placed: Vec<Placed>,
    pub(super) cost: f64,
}

/// How many of the best plans are kept.
const ELITE: usize = 10;
/// A neighbour behind a lighter job is let past with one half less this, behind a heavier one with
/// one half more: the authors' rule, whatever it was meant to be.
const SWAP_BIAS: f64 = 0.05;
/// The part of a job's configurations that a random choice is made from, besides the first.
const CHOICE: f64 = 0.05;
/// The most placements tried in the random rounds of one plan, and as many in improving the elite.
const MOST_TRIES: usize = 2_000_000;
const MOST_IMPROVING_TRIES: usize = 200_000;

/// The plan without any chance in it.
pub(super) fn greedy(problem: &Problem<'_, '_>, order: &[usize]) -> Solution {
    let mut search = Search::new(problem);
    search.construct(&mut order.to_vec(), None);
    search.solution()
}

/// The best plan that so many random rounds come to, and, if asked for, improving the elite.
pub(super) fn search(
    problem: &Problem<'_, '_>,
    order: &[usize],
    options: &AndreasOptions,
) -> Solution {
    let mut elite = vec![greedy(problem, order)];
    let ways: usize = problem.items.iter().map(|item| item.ways.len()).sum();
    let nodes: usize = problem.classes.iter().map(|class| class.nodes.len()).sum();
    let rounds = options.rounds.min(nodes.saturating_mul(ways));
    let mut random = Pcg64Mcg::seed_from_u64(options.seed);
    let mut search = Search::new(problem);
    let mut disturbed = order.to_vec();
    for _ in 0..rounds {
        if search.tries > MOST_TRIES {
            break;
        }
        disturbed.copy_from_slice(order);
        search.construct(&mut disturbed, Some(&mut random));
        search.offer(&mut elite);
    }
    if options.improve {
        search.tries = 0;
        search.improve(&mut elite);
        search.relink(&mut elite);
    }
    elite.swap_remove(0)
}

/// Where plans are built.
struct Search<'p, 'v, 'a> {
    problem: &'p Problem<'v, 'a>,
    empty: Space,
    space: Space,
    placed: Vec<Placed>,
    tries: usize,
}

impl<'p, 'v, 'a> Search<'p, 'v, 'a> {
    fn new(problem: &'p Problem<'v, 'a>) -> Self {
        let empty = Space::empty(problem);
        Self { problem, space: empty.clone(), empty, placed: Vec::new(), tries: 0 }
    }

    fn clear(&mut self) {
        self.space.reset(&self.empty);
        self.placed.clear();
    }

    fn cost(&self) -> f64 {
        proxy(self.problem, &self.placed, &self.space)
    }

    fn solution(&self) -> Solution {
        Solution { placed: self.placed.clone(), cost: self.cost() }
    }

    /// Places a job in that way, if it fits.
    fn place(&mut self, p: Placed) -> bool {
        self.tries += 1;
        let way = &self.problem.items[p.item].ways[p.way];
        let Some(fit) = self.space.fit(self.problem, way.shape) else { return false };
        self.space.take(self.problem, &fit, way.power);
        self.placed.push(p);
        true
    }

    /// One job after the other, each in the first of its ways that fits.
    fn construct(&mut self, order: &mut [usize], mut random: Option<&mut Pcg64Mcg>) {
        self.clear();
        let problem = self.problem;
        for at in 0..order.len() {
            if self.space.is_full() {
                break;
            }
            if let Some(random) = random.as_deref_mut()
                && at + 1 < order.len()
            {
                let weight = |at: usize| problem.items[order[at]].weight;
                let bias = if weight(at) > weight(at + 1) { SWAP_BIAS } else { -SWAP_BIAS };
                if random.random_bool(0.5 + bias) {
                    order.swap(at, at + 1);
                }
            }
            let item = order[at];
            let ways = &problem.items[item];
            match random.as_deref_mut() {
                Some(random) if chance(ways) => {
                    for way in shuffled(ways, random) {
                        if self.place(Placed { item, way }) {
                            break;
                        }
                    }
                }
                _ => {
                    let _ = (0..ways.ways.len()).find(|way| self.place(Placed { item, way: *way }));
                }
            }
        }
    }

    /// Builds exactly this; what does not fit is left out.
    fn replay(&mut self, wanted: impl Iterator<Item = Placed>) {
        self.clear();
        for p in wanted {
            self.place(p);
        }
    }

    /// Keeps what was built if it is among the best and not there yet.
    fn offer(&self, elite: &mut Vec<Solution>) -> bool {
        let cost = self.cost();
        let at = elite.partition_point(|other| other.cost < cost);
        if at == ELITE || elite.get(at).is_some_and(|other| other.cost <= cost) {
            return false;
        }
        elite.insert(at, Solution { placed: self.placed.clone(), cost });
        elite.truncate(ELITE);
        true
    }

    /// Local search from each of the elite: another way for a job that runs, or a postponed job in
    /// the place of one that runs. The first change that helps is taken, until none does.
    fn improve(&mut self, elite: &mut Vec<Solution>) {
        let starts = elite.clone();
        for mut best in starts {
            while self.tries < MOST_IMPROVING_TRIES {
                let Some(better) = self.neighbour(&best) else { break };
                best = better;
                self.replay(best.placed.iter().copied());
                self.offer(elite);
            }
        }
    }

    fn neighbour(&mut self, from: &Solution) -> Option<Solution> {
        let problem = self.problem;
        let mut runs = vec![false; problem.items.len()];
        for p in &from.placed {
            runs[p.item] = true;
        }
        // Those it costs most to postpone.
        let mut waiting: Vec<usize> = (0..runs.len()).filter(|at| !runs[*at]).collect();
        let postponed = |at: &usize| problem.items[*at].postponed;
        waiting.sort_by(|a, b| postponed(b).total_cmp(&postponed(a)));
        waiting.truncate(ELITE);
        for at in 0..from.placed.len() {
            let old = from.placed[at];
            let other_ways = (0..problem.items[old.item].ways.len())
                .filter(|way| *way != old.way)
                .map(|way| Placed { way, ..old });
            let shape = problem.items[old.item].ways[old.way].shape;
            let instead = waiting.iter().filter_map(|item| {
                let way = problem.items[*item].ways.iter().position(|way| way.shape == shape)?;
                Some(Placed { item: *item, way })
            });
            for new in other_ways.chain(instead) {
                if self.tries > MOST_IMPROVING_TRIES {
                    return None;
                }
                let changed = |(k, p): (usize, &Placed)| if k == at { new } else { *p };
                self.replay(from.placed.iter().enumerate().map(changed));
                if self.placed.len() == from.placed.len() && self.cost() < from.cost {
                    return Some(self.solution());
                }
            }
        }
        None
    }

    /// Path relinking: from each of the elite, job by job, to the best.
    fn relink(&mut self, elite: &mut Vec<Solution>) {
        let starts = elite.clone();
        let Some((guide, others)) = starts.split_first() else { return };
        let mut wanted: Vec<Option<usize>> = vec![None; self.problem.items.len()];
        for p in &guide.placed {
            wanted[p.item] = Some(p.way);
        }
        for other in others {
            let mut path: Vec<Placed> = other.placed.clone();
            for goal in &guide.placed {
                if path.contains(goal) {
                    continue;
                }
                if self.tries > MOST_IMPROVING_TRIES {
                    return;
                }
                // Those that the best does not run make room.
                path.retain(|p| p.item != goal.item);
                let way = &self.problem.items[goal.item].ways[goal.way];
                self.replay(path.iter().copied());
                while self.space.fit(self.problem, way.shape).is_none() {
                    let Some(at) = path.iter().rposition(|p| wanted[p.item] != Some(p.way)) else {
                        break;
                    };
                    path.remove(at);
                    self.replay(path.iter().copied());
                }
                self.place(*goal);
                path = self.placed.clone();
                self.offer(elite);
            }
        }
    }
}

/// Whether a random choice has more than one candidate.
fn chance(item: &Item) -> bool {
    candidates(item.in_time) > 1 || candidates(item.ways.len() - item.in_time) > 1
}

fn candidates(ways: usize) -> usize {
    1 + (CHOICE * ways as f64) as usize
}

/// The ways in the order of repeated random choices: of those in time first, then of the others.
fn shuffled(item: &Item, random: &mut Pcg64Mcg) -> Vec<usize> {
    let mut order = Vec::with_capacity(item.ways.len());
    for tier in [0..item.in_time, item.in_time..item.ways.len()] {
        let mut left: Vec<usize> = tier.collect();
        while !left.is_empty() {
            let at = random.random_range(0..candidates(left.len()).min(left.len()));
            order.push(left.remove(at));
        }
    }
    order
}
