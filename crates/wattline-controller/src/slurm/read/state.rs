//! The one word that squeue shows for a job's state.
//!
//! Up to 0.0.39 the state is that word, from 0.0.40 on it is the base state and all flags. The word
//! is chosen by SLURM's own order of precedence, so that both read the same.

/// The state of a job as squeue shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Waits, or is held.
    Pending,
    /// Runs.
    Running,
    /// Stopped in place; the GPUs stay taken.
    Suspended,
    /// Ended with exit code 0.
    Completed,
    /// Cancelled by a user or an administrator.
    Cancelled,
    /// Ended with another exit code.
    Failed,
    /// Ended at its time limit.
    Timeout,
    /// Ended because a node was lost.
    NodeFail,
    /// Ended to make room for another.
    Preempted,
    /// Ended because a node did not boot.
    BootFail,
    /// Ended because it could not meet SLURM's own deadline.
    Deadline,
    /// Ended because it took too much memory.
    OutOfMemory,
    /// Ending: its processes are being cleaned up and its GPUs are still taken. It may be over or
    /// waiting again afterwards.
    Completing,
    /// Has its nodes, which are not ready yet.
    Configuring,
    /// Being requeued.
    Requeued,
    /// Requeued, and held.
    RequeueHold,
    /// Requeued and held because it ended with an exit code that asks for that.
    SpecialExit,
    /// About to change its size.
    Resizing,
    /// Being sent a signal; it runs.
    Signaling,
    /// Stopped by a signal; the GPUs stay taken.
    Stopped,
    /// Its data is being written back.
    StageOut,
    /// Held because its reservation was deleted.
    ReservationDeleted,
    /// Taken over by another cluster.
    Revoked,
    /// A word that is not known here.
    Other(String),
}

/// Flags that win over the base state, strongest first, as slurmctld orders them.
const FLAGS: [(&str, State); 12] = [
    ("COMPLETING", State::Completing),
    ("STAGE_OUT", State::StageOut),
    ("CONFIGURING", State::Configuring),
    ("RESIZING", State::Resizing),
    ("REQUEUED", State::Requeued),
    ("REQUEUE_FED", State::Requeued),
    ("REQUEUE_HOLD", State::RequeueHold),
    ("SPECIAL_EXIT", State::SpecialExit),
    ("STOPPED", State::Stopped),
    ("REVOKED", State::Revoked),
    ("RESV_DEL_HOLD", State::ReservationDeleted),
    ("SIGNALING", State::Signaling),
];

const BASES: [(&str, State); 12] = [
    ("PENDING", State::Pending),
    ("RUNNING", State::Running),
    ("SUSPENDED", State::Suspended),
    ("COMPLETED", State::Completed),
    ("CANCELLED", State::Cancelled),
    ("FAILED", State::Failed),
    ("TIMEOUT", State::Timeout),
    ("NODE_FAIL", State::NodeFail),
    ("PREEMPTED", State::Preempted),
    ("BOOT_FAIL", State::BootFail),
    ("DEADLINE", State::Deadline),
    ("OUT_OF_MEMORY", State::OutOfMemory),
];

impl State {
    /// From the words that SLURM prints, in any order; `None` without any.
    #[must_use]
    pub fn from_words<'a>(words: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let words: Vec<String> = words
            .into_iter()
            .map(|word| word.trim().to_ascii_uppercase())
            .filter(|word| !word.is_empty())
            .collect();
        if words.is_empty() {
            return None;
        }
        let known = FLAGS.iter().chain(&BASES).find(|(name, _)| words.iter().any(|w| w == name));
        Some(known.map_or_else(
            || Self::Other(words.join("+").chars().take(200).collect()),
            |(_, state)| state.clone(),
        ))
    }

    /// Whether it waits to be started (and may be held).
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(
            self,
            Self::Pending
                | Self::Requeued
                | Self::RequeueHold
                | Self::SpecialExit
                | Self::ReservationDeleted
        )
    }

    /// Whether it is over for good.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(
            self,
            Self::Completed
                | Self::Cancelled
                | Self::Failed
                | Self::Timeout
                | Self::NodeFail
                | Self::Preempted
                | Self::BootFail
                | Self::Deadline
                | Self::OutOfMemory
                | Self::Revoked
        )
    }

    /// Whether it has nodes and GPUs that nobody else can have. What is not known counts as such.
    #[must_use]
    pub fn holds_gpus(&self) -> bool {
        !self.waits() && !self.is_over()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_and_many_read_the_same() {
        for (words, state) in [
            (&["RUNNING"][..], State::Running),
            (&["PENDING", "REQUEUE_HOLD"], State::RequeueHold),
            (&["PENDING", "SPECIAL_EXIT"], State::SpecialExit),
            (&["PENDING", "COMPLETING"], State::Completing),
            (&["COMPLETED", "COMPLETING"], State::Completing),
            (&["COMPLETING"], State::Completing),
            (&["RUNNING", "CONFIGURING"], State::Configuring),
            (&["POWER_UP_NODE", "RUNNING"], State::Running),
            (&["running"], State::Running),
            (&["TELEPORTING"], State::Other("TELEPORTING".into())),
        ] {
            assert_eq!(State::from_words(words.iter().copied()), Some(state), "{words:?}");
        }
        assert_eq!(State::from_words([]), None);
        assert_eq!(State::from_words([" "]), None);
    }

    #[test]
    fn what_is_not_known_may_hold_gpus() {
        assert!(State::Other("TELEPORTING".into()).holds_gpus());
        assert!(State::Completing.holds_gpus());
        assert!(!State::SpecialExit.holds_gpus());
        assert!(!State::OutOfMemory.holds_gpus());
    }
}
