//! What each event changes in what the engine knows.

use super::{Alert, Engine, Event, EventError, Outcome};
use crate::host::{HostRequest, NodeHost};
use crate::ids::{ActionId, JobId, NodeId};
use crate::job::{Elasticity, Job, Work, WorkRate};
use crate::placement::{Placement, Share, mask_of};
use crate::plan::{Reason, Refusal};
use crate::power::NodePower;
use crate::predictor::Measurement;
use crate::state::{JobState, Phase, Progress, Target};
use crate::time::Timestamp;
use crate::units::{EurosPerSecond, Seconds};
use std::sync::Arc;

/// Over less time than this, reported progress says little about speed.
const LEAST_STRETCH: Seconds = Seconds::new(10.0);
/// A run that is faster or slower than was believed by more than this factor is a surprise.
const SURPRISE: f64 = 1.5;

impl Engine<'_> {
    pub(super) fn apply_event(&mut self, now: Timestamp, event: Event) -> Result<(), EventError> {
        // A late report about a job that has ended and left.
        if event.job().is_some_and(|job| self.state.has_left(job)) {
            return Ok(());
        }
        match event {
            Event::Clock => {}
            Event::Submitted(job) => self.submitted(now, job)?,
            Event::Cancelled(job) => {
                self.known_job(job)?;
                self.cancelled(now, job);
            }
            Event::Updated { job, deadline, weight } => {
                self.known_job(job)?;
                self.updated(now, job, deadline, weight)?;
            }
            Event::Weighed { job, from, to } => {
                self.known_job(job)?;
                let Job { deadline, weight, .. } = *self.state.job(job).job;
                if weight == from {
                    self.updated(now, job, deadline, to)?;
                }
            }
            Event::OnHold { job, hold } => {
                self.known_job(job)?;
                self.on_hold(now, job, hold);
            }
            Event::Foreign { job, foreign } => {
                self.known_job(job)?;
                self.is_foreign(now, job, foreign);
            }
            Event::Asked { job, asked } => {
                self.known_job(job)?;
                self.asked(now, job, asked)?;
            }
            Event::HostAsked { job, request } => {
                self.known_job(job)?;
                self.host_asked(now, job, request);
            }
            Event::Barred { job, nodes, over, why } => {
                self.known_job(job)?;
                self.barred(now, job, &nodes, over, why);
            }
            Event::NodeHost { node, host } => {
                self.known_node(node)?;
                self.node_host(now, node, host);
            }
            Event::Found { job, placement } => {
                self.known_job(job)?;
                self.found(now, job, placement)?;
            }
            Event::Started { job, action } => {
                self.known_job(job)?;
                self.started(now, job, action);
            }
            Event::Stopped { job, run, done } => {
                self.known_job(job)?;
                sound(job, done)?;
                self.stopped(now, job, run, done);
            }
            Event::Finished(job) => {
                self.known_job(job)?;
                self.finished(now, job);
            }
            Event::Progress { job, done } => {
                self.known_job(job)?;
                sound(job, done)?;
                self.progressed(now, job, done);
            }
            Event::Measured(measurement) => {
                self.known_job(measurement.job)?;
                // A node's clock may run ahead; nobody measures the future.
                let at = measurement.at.min(now);
                self.predictor.observe(&Measurement { at, ..measurement });
            }
            Event::Limited { job, action } => {
                self.known_job(job)?;
                self.limited(now, job, action);
            }
            Event::NodeUp(node) => {
                self.known_node(node)?;
                self.node_is(now, node, NodePower::Up);
            }
            Event::NodeAsleep(node) => {
                self.known_node(node)?;
                self.node_is(now, node, NodePower::Asleep);
            }
            Event::NodeLost(node) => {
                self.known_node(node)?;
                self.lose(now, node, Reason::NodeLost);
            }
            Event::NodeClosed(node) => {
                self.known_node(node)?;
                self.node_closed(now, node);
            }
            Event::Failed { action } => self.failed(now, action),
            Event::Refused { action, why } => self.refused(now, action, why),
            Event::StopRefused { job, action } => {
                self.known_job(job)?;
                self.stop_refused(now, job, action);
            }
            Event::StaysPut { job, stays } => {
                self.known_job(job)?;
                self.stays_put(now, job, stays);
            }
            Event::BudgetSet(budget) => {
                self.budget = budget;
                self.look_at_everything = true;
                self.request_plan(now);
            }
            Event::PricesSet(prices) => {
                self.prices = prices;
                self.look_at_everything = true;
                self.request_plan(now);
            }
        }
        Ok(())
    }

    fn known_job(&self, id: JobId) -> Result<(), EventError> {
        self.state.find_job(id).map(|_| ()).ok_or(EventError::UnknownJob(id))
    }

    fn known_node(&self, id: NodeId) -> Result<(), EventError> {
        let known = id.index() < self.state.cluster().nodes().len();
        known.then_some(()).ok_or(EventError::UnknownNode(id))
    }

    fn submitted(&mut self, now: Timestamp, job: Arc<Job>) -> Result<(), EventError> {
        job.validate()?;
        // A shape that is known not to run the job is none of its shapes: jobs that share a menu
        // must be able to stand in for each other.
        let cluster = Arc::clone(self.state.cluster());
        let asked = Arc::clone(&job);
        let can_run = |shape| {
            let configuration = cluster.plain_configuration(&asked, shape);
            self.predictor.predict(&asked, &configuration).is_some()
        };
        let id = self.state.submit(job, can_run);
        if self.state.menu(self.state.job(id).menu).is_empty() {
            self.state.job_mut(id).reason = Reason::NeverFits;
            self.alert(Alert::NeverFits(id));
        }
        self.request_plan(now);
        Ok(())
    }

    fn cancelled(&mut self, now: Timestamp, id: JobId) {
        let job = self.state.job_mut(id);
        if job.phase == Phase::Finished {
            return;
        }
        job.cancelled = true;
        let holds = job.held.is_some();
        self.unplan(now, id, Reason::Arrived);
        if holds {
            self.mark_job(id);
        } else {
            self.over_without_a_run(now, id);
        }
    }

    /// When it was over is known from its progress, as for a job that ran.
    pub(super) fn over_without_a_run(&mut self, now: Timestamp, id: JobId) {
        self.state.job_mut(id).progress.as_of = now;
        self.over(now, id);
    }

    fn over(&mut self, now: Timestamp, id: JobId) {
        self.state.finish(id);
        self.ask_again(now, self.state.job(id).job.user);
    }

    fn updated(
        &mut self,
        now: Timestamp,
        id: JobId,
        deadline: Option<Timestamp>,
        weight: EurosPerSecond,
    ) -> Result<(), EventError> {
        let mut job = Arc::clone(&self.state.job(id).job);
        let changed = Arc::make_mut(&mut job);
        (changed.deadline, changed.weight) = (deadline, weight);
        job.validate()?;
        self.state.job_mut(id).job = job;
        // A policy may have it in an order that goes by these.
        self.look_at_everything = true;
        self.request_plan(now);
        Ok(())
    }

    /// Its owner has changed what a waiting job asks for. What was kept for it is not kept any more.
    fn asked(&mut self, now: Timestamp, id: JobId, asked: Arc<Job>) -> Result<(), EventError> {
        asked.validate()?;
        let state = self.state.job(id);
        if !matches!(state.phase, Phase::Waiting | Phase::BackingOff(_)) {
            return Ok(());
        }
        let (before, backs_off) = (&state.job, matches!(state.phase, Phase::BackingOff(_)));
        let asked = Arc::new(Job { submit: before.submit, user: before.user, ..(*asked).clone() });
        self.unplan(now, id, Reason::Arrived);
        let (cluster, job) = (Arc::clone(self.state.cluster()), Arc::clone(&asked));
        let can_run = |shape| {
            let configuration = cluster.plain_configuration(&job, shape);
            self.predictor.predict(&job, &configuration).is_some()
        };
        self.state.ask_anew(id, asked, can_run);
        let job = self.state.job_mut(id);
        if backs_off {
            job.phase = Phase::Waiting;
        }
        (job.attempts, job.reason) = (0, Reason::Arrived);
        if self.state.menu(self.state.job(id).menu).is_empty() {
            self.state.job_mut(id).reason = Reason::NeverFits;
            self.alert(Alert::NeverFits(id));
        }
        self.mark_job(id);
        self.look_at_everything = true;
        self.request_plan(now);
        Ok(())
    }

    /// What is planned on a node, has not begun and does not fit there any more is planned anew.
    fn node_host(&mut self, now: Timestamp, id: NodeId, host: NodeHost) {
        if self.state.node(id).host == Some(host) {
            return;
        }
        self.state.set_node_host(id, Some(host));
        let planned: Vec<(JobId, u32)> =
            self.state.node(id).planned.iter().map(|r| (r.job, r.mask.count_ones())).collect();
        for (job, gpus) in planned {
            let state = self.state.job(job);
            let fits = |engine: &Self| {
                engine.state.host_fits(job, gpus, id, engine.state.node(id).planned.iter())
            };
            if state.held.is_none()
                && state.phase == Phase::Waiting
                && let Err(short) = fits(self)
            {
                self.unplan(now, job, Reason::NoHost(short));
                self.mark_job(job);
            }
        }
        self.request_plan(now);
    }

    fn host_asked(&mut self, now: Timestamp, id: JobId, request: HostRequest) {
        if self.state.job(id).host != Some(request) {
            self.state.set_host_request(id, Some(request));
            self.request_plan(now);
        }
    }

    /// What is planned where rules do not let a job run, and has not begun, is not done.
    fn barred(&mut self, now: Timestamp, id: JobId, nodes: &[NodeId], over: u32, why: Refusal) {
        if self.state.job(id).phase == Phase::Finished
            || !self.state.set_barred(id, nodes, over, why)
        {
            return;
        }
        self.avoid_barred(now, id);
        let job = self.state.job_mut(id);
        if job.is_barred_everywhere() {
            job.reason = Reason::Refused(why);
        } else if job.held.is_none() && matches!(job.reason, Reason::Refused(_)) {
            job.reason = Reason::Arrived;
        }
        self.mark_job(id);
        self.look_at_everything = true;
        self.request_plan(now);
    }

    fn on_hold(&mut self, now: Timestamp, id: JobId, hold: bool) {
        let job = self.state.job_mut(id);
        if job.on_hold == hold || job.phase == Phase::Finished {
            return;
        }
        job.on_hold = hold;
        // One that runs and cannot go on later runs on. It waits if it ever comes back.
        if hold && !job.is_pinned() {
            self.unplan(now, id, Reason::OnHold);
        }
        self.state.settle_job(id);
        self.mark_job(id);
        self.look_at_everything = true;
        self.request_plan(now);
    }

    /// What was planned for a job that is not ours, and not done yet, is not done any more.
    fn is_foreign(&mut self, now: Timestamp, id: JobId, foreign: bool) {
        let job = self.state.job_mut(id);
        if job.foreign == foreign || job.phase == Phase::Finished {
            return;
        }
        job.foreign = foreign;
        if foreign {
            let held = self.state.job(id).held.is_some();
            if held {
                self.plan_as_held(now, id, Reason::Found);
            } else {
                self.unplan(now, id, Reason::Found);
            }
        }
        self.state.touch_job(id);
        self.mark_job(id);
        self.look_at_everything = true;
        self.request_plan(now);
    }

    fn stays_put(&mut self, now: Timestamp, id: JobId, stays: bool) {
        let job = self.state.job_mut(id);
        if job.stays_put == stays || job.phase == Phase::Finished {
            return;
        }
        job.stays_put = stays;
        self.state.settle_job(id);
        self.state.touch_job(id);
        self.request_plan(now);
    }

    /// Somebody else has started a job: it is planned as it runs, and whoever was planned there is
    /// planned anew.
    fn found(&mut self, now: Timestamp, id: JobId, placement: Placement) -> Result<(), EventError> {
        let wrong = |what| Err(EventError::Placement { job: id, what });
        let phase = self.state.job(id).phase;
        if !matches!(phase, Phase::Waiting | Phase::BackingOff(_) | Phase::Starting(_)) {
            return Ok(());
        }
        let configuration = placement.configuration;
        let cluster = self.state.cluster();
        if configuration.gpus == 0 || placement.allocation.count() != configuration.gpus {
            return wrong("found on another number of GPUs than it says");
        }
        for share in placement.allocation.shares() {
            let Some(node) = cluster.nodes().get(share.node.index()) else {
                return Err(EventError::UnknownNode(share.node));
            };
            if node.gpu_type != configuration.gpu_type || share.mask & !mask_of(node.gpus) != 0 {
                return wrong("found on GPUs that the node does not have");
            }
            let others = self.state.node(share.node).held.iter().filter(|r| r.job != id);
            if others.fold(0, |mask, r| mask | r.mask) & share.mask != 0 {
                return wrong("found on GPUs that another job holds");
            }
        }
        // It has started otherwise than it was told: on fewer GPUs than were kept for it.
        if let Phase::Starting(action) = phase {
            self.conclude(action, Outcome::Done);
            self.state.release(id);
        }
        let run = self.next_action;
        self.next_action = ActionId(run.0 + 1);
        self.unplan(now, id, Reason::Found);
        self.state.hold(id, placement.clone());
        let job = self.state.job(id);
        let rate = self.predictor.predict(&job.job, &configuration);
        let rate = rate.map_or(WorkRate(0.0), |p| p.rate);
        if job.job.elasticity == Elasticity::Moldable {
            self.state.mold(id, &placement);
        }
        self.state.end_refusals(id);
        let job = self.state.job_mut(id);
        job.phase = Phase::Running;
        job.run = Some(run);
        job.attempts = 0;
        job.progress = Progress { done: job.progress.done, as_of: now, rate };
        match job.first_start {
            None => job.first_start = Some(now),
            Some(_) => job.restarts += 1,
        }
        job.service_begins(now, configuration.gpus);
        self.plan_as_held(now, id, Reason::Found);
        self.mark_job(id);
        self.request_plan(now);
        Ok(())
    }

    fn started(&mut self, now: Timestamp, id: JobId, action: ActionId) {
        if self.state.job(id).phase != Phase::Starting(action) {
            return;
        }
        let told = self.conclude(action, Outcome::Done);
        let job = self.state.job(id);
        let Some(held) = job.held.clone() else { return };
        let rate =
            self.predictor.predict(&job.job, &held.configuration).map_or(WorkRate(0.0), |p| p.rate);
        let load = job.load_time(&*self.predictor);
        let first = job.first_start.is_none();
        if let Some(told) = told {
            self.state.delays_mut().started(!first, now.since(told.at));
        }
        let job = self.state.job(id);
        let moldable = job.job.elasticity == Elasticity::Moldable;
        if moldable && self.state.menu(job.menu).len() > 1 {
            let shape = held.configuration.shape();
            let reshaped = job.planned.as_ref().is_some_and(|p| p.configuration.shape() != shape);
            let reason = job.reason;
            self.state.mold(id, &held);
            // What was planned while the start was under way is no longer possible.
            if reshaped {
                self.unplan(now, id, reason);
            }
            self.state.touch_job(id);
        }
        if first {
            self.state.touch_job(id);
        }
        self.state.end_refusals(id);
        let job = self.state.job_mut(id);
        job.phase = Phase::Running;
        job.attempts = 0;
        job.progress = Progress { done: job.progress.done, as_of: now + load, rate };
        if first {
            job.first_start = Some(now);
        } else {
            job.restarts += 1;
        }
        job.service_begins(now, held.configuration.gpus);
        self.mark_job(id);
    }

    /// A run's own speed says more about the rest of it than any prediction does. If it is quite
    /// another than was believed, so is its end, and what was planned around that.
    fn progressed(&mut self, now: Timestamp, id: JobId, done: Work) {
        let job = self.state.job_mut(id);
        let Progress { done: before, as_of, rate: believed } = job.progress;
        let took = now.since(as_of);
        let believable = job.phase == Phase::Running && took >= LEAST_STRETCH && done > before;
        let rate = if believable { WorkRate((done - before).0 / took.get()) } else { believed };
        job.progress = Progress { done, as_of: as_of.max(now), rate };
        let off = (rate.0 / believed.0).max(believed.0 / rate.0);
        if believable && off > SURPRISE {
            self.request_plan(now);
        }
    }

    fn stopped(&mut self, now: Timestamp, id: JobId, run: ActionId, done: Work) {
        let phase = self.state.job(id).phase;
        if self.state.job(id).run != Some(run) {
            return;
        }
        let mut told = None;
        let asked = matches!(phase, Phase::Stopping(_));
        if let Phase::Starting(action) | Phase::Stopping(action) = phase {
            told = self.conclude(action, if asked { Outcome::Done } else { Outcome::Overtaken });
        }
        if let Some(told) = told.filter(|_| asked) {
            let save = self.predictor.restart(&self.state.job(id).job).save;
            self.state.delays_mut().stopped(now.since(told.at) - save);
        }
        self.leave(now, id, done);
        let cancelled = self.state.job(id).cancelled;
        if cancelled {
            self.over(now, id);
        } else {
            self.state.job_mut(id).phase = Phase::Waiting;
            if !asked {
                self.unplan(now, id, Reason::NodeLost);
            }
            self.avoid_closed(now, id);
            self.avoid_barred(now, id);
            self.state.remold(id);
            self.mark_job(id);
        }
    }

    fn finished(&mut self, now: Timestamp, id: JobId) {
        let phase = self.state.job(id).phase;
        if phase == Phase::Finished {
            return;
        }
        if let Phase::Starting(action) | Phase::Stopping(action) = phase {
            self.conclude(action, Outcome::Overtaken);
        }
        let work = self.state.job(id).job.work;
        self.leave(now, id, work);
        let reason = self.state.job(id).reason;
        self.unplan(now, id, reason);
        self.over(now, id);
    }

    /// The job gives its GPUs back.
    fn leave(&mut self, now: Timestamp, id: JobId, done: Work) {
        if let Some((action, _)) = self.state.job_mut(id).limiting.take() {
            self.conclude(action, Outcome::Overtaken);
        }
        let job = self.state.job_mut(id);
        job.limit_unsure = false;
        (job.attempts, job.limit_attempts) = (0, 0);
        job.run = None;
        job.service_ends(now);
        job.progress = Progress { done, as_of: now, rate: WorkRate(0.0) };
        self.state.release(id);
    }

    /// Takes a job out of the plan for a reason that the policy did not choose.
    pub(super) fn unplan(&mut self, now: Timestamp, id: JobId, reason: Reason) {
        if let Some(planned) = self.state.job(id).planned.clone() {
            for share in planned.allocation.shares() {
                self.state.touch_node(share.node);
            }
        }
        self.state.set_planned(id, None, reason, now);
        self.state.remold(id);
        self.state.touch_job(id);
        self.request_plan(now);
    }

    fn limited(&mut self, now: Timestamp, id: JobId, action: ActionId) {
        let Some((expected, limit)) = self.state.job(id).limiting else { return };
        if expected != action {
            return;
        }
        self.conclude(action, Outcome::Done);
        let job = self.state.job_mut(id);
        job.limiting = None;
        job.limit_unsure = false;
        job.limit_attempts = 0;
        // Progress so far was made at the old speed.
        let done = job.done(now);
        if let Some(held) = &mut job.held {
            held.configuration.power_limit = limit;
        }
        let job = self.state.job(id);
        let rate = job
            .held
            .as_ref()
            .and_then(|held| self.predictor.predict(&job.job, &held.configuration))
            .map_or(WorkRate(0.0), |p| p.rate);
        let job = self.state.job_mut(id);
        job.progress = Progress { done, as_of: job.progress.as_of.max(now), rate };
        self.state.count_limit(id, limit);
        self.mark_job(id);
    }

    fn node_is(&mut self, now: Timestamp, id: NodeId, power: NodePower) {
        let node = self.state.node_mut(id);
        if node.power == power {
            return;
        }
        // News from before the node was told to wake, or to sleep. What it was told counts until
        // it is confirmed or has failed.
        let outdated = matches!(
            (node.power, power),
            (NodePower::Booting, NodePower::Asleep) | (NodePower::FallingAsleep, NodePower::Up)
        );
        if outdated && node.in_flight.is_some() {
            return;
        }
        // That it sleeps is no news of a node that would not wake: it would be planned with, and
        // fail again.
        if node.unwoken && power == NodePower::Asleep {
            return;
        }
        let told = node.unwoken
            || matches!(
                (node.power, power),
                (NodePower::Booting, NodePower::Up) | (NodePower::FallingAsleep, NodePower::Asleep)
            );
        let woken = std::mem::take(&mut node.unwoken);
        node.attempts = 0;
        if let Some(action) = node.in_flight.take() {
            self.conclude(action, if told { Outcome::Done } else { Outcome::Overtaken });
        }
        if woken {
            self.alert(Alert::WokenAtLast(id));
        }
        let node = self.state.node(id);
        let (was_ours, planned) = (node.is_ours(), !node.planned.is_empty());
        self.state.set_power(id, power);
        if !was_ours {
            // Nobody planned for it while it was gone; what it is now is what is wanted.
            let target = match power {
                NodePower::Up => Target::Up,
                _ if planned => self.state.node(id).target,
                _ => Target::Asleep,
            };
            self.state.set_target(id, target, Reason::Arrived);
        }
        if !was_ours && !planned {
            self.state.node_mut(id).idle_since = now;
        }
        if !was_ours {
            self.state.remold_all();
        }
        self.state.touch_node(id);
        self.mark_node(id);
        self.request_plan(now);
    }

    /// Nobody knows what the node does: it counts at its maximum, and nothing is planned there.
    pub(super) fn lose(&mut self, now: Timestamp, id: NodeId, reason: Reason) {
        self.forget_action(id);
        self.state.set_power(id, NodePower::Down);
        let target = self.state.node(id).target;
        self.state.set_target(id, target, reason);
        self.state.touch_node(id);
        let planned: Vec<JobId> = self.state.node(id).planned.iter().map(|r| r.job).collect();
        for job in planned {
            // A job that is not preemptible may still run there. Whether it does is for the backend
            // to say; nobody tells it to stop.
            if !self.state.job(job).is_pinned() {
                self.unplan(now, job, Reason::NodeLost);
            }
            self.mark_job(job);
        }
        self.state.remold_all();
        self.request_plan(now);
    }

    /// What the node was told no longer matters: the backend says that it is lost or closed. It
    /// comes back when the backend says so.
    fn forget_action(&mut self, id: NodeId) {
        let node = self.state.node_mut(id);
        node.unwoken = false;
        if let Some(action) = node.in_flight.take() {
            self.conclude(action, Outcome::Overtaken);
        }
    }

    /// Whoever holds GPUs there stays; whoever was only to come goes elsewhere.
    fn node_closed(&mut self, now: Timestamp, id: NodeId) {
        if self.state.node(id).power == NodePower::Closed {
            return;
        }
        self.forget_action(id);
        self.state.set_power(id, NodePower::Closed);
        self.state.set_target(id, Target::Up, Reason::NodeClosed);
        self.state.touch_node(id);
        let planned: Vec<JobId> = self.state.node(id).planned.iter().map(|r| r.job).collect();
        for job in planned {
            self.avoid_closed(now, job);
            self.mark_job(job);
        }
        self.state.remold_all();
        self.request_plan(now);
    }

    /// A job that holds nothing does not go to a node that is closed or lost.
    pub(super) fn avoid_closed(&mut self, now: Timestamp, id: JobId) {
        let job = self.state.job(id);
        let power = |share: Share| self.state.node(share.node).power;
        let planned = job.planned.as_ref().filter(|_| !job.stays);
        let on = |kind| planned.is_some_and(|p| p.allocation.shares().any(|s| power(s) == kind));
        if on(NodePower::Closed) {
            self.unplan(now, id, Reason::NodeClosed);
        } else if on(NodePower::Down) && job.held.is_none() {
            self.unplan(now, id, Reason::NodeLost);
        }
    }

    /// A job does not go to nodes, or to another number of them, than it may have: rules may have
    /// changed since that was planned. One that runs, and was to be moved there, stays for now.
    pub(super) fn avoid_barred(&mut self, now: Timestamp, id: JobId) {
        let goes_astray = |job: &JobState| {
            let (Some(planned), Some(nodes)) = (&job.planned, job.nodes()) else { return false };
            let stays = job.held.as_ref().is_some_and(|held| planned.same_but_limit(held));
            !stays && !nodes.allows(&planned.allocation)
        };
        let job = self.state.job(id);
        if !goes_astray(job) {
            return;
        }
        let reason = Reason::Refused(job.barred().map_or(Refusal::Nodes, |(_, _, why)| why));
        if matches!(job.phase, Phase::Starting(_) | Phase::Running) {
            self.plan_as_held(now, id, reason);
        }
        // It cannot stay, or is on its way out already.
        if goes_astray(self.state.job(id)) {
            self.unplan(now, id, reason);
        }
    }

    pub(crate) fn end_hold_offs(&mut self, now: Timestamp) {
        while let Some(entry) = self.wake_ups.first_entry() {
            if *entry.key() > now {
                break;
            }
            for id in entry.remove() {
                self.state.lift_bars(id, now);
                if let Some(Phase::BackingOff(until)) = self.state.find_job(id).map(|job| job.phase)
                    && until <= now
                {
                    let job = self.state.job_mut(id);
                    job.phase = Phase::Waiting;
                    self.state.touch_job(id);
                    self.request_plan(now);
                }
            }
        }
    }

    /// What could not be changed stays, and the policy hears of it.
    pub(super) fn plan_as_held(&mut self, now: Timestamp, id: JobId, reason: Reason) {
        let held = self.state.job(id).held.clone();
        // Nobody wants a job that was cancelled or put on hold, or one on a lost node, to stay: these
        // are tried for ever. One that is not preemptible stays unless it was cancelled.
        let down = |node: NodeId| self.state.node(node).power == NodePower::Down;
        let lost = held.as_ref().is_some_and(|h| h.allocation.shares().any(|s| down(s.node)));
        let job = self.state.job(id);
        if job.cancelled || ((job.on_hold || lost) && job.job.preemptible) {
            return;
        }
        // What is held may be planned for another job by now; that one must be planned again.
        if let Some(held) = &held {
            for share in held.allocation.shares() {
                let rivals: Vec<JobId> = self
                    .state
                    .node(share.node)
                    .planned
                    .iter()
                    .filter(|r| r.job != id && r.mask & share.mask != 0)
                    .map(|r| r.job)
                    .collect();
                for rival in rivals {
                    self.unplan(now, rival, reason);
                    self.mark_job(rival);
                }
                self.state.touch_node(share.node);
                if self.state.node(share.node).target == Target::Asleep {
                    self.state.set_target(share.node, Target::Up, reason);
                    self.mark_node(share.node);
                }
            }
        }
        self.unplan(now, id, reason);
        self.state.set_planned(id, held, reason, now);
        self.look_at_everything = true;
    }
}

fn sound(job: JobId, done: Work) -> Result<(), EventError> {
    let good = done.0.is_finite() && done.0 >= 0.0;
    good.then_some(()).ok_or(EventError::Work { job, done: done.0 })
}
