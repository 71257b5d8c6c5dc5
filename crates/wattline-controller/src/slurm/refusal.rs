//! What SLURM will not start, and why: what it says of a job that was let go and still waits.
//!
//! Most of what it says is final as long as nothing else changes: limits, licences, constraints,
//! reservations. `Resources` is not: the GPUs that are kept for the job may just be on their way. So
//! that counts only where SLURM itself shows them free.

use super::Slurm;
use super::read::SlurmJob;
use wattline_core::placement::Placement;
use wattline_core::plan::Refusal;
use wattline_core::units::Seconds;

/// A job that was let go is looked at by SLURM at once, and again when something ends. What it says
/// about nodes for this long, while they look free, it goes on saying. Twice as long, and others wait
/// twice as long for the GPUs that are kept.
const FINAL_AFTER: Seconds = Seconds::new(3.0);

/// What SLURM's reason for waiting means for a job that was let go; none if it says nothing about
/// whether the job can start.
pub(super) fn meaning(reason: &str) -> Option<Refusal> {
    let begins = |words: &[&str]| words.iter().any(|word| reason.starts_with(word));
    if begins(&["Licenses"]) {
        Some(Refusal::Licences)
    } else if begins(&["QOS", "Assoc", "Invalid", "Account", "Partition", "JobArrayTaskLimit"])
        || reason.contains("Limit")
    {
        Some(Refusal::Limit)
    } else if begins(&["BadConstraints", "ReqNodeNotAvail", "NodeDown", "Reserv", "NodeNotAvail"]) {
        Some(Refusal::Nodes)
    } else if begins(&["Resources"]) {
        Some(Refusal::Resources)
    } else {
        None
    }
}

impl Slurm {
    /// Why a job that was let go so long ago will not start where it was told to.
    pub(super) fn refusal(
        &self,
        job: &SlurmJob,
        placement: &Placement,
        ago: Seconds,
    ) -> Option<Refusal> {
        let meaning = meaning(&job.state_reason)?;
        match meaning {
            Refusal::Limit | Refusal::Licences | Refusal::Never | Refusal::Other => Some(meaning),
            Refusal::Nodes => (ago >= FINAL_AFTER).then_some(meaning),
            Refusal::Resources => {
                (ago >= FINAL_AFTER && self.look_free(placement)).then_some(meaning)
            }
        }
    }

    /// Whether SLURM shows all GPUs of a placement free.
    fn look_free(&self, placement: &Placement) -> bool {
        let Some(seen) = &self.seen else { return false };
        placement.allocation.shares().all(|share| {
            let node = seen.nodes.get(&*self.site.node(share.node).name);
            node.is_some_and(|node| {
                node.is_usable() && node.gpus.count.saturating_sub(node.gpus_used) >= share.count()
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As SLURM 22.05 to 26.05 name them (`job_state_reason_string`).
    #[test]
    fn slurms_reasons_are_told_apart() {
        let cases = [
            ("QOSMaxGRESPerUser", Some(Refusal::Limit)),
            ("QOSGrpCpuLimit", Some(Refusal::Limit)),
            ("AssocGrpGRES", Some(Refusal::Limit)),
            ("AssocMaxJobsLimit", Some(Refusal::Limit)),
            ("MaxMemPerLimit", Some(Refusal::Limit)),
            ("PartitionTimeLimit", Some(Refusal::Limit)),
            ("PartitionDown", Some(Refusal::Limit)),
            ("InvalidQOS", Some(Refusal::Limit)),
            ("Licenses", Some(Refusal::Licences)),
            ("BadConstraints", Some(Refusal::Nodes)),
            ("ReqNodeNotAvail, Reserved for maintenance", Some(Refusal::Nodes)),
            ("ReqNodeNotAvail, UnavailableNodes:n1", Some(Refusal::Nodes)),
            ("Reservation", Some(Refusal::Nodes)),
            ("Resources", Some(Refusal::Resources)),
            ("Priority", None),
            ("None", None),
            ("Dependency", None),
            ("BeginTime", None),
            ("JobHeldUser", None),
            ("Prolog", None),
            ("", None),
        ];
        for (reason, is) in cases {
            assert_eq!(meaning(reason), is, "{reason}");
        }
    }
}
