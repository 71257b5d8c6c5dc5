//! What ways to run cost: time, energy, lateness, restarts.

use super::candidates::Way;
use super::model::{Item, Problem, Slot};

impl Problem<'_, '_> {
    /// Weighted lateness of a job that starts at `start` and takes about `time`: the mean over a
    /// good, a usual and a bad run.
    pub(super) fn late(&self, item: &Item, way: &Way, start: f64, time: f64) -> f64 {
        let at = |end: f64| {
            if end > item.due { item.missed + item.weight * (end - item.due) } else { 0.0 }
        };
        if way.later == 1.0 {
            return at(start + time);
        }
        let good = at(start + time * way.sooner);
        (good + at(start + time) + at(start + time * way.later)) / 3.0
    }

    /// Seconds lost when a job starts, and what a restart must gain beyond what they cost.
    pub(super) fn starting(&self, item: &Item, stays: bool) -> (f64, f64) {
        let Some(now) = item.now.as_ref().filter(|_| item.runs) else { return (item.load, 0.0) };
        if stays {
            return (0.0, 0.0);
        }
        let way = self.way(now.way);
        let second = item.weight
            + self.takes(way) * self.weights / self.capacity.max(1.0)
            + self.prices.watt(0.0, 1.0) * self.usual_watts(way);
        (item.restart, self.tuning.hysteresis * self.tuning.restart_margin * item.restart * second)
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
