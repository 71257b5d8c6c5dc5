//! What a journal says became of the jobs and the nodes.
//!
//! It is read as it was written: nothing is planned again, so that a journal means the same to
//! every version of the program.

use crate::controller::SHED;
use crate::job_registry::JournalNote;
use crate::journal::{Entry, Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::engine::Event;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::job::{Job, Work};
use wattline_core::placement::{Placement, Share};
use wattline_core::power::NodePower;
use wattline_core::predictor::Measurement;
use wattline_core::prices::Prices;
use wattline_core::state::Delays;
use wattline_core::units::{Joules, Seconds, Watts};

/// A job and what became of it.
#[derive(Clone, Debug)]
pub struct Past {
    /// As it was submitted.
    pub job: Arc<Job>,
    /// When it first ran.
    pub first_start: Option<Timestamp>,
    /// When it was done.
    pub end: Option<Timestamp>,
    /// How often it was started.
    pub starts: u32,
    /// Its user cancelled it, or it failed: when.
    pub cancelled: Option<Timestamp>,
    /// How it ended, in SLURM's words, if that is known.
    pub how: Option<Box<str>>,
    /// Where it was submitted, in SLURM.
    pub partition: Option<Box<str>>,
    /// What its GPUs drew, as far as that was measured.
    pub gpu_energy: Joules,
    /// Its runs.
    pub runs: Vec<Ran>,
    /// Another deadline and weight, if its user has changed them.
    pub updated: Option<Arc<Job>>,
}

/// One run of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// From when.
    pub from: Timestamp,
    /// Until when; none: it goes on.
    pub to: Option<Timestamp>,
    /// How and where, from when on: the power limit may change. Empty if the journal does not say.
    pub placements: Vec<(Timestamp, Placement)>,
    /// What was saved of the job's work when it left its GPUs before it was done.
    pub saved: Option<Work>,
}

impl Past {
    /// With the deadline and the weight that it had in the end.
    #[must_use]
    pub fn latest(&self) -> &Arc<Job> {
        self.updated.as_ref().unwrap_or(&self.job)
    }

    fn is_running(&self) -> bool {
        self.runs.last().is_some_and(|run| run.to.is_none())
    }

    /// What it held last, if it runs.
    fn holds(&self) -> Option<&Placement> {
        let run = self.runs.last().filter(|run| run.to.is_none())?;
        run.placements.last().map(|(_, placement)| placement)
    }

    /// When it was over.
    #[must_use]
    pub fn over(&self) -> Option<Timestamp> {
        let left = self.runs.last().and_then(|run| run.to);
        self.end.or_else(|| self.cancelled.map(|at| left.map_or(at, |left| left.max(at))))
    }
}

/// All that was kept of a journal.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Entries that were read.
    pub entries: u64,
    /// From when to when.
    pub span: Option<(Timestamp, Timestamp)>,
    /// The jobs that were submitted in that time.
    pub jobs: Vec<Past>,
    /// How many were submitted before; they are left out.
    pub earlier_jobs: u64,
    /// What users and administrators wanted, by time. Jobs by their place in `jobs`.
    pub orders: Vec<(Timestamp, Event)>,
    /// What became of nodes, by time.
    pub nodes: Vec<(Timestamp, NodeId, NodePower)>,
    /// Workloads that became known, in the order of their ids.
    pub workloads: Vec<Box<str>>,
    /// The policies that decided, each from its first decision on.
    pub policies: Vec<(Timestamp, Box<str>)>,
    /// How long the cluster took to do what it was told, of late.
    pub delays: Delays,
    /// Jobs that run, while it is read.
    running: BTreeSet<usize>,
}

/// Whether two want the same GPUs.
fn overlap(one: &Placement, other: &Placement) -> bool {
    let clash = |a: Share, b: Share| a.node == b.node && a.mask & b.mask != 0;
    one.allocation.shares().any(|a| other.allocation.shares().any(|b| clash(a, b)))
}

impl History {
    /// Reads what is there. `measured` is shown what runs have shown, one after the other.
    ///
    /// # Errors
    /// When the journal cannot be read to its end.
    pub fn read(
        store: &Store,
        mut measured: impl FnMut(Timestamp, &Measurement),
    ) -> Result<Self, StoreError> {
        let mut history = Self { earlier_jobs: store.pruned_jobs()?, ..Self::default() };
        store.read(|entry| -> Result<(), StoreError> {
            history.apply(entry, &mut measured);
            Ok(())
        })?;
        Ok(history)
    }

    fn apply(&mut self, entry: Entry, measured: &mut impl FnMut(Timestamp, &Measurement)) {
        let at = entry.at;
        self.entries += 1;
        self.span = Some((self.span.map_or(at, |(first, _)| first), at));
        let mut placed: BTreeMap<JobId, Placement> = BTreeMap::new();
        let mut limits: BTreeMap<JobId, Watts> = BTreeMap::new();
        let mut later: Vec<JournalNote> = Vec::new();
        for note in entry.notes {
            match note {
                JournalNote::Workload(name) => self.workloads.push(name),
                JournalNote::Placed { job, placement, after } => {
                    if let Some(after) = after {
                        let again = self.find(job).is_some_and(|(_, past)| past.starts > 0);
                        self.delays.started(again, after);
                    }
                    placed.insert(job, placement);
                }
                JournalNote::Left { after, .. } => self.delays.stopped(after),
                JournalNote::Limited { job, limit } => drop(limits.insert(job, limit)),
                // The job may be submitted in this entry.
                note @ (JournalNote::Origin { .. } | JournalNote::Ended { .. }) => later.push(note),
                JournalNote::Key { .. }
                | JournalNote::Before { .. }
                | JournalNote::Drawn { .. }
                | JournalNote::Refused { .. }
                | JournalNote::Asked { .. }
                | JournalNote::RestartHold { .. }
                | JournalNote::Priority { .. }
                | JournalNote::Overrun { .. }
                | JournalNote::Request { .. } => {}
            }
        }
        for event in entry.events {
            match event {
                Event::Started { job, .. } => {
                    let placement = placed.remove(&job);
                    self.started(at, job, placement);
                }
                Event::Limited { job, .. } => {
                    if let Some(limit) = limits.remove(&job) {
                        self.limited(at, job, limit);
                    }
                }
                Event::Measured(measurement) => {
                    measured(at, &measurement);
                    self.measured(&measurement);
                }
                event => self.hear(at, event),
            }
        }
        for note in later {
            self.note(note);
        }
        for decision in entry.decisions {
            let last = self.policies.last().map(|(_, name)| &**name);
            if &*decision.policy != SHED && last != Some(&*decision.policy) {
                self.policies.push((at, decision.policy));
            }
        }
    }

    fn note(&mut self, note: JournalNote) {
        match note {
            JournalNote::Origin { job, origin } => {
                if let (Some((_, past)), Some(slurm)) = (self.find(job), &origin.slurm) {
                    past.partition = Some(slurm.partition.clone());
                }
            }
            JournalNote::Ended { job, how } => {
                if let Some((_, past)) = self.find(job) {
                    past.how = Some(how);
                }
            }
            _ => {}
        }
    }

    fn hear(&mut self, at: Timestamp, event: Event) {
        match event {
            Event::Submitted(job) => self.jobs.push(Past {
                job,
                first_start: None,
                end: None,
                starts: 0,
                cancelled: None,
                how: None,
                partition: None,
                gpu_energy: Joules::ZERO,
                runs: Vec::new(),
                updated: None,
            }),
            // The engine takes in nobody who runs already, and nobody where somebody else is.
            Event::Found { job, placement } => {
                let taken =
                    |past: &Past| past.holds().is_some_and(|held| overlap(held, &placement));
                let runs = self.find(job).is_some_and(|(_, past)| past.is_running());
                if !runs && !self.running.iter().any(|at| self.jobs.get(*at).is_some_and(taken)) {
                    self.started(at, job, Some(placement));
                }
            }
            Event::Stopped { job, done, .. } => {
                if let Some((_, past)) = self.find(job)
                    && let Some(run) = past.runs.last_mut().filter(|run| run.to.is_none())
                {
                    (run.to, run.saved) = (Some(at), Some(done));
                }
                self.left(job);
            }
            Event::Finished(job) => {
                if let Some((_, past)) = self.find(job) {
                    past.end.get_or_insert(at);
                    if let Some(run) = past.runs.last_mut() {
                        run.to.get_or_insert(at);
                    }
                }
                self.left(job);
            }
            Event::Cancelled(job) => {
                if let Some((id, past)) = self.find(job) {
                    if past.end.is_none() {
                        past.cancelled.get_or_insert(at);
                    }
                    self.orders.push((at, Event::Cancelled(id)));
                }
            }
            Event::Updated { job, deadline, weight } => {
                if let Some((job, past)) = self.find(job) {
                    let updated = Job { deadline, weight, ..Job::clone(past.latest()) };
                    // What makes no sense has changed nothing.
                    if updated.validate().is_ok() {
                        past.updated = Some(Arc::new(updated));
                        self.orders.push((at, Event::Updated { job, deadline, weight }));
                    }
                }
            }
            // Only one that waits is changed; it never ran otherwise.
            Event::Asked { job, asked } => {
                if let Some((_, past)) = self.find(job)
                    && !past.is_running()
                    && asked.validate().is_ok()
                {
                    let (submit, user) = (past.job.submit, past.job.user);
                    past.updated = Some(Arc::new(Job { submit, user, ..Job::clone(&asked) }));
                }
            }
            Event::Weighed { job, from, to } => {
                if let Some((_, past)) = self.find(job).filter(|(_, p)| p.latest().weight == from) {
                    let deadline = past.latest().deadline;
                    self.hear(at, Event::Updated { job, deadline, weight: to });
                }
            }
            Event::OnHold { job, hold } => {
                if let Some((job, _)) = self.find(job) {
                    self.orders.push((at, Event::OnHold { job, hold }));
                }
            }
            event @ (Event::BudgetSet(_) | Event::PricesSet(_)) => self.orders.push((at, event)),
            Event::NodeUp(node) => self.nodes.push((at, node, NodePower::Up)),
            Event::NodeAsleep(node) => self.nodes.push((at, node, NodePower::Asleep)),
            Event::NodeLost(node) => self.nodes.push((at, node, NodePower::Down)),
            Event::Clock
            | Event::Foreign { .. }
            | Event::Started { .. }
            | Event::Measured(_)
            | Event::Progress { .. }
            | Event::Limited { .. }
            | Event::NodeClosed(_)
            | Event::HostAsked { .. }
            | Event::Barred { .. }
            | Event::NodeHost { .. }
            | Event::Failed { .. }
            | Event::Refused { .. }
            | Event::StopRefused { .. }
            | Event::StaysPut { .. } => {}
        }
    }

    fn started(&mut self, at: Timestamp, job: JobId, placement: Option<Placement>) {
        let Some((id, past)) = self.find(job) else { return };
        past.first_start.get_or_insert(at);
        past.starts += 1;
        let placements = placement.into_iter().map(|placement| (at, placement)).collect();
        past.runs.push(Ran { from: at, to: None, placements, saved: None });
        self.running.insert(id.index());
    }

    fn left(&mut self, job: JobId) {
        if let Some((id, _)) = self.find(job) {
            self.running.remove(&id.index());
        }
    }

    fn limited(&mut self, at: Timestamp, job: JobId, limit: Watts) {
        let Some((_, past)) = self.find(job) else { return };
        let Some(run) = past.runs.last_mut().filter(|run| run.to.is_none()) else { return };
        if let Some((_, last)) = run.placements.last() {
            let mut placement = last.clone();
            placement.configuration.power_limit = limit;
            run.placements.push((at, placement));
        }
    }

    fn measured(&mut self, measured: &Measurement) {
        if let (Some((_, past)), Some(power)) = (self.find(measured.job), measured.power) {
            let gpus = f64::from(measured.configuration.gpus);
            past.gpu_energy += power * gpus * measured.seconds;
        }
    }

    /// A job that was submitted in this time, and its place.
    fn find(&mut self, id: JobId) -> Option<(JobId, &mut Past)> {
        let at = u64::from(id.0).checked_sub(self.earlier_jobs)?;
        Some((JobId(at as u32), self.jobs.get_mut(at as usize)?))
    }

    /// The same with jobs by submission, as simulations want them.
    #[must_use]
    pub fn by_submission(mut self) -> Self {
        let mut order: Vec<usize> = (0..self.jobs.len()).collect();
        order.sort_by_key(|at| self.jobs[*at].job.submit);
        let mut place = vec![None; order.len()];
        for (new, old) in order.iter().enumerate() {
            place[*old] = Some(JobId(new as u32));
        }
        self.jobs.sort_by_key(|past| past.job.submit);
        self.move_orders(&place);
        self
    }

    /// Only the jobs of which `keep` says so.
    #[must_use]
    pub fn only(mut self, mut keep: impl FnMut(&Past) -> bool) -> Self {
        let mut place = Vec::with_capacity(self.jobs.len());
        let mut next = 0;
        self.jobs.retain(|past| {
            let kept = keep(past);
            place.push(kept.then_some(JobId(next)));
            next += u32::from(kept);
            kept
        });
        self.move_orders(&place);
        self
    }

    /// Jobs have other places; of those that have none, orders mean nothing.
    fn move_orders(&mut self, place: &[Option<JobId>]) {
        self.orders.retain_mut(|(_, order)| match order {
            Event::Cancelled(job) | Event::Updated { job, .. } | Event::OnHold { job, .. } => {
                let to = place.get(job.index()).copied().flatten();
                *job = to.unwrap_or(*job);
                to.is_some()
            }
            _ => true,
        });
    }

    /// What happened from some time on. Jobs that were over by then are left out; of others counts
    /// what they did since, as if they had been submitted then. Says how many of those there are.
    #[must_use]
    pub fn since(mut self, from: Timestamp) -> (Self, usize) {
        self = self.only(|past| past.over().is_none_or(|over| over > from));
        let mut carried = 0;
        for past in &mut self.jobs {
            past.runs.retain(|run| run.to.is_none_or(|to| to > from));
            for run in &mut past.runs {
                run.from = run.from.max(from);
                // Of what was set before, the last counts.
                let before = run.placements.iter().filter(|(at, _)| *at <= from).count();
                run.placements.drain(..before.saturating_sub(1));
                run.placements.iter_mut().for_each(|(at, _)| *at = (*at).max(from));
            }
            if past.job.submit < from {
                // SLURM tells times in seconds.
                carried += usize::from(from - past.job.submit > Seconds::new(1.0));
                past.first_start = past.runs.first().map(|run| run.from);
                for job in [Some(&mut past.job), past.updated.as_mut()].into_iter().flatten() {
                    let job = Arc::make_mut(job);
                    job.submit = from;
                    // What was late by then is late whatever happens next.
                    job.deadline = job.deadline.map(|deadline| deadline.max(from));
                }
            }
        }
        for (at, order) in &mut self.orders {
            *at = (*at).max(from);
            if let Event::Updated { deadline, .. } = order {
                *deadline = deadline.map(|deadline| deadline.max(from));
            }
        }
        self.nodes.iter_mut().for_each(|(at, ..)| *at = (*at).max(from));
        self.span = self.span.map(|(_, last)| (from, last.max(from)));
        (self, carried)
    }

    /// The prices and the budget at the beginning, where the journal says them; taken out of the
    /// orders.
    pub fn beginning(&mut self) -> (Option<Prices>, Option<Option<Calendar<Watts>>>) {
        let Some((from, _)) = self.span else { return (None, None) };
        let (mut prices, mut budget) = (None, None);
        self.orders.retain(|(at, order)| match order {
            Event::PricesSet(set) if *at <= from => {
                prices = Some(set.clone());
                false
            }
            Event::BudgetSet(set) if *at <= from => {
                budget = Some(set.clone());
                false
            }
            _ => true,
        });
        (prices, budget)
    }
}
