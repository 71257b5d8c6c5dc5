//! What the nodes' meters show, looked at once in a while: nobody asks more often.

use super::metered::Metered;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wattline_core::Timestamp;
use wattline_core::cluster::Cluster;
use wattline_core::units::{Joules, Watts};

const EVERY: Duration = Duration::from_secs(1);

/// One node's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeGauge {
    /// What it has drawn, if that is measured.
    pub energy: Option<Joules>,
    /// The limits in force, by GPU, as far as they are read back.
    pub limits: Vec<(u8, Watts)>,
}

/// All nodes'.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    last: Arc<[NodeGauge]>,
    looked: Option<Instant>,
}

impl Gauges {
    /// What they show, or showed a moment ago.
    pub(super) fn look(
        &mut self,
        cluster: &Cluster,
        meters: &impl Metered,
        now: Timestamp,
    ) -> Arc<[NodeGauge]> {
        if self.looked.is_none_or(|looked| looked.elapsed() >= EVERY) {
            let look = |node| NodeGauge {
                energy: meters.node_energy(node, now),
                limits: meters.node_limits(node),
            };
            self.last = cluster.node_ids().map(look).collect();
            self.looked = Some(Instant::now());
        }
        Arc::clone(&self.last)
    }
}
