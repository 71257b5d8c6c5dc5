//! Waiting jobs in order, grouped by menu.
//!
//! Jobs with the same menu fit in the same places, so when the first of them finds no room, none
//! of the others does. Asking each menu's first job therefore gives the same starts as asking
//! every waiting job in turn, at a cost that does not grow with the queue.

use std::collections::BTreeSet;
use wattline_core::ids::{JobId, MenuId};
use wattline_core::job_table::JobTable;

/// The order in which jobs are considered, smallest first.
pub(crate) type Rank = u64;

/// Waiting jobs by menu and rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitingJobs {
    menus: Vec<BTreeSet<(Rank, JobId)>>,
    /// Where each waiting job is.
    places: JobTable<(MenuId, Rank)>,
}

impl WaitingJobs {
    pub(crate) fn menu_count(&self) -> usize {
        self.menus.len()
    }

    /// Puts the job where it belongs; `None`: it does not wait.
    pub(crate) fn set(&mut self, job: JobId, place: Option<(MenuId, Rank)>) {
        let old = match place {
            Some(place) => self.places.insert(job, place),
            None => self.places.remove(job),
        };
        if old == place {
            return;
        }
        if let Some((menu, rank)) = old {
            self.menus[menu.index()].remove(&(rank, job));
        }
        if let Some((menu, rank)) = place {
            if self.menus.len() <= menu.index() {
                self.menus.resize_with(menu.index() + 1, BTreeSet::new);
            }
            self.menus[menu.index()].insert((rank, job));
        }
    }

    /// The first job of all menus that are not blocked.
    pub(crate) fn first(&self, blocked: &[bool]) -> Option<(Rank, JobId, MenuId)> {
        self.menus
            .iter()
            .enumerate()
            .filter(|(menu, _)| !blocked.get(*menu).copied().unwrap_or(false))
            .filter_map(|(menu, jobs)| {
                jobs.first().map(|(rank, job)| (*rank, *job, MenuId(menu as u32)))
            })
            .min()
    }

    /// All jobs, first to last.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = JobId> + '_ {
        let mut heads: Vec<_> = self.menus.iter().map(|jobs| jobs.iter().peekable()).collect();
        std::iter::from_fn(move || {
            let (at, _) = heads
                .iter_mut()
                .enumerate()
                .filter_map(|(at, jobs)| jobs.peek().map(|job| (at, **job)))
                .min_by_key(|(_, job)| *job)?;
            heads[at].next().map(|(_, job)| *job)
        })
    }
}
