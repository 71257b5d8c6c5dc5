//! What a moldable job may still become once it has started.
//!
//! Its GPU count is chosen at its first start and stays. Its GPU type stays too, as long as machines
//! of that type are there: results do not depend on whether a job was stopped once. Only while no
//! machine of that type could run it, because they are lost or closed, may it go on with as many
//! GPUs of another type that it declared possible. It then has that type, until the same happens
//! again.

use super::{Phase, State};
use crate::cluster::{Menu, Shape};
use crate::ids::{GpuTypeId, JobId, MenuId};
use crate::placement::Placement;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How a moldable job has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Molded {
    /// What it has started as, the last time.
    pub(crate) shape: Shape,
    /// What it could be before it first started.
    pub(crate) before: MenuId,
}

impl State {
    /// Narrows a moldable job to the shape it has started with.
    pub(crate) fn mold(&mut self, id: JobId, placement: &Placement) {
        self.mold_to(id, placement.configuration.shape());
    }

    pub(super) fn mold_to(&mut self, id: JobId, shape: Shape) {
        let job = self.job(id);
        let before = job.molded.map_or(job.menu, |molded| molded.before);
        let menu = self.intern(Arc::from([shape]));
        let job = self.job_mut(id);
        job.molded = Some(Molded { shape, before });
        job.menu = menu;
    }

    /// A job that waits may go on elsewhere if no machine of its type is left, and keeps its type
    /// otherwise.
    pub(crate) fn remold(&mut self, id: JobId) {
        let job = self.job(id);
        let Some(Molded { shape, before }) = job.molded else { return };
        if job.planned.is_some() || job.held.is_some() || job.phase == Phase::Finished {
            return;
        }
        let menu: Menu = if self.could_run(shape) {
            Arc::from([shape])
        } else {
            let before = self.menu(before).iter().copied();
            let mut shapes: Vec<Shape> = before.filter(|s| s.gpus == shape.gpus).collect();
            if let Err(at) = shapes.binary_search(&shape) {
                shapes.insert(at, shape);
            }
            shapes.into()
        };
        let menu = self.intern(menu);
        if self.job(id).menu != menu {
            self.job_mut(id).menu = menu;
            self.touch_job(id);
        }
    }

    /// The machines are others than before: [`State::remold`] for every job.
    pub(crate) fn remold_all(&mut self) {
        let molded = self.unfinished_jobs().filter(|(_, job)| job.molded.is_some());
        let molded: Vec<JobId> = molded.map(|(id, _)| id).collect();
        for id in molded {
            self.remold(id);
        }
    }

    /// Whether the nodes that are neither lost nor closed could run a shape if they were empty.
    fn could_run(&self, shape: Shape) -> bool {
        let largest = self.cluster.largest_node(shape.gpu_type);
        let mut sizes = self.sizes_left(shape.gpu_type);
        if shape.gpus <= largest {
            return sizes.first().is_some_and(|most| *most >= shape.gpus);
        }
        // A larger job takes whole nodes, and a part of one more.
        let mut left = shape.gpus;
        sizes.retain(|size| {
            let whole = *size <= left;
            left -= if whole { *size } else { 0 };
            !whole
        });
        left < largest && (left == 0 || sizes.first().is_some_and(|most| *most >= left))
    }

    /// GPUs of each node of a type that is neither lost nor closed, the largest first.
    fn sizes_left(&self, gpu_type: GpuTypeId) -> Vec<u32> {
        let nodes = self.cluster.nodes().iter().zip(&self.nodes);
        let left = nodes.filter(|(node, state)| node.gpu_type == gpu_type && state.is_ours());
        let mut sizes: Vec<u32> = left.map(|(node, _)| node.gpus.into()).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes
    }
}
