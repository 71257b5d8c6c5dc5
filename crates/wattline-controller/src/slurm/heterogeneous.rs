//! Heterogeneous jobs: several parts, each with nodes of its own, that start together.
//!
//! Each part is a job for the engine, which keeps room for one after the other. When there is room
//! for all of them they are let go.

use super::Slurm;
use super::command::CommandError;
use super::read::SlurmJob;
use crate::backend::Known;
use crate::directory::SlurmOrigin;
use wattline_core::placement::Placement;
use wattline_core::state::Phase;

impl SlurmJob {
    /// Whether it is the first part of a heterogeneous job. What is said of it is said of all parts.
    pub(super) fn leads(&self) -> bool {
        self.het_job_id.is_some() && self.het_job_offset.unwrap_or(0) == 0
    }
}

impl Slurm {
    /// Lets all parts go if there is room for each; the first part does it for all. None while that
    /// is not so.
    pub(super) fn release_parts(
        &mut self,
        job: &SlurmJob,
        known: Known<'_>,
    ) -> Option<Result<(), CommandError>> {
        if !job.leads() {
            return None;
        }
        let seen = self.seen.clone()?;
        let parts: Vec<(&SlurmJob, &Placement, &SlurmOrigin)> = seen
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
            .collect::<Option<_>>()?;
        if !parts.iter().fold(true, |hold, (_, held, _)| self.limits_hold(held) && hold) {
            return None;
        }
        Some(self.let_parts_go(job, &parts))
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
