//! Whatever fails and comes back: every job that some machine could run ends.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{POLICIES, instance};
use proptest::prelude::*;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::calendar::{Calendar, Rule, UtcOffset};
use wattline_core::cluster::{Cluster, NodeDraw, Shape};
use wattline_core::engine::{Alert, Event};
use wattline_core::ids::{ActionId, JobId, NodeId};
use wattline_core::job::Job;
use wattline_core::scheduler::Scheduler;
use wattline_core::state::Phase;
use wattline_core::units::{Seconds, Watts};
use wattline_sim::begin::begin;
use wattline_sim::instance::Instance;
use wattline_world::world::World;

/// Steps that a run may take after the last trouble. Runs that end take some hundred per job; a run
/// that takes this many does not get on.
const MOST_STEPS: u32 = 40_000;

#[derive(Clone, Debug)]
struct Outage {
    node: u32,
    at: f64,
    /// Until it is back; never, if not set.
    lasts: Option<f64>,
}

#[derive(Clone, Debug)]
struct Draw {
    seed: u64,
    nodes: u32,
    gpus: u8,
    second_kind: bool,
    jobs: u32,
    elasticity: &'static str,
    preemptible: bool,
    /// As shares of the peak, by day and by night.
    budget: Option<(f64, f64)>,
    foresight: &'static str,
    policy: &'static str,
    /// Actions that fail, of a hundred, until the trouble ends.
    failing: u32,
    trouble_ends: f64,
    outages: Vec<Outage>,
}

fn outages() -> impl Strategy<Value = Vec<Outage>> {
    let lasts = prop_oneof![8 => (1.0..7200.0_f64).prop_map(Some), 1 => Just(None)];
    let outage = (0_u32..8, 0.0..10_000.0_f64, lasts);
    prop::collection::vec(outage.prop_map(|(node, at, lasts)| Outage { node, at, lasts }), 0..6)
}

fn draws() -> impl Strategy<Value = Draw> {
    let machines =
        (0_u64..1 << 40, 1_u32..4, prop::sample::select(vec![1_u8, 2, 4]), any::<bool>());
    let elasticity = prop::sample::select(vec!["rigid", "moldable", "malleable", "adaptive"]);
    let jobs = (2_u32..12, elasticity, prop::bool::weighted(0.7));
    let foresight = prop::sample::select(vec!["learned", "oracle", "noisy=0.2"]);
    let budget = prop::option::weighted(0.7, (0.1..1.0_f64, 0.1..1.0_f64));
    let trouble = (prop_oneof![Just(0_u32), 5_u32..30, 60_u32..100], 0.0..20_000.0_f64, outages());
    (machines, jobs, foresight, budget, prop::sample::select(POLICIES), trouble).prop_map(
        |((seed, nodes, gpus, second_kind), jobs, foresight, budget, policy, trouble)| {
            let (jobs, elasticity, preemptible) = jobs;
            let (failing, trouble_ends, outages) = trouble;
            Draw {
                seed,
                nodes,
                gpus,
                second_kind,
                jobs,
                elasticity,
                preemptible,
                budget,
                foresight,
                policy,
                failing,
                trouble_ends,
                outages,
            }
        },
    )
}

/// What any of these jobs needs at its lowest limit on the hungriest nodes of any type that it may
/// have, with the other nodes asleep and those that never come back at their maximum.
fn enough(cluster: &Cluster, jobs: &[Arc<Job>], gone: &[NodeId]) -> Watts {
    let asleep: Watts = cluster.nodes().iter().map(|node| node.sleep).sum();
    let lost: Watts = gone.iter().map(|node| cluster.most_power(*node)).sum();
    let need = |shape: &Shape| {
        let card = cluster.gpu_type(shape.gpu_type);
        let nodes = cluster.nodes().iter().filter(|node| node.gpu_type == shape.gpu_type);
        let mut rises: Vec<f64> = nodes
            .map(|node| {
                let NodeDraw::Additive { base } = node.draw else { panic!("additive nodes") };
                let awake = base + card.min_limit * f64::from(node.gpus);
                (awake.max(node.boot) - node.sleep).get()
            })
            .collect();
        rises.sort_by(|a, b| b.total_cmp(a));
        rises.iter().take(shape.gpus as usize).sum::<f64>()
    };
    let shapes = jobs.iter().flat_map(|job| cluster.menu(job).to_vec());
    let most = shapes.map(|shape| need(&shape)).fold(0.0, f64::max);
    asleep + lost + Watts::new(most + 1e-3)
}

impl Draw {
    fn instance(&self) -> Instance {
        let machines = common::machines(self.nodes, self.gpus, self.second_kind);
        let text = format!(
            "name = \"liveness\"\nseed = {}\n{machines}\
             [jobs]\ncount = {}\nload = 0.9\nelasticity = \"{}\"\n\
             duration = {{ median = \"8 min\", sigma = 0.9, min = \"1 min\", max = \"60 min\" }}\n\
             gpus = [{{ count = 1, share = 0.5 }}, {{ count = 2, share = 0.3 }}, {{ count = 4, share = 0.2 }}]\n\
             deadlines = {{ share = 0.7, tightest = 1.2, loosest = 4.0 }}\n",
            self.seed, self.jobs, self.elasticity
        );
        let mut instance = instance(&text);
        for job in &mut instance.jobs {
            Arc::make_mut(job).preemptible = self.preemptible;
        }
        let cluster = &instance.cluster;
        let least = enough(cluster, &instance.jobs, &self.gone(cluster));
        instance.budget = self.budget.map(|(day, night)| {
            let watts = |share: f64| (cluster.peak_power() * share).max(least);
            let rule = Rule {
                days: "mon-sun".into(),
                from: "00:20".into(),
                to: "03:00".into(),
                value: watts(night),
            };
            Calendar::from_rules(watts(day), &[rule], UtcOffset::default()).unwrap()
        });
        instance.foresight = self.foresight.parse().unwrap();
        instance.world.noise = 0.1;
        instance.world.checkpoint_every = Some(Seconds::new(200.0));
        instance
    }

    /// Nodes that are lost for good.
    fn gone(&self, cluster: &Cluster) -> Vec<NodeId> {
        let nodes = cluster.nodes().len() as u32;
        let gone = self.outages.iter().filter(|outage| outage.lasts.is_none());
        let mut gone: Vec<NodeId> = gone.map(|outage| NodeId(outage.node % nodes)).collect();
        gone.sort_unstable();
        gone.dedup();
        gone
    }

    /// Whether an action fails: as likely for each, whatever it is about.
    fn fails(&self, action: ActionId) -> bool {
        let mixed =
            (self.seed ^ action.0).wrapping_add(0x9e37_79b9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 33) % 100 < u64::from(self.failing)
    }
}

/// An engine over a world in which things go wrong.
struct Run<'a> {
    draw: &'a Draw,
    instance: &'a Instance,
    engine: Scheduler<'static>,
    world: World,
    now: Timestamp,
    arrived: usize,
    /// When which node is lost or found, in order of time.
    to_come: Vec<(Timestamp, NodeId, bool)>,
    /// Nodes whose wake was given up, as alerts say.
    unwoken: Vec<NodeId>,
}

impl<'a> Run<'a> {
    fn new(draw: &'a Draw, instance: &'a Instance) -> Self {
        let (engine, world) = begin(instance, draw.policy, false).unwrap();
        let nodes = instance.cluster.nodes().len() as u32;
        let mut to_come = Vec::new();
        for outage in &draw.outages {
            let (node, at) =
                (NodeId(outage.node % nodes), instance.start + Seconds::new(outage.at));
            to_come.push((at, node, true));
            to_come.extend(outage.lasts.map(|lasts| (at + Seconds::new(lasts), node, false)));
        }
        // Who is lost for good is not found after a shorter outage.
        let gone = draw.gone(&instance.cluster);
        to_come.retain(|(_, node, lost)| *lost || !gone.contains(node));
        to_come.sort();
        to_come.reverse();
        let (now, unwoken) = (instance.start, Vec::new());
        Self { draw, instance, engine, world, now, arrived: 0, to_come, unwoken }
    }

    fn tell(&mut self, event: Event) -> Result<(), String> {
        self.engine.handle(self.now, event).unwrap();
        while let Some(alert) = self.engine.poll_alert() {
            match alert {
                // One that was lost and found in between may be given up again.
                Alert::WakeGivenUp(node)
                    if self.draw.outages.is_empty() && self.unwoken.contains(&node) =>
                {
                    return Err(format!("{node} is given up twice"));
                }
                Alert::WakeGivenUp(node) => self.unwoken.push(node),
                Alert::WokenAtLast(node) => self.unwoken.retain(|other| *other != node),
                Alert::PlanRefused { violations, .. } => return Err(format!("{violations:?}")),
                _ => {}
            }
        }
        Ok(())
    }

    /// One thing happens; says whether anything did.
    fn step(&mut self) -> Result<bool, String> {
        let jobs = &self.instance.jobs;
        let arrival = jobs.get(self.arrived).map(|job| job.submit);
        let outage = self.to_come.last().map(|(at, ..)| *at);
        let next = [arrival, outage, self.world.next_event(), self.engine.poll_timeout()];
        let Some(next) = next.into_iter().flatten().min() else { return Ok(false) };
        self.now = self.now.max(next);
        while let Some((_, node, lost)) = self.to_come.pop_if(|(at, ..)| *at <= self.now) {
            if lost {
                self.world.lose(self.now, node);
            } else {
                self.world.regain(self.now, node);
            }
        }
        while let Some(event) = self.world.poll_event(self.now) {
            self.tell(event)?;
        }
        while let Some(job) = jobs.get(self.arrived).filter(|job| job.submit <= self.now) {
            self.arrived += 1;
            self.world.submit(Arc::clone(job));
            self.tell(Event::Submitted(Arc::clone(job)))?;
        }
        self.tell(Event::Clock)?;
        while let Some(action) = self.engine.poll_action() {
            if self.now < self.trouble_ends() && self.draw.fails(action.id) {
                self.tell(Event::Failed { action: action.id })?;
            } else {
                self.world.apply(self.now, &action);
            }
            while let Some(event) = self.world.poll_event(self.now) {
                self.tell(event)?;
            }
        }
        Ok(true)
    }

    fn trouble_ends(&self) -> Timestamp {
        self.instance.start + Seconds::new(self.draw.trouble_ends)
    }

    fn in_trouble(&self) -> bool {
        self.arrived < self.instance.jobs.len()
            || !self.to_come.is_empty()
            || self.now < self.trouble_ends()
    }

    /// The number of GPUs that a job must have: a moldable one that has started keeps its own, and
    /// Tiresias reshapes nobody.
    fn count(&self, id: JobId) -> Option<u32> {
        let state = self.engine.state().job(id);
        let started = state.started_as().map(|shape| shape.gpus);
        let reshapes = !self.draw.policy.starts_with("tiresias");
        let counts = self.engine.state().menu(state.menu).iter().map(|shape| shape.gpus);
        let asked = counts.min_by_key(|gpus| gpus.abs_diff(state.job.gpus.requested));
        started.or(asked.filter(|_| !reshapes))
    }

    /// Whether a job could run on what is left in the end.
    fn could_run(&self, id: JobId) -> bool {
        let state = self.engine.state().job(id);
        let (cluster, job) = (&self.instance.cluster, &state.job);
        let gone = self.draw.gone(cluster);
        cluster.menu(job).iter().any(|shape| {
            let there = cluster.node_ids().filter(|node| !gone.contains(node));
            let of_type = there.filter(|id| cluster.node(*id).gpu_type == shape.gpu_type);
            let sizes: Vec<u32> = of_type.map(|id| cluster.node(id).gpus.into()).collect();
            // All nodes of a type are equal here.
            let fits = sizes.iter().sum::<u32>() >= shape.gpus;
            let same = self.count(id).is_none_or(|count| count == shape.gpus);
            let configuration = cluster.plain_configuration(job, *shape);
            fits && same && self.instance.physics.speed(job, &configuration).is_some()
        })
    }

    /// Jobs that could run, and are not over.
    fn left(&self) -> Vec<JobId> {
        let ids = (0..self.arrived as u32).map(JobId);
        let open = ids.filter(|id| self.engine.state().job(*id).phase != Phase::Finished);
        open.filter(|id| self.could_run(*id)).collect()
    }

    fn describe(&self) -> String {
        let state = self.engine.state();
        let mut text = format!("at {} (begun {})", self.now, self.instance.start);
        for id in self.left() {
            let job = state.job(id);
            text += &format!(
                "\n{id}: {:?}, {}, on {:?}, planned {:?}, may be {:?}",
                job.phase,
                job.reason,
                job.held,
                job.planned,
                state.menu(job.menu)
            );
        }
        for id in state.cluster().node_ids() {
            let (node, why) = (state.node(id), self.engine.node_reason(id, self.now));
            text += &format!("\n{id}: {:?}, wanted {:?}: {why}", node.power, node.target);
        }
        let (held, budget) = (state.held_committed(), self.engine.budget_at(self.now));
        text + &format!("\ncommitted {held:.1}, budget {budget:?}")
    }
}

fn every_runnable_job_ends(draw: &Draw) -> Result<(), String> {
    let instance = draw.instance();
    let mut run = Run::new(draw, &instance);
    let mut steps = 0;
    while run.in_trouble() || !run.left().is_empty() {
        if !run.step()? {
            if run.left().is_empty() {
                break;
            }
            return Err(format!("nothing happens any more, {}", run.describe()));
        }
        if !run.in_trouble() {
            steps += 1;
        }
        if steps > MOST_STEPS {
            return Err(format!("after {MOST_STEPS} steps, {}", run.describe()));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(wattline_testing::cases(600, 9))]

    #[test]
    fn whatever_fails_and_comes_back_every_runnable_job_ends(draw in draws()) {
        every_runnable_job_ends(&draw).map_err(TestCaseError::fail)?;
    }
}

/// The shortest jobs were candidates although too few machines were left for them; those that could
/// run were none, and an idle node stayed idle.
#[test]
fn ones_does_not_wait_for_jobs_that_no_machine_left_can_run() {
    let draw = Draw {
        seed: 191_189_819_871,
        nodes: 2,
        gpus: 1,
        second_kind: false,
        jobs: 6,
        elasticity: "rigid",
        preemptible: false,
        budget: None,
        foresight: "learned",
        policy: "ones+generations=5",
        failing: 0,
        trouble_ends: 0.0,
        outages: vec![
            Outage { node: 1, at: 0.0, lasts: Some(1.0) },
            Outage { node: 0, at: 0.0, lasts: None },
            Outage { node: 0, at: 0.0, lasts: Some(1.0) },
        ],
    };
    assert_eq!(every_runnable_job_ends(&draw), Ok(()));
}
