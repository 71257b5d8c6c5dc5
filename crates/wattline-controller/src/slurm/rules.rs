//! What a site's rules let a job have: reservations, features, and what no node has at all.
//!
//! Nodes that are set aside for others from a time on are not planned for a job that could still run
//! then by its time limit, because SLURM does not start it there. A job that names a reservation gets
//! nodes of that one alone, while it is active. What a node's features are may change while jobs wait.
//! All of this is told to the engine as the nodes that a job is barred from; what is left is what the
//! checker allows.

use super::Slurm;
use super::act::scontrol;
use super::command::{CommandError, Commands};
use super::deferred::begin;
use super::eligibility::suits;
use super::host;
use super::orders::{Order, Target};
use super::read::rules::{self, Partition, Reservation};
use super::read::{SlurmJob, compact};
use super::seen::{Seen, SeenError};
use crate::backend::{BackendEvent, Known};
use crate::job_registry::JournalNote;
use std::collections::BTreeMap;
use wattline_core::Timestamp;
use wattline_core::engine::Event;
use wattline_core::host::Shortage;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::plan::{Reason, Refusal};
use wattline_core::state::JobState;
use wattline_core::units::Seconds;

/// A job that is told to start now runs some seconds later, and SLURM counts time limits in minutes: one
/// that would end this close before a reservation is not started on its nodes. Twice as much wastes a
/// minute of them; none, and SLURM refuses what just does not fit any more.
const SLACK: Seconds = Seconds::new(60.0);

/// A job that is to begin later than this is held by its owner: the gate's 100 years.
const OWNER_HOLD: Seconds = Seconds::new(50.0 * 365.0 * 86_400.0);

/// What a site has set up, as far as it decides where jobs may run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rules {
    pub(super) reservations: Vec<Reservation>,
    pub(super) partitions: BTreeMap<String, Partition>,
    /// Memory is a resource that SLURM counts.
    pub(super) counts_memory: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { reservations: Vec::new(), partitions: BTreeMap::new(), counts_memory: true }
    }
}

impl Rules {
    /// Asks SLURM. `before`: what does not change while slurmctld runs, if it is known.
    ///
    /// # Errors
    /// When it does not answer, or what it says is not understood: that is never "no reservations".
    pub(super) fn read(commands: &Commands, before: Option<&Self>) -> Result<Self, SeenError> {
        let show = |what: &[&str]| -> Result<String, CommandError> {
            commands.run_in(&compact::ENVIRONMENT, "scontrol", what)
        };
        let reservations = rules::reservations(&show(&["-o", "show", "reservation"])?)?;
        let partitions = rules::partitions(&show(&["-o", "show", "partition"])?)?;
        let counts_memory = match before {
            Some(before) => before.counts_memory,
            // Where it is not said what is counted SLURM refuses, and we hear of that.
            None => rules::counts_memory(&show(&["show", "config"])?).unwrap_or(false),
        };
        Ok(Self { reservations, partitions, counts_memory })
    }

    /// The longest time limit in a partition, or in one of several; none without limit.
    pub(super) fn max_time(&self, partition: &str) -> Option<Seconds> {
        let of = |name: &str| self.partitions.get(name).and_then(|partition| partition.max_time);
        partition.split(',').map(of).reduce(|a, b| Some(a?.max(b?))).flatten()
    }

    fn find(&self, name: &str) -> Option<&Reservation> {
        self.reservations.iter().find(|reservation| reservation.name == name)
    }

    /// Whether a job names a reservation that is not known.
    pub(super) fn lacks_one_of(&self, job: &SlurmJob) -> bool {
        names(job).any(|name| self.find(name).is_none())
    }
}

fn names(job: &SlurmJob) -> impl Iterator<Item = &str> {
    job.reservation.iter().flat_map(|names| names.split(',')).filter(|name| !name.is_empty())
}

/// What keeps a job from nodes.
#[derive(Clone, Debug, PartialEq)]
struct Bars {
    nodes: Vec<NodeId>,
    why: Refusal,
    said: String,
}

fn shown(at: Timestamp) -> String {
    let at = jiff::Timestamp::from_second(at.seconds() as i64);
    at.map_or_else(|_| "?".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M UTC").to_string())
}

impl Slurm {
    /// Tells what rules let jobs have now, where that is not what is known.
    pub(super) fn rule_news(
        &mut self,
        now: Timestamp,
        known: Known<'_>,
        news: &mut Vec<BackendEvent>,
    ) {
        let Some(seen) = self.seen.clone() else { return };
        for (id, job) in seen.known() {
            let Some(state) = known.engine.state().find_job(id) else { continue };
            let moves = state.held.is_none() || state.job.preemptible;
            if state.has_ended() || state.is_foreign() || !self.site.looks_after(&job.partition) {
                self.remarked.remove(&job.key.id);
                continue;
            }
            if !moves || job.state.is_over() {
                continue;
            }
            let over = known.registry.slurm(id).map_or(1, |slurm| slurm.asked.nodes.max(1));
            let bars = self.bars(now, job, state, over, &seen);
            let there = state.barred();
            match bars {
                None if there.is_some() => {
                    let (nodes, why) = (Vec::new(), Refusal::Nodes);
                    let event = Event::Barred { job: id, nodes, over, why };
                    news.push(BackendEvent::Event(event));
                    self.tell_owner(now, id, job, None, known);
                }
                Some(bars) if there != Some((&bars.nodes, over, bars.why)) => {
                    let Bars { nodes, why, said } = bars;
                    news.push(BackendEvent::Noted(
                        Event::Barred { job: id, nodes, over, why },
                        JournalNote::Refused { job: id, said: said.into() },
                    ));
                }
                Some(_) if state.is_barred_everywhere() => {
                    let said = known.registry.refused(id).cloned();
                    self.tell_owner(now, id, job, said.as_deref(), known);
                }
                _ => self.tell_of_host(now, id, job, state, known),
            }
        }
    }

    /// What is short beside GPUs. How much is free changes all the time: that is shown by `explain`.
    fn tell_of_host(
        &mut self,
        now: Timestamp,
        id: JobId,
        job: &SlurmJob,
        state: &JobState,
        known: Known<'_>,
    ) {
        let Reason::NoHost(short) = state.reason else { return };
        let said = match short {
            Shortage::Cpus { needed, .. } => format!("needs {needed} CPUs on a node"),
            Shortage::Memory { needed_mib, .. } => {
                format!("needs {needed_mib} MiB of memory on a node")
            }
        };
        self.tell_owner(now, id, job, Some(&said), known);
    }

    /// In SLURM's own comment field too, once.
    fn tell_owner(
        &mut self,
        now: Timestamp,
        id: JobId,
        job: &SlurmJob,
        said: Option<&str>,
        known: Known<'_>,
    ) {
        let number = job.key.id;
        let mine = known.registry.slurm(id).is_some_and(|slurm| slurm.controlled);
        let same = self.remarked.get(&number).map(|said| &**said) == said;
        if !mine || same || !job.state.waits() || !self.is_settled(Target::Job(number)) {
            return;
        }
        if !self.may_correct(now, number) {
            return;
        }
        let Some(remark) = self.remark(job, said) else { return };
        let address = job.address();
        let lines = vec![scontrol(&["update", &format!("JobId={address}"), &remark])];
        let complaint = format!("job {address}: its owner cannot be told in SLURM");
        self.order(now, Order::commands(Target::Job(number), lines, complaint));
    }

    fn bars(
        &self,
        now: Timestamp,
        job: &SlurmJob,
        state: &JobState,
        over: u32,
        seen: &Seen,
    ) -> Option<Bars> {
        if let Some(said) = self.never(job, state, over, seen) {
            let nodes = self.site.cluster.node_ids().collect();
            return Some(Bars { nodes, why: Refusal::Never, said });
        }
        // Where its owner holds it the gate sets a begin time far away.
        if let Some(begin) = begin(job).filter(|begin| *begin > now && job.state.waits()) {
            let nodes = self.site.cluster.node_ids().collect();
            let said = if begin > now + OWNER_HOLD {
                format!("its owner holds it; 'scontrol release {}' lets it go", job.address())
            } else {
                format!("it is not to begin before {}", shown(begin))
            };
            return Some(Bars { nodes, why: Refusal::Other, said });
        }
        let rules = &seen.rules;
        let mut nodes: Vec<NodeId> = Vec::new();
        let mut said: Vec<String> = Vec::new();
        if job.reservation.is_some() {
            let active = |name: &str| rules.find(name).filter(|r| r.start <= now && now < r.end);
            let mut own: Vec<&str> = names(job)
                .filter_map(active)
                .flat_map(|reservation| reservation.nodes.iter().map(String::as_str))
                .collect();
            own.sort_unstable();
            let others = |id: &NodeId| own.binary_search(&&*self.site.node(*id).name).is_err();
            nodes.extend(self.site.cluster.node_ids().filter(others));
            said.extend(names(job).map(|name| match rules.find(name) {
                None => format!("SLURM has no reservation '{name}'"),
                Some(r) if r.start > now => {
                    format!("its reservation '{name}' begins at {}", shown(r.start))
                }
                Some(r) if r.end <= now => {
                    format!("its reservation '{name}' ended at {}", shown(r.end))
                }
                Some(_) => format!("it runs in its reservation '{name}' alone"),
            }));
        }
        let limit = job.time_limit.or_else(|| rules.max_time(&job.partition));
        let ends = limit.map(|limit| now + limit + SLACK);
        for reservation in &rules.reservations {
            let own = names(job).any(|name| name == reservation.name);
            let meets = now < reservation.end && ends.is_none_or(|end| reservation.start < end);
            if own || !meets || !takes_all(reservation, seen) {
                continue;
            }
            let here: Vec<NodeId> =
                reservation.nodes.iter().filter_map(|name| self.site.find(name)).collect();
            if here.is_empty() {
                continue;
            }
            let name = &reservation.name;
            said.push(match (reservation.start > now, reservation.is_maintenance()) {
                (true, true) => format!(
                    "maintenance '{name}' begins at {}, before its time limit would end",
                    shown(reservation.start)
                ),
                (true, false) => format!(
                    "reservation '{name}' begins at {}, before its time limit would end",
                    shown(reservation.start)
                ),
                (false, _) => {
                    format!("nodes are reserved ('{name}') until {}", shown(reservation.end))
                }
            });
            nodes.extend(here);
        }
        if job.features.is_some() {
            let before = nodes.len();
            let unsuited = |id: &NodeId| {
                let node = seen.nodes.get(&*self.site.node(*id).name);
                node.is_some_and(|node| !suits(job, node))
            };
            nodes.extend(self.site.cluster.node_ids().filter(unsuited));
            if nodes.len() > before {
                let features = super::command::printable(job.features.as_deref().unwrap_or(""));
                said.push(format!("not all nodes have the features '{features}'"));
            }
        }
        if nodes.is_empty() {
            return None;
        }
        nodes.sort_unstable();
        nodes.dedup();
        Some(Bars { nodes, why: Refusal::Nodes, said: said.join("; ") })
    }

    /// Why no node of its partition could ever run a waiting job, if that is so.
    fn never(&self, job: &SlurmJob, state: &JobState, over: u32, seen: &Seen) -> Option<String> {
        if state.held.is_some() {
            return None;
        }
        let partition = super::command::printable(&job.partition);
        if state.job.shapes.as_ref().is_some_and(|shapes| shapes.is_empty()) {
            let gpus = job.gpus_asked();
            let each = match job.node_count.unwrap_or(1) {
                0 | 1 => String::new(),
                nodes => format!(" on {nodes} nodes"),
            };
            return Some(format!(
                "partition {partition} has no nodes for {gpus} GPUs{each} as it asks for them"
            ));
        }
        let request = state.host?;
        let engine_nodes = self.site.cluster.node_ids();
        let shapes = state.job.shapes.as_deref().unwrap_or_default();
        let fewest = shapes.iter().map(|shape| shape.gpus / over.max(1)).min().unwrap_or(1);
        let mut largest: Option<(u32, u64)> = None;
        for id in engine_nodes {
            let node = self.site.node(id);
            let Some(there) = seen.nodes.get(&*node.name) else { continue };
            if !self.site.serves(node.gpu_type, &job.partition) || u32::from(node.gpus) < fewest {
                continue;
            }
            let all = host::all_of(there, &seen.rules);
            if request.on(fewest, all).short_of(all).is_none() {
                return None;
            }
            let (cpus, memory) = largest.unwrap_or_default();
            largest = Some((cpus.max(all.cpus), memory.max(all.memory_mib)));
        }
        let (cpus, memory) = largest?;
        let needs = request.on(fewest, wattline_core::host::HostAmount::default());
        Some(format!(
            "needs {} CPUs and {} MiB of memory on a node; the largest of partition {partition} \
             have {cpus} CPUs and {memory} MiB",
            needs.cpus, needs.memory_mib
        ))
    }
}

/// Whether a reservation is of whole nodes. Of some CPUs of a node SLURM alone knows what is left.
fn takes_all(reservation: &Reservation, seen: &Seen) -> bool {
    let cpus = |name: &String| seen.nodes.get(name).map_or(0, |node| node.cpus);
    let all: u32 = reservation.nodes.iter().map(cpus).sum();
    reservation.cpus.is_none_or(|reserved| reserved >= all)
}
