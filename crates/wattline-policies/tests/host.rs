//! CPUs and memory beside GPUs, under every policy.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::backend::Backend;
use common::{Formula, SPECS};
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::check;
use wattline_core::cluster::{Cluster, GpuType, Node, NodeDraw};
use wattline_core::engine::{Alert, EngineConfig, Event};
use wattline_core::host::{HostAmount, HostRequest, NodeHost, Shortage};
use wattline_core::ids::{GpuTypeId, JobId, NodeId, UserId, WorkloadId};
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work};
use wattline_core::plan::{Reason, Refusal};
use wattline_core::prices::Prices;
use wattline_core::scheduler::Scheduler;
use wattline_core::state::{Phase, State};
use wattline_core::units::{EurosPerSecond, Seconds, Watts};
use wattline_policies::policy;

const GPUS: u8 = 4;
const ALL: HostAmount = HostAmount { cpus: 32, memory_mib: 1000 };

fn cluster(nodes: usize) -> Arc<Cluster> {
    let card = GpuType {
        name: "card".into(),
        idle: Watts::new(10.0),
        busy: Watts::new(300.0),
        min_limit: Watts::new(100.0),
        default_limit: Watts::new(300.0),
        max_limit: Watts::new(300.0),
        limit_step: Watts::new(50.0),
        tflops: None,
        links: None,
    };
    let node = |at: usize| Node {
        name: format!("node{at}").into(),
        gpu_type: GpuTypeId(0),
        gpus: GPUS,
        draw: NodeDraw::Additive { base: Watts::new(100.0) },
        sleep: Watts::ZERO,
        boot: Watts::ZERO,
        boot_time: Seconds::new(60.0),
        shutdown_time: Seconds::ZERO,
        rack: 0,
    };
    Arc::new(Cluster::new(vec![card], (0..nodes).map(node).collect()).unwrap())
}

/// A job and what it takes on its node.
fn job(gpus: u32, work: f64, cpus: u32, memory_mib: u64) -> (Job, HostRequest) {
    let job = Job {
        name: "job".into(),
        user: UserId(0),
        workload: WorkloadId(0),
        work: Work(work),
        submit: Timestamp::ZERO,
        deadline: None,
        weight: EurosPerSecond::new(1e-2),
        elasticity: Elasticity::Rigid,
        gpus: Bounds::exactly(gpus),
        batch: Bounds::exactly(64),
        restart: RestartCost::default(),
        preemptible: false,
        shapes: None,
        nodes: None,
    };
    let per_node = HostAmount { cpus, memory_mib };
    (job, HostRequest { per_node, ..HostRequest::default() })
}

struct Play {
    spec: &'static str,
    engine: Scheduler<'static>,
    backend: Backend,
    now: Timestamp,
}

impl Play {
    fn new(spec: &'static str, nodes: usize) -> Self {
        let cluster = cluster(nodes);
        let state = State::new(Arc::clone(&cluster), Timestamp::ZERO);
        let engine = Scheduler::new(
            EngineConfig::default(),
            state,
            policy(spec).unwrap(),
            Box::new(Formula),
            Prices::default(),
            None,
        );
        let backend = Backend::new(cluster, Vec::new(), false);
        let mut play = Self { spec, engine, backend, now: Timestamp::ZERO };
        for node in 0..nodes as u32 {
            play.host(node, HostAmount::default());
        }
        play
    }

    /// So much of a node is taken by others.
    fn host(&mut self, node: u32, taken: HostAmount) {
        self.hear(Event::NodeHost { node: NodeId(node), host: NodeHost { all: ALL, taken } });
    }

    fn submit(&mut self, (job, request): (Job, HostRequest)) -> JobId {
        let id = JobId(self.engine.state().job_count() as u32);
        let job = Arc::new(Job { submit: self.now, ..job });
        self.backend.submit(Arc::clone(&job));
        self.hear(Event::Submitted(job));
        self.hear(Event::HostAsked { job: id, request });
        id
    }

    fn hear(&mut self, event: Event) {
        self.engine.handle(self.now, event).unwrap();
        while let Some(action) = self.engine.poll_action() {
            self.backend.apply(self.now, &action).unwrap();
        }
        while let Some(alert) = self.engine.poll_alert() {
            assert!(!matches!(alert, Alert::PlanRefused { .. }), "{}: {alert:?}", self.spec);
        }
        assert_eq!(check::audit(self.engine.state(), None), [], "{}", self.spec);
        for node in self.engine.state().cluster().node_ids() {
            let here = self.engine.state().node(node);
            for (residents, what) in [(&here.planned, "planned"), (&here.held, "held")] {
                for one in residents.iter() {
                    let gpus = one.mask.count_ones();
                    let fits = self.engine.state().host_fits(one.job, gpus, node, residents.iter());
                    assert_eq!(fits, Ok(()), "{}: {what} {} on {node}", self.spec, one.job);
                }
            }
        }
    }

    fn until(&mut self, seconds: f64) {
        let until = Timestamp::from_seconds(seconds);
        loop {
            let next = [self.backend.next(), self.engine.poll_timeout()];
            let Some(next) = next.into_iter().flatten().min().filter(|t| *t <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(next);
            self.deliver();
            self.hear(Event::Clock);
            self.deliver();
        }
    }

    fn deliver(&mut self) {
        while let Some(event) = self.backend.poll(self.now) {
            self.hear(event);
        }
    }

    fn phase(&self, id: JobId) -> Phase {
        self.engine.state().find_job(id).map_or(Phase::Finished, |job| job.phase)
    }

    fn node(&self, id: JobId) -> Option<NodeId> {
        self.engine.state().job(id).planned.as_ref()?.allocation.only_node()
    }
}

/// Jobs of one GPU that take most of a node's memory: one on each node, whatever the policy, and all
/// end. Beside them jobs that take nothing fill the GPUs.
#[test]
fn jobs_that_take_most_of_the_memory_never_share_a_node_and_all_end() {
    for spec in SPECS {
        let mut play = Play::new(spec, 3);
        let hogs: Vec<JobId> = (0..7).map(|_| play.submit(job(1, 500.0, 1, 600))).collect();
        let small: Vec<JobId> = (0..9).map(|_| play.submit(job(1, 500.0, 1, 10))).collect();
        play.until(60.0);
        let held =
            |ids: &[JobId]| ids.iter().filter(|id| play.phase(**id) == Phase::Running).count();
        assert_eq!(held(&hogs), 3, "{spec}");
        assert!(held(&small) >= 6, "{spec}: {} run beside them", held(&small));
        play.until(50_000.0);
        for id in hogs.iter().chain(&small) {
            assert_eq!(play.phase(*id), Phase::Finished, "{spec}: {id}");
        }
    }
}

/// What does not fit anywhere keeps nobody waiting, and its owner reads what is short.
#[test]
fn a_job_that_others_left_no_memory_for_says_so_and_delays_nobody() {
    for spec in SPECS {
        let mut play = Play::new(spec, 2);
        play.host(0, HostAmount { cpus: 4, memory_mib: 900 });
        play.host(1, HostAmount { cpus: 30, memory_mib: 0 });
        let memory = play.submit(job(2, 100.0, 8, 500));
        play.until(1.0);
        let after = play.submit(job(4, 300.0, 1, 50));
        // The node may have gone to sleep.
        play.until(80.0);
        assert_eq!(play.phase(memory), Phase::Waiting, "{spec}");
        let reason = play.engine.state().job(memory).reason;
        let short = matches!(
            reason,
            Reason::NoHost(Shortage::Memory { needed_mib: 500, free_mib: 100 })
                | Reason::NoHost(Shortage::Cpus { needed: 8, free: 2 })
        );
        assert!(short, "{spec}: {reason:?}");
        assert_eq!(play.phase(after), Phase::Running, "{spec}");
        // As soon as there is enough it starts.
        play.until(60_000.0);
        play.host(1, HostAmount::default());
        play.until(60_060.0);
        assert_ne!(play.phase(memory), Phase::Waiting, "{spec}");
        assert_eq!(play.node(memory).unwrap_or(NodeId(1)), NodeId(1), "{spec}");
    }
}

/// An exclusive job takes all CPUs: nobody else comes to its node, and it to no other's.
#[test]
fn an_exclusive_job_is_alone_on_its_node() {
    for spec in SPECS {
        let mut play = Play::new(spec, 2);
        let small = play.submit(job(1, 2000.0, 1, 1));
        play.until(20.0);
        let (alone, mut request) = job(1, 2000.0, 1, 1);
        request.all_cpus = true;
        let alone = play.submit((alone, request));
        play.until(100.0);
        let more: Vec<JobId> = (0..6).map(|_| play.submit(job(1, 400.0, 1, 1))).collect();
        play.until(150.0);
        let node = play.node(alone).unwrap();
        assert_ne!(Some(node), play.node(small), "{spec}");
        assert!(more.iter().all(|id| play.node(*id) != Some(node)), "{spec}");
    }
}

/// Nodes that rules keep a job from are not planned for it; without any left it waits, and goes on
/// when they are lifted.
#[test]
fn a_job_is_kept_from_the_nodes_that_rules_name() {
    for spec in SPECS {
        let mut play = Play::new(spec, 2);
        let bar = |job: JobId, nodes: &[u32]| Event::Barred {
            job,
            nodes: nodes.iter().map(|node| NodeId(*node)).collect(),
            over: 1,
            why: Refusal::Nodes,
        };
        let full = play.submit(job(4, 600.0, 1, 1));
        play.until(20.0);
        let other = NodeId(1 - play.node(full).unwrap().0);
        let kept = play.submit(job(2, 100.0, 1, 1));
        play.hear(bar(kept, &[0, 1]));
        play.until(60.0);
        assert_eq!(play.phase(kept), Phase::Waiting, "{spec}");
        assert_eq!(play.engine.state().job(kept).reason, Reason::Refused(Refusal::Nodes), "{spec}");
        // Others are not held up.
        let free = play.submit(job(1, 5.0, 1, 1));
        play.until(120.0);
        assert_ne!(play.phase(free), Phase::Waiting, "{spec}");
        play.hear(bar(kept, &[other.0]));
        play.until(200.0);
        assert_ne!(play.node(kept), Some(other), "{spec}");
        play.hear(bar(kept, &[]));
        play.until(100_000.0);
        assert_eq!(play.phase(kept), Phase::Finished, "{spec}");
    }
}
