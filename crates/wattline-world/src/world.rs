//! A cluster that runs jobs: takes actions in, tells what happened, draws power.
//!
//! Like the engine it is a state machine without input or output: [`World::apply`] takes an
//! action, [`World::poll_event`] gives what has happened by a time, [`World::next_event`] says
//! when to ask again. It knows the physics and nothing of policies or predictors. What it draws
//! while it does so is told in `draw.rs`, how far a job comes in `run.rs`.

mod draw;
mod image;
mod run;

pub(crate) use draw::node_split;
pub use image::WorldImage;

use crate::faults::{Faults, Stragglers};
use crate::meter::{Meter, PowerSplit};
use crate::noise::{gaussian, generator, hash};
use crate::physics::Physics;
use crate::queue::EventQueue;
use crate::room::Room;
use rand_distr::Distribution;
use run::{Run, WorldJob};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::action::{Action, ActionKind};
use wattline_core::calendar::Calendar;
use wattline_core::cluster::Cluster;
use wattline_core::engine::Event;
use wattline_core::ids::{ActionId, JobId, NodeId};
use wattline_core::job::{Job, Work, WorkRate};
use wattline_core::job_table::JobTable;
use wattline_core::placement::Placement;
use wattline_core::power::{NodePower, Part};
use wattline_core::predictor::Measurement;
use wattline_core::prices::{Bill, Prices};
use wattline_core::units::{Joules, Seconds, Watts};

/// How the world departs from the physics.
#[derive(Clone, Debug, Default)]
pub struct WorldConfig {
    /// Seed of all randomness here.
    pub seed: u64,
    /// Standard deviation of the logarithm of each run's speed.
    pub noise: f64,
    /// Nodes that are slower than others.
    pub stragglers: Option<Stragglers>,
    /// Nodes that fail.
    pub faults: Option<Faults>,
    /// Share of actions that fail.
    pub action_failures: f64,
    /// Jobs save their state this often by themselves; only matters when nodes fail.
    pub checkpoint_every: Option<Seconds>,
    /// Report measurements at the end of each run, and this often during it.
    pub measure_every: Option<Seconds>,
    /// From the order to start a job until it runs. Its GPUs are idle until then.
    pub start_delay: Seconds,
    /// From when a job has saved, or is done, until its GPUs are free. They draw what they did.
    pub stop_delay: Seconds,
    /// Keep a log of what ran where.
    pub keep_log: bool,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LogEntry {
    /// A job held GPUs.
    Ran {
        /// Which.
        job: JobId,
        /// What it held.
        placement: Placement,
        /// From when.
        from: Timestamp,
        /// Until when.
        to: Timestamp,
    },
    /// A node slept.
    Slept {
        /// Which.
        node: NodeId,
        /// From when.
        from: Timestamp,
        /// Until when.
        to: Timestamp,
    },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Happening {
    Starts(JobId, u32),
    Finishes(JobId, u32),
    Leaves(JobId, u32),
    Saved(JobId, u32),
    Measured(JobId, u32),
    Booted(NodeId, u32),
    Asleep(NodeId, u32),
    Fails(NodeId),
    Repaired(NodeId),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorldNode {
    power: NodePower,
    residents: Vec<(JobId, u32)>,
    busy: u32,
    split: PowerSplit,
    /// What it had drawn when its power last changed, and when that was.
    energy: (Joules, Timestamp),
    epoch: u32,
    slow: f64,
    asleep_since: Timestamp,
    failures: u32,
}

/// The emulated cluster.
pub struct World {
    cluster: Arc<Cluster>,
    physics: Arc<Physics>,
    config: WorldConfig,
    /// All that were submitted and not [forgotten](World::forget).
    jobs: JobTable<WorldJob>,
    nodes: Vec<WorldNode>,
    to_come: EventQueue<Happening>,
    events: VecDeque<Event>,
    meter: Meter,
    room: Room,
    pue: f64,
    log: Vec<LogEntry>,
    happened: u64,
}

impl World {
    /// A cluster with all nodes up and idle.
    #[must_use]
    pub fn new(
        cluster: Arc<Cluster>,
        physics: Arc<Physics>,
        config: WorldConfig,
        now: Timestamp,
        prices: Prices,
        budget: Option<Calendar<Watts>>,
    ) -> Self {
        let pue = prices.pue;
        let room = Room::new(&cluster, now);
        let nodes = cluster
            .node_ids()
            .map(|id| WorldNode {
                power: NodePower::Up,
                residents: Vec::new(),
                busy: 0,
                split: PowerSplit::default(),
                energy: (Joules::ZERO, now),
                epoch: 0,
                slow: config.stragglers.map_or(1.0, |s| s.slowdown_of(config.seed, id)),
                asleep_since: now,
                failures: 0,
            })
            .collect();
        let mut world = Self {
            cluster,
            physics,
            config,
            jobs: JobTable::default(),
            nodes,
            to_come: EventQueue::default(),
            events: VecDeque::new(),
            meter: Meter::new(now, prices, budget),
            room,
            pue,
            log: Vec::new(),
            happened: 0,
        };
        for id in world.cluster.node_ids() {
            world.draw(now, id);
            world.foresee_failure(now, id);
        }
        world
    }

    /// A node that sleeps from the beginning.
    pub fn begin_asleep(&mut self, now: Timestamp, id: NodeId) {
        self.become_power(now, id, NodePower::Asleep);
    }

    /// The meter.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Free GPUs over time.
    #[must_use]
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// How many things have happened by themselves.
    #[must_use]
    pub fn happened(&self) -> u64 {
        self.happened
    }

    /// Energy attributed to a job so far.
    #[must_use]
    pub fn job_energy(&self, id: JobId) -> Joules {
        self.jobs[id].energy
    }

    /// What that energy cost.
    #[must_use]
    pub fn job_bill(&self, id: JobId) -> Bill {
        self.jobs[id].bill
    }

    /// What a job has drawn until `now`, and what that cost: also what is not settled yet.
    #[must_use]
    pub fn job_account(&self, id: JobId, now: Timestamp) -> (Joules, Bill) {
        let job = &self.jobs[id];
        let (mut energy, mut bill) = (job.energy, job.bill);
        if let Some(run) = &job.run {
            energy += run.power.drawn * now.since(run.power_since).max(Seconds::ZERO);
            bill += self.meter.prices().bill(run.power.billed, run.power_since, now);
        }
        (energy, bill)
    }

    /// What a node has drawn until `now`.
    #[must_use]
    pub fn node_energy(&self, id: NodeId, now: Timestamp) -> Joules {
        let node = &self.nodes[id.index()];
        let (energy, since) = node.energy;
        energy + node.split.drawn() * now.since(since).max(Seconds::ZERO)
    }

    /// The limits of the GPUs that jobs hold on a node.
    pub fn node_limits(&self, id: NodeId) -> impl Iterator<Item = (u8, Watts)> + '_ {
        let runs = self.nodes[id.index()].residents.iter();
        let runs = runs.filter_map(|(job, _)| self.jobs[*job].run.as_deref());
        runs.flat_map(move |run| {
            let limit = run.placement.configuration.power_limit;
            let mask = run.placement.allocation.shares().filter(move |share| share.node == id);
            let mask = mask.fold(0, |mask, share| mask | share.mask);
            (0..64_u8).filter(move |gpu| mask >> gpu & 1 == 1).map(move |gpu| (gpu, limit))
        })
    }

    /// What ran where, if that is kept.
    #[must_use]
    pub fn log(&self) -> &[LogEntry] {
        &self.log
    }

    /// The next job. Ids are given in the order in which jobs come, as the engine does.
    pub fn submit(&mut self, job: Arc<Job>) -> JobId {
        self.jobs.push(WorldJob::new(job))
    }

    /// A job under the id that the engine gave it; nothing happens if it is known.
    pub fn submit_as(&mut self, id: JobId, job: &Arc<Job>) {
        if self.jobs.get(id).is_none() {
            self.jobs.insert(id, WorldJob::new(Arc::clone(job)));
        }
    }

    /// Whether it has heard of a job and not forgotten it.
    #[must_use]
    pub fn knows(&self, id: JobId) -> bool {
        self.jobs.get(id).is_some()
    }

    /// How many jobs it keeps.
    #[must_use]
    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    /// Forgets a job that is over and that nobody asks about any more.
    pub fn forget(&mut self, id: JobId) {
        if self.jobs.get(id).is_some_and(|job| job.run.is_none() && job.told.is_none()) {
            self.jobs.remove(id);
        }
    }

    /// When something happens next, if nothing is done before.
    #[must_use]
    pub fn next_event(&self) -> Option<Timestamp> {
        self.to_come.next_time()
    }

    /// Something that has happened by `now`.
    pub fn poll_event(&mut self, now: Timestamp) -> Option<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let (time, happening) = self.to_come.pop_by(now)?;
            self.happen(time, happening);
        }
    }

    /// Ends the metering at `now`.
    pub fn close(&mut self, now: Timestamp) {
        self.meter.advance(now);
        self.room.advance(&self.cluster, now);
        for job in self.jobs.values_mut() {
            job.settle(now, self.meter.prices());
        }
        for id in 0..self.nodes.len() as u32 {
            self.end_sleep(now, NodeId(id));
        }
    }

    /// Carries an action out, or begins to.
    pub fn apply(&mut self, now: Timestamp, action: &Action) {
        if self.config.action_failures > 0.0 {
            let luck = hash(self.config.seed, &[0xfa11, action.id.0]) as f64 / u64::MAX as f64;
            if luck < self.config.action_failures {
                self.events.push_back(Event::Failed { action: action.id });
                return;
            }
        }
        if action.kind.job().is_some_and(|job| !self.knows(job)) {
            self.events.push_back(Event::Failed { action: action.id });
            return;
        }
        match &action.kind {
            ActionKind::Start { job, placement } => {
                self.told_to_start(now, *job, placement, action.id);
            }
            ActionKind::Stop { job, run } => self.stop(now, *job, *run),
            ActionKind::Limit { job, limit } => self.limit(now, *job, *limit, action.id),
            ActionKind::Wake { node } => self.wake(now, *node, action.id),
            ActionKind::Sleep { node } => self.sleep(now, *node, action.id),
        }
    }

    /// It takes a while until a job runs.
    fn told_to_start(&mut self, now: Timestamp, id: JobId, placement: &Placement, by: ActionId) {
        let delay = self.config.start_delay;
        let job = &mut self.jobs[id];
        if delay == Seconds::ZERO {
            self.start(now, id, placement, by);
        } else if job.run.is_some() || job.told.is_some() {
            self.events.push_back(Event::Failed { action: by });
        } else {
            job.told = Some(Box::new((by, placement.clone())));
            job.epoch += 1;
            self.to_come.push(now + delay, Happening::Starts(id, self.epoch(id)));
        }
    }

    fn start(&mut self, now: Timestamp, id: JobId, placement: &Placement, action: ActionId) {
        let refuse = Event::Failed { action };
        let up = |node: NodeId| self.nodes[node.index()].power == NodePower::Up;
        let ready = placement.allocation.shares().all(|s| up(s.node));
        let job = &self.jobs[id];
        let speed = self.physics.speed(&job.job, &placement.configuration);
        let (Some(speed), true, true) = (speed, ready, job.run.is_none()) else {
            self.events.push_back(refuse);
            return;
        };
        let slowest = placement
            .allocation
            .shares()
            .map(|s| self.nodes[s.node.index()].slow)
            .fold(1.0, f64::max);
        let mut luck = 1.0 / slowest;
        if self.config.noise > 0.0 {
            let key = [u64::from(id.0), u64::from(job.starts)];
            luck *= (self.config.noise * gaussian(hash(self.config.seed, &key))).exp();
        }
        let job = &mut self.jobs[id];
        let load = if job.starts > 0 { job.job.restart.load } else { Seconds::ZERO };
        job.starts += 1;
        job.epoch += 1;
        let rate = WorkRate(speed.rate.0 * luck);
        let since = now + load;
        job.run = Some(Box::new(Run {
            action,
            placement: placement.clone(),
            limited: None,
            started: now,
            done: job.done,
            since,
            rate,
            luck,
            per_gpu: speed.power,
            worth: speed.worth,
            load: (load > Seconds::ZERO).then_some(load),
            power: Part::default(),
            power_since: now,
            measured: (since, job.done),
            safe: job.done,
            next_save: since + self.config.checkpoint_every.unwrap_or(Seconds::ZERO),
            saving: false,
        }));
        for share in placement.allocation.shares() {
            let node = &mut self.nodes[share.node.index()];
            node.residents.push((id, share.count()));
            node.busy += share.count();
        }
        self.draw_job(now, id, placement);
        self.foresee_finish(id);
        self.foresee_measurement(since, id);
        self.events.push_back(Event::Started { job: id, action });
    }

    /// How often a job's expectations have changed; none if it was forgotten.
    fn epoch(&self, id: JobId) -> u32 {
        self.jobs.get(id).map_or(u32::MAX, |job| job.epoch)
    }

    fn foresee_finish(&mut self, id: JobId) {
        let job = &self.jobs[id];
        if let Some(run) = &job.run {
            let left = job.job.work - run.done;
            self.to_come.push(run.since + left / run.rate, Happening::Finishes(id, job.epoch));
        }
    }

    fn stop(&mut self, now: Timestamp, id: JobId, meant: ActionId) {
        // Saving is no training.
        self.measure(now, id);
        let job = &mut self.jobs[id];
        let all = job.job.work;
        // A job that ended in the meantime has been reported as ended.
        let meant = |run: &&mut Box<Run>| run.action == meant && !run.saving;
        let Some(run) = job.run.as_mut().filter(meant) else { return };
        run.done = run.done_at(now, all);
        run.since = now;
        run.rate = WorkRate(0.0);
        run.saving = true;
        job.epoch += 1;
        let save = job.job.restart.save + self.config.stop_delay;
        if save > Seconds::ZERO {
            let epoch = job.epoch;
            self.to_come.push(now + save, Happening::Saved(id, epoch));
        } else {
            self.saved(now, id);
        }
    }

    fn saved(&mut self, now: Timestamp, id: JobId) {
        let job = &mut self.jobs[id];
        let Some(run) = &job.run else { return };
        job.done = run.done;
        let (run, done) = (run.action, run.done);
        self.leave(now, id);
        self.events.push_back(Event::Stopped { job: id, run, done });
    }

    fn limit(&mut self, now: Timestamp, id: JobId, limit: Watts, action: ActionId) {
        if self.jobs[id].run.as_ref().is_none_or(|run| run.is_past(action)) {
            self.events.push_back(Event::Failed { action });
            return;
        }
        // What was measured so far belongs to the old limit.
        self.measure(now, id);
        let job = &mut self.jobs[id];
        let all = job.job.work;
        let Some(run) = &mut job.run else { return };
        run.limited = Some(action);
        if !run.saving {
            run.save_by_itself(now, all, self.config.checkpoint_every);
            run.done = run.done_at(now, all);
            run.since = run.since.max(now);
            run.placement.configuration.power_limit = limit;
            if let Some(speed) = self.physics.speed(&job.job, &run.placement.configuration) {
                run.rate = WorkRate(speed.rate.0 * run.luck);
                run.per_gpu = speed.power;
                run.worth = speed.worth;
            }
            job.epoch += 1;
            let placement = run.placement.clone();
            self.draw_job(now, id, &placement);
            self.foresee_finish(id);
            self.foresee_measurement(now, id);
        }
        self.events.push_back(Event::Limited { job: id, action });
    }

    fn wake(&mut self, now: Timestamp, id: NodeId, action: ActionId) {
        if self.nodes[id.index()].power != NodePower::Asleep {
            self.events.push_back(Event::Failed { action });
            return;
        }
        self.end_sleep(now, id);
        self.become_power(now, id, NodePower::Booting);
        let epoch = self.nodes[id.index()].epoch;
        let boot = self.cluster.node(id).boot_time;
        self.to_come.push(now + boot, Happening::Booted(id, epoch));
    }

    fn sleep(&mut self, now: Timestamp, id: NodeId, action: ActionId) {
        let node = &self.nodes[id.index()];
        if node.power != NodePower::Up || node.busy > 0 {
            self.events.push_back(Event::Failed { action });
            return;
        }
        self.become_power(now, id, NodePower::FallingAsleep);
        let epoch = self.nodes[id.index()].epoch;
        let time = self.cluster.node(id).shutdown_time;
        self.to_come.push(now + time, Happening::Asleep(id, epoch));
    }

    fn become_power(&mut self, now: Timestamp, id: NodeId, power: NodePower) {
        let node = &mut self.nodes[id.index()];
        node.power = power;
        node.epoch += 1;
        if power == NodePower::Asleep {
            node.asleep_since = now;
        }
        self.draw(now, id);
    }

    fn end_sleep(&mut self, now: Timestamp, node: NodeId) {
        let state = &self.nodes[node.index()];
        if self.config.keep_log && state.power == NodePower::Asleep {
            self.log.push(LogEntry::Slept { node, from: state.asleep_since, to: now });
        }
    }

    fn happen(&mut self, now: Timestamp, happening: Happening) {
        self.happened += 1;
        match happening {
            Happening::Starts(id, epoch) if epoch == self.epoch(id) => {
                if let Some(told) = self.jobs[id].told.take() {
                    let (action, placement) = *told;
                    self.start(now, id, &placement, action);
                }
            }
            Happening::Finishes(id, epoch) if epoch == self.epoch(id) => {
                self.jobs[id].done = self.jobs[id].job.work;
                if let Some(run) = &mut self.jobs[id].run {
                    run.done = run.done_at(now, Work(f64::MAX));
                    run.since = now;
                }
                self.finish(now, id);
            }
            Happening::Leaves(id, epoch) if epoch == self.epoch(id) => {
                self.leave(now, id);
                self.events.push_back(Event::Finished(id));
            }
            Happening::Saved(id, epoch) if epoch == self.epoch(id) => self.saved(now, id),
            Happening::Measured(id, epoch) if epoch == self.epoch(id) => {
                self.measure(now, id);
                self.foresee_measurement(now, id);
            }
            Happening::Booted(id, epoch) if epoch == self.nodes[id.index()].epoch => {
                self.become_power(now, id, NodePower::Up);
                self.events.push_back(Event::NodeUp(id));
            }
            Happening::Asleep(id, epoch) if epoch == self.nodes[id.index()].epoch => {
                self.become_power(now, id, NodePower::Asleep);
                self.events.push_back(Event::NodeAsleep(id));
            }
            Happening::Fails(id) => self.fail(now, id),
            Happening::Repaired(id) => {
                self.become_power(now, id, NodePower::Up);
                self.events.push_back(Event::NodeUp(id));
                self.foresee_failure(now, id);
            }
            _ => {}
        }
    }

    /// The job is done; it takes a while until its GPUs are free.
    fn finish(&mut self, now: Timestamp, id: JobId) {
        let delay = self.config.stop_delay;
        if delay > Seconds::ZERO {
            self.measure(now, id);
            let job = &mut self.jobs[id];
            job.epoch += 1;
            if let Some(run) = &mut job.run {
                run.rate = WorkRate(0.0);
                run.saving = true;
            }
            self.to_come.push(now + delay, Happening::Leaves(id, self.epoch(id)));
        } else {
            self.leave(now, id);
            self.events.push_back(Event::Finished(id));
        }
    }

    /// The job gives its GPUs back.
    fn leave(&mut self, now: Timestamp, id: JobId) {
        self.measure(now, id);
        let job = &mut self.jobs[id];
        job.epoch += 1;
        job.settle(now, self.meter.prices());
        let Some(run) = job.run.take() else { return };
        for share in run.placement.allocation.shares() {
            let node = &mut self.nodes[share.node.index()];
            node.residents.retain(|(job, _)| *job != id);
            node.busy -= share.count();
        }
        self.draw_job(now, id, &run.placement);
        if self.config.keep_log {
            self.log.push(LogEntry::Ran {
                job: id,
                placement: run.placement,
                from: run.started,
                to: now,
            });
        }
    }

    fn foresee_measurement(&mut self, from: Timestamp, id: JobId) {
        if let Some(every) = self.config.measure_every {
            self.to_come.push(from + every, Happening::Measured(id, self.epoch(id)));
        }
    }

    /// Reports what was done since the last report, if anybody wants to know.
    fn measure(&mut self, now: Timestamp, id: JobId) {
        if self.config.measure_every.is_none() {
            return;
        }
        let job = &mut self.jobs[id];
        let all = job.job.work;
        let Some(run) = &mut job.run else { return };
        let done = run.done_at(now, all);
        let (since, before) = run.measured;
        if now <= since || done <= before {
            return;
        }
        run.measured = (now, done);
        let seconds = now - since;
        self.events.push_back(Event::Progress { job: id, done });
        self.events.push_back(Event::Measured(Measurement {
            at: now,
            job: id,
            workload: job.job.workload,
            configuration: run.placement.configuration,
            node: run.placement.allocation.only_node(),
            processed: Work((done - before).0 / run.worth),
            seconds,
            power: Some(run.per_gpu),
            noise_scale: self.physics.noise_scale(job.job.workload),
            load: run.load.take(),
        }));
    }

    fn foresee_failure(&mut self, now: Timestamp, id: NodeId) {
        let Some(faults) = self.config.faults else {
            return;
        };
        let node = &self.nodes[id.index()];
        let key = [0xdead, u64::from(id.0), u64::from(node.failures)];
        let after = faults.distribution().sample(&mut generator(self.config.seed, &key));
        self.to_come.push(now + Seconds::new(after), Happening::Fails(id));
    }

    /// A node that is up is lost with all that runs on it, back to the last checkpoint.
    fn fail(&mut self, now: Timestamp, id: NodeId) {
        self.nodes[id.index()].failures += 1;
        if self.nodes[id.index()].power != NodePower::Up {
            self.foresee_failure(now, id);
            return;
        }
        self.lose(now, id);
        if let Some(faults) = self.config.faults {
            self.to_come.push(now + faults.repair, Happening::Repaired(id));
        }
    }

    /// A node is lost, whatever it was, with all that runs on it.
    pub fn lose(&mut self, now: Timestamp, id: NodeId) {
        self.end_sleep(now, id);
        let lost: Vec<JobId> = self.nodes[id.index()].residents.iter().map(|(j, _)| *j).collect();
        for job in lost {
            let all = self.jobs[job].job.work;
            let state = &mut self.jobs[job];
            let Some(run) = &mut state.run else { continue };
            if state.done >= all {
                // All was done; nothing is lost.
                self.leave(now, job);
                self.events.push_back(Event::Finished(job));
                continue;
            }
            run.save_by_itself(now, all, self.config.checkpoint_every);
            state.done = run.safe;
            let (run, done) = (run.action, run.safe);
            self.leave(now, job);
            self.events.push_back(Event::Stopped { job, run, done });
        }
        self.become_power(now, id, NodePower::Down);
        self.events.push_back(Event::NodeLost(id));
    }

    /// A node that was lost is back.
    pub fn regain(&mut self, now: Timestamp, id: NodeId) {
        if self.nodes[id.index()].power == NodePower::Down {
            self.become_power(now, id, NodePower::Up);
            self.events.push_back(Event::NodeUp(id));
        }
    }
}
