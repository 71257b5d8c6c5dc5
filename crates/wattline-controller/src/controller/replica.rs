//! All that follows from a journal, and nothing else: the fold over its entries.

use super::InitialState;
use crate::backend::Known;
use crate::directory::{Directory, Note};
use crate::store::{Decision, Entry};
use std::collections::BTreeMap;
use wattline_core::Timestamp;
use wattline_core::action::Action;
use wattline_core::check::CheckedPlan;
use wattline_core::engine::{Engine, Event};
use wattline_core::ids::ActionId;
use wattline_core::predictor::Measurement;
use wattline_core::state::Phase;
use wattline_core::units::Seconds;

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
    pub(super) directory: Directory,
    /// Never goes back, whatever the clock does.
    pub(super) now: Timestamp,
    /// The number of the report to hear next.
    pub(super) next_report: u64,
    pub(super) sent: BTreeMap<ActionId, Sent>,
    /// What was measured, for the predictors beside the engine.
    pub(super) learned: Vec<Measurement>,
    /// The policy that made the last decision.
    pub(super) last_policy: Option<Box<str>>,
}

impl Replica {
    pub(super) fn new(initial: InitialState) -> Self {
        Self {
            engine: initial.engine,
            directory: Directory::new(initial.workloads),
            now: initial.at,
            next_report: 1,
            sent: BTreeMap::new(),
            learned: Vec::new(),
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
    pub(super) fn take_in(&mut self, entry: Entry) {
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
            self.directory.note(note);
        }
        for event in entry.events {
            let measured = match &event {
                Event::Measured(measured) => {
                    Some(Measurement { at: measured.at.min(self.now), ..*measured })
                }
                _ => None,
            };
            // What makes no sense changes nothing, also when it is read again.
            if self.engine.handle(self.now, event).is_ok() {
                self.learned.extend(measured);
            }
        }
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
    pub(super) fn particulars(&self, at: Timestamp, events: &[Event], notes: &mut Vec<Note>) {
        for event in events {
            match event {
                Event::Started { job, action } => {
                    let state = self.engine.state().find_job(*job);
                    let started = state.filter(|state| state.phase == Phase::Starting(*action));
                    if let Some(placement) = started.and_then(|state| state.held.clone()) {
                        let after = self.engine.told_at(*action).map(|told| at.since(told));
                        notes.push(Note::Placed { job: *job, placement, after });
                    }
                }
                Event::Stopped { job, .. } => {
                    let Some(state) = self.engine.state().find_job(*job) else { continue };
                    let Phase::Stopping(action) = state.phase else { continue };
                    let Some(told) = self.engine.told_at(action) else { continue };
                    let save = self.engine.predictor().restart(&state.job).save;
                    let after = (at.since(told) - save).max(Seconds::ZERO);
                    notes.push(Note::Left { job: *job, after });
                }
                Event::Limited { job, action } => {
                    let limit = self.engine.limit_under_way(*job, *action);
                    notes.extend(limit.map(|limit| Note::Limited { job: *job, limit }));
                }
                _ => {}
            }
        }
    }

    pub(super) fn known(&self) -> Known<'_> {
        Known { engine: &self.engine, directory: &self.directory }
    }
}
