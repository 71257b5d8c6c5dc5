//! A job in the world: how far it has come, and what it has drawn.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::ids::ActionId;
use wattline_core::job::{Job, Work, WorkRate};
use wattline_core::placement::Placement;
use wattline_core::power::Part;
use wattline_core::prices::{Bill, Prices};
use wattline_core::units::{Joules, Seconds, Watts};

pub(super) struct WorldJob {
    pub(super) job: Arc<Job>,
    /// Safe in a checkpoint.
    pub(super) done: Work,
    /// The order to start that it has not followed yet, and where.
    pub(super) told: Option<Box<(ActionId, Placement)>>,
    pub(super) run: Option<Box<Run>>,
    /// Things to come that were foreseen in an earlier epoch no longer happen.
    pub(super) epoch: u32,
    pub(super) starts: u32,
    pub(super) energy: Joules,
    pub(super) bill: Bill,
}

impl WorldJob {
    pub(super) fn new(job: Arc<Job>) -> Self {
        Self {
            job,
            done: Work::ZERO,
            told: None,
            run: None,
            epoch: 0,
            starts: 0,
            energy: Joules::ZERO,
            bill: Bill::default(),
        }
    }

    /// Books what the job has drawn since its part of the power last changed.
    pub(super) fn settle(&mut self, now: Timestamp, prices: &Prices) {
        let Some(run) = &mut self.run else { return };
        self.energy += run.power.drawn * now.since(run.power_since);
        self.bill += prices.bill(run.power.billed, run.power_since, now);
        run.power_since = now;
    }
}

/// A run of a job, with constant speed since `since`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Run {
    /// The start it began with.
    pub(super) action: ActionId,
    pub(super) placement: Placement,
    /// The last order about its limit, if there was one since.
    #[serde(default)]
    pub(super) limited: Option<ActionId>,
    pub(super) started: Timestamp,
    /// Work at `since`.
    pub(super) done: Work,
    pub(super) since: Timestamp,
    pub(super) rate: WorkRate,
    /// What this run's luck and its nodes do to its speed.
    pub(super) luck: f64,
    pub(super) per_gpu: Watts,
    /// What a sample is worth at its batch.
    pub(super) worth: f64,
    /// How long it took to get going again, until somebody is told.
    pub(super) load: Option<Seconds>,
    /// Its part of the meter's reading, and since when.
    pub(super) power: Part,
    pub(super) power_since: Timestamp,
    pub(super) measured: (Timestamp, Work),
    /// What the job saved by itself, and when it does so next.
    pub(super) safe: Work,
    pub(super) next_save: Timestamp,
    pub(super) saving: bool,
}

impl Run {
    /// Books the saves the job has made by itself since its speed last changed.
    pub(super) fn save_by_itself(&mut self, now: Timestamp, all: Work, every: Option<Seconds>) {
        let Some(every) = every else { return };
        if self.next_save <= now {
            let whole = (now.since(self.next_save) / every).floor();
            let last = self.next_save + every * whole;
            self.safe = self.done_at(last, all);
            self.next_save = last + every;
        }
    }

    /// Whether an order about its limit is older than the run, or than another that was obeyed. It
    /// came late, and whoever gave it counts on something else by now.
    pub(super) fn is_past(&self, order: ActionId) -> bool {
        order < self.limited.unwrap_or(self.action)
    }

    pub(super) fn done_at(&self, now: Timestamp, all: Work) -> Work {
        let done = self.done + self.rate * now.since(self.since);
        Work(done.0.min(all.0))
    }
}
