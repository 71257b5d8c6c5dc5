//! The mark on what we hold, in SLURM itself: a key of our own in the admin comment, which users
//! cannot change. It tells `wattline release` and the fallback what to give back when the journal is
//! gone. The gate's mark says the same of jobs that came through it. What another tool has written
//! there stays; ours follows it.

use super::Slurm;
use super::instruction::{Instruction, JobName, JobUpdate};
use super::read::SlurmJob;
use crate::job_registry::SlurmOrigin;

/// The word. The fallback script knows it too.
const HELD: &str = "wattline/held";
/// Follows it where the user has named nodes himself: others are taken away when it is released.
const NODES: &str = "nodes=user";
/// SLURM keeps no more of an admin comment in its state files than of others; a longer one of
/// another tool is not added to.
const MOST_BYTES: usize = 1024;

impl Slurm {
    /// Whether a job bears the gate's mark or ours.
    pub(super) fn is_marked(&self, job: &SlurmJob) -> bool {
        self.told_by_gate(job).is_some() || bears_ours(job)
    }

    /// What marks a job before it is held; none if it bears a mark.
    pub(super) fn mark(&self, job: &SlurmJob, slurm: Option<&SlurmOrigin>) -> Option<Instruction> {
        if self.is_marked(job) {
            return None;
        }
        let named = slurm.map_or(!job.required_nodes.is_empty(), |s| !s.asked.required.is_empty());
        let text = marked(job.admin_comment.as_deref().unwrap_or_default(), named)?;
        let update = JobUpdate { admin_comment: Some(text), ..JobUpdate::default() };
        Some(Instruction::Update(JobName::of(job), update))
    }
}

/// Whether a job bears our own mark.
pub(super) fn bears_ours(job: &SlurmJob) -> bool {
    let text = job.admin_comment.as_deref().unwrap_or_default();
    text.split_whitespace().any(|word| word == HELD)
}

/// The admin comment without our mark; none if it bears none.
pub(super) fn unmark(job: &SlurmJob) -> Option<String> {
    let text = job.admin_comment.as_deref().filter(|_| bears_ours(job))?;
    let before = text.rfind(HELD).map_or(text, |at| text[..at].trim_end());
    Some(before.to_owned())
}

/// Whether the user has named nodes himself, as far as a mark says so.
pub(super) fn names_nodes(job: &SlurmJob) -> bool {
    let text = job.admin_comment.as_deref().unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    // The gate's mark comes first, with what it noted before the user's words.
    let by_gate = words.iter().take(3).any(|word| *word == NODES);
    let ours = words.windows(2).any(|pair| pair == [HELD, NODES]);
    ours || (by_gate && text.starts_with("wattline/1"))
}

fn marked(before: &str, names_nodes: bool) -> Option<String> {
    let ours = if names_nodes { format!("{HELD} {NODES}") } else { HELD.to_owned() };
    let text = if before.is_empty() { ours } else { format!("{before} {ours}") };
    (text.len() <= MOST_BYTES).then_some(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::slurm::read;

    fn job(admin_comment: &str) -> SlurmJob {
        let text = format!(
            r#"{{"jobs":[{{"job_id":1,"submit_time":1,"restart_cnt":0,"user_id":1,"partition":"p",
            "job_state":"PENDING","priority":0,"admin_comment":"{admin_comment}","name":"x"}}]}}"#
        );
        read::jobs(&text).unwrap().remove(0)
    }

    #[test]
    fn marks_are_added_to_what_others_wrote_and_found_again() {
        for (before, named, after) in [
            ("", false, "wattline/held"),
            ("", true, "wattline/held nodes=user"),
            ("billing: 7", false, "billing: 7 wattline/held"),
            ("billing: 7", true, "billing: 7 wattline/held nodes=user"),
        ] {
            assert_eq!(marked(before, named).as_deref(), Some(after));
            assert!(!bears_ours(&job(before)) && bears_ours(&job(after)), "{after}");
            assert_eq!(names_nodes(&job(after)), named, "{after}");
            assert_eq!(unmark(&job(after)), Some(before.to_owned()));
        }
        assert_eq!(marked(&"x".repeat(1020), false), None, "nothing of another's text is cut");
        assert!(names_nodes(&job("wattline/1 hold=user nodes=user deadline=6h")));
        assert!(!names_nodes(&job("wattline/1 deadline=6h ; a=1 nodes=user")));
        assert!(!bears_ours(&job("wattline/heldover")));
    }
}
