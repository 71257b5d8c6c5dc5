//! Free GPUs over time, and how many of them lie scattered.
//!
//! A node that is up and used in part leaves free GPUs that no job of a whole node can have. Some
//! of that cannot be helped: the jobs that run fill no whole number of nodes. What could be helped
//! is fragmentation: GPUs that would be whole free nodes if the same jobs sat closer together.

use serde::{Deserialize, Serialize};
use wattline_core::Timestamp;
use wattline_core::cluster::Cluster;
use wattline_core::ids::NodeId;

/// What a node has free when it is up; nothing otherwise.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Free {
    gpus: u32,
    /// Whether somebody is on it.
    used: bool,
}

/// Integrates free and scattered GPUs over time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Room {
    now: Timestamp,
    nodes: Vec<Free>,
    /// By GPU type: free GPUs of nodes that are up, and of these on nodes used in part.
    free: Vec<(u32, u32)>,
    /// GPU-seconds.
    free_time: f64,
    scattered_time: f64,
}

impl Room {
    /// Nothing is free yet.
    #[must_use]
    pub fn new(cluster: &Cluster, now: Timestamp) -> Self {
        Self {
            now,
            nodes: vec![Free::default(); cluster.nodes().len()],
            free: vec![(0, 0); cluster.gpu_types().len()],
            free_time: 0.0,
            scattered_time: 0.0,
        }
    }

    /// Whether it is of a cluster of this size.
    pub(crate) fn fits(&self, cluster: &Cluster) -> bool {
        self.nodes.len() == cluster.nodes().len() && self.free.len() == cluster.gpu_types().len()
    }

    /// Runs on to `to`.
    pub fn advance(&mut self, cluster: &Cluster, to: Timestamp) {
        let seconds = to.since(self.now).get();
        if seconds > 0.0 {
            for (gpu_type, (free, on_used)) in cluster.gpu_type_ids().zip(&self.free) {
                let size = cluster.largest_node(gpu_type).max(1);
                self.free_time += f64::from(*free) * seconds;
                self.scattered_time += f64::from(on_used / size * size) * seconds;
            }
            self.now = to;
        }
    }

    /// So many GPUs of a node are busy from now on, if it is up.
    pub fn change(&mut self, cluster: &Cluster, now: Timestamp, id: NodeId, busy: Option<u32>) {
        self.advance(cluster, now);
        let node = cluster.node(id);
        let new = busy.map_or_else(Free::default, |busy| Free {
            gpus: u32::from(node.gpus).saturating_sub(busy),
            used: busy > 0,
        });
        let old = std::mem::replace(&mut self.nodes[id.index()], new);
        let (free, on_used) = &mut self.free[node.gpu_type.index()];
        *free = *free + new.gpus - old.gpus;
        let part = |free: Free| if free.used { free.gpus } else { 0 };
        *on_used = *on_used + part(new) - part(old);
    }

    /// Of the GPU-seconds that were free on nodes that were up, the share that would have been
    /// whole free nodes had jobs sat closer together, and was not.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        if self.free_time > 0.0 { self.scattered_time / self.free_time } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use wattline_core::cluster::{Node, NodeDraw};
    use wattline_core::ids::GpuTypeId;
    use wattline_core::units::{Seconds, Watts};

    fn four_nodes() -> Cluster {
        let node = Node {
            name: "node".into(),
            gpu_type: GpuTypeId(0),
            gpus: 8,
            draw: NodeDraw::Additive { base: Watts::new(100.0) },
            sleep: Watts::ZERO,
            boot: Watts::ZERO,
            boot_time: Seconds::ZERO,
            shutdown_time: Seconds::ZERO,
            rack: 0,
        };
        let card = Catalogue::built_in().gpus()[0].gpu_type();
        Cluster::new(vec![card], vec![node; 4]).unwrap()
    }

    fn after_ten_seconds(busy: [Option<u32>; 4]) -> f64 {
        let cluster = four_nodes();
        let mut room = Room::new(&cluster, Timestamp::ZERO);
        for (id, busy) in cluster.node_ids().zip(busy) {
            room.change(&cluster, Timestamp::ZERO, id, busy);
        }
        room.advance(&cluster, Timestamp::from_seconds(10.0));
        room.fragmentation()
    }

    #[test]
    fn what_cannot_be_helped_is_no_fragmentation() {
        assert_eq!(after_ten_seconds([Some(0); 4]), 0.0);
        assert_eq!(after_ten_seconds([Some(8); 4]), 0.0);
        // Five GPUs in use leave three that are no whole node however jobs sit.
        assert_eq!(after_ten_seconds([Some(5), Some(0), Some(0), Some(0)]), 0.0);
        assert_eq!(after_ten_seconds([Some(8), Some(7), Some(7), Some(7)]), 0.0);
    }

    #[test]
    fn jobs_on_two_half_empty_nodes_could_leave_one_empty() {
        assert_eq!(after_ten_seconds([Some(4), Some(4), Some(8), Some(8)]), 1.0);
        assert_eq!(after_ten_seconds([Some(4), Some(4), Some(0), Some(8)]), 0.5);
        // Nodes that sleep have nothing free.
        assert_eq!(after_ten_seconds([Some(4), Some(4), None, None]), 1.0);
        assert_eq!(after_ten_seconds([Some(1), Some(1), Some(1), Some(1)]), 24.0 / 28.0);
    }
}
