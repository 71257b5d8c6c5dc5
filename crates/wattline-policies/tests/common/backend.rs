//! A backend in a hundred lines: it does what it is told, late, and sometimes not at all.
//!
//! It keeps its own books, from actions alone, and says so when an action could not be carried out
//! on a real cluster: two jobs on a GPU, a start on a node that sleeps, half a gang.

use super::Formula;
use std::collections::BTreeMap;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::action::{Action, ActionKind};
use wattline_core::cluster::Cluster;
use wattline_core::engine::Event;
use wattline_core::ids::{ActionId, JobId, NodeId};
use wattline_core::job::{Job, Work};
use wattline_core::placement::{Placement, mask_of};
use wattline_core::power::{self, NodePower, Occupancy};
use wattline_core::predictor::Predictor;
use wattline_core::units::{Seconds, Watts};

struct Run {
    action: ActionId,
    placement: Placement,
    /// Work goes on from here.
    since: Timestamp,
    done: f64,
    /// It writes its checkpoint and no longer gets on.
    saving: bool,
}

enum Happening {
    Tell(Event),
    Ends(JobId, u32),
    Saved(JobId, u32),
    Lowered(JobId, u32, Watts, ActionId),
    Booted(NodeId, u32),
    FellAsleep(NodeId, u32),
    ComesBack(NodeId, bool),
}

pub(crate) struct Backend {
    cluster: Arc<Cluster>,
    jobs: Vec<Arc<Job>>,
    runs: Vec<Option<Run>>,
    saved: Vec<f64>,
    starts: Vec<u32>,
    /// What was foretold for an earlier epoch does not happen.
    job_epochs: Vec<u32>,
    nodes: Vec<NodePower>,
    node_epochs: Vec<u32>,
    to_come: BTreeMap<(Timestamp, u64), Happening>,
    pushed: u64,
    luck: std::vec::IntoIter<u8>,
    failures: bool,
}

/// An action failed.
const FAILS: u8 = 200;
/// A limit was set although the action is reported as failed.
const FAILS_AFTER_ALL_WAS_DONE: u8 = 230;

impl Backend {
    pub(crate) fn new(cluster: Arc<Cluster>, luck: Vec<u8>, failures: bool) -> Self {
        let nodes = cluster.nodes().len();
        Self {
            cluster,
            jobs: Vec::new(),
            runs: Vec::new(),
            saved: Vec::new(),
            starts: Vec::new(),
            job_epochs: Vec::new(),
            nodes: vec![NodePower::Up; nodes],
            node_epochs: vec![0; nodes],
            to_come: BTreeMap::new(),
            pushed: 0,
            luck: luck.into_iter(),
            failures,
        }
    }

    pub(crate) fn submit(&mut self, job: Arc<Job>) {
        self.jobs.push(job);
        self.runs.push(None);
        self.saved.push(0.0);
        self.starts.push(0);
        self.job_epochs.push(0);
    }

    /// A node that sleeps from the beginning.
    pub(crate) fn begin_asleep(&mut self, id: NodeId) {
        self.become_power(id, NodePower::Asleep);
    }

    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.to_come.first_key_value().map(|((time, _), _)| *time)
    }

    fn luck(&mut self) -> u8 {
        self.luck.next().unwrap_or(0)
    }

    fn push(&mut self, at: Timestamp, what: Happening) {
        self.pushed += 1;
        self.to_come.insert((at, self.pushed), what);
    }

    /// News take their time.
    fn tell(&mut self, now: Timestamp, event: Event) {
        let late = Seconds::new(f64::from(self.luck() & 7));
        self.push(now + late, Happening::Tell(event));
    }

    /// What the cluster draws at worst, from what was really done to it. Nobody knows about lost
    /// nodes.
    pub(crate) fn worst_power(&self) -> Watts {
        let of = |id: NodeId| {
            let power = self.nodes[id.index()];
            if power == NodePower::Down {
                return Watts::ZERO;
            }
            let mut held = Occupancy::default();
            for run in self.runs.iter().flatten() {
                for share in run.placement.allocation.shares().filter(|s| s.node == id) {
                    let gpus = share.count();
                    held.busy += gpus;
                    held.limits += run.placement.configuration.power_limit * f64::from(gpus);
                }
            }
            power::committed(&self.cluster, id, power, held)
        };
        self.cluster.node_ids().map(of).sum()
    }

    pub(crate) fn apply(&mut self, now: Timestamp, action: &Action) -> Result<(), String> {
        let luck = self.luck();
        if self.failures && luck >= FAILS {
            if let ActionKind::Limit { job, limit } = &action.kind
                && luck >= FAILS_AFTER_ALL_WAS_DONE
            {
                self.set_limit(now, *job, *limit);
            }
            let gone = matches!(&action.kind, ActionKind::Stop { job, .. } if self.runs[job.index()].is_none());
            if !gone {
                self.tell(now, Event::Failed { action: action.id });
            }
            return Ok(());
        }
        match &action.kind {
            ActionKind::Start { job, placement } => self.start(now, *job, placement, action.id),
            ActionKind::Stop { job, .. } => {
                self.stop(now, *job);
                Ok(())
            }
            ActionKind::Limit { job, limit } => {
                self.limit(now, *job, *limit, action.id);
                Ok(())
            }
            ActionKind::Wake { node } => self.wake(now, *node, action.id),
            ActionKind::Sleep { node } => self.sleep(now, *node, action.id),
        }
    }

    fn start(
        &mut self,
        now: Timestamp,
        id: JobId,
        placement: &Placement,
        action: ActionId,
    ) -> Result<(), String> {
        let configuration = &placement.configuration;
        if placement.allocation.count() != configuration.gpus {
            return Err(format!("{id}: half a gang: {placement:?}"));
        }
        if self.runs[id.index()].is_some() {
            return Err(format!("{id} is started while it runs"));
        }
        for share in placement.allocation.shares() {
            let node = self.cluster.node(share.node);
            if share.mask & !mask_of(node.gpus) != 0 || node.gpu_type != configuration.gpu_type {
                return Err(format!("{id}: no such GPUs: {placement:?}"));
            }
            for (other, run) in self.runs.iter().enumerate() {
                let Some(run) = run else { continue };
                let both = |s: wattline_core::placement::Share| {
                    s.node == share.node && s.mask & share.mask != 0
                };
                if run.placement.allocation.shares().any(both) {
                    return Err(format!("{id} is started on GPUs of j{other}"));
                }
            }
            match self.nodes[share.node.index()] {
                NodePower::Up => {}
                // The news of the loss may not have arrived.
                NodePower::Down => {
                    self.tell(now, Event::Failed { action });
                    return Ok(());
                }
                power => {
                    return Err(format!("{id} is started on {}, which is {power:?}", share.node));
                }
            }
        }
        let load = self.jobs[id.index()].restart.load;
        let load = if self.starts[id.index()] > 0 { load } else { Seconds::ZERO };
        self.starts[id.index()] += 1;
        let done = self.saved[id.index()];
        let placement = placement.clone();
        self.runs[id.index()] =
            Some(Run { action, placement, since: now + load, done, saving: false });
        self.foretell_end(id);
        self.tell(now, Event::Started { job: id, action });
        Ok(())
    }

    fn rate(&self, id: JobId, placement: &Placement) -> f64 {
        // Predictions are wrong, differently for each job.
        let off = 0.7 + 0.1 * f64::from(id.0 % 7);
        let predicted = Formula.predict(&self.jobs[id.index()], &placement.configuration);
        off * predicted.map_or(0.0, |p| p.rate.0)
    }

    fn done_at(&self, now: Timestamp, id: JobId) -> f64 {
        let Some(run) = &self.runs[id.index()] else {
            return self.saved[id.index()];
        };
        let rate = if run.saving { 0.0 } else { self.rate(id, &run.placement) };
        (run.done + rate * now.since(run.since).get()).min(self.jobs[id.index()].work.0)
    }

    fn foretell_end(&mut self, id: JobId) {
        self.job_epochs[id.index()] += 1;
        let Some(run) = &self.runs[id.index()] else {
            return;
        };
        let left = self.jobs[id.index()].work.0 - run.done;
        let end = run.since + Seconds::new(left / self.rate(id, &run.placement));
        self.push(end, Happening::Ends(id, self.job_epochs[id.index()]));
    }

    fn stop(&mut self, now: Timestamp, id: JobId) {
        let done = self.done_at(now, id);
        // A job that is gone already has been reported.
        let Some(run) = &mut self.runs[id.index()] else {
            return;
        };
        (run.done, run.since, run.saving) = (done, now, true);
        self.job_epochs[id.index()] += 1;
        let late = Seconds::new(f64::from(self.luck() & 7));
        let saved = now + self.jobs[id.index()].restart.save + late;
        self.push(saved, Happening::Saved(id, self.job_epochs[id.index()]));
    }

    fn set_limit(&mut self, now: Timestamp, id: JobId, limit: Watts) {
        let done = self.done_at(now, id);
        let Some(run) = &mut self.runs[id.index()] else {
            return;
        };
        run.done = done;
        run.since = run.since.max(now);
        run.placement.configuration.power_limit = limit;
        if !run.saving {
            self.foretell_end(id);
        }
    }

    /// A raise is there at once, a lowering only when it is confirmed.
    fn limit(&mut self, now: Timestamp, id: JobId, limit: Watts, action: ActionId) {
        let Some(run) = &self.runs[id.index()] else {
            self.tell(now, Event::Failed { action });
            return;
        };
        if limit > run.placement.configuration.power_limit {
            self.set_limit(now, id, limit);
            self.tell(now, Event::Limited { job: id, action });
        } else {
            let late = Seconds::new(f64::from(self.luck() & 7));
            let run = self.starts[id.index()];
            self.push(now + late, Happening::Lowered(id, run, limit, action));
        }
    }

    fn wake(&mut self, now: Timestamp, id: NodeId, action: ActionId) -> Result<(), String> {
        match self.nodes[id.index()] {
            NodePower::Asleep => {
                self.become_power(id, NodePower::Booting);
                let late = Seconds::new(f64::from(self.luck() & 7));
                let at = now + self.cluster.node(id).boot_time + late;
                self.push(at, Happening::Booted(id, self.node_epochs[id.index()]));
            }
            NodePower::Down => self.tell(now, Event::Failed { action }),
            power => return Err(format!("{id} is woken, it is {power:?}")),
        }
        Ok(())
    }

    fn sleep(&mut self, now: Timestamp, id: NodeId, action: ActionId) -> Result<(), String> {
        match self.nodes[id.index()] {
            NodePower::Up => {
                let on_it = |run: &Run| run.placement.allocation.shares().any(|s| s.node == id);
                if self.runs.iter().flatten().any(on_it) {
                    return Err(format!("{id} is put to sleep under a job"));
                }
                self.become_power(id, NodePower::FallingAsleep);
                let late = Seconds::new(f64::from(self.luck() & 7));
                let at = now + self.cluster.node(id).shutdown_time + late;
                self.push(at, Happening::FellAsleep(id, self.node_epochs[id.index()]));
            }
            NodePower::Down => self.tell(now, Event::Failed { action }),
            power => return Err(format!("{id} is put to sleep, it is {power:?}")),
        }
        Ok(())
    }

    fn become_power(&mut self, id: NodeId, power: NodePower) {
        self.nodes[id.index()] = power;
        self.node_epochs[id.index()] += 1;
    }

    /// A node is lost with all that runs on it.
    pub(crate) fn lose(
        &mut self,
        now: Timestamp,
        id: NodeId,
        gone_for: Seconds,
        comes_back_up: bool,
    ) {
        if self.nodes[id.index()] == NodePower::Down {
            return;
        }
        let order = self.luck() & 1 == 0;
        if order {
            self.push(now, Happening::Tell(Event::NodeLost(id)));
        }
        for job in 0..self.runs.len() {
            let on_it = |run: &Run| run.placement.allocation.shares().any(|s| s.node == id);
            if let Some(run) = self.runs[job].take_if(|run| on_it(run)) {
                self.job_epochs[job] += 1;
                let done = Work(self.saved[job]);
                let job = JobId(job as u32);
                self.tell(now, Event::Stopped { job, run: run.action, done });
            }
        }
        self.become_power(id, NodePower::Down);
        if !order {
            self.push(now, Happening::Tell(Event::NodeLost(id)));
        }
        self.push(now + gone_for, Happening::ComesBack(id, comes_back_up));
    }

    /// The next thing due by `now`, if the engine is to hear of it.
    pub(crate) fn poll(&mut self, now: Timestamp) -> Option<Event> {
        while let Some(entry) = self.to_come.first_entry() {
            if entry.key().0 > now {
                return None;
            }
            match entry.remove() {
                Happening::Tell(event) => return Some(event),
                Happening::Ends(id, epoch) if epoch == self.job_epochs[id.index()] => {
                    self.runs[id.index()] = None;
                    self.job_epochs[id.index()] += 1;
                    self.tell(now, Event::Finished(id));
                }
                Happening::Saved(id, epoch) if epoch == self.job_epochs[id.index()] => {
                    let done = self.done_at(now, id);
                    self.saved[id.index()] = done;
                    let Some(run) = self.runs[id.index()].take() else { continue };
                    self.job_epochs[id.index()] += 1;
                    return Some(Event::Stopped { job: id, run: run.action, done: Work(done) });
                }
                Happening::Lowered(id, run, limit, action)
                    if run == self.starts[id.index()] && self.runs[id.index()].is_some() =>
                {
                    self.set_limit(now, id, limit);
                    return Some(Event::Limited { job: id, action });
                }
                Happening::Booted(id, epoch) if epoch == self.node_epochs[id.index()] => {
                    self.become_power(id, NodePower::Up);
                    return Some(Event::NodeUp(id));
                }
                Happening::FellAsleep(id, epoch) if epoch == self.node_epochs[id.index()] => {
                    self.become_power(id, NodePower::Asleep);
                    return Some(Event::NodeAsleep(id));
                }
                Happening::ComesBack(id, up) if self.nodes[id.index()] == NodePower::Down => {
                    let power = if up { NodePower::Up } else { NodePower::Asleep };
                    self.become_power(id, power);
                    return Some(if up { Event::NodeUp(id) } else { Event::NodeAsleep(id) });
                }
                _ => {}
            }
        }
        None
    }
}
