//! What a site's rules let a job have: reservations, features, and what no node has at all.
//!
//! Nodes that are set aside for others from a time on are not planned for a job that could still run
//! then by its time limit, because SLURM does not start it there. A job that names a reservation gets
//! nodes of that one alone, while it is active. What a node's features are may change while jobs wait.
//! All of this is told to the engine as the nodes that a job is barred from; what is left is what the
//! checker allows.

use super::Slurm;
use super::command::{CommandError, Commands};
use super::deferred::{begin, is_held_by_admin};
use super::eligibility::suits;
use super::orders::Target;
use super::read::rules::{self, Partition, Reservation};
use super::read::{SlurmJob, compact};
use super::seen::{Seen, SeenError};
use crate::backend::{BackendEvent, Known};
use crate::job_registry::Bars;
use std::collections::BTreeMap;
use wattline_core::Timestamp;
use wattline_core::engine::Event;
use wattline_core::host::{HostRequest, Shortage};
use wattline_core::ids::{JobId, NodeId};
use wattline_core::job::Job;
use wattline_core::plan::{Reason, Refusal};
use wattline_core::state::JobState;
use wattline_core::units::Seconds;

/// A job that is told to start now runs some seconds later, and SLURM counts time limits in minutes: one
/// that would end this close before a reservation is not started on its nodes. Twice as much wastes a
/// minute of them; none, and SLURM refuses what just does not fit any more.
const SLACK: Seconds = Seconds::new(60.0);

/// A job that is to begin later than this is held by its owner: the gate's 100 years.
pub(super) const OWNER_HOLD: Seconds = Seconds::new(50.0 * 365.0 * 86_400.0);

/// SLURM lets a job that was requeued begin 121 s later; that is no wish of anybody's.
const AFTER_REQUEUE: Seconds = Seconds::new(150.0);

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

/// What a job's rules depend on, whether it is known already or just comes in.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) shown: &'a SlurmJob,
    pub(super) job: &'a Job,
    pub(super) host: Option<HostRequest>,
    /// Over how many nodes it would run.
    pub(super) over: u32,
    /// It holds GPUs.
    pub(super) runs: bool,
}

fn shown(at: Timestamp) -> String {
    let at = jiff::Timestamp::from_second(at.seconds() as i64);
    at.map_or_else(|_| "?".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M UTC").to_string())
}

impl Slurm {
    /// Whether a waiting job is held until somebody releases it, as the gate has owners hold theirs.
    pub(super) fn is_held_by_owner(&self, now: Timestamp, job: &SlurmJob) -> bool {
        let after = self.slurms_clock(now) + OWNER_HOLD;
        job.state.waits() && begin(job).is_some_and(|begin| begin > after)
    }

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
            let over = self.over(&state.job);
            let runs = state.held.is_some();
            let subject = Subject { shown: job, job: &state.job, host: state.host, over, runs };
            let bars = self.bars(now, subject, &seen);
            let there = state.barred();
            // Of a job that may start somewhere else SLURM's own words may have come since.
            let said_otherwise = |bars: &Bars| {
                let said = known.registry.refused(id);
                state.is_barred_everywhere() && said.is_none_or(|said| **said != *bars.said)
            };
            match bars {
                None if there.is_some() => {
                    let (nodes, why) = (Vec::new(), Refusal::Nodes);
                    let event = Event::Barred { job: id, nodes, over, why };
                    news.push(BackendEvent::Event(event));
                    self.tell_owner(now, id, job, None, known);
                }
                Some(bars)
                    if there != Some((&bars.nodes, over, bars.why)) || said_otherwise(&bars) =>
                {
                    if there == Some((&bars.nodes, over, bars.why)) {
                        // What looks the same is no news: lifted first, it is shown with its new words.
                        let lifted =
                            Event::Barred { job: id, nodes: Vec::new(), over, why: bars.why };
                        news.push(BackendEvent::Event(lifted));
                    }
                    let (event, note) = bars.told(id);
                    news.push(BackendEvent::Noted(event, note));
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
        let said = said.map(|said| format!("waits, {said}"));
        let said = said.as_deref();
        let same = self.remarked.get(&number).map(|said| &**said) == said;
        if !mine || same || !job.state.waits() || !self.is_settled(Target::Job(number)) {
            return;
        }
        if !self.may_correct(now, number) {
            return;
        }
        self.set_remark(now, job, said);
    }

    /// Over how many nodes a job would run: as many as it names, or as few as possible.
    pub(super) fn over(&self, job: &Job) -> u32 {
        let shapes = job.shapes.as_deref().unwrap_or_default().iter();
        let fewest = shapes.map(|shape| self.site.cluster.nodes_for(*shape)).min();
        job.nodes.as_ref().map(|choice| choice.count).or(fewest).unwrap_or(1).max(1)
    }

    /// The nodes that rules keep a job from now, if there are any.
    pub(super) fn bars(&self, now: Timestamp, subject: Subject<'_>, seen: &Seen) -> Option<Bars> {
        let Subject { shown: job, over, .. } = subject;
        let now = self.slurms_clock(now);
        if let Some(said) = self.never(subject, seen) {
            let nodes = self.site.cluster.node_ids().collect();
            return Some(Bars { nodes, over, why: Refusal::Never, said: said.into() });
        }
        if is_held_by_admin(job) {
            let nodes = self.site.cluster.node_ids().collect();
            let number = job.address();
            let said = format!("an administrator holds it; 'scontrol release {number}' lets it go");
            return Some(Bars { nodes, over, why: Refusal::Other, said: said.into() });
        }
        // Where its owner holds it the gate sets a begin time far away.
        let requeued =
            |begin: Timestamp| job.key.restarts > 0 && begin <= job.key.submit + AFTER_REQUEUE;
        let later = begin(job).filter(|begin| *begin > now && !requeued(*begin));
        if let Some(begin) = later.filter(|_| job.state.waits()) {
            let nodes = self.site.cluster.node_ids().collect();
            let said = if begin > now + OWNER_HOLD {
                format!("its owner holds it; 'scontrol release {}' lets it go", job.address())
            } else {
                format!("it is not to begin before {}", shown(begin))
            };
            return Some(Bars { nodes, over, why: Refusal::Other, said: said.into() });
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
        Some(Bars { nodes, over, why: Refusal::Nodes, said: said.join("; ").into() })
    }

    /// Why no node of its partition could ever run a waiting job, if that is so.
    fn never(&self, subject: Subject<'_>, seen: &Seen) -> Option<String> {
        let Subject { shown: job, job: asked, host, over, runs } = subject;
        if runs {
            return None;
        }
        if let Some(said) = self.part_of_others(job, seen) {
            return Some(said);
        }
        let partition = super::command::printable(&job.partition);
        if asked.shapes.as_ref().is_some_and(|shapes| shapes.is_empty()) {
            let gpus = job.gpus_asked();
            let each = match job.node_count.unwrap_or(1) {
                0 | 1 => String::new(),
                nodes => format!(" on {nodes} nodes"),
            };
            return Some(format!(
                "partition {partition} has no nodes for {gpus} GPUs{each} as it asks for them"
            ));
        }
        let request = host?;
        let engine_nodes = self.site.cluster.node_ids();
        let shapes = asked.shapes.as_deref().unwrap_or_default();
        let fewest = shapes.iter().map(|shape| shape.gpus / over.max(1)).min().unwrap_or(1);
        let mut largest: Option<(u32, u64)> = None;
        for id in engine_nodes {
            let node = self.site.node(id);
            let Some(there) = seen.nodes.get(&*node.name) else { continue };
            if !self.site.serves(node.gpu_type, &job.partition) || u32::from(node.gpus) < fewest {
                continue;
            }
            let all = super::host::all_of(there, &seen.rules);
            request.on(fewest, all).short_of(all)?;
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::read;
    use super::super::site::Site;
    use super::super::{Config, Mode};
    use super::*;
    use std::sync::Arc;
    use wattline_core::cluster::Shape;
    use wattline_core::host::HostAmount;
    use wattline_core::ids::{GpuTypeId, UserId, WorkloadId};
    use wattline_core::job::{Bounds, Elasticity, RestartCost, Work};
    use wattline_core::units::EurosPerSecond;
    use wattline_sim::scenario::Scenario;

    const NOW: f64 = 1_795_043_000.0;

    /// Four nodes, of which the first two have a feature; 500,000 MiB and 64 CPUs each.
    fn slurm(reservations: &str) -> Slurm {
        let text =
            "name = \"m\"\n[[nodes]]\ncount = 4\ngpu = \"h200\"\ngpus = 4\n[jobs]\ncount = 1\n";
        let cluster = Scenario::parse(text, "m").unwrap().instance("m", None).unwrap().cluster;
        let node = |at: usize| {
            let feature = if at < 2 { "fast" } else { "slow" };
            format!(
                "{{\"name\":\"{}\",\"state\":\"idle\",\"gres\":\"gpu:h200:4\",\"cpus\":64,\
                 \"real_memory\":500000,\"features\":\"{feature}\",\"partitions\":[\"gpu\"]}}",
                cluster.nodes()[at].name
            )
        };
        let nodes: Vec<String> = (0..4).map(node).collect();
        let nodes = read::nodes(&format!("{{\"nodes\":[{}]}}", nodes.join(","))).unwrap();
        let mut seen = Seen::of(Vec::new(), nodes, super::super::orders::Stamp::default());
        let names = |text: &str| {
            (0..4).fold(text.to_owned(), |text, at| {
                text.replace(&format!("<{at}>"), &cluster.nodes()[at].name)
            })
        };
        let reservations = rules::reservations(&names(reservations)).unwrap();
        seen.rules = Arc::new(Rules { reservations, ..Rules::default() });
        let partitions = vec!["gpu".to_owned()];
        let config = Config { mode: Mode::Control, partitions, ..Config::default() };
        let mut slurm = Slurm::new(Site::new(config, cluster, &[], Vec::new()));
        slurm.seen = Some(Arc::new(seen));
        slurm
    }

    /// What a job with these fields is barred from: the nodes by number, and why.
    fn bars(slurm: &Slurm, fields: &str, host: HostAmount) -> Option<(Vec<u32>, Refusal, String)> {
        let more = match fields.contains("restart_cnt") {
            true => "",
            false => ",\"submit_time\":1795042000,\"restart_cnt\":0",
        };
        let text = format!(
            "{{\"jobs\":[{{\"job_id\":7,\"user_id\":1000,\"name\":\"x\",\"partition\":\"gpu\",\"job_state\":\"PENDING\",\
             \"priority\":0,\"tres_per_node\":\"gres:gpu:2\",\"node_count\":1,{fields}{more}}}]}}"
        );
        let shown = read::jobs(&text).unwrap().remove(0);
        let shape = Shape { gpu_type: GpuTypeId(0), gpus: 2 };
        let job = Job {
            name: "x".into(),
            user: UserId(0),
            workload: WorkloadId(0),
            work: Work(1.0),
            submit: Timestamp::ZERO,
            deadline: None,
            weight: EurosPerSecond::new(1.0),
            elasticity: Elasticity::Rigid,
            gpus: Bounds::exactly(2),
            batch: Bounds::exactly(64),
            restart: RestartCost::default(),
            preemptible: false,
            shapes: Some(Arc::from([shape])),
            nodes: None,
        };
        let host = Some(HostRequest { per_node: host, ..HostRequest::default() });
        let over = slurm.over(&job);
        let subject = Subject { shown: &shown, job: &job, host, over, runs: false };
        let now = Timestamp::from_seconds(NOW);
        let bars = slurm.bars(now, subject, slurm.seen.as_deref().unwrap())?;
        let nodes = bars.nodes.iter().map(|node| node.0).collect();
        Some((nodes, bars.why, bars.said.into()))
    }

    const NONE: &str = "No reservations in the system";
    /// From ten minutes on, all of the first two nodes.
    const AHEAD: &str = "ReservationName=service StartTime=1795043600 EndTime=1795047200 \
        Nodes=<0>,<1> TRES=cpu=128 Flags=MAINT,SPEC_NODES";
    /// Now, all of the third.
    const COURSE: &str = "ReservationName=course StartTime=1795040000 EndTime=1795047200 Nodes=<2> TRES=cpu=64 Flags=";

    #[test]
    fn no_job_is_planned_where_maintenance_begins_before_its_limit_ends() {
        let (slurm, none) = (slurm(AHEAD), HostAmount::default());
        let (nodes, why, said) = bars(&slurm, "\"time_limit\":60", none).unwrap();
        assert_eq!((nodes, why), (vec![0, 1], Refusal::Nodes));
        assert!(said.contains("maintenance 'service' begins at"), "{said}");
        assert_eq!(bars(&slurm, "\"time_limit\":8", none), None, "it ends before");
        assert!(bars(&slurm, "\"time_limit\":10", none).is_some(), "it starts some seconds later");
        assert!(bars(&slurm, "\"cpus\":1", none).is_some(), "without a limit it may run for ever");
    }

    #[test]
    fn a_job_runs_in_its_reservation_and_others_do_not() {
        let (slurm, none) = (slurm(COURSE), HostAmount::default());
        let of = |fields: &str| bars(&slurm, fields, none).map(|(nodes, ..)| nodes);
        assert_eq!(of("\"time_limit\":1"), Some(vec![2]));
        assert_eq!(of("\"time_limit\":1,\"resv_name\":\"course\""), Some(vec![0, 1, 3]));
        assert_eq!(of("\"resv_name\":\"other,course\""), Some(vec![0, 1, 3]));
        let (nodes, _, said) = bars(&slurm, "\"resv_name\":\"other\"", none).unwrap();
        assert_eq!(nodes, [0, 1, 2, 3]);
        assert!(said.contains("no reservation 'other'"), "{said}");
        // Of some CPUs of a node SLURM knows what is left.
        let part = self::slurm(&COURSE.replace("cpu=64", "cpu=8"));
        assert_eq!(bars(&part, "\"time_limit\":1", none), None);
    }

    #[test]
    fn features_begin_times_and_what_no_node_has_are_seen() {
        let (slurm, none) = (slurm(NONE), HostAmount::default());
        assert_eq!(bars(&slurm, "\"time_limit\":1", none), None);
        let (nodes, ..) = bars(&slurm, "\"features\":\"fast\"", none).unwrap();
        assert_eq!(nodes, [2, 3]);
        let (nodes, _, said) = bars(&slurm, "\"eligible_time\":1795049000", none).unwrap();
        assert!(nodes.len() == 4 && said.contains("not to begin before"), "{said}");
        let requeued = "\"eligible_time\":1795043100,\"restart_cnt\":1,\"submit_time\":1795042979";
        assert_eq!(bars(&slurm, requeued, none), None, "it was requeued just now");
        let (_, _, said) = bars(&slurm, "\"eligible_time\":4948000000", none).unwrap();
        assert!(said.contains("scontrol release 7"), "{said}");
        let most = HostAmount { cpus: 64, memory_mib: 500_000 };
        assert_eq!(bars(&slurm, "\"cpus\":1", most), None);
        let more = HostAmount { memory_mib: 500_001, ..most };
        let (nodes, why, said) = bars(&slurm, "\"cpus\":1", more).unwrap();
        assert_eq!((nodes.len(), why), (4, Refusal::Never));
        assert!(said.contains("500001 MiB of memory on a node; the largest"), "{said}");
    }
}
