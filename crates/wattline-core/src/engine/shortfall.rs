//! A budget that cannot be kept: said once, and shown until it is kept again.

use super::{Alert, Engine, Revision};
use crate::ids::JobId;
use crate::shed::Shedding;
use crate::time::Timestamp;
use crate::units::Watts;

/// Jobs that a shortfall names; of others it says how many there are. An alert is a line or two, and
/// those that draw most come first.
const MOST_NAMED: usize = 8;

/// By how much a budget cannot be kept, and because of whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Shortfall {
    /// Since when.
    pub since: Timestamp,
    /// What is committed when all that may be given up is given up.
    pub committed: Watts,
    /// What there is.
    pub budget: Watts,
    /// Jobs that may not be stopped, those with the highest limits first.
    pub jobs: Vec<JobId>,
    /// How many more there are.
    pub more: usize,
    /// The state for which this was found.
    pub(super) revision: Revision,
}

impl Engine<'_> {
    /// The budget cannot be kept, as things are; `None` if it is kept, or will be as soon as what is
    /// planned is carried out.
    #[must_use]
    pub fn shortfall(&self) -> Option<&Shortfall> {
        self.shortfall.as_ref()
    }

    /// Whether what can be given up for this budget in this state is known already.
    pub(super) fn falls_short_as_before(&self, budget: Watts) -> bool {
        let same = |known: &Shortfall| known.revision == self.revision && known.budget == budget;
        self.shortfall.as_ref().is_some_and(same)
    }

    /// The budget is kept.
    pub(super) fn line_holds(&mut self, budget: Watts) {
        if self.shortfall.take().is_some() {
            let committed = self.state.planned_committed();
            self.alert(Alert::BudgetKeptAgain { committed, budget });
        }
    }

    /// The budget cannot be kept.
    pub(super) fn falls_short(&mut self, now: Timestamp, budget: Watts, shedding: &Shedding) {
        let most = |id: &JobId| {
            let planned = self.state.job(*id).planned.as_ref();
            planned.map_or(Watts::ZERO, |placement| {
                placement.configuration.power_limit * f64::from(placement.configuration.gpus)
            })
        };
        let mut jobs = shedding.unstoppable.clone();
        jobs.sort_by(|a, b| most(b).total_cmp(&most(a)).then(a.cmp(b)));
        let more = jobs.len().saturating_sub(MOST_NAMED);
        jobs.truncate(MOST_NAMED);
        let known = self.shortfall.take();
        let shortfall = Shortfall {
            since: known.as_ref().map_or(now, |known| known.since),
            committed: shedding.committed,
            budget,
            jobs,
            more,
            revision: self.revision,
        };
        if known.is_none() {
            self.alert(Alert::BudgetCannotBeKept(shortfall.clone()));
        }
        self.shortfall = Some(shortfall);
    }
}
