//! Heterogeneous jobs: several parts, each with nodes of its own, that start together.
//!
//! Each part is a job for the engine, which keeps room for one after the other. When there is room
//! for all of them they are let go.

use super::command::CommandError;
use super::limits::limits_of;
use super::read::SlurmJob;
use super::{Slurm, Step};
use crate::backend::Known;
use crate::directory::SlurmOrigin;
use wattline_core::Timestamp;
use wattline_core::placement::Placement;
use wattline_core::state::Phase;

/// How far the parts of a job are.
pub(super) enum Parts {
    /// There is not room for each yet.
    Gather,
    /// Limits of the GPUs that they may get are being set.
    Set,
    /// They were let go, or could not be.
    LetGo(Result<(), CommandError>),
}

impl SlurmJob {
    /// Whether it is the first part of a heterogeneous job. What is said of it is said of all parts.
    pub(super) fn leads(&self) -> bool {
        self.het_job_id.is_some() && self.het_job_offset.unwrap_or(0) == 0
    }
}

impl Slurm {
    /// Lets all parts go if there is room for each; the first part does it for all. `since`: when it
    /// began to wait for the others.
    pub(super) fn release_parts(
        &mut self,
        since: Timestamp,
        job: &SlurmJob,
        known: Known<'_>,
    ) -> Parts {
        let Some(seen) = self.seen.clone().filter(|_| job.leads()) else { return Parts::Gather };
        let parts: Option<Vec<(&SlurmJob, &Placement, &SlurmOrigin)>> = seen
            .jobs
            .iter()
            .filter(|part| part.het_job_id == job.het_job_id && !part.state.is_over())
            .map(|part| {
                let id = known.directory.find(&super::seen::key(part))?;
                let state = known.engine.state().find_job(id)?;
                let starts = matches!(state.phase, Phase::Starting(_)) && part.state.waits();
                let held = state.held.as_ref().filter(|_| starts)?;
                Some((part, held, known.directory.slurm(id)?))
            })
            .collect();
        let Some(parts) = parts else { return Parts::Gather };
        let limits = limits_of(parts.iter().map(|(_, held, _)| *held));
        if !self.is_their_turn(&limits) {
            return Parts::Gather;
        }
        if self.limits_hold(&limits) {
            return Parts::LetGo(self.let_parts_go(job, &parts));
        }
        // Nobody raises limits on the other parts' nodes either.
        let others = parts.iter().filter_map(|(part, ..)| {
            let id = known.directory.find(&super::seen::key(part))?;
            match known.engine.state().find_job(id)?.phase {
                Phase::Starting(action) => Some(action),
                _ => None,
            }
        });
        for action in others {
            if let Some(wanted) = self.wanted.get_mut(&action) {
                wanted.step = Step::Setting(since);
            }
        }
        Parts::Set
    }

    fn let_parts_go(
        &self,
        first: &SlurmJob,
        parts: &[(&SlurmJob, &Placement, &SlurmOrigin)],
    ) -> Result<(), CommandError> {
        // What is said of the first is said of all, so the others have their say after it.
        let (leaders, others): (Vec<_>, Vec<_>) = parts.iter().partition(|(part, ..)| part.leads());
        for (part, placement, slurm) in leaders.into_iter().chain(others) {
            let names = self.names(placement);
            let id = format!("JobId={}", part.key.id);
            if part.leads() {
                let others = format!("ExcNodeList={}", self.all_but(&names).join(","));
                self.scontrol(&["update", &id, &others, "StartTime=now"])?;
            } else {
                let there = format!("ReqNodeList={}", names.join(","));
                let own = format!("ExcNodeList={}", slurm.asked.excluded.join(","));
                self.scontrol(&["update", &id, &own, &there, "StartTime=now"])?;
            }
        }
        self.scontrol(&["release", &first.key.id.to_string()])
    }
}
