//! Handing out steps as soon as they are safe.

use super::{Engine, InFlight};
use crate::action::ActionKind;
use crate::diff::{self, Step};
use crate::ids::{JobId, NodeId};
use crate::placement::Placement;
use crate::power::{self, NodePower, Occupancy, TOLERANCE};
use crate::state::{Phase, Target};
use crate::time::Timestamp;
use crate::units::Watts;

impl Engine<'_> {
    /// Hands out every step that can be taken now, lowering before raising.
    pub(crate) fn actuate(&mut self, now: Timestamp) {
        if self.dirty_jobs.is_empty() && self.dirty_nodes.is_empty() {
            return;
        }
        let mut steps = std::mem::take(&mut self.steps);
        diff::diff(&self.state, &self.dirty_jobs, &self.dirty_nodes, &mut steps);
        let budget = self.budget_at(now);
        for step in &steps {
            match *step {
                Step::Stop(id) => self.stop(now, id),
                Step::LowerLimit(id) => self.limit(now, id, None),
                Step::Sleep(id) => self.sleep(now, id),
                Step::Wake(id) => self.wake(now, id, budget),
                Step::RaiseLimit(id) => self.limit(now, id, budget),
                Step::Start(id) => self.start(now, id, budget),
            }
        }
        self.steps = steps;
        self.forget_settled();
    }

    /// Whatever has no step left to take, now or after a confirmation, needs no more looking at.
    fn forget_settled(&mut self) {
        let mut jobs = std::mem::take(&mut self.dirty_jobs);
        jobs.retain(|id| {
            let job = self.state.job(*id);
            let settled = match job.phase {
                // Confirmations mark the job again.
                Phase::Starting(_)
                | Phase::Stopping(_)
                | Phase::Finished
                | Phase::BackingOff(_) => true,
                Phase::Waiting => job.planned.is_none(),
                Phase::Running => {
                    job.limiting.is_some() || (job.held == job.planned && !job.limit_unsure)
                }
            };
            if settled {
                self.state.job_mut(*id).dirty = false;
            }
            !settled
        });
        self.dirty_jobs = jobs;
        let mut nodes = std::mem::take(&mut self.dirty_nodes);
        nodes.retain(|id| {
            let node = self.state.node(*id);
            let settled = matches!(
                (node.target, node.power),
                (Target::Up, NodePower::Up)
                    | (Target::Asleep, NodePower::Asleep)
                    | (_, NodePower::Closed | NodePower::Down)
                    | (_, NodePower::Booting | NodePower::FallingAsleep)
            ) && !node.must_be_woken_again();
            if settled {
                self.state.node_mut(*id).dirty = false;
            }
            !settled
        });
        self.dirty_nodes = nodes;
    }

    fn stop(&mut self, now: Timestamp, id: JobId) {
        if now < self.state.job(id).not_before {
            return;
        }
        let Some(run) = self.state.job(id).run else { return };
        let action = self.emit(now, InFlight::Stop(id), ActionKind::Stop { job: id, run });
        self.state.job_mut(id).phase = Phase::Stopping(action);
    }

    /// Sets a running job's limit; a raise needs room below the budget, a lowering never does.
    fn limit(&mut self, now: Timestamp, id: JobId, budget: Option<Watts>) {
        let job = self.state.job(id);
        let (Some(planned), Some(held)) = (&job.planned, &job.held) else { return };
        let (new, old) = (planned.configuration.power_limit, held.configuration.power_limit);
        if now < job.not_before {
            return;
        }
        // A raise that failed before is counted already.
        let counted = self.state.counted_limit(id).unwrap_or(old);
        if new > counted {
            let held = held.clone();
            if !self.fits(&held, Some(counted), new, budget) {
                return;
            }
            self.state.count_limit(id, new);
        }
        let action = self.emit(now, InFlight::Limit(id), ActionKind::Limit { job: id, limit: new });
        self.state.job_mut(id).limiting = Some((action, new));
    }

    fn start(&mut self, now: Timestamp, id: JobId, budget: Option<Watts>) {
        let job = self.state.job(id);
        let Some(planned) = job.planned.clone() else { return };
        let free = planned.allocation.shares().all(|share| {
            let node = self.state.node(share.node);
            let gpus = share.count();
            node.power == NodePower::Up
                && node.held.mask() & share.mask == 0
                && self.state.host_fits(id, gpus, share.node, node.held.iter()).is_ok()
        });
        let limit = planned.configuration.power_limit;
        if now < job.not_before || !free || !self.fits(&planned, None, limit, budget) {
            return;
        }
        let placement = planned.clone();
        self.state.hold(id, planned);
        let action = self.emit(now, InFlight::Start(id), ActionKind::Start { job: id, placement });
        let job = self.state.job_mut(id);
        job.phase = Phase::Starting(action);
        job.run = Some(action);
    }

    /// Whether the GPUs of a placement can go from one limit to another (from none, for a start)
    /// below the budget, next to everything that is still held.
    fn fits(
        &self,
        placement: &Placement,
        from: Option<Watts>,
        to: Watts,
        budget: Option<Watts>,
    ) -> bool {
        let Some(budget) = budget else { return true };
        let (starting, from) = (from.is_none(), from.unwrap_or(Watts::ZERO));
        let mut committed = self.state.held_committed();
        for share in placement.allocation.shares() {
            let node = self.state.node(share.node);
            let now = node.held.occupancy();
            let count = share.count();
            let after = Occupancy {
                busy: now.busy + if starting { count } else { 0 },
                limits: now.limits + (to - from) * f64::from(count),
            };
            let cluster = self.state.cluster();
            committed += power::committed(cluster, share.node, node.power, after);
            committed -= node.held_committed();
        }
        // A step that raises nothing (a GPU capped below its idle power, a node billed by table)
        // is always safe.
        committed <= (budget + TOLERANCE).max(self.state.held_committed())
    }

    fn wake(&mut self, now: Timestamp, id: NodeId, budget: Option<Watts>) {
        let node = self.state.node(id);
        if now < node.not_before {
            return;
        }
        // One that did not wake before is counted at its maximum already.
        let unwoken = node.unwoken;
        if let Some(budget) = budget.filter(|_| !unwoken) {
            let cluster = self.state.cluster();
            let booting = power::committed(cluster, id, NodePower::Booting, node.held.occupancy());
            let after = self.state.held_committed() + booting - node.held_committed();
            if after > budget + TOLERANCE {
                return;
            }
        }
        let action = self.emit(now, InFlight::Wake(id), ActionKind::Wake { node: id });
        self.state.node_mut(id).in_flight = Some(action);
        if !unwoken {
            self.state.set_power(id, NodePower::Booting);
        }
    }

    fn sleep(&mut self, now: Timestamp, id: NodeId) {
        let node = self.state.node(id);
        if now < node.not_before || !node.held.is_empty() {
            return;
        }
        let action = self.emit(now, InFlight::Sleep(id), ActionKind::Sleep { node: id });
        self.state.node_mut(id).in_flight = Some(action);
        self.state.set_power(id, NodePower::FallingAsleep);
    }
}
