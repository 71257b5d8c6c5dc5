//! Entries: what they are to the controller, and how each format of the journal writes them.

mod stored;
mod v2;

use crate::job_registry::JournalNote;
use wattline_core::Timestamp;
use wattline_core::engine::Event;
use wattline_core::plan::Plan;
use wattline_core::units::Seconds;

/// One instant: what was heard and decided then. How it is written is in [`v2`], field by field,
/// so that a change here cannot change what is in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// When.
    pub at: Timestamp,
    /// What was heard.
    pub events: Vec<Event>,
    /// The cluster's reports before this number have been heard.
    pub next_report: u64,
    /// Whether the cluster was told what to do right after it.
    pub acts: bool,
    /// What else is to be remembered.
    pub notes: Vec<JournalNote>,
    /// What was decided, after the events.
    pub decisions: Vec<Decision>,
}

/// A plan that was decided on, as it was applied. Replay applies it and never plans.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The revision of the state that the planner saw.
    pub based_on: u64,
    /// What made it: the policy as its user named it, or "shed" for load shed by the engine itself.
    pub policy: Box<str>,
    /// Version of the program whose policy it was.
    pub version: Box<str>,
    /// Why a plan was asked for, in a word.
    pub trigger: Box<str>,
    /// How long planning took, on the wall clock.
    pub took: Seconds,
    /// The changes, with their reasons.
    pub plan: Plan,
}

impl Entry {
    /// The entry as the present format writes it: JSON.
    ///
    /// # Errors
    /// None that is known: every value has its JSON.
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&<v2::Entry as stored::Stored<Self>>::store(self))
    }

    /// Reads an entry of format 1 or 2: entries of format 1 have the same shape without decisions.
    pub(super) fn from_text(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<v2::Entry>(text).map(stored::Stored::load)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Before something was added to format 2 an entry with one of each kind was this. It is read, and
    /// written as it was: what was added is not in it.
    #[test]
    fn entries_from_before_something_was_added_are_read_and_written_as_they_were() {
        let earlier = include_str!("../../../tests/fixtures/entries-v2-earlier.jsonl");
        let mut before = 0;
        for text in earlier.lines() {
            let entry = Entry::from_text(text).unwrap();
            assert_eq!(entry.to_text().unwrap(), text);
            let kinds = entry.events.len() + entry.notes.len() + entry.decisions[0].plan.jobs.len();
            assert!(kinds > before, "they are from the oldest to the newest");
            before = kinds;
        }
        assert!(earlier.lines().count() >= 5);
    }
}
