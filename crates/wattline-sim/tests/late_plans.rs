//! Plans that come late, over whole runs: the engine goes on hearing meanwhile, as it does in the
//! controller, and gets each plan some events after it asked for it. No late plan is ever called
//! a fault of its policy, the budget holds, and every job ends.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{POLICIES, instance};
use proptest::prelude::*;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::effort::Effort;
use wattline_core::engine::{Engine, Event, PlanRequest, Verdict};
use wattline_core::plan::{Plan, Reason};
use wattline_core::policy::Policy;
use wattline_core::power::TOLERANCE;
use wattline_core::units::Seconds;
use wattline_sim::begin::begin;
use wattline_sim::instance::Instance;
use wattline_world::faults::Faults;
use wattline_world::world::World;

/// A run takes some hundred events per job; one that takes this many does not get on.
const MOST_STEPS: u32 = 40_000;

#[derive(Clone, Debug)]
struct Draw {
    seed: u64,
    elasticity: &'static str,
    preemptible: bool,
    budget: Option<f64>,
    faults: bool,
    policy: &'static str,
    /// Events between a request and its plan: each in turn.
    late_by: Vec<u32>,
}

fn draws() -> impl Strategy<Value = Draw> {
    let elasticity = prop::sample::select(vec!["rigid", "moldable", "malleable", "adaptive"]);
    let budget = prop::option::of(0.55..1.0_f64);
    let late_by = prop::collection::vec(0_u32..12, 1..8);
    (
        0_u64..1 << 40,
        elasticity,
        any::<bool>(),
        budget,
        prop::bool::weighted(0.3),
        prop::sample::select(POLICIES),
        late_by,
    )
        .prop_map(|(seed, elasticity, preemptible, budget, faults, policy, late_by)| Draw {
            seed,
            elasticity,
            preemptible,
            budget,
            faults,
            policy,
            late_by,
        })
}

impl Draw {
    fn instance(&self) -> Instance {
        let text = format!(
            "name = \"late-plans\"\nseed = {}\n\
             [[nodes]]\ncount = 3\ngpu = \"h200\"\ngpus = 4\n\
             [[nodes]]\ncount = 1\ngpu = \"v100\"\ngpus = 2\n\
             [jobs]\ncount = 12\nload = 1.5\nelasticity = \"{}\"\n\
             duration = {{ median = \"6 min\", sigma = 0.9, min = \"1 min\", max = \"40 min\" }}\n\
             gpus = [{{ count = 1, share = 0.5 }}, {{ count = 2, share = 0.3 }}, {{ count = 4, share = 0.2 }}]\n\
             deadlines = {{ share = 0.7, tightest = 1.2, loosest = 4.0 }}\n{}",
            self.seed,
            self.elasticity,
            common::budget(self.budget)
        );
        let mut instance = instance(&text);
        for job in &mut instance.jobs {
            Arc::make_mut(job).preemptible = self.preemptible;
        }
        instance.world.noise = 0.1;
        instance.world.checkpoint_every = Some(Seconds::new(200.0));
        if self.faults {
            let (mean_time_between, repair) = (Seconds::new(7200.0), Seconds::new(600.0));
            instance.world.faults = Some(Faults { mean_time_between, repair });
            instance.world.action_failures = 0.1;
        }
        instance
    }
}

/// What became of plans.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// As they were made.
    whole: u32,
    trimmed: u32,
    stale: u32,
}

struct Run<'a> {
    draw: &'a Draw,
    instance: &'a Instance,
    engine: Engine<'static>,
    policy: Box<dyn Policy>,
    world: World,
    now: Timestamp,
    arrived: usize,
    /// A plan that is under way, and how many events it waits for.
    under_way: Option<(PlanRequest, Plan, u32)>,
    asked: usize,
    counts: Counts,
}

impl<'a> Run<'a> {
    fn new(draw: &'a Draw, instance: &'a Instance) -> Self {
        let (engine, world) = begin(instance, draw.policy, false).unwrap();
        Self {
            draw,
            instance,
            engine: engine.into_engine(),
            policy: wattline_policies::policy(draw.policy).unwrap(),
            world,
            now: instance.start,
            arrived: 0,
            under_way: None,
            asked: 0,
            counts: Counts::default(),
        }
    }

    /// Hears what the world says until it says nothing more.
    fn hear(&mut self) {
        while let Some(event) = self.world.poll_event(self.now) {
            self.engine.handle(self.now, event).unwrap();
        }
    }

    fn act(&mut self) {
        self.engine.handle(self.now, Event::Clock).unwrap();
        while let Some(action) = self.engine.poll_action() {
            self.world.apply(self.now, &action);
            self.hear();
        }
    }

    /// As the controller does: shed load, take the plan that was made, ask for the next.
    fn plan(&mut self) -> Result<(), String> {
        if let Some(plan) = self.engine.load_to_shed(self.now) {
            self.engine.apply(self.now, plan);
        }
        if let Some((_, _, left)) = &mut self.under_way {
            *left = left.saturating_sub(1);
        }
        if let Some((request, plan, _)) = self.under_way.take_if(|(_, _, left)| *left == 0) {
            match self.engine.judge(self.now, &request, plan) {
                Verdict::Good { plan, dropped } => {
                    let count =
                        if dropped > 0 { &mut self.counts.trimmed } else { &mut self.counts.whole };
                    *count += 1;
                    self.engine.apply(self.now, plan);
                }
                Verdict::Stale => self.counts.stale += 1,
                Verdict::Refused(why) => return Err(format!("at {}: {why:?}", self.now)),
            }
        }
        if self.under_way.is_none()
            && let Some(input) = self.engine.fork_for_planning(self.now)
        {
            let plan = self.policy.plan(&input.view(self.engine.predictor(), Effort::FULL));
            let late_by = self.draw.late_by[self.asked % self.draw.late_by.len()];
            self.asked += 1;
            self.under_way = Some((input.into_request(), plan, late_by + 1));
        }
        Ok(())
    }

    /// Jobs that are not over. Some workloads run on none of these machines in the shape asked for.
    fn left(&self) -> usize {
        let jobs = self.engine.state().unfinished_jobs();
        jobs.filter(|(_, job)| job.reason != Reason::NeverFits).count()
    }

    fn describe(&self) -> String {
        let state = self.engine.state();
        let mut text = format!("at {}, {:?}", self.now, self.counts);
        for (id, job) in state.unfinished_jobs() {
            let (held, planned) = (&job.held, &job.planned);
            text += &format!(
                "\n{id}: {:?}, {}, on {held:?}, planned {planned:?}",
                job.phase, job.reason
            );
        }
        for id in state.cluster().node_ids() {
            let node = state.node(id);
            text += &format!("\n{id}: {:?}, wanted {:?}", node.power, node.target);
        }
        text
    }

    fn step(&mut self) -> Result<bool, String> {
        let jobs = &self.instance.jobs;
        if self.arrived == jobs.len() && self.left() == 0 {
            return Ok(false);
        }
        let arrival = jobs.get(self.arrived).map(|job| job.submit);
        // A plan comes soon, whatever else happens.
        let answer = self.under_way.as_ref().map(|_| self.now + Seconds::new(0.5));
        let next = [arrival, answer, self.world.next_event(), self.engine.poll_timeout()];
        let Some(next) = next.into_iter().flatten().min() else {
            return Err(format!("nothing happens any more, {}", self.describe()));
        };
        self.now = self.now.max(next);
        self.hear();
        while let Some(job) = jobs.get(self.arrived).filter(|job| job.submit <= self.now) {
            self.arrived += 1;
            self.world.submit(Arc::clone(job));
            self.engine.handle(self.now, Event::Submitted(Arc::clone(job))).unwrap();
        }
        self.plan()?;
        self.act();
        // A node that is lost counts at its worst at once, and others make room after that.
        let (held, budget) =
            (self.engine.state().held_committed(), self.engine.budget_at(self.now));
        if !self.draw.faults && budget.is_some_and(|budget| held > budget + TOLERANCE) {
            return Err(format!("at {}: {held} committed, {budget:?} allowed", self.now));
        }
        Ok(true)
    }
}

fn run(draw: &Draw) -> Result<Counts, String> {
    let instance = draw.instance();
    let mut run = Run::new(draw, &instance);
    let mut steps = 0;
    while run.step()? {
        steps += 1;
        if steps > MOST_STEPS {
            return Err(format!("after {MOST_STEPS} steps, {}", run.describe()));
        }
    }
    Ok(run.counts)
}

proptest! {
    #![proptest_config(wattline_testing::cases(200, 41))]

    #[test]
    fn late_plans_keep_the_budget_and_every_job_ends(draw in draws()) {
        run(&draw).map_err(TestCaseError::fail)?;
    }
}

/// The test above means something: late plans are taken whole, and some are trimmed. Those that are
/// thrown away are rare, and tested in the core.
#[test]
fn late_plans_are_taken_whole_and_trimmed() {
    let mut all = Counts::default();
    for seed in (0..60).map(wattline_testing::seed) {
        let draw = Draw {
            seed,
            elasticity: ["malleable", "adaptive", "rigid"][seed as usize % 3],
            preemptible: true,
            budget: Some(0.6),
            faults: seed.is_multiple_of(2),
            policy: ["wattline+work=500", "edf", "tiresias", "fifo"][seed as usize % 4],
            late_by: vec![20, 60, 120],
        };
        let counts = run(&draw).unwrap_or_else(|error| panic!("{draw:?}: {error}"));
        all.whole += counts.whole;
        all.trimmed += counts.trimmed;
        all.stale += counts.stale;
    }
    eprintln!("{all:?}");
    assert!(all.whole > 100 && all.trimmed > 0, "{all:?}");
}
