//! What ways to run cost: time, energy, lateness, restarts.

use super::model::{Item, Problem, Slot};
use super::ways::Way;

/// What is lost by a restart counts so many times: predictions are not that good, and the next plan
/// may see it otherwise.
pub(super) const RESTARTS: f64 = 5.0;
/// So many times where lateness alone counts: kept where they are, jobs with room to spare were late.
/// Weighted tardiness with seed 101 of `overload`, `capped-60` and `bursts`: 21.9, 111.9 and 5.7 EUR
/// with 5 and no mishaps; with mishaps 19.1, 81.7 and 0.05 with 1.5, and with 0.5 and mishaps of ten
/// minutes more 26.5, 107.0 and 0.
const RESTARTS_FOR_LATENESS: f64 = 1.5;
/// Where lateness alone counts, this part of all runs is taken to have a mishap: it takes `MISHAP`
/// times as long and `MISHAP_SECONDS` more, on a slow node, after a failure, or because an urgent job
/// comes. So jobs end before their deadlines while GPUs are free, and nothing else suffers, as energy
/// only breaks ties. Without added seconds `overload` and `capped-60` are late for 21.4 and 100.7 EUR.
const MISHAPS: f64 = 0.3;
const MISHAP: f64 = 2.0;
const MISHAP_SECONDS: f64 = 300.0;

impl Problem<'_, '_> {
    /// Weighted lateness of a job that starts at `start` and takes about `time`: the mean over a
    /// good, a usual and a bad run, and where lateness alone counts also one with a mishap.
    pub(super) fn late(&self, item: &Item, way: &Way, start: f64, time: f64) -> f64 {
        let at = |end: f64| {
            if end > item.due { item.missed + item.weight * (end - item.due) } else { 0.0 }
        };
        let usual = if way.later == 1.0 {
            at(start + time)
        } else {
            let good = at(start + time * way.sooner);
            (good + at(start + time) + at(start + time * way.later)) / 3.0
        };
        // Rigid jobs cannot be given more GPUs after a mishap, or before.
        if !self.lateness_only || self.rigid {
            return usual;
        }
        (1.0 - MISHAPS) * usual + MISHAPS * at(start + time * MISHAP + MISHAP_SECONDS)
    }

    /// Seconds lost when a job starts, and what a restart must gain beyond what they cost.
    pub(super) fn starting(&self, item: &Item, stays: bool) -> (f64, f64) {
        let Some(now) = item.now.as_ref().filter(|_| item.runs) else { return (item.load, 0.0) };
        if stays {
            return (0.0, 0.0);
        }
        let way = self.way(now.way);
        let times = if self.lateness_only { RESTARTS_FOR_LATENESS } else { RESTARTS };
        let second = item.weight
            + self.takes(way) * self.weights / self.capacity.max(1.0)
            + self.prices.watt(0.0, 1.0) * self.usual_watts(way);
        (item.restart, self.hysteresis * times * item.restart * second)
    }

    /// GPUs of a way, those of slower types counted for less.
    pub(super) fn takes(&self, way: &Way) -> f64 {
        way.gpus() * self.worth[way.shape.gpu_type.index()]
    }

    /// Billed watts of a way on a node that is full: what it draws where little is wasted.
    pub(super) fn usual_watts(&self, way: &Way) -> f64 {
        let class = self.classes_of[way.shape.gpu_type.index()].first();
        let Some(class) = class.map(|c| &self.classes[usize::from(*c)]) else { return 0.0 };
        let share = class.billed[usize::from(class.size)] / f64::from(class.size);
        way.gpus() * (share + class.pue * way.power)
    }

    /// Committed watts of a way on a node that is full.
    pub(super) fn committed_watts(&self, way: &Way) -> f64 {
        let class = self.classes_of[way.shape.gpu_type.index()].first();
        let Some(class) = class.map(|c| &self.classes[usize::from(*c)]) else { return 0.0 };
        let share = class.committed[usize::from(class.size)] / f64::from(class.size);
        way.gpus() * (share + if class.additive { way.limit } else { 0.0 })
    }

    /// What GPU time costs those who come later: nothing at once, when what is not used is lost, and
    /// more and more as they come.
    pub(super) fn toll(&self, way: &Way, start: f64, time: f64) -> f64 {
        if self.toll == 0.0 {
            return 0.0;
        }
        let until = |time: f64| time - self.soon * (1.0 - (-time / self.soon).exp());
        self.toll * self.takes(way) * (until(start + time) - until(start))
    }

    /// Whether the job keeps the GPUs and, but for the limit, the way it has now.
    pub(super) fn stays(&self, at: usize, slot: &Slot) -> bool {
        let now = self.items[at].now.as_ref();
        now.is_some_and(|now| now.spot == slot.spot && self.same_but_limit(now.way, slot.way))
    }

    /// Seconds lost before a job works on in that slot.
    pub(super) fn lost(&self, at: usize, slot: &Slot) -> f64 {
        let item = &self.items[at];
        if self.stays(at, slot) {
            return if item.runs { 0.0 } else { item.load };
        }
        let wake = slot.spot.iter().map(|(n, _)| self.wake(*n)).fold(0.0, f64::max);
        wake + if item.runs { item.restart } else { item.load }
    }

    /// Seconds until the node can start a job.
    fn wake(&self, node: u32) -> f64 {
        self.classes[usize::from(self.empty.class_of(node))].wake
    }

    pub(super) fn same_but_limit(&self, a: u32, b: u32) -> bool {
        let (a, b) = (self.way(a), self.way(b));
        a.shape == b.shape && a.batch == b.batch && a.nodes == b.nodes
    }
}
