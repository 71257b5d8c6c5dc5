//! What a plan leaves as it is: jobs that it does not decide about keep their GPUs.

use wattline_core::ids::{JobId, NodeId};
use wattline_core::placement::{Placement, mask_of};
use wattline_core::power::Occupancy;
use wattline_core::state::{Resident, State};

/// Which jobs a plan decides about, by their slots in the view.
#[derive(Clone, Debug)]
pub(crate) struct Decided(Vec<bool>);

impl Decided {
    /// None of them.
    pub(crate) fn nobody(state: &State) -> Self {
        Self(vec![false; state.job_slots()])
    }

    /// This one too.
    pub(crate) fn add(&mut self, state: &State, id: JobId) {
        self.0[state.job_slot(id)] = true;
    }

    fn stays<'s>(&'s self, state: &'s State, id: NodeId) -> impl Iterator<Item = &'s Resident> {
        let residents = state.node(id).planned.iter();
        residents.filter(|resident| !self.0[state.job_slot(resident.job)])
    }

    /// What stays on a node whatever is planned.
    pub(crate) fn fixed(&self, state: &State, id: NodeId) -> Occupancy {
        let none = Occupancy::default();
        self.stays(state, id).fold(none, |sum, r| sum.with(r.mask.count_ones(), r.limit))
    }

    /// GPUs of a node that the plan decides about.
    pub(crate) fn free_mask(&self, state: &State, id: NodeId) -> u64 {
        let all = mask_of(state.cluster().node(id).gpus);
        self.stays(state, id).fold(all, |mask, resident| mask & !resident.mask)
    }

    /// What each node holds with these placements.
    pub(crate) fn held_with<'p>(
        &self,
        state: &State,
        placed: impl Iterator<Item = &'p Placement>,
    ) -> Vec<Occupancy> {
        let ids = state.cluster().node_ids();
        let mut held: Vec<Occupancy> = ids.map(|id| self.fixed(state, id)).collect();
        for placement in placed {
            for share in placement.allocation.shares() {
                let node = &mut held[share.node.index()];
                *node = node.with(share.count(), placement.configuration.power_limit);
            }
        }
        held
    }
}
