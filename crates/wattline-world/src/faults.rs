//! What goes wrong on purpose.

use crate::noise::hash;
use rand_distr::Exp;
use wattline_core::ids::NodeId;
use wattline_core::units::Seconds;

/// Nodes that are slower than others, for good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stragglers {
    /// Share of nodes.
    pub share: f64,
    /// How many times longer everything takes there.
    pub slowdown: f64,
}

impl Stragglers {
    pub(crate) fn slowdown_of(self, seed: u64, node: NodeId) -> f64 {
        let luck = hash(seed, &[0x510, u64::from(node.0)]) as f64 / u64::MAX as f64;
        if luck < self.share { self.slowdown } else { 1.0 }
    }
}

/// Nodes that fail and come back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Mean time between failures of a node.
    pub mean_time_between: Seconds,
    /// Time until it is back.
    pub repair: Seconds,
}

impl Faults {
    pub(crate) fn distribution(self) -> Exp<f64> {
        let rate = 1.0 / self.mean_time_between.get().max(1.0);
        Exp::new(rate).unwrap_or_else(|_| unreachable!("the rate is positive and finite"))
    }
}
