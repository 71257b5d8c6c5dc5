//! Who goes first and in which way: the rule that plans are made and rolled forward with.
//!
//! **Order**: by what a second of waiting costs per GPU-second that the job takes (apparent
//! tardiness cost). A job with slack counts less, and the less the more slack it has.
//!
//! **Way**: the least sum of energy, lateness, and the GPU time and watts taken from others. What a
//! GPU-second is worth (its shadow price) is what the jobs that wait lose when they wait a second
//! longer, over all GPUs: nothing on an idle cluster, so that jobs run fast and frugally, and much
//! under load, so that they run in the way that gets most done.

use super::model::{Item, Problem};
use super::nodes::{Nodes, Spot};
use super::ways::Way;

/// The knobs of the rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rule {
    /// How many mean run times of slack take a job's urgency away.
    pub(super) foresight: f64,
    /// Multiplies the price of GPU time.
    pub(super) gpu: f64,
    /// Multiplies the price of watts under a budget.
    pub(super) watt: f64,
}

/// GPU time is priced as if so many jobs waited even when nobody does: somebody will come.
const ALWAYS_WAITING: f64 = 3.0;

/// What the moment is like: prices of what is scarce.
#[derive(Clone, Debug, Default)]
pub(super) struct Moment {
    /// Seconds from now.
    pub(super) time: f64,
    /// Jobs rather wait for what suits them better.
    pub(super) patient: bool,
    /// What a GPU-second of the best type is worth.
    pub(super) price: f64,
    /// By GPU type: what a GPU-second is worth.
    pub(super) gpu_price: Vec<f64>,
    /// What a committed watt-second is worth.
    pub(super) watt_price: f64,
    /// By item: what a unit of its work is worth, done now: the energy and GPU time it would take
    /// later, and what the job loses by waiting.
    pub(super) value: Vec<f64>,
    /// By GPU type: GPUs that become free per second.
    pub(super) freed: Vec<f64>,
    /// By GPU type: GPUs that jobs before this one wait for.
    pub(super) ahead: Vec<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Urgency {
    /// Cost of a second's wait.
    pressing: f64,
    time: f64,
    gpus: f64,
    value: f64,
}

impl Moment {
    pub(super) fn set_prices(&mut self, price: f64, watt: f64, worth: &[f64]) {
        self.price = price;
        self.gpu_price.clear();
        self.gpu_price.extend(worth.iter().map(|worth| price * worth));
        self.watt_price = watt;
    }
}

/// A way on particular nodes.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) way: u32,
    pub(super) spot: Spot,
    pub(super) score: f64,
    /// Billed watts more.
    watts: f64,
}

impl Problem<'_, '_> {
    /// Weighted lateness of a job that starts at `start` and takes about `time`: the mean over a
    /// good, a usual and a bad run.
    pub(super) fn late(&self, item: &Item, way: &Way, start: f64, time: f64) -> f64 {
        let at = |end: f64| (end - item.due).max(0.0);
        if way.later == 1.0 {
            return item.weight * at(start + time);
        }
        let good = at(start + time * way.sooner);
        item.weight * (good + at(start + time) + at(start + time * way.later)) / 3.0
    }

    /// What a way costs from `start` on, apart from the node it stands on.
    fn cost(
        &self,
        item: &Item,
        way: &Way,
        moment: &Moment,
        start: f64,
        lost: f64,
        watts: f64,
    ) -> f64 {
        let time = item.work / way.rate + lost;
        let gpus = way.gpus();
        self.prices.watt(start, start + time) * watts
            + time
                * gpus
                * (moment.gpu_price[way.shape.gpu_type.index()] + moment.watt_price * way.limit)
            + self.late(item, way, start, time)
    }

    /// The cheapest a way can be: as if the node was there already, and full.
    pub(super) fn ideal(&self, item: &Item, way: &Way, moment: &Moment, start: f64) -> f64 {
        let watts = self.usual_watts(way);
        self.cost(item, way, moment, start, item.load, watts)
    }

    /// Where a way fits best: the fewest more watts, then the fewest GPUs left over.
    pub(super) fn place(&self, nodes: &Nodes, way: &Way) -> Option<(Spot, f64, f64)> {
        let gpu_type = way.shape.gpu_type.index();
        if nodes.free_of[gpu_type] < way.shape.gpus {
            return None;
        }
        let own = way.power * way.gpus();
        if way.nodes <= 1 {
            let gpus = way.shape.gpus as u8;
            let mut best: Option<(f64, u8, u32, f64, f64)> = None;
            for c in &self.classes_of[gpu_type] {
                let class = &self.classes[usize::from(*c)];
                for free in gpus..=class.size {
                    let Some(node) = nodes.with_free(*c, free).last() else { continue };
                    let busy = usize::from(class.size - free);
                    let after = busy + usize::from(gpus);
                    let watts = class.billed[after] - class.billed[busy] + class.pue * own;
                    let wake = if busy == 0 { class.wake } else { 0.0 };
                    let rise = nodes.rise(&self.classes, *node, gpus, way.limit);
                    if nodes.committed + rise > self.budget - self.owed.watts {
                        continue;
                    }
                    // A node that must be woken is taken only where none is up.
                    let key = watts + wake * 1e3;
                    let better =
                        best.is_none_or(|b| key < b.0 - 1e-9 || (key <= b.0 && free < b.1));
                    if better {
                        best = Some((key, free, *node, watts, wake));
                    }
                }
            }
            let (_, _, node, watts, wake) = best?;
            return Some((std::iter::once((node, gpus)).collect(), watts, wake));
        }
        self.place_over(nodes, way)
    }

    /// Whole nodes, and a part of one more.
    fn place_over(&self, nodes: &Nodes, way: &Way) -> Option<(Spot, f64, f64)> {
        let gpu_type = way.shape.gpu_type.index();
        let mut left = way.shape.gpus;
        let mut spot = Spot::new();
        let (mut watts, mut wake, mut committed) = (0.0, 0.0_f64, 0.0);
        let mut take = |spot: &mut Spot, node: u32, c: u16, gpus: u8| {
            let class = &self.classes[usize::from(c)];
            let busy = usize::from(class.size - nodes.free(node));
            let after = busy + usize::from(gpus);
            let own = way.power * f64::from(gpus);
            watts += class.billed[after] - class.billed[busy] + class.pue * own;
            committed += nodes.rise(&self.classes, node, gpus, way.limit);
            wake = wake.max(if busy == 0 { class.wake } else { 0.0 });
            spot.push((node, gpus));
        };
        let classes = &self.classes_of[gpu_type];
        let size = |c: u16| self.classes[usize::from(c)].size;
        let largest = classes.iter().map(|c| size(*c)).max()?;
        // Large nodes before small ones, and those that are up before those that sleep.
        for whole in (1..=largest).rev() {
            for asleep in [false, true] {
                let alike = |c: &&u16| {
                    size(**c) == whole && (self.classes[usize::from(**c)].wake > 0.0) == asleep
                };
                for c in classes.iter().filter(alike) {
                    for node in nodes.with_free(*c, whole).iter().rev() {
                        if left < u32::from(whole) {
                            break;
                        }
                        take(&mut spot, *node, *c, whole);
                        left -= u32::from(whole);
                    }
                }
            }
        }
        if left > 0 {
            let gpus = u8::try_from(left).ok().filter(|gpus| *gpus < largest)?;
            let unused = |spot: &Spot, node: u32| spot.iter().all(|(used, _)| *used != node);
            let (c, node) = (gpus..=largest).find_map(|free| {
                classes.iter().filter(|c| size(**c) >= free).find_map(|c| {
                    let list = nodes.with_free(*c, free).iter().rev();
                    let mut fitting = list.filter(|node| unused(&spot, **node));
                    fitting.next().map(|node| (*c, *node))
                })
            })?;
            take(&mut spot, node, c, gpus);
        }
        let fits = nodes.committed + committed <= self.budget - self.owed.watts;
        spot.sort_unstable();
        fits.then_some((spot, watts, wake))
    }

    /// The best way to start the job now on what is free, if that is better than to wait.
    pub(super) fn offer(&self, at: usize, nodes: &Nodes, moment: &Moment) -> Option<Offer> {
        let item = &self.items[at];
        let mut best: Option<Offer> = None;
        let mut wait = f64::INFINITY;
        for (index, way) in self.ways_of(at) {
            match self.place(nodes, way) {
                Some((spot, watts, wake)) => {
                    let lost = item.load + wake;
                    let score = self.cost(item, way, moment, moment.time, lost, watts);
                    if best.as_ref().is_none_or(|b| score < b.score) {
                        best = Some(Offer { way: index, spot, score, watts });
                    }
                }
                None => {
                    let gpu_type = way.shape.gpu_type.index();
                    let delay = (moment.ahead[gpu_type] + way.gpus()) / moment.freed[gpu_type];
                    let start = moment.time + delay;
                    wait = wait.min(self.ideal(item, way, moment, start));
                }
            }
        }
        best.filter(|best| {
            let way = self.way(best.way);
            if item.overdue || !(self.deadlines || item.stays || moment.patient) {
                true
            } else if item.stays || moment.patient {
                best.score <= wait
            } else {
                self.prices.watt(moment.time, moment.time + 1.0) * best.watts
                    <= way.rate * moment.value[at]
            }
        })
    }

    /// The job takes its place in the line for the GPUs it would rather have.
    pub(super) fn stand_in_line(&self, at: usize, moment: &mut Moment) {
        let item = &self.items[at];
        let best = self
            .ways_of(at)
            .map(|(_, way)| (way, self.ideal(item, way, moment, moment.time)))
            .min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((way, _)) = best {
            moment.ahead[way.shape.gpu_type.index()] += way.gpus();
        }
    }

    /// How urgent a job is, from 0 to 1, its time and GPUs in the best way, and what a unit of its
    /// work is worth.
    fn urgency(&self, at: usize, rule: &Rule, moment: &Moment, mean: f64) -> Urgency {
        let item = &self.items[at];
        let (mut best, mut least) = (None, f64::INFINITY);
        for (_, way) in self.ways_of(at) {
            let cost = self.ideal(item, way, moment, moment.time);
            if cost < least || best.is_none() {
                (best, least) = (Some(way), cost);
            }
        }
        let Some(way) = best else { return Urgency::default() };
        let time = item.work / way.rate + item.load;
        let worth = self.worth[way.shape.gpu_type.index()];
        let slack = (item.due - moment.time - time).max(0.0);
        let urgency = if slack > 0.0 { (-slack / (rule.foresight * mean)).exp() } else { 1.0 };
        let pressing = item.weight * urgency;
        let cheapest = self.prices.cheapest(moment.time, moment.time + slack);
        let upkeep = cheapest * self.usual_watts(way)
            + way.gpus() * (moment.price * worth + moment.watt_price * way.limit);
        let value = (upkeep + pressing) / way.rate;
        Urgency { pressing, time, gpus: way.gpus() * worth, value }
    }

    /// Sorts jobs, most pressing first, and sets the prices that follow from those who wait.
    pub(super) fn sort(
        &self,
        rule: &Rule,
        moment: &mut Moment,
        jobs: &mut [u32],
        keys: &mut Vec<(f64, u32)>,
        waits: impl Fn(u32) -> bool,
    ) {
        let mean = self.mean_time(jobs);
        keys.clear();
        let mut pressure = 0.0;
        for at in jobs.iter() {
            let item = &self.items[*at as usize];
            let urgency = self.urgency(*at as usize, rule, moment, mean);
            if waits(*at) {
                pressure += urgency.pressing;
            }
            moment.value[*at as usize] = urgency.value;
            // Equal ones, such as those that cost nothing, in the order they came.
            let first = if item.overdue { 1e15 + item.over } else { 0.0 };
            let rate = urgency.pressing / (urgency.time * urgency.gpus).max(1e-9);
            keys.push((first + rate + item.age * 1e-24, *at));
        }
        keys.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (slot, (_, at)) in jobs.iter_mut().zip(keys.iter()) {
            *slot = *at;
        }
        let all = self.capacity;
        let to_come = if self.coming { ALWAYS_WAITING * self.mean_weight } else { 0.0 };
        let price = (rule.gpu * pressure + to_come) / all.max(1.0);
        let budget = self.budget;
        let watt = if budget.is_finite() { rule.watt * pressure / budget.max(1.0) } else { 0.0 };
        moment.set_prices(price, watt, &self.worth);
    }

    fn mean_time(&self, jobs: &[u32]) -> f64 {
        let sum: f64 = jobs.iter().map(|at| self.usual[*at as usize]).sum();
        (sum / jobs.len().max(1) as f64).max(1.0)
    }
}
