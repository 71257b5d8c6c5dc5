//! A made-up cluster in the middle of its work: what the speed of planning is measured on.
//!
//! The same in every run. About as many jobs run as fit, all others wait; sizes, elasticities,
//! deadlines and workloads are mixed. Nothing is simulated: the jobs are placed by `fifo` in one
//! plan and said to have come some way, so that a view of 20,000 jobs is there in a second.

use crate::foresight::Foresight;
use crate::instance::{Instance, keep_possible_shapes, widen};
use crate::scenario::{Scenario, ScenarioError};
use crate::simulation::SimulationError;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::action::ActionKind;
use wattline_core::cluster::Shape;
use wattline_core::engine::{Event, EventError};
use wattline_core::ids::{GpuTypeId, JobId};
use wattline_core::job::{Elasticity, Job, Work};
use wattline_core::plan::Plan;
use wattline_core::policy::{ClusterView, Policy};
use wattline_core::predictor::Measurement;
use wattline_core::scheduler::Scheduler;
use wattline_core::state::{Phase, State};
use wattline_core::units::Seconds;
use wattline_predict::reading::{Point, Reading};

/// How large.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Nodes, half of them with H200 and half with V100.
    pub nodes: u32,
    /// GPUs in each.
    pub gpus_per_node: u8,
    /// Jobs that run or wait.
    pub jobs: u32,
    /// The power budget over what the machines can draw at most.
    pub budget_share: f64,
    /// All jobs are this elastic, rigid ones as a site has them that may not be moved once they run
    /// either; a mixture of all kinds, preemptible, if not set.
    pub elasticity: Option<Elasticity>,
}

/// Shares of a card's range of limits at which workloads are known.
const KNOWN_LIMITS: [f64; 3] = [0.0, 0.5, 1.0];
const KNOWN_GPUS: [u32; 5] = [1, 2, 4, 8, 16];
/// Standard deviation of a known time.
const KNOWN_NOISE: f64 = 0.03;

/// The cluster with its jobs, and `to_come` more that arrive later.
///
/// With [`Foresight::Learned`] the predictor knows each workload from some fifteen readings per GPU
/// type; with an oracle it knows all.
///
/// # Errors
/// When there are no nodes, no GPUs or no jobs.
pub fn instance(
    size: &Size,
    to_come: u32,
    foresight: Foresight,
    seed: u64,
) -> Result<Instance, ScenarioError> {
    let group = |gpu: &str, count: u32| match count {
        0 => String::new(),
        _ => {
            format!("[[nodes]]\ncount = {count}\ngpu = \"{gpu}\"\ngpus = {}\n", size.gpus_per_node)
        }
    };
    // The load is so high because the jobs are all there at once.
    let text = format!(
        "name = \"synthetic\"\nseed = {seed}\n{}{}\
         [jobs]\ncount = {}\nload = 6.0\nduration = {{ median = \"1 h\", sigma = 1.0 }}\n\
         deadlines = {{ share = 0.9, tightest = 2.0, loosest = 12.0 }}\n\
         gpus = [{{ count = 1, share = 5 }}, {{ count = 2, share = 2 }}, {{ count = 4, share = 2 }}, \
         {{ count = 8, share = 1 }}, {{ count = 16, share = 0.3 }}]\n\
         [budget]\nshare_of_peak = {:?}\n",
        group("h200", size.nodes.div_ceil(2)),
        group("v100", size.nodes / 2),
        size.jobs.saturating_add(to_come),
        size.budget_share,
    );
    let mut instance = Scenario::parse(&text, "synthetic")?.instance("synthetic", None)?;
    let most = instance.cluster.largest_job();
    for (at, job) in instance.jobs.iter_mut().enumerate() {
        let job = Arc::make_mut(job);
        job.elasticity = size.elasticity.unwrap_or(Elasticity::ALL[at % Elasticity::ALL.len()]);
        job.preemptible = size.elasticity != Some(Elasticity::Rigid);
        widen(job, most);
        keep_possible_shapes(job, &instance.cluster, &instance.physics);
    }
    instance.foresight = foresight;
    if foresight == Foresight::Learned {
        make_known(&mut instance, seed);
    }
    Ok(instance)
}

/// Readings of every workload on every GPU type that can run it.
fn make_known(instance: &mut Instance, seed: u64) {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut models: Vec<&Arc<Job>> = instance.jobs.iter().collect();
    models.sort_by_key(|job| job.workload);
    models.dedup_by_key(|job| job.workload);
    let mut known = Vec::new();
    for job in models {
        let per_gpu = job.batch.requested.div_ceil(job.gpus.requested);
        for gpu_type in instance.cluster.gpu_type_ids() {
            known.extend(readings(instance, job, per_gpu, gpu_type, &mut random));
        }
    }
    instance.known = known;
}

fn readings(
    instance: &Instance,
    job: &Job,
    per_gpu: u32,
    gpu_type: GpuTypeId,
    random: &mut Pcg64Mcg,
) -> Vec<(wattline_core::ids::WorkloadId, GpuTypeId, Reading)> {
    let card = instance.cluster.gpu_type(gpu_type);
    let mut found = Vec::new();
    for gpus in KNOWN_GPUS {
        for share in KNOWN_LIMITS {
            let mut c = instance.cluster.plain_configuration(job, Shape { gpu_type, gpus });
            c.batch = per_gpu * gpus;
            c.power_limit = card.min_limit + (card.default_limit - card.min_limit) * share;
            let Some(speed) = instance.physics.speed(job, &c) else { continue };
            // Close enough to normal: the sum of twelve.
            let normal: f64 = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
            let samples = speed.rate.0 / speed.worth;
            let reading = Reading {
                point: Point {
                    gpus,
                    nodes: c.nodes,
                    batch: f64::from(c.batch),
                    limit: c.power_limit,
                },
                per_sample: Seconds::new((KNOWN_NOISE * normal).exp() / samples),
                power: Some(speed.power),
            };
            found.push((job.workload, gpu_type, reading));
        }
    }
    found
}

/// Places everything once, then hands over.
struct HandOver {
    first: Option<Box<dyn Policy>>,
    then: Box<dyn Policy>,
}

impl Policy for HandOver {
    fn name(&self) -> &str {
        self.then.name()
    }
    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        match self.first.take() {
            Some(mut first) => first.plan(view),
            None => self.then.plan(view),
        }
    }
}

/// A cluster at work, event by event. The caller may look at a clock around [`SyntheticCluster::plan`].
pub struct SyntheticCluster {
    instance: Instance,
    engine: Scheduler<'static>,
    now: Timestamp,
    /// The next job to arrive.
    next: usize,
    events: u64,
}

impl SyntheticCluster {
    /// The first `jobs` jobs, as many of them running as fit; the policy has not planned yet and
    /// has to look at everything.
    ///
    /// # Errors
    /// When the policy does not exist or a job makes no sense.
    pub fn new(instance: Instance, jobs: usize, policy: &str) -> Result<Self, SimulationError> {
        let policy = HandOver {
            first: Some(wattline_policies::policy("fifo")?),
            then: wattline_policies::policy(policy)?,
        };
        let jobs = jobs.min(instance.jobs.len());
        let now = instance.jobs[..jobs].last().map_or(instance.start, |job| job.submit);
        let engine = Scheduler::new(
            instance.engine.clone(),
            State::new(Arc::clone(&instance.cluster), instance.start),
            Box::new(policy),
            instance.predictor(),
            instance.prices.clone(),
            instance.budget.clone(),
        );
        let mut cluster = Self { instance, engine, now, next: 0, events: 0 };
        while cluster.next < jobs {
            cluster.arrive()?;
        }
        cluster.plan()?;
        cluster.settle()?;
        cluster.come_some_way()?;
        let prices = cluster.instance.prices.clone();
        cluster.tell(Event::PricesSet(prices))?;
        Ok(cluster)
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Scheduler<'static> {
        &self.engine
    }

    /// The time there.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Jobs that run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.engine.state().held_jobs()
    }

    /// A copy in which another policy has to look at everything; nothing it does is seen here.
    ///
    /// # Errors
    /// When the engine will not take the prices it had before: a bug.
    pub fn fork(&self, policy: Box<dyn Policy>) -> Result<Scheduler<'_>, SimulationError> {
        let mut fork = self.engine.fork(policy);
        let prices = self.instance.prices.clone();
        fork.handle(self.now, Event::PricesSet(prices)).map_err(|source| self.error(source))?;
        Ok(fork)
    }

    /// The plan that is due, with the checker and the steps towards it.
    ///
    /// # Errors
    /// When the engine will not take the time: a bug.
    pub fn plan(&mut self) -> Result<(), SimulationError> {
        self.tell(Event::Clock)
    }

    /// Everything that was decided is carried out at once.
    ///
    /// # Errors
    /// When the engine will not take what it asked for: a bug.
    pub fn settle(&mut self) -> Result<(), SimulationError> {
        while let Some(action) = self.engine.poll_action() {
            let event = match action.kind {
                ActionKind::Start { job, .. } => Event::Started { job, action: action.id },
                ActionKind::Limit { job, .. } => Event::Limited { job, action: action.id },
                ActionKind::Stop { job, run } => {
                    let state = self.engine.state().job(job);
                    let done = state.job.work - state.remaining(self.now);
                    Event::Stopped { job, run, done }
                }
                ActionKind::Wake { node } => Event::NodeUp(node),
                ActionKind::Sleep { node } => Event::NodeAsleep(node),
            };
            self.tell(event)?;
        }
        while self.engine.poll_alert().is_some() {}
        Ok(())
    }

    /// Time goes on and something happens: in turn, a job ends (and its last stretch is `measured`),
    /// and one arrives. The plan is left to the caller.
    ///
    /// # Errors
    /// When the engine will not take an event: a bug.
    pub fn step(&mut self, measured: bool) -> Result<(), SimulationError> {
        // At this rate jobs of an hour end as often as they do here.
        let apart = (3600.0 / self.running().max(1) as f64).clamp(0.1, 600.0);
        self.now = self.now + Seconds::new(apart);
        self.events += 1;
        match self.next_to_end() {
            Some(job) if self.events % 2 == 1 => {
                if let Some(measurement) = self.measure(job).filter(|_| measured) {
                    self.tell(Event::Measured(measurement))?;
                }
                self.tell(Event::Finished(job))
            }
            _ => self.arrive(),
        }
    }

    fn arrive(&mut self) -> Result<(), SimulationError> {
        let Some(job) = self.instance.jobs.get(self.next) else { return Ok(()) };
        let mut job = Arc::clone(job);
        self.next += 1;
        // Later jobs arrive when they are called, with the time to their deadlines that they had.
        if self.events > 0 {
            let job = Arc::make_mut(&mut job);
            job.deadline = job.deadline.map(|deadline| self.now + (deadline - job.submit));
            job.submit = self.now;
        }
        self.tell(Event::Submitted(job))
    }

    /// Running jobs are said to be at some part of their work.
    fn come_some_way(&mut self) -> Result<(), SimulationError> {
        self.now = self.now + Seconds::new(60.0);
        let mut random = Pcg64Mcg::seed_from_u64(self.instance.world.seed);
        let running: Vec<(JobId, Work)> = self.held().collect();
        for (job, work) in running {
            let done = Work(work.0 * random.random_range(0.02..0.95));
            // Progress over a minute would say that the job is very fast; over none, nothing.
            self.now = self.now - Seconds::new(60.0);
            self.tell(Event::Progress { job, done })?;
            self.now = self.now + Seconds::new(60.0);
        }
        Ok(())
    }

    fn held(&self) -> impl Iterator<Item = (JobId, Work)> + '_ {
        let running = self.engine.state().unfinished_jobs();
        running.filter(|(_, job)| job.phase == Phase::Running).map(|(id, job)| (id, job.job.work))
    }

    fn next_to_end(&self) -> Option<JobId> {
        let left = |id: JobId| {
            let job = self.engine.state().job(id);
            job.remaining(self.now).0 / job.progress.rate.0.max(1e-12)
        };
        self.held().map(|(id, _)| id).min_by(|a, b| left(*a).total_cmp(&left(*b)))
    }

    fn measure(&self, id: JobId) -> Option<Measurement> {
        let state = self.engine.state().job(id);
        let held = state.held.as_ref()?;
        let speed = self.instance.physics.speed(&state.job, &held.configuration)?;
        let seconds = Seconds::new(300.0);
        Some(Measurement {
            at: self.now,
            job: id,
            workload: state.job.workload,
            configuration: held.configuration,
            node: held.allocation.only_node(),
            processed: Work(speed.rate.0 / speed.worth * seconds.get()),
            seconds,
            power: Some(speed.power),
            noise_scale: None,
            load: None,
        })
    }

    fn tell(&mut self, event: Event) -> Result<(), SimulationError> {
        self.engine.handle(self.now, event).map_err(|source| self.error(source))
    }

    fn error(&self, source: EventError) -> SimulationError {
        SimulationError::Event { time: self.now, source }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use wattline_core::check::audit;

    fn cluster(foresight: Foresight, policy: &str) -> SyntheticCluster {
        let size =
            Size { nodes: 10, gpus_per_node: 8, jobs: 60, budget_share: 0.8, elasticity: None };
        let instance = instance(&size, 20, foresight, 1).unwrap();
        SyntheticCluster::new(instance, 60, policy).unwrap()
    }

    #[test]
    fn a_view_is_full_mixed_and_sound() {
        for foresight in [Foresight::Learned, Foresight::Oracle] {
            let cluster = cluster(foresight, "edf");
            let state = cluster.engine().state();
            assert!(audit(state, cluster.engine().budget_at(cluster.now())).is_empty());
            let (running, all) = (cluster.running(), state.unfinished());
            assert!(running >= 8 && running < all && all == 60, "{running} of {all} run");
            let busy: u32 = cluster
                .held()
                .map(|(id, _)| state.job(id).held.as_ref())
                .map(|held| held.map_or(0, |held| held.configuration.gpus))
                .sum();
            assert!(busy > 40, "{busy} of 80 GPUs are busy");
            let elasticities = Elasticity::ALL.map(|e| {
                state.unfinished_jobs().filter(|(_, job)| job.job.elasticity == e).count()
            });
            assert!(elasticities.iter().all(|count| *count > 5), "{elasticities:?}");
            let early = |job: &wattline_core::state::JobState| {
                job.phase == Phase::Running && job.progress.done.0 > 0.0
            };
            assert!(state.unfinished_jobs().any(|(_, job)| early(job)));
        }
    }

    #[test]
    fn events_come_in_turn_and_every_plan_passes() {
        for policy in ["edf", "tiresias", "andreas+rounds=5"] {
            let mut cluster = cluster(Foresight::Learned, policy);
            cluster.plan().unwrap();
            cluster.settle().unwrap();
            for event in 0..20 {
                let before = cluster.engine().stats();
                cluster.step(event > 10).unwrap();
                cluster.plan().unwrap();
                cluster.settle().unwrap();
                let after = cluster.engine().stats();
                assert_eq!((after.plans, after.refused), (before.plans + 1, 0), "{policy}");
            }
            assert_eq!(cluster.engine().state().unfinished(), 60, "{policy}");
            let state = cluster.engine().state();
            assert!(audit(state, cluster.engine().budget_at(cluster.now())).is_empty(), "{policy}");
        }
    }
}
