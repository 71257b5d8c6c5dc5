//! A table by job id that keeps only the jobs somebody put there and nobody took out again.
//!
//! Ids are dense and rise for ever, while the jobs that matter are few: so ids lead through pages
//! to slots of a dense vector. A page is freed with its last job; what remains of ended jobs is
//! eight bytes for each page of them.

use crate::ids::JobId;
use std::ops::{Index, IndexMut};

/// Jobs per page: 1 kB each. Half as many would double what remains of ended jobs; twice as many
/// would double what a single long job keeps alive.
const PAGE: usize = 256;
const EMPTY: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Page {
    slots: [u32; PAGE],
    used: u16,
}

/// Values by job id. Iterates in the order of ids.
#[derive(Clone, Debug)]
pub struct JobTable<T> {
    pages: Vec<Option<Box<Page>>>,
    ids: Vec<JobId>,
    values: Vec<T>,
    next: u32,
}

impl<T> Default for JobTable<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), ids: Vec::new(), values: Vec::new(), next: 0 }
    }
}

impl<T> JobTable<T> {
    /// The table with these values, in rising order of their ids; the next id is `next` or later.
    /// `None` if the ids do not rise or one is not below `next`.
    #[must_use]
    pub fn from_rows(rows: impl IntoIterator<Item = (JobId, T)>, next: u32) -> Option<Self> {
        let mut table = Self::default();
        for (id, value) in rows {
            if id.0 < table.next || id.0 >= next {
                return None;
            }
            table.insert(id, value);
        }
        table.next = next;
        Some(table)
    }

    /// The id that [`JobTable::push`] gives next: one more than the largest ever given.
    #[must_use]
    pub fn next_id(&self) -> JobId {
        JobId(self.next)
    }

    /// How many values it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Adds a value under the next id.
    pub fn push(&mut self, value: T) -> JobId {
        let id = self.next_id();
        self.insert(id, value);
        id
    }

    /// Puts a value under an id; returns the one that was there. Later ids are given after it.
    pub fn insert(&mut self, id: JobId, value: T) -> Option<T> {
        self.next = self.next.max(id.0 + 1);
        if let Some(old) = self.get_mut(id) {
            return Some(std::mem::replace(old, value));
        }
        let (page, at) = (id.index() / PAGE, id.index() % PAGE);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page]
            .get_or_insert_with(|| Box::new(Page { slots: [EMPTY; PAGE], used: 0 }));
        page.slots[at] = self.values.len() as u32;
        page.used += 1;
        self.ids.push(id);
        self.values.push(value);
        None
    }

    /// Takes a value out.
    pub fn remove(&mut self, id: JobId) -> Option<T> {
        let slot = self.slot(id)?;
        let (page, at) = (id.index() / PAGE, id.index() % PAGE);
        if let Some(found) = &mut self.pages[page] {
            found.slots[at] = EMPTY;
            found.used -= 1;
            if found.used == 0 {
                self.pages[page] = None;
            }
        }
        self.ids.swap_remove(slot);
        let value = self.values.swap_remove(slot);
        if let Some(moved) = self.ids.get(slot)
            && let Some(page) = &mut self.pages[moved.index() / PAGE]
        {
            page.slots[moved.index() % PAGE] = slot as u32;
        }
        Some(value)
    }

    /// Where a job's value stands among the [`JobTable::len`] of them: for dense tables beside this
    /// one that do not outlive a change of it.
    #[must_use]
    pub fn slot(&self, id: JobId) -> Option<usize> {
        let page = self.pages.get(id.index() / PAGE)?.as_deref()?;
        let slot = page.slots[id.index() % PAGE];
        (slot != EMPTY).then_some(slot as usize)
    }

    /// One value.
    #[must_use]
    pub fn get(&self, id: JobId) -> Option<&T> {
        self.slot(id).map(|slot| &self.values[slot])
    }

    /// One value, to change it.
    pub fn get_mut(&mut self, id: JobId) -> Option<&mut T> {
        self.slot(id).map(|slot| &mut self.values[slot])
    }

    /// All ids and values, by id.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (JobId, &T)> {
        self.iter_from(JobId(0))
    }

    /// Ids and values from this id on, by id.
    pub fn iter_from(&self, first: JobId) -> impl DoubleEndedIterator<Item = (JobId, &T)> {
        let from = first.index() / PAGE;
        let pages = self.pages.iter().enumerate().skip(from);
        pages
            .filter_map(|(at, page)| Some((at, page.as_deref()?)))
            .flat_map(|(at, page)| {
                let slots = page.slots.iter().enumerate();
                slots.map(move |(offset, slot)| (JobId((at * PAGE + offset) as u32), *slot))
            })
            .filter(move |(id, slot)| *slot != EMPTY && *id >= first)
            .map(|(id, slot)| (id, &self.values[slot as usize]))
    }

    /// All values, to change them, in no order that means anything.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.values.iter_mut()
    }
}

/// For ids that are known to be there.
impl<T> Index<JobId> for JobTable<T> {
    type Output = T;

    fn index(&self, id: JobId) -> &T {
        self.get(id).unwrap_or_else(|| panic!("{id} is not in the table: a bug"))
    }
}

impl<T> IndexMut<JobId> for JobTable<T> {
    fn index_mut(&mut self, id: JobId) -> &mut T {
        self.get_mut(id).unwrap_or_else(|| panic!("{id} is not in the table: a bug"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Push,
        Insert(u32),
        Remove(u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => Just(Step::Push),
            1 => (0..2000_u32).prop_map(Step::Insert),
            4 => (0..2000_u32).prop_map(Step::Remove),
        ];
        prop::collection::vec(step, 0..1500)
    }

    proptest! {
        #![proptest_config(wattline_testing::cases(64, 1))]
        /// It does what a map does, whose keys are never forgotten by the numbering.
        #[test]
        fn it_is_a_map_with_a_counter(steps in steps(), first in 0..2000_u32) {
            let (mut table, mut map, mut next) = (JobTable::default(), BTreeMap::new(), 0);
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push => {
                        prop_assert_eq!(table.push(number), JobId(next));
                        map.insert(JobId(next), number);
                        next += 1;
                    }
                    Step::Insert(id) => {
                        prop_assert_eq!(table.insert(JobId(id), number), map.insert(JobId(id), number));
                        next = next.max(id + 1);
                    }
                    Step::Remove(id) => {
                        prop_assert_eq!(table.remove(JobId(id)), map.remove(&JobId(id)));
                    }
                }
                prop_assert_eq!((table.len(), table.next_id()), (map.len(), JobId(next)));
            }
            prop_assert!(table.iter().eq(map.iter().map(|(id, value)| (*id, value))));
            prop_assert!(table.iter().rev().eq(map.iter().rev().map(|(id, value)| (*id, value))));
            let from = JobId(first);
            prop_assert!(table.iter_from(from).eq(map.range(from..).map(|(id, v)| (*id, v))));
            for (id, value) in &map {
                prop_assert_eq!(table[*id], *value);
            }
            let rows: Vec<(JobId, usize)> = table.iter().map(|(id, value)| (id, *value)).collect();
            let again = JobTable::from_rows(rows, next).unwrap();
            prop_assert!(again.iter().eq(table.iter()));
            prop_assert_eq!(again.next_id(), table.next_id());
        }
    }

    #[test]
    fn a_million_ended_jobs_leave_next_to_nothing() {
        let mut table = JobTable::default();
        for number in 0..1_000_000_u32 {
            let id = table.push(number);
            // One in ten thousand goes on for ever.
            if !id.0.is_multiple_of(10_000) {
                table.remove(id);
            }
        }
        assert_eq!(table.len(), 100);
        let pages = table.pages.iter().flatten().count();
        assert_eq!(pages, 100, "pages without a job are freed");
        assert!(table.pages.len() * 8 < 32_000);
        assert!(JobTable::from_rows([(JobId(3), ()), (JobId(2), ())], 9).is_none());
        assert!(JobTable::from_rows([(JobId(9), ())], 9).is_none());
    }
}
