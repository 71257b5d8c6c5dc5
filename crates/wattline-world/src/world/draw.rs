//! What the cluster draws: the power of nodes on the meter, and each job's part of it.

use super::World;
use crate::meter::PowerSplit;
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::cluster::{Cluster, NodeDraw};
use wattline_core::ids::{JobId, NodeId};
use wattline_core::placement::Placement;
use wattline_core::power::{self, NodePower, Part};
use wattline_core::prices::Prices;
use wattline_core::units::Watts;

impl World {
    /// From now on energy costs this.
    pub fn set_prices(&mut self, now: Timestamp, prices: Prices) {
        for job in self.jobs.values_mut() {
            job.settle(now, self.meter.prices());
        }
        self.pue = prices.pue;
        self.meter.set_prices(now, prices);
        for id in 0..self.nodes.len() as u32 {
            self.draw(now, NodeId(id));
        }
        let running: Vec<JobId> =
            self.jobs.iter().filter(|(_, job)| job.run.is_some()).map(|(id, _)| id).collect();
        for id in running {
            self.attribute(now, id);
        }
    }

    /// From now on this is the budget that the meter looks at.
    pub fn set_budget(&mut self, now: Timestamp, budget: Option<Calendar<Watts>>) {
        self.meter.set_budget(now, budget);
    }

    /// Brings the power of a job's nodes, and the job's own part of it, up to date.
    pub(super) fn draw_job(&mut self, now: Timestamp, id: JobId, placement: &Placement) {
        for share in placement.allocation.shares() {
            self.draw(now, share.node);
        }
        self.attribute(now, id);
    }

    /// Brings a node's power up to date.
    pub(super) fn draw(&mut self, now: Timestamp, id: NodeId) {
        let split = self.split(id);
        let node = &mut self.nodes[id.index()];
        let old = std::mem::replace(&mut node.split, split);
        let (energy, since) = node.energy;
        node.energy = (energy + old.drawn() * now.since(since), now);
        self.meter.change(now, &old, &split);
        let busy = (node.power == NodePower::Up).then_some(node.busy);
        self.room.change(&self.cluster, now, id, busy);
        // Where the node's power is not a sum over its GPUs, a neighbour changes everyone's part.
        if let NodeDraw::ByBusyGpus(_) = &self.cluster.node(id).draw {
            for at in 0..self.nodes[id.index()].residents.len() {
                let job = self.nodes[id.index()].residents[at].0;
                self.attribute(now, job);
            }
        }
    }

    fn split(&self, id: NodeId) -> PowerSplit {
        let state = &self.nodes[id.index()];
        let jobs = state.residents.iter().filter_map(|(job, count)| {
            let run = self.jobs[*job].run.as_ref()?;
            Some(run.per_gpu * f64::from(*count))
        });
        node_split(&self.cluster, id, state.power, (state.busy, jobs.sum()), self.pue)
    }

    /// Settles a job's energy and recomputes its part of its nodes' power.
    fn attribute(&mut self, now: Timestamp, id: JobId) {
        let Some(run) = &self.jobs[id].run else {
            return;
        };
        let power = run.placement.allocation.shares().fold(Part::default(), |sum, share| {
            let busy = self.nodes[share.node.index()].busy;
            let node = self.cluster.node(share.node);
            sum + power::part(node, busy, share.count(), run.per_gpu, self.pue)
        });
        let job = &mut self.jobs[id];
        job.settle(now, self.meter.prices());
        if let Some(run) = &mut job.run {
            run.power = power;
        }
    }
}

/// What a node draws in that state of power, with so many GPUs busy that draw so much together.
pub(crate) fn node_split(
    cluster: &Cluster,
    id: NodeId,
    power: NodePower,
    (busy, jobs): (u32, Watts),
    pue: f64,
) -> PowerSplit {
    let node = cluster.node(id);
    let mut split = PowerSplit::default();
    let mut pue = pue;
    match (power, &node.draw) {
        (NodePower::Down, _) => {}
        (NodePower::Asleep, _) => split.sleep = node.sleep,
        (NodePower::Booting, _) => split.boot = node.boot,
        (power, NodeDraw::Additive { base }) => {
            let idle = u32::from(node.gpus).saturating_sub(busy);
            let idle = cluster.gpu_type(node.gpu_type).idle * f64::from(idle);
            if power == NodePower::FallingAsleep {
                split.boot = *base + idle;
            } else {
                split.base = *base;
                split.idle = idle;
                split.jobs = jobs;
            }
        }
        (_, NodeDraw::ByBusyGpus(table)) => {
            let entry = table[(busy as usize).min(table.len() - 1)];
            pue = entry.pue;
            if busy > 0 {
                split.jobs = entry.watts;
            } else {
                split.idle = entry.watts;
            }
        }
    }
    split.billed = split.drawn() * pue;
    split
}
