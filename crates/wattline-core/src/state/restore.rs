//! Putting back what was known before: from a snapshot, not from events.

use super::{Phase, Progress, State, Target};
use crate::cluster::Shape;
use crate::ids::{ActionId, JobId, NodeId};
use crate::job::Job;
use crate::placement::Placement;
use crate::plan::Reason;
use crate::power::NodePower;
use crate::time::Timestamp;
use std::sync::Arc;

/// A job as it was. Whoever restores one has checked that its GPUs exist; whether they are given
/// twice is for [`audit`](crate::check::audit) to say.
#[derive(Clone, Debug)]
pub struct RestoredJob {
    /// What was asked for.
    pub job: Arc<Job>,
    /// The shape that a moldable job has started with, the last time.
    pub started_as: Option<Shape>,
    /// What the plan wants for it.
    pub planned: Option<Placement>,
    /// What it holds: it runs there.
    pub held: Option<Placement>,
    /// Failed to start too often; left alone until then.
    pub held_back_until: Option<Timestamp>,
    /// Its user wants it to wait.
    pub on_hold: bool,
    /// How far it is.
    pub progress: Progress,
    /// When it first ran.
    pub first_start: Option<Timestamp>,
    /// How often it was started again.
    pub restarts: u32,
    /// GPU-seconds held so far.
    pub attained: f64,
    /// Why it is planned so.
    pub reason: Reason,
}

impl State {
    /// Takes a job in as it was. Starts of restored jobs are numbered as the jobs are.
    pub fn restore_job(
        &mut self,
        restored: RestoredJob,
        now: Timestamp,
        can_run: impl Fn(Shape) -> bool,
    ) -> JobId {
        let id = self.submit(restored.job, can_run);
        if let Some(shape) = restored.started_as {
            self.mold_to(id, shape);
        }
        self.set_planned(id, restored.planned, restored.reason, now);
        let gpus = restored.held.as_ref().map(|held| held.configuration.gpus);
        if let Some(held) = restored.held {
            self.hold(id, held);
        }
        let job = self.job_mut(id);
        job.progress = restored.progress;
        job.on_hold = restored.on_hold;
        job.first_start = restored.first_start;
        job.restarts = restored.restarts;
        job.attained_before = restored.attained;
        if let Some(gpus) = gpus {
            job.phase = Phase::Running;
            job.run = Some(ActionId(id.0.into()));
            job.service_begins(now, gpus);
        } else if let Some(until) = restored.held_back_until {
            job.phase = Phase::BackingOff(until);
        }
        self.remold(id);
        id
    }

    /// Puts a node back as it was.
    pub fn restore_node(
        &mut self,
        id: NodeId,
        power: NodePower,
        target: Target,
        idle_since: Timestamp,
        reason: Reason,
    ) {
        self.set_power(id, power);
        self.set_target(id, target, reason);
        self.node_mut(id).idle_since = idle_since;
    }
}
