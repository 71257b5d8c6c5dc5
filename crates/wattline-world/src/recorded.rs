//! What a cluster drew that ran as somebody wrote down, by the same reckoning as the world's.

use crate::meter::{Meter, PowerSplit};
use crate::world::node_split;
use std::collections::BTreeMap;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::cluster::Cluster;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::placement::Allocation;
use wattline_core::power::NodePower;
use wattline_core::prices::Prices;
use wattline_core::units::Watts;

/// Something that changed what a cluster draws.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A job has left its GPUs.
    Left(JobId),
    /// A node became so.
    Node(NodeId, NodePower),
    /// A job holds these GPUs from now on, and each of them draws so much.
    Holds(JobId, Allocation, Watts),
    /// Energy costs this.
    Prices(Prices),
    /// This is allowed.
    Budget(Option<Calendar<Watts>>),
}

struct Node {
    power: NodePower,
    residents: BTreeMap<JobId, (u32, Watts)>,
    split: PowerSplit,
}

/// A meter on a cluster that is told what happened, in the order in which it did.
pub struct Recorded {
    cluster: Arc<Cluster>,
    nodes: Vec<Node>,
    held: BTreeMap<JobId, Allocation>,
    pue: f64,
    meter: Meter,
}

impl Recorded {
    /// A cluster with all nodes up and idle.
    #[must_use]
    pub fn new(
        cluster: Arc<Cluster>,
        now: Timestamp,
        prices: Prices,
        budget: Option<Calendar<Watts>>,
    ) -> Self {
        let node = |_| Node {
            power: NodePower::Up,
            residents: BTreeMap::new(),
            split: PowerSplit::default(),
        };
        let mut recorded = Self {
            nodes: cluster.node_ids().map(node).collect(),
            cluster,
            held: BTreeMap::new(),
            pue: prices.pue,
            meter: Meter::new(now, prices, budget),
        };
        recorded.draw_all(now);
        recorded
    }

    /// Something changed.
    pub fn apply(&mut self, now: Timestamp, change: Change) {
        match change {
            Change::Left(job) => self.leave(now, job),
            Change::Node(id, power) => {
                if let Some(node) = self.nodes.get_mut(id.index()) {
                    node.power = power;
                    self.draw(now, id);
                }
            }
            Change::Holds(job, allocation, per_gpu) => {
                self.leave(now, job);
                for share in allocation.shares() {
                    if let Some(node) = self.nodes.get_mut(share.node.index()) {
                        node.residents.insert(job, (share.count(), per_gpu));
                        self.draw(now, share.node);
                    }
                }
                self.held.insert(job, allocation);
            }
            Change::Prices(prices) => {
                self.pue = prices.pue;
                self.meter.set_prices(now, prices);
                self.draw_all(now);
            }
            Change::Budget(budget) => self.meter.set_budget(now, budget),
        }
    }

    /// What was metered until then.
    #[must_use]
    pub fn close(mut self, now: Timestamp) -> Meter {
        self.meter.advance(now);
        self.meter
    }

    fn leave(&mut self, now: Timestamp, job: JobId) {
        let Some(allocation) = self.held.remove(&job) else { return };
        for share in allocation.shares() {
            if let Some(node) = self.nodes.get_mut(share.node.index()) {
                node.residents.remove(&job);
                self.draw(now, share.node);
            }
        }
    }

    fn draw_all(&mut self, now: Timestamp) {
        for id in 0..self.nodes.len() as u32 {
            self.draw(now, NodeId(id));
        }
    }

    fn draw(&mut self, now: Timestamp, id: NodeId) {
        let node = &mut self.nodes[id.index()];
        let busy = node.residents.values().map(|(count, _)| count).sum();
        let jobs = node.residents.values().map(|(count, watts)| *watts * f64::from(*count)).sum();
        let split = node_split(&self.cluster, id, node.power, (busy, jobs), self.pue);
        let old = std::mem::replace(&mut node.split, split);
        self.meter.change(now, &old, &split);
    }
}
