//! Evaluator: what a candidate costs in time, energy, lateness and restarts.

use super::{Candidate, Item, Problem, Slot};

impl Problem<'_, '_> {
    /// Weighted lateness of a job that starts at `start` and takes about `time`: the mean over a
    /// good, a usual and a bad run, and where lateness alone counts also one with a mishap.
    pub(super) fn late(&self, item: &Item, candidate: &Candidate, start: f64, time: f64) -> f64 {
        let at = |end: f64| {
            if end > item.due { item.missed + item.weight * (end - item.due) } else { 0.0 }
        };
        let usual = if candidate.later == 1.0 {
            at(start + time)
        } else {
            let good = at(start + time * candidate.sooner);
            (good + at(start + time) + at(start + time * candidate.later)) / 3.0
        };
        // Rigid jobs cannot be given more GPUs after a mishap, or before.
        let tuning = self.tuning;
        if !self.lateness_only || self.rigid || !tuning.mishaps {
            return usual;
        }
        let mishap = at(start + time * tuning.mishap_times + tuning.mishap_s);
        (1.0 - tuning.mishap_share) * usual + tuning.mishap_share * mishap
    }

    /// Seconds lost when a job starts, and what a restart must gain beyond what they cost.
    pub(super) fn starting(&self, item: &Item, stays: bool) -> (f64, f64) {
        let Some(now) = item.running() else { return (item.load, 0.0) };
        if stays {
            return (0.0, 0.0);
        }
        let candidate = self.of(now);
        let tuning = self.tuning;
        let times =
            if self.lateness_only { tuning.restart_margin_lateness } else { tuning.restart_margin };
        let second = item.weight
            + self.takes(candidate) * self.weights / self.capacity.max(1.0)
            + self.prices.watt(0.0, 1.0) * self.usual_watts(candidate);
        (item.restart, tuning.hysteresis * times * item.restart * second)
    }

    /// GPUs of a candidate, those of slower types counted for less.
    pub(super) fn takes(&self, candidate: &Candidate) -> f64 {
        candidate.gpus() * self.worth[candidate.gpu_type()]
    }

    /// Billed watts of a candidate on a node that is full: what it draws where little is wasted.
    pub(super) fn usual_watts(&self, candidate: &Candidate) -> f64 {
        let class = self.classes_of[candidate.gpu_type()].first();
        let Some(class) = class.map(|c| &self.classes[usize::from(*c)]) else { return 0.0 };
        let share = class.billed[usize::from(class.size)] / f64::from(class.size);
        candidate.gpus() * (share + class.pue * candidate.power)
    }

    /// Committed watts of a candidate on a node that is full.
    pub(super) fn committed_watts(&self, candidate: &Candidate) -> f64 {
        let class = self.classes_of[candidate.gpu_type()].first();
        let Some(class) = class.map(|c| &self.classes[usize::from(*c)]) else { return 0.0 };
        let share = class.committed[usize::from(class.size)] / f64::from(class.size);
        candidate.gpus() * (share + if class.additive { candidate.limit } else { 0.0 })
    }

    /// What GPU time costs the jobs to come: nothing at once, more and more as they come.
    pub(super) fn arrival_toll(&self, candidate: &Candidate, start: f64, time: f64) -> f64 {
        if self.arrival_toll == 0.0 {
            return 0.0;
        }
        let until = |time: f64| time - self.soon * (1.0 - (-time / self.soon).exp());
        self.arrival_toll * self.takes(candidate) * (until(start + time) - until(start))
    }

    /// Whether the job keeps the GPUs and, but for the limit, the candidate it has now.
    pub(super) fn stays(&self, at: usize, slot: &Slot) -> bool {
        let now = self.items[at].now.as_ref();
        now.is_some_and(|now| now.spot == slot.spot && self.of(now).same_but_limit(self.of(slot)))
    }

    pub(super) fn end(&self, at: usize, slot: &Slot) -> f64 {
        self.items[at].work / self.of(slot).rate + self.lost(at, slot)
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

    fn wake(&self, node: u32) -> f64 {
        self.classes[usize::from(self.empty.class_of(node))].wake
    }
}
