//! The exact image of an emulated cluster.
//!
//! Luck depends on what it is about and not on what came before, so that no generator has a place
//! to be kept. Jobs are those of the engine and are given again.

use super::run::{Run, WorldJob};
use super::{Happening, LogEntry, World, WorldNode};
use crate::meter::Meter;
use crate::queue::EventQueue;
use crate::room::Room;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;
use wattline_core::engine::Event;
use wattline_core::ids::{ActionId, JobId, NodeId};
use wattline_core::image::{ImageError, require};
use wattline_core::job::{Job, Work};
use wattline_core::job_table::JobTable;
use wattline_core::placement::{Placement, mask_of};
use wattline_core::prices::Bill;
use wattline_core::units::Joules;

/// All that has become of a [`World`] since it was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorldImage {
    jobs: Vec<(JobId, JobImage)>,
    next_job: JobId,
    nodes: Vec<WorldNode>,
    to_come: EventQueue<Happening>,
    events: VecDeque<Event>,
    meter: Meter,
    room: Room,
    log: Vec<LogEntry>,
    happened: u64,
}

/// What has become of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobImage {
    done: Work,
    told: Option<Box<(ActionId, Placement)>>,
    run: Option<Box<Run>>,
    epoch: u32,
    starts: u32,
    energy: Joules,
    bill: Bill,
}

impl World {
    /// All that has become of it.
    #[must_use]
    pub fn image(&self) -> WorldImage {
        // Named one by one, so that none is forgotten.
        let Self {
            cluster: _,
            physics: _,
            config: _,
            jobs,
            nodes,
            to_come,
            events,
            meter,
            room,
            pue: _,
            log,
            happened,
        } = self;
        WorldImage {
            jobs: jobs.iter().map(|(id, job)| (id, JobImage::of(job))).collect(),
            next_job: jobs.next_id(),
            nodes: nodes.clone(),
            to_come: to_come.clone(),
            events: events.clone(),
            meter: meter.clone(),
            room: room.clone(),
            log: log.clone(),
            happened: *happened,
        }
    }

    /// Goes on where another world was. This one must have been made as that one was; `job` gives
    /// the jobs that it had heard of.
    ///
    /// # Errors
    /// When the image is of something else; nothing has changed then.
    pub fn restore(
        &mut self,
        image: WorldImage,
        job: impl Fn(JobId) -> Option<Arc<Job>>,
    ) -> Result<(), ImageError> {
        image.check(self)?;
        let WorldImage { jobs, next_job, nodes, to_come, events, meter, room, log, happened } =
            image;
        let jobs: Option<Vec<(JobId, WorldJob)>> =
            jobs.into_iter().map(|(id, image)| Some((id, image.with(job(id)?)))).collect();
        let jobs = jobs.ok_or(ImageError::Wrong("a job of the cluster that nobody submitted"))?;
        self.jobs = JobTable::from_rows(jobs, next_job.0)
            .ok_or(ImageError::Wrong("jobs of the cluster that are not in the order of ids"))?;
        self.nodes = nodes;
        self.to_come = to_come;
        self.events = events;
        self.pue = meter.prices().pue;
        self.meter = meter;
        self.room = room;
        self.log = log;
        self.happened = happened;
        Ok(())
    }
}

impl JobImage {
    fn of(job: &WorldJob) -> Self {
        let WorldJob { job: _, done, told, run, epoch, starts, energy, bill } = job;
        Self {
            done: *done,
            told: told.clone(),
            run: run.clone(),
            epoch: *epoch,
            starts: *starts,
            energy: *energy,
            bill: *bill,
        }
    }

    fn with(self, job: Arc<Job>) -> WorldJob {
        let Self { done, told, run, epoch, starts, energy, bill } = self;
        WorldJob { job, done, told, run, epoch, starts, energy, bill }
    }
}

impl WorldImage {
    fn knows(&self, id: JobId) -> bool {
        self.jobs.binary_search_by_key(&id, |(id, _)| *id).is_ok()
    }

    /// Everything that is named is there.
    fn check(&self, world: &World) -> Result<(), ImageError> {
        let cluster = &world.cluster;
        let nodes = cluster.nodes();
        require(
            self.nodes.len() == nodes.len() && self.room.fits(cluster),
            "a cluster with other nodes",
        )?;
        let (job, node) = (|id: JobId| self.knows(id), |id: NodeId| id.index() < self.nodes.len());
        let resident = |state: &WorldNode| state.residents.iter().all(|(id, _)| job(*id));
        let fits = self.nodes.iter().zip(nodes);
        let mut fits = fits.map(|(state, node)| state.busy <= node.gpus.into() && resident(state));
        require(fits.all(|fits| fits), "jobs that a node cannot have")?;
        let known = self.to_come.iter().all(|happening| match happening {
            Happening::Starts(id, _)
            | Happening::Finishes(id, _)
            | Happening::Leaves(id, _)
            | Happening::Saved(id, _)
            // Of a job that was forgotten nothing comes any more.
            | Happening::Measured(id, _) => *id < self.next_job,
            Happening::Booted(id, _)
            | Happening::Asleep(id, _)
            | Happening::Fails(id)
            | Happening::Repaired(id) => node(*id),
        });
        require(known, "something unknown is to come")?;
        let placements = self.jobs.iter().flat_map(|(_, job)| {
            let told = job.told.as_ref().map(|told| &told.1);
            told.into_iter().chain(job.run.as_ref().map(|run| &run.placement))
        });
        let there = { placements }.all(|placement| {
            placement.configuration.gpu_type.index() < cluster.gpu_types().len()
                && placement.allocation.shares().all(|share| {
                    let node = nodes.get(share.node.index());
                    node.is_some_and(|node| share.mask & !mask_of(node.gpus) == 0)
                })
        });
        require(there, "a job runs on GPUs that are not there")
    }
}
