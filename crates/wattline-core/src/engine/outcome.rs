//! What came of actions, counted.

use super::InFlight;
use crate::action::ActionKind;
use serde::{Deserialize, Serialize};

/// How an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was carried out.
    Done,
    /// It failed, and is tried again.
    Failed,
    /// It failed too often.
    GivenUp,
    /// It was overtaken: the job ended, the node was lost.
    Overtaken,
}

impl Outcome {
    const COUNT: usize = 4;

    /// All of them.
    pub const ALL: [Self; Self::COUNT] = [Self::Done, Self::Failed, Self::GivenUp, Self::Overtaken];

    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::GivenUp => "given_up",
            Self::Overtaken => "overtaken",
        }
    }
}

/// The kinds of actions, in a word each.
const KINDS: [&str; 5] = ["start", "stop", "limit", "wake", "sleep"];

/// How many actions of each kind were handed out, and how they ended. Those that are under way are
/// handed out and have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcomes {
    sent: [u64; KINDS.len()],
    ended: [[u64; Outcome::COUNT]; KINDS.len()],
}

impl Outcomes {
    pub(super) fn sent(&mut self, kind: &ActionKind) {
        let at = match kind {
            ActionKind::Start { .. } => 0,
            ActionKind::Stop { .. } => 1,
            ActionKind::Limit { .. } => 2,
            ActionKind::Wake { .. } => 3,
            ActionKind::Sleep { .. } => 4,
        };
        self.sent[at] += 1;
    }

    pub(super) fn came(&mut self, about: InFlight, outcome: Outcome) {
        let at = match about {
            InFlight::Start(_) => 0,
            InFlight::Stop(_) => 1,
            InFlight::Limit(_) => 2,
            InFlight::Wake(_) => 3,
            InFlight::Sleep(_) => 4,
        };
        self.ended[at][outcome as usize] += 1;
    }

    /// The kinds, with how many were handed out.
    pub fn handed_out(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        KINDS.into_iter().zip(self.sent)
    }

    /// The kinds and outcomes, with how many there were.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, Outcome, u64)> + '_ {
        KINDS.into_iter().zip(&self.ended).flat_map(|(kind, ended)| {
            Outcome::ALL.into_iter().zip(ended).map(move |(outcome, count)| (kind, outcome, *count))
        })
    }
}
