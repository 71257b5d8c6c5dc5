//! What an entry says, in words.

use std::collections::BTreeMap;
use wattline_controller::journal::{Decision, Entry};
use wattline_controller::{JobNumber, JournalNote, Priority, SlurmOrigin};
use wattline_core::engine::Event;
use wattline_core::ids::JobId;
use wattline_core::placement::Placement;
use wattline_core::plan::{Decision as JobDecision, Reason};
use wattline_core::state::Target;

/// One thing that an entry says.
pub(super) struct Line {
    /// About which job, as users call it.
    pub(super) job: Option<JobNumber>,
    pub(super) text: String,
}

/// Puts entries into words, one after the other.
pub(super) struct Words {
    /// The next job that is submitted.
    next_job: u32,
    /// SLURM's numbers.
    numbers: BTreeMap<JobId, JobNumber>,
}

impl Words {
    /// For entries before which so many jobs were submitted.
    pub(super) fn new(jobs: u32) -> Self {
        Self { next_job: jobs, numbers: BTreeMap::new() }
    }

    fn number(&self, job: JobId) -> JobNumber {
        self.numbers.get(&job).cloned().unwrap_or_else(|| JobNumber::of_journal(job))
    }

    /// A reason, with the number that people know where it names another job.
    fn reason(&self, reason: Reason) -> String {
        match reason {
            Reason::GaveWay { to } => {
                let number = format!("job {}", self.number(to));
                reason.to_string().replace(&to.to_string(), &number)
            }
            reason => reason.to_string(),
        }
    }

    pub(super) fn of(&mut self, entry: &Entry) -> Vec<Line> {
        for note in &entry.notes {
            if let JournalNote::Origin { job, origin } = note {
                let number = |slurm: &SlurmOrigin| {
                    JobNumber::of_slurm(slurm.key.id, slurm.address.as_deref())
                };
                self.numbers.extend(origin.slurm.as_ref().map(|slurm| (*job, number(slurm))));
            }
        }
        let mut lines: Vec<Line> = Vec::new();
        lines.extend(entry.events.iter().map(|event| self.event(event)));
        lines.extend(entry.notes.iter().filter_map(|note| self.note(note)));
        for decision in &entry.decisions {
            lines.extend(self.decision(decision));
        }
        if lines.is_empty() {
            lines.push(Line { job: None, text: "told the cluster what to do".to_owned() });
        }
        lines
    }

    fn about(&self, job: JobId, text: &str) -> Line {
        let number = self.number(job);
        let text = format!("job {number}: {text}");
        Line { job: Some(number), text }
    }

    fn event(&mut self, event: &Event) -> Line {
        let plain = |text: String| Line { job: None, text };
        match event {
            Event::Clock => plain("time has passed".to_owned()),
            Event::Submitted(job) => {
                let id = JobId(self.next_job);
                self.next_job += 1;
                let due = job.deadline.map_or_else(String::new, |due| {
                    format!(", deadline {}", super::clock(due.micros()))
                });
                let gpus = job.gpus.requested;
                self.about(
                    id,
                    &format!("submitted '{}', {gpus} GPUs, {}{due}", job.name, job.elasticity),
                )
            }
            Event::Cancelled(job) => self.about(*job, "cancelled"),
            Event::Updated { job, deadline, weight } => {
                let due = deadline.map_or("none".to_owned(), |due| super::clock(due.micros()));
                self.about(*job, &format!("changed: deadline {due}, weight {weight}"))
            }
            Event::Weighed { job, from, to } => {
                self.about(*job, &format!("weight {from} becomes {to}, by QOS and fairshare"))
            }
            Event::OnHold { job, hold: true } => self.about(*job, "held"),
            Event::OnHold { job, hold: false } => self.about(*job, "hold released"),
            Event::Foreign { job, foreign: true } => self.about(*job, "is not ours: only counted"),
            Event::Foreign { job, foreign: false } => self.about(*job, "is ours from now on"),
            Event::Asked { job, asked } => self.about(
                *job,
                &format!(
                    "asks for {} GPUs from now on, {}",
                    asked.gpus.requested, asked.elasticity
                ),
            ),
            Event::HostAsked { job, request } => {
                let (node, gpu) = (request.per_node, request.per_gpu);
                self.about(
                    *job,
                    &format!(
                        "takes {} CPUs and {} MiB on a node, {} and {} more for each GPU",
                        node.cpus, node.memory_mib, gpu.cpus, gpu.memory_mib
                    ),
                )
            }
            Event::Barred { job, nodes, .. } if nodes.is_empty() => {
                self.about(*job, "may have all nodes")
            }
            Event::Barred { job, nodes, why, .. } => {
                self.about(*job, &format!("may not have {} nodes: {why}", nodes.len()))
            }
            Event::NodeHost { node, host } => plain(format!(
                "node {node}: others take {} CPUs and {} MiB",
                host.taken.cpus, host.taken.memory_mib
            )),
            Event::Found { job, placement } => {
                self.about(*job, &format!("found running on {}", place(placement)))
            }
            Event::Started { job, action } => {
                self.about(*job, &format!("started (action {})", action.0))
            }
            Event::Stopped { job, done, .. } => {
                self.about(*job, &format!("stopped with {:.4e} units of work saved", done.0))
            }
            Event::Finished(job) => self.about(*job, "finished"),
            Event::Progress { job, done } => {
                self.about(*job, &format!("{:.4e} units of work done", done.0))
            }
            Event::Measured(measured) => {
                let power =
                    measured.power.map_or_else(String::new, |power| format!(", {power} per GPU"));
                self.about(measured.job, &format!("measured over {}{power}", measured.seconds))
            }
            Event::Limited { job, .. } => self.about(*job, "power limit set"),
            Event::NodeUp(node) => plain(format!("node {node} is up")),
            Event::NodeAsleep(node) => plain(format!("node {node} sleeps")),
            Event::NodeLost(node) => plain(format!("node {node} is lost")),
            Event::NodeClosed(node) => plain(format!("node {node} takes no more jobs")),
            Event::Failed { action } => plain(format!("action {} failed", action.0)),
            Event::Refused { action, why } => plain(format!("action {} refused: {why}", action.0)),
            Event::StopRefused { job, .. } => {
                self.about(*job, "cannot be stopped without ending it for good")
            }
            Event::StaysPut { job, stays: true } => {
                self.about(*job, "was moved often of late and stays where it is")
            }
            Event::StaysPut { job, stays: false } => self.about(*job, "may be moved again"),
            Event::BudgetSet(None) => plain("budget removed".to_owned()),
            Event::BudgetSet(Some(budget)) => {
                let values = || budget.values().map(|watts| watts.get());
                let least = values().fold(f64::INFINITY, f64::min);
                let most = values().fold(0.0, f64::max);
                plain(if least < most {
                    format!("budget set: {:.1} to {:.1} kW over the week", least / 1e3, most / 1e3)
                } else {
                    format!("budget set: {:.1} kW", most / 1e3)
                })
            }
            Event::PricesSet(_) => plain("prices set".to_owned()),
        }
    }

    /// What the events do not say already.
    fn note(&self, note: &JournalNote) -> Option<Line> {
        Some(match note {
            JournalNote::Workload(name) => {
                Line { job: None, text: format!("workload '{name}' is known from now on") }
            }
            JournalNote::Origin { job, origin } => {
                self.about(*job, &format!("is {}'s", origin.user))
            }
            JournalNote::Ended { job, how } => self.about(*job, &format!("ended: {how}")),
            JournalNote::Placed { job, placement, .. } => {
                self.about(*job, &format!("runs on {}", place(placement)))
            }
            JournalNote::Refused { job, said } => {
                self.about(*job, &format!("would not start: {}", crate::output::harmless(said)))
            }
            JournalNote::Asked { job } => self.about(*job, "was told to save and end"),
            JournalNote::RestartHold { job, said: Some(said), .. } => {
                self.about(*job, &format!("held: {}", crate::output::harmless(said)))
            }
            JournalNote::RestartHold { job, said: None, .. } => {
                self.about(*job, "no longer held for its restarts")
            }
            JournalNote::Priority { job, priority } => {
                let Priority { weight, qos_factor, fairshare_factor, .. } = priority;
                let factors = format!("{qos_factor:.2} (QOS) x {fairshare_factor:.2} (fairshare)");
                self.about(*job, &format!("weight {weight} x {factors}"))
            }
            JournalNote::Overrun { user, workload, factor } => {
                let workload = crate::output::harmless(workload);
                let text = format!(
                    "jobs of {user} with workload '{workload}' take {factor:.1} times the declared \
                     work"
                );
                Line { job: None, text }
            }
            JournalNote::Limited { job, limit } => {
                self.about(*job, &format!("power limit is {limit}"))
            }
            JournalNote::Key { .. }
            | JournalNote::Before { .. }
            | JournalNote::Drawn { .. }
            | JournalNote::Left { .. }
            | JournalNote::Request { .. } => return None,
        })
    }

    fn decision(&self, decision: &Decision) -> Vec<Line> {
        let Decision { based_on, policy, version, trigger, took, plan } = decision;
        let (jobs, nodes) = (plan.jobs.len(), plan.nodes.len());
        let mut lines = vec![Line {
            job: None,
            text: format!(
                "decided by {policy} {version} in {took} ({trigger}, from revision {based_on}): \
                 {jobs} jobs, {nodes} nodes"
            ),
        }];
        for change in &plan.jobs {
            let what = match &change.decision {
                JobDecision::Wait => "waits".to_owned(),
                JobDecision::Run(placement) => format!("runs on {}", place(placement)),
            };
            let why = self.reason(change.reason);
            lines.push(self.about(change.job, &format!("decided: {what}; {why}")));
        }
        for change in &plan.nodes {
            let what = match change.target {
                Target::Up => "up",
                Target::Asleep => "asleep",
            };
            let text = format!("node {}: decided: {what}; {}", change.node, change.reason);
            lines.push(Line { job: None, text });
        }
        lines
    }
}

fn place(placement: &Placement) -> String {
    let shares: Vec<String> = placement
        .allocation
        .shares()
        .map(|share| format!("{} GPUs of node {}", share.count(), share.node))
        .collect();
    format!("{} at {}", shares.join(", "), placement.configuration.power_limit)
}
