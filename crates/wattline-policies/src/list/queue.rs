//! Waiting jobs in order, grouped by menu.
//!
//! Jobs with the same menu fit in the same places, so when the first of them finds no room, none
//! of the others does. Asking each menu's first job therefore gives the same starts as asking
//! every waiting job in turn, at a cost that does not grow with the queue.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeSet, BinaryHeap};
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

    /// All jobs with their ranks, first to last.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = (Rank, JobId)> + '_ {
        let mut rest: Vec<_> = self.menus.iter().map(|jobs| jobs.iter()).collect();
        let heads = rest.iter_mut().enumerate();
        let mut heads: BinaryHeap<_> =
            heads.filter_map(|(at, jobs)| Some(Reverse((*jobs.next()?, at)))).collect();
        std::iter::from_fn(move || {
            let mut head = heads.peek_mut()?;
            let Reverse((first, at)) = *head;
            match rest[at].next() {
                Some(next) => *head = Reverse((*next, at)),
                None => {
                    PeekMut::pop(head);
                }
            }
            Some(first)
        })
    }
}
