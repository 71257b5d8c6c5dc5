//! All that follows from a journal, and nothing else: the fold over its entries.

use super::InitialState;
use crate::backend::Known;
use crate::job_history::EndedJob;
use crate::job_registry::{JobRegistry, JournalNote};
use crate::journal::{Decision, Entry};
use std::collections::BTreeMap;
use wattline_core::Timestamp;
use wattline_core::action::Action;
use wattline_core::check::CheckedPlan;
use wattline_core::engine::{Engine, Event};
use wattline_core::ids::{ActionId, JobId};
use wattline_core::predictor::Measurement;
use wattline_core::state::{JobState, Phase};
use wattline_core::units::{Euros, Joules, Seconds};

/// An action that the cluster has not confirmed.
pub(super) struct Sent {
    pub(super) action: Action,
    /// When it was sent last; not by this controller yet, if none.
    pub(super) at: Option<Timestamp>,
}

/// The state of a controller that its journal determines. Whatever policy, program version or
/// constant reads the journal, the same state follows: decisions are in it, and nothing plans here.
pub(super) struct Replica {
    pub(super) engine: Engine<'static>,
    pub(super) registry: JobRegistry,
    /// Never goes back, whatever the clock does.
    pub(super) now: Timestamp,
    /// The number of the report to hear next.
    pub(super) next_report: u64,
    pub(super) sent: BTreeMap<ActionId, Sent>,
    /// What was measured, for the predictors beside the engine.
    pub(super) learned: Vec<Measurement>,
    /// Jobs that have ended and are not filed yet.
    pub(super) ended: Vec<EndedJob>,
    /// What jobs have drawn that had ended before that was known.
    pub(super) drawn_later: Vec<(JobId, Joules, Euros)>,
    /// The policy that made the last decision.
    pub(super) last_policy: Option<Box<str>>,
}

impl Replica {
    pub(super) fn new(initial: InitialState) -> Self {
        Self {
            engine: initial.engine,
            registry: JobRegistry::new(initial.workloads),
            now: initial.at,
            next_report: 1,
            sent: BTreeMap::new(),
            learned: Vec::new(),
            ended: Vec::new(),
            drawn_later: Vec::new(),
            last_policy: None,
        }
    }

    /// Applies an entry as it is read from the journal.
    pub(super) fn replay(&mut self, mut entry: Entry) {
        let (decisions, acts) = (std::mem::take(&mut entry.decisions), entry.acts);
        self.hear(entry);
        for Decision { policy, plan, .. } in decisions {
            self.engine.apply_recorded(self.now, plan);
            self.last_policy = Some(policy);
        }
        self.conclude(acts);
        // Nobody plans during a replay, and whoever does after it looks at everything.
        self.engine.forget_changes();
    }

    /// Applies facts that were just written down.
    pub(super) fn apply(&mut self, entry: Entry) {
        let acts = entry.acts;
        self.hear(entry);
        self.conclude(acts);
    }

    /// Applies a decision that was just written down: the same as replaying it, but that it was
    /// checked a moment ago.
    pub(super) fn decide(&mut self, at: Timestamp, policy: &str, plan: CheckedPlan) {
        self.now = self.now.max(at);
        self.engine.apply(self.now, plan);
        if self.last_policy.as_deref() != Some(policy) {
            self.last_policy = Some(policy.into());
        }
        self.conclude(true);
    }

    fn hear(&mut self, entry: Entry) {
        // A real cluster begins when it is first heard of.
        if self.now == Timestamp::ZERO {
            self.engine.begin_at(entry.at);
        }
        self.now = self.now.max(entry.at);
        self.next_report = entry.next_report;
        for note in &entry.notes {
            self.registry.note(note);
            if let JournalNote::Drawn { job, drawn } = note
                && self.engine.state().find_job(*job).is_none_or(JobState::has_ended)
            {
                self.drawn_later.push((*job, drawn.energy, drawn.bill));
            }
        }
        for event in entry.events {
            let measured = match &event {
                Event::Measured(measured) => {
                    Some(Measurement { at: measured.at.min(self.now), ..*measured })
                }
                _ => None,
            };
            // A job that was cancelled while it started is over when the start fails.
            let job = match &event {
                Event::Failed { action } | Event::Refused { action, .. } => {
                    self.engine.started_by(*action)
                }
                event => event.job(),
            };
            let job = job.filter(|job| self.goes_on(*job));
            // What makes no sense changes nothing, also when it is read again.
            if self.engine.handle(self.now, event).is_ok() {
                self.learned.extend(measured);
            }
            if let Some(job) = job.filter(|job| !self.goes_on(*job)) {
                self.job_ended(job);
            }
        }
    }

    fn goes_on(&self, job: JobId) -> bool {
        self.engine.state().find_job(job).is_some_and(|job| !job.has_ended())
    }

    /// What is known of a job at its end, for the history.
    fn job_ended(&mut self, id: JobId) {
        let Some(state) = self.engine.state().find_job(id) else { return };
        let (job, registry) = (&state.job, &self.registry);
        let drawn = registry.drawn(id);
        let all = job.work.0;
        self.ended.push(EndedJob {
            id,
            slurm: registry.slurm(id).map(|slurm| slurm.key.id),
            address: registry
                .slurm(id)
                .and_then(|slurm| slurm.address.as_deref())
                .map(str::to_owned),
            name: job.name.to_string(),
            user: registry.user_of(id, job.user),
            account: registry
                .slurm(id)
                .and_then(|slurm| slurm.account.as_deref())
                .map(str::to_owned),
            workload: registry
                .workload(job.workload)
                .map_or_else(|| job.workload.to_string(), str::to_owned),
            elasticity: job.elasticity.to_string(),
            gpus: [job.gpus.requested, job.gpus.min, job.gpus.max],
            submit: job.submit,
            deadline: job.deadline,
            weight: job.weight,
            first_start: state.first_start,
            ended: state.progress.as_of,
            cancelled: state.is_cancelled(),
            how: registry.ended(id).map(str::to_owned),
            done: if all > 0.0 { (state.progress.done.0 / all).clamp(0.0, 1.0) } else { 1.0 },
            restarts: state.restarts,
            gpu_seconds: state.attained(self.now),
            drawn: drawn.map(|drawn| (drawn.energy, drawn.bill)),
        });
        let cancelled = state.is_cancelled();
        self.registry.job_ended(id, cancelled);
    }

    /// Lets the time pass where the cluster is told what to do, and gathers what it is told.
    fn conclude(&mut self, acts: bool) {
        if acts {
            let _ = self.engine.handle(self.now, Event::Clock);
        }
        while let Some(action) = self.engine.poll_action() {
            self.sent.insert(action.id, Sent { action, at: None });
        }
        let engine = &self.engine;
        self.sent.retain(|id, _| engine.is_under_way(*id));
    }

    /// What reports and replays of the past want to know about events and the engine alone knows.
    pub(super) fn particulars(
        &self,
        at: Timestamp,
        events: &[Event],
        notes: &mut Vec<JournalNote>,
    ) {
        for event in events {
            match event {
                Event::Started { job, action } => {
                    let state = self.engine.state().find_job(*job);
                    let started = state.filter(|state| state.phase == Phase::Starting(*action));
                    if let Some(placement) = started.and_then(|state| state.held.clone()) {
                        let after = self.engine.told_at(*action).map(|told| at.since(told));
                        notes.push(JournalNote::Placed { job: *job, placement, after });
                    }
                }
                Event::Stopped { job, .. } => {
                    let Some(state) = self.engine.state().find_job(*job) else { continue };
                    let Phase::Stopping(action) = state.phase else { continue };
                    let Some(told) = self.engine.told_at(action) else { continue };
                    let save = self.engine.predictor().restart(&state.job).save;
                    let after = (at.since(told) - save).max(Seconds::ZERO);
                    notes.push(JournalNote::Left { job: *job, after });
                }
                Event::Limited { job, action } => {
                    let limit = self.engine.limit_under_way(*job, *action);
                    notes.extend(limit.map(|limit| JournalNote::Limited { job: *job, limit }));
                }
                _ => {}
            }
        }
    }

    pub(super) fn known(&self) -> Known<'_> {
        Known { engine: &self.engine, registry: &self.registry }
    }
}
