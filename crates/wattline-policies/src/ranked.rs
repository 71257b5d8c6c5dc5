//! Things by rank, for heaps.

use std::cmp::Ordering;

/// Something with its rank; among equals the one with the lower place comes first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranked<T> {
    pub(crate) rank: f64,
    pub(crate) place: usize,
    pub(crate) what: T,
}

impl<T> PartialEq for Ranked<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl<T> Eq for Ranked<T> {}
impl<T> PartialOrd for Ranked<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Ranked<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank.total_cmp(&other.rank).then(other.place.cmp(&self.place))
    }
}
